"""The commands that decide whether answers may rest on the points of a run: accept and discard."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from calibration.commands import as_json, run_number
from calibration.errors import StoreError
from calibration.store import LIVE, Run, Store
from calibration.store.work import accept, discard
from calibration.table import table


@click.command("accept")
@run_number
@as_json
def accept_command(run_id: int, as_json: bool) -> None:
    """Let answers rest on the points of RUN, one that was started on the page or whose points were discarded.

    What the command line measures or imports is accepted as it comes. Look at the points first: `show RUN --details`,
    and the law that they give: `export RUN --out points.csv`, then `python -m sizing fit --points points.csv`.

    \b
    Example: python -m calibration show 3 --details
             python -m calibration accept 3
    """
    _decide(run_id, accept, "accepted", as_json)


@click.command("discard")
@run_number
@as_json
def discard_command(run_id: int, as_json: bool) -> None:
    """Let no answer rest on the points of RUN. They stay in the store, for the record, and can be accepted later.

    \b
    Example: python -m calibration discard 3
    """
    _decide(run_id, discard, "discarded", as_json)


def _decide(run_id: int, decide: Callable[[Store, int], int], word: str, as_json: bool) -> None:
    store = Store()
    run = _ended(store, run_id)
    changed = decide(store, run_id)
    if as_json:
        click.echo(json.dumps({"run": run_id, "standing": word, "points": run.points, "changed": changed}))
        return
    before = "" if changed == run.points else f", {run.points - changed} of them before"
    void = f" ({run.void} void: kept, never fitted)" if run.void else ""
    click.echo(f"run {run_id}: {run.points} points {word}{before}{void}")
    click.echo(table(store.points(run_id)), nl=False)


def _ended(store: Store, run_id: int) -> Run:
    """The run, which has points and is not going on. Raises StoreError."""
    run = store.run(run_id)
    if run.state in LIVE:
        raise StoreError(f"run {run_id} is {run.state}: wait for its end or stop it, then decide on its points")
    if not run.points:
        raise StoreError(f"run {run_id} has no points to decide on: see python -m calibration show {run_id}")
    return run
