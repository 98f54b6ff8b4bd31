"""Latency against load: a panel for each limit, with the knee, what was measured, and any load of one's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from sizing.analyses.curves import (
    INTERACTIVITY,
    THROUGHPUT,
    FleetSizes,
    LengthCell,
    LoadCurve,
    Measure,
    Speed,
    gpus_for,
    knee_per_s,
    resampled,
)
from sizing.memory_use import KV_USED, PARTS, WEIGHTS, MemoryUse, memory_use
from sizing.numbers import count_of, gpus, per_second, significant, with_unit
from sizing.plans import Fleet, Plan
from sizing.points import Point
from sizing.question import RATE, Range
from sizing.text import spelt
from sizing.workload import Limit
from ui import answers
from ui.answers import named
from ui.charts.fleet import GIB, FleetSteps, gpus_against_load, memory_per_gpu, requests_over_lengths
from ui.charts.interactivity import Spot, front_of, spot_of, spots_of, throughput_against_interactivity
from ui.charts.latency import latency_against_load, measured_s, with_knee, with_measured
from ui.computing import Outcome
from ui.look import basis_line, data_behind, ink, show
from ui.scenario import Scenario
from ui.visit import begin_anew, chosen, number_typed
from ui.words import UNIT, limit_name, plain, room, sentence_case, tell, why_none


def load_input(label: str, value_per_s: float, key: str, help: str) -> float:
    """Requests/s typed by the visitor, `value_per_s` to begin with; a new `key` begins anew."""
    low, high = float(RATE.low), float(RATE.high)
    begin = min(max(float(f"{value_per_s:.3g}"), low), high)
    return st.number_input(label, low, high, begin, format="%g", key=key, help=help, width=250)


def use_load(rate_per_s: float, help: str) -> None:
    """A button that writes the load, of the whole fleet, into the form."""
    rate = min(max(round(rate_per_s, 6), RATE.low), RATE.high)
    load = with_unit(f"{rate:,.10g}", "requests/s")
    st.button(f"Use {load}", on_click=lambda: st.session_state.update(rate_per_s=rate), help=help)


def draw_latency(scenario: Scenario, name: str, fleet: Fleet) -> None:
    """One replica of the fleet from no load to beyond its capacity."""
    curve, points = answers.curve(scenario, name, fleet), answers.open_loop(scenario, fleet)
    capacity = per_second(fleet.capacity_per_s)
    st.title(plain(f"A replica of {fleet.candidate.label} carries {capacity} under this SLA"), anchor=False)
    _provenance(fleet, points)
    limits = scenario.question.sla.latencies
    for column, limit in zip(st.columns(max(1, len(limits))), limits, strict=False):
        chart = latency_against_load(curve, fleet, limit, scenario.headroom, ink(), points)
        with column:
            show(with_measured(with_knee(chart, curve, ink()), points, limit, ink()), f"latency_{limit.metric}")
    drawn = {HEADROOM_HELP: scenario.headroom > 0, KNEE_HELP: knee_per_s(curve) is not None}
    if any(drawn.values()):
        st.caption(" ".join(help for help, there in drawn.items() if there))
    _try_load(scenario, name, fleet, limits)
    _latency_table(curve, limits, points)


HEADROOM_HELP = "Shaded: the headroom kept."
KNEE_HELP = (
    "Knee: where load over mean end-to-end time is highest; beyond it more load costs more latency than it gains in "
    "throughput."
)


def _provenance(fleet: Fleet, points: Sequence[Point]) -> None:
    count = f"{count_of(len(points), 'point') if points else 'no point'} measured at offered rates"
    basis_line(fleet.basis, f"{fleet.candidate.source} · line by formula · {count} at these lengths")


def _try_load(scenario: Scenario, name: str, fleet: Fleet, limits: Sequence[Limit]) -> None:
    """Any load of one's choice: what users would see at it, and a button that asks the whole question at it."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        rate = load_input(
            "Load to try (requests/s per replica)",
            fleet.load_per_s,
            f"try_{scenario.rate_per_s}_{name}",
            "A load of each working replica: type one to see the latencies there.",
        )
        use_load(
            rate * fleet.working,
            f"Makes {fleet.working} × this load, that of all working replicas, the peak load asked.",
        )
    predicted = answers.prediction(scenario, name, fleet, rate)
    if predicted.saturated:
        st.markdown(
            f":material/cancel: At {per_second(rate)} a replica's queue grows without bound; "
            f"the stable rate is {significant(fleet.stable_per_s)}."
        )
        return
    told = (_verdict(limit, predicted.value_s(limit)) for limit in limits)
    st.markdown(f"At {per_second(rate)} per replica:  \n" + "  \n".join(told))


def _verdict(limit: Limit, value_s: float) -> str:
    kept = value_s <= limit.limit_s
    icon, word = (":material/check_circle:", "meets") if kept else (":material/cancel:", "misses")
    return f"{icon} {word} {limit_name(limit)}: {limit.said(value_s)}, {room(value_s, limit)}"


def _latency_table(curve: LoadCurve, limits: Sequence[Limit], points: Sequence[Point]) -> None:
    rows = [
        {"Load (requests/s per replica)": significant(rate)}
        | {_latency_title(limit): significant(p.value_s(limit) * UNIT[limit.metric][1]) for limit in limits}
        | {"From": "formula"}
        for rate, p in zip(curve.rates_per_s, curve.predictions, strict=True)
    ]
    rows += [_measured_row(point, limits) for point in points]
    data_behind(pd.DataFrame(rows), "Latency against load, by formula and as measured")


def _latency_title(limit: Limit) -> str:
    return f"{limit_name(limit)} ({UNIT[limit.metric][0]})"


def _measured_row(point: Point, limits: Sequence[Limit]) -> dict[str, str]:
    row = {"Load (requests/s per replica)": significant(point.load_value)}
    for limit in limits:
        value = measured_s(point, limit)
        row[_latency_title(limit)] = "" if value is None else significant(value * UNIT[limit.metric][1])
    return row | {"From": f"measured, {point.load_kind.replace('_', ' ')}"}


NO_PRICE = "Enter a price per GPU-hour in the form (under More) to draw cost per million output tokens."


def draw_interactivity(scenario: Scenario, outcome: Outcome) -> None:
    """All candidates at rising load, the Pareto front bold; also where none of them meets the SLA."""
    plan, price = outcome.plan, scenario.price_per_gpu_hour
    options = {name: measure.title for name, measure in THROUGHPUT.items() if name != "cost" or price is not None}
    measure = THROUGHPUT[chosen("Throughput as", options, "against", help=HELP)]
    with st.spinner("Predicting every configuration at rising load…"):
        curves = answers.speeds(scenario, plan)
    drawn = [spots for spots in spots_of(curves, measure, scenario.osl, price or 0.0) if spots]
    if not drawn:
        _tell_nothing(scenario, outcome)
        return
    best = front_of(spots_of(resampled(curves), measure, scenario.osl, price or 0.0), measure)
    st.title(plain(_interactivity_title(drawn, measure)), anchor=False)
    if plan is None:
        st.markdown(plain(why_none(scenario, outcome)[1]))
    planned = _planned(plan, measure, scenario, price)
    show(throughput_against_interactivity(drawn, best, planned, measure, ink()), "front")
    st.caption(
        f"{len(drawn)} configurations at rising load by formula, faint. Bold: the front, where nothing "
        f"{measure.better} can be had at that interactivity; solid where the SLA holds, dotted where it does not. "
        "Interactivity is 1 / mean ITL. Per GPU: of a working replica, without spares and headroom, which the answer "
        "includes."
    )
    if price is None:
        st.caption(NO_PRICE)
    _best_at(best, measure)
    _interactivity_table(drawn, best, measure)


def _tell_nothing(scenario: Scenario, outcome: Outcome) -> None:
    if outcome.plan is None:
        tell(scenario, outcome)
        return
    st.title("No curve to draw", anchor=False)
    st.markdown("Outputs of one token have no gaps between tokens, hence no interactivity: ask for longer outputs.")


HELP = "Throughput per GPU against the speed each user sees."


def _interactivity_title(drawn: Sequence[Sequence[Spot]], measure: Measure) -> str:
    """Of all configurations: the best under the SLA may stand behind a front that misses it."""
    held = [spot for spots in drawn for spot in spots if spot.meets]
    if not held:
        return "No configuration meets this SLA"
    word, pick = ("Most", max) if measure.better == "higher" else ("Lowest", min)
    top = pick(held, key=lambda spot: spot.y)
    return f"{word} {lower_first(measure.title)} under this SLA: {significant(top.y)} with {top.name}"


def lower_first(text: str) -> str:
    """For the middle of a sentence."""
    return text[:1].lower() + text[1:]


def _planned(plan: Plan | None, measure: Measure, scenario: Scenario, price: float | None) -> Spot | None:
    """The answer at its planned load."""
    if plan is None or not plan.answer.predicted.itl.mean_s > 0:
        return None
    fleet = plan.answer
    speed = Speed(fleet.load_per_s, fleet.load_per_s / fleet.candidate.gpus, 1 / fleet.predicted.itl.mean_s, meets=True)
    return spot_of(spelt(fleet.candidate.label), speed, measure, scenario.osl, price or 0.0)


def _best_at(best: Sequence[Spot], measure: Measure) -> None:
    """The front at an interactivity of one's choice."""
    fastest = best[-1].x
    half = float(f"{fastest / 2:.2g}")
    begin_anew("interactivity", half, "interactivity")
    wanted = number_typed(
        "interactivity",
        "Interactivity at least (output tokens/s per user)",
        Range(0, 1e6),
        half,
        "The best configuration that gives every user at least this many output tokens/s on average.",
        width=320,
    )
    spot = next((spot for spot in best if spot.x >= wanted), None)
    if spot is None:
        st.markdown(f"No configuration gives more than {significant(fastest)} output tokens/s per user.")
        return
    sla = "The SLA holds there." if spot.meets else "The SLA does not hold there."
    st.markdown(
        f"Best at {significant(wanted)} or more: **{plain(spot.name)}**, {significant(spot.y)} {measure.unit}, "
        f"at {per_second(spot.requests_per_s)} per replica. {sla}"
    )


def _interactivity_table(drawn: Sequence[Sequence[Spot]], best: Sequence[Spot], measure: Measure) -> None:
    on_front = set(best)
    rows = [
        {
            "Configuration": spot.name,
            "Load (requests/s per replica)": significant(spot.requests_per_s),
            INTERACTIVITY.title: significant(spot.x),
            measure.title: significant(spot.y),
            "SLA": "holds" if spot.meets else "missed",
            "On the front": "yes" if spot in on_front else "no",
        }
        for spots in drawn
        for spot in spots
    ]
    data_behind(pd.DataFrame(rows), "Every configuration at every load drawn")


OTHERS = 2
"""Configurations drawn beside the one picked: the best of other GPUs."""


def draw_fleet_sizes(scenario: Scenario, plan: Plan, name: str, fleet: Fleet) -> None:
    """How the count grows with the load, for this configuration and the best of other GPUs."""
    question, rate = scenario.question, scenario.rate_per_s
    twice = gpus_for(question, fleet, 2 * rate)
    st.title(plain(f"{gpus(fleet.gpus)} at {per_second(rate)}, {twice:,} at twice the load"), anchor=False)
    low, high = _range(rate)
    if low >= high:
        st.warning("The range ends before it starts: make its end larger than its start.")
        return
    others = best_of_other_gpus(plan, fleet)
    steps = [
        FleetSteps(spelt(each.candidate.label), answers.sizes(scenario, its_name, each, low, high))
        for its_name, each in ((name, fleet), *others)
    ]
    show(gpus_against_load(steps, high, rate, fleet.gpus, gpus(fleet.gpus), ink()), "fleet_size")
    st.caption(
        "Counts round up to whole replicas, so the line steps; spares included, headroom kept. Shaded: the 90 % band "
        f"of {plain(fleet.candidate.label)}, where it is bounded. A replica's capacity is taken as at the planned load."
    )
    _try_rate(scenario, fleet)
    _fleet_sizes_table(steps)


def best_of_other_gpus(plan: Plan, fleet: Fleet) -> list[tuple[str, Fleet]]:
    """The best fleet of each GPU that the picked one does not stand on, at most `OTHERS`."""
    found: dict[str, tuple[str, Fleet]] = {}
    for name, each in named(plan.fleets).items():
        if each.candidate.gpu != fleet.candidate.gpu:
            found.setdefault(each.candidate.gpu, (name, each))
    return list(found.values())[:OTHERS]


def _range(rate_per_s: float) -> tuple[float, float]:
    """The loads drawn, which begin anew for another rate."""
    loads = Range(0, RATE.high)
    begin_anew("loads", rate_per_s, "from", "to")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        low = number_typed("from", "From (requests/s)", loads, 0.0, width=160)
        high = number_typed("to", "To (requests/s)", loads, round(min(3 * rate_per_s, RATE.high), 12), width=160)
    return low, high


def _try_rate(scenario: Scenario, fleet: Fleet) -> None:
    question = scenario.question
    with st.container(horizontal=True, vertical_alignment="bottom"):
        rate = load_input(
            "Load to try (requests/s)",
            2 * scenario.rate_per_s,
            f"try_fleet_{scenario.rate_per_s}",
            "A load of the whole fleet: type one to see its GPUs.",
        )
        use_load(rate, "Makes this the peak load of the scenario and plans again.")
    st.markdown(
        f"At {per_second(rate)}: **{gpus(gpus_for(question, fleet, rate))}** as {plain(fleet.candidate.label)}."
    )


def _fleet_sizes_table(steps: Sequence[FleetSteps]) -> None:
    with st.expander("Data behind the chart"):
        for one in steps:
            st.caption(plain(one.name))
            frame = pd.DataFrame(_rows(one.sizes))
            st.dataframe(frame, hide_index=True, alt=f"GPUs of {one.name} from each load on")


def _rows(sizes: FleetSizes) -> list[dict[str, str]]:
    """A row for each load from which on a count, or an end of its band, changes."""
    rows: list[dict[str, str]] = []
    for place, rate in enumerate(sizes.rates_per_s):
        high = "no number" if sizes.high is None else f"{sizes.high[place]:,}"
        low = f"{sizes.low[place]:,}"
        counts = {"GPUs": f"{sizes.gpus[place]:,}", "90 % band, low": low, "90 % band, high": high}
        if not rows or counts.items() - rows[-1].items():
            rows.append({"From load (requests/s)": significant(rate)} | counts)
    return rows


EXTRAPOLATED = " (extrapolated)"


def draw_lengths(scenario: Scenario, name: str, fleet: Fleet) -> None:
    """The grid around the scenario's lengths as lines and as a table."""
    with st.spinner("Computing other lengths…"):
        cells = answers.lengths(scenario, name, fleet)
    st.title(plain(_lengths_title(cells, scenario)), anchor=False)
    show(requests_over_lengths(cells, scenario.isl, scenario.osl, ink()), "lengths")
    marked = (
        "All estimated: none of these lengths was measured."
        if fleet.candidate.unmeasured
        else "All estimated, by a law whose scale was measured at one load level."
        if fleet.candidate.basis == "estimated"
        else "Hollow markers are extrapolated: more than twice or less than half of what was measured."
    )
    label = plain(fleet.candidate.label)
    st.caption(
        f"{label} under the same SLA, headroom kept; the larger marker is the scenario, from which "
        f"the formula leads to the others. {marked}"
    )
    _lengths_table(cells)


def _lengths_title(cells: Sequence[LengthCell], scenario: Scenario) -> str:
    own = _per_gpu(cells, scenario.isl, scenario.osl)
    twice = _per_gpu(cells, round(2 * scenario.lengths.isl), scenario.osl)
    if own is None:
        return "Requests/s per GPU at other lengths"
    here = f"{per_second(own)} per GPU at {scenario.isl:,} in, {scenario.osl:,} out"
    return f"{here}; {significant(twice)} with prompts twice as long" if twice else f"{here}; none with twice the input"


def _per_gpu(cells: Sequence[LengthCell], isl: float, osl: float) -> float | None:
    return next((cell.requests_per_s_per_gpu for cell in cells if (cell.isl, cell.osl) == (isl, osl)), None)


def _lengths_table(cells: Sequence[LengthCell]) -> None:
    st.markdown("**Requests/s per GPU**, input tokens down, output tokens across")
    rows: dict[str, dict[str, str]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.isl, cell.osl)):
        rows.setdefault(f"{cell.isl:,g}\N{NO-BREAK SPACE}in", {})[f"{cell.osl:,g} out"] = _text(cell)
    st.table(pd.DataFrame.from_dict(rows, orient="index"), alt="Requests/s per GPU by input and output tokens")
    for reason in dict.fromkeys(cell.why for cell in cells if cell.why):
        st.caption(f"None: {plain(sentence_case(reason))}")


def _text(cell: LengthCell) -> str:
    if cell.requests_per_s_per_gpu is None:
        return "none"
    return significant(cell.requests_per_s_per_gpu) + (EXTRAPOLATED if cell.basis == "extrapolated" else "")


BARS = 8
"""Configurations drawn at once."""


def draw_memory(scenario: Scenario, plan: Plan, fleet: Fleet) -> None:
    """Bars for the picked configuration and the next best ones; what is not known is said."""
    fleets = named([fleet, *(each for each in plan.fleets if each is not fleet)][:BARS])
    found = {name: memory_use(each, scenario.lengths, plan.question.workload.prefix) for name, each in fleets.items()}
    uses = {name: use for name, use in found.items() if isinstance(use, MemoryUse)}
    own = next(iter(found.values()))
    if isinstance(own, str):
        st.title("The memory of this configuration is unknown", anchor=False)
        st.markdown(plain(sentence_case(own)) + ".")
    else:
        st.title(plain(_memory_title(own)), anchor=False)
    if not uses:
        return
    show(memory_per_gpu(list(map(spelt, uses)), list(uses.values()), ink()), "memory")
    st.caption(
        "KV cache in use: requests in a replica at the planned load (Little's law) times the tokens that each holds on "
        "average; peaks are higher. Weights: parameters times bits, spread evenly over the replica's GPUs."
    )
    for note in dict.fromkeys(use.note for use in uses.values()):
        names = ", ".join(name for name, use in uses.items() if use.note == note)
        st.caption(plain(f"{sentence_case(note)}: {names}."))
    _memory_table(uses)


def _memory_title(use: MemoryUse) -> str:
    used, capacity = use.of(WEIGHTS) + use.of(KV_USED), use.capacity_bytes
    return (
        f"{significant(used / GIB)} of {significant(capacity / GIB)} GiB hold weights and KV cache "
        f"on each GPU of {use.candidate.label}"
    )


def _memory_table(uses: Mapping[str, MemoryUse]) -> None:
    rows = []
    for name, use in uses.items():
        sizes = {part: significant(size / GIB) for part, size in use.parts}
        parts = {f"{part} (GiB)": sizes.get(part, "") for part in PARTS}
        rows.append({"Configuration": spelt(name), **parts, "GPU memory (GiB)": significant(use.capacity_bytes / GIB)})
    data_behind(pd.DataFrame(rows), "Memory of one GPU by what fills it")
