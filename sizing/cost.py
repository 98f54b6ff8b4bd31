"""What a fleet costs and draws: per hour, per month, per million tokens, per 1,000 requests."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.catalog import gpus as catalogued_gpus
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
    if price is None:
        return None
    per_hour = price * fleet.gpus
    return Cost(
        per_hour,
        per_hour / output_tokens_per_hour(question) * 1e6,
        per_hour / (question.mean_rate_per_s * 3600) * 1000,
    )


def energy_of(question: Question, fleet: Fleet) -> Energy | None:
    """What the fleet draws at most; None for a GPU whose power is not in the catalogue."""
    gpu = catalogued_gpus().get(fleet.candidate.gpu)
    if gpu is None or gpu.power_w is None:
        return None
    power_kw = gpu.power_w * fleet.gpus / 1000
    return Energy(power_kw, power_kw / output_tokens_per_hour(question) * 1e6)


def output_tokens_per_hour(question: Question) -> float:
    """Tokens generated in an hour at the mean load."""
    return question.mean_rate_per_s * question.workload.lengths.osl * 3600
