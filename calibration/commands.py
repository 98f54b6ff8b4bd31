"""The commands around runs: run, resume, list, show."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from calibration import run as sweep
from calibration.cli import INTERRUPTED
from calibration.plan import read_plan
from calibration.progress import Bar
from calibration.records import Measurement
from calibration.store import Run, Store
from calibration.table import details, table

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
run_number = click.argument("run_id", metavar="RUN", type=int)


@click.command("run")
@click.argument("plan", type=click.Path(path_type=Path))
@as_json
def run_command(plan: Path, as_json: bool) -> None:
    """Measure the load levels of PLAN, a YAML file.

    \b
    Example: python -m calibration run plan.yaml
      server: {url: 127.0.0.1:8001, model: ensemble, metrics_url: http://127.0.0.1:8002/metrics}
      lengths: [{isl: 2000, osl: 256, isl_cv: 0.5, osl_cv: 0.5}]
      concurrency: [1, 4, 16, 64]
      rates: [3.5]
    """
    file = read_plan(plan)
    _sweep(lambda store, bar: sweep.run(file, store, bar), as_json)


@click.command("resume")
@run_number
@as_json
def resume_command(run_id: int, as_json: bool) -> None:
    """Measure the levels of RUN that have no point yet.

    \b
    Example: python -m calibration resume 3
    """
    _sweep(lambda store, bar: sweep.resume(run_id, store, bar), as_json)


@click.command("list")
@as_json
def list_command(as_json: bool) -> None:
    """All runs, newest first.

    \b
    Example: python -m calibration list
    """
    runs = Store().runs()
    if as_json:
        click.echo(json.dumps([_run_facts(run) for run in runs]))
        return
    if not runs:
        click.echo("no runs yet; start one with: python -m calibration run plan.yaml")
    for run in runs:
        void = f" ({run.void} void)" if run.void else ""
        void += f", {run.pending} not accepted yet" if run.pending else ""
        points = f"{run.points:3} of {run.levels:3} points{void}"
        click.echo(f"{run.id:4}  {run.state:11}  {points}  {run.created}  {run.label}")


@click.command("show")
@run_number
@click.option("--details", "in_detail", is_flag=True, help="Also the client's health and the server's own view.")
@as_json
def show_command(run_id: int, in_detail: bool, as_json: bool) -> None:
    """State and points of RUN.

    \b
    Example: python -m calibration show 3 --details
    """
    _show(Store(), run_id, as_json, in_detail)


def _sweep(start: Callable[[Store, Bar], int], as_json: bool) -> None:
    store = Store()
    with Bar(Console(stderr=True)) as bar, _interruptible(bar):
        run_id = start(store, bar)
    _show(store, run_id, as_json)


@contextmanager
def _interruptible(bar: Bar) -> Iterator[None]:
    """Ctrl-C, or SIGTERM, leaves one line that says how to go on."""
    if threading.current_thread() is threading.main_thread():
        # a run started in the background has SIGINT ignored; it too can be interrupted and resumed
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        bar.close()
        if bar.run_id is None:
            click.echo("interrupted before anything was measured", err=True)
        else:
            click.echo(
                f"interrupted: the points measured are kept, go on with: python -m calibration resume {bar.run_id}",
                err=True,
            )
        sys.exit(INTERRUPTED)


def _show(store: Store, run_id: int, as_json: bool, in_detail: bool = False) -> None:
    run, found = store.run(run_id), store.measurements(run_id)
    if as_json:
        click.echo(json.dumps(_run_facts(run) | {"points": [_facts(item) for item in found]}))
        return
    click.echo(f"run {run.id}: {run.state}, {run.points} of {run.levels} points, {run.label}, {run.created}")
    if run.state == "lost":
        click.echo(f"its process is gone; go on with: python -m calibration resume {run.id}")
    if run.error:
        click.echo(f"it stopped with: {run.error}")
    click.echo(table([item.point for item in found]), nl=False)
    if in_detail:
        click.echo("".join(details(item) for item in found), nl=False)


def _facts(found: Measurement) -> dict[str, Any]:
    return asdict(found.point) | {"facts": dict(found.facts), "server": dict(found.server)}


def _run_facts(run: Run) -> dict[str, object]:
    facts = asdict(run)
    return facts | {"run": facts.pop("id"), "points": run.points}
