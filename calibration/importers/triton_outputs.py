"""Triton's responses as perf_analyzer keeps them: which hold tokens, how many where the server says it, what was asked.

A tensor is written as a flat list, as a bare number where it has one element, and as "" where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

EMPTY_TEXTS = ("", "[DONE]")
IDS = "output_ids"
TEXTS = ("text_output", "response")
ASKED = ("max_tokens", "request_output_len")
LONGEST = 10**7


def tokens_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Places of the responses that hold tokens, and how many each holds: none at all where any of them does not say.

    >>> tokens_of([{"output_ids": [5, 6]}, {"output_ids": 0}, {"output_ids": ""}])
    ([0, 1], [2, 1])
    >>> tokens_of([{"text_output": " the"}, {"text_output": ""}])
    ([0], [])
    """
    places, counts = [], []
    for place, output in enumerate(outputs):
        count = _count(output)
        if count or (count is None and _has_content(output)):
            places.append(place)
            counts.append(count)
    known = [count for count in counts if count is not None]
    return places, known if len(known) == len(places) else []


def asked_of(inputs: dict[str, Any]) -> int | None:
    """The output length that the request asked for, by any of its names; None where it names none."""
    for name in ASKED:
        value = inputs.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if type(value) is int and 0 < value <= LONGEST:
            return value
    return None


def _count(output: dict[str, Any]) -> int | None:
    """Tokens by their ids, of which those after ``sequence_length`` are padding; None where there are no ids."""
    if IDS not in output:
        return None
    ids, length = output[IDS], output.get("sequence_length")
    count = len(ids) if isinstance(ids, list) else int(type(ids) is int)
    return min(count, max(0, length)) if type(length) is int else count


def _has_content(output: dict[str, Any]) -> bool:
    """Whether the texts, or in a model with other names any output, hold something; a flag (BOOL) is no token."""
    values = [output[name] for name in TEXTS if name in output] or list(output.values())
    return any(_is_content(value) for value in values)


def _is_content(value: object) -> bool:
    if isinstance(value, str):
        return value not in EMPTY_TEXTS
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True
    return bool(value) and isinstance(value, list)
