"""The engine, candidate and question that the planner's tests share."""

from __future__ import annotations

import dataclasses

from sizing.catalog import Layout
from sizing.engine import Batching, Replica, StepLaw
from sizing.plans import Candidate
from sizing.question import Question
from sizing.workload import Lengths, Limit, Sla, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3)
BATCHING = Batching("chunked", 256, 8192, 400_000)
SLA = Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.02))


def candidate(tp: int = 1, law: StepLaw = LAW, gpu: str = "g", batching: Batching = BATCHING) -> Candidate:
    """A replica of that law; its error is said to be 5 %."""
    return Candidate("m", gpu, Layout(tp), "bf16", Replica(law, batching), "estimated", "a law given in a test", 0.05)


def question(rate: float = 40.0, sla: Sla = SLA, **values: object) -> Question:
    """Requests of 1,000 and 200 tokens, varying, at `rate`."""
    asked = Question("m", Workload(Lengths(1000, 200, 0.3, 0.5), rate), sla)
    return dataclasses.replace(asked, **values)  # type: ignore[arg-type]
