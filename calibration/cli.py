"""The command line: ``python -m calibration run | list | show | resume | export | serve``."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from calibration import run as sweep
from calibration.errors import CalibrationError
from calibration.plan import read_plan
from calibration.progress import Bar, table
from calibration.store import Run, Store
from sizing.curves import write_points
from sizing.errors import SizingError

BAD_INPUT = 2
INTERRUPTED = 130


class Commands(click.Group):
    """A group whose every error is one line on stderr, and whose `serve` is loaded only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "serve"]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name == "serve":
            from calibration import serve

            return serve.serve
        return super().get_command(ctx, name)

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            super().main(*args, **(extra | {"standalone_mode": False}))
        except click.ClickException as error:
            _fail(error.format_message())
        except (CalibrationError, SizingError) as error:
            _fail(str(error))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        sys.exit(0)


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(BAD_INPUT)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
run_number = click.argument("run_id", metavar="RUN", type=int)


@click.group(cls=Commands, no_args_is_help=False)
def main() -> None:
    """Measure an LLM server: latency and requests/s at rising load, kept as points for `python -m sizing`."""


@main.command("run")
@click.argument("plan", type=click.Path(path_type=Path))
@as_json
def run_command(plan: Path, as_json: bool) -> None:
    """Measure every load level of PLAN, a YAML file.

    \b
    Example: python -m calibration run plan.yaml
      server: {url: 127.0.0.1:8001, model: ensemble}
      lengths: [{isl: 2000, osl: 256}]
      concurrency: [1, 4, 16, 64]
    """
    file = read_plan(plan)
    _sweep(lambda store, bar: sweep.run(file, store, bar), as_json)


@main.command("resume")
@run_number
@as_json
def resume_command(run_id: int, as_json: bool) -> None:
    """Measure the levels of RUN that have no point yet.

    \b
    Example: python -m calibration resume 3
    """
    _sweep(lambda store, bar: sweep.resume(run_id, store, bar), as_json)


@main.command("list")
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
        click.echo(f"{run.id:4}  {run.state:11}  {run.points:3} of {run.levels:3} points  {run.created}  {run.label}")


@main.command("show")
@run_number
@as_json
def show_command(run_id: int, as_json: bool) -> None:
    """State and points of RUN.

    \b
    Example: python -m calibration show 3
    """
    _show(Store(), run_id, as_json)


@main.command("export")
@run_number
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; stdout if not given.")
@as_json
def export_command(run_id: int, out: Path | None, as_json: bool) -> None:
    """The points of RUN as a CSV points table, which `python -m sizing --points` reads.

    \b
    Example: python -m calibration export 3 --out points.csv
    """
    points = Store().points(run_id)
    text = StringIO()
    if as_json:
        text.write(json.dumps([asdict(point) for point in points]) + "\n")
    else:
        write_points(points, text)
    if out is None:
        click.echo(text.getvalue(), nl=False)
        return
    try:
        out.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--out {out}: cannot be written ({error.strerror})") from None
    click.echo(f"{len(points)} points written to {out}", err=True)


def _sweep(start: Callable[[Store, Bar], int], as_json: bool) -> None:
    store = Store()
    with Bar(Console(stderr=True)) as bar, _interruptible(bar):
        run_id = start(store, bar)
    _show(store, run_id, as_json)


@contextmanager
def _interruptible(bar: Bar) -> Iterator[None]:
    """Ctrl-C leaves one line that says how to go on."""
    if threading.current_thread() is threading.main_thread():
        # a run started in the background has SIGINT ignored; it too can be interrupted and resumed
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def _show(store: Store, run_id: int, as_json: bool) -> None:
    run, points = store.run(run_id), store.points(run_id)
    if as_json:
        click.echo(json.dumps(_run_facts(run) | {"points": [asdict(point) for point in points]}))
        return
    click.echo(f"run {run.id}: {run.state}, {run.points} of {run.levels} points, {run.label}, {run.created}")
    if run.error:
        click.echo(f"it stopped with: {run.error}")
    click.echo(table(points), nl=False)


def _run_facts(run: Run) -> dict[str, object]:
    facts = asdict(run)
    return facts | {"run": facts.pop("id"), "points": run.points}
