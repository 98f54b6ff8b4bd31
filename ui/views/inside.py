"""What the Simulate page shows of a run: its state over time, its latencies, its slowest request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import streamlit as st

from sizing.analyses.inside import (
    SHARES,
    Compared,
    InsideRun,
    between,
    close_look,
    compared,
    lives_around_slowest,
    run_in_fleet,
    simulated,
    spread,
    timeline,
)
from sizing.engine import KV_POLICIES, POLICIES, KvPolicy, Policy
from sizing.errors import ScenarioError
from sizing.numbers import milliseconds, per_second, percent, significant
from sizing.plans import Fleet, Plan
from sizing.prediction import Prediction, Quantiles
from sizing.question import Question, Range
from sizing.queueing import predict
from sizing.queueing.percentiles import TOLERANCE
from sizing.simulator import Simulated, TimeSeries
from sizing.simulator.token_gaps import gap_quantiles
from sizing.text import cautions
from sizing.workload import METRICS, Arrivals, Metric, Seconds, metric_name
from ui.charts.base import Chart
from ui.charts.fit import Pairs, agreement
from ui.charts.latency import NamedLine, Spread, distribution, lives_in_words, lives_of_requests
from ui.charts.latency import over_time as drawn
from ui.link import PREFIX, Parse, Unreadable, arrivals, number, one_of, quoted
from ui.look import data_behind, ink, show
from ui.visit import visit
from ui.words import plain, sentence_case

# --- What the Simulate page runs: the settings of a run, how they differ from the plan's, and both in the URL

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
class RunSetup:
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


def planned(fleet: Fleet, question: Question) -> RunSetup:
    """The settings by which the plan was verified: its load, the arrivals asked for, the replica as it is."""
    rule = fleet.candidate.replica.batching
    return RunSetup(
        load_per_s=float(f"{fleet.load_per_s:.6g}"),
        requests=USUAL_REQUESTS,
        seed=0,
        arrivals=str(question.workload.arrivals),
        policy=rule.policy,
        max_batch_size=rule.max_batch_size,
        token_budget=rule.token_budget,
        kv_tokens=rule.kv_tokens,
        kv_policy=rule.kv_policy,
        max_waiting=fleet.candidate.replica.with_queue(question.workload.queue_limit).batching.max_waiting,
        queue_timeout_s=timeout_s if math.isfinite(timeout_s := question.workload.queue_timeout_s) else 0.0,
    )


def run_of(setup: RunSetup, fleet: Fleet, question: Question) -> InsideRun:
    """What to simulate. Raises ScenarioError where the run would take too long."""
    given = question.workload.arrivals
    arrivals = given if setup.arrivals == str(given) else Arrivals.parse(setup.arrivals)
    timeout_s = setup.queue_timeout_s or math.inf
    workload = replace(question.workload, arrivals=arrivals, queue_timeout_s=timeout_s, queue_limit=setup.max_waiting)
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


class SeenRun(NamedTuple):
    """What the page speaks of: the plan, the fleet picked, the settings, the run and what came of it."""

    plan: Plan
    fleet: Fleet
    setup: RunSetup
    run: InsideRun
    result: Simulated


@st.cache_resource(max_entries=8, show_spinner=False)
def outcome(run: InsideRun) -> Simulated | str:
    """The run, or why it cannot be simulated."""
    try:
        return simulated(run)
    except ScenarioError as error:
        return str(error)


@st.cache_resource(max_entries=8, show_spinner=False)
def closely(run: InsideRun, life_s: float) -> TimeSeries:
    """A close look at the first replica of a run."""
    return close_look(run, life_s)


@st.cache_data(max_entries=64, show_spinner=False)
def by_formula(run: InsideRun) -> Prediction | str:
    """What the formula says of the run, or why it says nothing."""
    try:
        return predict(run.replica, run.workload, replicas=run.replicas, routing=run.routing, gaps=True)
    except ScenarioError as error:
        return str(error)


def to_text(setup: RunSetup, plan: RunSetup) -> str:
    """The settings that differ from the plan's, for the URL; empty where none does."""
    changed = {
        key: getattr(setup, field)
        for key, (field, _) in FIELDS.items()
        if getattr(setup, field) != getattr(plan, field)
    }
    return ";".join(f"{key}={value}" for key, value in changed.items())


def from_text(text: str, plan: RunSetup) -> tuple[RunSetup, list[str]]:
    """The plan's settings with those of the URL in their place, and a line for each that cannot be taken."""
    values: dict[str, Any] = {}
    problems = []
    for part in filter(None, text.split(";")):
        key, _, value = part.partition("=")
        if key not in FIELDS:
            problems.append(f"{quoted(key)}: not a setting of a run. It is ignored")
            continue
        field, parse = FIELDS[key]
        try:
            values[field] = parse(value)
        except (Unreadable, ScenarioError) as error:
            problems.append(f"{key}={quoted(value)}: {error}. Used instead: {getattr(plan, field)}")
    return replace(plan, **values), problems


FIELDS: Mapping[str, tuple[str, Parse]] = {
    "load": ("load_per_s", number(LOAD)),
    "requests": ("requests", number(REQUESTS, whole=True)),
    "seed": ("seed", number(SEED, whole=True)),
    "arrivals": ("arrivals", lambda text: str(arrivals(text))),
    "policy": ("policy", one_of(*POLICIES)),
    "slots": ("max_batch_size", number(SLOTS, whole=True)),
    "budget": ("token_budget", number(BUDGET, whole=True)),
    "kv": ("kv_tokens", number(KV_TOKENS, whole=True)),
    "kv_policy": ("kv_policy", one_of(*KV_POLICIES)),
    "line": ("max_waiting", number(LINE, whole=True)),
    "timeout": ("queue_timeout_s", number(PATIENCE_S)),
}
"""Key in the URL -> field of the setup and the reader of its text. Keys are permanent: old links must open."""
assert [field for field, _ in FIELDS.values()] == [field.name for field in fields(RunSetup)]


def in_words(setup: RunSetup) -> str:
    """The settings on one line."""
    line = f", at most {setup.max_waiting:,} waiting" if setup.max_waiting else ""
    timeout = f", dropped after {significant(setup.queue_timeout_s)} s" if setup.queue_timeout_s else ""
    kv = f", {setup.kv_tokens:,} KV tokens" if setup.kv_tokens < UNLIMITED_KV_TOKENS else ""
    return (
        f"{per_second(setup.load_per_s)}, {POLICY_NAMES[setup.policy].lower()}, "
        f"{setup.max_batch_size:,} at once, {setup.token_budget:,} tokens per iteration{kv}{line}{timeout}; "
        f"{setup.requests:,} requests{f', seed {setup.seed}' if setup.seed else ''}"
    )


UNLIMITED_KV_TOKENS = 10**9
"""A cache this large stands for one whose size is not known."""
POLICY_NAMES: Mapping[Policy, str] = {
    "chunked": "Chunked prefill",
    "whole_prompt": "Whole prompts",
    "prefill_first": "Prefill first",
    "static": "Static batching",
}
KV_POLICY_NAMES: Mapping[KvPolicy, str] = {
    "guaranteed_no_evict": "Reserve the whole answer",
    "max_utilization": "Fill up, pause when full",
}


def over_time(seen: SeenRun) -> None:
    """What the first replica held over the whole run, up to the last arrival that counts."""
    _draw_timeline(seen, between(seen.result.watched.series[0], 0.0, float(seen.result.arrival_s[-1])))


def close_look_view(seen: SeenRun) -> None:
    """The same over a short stretch of it."""
    lives_s = seen.result.e2e_s[np.isfinite(seen.result.e2e_s)]
    _draw_timeline(seen, closely(seen.run, float(lives_s.mean()) if lives_s.size else 1.0))


def _draw_timeline(seen: SeenRun, series: TimeSeries) -> None:
    if not len(series.time_s):
        st.caption("The replica was idle in this part of the run.")
        return
    line = timeline(series)
    for place, chart in enumerate(_charts_over_time(series, seen.setup.kv_tokens)):
        show(chart, f"time_{place}")
    absent = {"no prompt was split into chunks": line.prefilling, "no request was paused": line.pauses}
    never = " and ".join(words for words, values in absent.items() if not np.any(values))
    st.caption(f"First replica, sampled when an iteration begins{f'; in this stretch {never}' if never else ''}.")
    columns = {name: getattr(line, field) for field, name in TIMELINE_COLUMNS.items()}
    data_behind(pd.DataFrame(columns), "State of the first replica over time")


TIMELINE_COLUMNS = {
    "time_s": "Time (s)",
    "running": "Running (mean)",
    "running_most": "Running (max)",
    "waiting_most": "Waiting (max)",
    "kv_tokens_most": "KV tokens (max)",
    "prefilling": "Chunked prompt in progress (share)",
    "pauses": "Pauses",
}
COARSE = 60
"""Steps over which shares of the time are taken."""


def _charts_over_time(series: TimeSeries, kv_tokens: int) -> list[Chart]:
    """Requests, memory, and what there is of chunked prompts and pauses."""
    line, coarse = timeline(series), timeline(series, COARSE)
    running = [NamedLine("running", line.running), NamedLine("waiting (max)", line.waiting_most)]
    charts = [drawn("Requests running and waiting", line.time_s, running, ink(), height=260)]
    if kv_tokens < UNLIMITED_KV_TOKENS:
        held = [NamedLine("held", 100 * line.kv_tokens_most / kv_tokens)]
        charts.append(drawn("KV cache in use (%)", line.time_s, held, ink(), most=("the whole KV cache", 100.0)))
    else:
        charts.append(drawn("KV cache in use (tokens)", line.time_s, [NamedLine("held", line.kv_tokens_most)], ink()))
    if np.any(line.prefilling):
        part = [NamedLine("prompt in progress", 100 * coarse.prefilling)]
        charts.append(drawn("Iterations with a chunked prompt (%)", coarse.time_s, part, ink(), height=180))
    if np.any(line.pauses):
        pauses = [NamedLine("pauses", coarse.pauses)]
        charts.append(drawn(f"Pauses in each of {COARSE} steps", coarse.time_s, pauses, ink(), height=180))
    return charts


def latencies(seen: SeenRun) -> None:
    """Distributions of the three latencies with their limits, and the gaps between single tokens."""
    result = seen.result
    limits = {limit.metric: limit for limit in seen.plan.question.sla.limits}
    columns: dict[str, Seconds] = {"Requests (%)": 100 * SHARES}
    with st.grid("auto", min_column_width=300):
        for metric in METRICS:
            if metric == "gap" and "gap" not in limits:  # told in words below
                continue
            spreads = _spreads(result, metric)
            if np.isnan(spreads[0].seconds[0]):
                st.caption(f"{sentence_case(metric_name(metric))}: no request has one in this run.")
                continue
            show(distribution(metric, SHARES, spreads, limits.get(metric), ink()), f"spread_{metric}")
            columns |= {f"{one.name} (ms)": 1000 * np.asarray(one.seconds) for one in spreads}
    _token_gaps(result)
    data_behind(pd.DataFrame(columns), "Latencies at shares of the requests")


def _spreads(result: Simulated, metric: Metric) -> list[Spread]:
    """The latency, and of TTFT its two parts."""
    if metric == "gap":
        return [Spread(metric_name(metric), gap_quantiles(result.gaps.counts, [*(100 * SHARES)]))]
    whole = Spread(metric_name(metric), spread(result.of(metric)))
    if metric != "ttft":
        return [whole]
    waiting, prompt = spread(result.queue_s), spread(result.ttft_s - result.queue_s)
    return [whole, Spread("waiting", waiting), Spread("prompt", prompt)]


def _token_gaps(result: Simulated) -> None:
    """Single gaps, as a reader sees them, beside the means that ITL is made of."""
    itl = Quantiles.of(result.itl_s)
    if not np.isfinite(itl.mean_s):
        return
    gaps = result.watched
    st.markdown(
        f"**Between two tokens** a reader waits {milliseconds(gaps.gap_p50_s)} at the median, "
        f"{milliseconds(gaps.gap_p95_s)} at p95 and {milliseconds(gaps.gap_p99_s)} at p99. The ITL of a request is the "
        f"mean of its gaps: {milliseconds(itl.p50_s)} at the median, {milliseconds(itl.p99_s)} at p99."
    )


def slowest(seen: SeenRun) -> None:
    """The requests around the slowest first token, as bars."""
    lives = lives_around_slowest(seen.result)
    if lives is None:
        st.caption("This run served no requests.")
        return
    st.markdown(lives_in_words(lives))
    show(lives_of_requests(lives, ink()), "lives")
    if seen.run.replicas > 1:
        st.caption("Requests of all simulated replicas, in order of arrival at the router.")
    columns = {
        "Arrival (s)": lives.arrival_s,
        "Waiting (ms)": 1000 * lives.waiting_s,
        "Prompt (ms)": 1000 * lives.prompt_s,
        "Decoding (s)": lives.decoding_s,
    }
    data_behind(pd.DataFrame(columns), "Requests around the slowest first token")


def against(seen: SeenRun) -> None:
    """Table and chart of the differences, or why there are none."""
    with st.spinner("Computing what the formula predicts…"):
        said = by_formula(seen.run)
    if isinstance(said, str):
        st.caption(f":material/info: No formula for this run: {plain(said)}")
        return
    for warning in cautions(said.warnings):
        st.caption(f":material/warning: {plain(sentence_case(warning))}.")
    if said.saturated or seen.result.saturated:
        agree = said.saturated == seen.result.saturated
        verdict = "agree: there is no steady state" if agree else "disagree on whether this load has a steady state"
        st.markdown(f"**Formula and simulation {verdict}**, so there are no percentiles to compare.")
        return
    figures = compared(seen.result, said)
    st.markdown(_verdict(sum(figure.far for figure in figures), len(figures)))
    left, right = st.columns([2, 3])
    with left:
        show(_differences(figures), "parity")
    right.dataframe(pd.DataFrame(map(_cells, figures)), hide_index=True, height="content", row_height=28, alt=TABLE_ALT)


TABLE_ALT = "Mean and percentiles of TTFT, ITL, gaps and E2E by simulation and by formula"


def _cells(figure: Compared) -> dict[str, str]:
    low_s, high_s = figure.interval_s or (None, None)
    return {
        "Figure": figure.name,
        "Simulation": milliseconds(figure.simulated_s),
        "90 % interval": "" if low_s is None or high_s is None else f"{milliseconds(low_s)} to {milliseconds(high_s)}",
        "Formula": milliseconds(figure.formula_s),
        "Difference": percent(figure.apart, 1, sign=True),
        "Verdict": f"over {percent(TOLERANCE)}" if figure.far else "agrees",
    }


def _verdict(far: int, of: int) -> str:
    if not far:
        return (
            f":material/check_circle: **Formula and simulation agree** within {percent(TOLERANCE)} on all {of} figures."
        )
    return (
        f":material/warning: **Formula and simulation differ by more than {percent(TOLERANCE)}** on {far} of {of} "
        "figures. Trust the simulation there: it also checks the plan's own count."
    )


def _differences(figures: Sequence[Compared]) -> Chart:
    kinds = []
    for metric in METRICS:
        own = [figure for figure in figures if figure.metric == metric]
        first, second = [1000 * figure.simulated_s for figure in own], [1000 * figure.formula_s for figure in own]
        kinds.append(Pairs(metric_name(metric), first, second, [figure.name for figure in own]))
    return agreement("Formula against simulation", "By simulation (ms)", kinds, TOLERANCE, ink())


state = st.session_state
IN_URL = PREFIX + "run"
"""Where the settings that differ from the plan's are kept."""
ARRIVAL_NAMES: Mapping[str, str] = {
    "poisson": "Poisson",
    "constant": "Constant gaps",
    "gamma:cv=2": "Bursty (CV 2)",
    "gamma:cv=4": "Very bursty (CV 4)",
    "batch:size=8": "In groups of 8",
}
NUMBERS: tuple[tuple[str, str, Range, str], ...] = (
    ("load_per_s", "Load (requests/s per replica)", LOAD, "To begin with, the plan's load of a working replica."),
    ("requests", "Requests to simulate", REQUESTS, "The first tenth is not counted. 200,000 at most: about a second."),
    ("seed", "Seed", SEED, "Another seed draws other requests: a result that survives it is not chance."),
)
LIMITS: tuple[tuple[str, str, Range, str], ...] = (
    ("max_batch_size", "Batch limit (requests)", SLOTS, "Requests that run at once."),
    (
        "token_budget",
        "Token budget (per iteration)",
        BUDGET,
        "Most tokens of one iteration, prefill and decode together.",
    ),
    ("kv_tokens", "KV cache (tokens)", KV_TOKENS, "Tokens of prompts and answers that fit in memory."),
    ("max_waiting", "Queue limit (requests)", LINE, "Waiting requests beyond this are rejected; 0: no limit."),
    ("queue_timeout_s", "Queue timeout (s)", PATIENCE_S, "Requests that have waited this long are dropped; 0: never."),
)
POLICY_HELP = (
    "Chunked prefill: every iteration holds one token of each running request and as much of the prompts as the token "
    "budget allows. Whole prompts: the same without splitting prompts. Prefill first: waiting prompts run alone, then "
    "decode steps. Static batching: a batch is admitted when the previous one has ended entirely."
)
KV_POLICY_HELP = (
    "Reserve: a request is admitted when prompt and answer fit. Fill up: it is admitted when its prompt fits; if "
    "memory runs out, the request admitted last is paused and recomputed."
)


def draw(plan: RunSetup) -> RunSetup:
    """Draw the form, closed, under a line that says what runs; return what runs."""
    text = state.get(IN_URL, "")
    setup, problems = from_text(text, plan)
    if text:
        visit().shown[IN_URL] = text
    if problems:
        st.warning("  \n".join(map(plain, problems)), title="Some settings of this link could not be used")
    _fill(setup)
    title = plain(f"{'Your' if text else 'Planned'} run: {in_words(setup)}")
    with st.expander(title, icon=":material/tune:", key="simulate_settings"), st.form("simulate", border=False):
        _fields(setup)
        with st.container(horizontal=True):
            st.form_submit_button("Run", type="primary", icon=":material/play_arrow:", on_click=_take, args=(plan,))
            st.form_submit_button("Back to the plan's settings", type="tertiary", on_click=_forget)
    return setup


def _fields(setup: RunSetup) -> None:
    with st.grid("auto", min_column_width=190):
        for field, label, allowed, help_ in NUMBERS:
            _number_field(setup, field, label, allowed, help_)
        arrivals = list(dict.fromkeys([setup.arrivals, *ARRIVAL_NAMES]))
        _choice("Arrivals", {name: _arrival_name(name) for name in arrivals}, "arrivals", ARRIVALS_HELP)
        _choice("Batching", {name: POLICY_NAMES[name] for name in POLICIES}, "policy", POLICY_HELP)
        for field, label, allowed, help_ in LIMITS:
            _number_field(setup, field, label, allowed, help_)
        _choice("KV cache policy", {name: KV_POLICY_NAMES[name] for name in KV_POLICIES}, "kv_policy", KV_POLICY_HELP)


ARRIVALS_HELP = "How requests are spread over time; CV: standard deviation of the gaps over their mean."


def _arrival_name(arrivals: str) -> str:
    return ARRIVAL_NAMES.get(arrivals, arrivals)


def _number_field(setup: RunSetup, field: str, label: str, allowed: Range, help_: str) -> None:
    """A number input over a range; a replica of the plan may lie outside of what one may type."""
    value = getattr(setup, field)
    kind = type(value)
    low, high = min(kind(allowed.low), value), max(kind(allowed.high), value)
    text = "%d" if kind is int else "%g"
    looks = {"step": kind(1), "format": text, "help": help_}
    st.number_input(label, low, high, None, key=_key(field), persist_state="session", **looks)


def _choice(label: str, names: Mapping[str, str], field: str, help_: str) -> None:
    """A pick list of `names`: value -> words on screen."""
    st.selectbox(
        label, list(names), format_func=names.__getitem__, key=_key(field), help=help_, persist_state="session"
    )


def _key(field: str) -> str:
    return f"simulate_{field}"


def _fill(setup: RunSetup) -> None:
    """Write the settings into the widgets: when they are new, the widgets were away with another page, or one was
    emptied."""
    if visit().filled.get("run") == setup and all(state.get(_key(field)) is not None for field, _ in FIELDS.values()):
        return
    for field, _ in FIELDS.values():
        state[_key(field)] = getattr(setup, field)
    visit().filled["run"] = setup


def _take(plan: RunSetup) -> None:
    typed = {field: state[_key(field)] for field, _ in FIELDS.values()}
    kept = {field: value for field, value in typed.items() if value is not None}  # None: emptied
    state[IN_URL] = to_text(replace(visit().filled["run"], **kept), plan)


def _forget() -> None:
    state[IN_URL] = ""
    visit().filled.pop("run", None)
