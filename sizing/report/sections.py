"""The sections of a report in reading order, the same for HTML and PDF: two pages to decide by, then the annexes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sizing.report import tables, tables_beside
from sizing.report.inputs import scenario_toml
from sizing.report.model import Report
from sizing.report.tables import Table
from sizing.report.terms import DEFINITIONS
from sizing.report.words import capital, line, number_of, visible


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
        Card(row.name, number_of(row.predicted), f"{'keeps' if row.kept else 'misses'} {number_of(row.limit)}")
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
        yield Section("Before buying", bullets=sentences(report.warnings))
    yield Section("Latency against load", charts=("latency",))
    if report.day:
        texts = tuple(f"{line(text).rstrip('.')}." for text in (report.day.sentence, report.day.working))
        yield Section("Over a day", texts=texts, charts=("day",), tables=(tables_beside.day_figures(report),))
    both = (("It includes", sentences(report.includes)), ("It does not include", sentences(report.excludes)))
    yield Section("What the number is for", lists=both)
    yield Section("Alternatives", charts=("gpus",), tables=(tables.configurations(report),))
    yield Section("Left out", tables=(tables.left_out(report),))
    yield Section("Sensitivity", tables=(tables.sensitivity(report),))
    yield Section("Cost", tables=(tables.cost(report),))
    yield Section("Assumptions", bullets=tuple(map(line, report.assumptions)))


def sentences(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Bullets that begin with a capital."""
    return tuple(capital(line(text)) for text in texts)


def refused(report: Report) -> Iterator[Section]:
    """Why there is no answer; what was left out has its reasons."""
    yield Section("Why there is no answer", texts=(capital(line(report.reason)),))
    if report.ways_out:
        more = (tables_beside.together(report),) if report.together else ()
        yield Section("What would have to give", tables=(tables_beside.ways_out(report), *more))
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
        day = (tables_beside.day_hours(report),) if report.day else ()
        yield Section("Data of the charts", tables=(tables.curve_data(report), *day), annex=True)
    where = f"Open this scenario: {line(report.link, 4_000)}" if report.link else "No link was given."
    yield Section("Link and scenario", texts=(where,), code=visible(scenario_toml(report)), annex=True)
