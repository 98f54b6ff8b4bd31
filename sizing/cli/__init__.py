"""The planner's command line: ``python -m sizing COMMAND``. Each command is loaded when it is used.

Exit 0 answered, 1 `watch` found a fleet outside its plan, 2 bad input or no answer within --time-limit, 3 no
configuration meets the SLA.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import click

from sizing.errors import SizingError
from sizing.lazy_group import BAD_INPUT, INTERRUPTED, Commands, fail, missing_extra

COMMANDS = {
    "plan": ("sizing.cli.plan:plan_command", "How many GPUs for a load under an SLA."),
    "capacity": ("sizing.cli.fleets:capacity_command", "The load that an existing fleet can carry."),
    "share": ("sizing.cli.fleets:share_command", "How many GPUs for several workloads on one fleet."),
    "predict": ("sizing.cli.laws:predict_command", "Latency percentiles of one deployment at a load."),
    "fit": ("sizing.cli.laws:fit_command", "Fit the iteration-time law to measured points."),
    "simulate": ("sizing.cli.laws:simulate_command", "Simulate a fleet with a given iteration-time law."),
    "sessions": ("sizing.cli.laws:sessions_command", "Conversations and agents on a prefix cache."),
    "report": ("sizing.cli.saved:report_command", "A saved plan as HTML, PDF, XLSX or JSON."),
    "deploy": ("sizing.cli.saved:deploy_command", "A saved plan as files that start its servers."),
    "whatif": ("sizing.cli.whatif:whatif_command", "The plan before and after unmeasured changes."),
    "study": ("sizing.cli.study:study_command", "Thousands of scenarios, on all cores or a Dask cluster."),
    "demand": ("sizing.cli.demand:demand_command", "A model of recorded demand, and traces drawn from it."),
    "watch": ("calibration.watch:watch_command", "Whether live servers perform as planned."),
    "batcher": (
        "triton_tools.batcher_command:batcher_command",
        "Triton's dynamic batcher: waiting times, batch sizes, tuning.",
    ),
    "lesson": ("learn.lesson_command:lesson_command", "What batching does, slot by slot and tick by tick."),
    "course": ("learn.course_command:course_command", "Sizing by a mean latency and the best measured point."),
    "validate": (
        "validation.evidence.command:validate_command",
        "Check every accuracy claim again, in one table.",
    ),
    "bench": ("validation.bench:bench_command", "The speed of this planner on this machine."),
}
"""Name -> where the command is, and its line in the list of commands, which loads none of them."""


@click.group(cls=Commands, table=COMMANDS, no_args_is_help=False)
def cli() -> None:
    """How many GPUs for N requests/s of this model under this latency SLA?

    Every command has --help with examples, and --json.
    """


def main(arguments: list[str] | None = None, program: str = "python -m sizing") -> NoReturn:
    """Run the command line; every expected error is one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, prog_name=program, standalone_mode=False)
    except (SizingError, click.ClickException) as error:
        if hasattr(error, "rejected"):
            import_module("sizing.cli.plan").show(error, json_="--json" in arguments)
        fail(error, error.exit_code if isinstance(error, SizingError) else BAD_INPUT)
    except ModuleNotFoundError as error:
        fail(missing_extra(error), BAD_INPUT)
    except click.Abort:
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
