"""Ways to meet the SLA where no configuration does: the smallest relaxation of each limit alone.

An SLA that fails without load fails with any number of GPUs: only a looser limit helps. So the formula gives what an
almost idle replica needs, in a fleet as large as helps, and a simulation of the same checks it, as the planner checks
its answers (Poisson arrivals: the planner's own smallest limit within 2 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sizing.edge import (
    IDLE,
    NEAR,
    SURE,
    ample_replicas,
    load_response,
    predict_at,
    requests_for,
    run_at,
    upper_percentile,
)
from sizing.errors import RequestTooLong
from sizing.plans import Candidate, Rejection
from sizing.question import Question
from sizing.simulator import Simulated
from sizing.workload import PERCENTILES, Limit, Sla

ALMOST_IDLE = IDLE / 100
"""Share of the stable rate below which the planner's search does not look for a load that meets the SLA."""
HALF = 0.5
ALIKE = 1.03
"""Candidates whose needs by formula are this near are all simulated: the formula may have them in the wrong order."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One limit loosened alone, the others kept.

    `smallest`: the limit, to 3 digits rounded up, from which on `candidate` meets the SLA; replicas are then all but
    idle. `roomy`: the limit at which it carries half the load that it would without this limit. All three are None
    where no value helps, because other limits fail too. `percentile`: the limit as it was at the highest lower
    percentile that some candidate keeps (`percentile_candidate`); None where none does or the limit is kept as it is.
    """

    limit: Limit
    smallest: Limit | None = None
    roomy: Limit | None = None
    candidate: Candidate | None = None
    percentile: Limit | None = None
    percentile_candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """All limits that one candidate misses, loosened as far as it needs: what comes nearest to the SLA as a whole.

    At `limits` its replicas are all but idle; at `roomy` they carry half of what they would without these limits.
    """

    candidate: Candidate
    limits: tuple[Limit, ...]
    roomy: tuple[Limit, ...]


Ways = tuple[tuple[Relaxation, ...], Together | None]
NO_WAYS: Ways = ((), None)
NearlyAlone = Callable[[Candidate], Callable[[Limit], float]]
"""For a candidate, the latency that each limit is on, in seconds, with hardly any users; simulated on first use."""


def ways_out(
    rejected: Iterable[Rejection],
    question: Question,
    candidates: Sequence[Candidate],
    nearly_alone: NearlyAlone | None = None,
    gpus: int | None = None,
) -> Ways:
    """Each limit relaxed alone, and all that must be relaxed together, where it is the SLA that is missed.

    `nearly_alone`: what sessions need, which the formula takes for requests at random. `gpus`: of an existing fleet, in
    which every candidate has a working replica; None: the fleet may be as large as helps.
    """
    if all(rejection.kind != "sla" for rejection in rejected):
        return NO_WAYS
    return ways(question, candidates, nearly_alone, gpus)


def ways(
    question: Question,
    candidates: Sequence[Candidate],
    nearly_alone: NearlyAlone | None = None,
    gpus: int | None = None,
) -> Ways:
    """For each limit of the SLA, in its order, the relaxation that suffices alone; where none does, all that the
    nearest candidate misses.

    Meant for an SLA that no candidate meets. A limit that is met comes back with the smallest value that still is; the
    one on rejected requests is left out, because the formula says nothing of them.
    """
    idle = [_Idle(question, candidate, nearly_alone, gpus) for candidate in candidates]
    alone = tuple(_relaxed(limit, idle) for limit in question.sla.latencies)
    return alone, None if any(way.smallest for way in alone) else _together(question.sla, idle)


def _together(sla: Sla, idle: Sequence[_Idle]) -> Together | None:
    """The candidate whose worst miss is the least, and the limits it misses as it would keep them; None without one, or
    where it misses fewer than two."""
    least_missed = sorted(idle, key=lambda each: each.worst(sla.limits))
    nearest = next((each for each in least_missed if all(each.needs_s(limit) < math.inf for limit in sla.limits)), None)
    if nearest is None:
        return None
    missed = tuple(limit for limit in sla.limits if nearest.needs_s(limit) > limit.limit_s)
    if len(missed) < 2:
        return None
    needed = tuple(replace(limit, limit_s=rounded_up(nearest.needs_s(limit))) for limit in missed)
    return Together(nearest.candidate, needed, _roomy(missed, needed, nearest))


DIGITS = 3


def rounded_up(value: float) -> float:
    """The least number of three significant digits that is `value` or more.

    >>> rounded_up(0.0058912), rounded_up(1234.0), rounded_up(0.25)
    (0.0059, 1240.0, 0.25)
    """
    decimals = DIGITS - 1 - math.floor(math.log10(value))
    rounded = round(value, decimals)
    return rounded if rounded >= value else round(rounded + 10.0**-decimals, decimals)


class _Idle:
    """Latencies of a candidate's replica that is all but idle; simulated when first asked for."""

    def __init__(
        self, question: Question, candidate: Candidate, nearly_alone: NearlyAlone | None, gpus: int | None
    ) -> None:
        self.candidate = candidate
        self.question = question
        self.nearly_alone = nearly_alone and nearly_alone(candidate)
        ample = ample_replicas(question.workload.arrivals, question.routing)
        self.setting = question.setting(gpus // candidate.gpus - question.spare if gpus else ample)
        self.response = load_response(candidate.replica, self.setting)
        self._run: Simulated | None = None

    def formula_s(self, limit: Limit) -> float:
        """The percentile that `limit` speaks of, by formula."""
        return self.response.idle.value_s(limit)

    def worst(self, limits: Sequence[Limit]) -> float:
        """Predicted over allowed for the limit that is missed most, by formula."""
        return max(self.formula_s(limit) / limit.limit_s for limit in limits)

    def needs_s(self, limit: Limit) -> float:
        """The smallest value of the limit that a planner accepts: kept by simulation, and by formula all but kept where
        it knows what is limited. Infinite where a request that was drawn never fits."""
        try:
            return self._needs_s(limit)
        except RequestTooLong:
            return math.inf

    def _needs_s(self, limit: Limit) -> float:
        if self.nearly_alone:
            return self.nearly_alone(limit)
        simulated_s = upper_percentile(self._simulated(), limit, SURE)
        return max(simulated_s, self.formula_s(limit) / NEAR * (1 + 1e-9))

    def keeps(self, limits: Sequence[Limit]) -> bool:
        """True when all of these limits hold."""
        return all(map(self.may_keep, limits)) and all(self.needs_s(limit) <= limit.limit_s for limit in limits)

    def may_keep(self, limit: Limit) -> bool:
        """False if the formula rules it out. It does not tell the turns of sessions apart: their limits are always
        simulated."""
        return self.nearly_alone is not None or self.formula_s(limit) < NEAR * limit.limit_s

    def _simulated(self) -> Simulated:
        if self._run is None:
            almost_idle_per_s = float(self.response.rates_per_s[0]) / IDLE * ALMOST_IDLE
            self._run = run_at(self.candidate.replica, self.setting, almost_idle_per_s, requests_for(self.setting))
        return self._run


def _relaxed(limit: Limit, idle: Sequence[_Idle]) -> Relaxation:
    """What would suffice if only `limit` were relaxed."""
    others = [each for each in idle[0].question.sla.limits if each != limit] if idle else []
    best = _least_needing(limit, others, idle)
    if best is None:
        return Relaxation(limit)
    missed = best.needs_s(limit) > limit.limit_s
    by_percentile = next(_kept_percentiles(limit, others, idle), (None, None)) if missed else (None, None)
    smallest = replace(limit, limit_s=rounded_up(best.needs_s(limit)))
    (roomy,) = _roomy((limit,), (smallest,), best)
    return Relaxation(limit, smallest, roomy, best.candidate, *by_percentile)


def _least_needing(limit: Limit, others: Sequence[Limit], idle: Sequence[_Idle]) -> _Idle | None:
    """Of the candidates that keep the other limits the one that needs the least of this one."""
    best: _Idle | None = None
    for each in sorted(idle, key=lambda each: each.formula_s(limit)):
        if best is not None and each.formula_s(limit) > ALIKE * best.formula_s(limit):
            break
        if each.keeps(others) and each.needs_s(limit) < (best.needs_s(limit) if best else math.inf):
            best = each
    return best


def _kept_percentiles(
    limit: Limit, others: Sequence[Limit], idle: Sequence[_Idle]
) -> Iterator[tuple[Limit, Candidate]]:
    """The limit at each lower percentile, highest first, with a candidate that keeps it and all others."""
    for percentile in sorted((each for each in PERCENTILES if each < limit.percentile), reverse=True):
        lower = replace(limit, percentile=percentile)
        for each in sorted(idle, key=lambda each: each.formula_s(lower)):
            if not each.may_keep(lower):
                break
            if each.keeps([lower, *others]):
                yield lower, each.candidate
                break


def _roomy(missed: tuple[Limit, ...], smallest: tuple[Limit, ...], idle: _Idle) -> tuple[Limit, ...]:
    """The limits at half the load that the replica carries without them: under the others, or while stable."""
    if idle.nearly_alone:
        return smallest  # of users at half the load the formula knows too little
    replica, setting = idle.candidate.replica, idle.setting
    most_per_s = float(idle.response.rates_per_s[0]) / IDLE
    apart: Sla | None = setting.sla
    for limit in missed:
        apart = apart.without(limit) if apart else None
    if apart is not None:
        most_per_s = load_response(replica, replace(setting, sla=apart)).rate_per_s(0.0)
    if most_per_s == 0:
        return smallest
    loaded = predict_at(replica, setting, HALF * most_per_s)
    return tuple(replace(each, limit_s=max(rounded_up(loaded.value_s(each)), each.limit_s)) for each in smallest)
