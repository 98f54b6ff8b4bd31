"""What was asked, as rows for people and as a scenario in TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sizing.plan import Question
from sizing.report.model import Input, Report
from sizing.report.quantity import Quantity, Unit
from sizing.sensitivity import limit_name

MOST_LINE = 1_000
"""Characters of a text in the scenario."""


def inputs(question: Question) -> tuple[Input, ...]:
    """One row for everything asked; prices only where there are some."""
    return tuple(rows(question))


def rows(question: Question) -> Iterator[Input]:
    workload = question.workload
    lengths, prefix = workload.lengths, workload.prefix
    yield Input("model", "Model", question.model)
    yield given("rate_per_s", "Planned load", workload.rate_per_s, "requests/s")
    if question.peak_factor != 1:
        yield given("peak_factor", "Peak over mean load", question.peak_factor, "")
    yield given("isl", "Input tokens, mean (ISL)", lengths.isl, "tokens")
    yield given("isl_cv", "Input tokens, variation (CV)", lengths.isl_cv, "")
    yield given("osl", "Output tokens, mean (OSL)", lengths.osl, "tokens")
    yield given("osl_cv", "Output tokens, variation (CV)", lengths.osl_cv, "")
    if lengths.correlation:
        yield given("correlation", "Correlation of input and output tokens", lengths.correlation, "")
    if prefix.tokens:
        yield given("prefix_tokens", "Tokens that prompts share", prefix.tokens, "tokens")
        yield given("prefix_hit", "Chance to find them cached", prefix.hit_rate, "share")
    for limit in question.sla.limits:
        yield given(f"{limit.metric}_p{limit.percentile}_s", limit_name(limit), limit.limit_s, "s")
    yield given("headroom", "Headroom", question.headroom, "share")
    yield given("spare", "Spare replicas", question.spare, "replicas")
    yield Input("arrivals", "Arrivals", str(workload.arrivals))
    yield Input("routing", "Routing", question.routing.replace("_", " "))
    if question.price_per_gpu_hour is not None:
        yield given("price_per_gpu_hour", "Price", question.price_per_gpu_hour, "per GPU-hour")
    for gpu, price in question.prices:
        yield given(f"price_{gpu}", f"Price of {gpu}", price, "per GPU-hour")


def given(key: str, name: str, value: float, unit: Unit) -> Input:
    """A number that was asked for."""
    return Input(key, name, Quantity(value, unit, "given"))


def scenario_toml(report: Report) -> str:
    """What was asked as TOML: one key a line, SI units, text quoted."""
    return "\n".join(toml_line(row) for row in report.inputs)


def toml_line(row: Input) -> str:
    """One key and value; JSON's strings are TOML's basic strings."""
    key = row.key if row.key.replace("_", "").isalnum() and row.key.isascii() else json.dumps(row.key)
    if isinstance(row.value, Quantity):
        value = "nan" if row.value.value is None else f"{row.value.value:.12g}"
        return f"{key} = {value}{f'  # {row.value.unit}' if row.value.unit else ''}"
    return f"{key} = {json.dumps(row.value[:MOST_LINE], ensure_ascii=False)}".replace("\x7f", "\\u007f")
