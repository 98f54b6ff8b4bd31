"""The responses of streamed answers, of one token or several: tokens that came in the window, and the gaps between."""

from __future__ import annotations

import numpy as np

from calibration.records import Floats, Load, RequestLog


def tokens_inside(log: RequestLog, load: Load) -> int:
    """Tokens of the requests in `log` that came inside the window of `load`, counted as events."""
    inside = (load.start_s <= log.chunk_at_s) & (log.chunk_at_s < load.stop_s)
    return int(log.chunk_tokens[inside].sum())


def gaps_s(log: RequestLog, load: Load, *, single_tokens: bool) -> Floats:
    """Seconds from each response in the window back to the one before it in the same answer, shape (gaps,).

    With `single_tokens`, only before responses of one token: one of several tells no gap between tokens.
    """
    first = np.zeros(len(log.chunk_at_s), bool)
    first[(np.cumsum(log.chunks) - log.chunks)[log.chunks > 0]] = True
    chosen = ~first & (load.start_s <= log.chunk_at_s) & (log.chunk_at_s < load.stop_s)
    if single_tokens:
        chosen &= log.chunk_tokens == 1
    return np.asarray(np.diff(log.chunk_at_s, prepend=0.0)[chosen])


def tokens_per_chunk(log: RequestLog) -> float:
    """Mean tokens in a response that carried any; at least one request was answered."""
    return float(log.chunk_tokens.sum() / log.chunks.sum())
