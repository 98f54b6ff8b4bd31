"""Requests as they arrived: times, lengths and sessions of real traffic, and nothing else of it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.workload import Seconds

DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3600.0, 60.0
Counts = NDArray[np.int32]
MOST_REQUESTS = 100_000_000
"""Of a trace that is made here, scaled or drawn: some 2 GB."""
MOST_CLASSES = 8
"""Each takes as much memory in a replay as all requests do without classes: 1 MB a day."""
LONGEST_NAME = 60
UNNAMED = "other"
"""The class of requests without one, where others have one."""
WINDOWS = "02:30..04:00 or 2024-05-10T14:00..2024-05-10T18:00"


class TraceError(ScenarioError):
    """A trace cannot be used: file, row and column are named."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; arrays of shape (requests,).

    Attributes:
        arrival_s: seconds since `began_s`, ascending, the first is 0 or later.
        isl, osl: prompt and output tokens, 1 or more.
        began_s: the time of 0 s in seconds since 1970 (UTC); NaN where the trace has only relative times.
        session: number of the conversation that a request belongs to, from 0; empty: none are known.
        classes: names of the kinds of requests that have limits of their own; empty: all are of one kind.
        of_class: number of the class that a request belongs to; empty where there are none.
    """

    arrival_s: Seconds
    isl: Counts
    osl: Counts
    began_s: float = math.nan
    session: Counts = field(default_factory=lambda: np.empty(0, np.int32))
    classes: tuple[str, ...] = ()
    of_class: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def __post_init__(self) -> None:
        if not len(self.arrival_s) == len(self.isl) == len(self.osl):
            raise TraceError("a trace needs one arrival, one ISL and one OSL for each request")
        if len(self.session) not in (0, len(self.arrival_s)):
            raise TraceError("a trace needs one session for each request, or none")
        if len(self.of_class) != (len(self.arrival_s) if self.classes else 0):
            raise TraceError("a trace needs one class for each request, or none")
        if len(self.classes) > MOST_CLASSES:
            raise TraceError(f"a trace has {MOST_CLASSES} classes at most, got {len(self.classes)}")
        if len(self.arrival_s) < 2:
            raise TraceError(f"a trace needs 2 requests or more, got {len(self.arrival_s)}")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def rate_per_s(self) -> float:
        """Mean requests/s; infinite where all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s else math.inf

    def clock(self, second: float) -> str:
        """A time of the trace for people: ``2024-05-10 14:00`` (UTC), or ``02:00`` hours and minutes from its start."""
        if math.isnan(self.began_s):
            minutes = int(second // MINUTE_S)
            return f"{minutes // 60:02d}:{minutes % 60:02d}"
        return datetime.fromtimestamp(self.began_s + second, UTC).strftime("%Y-%m-%d %H:%M")

    def part(self, from_s: float, until_s: float) -> Trace:
        """The requests that arrive from `from_s` to before `until_s`. Raises TraceError for fewer than two."""
        if until_s < from_s:
            raise TraceError(f"a window ends after it begins, not from {self.clock(from_s)} to {self.clock(until_s)}")
        first, last = np.searchsorted(self.arrival_s, (from_s, until_s))
        if last - first < 2:
            until = f" to {self.clock(until_s)}" if math.isfinite(until_s) else " on"
            ends = self.clock(float(self.arrival_s[-1]))
            raise TraceError(
                f"only {last - first} requests arrive from {self.clock(from_s)}{until}: the trace ends at {ends}"
            )
        return self._taken(slice(first, last))

    def _taken(self, which: Any) -> Trace:
        """The requests of a slice or of an array of numbers, in its order."""
        names = ("arrival_s", "isl", "osl", "session", "of_class")
        arrays = {name: array[which] for name in names if len(array := getattr(self, name))}
        return replace(self, **arrays)

    def continued(self) -> Trace:
        """The trace with sessions of which every prompt may repeat all that was said before it.

        A prompt that is shorter than the prompt and the answer before it, in its session, cannot repeat both:
        it begins another one. Raises TraceError where no sessions are known.
        """
        if not len(self.session):
            raise TraceError(
                "the trace knows no sessions, without which nothing is found in a prefix cache: add session"
            )
        order = np.argsort(self.session, kind="stable")
        begins = np.diff(self.session[order], prepend=-1) != 0
        said = np.add(self.isl, self.osl, dtype=np.int64)[order]
        begins[1:] |= self.isl[order][1:] < said[:-1]
        session = np.empty(len(self), np.int32)
        session[order] = np.cumsum(begins) - 1
        return replace(self, session=session)

    def repeated_tokens(self, block_tokens: int) -> int:
        """Prompt tokens of a `continued` trace that a prefix cache of such blocks finds if it never evicts any.

        The last token of an answer is not cached, and of a prompt at least the last one is computed.
        """
        order = np.argsort(self.session, kind="stable")
        again = np.diff(self.session[order]) == 0
        kept = np.add(self.isl, self.osl, dtype=np.int64)[order][:-1] - 1
        asked = self.isl[order][1:].astype(np.int64) - 1
        return int((np.minimum(kept, asked)[again] // block_tokens).sum()) * block_tokens

    def as_class(self, name: str) -> Trace:
        """All requests as one class of this name."""
        return replace(self, classes=(class_name(name),), of_class=np.zeros(len(self), np.uint8))

    def scaled(self, factor: float, seed: int = 0) -> Trace:
        """The trace with `factor` times the requests, each as often as `factor` says, and with the same bursts.

        Of a factor of 2.5 every request comes twice and half of them, drawn at random, a third time; copies arrive at
        random within the time between the request's neighbours, so that the rate of each minute is `factor` times what
        it was and twins do not meet in one iteration. Below 1 requests are dropped at random. Sessions are copied and
        dropped whole, turns in their order, for a prompt repeats the turns before it.
        """
        if not 0 < factor < math.inf:
            raise TraceError(f"the factor of a trace must be above 0, got {factor:g}")
        if factor == 1:
            return self
        if factor * len(self) > MOST_REQUESTS:
            raise TraceError(
                f"{factor:g} times {len(self):,} requests are more than {MOST_REQUESTS:,}: give a smaller factor"
            )
        rng = np.random.default_rng(seed)
        together = np.unique(self.session, return_inverse=True)[1] if len(self.session) else np.arange(len(self))
        many = np.bincount(together)
        order = rng.permutation(len(many))
        once_more = np.cumsum(many[order]) - many[order] / 2 <= (factor - int(factor)) * len(self)
        copies = int(factor) + once_more[np.argsort(order)][together]
        source = np.repeat(np.arange(len(self)), copies)
        if len(source) < 2:
            raise TraceError(f"{factor:g} times {len(self)} requests leave {len(source)}")
        number = np.arange(len(source)) - np.repeat(np.cumsum(copies) - copies, copies)
        before, after = self.arrival_s[np.maximum(source - 1, 0)], self.arrival_s[np.minimum(source + 1, len(self) - 1)]
        moved = number > 0
        copied = self._taken(source)
        copied.arrival_s[moved] = rng.uniform(before[moved], after[moved])
        if len(self.session):
            session = (together[source] + number * len(many)).astype(np.int32)
            copied.arrival_s[np.lexsort((source, session))] = copied.arrival_s[np.lexsort((copied.arrival_s, session))]
            copied = replace(copied, session=session)
        return copied._taken(np.argsort(copied.arrival_s, kind="stable"))

    def window(self, text: str) -> Trace:
        """The part that ``--trace-window`` names: ``all``, ``worst-hour`` (60 minutes of most tokens), or ``FROM..TO``.

        FROM and TO are dates with times (``2024-05-10T14:00``, UTC) where the trace has them, else hours, minutes and
        perhaps seconds from its start (``02:30``); either may be left out. Raises TraceError for anything else.
        """
        if text == "all":
            return self
        if text == "worst-hour":
            worst = busiest_hour(self, np.add(self.isl, self.osl, dtype=float))
            return self.part(worst.from_s, worst.until_s)
        start, dots, end = text.partition("..")
        if not dots:
            raise TraceError(f"--trace-window {text!r}: write all, worst-hour or FROM..TO, for instance {WINDOWS}")
        ends_s = (self._second(word) for word in (start, end))
        return self.part(*(usual if s is None else s for s, usual in zip(ends_s, (0.0, math.inf), strict=True)))

    def _second(self, word: str) -> float | None:
        """The time that one end of a window names; None where it is empty."""
        if not word:
            return None
        if found := re.fullmatch(r"(\d{1,5}):(\d\d)(?::(\d\d))?", word):
            return int(found[1]) * HOUR_S + int(found[2]) * MINUTE_S + int(found[3] or 0)
        if math.isnan(self.began_s):
            raise TraceError(f"--trace-window {word!r}: this trace has no dates: give hours and minutes, as in 02:30")
        try:
            when = datetime.fromisoformat(word)
        except ValueError:
            raise TraceError(f"--trace-window {word!r}: write all, worst-hour or FROM..TO, as in {WINDOWS}") from None
        # began_s has a quarter of a microsecond too much or too little, which would leave out who comes on the second
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - self.began_s, 6)

    def counts(self, every_s: float) -> NDArray[np.int64]:
        """Requests in each stretch of `every_s` seconds from 0 on, shape (stretches,)."""
        return np.bincount((self.arrival_s // every_s).astype(np.int64))


def merged(traces: Sequence[Trace]) -> Trace:
    """All requests of several traces in the order of time; those of one instant in the order of the traces.

    Traces with dates meet at their dates, others at their starts. Classes of one name are one class, and all traces
    have classes or none has. Sessions of different traces are different; where only some traces know sessions, each
    request of the others is one of its own. Raises TraceError for traces with dates and without.
    """
    if len(traces) == 1:
        return traces[0]
    dated = [math.isfinite(trace.began_s) for trace in traces]
    if any(dated) != all(dated):
        raise TraceError(
            "some of the traces have dates and others only times from their start: they have no time in common"
        )
    if any(trace.classes for trace in traces) != all(trace.classes for trace in traces):
        raise TraceError("some of the traces have classes and others have none")
    began_s = min(trace.began_s for trace in traces) if dated[0] else math.nan
    arrival_s = np.concatenate([trace.arrival_s + (trace.began_s - began_s if dated[0] else 0.0) for trace in traces])
    sessions, first = list[Counts](), 0
    for trace in traces if any(len(trace.session) for trace in traces) else ():
        own = trace.session if len(trace.session) else np.arange(len(trace), dtype=np.int32)
        sessions.append(own + np.int32(first))
        first += 1 + int(own.max())
    classes = tuple(dict.fromkeys(name for trace in traces for name in trace.classes))
    numbers = (np.array([classes.index(name) for name in trace.classes], np.uint8) for trace in traces)
    of_class = [number[trace.of_class] for number, trace in zip(numbers, traces, strict=True) if classes]
    whole = Trace(
        arrival_s,
        np.concatenate([trace.isl for trace in traces]),
        np.concatenate([trace.osl for trace in traces]),
        began_s=began_s,
        session=np.concatenate([*sessions, np.empty(0, np.int32)]),
        classes=classes,
        of_class=np.concatenate([*of_class, np.empty(0, np.uint8)]),
    )
    return whole._taken(np.argsort(arrival_s, kind="stable"))


def class_name(text: str) -> str:
    """A text as the name of a class: what can be printed of it, `LONGEST_NAME` characters at most."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:LONGEST_NAME] or UNNAMED


class Hour(NamedTuple):
    """A stretch of a trace, seconds, and the requests in it by number, `first` to before `last`."""

    from_s: float
    until_s: float
    first: int
    last: int


def hours(trace: Trace) -> list[Hour]:
    """The trace by the hour of the clock (of its start where it has no date), hours without requests left out."""
    offset_s = trace.began_s % HOUR_S if math.isfinite(trace.began_s) else 0.0
    first_hour, last_hour = (math.floor((trace.arrival_s[place] + offset_s) / HOUR_S) for place in (0, -1))
    ends_s = np.round(np.arange(first_hour + 1, last_hour + 3) * HOUR_S - offset_s, 6)  # began_s is no more exact
    lasts = np.searchsorted(trace.arrival_s, ends_s)
    firsts = np.concatenate([[0], lasts[:-1]])
    return [
        Hour(float(end_s - HOUR_S), float(end_s), int(first), int(last))
        for end_s, first, last in zip(ends_s, firsts, lasts, strict=True)
        if first < last
    ]


def busiest_hour(trace: Trace, weights: NDArray[np.float64] | None = None) -> Hour:
    """The 60 minutes in which most requests arrive, wherever in the hours of the clock they begin; with `weights`,
    shape (requests,), those in which the requests that arrive weigh most."""
    before = np.concatenate([[0.0], np.cumsum(np.ones(len(trace)) if weights is None else weights)])
    lasts = np.searchsorted(trace.arrival_s, trace.arrival_s + HOUR_S)
    first = int(np.argmax(before[lasts] - before[:-1]))
    from_s = float(trace.arrival_s[first])
    return Hour(from_s, from_s + HOUR_S, first, int(lasts[first]))


def dispersion(trace: Trace, every_s: float = 1.0) -> float:
    """Variance over mean of the requests in stretches of `every_s` seconds, each beside its own ten minutes: 1 for
    Poisson arrivals at a rate that changes slowly, more for bursts.

    The index of dispersion of counts (Cox and Lewis 1966, The Statistical Analysis of Series of Events). NaN for traces
    shorter than twenty such stretches.
    """
    began_s = float(trace.arrival_s[0])  # a window of a trace begins long after 0 s
    counts = replace(trace, arrival_s=trace.arrival_s - began_s).counts(every_s).astype(float)
    whole = max(int(10 * MINUTE_S / every_s), 20)
    parts = [
        part for part in np.array_split(counts, max(1, len(counts) // whole)) if len(part) >= 20 and part.mean() > 0
    ]
    if not parts:
        return math.nan
    weights = np.array([part.sum() for part in parts])
    return float(np.average([part.var(ddof=1) / part.mean() for part in parts], weights=weights))
