"""Which users a sweep chooses among: engines are fastest for their batch at powers of two."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from calibration.plan import users_of
from sizing.candidates import from_fit
from sizing.engine import Batching, Bend, Replica, StepLaw
from sizing.fitting import fit
from sizing.points import Point
from sizing.simulator import simulate
from sizing.workload import Arrivals, Workload
from validation.evidence.server import Design, calibrate

MIX = (1000, 200)
LAW = StepLaw(0.004, 0.007, 45e-6, 50e-6, 53e-9, attention_s=5e-9, prefill_s=0.004, request_s=0.01)
HALVES = 2.0 ** (np.arange(17) / 2)


@given(some.integers(2, 2000))
def test_users_ascend_to_the_most_in_steps_below_twice(most: int) -> None:
    users = users_of(most)
    assert users[0] == 1 and users[-1] == most
    assert all(before < after <= 2 * before for before, after in itertools.pairwise(users))


def test_users_lie_all_over_between_powers_of_two() -> None:
    places = sorted(math.log2(user) % 1 for user in users_of(1000)[4:-1])
    gaps = np.diff([*places, places[0] + 1])
    assert max(gaps) < 2.5 / len(places)


def tiled(rng: np.random.Generator) -> Replica:
    """An engine whose decode steps are up to 30 % longer between powers of two, from 16 sequences on."""
    between = (np.arange(17) % 2 == 1) & (HALVES > 16)
    decode = between * rng.choice([0.1, 0.2, 0.3], size=17)
    bend = Bend(tuple(HALVES.tolist()), tuple(decode.tolist()), (0.0,) * 17)
    return Replica(replace(LAW, bend=bend), Batching("chunked", kv_tokens=400_000))


def itl_off(points: list[Point], truth_s: float, rate_per_s: float) -> float:
    """ln of the mean ITL at random arrivals by the law of `points` over the true one."""
    found = from_fit(fit(points), points[0].lengths)
    run = simulate(found.replica, Workload(points[0].lengths, rate_per_s, Arrivals()), requests=10_000)
    return math.log(float(np.nanmean(run.itl_s)) / truth_s)


def test_an_engine_with_tiles_is_flattered_by_powers_of_two() -> None:
    off: dict[str, list[float]] = {"powers": [], "users_of": []}
    for seed in range(4):
        engine = tiled(np.random.default_rng(seed))
        rate_per_s = (
            0.5 * calibrate(engine, Design((MIX,), (128,)), True, np.random.default_rng(seed))[0].requests_per_s
        )
        for name, levels in (("powers", (1, 2, 4, 8, 16, 32, 64, 128)), ("users_of", tuple(users_of(128)))):
            points = calibrate(engine, Design((MIX,), levels), True, np.random.default_rng(seed))
            workload = Workload(points[0].lengths, rate_per_s, Arrivals())
            truth_s = float(np.nanmean(simulate(engine, workload, requests=10_000).itl_s))
            off[name].append(itl_off(points, truth_s, rate_per_s))
    print({name: [f"{value:+.1%}" for value in values] for name, values in off.items()})
    assert np.mean(off["powers"]) < -0.04
    assert np.mean(np.abs(off["users_of"])) < 0.6 * np.mean(np.abs(off["powers"]))
