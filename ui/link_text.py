"""The texts of a link: every kind of value written and read back; what cannot be read says what would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sizing.fleets.daily import HOURS
from sizing.workload import Arrivals, Limit, Metric
from ui.scenario import ARRIVAL_CV, ARRIVAL_SIZE, LIMIT_S, OF_PEAK, Range

ANY = "any"
OFF = "off"
SEPARATOR = ","
LONGEST = 200
"""Characters of a name at most."""
MOST_LISTED = 50
"""Names or numbers of a list at most."""
QUOTED = 60
"""Characters of a value quoted back in a warning, and of a limit or a law of arrivals at most."""


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


def limit(metric: Metric) -> Parse:
    """A reader of a limit on a metric, which may be absent."""

    def parse(text: str) -> Limit:
        limit = Limit.parse(metric, _short(text))
        if limit.limit_s not in LIMIT_S:
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


def day(text: str) -> tuple[float, ...]:
    """Twenty-four loads, in percent of the peak."""
    hours = tuple(map(number(OF_PEAK), text.split(SEPARATOR)[: HOURS + 1]))
    if len(hours) != HOURS or max(hours) == 0:
        raise Unreadable(f"must be {HOURS} loads {OF_PEAK}, from midnight on, and not all 0")
    return hours


def on_or_off(text: str) -> bool:
    """A switch."""
    return bool(one_of("on", OFF)(text) == "on")
