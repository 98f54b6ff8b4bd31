"""``python -m calibration COMMAND``, or the script ``sizing-calibrate``. Each command is loaded when it is used."""

from __future__ import annotations

import os

import click

# As in `sizing.__main__`: on several cores `size` spent five times as much CPU, most of it in threads that wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from calibration.errors import CalibrationError
from sizing.errors import SizingError
from sizing.lazy_group import Commands

COMMANDS = {
    "size": ("calibration.size:size_command", "From the URL of a server to a GPU count: measure and plan in one."),
    "run": ("calibration.commands:run_command", "Measure the load levels of a plan, a YAML file."),
    "resume": ("calibration.commands:resume_command", "Measure the levels of a run that have no point yet."),
    "list": ("calibration.commands:list_command", "All runs, newest first."),
    "show": ("calibration.commands:show_command", "State and points of a run."),
    "accept": ("calibration.commands:accept_command", "Let answers rest on the points of a run."),
    "discard": ("calibration.commands:discard_command", "Let no answer rest on the points of a run."),
    "check": ("calibration.check:check_command", "Whether an old calibration still holds: two levels measured again."),
    "export": ("calibration.commands:export_command", "The points of a run as CSV or JSON; all of it as a .zip."),
    "import": ("calibration.commands:import_command", "Points from an exported run, a table or another tool's file."),
    "bench": (
        "triton_tools.clients.commands:bench",
        "The TensorRT-LLM backend's client commands, with their flags and tables.",
    ),
    "compare": ("triton_tools.clients.commands:compare", "How much faster one model is than another."),
    "mock": ("lab.mock.__main__:main", "A mock of Triton with known timings."),
    "serve": ("lab.serve:serve", "A real Triton server with a small real model, without a GPU."),
    "repository": ("triton_tools.repository.commands:repository", "Model repositories: build, fill, check."),
}
"""Name -> where the command is, and its line in the list of commands, which loads none of them."""


@click.group(cls=Commands, table=COMMANDS, errors=(CalibrationError, SizingError), no_args_is_help=False)
def main() -> None:
    """Measure an LLM server: latency and requests/s at rising load, kept as points for `python -m sizing`."""


if __name__ == "__main__":
    main()
