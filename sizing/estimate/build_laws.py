"""Writes data/laws/day_zero.csv, the laws of every catalogued model, GPU, precision and TP: run it when the kernel
database's version changes. Takes some minutes; the same database gives the same file.

    python -m sizing.estimate.build_laws [--model Qwen/Qwen3-32B] [--out file.csv]
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.progress import track

from sizing.catalog import Model, Precision, gpus, models, precisions
from sizing.errors import EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.day_zero import COLUMNS, KEY, LAWS, Key, row_of
from sizing.estimate.timed import time_kernels

TENSOR_PARALLEL = (1, 2, 4, 8)
BACKEND = "trtllm"

HEADER = f"""\
# Step-time laws and memory of LLM engines before anything was measured: numbers derived by fitting from the kernel
# timings of {kernels.LIBRARY} (Apache-2.0, NVIDIA), by python -m sizing.estimate.build_laws.
# Columns: coefficients of sizing.engine.StepLaw in seconds; mean_error, rms_error: of the law against the timings, as
# shares; bytes per GPU: see sizing.estimate.memory.Memory. why_not: no engine has timings, and this is why.
"""


def keys(wanted: Iterable[Model]) -> list[tuple[Model, str, Precision, int]]:
    """Every way to run the models: by GPU first, so that each GPU's tables are loaded once."""
    return [
        (model, gpu.id, precision, tp)
        for gpu in gpus().values()
        if gpu.timed
        for model in wanted
        for precision in precisions(gpu, model)
        for tp in TENSOR_PARALLEL
        if model.heads % tp == 0
    ]


def row(model: Model, gpu: str, precision: Precision, tp: int) -> dict[str, str]:
    """The law's row, or one that says why there is none."""
    key: Key = (model.id, gpu, tp, precision)
    try:
        return row_of(key, time_kernels(model, gpus()[gpu], tp, precision, BACKEND))
    except EstimateUnavailable as error:
        return dict.fromkeys(COLUMNS, "") | dict(zip(KEY, map(str, key), strict=True)) | {"why_not": str(error)}


def build(wanted: Iterable[Model]) -> Iterator[dict[str, str]]:
    """Rows in the order of model, GPU, precision and TP, with a progress bar on the terminal."""
    found = [row(*key) for key in track(keys(list(wanted)), "fitting laws")]
    yield from sorted(found, key=lambda cells: tuple(cells[name].casefold() for name in KEY))


@click.command()
@click.option("--model", help="Only this model.")
@click.option("--out", type=click.Path(path_type=Path), default=LAWS, show_default=True)
def main(model: str | None, out: Path) -> None:
    """Fit all laws and write them."""
    if not kernels.available():
        raise click.ClickException(kernels.MISSING)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        file.write(HEADER)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(build([models()[model]] if model else models().values()))


if __name__ == "__main__":
    main()
