"""Laws that bend with the batch: what a bend is, when a fit takes one, at which lengths it answers, and its band."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from sizing import catalog
from sizing.engine import BEND_KNOTS, BEND_REACH, COEFFICIENTS, Batching, Bend, Policy, Replica
from sizing.estimate import prior_law
from sizing.estimate.day_zero import attention_share
from sizing.fitting import Fit, Protocol, fit
from sizing.fitting.bends import REACH, bent_further, nodes_of, open_bends
from sizing.fitting.carried import (
    CHANGES,
    as_little_counts,
    carried_over,
    closed_sigmas,
    left_over,
    line_logs,
    luck_ratio,
    share_beyond_luck,
    surprises,
    ttft_outside,
)
from sizing.fitting.fit import FROM_SHAPE, _elsewhere
from sizing.fitting.levels import (
    CLOSED_SIGMA,
    CLOSED_TTFT_SIGMA,
    ITL_SIGMA,
    Observed,
    concurrency,
    counted_apart,
    counts_otherwise,
    decoding,
    little_per_s,
    luck_of_lengths,
    point_runs,
)
from sizing.fitting.parameters import BEND_SD, EXACT, PROMPT_BEND_SD, LawError, bend_of, law_parameters, moved
from sizing.fitting.result import Variants
from sizing.fitting.search import (
    BUDGET_PRICE,
    CHUNK_PRICE,
    POLICY_PRICE,
    Known,
    Trial,
    guess,
    law_of_points,
)
from sizing.numbers import Floats
from sizing.points import UNTOLD, Point
from sizing.queueing import predict
from sizing.simulator import simulate
from sizing.simulator.replay import Replay
from sizing.workload import Lengths, Workload
from tests.sizing.test_fitting import GPU, SHORT, measure

fit_module = importlib.import_module("sizing.fitting.fit")  # the package has the function under this name
LEVELS = (1, 4, 8, 16, 32, 64, 128)
KINK = Bend((1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0), decode=(0.0, 0.2) * 3 + (0.0,), prompt=(0.0,) * 7)
"""Kernels that suit some batches: decode steps 22 % longer at every other level, which no smooth law follows, and at
too many for them to pass for outliers."""
VARIED, EQUAL = dataclasses.replace(SHORT, isl_cv=0.4, osl_cv=0.4), dataclasses.replace(SHORT, isl_cv=0.0, osl_cv=0.0)
"""The first with luck in its levels, the second without."""

batches = (
    st.lists(st.floats(1, 2000), min_size=1, max_size=6, unique=True)
    .map(sorted)
    .filter(lambda found: all(later / earlier > 1.1 for earlier, later in pairwise(found)))
)
logs = st.floats(-0.5, 0.5)


@given(batches, logs)
def test_a_bend_holds_its_values_and_fades_far_away(at: list[float], value: float) -> None:
    """On a knot the value of a node on it comes back exactly; nothing is larger; far away it is e^-d."""
    bend = Bend(tuple(at), (value,) * len(at), (0.0,) * len(at))
    decode, prompt = bend.tables
    assert np.abs(decode).max() <= abs(value) * (1 + 1e-9)
    assert not prompt.any()
    one = Bend((1.0,), (value,), (0.0,)).tables[0]
    assert one[0] == pytest.approx(value)
    assert one[-1] == pytest.approx(value * math.exp(-math.log(2048) / math.log(4)))


@given(batches, st.integers(0, 2**31))
def test_whitened_numbers_have_the_covariance_of_the_process(at: list[float], seed: int) -> None:
    """Coloured by the root, unit vectors span sd^2 exp(-|ln n - ln n'| / ln 4)."""
    columns = [bend_of(tuple(at), np.eye(2 * len(at))[place]).decode for place in range(len(at))]
    covariance = np.array(columns).T @ np.array(columns)
    distance = np.abs(np.subtract.outer(np.log(at), np.log(at)))
    assert covariance == pytest.approx(0.10**2 * np.exp(-distance / math.log(4)), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.3, 0.9))
def test_formula_and_simulation_bend_alike(load: float) -> None:
    """An engine whose every iteration is 30 % longer, at a load 30 % lower, takes 30 % longer: both say so."""
    knots = tuple(float(2**octave) for octave in range(12))
    always = (math.log(1.3),) * len(knots)
    bent = Replica(GPU.with_values(request_s=0.0))
    slower = dataclasses.replace(bent, law=dataclasses.replace(bent.law, bend=Bend(knots, always, always)))
    rate = 20 * load
    plain = predict(bent, Workload(VARIED, rate))
    stretched = predict(slower, Workload(VARIED, rate / 1.3))
    for metric in ("ttft", "itl", "e2e"):
        assert stretched.of(metric).p95_s == pytest.approx(1.3 * plain.of(metric).p95_s, rel=0.01)
    ran = [
        simulate(replica, Workload(VARIED, per_s), requests=3000, seed=1)
        for replica, per_s in ((bent, rate), (slower, rate / 1.3))
    ]
    assert np.asarray(ran[1].e2e_s).mean() == pytest.approx(1.3 * np.asarray(ran[0].e2e_s).mean(), rel=0.01)


@cache
def kinked(lengths: Lengths = VARIED) -> tuple[Fit, list[Point]]:
    """The fit of an engine with a kink and levels near those measured that it has not seen."""
    engine = Replica(dataclasses.replace(GPU, bend=KINK))
    seen = fit(measure(engine, [lengths], LEVELS, noise=0.005), protocol=Protocol("ramp"), batching=Batching())
    return seen, measure(engine, [lengths], (5, 15, 35, 60), noise=0.0)


def test_a_kink_is_found_and_predicts_better_than_the_law_alone() -> None:
    found, unseen = kinked()
    assert len(found.bent) == 1
    decode = dict(zip(found.bent[0].law.bend.sequences, found.bent[0].law.bend.decode, strict=True))
    assert max(decode.values()) - min(decode.values()) > 0.05
    straight = dataclasses.replace(found, bent=())
    errors = [
        np.abs(np.log(one.engine_means(unseen)[:, 2] / [point.itl_mean_s for point in unseen])).mean()
        for one in (found, straight)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_an_engine_that_follows_the_law_is_not_bent() -> None:
    """Noise of 2 % asks for no bend: three seeds."""
    for seed in (1, 2, 3):
        assert fit(measure(Replica(GPU), [VARIED], LEVELS, seed=seed), protocol=Protocol("ramp")).bent == ()


def test_bends_answer_at_their_lengths_and_fade_at_others() -> None:
    found, _ = kinked()
    bent = found.bent[0]
    assert found.at(VARIED.isl, VARIED.osl).law == bent.law == found.replica.law
    assert found.at(2 * VARIED.isl * 1.001, VARIED.osl).law == found.law
    halfway = found.at(VARIED.isl * math.exp(REACH / 2), VARIED.osl).law
    for own, common, between in zip(bent.law.seconds, found.law.seconds, halfway.seconds, strict=True):
        assert between == pytest.approx(math.sqrt(own * common))
    assert halfway.bend.decode == pytest.approx([value / 2 for value in bent.law.bend.decode])


def test_lengths_whose_laws_agree_are_surer_than_lengths_whose_laws_differ() -> None:
    """Three mixes of one engine; and of three that are 0.75, 1 and 1.33 times as fast, which no law of all explains."""
    mixes = [dataclasses.replace(VARIED, isl=factor * VARIED.isl) for factor in (1, 3, 9)]

    def sigmas(speeds: tuple[float, ...]) -> np.ndarray:
        law = dataclasses.replace(GPU, bend=KINK)
        engines = [Replica(law.scaled(speed)) for speed in speeds]
        pairs = zip(engines, mixes, strict=True)
        points = [point for engine, mix in pairs for point in measure(engine, [mix], LEVELS, noise=0.005)]
        bent = fit(points, protocol=Protocol("ramp"), batching=Batching()).bent
        return np.mean([np.sqrt(np.diag(one.covariance)[:8]) for one in bent], axis=0)

    alike, apart = sigmas((1, 1, 1)), sigmas((0.75, 1, 1.33))
    assert np.median(alike / apart) < 0.9


@pytest.mark.parametrize("at_random", [True, False])
@pytest.mark.parametrize("lengths", [VARIED, Lengths(2 * VARIED.isl, VARIED.osl / 2), Lengths(8 * VARIED.isl, 10)])
def test_the_few_variants_of_an_answer_vary_what_requests_see_as_all_do(lengths: Lengths, at_random: bool) -> None:
    """ITL and the time of an iteration with a prompt, and the TTFT of an idle server: standard errors within 3 % of
    those of all variants, which are more (5 % of the variance). Of batches as they are when requests arrive at random,
    Poisson variables, with means between those that the choice looks at; and of given ones."""
    found, _ = kinked()
    local, means = found.at(lengths.isl, lengths.osl), (3, 20, 90)
    few = local.variants_seen(lengths, None if at_random else np.array(means, float)[:, None])
    assert 0 < len(few) < len(local.variants)

    def seen(engine: Replica) -> list[float]:
        law, isl, context = engine.law, lengths.isl, lengths.isl + lengths.osl / 2
        alone_s = [law.request_s + law.prefill_alone_s(isl)]
        if not at_random:
            steps_s = [law.decode_s(batch, batch * context) for batch in means]
            return alone_s + steps_s + [law.mixed_s(batch, batch * context, isl, isl * isl / 2) for batch in means]
        batches = np.arange(1, 200)
        shares = [poisson.pmf(batches, mean) / poisson.pmf(batches, mean).sum() for mean in means]
        steps_s = law.decodes_s(batches, batches * context)
        mixes_s = law.mixes_s(batches, batches * context, isl, isl * isl / 2)
        return alone_s + [float(share @ times_s) for times_s in (steps_s, mixes_s) for share in shares]

    def spread(pairs: Variants) -> np.ndarray:
        logs = np.log([[seen(engine) for engine in pair] for pair in pairs])
        return np.sqrt(np.sum((logs[:, 1] - logs[:, 0]) ** 2 / 4, axis=0))

    assert spread(few) == pytest.approx(spread(local.variants), rel=0.03)


def test_variants_hold_the_bend_and_the_error_of_the_law() -> None:
    """Each pair is the faster engine and the slower; together they say more than the eight coefficients' scatter."""
    found, unseen = kinked()
    pairs = found.variants
    assert len(pairs) > 8 + 2 * len(nodes_of([error.point for error in found.errors]))

    def spread(batch: int) -> float:
        logs = [[math.log(engine.law.decode_s(batch, 150 * batch)) for engine in pair] for pair in pairs]
        return math.sqrt(sum((slower - faster) ** 2 / 4 for faster, slower in logs))

    assert spread(32) < spread(600)  # measured at 32, and not at all beyond 128
    sigmas = found.mean_sigmas(unseen)
    assert (sigmas[:, [0, 2]] >= 0.02).all()  # no surer than a measurement is
    wider = dataclasses.replace(found, elsewhere=0.2).mean_sigmas(
        [dataclasses.replace(point, isl=4 * point.isl) for point in unseen]
    )
    assert (wider[:, 2] > sigmas[:, 2]).all()


@given(error=st.floats(0.01, 0.8), isl=st.floats(16, 20_000))
def test_what_a_law_misses_of_ttft_alone_is_no_error_of_its_iterations(error: float, isl: float) -> None:
    """Two engines whose prompts alone differ by twice the error, as a share of what they take; their steps do not."""
    found = kinked()[0].at(SHORT.isl, SHORT.osl)
    exact, off = (dataclasses.replace(found, law_error=LawError(ttft=ttft))._beside(isl) for ttft in (0.0, error))
    ((sooner, later),) = off
    assert not exact
    assert sooner.law.decode_s(16, 4000) == later.law.decode_s(16, 4000)
    apart_s = (
        later.law.prefill_alone_s(isl) + later.law.request_s - sooner.law.prefill_alone_s(isl) - sooner.law.request_s
    )
    assert apart_s == pytest.approx(2 * error * found.law.prefill_alone_s(isl))


def test_bends_at_all_lengths_tell_one_size() -> None:
    """One engine: what is open of its bend at one pair of lengths is as large as at another."""
    engine = Replica(dataclasses.replace(GPU, bend=KINK))
    long = dataclasses.replace(VARIED, isl=8 * VARIED.isl)
    one, other = (
        fit(measure(engine, lengths, LEVELS, noise=0.005), protocol=Protocol("ramp"), batching=Batching()).bent
        for lengths in ([VARIED], [VARIED, long])
    )
    assert [len(one), len(other)] == [1, 2]
    assert other[0].open_sizes == other[1].open_sizes


@pytest.mark.parametrize("unread_decay", [0.0, 0.9])
def test_bands_of_an_moe_model_have_the_scatter_of_its_kind(
    unread_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = kinked(EQUAL)
    told: list[bool] = []

    def noted(*asked: Any, seen: Floats, has_experts: bool) -> tuple[float, float, float]:
        told.append(has_experts)
        return closed_sigmas(*asked, seen=seen, has_experts=has_experts)

    monkeypatch.setattr("sizing.fitting.result.closed_sigmas", noted)
    law = dataclasses.replace(found.law, unread=0.5, unread_decay=unread_decay)
    dataclasses.replace(found, law=law).mean_sigmas([found.errors[0].point])
    assert told == [unread_decay > 0]


def test_what_was_measured_holds_the_answer_fast() -> None:
    """At a level of the fit whose requests are equal the coefficients may be what they like: of the band only the noise
    of a measurement and what of the law's error changes from level to level is left. Between levels there is more,
    beyond them far more."""
    found, _ = kinked(EQUAL)
    levels = [error.point for error in found.errors]
    users = sorted(concurrency(level) for level in levels)
    error = found.at(levels[0].isl, levels[0].osl).law_error
    between, beyond = (dataclasses.replace(levels[0], load_value=value) for value in (users[1] + 1, 8 * users[-1]))
    held, unheld, far = found.mean_sigmas([levels[0], between, beyond])
    parts = closed_sigmas(levels, found.protocol, levels[0]), CHANGES * error.by_measure[:3]
    noise = np.sqrt(sum(np.square(part) for part in parts))
    assert held == pytest.approx(noise, rel=1e-6)
    assert (unheld[[0, 2]] >= held[[0, 2]]).all() and (far > 1.5 * unheld).all()
    assert found.means(levels)[:, [0, 2]] == pytest.approx(
        np.array([(level.requests_per_s, level.itl_mean_s) for level in levels]), rel=1e-6
    )


@given(st.floats(0, 0.3), st.floats(0, 0.3))
def test_the_error_elsewhere_grows_with_that_at_the_levels(one: float, other: float) -> None:
    """Without a step: a law that is half a per cent off at a level is not 20 % off at other lengths."""
    small, large = sorted((one, other))
    nothing = Known((), None, kv_known=True)
    errors = [_elsewhere(nothing, LawError(0.0, 0.0, error, 0.0), [level(1)]) for error in (small, large)]
    assert errors[0] <= errors[1] <= FROM_SHAPE
    assert _elsewhere(nothing, LawError(0.0, 0.0, small / 100, 0.0), [level(1)]) <= 4 * small / 100


def test_levels_of_one_isl_leave_the_law_more_open_at_other_lengths() -> None:
    """Where kernels were timed; of a single load level nothing else is told either, which its own error knows."""
    timed, one_isl = Known((), GPU, kv_known=True), [level(1), level(8)]
    others = [level(1), dataclasses.replace(level(8), isl=4000)]
    assert _elsewhere(timed, EXACT, one_isl) == 2 * _elsewhere(timed, EXACT, others)
    assert _elsewhere(timed, EXACT, [level(8)]) == _elsewhere(timed, EXACT, others)
    asked = dataclasses.replace(level(8), isl=16_000)
    for experts in (True, False):
        wide, narrow = (closed_sigmas(each, UNTOLD, asked, has_experts=experts)[1] for each in (one_isl, others))
        assert wide > narrow


@pytest.mark.parametrize(
    ("users", "unread", "queued"),
    [((8, 64), 0.0, False), ((1, 8, 64), 0.0, True), ((8, 64), 0.7, True)],
    ids=["dense", "a user alone", "MoE"],
)
def test_the_first_guess_takes_no_queue_of_prompts_for_the_time_of_a_request(
    users: tuple[int, ...], unread: float, queued: bool
) -> None:
    """TTFT of the fewest users, if a user alone was not measured, is what timed kernels of a dense model say at most:
    whether all began at once, so that it is ten times as long, then makes no difference to where the search starts."""
    prior = GPU.with_values(unread=unread, unread_decay=0.9 if unread else 0.0)
    short, long = ([level(each, ttft_s=ttft_s) for each in users] for ttft_s in (1.0, 10.0))
    request = COEFFICIENTS.index("request_s")
    starts = [guess(points, prior)[0][request] for points in (short, long)]
    assert (starts[1] > starts[0] + 1) == queued
    assert queued or starts[0] == starts[1] == pytest.approx(guess(short, prior.scaled(0.5))[0][request]), "by the ITL"


def test_timed_arithmetic_is_trusted_more_than_arithmetic_from_shapes_and_of_experts() -> None:
    token, levels = COEFFICIENTS.index("token_s"), [level(8), level(64)]
    timed, experts = guess(levels, GPU), guess(levels, GPU.with_values(unread=0.7, unread_decay=0.9))
    from_shape = guess(levels, GPU, prior_error=0.6)
    assert timed[1][token] < from_shape[1][token] == experts[1][token]


def test_a_burst_is_told_from_a_ramp() -> None:
    """Users of equal requests who begin within a millisecond stay in lockstep; means that hold the burst say so."""
    ramped = fit(measure(Replica(GPU), [SHORT], LEVELS))
    together = fit(measure(Replica(GPU), [SHORT], LEVELS, lockstep=True))
    assert not ramped.protocol.at_once
    assert together.protocol.at_once


def level(users: int, counted: float = 1.0, ttft_s: float = 0.2) -> Point:
    """A level whose tool gives `counted` times the requests/s of Little's law."""
    point = Point(
        model="m",
        precision="p",
        gpu="g",
        tp=1,
        isl=1000,
        osl=101,
        load_kind="concurrency",
        load_value=users,
        requests_per_s=1.0,
        ttft_mean_s=ttft_s,
        itl_mean_s=0.02,
    )
    return dataclasses.replace(point, requests_per_s=counted * little_per_s(point))


def test_little_s_law_counts_users_over_their_time() -> None:
    """10 users of 0.2 s + 100 gaps of 20 ms: 10 / 2.2 s; of them 10 x 2 / 2.2 decode."""
    point = level(10)
    assert little_per_s(point) == pytest.approx(10 / 2.2)
    assert decoding(point) == pytest.approx(10 * 2 / 2.2)


def test_one_wrong_level_is_no_way_of_counting() -> None:
    steady = [level(users) for users in LEVELS]
    assert not counts_otherwise(steady)
    assert not counts_otherwise([*steady[:-1], level(128, 2.0)])
    assert counts_otherwise([level(users, 0.85) for users in LEVELS])


def test_a_tool_s_way_of_counting_is_carried_over_to_other_lengths() -> None:
    """A tool whose window holds ramp and drain shows 10 % less: so does what it would show at lengths not measured."""
    levels, asked = [level(users, 0.9) for users in LEVELS], dataclasses.replace(level(16), isl=4000)
    assert as_little_counts(levels, asked, 0.2, 0.02) == pytest.approx(0.9 * little_per_s(asked))


def test_a_level_whose_requests_per_s_little_s_law_contradicts_stands_apart() -> None:
    """All but one of a tool that counts a tenth less; not where half of the levels depart."""
    levels = [level(users, counted=0.9) for users in LEVELS]
    assert not counted_apart(levels)
    for counted in (0.4, 2.0):
        wrong = [*levels[:2], level(LEVELS[2], counted=counted), *levels[3:]]
        assert counted_apart(wrong) == pytest.approx({2: math.log(counted / 0.9)})
    assert not counted_apart([level(users, counted=2.0 if users > 8 else 0.9) for users in LEVELS])


def test_what_levels_show_beyond_the_engine_is_carried_over_on_a_line() -> None:
    """Twice the engine's TTFT with one user, the same with 100: with 10, in the middle of the logarithms, the
    root; beyond the only level, at twice its users, the root as well."""
    levels = [level(1, ttft_s=0.2), level(100, ttft_s=0.2)]
    engine = np.array([[levels[0].requests_per_s, 0.1, 0.02], [levels[1].requests_per_s, 0.2, 0.02]])
    left = left_over(levels, engine)
    assert carried_over(levels, left, level(10), Batching()) == pytest.approx([0, math.log(2) / 2, 0])
    assert carried_over(levels, left, level(1), Batching()) == pytest.approx([0, math.log(2), 0])
    assert carried_over(levels[:1], left[:1], level(2), Batching()) == pytest.approx([0, math.log(2) / 2, 0])
    for change in ({"osl_cv": 0.5}, {"prefix_tokens": 500, "prefix_hit": 1.0}):
        assert not carried_over(levels, left, dataclasses.replace(level(10), **change), Batching()).any()
    again = [*levels, level(1, ttft_s=0.1)]  # measured again: the mean of the logarithms, 2 and 1 times the engine's
    twice = left_over(again, np.vstack([engine, engine[:1]]))
    assert carried_over(again, twice, level(1), Batching())[1] == pytest.approx(math.log(2) / 2)
    # 100 users wait for memory, one does not, and neither tells of the other
    assert carried_over(levels, left, level(99), Batching(kv_tokens=5000)) == pytest.approx([0, 0, 0])
    assert carried_over(levels, left, level(2), Batching(kv_tokens=5000)) == pytest.approx([0, math.log(2), 0])


def drawn(users: int, requests: int, luck: float) -> Point:
    """A level of so many requests, whose requests/s are `luck` standard errors of their lengths above Little's law."""
    counted = math.exp(luck * 0.5 / math.sqrt(requests))
    return dataclasses.replace(level(users, counted), requests=requests, osl_cv=0.5)


def test_how_evenly_a_tool_draws_lengths_is_seen_in_its_levels() -> None:
    """The standard deviation of independent draws is 1 of them; of a tool that draws evenly it is less, whatever its
    way of counting adds to all levels. Never more than 1, and 1 where levels cannot tell."""
    rng = np.random.default_rng(5)
    for even in (0.2, 0.6):
        many = [drawn(users, 4 * users, even * rng.normal()) for users in range(1, 401)]
        assert luck_ratio(many) == pytest.approx(even, rel=0.15)
        less = [dataclasses.replace(one, requests_per_s=0.9 * one.requests_per_s) for one in many]
        assert luck_ratio(less) == pytest.approx(luck_ratio(many), rel=1e-6)
    assert luck_ratio([drawn(users, 4, 3.0 * (-1) ** users) for users in range(1, 9)]) == 1
    assert luck_ratio([drawn(1, 10, 0.1)]) == luck_ratio([]) == luck_ratio([level(users) for users in LEVELS]) == 1
    four = [drawn(users, 400, 0.0) for users in (1, 4, 16, 64)]
    assert luck_ratio(four) == pytest.approx(0.5)  # 1 as one level more: of four without any scatter, sqrt(1 / 4)
    # a level of few requests, half a standard error off, leaves the mean of the others where it was
    assert luck_ratio([drawn(1, 3, 0.5), *four[1:]]) == pytest.approx(math.sqrt(1.25 / 4), rel=0.005)


def test_what_a_lucky_level_shows_is_mostly_its_luck() -> None:
    """Half of it where the luck of its lengths is as large as what servers scatter about laws; requests/s and TTFT have
    lengths of their own, ITL none."""
    requests = round((0.5 / CLOSED_SIGMA) ** 2)
    found = share_beyond_luck([drawn(8, requests, 0.0), drawn(8, requests // 100, 0.0), level(8)], 1.0)
    assert found == pytest.approx(np.array([[0.5, 1, 1], [1 / 101, 1, 1], [1, 1, 1]]), rel=0.01)
    assert share_beyond_luck([drawn(8, requests, 0.0)], 0.5)[0, 0] == pytest.approx(0.8)
    prompts = dataclasses.replace(level(8), requests=25, isl_cv=5 * CLOSED_TTFT_SIGMA)
    assert share_beyond_luck([prompts], 1.0) == pytest.approx(np.array([[1, 0.5, 1]]))


def test_requests_per_s_by_luck_are_not_carried_over() -> None:
    """Three requests happened to be short, and made a fifth more requests/s than Little's law has: no server does that
    again, and of a line through such levels little is left. Equal requests would tell it of the server."""
    lucky = [drawn(1, 3, math.log(1.2) / (0.5 / math.sqrt(3))), drawn(4, 400, 0.0), drawn(16, 1600, 0.0)]
    engine = np.array([[little_per_s(one), one.ttft_mean_s, one.itl_mean_s] for one in lucky])
    asked = dataclasses.replace(lucky[0], load_value=1)
    kept = carried_over(lucky, left_over(lucky, engine), asked, Batching())[0]
    line = line_logs(lucky, asked, Batching(), engine[0])[0]
    share = float(share_beyond_luck(lucky[:1], luck_ratio(lucky))[0, 0])
    assert share < 0.1 and kept == pytest.approx(share * math.log(1.2))
    assert line == pytest.approx(share * 0.2 * math.log(1.2))
    equal = [dataclasses.replace(one, osl_cv=0.0) for one in lucky]
    asked = dataclasses.replace(asked, osl_cv=0.0)
    assert carried_over(equal, left_over(equal, engine), asked, Batching())[0] == pytest.approx(math.log(1.2))
    assert line_logs(equal, asked, Batching(), engine[0])[0] == pytest.approx(0.2 * math.log(1.2))


def test_a_lucky_level_leaves_its_band_open() -> None:
    """What is not carried over from levels is not held by them either: coefficients count there, beside the luck of a
    new measurement, which is that of the tool that measured the levels."""
    found, _ = kinked()
    point = found.errors[0].point
    of_two = [error._replace(point=dataclasses.replace(error.point, requests=2)) for error in found.errors]
    lucky = dataclasses.replace(found, errors=tuple(of_two))
    for one in (found, lucky):
        levels = [error.point for error in one.errors]
        assert one.luck(point) == pytest.approx(luck_ratio(levels) * np.array(luck_of_lengths(point)))
    assert not found.distrusted
    known, open_ = (one.mean_sigmas([point])[0] ** 2 - one.luck(point) ** 2 for one in (found, lucky))
    assert (open_[:2] > known[:2]).all() and open_[2] == pytest.approx(known[2])
    evenly = [
        error._replace(point=dataclasses.replace(error.point, requests_per_s=little_per_s(error.point)))
        for error in found.errors
    ]
    drawn_evenly = dataclasses.replace(found, errors=tuple(evenly))
    few, many = (dataclasses.replace(point, requests=requests) for requests in (40, 4000))
    for one in (found, drawn_evenly):
        squares = one.mean_sigmas([few, many]) ** 2
        assert squares[0] - squares[1] == pytest.approx(one.luck(few) ** 2 - one.luck(many) ** 2, rel=1e-6)
    assert drawn_evenly.luck(point)[0] == pytest.approx(found.luck(point)[0] / math.sqrt(len(evenly)), rel=1e-6)


def test_lengths_without_a_level_are_told_by_the_others_and_the_nearer_the_more() -> None:
    """The curve has twice the engine's TTFT. At e^0.5 and e times its ISL it weighs 1/e and 1/e^2 beside 0.1 for
    nothing; of two curves alike in ISL the answer lies between what both say."""

    def asked(isl: float, osl: float = 101) -> Point:
        return dataclasses.replace(level(10), isl=isl, osl=osl)

    levels = [level(1, ttft_s=0.2), level(100, ttft_s=0.2)]
    left = np.array([[0, math.log(2), 0]] * 2)
    for squares in (1, 2):
        weight = math.exp(-squares)
        there = carried_over(levels, left, asked(1000 * math.exp(0.5 * squares)), Batching())
        assert there == pytest.approx([0, math.log(2) * weight / (weight + 0.1), 0])
    away = [carried_over(levels, left, asked(1000, 101 * math.exp(apart)), Batching())[1] for apart in (0.1, 1, 3)]
    assert math.log(2) > away[0] > away[1] > away[2] > 0
    longer = [dataclasses.replace(one, osl=1001) for one in levels]
    both = np.vstack([left, 2 * left])
    between = carried_over(levels + longer, both, asked(1000, 301), Batching())[1]
    assert math.log(2) < between < 2 * math.log(2)
    same = carried_over(levels + longer, both, asked(1000), Batching())
    assert same == pytest.approx([0, math.log(2), 0])  # levels of the very lengths leave the others no say
    unheard = carried_over(levels, left, dataclasses.replace(asked(2000), isl_cv=0.5), Batching())
    assert not unheard.any()


def test_lengths_that_surprise_each_other_leave_others_less_sure() -> None:
    """Of three pairs of lengths one shows 20 % more ITL than the engine: it is a surprise to the others and they to it,
    so bands of ITL widen at lengths that were not measured, those of requests/s narrow, and no other band changes."""
    others = [dataclasses.replace(level(users), isl=isl) for isl in (1000, 2000, 4000) for users in (1, 100)]
    even = np.zeros((6, 3))
    left = even + np.array([0, 0, math.log(1.2)]) * (np.arange(6)[:, None] >= 4)
    assert (surprises(others, even, Batching()) == 0).all() and len(surprises(others[:2], even[:2], Batching())) == 0
    seen = surprises(others, left, Batching())
    alone = carried_over(others[:4], left[:4], others[4], Batching())[2]
    assert seen.shape == (3, 3) and seen[2, 2] == pytest.approx(2 * (math.log(1.2) - alone))
    assert (seen[:, :2] == 0).all() and (seen[:, 2] > 0).all()
    unmeasured = np.where(np.arange(6)[:, None] < 4, even, math.nan)
    assert np.isnan(surprises(others, unmeasured, Batching())[2]).all()

    elsewhere, here = dataclasses.replace(level(10), isl=8000), level(10)
    usual = closed_sigmas(others, UNTOLD, elsewhere)
    rate, ttft, itl = closed_sigmas(others, UNTOLD, elsewhere, seen=seen)
    assert itl == pytest.approx(math.sqrt((2 * usual[2] ** 2 + np.sum(seen[:, 2] ** 2)) / 5)) and ttft == usual[1]
    assert rate == pytest.approx(usual[0] * math.sqrt(2 / 5))
    assert closed_sigmas(others, UNTOLD, here, seen=seen) == closed_sigmas(others, UNTOLD, here)
    partly = closed_sigmas(others, UNTOLD, elsewhere, seen=np.array([[math.nan, math.nan, 0.3]]))
    assert partly[0] == usual[0] and partly[2] > usual[2]


def test_a_fit_to_lengths_that_differ_from_the_law_is_less_sure_at_others() -> None:
    found, _ = kinked(EQUAL)
    levels = [error.point for error in found.errors]
    longer = [dataclasses.replace(point, isl=2 * point.isl) for point in levels]
    errors = tuple(error._replace(point=point) for error, point in zip(found.errors, longer, strict=True))
    asked = dataclasses.replace(levels[2], isl=4 * levels[2].isl)
    alike, apart = (
        dataclasses.replace(found, errors=found.errors + errors, left=np.vstack([found.left, found.left + by]))
        for by in (0.0, 0.3)
    )
    assert (apart.mean_sigmas([asked])[0, [0, 2]] > 1.5 * alike.mean_sigmas([asked])[0, [0, 2]]).all()
    assert apart.mean_sigmas([levels[2]]) == pytest.approx(alike.mean_sigmas([levels[2]]))


def test_figures_move_towards_straight_lines_where_no_queue_begins() -> None:
    """ITL 20 ms with one user and, in the logarithms, half way to 80 ms with 100: 40 ms with 10; measured twice, at 10
    and 40 ms, it is 20 ms. A figure of the law moves a fifth of the way."""
    levels = [level(1), dataclasses.replace(level(100), itl_mean_s=0.08)]
    law = np.array([1.0, 1.0, 0.05])

    def itl_move(known: list[Point], asked: Point, batching: Batching | None = None) -> float:
        return float(line_logs(known, asked, batching or Batching(), law)[2])

    assert itl_move(levels, level(10)) == pytest.approx(0.2 * math.log(0.04 / 0.05))
    again = [dataclasses.replace(level(1), itl_mean_s=itl_s) for itl_s in (0.01, 0.04)]
    assert itl_move([*again, levels[1]], level(1)) == pytest.approx(0.2 * math.log(0.02 / 0.05))
    for apart in (level(101), dataclasses.replace(level(10), osl=400)):
        assert itl_move(levels, apart) == 0
    assert itl_move(levels, level(10), Batching(kv_tokens=5000)) == 0  # at 100 users memory is full


def test_outside_the_users_measured_the_wait_beside_the_engine_grows_with_the_prompts_that_meet() -> None:
    """Of 200 ms at 100 users 150 are a wait; where 8 times as many prompt tokens meet, by users or ISL, it is 600 ms,
    less a fading by e^(-0.1 ln 8) of the logarithm. Shorter TTFT than the engine's stays so many times shorter."""
    levels = [level(1), level(100)]
    left = np.array([[0.0, 0.0, 0.0], [0.0, math.log(4), 0.0]])

    def outside(
        asked: Point,
        shown: Floats = left,
        of: Sequence[Point] = levels,
        slots: int = 1000,
        protocol: Protocol = UNTOLD,
    ) -> float | None:
        return ttft_outside(of, protocol, shown, asked, 0.05, Batching(max_batch_size=slots))

    faded = math.exp(-math.log(8) / 10)
    assert outside(level(800)) == pytest.approx(faded * math.log(0.65 / 0.05))
    assert outside(level(800), -left) == pytest.approx(faded * math.log(1 / 4))
    steady = Protocol("ramp")  # a window without a start: nobody meets more prompts than in the window measured
    assert outside(level(800), protocol=steady) == pytest.approx(faded * math.log(0.2 / 0.05))
    longer = dataclasses.replace(level(100), isl=8000)
    assert outside(longer) is None  # one of other lengths: those of its own prompts say nothing of it
    assert outside(longer, left[1:], levels[1:]) == outside(level(800))  # unless that level is all there is
    assert outside(level(100), left[1:], levels[1:]) == pytest.approx(math.log(4))
    for inside in (level(1), level(30), level(100)):
        assert outside(inside) is None
    assert outside(level(800), slots=500) is None  # a queue begins between them
    assert outside(level(60), slots=50) is None  # inside, though no level without a queue has as many users


def test_closed_loops_are_less_sure_beyond_the_users_and_lengths_measured() -> None:
    levels = [level(users) for users in LEVELS]
    inside, edge, twice, far = (closed_sigmas(levels, UNTOLD, level(users)) for users in (64, 128, 256, 1024))
    assert inside == edge
    for place in (0, 2):
        assert edge[place] < twice[place] < far[place]
    assert edge[1] < twice[1] and edge[1] < closed_sigmas(levels, UNTOLD, dataclasses.replace(level(64), isl=4000))[1]


def test_a_ttft_of_an_moe_model_is_surer_beyond_the_users_and_at_other_lengths() -> None:
    """Published servers of dense models scatter about twice as far there, and as far between their levels."""
    levels = [*(level(users) for users in LEVELS), dataclasses.replace(level(8), isl=4000)]
    beyond, elsewhere, between = level(1024), dataclasses.replace(level(64), isl=8000), level(64)
    for asked, ratio in ((beyond, 0.7), (elsewhere, 0.5), (between, 1.0)):
        dense, moe = (closed_sigmas(levels, UNTOLD, asked, has_experts=told)[1] for told in (False, True))
        assert moe == pytest.approx(ratio * dense, rel=0.01)


@pytest.mark.parametrize("users", [64, 512])
def test_a_ttft_of_steady_windows_is_surer(users: int) -> None:
    """Of a window that was judged, or of users who were known to start one after the other."""
    levels = [level(users) for users in LEVELS]
    judged = [dataclasses.replace(point, verdict="steady") for point in levels]
    unsure = closed_sigmas(levels, UNTOLD, level(users))
    for sure in (closed_sigmas(judged, UNTOLD, level(users)), closed_sigmas(levels, Protocol("ramp"), level(users))):
        assert sure[1] < 0.6 * unsure[1] and (sure[0], sure[2]) == (unsure[0], unsure[2])


def test_a_law_without_attention_leans_on_that_of_the_shape() -> None:
    """DeepSeek-R1: 61 layers of 128 heads of 160, 36.6 billion parameters a token passes: 4 FLOPs over 2."""
    share = attention_share(catalog.model("deepseek-ai/DeepSeek-R1"))
    assert share == pytest.approx(2 * 61 * 128 * 160 / 36.6e9, rel=0.01)
    point = dataclasses.replace(
        level(1), model="deepseek-ai/DeepSeek-R1", gpu="h200_sxm", precision="fp8", tp=8, engine="trtllm"
    )
    known = prior_law(point.deployment, point.lengths)
    assert known is not None and known.law.attention_s == pytest.approx(share * known.law.token_s)


@pytest.mark.parametrize(
    "model", ["deepseek-ai/DeepSeek-R1", "moonshotai/Kimi-K2.5", "Qwen/Qwen3.5-397B-A17B", "openai/gpt-oss-120b"]
)
def test_a_fit_of_a_mixture_leans_on_the_times_of_its_kernels(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Its shape says which part of an iteration's constant is weights, and changes none of its times."""
    leant_on: list[Known] = []
    search = vars(fit_module)["best_trial"]

    def seen(observed: Observed, known: Known) -> Trial:
        leant_on.append(known)
        trial: Trial = search(observed, known)
        return trial

    monkeypatch.setattr(fit_module, "best_trial", seen)
    precision = "mxfp4" if "gpt-oss" in model else "nvfp4"
    told = {"model": model, "gpu": "b200_sxm", "precision": precision, "tp": 8, "engine": "trtllm"}
    points = [dataclasses.replace(level(users), **told) for users in (1, 16)]
    kernels = prior_law(points[0].deployment, points[0].lengths)
    assert kernels is not None and kernels.law is not None and kernels.law.has_experts
    fit(points)
    (known,) = leant_on
    assert known.prior is not None
    for batch, prompt in ((1, 0), (4, 0), (64, 0), (8, 500), (64, 8000)):
        law, own = (each.mixed_s(batch, 1000 * batch, prompt, 0) for each in (known.prior, kernels.law))
        assert law == pytest.approx(own, rel=2e-3)


def test_one_level_leaves_the_cost_of_a_token_freer() -> None:
    """It scales the law that it leans on, and what it says of prompts is mostly a queue."""
    token = COEFFICIENTS.index("token_s")
    one, two = (guess([level(users) for users in levels], GPU)[1][token] for levels in ((16,), (1, 16)))
    assert one > 1.5 * two


def test_attention_is_not_read_off_ttft() -> None:
    """A burst makes TTFT longer and no token's attention: its share of a token's arithmetic stays."""
    laws = [law_of_points([level(1, ttft_s=ttft_s), level(32, ttft_s=4 * ttft_s)]) for ttft_s in (0.1, 0.4)]
    assert laws[0].attention_s / laws[0].token_s == pytest.approx(laws[1].attention_s / laws[1].token_s)


def test_no_step_leaves_the_first_guess_of_an_moe_model_more_weights_than_it_reads() -> None:
    """One user reads a tenth of them, four a third: ITLs of 20 and 25 ms leave 200 ms for all of them, and 73."""
    levels = [dataclasses.replace(level(users), itl_mean_s=itl_s) for users, itl_s in ((1, 0.020), (4, 0.025))]
    experts = GPU.with_values(unread=0.9, unread_decay=0.9)
    assert law_of_points(levels, experts).weights_s == pytest.approx(0.75 * 0.025 / (1 - 0.9 * 0.9**3))
    assert law_of_points(levels).weights_s == pytest.approx(0.75 * 0.020)


@pytest.mark.parametrize(("engine", "price"), [("vllm", POLICY_PRICE), ("", 0.0)])
def test_another_policy_than_the_engine_s_own_must_gain_its_price(engine: str, price: float) -> None:
    points = tuple(dataclasses.replace(level(users), engine=engine) for users in (1, 4))
    policies: tuple[Policy, ...] = ("chunked", "prefill_first")
    trials = [
        Trial(Observed(points, protocol=Protocol("ramp")), law_parameters(*guess(points, None), Batching(policy), None))
        for policy in policies
    ]
    for trial in trials:
        trial.cost = 7.0  # alike
    assert trials[1].claim - trials[0].claim == price


@pytest.mark.parametrize(
    ("policy", "unread_decay", "price"),
    [("chunked", 0.9, CHUNK_PRICE), ("chunked", 0.0, BUDGET_PRICE), ("whole_prompt", 0.9, BUDGET_PRICE)],
)
def test_other_chunks_than_the_engine_s_own_must_gain_more_of_an_moe_model(
    policy: Policy, unread_decay: float, price: float
) -> None:
    points = tuple(level(users) for users in (1, 4))
    prior, claims = GPU.with_values(unread=0.9, unread_decay=unread_decay), []
    for budget in (Observed(points, protocol=Protocol("ramp")).defaults.token_budgets[0], 1024):
        parameters = law_parameters(*guess(points, prior), Batching(policy, token_budget=budget), prior)
        trial = Trial(Observed(points, protocol=Protocol("ramp")), parameters)
        trial.cost = 7.0  # alike
        claims.append(trial.claim)
    assert claims[1] - claims[0] == price


def test_levels_that_were_fitted_are_predicted_as_measured() -> None:
    """Whatever the law makes of them: no line through points of equal requests may beat the fit at the points."""
    found, _ = kinked(EQUAL)
    trusted = [one.point for one in found.errors if one.point not in {other.point for other in found.distrusted}]
    measured = [(point.requests_per_s, point.ttft_mean_s, point.itl_mean_s) for point in trusted]
    assert len(trusted) > 4
    np.testing.assert_allclose(found.means(trusted)[:, :3], measured, rtol=1e-6)


def test_shares_of_expert_weights_follow_from_the_shape() -> None:
    """Qwen3-235B-A22B: 8 of 128 experts a token, 22 of 235 billion parameters; any packing of it; none if dense."""
    unread, decay = catalog.unread_shares("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8") or (0.0, 0.0)
    assert decay == pytest.approx(1 - 8 / 128)
    assert unread == pytest.approx(1 - 22 / 235, abs=0.01)
    assert catalog.unread_shares("meta-llama/Llama-3.1-70B-Instruct-FP8") == (0.0, 0.0)
    assert catalog.unread_shares("my/own-model") is None


def test_no_share_is_fitted_to_a_model_whose_shape_is_known() -> None:
    """An engine with a kernel for single sequences: a dense model of the catalogue reads all of its weights all the
    same, a model of one's own may have a share."""
    points = measure(Replica(GPU.with_values(unread=0.4)), [VARIED], (1, 2, 4, 16, 64))
    assert fit(points, protocol=Protocol("ramp")).law.unread > 0.2
    known = [dataclasses.replace(point, model="Qwen/Qwen3-32B") for point in points]
    assert fit(known, prior=None, protocol=Protocol("ramp")).law.unread == 0


@given(nodes=batches, sizes=st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)))
def test_what_measured_batches_leave_open_is_a_gaussian_process_that_knows_them(
    nodes: list[float], sizes: tuple[float, float]
) -> None:
    """Nothing at the batches measured, all of a bend's variance far from them, and on the two sides of a measured batch
    errors that have nothing to do with each other: the covariance is exponential, hence the process a Markov one."""
    changes = open_bends(tuple(nodes), sizes, 4096.0)
    for part, sd in enumerate((BEND_SD, PROMPT_BEND_SD)):
        covariance = changes[:, part].T @ changes[:, part] / (sizes[part] * sd) ** 2
        for place, knot in enumerate(BEND_KNOTS):
            nearest = min(abs(knot - math.log(node)) for node in nodes)
            assert covariance[place, place] <= 1 - math.exp(-2 * nearest / BEND_REACH) + 1e-6
        inner = math.log(nodes[len(nodes) // 2])
        below, above = inner > BEND_KNOTS, inner < BEND_KNOTS
        assert covariance[np.ix_(below, above)] == pytest.approx(0.0, abs=1e-6)
    alone = open_bends((1.0,), sizes, 4096.0)
    far = BEND_KNOTS / BEND_REACH
    known = np.exp(-np.abs(np.subtract.outer(far, far))) - np.exp(-np.add.outer(far, far))
    assert alone[:, 0].T @ alone[:, 0] == pytest.approx((sizes[0] * BEND_SD) ** 2 * known, abs=1e-6)


@given(change=st.floats(-0.3, 0.3), batch=st.floats(1, 2000))
def test_a_law_bent_further_is_longer_by_that(change: float, batch: float) -> None:
    bent = dataclasses.replace(GPU, bend=KINK)
    further = bent_further(bent, np.full((2, len(BEND_KNOTS)), change))
    assert further.decode_s(batch, 0) == pytest.approx(math.exp(change) * bent.decode_s(batch, 0))


@pytest.mark.parametrize("size", [1.0, 0.6])
def test_what_was_measured_is_known_as_well_as_it_was_measured(size: float) -> None:
    """Coefficients and bends, large or small, may share a decode step in many ways; the step itself was measured at
    every level."""
    engine = Replica(
        dataclasses.replace(GPU, bend=Bend(KINK.sequences, tuple(size * g for g in KINK.decode), KINK.prompt))
    )
    found = fit(measure(engine, [VARIED], LEVELS, noise=0.005), protocol=Protocol("ramp"), batching=Batching())
    (bent,) = found.bent
    assert (bent.open_sizes[0] < 0.9) == (size < 1)
    engine, names = bent.replica, bent.names
    variances, directions = np.linalg.eigh(bent.covariance)
    points = [error.point for error in found.errors]
    replay = Replay(point_runs(points, found.protocol), engine)

    def itl_logs(shift: np.ndarray) -> np.ndarray:
        return np.log(replay.means(moved(engine, names, shift))[:, 2])

    shifts = np.sqrt(variances)[:, None] * directions.T
    sigmas = np.sqrt(sum(((itl_logs(shift) - itl_logs(-shift)) / 2) ** 2 for shift in shifts))
    assert (sigmas < 1.2 * ITL_SIGMA).all()


@given(share=st.floats(0.0, 0.9), batch=st.integers(1, 500))
def test_what_one_coefficient_gains_another_loses(share: float, batch: int) -> None:
    """Overhead and cost of a sequence changed so that the steps of one batch last as long: a straight line of seconds,
    along which they do however far it goes, to both sides; a coefficient stays above 0 where a step would take all."""
    names = [name for name in COEFFICIENTS if getattr(GPU, name) > 0]
    assert names == list(COEFFICIENTS)
    shift = np.zeros(len(names))
    part = share * min(GPU.overhead_s, batch * GPU.sequence_s)
    shift[names.index("overhead_s")] = part / GPU.overhead_s
    shift[names.index("sequence_s")] = -part / (batch * GPU.sequence_s)
    for one in (moved(Replica(GPU), names, shift), moved(Replica(GPU), names, -shift)):
        assert one.law.decode_s(batch, 0) == pytest.approx(GPU.decode_s(batch, 0))
    assert min(moved(Replica(GPU), names, np.full(len(names), -2.0)).law.seconds) > 0


def test_each_number_moves_its_own_part_of_the_engine() -> None:
    """A KV cache is found before a kernel for single sequences, or after experts: the names say which is which."""
    engine = Replica(GPU.with_values(unread=0.3, send_s=1e-4), Batching(kv_tokens=10_000))
    shift = {"unread": 0.5, "kv_tokens": 0.2, "send_s": -0.4}
    for extra in permutations(shift):
        found = moved(engine, (*COEFFICIENTS, *extra), np.array([0.0] * 8 + [shift[name] for name in extra]))
        odds = found.law.unread / (1 - found.law.unread)
        assert odds == pytest.approx(math.exp(0.5) * 3 / 7)
        assert found.batching.kv_tokens == pytest.approx(math.exp(0.2) * 10_000, rel=1e-3)
        assert found.law.send_s == pytest.approx(math.exp(-0.4) * 1e-4)
