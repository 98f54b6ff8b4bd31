"""The search for what explains the levels best: batching rule, law, and whatever else the misfit asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sizing.engine import COEFFICIENTS, FREE, Batching, Replica, StepLaw
from sizing.errors import FitError
from sizing.estimate.silicon import REQUEST_S
from sizing.fitting.levels import (
    FULL,
    MOST_DISTRUSTED,
    SKETCH,
    Effort,
    Observed,
    concurrency,
    decoding,
    held_tokens,
    in_flight,
    itl_s,
    of_one_level,
    ttft_s,
)
from sizing.fitting.parameters import (
    BEND_SD,
    EXACT,
    LEAST_FIGURES,
    PROMPT_BEND_SD,
    Parameters,
    bend_root,
    law_error,
    law_parameters,
    least_squares,
    stepped,
)
from sizing.numbers import Floats
from sizing.points import Point, Protocol
from sizing.simulator.replay import GAPS, Replay

# --- One batching rule and the law that fits it best: least squares with the simulator as forward model

WIDE = 0.3
"""Half the width, in logarithms, over which the final slopes are taken."""
FAR = 10.0
"""The first step of a search may change the numbers by this much: the slopes, not a bound, say how far to go."""
LEAST_TO_LEAVE_OUT = 3
"""Fewest points from which one can be left out and predicted from the others."""
LIFT = 0.05
"""Logarithm by which a bend is lifted to see what it does."""
LEAST, MOST, LOOKS = 0.2, 2.0, 3
"""The most that one look at the cost may change a variance, as the cost of a simulation is not smooth; and how many
looks there are."""
START_PRICE, KV_PRICE, BUDGET_PRICE, POLICY_PRICE, LOOKAHEAD_PRICE = 10.0, 3.0, 6.0, 10.0, 4.0
"""Added to the cost of an explanation with users who began together, with a fitted KV cache, or with another token
budget, policy or look-ahead than the engine's defaults: what each must gain to be believed. The first holds for TTFT
that is trusted in full, and falls with the trust, as the possible gain does."""
CHUNK_PRICE = 20.0
"""Replaces BUDGET_PRICE for an MoE model whose prompts are cut. At the measured lengths smaller chunks explain the
fixed cost of an iteration with a prompt as well; for longer prompts they are far off."""
LITTLE = 0.01
"""Changes of the law's error that do not move the fit: those of the measurement are 2 to 4 %."""


class Trial:
    """One way to explain the levels, and the numbers that do it best so far."""

    def __init__(
        self,
        observed: Observed,
        parameters: Parameters,
        start: Floats | None = None,
        *,
        effort: Effort = FULL,
        robust: bool = False,
        errors: Floats | None = None,
    ) -> None:
        self.observed, self.parameters = observed, parameters
        self.robust = robust  # soften large misfits
        self.numbers = parameters.centre if start is None else start
        # Distances from the prior become independent standard normal variables.
        self._whitening = np.asarray(np.linalg.inv(np.linalg.cholesky(parameters.covariance)))
        self.runs = observed.runs(effort)
        self.measured = observed.measured.copy()
        if effort is not FULL:
            self.measured[:, -len(GAPS) :] = np.nan
        self.known = np.isfinite(self.measured)
        self._logs = np.log(self.measured)
        self._counted = bool(self.known[:, -len(GAPS) :].any())
        self.replay = observed.replay(effort, parameters.base, token_gaps=self._counted)
        self.doubt = np.ones(len(observed.points))  # factors on the errors of a point
        self.cost = np.inf
        self.law_error = EXACT
        self.log_slopes: Floats | None = None  # of the means, as `steep_logs` gives them, where they are known roughly
        self._simulated: tuple[Floats, Floats] = np.empty(0), np.empty(0)  # the last numbers and their `logs`
        self._nearest = nearest_nodes(observed.points, parameters.nodes)
        if errors is None:
            self.grant(self.replica)
        else:
            self.errors = errors

    @property
    def replica(self) -> Replica:
        """The engine at the present numbers."""
        return self.parameters.replica(self.numbers)

    def grant(self, replica: Replica) -> None:
        """Set the relative standard errors of the measurement, shape (points, 8); those of open loops need an engine to
        be simulated."""
        self.errors = self.observed.errors(replica, self.replay if self._counted else None)

    def allow_for_law(self) -> bool:
        """Set the error of the law by the present misfits, distrusted points aside; False where that is no news."""
        trusted = self.doubt == 1
        logs = self.misfits(self.numbers)[trusted] * self.errors[trusted]
        found = law_error(logs, self.errors[trusted])
        is_news = not np.allclose(found, self.law_error, rtol=0.2, atol=LITTLE)
        self.law_error = found
        return is_news

    @property
    def claim(self) -> float:
        """The cost and the price of what the explanation takes for granted."""
        trust = (self.observed.protocol.ttft_sigma / self.observed.closed_ttft_sigma) ** 2
        price = trust * START_PRICE * self.observed.protocol.at_once
        price += KV_PRICE * ("kv_tokens" in self.parameters.names)
        batching, usual = self.parameters.base.batching, self.observed.defaults
        price += POLICY_PRICE * (usual.policy not in (None, batching.policy))
        price += LOOKAHEAD_PRICE * (batching.lookahead_steps != usual.lookahead_steps)
        if batching.token_budget not in usual.token_budgets:
            has_experts = self.parameters.base.law.has_experts
            price += CHUNK_PRICE if has_experts and batching.cuts_prompts else BUDGET_PRICE
        return self.cost + price

    def search(self, evaluations: int, stride: float, *, central: bool = False, carried: bool = False) -> Trial:
        """Move the numbers towards the least cost, in at most so many steps.

        Slopes are differences over `stride`: a wide one sees past the small jumps that the simulated TTFT makes when
        an arrival falls into another iteration. `central` ones, to both sides, are twice the work and twice as good.
        `carried`: they are taken once, or from `log_slopes` where these are set, and then corrected by what each step
        showed (Broyden 1965): a fifth of the work, for a sketch. A step to an engine so slow that some level has no
        answered request shows nothing, and least squares tries a shorter one. A search cannot start at such an engine:
        its cost is infinite.
        The search runs over the distance from its start, so its tolerances apply to that distance.
        """
        start, last = self.numbers, list[tuple[Floats, Floats]]()
        if not np.isfinite(self.logs(start)[self.known]).all():
            self.cost = math.inf
            return self

        def residuals(move: Floats) -> Floats:
            logs = self.logs(start + move)
            if not np.isfinite(logs[self.known]).all():
                return self._residuals_of(logs, start + move)
            if carried and last and self.log_slopes is not None:
                before, was = last[0]
                step = move - before
                if length := float(step @ step):
                    miss = logs - was - self.log_slopes @ step
                    self.log_slopes = self.log_slopes + np.multiply.outer(miss, step) / length
            last[:] = [(move.copy(), logs)]
            return self._residuals_of(logs, start + move)

        def slopes(move: Floats) -> Floats:
            if not carried or self.log_slopes is None:
                here = None if central else last[0][1] if np.array_equal(last[0][0], move) else self.logs(start + move)
                self.log_slopes = self.steep_logs(start + move, stride, here)
            return self._slopes_of(self.log_slopes)

        found = least_squares(
            residuals,
            np.zeros_like(start),
            jac=slopes,
            max_nfev=evaluations,
            xtol=1e-3,
            ftol=1e-3,
            x_scale=FAR,
            loss=lambda squares: np.stack([*self.softened(squares), np.zeros_like(squares)]),
        )
        self.numbers, self.cost = start + found.x, float(found.cost)
        return self

    def logs(self, numbers: Floats) -> Floats:
        """Logarithms of what the engine with these numbers gives, shape (points, 8); 0 where it gives nothing that was
        not measured either."""
        if not np.array_equal(self._simulated[0], numbers):
            self._simulated = numbers.copy(), self._logs_of([numbers])[0]
        return self._simulated[1]

    def _logs_of(self, numbers: Sequence[Floats]) -> Floats:
        """The same of several engines, shape (engines, points, 8)."""
        means = self.replay.means_of([self.parameters.replica(own) for own in numbers])
        return np.asarray(np.log(np.where(self.known | (means > 0), means, 1.0)))

    def residuals(self, numbers: Floats) -> Floats:
        """Misfits of the points in standard errors, the law's included; then the distance from the prior."""
        return self._residuals_of(self.logs(numbers), numbers)

    def _residuals_of(self, logs: Floats, numbers: Floats) -> Floats:
        misfit = ((logs - self._logs) / (self.errors * self.doubt[:, None] * self._widening))[self.known]
        return np.concatenate([misfit, self.whitened(numbers)])

    def whitened(self, numbers: Floats) -> Floats:
        """Distances of the numbers from the prior, shape (names,): independent standard normal before the data."""
        return np.asarray(self._whitening @ (numbers - self.parameters.centre))

    def _slopes_of(self, log_slopes: Floats) -> Floats:
        """Slopes of the residuals, shape (residuals, names)."""
        errors = self.errors * self.doubt[:, None] * self._widening
        own = (log_slopes / errors[:, :, None])[self.known]
        return np.concatenate([own, self._whitening])

    def softened(self, squares: Floats) -> tuple[Floats, Floats]:
        """What squared residuals count, and the slope of that: those of the points, if robust, grow like |r| in the
        end (soft L1). The slope is the weight in reweighted least squares; without it a step would go twice too far."""
        counts, slopes = squares.copy(), np.ones_like(squares)
        if self.robust:
            own = slice(int(self.known.sum()))
            root = np.sqrt(1 + squares[own])
            counts[own], slopes[own] = 2 * (root - 1), 1 / root
        return counts, slopes

    def misfits(self, numbers: Floats) -> Floats:
        """log(predicted / measured) over the measurement error, shape (points, 8); NaN where nothing was measured."""
        misfits: Floats = (self.logs(numbers) - self._logs) / (self.errors * self.doubt[:, None])
        return misfits

    @property
    def chi2_per_point(self) -> float:
        """Mean squared misfit of the present law, over the errors of the measurement alone."""
        return float(np.mean(self.misfits(self.numbers)[self.known] ** 2))

    @property
    def unexplained(self) -> float:
        """The same over the errors of measurement and law; 1 where there are too few figures to tell."""
        if self.known.sum() < LEAST_FIGURES:
            return 1.0
        return float(np.mean((self.misfits(self.numbers) / self._widening)[self.known] ** 2))

    @property
    def _widening(self) -> Floats:
        """The error of measurement and law together over that of the measurement alone, shape (points, 8)."""
        return np.asarray(np.hypot(1, self.law_error.by_measure * self.observed.shares / self.errors))

    def cost_at(self, numbers: Floats) -> float:
        """Half the sum of what the squared residuals count."""
        return self._cost(self.residuals(numbers))

    def covariance(self, slopes: Floats, of_prior: Floats | float = 1.0) -> Floats:
        """Covariance of the numbers, shape (names, names), by the slopes of all residuals, widened where the misfits
        exceed the errors of measurement and law. `of_prior`, shape (names,): how far from the prior the numbers are now
        thought to lie, as shares of its standard deviations.

        It starts from the inverse of J'J, which is far too wide for coefficients that hardly count: their logarithms
        have little slope, but five times as large they would count, and the points would contradict them. So the cost
        is computed one standard error to both sides along every eigenvector, where it should have risen by a half, and
        the variance is corrected in proportion (a Laplace approximation by secants); again, where it fell by the most
        that one look may change.
        """
        own = np.concatenate([np.ones(len(slopes) - len(self.numbers)), np.ones(len(self.numbers)) / of_prior])
        curvature = (slopes * own[:, None]).T @ (slopes * own[:, None])
        variances, directions = np.linalg.eigh(np.linalg.inv(curvature))
        here, looked_at = self._costs([self.numbers], own)[0], np.arange(len(variances))
        for _ in range(LOOKS):
            steps = np.sqrt(variances[looked_at])[:, None] * directions.T[looked_at]
            costs = self._costs([stepped(self.numbers, sign * step) for sign in (1, -1) for step in steps], own)
            rises = costs.reshape(2, -1).mean(axis=0) - here
            changes = np.clip(0.5 / np.maximum(rises, 1e-9), LEAST, MOST)
            variances[looked_at] *= changes
            looked_at = looked_at[changes == LEAST]
            if not len(looked_at):
                break
        return np.asarray((directions * variances) @ directions.T * max(1.0, self.unexplained))

    def _costs(self, numbers: Sequence[Floats], factors: Floats) -> Floats:
        """`cost_at` several numbers, the residuals times `factors`."""
        residuals = [self._residuals_of(logs, own) for logs, own in zip(self._logs_of(numbers), numbers, strict=True)]
        return np.array([self._cost(factors * each) for each in residuals])

    def _cost(self, residuals: Floats) -> float:
        return float(0.5 * np.sum(self.softened(residuals**2)[0]))

    def steep_logs(self, numbers: Floats, stride: float, here: Floats | None = None) -> Floats:
        """Slopes of the logarithms of the means, shape (points, 8, names): by central differences over `stride`, or
        from `here`, the logarithms at `numbers`, to one side.

        A bend is lifted at all batches together: what a level shows of it is put down to the node of its own batch.
        A step to an engine that answers none of a level's requests shows nothing there: 0.
        """
        straight, nodes = self.parameters.straight, self.parameters.nodes
        moves = list(stride * np.eye(len(numbers))[:straight])
        sds = (BEND_SD, PROMPT_BEND_SD) if nodes else ()
        for part, sd in enumerate(sds):
            move = np.zeros(len(numbers))
            place = slice(straight + part * len(nodes), straight + (part + 1) * len(nodes))
            move[place] = LIFT * np.linalg.solve(bend_root(nodes), np.ones(len(nodes))) / sd
            moves.append(move)
        if here is None:
            both = self._logs_of([numbers + sign * move for sign in (1, -1) for move in moves])
            rises = (both[: len(moves)] - both[len(moves) :]) / 2
        else:
            rises = self._logs_of([numbers + move for move in moves]) - here
        columns = list(rises[:straight] / stride)
        for rise, sd in zip(rises[straight:], sds, strict=True):
            coloured = sd * bend_root(nodes)[self._nearest]
            columns += list((rise[:, :, None] / LIFT * coloured[:, None, :]).transpose(2, 0, 1))
        slopes = np.stack(columns, axis=2)
        return np.where(self.known[:, :, None] & ~np.isfinite(slopes), 0.0, slopes)

    def slopes(self, numbers: Floats) -> Floats:
        """Slopes of the residuals at `numbers`, by their weights, over so wide a stride that they show what the data
        can tell: over short ones the jumps of the simulated TTFT look like knowledge of what nothing identifies."""
        return self._slopes_of(self.steep_logs(numbers, WIDE)) * self._weights(numbers)[:, None]

    def _weights(self, numbers: Floats) -> Floats:
        return np.sqrt(self.softened(self.residuals(numbers) ** 2)[1])

    def leave_one_out(self, slopes: Floats) -> float:
        """Median relative error of requests/s and ITL, each point predicted without its own help.

        One Gauss-Newton step away from the full fit, by the slopes of the other points; NaN below `LEAST_TO_LEAVE_OUT`
        points, where the others say next to nothing.
        """
        if len(self.known) < LEAST_TO_LEAVE_OUT:
            return float("nan")
        at_optimum = self.residuals(self.numbers) * self._weights(self.numbers)
        point_of_row = np.repeat(np.arange(len(self.known)), self.known.sum(axis=1))
        held_out = []
        for point in range(len(self.known)):
            own = np.flatnonzero(point_of_row == point)
            rest = np.delete(slopes, own, axis=0)
            numbers = self.numbers + np.linalg.solve(rest.T @ rest, slopes[own].T @ at_optimum[own])
            relative = self._row(point, self.parameters.replica(numbers)) / self.measured[point] - 1
            held_out += [abs(relative[place]) for place in (0, 2) if self.known[point, place]]
        return float(np.median(held_out)) if held_out else float("nan")

    def _row(self, point: int, replica: Replica) -> Floats:
        """The figures of one point; only its own runs are simulated."""
        own = [run for run in self.runs if any(window[2] == point for window in run.windows)]
        row: Floats = Replay(own, replica).means(replica)[point]
        return row


def nearest_nodes(points: Sequence[Point], nodes: Sequence[float]) -> NDArray[np.int64]:
    """For each point the place of the node that is nearest to its batch; zeros without nodes."""
    if not nodes:
        return np.zeros(len(points), np.int64)
    logs = np.log([decoding(point) for point in points])
    return np.asarray(np.argmin(np.abs(np.subtract.outer(logs, np.log(nodes))), axis=1))


# --- Rough coefficients read off a few measured points, with their doubt: where the fit starts and what it leans on

DATA_SIGMAS = StepLaw(2.0, 2.0, 1.0, 1.5, 1.5, 1.5, 3.0, 1.5)
"""Standard deviations of the logarithms when the guess comes from the points themselves: factors of 3 to
7; 20 for what an iteration with a prompt costs beside, which may be as good as nothing. Of weights and overhead the sum
is read off the points, and either may be as good as nothing."""
KV_OF_SEQUENCE = 200
"""Tokens of KV cache whose reading takes as long as what a sequence costs beside: 60 to 420 at servers measured."""
ATTENTION_OF_TOKEN = 5e-5
"""Attention of a pair of a prompt's tokens over the arithmetic of a token: 2e-6 to 2e-4 by the shapes of models. Points
of one ISL cannot tell it, and whatever is misread as attention there grows with the square of a longer prompt."""
COMPUTE_BOUND, PROMPT_SIGMA = 3.0, 0.5
"""A prompt that takes this many decode steps is arithmetic for the most part: then the time of a token is known within
a factor of 1.6, as a prompt leaves little room for anything else. So it is by an estimate that one level scales."""
PRIOR_SIGMAS = StepLaw(0.25, 1.0, 0.25, 1.0, 0.25, 0.5, 1.5, 1.5)
"""The same for a law from elsewhere (a day-zero estimate): weights, KV reads and arithmetic follow from sizes and the
GPU's bandwidth and FLOP/s."""
TIMED_TOKEN_SIGMA = 0.12
"""The same of the arithmetic of a dense model's token where its kernels were timed. Large matrix products are predicted
well; what one level or one ISL seems to say against them is mostly the start of its users, or another rule."""
MIXTURE_SIGMAS = {"weights_s": 0.5, "overhead_s": 0.25, "sequence_s": 0.4, "prefill_s": 0.5, "request_s": 0.7}
"""The same for an MoE model of which one level was measured. Its estimate misses ITL mostly by the time of the experts,
which depends on the batch, and hardly by what every step takes; it misses TTFT mostly outside the iterations, by up to
`REQUEST_S`, or by the start of the users. Attributed to the fixed cost of an iteration with a prompt, that miss made it
35 times what was timed, and ITL at other loads as wrong."""
LITTLE_OF_NOTHING = 0.1
"""With one level, what an estimate leaves at 0 (time outside iterations) starts at this share of the rough guess. From
the whole guess, a level that is just as estimated would be explained by another law."""
KERNEL_TIMED = 0.2
"""Relative standard error of an estimate by kernel timings. All its coefficients share it, beside PRIOR_SIGMAS of their
own: the estimates of a whole kind of engine are too slow or too fast, and their shape is better than their scale."""


def guess(
    points: Sequence[Point], prior: StepLaw | None, prior_error: float = KERNEL_TIMED
) -> tuple[Floats, Floats, Floats]:
    """Logarithms of the eight coefficients, their standard deviations, and of the error that they share: from `prior`
    where it has a value and says more than the points do, `prior_error` its relative standard error."""
    timed_dense = is_timed(prior, prior_error) and not prior.has_experts
    as_read = _unqueued(points, prior) if timed_dense or of_one_level(points) else points
    rough_law = law_of_points(as_read, prior)
    rough = np.array(rough_law.seconds)
    centre, sigma, shared = np.log(rough), np.array(DATA_SIGMAS.seconds), np.zeros((len(rough), 1))
    step_s = itl_s(min(points, key=in_flight))
    if prior is not None and prior.has_experts:  # of which a step of few sequences reads little
        step_s = rough_law.weights_s + rough_law.overhead_s
    if ttft_s(longest_prompts(points)) > COMPUTE_BOUND * step_s:
        sigma[COEFFICIENTS.index("token_s")] = PROMPT_SIGMA
    if prior is not None:
        values, sigmas = np.array(prior.seconds), np.array(PRIOR_SIGMAS.seconds)
        if timed_dense:
            sigmas[COEFFICIENTS.index("token_s")] = TIMED_TOKEN_SIGMA
        known = (values > 0) & (sigmas < np.array(DATA_SIGMAS.seconds))
        centre[known], sigma[known] = np.log(values[known]), sigmas[known]
        shared[known] = prior_error
        if of_one_level(points) and prior.weights_s > 0:
            centre[~known] += math.log(LITTLE_OF_NOTHING)
            own = {"token_s": PROMPT_SIGMA} | (MIXTURE_SIGMAS if prior.has_experts else {})
            if prior.has_experts and prior.request_s == 0 and (left_s := _beside_prompt_s(points, prior)) > 0:
                centre[COEFFICIENTS.index("request_s")] = math.log(min(REQUEST_S, left_s))
            sigma[[COEFFICIENTS.index(name) for name in own]] = list(own.values())
    return centre, sigma, shared


def is_timed(prior: StepLaw | None, prior_error: float) -> TypeGuard[StepLaw]:
    """True for a law to lean on that stands on kernel timings."""
    return prior is not None and prior.weights_s > 0 and prior_error < 1.5 * KERNEL_TIMED


def _unqueued(points: Sequence[Point], prior: StepLaw | None) -> Sequence[Point]:
    """The points as the first guess reads them: TTFT of several users is mostly a queue of prompts, whose length
    nothing tells, so where no user was alone a prompt takes no longer than by `prior`, scaled to the ITL of the
    fewest."""
    if prior is None or prior.weights_s <= 0 or min(map(in_flight, points)) <= 1:
        return points
    shorter_s = [min(ttft_s(point), own_s) for point, own_s in zip(points, _alone_s(points, prior), strict=True)]
    return [replace(point, ttft_mean_s=own_s) for point, own_s in zip(points, shorter_s, strict=True)]


def _alone_s(points: Sequence[Point], prior: StepLaw) -> list[float]:
    """The time of each point's prompt alone by `prior`, scaled to the ITL of the fewest users."""
    calm = min(points, key=in_flight)
    users = in_flight(calm)
    slower = itl_s(calm) / float(prior.decode_s(users, users * (calm.isl + calm.osl / 2)))
    return [slower * float(prior.prefill_alone_s(point.computed_tokens)) for point in points]


def _beside_prompt_s(points: Sequence[Point], prior: StepLaw) -> float:
    """What TTFT leaves beside the prompt alone and the iteration that it waits for, of the point that leaves least."""
    alone = zip(points, _alone_s(points, prior), strict=True)
    return min(ttft_s(point) - itl_s(point) - own_s for point, own_s in alone)


def share_read(law: StepLaw | None, tokens: float) -> float:
    """The share of its weights that an iteration of `tokens` tokens reads, by the two shares of `law`; all without."""
    return float(replace(law or FREE, weights_s=1.0).weights_of_s(max(tokens, 1.0)))


def law_of_points(points: Sequence[Point], prior: StepLaw | None = None) -> StepLaw:
    """Coefficients in the range of these points' times, whatever the engine: a CPU's steps are 10 times a GPU's.
    The shares of `prior` say how much of the weights an iteration reads.

    One decode step at the lowest load is weights and overhead; of an MoE model the level whose steps leave the least
    room for its weights tells these. Half of what ITL rises with load, beside the further weights read, is shared by KV
    reads and the cost per sequence, the longer the contexts the more to KV reads; the rest is arithmetic and prompts.
    The TTFT at the lowest load is the arithmetic of the prompt and the rest: a tenth of it taken for what a prompt
    costs the engine beside, three tenths for time outside it. Closed loops hardly part the two, and what is put down to
    the one is missing at the other: of several ways to part them this one errs least over four simulated engines, from
    none of the first to 1.5 ms and from 1 to 10 ms of the second (rms of the largest rate 2.8 %; 4.9 % with a tenth
    for each).
    """
    read = partial(share_read, prior)
    calm = min(points, key=in_flight)
    busy = max(points, key=in_flight)
    long = longest_prompts(points)
    step_s = itl_s(calm)
    telling = points if read(1.0) < 1 else [calm]
    weights_s = 0.75 * min(itl_s(point) / read(in_flight(point)) for point in telling)
    more_read_s = weights_s * (read(in_flight(busy)) - read(in_flight(calm)))
    rise_s = max((itl_s(busy) - step_s - more_read_s) / max(in_flight(busy) - in_flight(calm), 1), 1e-3 * step_s)
    first_s = ttft_s(calm)
    overhead_s = max(0.95 * step_s - weights_s * read(in_flight(calm)), 0.2 * step_s)
    prompt_s = ttft_s(long)
    if prior is not None and prior.has_experts:  # whose reading adds to the arithmetic
        prompt_s = max(prompt_s - weights_s - overhead_s, 0.1 * prompt_s)
    token_s = min([prompt_s / long.computed_tokens, *seconds_per_token(points)])
    context = busy.isl + busy.osl / 2
    sequence_s = 0.5 * rise_s / (1 + context / KV_OF_SEQUENCE)
    rest_s = max(first_s - step_s, 0.1 * first_s)
    return StepLaw(
        weights_s=weights_s,
        overhead_s=overhead_s,
        token_s=0.7 * token_s,
        sequence_s=sequence_s,
        kv_token_s=sequence_s / KV_OF_SEQUENCE,
        attention_s=0.7 * token_s * ATTENTION_OF_TOKEN,
        prefill_s=0.1 * rest_s,
        request_s=0.3 * rest_s,
    )


def seconds_per_token(points: Sequence[Point]) -> list[float]:
    """What a token took, roughly at most: at each level, and over a whole trace, whose groups show when requests came
    and not when they were computed (a burst is no throughput)."""
    groups = [point for point in points if point.load_kind == "trace"]
    levels = [point for point in points if point.load_kind != "trace"]
    seconds = [1 / (point.requests_per_s * (point.computed_tokens + point.osl)) for point in levels]
    if groups:
        tokens = sum((point.requests or 1) * (point.computed_tokens + point.osl) for point in groups)
        span_s = sum((point.requests or 1) / point.requests_per_s for point in groups)
        seconds.append(span_s / tokens)
    return seconds


def longest_prompts(points: Sequence[Point]) -> Point:
    """The point of the longest prompts, at their lowest load."""
    return max(points, key=lambda point: (point.isl, -in_flight(point)))


SOUND = 1.0
"""chi2 per point up to which the errors of the measurement explain the misfits."""
POOR = 2.0
"""chi2 per point above which the law or the batching policy is called wrong."""
GAIN = 6.0
"""A further parameter must lower the cost (half the sum of squares) by this much: a chance of 1 in 2,000 if idle."""
STARTS = (-0.4, -0.2, 0.0, 0.2, 0.4)
"""Where the search for a further number may start, beside its rough guess."""
LESS_ATTENTION = MappingProxyType({"attention_s": 0.25})
MORE_ARITHMETIC = MappingProxyType({"token_s": 1.4, "request_s": 0.4})
"""Factors on coefficients, for another search to start from."""
ALIKE = 1.0
"""Difference of costs at the same law below which two batching rules are one."""
OUTLIER = 4.0
"""Robust standard deviations of the misfits, or standard errors where these are larger, beyond which a point is
distrusted."""
APART = 2.5
"""How much worse a distrusted point's misfit is than the worst of the points that are trusted."""
LAW_ERROR_ROUNDS = 3
"""Rounds of two questions: how far is the law off, and which law then fits best. The second rarely changes much."""


UNROUTED = (0.75, 0.875, 0.9375, 0.97, 0.985)
"""Shares of the experts that a token does not use, in MoE models that are served: 2 of 8, 4 of 32, 8 of 128 and 4 of
128, 8 of 512. Searched for a model whose shape is not known; those between differ little."""
USUALLY_UNROUTED = (0.9375, 0.875, 0.97)
"""Those by which it is seen whether the points ask for experts at all."""
EXPERTS_UNREAD, KERNEL_UNREAD, UNREAD_SD = 1.0, -1.0, 1.5
"""Logits of the unread share before the data, of an MoE model (0.73) and of an engine with a kernel of its own for
single sequences (0.27), and their standard deviation."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before the fit: possible batching rules, a law to lean on, whether the KV cache is known, and
    whether the model's shape is: then the law leans on its share of unread weights, and none is fitted. `prior_error`:
    relative standard error of the law to lean on. `lookahead_assumed`: the rules look ahead as the engine does by its
    defaults, and nobody has said that this one does. `seen`: further rules, which the levels themselves suggest.
    `experts`: the model is taken for an MoE model, with an unread share that is fitted."""

    batchings: tuple[Batching, ...]
    prior: StepLaw | None
    kv_known: bool
    shape_known: bool = False
    prior_error: float = KERNEL_TIMED
    lookahead_assumed: bool = False
    seen: tuple[Batching, ...] = ()
    experts: bool = False

    def with_experts(self, unrouted: float) -> Known:
        """The same of an MoE model a token of which does not use a share `unrouted` of the experts; how much of the
        weights they are is fitted."""
        shares = (self.prior or FREE).with_values(unread=1 / (1 + math.exp(-EXPERTS_UNREAD)), unread_decay=unrouted)
        return replace(self, prior=shares, shape_known=True, experts=True)

    def usual(self) -> Known:
        """The same of an engine that has the first of the rules."""
        return replace(self, batchings=self.batchings[:1])

    def as_seen(self) -> Known:
        """The same of an engine that has one of the rules seen."""
        return replace(self, batchings=self.seen, seen=())

    def without_lookahead(self) -> Known:
        """The same of an engine that forms an iteration when the last one is done."""
        rules = tuple(replace(rule, lookahead_steps=0.0) for rule in self.batchings)
        return replace(self, batchings=rules, lookahead_assumed=False)


NEAR, NEAR_BY = 1.5, 3.0
"""A sketch is carried on where its claim is within this factor of the best one's, and this much."""
HOPELESS, HOPELESS_BY, WRONG_START = 20.0, 60.0, 100.0
"""A batching rule is given up if its claim exceeds HOPELESS times the best one's plus HOPELESS_BY, before its search
(at the numbers of the best) or after it. The first way to start decides that. Its numbers are far off with another way:
searches made good a factor of 47, so there a search is left out only from WRONG_START times on."""
MOST_FINISHED = 4
"""Sketches carried on at most."""


def best_trial(observed: Observed, known: Known) -> Trial:
    """The explanation that fits best: also by the rules that the points suggest, and, where the engine's usual
    look-ahead explains them poorly, without: engines turn it off for some models and features, and people by hand."""
    found = explained(observed, known)
    if known.seen:  # slow iterations suggest such rules as well: they must explain the points in outline already
        found = explained(observed, known.as_seen(), found, near=found.best.claim)
    if known.lookahead_assumed and found.best.chi2_per_point > SOUND:
        found = explained(observed, found.known.without_lookahead(), found, near=found.sketch)
    return settle(found.best)


class Explained(NamedTuple):
    """The best explanation of the levels within what is `known`, and the claim of its search's best sketch."""

    best: Trial
    sketch: float
    known: Known


def explained(observed: Observed, known: Known, rival: Explained | None = None, near: float = math.inf) -> Explained:
    """How the users started, the batching rule and the KV cache are searched together.

    All are sketched; those near the best are carried on in full, each with a KV cache of its own where it asks for one.
    With a `rival`, the better of both is returned: the rival at once where the best sketch does not come near the claim
    `near`.
    """
    ways = ways_to_start(observed)
    # Requests/s of a whole run are not those of a steady window: to compare ways to start, all do without.
    sketches = sketched(observed if len(ways) == 1 else replace(observed, rates=False), ways, known)
    if math.isinf(sketches[0].cost):
        raise FitError("no engine gives such times: is each level of one server, and are all times in seconds?")
    if rival and sketches[0].claim > NEAR * near + NEAR_BY:
        return rival
    best = carried_on(from_less_attention(sketches[0]), known)
    for sketch in sketches[1:MOST_FINISHED]:
        if sketch.claim <= NEAR * sketches[0].claim + NEAR_BY and is_another_engine(sketch, best):
            best = min(best, carried_on(sketch, known), key=lambda trial: trial.claim)
    if not best.observed.rates and best.observed.protocol.counted == "steady":
        rated = Trial(replace(best.observed, rates=True), best.parameters, best.numbers, robust=True)
        best = rated.search(evaluations=4, stride=0.1, central=True, carried=True)
    if best.chi2_per_point > SOUND:
        best = from_other_valley(best)
    own = Explained(with_sending(with_unread(best, observed, known)), sketches[0].claim, known)
    return rival if rival and rival.best.claim <= own.best.claim else own


def ways_to_start(observed: Observed) -> list[Protocol]:
    """The protocols that the points may have been measured by: as told, else all that make a difference."""
    protocol = observed.protocol
    closed = [point for point in observed.points if point.closed]
    if protocol.start != "unknown" or not any(concurrency(point) > 1 for point in closed) or of_one_level(closed):
        return [protocol]
    started = [protocol, replace(protocol, start="burst", inferred=True)]
    if protocol.counted == "steady":
        started.append(replace(protocol, start="burst", counted="all", inferred=True))
    return started


def sketched(observed: Observed, ways: Sequence[Protocol], known: Known) -> list[Trial]:
    """Every start with every batching rule in rough outline, the least claim first; without robustness: this far from
    the start, a point far off would have no pull."""
    centre, sigma, shared = guess(observed.points, known.prior, known.prior_error)
    found: list[Trial] = []
    rules, far_off = known.batchings, set[Batching]()
    for protocol in ways:
        seen = replace(observed, protocol=protocol)
        own: list[Trial] = []
        costs: list[float] = []
        errors: Floats | None = None
        for batching in rules:
            parameters = law_parameters(centre, sigma, shared, batching, known.prior)
            if known.experts:
                parameters = parameters.plus("unread", EXPERTS_UNREAD, UNREAD_SD)
            start = min(own or found, key=lambda trial: trial.claim).numbers if own or found else None
            trial = Trial(seen, parameters, start, effort=SKETCH, errors=errors)
            errors = trial.errors
            # At the same numbers rules that make no difference cost the same: then they are one engine.
            cost = trial.cost_at(own[0].numbers if own else trial.numbers)
            if any(abs(cost - other) <= 1e-9 * cost for other in costs):
                continue
            trial.cost = trial.cost_at(trial.numbers)
            if found and trial.claim > WRONG_START * min(other.claim for other in found) + HOPELESS_BY:
                continue
            if own and not found and is_hopeless(trial, own):
                far_off.add(batching)
                continue
            if own:
                trial.log_slopes = own[0].log_slopes
                trial.search(evaluations=6, stride=0.1, carried=True)
            elif found:
                trial.search(evaluations=3, stride=0.1, carried=True)
                trial.log_slopes = None
                trial.search(evaluations=3, stride=0.1, carried=True)
            else:
                trial.search(evaluations=8, stride=0.1)  # far off the slopes change from step to step
            if not own:
                cost = trial.cost_at(trial.numbers)
            own.append(trial)
            costs.append(cost)
        if not found:
            far_off |= {trial.parameters.base.batching for trial in own if is_hopeless(trial, own)}
            rules = tuple(rule for rule in rules if rule not in far_off)
        found += own
    return sorted(found, key=lambda trial: trial.claim)


def is_hopeless(trial: Trial, others: Sequence[Trial]) -> bool:
    """True where the claim of a trial is far beyond the best one's."""
    return trial.claim > HOPELESS * min(other.claim for other in others) + HOPELESS_BY


def carried_on(sketch: Trial, known: Known) -> Trial:
    """The sketch with all requests, and with a KV cache of its own where that fits far better."""
    trial = finished(sketch)
    return trial if known.kv_known else perhaps(trial, kv_candidate(trial), starts=3)


def finished(sketch: Trial) -> Trial:
    """The sketch carried on with all requests and softened misfits."""
    trial = Trial(sketch.observed, sketch.parameters, sketch.numbers, robust=True)
    if sketch.log_slopes is not None and np.isfinite(sketch.log_slopes[trial.known]).all():  # else of other figures
        trial.log_slopes = sketch.log_slopes
    trial.search(evaluations=6, stride=0.1, carried=True)
    trial.log_slopes = None
    trial.search(evaluations=4, stride=0.1, central=True, carried=True)
    if trial.chi2_per_point > POOR:  # perhaps caught at a jump of the simulated TTFT
        trial.log_slopes = None
        trial.search(evaluations=6, stride=0.1, central=True, carried=True)
    return trial


def is_another_engine(sketch: Trial, best: Trial) -> bool:
    """False when the rule of the sketch gives what the best rule gives: prompts that fit the token budget are chunked
    whole. It is then a matter of name."""
    if sketch.observed.protocol != best.observed.protocol or sketch.parameters.names != best.parameters.names:
        return True
    same = Trial(sketch.observed, sketch.parameters, best.numbers, robust=True)
    return abs(same.cost_at(same.numbers) - best.cost) > ALIKE


def from_less_attention(sketch: Trial) -> Trial:
    """A second sketch from a quarter of the attention, if it ends better.

    A prompt's time splits into arithmetic, attention and fixed parts in ways that look alike from a rough start.
    """
    start = sketch.numbers + changes(sketch, LESS_ATTENTION)
    second = Trial(sketch.observed, sketch.parameters, start, effort=SKETCH)
    second.search(evaluations=4, stride=0.1)
    return min(sketch, second, key=lambda trial: trial.cost)


def changes(trial: Trial, factors: Mapping[str, float]) -> Floats:
    """What multiplies coefficients by `factors`, as a change of the numbers."""
    return np.array([math.log(factors.get(name, 1.0)) for name in trial.parameters.names])


def from_other_valley(best: Trial) -> Trial:
    """The same explanation from a prompt of more arithmetic, all requests and the token gaps counted, if it ends
    better."""
    other = Trial(best.observed, best.parameters, best.numbers + changes(best, MORE_ARITHMETIC), robust=True)
    other.log_slopes = best.log_slopes
    other.search(evaluations=6, stride=0.1, carried=True)
    if other.cost < best.cost + NEAR_BY:
        other.search(evaluations=3, stride=0.1, central=True)
    return min(best, other, key=lambda trial: trial.cost)


def perhaps(best: Trial, wider: Parameters | None, starts: int = 1) -> Trial:
    """The explanation with one number more, if it fits far better, searched from the best `starts` of STARTS; `wider`
    None: the data do not ask for it."""
    if wider is None:
        return best
    trials = [
        Trial(best.observed, wider, np.append(best.numbers, wider.centre[-1] + offset), robust=True)
        for offset in STARTS
    ]
    trials.sort(key=lambda trial: trial.cost_at(trial.numbers))
    for trial in trials[:starts]:
        trial.search(evaluations=12, stride=0.1, central=True, carried=True)
    trial = min(trials[:starts], key=lambda trial: trial.cost)
    if trial.cost >= best.cost - GAIN:
        return best
    # Before a further number is asked for, this one is given its chance.
    trial.log_slopes = None
    return (
        trial if trial.chi2_per_point <= SOUND else trial.search(evaluations=8, stride=0.1, central=True, carried=True)
    )


def with_unread(best: Trial, observed: Observed, known: Known) -> Trial:
    """The same and a share of the weights that few tokens do not read, where the model's shape is not known: an MoE
    model, of which all is searched anew, where that explains the points better than a dense one; an engine with a
    kernel of its own for single sequences, where points of one user are faster than the law and that explains them far
    better than either."""
    if known.shape_known or of_one_level(observed.points):
        return best
    kernel = best
    if is_faster_alone(best):
        kernel = perhaps(best, best.parameters.plus("unread", KERNEL_UNREAD, UNREAD_SD))
    if not may_have_experts(best):
        return kernel
    outlines = [
        sketched(observed, [best.observed.protocol], known.with_experts(share).usual())[0] for share in UNROUTED
    ]
    # Other coefficients can pass for experts that are not there, and not hide those that are: of equals the last.
    least = min(trial.claim for trial in outlines)
    *_, likely = (trial for trial in outlines if trial.claim <= least + ALIKE)
    experts = explained(observed, known.with_experts(likely.parameters.base.law.unread_decay)).best
    # One share of several: as likely as a dense model before the data, each share is so many times less likely.
    claim = experts.claim + math.log(len(UNROUTED))
    return experts if claim < min(best.claim, kernel.claim + GAIN) else kernel


def may_have_experts(best: Trial) -> bool:
    """True where a dense explanation comes out better in outline as that of an MoE model, all else as it is."""
    dense = Trial(best.observed, best.parameters, best.numbers, effort=SKETCH)
    least, start = dense.cost_at(dense.numbers), np.append(dense.numbers, EXPERTS_UNREAD)
    for unrouted in USUALLY_UNROUTED:
        shares = {"unread": 1 / (1 + math.exp(-EXPERTS_UNREAD)), "unread_decay": unrouted}
        base = replace(dense.parameters.base, law=dense.parameters.base.law.with_values(**shares))
        wider = replace(dense.parameters, base=base).plus("unread", EXPERTS_UNREAD, UNREAD_SD)
        trial = Trial(dense.observed, wider, start, effort=SKETCH, errors=dense.errors)
        if trial.search(evaluations=8, stride=0.1, carried=True).cost < least:
            return True
        start = trial.numbers
    return False


def is_faster_alone(best: Trial) -> bool:
    """True where the levels of one user are faster than the law, and it fits poorly."""
    points, misfits = best.observed.points, best.misfits(best.numbers)
    few = [row for row, point in enumerate(points) if concurrency(point) == 1 and point.closed]
    if not few or best.chi2_per_point <= POOR or len(few) == len(points):
        return False
    slow_alone = np.nanmean(misfits[few][:, 2]) if np.isfinite(misfits[few][:, 2]).any() else 0.0
    others = misfits[[row for row in range(len(points)) if row not in few]][:, 2]
    fast_beside = np.nanmin(others) if np.isfinite(others).any() else 0.0
    return bool(slow_alone >= 1 or fast_beside <= -3)


SEND_SD = 0.8
"""Standard deviation, in logarithms, of what a front end takes to send a token about what is known of its engine's."""
SEND_STARTS = (-3.0, -2.0, -1.0, 0.0, 0.7)
"""Where the search for it starts, beside that."""


def with_sending(best: Trial) -> Trial:
    """The same and what the front end takes to send a token, of engines of which that is roughly known: where the
    points do not tell it, the fit leans on what other servers took."""
    send_s = best.observed.defaults.send_s
    if of_one_level(best.observed.points) or not send_s or "send_s" in best.parameters.names:
        return best
    wider = best.parameters.plus("send_s", math.log(send_s), SEND_SD)
    trials = [
        Trial(best.observed, wider, np.append(best.numbers, wider.centre[-1] + offset), robust=True, errors=best.errors)
        for offset in SEND_STARTS
    ]
    trial = min(trials, key=lambda trial: trial.cost_at(trial.numbers))
    return trial.search(evaluations=8, stride=0.1, central=True, carried=True)


def kv_candidate(best: Trial) -> Parameters | None:
    """A KV cache that limits the batch, where fewer sequences decoded at once than there were users and slots.

    The sequences that decode, by Little's law X (OSL - 1) ITL, hold at most their prompts and answers.
    """
    # Memory is reserved for whole answers, or taken as they grow.
    answered = 0.5 if best.parameters.base.batching.kv_policy == "max_utilization" else 1.0
    trace = best.observed.trace
    held: list[float] = [held_tokens(trace, answered)] if trace is not None else []
    for point in best.observed.points:
        if not point.itl_mean_s or not point.closed:
            continue
        decoding = point.requests_per_s * (point.osl - 1) * point.itl_mean_s
        slots = min(concurrency(point), best.parameters.base.batching.max_batch_size)
        if slots >= 4 and decoding < 0.8 * slots:
            held.append(decoding * (point.computed_tokens + answered * point.osl))
    if not held or best.chi2_per_point <= POOR:
        return None
    largest = max(int((run.isl + run.osl).max()) for run in best.runs)
    wider = best.parameters.plus("kv_tokens", math.log(max(max(held), 1.1 * largest)), 0.5)
    return replace(wider, least_kv_tokens=largest)


def settle(best: Trial) -> Trial:
    """Weigh down points that stand far out, with the errors of open loops by the law found; allow for the law's own
    error, and finish."""
    best.grant(best.replica)
    misfits = best.misfits(best.numbers)
    for row in outliers(misfits):  # the further out, the less its pull: as with Cauchy's weights
        best.doubt[row] = float(np.nanmax(np.abs(misfits[row]))) ** 2
    if np.any(best.doubt > 1) or not all(point.closed for point in best.observed.points):
        best.search(evaluations=3, stride=0.1, central=True)
    for _ in range(LAW_ERROR_ROUNDS):
        if not best.allow_for_law():
            break
        best.search(evaluations=4, stride=0.1, central=True)
    best.allow_for_law()
    return best


def outliers(misfits: Floats) -> list[int]:
    """Rows whose largest misfit stands out and apart from the rest; none where too many do.

    NaN: not measured. A row without any measurement (requests of a trace that all went unanswered) does not stand out.
    """
    worst = np.fmax.reduce(np.abs(misfits), axis=1, initial=0.0)
    robust = 1.4826 * float(np.nanmedian(np.abs(misfits)))
    order = np.argsort(worst)[::-1]
    for count in range(int(MOST_DISTRUSTED * len(worst)), 0, -1):
        inside = worst[order[count]]
        if all(worst[row] > max(OUTLIER * max(1.0, robust), APART * inside) for row in order[:count]):
            return sorted(int(row) for row in order[:count])
    return []
