"""What was measured elsewhere comes home: points for the app, and runs, step times and facts for whoever looks closer.

    python -m lab.gpu.home measured.tar.gz --name h200

writes data/curves/NAME.csv (closed and open loops asked of `tensorrt_llm`, which the app shows as measured) and
data/gpu/NAME/: facts.json, passes.csv, gpu.csv, points.csv (all, also repeats and the ensemble), and for each run
a run-N.zip with its single requests, which `python -m calibration import` takes into a store.
"""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from calibration.store import Store
from calibration.store.bundle import export_bundle
from lab.gpu.kept import DATABASE
from sizing.files import written
from sizing.points import Point, write_points

DATA = written("data")
ENSEMBLE, AGAIN = " ensemble", " again"
MOST_PASSES = 20_000


@click.command()
@click.argument("archive", type=click.Path(exists=True, path_type=Path))
@click.option("--name", required=True, help="What the files are called, for instance h200.")
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="Folder of curves/ and gpu/.")
@click.option("--rehearsal", is_flag=True, help="Take what was measured with --small all the same.")
def home(archive: Path, name: str, data: Path, rehearsal: bool) -> None:
    """Bring ARCHIVE, a measured.tar.gz, into the project's data."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        with tarfile.open(archive) as file:
            file.extractall(work, filter="data")
        facts = json.loads((work / "facts.json").read_text())
        if facts.get("is_small") and not rehearsal:
            raise click.ClickException(f"{archive} was measured with --small: it is a rehearsal and no GPU's")
        click.echo(bring(work, name, data))


def bring(work: Path, name: str, data: Path) -> str:
    """Write what the unpacked archive `work` holds into `data`; what was written, in a line."""
    target, curves = data / "gpu" / name, data / "curves"
    target.mkdir(parents=True, exist_ok=True)
    curves.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{work / DATABASE}")
    every: list[Point] = []
    shown: list[Point] = []
    for run in reversed(store.runs()):
        points = store.points(run.id, as_measured=True)
        every += points
        if not run.label.endswith((ENSEMBLE, AGAIN)):
            shown += points
        if points:
            export_bundle(store, run.id, target / f"run-{run.id}.zip")
    _write(every, target / "points.csv")
    _write(shown, curves / f"{name}.csv")
    shutil.copyfile(work / "facts.json", target / "facts.json")
    if (work / "gpu.csv").exists():
        shutil.copyfile(work / "gpu.csv", target / "gpu.csv")
    passes = _passes(sorted(work.glob("steps-*.csv")), target / "passes.csv")
    return f"{len(shown)} points in {curves / name}.csv, {len(every)} and {passes} timed passes in {target}"


def _write(points: Sequence[Point], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        write_points(points, file)


def _passes(files: Sequence[Path], target: Path) -> int:
    """The step times of all servers in one file, thinned evenly to a number that can be kept; how many it holds."""
    rows = []
    for file in files:
        served = file.stem.removeprefix("steps-").rpartition("-")[0]
        with file.open(newline="") as read:
            rows += [{"served": served, **row} for row in csv.DictReader(read)]
    rows = rows[:: -(-len(rows) // MOST_PASSES) or 1]
    with target.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["served"])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


if __name__ == "__main__":
    home()
