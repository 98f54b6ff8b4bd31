"""What the Simulate page runs: the settings of a run, how they differ from the plan's, and both in the URL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import streamlit as st

from sizing.errors import ScenarioError
from sizing.inside import Run, close_look, run_in_fleet, simulated
from sizing.numbers import significant
from sizing.plan import Fleet, Plan, Question
from sizing.prediction import Prediction
from sizing.queueing import predict
from sizing.replica import KV_POLICIES, POLICIES, KvPolicy, Policy
from sizing.simulator import Simulated, TimeSeries
from sizing.workload import Arrivals
from ui.link_text import quoted
from ui.scenario import ARRIVAL_CV, ARRIVAL_SIZE, Range

LOAD = Range(0.0001, 100_000, "requests/s per replica")
REQUESTS = Range(500, 200_000, "requests")
SEED = Range(0, 1_000_000, "")
SLOTS = Range(1, 4096, "requests at once")
BUDGET = Range(16, 1_000_000, "tokens")
KV_TOKENS = Range(1, 10**12, "tokens")
LINE = Range(0, 1_000_000, "requests")
PATIENCE_S = Range(0, 86_400, "s")
USUAL_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a run, one for each field of the form. `max_waiting` 0 and `queue_timeout_s` 0 mean no limit."""

    load_per_s: float
    requests: int
    seed: int
    arrivals: str
    policy: Policy
    max_batch_size: int
    token_budget: int
    kv_tokens: int
    kv_policy: KvPolicy
    max_waiting: int
    queue_timeout_s: float


def planned(fleet: Fleet, question: Question) -> Setup:
    """The settings by which the plan was verified: its load, the arrivals asked for, the replica as it is."""
    rule = fleet.candidate.replica.batching
    return Setup(
        load_per_s=float(f"{fleet.load_per_s:.6g}"),
        requests=USUAL_REQUESTS,
        seed=0,
        arrivals=str(question.workload.arrivals),
        policy=rule.policy,
        max_batch_size=rule.max_batch_size,
        token_budget=rule.token_budget,
        kv_tokens=rule.kv_tokens,
        kv_policy=rule.kv_policy,
        max_waiting=rule.max_waiting,
        queue_timeout_s=0.0,
    )


def run_of(setup: Setup, fleet: Fleet, question: Question) -> Run:
    """What to simulate. Raises ScenarioError where the run would take too long."""
    given = question.workload.arrivals
    arrivals = given if setup.arrivals == str(given) else Arrivals.parse(setup.arrivals)
    timeout_s = setup.queue_timeout_s or math.inf
    workload = replace(question.workload, arrivals=arrivals, queue_timeout_s=timeout_s)
    batching = replace(
        fleet.candidate.replica.batching,
        policy=setup.policy,
        max_batch_size=setup.max_batch_size,
        token_budget=setup.token_budget,
        kv_tokens=setup.kv_tokens,
        kv_policy=setup.kv_policy,
        max_waiting=setup.max_waiting,
    )
    replica = replace(fleet.candidate.replica, batching=batching)
    asked = replace(question, workload=workload)
    return run_in_fleet(asked, replica, setup.load_per_s, fleet.working, setup.requests, setup.seed)


class Seen(NamedTuple):
    """What the page speaks of: the plan, the fleet picked, the settings, the run and what came of it."""

    plan: Plan
    fleet: Fleet
    setup: Setup
    run: Run
    result: Simulated


@st.cache_resource(max_entries=8, show_spinner=False)
def outcome(run: Run) -> Simulated | str:
    """The run, or why it cannot be simulated."""
    try:
        return simulated(run)
    except ScenarioError as error:
        return str(error)


@st.cache_resource(max_entries=8, show_spinner=False)
def closely(run: Run, life_s: float) -> TimeSeries:
    """A close look at the first replica of a run."""
    return close_look(run, life_s)


@st.cache_data(max_entries=64, show_spinner=False)
def by_formula(run: Run) -> Prediction | str:
    """What the formula says of the run, or why it says nothing."""
    try:
        return predict(run.replica, run.workload, replicas=run.replicas, routing=run.routing, gaps=True)
    except ScenarioError as error:
        return str(error)


def to_text(setup: Setup, plan: Setup) -> str:
    """The settings that differ from the plan's, for the URL; empty where none does."""
    changed = {
        key: getattr(setup, field)
        for key, (field, _) in FIELDS.items()
        if getattr(setup, field) != getattr(plan, field)
    }
    return ";".join(f"{key}={value}" for key, value in changed.items())


def from_text(text: str, plan: Setup) -> tuple[Setup, list[str]]:
    """The plan's settings with those of the URL in their place, and a line for each that cannot be taken."""
    values: dict[str, Any] = {}
    problems = []
    for part in filter(None, text.split(";")):
        key, _, value = part.partition("=")
        if key not in FIELDS:
            problems.append(f"{quoted(key)}: not a setting of a run, ignored")
            continue
        field, parse = FIELDS[key]
        try:
            values[field] = parse(value)
        except (ValueError, ScenarioError) as error:
            problems.append(f"{key}={quoted(value)}: {error}. Used instead: {getattr(plan, field)}")
    return replace(plan, **values), problems


Parse = Callable[[str], Any]


def _number(allowed: Range, kind: type[int] | type[float]) -> Parse:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"must be a {'whole ' if kind is int else ''}number {allowed}") from None
        if value not in allowed:
            raise ValueError(f"must be {allowed}")
        return value

    return parse


def _one_of(allowed: Sequence[str]) -> Parse:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _arrivals(text: str) -> str:
    arrivals = Arrivals.parse(text)
    if arrivals.kind == "gamma" and arrivals.cv not in ARRIVAL_CV:
        raise ValueError(f"the CV must be {ARRIVAL_CV}")
    if arrivals.size not in ARRIVAL_SIZE:
        raise ValueError(f"the size must be {ARRIVAL_SIZE}")
    return str(arrivals)


FIELDS: Mapping[str, tuple[str, Parse]] = {
    "load": ("load_per_s", _number(LOAD, float)),
    "requests": ("requests", _number(REQUESTS, int)),
    "seed": ("seed", _number(SEED, int)),
    "arrivals": ("arrivals", _arrivals),
    "policy": ("policy", _one_of(POLICIES)),
    "slots": ("max_batch_size", _number(SLOTS, int)),
    "budget": ("token_budget", _number(BUDGET, int)),
    "kv": ("kv_tokens", _number(KV_TOKENS, int)),
    "kv_policy": ("kv_policy", _one_of(KV_POLICIES)),
    "line": ("max_waiting", _number(LINE, int)),
    "timeout": ("queue_timeout_s", _number(PATIENCE_S, float)),
}
"""Key in the URL -> field of the setup and the reader of its text. Keys are for ever: old links must open."""

assert [field for field, _ in FIELDS.values()] == [field.name for field in fields(Setup)]


def in_words(setup: Setup) -> str:
    """The settings on one line."""
    line = f", {setup.max_waiting:,} in line at most" if setup.max_waiting else ""
    timeout = f", dropped after {significant(setup.queue_timeout_s)} s" if setup.queue_timeout_s else ""
    kv = f", {setup.kv_tokens:,} KV tokens" if setup.kv_tokens < UNLIMITED_KV_TOKENS else ""
    return (
        f"{significant(setup.load_per_s)} requests/s, {POLICY_NAMES[setup.policy].lower()}, "
        f"{setup.max_batch_size:,} at once, {setup.token_budget:,} tokens an iteration{kv}{line}{timeout}; "
        f"{setup.requests:,} requests{f', seed {setup.seed}' if setup.seed else ''}"
    )


UNLIMITED_KV_TOKENS = 10**9
"""A cache this large stands for one whose size is not known."""
POLICY_NAMES: Mapping[Policy, str] = {
    "chunked": "Prompts in chunks",
    "whole_prompt": "Whole prompts",
    "prefill_first": "Prompts first",
    "static": "Static batches",
}
KV_POLICY_NAMES: Mapping[KvPolicy, str] = {
    "guaranteed_no_evict": "Reserve for the whole answer",
    "max_utilization": "Fill up, pause when full",
}
