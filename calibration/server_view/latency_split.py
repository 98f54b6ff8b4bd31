"""Where the seconds of a mean request went: queue, prefill, decode, network, by what the server's metrics can tell.

Triton times a whole request (``request_mean_s``) of an ensemble or of a model with one response, but of a decoupled
model only its hand-over to the backend. The TensorRT-LLM backend tells how many requests wait, read their prompt and
decode at a moment; by Little's law the mean time in each state is the mean number in it over the requests per second,
in a steady state. The rate is the client's: it weighs requests cut by the window's edges, the server's counters do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sizing.curves import Point

LITTLE = "requests in that state / requests per second (Little's law)"
TRITON_QUEUE = "Triton's queue counter"
FIRST_RESPONSE = "Triton's first-response histogram"
REQUEST = "client's E2E less Triton's request duration"
SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Split:
    """Mean seconds of a request; None = the server does not tell.

    `network_and_client_s` is what the client saw beyond the server's own time, late sending of an open loop included.
    `other_s` is the rest of the E2E: pre- and postprocessing, hand-over between models, and the error of sampling.
    `basis` says for each known part where it is from.
    """

    ttft_s: float | None
    e2e_s: float | None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    network_and_client_s: float | None = None
    basis: Mapping[str, str] = field(default_factory=dict)

    @property
    def other_s(self) -> float | None:
        """What is left of the E2E; None unless all parts are known."""
        parts = (self.queue_s, self.prefill_s, self.decode_s, self.network_and_client_s)
        known = [part for part in parts if part is not None]
        return None if self.e2e_s is None or len(known) < len(parts) else self.e2e_s - sum(known)


def split(point: Point, server: Mapping[str, float]) -> Split:
    """The parts of the mean request of `point` that `server`, the means of a `Scraper` over its window, tells.

    Their sum comes near the mean E2E only where the load was steady.
    """
    parts = (
        _network(point, server)
        | _first_responses(server, point)
        | _triton_queue(server)
        | _states(server, point.requests_per_s)
    )
    values = {name: value for name, (value, _) in parts.items()}
    basis = {name: said for name, (_, said) in parts.items()}
    return Split(point.ttft_mean_s, point.e2e_mean_s, **values, basis=basis)


Parts = dict[str, tuple[float, str]]


def _states(server: Mapping[str, float], rate_per_s: float) -> Parts:
    tokens = server.get("batcher_total_generation_tokens_mean")  # static batching: one token for each that decodes
    numbers = {
        "queue_s": server.get("engine_requests_waiting_mean"),
        "prefill_s": server.get("engine_requests_context_mean"),
        "decode_s": server.get("batcher_generation_requests_mean", tokens),
    }
    return {name: (number / rate_per_s, LITTLE) for name, number in numbers.items() if number is not None}


def _triton_queue(server: Mapping[str, float]) -> Parts:
    """Time before a model's instance takes the request; all there is where the backend keeps no queue of its own."""
    return {"queue_s": (server["queue_mean_s"], TRITON_QUEUE)} if "queue_mean_s" in server else {}


def _first_responses(server: Mapping[str, float], point: Point) -> Parts:
    first_s, whole_s = server.get("first_response_mean_s"), _whole_s(point, server)
    if first_s is None or whole_s is None:
        return {}
    prefill_s = max(0.0, first_s - server.get("queue_mean_s", 0.0))
    return {"prefill_s": (prefill_s, FIRST_RESPONSE), "decode_s": (max(0.0, whole_s - first_s), FIRST_RESPONSE)}


def _network(point: Point, server: Mapping[str, float]) -> Parts:
    whole_s = _whole_s(point, server)
    if whole_s is None or point.e2e_mean_s is None:
        return {}
    return {"network_and_client_s": (max(0.0, point.e2e_mean_s - whole_s), REQUEST)}


def _whole_s(point: Point, server: Mapping[str, float]) -> float | None:
    """The server's time for a whole request, None if what it says cannot be that.

    It must cover the time between the client's first and last token, which passed in the server, and not exceed the
    client's E2E.
    """
    said_s, e2e_s = server.get("request_mean_s"), point.e2e_mean_s
    if said_s is None or e2e_s is None:
        return None
    decode_s = e2e_s - (point.ttft_mean_s or 0.0)
    return said_s if decode_s * (1 - SLACK) <= said_s <= e2e_s * (1 + SLACK) else None
