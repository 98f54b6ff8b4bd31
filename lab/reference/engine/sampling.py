"""The next token of each request from its logits: greedy in one go, everything else row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.reference.engine.request import GREEDY, Request, Sampling

Choice = tuple[int, float, Tensor | None]


def next_tokens(logits: Tensor, requests: Sequence[Request]) -> list[Choice]:
    """(token id, natural logarithm of its probability, its logits [vocab]) for each request; logits are [R, vocab].

    Probability and logits are the model's own, before temperature and penalties; 0.0 and None stand where they were not
    asked for.
    """
    chosen = logits.argmax(dim=-1).tolist()
    for row, request in enumerate(requests):
        if request.sampling is not GREEDY and request.sampling != GREEDY:
            chosen[row] = _sample(_adjusted(logits[row], request), request)
    return [
        (
            token,
            float(logits[row].log_softmax(dim=-1)[token]) if request.wants_log_probs else 0.0,
            logits[row] if request.wants_generation_logits else None,
        )
        for row, (token, request) in enumerate(zip(chosen, requests, strict=True))
    ]


def _adjusted(logits: Tensor, request: Request) -> Tensor:
    """Logits [vocab] after bias, penalties on tokens that already came, and what must not come now."""
    sampling, made = request.sampling, request.generated
    logits = logits.clone()
    if sampling.bias:
        logits += torch.tensor(sampling.bias, device=logits.device)
    _penalise(logits, sampling, request.prompt + made, made)
    if len(made) < sampling.min_length and 0 <= request.end_id < len(logits):
        logits[request.end_id] = -torch.inf
    for *start, last in filter(None, sampling.bad_words):
        if not start or made[-len(start) :] == start:
            logits[last] = -torch.inf
    return logits


def _penalise(logits: Tensor, sampling: Sampling, seen: list[int], made: list[int]) -> None:
    counts = torch.bincount(torch.tensor(made, device=logits.device, dtype=torch.long), minlength=len(logits))
    logits -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    if sampling.repetition_penalty != 1.0:
        ids = torch.tensor(seen, device=logits.device).unique()
        old = logits[ids]
        logits[ids] = torch.where(old > 0, old / sampling.repetition_penalty, old * sampling.repetition_penalty)


def _sample(logits: Tensor, request: Request) -> int:
    sampling = request.sampling
    is_greedy = sampling.top_k == 1 or (sampling.top_k <= 0 and sampling.top_p <= 0.0)
    if is_greedy or sampling.temperature <= 0.0:
        return int(logits.argmax())
    values, ids = (logits / sampling.temperature).sort(descending=True)
    if not values[0].isfinite():  # penalties or temperature left nothing to draw from
        return int(ids[0])
    if sampling.top_k > 0:
        values, ids = values[: sampling.top_k], ids[: sampling.top_k]
    probabilities = values.softmax(dim=-1)
    if 0.0 < sampling.top_p < 1.0:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.where(before < sampling.top_p, 0.0)
    # a generator per token, so that a request's random numbers do not depend on its company
    generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + len(request.generated)) % 2**63)
    return int(ids[torch.multinomial(probabilities.cpu(), 1, generator=generator).item()])
