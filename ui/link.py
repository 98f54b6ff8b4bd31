"""The link codec: a scenario as URL parameters and back; every field is written, every bad value is reported.

Version 2. A link of version 1 opens silently: fields it cannot express had then the values that are still the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sizing.analyses.daily import HOURS
from sizing.catalog import Layout
from sizing.errors import ScenarioError
from sizing.question import ARRIVAL_CV, ARRIVAL_SIZE, LIMIT_S, QUEUE, SHARE, TIMEOUT_S, Range
from sizing.question import FIELDS as ASKED
from sizing.question import Field as Asked
from sizing.token_law import TokenLaw
from sizing.workload import LIMITED, METRICS, SHARES, Arrivals, Limit, Limited
from ui.scenario import FLEET, OF_PEAK, OF_SERVER, TP, Scenario

# --- The texts of a link: every kind of value written and read back; what cannot be read says what would be

PREFIX = "show."
"""Of the URL parameters that are no fields of the scenario: what a page shows beside it."""
ANY = "any"
OFF = "off"
SEPARATOR = ","
LONGEST = 200
"""Characters of a name at most."""
MOST_LISTED = 50
"""Names or numbers of a list at most."""
QUOTED = 60
"""Characters of a value quoted back in a warning, and of a limit or a law of arrivals at most."""


LONGEST_LAW = 12_000
"""Characters of a law of lengths at most."""


class Unreadable(ValueError):
    """A value of the link that cannot be used; the message says what would be."""


Parse = Callable[[str], Any]


def quoted(text: str) -> str:
    """The beginning of a text of unknown origin, with a replacement sign for each character that cannot be seen."""
    seen = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text[:QUOTED])
    return seen if len(text) <= QUOTED else f"{seen}… ({len(text):,} characters)"


def text_of(value: Any) -> str:
    """A value of the scenario as the link holds it."""
    match value:
        case None | False:
            return OFF
        case True:
            return "on"
        case tuple():
            return SEPARATOR.join(map(_listed, value)) or ANY
        case Limit() if value.metric in SHARES:
            return value.text
        case Limit():
            return f"p{value.percentile}:{value.limit_s!r}s" if value.percentile else f"{value.limit_s!r}s"
        case Arrivals():
            return f"gamma:cv={value.cv!r}" if value.kind == "gamma" else str(value)
        case TokenLaw():
            return str(value)
        case str():
            return value
        case _:
            return repr(value)


def _listed(each: object) -> str:
    if isinstance(each, Layout):
        return str(each).casefold().replace(" ", "")
    return each if isinstance(each, str) else f"{each!r}".removesuffix(".0")


def number(allowed: Range, whole: bool = False) -> Parse:
    """A reader of numbers in a range."""

    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise Unreadable(f"must be a {'whole ' if whole else ''}number {allowed}") from None
        if value not in allowed:  # as no infinite or unknown number is
            raise Unreadable(f"must be {allowed}")
        return value

    return parse


def _short(text: str) -> str:
    """The text, for readers whose errors quote all of it."""
    if len(text) > QUOTED:
        raise Unreadable(f"must be at most {QUOTED} characters")
    return text


def name(text: str) -> str:
    """A name as it stands, printable and not too long."""
    if not text.strip() or len(text) > LONGEST or not text.isprintable():
        raise Unreadable(f"must be a name of 1 to {LONGEST} printable characters")
    return text


def layout(text: str) -> Layout:
    """A reader of layouts."""
    try:
        return Layout.parse(_short(text))
    except ScenarioError as error:
        raise Unreadable(f"must be a layout: {error}") from None


def list_of(item: Parse) -> Parse:
    """A reader of several values with commas between, each once; `ANY` is none of them."""

    def parse(text: str) -> tuple[Any, ...]:
        parts = text.split(SEPARATOR)
        if len(parts) > MOST_LISTED:
            raise Unreadable(f"must be at most {MOST_LISTED} of them")
        return () if text == ANY else tuple(dict.fromkeys(map(item, parts)))

    return parse


def one_of(*allowed: str) -> Parse:
    """A reader of one of a few words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise Unreadable(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def or_off(parse: Parse) -> Parse:
    """A reader of a value that may be absent."""
    return lambda text: None if text == OFF else parse(text)


def limit(metric: Limited) -> Parse:
    """A reader of a limit on a metric or on a share of the requests, which may be absent."""

    def parse(text: str) -> Limit:
        limit = Limit.parse(metric, _short(text))
        if metric in METRICS and limit.limit_s not in LIMIT_S:
            raise Unreadable(f"the limit must be {LIMIT_S}")
        return limit

    return or_off(parse)


def arrivals(text: str) -> Arrivals:
    """A law of arrivals within the ranges of the form."""
    arrivals = Arrivals.parse(_short(text))
    if arrivals.kind == "gamma" and arrivals.cv not in ARRIVAL_CV:
        raise Unreadable(f"the CV must be {ARRIVAL_CV}")
    if arrivals.kind == "batch" and arrivals.size not in ARRIVAL_SIZE:
        raise Unreadable(f"the size must be {ARRIVAL_SIZE}")
    return arrivals


def law(text: str) -> TokenLaw | None:
    """A law of lengths; None for the lognormal."""
    if len(text) > LONGEST_LAW:
        raise Unreadable(f"must be at most {LONGEST_LAW} characters")
    return TokenLaw.parse(text)


def day(text: str) -> tuple[float, ...]:
    """Twenty-four loads, in percent of the peak."""
    hours = tuple(map(number(OF_PEAK), text.split(SEPARATOR)[: HOURS + 1]))
    if len(hours) != HOURS or max(hours) == 0:
        raise Unreadable(f"must be {HOURS} loads {OF_PEAK}, from midnight on, and not all 0")
    return hours


def on_or_off(text: str) -> bool:
    """A switch."""
    return bool(one_of("on", OFF)(text) == "on")


VERSION, KNOWN = "2", ("1", "2")
MOST_NAMED = 8
"""Names in a list of a warning at most."""


class Parameter(NamedTuple):
    """A field of the scenario, the reader of its text, and the version of the codec that first had it.

    `optional`: a link says nothing of it where it is off.
    """

    name: str
    parse: Parse
    since: int = 1
    optional: bool = False


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
    values = {key: getattr(scenario, field.name) for key, field in FIELDS.items()}
    written = {key: text_of(value) for key, value in values.items() if value is not None or not FIELDS[key].optional}
    query = {"v": VERSION} | written
    query |= {} if data is None else {"data": str(data)}
    return query if gpus is None else query | {"n": str(gpus)}


def from_query(query: Mapping[str, str]) -> tuple[Scenario, list[str]]:
    """The scenario that a link holds, and one line for each part of it that could not be used as given.

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
            absent += [key] if field.since <= version and not field.optional else []
            continue
        try:
            values[field.name] = field.parse(query[key])
        except (Unreadable, ScenarioError) as error:
            instead = text_of(getattr(default, field.name))
            problems.append(f"{key}={quoted(query[key])}: {error}. Used instead: {instead}.")
    for side in ("isl", "osl"):
        if (given := values.get(f"{side}_law")) is not None and side in query and values.get(side) != round(given.mean):
            problems.append(f"{side}={quoted(query[side])}: {side}_law has another mean. Used instead: {given.mean:g}.")
    linked = Scenario(**values)
    scenario = linked if linked.goodput else linked.without_goodput
    for metric in METRICS:
        if (used := getattr(scenario, metric)) != getattr(linked, metric):
            instead = f"Used instead: p{used.percentile:g}."
            problems.append(f"{metric}={quoted(query[metric])}: needs a percentile, or goodput. {instead}")
    if absent and "v" in query:
        problems.append(f"Missing from the link, so defaults are used: {_several(absent)}.")
    return scenario, [*problems, *_beside(query)]


def repeated(counts: Mapping[str, int]) -> list[str]:
    """One line for the parameters that a link has more than once, given how often it has each."""
    twice = [quoted(key) for key, count in counts.items() if count > 1]
    return [f"Repeated in the link, so the last value is used: {_several(twice)}."] if twice else []


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
            problems.append(f"{key}={quoted(query[key])}: must be {what}. It is ignored.")
    known = {*FIELDS, *BESIDE, "v"}
    unknown = [quoted(key) for key in query if key not in known and not key.startswith(PREFIX)]
    return [*problems, f"Unknown in the link, so ignored: {_several(unknown)}."] if unknown else problems


def _several(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _version(query: Mapping[str, str]) -> tuple[int, list[str]]:
    """The version to read the link as, and what is wrong with the one it names."""
    version = query.get("v")
    if version in KNOWN:
        return int(version), []
    if version is None:
        return int(VERSION), ["Written by hand (no version in the link), so defaults are used for what it leaves out."]
    known = " and ".join(KNOWN)
    return int(VERSION), [f"v={quoted(version)}: this program reads links of versions {known}; check every value."]


LAWS = ("isl_law", "osl_law")
WHOLE = ("isl", "osl", "spare")
"""Numbers that the page takes whole, though a question need not."""


def _parse_of(field: Asked) -> Parse:
    """The reader of a field of the question."""
    if field.name in LIMITED:
        return limit(field.name)
    if field.name in LAWS:
        return or_off(law)
    if field.range is not None:
        parse = number(field.range, whole=field.name in WHOLE)
        return or_off(parse) if field.optional else parse
    return one_of(*field.choices) if field.choices else arrivals if field.name == "arrivals" else name


def _asked(*names: str) -> dict[str, Parameter]:
    later = ("gap", *SHARES, *LAWS)
    return {key: Parameter(ASKED[key].key, _parse_of(ASKED[key]), ASKED[key].since, key in later) for key in names}


FIELDS: dict[str, Parameter] = {
    **_asked("model"),
    "gpu": Parameter("gpus", list_of(name)),
    "precision": Parameter("precisions", list_of(name)),
    "tp": Parameter("tps", list_of(number(TP, whole=True))),
    "engine": Parameter("engines", list_of(name), since=2, optional=True),
    "layout": Parameter("layouts", list_of(layout), since=2, optional=True),
    **_asked(
        *("rate", "isl", "isl_cv", "osl", "osl_cv", *LAWS, *LIMITED),
        *("headroom", "spare", "routing", "arrivals", "price"),
    ),
    "queue_limit": Parameter("queue_limit", or_off(number(QUEUE, whole=True)), since=2, optional=True),
    "queue_timeout": Parameter("queue_timeout_s", or_off(number(TIMEOUT_S)), since=2, optional=True),
    "points": Parameter("use_points", on_or_off),
    "prefix": Parameter("prefix_share", number(SHARE), since=2),
    "prefix_hit": Parameter("prefix_hit", number(SHARE), since=2),
    **_asked("peak_factor"),
    "server": Parameter("gpus_per_server", or_off(number(OF_SERVER, whole=True)), since=2),
    "have": Parameter("fleet_gpus", number(FLEET, whole=True), since=2),
    "day": Parameter("day", day, since=2),
}
"""URL key -> field of the scenario: those of the question and of the choice, and what the page asks beside."""
assert {field.name for field in FIELDS.values()} == {field.name for field in fields(Scenario)}
