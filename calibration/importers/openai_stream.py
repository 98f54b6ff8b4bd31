"""Server-sent events of OpenAI-style servers, as perf_analyzer keeps them: which responses hold text; usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from calibration.importers.edge import Edge, Tokens

MOST_PIECES = 20
"""Responses that an event may be spread over: all of them are looked at again with each."""
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")


class Usage(Edge):
    """Tokens as the server counts them."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class Payload(NamedTuple):
    """Of a request: the model asked and the output length."""

    model: str | None = None
    osl: int | None = None


def payload_of(inputs: dict[str, Any]) -> Payload:
    """Model and length in a request's JSON payload; unknown where it cannot be read."""
    body = _object(inputs.get("payload"))
    length = body.get("max_completion_tokens") or body.get("max_tokens")
    model = body.get("model")
    return Payload(
        model if isinstance(model, str) else None,
        length if type(length) is int and 0 < length <= 10**7 else None,
    )


def events_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], Usage | None]:
    """Places of the responses that hold text, and the usage if the server told it.

    A response may hold several events, one place each, or end within one, which then counts where it is complete; one
    that is not after `MOST_PIECES` responses is dropped.
    """
    places, usage, rest, pieces = [], None, "", 0
    for place, output in enumerate(outputs):
        text = output.get("response")
        if not isinstance(text, str):
            continue
        *events, rest = _split(rest + text)
        pieces = 0 if events or not rest else pieces + 1
        rest = rest if pieces < MOST_PIECES else ""
        for event in events:
            body = _object(event)
            places += [place] if _has_text(body) else []
            usage = _usage(body) or usage
    return places, usage


def _split(text: str) -> list[str]:
    """The payloads of whole events and, last, what is left of an unfinished one.

    >>> _split('data: {"a": 1}\\n\\ndata: {"b"')
    ['{"a": 1}', 'data: {"b"']
    """
    *whole, last = text.replace("\r\n", "\n").split("\n\n")
    if last and (_object(_data(last)) or last.strip() == "data: [DONE]"):
        whole, last = [*whole, last], ""  # the blank line after an event is not always kept
    return [*(_data(event) for event in whole), last]


def _data(event: str) -> str:
    lines = [line.strip() for line in event.split("\n")]
    return "".join(line.removeprefix("data:").strip() for line in lines if not line.startswith((":", "event:", "id:")))


def _object(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _has_text(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta") or choice.get("message") or choice
        if isinstance(delta, dict) and any(delta.get(key) for key in TEXT_KEYS):
            return True
    return False


def _usage(body: dict[str, Any]) -> Usage | None:
    if not isinstance(body.get("usage"), dict):
        return None
    try:
        return Usage.model_validate(body["usage"])
    except ValidationError:
        return None
