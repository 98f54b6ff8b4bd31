"""The question and the engine that the tests of what-ifs start from."""

from __future__ import annotations

from sizing.analyses.whatif import Setup, WhatIf
from sizing.plans import Candidate
from sizing.question import Question
from sizing.workload import Lengths, Limit, Sla, Workload

QWEN = "Qwen/Qwen3-32B"
MIXTURE = "Qwen/Qwen3-235B-A22B"
LENGTHS = Lengths(2000, 256)
SLA = Sla(Limit.parse("ttft", "p95:2s"), Limit.parse("itl", "p95:60ms"))
QUESTION = Question(QWEN, Workload(LENGTHS, 20), SLA)


def after(change: WhatIf, candidate: Candidate) -> Setup:
    return change.apply(Setup(candidate, QUESTION))
