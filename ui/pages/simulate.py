"""Simulate: what happens inside a replica? One run of the answer's replica, or of another, over time and request by
request, beside what the formula says of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np
import pandas as pd
import streamlit as st

from sizing.errors import ScenarioError
from sizing.inside import SHARES, Run, lives_around_slowest, spread, timeline
from sizing.learned import exceedances, learned
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet, Plan
from sizing.prediction import Quantiles
from sizing.queueing.agreement import TOLERANCE
from sizing.simulator import Simulated, TimeSeries
from sizing.workload import Limit, Metric
from ui import answers, run_form, simulating, view
from ui.answers import Outcome
from ui.charts.base import Chart
from ui.charts.distribution import Spread, distribution
from ui.charts.lives import lives_of_requests
from ui.charts.parity import Pairs, parity
from ui.charts.timeline import Line, over_time, time_unit
from ui.look import ink, show
from ui.scenario import Scenario
from ui.simulating import UNLIMITED_KV_TOKENS, Setup
from ui.words import BASIS_HELP, BASIS_LOOK, limit_name, plain, sentence_case

LOOKS = {
    "time": "Over time",
    "latency": "Latencies",
    "request": "Slowest request",
    "formula": "Against the formula",
}
SPANS = {"run": "Whole run", "close": "A close look"}
STATISTICS = ("mean_s", "p50_s", "p90_s", "p95_s", "p99_s")


class Seen(NamedTuple):
    """What the page speaks of: the plan, the fleet picked, the settings, the run and what came of it."""

    plan: Plan
    fleet: Fleet
    setup: Setup
    run: Run
    result: Simulated


def page(scenario: Scenario) -> None:
    """The whole page for one scenario."""
    if scenario.missing:
        st.title(scenario.missing, anchor=False)
        st.markdown("The form on the left says what is asked; then there is a replica to look into.")
        return
    with st.spinner("Working out the answer whose replica is simulated…"):
        outcome = answers.outcome(scenario)
    if outcome.plan is None:
        _no_plan(outcome)
        return
    head = st.container()
    fleet = _picked(outcome.plan)
    setup = run_form.draw(simulating.planned(fleet, outcome.plan.question))
    seen = _seen(outcome.plan, fleet, setup, head)
    if seen is None:
        return
    with head:
        _headline(seen)
    _cards(seen)
    _look(seen)


def _no_plan(outcome: Outcome) -> None:
    st.title(outcome.title, anchor=False)
    reason = outcome.rejected[0].why if outcome.rejected else outcome.reason
    st.markdown(
        f"{plain(sentence_case(reason))}  \nA replica is simulated at the load of a plan, and there is none: loosen the "
        "limit that fails, or choose another GPU, TP or precision in the form on the left."
    )
    st.page_link("ui/pages/size.py", label="Every configuration and why it was left out", icon=":material/straighten:")


def _picked(plan: Plan) -> Fleet:
    """The answer, or another fleet of the plan; the choice is in the URL."""
    fleets: dict[str, Fleet] = {}
    for fleet in plan.fleets:
        label = fleet.candidate.label
        fleets[label if label not in fleets else f"{label}, {fleet.candidate.source}"] = fleet
    key = view.PREFIX + "replica"
    if st.session_state.get(key) not in fleets:
        st.session_state[key] = next(iter(fleets))
    label = st.selectbox("Replica", list(fleets), key=key, width=360, help="Those that meet the SLA, the answer first.")
    st.session_state.shown[key] = label
    return fleets[label]


def _seen(plan: Plan, fleet: Fleet, setup: Setup, head: st.delta_generator.DeltaGenerator) -> Seen | None:
    """The run and its result; None, and why on the page, where it cannot be simulated."""
    try:
        run = simulating.run_of(setup, fleet, plan.question)
        with st.spinner(f"Simulating {setup.requests:,} requests…"):
            result = simulating.outcome(run)
    except ScenarioError as error:
        result = str(error)
    if isinstance(result, str):
        head.title("This run cannot be simulated", anchor=False)
        head.markdown(f"{plain(sentence_case(result))}. Change the settings of the run below.")
        return None
    return Seen(plan, fleet, setup, run, result)


def _headline(seen: Seen) -> None:
    first, *others = learned(seen.result, seen.plan.question.sla, seen.setup.load_per_s)
    st.title(plain(first), anchor=False)
    if others:
        st.markdown(plain(". ".join(others) + "."))
    icon, colour = BASIS_LOOK[seen.fleet.basis]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(seen.fleet.basis.capitalize(), icon=icon, color=colour, help=BASIS_HELP[seen.fleet.basis])
        st.caption(plain(_provenance(seen)))


def _provenance(seen: Seen) -> str:
    unit, seconds = time_unit(seen.run.requests / seen.run.workload.rate_per_s)
    lasted = significant(seen.run.requests / seen.run.workload.rate_per_s / seconds)
    alone = seen.run.replicas == 1 and seen.fleet.working > 1
    behind = f"one replica stands for all {seen.fleet.working}" if alone else f"{seen.run.replicas} working replicas"
    return (
        f"{seen.fleet.candidate.label}, simulated: {seen.run.requests:,} requests in {lasted} {unit}, the first tenth "
        f"not counted · {behind} · law: {seen.fleet.candidate.source}"
    )


def _cards(seen: Seen) -> None:
    result = seen.result
    with st.grid("auto", min_column_width=170):
        for limit, share, allowed in exceedances(result, seen.plan.question.sla):
            _limit_card(result, limit, share, allowed)
        _card(
            "Running at once",
            significant(result.mean_in_flight / seen.run.replicas),
            "requests, on average",
            RUNNING_HELP,
        )
        _card("KV cache, at most", *_kv_peak(seen), KV_HELP)
        pauses = f"{result.watched.pauses:,} pauses"
        lost = f"{result.rejected:,} turned away, {result.timed_out:,} timed out"
        _card("Without an answer", f"{result.lost:,}", f"{lost}; {pauses}" if result.lost else pauses, LOST_HELP)


RUNNING_HELP = "Requests in a replica, time average (waiting ones are not counted)."
KV_HELP = "Tokens that running requests hold, the highest sample of the first replica, and of how many."
LOST_HELP = "Requests turned away at a full line or dropped after the timeout; pauses: a request lost its KV cache."


def _card(label: str, value: str, note: str, help_: str) -> None:
    st.metric(label, value, note, delta_color="off", delta_arrow="off", border=True, help=help_)


def _limit_card(result: Simulated, limit: Limit, share: float, allowed: float) -> None:
    kept = share <= allowed + 1e-9 and not result.saturated
    value_s = result.prediction().value_s(limit)
    st.metric(
        limit_name(limit),
        milliseconds(value_s),
        f"{significant(100 * share)} % over {milliseconds(limit.limit_s)}; {significant(100 * allowed)} % may",
        delta_color="green" if kept else "red",
        delta_arrow="off",
        icon=":material/check_circle:" if kept else ":material/cancel:",
        border=True,
        help="The percentile in this run, and the share of requests beyond the limit.",
    )


def _kv_peak(seen: Seen) -> tuple[str, str]:
    peak = float(max(seen.result.watched.series[0].kv_tokens, default=0.0))
    if seen.setup.kv_tokens >= UNLIMITED_KV_TOKENS:
        return significant(peak), "tokens; the size of the cache is not known"
    return (
        f"{significant(100 * peak / seen.setup.kv_tokens)} %",
        f"{significant(peak)} of {seen.setup.kv_tokens:,} tokens",
    )


def _look(seen: Seen) -> None:
    """Only what is looked at is drawn."""
    if seen.result.saturated:
        st.warning("The line grows as long as the run lasts: latencies say how long it lasted, nothing else.")
    LOOK[view.chosen("What to look at", LOOKS, "inside")](seen)


def _over_time(seen: Seen) -> None:
    span = view.chosen("How much of the run", SPANS, "span", help=SPAN_HELP)
    series = seen.result.watched.series[0]
    if span == "close":
        life_s = seen.result.e2e_s[np.isfinite(seen.result.e2e_s)]
        series = simulating.closely(seen.run, float(life_s.mean()) if life_s.size else 1.0)
    if not len(series.time_s):
        st.caption("Nothing was computed in this stretch of the run.")
        return
    _draw_timeline(seen, series)


SPAN_HELP = "A close look: two lives of a request, from the third on, iteration by iteration where there are few."


def _draw_timeline(seen: Seen, series: TimeSeries) -> None:
    line = timeline(series)
    limited = seen.setup.kv_tokens < UNLIMITED_KV_TOKENS
    per = 100 / seen.setup.kv_tokens if limited else 1.0
    kv_title = "KV cache in use (%)" if limited else "KV cache in use (tokens)"
    held = [Line("held", list(line.kv_tokens_most * per))]
    charts = [
        over_time(
            "Requests running and waiting",
            line.time_s,
            [Line("running", list(line.running)), Line("waiting, most", list(line.waiting_most))],
            ink(),
            height=260,
        ),
        over_time(kv_title, line.time_s, held, ink(), most=100.0 if limited else None),
    ]
    if np.any(line.prefilling):
        part = [Line("prompt in progress", list(100 * line.prefilling))]
        charts.append(over_time("Time with a prompt cut in chunks (%)", line.time_s, part, ink(), height=180))
    if np.any(line.pauses):
        charts.append(over_time("Pauses", line.time_s, [Line("pauses", list(line.pauses))], ink(), height=180))
    for number, chart in enumerate(charts):
        show(chart, f"time_{number}")
    _tell_absent(line.prefilling, line.pauses)
    names = ("Time (s)", "Running, mean", "Running, most", "Waiting, most", "KV tokens, most", "Chunked prompt, share")
    columns = dict(zip((*names, "Pauses"), (getattr(line, name) for name in line.__slots__), strict=True))
    _data(pd.DataFrame(columns), "State of the first replica over time")


def _tell_absent(prefilling: Sequence[float], pauses: Sequence[float]) -> None:
    absent = [
        name
        for name, values in (("a prompt was cut in chunks", prefilling), ("a request was paused", pauses))
        if not np.any(values)
    ]
    never = " and never ".join(absent)
    st.caption(f"First replica, sampled when an iteration begins{f'; in this stretch never {never}' if never else ''}.")


def _latencies(seen: Seen) -> None:
    result, sla = seen.result, seen.plan.question.sla
    limits: Mapping[Metric, Limit] = {limit.metric: limit for limit in sla.limits}
    columns: dict[str, np.ndarray] = {"Requests (%)": 100 * SHARES}
    with st.grid("auto", min_column_width=300):
        for metric in get_args(Metric):
            spreads = [Spread(metric.upper(), list(spread(result.of(metric))))]
            if metric == "ttft":
                spreads += [
                    Spread("waiting", list(spread(result.queue_s))),
                    Spread("prompt", list(spread(result.ttft_s - result.queue_s))),
                ]
            if not np.isfinite(spreads[0].seconds[0]):
                st.caption(f"{metric.upper()}: no request has one in this run.")
                continue
            show(distribution(metric, list(SHARES), spreads, limits.get(metric), ink()), f"spread_{metric}")
            columns |= {f"{one.name} (ms)": 1000 * np.array(one.seconds) for one in spreads}
    _token_gaps(result)
    _data(pd.DataFrame(columns), "Latencies at shares of the requests")


def _token_gaps(result: Simulated) -> None:
    """Single gaps, as a reader sees them, beside the means that ITL is made of."""
    itl = Quantiles.of(result.itl_s)
    if not np.isfinite(itl.mean_s):
        return
    gaps = result.watched
    st.markdown(
        f"**Between two tokens** a reader waits {milliseconds(gaps.gap_p50_s)} in the median, "
        f"{milliseconds(gaps.gap_p95_s)} at p95 and {milliseconds(gaps.gap_p99_s)} at p99. The ITL of a request is the "
        f"mean of its gaps: {milliseconds(itl.p50_s)} in the median, {milliseconds(itl.p99_s)} at p99."
    )


def _slowest(seen: Seen) -> None:
    lives = lives_around_slowest(seen.result)
    if lives is None:
        st.caption("No request was served in this run.")
        return
    show(lives_of_requests(lives, ink()), "lives")
    if seen.run.replicas > 1:
        st.caption("Requests of all simulated replicas, in the order of their arrival at the router.")
    parts = {
        "Arrival (s)": lives.arrival_s,
        "Waiting (ms)": 1000 * lives.waiting_s,
        "Prompt (ms)": 1000 * lives.prompt_s,
    }
    _data(pd.DataFrame({**parts, "Decoding (s)": lives.decoding_s}), "Requests around the slowest first token")


def _formula(seen: Seen) -> None:
    with st.spinner("Asking the formula…"):
        said = simulating.by_formula(seen.run)
    if isinstance(said, str):
        st.caption(f":material/info: No formula for this run: {plain(said)}")
        return
    for warning in said.warnings:
        st.caption(f":material/warning: {plain(sentence_case(warning))}")
    if said.saturated or seen.result.saturated:
        agree = said.saturated == seen.result.saturated
        verdict = "agree: there is no steady state" if agree else "disagree on whether this load has a steady state"
        st.markdown(f"**Formula and simulation {verdict}**, so there are no percentiles to compare.")
        return
    rows = [row for metric in get_args(Metric) for row in _comparison(seen, metric, said.of(metric))]
    left, right = st.columns([2, 3])
    with left:
        show(_parity(rows), "parity")
    with right:
        far = sum(row["apart"] > TOLERANCE for row in rows)
        st.markdown(_verdict(far, len(rows)))
        st.dataframe(pd.DataFrame([_cells(row) for row in rows]), hide_index=True, alt="Formula against simulation")


def _comparison(seen: Seen, metric: Metric, said: Quantiles) -> list[dict]:
    """A row for each statistic that both know."""
    found = Quantiles.of(seen.result.of(metric))
    rows = []
    for name in STATISTICS:
        simulated_s, formula_s = getattr(found, name), getattr(said, name)
        if simulated_s > 0 and formula_s > 0:
            percentile = 0 if name == "mean_s" else int(name[1:3])
            interval = seen.result.interval(metric, percentile) if percentile else None
            label = f"{'mean' if not percentile else f'p{percentile}'} {metric.upper()}"
            apart = abs(formula_s / simulated_s - 1)
            rows.append(
                {
                    "label": label,
                    "simulated": simulated_s,
                    "formula": formula_s,
                    "apart": apart,
                    "interval": interval,
                    "metric": metric,
                }
            )
    return rows


def _cells(row: Mapping) -> dict[str, str]:
    low, high = row["interval"] or (None, None)
    difference = 100 * (row["formula"] / row["simulated"] - 1)
    return {
        "": row["label"],
        "Simulation": milliseconds(row["simulated"]),
        "90 % interval": f"{milliseconds(low)} to {milliseconds(high)}" if low is not None else "",
        "Formula": milliseconds(row["formula"]),
        "Difference": f"{difference:+.1f} %",
        "Verdict": f"over {TOLERANCE:.0%}: simulation counts" if row["apart"] > TOLERANCE else "agree",
    }


def _verdict(far: int, of: int) -> str:
    if not far:
        return f"**Formula and simulation agree** within {TOLERANCE:.0%} on all {of} figures."
    return (
        f":material/warning: **Formula and simulation differ by more than {TOLERANCE:.0%}** on {far} of {of} figures: "
        "there the simulation counts, and the plan is checked by it."
    )


def _parity(rows: Sequence[Mapping]) -> Chart:
    kinds = []
    for metric in get_args(Metric):
        own = [row for row in rows if row["metric"] == metric]
        x, y = [1000 * row["simulated"] for row in own], [1000 * row["formula"] for row in own]
        kinds.append(Pairs(metric.upper(), x, y, [row["label"] for row in own]))
    return parity("By formula (ms)", "By simulation (ms)", kinds, TOLERANCE, ink())


def _data(table: pd.DataFrame, alt: str) -> None:
    with st.expander("Data behind the charts"):
        st.dataframe(table, hide_index=True, alt=alt)


LOOK: Mapping[str, Callable[[Seen], None]] = {
    "time": _over_time,
    "latency": _latencies,
    "request": _slowest,
    "formula": _formula,
}

page(st.session_state.scenario)
