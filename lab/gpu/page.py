"""docs/gpu-measurements.md, written from what was measured: python -m lab.gpu.page NAME [--data data] [--out FILE]."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lab.gpu.home import DATA
from sizing.errors import FitError
from sizing.fitting import Fit, fit
from sizing.numbers import percent
from sizing.points import Deployment, Point, read_points
from sizing.queueing import predict
from sizing.simulator import simulate
from sizing.workload import OF_REQUESTS, Arrivals, Workload

OUT = DATA.parent / "docs" / "gpu-measurements.md"
USED = ("p50_s", "p95_s")
WHAT_IT_IS = """\
The engine is this project's own: the reference engine's scheduler and paged KV cache, a model of the published shape
with random weights, kernels of its own for attention, vendor libraries for matrix products, and CUDA graphs to decode.
It is **not TensorRT-LLM**, and its speed is not TensorRT-LLM's: these curves show what this engine does behind a real
Triton server on a real GPU, and how well the planner's laws describe it. Timing does not depend on the weights; prompts
and output lengths are forced. Asked was `tensorrt_llm` itself where nothing else is said: the ensemble's two further
hops for each token are slower than the GPU. Where answers wait to be sent, several tokens go out in one response."""


@click.command()
@click.argument("name")
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--out", type=click.Path(path_type=Path), default=OUT)
def page(name: str, data: Path, out: Path) -> None:
    """Write the page for the measurements called NAME."""
    folder = data / "gpu" / name
    facts = json.loads((folder / "facts.json").read_text())
    points = read_points(folder / "points.csv")
    curves = read_points(data / "curves" / f"{name}.csv")
    parts = (
        environment(facts),
        table(points),
        spread(points),
        *(quality(deployment, own) for deployment, own in by_deployment(curves)),
        engine_alone(facts),
        passes(folder / "passes.csv"),
    )
    out.write_text("\n\n".join(filter(None, [f"# Measured: {name}", WHAT_IT_IS, *parts])) + "\n", encoding="utf-8")
    click.echo(f"{len(points)} points on {out}")


def environment(facts: Mapping[str, Any]) -> str:
    """The card, its ceilings, the versions."""
    found = facts["ceilings"]
    said = "; ".join(f"{key} {value}" for key, value in found["environment"].items())
    ceilings = (
        f"copies {found['copy_bytes_per_s'] / 1e12:.2f} TB/s (bytes read and written), "
        f"reads {found['read_bytes_per_s'] / 1e12:.2f} TB/s, bf16 products of {found['product_size']} cubed "
        f"{found['bf16_flops_per_s'] / 1e12:.3g} TFLOP/s"
    )
    return f"## The card\n\n{said}.\n\nCeilings measured on it: {ceilings}."


def table(points: Sequence[Point]) -> str:
    """Every point."""
    head = "model, batching | ISL/OSL | load | requests/s | tokens/s | TTFT ms | ITL ms | E2E ms | Little | verdict"
    rows = [
        (
            f"{point.model} {point.batching}, {'ensemble' if ', ensemble at' in point.source else 'tensorrt_llm'}",
            f"{point.isl:g}/{point.osl:g}",
            _load(point),
            f"{point.requests_per_s:.3g}",
            f"{point.output_tokens_per_s or 0:.0f}",
            _ms(point.ttft_mean_s),
            _ms(point.itl_mean_s),
            _ms(point.e2e_mean_s),
            "" if point.little is None else f"{point.little:.3f}",
            point.verdict,
        )
        for point in points
    ]
    return f"## Points\n\nMeans.\n\n{markdown(head, rows)}"


def spread(points: Sequence[Point]) -> str:
    """Levels that were measured twice."""
    twice: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        asked = point.source.rpartition(", ")[2]
        twice[point.deployment, point.lengths, point.load_kind, point.load_value, asked.split(" at ")[0]].append(point)
    rows = [
        (f"{a.isl:g}/{a.osl:g}", f"{a.load_value:g}", *(_change(a, b, name) for name in SPREAD))
        for a, b in (same for same in twice.values() if len(same) == 2)
    ]
    return f"## The same level again\n\n{markdown('ISL/OSL | users | requests/s | TTFT | ITL', rows)}" if rows else ""


SPREAD = ("requests_per_s", "ttft_mean_s", "itl_mean_s")


def quality(deployment: Deployment, points: Sequence[Point]) -> str:
    """The law fitted to the closed loops, and what it says of the random arrivals that it has not seen."""
    try:
        fitted = fit([point for point in points if point.load_kind == "concurrency"])
    except FitError as error:
        return f"## Fit: {deployment.label}\n\nNo law: {error}."
    rows = list(_predicted(fitted, [point for point in points if point.load_kind == "poisson_rate"]))
    errors = [abs(error.requests_per_s_error) for error in fitted.errors]
    told = (
        f"Closed loops: error of requests/s {percent(statistics.median(errors), 1)} (median), "
        f"{percent(max(errors), 1)} (worst); "
        f"of points left out one at a time {percent(fitted.leave_one_out, 1)} (median of requests/s and ITL)."
    )
    head = "ISL/OSL | requests/s | metric | measured ms | formula ms | error | simulation ms | error"
    return f"## Fit: {deployment.label}\n\n{told}\n\n{markdown(head, rows) if rows else ''}".rstrip()


def _predicted(fitted: Fit, points: Iterable[Point]) -> Iterator[tuple[str, ...]]:
    for point in points:
        workload = Workload(point.lengths, point.load_value, Arrivals.parse("poisson"))
        both = predict(fitted.replica, workload), simulate(fitted.replica, workload).prediction()
        for metric in OF_REQUESTS:
            for name in USED:
                measured = getattr(point, f"{metric}_{name}")
                if measured:
                    values = [getattr(prediction.of(metric), name) for prediction in both]
                    cells = [
                        text for value in values for text in (_ms(value), percent(value / measured - 1, 1, sign=True))
                    ]
                    what = f"{metric.upper()} {name.removesuffix('_s')}"
                    yield (f"{point.isl:g}/{point.osl:g}", f"{point.load_value:.3g}", what, _ms(measured), *cells)


def engine_alone(facts: Mapping[str, Any]) -> str:
    """Passes without Triton, beside what the ceilings allow."""
    found = facts["ceilings"]
    rows = []
    for name, told in facts.items():
        if name.startswith("engine ") and "passes" in told:
            for one in told["passes"]:
                least_s = max(
                    one["least_bytes"] / found["read_bytes_per_s"], one["least_flops"] / found["bf16_flops_per_s"]
                )
                held = f"{one['context_tokens']:.0f}"
                work = f"{one['decoding']:.0f} decoding" if one["decoding"] else f"{one['reading']:.0f} of a prompt"
                rows.append((name[7:], work, held, _ms(one["pass_s"]), _ms(least_s), percent(least_s / one["pass_s"])))
    head = "model | pass | context tokens | ms | least by the ceilings, ms | reached"
    return f"## The engine alone\n\nCUDA events, medians of ten passes.\n\n{markdown(head, rows)}" if rows else ""


def passes(file: Path) -> str:
    """Passes while serving: time on the card, and from one pass to the next."""
    if not file.exists():
        return ""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    with file.open(newline="") as read:
        for row in csv.DictReader(read):
            batch, since_s = int(row["decoding"]), float(row["since_last_s"])
            if not int(row["reading"]) and batch and 0 < since_s < 1:
                groups[row["served"], 2 ** (batch - 1).bit_length()].append((float(row["pass_s"]), since_s))
    rows = []
    for (served, batch), times in sorted(groups.items()):
        if len(times) >= 10:
            card_s, since_s = (statistics.median(column) for column in zip(*times, strict=True))
            rows.append((served, f"≤ {batch}", str(len(times)), _ms(card_s), _ms(since_s), percent(card_s / since_s)))
    head = "served | decoding | passes | on the card, ms | pass to pass, ms | share"
    note = "Decoding passes only. What is not on the card is scheduling, packing, Triton and Python."
    return f"## While serving\n\n{note}\n\n{markdown(head, rows)}" if rows else ""


def by_deployment(points: Sequence[Point]) -> list[tuple[Deployment, list[Point]]]:
    groups: dict[Deployment, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.deployment].append(point)
    return list(groups.items())


def markdown(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A table; `head` are its column names between bars."""
    line = "|" + "---|" * len(head.split("|"))
    return "\n".join([f"| {head} |", line, *("| " + " | ".join(row) + " |" for row in rows)])


def _load(point: Point) -> str:
    if point.load_kind != "concurrency":
        return f"{point.load_value:.4g} /s Poisson"
    return f"{point.load_value:.0f} user{'' if point.load_value == 1 else 's'}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:.0f}"


def _change(first: Point, second: Point, name: str) -> str:
    before, after = getattr(first, name), getattr(second, name)
    return percent(after / before - 1, 1, sign=True) if before and after is not None else ""


if __name__ == "__main__":
    page()
