"""What is printed when no configuration meets the SLA: every rejection, nearest miss first."""

from __future__ import annotations

from typing import Any

from sizing.answer import rejection_json
from sizing.commands.options import write_json
from sizing.errors import NoFeasiblePlan


class Reported(NoFeasiblePlan):
    """No configuration meets the SLA, with the report that says so and what would have to give."""

    def __init__(self, error: NoFeasiblePlan, report: dict[str, Any]) -> None:
        super().__init__(str(error), error.rejected)
        self.report = report


def show(error: NoFeasiblePlan, json_: bool) -> None:
    """The rejections as a table, or as JSON without any count."""
    if json_:
        rejected = [rejection_json(rejection) for rejection in error.rejected]
        report = {"report": error.report} if isinstance(error, Reported) else {}
        write_json({"feasible": False, "why": str(error), "rejected": rejected, **report})
    else:
        from sizing.printing import print_rejections  # costs rich, which JSON does without

        print_rejections(error.rejected)
