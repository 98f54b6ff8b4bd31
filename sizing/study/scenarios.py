"""The study file (YAML): a base question, axes to vary, and either every combination or a random sample of them.

    base:  {model: Qwen/Qwen3-32B, gpu: h200_sxm, precision: fp8, isl: 2000, osl: 256, itl: p95:30ms}
    axes:
      rate: [5, 20, 80]
      tp:   [1, 2]
      ttft: [p95:500ms, p95:2s]
    # or, in place of every combination:  sample: 1000, and then an axis may be {low: 200, high: 8000} (log-uniform)

Keys of `base` and `axes` are the options of ``python -m sizing plan``, written with underscores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sizing.candidates import Choice
from sizing.commands.options import tensor_parallel, words
from sizing.errors import ScenarioError
from sizing.faults import first_fault
from sizing.plan import Question
from sizing.workload import METRICS, Arrivals, Lengths, Limit, Routing, Sla, Workload
from sizing.yaml_file import read_yaml

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
MOST = 200_000
"""Scenarios of a study: so many take some seconds and 350 MB to be read, and days to be answered."""


class Scenario(BaseModel):
    """One question, in the words of the command line; `points`: a CSV file, relative to the study file."""

    model_config = STRICT

    model: str
    gpu: str = ""
    precision: str = "any"
    tp: int | str = "any"
    points: str = ""
    basis: Literal["measured", "any"] = "any"
    isl: float
    osl: float
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    rate: float
    arrivals: str = "poisson"
    routing: Routing = "random"
    ttft: str = ""
    itl: str = ""
    gap: str = ""
    e2e: str = ""
    headroom: float = 0.2
    spare: int = 1

    @property
    def question(self) -> Question:
        """The planner's question; raises ScenarioError for an impossible one."""
        lengths = Lengths(self.isl, self.osl, self.isl_cv, self.osl_cv)
        limits = {metric: Limit.parse(metric, text) for metric in METRICS if (text := getattr(self, metric))}
        workload = Workload(lengths, self.rate, Arrivals.parse(self.arrivals))
        return Question(self.model, workload, Sla(**limits), self.routing, self.headroom, self.spare)

    @property
    def choice(self) -> Choice:
        """What may be bought; raises ScenarioError for a TP that is no number."""
        return Choice(words(self.gpu), words(self.precision), tensor_parallel(str(self.tp)), self.basis)


COLUMNS: tuple[str, ...] = tuple(Scenario.model_fields)


class Range(BaseModel):
    """An axis of a random sample: log-uniform from `low` to `high`, rounded to three digits."""

    model_config = STRICT

    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _rises(self) -> Range:
        if self.high < self.low:
            raise ValueError(f"high ({self.high:g}) is below low ({self.low:g})")
        return self


Axis = list[str | int | float] | Range


class StudyFile(BaseModel):
    """The file as written: `sample` scenarios drawn with `seed`, or every combination where it is not given."""

    model_config = STRICT

    base: dict[str, str | int | float] = {}
    axes: dict[str, Axis] = Field(min_length=1)
    sample: int | None = Field(default=None, ge=1, le=MOST)
    seed: int = Field(default=0, ge=0)


def read_study(path: Path | str) -> list[Scenario]:
    """The scenarios of a study file, each checked. Raises ScenarioError naming the file and what is wrong in it."""
    try:
        file = StudyFile.model_validate(read_yaml(path, "study file"))
    except ValidationError as error:
        raise ScenarioError(f"{path}, {first_fault(error, 'the whole study')}") from None
    scenarios = []
    for place, values in enumerate(_combinations(file, str(path)), start=1):
        try:
            scenario = Scenario.model_validate(file.base | values)
            _ = scenario.question, scenario.choice
        except ValidationError as error:
            raise ScenarioError(f"{path}, scenario {place}, {first_fault(error)}") from None
        except ScenarioError as error:
            raise ScenarioError(f"{path}, scenario {place}: {error}") from None
        scenarios.append(scenario)
    return scenarios


def _combinations(file: StudyFile, name: str) -> Iterator[dict[str, Any]]:
    """Values of the axes, scenario by scenario."""
    for axis, values in file.axes.items():
        if values == []:
            raise ScenarioError(f"{name}: axis {axis!r} has no values; list one or more")
    if file.sample is not None:
        rng = np.random.default_rng(file.seed)
        for _ in range(file.sample):
            yield {axis: _drawn(values, rng) for axis, values in file.axes.items()}
        return
    listed = {axis: values for axis, values in file.axes.items() if isinstance(values, list)}
    for axis in file.axes:
        if axis not in listed:
            raise ScenarioError(f"{name}: axis {axis!r} is a range; give `sample: NUMBER`, or list its values")
    count = math.prod(map(len, listed.values()))
    if count > MOST:
        raise ScenarioError(f"{name}: the axes make {count:,} scenarios, more than {MOST:,}; give `sample: NUMBER`")
    yield from (dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values()))


def _drawn(axis: Axis, rng: np.random.Generator) -> str | int | float:
    if isinstance(axis, Range):
        return float(f"{math.exp(rng.uniform(math.log(axis.low), math.log(axis.high))):.3g}")
    return axis[int(rng.integers(len(axis)))]
