"""The iteration-time law fitted to the measured levels of one deployment, with its uncertainty and its errors.

The forward model is the simulator itself: it replays every level with a trial law, and scipy's least squares moves the
logarithms of the eight coefficients until requests/s, TTFT and ITL agree. What is not known beside them (how the users
were started, policy, token budget, limit of the batch, KV cache) is searched jointly, and the cheapest explanation is
kept, each freedom at a price (`sizing.fitting.search`). If the law is then still off, it bends with the batch at the
lengths that were measured (`sizing.fitting.bends`). Closed loops determine only the sums of some coefficients (weights
and overhead; prefill and request): their priors keep them apart, and the covariance says that they are not known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np

from sizing.catalog import unread_shares
from sizing.engine import (
    COEFFICIENTS,
    FREE,
    POLICIES,
    UNLIMITED_KV_TOKENS,
    Batching,
    Policy,
    StepLaw,
)
from sizing.errors import FitError
from sizing.estimate import DayZero, prior_law, token_share
from sizing.fitting.bends import BentLaw, bend
from sizing.fitting.carried import left_over, users_wait
from sizing.fitting.levels import (
    OPEN_LOOPS,
    RATE_SIGMA,
    TRACE_GROUPS,
    Observed,
    ServedTrace,
    busiest,
    concurrency,
    counted_apart,
    counting_log,
    decoding,
    defaults_of,
    distinct,
    holds_no_start,
    in_flight,
    is_stable,
    itl_s,
    knows_ttft,
    of_one_level,
    trace_points,
)
from sizing.fitting.parameters import LawError
from sizing.fitting.result import CoveredRange, Distrust, Fit, PointError, Unknown
from sizing.fitting.search import APART, KERNEL_TIMED, LITTLE, Known, Trial, best_trial, is_timed
from sizing.numbers import Floats
from sizing.points import STARTS, UNSAID, UNTOLD, Deployment, Point, Protocol, Scheduling, same_isl
from sizing.prediction import Caution

# --- Which coefficients the points determine and which they do not, and the measurement that would

HARDLY = 0.7
"""A coefficient with more than this share of its prior standard error left is called unknown."""
MEASURES = {
    "weights_s": "measure one user, and a batch large enough to be compute-bound: weights and overhead part there",
    "overhead_s": "measure one user, and a batch large enough to be compute-bound: weights and overhead part there",
    "token_s": "measure long prompts, or the highest concurrency",
    "sequence_s": "measure high concurrency at short contexts",
    "kv_token_s": "measure long contexts at high concurrency",
    "attention_s": "measure long prompts, 4,000 tokens or more",
    "prefill_s": "measure one open-loop point, or lengths that vary: then prompts hold up decodes one by one",
    "request_s": "measure one open-loop point, or lengths that vary: then prompts hold up decodes one by one",
    "unread": "measure one and two users",
    "send_s": "measure many users with short prompts: most tokens/s",
    "kv_tokens": "measure more users than the KV cache holds, or give its size",
}


def unknowns(names: Sequence[str], slopes: Floats, prior_sigma: Floats) -> tuple[Unknown, ...]:
    """The coefficients whose standard error the points leave at over 70 % of that of the prior, the worst first.

    `slopes`, shape (residuals, names): of all residuals, those of the prior included. By the rule of linear Bayesian
    regression: an upper end that the points set to a coefficient too small to be seen does not count as knowledge.
    """
    ratios = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes))) / prior_sigma
    found = [Unknown(name, float(ratio), MEASURES[name]) for name, ratio in zip(names, ratios, strict=True)]
    return tuple(sorted((one for one in found if one.ratio > HARDLY), key=lambda one: -one.ratio))


SLOTS_BY_HAND = 256
"""The max_batch_size that people set most often where an engine's default is larger."""
SET_BY_HAND = 0.1
"""What ran at once is taken for a limit that is a power of two if it is this near to it, in logarithms."""
TOKEN_BUDGETS = (Batching().token_budget, 2048, 65_536)
"""Token budgets to try if none is given: defaults of common engines, and effectively no limit."""
NEAR_A_BUDGET = 0.05
"""A token budget that is a power of two is tried as well if the tokens of an iteration are this near it (logarithm)."""
NEAR_KERNELS, FROM_SHAPE = 0.03, 0.09
"""Errors of the law per unit of ln(ISL) and ln(OSL) from measured lengths: see `_elsewhere`."""
FROM_ONE_ISL = 2.0
"""Factor on NEAR_KERNELS where several levels have prompts of one length: then only the timings separate the cost of a
token from that of a prompt. From published dense servers, asked for 4 to 8 times the ISL, or a 4th to an 8th.
"""
NEARLY_FULL = 0.9
"""Share of an estimated KV cache above which a server that shows no limit of it casts doubt on the estimate."""
BENDS_OF_ESTIMATE = 3.5
"""Size of the bends that one level leaves open, as a share of what is thought possible (see `BentLaw`), for each unit
of the relative error of the estimate that it scales."""
USUALLY_OFF = 0.05
"""Error of the law at measured levels from which `FROM_SHAPE` holds in full: 73 published servers, fitted to four
levels each, have 0.06 in the median. Below `LITTLE` it is not told from luck."""
READING, DENSE_OR_NOT, SHEET_ERROR = 0.75, 0.6, 0.6
"""Share of a step of few sequences that reads weights; a token's arithmetic over that of a dense model, where it may
also be an MoE model, and the relative standard error of this guess, which makes it a factor of two."""
FIGURES = ("requests/s", "mean TTFT", "mean ITL", "mean E2E", "p50 TTFT", "p95 TTFT", "p50 gap", "p95 gap")


def fit(
    points: Sequence[Point],
    *,
    prior: StepLaw | Literal["day zero"] | None = "day zero",
    batching: Batching | None = None,
    kv_tokens: int | None = None,
    token_budget: int | None = None,
    lookahead_steps: float | None = None,
    receive_interval_steps: int | None = None,
    batch_wait_steps: int | None = None,
    batch_wait_ratio: float | None = None,
    open_loop: bool = True,
    protocol: Protocol = UNTOLD,
) -> Fit:
    """Fit the law to the points of one deployment (any number of lengths): closed loops and, unless `open_loop` is
    False, those at a constant or Poisson rate that kept up with it.

    `prior`: a law from elsewhere to lean on; by default the day-zero law of model and GPU, where the catalogue has
    both. `batching`: the engine's, when it is known. Otherwise the policy is chosen by residual and the batch limit
    taken from the points; `kv_tokens`, `token_budget`, `lookahead_steps`, `receive_interval_steps`, `batch_wait_steps`
    and `batch_wait_ratio` come from the caller, else from the points. Where neither gives them, the interval is 1, no
    prompt waits for others, and the look-ahead is the engine's default, or 0 where that explains the points better. A
    KV cache of unknown size is fitted where it seems to limit the batch; else it is as large as estimated, unless the
    points held that much already. `protocol`: how the points were measured; if it does not say how users started, the
    points do, where they agree.

    Points of one load level scale the law that they lean on, and say nothing of its shape.
    Raises FitError without points to fit, with several deployments, or with one load level and no law to scale.
    """
    chosen = _usable(points, open_loop)
    _check_units(chosen)
    if prior == "day zero":
        told = prior_law(chosen[0].deployment, chosen[0].lengths) or _from_data_sheet(chosen)
    else:
        told = DayZero(prior, KERNEL_TIMED, None)
    law, one_level = told.law, of_one_level(chosen)
    if one_level and (law is None or law.weights_s <= 0):
        raise FitError(
            f"all points have {in_flight(chosen[0]):.3g} requests in flight, and no estimate of "
            f"{chosen[0].deployment.label} tells how its times change with load: measure at two levels or more, such "
            "as 1 and 64 users"
        )
    if kv_tokens is None and batching is None:
        kv_tokens = min(
            (tokens for tokens in _told_kv_tokens(chosen) if not _refuted_kv_tokens(tokens, chosen)), default=None
        )
        if kv_tokens is None and one_level:
            kv_tokens = _kv_tokens(told, chosen)
    by_caller = Scheduling(
        "", token_budget, lookahead_steps, receive_interval_steps, batch_wait_steps, batch_wait_ratio
    )
    scheduling = _told_scheduling(chosen, by_caller)
    rules = _candidates(chosen, batching, kv_tokens, scheduling)
    if kv_tokens is None and batching is None:
        rules = _within_memory(rules, told, chosen)
    shares = unread_shares(chosen[0].model)
    kv_known = kv_tokens is not None or (batching is not None and batching.kv_tokens != UNLIMITED_KV_TOKENS)
    assumed = batching is None and scheduling.lookahead_steps is None and rules[0].lookahead_steps > 0
    seen = _with_budget_seen(rules, chosen) if batching is None and scheduling.token_budget is None else ()
    known = Known(rules, _of_shape(law, shares), kv_known, shares is not None, told.error, assumed, seen)
    found = _fitted(Observed(chosen, protocol=told_by(chosen, protocol)), known)
    return replace(found, warnings=(*found.warnings, *_fell_behind(points, open_loop)))


def _fell_behind(points: Sequence[Point], open_loop: bool) -> Iterator[Caution]:
    """A warning about open loops that were measured in good faith but have no steady state."""
    offered = [point for point in points if not point.void and point.load_kind in OPEN_LOOPS]
    behind = sum(not is_stable(point) for point in offered)
    if open_loop and behind:
        yield Caution("fell_behind", {"points": behind, "given": len(offered)})


def told_by(points: Sequence[Point], protocol: Protocol) -> Protocol:
    """The protocol; if it does not say how users started, as all closed loops of several users say."""
    starts = {point.protocol for point in points if point.closed and concurrency(point) > 1}
    if protocol.start != "unknown" or len(starts) != 1 or starts == {""}:
        return protocol
    return replace(protocol, start=STARTS[starts.pop()])


def _kv_tokens(told: DayZero, points: Sequence[Point]) -> int | None:
    """The KV cache if one level shows no limit of it: as estimated, and large enough for what was seen to decode."""
    if told.kv_tokens is None:
        return None
    return max(told.kv_tokens, _held_tokens(points))


def _within_memory(rules: Sequence[Batching], told: DayZero, points: Sequence[Point]) -> tuple[Batching, ...]:
    """The rules with the estimated KV cache, which more users than were measured may fill: without a limit the law
    would promise them more than memory holds. Not where the server held that much already, or nearly."""
    if told.kv_tokens is None or _held_tokens(points) > NEARLY_FULL * told.kv_tokens:
        return tuple(rules)
    return tuple(replace(rule, kv_tokens=told.kv_tokens) for rule in rules)


def _held_tokens(points: Sequence[Point]) -> int:
    """The most tokens that sequences held while they decoded, if all were about to end."""
    return max(math.ceil(decoding(point) * (point.isl + point.osl)) for point in points)


OTHER_UNITS = 30.0
"""Requests/s over what users can ask for with the latencies of their level that no way of counting explains."""


def _check_units(points: Sequence[Point]) -> None:
    """FitError for latencies far longer than requests/s and users allow by Little's law: most likely they are in
    milliseconds."""
    logs = [counting_log(point) for point in points if point.closed]
    times = math.exp(float(np.median(logs))) if logs else 1.0
    if times > OTHER_UNITS:
        raise FitError(
            f"requests/s are {times:,.3g} times what the users can ask for with such latencies: are TTFT, ITL and E2E "
            "in seconds?"
        )


REFUTED = 1.15
"""Tokens held or sequences of a level, by Little's law, over the limit given, from which that limit is not believed."""


def _told_scheduling(points: Sequence[Point], by_caller: Scheduling) -> Scheduling:
    """What the caller tells, else what all points say alike."""
    said = points[0].batching.strip().lower()
    of_all = zip(*(point.scheduling for point in points), strict=True)
    alike = {name: each[0] for name, each in zip(Scheduling._fields, of_all, strict=True) if len(set(each)) == 1}
    policy = next((each for each in POLICIES if each == said), alike.get("policy", ""))
    return Scheduling(**{**alike, "policy": policy, **by_caller.told})


def _told_kv_tokens(points: Sequence[Point]) -> set[int]:
    """Sizes of the KV cache that the points give."""
    return {point.kv_tokens for point in points if point.kv_tokens}


def _told_block_tokens(points: Sequence[Point]) -> int | None:
    """Tokens of a block of the KV cache, if all points give the same."""
    told = {point.kv_block_tokens for point in points}
    return told.pop() if len(told) == 1 else None


def _refuted_kv_tokens(kv_tokens: int, points: Sequence[Point]) -> bool:
    return _mean_held_tokens(points) > REFUTED * kv_tokens


def _mean_held_tokens(points: Sequence[Point]) -> int:
    """The most tokens of their own that sequences held on average while they decoded."""
    return max(math.ceil(decoding(point) * (point.computed_tokens + point.osl / 2)) for point in points)


def _refuted_slots(points: Sequence[Point]) -> bool:
    slots = points[0].max_batch_size
    return slots is not None and max(map(decoding, points)) > REFUTED * slots


def _from_data_sheet(points: Sequence[Point]) -> DayZero:
    """What the GPU alone says about an unknown model's law: how the arithmetic of a token compares with a step of few
    sequences, which mostly reads the weights. Servers far from saturation show no more than that a token takes less
    than their spare time."""
    share = token_share(points[0].gpu, points[0].precision)
    if share is None:
        return DayZero(None, KERNEL_TIMED, None)
    step_s = min(map(itl_s, points))
    law = StepLaw(0.0, 0.0, token_s=DENSE_OR_NOT * share * READING * step_s, sequence_s=0.0, kv_token_s=0.0)
    return DayZero(law, SHEET_ERROR, None)


def fit_trace(trace: ServedTrace, deployment: Deployment, *, batching: Batching | None = None) -> Fit:
    """Fit the law to requests served by one replica, one by one: the arrivals are replayed as they were, and the means
    and TTFT percentiles of twelve groups of consecutive requests compared. Requests whose latencies are not known (NaN)
    load the server and are not compared: of a trace that is cut, keep all arrivals.

    Raises FitError when there are fewer than ten requests in a group, or nothing measured.
    """
    known = int(trace.judged.sum())
    if known < 10 * TRACE_GROUPS or not np.isfinite(trace.ttft_s).any():
        raise FitError(
            f"a trace of {known} requests in {TRACE_GROUPS} groups: give ten requests per group or more, with TTFT"
        )
    points = trace_points(trace, deployment)
    rules = _candidates(points, batching, None, _told_scheduling(points, UNSAID))
    kv_known = batching is not None and batching.kv_tokens != UNLIMITED_KV_TOKENS
    shares = unread_shares(deployment.model)
    return _fitted(Observed(points, trace), Known(rules, _of_shape(None, shares), kv_known, shares is not None))


def _of_shape(prior: StepLaw | None, shares: tuple[float, float] | None) -> StepLaw | None:
    """The law to lean on, with the unread shares that follow from the model's shape where it is known."""
    if shares is None:
        return prior
    if prior is not None and prior.unread and shares[0] and math.isclose(prior.unread_decay, shares[1], rel_tol=1e-5):
        prior = prior.with_unread(shares[0])
        return replace(prior, unread_decay=shares[1])
    return replace(prior or FREE, unread=shares[0], unread_decay=shares[1])


def _fitted(observed: Observed, known: Known) -> Fit:
    best = best_trial(observed, known)
    slopes = best.slopes(best.numbers)
    chi2 = best.chi2_per_point
    bent = bend(best)
    means = best.replay.means(best.replica)
    distrusted = _distrusted(best, means)
    covariance = best.covariance(slopes)
    one_level = observed.trace is None and of_one_level(observed.points)
    bends = BENDS_OF_ESTIMATE * known.prior_error if one_level and not bent else 0.0
    unknown = unknowns(best.parameters.names, slopes, np.sqrt(np.diag(best.parameters.covariance)))
    found = Fit(
        deployment=observed.points[0].deployment,
        law=best.replica.law,
        batching=best.replica.batching,
        names=COEFFICIENTS,
        covariance=covariance,
        errors=_point_errors(observed, means),
        leave_one_out=best.leave_one_out(slopes),
        chi2_per_point=chi2,
        calibrated=_range(observed.points),
        warnings=tuple(_warnings(best, bent, distrusted.values(), known)),
        left=np.full((len(observed.points), 3), math.nan),
        extra=best.parameters.names[len(COEFFICIENTS) :],
        distrusted=tuple(distrusted.values()),
        unknown=unknown,
        lockstep=_in_lockstep(best.observed),
        protocol=best.observed.protocol,
        sigmas=tuple(_sigmas(slopes, best.unexplained)),
        law_error=best.law_error,
        bent=bent,
        open_sizes=(bends, bends),
        elsewhere=_elsewhere(known, best.law_error, observed.points),
    )
    return replace(found, left=_left(found, distrusted))


def _in_lockstep(observed: Observed) -> bool:
    """True if users started at once with equal lengths: they then stay in lockstep."""
    return observed.protocol.at_once and any(point.lengths.fixed for point in observed.points)


def _left(found: Fit, distrusted: Collection[int]) -> Floats:
    """What the closed-loop levels show beyond the engine, those that are trusted."""
    points = [error.point for error in found.errors]
    left = np.full((len(points), 3), math.nan)
    rows = [row for row, point in enumerate(points) if row not in distrusted and point.closed]
    if rows:
        own = [points[row] for row in rows]
        left[rows] = left_over(own, found.engine_means(own))
    return left


def _elsewhere(known: Known, found: LawError, points: Sequence[Point]) -> float:
    """Error of the law for each unit of distance from measured lengths, by published servers predicted from other
    lengths of theirs: small where the law leans on kernel timings, large where it leans on the data sheet or on
    nothing; the less, the better the engine is seen to follow the law."""
    if is_timed(known.prior, known.prior_error):
        of_one_isl = same_isl([point.isl for point in points]) and not of_one_level(points)
        return NEAR_KERNELS * (FROM_ONE_ISL if of_one_isl else 1.0)
    if known.prior is not None and known.prior.weights_s > 0:
        return FROM_SHAPE
    seen = max(0.0, max(found) - LITTLE)
    return FROM_SHAPE * min(1.0, seen / (USUALLY_OFF - LITTLE))


def _sigmas(slopes: Floats, unexplained: float) -> list[float]:
    """Standard errors of the numbers one by one, by the slopes alone: of a coefficient too small to be seen the points
    set an upper end, and no lower one."""
    variances = np.diag(np.linalg.inv(slopes.T @ slopes)) * max(1.0, unexplained)
    return [float(sigma) for sigma in np.sqrt(variances)]


def _usable(points: Sequence[Point], open_loop: bool) -> tuple[Point, ...]:
    sound = [point for point in points if not point.void]
    chosen = [point for point in sound if point.closed]
    if open_loop:
        chosen += [point for point in sound if point.load_kind in OPEN_LOOPS and is_stable(point)]
    if not chosen:
        void = sorted({point.verdict for point in points if point.void})
        why = f"; the others are void: {', '.join(void)}" if void else ""
        rates = " or at a rate that the server keeps up with (constant_rate, poisson_rate)" if open_loop else ""
        raise FitError(f"no points to fit a law to: measure at fixed concurrency (load_kind concurrency){rates}{why}")
    deployments = {point.deployment: None for point in chosen}
    if len(deployments) > 1:
        labels = "; ".join(deployment.label for deployment in deployments)
        raise FitError(f"the points are of {len(deployments)} deployments, fit one at a time: {labels}")
    return tuple(sorted(chosen, key=_place))


def _place(point: Point) -> tuple[bool, float, float, str, float, str]:
    """Sorts the points of a fit, so that the order in which they were given does not matter: a search that ends within
    rounding errors of two explanations would choose between them by the order of rows."""
    return (not point.closed, point.isl, point.osl, point.load_kind, point.load_value, repr(point))


def _candidates(
    points: Sequence[Point],
    batching: Batching | None,
    kv_tokens: int | None,
    scheduling: Scheduling,
) -> tuple[Batching, ...]:
    if batching is not None:
        return (batching,)
    told_policy, told_budget = scheduling.policy, scheduling.token_budget
    one = points[0]
    defaults = defaults_of(one)
    policies: tuple[Policy, ...] = (told_policy,) if told_policy else defaults.policies
    if scheduling.batch_wait_steps and not told_policy:
        policies = ("chunked", "whole_prompt")  # the others know no such wait
    decoding_most = max(decoding(point) for point in points)
    busy = max(busiest(points), math.ceil(decoding_most))
    longest = max(point.isl for point in points)
    budgets = (told_budget,) if told_budget else _budgets_that_differ(defaults.token_budgets, busy * (longest + 1))
    # Where more sequences decode at once than a limit allows, by Little's law, it is not the limit; where fewer users
    # were there than a limit allows, no lower one is believed.
    likely = (defaults.max_batch_size, SLOTS_BY_HAND, busy)
    told = one.max_batch_size if not _refuted_slots(points) else None
    limits = (told,) if told else _limits_that_differ(likely, busy, decoding_most)
    limits += tuple(limit for limit in _limits_seen(points, kv_tokens or UNLIMITED_KV_TOKENS) if limit not in limits)
    usual = Batching(
        kv_tokens=kv_tokens or UNLIMITED_KV_TOKENS,
        kv_policy=defaults.kv_policy,
        kv_block_tokens=_told_block_tokens(points) or defaults.kv_block_tokens,
        lookahead_steps=defaults.lookahead_steps,
    )
    base = replace(usual, **scheduling.told)
    bases = (replace(base, policy=each, budget_guessed=each == "whole_prompt" and not told_budget) for each in policies)
    rules = tuple(
        replace(each, max_batch_size=limit, token_budget=budget)
        for limit, each, budget in product(limits, bases, budgets)
    )
    if told_policy == "static" and any(point.isl_cv for point in points):  # alike where all prompts are equally long
        rules += tuple(replace(rule, padded=False) for rule in rules)
    return rules


def _limits_that_differ(likely: Sequence[int], busy: int, decoding_most: float) -> tuple[int, ...]:
    """Limits of the batch to try, the likeliest first: those that so many sequences can have decoded under, the first
    under which `busy` requests run at once, and those that hold some of them up."""
    possible = [limit for limit in dict.fromkeys(likely) if limit >= decoding_most]
    roomy = next((limit for limit in possible if limit >= busy), busy)
    return tuple(limit for limit in possible if limit == roomy or limit < busy)


def _limits_seen(points: Sequence[Point], kv_tokens: int) -> tuple[int, ...]:
    """The limit of the batch by what ran at once where users waited though the KV cache had room: the power of two that
    is near, else what was seen. A sequence holds its place for the iteration of its prompt and for OSL - 1 steps. None
    where the limit was told, the size of the cache was not, or a single level tells nothing of either."""
    one = points[0]
    static = one.batching.strip().lower() == "static"
    if one.max_batch_size or kv_tokens == UNLIMITED_KV_TOKENS or static or of_one_level(points):
        return ()
    closed = [point for point in points if point.closed]
    waited = [point for point in closed if decoding(point) < FEW_DECODING * in_flight(point)]
    at_once = max((point.requests_per_s * point.osl * itl_s(point) for point in waited), default=0.0)
    longest = max((point.isl + point.osl for point in waited), default=0.0)
    if at_once < 1 or at_once * longest > FEW_DECODING * kv_tokens:
        return ()
    seen = max(at_once, *map(decoding, closed))
    near = 2 ** round(math.log2(seen))
    return (near if abs(math.log(near / seen)) < SET_BY_HAND else round(seen),)


def _budgets_that_differ(usual: Sequence[int], most_tokens: float) -> tuple[int, ...]:
    """Token budgets to try, the likeliest of the `usual` ones first, then those of all that all waiting prompts
    together exceed, and the common one where only a smaller one is usual."""
    likeliest, common = usual[0], TOKEN_BUDGETS[0]
    others = [budget for budget in TOKEN_BUDGETS if budget < most_tokens]
    if likeliest < most_tokens <= common:
        others.append(common)
    return tuple(dict.fromkeys((likeliest, *others)))


def _with_budget_seen(rules: Sequence[Batching], points: Sequence[Point]) -> tuple[Batching, ...]:
    """The rules that take prompts in chunks, with the token budget that the levels may show: the most that went through
    an iteration, whose time the mean ITL is, if it is near a power of two. None where it is not, or is one of theirs:
    nothing then says that iterations were full."""
    most = max(point.requests_per_s * (point.computed_tokens + point.osl) * itl_s(point) for point in points)
    seen = 2 ** round(math.log2(max(most, 1.0)))
    if abs(math.log(most / seen)) > NEAR_A_BUDGET or seen in [rule.token_budget for rule in rules]:
        return ()
    chunked = (replace(rule, token_budget=seen) for rule in rules if rule.policy == "chunked")
    return tuple(dict.fromkeys(chunked))


def _point_errors(observed: Observed, means: Floats) -> tuple[PointError, ...]:
    errors = means / observed.measured - 1
    return tuple(
        PointError(point, *map(float, row[:3]), *map(float, error))
        for point, row, error in zip(observed.points, means, errors, strict=True)
    )


def _distrusted(best: Trial, means: Floats) -> dict[int, Distrust]:
    """By row, the points that the others disagree with: in a figure that was compared, or in requests/s that were not,
    because the tool counts otherwise."""
    sigmas = np.nan_to_num(best.misfits(best.numbers) * best.doubt[:, None])
    points, found = best.observed.points, dict[int, Distrust]()
    if best.observed.trace is None:
        for row, apart in counted_apart(points).items():
            found[row] = Distrust(points[row], FIGURES[0], math.expm1(-apart), abs(apart) / RATE_SIGMA)
    for row in map(int, np.flatnonzero(best.doubt > 1)):
        place = int(np.argmax(np.abs(sigmas[row])))
        off = float(means[row, place] / best.measured[row, place] - 1)
        found[row] = Distrust(points[row], FIGURES[place], off, float(abs(sigmas[row, place])))
    return dict(sorted(found.items()))


def _range(points: Sequence[Point]) -> CoveredRange:
    isl, osl = [point.isl for point in points], [point.osl for point in points]
    return CoveredRange(busiest(points), (min(isl), max(isl)), (min(osl), max(osl)), min(map(in_flight, points)))


ITL_OFF, TTFT_OFF = 0.10, 0.30
"""Errors of the law, bends included, from which it is said what is wrong; requests/s as ITL."""
FEW_DECODING = 0.8
"""Sequences that decode, over users and slots, below which memory or a limit on the batch holds the others up."""


def _warnings(best: Trial, bent: Sequence[BentLaw], distrusted: Iterable[Distrust], known: Known) -> Iterator[Caution]:
    points = best.observed.points
    left = [own.law_error for own in bent] or [best.law_error]
    off = LawError(*(max(errors) for errors in zip(*left, strict=True)))
    steps = max(off.itl, off.requests_per_s)
    if steps > ITL_OFF or off.ttft > TTFT_OFF:
        yield Caution("poor_fit", off._asdict() | _likely_cause(best, steps > ITL_OFF))
    yield from (distrust.caution for distrust in distrusted)
    if "kv_tokens" in best.parameters.names:
        yield Caution("fitted_kv_tokens", {"kv_tokens": best.replica.batching.kv_tokens})
    elif not known.kv_known and best.replica.batching.kv_tokens != UNLIMITED_KV_TOKENS:
        yield Caution("estimated_kv_tokens", {"kv_tokens": best.replica.batching.kv_tokens})
    for tokens in sorted(_told_kv_tokens(points)):
        if _refuted_kv_tokens(tokens, points):
            yield Caution("refuted_kv_tokens", {"told": tokens, "held": _mean_held_tokens(points)})
    if _refuted_slots(points):
        yield Caution("refuted_slots", {"told": points[0].max_batch_size or 0, "decoding": max(map(decoding, points))})
    slots = best.replica.batching.max_batch_size
    memory = best.replica.batching.kv_tokens if known.kv_known else UNLIMITED_KV_TOKENS
    if "kv_tokens" not in best.parameters.names and slots in _limits_seen(points, memory):
        yield Caution("fitted_slots", {"max_batch_size": slots})
    if (budget := best.replica.batching.token_budget) in [rule.token_budget for rule in known.seen]:
        yield Caution("fitted_budget", {"token_budget": budget})
    if known.lookahead_assumed and not best.replica.batching.lookahead_steps:
        yield Caution("fitted_lookahead", {"engine": points[0].engine})
    if "unread" in best.parameters.names:
        law = best.replica.law
        yield (
            Caution("fitted_experts", {"used": 1 - law.unread_decay})
            if law.has_experts
            else Caution("fitted_unread", {"unread": law.unread})
        )
    elif not known.shape_known:
        yield Caution("fitted_dense", {"model": points[0].model})
    if _in_lockstep(best.observed):
        yield Caution("lockstep")
    if best.observed.trace is None and of_one_level(points):
        yield Caution("one_level", {"points": len(points), "load": points[0].load_label})
    elif distinct(points) < 3:
        yield Caution("few_points", {"points": len(points)})
    if best.observed.trace is None and not any(map(knows_ttft, points)):
        yield Caution("no_ttft")
    if all(point.closed and users_wait(point, best.replica.batching) for point in points):
        yield Caution("all_queued")
    prompts = [[point.isl for point in points], [point.computed_tokens for point in points]]
    if best.observed.trace is None and all(map(same_isl, prompts)):
        isl = float(np.mean(prompts[0]))
        yield Caution("one_isl", {"isl": isl, "longer": 4 * isl})


def _likely_cause(best: Trial, in_steps: bool) -> dict[str, float | str]:
    """What most likely makes the law miss, in the time of steps or in TTFT alone, and the level at which it shows."""
    points, slots = best.observed.points, best.replica.batching.max_batch_size
    logs = np.abs(np.nan_to_num(best.misfits(best.numbers) * best.errors)[:, [0, 2]]).max(axis=1)
    worst = int(np.argmax(logs))
    point = points[worst]
    where: dict[str, float | str] = {
        "isl": point.isl,
        "osl": point.osl,
        "load": point.load_label,
        "decoding": decoding(point),
    }
    if not in_steps:
        return {"cause": "unlike" if holds_no_start(points, best.observed.protocol) else "start"}
    if decoding(point) < FEW_DECODING * min(in_flight(point), slots):
        return where | {"cause": "memory"}
    alone = len(points) > 2 and logs[worst] > APART * np.delete(logs, worst).max()
    return where | {"cause": "level" if alone else "unlike"}
