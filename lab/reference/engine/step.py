"""One forward pass for a set of requests: pack their tokens, run the model, give each its next token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lab.reference.engine.adapters import Group
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.lora import Adapter
from lab.reference.engine.request import Request, Token
from lab.reference.engine.sampling import next_tokens
from lab.reference.engine.transformer import Chunk, Pass, Transformer

Reading = tuple[Request, int]


def run_pass(
    model: Transformer, cache: KvCache, decoding: Sequence[Request], reading: Sequence[Reading]
) -> list[Token]:
    """Advance `decoding` by one token each and `reading` by so many prompt tokens each; the tokens made, in that order.

    The pass that reads the end of a prompt gives its first output token; if the cache reuses prompts, it then keeps
    this one. A request in `decoding` that has ended is padding: its last token is computed again, at the cost of any
    row, and the result is dropped.
    """
    speaking = [request for request in decoding if not request.has_ended]
    speaking += [request for request, count in reading if request.computed + count == request.to_read]
    logits = model.forward(_pack(model, decoding, reading), cache)
    if len(logits) > len(speaking):
        _keep_context_logits(reading, logits[len(speaking) :])
        logits = logits[: len(speaking)]
    for request in decoding:
        request.computed += not request.has_ended
    for request, count in reading:
        request.computed += count
        if cache.reuses and not request.reads_prompt:
            cache.keep(request)
    return [_say(request, *made) for request, made in zip(speaking, next_tokens(logits, speaking), strict=True)]


def _say(request: Request, token: int, log_prob: float, logits: torch.Tensor | None) -> Token:
    request.generated.append(token)
    request.has_ended = request.is_complete
    kept = None if logits is None else logits.cpu().numpy()
    return Token(request, token, log_prob, is_last=request.has_ended, logits=kept)


def _keep_context_logits(reading: Sequence[Reading], logits: torch.Tensor) -> None:
    """Hand out the logits of prompt tokens, which lie in the order of `reading`, before it is counted as computed."""
    first = 0
    for request, count in reading:
        if not request.wants_context_logits:
            continue
        if request.context_logits is None:
            request.context_logits = np.zeros((len(request.prompt), logits.shape[1]), np.float32)
        # what is read again after a pause may hold output tokens too: their logits are not context
        own = max(min(count, len(request.context_logits) - request.computed), 0)
        request.context_logits[request.computed : request.computed + own] = logits[first : first + own].cpu().numpy()
        first += count


def _pack(model: Transformer, decoding: Sequence[Request], reading: Sequence[Reading]) -> Pass:
    token_ids = [request.generated[-1] for request in decoding]
    positions = [request.computed for request in decoding]
    table_rows = [request.row for request in decoding]
    output_rows = [row for row, request in enumerate(decoding) if not request.has_ended]
    context_rows: list[int] = []
    chunks = []
    for request, count in reading:
        if request.wants_context_logits:
            context_rows += range(len(token_ids), len(token_ids) + count)
        start, end = request.computed, request.computed + count
        chunks.append(Chunk(first=len(token_ids), rows=count, table_row=request.row, start=start))
        token_ids += request.context[start:end]
        positions += range(start, end)
        table_rows += [request.row] * count
        if end == request.to_read:
            output_rows.append(len(token_ids) - 1)

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=model.device)

    return Pass(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        table_rows=tensor(table_rows),
        decoding=len(decoding),
        chunks=tuple(chunks),
        output_rows=tensor(output_rows + context_rows),
        adapted=_adapted(model, decoding, reading),
    )


def _adapted(model: Transformer, decoding: Sequence[Request], reading: Sequence[Reading]) -> tuple[Group, ...]:
    """The rows of the pass by the adapter of their request; requests that brought the same adapter are one group."""
    rows: dict[Adapter, list[int]] = {}
    for row, request in enumerate(decoding):
        if request.adapter is not None:
            rows.setdefault(request.adapter, []).append(row)
    first = len(decoding)
    for request, count in reading:
        if request.adapter is not None:
            rows.setdefault(request.adapter, []).extend(range(first, first + count))
        first += count
    return tuple(
        (torch.tensor(own, device=model.device), model.adapters.load(adapter)) for adapter, own in rows.items()
    )


def chunks_within(requests: Sequence[Request], budget: int) -> list[Reading]:
    """How many prompt tokens each request reads in this pass: first come first served until `budget` is used up."""
    reading = []
    for request in requests:
        count = min(request.to_read - request.computed, budget)
        if count <= 0:
            break
        reading.append((request, count))
        budget -= count
    return reading


def whole_within(requests: Sequence[Request], budget: int) -> list[Reading]:
    """Prompts that are read whole in this pass: first come first served as long as they fit `budget`.

    The first is always read, however long it is: it would never fit otherwise.
    """
    reading: list[Reading] = []
    for request in requests:
        count = request.to_read - request.computed
        if reading and count > budget:
            break
        reading.append((request, count))
        budget -= count
    return reading
