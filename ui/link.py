"""The link codec: a scenario as URL parameters and back; every field is written, every bad value is reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from sizing.errors import ScenarioError
from sizing.workload import Arrivals, Limit, Metric, Routing
from ui.scenario import (
    ARRIVAL_CV,
    ARRIVAL_SIZE,
    HEADROOM,
    LIMIT_S,
    PRICE,
    RATE,
    SPARE,
    TOKENS,
    TP,
    VARIATION,
    Range,
    Scenario,
)
from ui.view import PREFIX

VERSION = "1"
ANY = "any"
OFF = "off"
SEPARATOR = ","
LONGEST = 200
"""Characters of a value quoted back in a warning or taken as a name."""


class Unreadable(ValueError):
    """A value of the link that cannot be used; the message says what would be."""


Parse = Callable[[str], Any]


def to_query(scenario: Scenario, gpus: int | None = None) -> dict[str, str]:
    """Every field of the scenario, the codec's version and, where it is known, the answer (`n`, in GPUs)."""
    query = {"v": VERSION} | {key: _text(getattr(scenario, field)) for key, (field, _) in FIELDS.items()}
    return query if gpus is None else query | {"n": str(gpus)}


def from_query(query: Mapping[str, str]) -> tuple[Scenario, list[str]]:
    """The scenario that a link holds, and one line for each thing in it that could not be taken as it stands.

    An empty query is the default scenario without problems.
    """
    if not query:
        return Scenario(), []
    default = Scenario()
    problems = _wrong_version(query)
    values: dict[str, Any] = {}
    absent = []
    for key, (field, parse) in FIELDS.items():
        if key not in query:
            absent.append(key)
            continue
        try:
            values[field] = parse(query[key])
        except (Unreadable, ScenarioError) as error:
            problems.append(f"{key}={_quoted(query[key])}: {error}. Used instead: {_text(getattr(default, field))}.")
    if absent:
        problems.append(f"Not in the link, so the usual values are used: {', '.join(absent)}.")
    unknown = [key for key in query if key not in FIELDS and key not in ("v", "n") and not key.startswith(PREFIX)]
    problems += [f"{_quoted(key)} is not a field of a link and is ignored." for key in unknown]
    return Scenario(**values), problems


def answer_of(query: Mapping[str, str]) -> int | None:
    """The GPUs that the link's writer saw; None when the link does not say."""
    text = query.get("n", "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _wrong_version(query: Mapping[str, str]) -> list[str]:
    version = query.get("v")
    if version == VERSION:
        return []
    if version is None:
        return [f"The link names no version; it is read as version {VERSION}."]
    return [f"v={_quoted(version)}: this program reads links of version {VERSION}; check every value below."]


def _quoted(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _text(value: Any) -> str:
    match value:
        case None | False:
            return OFF
        case True:
            return "on"
        case tuple():
            return SEPARATOR.join(map(str, value)) or ANY
        case Limit():
            return f"p{value.percentile}:{value.limit_s!r}s"
        case Arrivals():
            return f"gamma:cv={value.cv!r}" if value.kind == "gamma" else str(value)
        case str():
            return value
        case _:
            return repr(value)


def _number(allowed: Range, whole: bool = False) -> Parse:
    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise Unreadable(f"must be a {'whole ' if whole else ''}number {allowed}") from None
        if not math.isfinite(value) or value not in allowed:
            raise Unreadable(f"must be {allowed}")
        return value

    return parse


def _name(text: str) -> str:
    if not text.strip() or len(text) > LONGEST:
        raise Unreadable(f"must be a name of 1 to {LONGEST} characters")
    return text


def _list(item: Parse) -> Parse:
    def parse(text: str) -> tuple[Any, ...]:
        return () if text == ANY else tuple(dict.fromkeys(item(part) for part in text.split(SEPARATOR)))

    return parse


def _one_of(*allowed: str) -> Parse:
    def parse(text: str) -> str:
        if text not in allowed:
            raise Unreadable(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _or_off(parse: Parse) -> Parse:
    return lambda text: None if text == OFF else parse(text)


def _limit(metric: Metric) -> Parse:
    def parse(text: str) -> Limit:
        limit = Limit.parse(metric, text)
        if limit.limit_s not in LIMIT_S:
            raise Unreadable(f"the limit must be {LIMIT_S}")
        return limit

    return _or_off(parse)


def _arrivals(text: str) -> Arrivals:
    arrivals = Arrivals.parse(text)
    if arrivals.kind == "gamma" and arrivals.cv not in ARRIVAL_CV:
        raise Unreadable(f"the CV must be {ARRIVAL_CV}")
    if arrivals.kind == "batch" and arrivals.size not in ARRIVAL_SIZE:
        raise Unreadable(f"the size must be {ARRIVAL_SIZE}")
    return arrivals


def _on(text: str) -> bool:
    return bool(_one_of("on", OFF)(text) == "on")


FIELDS: dict[str, tuple[str, Parse]] = {
    "model": ("model", _name),
    "gpu": ("gpus", _list(_name)),
    "precision": ("precisions", _list(_name)),
    "tp": ("tps", _list(_number(TP, whole=True))),
    "rate": ("rate_per_s", _number(RATE)),
    "isl": ("isl", _number(TOKENS, whole=True)),
    "isl_cv": ("isl_cv", _number(VARIATION)),
    "osl": ("osl", _number(TOKENS, whole=True)),
    "osl_cv": ("osl_cv", _number(VARIATION)),
    "ttft": ("ttft", _limit("ttft")),
    "itl": ("itl", _limit("itl")),
    "e2e": ("e2e", _limit("e2e")),
    "headroom": ("headroom", _number(HEADROOM)),
    "spare": ("spare", _number(SPARE, whole=True)),
    "routing": ("routing", _one_of(*get_args(Routing))),
    "arrivals": ("arrivals", _arrivals),
    "price": ("price_per_gpu_hour", _or_off(_number(PRICE))),
    "points": ("use_points", _on),
}
"""URL key -> field of the scenario and the reader of its text. Keys are for ever: old links must open."""

assert {field for field, _ in FIELDS.values()} == {field.name for field in fields(Scenario)}
