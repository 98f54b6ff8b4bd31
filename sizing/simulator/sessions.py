"""Sessions of several turns on replicas with a prefix cache: the share of a prompt found there is an output.

A turn is created when an answer is complete, at any replica, so replicas advance together: always the one whose
iteration ends first, and none beyond the first time at which another one may send it a turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from sizing.budget import checkpoint
from sizing.compiled import compiled
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.prediction import Quantiles
from sizing.simulator.fleet import PART, outstanding
from sizing.simulator.prefix_cache import forget, trim
from sizing.simulator.result import E2E, SENT, WAIT, Simulated, Watched, queue_grows, simulated, tallied
from sizing.simulator.runs import MOST_REPLICAS, check_question, whole_fleet
from sizing.simulator.sampling import checked_requests, draw_steps
from sizing.simulator.scheduler import step, work_of
from sizing.simulator.state import (
    BLOCKS,
    MAX_REQUESTS,
    NOBODY,
    SERVED,
    Engine,
    Requests,
    State,
    States,
    Workspace,
    borrowed,
    engine_of,
    idle_states,
    work_space,
)
from sizing.simulator.waiting import enqueue, idle, insert_deadline, pop_deadline
from sizing.workload import Seconds, Sessions, Tokens, Turns

SessionRouting = Literal["affinity", "random", "least_outstanding", "prefix_aware"]
SESSION_ROUTINGS: tuple[SessionRouting, ...] = get_args(SessionRouting)
SessionLatency = Literal["first_ttft", "later_ttft", "itl", "e2e", "session"]
SESSION_LATENCIES: tuple[SessionLatency, ...] = get_args(SessionLatency)
SCATTERING: tuple[SessionRouting, ...] = ("random", "least_outstanding")
"""Routings that know nothing of sessions."""
RANDOM, PREFIX_AWARE = map(SESSION_ROUTINGS.index, ("random", "prefix_aware"))
FEWEST_SESSIONS = 40
RUN, RAMP = 10, 3
"""Least duration of a run, and of the time before it is measured, in mean session times: a fleet that starts empty has
the last of its sessions in flight only when the first ones have ended."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSessions:
    """The measured turns of a run and the sessions that started in the measured time.

    `turns`: the turns by the time they were sent, as requests (its utilization is unknown: NaN). Parallel arrays of
    shape (n,): `number` of the turn in its session, from 0; `prompt_tokens`; `found_tokens` of these, which the prefix
    cache held when the turn was first admitted. `session_s`: from sending the first turn to the end of the last answer,
    shape (sessions,). `in_flight`: mean number of sessions of the whole fleet that have started and not ended,
    including those whose users are thinking.
    """

    turns: Simulated
    number: Tokens
    prompt_tokens: Tokens
    found_tokens: Tokens
    session_s: Seconds
    in_flight: float

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens of served turns that the prefix cache held; NaN if none was served."""
        served = self.turns.outcome == SERVED
        asked = int(self.prompt_tokens[served].sum())
        return float(self.found_tokens[served].sum()) / asked if asked else math.nan

    @property
    def saturated(self) -> bool:
        """True when the queue kept growing: there is no steady state."""
        return self.turns.saturated

    @property
    def turns_per_s(self) -> float:
        """Complete answers per second, of the whole fleet."""
        return self.turns.requests_per_s

    @property
    def pauses(self) -> int:
        """Times that a turn lost its KV cache to others, in the whole run of the replicas simulated."""
        return self.turns.watched.pauses

    @property
    def latencies(self) -> dict[SessionLatency, Quantiles]:
        """TTFT of first turns, for which a cache holds the system prompt at most, and of all others; ITL and E2E of a
        turn; time of a session, thinking included: with tools in place of users, of a task. NaN if there are none.
        """
        turns, later = self.turns, self.number > 0
        of_turns = (turns.ttft_s[~later], turns.ttft_s[later], turns.itl_s, turns.e2e_s)
        return dict(zip(SESSION_LATENCIES, map(Quantiles.of, (*of_turns, self.session_s)), strict=True))


def simulate_sessions(
    replica: Replica,
    sessions: Sessions,
    *,
    replicas: int = 1,
    routing: SessionRouting = "affinity",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
) -> SimulatedSessions:
    """Offer sessions to a fleet of equal replicas: about `requests` turns, more if sessions are too long for that.

    *affinity*: all turns of a session go to one replica, drawn once; each replica then sees a thinned Poisson stream of
    sessions, and one represents all, exactly. The others route each turn: *random*; *least_outstanding*, to the replica
    with the fewest unfinished requests; *prefix_aware*, to the one that holds the longest prefix of the session and,
    among equals, the one with the fewest unfinished requests. They simulate up to 32 replicas at the load each would
    have; in a larger fleet, turns by *random* and *least_outstanding* meet what their session left as much more rarely.
    Blocks that all system prompts share are in the cache of every replica from the start. A session ends early if
    a replica rejects a turn.

    The measured time runs from the share `warmup` of the run, but not before 3 mean sessions have passed (at most half
    of the run), to the start of the last session. Of sessions as a whole, those count that start in it, up to 3 mean
    sessions before its end, each to its own end.

    Raises ScenarioError for a prompt longer than the KV cache, and for numbers out of range.

    >>> from sizing.engine import Batching, StepLaw
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> rule = Batching(kv_tokens=400_000, kv_policy="max_utilization", kv_block_tokens=16, prefix_cache=True)
    >>> chat = Sessions(0.2, turns=5, first_tokens=800, user_tokens=60, output_tokens=150, think_s=20)
    >>> run = simulate_sessions(Replica(law, rule), chat, requests=4000)
    >>> 0.6 < run.hit_rate < 0.9, run.latencies["later_ttft"].p50_s < run.latencies["first_ttft"].p50_s
    (True, True)
    """
    check_question(replicas, "random", requests, warmup)
    if routing not in SESSION_ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(SESSION_ROUTINGS)}")
    together = 1 if routing == "affinity" else min(replicas, MOST_REPLICAS)
    rate_per_s = sessions.rate_per_s * together / replicas
    in_flight = rate_per_s * _least_s(replica, sessions)
    count = max(math.ceil(requests / sessions.turns), FEWEST_SESSIONS, math.ceil(RUN * in_flight))
    count = min(count, math.ceil(MAX_REQUESTS / 2 / sessions.turns))
    run, think_s = drawn_sessions(replica, replace(sessions, rate_per_s=rate_per_s), count, seed)
    share = together / replicas if routing in SCATTERING else 1.0
    states = serve_sessions(replica, run, think_s, sessions.system_tokens, together, routing, seed, share)
    return _measured(run, warmup, replicas / together, int(states["paused"].sum()))


def _least_s(replica: Replica, sessions: Sessions) -> float:
    """Mean time of a session that is alone and finds everything in the cache, roughly."""
    prompt_s = replica.law.prefill_alone_s(sessions.first_tokens)
    answer_s = sessions.output_tokens * replica.law.decode_s(1, sessions.first_tokens)
    return prompt_s + sessions.turns * answer_s + (sessions.turns - 1) * sessions.think_s


def drawn_sessions(replica: Replica, sessions: Sessions, count: int, seed: int) -> tuple[Requests, Seconds]:
    """All turns of `count` sessions, session after session, and the time that passes before each.

    Only first turns have an `arrival_s`; the others are NaN, because they are sent when an answer is complete. Each
    quantity has its own random stream.
    """
    starts, steps = (np.random.default_rng([seed, stream]) for stream in (0, 6))
    turns = sessions.drawn(count, (seed,), replica.batching.max_tokens)
    if not len(turns.isl):
        raise ScenarioError(f"no first turn fits in context_tokens, {sessions.context_tokens:,}: raise it")
    start_s = np.cumsum(starts.exponential(1 / sessions.rate_per_s, count))
    return requests_of(replica, turns, start_s, steps), turns.think_s


def requests_of(replica: Replica, turns: Turns, start_s: Seconds, rng: np.random.Generator) -> Requests:
    """The turns as requests; each session begins at its own `start_s`. `rng` draws the accepted tokens of
    speculation."""
    first = np.diff(turns.session, prepend=NOBODY) != 0
    run = checked_requests(replica, turns.isl, turns.osl, np.where(first, start_s[turns.session], math.nan))
    run["session"] = turns.session
    draw_steps(replica, run, rng)
    return run


def serve_sessions(
    replica: Replica,
    run: Requests,
    think_s: Seconds,
    system_tokens: int = 0,
    replicas: int = 1,
    routing: SessionRouting = "affinity",
    seed: int = 0,
    share: float = 1.0,
) -> States:
    """Serve sessions, as drawn, by a fleet; fills the times of the turns and returns the replicas.

    An engine without a prefix cache shares nothing. *affinity* concerns one replica only. `share`: simulated replicas
    over those of the fleet. Each stands for several: a turn that returns to one meets, with this chance, the replica of
    the fleet that served its session; otherwise it finds nothing there.
    """
    checkpoint(f"simulation of {len(run):,} turns on {replicas} replicas with {routing} routing")
    rule = replica.batching
    shared_tokens = system_tokens // rule.kv_block_tokens * rule.kv_block_tokens if rule.prefix_cache else 0
    engine = engine_of(replica, shared_tokens)
    states, agenda = idle_states(replicas, seed), idle_states(1)
    work = work_space(replica, replicas, sessions=int(run["session"].max()) + 1 if rule.prefix_cache else 0)
    note_starts(agenda, run)
    busy_from_s = np.full(replicas, math.inf)
    route, routes = SESSION_ROUTINGS.index(routing), np.random.default_rng([seed, len(run)])
    while play(engine, states, agenda, work, run, think_s, busy_from_s, route, routes, share, PART) == PART:
        checkpoint()
    return states


def _measured(run: Requests, warmup: float, times: float, pauses: int) -> SimulatedSessions:
    """The results of a finished run, for a fleet `times` as large; its turns are then in the order of their sending."""
    begins = np.flatnonzero(np.diff(run["session"], prepend=NOBODY))
    number = np.arange(len(run))
    number -= np.repeat(begins, np.diff(begins, append=len(run)))
    sent = np.add.reduceat(np.isfinite(run["arrival_s"]), begins, dtype=np.int64)
    ends = begins + sent - 1
    start_s, end_s = run["arrival_s"][begins], run["done_s"][ends] + run["outside_s"][ends]
    until_s = float(start_s[-1])
    from_s = min(max(warmup * until_s, RAMP * float(np.mean(end_s - start_s))), until_s / 2)
    complete = (
        (run["outcome"][ends] == SERVED) & (start_s >= from_s) & (start_s <= _last_start_s(start_s, end_s, from_s))
    )
    overlap_s = np.clip(end_s, from_s, until_s) - np.clip(start_s, from_s, until_s)

    order = np.argsort(run["arrival_s"], kind="stable")  # those that were not sent, NaN, come last
    number = number[order]
    put_in_order(run, order)
    del order
    run = run[: sent.sum()]
    warm, first, last = np.searchsorted(run["arrival_s"], (warmup * until_s, from_s, np.nextafter(until_s, np.inf)))
    stuck = _grows(run, slice(int(warm), int(last)))
    part = slice(int(first), int(last))
    tally = tallied(run, part)
    sent_s = tally.seconds[SENT]
    per_s = tally.answers / (sent_s[-1] - sent_s[0]) if len(sent_s) > 1 else 0.0
    turns = whole_fleet(simulated(tally, float(per_s), math.nan, stuck), times, ())
    return SimulatedSessions(
        replace(turns, watched=Watched(pauses)),
        number[part],
        run["isl"][part].astype(np.int64),
        run["found_tokens"][part].astype(np.int64),
        (end_s - start_s)[complete],
        float(overlap_s.sum()) / (until_s - from_s) * times,
    )


def _last_start_s(start_s: Seconds, end_s: Seconds, from_s: float) -> float:
    """Until when sessions begin whose whole time is counted: most of them end before the last one starts, at full load.

    Those that end in the measured time would not do: the longest may have no time to end in it.
    """
    until_s = float(start_s[-1])
    return max(until_s - RAMP * float(np.mean(end_s - start_s)), (from_s + until_s) / 2)


def _grows(run: Requests, part: slice) -> bool:
    """True when the turns of this part wait longer and longer."""
    tally = tallied(run, part)
    outside_s = float(np.mean(run["outside_s"][part]))
    served_s = float(np.mean(tally.seconds[E2E]) - np.mean(tally.seconds[WAIT])) - outside_s
    return queue_grows(tally.seconds[WAIT], served_s)


# --- Turns and replicas in the order of time; compiled by numba
#
# The agenda is the state of a replica that never runs: its heap of deadlines has the turns that are known to come.


@compiled
def note_starts(agenda: States, requests: Requests) -> None:
    """Put the first turns into the agenda; from the last to the first, so that each comes to stand on top."""
    for request in range(len(requests) - 1, -1, -1):
        if requests[request].arrival_s >= 0:
            insert_deadline(agenda[0], requests, request, requests[request].arrival_s)


@compiled
def play(
    engine: Engine,
    states: States,
    agenda: States,
    work: Workspace,
    requests: Requests,
    think_s: Seconds,
    busy_from_s: Seconds,
    routing: int,
    rng: np.random.Generator,
    share: float,
    most: int,
) -> int:
    """Send up to `most` turns, and after the last one run to the end; returns how many were sent.

    `busy_from_s`: when the next iteration of each replica starts, inf if it is idle. No answer is complete, and no turn
    born, before the first of these times.
    """
    requests = borrowed(requests)
    calendar = agenda[0]
    sent = 0
    while sent < most:
        replica, other_s = first_two(busy_from_s)
        next_s = calendar.next_deadline_s
        runs = busy_from_s[replica] < next_s
        request = NOBODY
        if not runs:
            if next_s == math.inf:
                break
            request = pop_deadline(calendar, requests)
            replica = chosen(engine, states, work, requests, request, routing, rng)
        state, mine = states[replica], work_of(work, replica)
        if runs:
            step(engine, state, mine, requests, min(next_s, other_s))
            note_turns(state, calendar, requests, think_s)
        else:
            if share < 1 and engine.prefix_cache > 0 and rng.random() >= share:
                trim(engine, state, mine)
                forget(state, mine, requests[request].session)
            requests[request].replica = replica
            enqueue(engine, state, mine, requests, request, next_s)
            sent += 1
        busy_from_s[replica] = math.inf if idle(state) else state.clock_s
    return sent


@compiled
def first_two(times_s: Seconds) -> tuple[int, float]:
    """The place of the earliest time, the first among equals, and the earliest of the others (inf: there are none)."""
    first, other_s = 0, math.inf
    for place in range(1, len(times_s)):
        if times_s[place] < times_s[first]:
            first, other_s = place, times_s[first]
        else:
            other_s = min(other_s, times_s[place])
    return first, other_s


@compiled
def note_turns(state: State, calendar: State, requests: Requests, think_s: Seconds) -> None:
    """Each session that has an answer sends its next turn, if there is one, after thinking."""
    gone = state.first_gone
    while gone != NOBODY:
        turn = gone + 1
        if turn < len(requests) and requests[turn].session == requests[gone].session:
            requests[turn].arrival_s = requests[gone].done_s + requests[gone].outside_s + think_s[turn]
            insert_deadline(calendar, requests, turn, requests[turn].arrival_s)
        gone = requests[gone].behind


@compiled
def chosen(
    engine: Engine,
    states: States,
    work: Workspace,
    requests: Requests,
    request: int,
    routing: int,
    rng: np.random.Generator,
) -> int:
    """The replica that a turn is sent to, which is the first found among equals, from one drawn at random on."""
    if len(states) == 1:
        return 0
    place = int(rng.random() * len(states))
    if routing == RANDOM:
        return place
    best, longest, fewest = NOBODY, -1, 0
    for _ in range(len(states)):
        blocks, unfinished = 0, outstanding(states[place], requests[request].arrival_s)
        if routing == PREFIX_AWARE and engine.prefix_cache:
            trim(engine, states[place], work_of(work, place))
            blocks = work.cached[place, requests[request].session, BLOCKS]
        if blocks > longest or (blocks == longest and unfinished < fewest):
            best, longest, fewest = place, blocks, unfinished
        place = place + 1 if place + 1 < len(states) else 0
    return best


@compiled
def put_in_order(requests: Requests, order: Tokens) -> None:
    """Move request number `order[place]` to each place, within the array: a second one would take as much memory again.

    `order`, a permutation, is used up.
    """
    held = requests[:1].copy()
    for start in range(len(requests)):
        if order[start] == start:
            continue
        held[0] = requests[start]
        place = start
        while order[place] != start:
            source = order[place]
            requests[place] = requests[source]
            order[place] = place
            place = source
        requests[place] = held[0]
        order[place] = place
