"""The day-zero law: step times and KV capacity from a database of kernel timings, a roofline where it has none."""

from sizing.estimate.day_zero import (
    ENGINES,
    KERNEL_SIGMA,
    DayZero,
    estimate,
    prior_law,
    timed_engines,
    token_share,
)

__all__ = ["ENGINES", "KERNEL_SIGMA", "DayZero", "estimate", "prior_law", "timed_engines", "token_share"]
