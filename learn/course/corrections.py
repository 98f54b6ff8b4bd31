"""Figures of the course that are wrong: its value, ours from the same measurements, and the reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from learn.course.cost import ServerPrice, per_token, tco
from learn.course.demand import per_second
from learn.lesson import Setting, run
from sizing.numbers import significant

TOKENS_PER_S, ASKED_TOKENS, MADE_TOKENS = 1858.85, 50, 58.47
"""Measured output tokens/s of one GPU; tokens asked for per request; tokens generated per request on average."""
WANTED_PER_S = 100
TTFT_MS = {50: 630, 100: 1024}
"""Measured mean TTFT by concurrency, against a limit of 1 s."""
AT_50_PER_S = 26.07
SERVER = ServerPrice(320_000, 4, 3_000, 4_500)
PER_SERVER_PER_S, PEAK_PER_S = 41.6, 200.0
CALLS, MINUTES, REQUESTS_PER_MINUTE, BUSY = 30e6, 10, 3, 7
ISL, OSL, OUT_OVER_IN = 2000, 200, 3


@dataclass(frozen=True, slots=True)
class Correction:
    """A figure of the course, our value, and why they differ."""

    what: str
    course: str
    ours: str
    why: str


def corrections() -> tuple[Correction, ...]:
    """The wrong figures, each recomputed from the measurements."""
    return tokens_for_requests(), concurrency_over_the_limit(), cost_of_another_fleet(), token_price(), median()


def tokens_for_requests() -> Correction:
    """Requests/s from tokens/s."""
    told, true = TOKENS_PER_S / ASKED_TOKENS, TOKENS_PER_S / MADE_TOKENS
    return Correction(
        f"GPUs for {WANTED_PER_S} requests/s, from {TOKENS_PER_S:,} tokens/s of one GPU",
        f"{significant(told, 4)} requests/s, {math.ceil(WANTED_PER_S / told)} GPUs",
        f"{significant(true, 4)} requests/s, {math.ceil(WANTED_PER_S / true)} GPUs",
        f"Requests asked for {ASKED_TOKENS} tokens and got {MADE_TOKENS}: divide by what was generated, or better, "
        "count completed requests.",
    )


def concurrency_over_the_limit() -> Correction:
    """The largest concurrency within a limit on TTFT."""
    within = max(users for users, ttft_ms in TTFT_MS.items() if ttft_ms <= 1000)
    return Correction(
        "Concurrency that keeps a mean TTFT of 1 s",
        f"100 ({TTFT_MS[100]:,} ms)",
        f"{within} ({TTFT_MS[within]} ms), {AT_50_PER_S} requests/s: {math.ceil(WANTED_PER_S / AT_50_PER_S)} GPUs "
        f"for {WANTED_PER_S} requests/s",
        f"{TTFT_MS[100]:,} ms is over the limit; a point that misses it by a little still misses it.",
    )


def cost_of_another_fleet() -> Correction:
    """Cost per 1,000 requests of the whole system over the requests of the whole system."""
    servers, mean_per_s = PEAK_PER_S / PER_SERVER_PER_S, per_second(CALLS * MINUTES * REQUESTS_PER_MINUTE)
    told = tco(servers, SERVER, PER_SERVER_PER_S, mean_per_s)
    true = tco(servers, SERVER, PEAK_PER_S, mean_per_s)
    whole = tco(math.ceil(servers), SERVER, PEAK_PER_S, mean_per_s)
    return Correction(
        f"Dollars per 1,000 requests of {significant(servers, 2)} servers",
        significant(told.per_1000_at_peak),
        f"{significant(true.per_1000_at_peak)} if every second were as busy as the peak, "
        f"{significant(true.per_1000_at_mean)} at the average load ({significant(whole.per_1000_at_mean)} with "
        f"{math.ceil(servers)} whole servers)",
        "The cost of all servers was divided by the requests of one of them; and a fleet bought for the peak is paid "
        "for all day, so the average load is what to divide by.",
    )


def token_price() -> Correction:
    """The same mistake in dollars per million tokens."""
    servers = PEAK_PER_S / PER_SERVER_PER_S
    told = per_token(tco(servers, SERVER, PER_SERVER_PER_S, PEAK_PER_S).per_1000_at_peak, ISL, OSL, OUT_OVER_IN)
    true = per_token(tco(servers, SERVER, PEAK_PER_S, PEAK_PER_S).per_1000_at_peak, ISL, OSL, OUT_OVER_IN)
    return Correction(
        "Dollars per million tokens, in and out, at full load",
        " and ".join(f"{price:.2f}" for price in told),
        " and ".join(f"{price:.3f}" for price in true),
        "Follows from the cost per 1,000 requests.",
    )


def median() -> Correction:
    """The median E2E of the first run of the lesson."""
    latencies = [mark.latency_ticks for mark in run(Setting()).last]
    return Correction(
        "Median E2E of the first simulated run, in ticks",
        f"{float(np.percentile(latencies, 0.5)):.2f}",
        f"{float(np.percentile(latencies, 50)):.1f}",
        "The 0.5th percentile was taken for the 50th.",
    )


LIMITS_OF_THE_METHOD = (
    "**Means, not percentiles.** Half of the requests may be slower than the mean. A limit meant for 95 of 100 users "
    "needs a percentile.",
    "**Users who wait for each other.** In a closed loop a slow server gets fewer requests; real users keep coming. "
    "On the other hand, users whose answers are equally long send their next prompts together, and those prompts "
    "queue: a closed loop can show a longer TTFT than the same load at random.",
    "**Only measured levels.** One of the measured concurrencies has to be chosen, though between 10 and 25 lies a "
    "fleet of another size. A fitted law fills the gap.",
    "**Nothing spare.** A fleet sized to 100 % of its best point has no room for a failure, an update, or a burst.",
    "**A peak of single seconds.** The 95th percentile of a Poisson distribution covers the randomness of single "
    "seconds, not the busy hours of a day; our planner simulates those arrivals, so give it the mean of the busiest "
    "hour.",
)
"""Why the two answers differ, in markdown."""
