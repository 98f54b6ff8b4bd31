"""What a fleet costs and draws: per hour, per month, per million tokens, per 1,000 requests."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.catalog import gpus as catalogued_gpus
from sizing.numbers import significant
from sizing.plan import Fleet, Question

HOURS_A_MONTH = 730.0
"""Hours of a year over 12."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Price of the whole fleet, spares included, in the currency of the GPU-hour.

    The shares per token and per request are at the mean load: a fleet bought for a peak is paid for all day.
    """

    per_hour: float
    per_million_output_tokens: float
    per_1000_requests: float

    @property
    def per_month(self) -> float:
        """Price of 730 hours."""
        return self.per_hour * HOURS_A_MONTH

    @property
    def sentence(self) -> str:
        """The four figures in words."""
        return (
            f"{significant(self.per_hour)} per hour, {significant(self.per_month)} per month, "
            f"{significant(self.per_million_output_tokens)} per million output tokens, "
            f"{significant(self.per_1000_requests)} per 1,000 requests"
        )


@dataclass(frozen=True, slots=True)
class Energy:
    """Upper bounds on what the fleet's GPUs draw: every one, spares too, at its thermal design power.

    Without servers' fans, processors and the cooling of the hall.
    """

    power_kw: float
    kwh_per_million_output_tokens: float


def cost_of(question: Question, fleet: Fleet) -> Cost | None:
    """What the fleet costs; None without a price for its GPU.

    The arithmetic: 12 GPUs at 2.50 an hour are 30 an hour; at 20 requests/s of 250 output tokens that is 18 million
    tokens an hour, so 1.67 per million.
    """
    price = question.price_of(fleet.candidate.gpu)
    tokens_per_s = question.mean_rate_per_s * question.workload.lengths.osl
    return None if price is None else cost_at(price * fleet.gpus, question.mean_rate_per_s, tokens_per_s)


def cost_at(per_hour: float, requests_per_s: float, output_tokens_per_s: float) -> Cost:
    """The cost of a fleet that costs so much an hour and serves so much on average."""
    return Cost(per_hour, per_hour / (output_tokens_per_s * 3600) * 1e6, per_hour / (requests_per_s * 3600) * 1000)


def energy_of(question: Question, fleet: Fleet) -> Energy | None:
    """What the fleet draws at most; None for a GPU whose power is not in the catalogue."""
    gpu = catalogued_gpus().get(fleet.candidate.gpu)
    if gpu is None or gpu.power_w is None:
        return None
    power_kw = gpu.power_w * fleet.gpus / 1000
    tokens_per_hour = question.mean_rate_per_s * question.workload.lengths.osl * 3600
    return Energy(power_kw, power_kw / tokens_per_hour * 1e6)


def cost_json(cost: Cost) -> dict[str, float]:
    """The keys of JSON answers."""
    return {
        "cost_per_hour": cost.per_hour,
        "cost_per_month": cost.per_month,
        "cost_per_million_output_tokens": cost.per_million_output_tokens,
        "cost_per_1000_requests": cost.per_1000_requests,
    }
