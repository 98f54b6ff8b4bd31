"""The link codec: a scenario as URL parameters and back; every field is written, every bad value is reported.

Version 2. A link of version 1 opens without a word: what it cannot say was then as the defaults still are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_args

from sizing.errors import ScenarioError
from sizing.fleets.daily import HOURS
from sizing.workload import Arrivals, Limit, Metric, Routing
from ui.scenario import (
    ARRIVAL_CV,
    ARRIVAL_SIZE,
    FLEET,
    HEADROOM,
    LIMIT_S,
    OF_PEAK,
    OF_SERVER,
    PEAK_FACTOR,
    PRICE,
    RATE,
    SHARE,
    SPARE,
    TOKENS,
    TP,
    VARIATION,
    Range,
    Scenario,
)
from ui.view import PREFIX

VERSION, KNOWN = "2", ("1", "2")
ANY = "any"
OFF = "off"
SEPARATOR = ","
LONGEST = 200
"""Characters of a name at most."""
MOST_LISTED = 50
"""Names or numbers of a list at most."""
QUOTED, MOST_NAMED = 60, 8
"""Characters of a value quoted back in a warning, and names in a list there."""


class Unreadable(ValueError):
    """A value of the link that cannot be used; the message says what would be."""


Parse = Callable[[str], Any]


class Field(NamedTuple):
    """A field of the scenario, the reader of its text, and the version of the codec that first had it."""

    name: str
    parse: Parse
    since: int = 1


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which data an answer stands on: the date of the newest measured point (empty: none was used) and a digest."""

    date: str
    digest: str

    def __str__(self) -> str:
        return f"{self.date or NO_DATE}.{self.digest}"

    @property
    def words(self) -> str:
        """For instance: measured up to 2026-11-20."""
        return f"measured up to {self.date}" if self.date else "estimates only"


NO_DATE = "none"
STAMP = re.compile(r"(none|\d{4}-\d\d-\d\d)\.([0-9a-f]{8})")
WHOLE_GPUS = re.compile(r"[0-9]{1,9}")
BESIDE = {
    "n": (WHOLE_GPUS, "a number of GPUs"),
    "data": (STAMP, "a date (or none), a dot and eight hexadecimal digits"),
}
"""Parameters of a link that are no fields of the scenario: what they look like, and that in words."""


def to_query(scenario: Scenario, gpus: int | None = None, data: Stamp | None = None) -> dict[str, str]:
    """Every field of the scenario, the codec's version and, where known, the answer (`n`, in GPUs) and its data."""
    query = {"v": VERSION} | {key: _text(getattr(scenario, field.name)) for key, field in FIELDS.items()}
    query |= {} if data is None else {"data": str(data)}
    return query if gpus is None else query | {"n": str(gpus)}


def from_query(query: Mapping[str, str]) -> tuple[Scenario, list[str]]:
    """The scenario that a link holds, and one line for each thing in it that could not be taken as it stands.

    A query of nothing but what a page shows is the default scenario without problems.
    """
    if all(key.startswith(PREFIX) for key in query):
        return Scenario(), []
    default = Scenario()
    version, problems = _version(query)
    values: dict[str, Any] = {}
    absent = []
    for key, field in FIELDS.items():
        if key not in query:
            absent += [key] if field.since <= version else []
            continue
        try:
            values[field.name] = field.parse(query[key])
        except (Unreadable, ScenarioError) as error:
            instead = _text(getattr(default, field.name))
            problems.append(f"{key}={_quoted(query[key])}: {error}. Used instead: {instead}.")
    if absent:
        problems.append(f"Not in the link, so the usual values are used: {_several(absent)}.")
    return Scenario(**values), [*problems, *_beside(query)]


def repeated(counts: Mapping[str, int]) -> list[str]:
    """One line for the parameters that a link has more than once, given how often it has each."""
    twice = [_quoted(key) for key, count in counts.items() if count > 1]
    return [f"More than once in the link, so the last one is used: {_several(twice)}."] if twice else []


def answer_of(query: Mapping[str, str]) -> int | None:
    """The GPUs that the link's writer saw; None when the link does not say."""
    text = query.get("n", "")
    return int(text) if WHOLE_GPUS.fullmatch(text) else None


def data_of(query: Mapping[str, str]) -> Stamp | None:
    """The data that the link's writer had; None when the link does not say."""
    found = STAMP.fullmatch(query.get("data", ""))
    return Stamp("" if found[1] == NO_DATE else found[1], found[2]) if found else None


def _beside(query: Mapping[str, str]) -> list[str]:
    """What is wrong with the parameters that are no fields of the scenario."""
    problems = []
    for key, (pattern, what) in BESIDE.items():
        if key in query and not pattern.fullmatch(query[key]):
            problems.append(f"{key}={_quoted(query[key])}: must be {what}. It is ignored.")
    known = {*FIELDS, *BESIDE, "v"}
    unknown = [_quoted(key) for key in query if key not in known and not key.startswith(PREFIX)]
    return [*problems, f"Not a field of a link and ignored: {_several(unknown)}."] if unknown else problems


def _several(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _version(query: Mapping[str, str]) -> tuple[int, list[str]]:
    """The version to read the link as, and what is wrong with the one it names."""
    version = query.get("v")
    if version in KNOWN:
        return int(version), []
    if version is None:
        return int(VERSION), [f"The link names no version; it is read as version {VERSION}."]
    known = " and ".join(KNOWN)
    return int(VERSION), [f"v={_quoted(version)}: this program reads links of versions {known}; check every value."]


def _quoted(text: str) -> str:
    """The beginning of a text of unknown origin, with a replacement sign for each character that cannot be seen."""
    seen = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text[:QUOTED])
    return seen if len(text) <= QUOTED else f"{seen}… ({len(text):,} characters)"


def _text(value: Any) -> str:
    match value:
        case None | False:
            return OFF
        case True:
            return "on"
        case tuple():
            return (
                SEPARATOR.join(each if isinstance(each, str) else f"{each!r}".removesuffix(".0") for each in value)
                or ANY
            )
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


def _short(text: str) -> str:
    """The text, for readers whose errors quote all of it."""
    if len(text) > QUOTED:
        raise Unreadable(f"must be at most {QUOTED} characters")
    return text


def _name(text: str) -> str:
    if not text.strip() or len(text) > LONGEST or not text.isprintable():
        raise Unreadable(f"must be a name of 1 to {LONGEST} printable characters")
    return text


def _list(item: Parse) -> Parse:
    def parse(text: str) -> tuple[Any, ...]:
        parts = text.split(SEPARATOR)
        if len(parts) > MOST_LISTED:
            raise Unreadable(f"must be at most {MOST_LISTED} of them")
        return () if text == ANY else tuple(dict.fromkeys(map(item, parts)))

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
        limit = Limit.parse(metric, _short(text))
        if limit.limit_s not in LIMIT_S:
            raise Unreadable(f"the limit must be {LIMIT_S}")
        return limit

    return _or_off(parse)


def _arrivals(text: str) -> Arrivals:
    arrivals = Arrivals.parse(_short(text))
    if arrivals.kind == "gamma" and arrivals.cv not in ARRIVAL_CV:
        raise Unreadable(f"the CV must be {ARRIVAL_CV}")
    if arrivals.kind == "batch" and arrivals.size not in ARRIVAL_SIZE:
        raise Unreadable(f"the size must be {ARRIVAL_SIZE}")
    return arrivals


def _day(text: str) -> tuple[float, ...]:
    hours = tuple(map(_number(OF_PEAK), text.split(SEPARATOR)[: HOURS + 1]))
    if len(hours) != HOURS or max(hours) == 0:
        raise Unreadable(f"must be {HOURS} loads {OF_PEAK}, from midnight on, and not all 0")
    return hours


def _on(text: str) -> bool:
    return bool(_one_of("on", OFF)(text) == "on")


FIELDS: dict[str, Field] = {
    "model": Field("model", _name),
    "gpu": Field("gpus", _list(_name)),
    "precision": Field("precisions", _list(_name)),
    "tp": Field("tps", _list(_number(TP, whole=True))),
    "rate": Field("rate_per_s", _number(RATE)),
    "isl": Field("isl", _number(TOKENS, whole=True)),
    "isl_cv": Field("isl_cv", _number(VARIATION)),
    "osl": Field("osl", _number(TOKENS, whole=True)),
    "osl_cv": Field("osl_cv", _number(VARIATION)),
    "ttft": Field("ttft", _limit("ttft")),
    "itl": Field("itl", _limit("itl")),
    "e2e": Field("e2e", _limit("e2e")),
    "headroom": Field("headroom", _number(HEADROOM)),
    "spare": Field("spare", _number(SPARE, whole=True)),
    "routing": Field("routing", _one_of(*get_args(Routing))),
    "arrivals": Field("arrivals", _arrivals),
    "price": Field("price_per_gpu_hour", _or_off(_number(PRICE))),
    "points": Field("use_points", _on),
    "prefix": Field("prefix_share", _number(SHARE), since=2),
    "prefix_hit": Field("prefix_hit", _number(SHARE), since=2),
    "peak_factor": Field("peak_factor", _number(PEAK_FACTOR), since=2),
    "server": Field("gpus_per_server", _or_off(_number(OF_SERVER, whole=True)), since=2),
    "have": Field("fleet_gpus", _number(FLEET, whole=True), since=2),
    "day": Field("day", _day, since=2),
}
"""URL key -> field of the scenario. Keys are for ever: old links must open."""

assert {field.name for field in FIELDS.values()} == {field.name for field in fields(Scenario)}
