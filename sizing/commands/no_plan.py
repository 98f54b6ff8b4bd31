"""What is printed when no configuration meets the SLA: every rejection, nearest miss first."""

from __future__ import annotations

from sizing.answer import rejection_json
from sizing.commands.options import write_json
from sizing.errors import NoFeasiblePlan
from sizing.printing import print_rejections


def show(error: NoFeasiblePlan, json_: bool) -> None:
    """The rejections as a table, or as JSON without any count."""
    if json_:
        rejected = [rejection_json(rejection) for rejection in error.rejected]
        write_json({"feasible": False, "why": str(error), "rejected": rejected})
    else:
        print_rejections(error.rejected)
