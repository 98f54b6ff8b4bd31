"""Checks before a built repository is served: its faults, and options that contradict it."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from calibration.errors import RepositoryError
from triton_tools.repository.check import check

SAID_BY_REPOSITORY = ("batching", "policy", "kv_reuse")


def look_through(repository: Path) -> None:
    """Print the faults of `repository`, one line each, as `repository check` does.

    Raises:
        RepositoryError: Triton would not load it.
    """
    faults = check(repository)
    for fault in faults:
        click.echo(str(fault), err=True)
    fatal = [fault for fault in faults if fault.severity == "error" and not fault.is_ours]
    if fatal:
        raise RepositoryError(f"tritonserver would not load {repository}: {len(fatal)} errors, named above")


def refuse_what_it_says_itself(context: click.Context) -> None:
    """Raises UsageError if an option was given that the repository itself determines."""
    for name in SAID_BY_REPOSITORY:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} and --repository exclude each other: the repository determines it")
