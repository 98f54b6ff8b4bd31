"""The tables of a report, the same in every format: cells are texts or quantities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sizing.numbers import met, milliseconds, percent, significant, with_unit
from sizing.report.model import (
    Configuration,
    Day,
    EffectRow,
    LimitRow,
    OfLimit,
    Quantity,
    Report,
    SessionRow,
    Traffic,
    TrafficHour,
    WayOut,
)
from sizing.text import GOODPUT_JUDGED, GOODPUT_PRICE, LEFT_OUT, METHOD, capital, counts, spelt

# --- Text and numbers as the writers show them: nothing invisible, nothing endless, numbers with three digits

COUNTS = ("GPUs", "replicas", "points", "GPU-hours")
"""What a unit counts, in the plural."""
LONGEST = 1_000
"""Characters of a text where a layout holds only a line or a cell: more than any sentence of this program."""
LONGEST_NOTES = 5_000
NONE = "—"
UNTITLED = "Untitled"
PICTURES = 0x2400
"""Where Unicode has pictures of the control characters."""
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
"""Characters that cannot be seen or that turn the direction of others; not newline and tab."""


def visible(text: str) -> str:
    """`text` with every hidden character shown: controls as their pictures, marks of direction by number.

    >>> visible("a\\x07b\\u202e")
    'a␇b⟨U+202E⟩'
    """
    return HIDDEN.sub(lambda found: seen(ord(found[0])), text)


def seen(code: int) -> str:
    """One hidden character, to look at."""
    if code < 0x20:
        return chr(PICTURES + code)
    return chr(PICTURES + 0x21) if code == 0x7F else f"⟨U+{code:04X}⟩"


def line(text: str, longest: int = LONGEST) -> str:
    """A text on one line, cut with an ellipsis."""
    joined = visible(" ".join(text[: 4 * longest].split()))
    whole = len(joined) <= longest and len(text) <= 4 * longest
    return joined if whole else f"{joined[: longest - 1].rstrip()}…"


def paragraphs(text: str) -> tuple[str, ...]:
    """Notes as paragraphs, cut with an ellipsis."""
    cut = text if len(text) <= LONGEST_NOTES else f"{text[: LONGEST_NOTES - 1]}…"
    return tuple(visible(each) for each in cut.splitlines() if each.strip())


def number_of(quantity: Quantity) -> str:
    """A number for a table whose heading names the unit; times and shares carry theirs. 100 % are all.

    >>> number_of(Quantity(0.0247, "s", "estimated")), number_of(Quantity(9, "GPUs", "estimated"))
    ('24.7 ms', '9')
    >>> number_of(Quantity(0.99999, "share", "estimated")), number_of(Quantity(1.0, "share", "estimated"))
    ('over 99.9 %', '100 %')
    """
    value = quantity.value
    if value is None:
        return NONE
    if quantity.unit == "s":
        return milliseconds(value)
    if quantity.unit == "share":
        return met(value, 1) if 0.9995 <= value < 1 else f"{significant(100 * value)} %"
    return f"{value:,.0f}" if quantity.unit in COUNTS else significant(value)


def text_of(quantity: Quantity) -> str:
    """A number with its unit.

    >>> text_of(Quantity(20, "requests/s", "given")), text_of(Quantity(1, "GPUs", "estimated"))
    ('20 requests/s', '1 GPU')
    """
    if quantity.unit in ("s", "share", "") or quantity.value is None:
        return number_of(quantity)
    return with_unit(number_of(quantity), quantity.unit)


def when(made_at: str) -> str:
    """A time as people write it: 2026-11-20 10:00 UTC; what is no such time stays as it is.

    >>> when("2026-11-20T10:00:00+00:00")
    '2026-11-20 10:00 UTC'
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d(\.\d+)?)?(\+00:00|Z)", made_at)
    return f"{found[1]} {found[2]} UTC" if found else line(made_at, 40)


def moment(made_at: str) -> datetime:
    """When a report was made, the only date in its files; the beginning of 1980 where it does not say."""
    try:
        made = datetime.fromisoformat(made_at)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)
    return made if made.tzinfo else made.replace(tzinfo=UTC)


Cell = str | Quantity


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. `empty` is said where there are no rows; `note` below them; `wide` columns hold long text.

    `fixed`: numbers carry their unit in the cell (rows of different units), not in the heading.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = "Nothing to show."
    note: str = ""
    wide: tuple[str, ...] = ()
    fixed: bool = False

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if isinstance(cell, str):
            return line(cell)
        return text_of(cell) if self.fixed else number_of(cell)

    def is_number(self, column: int) -> bool:
        """True for a column of numbers, which goes to the right."""
        return any(isinstance(row[column], Quantity) for row in self.rows)


def sla(report: Report) -> Table:
    """Each limit against its prediction at the planned load, or over all requests replayed."""
    if report.traffic:
        where, note = "over all requests replayed", "Predicted: what the requests of the trace see in the replay"
    else:
        where, note = "at the planned load", "Predicted for the planned load spread over the working replicas"
    return Table(
        f"SLA {where}",
        ("Limit", "Allowed", "Predicted", "90 % band", "Room", "Kept"),
        tuple(
            (limit_name(row), row.limit, row.predicted, latency_band(row), row.room, "yes" if row.kept else "no")
            for row in report.limits
        ),
        empty="No limit was set.",
        note=f"{note}; room is the unused part of the limit.",
    )


def limit_name(row: OfLimit) -> str:
    """A limit as its figures are to be read: of goodput they are no share of the requests, but how far those that must
    keep all limits use them up."""
    return f"limits used at {row.name}" if row.metric == "goodput" else row.name


def latency_band(row: LimitRow) -> str:
    """The 90 % band of a predicted latency; open where the slow end cannot carry the load, a dash without a band."""
    if row.low.value is None and row.high.value is None:
        return number_of(row.low)
    if row.high.value is None:
        return f"{number_of(row.low)} or more"
    low = (
        milliseconds(row.low.value or 0, row.high.value) if row.low.unit == row.high.unit == "s" else number_of(row.low)
    )
    return f"{low} to {number_of(row.high)}"


def gpus_band(found: Configuration) -> str:
    """The 90 % band of a count of GPUs."""
    return counts(found.gpus_low.value or 0, found.gpus_high.value)


def configurations(report: Report) -> Table:
    """The answer and its alternatives."""
    priced = any(found.cost_per_hour.value is not None for found in report.configurations)
    configuration = ("GPU", "Layout", "Precision", "Engine")
    columns = (*configuration, "GPUs", "90 % band", "Requests/s per GPU", "Room", "Bound by", "Basis")
    return Table(
        "Configurations that meet the SLA",
        (*columns, "Verified by", *(("Cost per hour",) if priced else ())),
        tuple(configuration_row(found, priced) for found in report.configurations),
        empty="No configuration meets the SLA.",
        note="The first row is the answer. Requests/s per GPU is planned, headroom kept; room is at the planned load.",
    )


def configuration_row(found: Configuration, priced: bool) -> tuple[Cell, ...]:
    """One row of the configurations."""
    return (
        *(found.gpu, str(found.layout), found.precision, spelt(found.engine)),
        *(found.gpus, gpus_band(found), found.planned_per_gpu, found.room),
        *(found.binding.partition(" <= ")[0], found.basis, METHOD[found.verified_by]),
        *((found.cost_per_hour,) if priced else ()),
    )


def left_out(report: Report) -> Table:
    """What was left out, and why."""
    return Table(
        "Left out",
        ("GPU", "Layout", "Precision", "Engine", "Reason", "Why"),
        tuple(
            (
                row.gpu,
                row.layout or f"TP{row.tp}",
                row.precision,
                spelt(row.engine),
                LEFT_OUT.get(row.kind, (row.kind,))[0],
                capital(row.why),
            )
            for row in report.left_out
        ),
        empty="No configuration was left out.",
        wide=("Why",),
    )


def sensitivity(report: Report) -> Table:
    """GPUs with each input changed."""
    changes = [effect.change for effect in report.sensitivity[0].effects] if report.sensitivity else []
    return Table(
        "GPUs if one input changes",
        ("Input", "As asked", *map(in_words, changes)),
        tuple((row.name, text_of(row.value), *map(gpus_or_not, row.effects)) for row in report.sensitivity),
        empty="No sensitivities were computed.",
        note=as_asked(report),
    )


def goodput(report: Report) -> Table:
    """GPUs at rising goodput."""
    return Table(
        GOODPUT_PRICE,
        ("Goodput", "GPUs", "Replicas", "Requests/s per GPU"),
        tuple(
            (
                row.goodput,
                row.gpus if row.gpus.value is not None else "SLA fails",
                row.replicas,
                row.requests_per_s_per_gpu,
            )
            for row in report.goodput
        ),
        empty="Not requested.",
        note=GOODPUT_JUDGED,
    )


def in_words(change: float) -> str:
    """A change without a sign in front, which would make a spreadsheet take the cell for a formula."""
    return f"{percent(abs(change))} {'less' if change < 0 else 'more'}"


def gpus_or_not(effect: EffectRow) -> Cell:
    """GPUs after a change, or that no number of them will do, or that nothing can be changed so."""
    return effect.gpus if effect.gpus.value is not None else "none"


def as_asked(report: Report) -> str:
    """What the sensitivities are to be held against."""
    found = report.answer
    start = (
        "All else is unchanged; changes are relative: 25 % more than 20 % headroom is 25 %. None: no fleet meets the "
        "SLA then, or there is no such value."
    )
    return start if found is None else f"As asked: {text_of(found.gpus)}. {start}"


def cost(report: Report) -> Table:
    """Cost and energy of the answer."""
    return Table(
        "Cost and energy",
        ("Figure", "Value"),
        tuple((row.name, row.value) for row in report.cost),
        empty="No price was given, and the power of this GPU is not in the catalogue.",
        note="Of the whole fleet, spares included; tokens and requests at the mean load all day. Energy: every GPU at "
        "its thermal design power, without servers and cooling.",
        fixed=True,
    )


def inputs(report: Report) -> Table:
    """What was asked."""
    return Table(
        "Inputs",
        ("Input", "Value"),
        tuple((row.name, row.value) for row in report.inputs),
        empty="The question is not in this report.",
        fixed=True,
    )


def sources(report: Report) -> Table:
    """Where the numbers of each configuration come from."""
    return Table(
        "Where the numbers come from",
        ("Configuration", "Basis", "Source", "Standard error", "Points", "Measured", "Digest of the data"),
        tuple(
            (
                *(spelt(row.configuration), row.basis, spelt(row.source), row.error),
                *(str(row.points) if row.points else NONE, dates(row.measured_from, row.measured_to), row.digest),
            )
            for row in report.sources
        ),
        empty="Nothing was sized.",
        note="A configuration's numbers have the basis shown; limits, load, lengths, margins and prices are given. "
        "Standard error: of the engine's times, as a share.",
        wide=("Source",),
    )


def dates(first: str, last: str) -> str:
    """Days of the first and the last measurement."""
    days = list(dict.fromkeys(day[:10] for day in (first, last) if day))
    return " to ".join(days) or NONE


def evidence(report: Report) -> Table:
    """How this planner fares against truth that is known."""
    return Table(
        "How well the planner predicts",
        ("Claim", "Against", "Cases", "Figure", "Median error", "p90", "Goal", "Holds"),
        tuple(
            (row.claim, row.against, row.n, row.metric, row.median, row.p90, row.goal, row.holds or NONE)
            for row in report.evidence
        ),
        empty="The table of evidence is not available.",
        note="From docs/accuracy.md, which describes how each row was produced; missed goals are included.",
        wide=("Claim", "Against", "Goal"),
    )


def curve_data(report: Report) -> Table:
    """The numbers of the chart of latency against load."""
    curves = report.curves
    if curves is None:
        return Table("Latency against load", (), (), empty="There is no curve.")
    loads = (Quantity(value, curves.load.unit, curves.load.basis) for value in curves.load.values)
    latencies = (
        tuple(Quantity(value, curve.latency.unit, curve.latency.basis) for value in curve.latency.values)
        for curve in curves.curves
    )
    return Table(
        "Latency against load",
        ("Requests/s per replica", *map(limit_name, curves.curves)),
        tuple(zip(loads, *latencies, strict=True)),
        note=f"By formula; {NONE} where the queue grows without bound.",
    )


# --- Tables of what stands beside count and latencies: ways out where nothing meets the SLA, and GPUs over a day


def ways_out(report: Report) -> Table:
    """The relaxation that each limit needs alone."""
    return Table(
        "Ways to meet the SLA",
        ("Limit", "Requested", "Smallest that works", "Relaxed", "Met as requested at", "Configuration"),
        tuple(map(way_out_row, report.ways_out)),
        empty="Not worked out.",
        note="One limit at a time, the others unchanged. Smallest: from there on, by simulation, it meets "
        "the SLA; its replicas are nearly idle, so it takes very many. Relaxed: they carry half of what they can.",
    )


def way_out_row(way: WayOut) -> tuple[Cell, ...]:
    """One limit; words where it is met as it is, or where no value of it helps."""
    at = f"{way.kept_at} %" if way.metric == "goodput" else f"p{way.kept_at}"
    lower = f"{at} ({spelt(way.kept_by)})" if way.kept_at is not None else NONE
    if way.kept:
        return limit_name(way), way.limit, "kept as asked", NONE, lower, spelt(way.configuration)
    if way.smallest.value is None:
        return limit_name(way), way.limit, "none alone", NONE, lower, "another limit fails too"
    return limit_name(way), way.limit, way.smallest, way.roomy, lower, spelt(way.configuration)


def together(report: Report) -> Table:
    """The relaxation of all limits, if no single one is enough."""
    return Table(
        "Together",
        ("Limit", "Asked", "Smallest that works", "Configuration"),
        tuple((limit_name(row), row.limit, row.smallest, spelt(row.configuration)) for row in report.together),
        note="No single limit is enough: with all of these relaxed, this configuration meets the SLA. Its replicas are "
        "nearly idle then, so it takes very many.",
    )


def day_figures(report: Report) -> Table:
    """What following the load takes and saves over a day."""
    return Table(
        "GPU-hours",
        ("Figure", "Value"),
        tuple(day_rows(report.day)) if report.day else (),
        empty="No day was requested.",
        note="Hours times running GPUs, spares included. Replicas are assumed to start and stop instantly.",
        fixed=True,
    )


def day_rows(day: Day) -> Iterator[tuple[str, Quantity]]:
    """Figures of a day; costs where a price is known."""
    yield "GPUs of the busiest hour", day.constant_gpus
    yield "GPU-hours per day, following the load", day.gpu_hours
    yield "GPU-hours per day, the busiest hour's fleet all day", day.constant_gpu_hours
    yield "Saved", day.saved
    if day.cost.value is not None:
        yield "Cost, following the load", day.cost
        yield "Cost, the busiest hour's fleet all day", day.constant_cost


def day_hours(report: Report) -> Table:
    """Load, replicas and GPUs of each hour."""
    return Table(
        "GPUs of each hour",
        ("Hour", "Requests/s", "Replicas", "GPUs"),
        report.day.hours if report.day else (),
        empty="No day was requested.",
        note="Replicas and GPUs include the spares.",
    )


# --- Tables of sessions: every routing, and rising loads

SESSION_COLUMNS = (
    *("Sessions in flight", "Found in the cache", "Contexts over KV cache"),
    *("p95 TTFT, first turns", "p95 TTFT, later turns", "p95 time of a session", "SLA"),
)


def session_routings(report: Report) -> Table:
    """The planned load with every routing."""
    return _sessions("Routings at the planned load", "Routing", report.sessions.routings if report.sessions else ())


def session_loads(report: Report) -> Table:
    """Rising loads on the answer's fleet."""
    return _sessions("Sessions at rising load", "Load", report.sessions.rising if report.sessions else ())


def _sessions(title: str, first: str, rows: Sequence[SessionRow]) -> Table:
    return Table(
        title,
        (first, *SESSION_COLUMNS),
        tuple(
            (
                *(each.name.replace("_", " "), each.in_flight, each.hit_rate, each.filled),
                *(each.first_ttft, each.later_ttft, each.session, "kept" if each.kept else "missed"),
            )
            for each in rows
        ),
        empty="One replica serves all sessions.",
        note="No time: the queue grew without end. In flight: sessions that have begun and not ended, including those "
        "between two turns.",
    )


# --- Tables of recorded traffic: the worst hours, and all of them

WORST = 8


def classes(report: Report) -> Table:
    """Each limit of each class of requests."""
    rows = report.traffic.classes if report.traffic else ()
    return Table(
        "SLA of each class",
        ("Class", "Requests", "Limit", "Allowed", "Replayed", "Room", "Inside the SLA", "Worst hour", "Inside then"),
        tuple(
            (*(row.of, row.requests, limit_name(row), row.limit, row.replayed, row.room), *hours)
            for row in rows
            for hours in [(row.inside, row.worst_hour, row.worst_inside)]
        ),
        empty="The trace has no classes.",
        note="Inside: the share of the class's requests within all its limits on requests.",
    )


def worst_hours(report: Report) -> Table:
    """The hours in which most requests miss a limit, worst first."""
    hours = report.traffic.hours if report.traffic else ()
    worst = sorted(hours, key=lambda hour: hour.inside.value or 0.0)[:WORST]
    return _hours("The worst hours", report.traffic, worst)


def traffic_hours(report: Report) -> Table:
    """Every hour in which requests arrived."""
    return _hours("Every hour", report.traffic, report.traffic.hours if report.traffic else ())


def _hours(title: str, traffic: Traffic | None, hours: Sequence[TrafficHour]) -> Table:
    names = tuple(limit.name for limit in traffic.limits) if traffic else ()
    return Table(
        title,
        ("Hour", "Requests", "Inside the SLA", *names, "GPUs at its rate"),
        tuple((hour.clock, hour.requests, hour.inside, *hour.seconds, hour.gpus) for hour in hours),
        empty="No trace was replayed.",
        note="Inside: the share of requests within all limits on requests. GPUs: by formula for the mean rate of the "
        "hour, in proportion to the whole trace; they include the spares.",
    )
