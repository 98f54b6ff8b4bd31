"""The scheduler of chunked in-flight batching as a plain Python loop: what the compiled simulator is compared with.

One turn of the loop is one iteration of the engine, with a heap of running sequences as a careful programmer would
write it, and nothing skipped. Same law, same order of service, hence the same times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from sizing.engine import Replica


def serve(
    replica: Replica, arrival_s: Sequence[float], isl: Sequence[int], osl: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Times of first and last token of each request, in seconds, for a stream on one replica.

    Policy chunked, KV cache without bound; outputs of 2 tokens or more.
    """
    law, rule = replica.law, replica.batching
    count, arrived, clock_s, decoded, context = len(arrival_s), 0, 0.0, 0, 0
    first_token_s, done_s = [math.nan] * count, [math.nan] * count
    waiting: deque[int] = deque()
    running: list[tuple[int, int]] = []  # (decode step at which it finishes, request)
    partial, partial_tokens = -1, 0  # the prompt that is cut in chunks
    while arrived < count or waiting or running or partial >= 0:
        if not (waiting or running) and partial < 0:
            clock_s = max(clock_s, arrival_s[arrived])
        while arrived < count and arrival_s[arrived] <= clock_s:
            waiting.append(arrived)
            arrived += 1
        lanes, prompt_tokens, attention = len(running), 0, 0.0
        joining: list[int] = []
        room = rule.token_budget - lanes
        while room > 0 and (partial >= 0 or (waiting and lanes + len(joining) < rule.max_batch_size)):
            if partial < 0:
                partial, partial_tokens = waiting.popleft(), 0
            chunk = min(isl[partial] - partial_tokens, room)
            attention += chunk * (partial_tokens + 0.5 * chunk)
            prompt_tokens, partial_tokens, room = prompt_tokens + chunk, partial_tokens + chunk, room - chunk
            if partial_tokens == isl[partial]:
                joining.append(partial)
                partial = -1
        dense_s = law.token_s * (lanes + prompt_tokens)
        clock_s += law.overhead_s + math.sqrt(math.sqrt(law.weights_s**4 + dense_s**4))
        clock_s += law.sequence_s * lanes + law.kv_token_s * context
        if prompt_tokens:
            clock_s += law.attention_s * attention + law.prefill_s
        decoded += 1
        context += lanes
        while running and running[0][0] <= decoded:
            _, request = heappop(running)
            done_s[request] = clock_s
            context -= isl[request] + osl[request] - 1
        for request in joining:
            first_token_s[request] = clock_s
            context += isl[request]
            heappush(running, (decoded + osl[request] - 1, request))
    return first_token_s, done_s
