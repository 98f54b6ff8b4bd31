"""The iteration-time law fitted to the measured levels of one deployment, with its uncertainty and its errors.

The forward model is the simulator itself: it replays every level with a trial law, and scipy's least squares moves the
logarithms of the eight coefficients until requests/s, TTFT and ITL agree. The batching policy, where it is not known,
is the one that leaves the smallest residuals. Only sums of some coefficients can be told from closed loops (weights and
overhead; prefill and request): their priors keep them apart, and the covariance says that they are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sizing.engine import COEFFICIENTS, POLICIES, Batching, Policy, StepLaw
from sizing.errors import FitError
from sizing.fitting.levels import (
    OPEN_LOOPS,
    UNTOLD,
    Observed,
    Protocol,
    ServedTrace,
    busiest,
    in_flight,
    is_stable,
    trace_points,
)
from sizing.fitting.result import CoveredRange, Distrust, Fit, PointError, Unknown
from sizing.fitting.search import POOR, Known, Trial, best_trial
from sizing.numbers import Floats, percent
from sizing.points import Deployment, Point

# --- How sure the fitted numbers are: the curvature of the cost around the best ones, measured where it matters

LEAST, MOST = 0.2, 2.0
"""The correction changes no variance beyond these shares: the cost of a simulation is not smooth."""


def covariance_of(trial: Trial, slopes: Floats) -> Floats:
    """Covariance of the numbers, shape (names, names), widened where the misfits exceed the errors of
    measurement and law.

    The inverse of J'J starts it. Logarithms of coefficients that hardly count have little slope, and far too wide a
    standard error follows: made five times as large such a coefficient does count, and the points speak against it. So
    the cost is looked at one standard error away to both sides along every eigenvector, where it should have risen by a
    half, and the variance there corrected in proportion (a Laplace approximation by secants).
    """
    covariance = _corrected(trial, np.asarray(np.linalg.inv(slopes.T @ slopes), np.float64))
    widened: Floats = covariance * max(1.0, trial.unexplained)
    return widened


def _corrected(trial: Trial, covariance: Floats) -> Floats:
    variances, directions = np.linalg.eigh(covariance)
    here = trial.cost_at(trial.numbers)
    for place, direction in enumerate(directions.T):
        step = np.sqrt(variances[place]) * direction
        rise = np.mean([trial.cost_at(trial.numbers + step), trial.cost_at(trial.numbers - step)]) - here
        variances[place] *= np.clip(0.5 / max(float(rise), 1e-9), LEAST, MOST)
    corrected: Floats = (directions * variances) @ directions.T
    return corrected


# --- Which coefficients the points tell and which they do not, and the measurement that would

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


#
# The forward model is the simulator itself: it replays every level with a trial law, and scipy's least squares moves
# the logarithms of the eight coefficients until requests/s, TTFT and ITL agree. The batching policy, where it is not
# known, is the one that leaves the smallest residuals. Only sums of some coefficients can be told from closed loops
# (weights and overhead; prefill and request): their priors keep them apart, and the covariance says that they are not
# known.

SLOTS_UNKNOWN = 256
"""max_batch_size where the points do not tell: the default of the common engines."""
UNLIMITED_KV_TOKENS = Batching().kv_tokens
FIGURES = ("requests/s", "mean TTFT", "mean ITL", "mean E2E", "p50 TTFT", "p95 TTFT", "p50 gap", "p95 gap")


def fit(
    points: Sequence[Point],
    *,
    prior: StepLaw | None = None,
    batching: Batching | None = None,
    kv_tokens: int | None = None,
    token_budget: int | None = None,
    open_loop: bool = False,
    protocol: Protocol = UNTOLD,
) -> Fit:
    """Fit the law to the closed-loop points of one deployment (any number of lengths) and, if asked, the open-loop
    ones at a constant or Poisson rate that kept up with it.

    `prior`: a law from elsewhere to lean on, such as a day-zero estimate. `batching`: the engine's, when it is known;
    otherwise the policy is chosen by residual and the batch limit taken from the points, `kv_tokens` and
    `token_budget` from the caller. `protocol`: how the points were measured. A KV cache of unknown size is fitted
    where it seems to limit the batch.
    Raises FitError without points to fit, with several deployments, or with fewer than two load levels.
    """
    chosen = _usable(points, open_loop)
    rules = _candidates(chosen, batching, kv_tokens, token_budget)
    kv_known = kv_tokens is not None or (batching is not None and batching.kv_tokens != UNLIMITED_KV_TOKENS)
    return _fitted(Observed(chosen, protocol=protocol), Known(rules, prior, kv_known))


def fit_trace(
    trace: ServedTrace,
    deployment: Deployment,
    *,
    prior: StepLaw | None = None,
    batching: Batching | None = None,
    chunks: int = 12,
) -> Fit:
    """Fit the law to requests served by one replica, one by one: the arrivals are replayed as they were, and the means
    and TTFT percentiles of `chunks` groups of consecutive requests compared.

    Raises FitError when there are fewer than ten requests in a group, or nothing measured.
    """
    if len(trace.isl) < 10 * chunks or not np.isfinite(trace.ttft_s).any():
        raise FitError(
            f"a trace of {len(trace.isl)} requests in {chunks} groups: give ten requests per group or more, with TTFT"
        )
    points = trace_points(trace, deployment, chunks)
    rules = _candidates(points, batching, None, None)
    kv_known = batching is not None and batching.kv_tokens != UNLIMITED_KV_TOKENS
    return _fitted(Observed(points, trace), Known(rules, prior, kv_known))


def _fitted(observed: Observed, known: Known) -> Fit:
    best = best_trial(observed, known)
    slopes = best.slopes(best.numbers)
    chi2 = best.chi2_per_point
    means = best.replay.means(best.replica)
    together = best.observed.protocol.start == "together" and any(p.lengths.fixed for p in observed.points)
    distrusted = _distrusted(best, means)
    covariance = covariance_of(best, slopes)
    unknown = unknowns(best.parameters.names, slopes, best.parameters.sigma)
    return Fit(
        deployment=observed.points[0].deployment,
        law=best.replica.law,
        batching=best.replica.batching,
        names=COEFFICIENTS,
        covariance=covariance,
        errors=_point_errors(observed, means),
        leave_one_out=best.leave_one_out(slopes),
        chi2_per_point=chi2,
        calibrated=_range(observed.points),
        warnings=_warnings(best, chi2, distrusted),
        extra=best.parameters.names[len(COEFFICIENTS) :],
        distrusted=distrusted,
        unknown=unknown,
        lockstep=together,
        protocol=best.observed.protocol,
        sigmas=tuple(_sigmas(slopes, best.unexplained)),
        law_error=best.law_error,
    )


def _sigmas(slopes: Floats, unexplained: float) -> list[float]:
    """Standard errors of the numbers one by one, by the slopes alone: of a coefficient too small to be seen the points
    set an upper end, and no lower one."""
    variances = np.diag(np.linalg.inv(slopes.T @ slopes)) * max(1.0, unexplained)
    return [float(sigma) for sigma in np.sqrt(variances)]


def _usable(points: Sequence[Point], open_loop: bool) -> tuple[Point, ...]:
    sound = [point for point in points if not point.void]
    chosen = [point for point in sound if point.load_kind == "concurrency"]
    if open_loop:
        chosen += [point for point in sound if point.load_kind in OPEN_LOOPS and is_stable(point)]
    if not chosen:
        void = sorted({point.verdict for point in points if point.void})
        why = f"; the others are void: {', '.join(void)}" if void else ""
        raise FitError(f"no closed-loop points (load_kind concurrency): measure at fixed concurrency to fit a law{why}")
    deployments = {point.deployment: None for point in chosen}
    if len(deployments) > 1:
        labels = "; ".join(deployment.label for deployment in deployments)
        raise FitError(f"the points are of {len(deployments)} deployments, fit one at a time: {labels}")
    if len({in_flight(point) for point in chosen}) < 2:
        raise FitError(
            f"all points have concurrency {in_flight(chosen[0]):g}: measure at two levels or more, such as 1 and 64"
        )
    return tuple(chosen)


def _candidates(
    points: Sequence[Point], batching: Batching | None, kv_tokens: int | None, token_budget: int | None
) -> tuple[Batching, ...]:
    if batching is not None:
        return (batching,)
    said = points[0].batching.strip().lower()
    slots = points[0].max_batch_size or SLOTS_UNKNOWN
    policies: tuple[Policy, ...] = ("chunked", "prefill_first", "whole_prompt")
    if said in POLICIES:
        policies = tuple(policy for policy in POLICIES if policy == said)
    budget = token_budget or Batching().token_budget
    rules = tuple(Batching(policy, slots, budget, kv_tokens or UNLIMITED_KV_TOKENS) for policy in policies)
    if said == "static" and any(point.isl_cv for point in points):  # alike where all prompts are equally long
        rules += tuple(replace(rule, padded=False) for rule in rules)
    return rules


def _point_errors(observed: Observed, means: Floats) -> tuple[PointError, ...]:
    errors = means / observed.measured - 1
    return tuple(
        PointError(point, *map(float, row[:3]), *map(float, error))
        for point, row, error in zip(observed.points, means, errors, strict=True)
    )


def _distrusted(best: Trial, means: Floats) -> tuple[Distrust, ...]:
    sigmas = np.nan_to_num(best.misfits(best.numbers) * best.doubt[:, None])
    found = []
    for row in np.flatnonzero(best.doubt > 1):
        place = int(np.argmax(np.abs(sigmas[row])))
        off = float(means[row, place] / best.measured[row, place] - 1)
        found.append(Distrust(best.observed.points[row], FIGURES[place], off, float(abs(sigmas[row, place]))))
    return tuple(found)


def _range(points: Sequence[Point]) -> CoveredRange:
    isl, osl = [point.isl for point in points], [point.osl for point in points]
    return CoveredRange(busiest(points), (min(isl), max(isl)), (min(osl), max(osl)))


def _warnings(best: Trial, chi2: float, distrusted: Sequence[Distrust]) -> tuple[str, ...]:
    points = best.observed.points
    found = []
    if chi2 > POOR:
        found.append(
            f"the law misses the points by {np.sqrt(chi2):.1f} times the measurement error: another batching policy, "
            "a KV cache that limits the batch, or a faulty measurement"
        )
    found += [str(distrust) for distrust in distrusted]
    if "kv_tokens" in best.parameters.names:
        found.append(
            f"fewer sequences ran at once than there were users: fitted with a KV cache of about "
            f"{best.replica.batching.kv_tokens:,} tokens; give its size if you know it"
        )
    if "unread" in best.parameters.names:
        found.append(
            f"a single sequence runs faster than batches explain: {percent(best.replica.law.unread)} of the weights' "
            "time is saved there"
        )
    if best.observed.protocol.start == "together" and any(point.lengths.fixed for point in points):
        found.append(
            "the points look like users who started together and stayed in lockstep, with equal lengths: engine "
            "overheads hide there; measure with lengths that vary, or start the users one after the other"
        )
    if len(points) < 3:
        found.append(f"only {len(points)} points: the law leans on its priors; measure 1, 8, 64 and the batch limit")
    if len({(point.isl, point.osl) for point in points}) == 1:
        found.append("one pair of lengths only: a second, contrasting one tells KV reads from arithmetic")
    return tuple(found)
