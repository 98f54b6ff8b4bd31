"""``python -m sizing study``: thousands of questions from one file, answered on all cores or a cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import click

from sizing.analyses.parallel import Machines, bar, code, completed
from sizing.analyses.study import ResultsFile, StudyScenario, answer, read_study
from sizing.numbers import count_of
from sizing.points import Point, read_points

EXAMPLE = """\b
Example of a FILE (keys are the options of `plan`; --cluster needs workers with this same package):
  base: {model: Qwen/Qwen3-32B, gpu: h200_sxm, precision: fp8, isl: 2000, osl: 256, itl: p95:30ms}
  axes:
    rate: [5, 20, 80]
    ttft: [p95:500ms, p95:2s]

\b
All combinations; or with `sample: 1000` that many at random, where an axis may also be {low: 200, high: 8000}.
  python -m sizing study study.yaml --out study.csv
  python -m sizing study study.yaml --out study.csv --cluster tcp://10.0.0.5:8786
"""
processes_option = click.option(
    "--processes", type=click.IntRange(0), default=0, show_default=True, help="Worker processes; 0: one per core."
)
cluster_option = click.option(
    "--cluster",
    default="",
    help="Address of a Dask scheduler, tcp://HOST:PORT. Anyone who can reach that port can run code there, because "
    "Dask asks for no password: use it only inside a trusted network.",
)


@click.command("study", epilog=EXAMPLE)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the results (CSV). [default: FILE with the ending .csv]",
)
@processes_option
@cluster_option
@click.option("--json", "json_", is_flag=True, help="Print the summary as JSON.")
def study_command(file: Path, out: Path | None, processes: int, cluster: str, json_: bool) -> None:
    """Answer every scenario of a study FILE; the results are a table, one row each.

    An interrupted study continues where it stopped when it is called again.
    """
    study = read_study(file)
    machines = Machines(processes, cluster)
    points = _points(study, file.parent)
    target = out or file.with_suffix(".csv")
    table = ResultsFile(target, study, _inputs(file.parent, {scenario.points for scenario in study}))
    done = table.done
    left = [(place, (each, points[each.table])) for place, each in enumerate(study) if place not in done]
    with table, bar("scenarios", len(done))(len(study)) as step:
        for place, cells in completed(answer, left, machines=machines):
            table.add(place, cells)
            step()
    summary = {"scenarios": len(study), "answered": table.answered, "done_before": len(done), "out": str(target)}
    if json_:
        click.echo(json.dumps(summary, indent=2))
    else:
        before = f" ({len(done)} of them before)" if done else ""
        click.echo(f"{target}: {count_of(len(study), 'scenario')}{before}, {table.answered} with a count of GPUs")


def _points(study: list[StudyScenario], folder: Path) -> dict[tuple[str, int], tuple[Point, ...]]:
    """The points of every table that the study names, read once for each number of replicas behind it."""
    tables = {scenario.table for scenario in study}
    return {
        (name, replicas): tuple(read_points(folder / name, replicas=replicas)) if name else ()
        for name, replicas in tables
    }


def _inputs(folder: Path, names: Iterable[str]) -> str:
    """Sixteen digits that change with the tables of points and with everything else that answers depend on."""
    digest = hashlib.sha256(repr(code()).encode())
    for name in sorted(filter(None, names)):
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()[:16]
