"""Error messages for requests that cannot be served: the TensorRT-LLM backend's own (release v0.8.0).

As in the backend, a request that is not accepted gets the plain reason; one that was accepted, and that the engine
cannot run, gets "Encountered error for requestId N: ...". N is the number that the backend derives from the request's
id (`request_ids.py`).
"""

from __future__ import annotations

STOP_WITHOUT_ID = "Cannot send stop request without specifying a request_id"
NOT_DECOUPLED = "Streaming is only supported if model is deployed using decoupled mode."


class InputError(Exception):
    """A request that this engine refuses; the message is sent to the client unchanged."""


def already_in_progress(number: int) -> str:
    return f"requestId {number} is already in progress, request is ignored."


def not_active(number: int) -> str:
    return f"Received stop request for requestId {number} but it's not active (might be completed already)."


def cannot_process(number: int, why: str) -> str:
    return f"Encountered error for requestId {number}: Cannot process new request: {why}"


def stopped_while_waiting(number: int) -> str:
    return f"Encountered error for requestId {number}: request Id {number} has been stopped. Request is ignored."
