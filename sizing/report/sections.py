"""The sections of a report in reading order, the same for HTML and PDF: two pages to decide by, then the annexes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sizing.analyses.sensitivity import limit_name
from sizing.analyses.session_plan import SessionLoad
from sizing.question import FIELDS, Field, Question
from sizing.report import tables
from sizing.report.model import InputRow, Quantity, Report, Unit
from sizing.report.tables import Table, line, number_of, visible
from sizing.text import DEFINITIONS, GOODPUT_PRICE, capital
from sizing.workload import SHARES, Limit, Sla

ASKED = (
    *("model", "rate", "peak_factor", "isl", "isl_cv", "osl", "osl_cv", "isl_law", "osl_law", "correlation"),
    *("prefix_tokens", "prefix_hit"),
    *("ttft", "itl", "gap", "e2e", "goodput", "rejected", "queue_limit", "queue_timeout"),
    *("headroom", "spare", "arrivals", "routing", "price"),
)
"""Fields of a question in the order of a report."""
RECORDED = "as recorded"
"""The arrivals of a trace."""


def inputs(question: Question, replayed: bool = False) -> tuple[InputRow, ...]:
    """One row for everything asked; quiet fields only where they differ from their default. `replayed`: of a recorded
    trace, whose arrivals are its own."""
    asked = ((FIELDS[name], FIELDS[name].of(question)) for name in ASKED)
    rows = (
        InputRow(field.key, field.label, RECORDED) if replayed and field.key == "arrivals" else row(field, value)
        for field, value in asked
        if value is not None and (field.default != value or not field.quiet)
    )
    return (*rows, *(given(f"price_{gpu}", f"Price of {gpu}", price, "per GPU-hour") for gpu, price in question.prices))


def class_inputs(sla: Sla, of_classes: Mapping[str, Sla]) -> tuple[InputRow, ...]:
    """The limits of classes of requests, by name, that are others than those of all."""
    rows = []
    for name, own in of_classes.items():
        changed = [row(FIELDS[limit.metric], limit) for limit in own.given if limit not in sla.given]
        lifted = [row(FIELDS[limit.metric], limit) for limit in sla.given if own.on(limit.metric) is None]
        changed += [InputRow(each.key, each.name, "none") for each in lifted]
        rows += [InputRow(f"{name}_{each.key}", f"{each.name} ({name})", each.value) for each in changed]
    return tuple(rows)


def daily_input(rates_per_s: Sequence[float]) -> InputRow:
    """The load of each hour of a day."""
    return InputRow(
        "daily", "Load by hour from midnight on, requests/s", ", ".join(f"{rate:g}" for rate in rates_per_s)
    )


def session_inputs(question: Question, load: SessionLoad) -> tuple[InputRow, ...]:
    """The same for sessions: how many and what they are like in place of requests."""
    asked = load.sessions
    many = (
        given("sessions_per_s", "Sessions that start", asked.rate_per_s, "sessions/s")
        if load.users is None
        else given("users", "Users or agents at once", load.users, "sessions")
    )
    told = (
        given("turns", "Turns of a session, mean", asked.turns, "turns"),
        InputRow("turn_law", "Their number", asked.turn_law),
        *(
            each
            for kind, name in SESSION_TOKENS.items()
            for each in (
                given(f"{kind}_tokens", f"{name}, mean", getattr(asked, f"{kind}_tokens"), "tokens"),
                given(f"{kind}_cv", f"{name}, variation (CV)", getattr(asked, f"{kind}_cv"), ""),
            )
        ),
        given("think_s", "From an answer to the next turn, mean", asked.think_s, "s"),
        given("system_tokens", "Tokens that all sessions begin with", asked.system_tokens, "tokens"),
        given("context_tokens", "Context at which a session ends", asked.context_tokens, "tokens"),
        InputRow("session_routing", "Routing of turns", load.routing.replace("_", " ")),
    )
    limits = (
        given(f"{each.key}_p{each.percentile}_s", limit_name(each), each.limit_s, "s") for each in question.sla.limits
    )
    terms = (row(FIELDS[name], value) for name in SESSION_TERMS if (value := FIELDS[name].of(question)) is not None)
    prices = (given(f"price_{gpu}", f"Price of {gpu}", price, "per GPU-hour") for gpu, price in question.prices)
    return (row(FIELDS["model"], question.model), many, *told, *limits, *terms, *prices)


SESSION_TOKENS = {
    "first": "Prompt tokens of the first turn",
    "user": "Tokens of a later turn",
    "output": "Answer tokens",
}
SESSION_TERMS = ("headroom", "spare", "price")


def row(field: Field, value: Any) -> InputRow:
    """One thing asked, as a report has it."""
    if isinstance(value, Limit) and value.metric in SHARES:
        share = value.limit_s if value.metric == "rejected" else value.percentile / 100
        return given(value.metric, field.label, share, "share")
    if isinstance(value, Limit) and not value.percentile:
        return given(f"{value.metric}_s", f"{field.label} that counts for goodput", value.limit_s, "s")
    if isinstance(value, Limit):
        return given(f"{value.metric}_p{value.percentile}_s", limit_name(value), value.limit_s, "s")
    if field.range is None:
        return InputRow(field.key, field.label, str(value).replace("_", " ") if field.choices else str(value))
    return given(field.key, field.label, value, cast(Unit, field.unit or field.range.unit))


def given(key: str, name: str, value: float, unit: Unit) -> InputRow:
    """A number that was asked for."""
    return InputRow(key, name, Quantity(value, unit, "given"))


def scenario_toml(report: Report) -> str:
    """What was asked as TOML: one key a line, SI units, text quoted."""
    return "\n".join(toml_line(row) for row in report.inputs)


def toml_line(row: InputRow) -> str:
    """One key and value; JSON's strings are TOML's basic strings."""
    key = row.key if row.key.replace("_", "").isalnum() and row.key.isascii() else json.dumps(row.key)
    if isinstance(row.value, Quantity):
        value = "nan" if row.value.value is None else f"{row.value.value:.12g}"
        return f"{key} = {value}{f'  # {row.value.unit}' if row.value.unit else ''}"
    return f"{key} = {json.dumps(row.value, ensure_ascii=False)}".replace("\x7f", "\\u007f")


NOT_REPLAYED = (
    "By formula, for Poisson arrivals of the trace's lengths at one rate: what its bursts and its hours add is not in "
    "these curves, but in the replay below."
)


WAYS = "Ways to meet the SLA"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it; `charts` are names of charts, `lists` bullets under a heading of their own,
    side by side; `code` is text as it is."""

    title: str
    texts: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    code: str = ""
    annex: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """A figure to see at first sight: what it is, its value, and a word on it."""

    name: str
    value: str
    said: str


def cards(report: Report) -> tuple[Card, ...]:
    """The figures at the top: GPUs, requests/s per GPU, each limit. None without an answer."""
    found = report.answer
    if found is None:
        return ()
    replicas = f"{number_of(found.working)} + {number_of(found.spare)} spare replicas"
    per_gpu = Card(
        "Requests/s per GPU", number_of(found.planned_per_gpu), f"{number_of(found.planned_per_replica)} per replica"
    )
    limits = (
        Card(
            tables.limit_name(row),
            number_of(row.predicted),
            f"{'keeps' if row.kept else 'misses'} {number_of(row.limit)}",
        )
        for row in report.limits
    )
    return (Card("GPUs", number_of(found.gpus), replicas), per_gpu, *limits)


def sections(report: Report) -> tuple[Section, ...]:
    """Every section that has something to say."""
    body = answered(report) if report.answer else refused(report)
    return (*body, *annexes(report))


def answered(report: Report) -> Iterator[Section]:
    """What to decide by."""
    yield Section("Will it hold?", tables=(tables.sla(report),), bullets=tuple(map(line, report.remarks)))
    if report.warnings:
        yield Section("Before buying", bullets=tuple(f"{each.rstrip('.')}." for each in capitals(report.warnings)))
    if report.curves:
        yield Section("Latency against load", texts=(NOT_REPLAYED,) if report.traffic else (), charts=("latency",))
    if report.sessions:
        texts = tuple(f"{line(text)}." for text in report.sessions.lines)
        shown = tables.session_routings(report), tables.session_loads(report)
        yield Section("Sessions", texts=texts, charts=("sessions",), tables=shown)
    if report.traffic:
        texts = tuple(f"{line(text)}." for text in report.traffic.lines)
        found = (*((tables.classes(report),) if report.traffic.classes else ()), tables.worst_hours(report))
        yield Section("Recorded traffic", texts=texts, charts=("traffic",), tables=found)
    if report.day:
        texts = tuple(f"{line(text).rstrip('.')}." for text in (report.day.sentence, report.day.working))
        yield Section("Over a day", texts=texts, charts=("day",), tables=(tables.day_figures(report),))
    both = (("Included", capitals(report.includes)), ("Not included", capitals(report.excludes)))
    yield Section("What the number is for", lists=both)
    yield Section("Alternatives", charts=("gpus",), tables=(tables.configurations(report),))
    yield Section("Left out", tables=(tables.left_out(report),))
    yield Section("Sensitivity", tables=(tables.sensitivity(report),))
    if report.goodput:
        yield Section(GOODPUT_PRICE, tables=(tables.goodput(report),))
    yield Section("Cost", tables=(tables.cost(report),))
    yield Section("Assumptions", bullets=tuple(map(line, report.assumptions)))


def capitals(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Bullets that begin with a capital."""
    return tuple(capital(line(text)) for text in texts)


def refused(report: Report) -> Iterator[Section]:
    """Why there is no answer, and why each configuration was left out."""
    yield Section("Why there is no answer", texts=(capital(line(report.reason)),))
    if report.ways_out:
        more = (tables.together(report),) if report.together else ()
        yield Section(WAYS, tables=(tables.ways_out(report), *more))
    if report.remarks:
        yield Section(WAYS, bullets=tuple(map(line, report.remarks)))
    yield Section("Left out", tables=(tables.left_out(report),))


def annexes(report: Report) -> Iterator[Section]:
    """Inputs, provenance and accuracy, definitions, the data of the charts, link and scenario."""
    if report.inputs:
        yield Section("Inputs", tables=(tables.inputs(report),), annex=True)
    if report.answer:
        basis = tuple(line(text) for text in (report.accuracy,) if text)
        both = (tables.sources(report), tables.evidence(report))
        yield Section("Basis and accuracy", texts=basis, tables=both, annex=True)
    yield Section("Definitions", terms=DEFINITIONS, annex=True)
    if report.curves:
        day = (tables.day_hours(report),) if report.day else ()
        traffic = (tables.traffic_hours(report),) if report.traffic else ()
        yield Section("Data of the charts", tables=(tables.curve_data(report), *day, *traffic), annex=True)
    where = f"Open this scenario: {line(report.link, 4_000)}" if report.link else "No link was given."
    yield Section("Link and scenario", texts=(where,), code=visible(scenario_toml(report)), annex=True)
