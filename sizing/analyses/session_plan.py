"""How many GPUs for conversations or agents: fleets surveyed by formula, sized by simulating their sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from sizing.analyses.relax import Ways, ways_out
from sizing.analyses.traced import FARTHEST
from sizing.candidates import catalogued
from sizing.edge import BY_FORMULA, FAR, FINE, SURE, least, log_ratio, predict_at, upper_end
from sizing.engine import FREE, Replica
from sizing.errors import ScenarioError
from sizing.explain import distance_from_sla, engine_rejection, first_look
from sizing.memory_use import caching
from sizing.numbers import Floats, count_of, gpus, milliseconds, per_second, percent
from sizing.planner import cheapest, cost, fastest_engines, least_working, size
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.prediction import Prediction, Quantiles
from sizing.question import Question, check_priced, weight_of
from sizing.queueing import stable_rate_per_s
from sizing.simulator.runs import MOST_REPLICAS
from sizing.simulator.sessions import (
    SCATTERING,
    SESSION_ROUTINGS,
    SessionLatency,
    SessionRouting,
    SimulatedSessions,
    drawn_sessions,
    simulate_sessions,
)
from sizing.simulator.state import SERVED
from sizing.stats import Z90
from sizing.workload import (
    OF_REQUESTS,
    Lengths,
    Limit,
    Prefix,
    RequestMetric,
    Sessions,
    Sla,
    Workload,
    metric_name,
    parse_limit,
)

TURNS = 60_000
"""Turns of a run that decides; `CURVE_TURNS` of one that only draws a curve."""
AGAIN = 2
"""Further runs that must not contradict the one that settles the count of a fleet which its cache keeps going."""
CURVE_TURNS = 20_000
CAPACITY_STEP, MOST_TIMES = 0.04, 100.0
"""Relative step at which the search of a fleet's capacity ends, and the multiple of its load beyond which none is."""
ALONE = 0.05
"""Sessions in flight on a replica that is nearly idle."""
DRAWN_TURNS = 20_000
"""Turns drawn to know the means of what is sent."""
CLOSE = 0.01
"""Relative difference of sessions in flight from the users asked for at which the search of their rate ends."""
MOST_STEPS = 12
RISING = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 2.0, 2.3, 2.6, 3.0)
"""Multiples of the planned load of the curve; beyond, up to `FARTHEST_LOAD`, each is half as much again."""
FARTHEST_LOAD = 100.0
Progress = Callable[[str], None]

# --- What is asked: sessions, how many, and limits on turns and on whole sessions

OF_METRIC: dict[SessionLatency, RequestMetric] = {
    "first_ttft": "ttft",
    "later_ttft": "ttft",
    "itl": "itl",
    "e2e": "e2e",
    "session": "e2e",
}
SUBJECTS: dict[SessionLatency, str] = {
    "first_ttft": "TTFT of first turns",
    "later_ttft": "TTFT of later turns",
    "session": "time of a session",
}
OWN: tuple[SessionLatency, ...] = tuple(SUBJECTS)
"""Latencies that only sessions have; the others are limited as those of any request."""


@dataclass(frozen=True, slots=True)
class SessionLimit(Limit):
    """A limit on the TTFT of first or of later turns or on the time of a whole session, thinking and tools included.

    `metric` is the one that a formula, which knows no sessions, has in its place.
    """

    of: SessionLatency = field(kw_only=True)

    @classmethod
    def on(cls, of: SessionLatency, text: str, option: str = "") -> SessionLimit:
        """Read ``p95:1s``; `option`: the name that an error gives it.

        >>> print(SessionLimit.on("later_ttft", "p95:500ms"))
        p95 TTFT of later turns <= 500 ms
        """
        return cls(OF_METRIC[of], *parse_limit(option or of, text), of=of)

    @property
    def key(self) -> str:
        """What is limited, as JSON has it."""
        return self.of

    @property
    def subject(self) -> str:
        """What is limited, in words."""
        return SUBJECTS.get(self.of, metric_name(self.metric))


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """Sessions, and how many: `users` in flight at once, those who think included; None: `sessions.rate_per_s` start.

    Raises ScenarioError for a number of users or a routing that cannot be.
    """

    sessions: Sessions
    users: int | None = None
    routing: SessionRouting = "affinity"

    def __post_init__(self) -> None:
        if self.users is not None and self.users < 1:
            raise ScenarioError(f"users must be 1 or more, got {self.users}")
        if self.routing not in SESSION_ROUTINGS:
            raise ScenarioError(f"routing {self.routing!r} is not one of {', '.join(SESSION_ROUTINGS)}")

    @property
    def words(self) -> str:
        """For instance: for 400 users."""
        if self.users is None:
            return f"to start {per_second(self.sessions.rate_per_s, noun='session')}"
        return f"for {count_of(self.users, 'user')} at once"

    def times(self, pace: float) -> SessionLoad:
        """As many times the sessions."""
        if self.users is not None:
            return replace(self, users=max(1, math.ceil(self.users * pace - 1e-9)))
        return replace(self, sessions=replace(self.sessions, rate_per_s=self.sessions.rate_per_s * pace))


def within_context(model: str, sessions: Sessions) -> Sessions:
    """The sessions, ended by a turn that the catalogue's model cannot attend to.

    Raises ScenarioError for a limit beyond what the model takes.
    """
    known = catalogued(model)
    most = known.max_context_tokens if known else None
    if most and sessions.context_tokens > most:
        raise ScenarioError(
            f"context_tokens must be at most {most:,}, what {model} takes, got {sessions.context_tokens:,}"
        )
    return replace(sessions, context_tokens=most) if most and not sessions.context_tokens else sessions


@dataclass(frozen=True, slots=True)
class TurnsByPlace:
    """What the turns of sessions come to on average: their `lengths`, `each` session's number of them, `known_tokens`
    of a prompt that were sent or answered before, the `system_tokens` that every prompt begins with, and beside these
    the `context_tokens` of a session once a turn is answered, of all turns and of those that another follows."""

    lengths: Lengths
    each: float
    known_tokens: float
    system_tokens: int
    context_tokens: float
    thinking_tokens: float

    @classmethod
    def of(cls, sessions: Sessions, seed: int = 0) -> TurnsByPlace:
        """By drawing some thousand turns."""
        count = max(200, math.ceil(DRAWN_TURNS / sessions.turns))
        run, _ = drawn_sessions(Replica(FREE), replace(sessions, rate_per_s=1.0), count, seed)
        isl, osl = run["isl"].astype(np.float64), run["osl"].astype(np.float64)
        later = np.append(False, run["session"][1:] == run["session"][:-1])
        known = np.where(later, np.roll(isl + osl, 1), float(sessions.system_tokens))
        lengths = Lengths(float(isl.mean()), float(osl.mean()), osl_cv=float(osl.std() / osl.mean()))
        each = len(run) / (int(run["session"][-1]) + 1)
        contexts = isl + osl - sessions.system_tokens
        context = float(contexts.mean())
        thinking = float(contexts[:-1][later[1:]].mean()) if later.any() else context
        return cls(lengths, each, float(np.minimum(known, isl).mean()), sessions.system_tokens, context, thinking)

    def workload(self, turns_per_s: float, found_tokens: float) -> Workload:
        """Requests at random that are alike to a formula: of every prompt so many tokens are found in the cache."""
        tokens = int(min(found_tokens, self.lengths.isl))
        return Workload(self.lengths, turns_per_s, prefix=Prefix(tokens, 1.0) if tokens else Prefix())


def session_question(model: str, load: SessionLoad, sla: Sla, **terms: Any) -> tuple[Question, TurnsByPlace]:
    """The question that candidates are surveyed on, every token found that was there before; and what turns are like.

    `terms`: headroom, spare and prices of the `Question`. Raises ScenarioError for a limit on gaps between tokens, and
    for one on later turns where none is ever sent.
    """
    if sla.gap:
        raise ScenarioError("gaps between tokens are not recorded in sessions: limit their ITL")
    turns = TurnsByPlace.of(load.sessions)
    if turns.each == 1 and any(isinstance(limit, SessionLimit) and limit.of == "later_ttft" for limit in sla.limits):
        raise ScenarioError("sessions have no later turn whose TTFT could be limited: each ends after its first")
    rate_per_s = load.sessions.rate_per_s
    if load.users is not None:  # a first guess, of sessions whose turns take a second
        rate_per_s = load.users / (load.sessions.turns * (load.sessions.think_s + 1.0))
    return Question(model, turns.workload(rate_per_s * turns.each, turns.known_tokens), sla, **terms), turns


# --- What a run shows, without its turns


@dataclass(frozen=True, slots=True)
class SessionPrediction(Prediction):
    """Percentiles of turns, as of requests, and `parts`: of first turns, later turns and sessions apart."""

    parts: Mapping[SessionLatency, Quantiles] = field(default_factory=dict, hash=False)

    def value_s(self, limit: Limit) -> float:
        """Seconds predicted for what `limit` speaks of."""
        if isinstance(limit, SessionLimit):
            return self.parts[limit.of].at(limit.percentile)
        return super(SessionPrediction, self).value_s(limit)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The JSON shape: of turns, then of first turns, later turns and sessions."""
        own: dict[str, dict[str, float]] = {name: asdict(self.parts[name]) for name in OWN}
        return {**super(SessionPrediction, self).as_dict(), **own}


@dataclass(frozen=True, slots=True)
class Seen:
    """One fleet under one load. `rate_per_s`: sessions that start; `in_flight`: on average, those who think included;
    `excess`: log of a percentile's upper end over its limit, the worst of the SLA: it holds where that is not above 0.
    `missed`: the limit with the least room."""

    replicas: int
    rate_per_s: float
    turns_per_s: float
    in_flight: float
    hit_rate: float
    rejected_share: float
    pauses: int
    predicted: SessionPrediction
    excess: float
    missed: Limit

    @property
    def meets(self) -> bool:
        """True where the SLA holds, three standard errors up."""
        return self.excess <= 0

    @property
    def saturated(self) -> bool:
        """True where the queue grew all the time."""
        return self.predicted.saturated

    @classmethod
    def of(cls, run: SimulatedSessions, sla: Sla, replicas: int, rate_per_s: float, sure: float = SURE) -> Seen:
        """The summary of a run, its excess `sure` standard errors up."""
        ratios = {limit: log_ratio(upper_s(run, limit, sure), limit.limit_s) for limit in sla.limits}
        missed = max(ratios, key=ratios.__getitem__)
        turns = run.turns.prediction()
        shown = {name: getattr(turns, name) for name in ("ttft", "itl", "e2e", "saturated", "utilization", "method")}
        parts = {name: run.latencies[name] for name in OWN}
        return cls(
            replicas=replicas,
            rate_per_s=rate_per_s,
            turns_per_s=run.turns_per_s,
            in_flight=run.in_flight,
            hit_rate=run.hit_rate,
            rejected_share=run.turns.rejected / max(1, len(run.number)),
            pauses=run.pauses,
            predicted=SessionPrediction(**shown, warnings=turns.warnings, parts=parts),
            excess=FAR if run.saturated else ratios[missed],
            missed=missed,
        )


def upper_s(run: SimulatedSessions, limit: Limit, sure: float = SURE) -> float:
    """Upper end, in seconds, of the percentile that a limit speaks of, `sure` standard errors up; a turn that was not
    served took without end. Infinite where nothing was measured, 0 where a run has no later turns."""
    turns, later = run.turns, run.number > 0
    if isinstance(limit, SessionLimit) and limit.of == "session":
        return upper_end(run.session_s, limit.percentile, sure)
    if limit.metric not in OF_REQUESTS:
        return math.inf  # as nobody has recorded any
    values: Floats = turns.of(limit.metric)
    if isinstance(limit, SessionLimit):
        chosen = later if limit.of == "later_ttft" else ~later
        if not chosen.any() and limit.of == "later_ttft":
            return 0.0
    else:
        chosen = np.ones(len(values), bool)
    values = np.where(turns.outcome == SERVED, values, math.inf)[chosen]
    return upper_end(values[~np.isnan(values)], limit.percentile, sure)


@dataclass(slots=True)
class SessionRuns:
    """Simulations of one candidate's fleets, each done once."""

    question: Question
    load: SessionLoad
    candidate: Candidate
    seed: int
    progress: Progress
    turns: int = TURNS
    sure: float = SURE
    session_s: float = 0.0
    done: dict[tuple[int, SessionLoad], Seen] = field(default_factory=dict)
    further: dict[tuple[int, SessionLoad], Seen] = field(default_factory=dict)

    def meets(self, replicas: int) -> bool:
        """True if a fleet of so many working replicas keeps the SLA with its headroom."""
        return self.loaded(replicas).meets

    def holds(self, replicas: int) -> bool:
        """True if it keeps the SLA with its headroom in further runs, too."""
        return self.surely(replicas, self.busy).meets

    def surely(self, replicas: int, load: SessionLoad) -> Seen:
        """The fleet under a load by its run, or by the first of `AGAIN` runs of other sessions, at the same rate, that
        contradicts it.

        A fleet that carries the load only because prompts are found in its cache may keep the SLA for hundreds of
        sessions' times, until contexts crowd each other out and it never recovers. The scatter within a run does not
        tell how likely that is; further runs do. They need no margin, lest chance contradict a count that has one. A
        fleet that would carry the load without its cache recovers, and is not run again.
        """
        seen = self.at(replicas, load)
        if not seen.meets or seen.turns_per_s < replicas * self.bare_turns_per_s():
            return seen
        if (replicas, load) not in self.further:
            apart, rate_per_s = replace(load, users=None), seen.rate_per_s
            others = (replace(self, seed=self.seed + further) for further in range(1, AGAIN + 1))
            runs = (other.simulated(replicas, apart, rate_per_s) for other in others)
            shown = (Seen.of(run, self.question.sla, replicas, rate_per_s, sure=0.0) for run in runs)
            self.further[replicas, load] = next((one for one in shown if not one.meets), seen)
        return self.further[replicas, load]

    def bare_turns_per_s(self) -> float:
        """Turns/s that a replica can carry where only the system prompt is found in its cache."""
        turns = TurnsByPlace.of(self.load.sessions)
        bare = turns.workload(1.0, turns.system_tokens)
        return stable_rate_per_s(self.candidate.replica, bare.lengths, bare.prefix)

    def loaded(self, replicas: int) -> Seen:
        """The fleet with its headroom used up."""
        return self.at(replicas, self.busy)

    @property
    def busy(self) -> SessionLoad:
        """As many more sessions as the headroom is for."""
        return self.load.times(1 / (1 - self.question.headroom))

    def planned(self, replicas: int) -> Seen:
        """The fleet at the planned load."""
        return self.at(replicas, self.load)

    def at(self, replicas: int, load: SessionLoad) -> Seen:
        """The fleet under a load."""
        if (replicas, load) not in self.done:
            self.progress(f"simulating sessions on {replicas:,} x {self.candidate.label}")
            found = self._users(replicas, load) if load.users else self.run(replicas, load, load.sessions.rate_per_s)
            self.done[replicas, load] = found
        return self.done[replicas, load]

    def run(self, replicas: int, load: SessionLoad, rate_per_s: float) -> Seen:
        """The fleet where so many sessions start in a second."""
        run = self.simulated(replicas, load, rate_per_s)
        return Seen.of(run, self.question.sla, replicas, rate_per_s, self.sure)

    def simulated(self, replicas: int, load: SessionLoad, rate_per_s: float) -> SimulatedSessions:
        """The same with every turn."""
        return simulate_sessions(
            self.candidate.replica,
            replace(load.sessions, rate_per_s=rate_per_s),
            replicas=replicas,
            routing=load.routing,
            requests=self.turns,
            seed=self.seed,
        )

    def _users(self, replicas: int, load: SessionLoad) -> Seen:
        """The run with as many sessions in flight as there are users; the rate is found by Little's law, step by step.

        Sessions in flight grow with the rate. At the cliff they jump from fewer than the users to a growing queue: then
        the answer is the run beyond it, where so many users would keep the fleet.
        """
        users, low, high = load.users or 1, 0.0, math.inf
        beyond: Seen | None = None
        rate_per_s = users / (self.session_s or self.idle_s())
        for _ in range(MOST_STEPS):
            seen = self.run(replicas, load, rate_per_s)
            if not seen.saturated and seen.in_flight > 0:
                self.session_s = seen.in_flight / rate_per_s
                if abs(seen.in_flight / users - 1) <= CLOSE:
                    return seen
            if seen.saturated or seen.in_flight > users:
                high, beyond = rate_per_s, seen
            else:
                low = rate_per_s
            if high < low * (1 + CLOSE):
                break
            step_per_s = rate_per_s * users / seen.in_flight if seen.in_flight > 0 else 2 * rate_per_s
            if seen.saturated or not low < step_per_s < high:
                step_per_s = math.sqrt(low * high) if low > 0 and high < math.inf else rate_per_s / 2
            rate_per_s = step_per_s
        return beyond or seen

    def idle_s(self) -> float:
        """Time of a session that is alone, roughly."""
        sessions, law = self.load.sessions, self.candidate.replica.law
        answer_s = sessions.output_tokens * law.decode_s(1, sessions.first_tokens)
        return law.prefill_alone_s(sessions.first_tokens) + sessions.turns * (answer_s + sessions.think_s)


# --- The plan


@dataclass(frozen=True, slots=True, eq=False)
class SessionPlan:
    """The fleets for sessions. `seen`: the answer at the planned load; `routings`: its fleet under that load with every
    routing, none where it has one working replica; `curve`: its fleet under rising loads; `turns`: what is sent on
    average. `all_found`, `none_found`: working replicas by formula where every token that was there before is found in
    the cache, and where only the system prompt is; None where the formula finds no fleet."""

    plan: Plan
    load: SessionLoad
    turns: TurnsByPlace
    seen: Seen
    routings: tuple[tuple[SessionRouting, Seen], ...]
    curve: tuple[Seen, ...]
    all_found: int | None
    none_found: int | None

    @property
    def gpus_per_100(self) -> float:
        """GPUs, spares included, for each 100 sessions in flight."""
        return 100 * self.plan.answer.gpus / self.seen.in_flight

    @property
    def cliff(self) -> Seen | None:
        """The first load above the planned one at which a tenth of the tokens found there is lost; None: none drawn."""
        lost = (each for each in self.curve if each.hit_rate < 0.9 * self.seen.hit_rate or each.saturated)
        return next((each for each in lost if each.rate_per_s > self.seen.rate_per_s), None)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV caches of the working replicas hold together."""
        return self.plan.answer.working * self.plan.answer.candidate.replica.batching.kv_tokens

    def context_tokens(self, seen: Seen) -> float:
        """Of a session in flight, on average over time: after its last answer nobody thinks."""
        turns = self.turns
        thinking_s, served_s = (turns.each - 1) * self.load.sessions.think_s, turns.each * seen.predicted.e2e.mean_s
        share = thinking_s / (thinking_s + served_s)
        return share * turns.thinking_tokens + (1 - share) * turns.context_tokens

    def filled(self, seen: Seen) -> float:
        """Contexts of all sessions in flight over the KV caches of the fleet: above 1 some must be evicted."""
        return seen.in_flight * self.context_tokens(seen) / self.kv_tokens


def plan_sessions(
    question: Question,
    load: SessionLoad,
    turns: TurnsByPlace,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection] = (),
    *,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> SessionPlan:
    """The fleets that meet the SLA for sessions, fewest GPUs first; every one is simulated, with its prefix cache.

    `question` and `turns`: as `session_question` makes them. Headroom h means that the fleet meets the SLA with
    1/(1 - h) times the sessions. Best first: a candidate is bounded by its stable rate, then by formula, under Poisson
    arrivals of alike turns with all that was there before found in the cache, which is as good as a cache can be, and
    without what their own prompts take of a limit; then simulated. One that misses a limit even without load, by
    formula, is left out if it does with sessions nearly alone, simulated. It ends when no bound is below the best
    simulated fleet. Of engines estimated side by side the fastest is taken, and the others on the configuration that
    wins, or where no other is left.

    Users are sessions that start at random, at the rate at which so many are in flight, not a fixed number of them: so
    sessions in flight vary as with many independent users, and users who wait do not keep the queue short. The slower a
    fleet, the less its users send: a candidate is bounded at the rate of the users whose SLA its replicas just keep.

    Raises NoFeasiblePlan as `plan` does, and ScenarioError where only some GPUs have a price.
    """
    check_priced(question, (candidate.gpu for candidate in candidates))
    ready, left_out = holding(candidates, load.sessions)
    left_out += rejected
    runs = {id(one): SessionRuns(question, load, one, seed, progress) for one in ready}
    first, slower = fastest_engines(ready, question.workload.lengths, question.workload.prefix)
    bounds = {id(one): Bound.stable(runs[id(one)], turns) for one in first}
    while bounds or slower:
        if not bounds:
            bounds, slower = {id(each): Bound.stable(runs[id(each)], turns) for each, _ in slower}, []
        best = min(bounds.values(), key=lambda bound: (bound.cost(question), -bound.stage))
        if best.stage == SIMULATED:
            beside = [each for each, faster in slower if faster is best.runs.candidate]
            slower = [(each, faster) for each, faster in slower if faster is not best.runs.candidate]
            if not beside:
                break
            bounds |= {id(each): Bound.stable(runs[id(each)], turns) for each in beside}
            continue
        if missed := best.tighten(question, cheapest(question, simulated(bounds.values()))):
            left_out.append(missed)
            del bounds[id(best.runs.candidate)]
    fleets = sorted(simulated(bounds.values()), key=lambda fleet: cost(question, fleet))
    slow = [engine_rejection(each, faster.engine) for each, faster in slower]
    misses = sorted((*left_out, *slow), key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan(f"no configuration meets {question.sla}", tuple(misses))
    answer = fleets[0]
    misses += [bound.beaten_by(question, answer) for bound in bounds.values() if bound.stage != SIMULATED]
    own = runs[id(answer.candidate)]
    seen = own.planned(answer.working)
    asked = replace(question, workload=turns.workload(seen.turns_per_s, seen.hit_rate * turns.lengths.isl))
    return SessionPlan(
        plan=Plan(
            asked,
            tuple(completed(runs[id(fleet.candidate)], fleet) for fleet in fleets),
            tuple(misses),
            serves=load.words,
        ),
        load=load,
        turns=turns,
        seen=seen,
        routings=by_routing(own, answer.working),
        curve=rising(own, answer.working),
        all_found=by_formula(question, answer.candidate, turns, seen, turns.known_tokens),
        none_found=by_formula(question, answer.candidate, turns, seen, turns.system_tokens),
    )


STABLE, FORMULA, SIMULATED = range(3)


@dataclass(slots=True)
class Bound:
    """What is known so far of the fleet that a candidate needs: working replicas at `least`, then by formula, where the
    search by simulation begins, and the simulated fleet."""

    runs: SessionRuns
    turns: TurnsByPlace
    least: int
    stage: int = STABLE
    fleet: Fleet | None = None

    @classmethod
    def stable(cls, runs: SessionRuns, turns: TurnsByPlace) -> Bound:
        """By the rate at which its replicas are stable, which says nothing of users: the slower, the less they send."""
        return cls(runs, turns, least_working(runs.question, runs.candidate) if runs.load.users is None else 1)

    def gpus(self, question: Question) -> int:
        """GPUs, spares included, at least; those of the fleet once it is simulated."""
        return (self.least + question.spare) * self.runs.candidate.gpus

    def cost(self, question: Question) -> float:
        """GPUs at least, or their price where GPUs have their own."""
        return self.gpus(question) * weight_of(question, self.runs.candidate.gpu)

    def tighten(self, question: Question, winner: Fleet | None) -> Rejection | None:
        """Go one stage further; why the candidate is left out, if it is."""
        found: Fleet | Rejection | None
        if self.stage == STABLE:
            found = first_look(partial(size, question, self.runs.candidate))
            if isinstance(found, Rejection) and found.kind == "sla":
                alone = nearly_alone(self.runs)  # to the formula all turns are alike, and a session is one of them
                found = None if alone.meets else alone_missed(self.runs.candidate, alone)
            elif isinstance(found, Fleet):
                found = replace(found, working=self.needed(question, found))
                light = size(self.without_prompts(question), self.runs.candidate, BY_FORMULA)
                if isinstance(light, Fleet):
                    self.least = min(self.needed(question, light), found.working)
        else:
            found = sized_by(self.runs, self.fleet.working if self.fleet else self.least, winner)
            if isinstance(found, Fleet):
                self.least = found.working
        if isinstance(found, Rejection):
            return found
        self.stage, self.fleet = self.stage + 1, found
        return None

    def without_prompts(self, question: Question) -> Question:
        """The question with limits looser by the time that the mean prompt takes to compute, except on ITL: a limit may
        be on turns that compute next to nothing, but wait for others all the same."""
        prompt_tokens = self.turns.lengths.isl - self.turns.known_tokens
        prompt_s = self.runs.candidate.replica.law.prefill_alone_s(prompt_tokens)
        longer = (
            replace(limit, limit_s=limit.limit_s + prompt_s * (limit.metric != "itl")) for limit in question.sla.limits
        )
        return replace(question, sla=Sla(*longer))

    def needed(self, question: Question, fleet: Fleet) -> int:
        """Working replicas by a formula's `fleet`. For users: as many as it takes if each replica has no more of them
        than are in flight there at the rate at which it just keeps the SLA."""
        load, rate_per_s = self.runs.load, fleet.capacity_per_s
        if load.users is None:
            return fleet.working
        e2e_s = predict_at(fleet.candidate.replica, question.setting(1), rate_per_s).e2e.mean_s
        session_s = self.turns.each * (e2e_s + load.sessions.think_s) - load.sessions.think_s
        workload = replace(question.workload, rate_per_s=load.users / session_s * self.turns.each)
        return replace(question, workload=workload).replicas_at(rate_per_s)

    def beaten_by(self, question: Question, winner: Fleet) -> Rejection:
        """Why it was not simulated."""
        why = (
            f"needs at least {gpus(self.gpus(question))} by formula, headroom and spares included, with all found in "
            f"the cache; {gpus(winner.gpus)} as {winner.candidate.label} meet the SLA"
        )
        return Rejection.of(self.runs.candidate, "cost", why)


def simulated(bounds: Iterable[Bound]) -> list[Fleet]:
    """The fleets that are no bounds any more."""
    return [bound.fleet for bound in bounds if bound.fleet and bound.stage == SIMULATED]


def holding(candidates: Sequence[Candidate], sessions: Sessions) -> tuple[list[Candidate], list[Rejection]]:
    """Candidates with their prefix cache on, and those that have none or no room for the longest session."""
    cached, left_out = caching(candidates)
    longest, ready = sessions.context_tokens, list[Candidate]()
    for one in cached:
        if (kv_tokens := one.replica.batching.kv_tokens) < longest:
            why = f"a session may reach {longest:,} tokens, the KV cache holds {kv_tokens:,}: limit its context"
            left_out.append(Rejection.of(one, "memory", why))
        else:
            ready.append(one)
    return ready, left_out


def sized_by(runs: SessionRuns, start: int, winner: Fleet | None) -> Fleet | Rejection:
    """The smallest fleet of a candidate by simulation, searched from `start` replicas; `winner`: the best of others so
    far, which it must not cost more than."""
    question, candidate = runs.question, runs.candidate
    try:
        if winner is not None:
            start = most_replicas(question, candidate, winner)
            if start < 1 or not runs.holds(start):
                return beaten(runs, start, winner)
        most = largest(runs, start) if winner is None else start
        working = settled(runs, start, most)
        if working is None:
            alone = nearly_alone(runs)
            if not alone.meets:
                return alone_missed(candidate, alone)
            return far_missed(candidate, runs.surely(most, runs.busy))
    except ScenarioError as error:
        return Rejection.of(candidate, "memory", str(error))
    seen, loaded = runs.planned(working), runs.loaded(working)
    return Fleet(
        candidate=candidate,
        working=working,
        spare=question.spare,
        load_per_s=seen.turns_per_s / working,
        capacity_per_s=loaded.turns_per_s / working,
        requests_per_s_per_replica=seen.turns_per_s / working,
        predicted=seen.predicted,
        binding=loaded.missed,
        working_low=working,
        working_high=working,
    )


def settled(runs: SessionRuns, start: int, most: int) -> int | None:
    """The smallest fleet that keeps the SLA with its headroom in one run and in further ones, which take longer; None
    up to `most` replicas."""
    once = least(runs.meets, start, most, FINE)
    return once and least(runs.holds, once, most, FINE)


def largest(runs: SessionRuns, start: int) -> int:
    """Replicas beyond which no fleet is tried: `FARTHEST` times the start of the search, which says nothing of users;
    where these are nearly alone."""
    return max(FARTHEST * start, math.ceil((runs.load.users or 0) / ALONE))


def beaten(runs: SessionRuns, working: int, winner: Fleet) -> Rejection:
    """A candidate that misses the SLA with what the best fleet costs."""
    instead = f"{gpus(winner.gpus)} as {winner.candidate.label} meet the SLA"
    if working < 1:
        return Rejection.of(runs.candidate, "cost", f"one replica and the spares cost more: {instead}")
    all_gpus = gpus((working + runs.question.spare) * runs.candidate.gpus)
    missed = runs.surely(working, runs.busy).missed
    why = f"misses {missed} with {all_gpus}, simulated with headroom; {instead}"
    return Rejection.of(runs.candidate, "cost", why)


def nearly_alone(runs: SessionRuns) -> Seen:
    """One replica with hardly any sessions, whose turns find their cache as it was left."""
    return runs.run(1, replace(runs.load, users=None), ALONE / runs.idle_s())


def alone_missed(candidate: Candidate, alone: Seen) -> Rejection:
    """A candidate of which no number keeps a limit."""
    limit, value_s = alone.missed, alone.predicted.value_s(alone.missed)
    why = f"misses {limit} with any number of GPUs: it is {milliseconds(value_s)} for sessions nearly alone"
    return Rejection.of(candidate, "sla", why, limit, value_s)


def far_missed(candidate: Candidate, seen: Seen) -> Rejection:
    """A candidate of which one replica keeps every limit, and no fleet: turns find little where routing takes them."""
    limit, value_s = seen.missed, None if seen.saturated else seen.predicted.value_s(seen.missed)
    comes_to = "the queue grows without end" if value_s is None else f"it is {milliseconds(value_s)}"
    fleet = f"{gpus(seen.replicas * candidate.gpus)}, where {percent(seen.hit_rate)} of prompt tokens are found"
    why = f"misses {limit} with any number of GPUs: {comes_to} with {fleet}"
    return Rejection.of(candidate, "sla", why, limit, value_s)


def session_ways_out(
    rejected: Iterable[Rejection], question: Question, load: SessionLoad, candidates: Sequence[Candidate]
) -> Ways:
    """What each limit would have to be: that of sessions nearly alone, whose turns find their cache as it was left, or
    in a large fleet do not where they are not routed to it."""
    apart = replace(load, users=None)
    replicas = MOST_REPLICAS if load.routing in SCATTERING else 1

    def nearly_alone(candidate: Candidate) -> Callable[[Limit], float]:
        runs = SessionRuns(question, apart, candidate, 0, lambda _: None)
        run = cache(lambda: runs.simulated(replicas, apart, replicas * ALONE / runs.idle_s()))
        return lambda limit: upper_s(run(), limit)

    return ways_out(rejected, question, holding(candidates, load.sessions)[0], nearly_alone)


def most_replicas(question: Question, candidate: Candidate, winner: Fleet) -> int:
    """Working replicas that cost no more than another fleet, 0 or less where not even one does."""
    most = cost(question, winner)[0]
    each = candidate.gpus * weight_of(question, candidate.gpu)
    return int(most / each + 1e-9) - question.spare if each else winner.working


def completed(runs: SessionRuns, fleet: Fleet) -> Fleet:
    """The fleet with its capacity and the counts at the ends of the law's 90 % band: all times of the engine shorter,
    and all longer. The low end needs no margin for the chance of a run, which differs between runs. Runs are random: an
    end may come out on the wrong side of the count, which is then the end."""
    capacity_per_s = most_turns_per_s(runs, fleet.working) / fleet.working
    factor = math.exp(Z90 * runs.candidate.relative_sigma)
    ends = []
    for scale, sure in ((1 / factor, 0.0), (factor, SURE)):
        replica = replace(runs.candidate.replica, law=runs.candidate.replica.law.scaled(scale))
        other = replace(runs, candidate=replace(runs.candidate, replica=replica), done={}, further={})
        other.sure, other.session_s = sure, 0.0
        start = max(1, round(fleet.working * scale))
        ends.append(settled(other, start, largest(other, start)))
    low, high = ends
    planned_per_s = max(capacity_per_s * (1 - runs.question.headroom), fleet.load_per_s)
    return replace(
        fleet,
        working_low=min(low or fleet.working, fleet.working),
        working_high=max(high, fleet.working) if high else None,
        capacity_per_s=capacity_per_s,
        requests_per_s_per_replica=planned_per_s,
    )


def most_turns_per_s(runs: SessionRuns, working: int) -> float:
    """Turns/s of a fleet at the highest load at which it keeps the SLA, found to `CAPACITY_STEP`."""
    low, high, step = 1 / (1 - runs.question.headroom), math.inf, 2 * CAPACITY_STEP
    best = runs.loaded(working)
    while high / low > 1 + CAPACITY_STEP and low < MOST_TIMES:
        times = low * (1 + step) if high == math.inf else math.sqrt(low * high)
        seen = runs.surely(working, runs.load.times(times))
        if seen.meets:
            low, best, step = times, seen, 2 * step
        else:
            high = times
    return best.turns_per_s


def by_routing(runs: SessionRuns, working: int) -> tuple[tuple[SessionRouting, Seen], ...]:
    """The fleet at the planned load with each routing."""
    if working == 1:
        return ()
    return tuple((each, runs.at(working, replace(runs.load, routing=each))) for each in SESSION_ROUTINGS)


def rising(runs: SessionRuns, working: int) -> tuple[Seen, ...]:
    """The fleet at rising rates of sessions about the planned one, up to the first without a steady state."""
    planned = runs.planned(working)
    found: list[Seen] = []
    quick = replace(runs, turns=CURVE_TURNS, done={})
    runs.progress(f"simulating rising loads on {working:,} x {runs.candidate.label}")
    times = 0.0
    while times < FARTHEST_LOAD:
        times = RISING[len(found)] if len(found) < len(RISING) else 1.5 * times
        rate_per_s = planned.rate_per_s * times
        seen = planned if times == 1 else quick.run(working, replace(runs.load, users=None), rate_per_s)
        found.append(seen)
        if seen.saturated or (times > RISING[-1] and seen.hit_rate < planned.hit_rate / 2):
            break
    return tuple(found)


def by_formula(
    question: Question, candidate: Candidate, turns: TurnsByPlace, seen: Seen, found_tokens: float
) -> int | None:
    """Working replicas by formula where so many tokens of every prompt are found in the cache."""
    fleet = size(replace(question, workload=turns.workload(seen.turns_per_s, found_tokens)), candidate, BY_FORMULA)
    return fleet.working if isinstance(fleet, Fleet) else None
