"""Where a mean request's time goes: queue, prefill, decode, network, as far as the server's metrics say.

Triton times a whole request (``request_mean_s``) of an ensemble or of a model with one response, but only the
hand-over to the backend of a decoupled model. The TensorRT-LLM backend reports how many requests are waiting, in
prefill and decoding. By Little's law, the mean time in each state is the mean number in it over the requests per
second, in a steady state. The rate is the client's, which weights requests at the window's edges, unlike the
server's counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sizing.points import Point

SLACK = 0.05
"""Share by which the server's time for a request may lie outside what the client saw."""


@dataclass(frozen=True, slots=True)
class Split:
    """Mean seconds of a request; None if the server does not report it.

    `network_and_client_s` is the client's time beyond the server's, including late sending of an open loop. `other_s`
    is the rest of the E2E: pre- and postprocessing, hand-over between models, and sampling errors.
    """

    ttft_s: float | None
    e2e_s: float | None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    network_and_client_s: float | None = None

    @property
    def other_s(self) -> float | None:
        """What is left of the E2E; None unless all parts are known."""
        parts = (self.queue_s, self.prefill_s, self.decode_s, self.network_and_client_s)
        known = [part for part in parts if part is not None]
        return None if self.e2e_s is None or len(known) < len(parts) else self.e2e_s - sum(known)


def split(point: Point, server: Mapping[str, float]) -> Split:
    """The parts of the mean request of `point` in `server`, the means of a `Scraper` over its window.

    Their sum is near the mean E2E only if the load was steady.
    """
    parts = (
        _network(point, server)
        | _first_responses(server, point)
        | _triton_queue(server)
        | _states(server, point.requests_per_s)
        | _engine_times(server)
    )
    return Split(point.ttft_mean_s, point.e2e_mean_s, **parts)


def _states(server: Mapping[str, float], rate_per_s: float) -> dict[str, float]:
    """By Little's law: requests in a state over requests per second."""
    tokens = server.get("batcher_total_generation_tokens_mean")  # static batching: one token for each that decodes
    numbers = {
        "queue_s": server.get("engine_requests_waiting_mean"),
        "prefill_s": server.get("engine_requests_context_mean"),
        "decode_s": server.get("batcher_generation_requests_mean", tokens),
    }
    return {name: number / rate_per_s for name, number in numbers.items() if number is not None}


def _engine_times(server: Mapping[str, float]) -> dict[str, float]:
    """Times measured by the engine itself are better than numbers read every second."""
    names = {"queue_s": "engine_queue_mean_s", "prefill_s": "engine_prefill_mean_s", "decode_s": "engine_decode_mean_s"}
    return {part: server[name] for part, name in names.items() if name in server}


def _triton_queue(server: Mapping[str, float]) -> dict[str, float]:
    """Time before a model instance takes the request; the only queue if the backend has none of its own."""
    return {"queue_s": server["queue_mean_s"]} if "queue_mean_s" in server else {}


def _first_responses(server: Mapping[str, float], point: Point) -> dict[str, float]:
    first_s, whole_s = server.get("first_response_mean_s"), _whole_s(point, server)
    if first_s is None or whole_s is None:
        return {}
    queue_s = server.get("engine_queue_mean_s", server.get("queue_mean_s", 0.0))
    prefill_s = max(0.0, first_s - queue_s)
    return {"prefill_s": prefill_s, "decode_s": max(0.0, whole_s - first_s)}


def _network(point: Point, server: Mapping[str, float]) -> dict[str, float]:
    whole_s = _whole_s(point, server)
    if whole_s is None or point.e2e_mean_s is None:
        return {}
    return {"network_and_client_s": max(0.0, point.e2e_mean_s - whole_s)}


def _whole_s(point: Point, server: Mapping[str, float]) -> float | None:
    """The server's time for a whole request; None if its figure cannot be that.

    It must be at least the time between the client's first and last token, which passed in the server, and at most the
    client's E2E.
    """
    said_s, e2e_s = server.get("request_mean_s"), point.e2e_mean_s
    if said_s is None or e2e_s is None:
        return None
    decode_s = e2e_s - (point.ttft_mean_s or 0.0)
    return said_s if decode_s * (1 - SLACK) <= said_s <= e2e_s * (1 + SLACK) else None
