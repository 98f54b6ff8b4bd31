"""``python -m calibration COMMAND``, or the script ``sizing-calibrate``. Each command is loaded when it is used."""

from __future__ import annotations

import os

import click

# As in `sizing.__main__`: on several cores `size` used five times as much CPU, most of it in waiting threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from calibration.errors import CalibrationError
from sizing.errors import SizingError
from sizing.lazy_group import Commands

COMMANDS = {
    "size": (
        "calibration.size:size_command",
        "Measure the server at a URL and plan from it: a GPU count in one command.",
    ),
    "run": ("calibration.commands:run_command", "Measure the load levels of a plan (a YAML file)."),
    "resume": ("calibration.commands:resume_command", "Measure the levels of a run that have no point yet."),
    "list": ("calibration.commands:list_command", "List all runs, newest first."),
    "show": ("calibration.commands:show_command", "Show the state and the points of a run."),
    "accept": ("calibration.commands:accept_command", "Use the points of a run in answers."),
    "discard": ("calibration.commands:discard_command", "Use the points of a run in no answer; they are kept."),
    "check": ("calibration.check:check_command", "Measure two levels of an old run again: does it still hold?"),
    "export": (
        "calibration.commands:export_command",
        "Write the points of a run as CSV or JSON, or the whole run as a .zip.",
    ),
    "import": (
        "calibration.commands:import_command",
        "Read points from an exported run, a table or another tool's file.",
    ),
    "bench": (
        "triton_tools.clients.commands:bench",
        "Run the TensorRT-LLM backend's benchmark clients, with their flags and tables.",
    ),
    "compare": ("triton_tools.clients.commands:compare", "Measure how much faster one model is than another."),
    "mock": ("lab.mock.__main__:main", "Start a mock of Triton and of an OpenAI server, with known timings."),
    "serve": ("lab.serve:serve", "Start a real Triton or vLLM with a small real model, without a GPU."),
    "repository": ("triton_tools.repository.commands:repository", "Build, fill and check Triton model repositories."),
}
"""Name -> where the command is, and its line in the list of commands, which loads none of them."""


@click.group(cls=Commands, table=COMMANDS, errors=(CalibrationError, SizingError), no_args_is_help=False)
def main() -> None:
    """Measure an LLM server: latency and requests/s at rising load, kept as points for `python -m sizing`."""


if __name__ == "__main__":
    main()
