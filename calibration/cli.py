"""The command line: ``python -m calibration COMMAND``. Each command is loaded when it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from calibration.errors import CalibrationError
from sizing.errors import SizingError
from sizing.extras import missing_extra
from sizing.faults import one_line

BAD_INPUT = 2
INTERRUPTED = 130

COMMANDS = {
    "run": "calibration.commands:run_command",
    "resume": "calibration.commands:resume_command",
    "list": "calibration.commands:list_command",
    "show": "calibration.commands:show_command",
    "accept": "calibration.commands:accept_command",
    "discard": "calibration.commands:discard_command",
    "export": "calibration.commands:export_command",
    "import": "calibration.commands:import_command",
    "bench": "triton_tools.clients.commands:bench",
    "compare": "triton_tools.clients.commands:compare",
    "mock": "calibration.mock.__main__:main",
    "serve": "lab.serve:serve",
    "repository": "triton_tools.repository.commands:repository",
}


class Commands(click.Group):
    """A group that loads its commands on use, and whose every error is one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, command = COMMANDS[name].partition(":")
        found = getattr(import_module(module), command)
        assert isinstance(found, click.Command)
        return found

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            super().main(*args, **(extra | {"standalone_mode": False}))
        except click.ClickException as error:
            _fail(error.format_message())
        except (CalibrationError, SizingError) as error:
            _fail(str(error))
        except ModuleNotFoundError as error:
            _fail(str(missing_extra(error)))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        sys.exit(0)


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {one_line(message)}", err=True)
    sys.exit(BAD_INPUT)


@click.group(cls=Commands, no_args_is_help=False)
def main() -> None:
    """Measure an LLM server: latency and requests/s at rising load, kept as points for `python -m sizing`."""
