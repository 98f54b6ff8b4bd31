"""``python -m sizing demand``: a model of the demand in a trace, and traces drawn from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sizing.cli.options import as_json, options, seed_option, write_json
from sizing.cli.tables import console
from sizing.demand_model import (
    DAY_H,
    WITHIN,
    WITHIN_DISPERSION,
    Compared,
    DemandModel,
    Gamma,
    Mmpp,
    as_dict,
    compared,
    drawn,
    fitted,
    read_model,
)
from sizing.demand_model import as_json as model_json
from sizing.files import write
from sizing.lazy_group import Commands
from sizing.numbers import count_of, per_second, percent, significant, with_unit
from sizing.trace import DAY_S, MINUTE_S, Trace

EXAMPLES = """\b
Examples:
  python -m sizing demand fit requests.csv --out demand.json
  python -m sizing demand prometheus http://prometheus:9090 --from -7d --out demand.json
  python -m sizing demand draw demand.json --days 7 --out week.csv
"""
COMMANDS = {
    "fit": ("sizing.cli.demand:fit_command", "A model of the demand in a trace."),
    "prometheus": ("calibration.demand:prometheus_command", "A model of the demand that Prometheus recorded."),
    "draw": ("sizing.cli.demand:draw_command", "A trace drawn from a model."),
}
FIT_EXAMPLES = """\b
Examples:
  python -m sizing demand fit requests.csv --out demand.json
  python -m sizing demand fit requests.parquet --json
"""
DRAW_EXAMPLES = """\b
Examples:
  python -m sizing demand draw demand.json --days 7 --out week.csv
  python -m sizing demand draw demand.json --days 1 --scale 2 --seed 3 --out double.csv
  python -m sizing plan --trace week.csv --model Qwen/Qwen3-32B --gpu h200_sxm --ttft p95:1s
"""
ROWS = 65_536


@click.group("demand", cls=Commands, table=COMMANDS, epilog=EXAMPLES, no_args_is_help=False)
def demand_command() -> None:
    """Synthetic demand: fit a model to a trace or to metrics, and draw traces from it."""


@click.command("fit", epilog=FIT_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@options(
    click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File for the model (JSON)."),
    seed_option,
    as_json,
)
def fit_command(file: Path, out: Path | None, seed: int, json_: bool) -> None:
    """Profile, bursts and lengths of the requests in FILE, and how well the model meets them.

    FILE is a trace as `plan --trace` takes it. The profile is by hour of the week for two weeks and more, of the day
    for a day and more, and flat below.
    """
    from sizing.trace_files import read_trace_noted

    trace, _, notes = read_trace_noted(file)
    model = fitted(trace, seed=seed)
    rows = compared(model, trace, seed=seed)
    if out:
        write(out, [model_json(model)])
    if json_:
        found = {"model": as_dict(model), "requests": len(trace), "compared": [compared_json(row) for row in rows]}
        write_json(found | {"verdict": verdict(rows), "notes": notes})
        return
    show = console()
    for line in (*notes, *described(model, trace)):
        show.print(f"{line}.", soft_wrap=True, markup=False)
    show.print(compared_table(rows))
    show.print(verdict(rows), soft_wrap=True, markup=False)
    if out:
        show.print(f"Model: {out}", soft_wrap=True, markup=False)


@click.command("draw", epilog=DRAW_EXAMPLES)
@click.argument("model", type=click.Path(path_type=Path))
@options(
    click.option("--days", type=float, required=True, help="Length of the trace in days, for instance 7 or 0.5."),
    click.option("--scale", type=float, default=1.0, show_default=True, help="Factor on the model's rate."),
    seed_option,
    click.option(
        "--out",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        help="File for the trace (CSV, gzipped if the name ends in .gz).",
    ),
    as_json,
)
def draw_command(model: Path, days: float, scale: float, seed: int, out: Path, json_: bool) -> None:
    """A trace drawn from a MODEL that `demand fit` wrote, for `plan --trace`.

    Its columns are arrival_s, isl and osl; 0 s is 0:00 UTC, on a Monday if the model knows the hours of the week.
    The same seed gives the same trace.
    """
    trace = drawn(read_model(model), days, seed=seed, scale=scale)
    write(out, trace_lines(trace))
    found = {"requests": len(trace), "requests_per_s": len(trace) / (days * DAY_S), "out": str(out)}
    if json_:
        write_json(found)
    else:
        rate, lasts = per_second(len(trace) / (days * DAY_S)), with_unit(significant(days), "days")
        click.echo(f"{out}: {count_of(len(trace), 'request')} in {lasts}, {rate} on average")


def trace_lines(trace: Trace) -> Iterator[str]:
    """The trace as a CSV file that `plan --trace` reads, in chunks of lines."""
    yield "arrival_s,isl,osl\n"
    for first in range(0, len(trace), ROWS):
        part = slice(first, first + ROWS)
        rows = zip(*(of[part].tolist() for of in (trace.arrival_s, trace.isl, trace.osl)), strict=True)
        yield "".join(f"{arrival_s:.6f},{isl},{osl}\n" for arrival_s, isl, osl in rows)


def described(model: DemandModel, trace: Trace) -> list[str]:
    """The trace, the profile, the arrivals and the lengths, a line each."""
    rates, lengths = model.rates_per_s, model.lengths
    days, minutes = significant(trace.span_s / DAY_S), significant(trace.span_s / MINUTE_S)
    span = with_unit(*((days, "days") if trace.span_s >= DAY_S else (minutes, "minutes")))
    unit = "day" if len(rates) == DAY_H else "week"
    profile = (
        f"Profile: {significant(min(rates))} to {significant(max(rates))} requests/s by hour of the {unit} (UTC)"
        if len(rates) > 1
        else "Profile: flat, for the trace is shorter than a day"
    )
    return [
        f"{count_of(len(trace), 'request')} in {span}, {per_second(trace.rate_per_s)} on average",
        profile,
        f"Arrivals around it: {arrivals_line(model)}",
        f"ISL {significant(lengths.isl)} tokens (cv {lengths.isl_cv:.2f}), OSL {significant(lengths.osl)} "
        f"(cv {lengths.osl_cv:.2f}), correlation {lengths.correlation:.2f}",
    ]


def arrivals_line(model: DemandModel) -> str:
    """The arrival process in words."""
    match model.arrivals:
        case Mmpp() as states:
            high, low = (significant(factor) for factor in (states.high_factor, states.low_factor))
            return (
                f"bursts (MMPP), {high} times the rate for {significant(states.high_s)} s on average, then {low} times "
                f"for {significant(states.low_s)} s"
            )
        case Gamma(cv=cv):
            return f"gamma gaps with a coefficient of variation of {significant(cv)}"
        case _:
            return "at random (Poisson)"


def compared_json(row: Compared) -> dict[str, Any]:
    """The keys of a figure."""
    return row._asdict() | {"met": row.met}


def compared_table(rows: list[Compared]) -> Table:
    """Each figure of the trace beside the model's."""
    table = Table("figure", "trace", "model", "off", "met", title="The model beside the trace", title_justify="left")
    for row in rows:
        shown = f"{row.off:+z.2f}" if row.absolute else percent(row.off, sign=True)
        table.add_row(row.figure, significant(row.trace), significant(row.model), shown, "yes" if row.met else "no")
    return table


def verdict(rows: list[Compared]) -> str:
    """What is not met, in a sentence."""
    missed = [row for row in rows if not row.met]
    if not missed:
        return (
            f"The model meets the trace: percentiles within {percent(WITHIN)}, dispersion within "
            f"{percent(WITHIN_DISPERSION)}, or what one request or chance makes."
        )
    each = [f"{row.figure} ({significant(row.trace)}, the model {significant(row.model)})" for row in missed]
    return f"Not met: {'; '.join(each)}."
