"""The band of a capacity: by steps from the middle law as by a whole response of every law, and what it never does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sizing.candidates import from_fit
from sizing.edge import (
    MONTE_CARLO_SIGMA,
    SlaMissed,
    analytic_capacity_per_s,
    capacity_band,
    latency_band,
    predict_at,
)
from sizing.engine import Replica
from sizing.fitting import fit
from sizing.plans import Candidate
from sizing.question import Setting
from sizing.queueing import stable_rate_per_s
from sizing.stats import Z90
from sizing.workload import Lengths, Limit, Sla, Workload
from validation.evidence.server import CONTRASTING, LAW, POLICIES, calibrate

SERVER = Replica(LAW, POLICIES[1])


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    points = calibrate(SERVER, CONTRASTING, False, np.random.default_rng(1))
    return from_fit(fit(points, batching=SERVER.batching), Lengths(2000, 256))


def setting(lengths: Lengths, ttft_s: float, itl_s: float) -> Setting:
    return Setting(Workload(lengths, 1.0), Sla(Limit("ttft", 95, ttft_s), Limit("itl", 95, itl_s)), "random")


@pytest.mark.parametrize(
    ("lengths", "ttft_s", "itl_s"),
    [(Lengths(2000, 256), 0.3, 0.02), (Lengths(400, 600, 0.5, 0.8), 0.2, 0.014), (Lengths(128, 128), 0.1, 0.03)],
)
def test_steps_find_what_whole_responses_find(
    candidate: Candidate, lengths: Lengths, ttft_s: float, itl_s: float
) -> None:
    asked = setting(lengths, ttft_s, itl_s)
    changes = [
        math.log(analytic_capacity_per_s(one, asked) / analytic_capacity_per_s(other, asked)) / 2
        for one, other in candidate.variants
    ]
    low, high = capacity_band(candidate, asked)
    assert math.log(high) == pytest.approx(Z90 * math.hypot(MONTE_CARLO_SIGMA, *changes), rel=0.15)
    assert low * high == pytest.approx(1)


@pytest.mark.parametrize("slack", [1.8, 2.5])
def test_a_limit_on_p95_ttft_is_as_unsure_as_that_percentile_is_beside_the_law(
    candidate: Candidate, slack: float
) -> None:
    """As if the limit were 6 % tighter or looser: where TTFT hardly rises with the load, that is most of the band."""
    law = candidate.replica.law
    ttft_s = slack * (law.prefill_alone_s(1000) + law.request_s)

    def asked(by: float = 0.0) -> Setting:
        limit = Limit("ttft", 95, ttft_s * math.exp(by))
        return Setting(Workload(Lengths(1000, 200), 1.0), Sla(limit), "random")

    changes = [
        math.log(analytic_capacity_per_s(one, asked()) / analytic_capacity_per_s(other, asked())) / 2
        for one, other in candidate.variants
    ]
    looser, tighter = (analytic_capacity_per_s(candidate.replica, asked(by)) for by in (0.06, -0.06))
    by_tail = math.log(looser / tighter) / 2
    low, high = capacity_band(candidate, asked())
    expected = Z90 * math.hypot(MONTE_CARLO_SIGMA, by_tail, *changes)
    assert math.log(high) == pytest.approx(expected, rel=0.15) and low * high == pytest.approx(1)
    assert by_tail > 0.7 * math.hypot(MONTE_CARLO_SIGMA, *changes), "else the test shows nothing"
    down, up = latency_band(candidate, asked(), 0.5 * looser)(asked().sla.limits[0])
    assert down < math.exp(-Z90 * 0.06) and up > math.exp(Z90 * 0.06)
    down, up = latency_band(candidate, asked(), 0.5 * looser)(Limit("ttft", 50, ttft_s))
    assert up < math.exp(Z90 * 0.06), "a median is surer"


@pytest.mark.parametrize("slack", [30, 100])
def test_near_saturation_steps_find_the_capacity_of_every_law(candidate: Candidate, slack: float) -> None:
    """A limit on TTFT of so many times the idle one: to 1 % what bisection of the percentile itself finds."""
    law = candidate.replica.law
    asked = setting(Lengths(64, 32), slack * (law.prefill_alone_s(64) + law.request_s), 1.0)
    changes = [
        math.log(bisected_per_s(one, asked) / bisected_per_s(other, asked)) / 2 for one, other in candidate.variants
    ]
    _, high = capacity_band(candidate, asked)
    assert math.log(high) == pytest.approx(Z90 * math.hypot(MONTE_CARLO_SIGMA, *changes), rel=0.01)


def bisected_per_s(replica: Replica, asked: Setting) -> float:
    """The rate at which the first limit is reached, to 1e-4."""
    high = stable_rate_per_s(replica, asked.workload.lengths)
    low = 0.5 * high
    while high > (1 + 1e-4) * low:
        middle = math.sqrt(low * high)
        met = predict_at(replica, asked, middle).meets(asked.sla)
        low, high = (middle, high) if met else (low, middle)
    return low


def test_a_law_that_may_miss_the_sla_alone_widens_the_band_without_end(candidate: Candidate) -> None:
    """A limit just above the idle latency of the middle law, whose p95 keeps it; the slow laws do not."""
    law = candidate.replica.law
    idle_s = law.prefill_alone_s(2000) + law.request_s
    tight = setting(Lengths(2000, 256), 1.1 * idle_s, 1.0)
    with pytest.raises(SlaMissed):
        for pair in candidate.variants:
            for replica in pair:
                analytic_capacity_per_s(replica, tight)
    low, high = capacity_band(candidate, tight)
    assert low < 0.2 and high > 5
