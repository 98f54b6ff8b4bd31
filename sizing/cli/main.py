"""The planner's command line: ``python -m sizing COMMAND``. Each command is loaded when it is used.

Exit 0 answered, 2 bad input or no answer within --time-limit, 3 no configuration meets the SLA.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import click

from sizing.errors import SizingError
from sizing.extras import missing_extra
from sizing.faults import one_line

COMMANDS = {
    "plan": ("sizing.cli.plan:plan_command", "How many GPUs for a load under an SLA."),
    "capacity": ("sizing.cli.fleets:capacity_command", "The load that a fleet which exists can carry."),
    "share": ("sizing.cli.fleets:share_command", "How many GPUs for several workloads on one fleet."),
    "predict": ("sizing.cli.laws:predict_command", "Latency percentiles of one deployment at a load."),
    "fit": ("sizing.cli.laws:fit_command", "The iteration-time law of measured points."),
    "simulate": ("sizing.cli.laws:simulate_command", "The simulator itself."),
    "report": ("sizing.cli.report:report_command", "A saved plan as HTML, PDF, XLSX or JSON."),
    "whatif": ("sizing.cli.whatif:whatif_command", "The plan before and after changes nobody has measured."),
    "study": ("sizing.cli.study:study_command", "Thousands of scenarios, on all cores or a Dask cluster."),
    "batcher": ("triton_tools.batcher_command:batcher_command", "Triton's batchers: waiting, batch sizes, tuning."),
    "lesson": ("learn.lesson_command:lesson_command", "What batching does, drawn slot by slot and tick by tick."),
    "course": ("learn.course_command:course_command", "Sizing by a mean latency and the best measured point."),
    "validate": (
        "validation.evidence.command:validate_command",
        "Every claim of accuracy checked again, in one table.",
    ),
    "bench": ("validation.bench:bench_command", "Speeds, side by side in one run."),
}
"""Name -> where the command is, and its line in the list of commands, which loads none of them."""


class Commands(click.Group):
    """A group that loads its commands on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, command = COMMANDS[name][0].partition(":")
        found = getattr(import_module(module), command)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
        fail(error, error.exit_code if isinstance(error, SizingError) else 2)
    except ModuleNotFoundError as error:
        fail(missing_extra(error), 2)
    except click.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def fail(error: Exception, code: int) -> NoReturn:
    """One line on standard error, then the exit code."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(f"error: {one_line(message)}", err=True)
    sys.exit(code)
