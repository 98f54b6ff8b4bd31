"""The edge where data of other tools comes in: types with bounds, checks that name file and key, text made harmless."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibration.errors import FileError
from sizing import faults

TEXT_LIMIT = 120
LARGEST = 1e15

Number = Annotated[float, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Tokens = Annotated[int, Field(ge=0, le=10**7)]
Nanoseconds = Annotated[int, Field(ge=0, le=2**63 - 1)]

Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is given up at its first fault: one error for each of millions of entries would fill the memory."""

_ERROR_NAME = re.compile(r"[A-Za-z_]{0,40}(?:Error|Exception|Timeout)\b")
_SCALE_TO_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Edge(BaseModel):
    """Base of the models of foreign data: types are strict, numbers finite, unknown keys left out."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], data: object, where: str) -> Model:
    """`data` as a `model`. Raises FileError naming `where` and the first key at fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise FileError(f"{where}, {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong, as ``key 'what': why``, in one line of bounded length."""
    fault = faults.first_fault(error)
    return f"key {fault.key!r}: {fault.reason}"


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` in one line without control characters and halves of characters, at most `limit` long.

    >>> clean("a\\x1b[31m\\n  model")
    'a[31m model'
    """
    start = text[: 4 * limit]
    kept = "".join(" " if char.isspace() else char for char in start if char.isspace() or _printable(char))
    return " ".join(kept.split())[:limit].strip()


def _printable(char: str) -> bool:
    return not unicodedata.category(char).startswith("C")


def error_name(text: str) -> str:
    """The kind of error in a message or traceback, without its words: these may quote a prompt or a key.

    >>> error_name("Traceback ...\\naiohttp.ClientPayloadError: 400, prompt was 'secret'")
    'ClientPayloadError'
    """
    found = _ERROR_NAME.findall(text[-4000:])
    return found[-1] if found else "failed"


def scale_to_s(unit: str, where: str) -> float:
    """Seconds in one `unit`. Raises FileError for a unit that is not one of time."""
    try:
        return _SCALE_TO_S[unit]
    except KeyError:
        raise FileError(f"{where}: unit {clean(unit, 20)!r} is not one of time; expected ms") from None


def number(cell: str, where: str) -> float:
    """The number in a CSV cell. Raises FileError if it is none, not finite, negative or beyond measure."""
    try:
        value = float(cell)
    except ValueError:
        raise FileError(f"{where}: {clean(cell, 40)!r} is not a number") from None
    if not math.isfinite(value) or not 0 <= value <= LARGEST:
        raise FileError(f"{where}: {clean(cell, 40)} is not a possible value")
    return value


def iso_time(epoch_s: float) -> str:
    """The moment as ISO 8601 in UTC, empty where there is no such year."""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def iso_text(text: str) -> str:
    """A moment in ISO 8601 to the second, its time zone as it is; empty where `text` is none."""
    try:
        return datetime.fromisoformat(text).isoformat(timespec="seconds")
    except ValueError:
        return ""


def unique(header: Iterable[str], where: str) -> None:
    """Raises FileError if a column's name is there twice."""
    seen: set[str] = set()
    for column in header:
        if column in seen:
            raise FileError(f"{where}: column {clean(column, 60)!r} is there twice")
        seen.add(column)


def only(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are known."""
    return {name: value for name, value in values.items() if value is not None}
