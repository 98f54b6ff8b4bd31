"""The requests in a window of steady load: their latencies, and how much of each lies inside.

Latencies count from the moment a request was due; in an open loop that is not the sending, so that a late client cannot
hide waiting (coordinated omission). A request ends with its last token: an empty final response adds nothing.

ITL of a request is (last - first chunk) / (tokens - tokens of the first chunk). With one token per chunk that is
(E2E - TTFT)/(OSL - 1). With several, the tokens in the first chunk were generated before it left and took none of the
time after it; dividing by OSL - 1 would be too low (4 tokens per chunk, 64 in all: by 4.8 %). This assumes that a chunk
leaves when its last token is generated. An answer in a single chunk has no ITL: NaN.

The load ends with the window, and the answers then in flight finish on a server that empties: faster than under load,
by a third if an answer takes as long as the window. So tokens that came after the window count as if they had come at
the mean time between tokens inside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from calibration.records import Load, Mask, RequestLog
from sizing.numbers import Floats

WRONG_LENGTH = re.compile(r"\d+ tokens in the answer where \d+ were asked for")


@dataclass(frozen=True, slots=True)
class Sample:
    """Answered requests that overlap the window, arrays of shape (n,), times in seconds; `log` has the rest.

    `weight` is the fraction of a request's time that lies inside. `ended_inside` marks requests whose last token came
    within the window; for the others `last_s`, and therefore ITL and E2E, are as under the window's load.
    """

    log: RequestLog
    due_s: Floats
    last_s: Floats
    ttft_s: Floats
    itl_s: Floats
    e2e_s: Floats
    weight: Floats
    ended_inside: Mask

    def __len__(self) -> int:
        return len(self.due_s)

    @property
    def latencies(self) -> tuple[tuple[str, Floats], ...]:
        """TTFT, ITL and E2E by the names of their columns."""
        return (("ttft", self.ttft_s), ("itl", self.itl_s), ("e2e", self.e2e_s))

    @property
    def completed(self) -> int:
        """Requests whose last token came inside the window."""
        return int(self.ended_inside.sum())


def sample(load: Load) -> Sample:
    """The answered requests of `load` that overlap its window, including answers of a wrong length."""
    chosen = answered(load.log) & (inside_s(load) > 0)
    log = load.log.where(chosen)
    due_s, first_s, last_s = log.intended_s, log.first_token_s, _last_under_load_s(log, load)
    later_tokens = log.tokens - log.first_chunk_tokens
    return Sample(
        log=log,
        due_s=due_s,
        last_s=last_s,
        ttft_s=first_s - due_s,
        itl_s=np.where(later_tokens > 0, (last_s - first_s) / np.maximum(1, later_tokens), np.nan),
        e2e_s=last_s - due_s,
        weight=inside_s(load)[chosen] / (last_s - due_s),
        ended_inside=within(load, log.last_token_s),
    )


def _last_under_load_s(log: RequestLog, load: Load) -> Floats:
    """When each request of `log` would have had its last token if the load had continued, shape (n,).

    Tokens that came after the window follow the last one inside, or the first one, at the window's mean time between
    tokens; if the window has no such time, they count as they came.
    """
    came, inside, last_s = log.chunk_at_s < load.stop_s, within(load, log.chunk_at_s), log.last_token_s
    of_request = np.repeat(np.arange(len(log)), log.chunks)
    follows = inside & ~log.begins
    gaps_s = np.diff(log.chunk_at_s, prepend=0.0)[follows]
    tokens = log.chunk_tokens[follows].sum()
    if not tokens:
        return last_s
    token_s = gaps_s.sum() / tokens
    tokens_by_stop = np.bincount(of_request[came], log.chunk_tokens[came], len(log))
    reached_s = log.first_token_s.copy()
    np.maximum.at(reached_s, of_request[came], log.chunk_at_s[came])
    left = log.tokens - np.where(tokens_by_stop > 0, tokens_by_stop, log.first_chunk_tokens)
    return np.where(last_s < load.stop_s, last_s, np.maximum(load.stop_s, reached_s + left * token_s))


def wrong_length(log: RequestLog) -> Mask:
    """True for requests answered with another number of tokens than requested, shape (n,)."""
    return np.array([bool(WRONG_LENGTH.match(error)) for error in log.error], bool)


def answered(log: RequestLog) -> Mask:
    """True for requests with a complete answer, of whatever length, shape (n,)."""
    return np.asarray((~log.failed | wrong_length(log)) & (log.chunks > 0))


def over_s(log: RequestLog) -> Floats:
    """When each request was over, shape (n,): at its last token, or at its end if it failed."""
    return np.asarray(np.where(answered(log), log.last_token_s, log.end_s))


def inside_s(load: Load) -> Floats:
    """Seconds of each request, from the time due to its last token, that lie in the window, shape (n,)."""
    until_s = np.minimum(over_s(load.log), load.stop_s)
    return np.asarray(np.maximum(0.0, until_s - np.maximum(load.log.intended_s, load.start_s)))


def failed_inside(load: Load) -> Mask:
    """True for requests that were due inside the window and failed, without wrong lengths, shape (n,).

    The time of the failure does not matter: a request that hangs times out long after the window.
    """
    return np.asarray(~answered(load.log) & within(load, load.log.intended_s))


def wrong_inside(load: Load) -> Mask:
    """True for the answers of a wrong length that overlap the window."""
    return np.asarray(wrong_length(load.log) & (load.log.chunks > 0) & (inside_s(load) > 0))


def mean_in_flight(load: Load) -> float:
    """Requests in flight, including failed ones, on average over the window."""
    return float(inside_s(load).sum()) / load.duration_s


def within(load: Load, at_s: Floats) -> Mask:
    """True for the times inside the window."""
    return np.asarray((load.start_s <= at_s) & (at_s < load.stop_s))


# --- Responses of streamed answers, with one or several tokens: tokens in the window, and the gaps between responses


def tokens_inside(log: RequestLog, load: Load) -> int:
    """Tokens of the requests in `log` that came inside the window of `load`."""
    return int(log.chunk_tokens[within(load, log.chunk_at_s)].sum())


def gaps_s(log: RequestLog, load: Load, *, single_tokens: bool) -> Floats:
    """Seconds from each response in the window back to the one before it in the same answer, shape (gaps,).

    With `single_tokens`, only before responses with one token: one with several has no gap between tokens.
    """
    chosen = ~log.begins & within(load, log.chunk_at_s)
    if single_tokens:
        chosen &= log.chunk_tokens == 1
    return np.asarray(np.diff(log.chunk_at_s, prepend=0.0)[chosen])


def tokens_per_chunk(log: RequestLog) -> float:
    """Mean tokens of the responses with tokens; at least one request must have been answered."""
    return float(log.chunk_tokens.sum() / log.chunks.sum())
