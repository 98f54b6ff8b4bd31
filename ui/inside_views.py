"""What the Simulate page shows of a run: its state over time, its latencies, its slowest request."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from sizing.inside import SHARES, between, lives_around_slowest, spread, timeline
from sizing.numbers import milliseconds
from sizing.prediction import Quantiles
from sizing.simulator import Simulated, TimeSeries
from sizing.simulator.gaps import gap_quantiles
from sizing.workload import METRICS, Metric, Seconds, metric_name
from ui import simulating
from ui.charts.base import Chart
from ui.charts.distribution import Spread, distribution
from ui.charts.lives import in_words, lives_of_requests
from ui.charts.timeline import Line
from ui.charts.timeline import over_time as drawn
from ui.look import ink, show
from ui.simulating import UNLIMITED_KV_TOKENS, Seen
from ui.words import sentence_case


def over_time(seen: Seen) -> None:
    """What the first replica held over the whole run, up to the last arrival that counts."""
    _draw_timeline(seen, between(seen.result.watched.series[0], 0.0, float(seen.result.arrival_s[-1])))


def close_look(seen: Seen) -> None:
    """The same over a short stretch of it."""
    lives_s = seen.result.e2e_s[np.isfinite(seen.result.e2e_s)]
    _draw_timeline(seen, simulating.closely(seen.run, float(lives_s.mean()) if lives_s.size else 1.0))


def _draw_timeline(seen: Seen, series: TimeSeries) -> None:
    if not len(series.time_s):
        st.caption("Nothing was computed in this stretch of the run.")
        return
    line = timeline(series)
    for number, chart in enumerate(_charts_over_time(series, seen.setup.kv_tokens)):
        show(chart, f"time_{number}")
    absent = {"a prompt was cut in chunks": line.prefilling, "a request was paused": line.pauses}
    never = " and never ".join(name for name, values in absent.items() if not np.any(values))
    st.caption(f"First replica, sampled when an iteration begins{f'; in this stretch never {never}' if never else ''}.")
    columns = {name: getattr(line, field) for field, name in TIMELINE_COLUMNS.items()}
    _data(pd.DataFrame(columns), "State of the first replica over time")


TIMELINE_COLUMNS = {
    "time_s": "Time (s)",
    "running": "Running, mean",
    "running_most": "Running, most",
    "waiting_most": "Waiting, most",
    "kv_tokens_most": "KV tokens, most",
    "prefilling": "Chunked prompt in progress (share)",
    "pauses": "Pauses",
}


COARSE = 60
"""Steps over which shares of the time are taken."""


def _charts_over_time(series: TimeSeries, kv_tokens: int) -> list[Chart]:
    """Requests, memory, and what there is of chunked prompts and pauses."""
    line, coarse = timeline(series), timeline(series, COARSE)
    running = [Line("running", line.running), Line("waiting, most", line.waiting_most)]
    charts = [drawn("Requests running and waiting", line.time_s, running, ink(), height=260)]
    if kv_tokens < UNLIMITED_KV_TOKENS:
        held = [Line("held", 100 * line.kv_tokens_most / kv_tokens)]
        charts.append(drawn("KV cache in use (%)", line.time_s, held, ink(), most=100.0))
    else:
        charts.append(drawn("KV cache in use (tokens)", line.time_s, [Line("held", line.kv_tokens_most)], ink()))
    if np.any(line.prefilling):
        part = [Line("prompt in progress", 100 * coarse.prefilling)]
        charts.append(drawn("Iterations with a prompt cut in chunks (%)", coarse.time_s, part, ink(), height=180))
    if np.any(line.pauses):
        pauses = [Line("pauses", coarse.pauses)]
        charts.append(drawn(f"Pauses (in each of {COARSE} steps)", coarse.time_s, pauses, ink(), height=180))
    return charts


def latencies(seen: Seen) -> None:
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
    _data(pd.DataFrame(columns), "Latencies at shares of the requests")


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
        f"**Between two tokens** a reader waits {milliseconds(gaps.gap_p50_s)} in the median, "
        f"{milliseconds(gaps.gap_p95_s)} at p95 and {milliseconds(gaps.gap_p99_s)} at p99. The ITL of a request is the "
        f"mean of its gaps: {milliseconds(itl.p50_s)} in the median, {milliseconds(itl.p99_s)} at p99."
    )


def slowest(seen: Seen) -> None:
    """The requests around the slowest first token, as bars."""
    lives = lives_around_slowest(seen.result)
    if lives is None:
        st.caption("No request was served in this run.")
        return
    st.markdown(in_words(lives))
    show(lives_of_requests(lives, ink()), "lives")
    if seen.run.replicas > 1:
        st.caption("Requests of all simulated replicas, in the order of their arrival at the router.")
    columns = {
        "Arrival (s)": lives.arrival_s,
        "Waiting (ms)": 1000 * lives.waiting_s,
        "Prompt (ms)": 1000 * lives.prompt_s,
        "Decoding (s)": lives.decoding_s,
    }
    _data(pd.DataFrame(columns), "Requests around the slowest first token")


def _data(table: pd.DataFrame, alt: str) -> None:
    with st.expander("Data behind the charts"):
        st.dataframe(table, hide_index=True, alt=alt)
