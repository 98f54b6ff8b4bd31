"""A law, a question and fleets sized by formula, for tests of what is drawn from a plan."""

from __future__ import annotations

from dataclasses import replace

from sizing.catalog import Layout
from sizing.edge import BY_FORMULA
from sizing.engine import Batching, Replica, StepLaw
from sizing.planner import size
from sizing.plans import Candidate, Fleet
from sizing.question import Question
from sizing.workload import Lengths, Limit, Sla, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3)
SLA = Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.02))
KV_TOKENS = 400_000


def candidate(tp: int = 1, law: StepLaw = LAW, gpu: str = "g", sigma: float = 0.05) -> Candidate:
    """A fitted candidate of a model and GPU that no catalogue knows."""
    replica = Replica(law, Batching("chunked", 256, 8192, KV_TOKENS))
    return Candidate("acme/m", gpu, Layout(tp), "bf16", replica, "fitted", "a law given in a test", sigma)


def question(rate_per_s: float = 40.0, **values: object) -> Question:
    """Requests of 1,000 in and 200 out under p95 limits."""
    return replace(Question("acme/m", Workload(Lengths(1000, 200), rate_per_s), SLA), **values)  # type: ignore[arg-type]


def fleet(asked: Question, of: Candidate | None = None) -> Fleet:
    """The smallest fleet by formula."""
    found = size(asked, of or candidate(), BY_FORMULA)
    assert isinstance(found, Fleet)
    return found
