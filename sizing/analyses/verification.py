"""Does a server do what its plan predicts? Percentiles under random arrivals, predicted beside measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, cast

import numpy as np

from sizing.candidates import from_fit, law_of
from sizing.edge import REQUESTS, latency_band, run_at, spread, tail_sigma
from sizing.engine import Replica
from sizing.errors import FitError
from sizing.fitting.levels import ITL_SIGMA, run_to_run
from sizing.numbers import Floats
from sizing.plans import Candidate, Fleet, Plan
from sizing.points import TELLING, UNTOLD, Point
from sizing.prediction import Quantiles
from sizing.question import Question, Setting
from sizing.simulator import Simulated, Watch, simulate_trace
from sizing.stats import Z90
from sizing.workload import LIMITED, METRICS, OF_REQUESTS, Arrivals, Limit, Metric, Seconds, Tokens, Workload

PERCENTILES = (50, 95)
"""What is compared of TTFT, ITL and E2E, beside what the SLA limits."""
LEAST, MOST = 0.9, 1.25
"""A level verifies a plan from this share of its load per replica on, up to that multiple of it."""
UNLIMITED_S, LEAST_S = 1e9, 1e-9
WARM_E2ES = 2.0
"""Mean E2Es that a measurement of random arrivals leaves out at its start."""
MEASUREMENTS, FEWEST = 60, 8
"""Measurements that are simulated, as long as they have no more requests in all than a run that decides; at least."""
INSTRUMENT = {"ttft": math.sqrt(UNTOLD.ttft_sigma**2 - ITL_SIGMA**2)}
"""Relative error from run to run beside that of all times alike."""
Verdict = Literal["in", "above", "below"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A percentile of a latency, in seconds: predicted, with the 90 % band `low_s` to `high_s` of what a measurement of
    so many requests should show; and measured, with the 95 % interval of that where it is known.

    `of` names metric and percentile, and is the SLA's limit where it is `limited`. `measured_s` is None where the
    requests were too few for the percentile.
    """

    of: Limit
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float | None
    measured_low_s: float | None = None
    measured_high_s: float | None = None
    limited: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """Where the measured value lies; None where there is none."""
        if self.measured_s is None:
            return None
        return "above" if self.measured_s > self.high_s else "below" if self.measured_s < self.low_s else "in"

    @property
    def off(self) -> float:
        """By how much the measured value is beyond the nearer end of the band, as a share of that; 0 within."""
        if self.measured_s is None or self.verdict == "in":
            return 0.0
        return self.measured_s / (self.high_s if self.verdict == "above" else self.low_s) - 1

    @property
    def missed(self) -> bool:
        """True where the measured value is over the SLA's limit."""
        return self.limited and self.measured_s is not None and self.measured_s > self.of.limit_s


@dataclass(frozen=True, slots=True)
class Verification:
    """A level of random arrivals at `rate_per_s` requests/s on one replica, beside what the plan's law says of it.

    `why_not`: why it proves nothing, empty where it does; there may be figures all the same.
    """

    rate_per_s: float
    figures: tuple[Figure, ...] = ()
    why_not: str = ""
    requests: int | None = None
    measured_at: str = ""

    @property
    def decisive(self) -> tuple[Figure, ...]:
        """The figures that the SLA limits: the count rests on these."""
        return tuple(figure for figure in self.figures if figure.limited)

    @property
    def verified(self) -> bool:
        """True where every figure that the SLA limits was measured and lies in its band."""
        return not self.why_not and all(figure.verdict == "in" for figure in self.decisive)


def verification(plan: Plan) -> Verification | None:
    """The newest level of random arrivals among the answer's points that tells of the planned load, beside what the
    law says that was fitted to all others: a level proves nothing to a law that has seen it.

    That is a steady or overloaded one at the plan's lengths, at about its load per replica or somewhat more. None where
    there is no such level, or no law without it.
    """
    fleet, question = plan.answer, plan.question
    telling = [point for point in fleet.candidate.open_loops if _tells(point, fleet, question)]
    if not telling:
        return None
    newest = max(telling, key=lambda point: point.measured_at)
    unseen = _without(fleet.candidate, newest, question)
    return None if unseen is None else compared(unseen, question, newest)


def _without(candidate: Candidate, point: Point, question: Question) -> Candidate | None:
    """The candidate by the points that its law was fitted to, but for one; None where they give no law of their own."""
    if point not in candidate.fitted_to:
        return candidate
    others = tuple(each for each in candidate.fitted_to if each != point)
    try:
        found = from_fit(law_of(others, protocol=candidate.protocol), question.workload.lengths)
    except FitError:
        return None
    return None if found.basis == "estimated" else found


def _tells(point: Point, fleet: Fleet, question: Question) -> bool:
    workload = question.workload
    return (
        point.verdict in TELLING
        and LEAST <= point.load_value / fleet.load_per_s <= MOST
        and point.lengths.is_like(workload.lengths)
        and point.prefix.rounded == workload.prefix.rounded
    )


def compared(
    candidate: Candidate,
    question: Question,
    point: Point,
    facts: Mapping[str, float] | None = None,
    sent: Sent | None = None,
) -> Verification:
    """A level of random arrivals on one replica beside the law of `candidate`; one that is not steady proves nothing.

    `facts` of the measurement, where they are known, hold the intervals of its percentiles (``ttft_p95_low_s``). Where
    the requests that it `sent` are known, the law is asked what these very ones should have seen, which leaves less to
    chance.
    """
    known = facts or {}
    because, bands = void_because(point), tuple[Band, ...]()
    if not point.void:
        bands = _bands(candidate, question, point.load_value, point.requests, sent)
        because = because or ("" if bands else "the law holds that a replica cannot carry this load")
    figures = tuple(
        Figure(
            *band,
            getattr(point, f"{name}_s", None),
            known.get(f"{name}_low_s"),
            known.get(f"{name}_high_s"),
            band.of in question.sla.limits,
        )
        for band in bands
        for name in [f"{band.of.metric}_p{band.of.percentile}"]
    )
    if not any(figure.limited for figure in figures):
        because = because or "the SLA asks for a share of all requests, and a level holds percentiles"
    few = [figure.of.name for figure in figures if figure.limited and figure.measured_s is None]
    if few and not because:
        because = f"{point.requests or 'its'} requests are too few for {' and '.join(few)}: measure longer"
    return Verification(point.load_value, figures, because, point.requests, point.measured_at)


class Band(NamedTuple):
    """A percentile as `Figure` has it predicted."""

    of: Limit
    predicted_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The requests that a measurement sent: when, in seconds, shape (n,), from its first one on, warm-up included, and
    the window from `start_s` to `stop_s` that it measured. Their lengths in tokens, where they are known."""

    arrival_s: Seconds
    start_s: float
    stop_s: float
    isl: Tokens | None = None
    osl: Tokens | None = None


@lru_cache(maxsize=64)
def _bands(
    candidate: Candidate, question: Question, rate_per_s: float, requests: int | None, sent: Sent | None
) -> tuple[Band, ...]:
    """What a measurement of so many requests, or of those that were sent, should show; nothing where the law calls the
    load saturated. Takes about a second, hence kept."""
    workload = replace(question.workload, rate_per_s=rate_per_s, arrivals=Arrivals())
    setting = Setting(workload, question.sla, "random", 1)
    steady = run_at(candidate.replica, setting, rate_per_s, REQUESTS)
    if steady.saturated:
        return ()
    wanted = _wanted(question)
    if not requests:
        ends_of, predicted = latency_band(_on_another_run(candidate), setting, rate_per_s), steady.prediction()
        return tuple(_banded(each, predicted.value_s(each), *ends_of(each)) for each in wanted)
    whole_s, gaps = float(steady.e2e_s.mean()), question.sla.gap is not None

    def logs(replica: Replica, most: int = MEASUREMENTS) -> Floats:
        """Of measurements, by what is wanted."""
        seen = measurements(replica, workload, requests, whole_s, sent, token_gaps=gaps, most=most)
        return np.log([[max(run.at(each), LEAST_S) for each in wanted] for run in seen])

    by_chance = logs(candidate.replica)
    luck = by_chance.std(axis=0, ddof=1) if len(by_chance) > 1 else 0.0
    of_law = law_sigmas(candidate, lambda replica: logs(replica, FEWEST).mean(axis=0))
    of_tail = [tail_sigma(each) for each in wanted]
    sigmas = np.hypot(luck, np.hypot(of_law, of_tail))
    values = zip(wanted, np.exp(by_chance.mean(axis=0)).tolist(), sigmas.tolist(), strict=True)
    return tuple(_banded(each, value_s, *spread(sigma)) for each, value_s, sigma in values)


def law_sigmas(candidate: Candidate, logs: Callable[[Replica], Floats]) -> Floats:
    """Standard errors, shape (n,), of logarithms that an engine gives, by what the law of the candidate leaves open and
    by what one run of the server differs from the next: half of what they change along each pair, in quadrature."""
    halves = [(logs(slower) - logs(faster)) / 2 for faster, slower in _on_another_run(candidate).variants]
    return np.asarray(np.sqrt(np.square(halves).sum(axis=0)))


def _on_another_run(candidate: Candidate) -> Candidate:
    """The candidate, among its variants what the server differs by from one run to the next, as far as its law leaves
    that out: all times alike, which random arrivals amplify the more, the busier the server is."""
    again = min(ITL_SIGMA, run_to_run(candidate.fitted_to))
    known = candidate.variants or (_apart(candidate.replica, candidate.relative_sigma),)
    return replace(candidate, variants=(*known, _apart(candidate.replica, again)))


def _apart(engine: Replica, sigma: float) -> tuple[Replica, Replica]:
    """The engine with all its times shorter by one standard error, and longer."""
    factor = math.exp(sigma)
    return replace(engine, law=engine.law.scaled(1 / factor)), replace(engine, law=engine.law.scaled(factor))


def _banded(wanted: Limit, value_s: float, low: float, high: float) -> Band:
    """The band, widened by what the measurement of its metric adds."""
    low, high = with_luck((low, high), INSTRUMENT.get(wanted.metric, 0.0))
    return Band(wanted, value_s, value_s * low, value_s * high)


class SimulatedMeasurement(NamedTuple):
    """A simulated measurement: the run, and the share of each request's time that lies in the window, shape (n,)."""

    run: Simulated
    weight: Floats

    def quantiles(self, metric: Metric) -> Quantiles:
        """By weight, as `calibration` reports them; of gaps, those of the whole run."""
        if metric == "gap":
            return self.run.quantiles("gap")
        return Quantiles.weighted(self.run.of(metric), self.weight)

    def at(self, limit: Limit) -> float:
        """The percentile that a limit on a latency speaks of, in seconds."""
        return self.quantiles(cast(Metric, limit.metric)).at(limit.percentile)


def measurements(
    replica: Replica,
    workload: Workload,
    requests: int,
    e2e_s: float,
    sent: Sent | None = None,
    *,
    token_gaps: bool = False,
    most: int = MEASUREMENTS,
) -> list[SimulatedMeasurement]:
    """Simulated measurements of so many requests of the workload, as `calibration` makes them: from an empty server on,
    at exactly the workload's rate, those of the first `WARM_E2ES` mean E2Es (`e2e_s`) left out. Near saturation a
    percentile grows for minutes, and a short measurement does not see the end of it. Requests overlap the end of the
    window as under load, which goes on for as long.

    Of those that were `sent`, what is not known of them is left to chance; and, always, where in a decode step each of
    them reaches the scheduler: nobody knows to the millisecond how long client and API server held it, and that
    decides which prompts share an iteration. There are at most `most` of them, and with each seed the same requests
    whatever the replica.
    """
    wanted = max(1, min(requests, REQUESTS // FEWEST))
    warm = math.ceil(WARM_E2ES * workload.rate_per_s * e2e_s)
    known = warm + wanted + 1 if sent is None else len(sent.arrival_s)
    drawn = known + warm
    step_s = replica.law.decode_s(1.0, workload.lengths.isl)
    found = []
    for seed in range(min(most, max(FEWEST, REQUESTS // drawn))):
        rng = np.random.default_rng(seed)
        isl, osl = workload.lengths.sample(drawn, rng)
        later_s = workload.arrivals.times(warm, workload.rate_per_s, rng)
        if sent is None:
            arrival_s = workload.arrivals.times(known, workload.rate_per_s, rng)
            window_s = float(arrival_s[warm]), float(arrival_s[-1])
            arrival_s = np.concatenate([arrival_s, window_s[1] + later_s])
        else:
            reached_s = np.concatenate([sent.arrival_s + step_s * rng.random(known), sent.stop_s + later_s])
            window_s = sent.start_s, sent.stop_s
            order = np.argsort(reached_s, kind="stable")
            arrival_s = reached_s[order]
            if sent.isl is not None and sent.osl is not None:
                isl[:known], osl[:known] = sent.isl, sent.osl
                isl, osl = isl[order], osl[order]
        run = simulate_trace(replica, arrival_s, isl, osl, workload=workload, seed=seed, watch=Watch(token_gaps))
        found.append(SimulatedMeasurement(run, _inside(run, *window_s)))
    return found


def _inside(run: Simulated, start_s: float, stop_s: float) -> Floats:
    """The share of each request's time, from its arrival to its last token, that lies in the window, shape (n,)."""
    inside_s = np.minimum(run.arrival_s + run.e2e_s, stop_s) - np.maximum(run.arrival_s, start_s)
    return np.asarray(np.maximum(inside_s, 0.0) / np.maximum(run.e2e_s, LEAST_S))


def _wanted(question: Question) -> list[Limit]:
    """What is compared, by metric and percentile: the SLA's limits on latencies, and the usual percentiles under no
    limit."""
    limits = {(limit.metric, limit.percentile): limit for limit in question.sla.limits if limit.metric in METRICS}
    for metric in ("ttft", "e2e") if question.workload.lengths.without_gaps else OF_REQUESTS:
        for percentile in PERCENTILES:
            limits.setdefault((metric, percentile), Limit(metric, percentile, UNLIMITED_S))
    return sorted(limits.values(), key=lambda each: (LIMITED.index(each.metric), each.percentile))


def void_because(point: Point) -> str:
    """The reason for the verdict of a point that is not steady, of all its notes; empty for a steady one."""
    if point.verdict == "steady":
        return ""
    start = point.verdict or "not judged"
    return next((note for note in point.notes.split("; ") if note.startswith(start)), start)


def with_luck(ends: tuple[float, float], sigma: float) -> tuple[float, float]:
    """The band of the law, as factors, widened by an error of the log that is independent of it."""
    low, high = (math.log(end) if 0 < end < math.inf else math.copysign(math.inf, end - 1) for end in ends)
    return math.exp(-math.hypot(low, Z90 * sigma)), math.exp(math.hypot(high, Z90 * sigma))
