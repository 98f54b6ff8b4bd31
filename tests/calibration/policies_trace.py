"""Runs the scenarios of test_engine_policies.py in the reference environment: a JSON line in, a JSON line back.

A scenario is run pass by pass, and what everybody holds after each pass is told; beside it stand the tokens that each
request gets alone, from an engine that has never seen another.
"""

import json
import sys
from typing import Any

from lab.reference.engine.request import Request
from lab.reference.engine.worker import build_engine

MOST_PASSES = 3000
PLAIN = {
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "enable_kv_cache_reuse": "False",
    "enable_chunked_context": "True",
}


def asked(entry: dict[str, Any]) -> Request:
    return Request(
        entry["prompt"],
        entry["max_tokens"],
        is_streamed=entry.get("streamed", True),
        reuse_key=entry.get("reuse_key", ""),
        may_reuse=entry.get("may_reuse", True),
    )


def run(parameters: dict[str, str], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What happened in each pass, and what is left at the end."""
    engine, _ = build_engine(parameters)
    read: list[int] = []
    forward = engine.model.forward

    def counting(step: Any, *rest: Any, **more: Any) -> Any:
        read.append(len(step.token_ids) - step.decoding)
        return forward(step, *rest, **more)

    engine.model.forward = counting  # type: ignore[method-assign]
    made = [asked(entry) for entry in requests]
    names = {request: number for number, request in enumerate(made)}
    passes = []
    for number in range(MOST_PASSES):
        for request, entry in zip(made, requests, strict=True):
            if entry.get("arrives", 0) == number:
                engine.add(request)
            if entry.get("cancelled", -1) == number:
                request.is_cancelled = True
        tokens = engine.step() if engine.has_work else []
        load = engine.load()
        passes.append(
            {
                "spoke": [[names[token.request], token.id, token.is_last] for token in tokens],
                "held": {names[request]: list(request.blocks) for request in engine.running},
                "computed": {names[request]: request.computed for request in engine.running},
                "rows": [request.row for request in engine.running],
                "free": engine.cache.free_blocks,
                "paused": load.paused,
                "waiting": load.waiting,
            }
        )
        if not engine.has_work and all(entry.get("arrives", 0) <= number for entry in requests):
            break
    return {
        "generated": [request.generated for request in made],
        "reused": [request.reused for request in made],
        "prompt_tokens_read": sum(read),
        "passes": passes,
        "free": engine.cache.free_blocks,
        "max": engine.cache.max_blocks,
        "reused_blocks": engine.cache.reused_blocks,
        "has_work": engine.has_work,
    }


def alone(parameters: dict[str, str], requests: list[dict[str, Any]]) -> list[list[int]]:
    """The tokens of each request that meets no other."""
    found = []
    for entry in requests:
        engine, _ = build_engine(parameters | PLAIN)
        request = asked(entry)
        engine.add(request)
        while engine.has_work:
            engine.step()
        found.append(request.generated)
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        scenario = json.loads(line)
        answer = run(**scenario) | {"alone": alone(**scenario)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
