"""Writes data/laws/day_zero.csv: the laws of every catalogued model, GPU, engine, precision and layout.

Run it (`make laws`) when the version of the kernel database or the catalogue changes; the same database gives the same
file, in half an hour on two cores.

    python -m sizing.estimate.build_laws [--model Qwen/Qwen3-32B] [--out file.csv]
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import click
from joblib import Parallel, delayed
from rich.progress import track

from sizing.catalog import Layout, Model, Precision, gpus, layouts, models, precisions
from sizing.engine import StepLaw
from sizing.errors import CatalogueError, EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.day_zero import COLUMNS, KEY, LAWS, Key, read_rows, roofline_law, row_of
from sizing.estimate.timed import time_kernels

HEADER = f"""\
# Step-time laws and memory of LLM engines before anything was measured: numbers derived by fitting from the kernel
# timings of {kernels.LIBRARY} (Apache-2.0, NVIDIA), by python -m sizing.estimate.build_laws.
# Columns: layout (tp, dp, ep: see sizing.catalog); coefficients of sizing.engine.StepLaw in seconds, of one rank;
# mean_error, rms_error: of the law against the timings, as shares; bytes per GPU: see sizing.estimate.memory.Memory.
# why_not: the engine has no timings in tensor parallelism, and this is why; other layouts without are left out.
"""

BELIEVED = 200.0
"""Times the roofline up to which timings are believed. Laws in tensor parallelism alone are within 20 of it, those of
ranks that exchange tokens over a bus or between servers within 100. The database extrapolates beyond what was
collected, and says nothing: of Llama 4's experts on vLLM, split over Blackwell GPUs, 300 to 1,800."""


def keys(wanted: Iterable[Model], gpu: str, engine: str) -> list[tuple[Model, str, Precision, Layout, str]]:
    """Every way to run the models on a GPU by an engine; stages follow from the law without them."""
    return [
        (model, gpu, precision, layout, engine)
        for model in wanted
        for precision in precisions(gpus()[gpu], model)
        if precision in gpus()[gpu].precisions or model.timed_on(gpu)
        for layout in layouts(model, gpus()[gpu], precision)
        if layout.pp == 1
    ]


def row(model: Model, gpu: str, precision: Precision, layout: Layout, engine: str) -> dict[str, str]:
    """The law's row, or one that says why there is none."""
    key: Key = (model.id, gpu, layout.tp, layout.dp, layout.ep, precision, engine)
    try:
        timed = time_kernels(model, gpu, layout, precision, engine)
        over = times_over(timed.law, roofline_law(model, gpus()[gpu], layout, precision))
        if over > BELIEVED:
            raise EstimateUnavailable(f"{engine}: its timings are {over:.0f} times what the data sheet says")
        return row_of(key, timed)
    except EstimateUnavailable as error:
        return dict.fromkeys(COLUMNS, "") | dict(zip(KEY, map(str, key), strict=True)) | {"why_not": str(error)}


def times_over(law: StepLaw, roofline: StepLaw) -> float:
    """By how much the steps of a law are longer than the roofline's: the largest ratio over batches to 256 at 2,000
    tokens each, and a prompt of as many."""
    steps = [(law.decode_s(n, n * 2000), roofline.decode_s(n, n * 2000)) for n in (1, 8, 64, 256)]
    steps.append((law.prefill_alone_s(2000), roofline.prefill_alone_s(2000)))
    return max(timed_s / roofline_s for timed_s, roofline_s in steps)


def build(wanted: Iterable[Model], jobs: int = 1) -> Iterator[dict[str, str]]:
    """Rows, GPU by GPU and engine by engine, whose tables are then loaded once; a progress bar on the terminal."""
    timed = [gpu.id for gpu in gpus().values() if gpu.timed]
    groups = [keys(list(wanted), gpu, engine) for gpu, engine in product(timed, kernels.BACKENDS)]
    pool = Parallel(n_jobs=jobs, return_as="generator")
    for found in track(pool(delayed(_rows)(group) for group in groups), "fitting laws", total=len(groups)):
        yield from (cells for cells in found if not cells["why_not"] or cells["dp"] == cells["ep"] == "1")


def _rows(group: list[tuple[Model, str, Precision, Layout, str]]) -> list[dict[str, str]]:
    return [row(*key) for key in group]


@click.command()
@click.option("--model", "names", multiple=True, help="Only this model; the others' rows stay. May be repeated.")
@click.option("--jobs", default=-1, show_default=True, help="Processes; -1: one a core.")
@click.option("--out", type=click.Path(path_type=Path), default=LAWS, show_default=True)
def main(names: tuple[str, ...], jobs: int, out: Path) -> None:
    """Fit laws to kernel timings and write them."""
    if not kernels.available():
        raise click.ClickException(kernels.MISSING)
    wanted = [models()[name] for name in names] or [one for one in models().values() if kernels.bundled(one.id)]
    try:
        kept = [cells for cells in read_rows(out) if cells["model"] not in names] if names else []
    except CatalogueError:
        kept = []
    found = kept + list(build(wanted, jobs))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        file.write(HEADER)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(found, key=lambda cells: [cells[name].casefold() for name in KEY]))


if __name__ == "__main__":
    main()
