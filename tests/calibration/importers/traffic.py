"""Requests of known times, and how each tool that keeps single requests writes them down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

EPOCH_S = 1_772_359_200
DEPLOYMENT: dict[str, object] = {"model": "tiny", "precision": "fp16", "gpu": "L4", "tp": 1}


@dataclass(frozen=True)
class Sent:
    """A request that was sent at `sent_s` (due at `due_s`) and whose `chunk` tokens a response came at `chunk_s`."""

    due_s: float
    sent_s: float
    chunk_s: tuple[float, ...]
    chunk: int = 1
    isl: int = 50

    @property
    def tokens(self) -> int:
        return self.chunk * len(self.chunk_s)


@dataclass(frozen=True)
class Law:
    """TTFT, gap between single tokens and output length that every request has: a chunk comes with its last token."""

    ttft_s: float = 0.1
    itl_s: float = 0.01
    osl: int = 12
    chunk: int = 1

    @property
    def e2e_s(self) -> float:
        return self.ttft_s + self.itl_s * (self.osl - self.chunk)

    def request(self, due_s: float, late_s: float = 0.0) -> Sent:
        sent_s = due_s + late_s
        first_s = sent_s + self.ttft_s
        count = self.osl // self.chunk
        return Sent(due_s, sent_s, tuple(first_s + i * self.chunk * self.itl_s for i in range(count)), self.chunk)


def closed_loop(law: Law, users: int = 2, each: int = 12) -> list[Sent]:
    """Users spread over one request's time, each sending the next as the last is answered."""
    starts_s = [user * law.e2e_s / users for user in range(users)]
    return [law.request(start_s + turn * law.e2e_s) for turn in range(each) for start_s in starts_s]


def aiperf_jsonl(requests: Sequence[Sent], *, gaps: bool = True, cached: int | None = None) -> str:
    """`cached` prompt tokens of every other request were found, none of the others; None: nothing is told."""
    rows = [_aiperf_record(request, gaps) for request in requests]
    for place, row in enumerate(rows if cached is not None else ()):
        row["metrics"]["usage_prompt_cache_read_tokens"] = {"value": place % 2 * (cached or 0), "unit": "tokens"}
    return "\n".join(map(json.dumps, rows)) + "\n"


def _aiperf_record(request: Sent, gaps: bool) -> dict[str, Any]:
    times = request.chunk_s
    between = [later - before for before, later in pairwise(times)]
    metrics = {
        "time_to_first_token": {"value": (times[0] - request.sent_s) * 1e3, "unit": "ms"},
        "request_latency": {"value": (times[-1] - request.sent_s) * 1e3, "unit": "ms"},
        "input_sequence_length": {"value": request.isl, "unit": "tokens"},
        "output_sequence_length": {"value": request.tokens, "unit": "tokens"},
    }
    if gaps:
        metrics["inter_chunk_latency"] = {"value": [gap * 1e3 for gap in between], "unit": "ms"}  # type: ignore[dict-item]
    metadata = {
        "credit_issued_ns": _ns(request.due_s),
        "request_start_ns": _ns(request.sent_s),
        "request_end_ns": _ns(times[-1] + 0.001),
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    return {"metadata": metadata, "metrics": metrics, "error": None}


def profile_export(
    requests: Sequence[Sent],
    *,
    empty_first_s: float | None = None,
    empty_final_s: float | None = None,
    ids: bool = False,
    asked: int | None = None,
) -> str:
    """With an empty response `empty_first_s` after the sending, and one `empty_final_s` after the last token.

    Responses hold text or token `ids`, all of them 0: a list, but a bare number where there is one, "" for none.
    """
    rows = []
    for request in requests:
        token: object = " the" if not ids else [0] * request.chunk if request.chunk > 1 else 0
        answers = [(at_s, token) for at_s in request.chunk_s]
        answers += [(request.sent_s + empty_first_s, "")] if empty_first_s is not None else []
        answers += [(request.chunk_s[-1] + empty_final_s, "")] if empty_final_s is not None else []
        answers.sort(key=lambda answer: answer[0])
        rows.append(
            {
                "timestamp": _ns(request.sent_s),
                "request_inputs": {
                    "max_tokens": asked or request.tokens,
                    "stream": True,
                    "text_input": "a secret prompt",
                },
                "response_timestamps": [_ns(at_s) for at_s, _ in answers],
                "response_outputs": [{"output_ids" if ids else "text_output": token} for _, token in answers],
            }
        )
    experiment = {"experiment": {"mode": "concurrency", "value": 2}, "requests": rows, "window_boundaries": []}
    return json.dumps({"experiments": [experiment], "version": "2.60.0", "service_kind": "triton", "endpoint": ""})


def openai_export(
    requests: Sequence[Sent], *, usage: bool = True, asked: int | None = None, cached: int | None = None
) -> str:
    """As `profile_export` over an OpenAI server: a role event first, [DONE] last, several tokens in an event."""
    rows = []
    for place, request in enumerate(requests):
        found = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": place % 2 * cached}}
        role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        word = {"choices": [{"delta": {"content": " the"}}]}
        counts = {
            "choices": [],
            "usage": {"prompt_tokens": request.isl, "completion_tokens": request.tokens, **found},
        }
        events = [_event(role), *[_event(word) for _ in request.chunk_s]]
        events[-1] += (_event(counts) if usage else "") + "data: [DONE]\n\n"
        payload = {
            "model": "tiny-chat",
            "max_tokens": asked or request.tokens,
            "messages": [{"content": "a secret prompt"}],
        }
        rows.append(
            {
                "timestamp": _ns(request.sent_s),
                "request_inputs": {"payload": json.dumps(payload)},
                "response_timestamps": [_ns(at_s) for at_s in (request.sent_s + 0.001, *request.chunk_s)],
                "response_outputs": [{"response": event} for event in events],
            }
        )
    experiment = {"experiment": {"mode": "concurrency", "value": 2}, "requests": rows}
    return json.dumps({"experiments": [experiment], "version": "2.60.0", "service_kind": "openai"})


def _event(body: object) -> str:
    return f"data: {json.dumps(body)}\n\n"


def guidellm(
    requests: Sequence[Sent],
    strategy: dict[str, object] | None = None,
    *,
    generation: str = "info",
    cached: int | None = None,
) -> str:
    """Requests with their times in `info`, in ``scheduler_info`` as in release 0.4, or ``flat`` as in 0.3."""
    rows = [_guidellm_request(request, generation) for request in requests]
    for place, row in enumerate(rows if cached is not None else ()):
        row["cached_tokens"] = place % 2 * (cached or 0)
    empty = {"successful": {"mean": 1.0}}
    benchmark = {
        "config": {"strategy": strategy or {"type_": "concurrent", "streams": 2}},
        "start_time": EPOCH_S + requests[0].sent_s,
        "duration": requests[-1].chunk_s[-1] - requests[0].sent_s,
        "metrics": {"request_totals": {"successful": len(rows), "errored": 0}, "request_latency": empty},
        "requests": {"successful": rows, "errored": [], "incomplete": []},
    }
    spec = {"spec": {"backend": {"model": "tiny-chat", "api_key": "sk-secret"}}}
    return json.dumps(
        {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": spec, "benchmarks": [benchmark]}
    )


def _guidellm_request(request: Sent, generation: str) -> dict[str, Any]:
    timings = {
        "targeted_start": EPOCH_S + request.due_s,
        "request_start": EPOCH_S + request.sent_s,
        "first_token_iteration": EPOCH_S + request.chunk_s[0],
        "last_token_iteration": EPOCH_S + request.chunk_s[-1],
        "request_end": EPOCH_S + request.chunk_s[-1] + 0.001,
        "token_iterations": len(request.chunk_s),
    }
    if generation == "info":
        times: dict[str, Any] = {"info": {"timings": timings}}
    elif generation == "scheduler_info":
        older = {name.replace("_token", ""): value for name, value in timings.items()}
        times = {"scheduler_info": {"request_timings": older}}
    else:
        times = {
            "scheduler_info": {"targeted_start_time": timings["targeted_start"]},
            "start_time": timings["request_start"],
            "first_token_time": timings["first_token_iteration"],
            "last_token_time": timings["last_token_iteration"],
            "end_time": timings["request_end"],
        }
    texts = {"request_args": "a secret prompt", "output": "a secret answer"}
    return {**texts, **times, "prompt_tokens": request.isl, "output_tokens": request.tokens}


def vllm_detailed(requests: Sequence[Sent], **changed: object) -> str:
    span_s = requests[-1].chunk_s[-1] - requests[0].sent_s
    gaps = [[b - a for a, b in pairwise(row.chunk_s)] for row in requests]
    result = {
        "date": "20260301-101500",
        "model_id": "tiny-chat",
        "num_prompts": len(requests),
        "request_rate": "inf",
        "max_concurrency": 2,
        "duration": span_s,
        "completed": len(requests),
        "failed": 0,
        "total_input_tokens": sum(request.isl for request in requests),
        "total_output_tokens": sum(request.tokens for request in requests),
        "request_throughput": len(requests) / span_s,
        "mean_ttft_ms": 1.0,
        "input_lens": [request.isl for request in requests],
        "output_lens": [request.tokens for request in requests],
        "ttfts": [request.chunk_s[0] - request.sent_s for request in requests],
        "itls": gaps,
        "latencies": [request.chunk_s[-1] - request.sent_s for request in requests],
        "start_times": [5000 + request.sent_s for request in requests],
        "queue_times": [request.sent_s - request.due_s for request in requests],
        "generated_texts": ["a secret answer" for _ in requests],
        "errors": ["" for _ in requests],
    }
    return json.dumps({**result, **changed})


def _ns(at_s: float) -> int:
    return EPOCH_S * 10**9 + round(at_s * 1e9)
