"""The law's own error is told from the scatter of the misfits; equal lengths scatter by the phases of their users."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, Replica
from sizing.fitting import fit
from sizing.fitting.levels import RAMPED, Observed, phase_scatter
from sizing.fitting.parameters import EXACT, excess, law_error
from sizing.points import UNTOLD, Point
from sizing.workload import Lengths
from tests.sizing.test_fitting import GPU, SHORT, measure

sigmas = st.floats(0.001, 0.5)


@settings(deadline=None)  # the first example loads scipy.optimize
@given(st.lists(st.tuples(st.floats(-1, 1), sigmas), min_size=4, max_size=30), st.floats(0.1, 10))
def test_what_is_left_is_explained(pairs: list[tuple[float, float]], unit: float) -> None:
    """With the error found the mean squared misfit is 1, or it was below 1 without; in other units it is the same."""
    misfits, errors = np.array(pairs).T
    found = excess(misfits, errors)
    left = np.mean(misfits**2 / (errors**2 + found**2))
    assert left == pytest.approx(1, abs=0.25) if found > 1e-3 else left < 1.25
    assert found == 0 or np.mean(misfits**2 / errors**2) > 1
    assert excess(unit * misfits, unit * errors) == pytest.approx(unit * found, abs=2e-4 * (1 + unit))


def test_the_error_drawn_is_the_error_found() -> None:
    """2,000 figures with errors from 1 to 10 %, of a law that is 5 % off: within three standard errors of that."""
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.01, 0.1, 2000)
    misfits = np.hypot(errors, 0.05) * rng.standard_normal(2000)
    assert excess(misfits, errors) == pytest.approx(0.05, abs=0.005)
    assert excess(errors * rng.standard_normal(2000), errors) < 0.02


def test_kinds_of_figures_have_errors_of_their_own() -> None:
    misfits, errors = np.full((6, 8), np.nan), np.full((6, 8), 0.02)
    misfits[:, 2], misfits[:, 0] = 0.1, 0.01
    found = law_error(misfits, errors)
    assert found.itl == pytest.approx(np.sqrt(0.1**2 - 0.02**2), abs=1e-3)
    assert (found.requests_per_s, found.ttft) == (0, 0)
    assert law_error(misfits[:3], errors[:3]) == EXACT  # too few to tell


def uneven(points: list[Point]) -> list[Point]:
    """ITL 8 % off to either side in turn: no law of the family has that."""
    return [
        dataclasses.replace(point, itl_mean_s=(point.itl_mean_s or 0) * (1.08 if row % 2 else 0.92))
        for row, point in enumerate(points)
    ]


def test_a_law_that_is_off_says_so() -> None:
    points = measure(Replica(GPU), [dataclasses.replace(SHORT, isl_cv=0.4, osl_cv=0.6), Lengths(2000, 300, 0.4, 0.6)])
    known = Batching("chunked")
    sound, off = fit(points, batching=known), fit(uneven(points), batching=known)
    assert sound.law_error.itl < 0.02 < 0.04 < off.law_error.itl < 0.15
    assert off.leave_one_out > sound.leave_one_out
    assert off.chi2_per_point > 2  # the warning stays: it is judged by the errors of the measurement alone


def test_equal_lengths_scatter_by_the_phases_of_their_users() -> None:
    """64 users of equal requests on an engine that stops decodes for prompts meet in clumps that last: the means depend
    on how the users started. One user alone, and lengths that vary, know nothing of it."""
    replica = Replica(GPU, Batching("prefill_first"))
    alone, clumped = measure(replica, [SHORT], (1, 64))
    assert phase_scatter(alone, replica).max() < 1e-6
    assert phase_scatter(clumped, replica)[2] > 0.005
    together = dataclasses.replace(UNTOLD, start="together")
    wide, told = (Observed((clumped,), protocol=one).errors(replica, None)[0] for one in (RAMPED, together))
    assert wide[2] > told[2]
