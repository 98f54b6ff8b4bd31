"""The fleet before and after changes nobody has measured, with the assumptions the second one stands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.capacity import BY_SIMULATION, Method
from sizing.errors import DoesNotFit
from sizing.plan import Candidate, Fleet, Question, Rejection
from sizing.planner import size
from sizing.prediction import Method as MethodName
from sizing.whatif.setup import Setup, WhatIf


@dataclass(frozen=True, slots=True)
class Comparison:
    """`before`: the candidate as it is; `after`: with all changes; each a fleet, or why there is none.

    `question` is the one asked; `setup` holds the changed candidate and question; where memory lacks, those reached
    before the change that failed. `sized_by`: formula or simulation, both fleets alike.
    """

    question: Question
    before: Fleet | Rejection
    after: Fleet | Rejection
    setup: Setup
    sized_by: MethodName

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the answer after the changes rests on, one line each."""
        return self.setup.assumptions


def what_if(
    question: Question, candidate: Candidate, changes: Sequence[WhatIf], method: Method = BY_SIMULATION
) -> Comparison:
    """Size `candidate` as it is and with `changes` made in their order.

    A change that leaves no room for one request is a rejection; raises ScenarioError for one that cannot be made.

    >>> from sizing.estimate import estimate
    >>> from sizing.capacity import BY_FORMULA
    >>> from sizing.plan import Question
    >>> from sizing.whatif import AtPrecision
    >>> from sizing.workload import Lengths, Limit, Sla, Workload
    >>> question = Question("Qwen/Qwen3-32B", Workload(Lengths(2000, 256), 20), Sla(itl=Limit.parse("itl", "p95:30ms")))
    >>> bf16 = estimate("Qwen/Qwen3-32B", "h200_sxm", 2, "bf16", question.workload.lengths)
    >>> found = what_if(question, bf16, [AtPrecision("fp8")], BY_FORMULA)
    >>> found.after.gpus < found.before.gpus
    True
    """
    setup = Setup(candidate, question)
    before = size(question, candidate, method)
    for change in changes:
        try:
            setup = change.apply(setup)
        except DoesNotFit as error:
            lost = Rejection(candidate.gpu, candidate.tp, candidate.precision, "memory", str(error))
            return Comparison(question, before, lost, setup, method.name)
    same = setup.candidate == candidate and setup.question == question
    after = before if same else size(setup.question, setup.candidate, method)
    return Comparison(question, before, after, setup, method.name)
