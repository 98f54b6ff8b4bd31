"""The `adaptive:` key of a plan: the question a sweep is to answer and the GPU-minutes it may take; light to import."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from calibration.plan_fields import ArrivalsText, Positive, Share, Strict
from sizing.errors import ScenarioError
from sizing.workload import METRICS, Arrivals, Lengths, Limit, Routing, Sla, Workload

Tokens = Annotated[float, Field(ge=1)]


class AdaptivePlan(Strict):
    """Measure of the grid only the levels that make the GPU count of one scenario sure, within `gpu_minutes`.

    The scenario: `rate` requests/s with these lengths (default: the first of the plan), under limits such as ``p95:1s``
    on `ttft`, `itl`, `gap` and `e2e`, at least one of them; the rest as in the question of a capacity plan. Sure enough
    is a 90 % band of the count no wider than `band` of it, or than one replica.
    """

    gpu_minutes: Positive
    rate: Positive
    band: Annotated[float, Field(gt=0, le=1)] = 0.2
    ttft: str | None = None
    itl: str | None = None
    gap: str | None = None
    e2e: str | None = None
    isl: Tokens | None = None
    osl: Tokens | None = None
    isl_cv: Share | None = None
    osl_cv: Share | None = None
    arrivals: ArrivalsText = "poisson"
    routing: Routing = "random"
    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.2
    spare: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _some_limit(self) -> AdaptivePlan:
        try:
            _ = self.sla
        except ScenarioError as error:
            raise ValueError(str(error).removeprefix("--")) from None
        return self

    @property
    def sla(self) -> Sla:
        """The limits that are set."""
        texts = {metric: getattr(self, metric) for metric in METRICS}
        return Sla(**{metric: Limit.parse(metric, text) for metric, text in texts.items() if text is not None})

    def workload(self, first: Lengths) -> Workload:
        """The load asked for; what the plan does not say of the lengths is taken from `first`."""
        named = {name: getattr(self, name) for name in ("isl", "osl", "isl_cv", "osl_cv")}
        given = {name: value for name, value in named.items() if value is not None}
        lengths = Lengths(**({name: getattr(first, name) for name in named} | given))
        return Workload(lengths, self.rate, Arrivals.parse(self.arrivals))

    def budget_s(self, gpus: int) -> float:
        """Seconds that an instance of `gpus` GPUs may be measured."""
        return self.gpu_minutes * 60 / gpus
