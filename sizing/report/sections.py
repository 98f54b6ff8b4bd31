"""The sections of a report in reading order, the same for HTML and PDF: two pages to decide by, then the annexes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from sizing.analyses.sensitivity import limit_name
from sizing.numbers import percent, significant
from sizing.plans import Fleet
from sizing.question import FIELDS, Field, Question
from sizing.report import tables
from sizing.report.model import InputRow, Quantity, Report, Unit
from sizing.report.tables import Table, capital, line, number_of, visible
from sizing.workload import Limit

# --- What a report says in words beside its numbers: what the count includes, what it assumes, what its terms mean

EXCLUDES = (
    "network and gateway: latencies begin when a request reaches the server and end when its last token leaves it",
    "tokenization and other CPU work around the engine, unless the measured points include it",
    "cold starts: loading weights, compiling engines, scaling up",
    "failures beyond the spare replicas, and load lost while a replica is replaced",
    "other workloads on the same GPUs",
    "servers, storage, network, power supply and staff in the cost",
)
DEFINITIONS = (
    ("TTFT", "time to first token: from the arrival of a request to its first output token, waiting included"),
    ("ITL", "inter-token latency: (E2E − TTFT) / (OSL − 1), one mean value for each request"),
    ("Gap", "time between two successive output tokens of a request; percentiles are of all requests' gaps together"),
    ("E2E", "end to end: from the arrival of a request to its last output token"),
    ("ISL, OSL", "input and output sequence length of a request, in tokens"),
    ("TP, PP", "tensor and pipeline parallel size: their product is the number of GPUs in a replica"),
    ("Replica", "one instance of the engine with its GPUs; spare replicas stand idle"),
    ("Capacity", "requests/s of one replica just before the first limit of the SLA fails"),
    ("Headroom", "share of the capacity kept free: a replica is planned at (1 − headroom) × capacity"),
    ("Requests/s per GPU", "planned load of a working replica divided by its GPUs, idle ones included"),
    ("90 % band", "the counts at both ends of the uncertainty of the engine's times, equally likely on either side"),
    ("Utilization", "planned load divided by the highest stable load"),
    ("Given", "entered by the user"),
    ("Measured", "a run on a server at exactly this point"),
    ("Fitted", "from a law fitted to measured points, inside the range that they cover"),
    ("Extrapolated", "from a law fitted to measured points, outside the range that they cover"),
    ("Estimated", "not measured: from a database of kernel timings"),
    ("What-if", "a change that nobody has measured, computed from a law"),
)
ARRIVALS = {
    "poisson": "Requests arrive at random and independently of each other (Poisson).",
    "constant": "Requests arrive in even gaps.",
    "gamma": "Requests arrive in bursts: gaps are gamma distributed with a coefficient of variation of {cv:g}.",
    "batch": "Requests arrive in groups of {size}, the groups at random.",
}
ROUTING = {
    "random": "Each request goes to a replica at random.",
    "round_robin": "Requests go to the replicas in turn.",
    "power_of_two": "Each request goes to the less loaded of two replicas drawn at random.",
    "least_outstanding": "Each request goes to the replica with the fewest requests outstanding.",
}
BATCHING = {
    "chunked": "in-flight batching, prompts in chunks",
    "prefill_first": "in-flight batching, prompts first",
    "whole_prompt": "in-flight batching, whole prompts",
    "static": "static batching",
}


def includes(question: Question, fleet: Fleet) -> Iterator[str]:
    """What the count covers."""
    yield "waiting in the replica's queue, computing the prompt, and every decode step, at the planned load"
    yield "the limits of batch size and KV cache memory, which make requests wait or pause"
    if question.headroom:
        yield f"headroom: replicas are planned at {percent(1 - question.headroom)} of the load at which the SLA fails"
    if fleet.spare:
        yield f"{fleet.spare} spare {'replica' if fleet.spare == 1 else 'replicas'} on top of those that carry the load"


def assumptions(question: Question, fleet: Fleet) -> Iterator[str]:
    """What must be true of the workload and the servers for the count to hold."""
    workload, batching = question.workload, fleet.candidate.replica.batching
    lengths = workload.lengths
    yield ARRIVALS[workload.arrivals.kind].format(cv=workload.arrivals.cv, size=workload.arrivals.size)
    yield ROUTING[question.routing]
    yield f"The load of {significant(workload.rate_per_s)} requests/s is sustained: latencies are steady-state values."
    yield (
        "Every request has the same lengths."
        if lengths.fixed
        else f"Lengths are lognormal, with coefficients of variation of {lengths.isl_cv:g} (ISL) and "
        f"{lengths.osl_cv:g} (OSL), correlated by {lengths.correlation:g}."
    )
    if workload.prefix.tokens:
        yield (
            f"{workload.prefix.tokens:,} tokens of each prompt are shared, and cached with a probability of "
            f"{percent(workload.prefix.hit_rate)}."
        )
    yield (
        f"Each replica runs {BATCHING[batching.policy]}: at most {batching.max_batch_size:,} requests at once, "
        f"{batching.token_budget:,} tokens an iteration, {batching.kv_tokens:,} tokens of KV cache."
    )
    yield "All replicas are identical, and no GPU is throttled or shared."


# --- What was asked, as rows for people and as a scenario in TOML

MOST_LINE = 1_000
"""Characters of a text in the scenario."""


ASKED = (
    *("model", "rate", "peak_factor", "isl", "isl_cv", "osl", "osl_cv", "correlation", "prefix_tokens", "prefix_hit"),
    *("ttft", "itl", "gap", "e2e", "headroom", "spare", "arrivals", "routing", "price"),
)
"""Fields of a question in the order of a report."""


def inputs(question: Question) -> tuple[InputRow, ...]:
    """One row for everything asked; quiet fields only where they differ from their default."""
    asked = ((FIELDS[name], FIELDS[name].of(question)) for name in ASKED)
    rows = (
        row(field, value) for field, value in asked if value is not None and (field.default != value or not field.quiet)
    )
    return (*rows, *(given(f"price_{gpu}", f"Price of {gpu}", price, "per GPU-hour") for gpu, price in question.prices))


def row(field: Field, value: Any) -> InputRow:
    """One thing asked, as a report has it."""
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
    return f"{key} = {json.dumps(row.value[:MOST_LINE], ensure_ascii=False)}".replace("\x7f", "\\u007f")


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
        yield Section("Over a day", texts=texts, charts=("day",), tables=(tables.day_figures(report),))
    both = (("Included", sentences(report.includes)), ("Not included", sentences(report.excludes)))
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
    """Why there is no answer, and why each configuration was left out."""
    yield Section("Why there is no answer", texts=(capital(line(report.reason)),))
    if report.ways_out:
        more = (tables.together(report),) if report.together else ()
        yield Section("Ways to meet the SLA", tables=(tables.ways_out(report), *more))
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
        yield Section("Data of the charts", tables=(tables.curve_data(report), *day), annex=True)
    where = f"Open this scenario: {line(report.link, 4_000)}" if report.link else "No link was given."
    yield Section("Link and scenario", texts=(where,), code=visible(scenario_toml(report)), annex=True)
