"""What the parts of a plan share: strictness, and the types of its numbers and texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sizing.errors import ScenarioError
from sizing.workload import Arrivals


def _known_arrivals(text: str) -> str:
    if not text.startswith(("poisson", "constant", "gamma")):
        raise ValueError(f"arrivals {text!r}: use poisson, constant or gamma:cv=NUMBER (for instance gamma:cv=2)")
    try:
        Arrivals.parse(text)
    except ScenarioError as error:
        raise ValueError(str(error)) from None
    return text


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
ArrivalsText = Annotated[str, AfterValidator(_known_arrivals)]
"""The law of the gaps between requests: ``poisson``, ``constant`` or ``gamma:cv=2``."""


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
