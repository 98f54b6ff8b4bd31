"""The chart of a day holds every hour's GPUs and says what following the load saves."""

from __future__ import annotations

from sizing.analyses.daily import HOURS, Daily, Hour
from sizing.numbers import percent
from ui.charts.base import LIGHT
from ui.charts.fleet import gpus_over_day

COUNTS = [2 + hour % 5 for hour in range(HOURS)]
DAILY = Daily(tuple(Hour(hour, 1.5 * gpus, gpus, gpus) for hour, gpus in enumerate(COUNTS)), 7)


def test_every_hour_is_a_step_and_the_last_one_reaches_midnight() -> None:
    constant, steps = gpus_over_day(DAILY, LIGHT).figure.data
    assert list(steps.x) == list(range(HOURS + 1)) and list(steps.y) == [*COUNTS, COUNTS[-1]]
    assert steps.line.shape == "hv" and set(constant.y) == {7}


def test_the_words_say_what_is_saved() -> None:
    alt = gpus_over_day(DAILY, LIGHT).alt
    assert (
        f"{sum(COUNTS)} GPU-hours" in alt
        and f"{7 * HOURS}" in alt
        and f"{percent(1 - sum(COUNTS) / (7 * HOURS))}" in alt
    )
