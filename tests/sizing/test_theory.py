"""The simulator against systems with exact answers; `python -m sizing validate` runs all of them, and longer.

Each is simulated 12 times with independent seeds: within 4 standard errors of theory, these below 3 %.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import SeedSequence

from sizing.demand_model import Mmpp
from validation.evidence.systems import SYSTEMS, erlang_c, m_m_c_k, m_m_c_patience, mmpp_m_1_number, take_all_e2e_s
from validation.evidence.theory import Case, agreements, answer, rows

CALM = [place for place, system in enumerate(SYSTEMS) if system.weight <= 4]


@pytest.mark.parametrize("place", CALM, ids=lambda place: SYSTEMS[place].name)
def test_the_simulator_agrees_with_theory(place: int) -> None:
    cases = [Case(place, 40_000, True)] * max(2, SYSTEMS[place].weight)
    found = agreements(cases, [answer(case, SeedSequence(2024, spawn_key=(place, k))) for k, case in enumerate(cases)])
    assert found[0].z < 4
    assert found[0].error < 0.03


def test_there_are_25_systems_of_different_names() -> None:
    assert len({system.name for system in SYSTEMS}) == len(SYSTEMS) >= 25


def test_a_simulator_that_is_wrong_is_found_out() -> None:
    """Runs that are 5 % off, with 1 % of noise, do not pass; runs that are right do."""
    rng = np.random.default_rng(0)
    cases = [Case(0, 40_000, True)] * 4
    for wrong, holds in ((1.0, True), (1.05, False), (0.95, False)):
        answers = [list(SYSTEMS[0].exact * wrong * (1 + 0.01 * rng.standard_normal(6))) for _ in cases]
        assert rows(cases, answers)[0].holds is holds


def test_noise_does_not_pass_for_agreement() -> None:
    """A mean that is right within errors of 30 % proves nothing."""
    rng = np.random.default_rng(0)
    cases = [Case(0, 40_000, True)] * 4
    answers = [list(SYSTEMS[0].exact * (1 + rng.standard_normal(6))) for _ in cases]
    assert agreements(cases, answers)[0].z < 4
    assert rows(cases, answers)[0].holds is False


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_take_all_batches_agree_with_inoue(load: float) -> None:
    """His closed form (2021, arXiv 1912.06322) is an approximation, within 1.2 % by his own account."""
    fixed_s, each_s = 1.0, 0.1
    rate = load / each_s
    closed_s = 1.5 * fixed_s / (1 - load) + each_s / 2 * (load + 2) / (1 - load**2)
    assert take_all_e2e_s(rate, fixed_s, each_s) == pytest.approx(closed_s, rel=0.02)


def test_take_all_batches_without_load_or_batching_cost() -> None:
    """Alone: one service. With no cost per member: a Poisson number waits half of a service and is served in one."""
    assert take_all_e2e_s(1e-6, 1.0, 0.1) == pytest.approx(1.1, rel=1e-4)
    assert take_all_e2e_s(50.0, 1.0, 0.0) == pytest.approx(1.5, rel=1e-3)


def test_erlang_c_of_one_server_is_its_load() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)


def test_arrivals_of_one_rate_are_poisson() -> None:
    """Two states of one rate: M/M/1 has load / (1 - load) in it; states that change at once are as good as one."""
    assert mmpp_m_1_number(Mmpp(1.0, 3.0, 2.0), 0.7) == pytest.approx(0.7 / 0.3)
    assert mmpp_m_1_number(Mmpp(0.2, 3e-3, 2e-3), 0.7) == pytest.approx(0.7 / 0.3, rel=5e-3)
    assert mmpp_m_1_number(Mmpp(0.2, 30.0, 20.0), 0.7) > 2 * 0.7 / 0.3


def test_endless_patience_is_none() -> None:
    """Who waits for minutes does not leave an M/M/8 at 0.8: the wait of Erlang C; who has none sees Erlang B."""
    lost, wait = m_m_c_patience(8, 0.8, 300.0)
    assert lost.exact < 1e-12
    assert wait.exact == pytest.approx(erlang_c(8, 6.4) / (8 * 0.2))
    blocked, _ = m_m_c_k(8, 8, 0.8)
    assert m_m_c_patience(8, 0.8, 1e-9)[0].exact == pytest.approx(blocked.exact)
