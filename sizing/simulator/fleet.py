"""One replica under a stream of requests, and a router in front of several, which may differ and may fail; compiled.

Replicas interact only through the router, so each advances when the router needs its state: to count requests, to
assign one, or because it fails. Counting routers know the requests they sent and the answers that are complete.
Power of two choices is nearly as good as comparing all replicas: wait tails fall from geometric to doubly exponential
(Mitzenmacher 2001, The power of two choices in randomized load balancing).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.budget import checkpoint
from sizing.compiled import compiled
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.numbers import significant
from sizing.simulator.result import Watch, Watched, watched
from sizing.simulator.scheduler import fail, growth_s, iteration_s, step, steps_ahead, stretch_s, work_of
from sizing.simulator.state import (
    GAP_BINS,
    NO_PREFIXES,
    NOBODY,
    SERVED,
    Engine,
    Requests,
    State,
    States,
    Workspace,
    borrowed,
    engines_of,
    idle_states,
    work_space,
)
from sizing.simulator.token_gaps import Counts, TokenGaps
from sizing.simulator.waiting import enqueue, expire_all, idle
from sizing.workload import ROUTINGS, Routing, Seconds, Tokens

RANDOM, ROUND_ROBIN, POWER_OF_TWO = map(ROUTINGS.index, ("random", "round_robin", "power_of_two"))
UNWATCHED = Watch()
PART = 32_768
"""Requests served between two checks for cancellation: milliseconds, seconds at most."""
NO_HOMES = np.empty(0, np.int64)
ROUTER = np.dtype([("routing", "i8"), ("up", "i8"), ("turn", "i8")])


@dataclass(frozen=True, slots=True)
class Failure:
    """Replica number `replica` (from 0) is dead from `from_s` to `until_s`, seconds from the start of the run.

    It completes the iteration in progress; its other requests restart elsewhere with a new queue timeout. It returns
    empty.
    """

    replica: int
    from_s: float
    until_s: float = math.inf

    def __post_init__(self) -> None:
        if self.replica < 0 or not 0 <= self.from_s < self.until_s:
            raise ScenarioError(
                f"failure: replica must be 0 or more and from_s from 0 to below until_s, got {self.replica}, "
                f"{self.from_s:g} and {self.until_s:g}"
            )

    def __str__(self) -> str:
        until = "on" if math.isinf(self.until_s) else f"to {significant(self.until_s)} s"
        return f"replica {self.replica} down from {significant(self.from_s)} s {until}"


class RoutedFleet(NamedTuple):
    """The arrays that the router works with, with an entry per replica; `up` has the numbers of the live ones first.

    `homes`: by session, the replica that its first request went to and all others go to, or NOBODY before that;
    zero-length: every request is routed by itself. Replicas that may fail cannot be homes.
    """

    engines: NDArray[Any]
    states: States
    work: Workspace
    requests: Requests
    router: Any  # one record: the rule (an index of ROUTINGS), how many replicas are up, which one is next
    up: Tokens
    unchanged_until_s: Seconds  # the number of requests in the replica cannot fall before this time
    homes: Tokens


def serve(
    replicas: Sequence[Replica],
    requests: Requests,
    routing: Routing,
    rng: np.random.Generator,
    failures: Sequence[Failure] = (),
    watch: Watch = UNWATCHED,
    *,
    warmup: float = 0.0,
    streams: int = 1,
    prefixes: Tokens = NO_PREFIXES,
    by_priority: bool = False,
) -> Watched:
    """Serve requests, ascending in `arrival_s`, by a fleet; fills their times and returns what was watched.

    Token gaps are measured after the first share `warmup` of the arrivals, separately for each of `streams` streams.
    `prefixes`: tokens of the prefix that the requests of each stream share, see `shared_prefixes`. `by_priority`: they
    are not all of one priority.

    Raises ScenarioError for a failure of a replica that does not exist or is already down, and if all end up down.
    """
    checkpoint(f"simulation of {len(requests):,} requests{on_replicas(len(replicas), routing)}")
    changes = _changes(failures, len(replicas))
    jitter_seed = int(rng.integers(2**32)) if any(replica.rough.jitter for replica in replicas) else 0
    states = idle_states(len(replicas), jitter_seed, watch.sample_every_s)
    engines = engines_of(replicas, by_priority=by_priority)
    widest = max(replicas, key=lambda replica: replica.batching.max_batch_size)
    cached = any(replica.batching.prefix_cache for replica in replicas)
    sessions = int(requests["session"].max()) + 1 if cached else 0
    gaps, samples = watch.token_gaps, watch.samples
    work = work_space(
        widest,
        len(replicas),
        gaps=gaps,
        samples=samples,
        streams=streams,
        sessions=sessions,
        prefixes=prefixes,
    )
    windows = Windows.of(len(requests), warmup) if watch.token_gaps else Windows((), [])
    if len(replicas) == 1 and not changes:
        for first, last in windows.parts(0, len(requests)):
            checkpoint()
            run_part(engines[0], states, work, requests, first, last)
            windows.note(last, work)
        return watched(states, work, watch, windows.gaps(requests, streams))
    router = np.array((ROUTINGS.index(routing), len(replicas), 0), ROUTER)[()]
    never_s = np.full(len(replicas), math.inf)
    fleet = RoutedFleet(engines, states, work, requests, router, np.arange(len(replicas)), never_s, NO_HOMES)
    first = 0
    for time_s, replica, lives in changes:
        arrived = int(np.searchsorted(requests["arrival_s"], time_s))
        give_all(fleet, first, arrived, windows, rng)
        if lives:
            revive(fleet, replica)
        else:
            die(fleet, replica, time_s)
        give(fleet, np.flatnonzero(requests["replica"][:arrived] == NOBODY), time_s, rng)
        first = arrived
    give_all(fleet, first, len(requests), windows, rng)
    run_to(fleet, 0, len(replicas), math.inf)
    return watched(states, work, watch, windows.gaps(requests, streams))


WINDOWS = 30
"""Parts of a run with separate token gap counts: their differences give the error of a percentile."""


class Windows(NamedTuple):
    """Request numbers at whose arrival the token gap counts are saved, and the saved counts; empty: none."""

    marks: tuple[int, ...]
    noted: list[Counts]

    @classmethod
    def of(cls, requests: int, warmup: float) -> Windows:
        """Windows of equally many arrivals, from the end of the warm-up to the last arrival but one: later requests
        meet less and less traffic."""
        return cls(tuple(map(int, np.unique(np.linspace(int(warmup * requests), requests - 1, WINDOWS + 1)))), [])

    def parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """The requests from `first` to before `last`, split where counts are saved and after at most `PART`."""
        cuts = {first, last, *range(first, last, PART), *(mark for mark in self.marks if first < mark < last)}
        return list(pairwise(sorted(cuts)))

    def note(self, arrived: int, work: Workspace) -> None:
        """Save the gap counts of all replicas if they are due."""
        if arrived in self.marks:
            self.noted.append(work.gaps.sum(axis=0))

    def gaps(self, requests: Requests, streams: int) -> tuple[TokenGaps, ...]:
        """The gaps of each stream, once all requests have left."""
        if not self.marks:
            return ()
        noted = [np.zeros(streams * GAP_BINS, np.int64), *self.noted] if self.marks[0] == 0 else self.noted
        counts = np.diff(noted, axis=0).reshape(-1, streams, GAP_BINS)
        part = requests[self.marks[0] :]
        lost = np.where(part["outcome"] == SERVED, 0, part["osl"].astype(np.int64) - 1)
        return tuple(
            TokenGaps(np.ascontiguousarray(counts[:, stream]), int(lost[part["stream"] == stream].sum()))
            for stream in range(streams)
        )


def give_all(fleet: RoutedFleet, first: int, last: int, windows: Windows, rng: np.random.Generator) -> None:
    """Give the requests from `first` to before `last` to replicas, each at its arrival."""
    for begin, end in windows.parts(first, last):
        checkpoint()
        give(fleet, np.arange(begin, end), 0.0, rng)
        windows.note(end, fleet.work)


def on_replicas(replicas: int, routing: Routing) -> str:
    """What makes a fleet run more expensive than a run of one replica, in words."""
    return f" on {replicas} replicas with {routing} routing" if replicas > 1 else ""


def _changes(failures: Sequence[Failure], replicas: int) -> list[tuple[float, int, bool]]:
    """Time, replica, whether it is up from then on, in order of time; recoveries first at the same instant.

    Times are floats, whatever was given: for whole numbers of seconds a fleet would be compiled again.
    """
    last_end_s: dict[int, float] = {}
    for failure in sorted(failures, key=lambda failure: failure.from_s):
        if failure.replica >= replicas:
            raise ScenarioError(f"failure of replica {failure.replica}: the fleet has replicas 0 to {replicas - 1}")
        if failure.from_s < last_end_s.get(failure.replica, 0.0):
            raise ScenarioError(f"failures of replica {failure.replica} overlap: give one failure for the whole time")
        last_end_s[failure.replica] = failure.until_s
    if len(last_end_s) == replicas and all(math.isinf(end_s) for end_s in last_end_s.values()):
        raise ScenarioError("every replica fails without recovering: none is left to serve; set until_s on one of them")
    changes = [(float(failure.from_s), failure.replica, False) for failure in failures]
    changes += [(float(failure.until_s), failure.replica, True) for failure in failures if failure.until_s < math.inf]
    return sorted(changes, key=lambda change: (change[0], not change[2]))


def revive(fleet: RoutedFleet, replica: int) -> None:
    """The replica comes back, empty."""
    fleet.up[fleet.router["up"]] = replica
    fleet.router["up"] += 1


def die(fleet: RoutedFleet, replica: int, now_s: float) -> None:
    """The replica completes the iteration in progress; its other requests lose their progress and their replica."""
    living = fleet.up[: fleet.router["up"]]
    fleet.router["up"] -= 1
    fleet.up[: fleet.router["up"]] = living[living != replica]
    run_to(fleet, replica, replica + 1, now_s)
    fail(fleet.engines[replica], fleet.states[replica], row_of(fleet.work, replica), fleet.requests)
    fleet.unchanged_until_s[replica] = math.inf


def row_of(work: Workspace, replica: int) -> Workspace:
    """The arrays of one replica of a fleet, outside compiled code."""
    return Workspace(*(array[replica] for array in work))


@compiled
def give(fleet: RoutedFleet, who: Tokens, not_before_s: float, rng: np.random.Generator) -> None:
    """Give the requests of these numbers to replicas, each at its arrival but not before a time.

    Picks the replica with the fewest unfinished requests among those the routing compares; the first among equals.
    While no replica is up, the router holds requests. One call handles many requests: the arrays of a fleet are many
    arguments.
    """
    engines, states, work, requests, router, up, unchanged_until_s, homes = fleet
    requests = borrowed(requests)
    living = router.up
    for request in who:
        now_s = max(requests[request].arrival_s, not_before_s)
        best, fewest = NOBODY, len(requests) + 1
        session = requests[request].session if len(homes) > 0 else NOBODY
        place, stride, asked = 0, 1, 0
        if session != NOBODY and homes[session] != NOBODY:
            best = homes[session]
        else:
            place, stride, asked = whom_to_ask(router, rng)
        if asked == 1:  # nothing to compare
            best = up[place]
            asked = 0
        for _ in range(asked):
            replica = up[place]
            if unchanged_until_s[replica] <= now_s:
                engine, state, mine = engines[replica], states[replica], work_of(work, replica)
                advance(engine, state, mine, requests, now_s)
                unchanged_until_s[replica] = next_departure_s(engine, state, mine, now_s)
            unfinished = outstanding(states[replica], now_s)
            if unfinished < fewest:
                best, fewest = replica, unfinished
            place = place + stride if place + stride < living else place + stride - living
        if session != NOBODY:
            homes[session] = best
        requests[request].replica = best
        if best != NOBODY:
            advance(engines[best], states[best], work_of(work, best), requests, now_s)
            enqueue(engines[best], states[best], work_of(work, best), requests, request, now_s)
            unchanged_until_s[best] = min(states[best].clock_s, states[best].next_deadline_s)


@compiled
def whom_to_ask(router: Any, rng: np.random.Generator) -> tuple[int, int, int]:
    """Indices among the live replicas: the first to compare, the distance to the next, and how many to compare."""
    if router.up == 0:
        return 0, 1, 0
    if router.routing == ROUND_ROBIN:
        router.turn += 1
        return (router.turn - 1) % router.up, 1, 1
    place = int(rng.random() * router.up)
    if router.routing == RANDOM or router.up == 1:
        return place, 1, 1
    if router.routing == POWER_OF_TWO:
        return place, 1 + int(rng.random() * (router.up - 1)), 2
    return place, 1, router.up


@compiled
def run_to(fleet: RoutedFleet, first: int, last: int, until_s: float) -> None:
    """Advance replicas `first` to `last - 1`: one call, for it takes as long as a hundred requests."""
    engines, states, work, requests, _, _, _, _ = fleet
    requests = borrowed(requests)
    for replica in range(first, last):
        advance(engines[replica], states[replica], work_of(work, replica), requests, until_s)


@compiled
def run_stream(engine: Engine, states: States, work: Workspace, requests: Requests) -> None:
    """One replica serves requests that arrive when `arrival_s` says."""
    run_part(engine, states, work, requests, 0, len(requests))


@compiled
def run_part(engine: Engine, states: States, work: Workspace, requests: Requests, first: int, last: int) -> None:
    """The same for requests `first` to `last - 1`, after the earlier ones; after the very last, to the end."""
    state = states[0]
    mine, requests = work_of(work, 0), borrowed(requests)
    for request in range(first, last):
        advance(engine, state, mine, requests, requests[request].arrival_s)
        enqueue(engine, state, mine, requests, request, requests[request].arrival_s)
    if last == len(requests):
        advance(engine, state, mine, requests, math.inf)


@compiled
def advance(engine: Engine, state: State, work: Workspace, requests: Requests, until_s: float) -> None:
    """Run every iteration that starts before `until_s`; the last may end later. Requests past their deadline leave."""
    while state.clock_s < until_s and not idle(state):
        step(engine, state, work, requests, until_s)
    if state.next_deadline_s <= until_s:
        expire_all(state, requests, until_s)


@compiled
def outstanding(state: State, now_s: float) -> int:
    """Requests in the replica at `now_s`; those that leave at the end of the iteration in progress still count."""
    unfinished = state.waiting + state.admitted
    if state.clock_s > now_s:
        unfinished += state.left
    return unfinished


@compiled
def next_departure_s(engine: Engine, state: State, work: Workspace, now_s: float) -> float:
    """A time before which the number of requests in the replica cannot fall."""
    if idle(state) and state.clock_s <= now_s:
        return math.inf
    if state.waiting > 0 or state.prefilling != NOBODY or (state.clock_s > now_s and state.left > 0):
        return min(state.clock_s, state.next_deadline_s)
    if engine.jitter > 0 or state.running == 0:
        return state.clock_s
    step_s = iteration_s(engine, work, state.lanes, state.context_tokens, 0, 0.0, 0)
    end_s = state.clock_s + stretch_s(step_s, growth_s(engine, state, work), steps_ahead(engine, state, work))
    return min(end_s, state.next_cancel_s)
