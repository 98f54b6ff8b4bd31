"""The commands that bring points in and out: export and import."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import click

from calibration.importers import KINDS
from calibration.incoming import POINTS_TABLE, nothing_said, read_file
from calibration.store import Store
from calibration.store.bundle import export_bundle, import_bundle
from calibration.store.bundle_file import is_bundle
from calibration.store.imported import import_measurements
from calibration.table import table
from sizing.curves import Point, write_points

BUNDLE = ".zip"
DEPLOYMENT: tuple[tuple[str, Any, str], ...] = (
    ("model", str, "model that was served, as in the catalogue"),
    ("precision", str, "precision of its weights, such as bf16 or fp8"),
    ("gpu", str, "GPU, such as h200_sxm"),
    ("tp", int, "GPUs that each replica spreads the model over"),
    ("pp", int, "stages of pipeline parallelism"),
    ("engine", str, "serving engine"),
    ("engine-version", str, "version of the engine"),
    ("batching", str, "in_flight or static"),
    ("max-batch-size", int, "largest batch of the engine"),
    ("isl", float, "mean input tokens, where the file does not say"),
    ("osl", float, "mean output tokens, where the file does not say"),
    ("concurrency", int, "users of the closed loop, where the file does not say"),
    ("rate", float, "requests/s of the open loop, where the file does not say"),
    ("arrivals", str, "poisson, constant or gamma, where the file does not say"),
)


@click.command("export")
@click.argument("run_id", metavar="RUN", type=int)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; stdout if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def export_command(run_id: int, out: Path | None, as_json: bool) -> None:
    """The points of RUN as a CSV points table, which `python -m sizing --points` reads; or all of it as a .zip.

    The .zip holds every request as well, under checksums: `import` takes it into another store.

    \b
    Example: python -m calibration export 3 --out points.csv
             python -m calibration export 3 --out run3.zip
    """
    store = Store()
    if out is not None and out.suffix.lower() == BUNDLE:
        if as_json:
            raise click.UsageError("--json does not go with a .zip, which has a format of its own")
        missing = export_bundle(store, run_id, out)
        lacks = f", without the requests of {missing} points, which lie on another machine" if missing else ""
        click.echo(f"run {run_id} written to {out}{lacks}", err=True)
        return
    points = store.points(run_id)
    text = json.dumps([asdict(point) for point in points]) + "\n" if as_json else _table_of(points)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--out {out}: cannot be written ({error.strerror})") from None
    click.echo(f"{len(points)} points written to {out}", err=True)


def _table_of(points: list[Point]) -> str:
    text = StringIO()
    write_points(points, text)
    return text.getvalue()


def _deployment_options(command: Any) -> Any:
    for name, kind, help_ in reversed(DEPLOYMENT):
        command = click.option(f"--{name}", type=kind, help=f"{help_[0].upper()}{help_[1:]}.")(command)
    return command


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice([POINTS_TABLE, *KINDS]), help="What wrote FILE; else told from its content.")
@_deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def import_command(file: Path, kind: str | None, as_json: bool, **said: Any) -> None:
    """Take FILE into the store: an exported run (.zip), a points table, or the file of another benchmark tool.

    Known are AIPerf, GenAI-Perf, Perf Analyzer, GuideLLM, vLLM bench serve and op_stats_csv. What their files do not
    say of the deployment is given by options.

    \b
    Example: python -m calibration import run3.zip
             python -m calibration import profile_export_aiperf.json --precision fp8 --gpu h200_sxm --tp 1
    """
    store = Store()
    given = {name: value for name, value in said.items() if value is not None}
    if kind is None and is_bundle(file):
        nothing_said("an exported run", given)
        run_id, new = import_bundle(store, file)
    else:
        run_id, new = import_measurements(store, f"imported from {file.name}", read_file(file, kind, given))
    points = store.points(run_id)
    if as_json:
        click.echo(json.dumps({"run": run_id, "new": new, "points": [asdict(point) for point in points]}))
        return
    click.echo(f"run {run_id}: {len(points)} points{'' if new else ', which were in the store already'}")
    click.echo(table(points), nl=False)
