"""Bring home what a GPU machine measured: points for the app, and runs, step times and facts for a closer look.

    python -m lab.gpu.home measured.tar.gz --name h200

writes data/curves/NAME.csv (the closed and open loops on `tensorrt_llm`, which the app shows as measured) and
data/gpu/NAME/: facts.json, passes.csv, gpu.csv, points.csv (all points, with repeats and the ensemble), and for each
run a run-N.zip with its individual requests, which `python -m calibration import` reads into a store. For vLLM
(lab.gpu.vllm), points are computed again from the requests, with their round as the source. The requests are kept in
requests.csv.gz without the times of their tokens; the decode steps that these show are in steps.csv.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from calibration.metrics.measurement import measurement
from calibration.plan import Level
from calibration.records import ClientHealth, Load
from calibration.store import Store
from calibration.store.bundle import export_bundle
from calibration.store.records_file import read_log
from lab.gpu.kept import DATABASE
from lab.gpu.steps import decode_steps, write_steps
from sizing.errors import one_line
from sizing.files import parse_yaml, written
from sizing.numbers import count_of
from sizing.points import Point, write_points

DATA = written("data")
ENSEMBLE, AGAIN = " ensemble", " again"
MOST_PASSES = 20_000
FEWEST = 5
"""Least requests of a point that is shown: the first request of an MoE model waits for kernels to be compiled."""
REQUEST_COLUMNS = ("point", "isl", "osl", "sent_s", "due_s", "first_token_s", "last_token_s", "tokens", "counted")
"""The columns of a request; `counted` is whether it is one of those that the point measures."""


@click.command()
@click.argument("archive", type=click.Path(exists=True, path_type=Path))
@click.option("--name", required=True, help="What the files are called, for instance h200.")
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="Folder of curves/ and gpu/.")
@click.option("--rehearsal", is_flag=True, help="Accept the archive of a rehearsal.")
def home(archive: Path, name: str, data: Path, rehearsal: bool) -> None:
    """Bring ARCHIVE, a measured.tar.gz, into the project's data."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        try:
            with tarfile.open(archive) as file:
                file.extractall(work, filter="data")
            facts = json.loads((work / "facts.json").read_text())
        except (tarfile.TarError, OSError, ValueError) as error:
            raise click.UsageError(f"{archive} is not a measured.tar.gz: {one_line(str(error))}") from None
        if facts.get("is_small") and not rehearsal:
            raise click.ClickException(f"{archive} is a rehearsal, not a measurement of a GPU")
        click.echo(bring(work, name, data))


def bring(work: Path, name: str, data: Path) -> str:
    """Write the content of the unpacked archive `work` into `data`; a line about what was written."""
    target, curves = data / "gpu" / name, data / "curves"
    target.mkdir(parents=True, exist_ok=True)
    curves.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{work / DATABASE}")
    facts = json.loads((work / "facts.json").read_text())
    shutil.copyfile(work / "facts.json", target / "facts.json")
    if (work / "gpu.csv").exists():
        shutil.copyfile(work / "gpu.csv", target / "gpu.csv")
    if "runs" in facts:
        return _bring_vllm(store, facts, target, curves / f"{name}.csv", name)
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
    passes = _passes(sorted(work.glob("steps-*.csv")), target / "passes.csv")
    return f"{count_of(len(shown), 'point')} in {curves / name}.csv, {len(every)} and {passes} timed passes in {target}"


def _bring_vllm(store: Store, facts: Mapping[str, dict[str, int]], target: Path, curve: Path, name: str) -> str:
    labels = {run_id: label for label, run_id in facts["runs"].items()}
    taken = [
        (replace(point, source=f"{name}; {_round(labels[run_id])}"), load)
        for run_id in sorted(labels)
        for point, load in taken_anew(store, run_id)
    ]
    points = [point for point, _ in taken]
    _write(points, target / "points.csv")
    write_steps(target / "steps.csv", decode_steps((point, load.log) for point, load in taken))
    shown = [point for point in points if (point.requests or 0) >= FEWEST]
    _write(shown, curve)
    with gzip.open(target / "requests.csv.gz", "wt", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(REQUEST_COLUMNS)
        for number, (_, load) in enumerate(taken):
            writer.writerows((number, *row) for row in _rows(load))
    requests = sum(len(load.log) for _, load in taken)
    return f"{count_of(len(shown), 'point')} in {curve}, {len(points)} and {requests} requests in {target}"


def _round(label: str) -> str:
    """The name of a run of levels in the evidence.

    >>> _round("Qwen/Qwen3-32B fp8 1000/200, closed more")
    'closed loops, first'
    """
    name = label.rpartition(", ")[2]
    return {"closed again": "closed loops, again"}.get(name, "closed loops, first" if "closed" in name else name)


def taken_anew(store: Store, run_id: int) -> Iterator[tuple[Point, Load]]:
    """The points of a run as today's metrics compute them from its requests, and the requests; levels without records
    are left out."""
    run, records = store.run(run_id), store.records(run_id)
    [entry] = parse_yaml(run.plan, run.label)["lengths"]
    shared = int(entry.get("shared_prefix", 0))
    files = {key[-2:]: path for key, path in records.items()}
    for found in store.measurements(run_id):
        was, known = found.point, found.facts
        if (path := files.get((was.load_kind, was.load_value))) is None:
            continue
        log, start_s, stop_s = read_log(path), known["window_start_s"], known["window_stop_s"]
        client = ClientHealth(
            int(known["processes"]), known["client_cores"], known["busiest_core"], known["loop_lag_p99_s"]
        )
        issued = int(log.due_within(start_s, stop_s).sum())
        load = Load(log, start_s, stop_s, issued, "budget", client, known.get("offered_per_s"))
        level = Level(0, was.lengths, was.load_kind, was.load_value, issued)
        point = measurement(load, level, was.deployment, source="", server=found.server, shared_prefix=shared).point
        yield replace(point, measured_at=was.measured_at, protocol=was.protocol), load


def _rows(load: Load) -> Iterator[tuple[object, ...]]:
    log = load.log
    columns = (log.sent_s, log.intended_s, log.first_token_s, log.last_token_s)
    times = (np.char.mod("%.4f", column) for column in columns)
    counted = log.due_within(load.start_s, load.stop_s)
    lengths = log.isl.tolist(), log.osl.tolist()
    yield from zip(*lengths, *(column.tolist() for column in times), log.tokens, counted.astype(int), strict=True)


def _write(points: Sequence[Point], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        write_points(points, file)


def _passes(files: Sequence[Path], target: Path) -> int:
    """Write the step times of all servers into one file, thinned evenly to a size that can be kept; how many it has."""
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
