"""``python -m sizing demand prometheus``: a model of demand from servers' metrics in Prometheus."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from pydantic import TypeAdapter, ValidationError

from calibration.prometheus import (
    MOST_S,
    Histogram,
    PrometheusError,
    Source,
    labels_of,
    moment_of,
    server_of,
    server_options,
    source_of,
    span_of,
)
from sizing.cli.demand import arrivals_line
from sizing.cli.options import as_json, options, write_json
from sizing.demand_model import (
    DAY_H,
    FEWEST,
    MONDAY_S,
    WEEK_H,
    ArrivalProcess,
    DemandModel,
    Poisson,
    as_dict,
    hours_of,
)
from sizing.demand_model import as_json as model_json
from sizing.errors import ScenarioError, first_fault, quoted
from sizing.files import write
from sizing.numbers import milliseconds, significant
from sizing.token_law import MOST_CELLS, TokenLaw

EXAMPLES = """\b
Examples:
  python -m sizing demand prometheus http://prometheus:9090 --from -7d --out demand.json
  python -m sizing demand prometheus https://metrics.example/prometheus --model Qwen/Qwen3-32B --label namespace=prod \\
      --from 2026-11-02 --to 2026-11-16 --api-key-env METRICS_KEY --out demand.json
  python -m sizing demand prometheus http://prometheus:9090 --metrics triton --from -1d \\
      --isl-law uniform:200-800 --osl-law points:100 --out demand.json
  python -m sizing demand draw demand.json --days 7 --out week.csv
"""
HOUR_S = 3600.0
LATENCIES = ("ttft", "itl", "gap", "e2e")
PERCENTILES = (50, 95, 99)
LOST = 0.05
"""Share of the requests from which a note says that they are in no step."""
BURSTY = 1.5
"""Index of dispersion of counts from which arrivals count as burstier than a Poisson process."""
FEWEST_STEPS = 20
LEAST_WIDTH = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """The data: the model, requests/s by step (times in seconds since 1970), histograms, and notes."""

    source: Source
    model: DemandModel
    requests: float
    rates: tuple[tuple[float, float], ...]
    step_s: float
    lengths: Mapping[str, Histogram]
    latencies: Mapping[str, Histogram]
    notes: tuple[str, ...]


@click.command("prometheus", epilog=EXAMPLES)
@click.argument("url")
@options(
    server_options,
    click.option(
        "--from",
        "from_",
        required=True,
        metavar="TIME",
        help="Start: -7d, or a date such as 2026-11-02 (UTC unless it names a zone).",
    ),
    click.option("--to", default="now", show_default=True, metavar="TIME", help="End, written like --from."),
    click.option(
        "--step", default="1m", show_default=True, help="Interval of one rate; at least two scrape intervals."
    ),
    click.option(
        "--arrivals",
        default="poisson",
        show_default=True,
        help="Arrivals around the profile: poisson, gamma:cv=2 or mmpp:low_factor=0.5,low_s=120,high_s=30.",
    ),
    click.option(
        "--isl-law", help="Law of prompt tokens, in place of a histogram, such as uniform:100-300 or points:500."
    ),
    click.option("--osl-law", help="Law of output tokens, written like --isl-law."),
    click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File for the model (JSON)."),
    as_json,
)
def prometheus_command(url: str, out: Path | None, json_: bool, **given: Any) -> None:
    """A model of demand from a Prometheus server at URL: the rate profile and lengths of the requests answered.

    It reads the counters and histograms of vLLM, SGLang, TensorRT-LLM, Triton, or a gateway that follows the
    OpenTelemetry conventions. Two weeks or more give a rate for each hour of the week, a day or more one for each hour
    of the day, less a single rate. Prompt and output tokens come from separate histograms, so the model treats them as
    independent. `demand draw` draws a trace from it, for `plan --trace`.
    """
    now_s = time.time()
    start_s, end_s = (moment_of(f"--{name}", given[key], now_s) for name, key in (("from", "from_"), ("to", "to")))
    step_s = span_of("--step", given["step"])
    if end_s - start_s < 2 * step_s:
        raise ScenarioError("--from must be two steps or more before --to")
    if end_s - start_s > MOST_S:
        raise ScenarioError(f"--from must be {MOST_S / 86_400:g} days before --to at most")
    arrivals = arrivals_of(given["arrivals"])
    laws = {side: law_of(side, given[f"{side}_law"]) for side in ("isl", "osl")}
    server, labels = server_of(url, given), labels_of(given["labels"])
    source = source_of(server, given["metrics"], given["model"], labels, end_s - start_s, end_s)
    found = demand_of(source, start_s, end_s, step_s, arrivals, laws)
    if out:
        write(out, [model_json(found.model)])
    if json_:
        write_json(demand_json(found))
        return
    for line in described(found):
        click.echo(f"{line}.")
    if out:
        click.echo(f"Model: {out}")


def demand_of(
    source: Source,
    start_s: float,
    end_s: float,
    step_s: float,
    arrivals: ArrivalProcess | None = None,
    laws: Mapping[str, TokenLaw | None] | None = None,
) -> Demand:
    """The demand between two times. Raises PrometheusError for too few requests, or unknown lengths."""
    span_s = end_s - start_s
    over_all = source.requests(span_s, end_s)
    counts = source.counts(start_s, end_s, step_s)
    requests = sum(count for _, count in counts)
    if requests < FEWEST:
        raise PrometheusError(
            f"{source.server.url}: {requests:.0f} requests of {quoted(source.model)} in {len(counts)} steps of "
            f"{step_s:g} s: a model needs {FEWEST}; ask for longer, and for a --step of two scrapes or more"
        )
    lengths = {side: found for side in ("isl", "osl") if (found := source.histogram(side, span_s, end_s))}
    given = laws or {}
    isl, osl = (
        given.get(side) or (law_in(lengths[side]) if side in lengths else _no_lengths(source, side, span_s, end_s))
        for side in ("isl", "osl")
    )
    rates, notes = profile(counts, step_s)
    model = DemandModel(rates, arrivals or Poisson(), isl, osl)
    missing = 1 - len(counts) * step_s / span_s
    if missing > 1.5 * step_s / span_s:
        notes.append(f"{100 * missing:.0f} % of the time has no samples, and is assumed to be like the rest")
    scatter = dispersion(counts, step_s)
    lost = over_all - requests * span_s / (len(counts) * step_s)
    if lost > max(LOST * over_all, 3 * math.sqrt(scatter * over_all)):
        notes.append(
            f"{100 * lost / over_all:.0f} % of the {over_all:,.0f} requests that the counters gained over the whole "
            "time are in no step, and the rates are too low by as much: a server was scraped less than twice a --step, "
            "or not for a while"
        )
    if isinstance(model.arrivals, Poisson) and scatter > BURSTY:
        notes.append(
            f"Counts per {step_s:g} s vary {significant(scatter, 2)} times as much as at random (Poisson): a trace "
            "drawn from the model is smoother than the traffic; --arrivals describes bursts"
        )
    latencies = {what: found for what in LATENCIES if (found := source.histogram(what, span_s, end_s))}
    by_second = tuple((at_s, count / step_s) for at_s, count in counts)
    return Demand(source, model, requests, by_second, step_s, lengths, latencies, tuple(notes))


def _no_lengths(source: Source, side: str, span_s: float, end_s: float) -> TokenLaw:
    mean = source.mean_tokens(side, span_s, end_s)
    known = "" if mean is None else f" (their mean is {mean:.0f})"
    raise PrometheusError(
        f"{source.server.url}: {source.exposition.title} has no histogram of {side.upper()}{known}: give --{side}-law"
    )


def profile(counts: Sequence[tuple[float, float]], step_s: float) -> tuple[tuple[float, ...], list[str]]:
    """Mean requests/s of each hour of the week or day, UTC, if all of them have samples; and notes.

    `counts` are requests by the end of each step, in seconds since 1970.
    """
    middle_s = np.array([at_s for at_s, _ in counts]) - step_s / 2 + MONDAY_S
    many = np.array([count for _, count in counts])
    wanted = hours_of(float(middle_s[-1] - middle_s[0]) + step_s)
    for hours in (WEEK_H, DAY_H):
        hour = (middle_s // HOUR_S).astype(int) % hours
        seen = np.bincount(hour, minlength=hours)
        if hours <= wanted and seen.all():
            short = [] if hours == wanted else ["Some hours of the week have no samples: the profile is of the day"]
            return tuple((np.bincount(hour, many, hours) / (seen * step_s)).tolist()), short
    short = ["Some hours of the day have no samples: the profile is flat"] if wanted > 1 else []
    return (float(many.sum() / (len(many) * step_s)),), short


def dispersion(counts: Sequence[tuple[float, float]], step_s: float) -> float:
    """Variance of counts over their mean, within hours: 1 for a Poisson process whose rate changes by the hour, and for
    fewer than FEWEST_STEPS counts."""
    hour = np.array([(at_s - step_s / 2) // HOUR_S for at_s, _ in counts])
    many = np.array([count for _, count in counts])
    _, place, seen = np.unique(hour, return_inverse=True, return_counts=True)
    expected = (np.bincount(place, many) / seen)[place]
    free = len(many) - len(seen)
    return float(((many - expected) ** 2).sum() / expected.sum() * len(many) / free) if free >= FEWEST_STEPS else 1.0


def law_in(histogram: Histogram) -> TokenLaw:
    """The law of lengths in a histogram: uniform in each bucket, adjusted to the recorded mean as far as the buckets
    allow.

    Each bucket is split in the middle, and the same fraction of each is moved from one half to the other. Lengths
    beyond the last edge reach as far as the recorded sum requires, or up to twice that edge.
    """
    cells: list[tuple[int, int, float]] = []
    below = 0
    for edge, count in zip(histogram.edges, histogram.counts, strict=True):
        low = below + 1
        high = math.floor(edge) if math.isfinite(edge) else max(2 * below, low)
        if math.isinf(edge) and count > 0 and histogram.total is not None:
            rest = histogram.total - sum(many * (first + last) / 2 for first, last, many in cells)
            high = int(min(max(2 * rest / count - low, low), 100.0 * max(below, 1)))
        if count > 0:
            cells.append((min(low, max(high, 1)), max(high, 1), count))
        below = max(below, high)
    return TokenLaw(tuple(_tilted(_apart(cells), histogram.mean)))


def _apart(cells: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Cells, joined if they share a length: edges may be below 1 token, or between two whole numbers."""
    found: list[tuple[int, int, float]] = []
    for low, high, many in cells:
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]), found[-1][2] + many)
        else:
            found.append((low, high, many))
    return found


def _tilted(cells: Sequence[tuple[int, int, float]], mean: float | None) -> list[tuple[int, int, float]]:
    wide = [cell for cell in cells if cell[0] < cell[1]]
    count = sum(many for *_, many in cells)
    now = sum(many * (low + high) / 2 for low, high, many in cells) / count
    # moving a fraction of a cell of w lengths from its lower half to its upper one moves its mean by w / 2 times it
    most = sum(many * (high - low + 1) / 2 for low, high, many in wide) / count
    if mean is None or most < LEAST_WIDTH or 2 * len(cells) > MOST_CELLS:
        return list(cells)
    limit = min(((high - low + 1) // 2) / (high - low + 1) for low, high, _ in wide)
    moved = min(max((mean - now) / most, -limit), limit)
    found = [cell for cell in cells if cell[0] == cell[1]]
    for low, high, many in wide:
        half = (high - low + 1) // 2
        lower = half / (high - low + 1) - moved
        found += [(low, low + half - 1, many * lower), (low + half, high, many * (1 - lower))]
    return sorted(cell for cell in found if cell[2] > 0)


def law_of(side: str, text: str | None) -> TokenLaw | None:
    """The law in an option; None without one. Raises ScenarioError."""
    if text is None:
        return None
    law = TokenLaw.parse(text)
    if law is None:
        raise ScenarioError(f"--{side}-law {quoted(text)}: a lognormal law would need a mean; write uniform:100-300")
    return law


_ARRIVALS: TypeAdapter[ArrivalProcess] = TypeAdapter(ArrivalProcess)


def arrivals_of(text: str) -> ArrivalProcess:
    """The arrival process of ``poisson``, ``gamma:cv=2`` or ``mmpp:...``. Raises ScenarioError."""
    kind, _, rest = text.strip().partition(":")
    try:
        pairs = [each.partition("=") for each in rest.split(",") if each]
        values = {name.strip(): float(value) for name, _, value in pairs}
        return _ARRIVALS.validate_python({"kind": kind, **values})
    except ValidationError as error:
        fault = str(first_fault(error, "it"))
    except ValueError:
        fault = "parameters must be numbers"
    raise ScenarioError(f"--arrivals {quoted(text)}: {fault}; write poisson, gamma:cv=2 or mmpp:low_factor=0.5,...")


def described(found: Demand) -> list[str]:
    """The demand, a line for each part."""
    model, source = found.model, found.source
    rates, lengths = model.rates_per_s, model.lengths
    unit = "day" if len(rates) == DAY_H else "week"
    hours = (found.rates[-1][0] - found.rates[0][0] + found.step_s) / HOUR_S
    return [
        f"{source.exposition.title}, model {source.model}: {found.requests:,.0f} requests in {significant(hours)} "
        f"hours, {significant(model.rate_per_s)} requests/s on average",
        f"Profile: {significant(min(rates))} to {significant(max(rates))} requests/s by hour of the {unit} (UTC)"
        if len(rates) > 1
        else "Profile: flat",
        f"Arrivals around it: {arrivals_line(model)}",
        f"ISL {significant(lengths.isl)} tokens (cv {lengths.isl_cv:.2f}), OSL {significant(lengths.osl)} "
        f"(cv {lengths.osl_cv:.2f}), independent: histograms do not show how they correlate",
        *(
            f"{what.upper()} p50 {milliseconds(seen.quantile(0.5))}, p95 {milliseconds(seen.quantile(0.95))}, "
            f"within its buckets"
            for what, seen in found.latencies.items()
        ),
        *found.notes,
    ]


def demand_json(found: Demand) -> dict[str, Any]:
    """The demand, for programs."""
    return {
        "model": as_dict(found.model),
        "metrics": found.source.exposition.title,
        "served_model": found.source.model,
        "requests": found.requests,
        "step_s": found.step_s,
        "rates_per_s": [{"at_s": at_s, "requests_per_s": rate} for at_s, rate in found.rates],
        "lengths": {side: histogram_json(seen) for side, seen in found.lengths.items()},
        "latencies": {
            what: histogram_json(seen) | {f"p{each}_s": seen.quantile(each / 100) for each in PERCENTILES}
            for what, seen in found.latencies.items()
        },
        "notes": list(found.notes),
    }


def histogram_json(found: Histogram) -> dict[str, Any]:
    """Upper edges (null: infinite), counts and the mean, in tokens or seconds."""
    return {"edges": list(found.edges), "counts": list(found.counts), "mean": found.mean}
