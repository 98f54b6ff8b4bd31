"""Runs the engine scenarios of test_engine.py in the reference environment: JSON from standard input, JSON back.

A trace is what happened pass by pass. Beside the engine stands a forward pass written from the formulas alone, without
a cache, without packing and without torch's attention, to compare with.
"""

import json
import math
import sys
from typing import Any

import torch

from lab.reference.engine.request import Request
from lab.reference.engine.transformer import Pass, Transformer
from lab.reference.engine.worker import build_engine

MOST_PASSES = 2000


def trace(parameters: dict[str, str], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens per request, and per pass: who spoke, how many tokens it computed, and who holds what after it."""
    engine, _ = build_engine(parameters)
    forward, computed = engine.model.forward, [0]

    def counting(step: Pass, *rest: Any) -> torch.Tensor:
        computed[0] = len(step.token_ids)
        return forward(step, *rest)

    engine.model.forward = counting  # type: ignore[method-assign]
    made = [
        Request(entry["prompt"], entry["max_tokens"], is_streamed=entry.get("streamed", True)) for entry in requests
    ]
    names = {request: number for number, request in enumerate(made)}
    passes = []
    for number in range(MOST_PASSES):
        for request, entry in zip(made, requests, strict=True):
            if entry.get("arrives", 0) == number:
                engine.add(request)
            if entry.get("cancelled", -1) == number:
                request.is_cancelled = True
        computed[0] = 0
        tokens = engine.step() if engine.has_work else []
        passes.append(
            {
                "spoke": [[names[token.request], token.id, token.is_last] for token in tokens],
                "running": [names[request] for request in engine.running],
                "waiting": len(engine.waiting),
                "tokens": computed[0],
                "free_blocks": engine.cache.free_blocks,
                "held_blocks": [block for request in engine.running for block in request.blocks],
            }
        )
        if not engine.has_work and all(entry.get("arrives", 0) <= number for entry in requests):
            break
    return {
        "generated": [request.generated for request in made],
        "passes": passes,
        "free_blocks": engine.cache.free_blocks,
        "max_blocks": engine.cache.max_blocks,
    }


def cache_error(parameters: dict[str, str], prompt: list[int], max_tokens: int) -> dict[str, float]:
    """Largest difference between the logits the engine used and those of a recomputation of the whole sequence."""
    engine, _ = build_engine(parameters)
    used: list[torch.Tensor] = []
    forward = engine.model.forward

    def listening(*args: Any) -> torch.Tensor:
        logits = forward(*args)
        used.extend(logits)
        return logits

    engine.model.forward = listening  # type: ignore[method-assign]
    request = Request(prompt, max_tokens)
    engine.add(request)
    while engine.has_work:
        engine.step()
    logits = from_formulas(engine.model, prompt + request.generated)[len(prompt) - 1 : -1]
    difference = (torch.stack(used) - logits).abs().max()
    shuffled = from_formulas(engine.model, prompt[::-1] + request.generated)[len(prompt) - 1 : -1]
    return {
        "largest": float(difference),
        "spread": float(logits.std()),
        "if_order_were_ignored": float((torch.stack(used)[1:] - shuffled[1:]).abs().max()),
    }


def from_formulas(model: Transformer, tokens: list[int]) -> torch.Tensor:
    """Logits [n, vocab] of one sequence: softmax over explicit scores, one head at a time, complex rotation."""
    shape = model.shape
    group = shape.heads // shape.kv_heads
    count = len(tokens)
    frequencies = 10_000.0 ** (-torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
    turn = torch.exp(1j * torch.arange(count)[:, None] * frequencies)

    def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt() * scale

    def rotated(x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        turned = torch.complex(left.double(), right.double()) * turn
        return torch.cat((turned.real, turned.imag), dim=-1).float()

    x = model.embedding[tokens]
    for layer in model.layers:
        packed = (norm(x, layer.norm1) @ layer.qkv.T).view(count, -1, shape.head_dim)
        heads = []
        for head in range(shape.heads):
            key_head = shape.heads + head // group
            query, key = rotated(packed[:, head]), rotated(packed[:, key_head])
            scores = query @ key.T / math.sqrt(shape.head_dim)
            scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -math.inf)
            heads.append(scores.softmax(dim=-1) @ packed[:, key_head + shape.kv_heads])
        x = x + torch.cat(heads, dim=-1) @ layer.out.T
        gate, up = (norm(x, layer.norm2) @ layer.gate_up.T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.T
    return norm(x, model.norm) @ model.head.T


if __name__ == "__main__":
    actions = {"trace": trace, "cache_error": cache_error}
    scenarios = json.load(sys.stdin)
    json.dump([actions[scenario.pop("what")](**scenario) for scenario in scenarios], sys.stdout)
