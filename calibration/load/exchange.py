"""One request and its answer as raw bytes with time stamps; the bytes are parsed only afterwards.

Times are nanoseconds of `time.perf_counter_ns`, which is CLOCK_MONOTONIC on Linux and mach_absolute_time on macOS: one
clock for all processes of the machine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from calibration.records import RequestLog

KEPT_BYTES = 12 * 2**20
OBJECT_BYTES = 120  # Python's overhead for one response: two objects and two entries of lists

MOST_BYTES = 32 * 2**20
"""A longer answer is aborted: one without end would fill the memory before its time-out."""
TOO_LONG = f"an answer of more than {MOST_BYTES >> 20} MiB"
LONGEST_ERROR = 300

CountTokens = Callable[[bytes], int]
"""New tokens in one raw response; 0 for an empty one."""


class Prepared(NamedTuple):
    """A request ready to be sent: its bytes, the id in them, and the tokens of its prompt and of the answer requested.

    In a session, `turn` is its number, from 0, and `then` derives from the exchange what follows: seconds of think
    time, and the next turn; None if nothing follows.
    """

    id: bytes
    body: bytes
    isl: int
    osl: int
    turn: int = 0
    then: Callable[[Exchange], tuple[float, Prepared] | None] | None = None


@dataclass(slots=True)
class Exchange:
    """A request and its answer: when it was sent, and when each response came (`at_ns`), with its bytes (`raw`).

    `end_ns` is when the answer was over, including an empty final response. `error`, if not empty, is what went wrong.
    `intended_ns` is when it was due in an open loop; None in a closed loop, where that is `sent_ns`. `turn` is its
    number in a session.
    """

    isl: int
    osl: int
    sent_ns: int
    end_ns: int = 0
    at_ns: list[int] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    error: str = ""
    intended_ns: int | None = None
    turn: int = 0

    def due_ns(self) -> int:
        """When the request was due."""
        return self.sent_ns if self.intended_ns is None else self.intended_ns


@dataclass(frozen=True, slots=True)
class Reader:
    """How the answers of one target are read: `count` finds the tokens in a raw response, independent of those before.

    `exact`: the server reports how many tokens it sends, and was told how many to send, so that another number is an
    error.
    """

    count: CountTokens
    exact: bool

    def counts(self, raw: Sequence[bytes]) -> Sequence[int]:
        """New tokens in each response of one answer."""
        return [self.count(response) for response in raw]

    def chunks(self, exchange: Exchange) -> Iterator[tuple[int, int]]:
        """(time in ns, new tokens) of each response that carries tokens, in order."""
        for at_ns, tokens in zip(exchange.at_ns, self.counts(exchange.raw), strict=True):
            if tokens:
                yield at_ns, tokens

    def fault(self, exchange: Exchange, tokens: int) -> str:
        """What is wrong with an answer of `tokens` tokens; empty if nothing is."""
        if exchange.error:
            return exchange.error
        if not tokens:
            return "an answer without tokens"
        if self.exact and tokens != exchange.osl:
            echo = tokens == exchange.isl + exchange.osl
            hint = " (prompt and answer: set exclude_input_in_output on the server)" if echo else ""
            return f"{tokens} tokens in the answer where {exchange.osl} were asked for{hint}"
        return ""

    def glance(self, exchange: Exchange) -> tuple[int, int, int] | None:
        """(first token in ns, last token in ns, tokens in the first response), from reading two responses.

        None if the request failed or nothing came. This is enough to follow a level while it runs.
        """
        if exchange.error:
            return None
        counted = ((at_ns, self.count(raw)) for at_ns, raw in zip(exchange.at_ns, exchange.raw, strict=True))
        first = next((found for found in counted if found[1]), None)
        if first is None:
            return None
        backwards = zip(reversed(exchange.at_ns), reversed(exchange.raw), strict=True)
        last_ns = next(at_ns for at_ns, raw in backwards if self.count(raw))
        return first[0], last_ns, first[1]


class Columns:
    """Requests read one by one into the columns of a `RequestLog`, at 16 bytes per response."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._times_ns = (array("q"), array("q"), array("q"))
        self._numbers = (array("q"), array("q"), array("q"), array("q"))
        self._error: list[str] = []
        self._chunks = (array("q"), array("q"))

    def add(self, exchange: Exchange) -> None:
        """Read `exchange`, whose bytes are not needed afterwards."""
        at_ns, tokens = self._chunks
        before, total = len(at_ns), 0
        for chunk_ns, count in self._reader.chunks(exchange):
            at_ns.append(chunk_ns)
            tokens.append(count)
            total += count
        for column, time_ns in zip(self._times_ns, (exchange.due_ns(), exchange.sent_ns, exchange.end_ns), strict=True):
            column.append(time_ns)
        numbers = (exchange.isl, exchange.osl, exchange.turn, len(at_ns) - before)
        for column, number in zip(self._numbers, numbers, strict=True):
            column.append(number)
        self._error.append(self._reader.fault(exchange, total))

    def log(self) -> RequestLog:
        """The requests read so far, in seconds."""
        intended_s, sent_s, end_s, chunk_at_s = (
            np.frombuffer(column, np.int64) / 1e9 for column in (*self._times_ns, self._chunks[0])
        )
        isl, osl, turn, chunks, tokens = (np.array(column, np.int64) for column in (*self._numbers, self._chunks[1]))
        return RequestLog(intended_s, sent_s, end_s, isl, osl, tuple(self._error), chunks, chunk_at_s, tokens, turn)


class Exchanges:
    """Exchanges of a level, kept raw while it runs and read when it is over.

    Beyond `kept_bytes`, finished exchanges are read at once: that takes time from the load, but memory is limited.
    """

    def __init__(self, reader: Reader, kept_bytes: int = KEPT_BYTES) -> None:
        self._columns = Columns(reader)
        self._raw: list[Exchange] = []
        self._room = kept_bytes

    def add(self, exchange: Exchange) -> None:
        """Keep a finished exchange."""
        if self._room <= 0:
            self._columns.add(exchange)
            return
        self._raw.append(exchange)
        self._room -= sum(map(len, exchange.raw)) + OBJECT_BYTES * len(exchange.raw)

    def log(self) -> RequestLog:
        """All exchanges as columns, those read early first."""
        for exchange in self._raw:
            self._columns.add(exchange)
        self._raw.clear()
        return self._columns.log()


def log_of(exchanges: Iterable[Exchange], reader: Reader) -> RequestLog:
    """The log of `exchanges`, in their order."""
    columns = Columns(reader)
    for exchange in exchanges:
        columns.add(exchange)
    return columns.log()


def one_line(text: str | None) -> str:
    """A server's own error message, on one line of at most 300 characters."""
    return " ".join((text or "").split())[:LONGEST_ERROR] or "no reason given"
