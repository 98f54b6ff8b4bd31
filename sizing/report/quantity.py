"""Numbers of a report with their unit and basis, and the bounds of what a report may hold.

Checked on creation and when read from outside: text that no file can hold, numbers that are not finite and endless
lists are refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

MOST_TEXT = 100_000
"""Characters of one text; writers cut it with an ellipsis where a layout needs it."""
MOST_ROWS = 2_000
"""Rows of one list: several times the configurations that a plan can compare."""

Unit = Literal[
    "GPUs",
    "replicas",
    "points",
    "percentile",
    "requests",
    "requests/s",
    "requests/s per GPU",
    "requests/s per replica",
    "output tokens/s",
    "tokens",
    "s",
    "share",
    "",
    "GPU-hours",
    "per GPU-hour",
    "per hour",
    "per day",
    "per month",
    "per million output tokens",
    "per 1,000 requests",
    "kW",
    "kWh per million output tokens",
]
Basis = Literal["given", "measured", "fitted", "extrapolated", "estimated", "what-if"]
"""Where a number comes from: "given" by whoever asked, else as in `sizing.plan.Basis`."""

T = TypeVar("T")


def encodable(value: Any) -> Any:
    """Text without lone surrogates (bytes of a command line that are no UTF-8): they become question marks."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(encodable), Field(max_length=MOST_TEXT)]
Rows = Annotated[tuple[T, ...], Field(max_length=MOST_ROWS)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=10**6)]
Percentile = Annotated[int, Field(ge=1, le=99)]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, config=STRICT)
class Quantity:
    """A number with its unit and basis; value None = there is none (the open end of a band, ITL of single tokens)."""

    value: float | None
    unit: Unit
    basis: Basis


@dataclass(frozen=True, slots=True, config=STRICT)
class Series:
    """Numbers of one unit and basis; None where there is none."""

    unit: Unit
    basis: Basis
    values: Rows[float | None]


def number(value: float | None, unit: Unit, basis: Basis) -> Quantity:
    """A quantity; what is infinite or no number is none."""
    return Quantity(value if value is not None and math.isfinite(value) else None, unit, basis)
