"""Load that changes over time: a trace, or a day of 24 hourly loads.

Of recorded traffic: the part of it that is replayed, and what a fleet does with it. Of a day: the GPUs of each hour,
and what following the load saves against a constant fleet.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from sizing import text
from sizing.analyses.daily import HOURS, Daily
from sizing.analyses.sensitivity import sensitivities
from sizing.analyses.traced import TracePlan, busiest_rate_per_s
from sizing.analyses.verification import verification
from sizing.cli.shapes import extras_json, finite_only
from sizing.numbers import count_of, met, per_second, percent, significant
from sizing.plans import Plan
from sizing.question import Range
from sizing.report.build import Cover
from sizing.report.model import as_dict
from sizing.report.write import WRITERS
from sizing.simulator.recorded import Replayed, limits_on_latencies
from sizing.text import Extras, as_json, day_sentence, day_working
from sizing.trace import DAY_S, HOUR_S, MINUTE_S, Trace, dispersion
from sizing.trace_files import FORMATS
from ui import answers
from ui.answers import EXAMPLE, MOST_UPLOAD_BYTES, Part
from ui.charts.fleet import gpus_over_day
from ui.charts.traced import gpus_by_hour, lengths_of_requests, limit_by_hour, requests_over_time
from ui.link import PREFIX
from ui.look import card, data_behind, ink, rows_of_cards, show
from ui.scenario import DAYS, OF_PEAK, Scenario
from ui.views.answer import (
    HEADER_PX,
    ROW_PX,
    address,
    alternatives,
    basis_line,
    cards,
    export,
    headline,
    left_out,
    remarks,
    tell_change_since_link,
    warnings,
)
from ui.visit import LONGEST, Recorded, chosen, let_go, number_kept, visit
from ui.words import limit_name, plain, sentence_case, tell_unreadable

state = st.session_state
TRACE, ENDS, SCALE, LIMITS = PREFIX + "trace", PREFIX + "part", PREFIX + "scale", PREFIX + "classes"
WINDOWS = {"all": "Whole trace", "worst-hour": "Worst hour", "part": "From … to"}
WINDOW_HELP = "Which requests are replayed. Worst hour: the 60 minutes with the most tokens."
SCALES = Range(0.1, 100)
SCALE_HELP = (
    "Multiplies the requests of the trace and keeps its bursts: above 1, requests are repeated a moment apart; below "
    "1, some are dropped at random."
)
MOST_STEPS = 200
STEPS_S = (MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 6 * HOUR_S)
"""Of the slider that picks a part."""
MIB = 2**20
WHAT = (
    "Upload an hour, a day or a week of requests as logged by a gateway or a server: the arrival time, input tokens "
    "and output tokens of each. Every fleet is tried on exactly these requests, with their bursts and lengths."
)
KEPT = (
    ":material/lock: Kept for this visit only: arrival times, tokens, which requests belong to one conversation, and "
    "names of classes. Prompts and names of people are not read. A link cannot carry a trace."
)
EXAMPLE_HELP = "A day with office hours and bursts: invented, not recorded."
LINKED = (
    "This link was made with a trace, which a link cannot carry: upload the file to see the answer for it. The rest of "
    "the question is in the form."
)
LINK_SAYS = (
    "This link opens the same question with the same part of the trace. It cannot carry the trace: whoever opens it is "
    "asked to upload the file."
)
EXAMPLE_LINK_SAYS = "This link opens the same question with the example."
IN_PLACE = (
    "Load, arrivals and lengths come from the trace, not from the form. All else in the form counts: model, GPUs, "
    "limits, headroom, spares, routing, prefix, price."
)
ADD_HELP = (
    "The requests of both files are merged by time, and each file becomes a class with limits of its own. Classes may "
    "also be given in a column named class."
)
LIMITS_EXAMPLE = "code:ttft=p95:300ms,itl=none; batch:e2e=p95:60s"
LIMITS_HELP = (
    "Each class has the limits of the form, over its own requests, except those given here: ttft, itl, gap or e2e, "
    "with percentile and time, or none."
)
FILES = {
    "pdf": ("PDF", ":material/picture_as_pdf:"),
    "html": ("HTML", ":material/html:"),
    "xlsx": ("XLSX", ":material/table_view:"),
}
ROWS = 8
"""Hours in the table of the worst."""
WORST_HELP = "Share of this hour's requests that met all limits on requests."


def ask_trace() -> Recorded | None:
    """The trace of this visit, under a line that names it; a page that asks for one where there is none."""
    if visit().recorded is None and state.get(TRACE) == EXAMPLE:
        visit().recorded = answers.example()
    if (found := visit().recorded) is None:
        st.title("Size from recorded traffic", anchor=False)
        st.markdown(WHAT)
        if state.get(TRACE):
            st.info(LINKED, icon=":material/upload_file:")
            visit().shown[TRACE] = str(state[TRACE])
        _upload()
        _tell_refused()
        return None
    _tell_refused()
    if state.get(TRACE, found.digest) != found.digest:
        st.info("This link was made with another trace, whose answer may differ.", icon=":material/link_off:")
    visit().shown[TRACE] = found.digest
    return found


def _upload(found: Recorded | None = None) -> None:
    """Take a file as the trace of this visit, or as a class beside the one that was `found`; the example, and which
    files are read."""
    adds = found is not None and st.toggle(
        "Add it to this trace as a class", key=f"trace_adds_{visit().traces}", help=ADD_HELP
    )
    key = f"trace_{visit().traces}"  # a new uploader, an empty one, after each file
    label = f"CSV, CSV.gz, Parquet or JSON lines, {MOST_UPLOAD_BYTES // MIB} MB at most"
    file = st.file_uploader(label, key=key, max_upload_size=MOST_UPLOAD_BYTES // MIB)
    if file is not None:
        with st.spinner("Reading the trace…"):
            read = answers.recorded(file.name, file.getvalue())
            if adds and found is not None and isinstance(read, Recorded):
                read = answers.joined(found, read)
        let_go(file.file_id)
        visit().traces += 1
        _take(read)
        st.rerun()
    st.caption(KEPT)
    st.button("Try an example", icon=":material/science:", on_click=_try_example, help=EXAMPLE_HELP)
    with st.expander("Which files are read", icon=":material/description:"):
        _formats()


def _try_example() -> None:
    _take(answers.example())


def _tell_refused() -> None:
    if visit().trace_refused:
        st.error(plain(visit().trace_refused), title="This file was not accepted", icon=":material/block:")


def _take(found: Recorded | str | None) -> None:
    """The trace of this visit from now on, None for none; a text is why a file is none."""
    now = visit()
    now.trace_refused = found if isinstance(found, str) else ""
    if isinstance(found, str):
        return
    now.recorded = found
    now.trace_parts.clear()
    now.trace_answers.clear()
    if found is None or state.get(TRACE) == EXAMPLE:
        state.pop(TRACE, None)


def _formats() -> None:
    """The kinds of files, by the columns or keys that tell them."""
    st.markdown(
        "CSV and Parquet are recognised by their columns, JSON lines and `key=value` lines by their keys. All but "
        "Parquet may be compressed by gzip. In any of them, a column or key `class` names classes of requests."
    )
    rows = [
        (sentence_case(form.label), *(" or ".join(names) for names in (form.times, form.isl, form.osl, form.session)))
        for form in FORMATS.values()
    ]
    columns = ["Kind", "Time of arrival", "Input tokens", "Output tokens", "Conversation"]
    st.dataframe(pd.DataFrame(rows, columns=columns), hide_index=True, alt="Kinds of traces and their columns")


def ask_part(found: Recorded) -> tuple[Part, Trace] | None:
    """The part of a trace that is replayed; None, and why on the page, where it cannot be."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f":material/timeline: **{plain(found.name)}**", width="content")
        with st.popover("Another trace", icon=":material/upload_file:"):
            _upload(found)
            st.button("Forget this trace", icon=":material/delete:", on_click=_take, args=(None,))
        window = chosen("Part to replay", WINDOWS, "window", help=WINDOW_HELP)
        scale = _scale()
    if window == "part":
        window = _ends(found)
    part = Part(found.digest, window, scale)
    trace = answers.part_of(found, part)
    if isinstance(trace, str):
        st.error(plain(sentence_case(trace)), icon=":material/block:")
        return None
    times = "" if scale == 1 else f", {scale:g} × its part"
    of = "" if len(trace) == len(found.trace) else f" (of {len(found.trace):,} in the trace{times})"
    st.markdown(plain(facts(trace, of)))
    st.caption(f"{IN_PLACE} {plain(sentence_case('; '.join(found.notes)))}{'.' if found.notes else ''}")
    return part._replace(limits=_limits(trace)) if trace.classes else part, trace


def _limits(trace: Trace) -> tuple[str, ...]:
    """Limits that classes have in place of the form's; the choice is in the URL."""
    state[LIMITS] = str(state.get(LIMITS, ""))
    typed = st.text_input(
        "Limits of classes",
        key=LIMITS,
        max_chars=LONGEST,
        placeholder=f"As in the form. Or: {LIMITS_EXAMPLE}",
        help=LIMITS_HELP,
        persist_state="session",
    )
    if typed:
        visit().shown[LIMITS] = typed
    counts = np.bincount(trace.of_class, minlength=len(trace.classes))
    each = ", ".join(f"{name} ({count_of(n, 'request')})" for name, n in zip(trace.classes, counts, strict=True))
    st.caption(plain(f"Classes: {each}"))
    return tuple(text.strip() for text in typed.split(";") if text.strip())


def _scale() -> float:
    """Times the requests; the choice is in the URL."""
    try:
        held = float(state.get(SCALE, 1.0))
    except ValueError:
        held = 1.0
    state[SCALE] = held if held in SCALES else 1.0
    with st.container(horizontal=True, vertical_alignment="center", width="content", gap="xsmall"):
        st.markdown("Scale", width="content", help=SCALE_HELP)
        number_kept(
            "Scale",
            float(SCALES.low),
            float(SCALES.high),
            SCALE,
            step=0.5,
            format="%g",
            label_visibility="collapsed",
            icon=":material/close:",
            width=130,
        )
    if state[SCALE] != 1:
        visit().shown[SCALE] = repr(state[SCALE])
    return float(state[SCALE])


def _ends(found: Recorded) -> str:
    """The ends of a part as `Trace.window` takes them, picked on a slider; the choice is in the URL."""
    marks = clock_marks(found.trace)
    held = tuple(str(state.get(ENDS, "")).split(".."))
    usual = held if len(held) == 2 and {*held} <= {*marks} else (marks[0], marks[-1])
    drawn, number = "trace_ends_drawn", "trace_ends_number"
    if state.get(ENDS) != state.get(drawn):  # a link, or the browser's Back, brought another part: a new slider for it
        state[number] = state.get(number, 0) + 1
    key = f"trace_ends_{found.digest}_{state.get(number, 0)}"
    first, last = st.select_slider("From … to", marks, usual, key=key, label_visibility="collapsed")
    state[ENDS] = state[drawn] = visit().shown[ENDS] = f"{first}..{last}"
    return str(state[ENDS])


def clock_marks(trace: Trace) -> list[str]:
    """Times at which a part may begin and end, from before the first request to after the last, as `Trace.clock` writes
    them: round times of the clock, `MOST_STEPS` or little more."""
    step_s = next((each for each in STEPS_S if trace.span_s <= MOST_STEPS * each), DAY_S)
    offset_s = 0.0 if math.isnan(trace.began_s) else trace.began_s % DAY_S
    first = math.floor((float(trace.arrival_s[0]) + offset_s) / step_s)
    last = math.floor((float(trace.arrival_s[-1]) + offset_s) / step_s) + 1
    return [trace.clock(number * step_s - offset_s) for number in range(first, last + 1)]


def facts(trace: Trace, of: str = "") -> str:
    """What is replayed, in a line."""
    ends = f"{trace.clock(float(trace.arrival_s[0]))} to {trace.clock(float(trace.arrival_s[-1]))}"
    bursts = dispersion(trace)
    varying = (
        ""
        if math.isnan(bursts)
        else f" · requests per second vary {significant(bursts, 2)} times as much as random arrivals"
    )
    return (
        f"{count_of(len(trace), 'request')}{of} · {ends} · {per_second(trace.rate_per_s)} on average, "
        f"{significant(busiest_rate_per_s(trace))} in the busiest hour · {significant(float(trace.isl.mean()))} input "
        f"and {significant(float(trace.osl.mean()))} output tokens on average{varying}"
    )


def show_traffic(found: Recorded, part: Part, trace: Trace) -> None:
    """The whole trace over time with the part that is replayed, and the lengths of that part."""
    st.subheader("The trace", anchor=False)
    over_time, lengths = st.columns([3, 2])
    ends_s = None if part.window == "all" else (float(trace.arrival_s[0]), float(trace.arrival_s[-1]))
    with over_time:
        show(requests_over_time(found.trace, ends_s, ink()), "trace")
    with lengths:
        show(lengths_of_requests(trace, ink()), "trace_lengths")


def replayed(scenario: Scenario, part: Part, trace: Trace) -> answers.Reply[TracePlan]:
    """The answer; which fleet is being replayed is told meanwhile."""
    with st.spinner("Sizing and replaying…", show_time=True):
        line = st.empty()
        number = 0

        def progress(doing: str) -> None:
            nonlocal number
            number += 1
            line.caption(plain(f"{sentence_case(doing)} (no. {number})"))

        found = answers.traced(scenario, part, trace, progress)
        line.empty()
    return found


def show_replayed(found: TracePlan, scenario: Scenario) -> None:
    """The answer: the fleet as for any load, then what each hour of the trace saw and needs."""
    plan = found.plan
    tell_unreadable(answers.measured_points().problems)
    with st.container(gap="xsmall"):
        headline(plan, scenario)
    cards(plan, "over all requests replayed")
    with st.container(gap="xsmall"):
        st.markdown("  \n".join(f"{plain(line)}." for line in text.trace_lines(found)[1:]))
        remarks(plan, found)
    if found.replayed.classes:
        _classes(found)
    _by_hour(found)
    st.markdown("**Configurations that meet the SLA**")
    alternatives(plan, scenario)
    left_out(plan.rejected)
    each = (_hours(found, seen) for seen in (found.replayed, *found.replayed.classes))
    data_behind(pd.concat(each, ignore_index=True), "Every hour of the replay")


def _classes(found: TracePlan) -> None:
    """Each limit of each class beside what its requests saw."""
    rows = [
        {
            "Class": seen.name,
            "Requests": int(seen.tally.gone.sum()),
            "Limit": limit_name(limit),
            "Allowed": limit.allowed,
            "Replayed": limit.said(seen.value_s(limit)),
            "Room": percent(1 - seen.value_s(limit) / limit.limit_s),
            "Inside the SLA": met(seen.goodput(), 2),
            "Worst hour": found.trace.clock(seen.hours[seen.worst_hour].from_s),
            "Inside then": met(seen.goodput(seen.worst_hour), 2),
        }
        for seen in found.replayed.classes
        for limit in seen.sla.limits
    ]
    st.markdown("**Each class**")
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        row_height=ROW_PX,
        column_config={"Requests": st.column_config.NumberColumn(format="localized")},
        alt=f"Limits of each class: {', '.join(seen.name for seen in found.replayed.classes)}",
    )


def _by_hour(found: TracePlan) -> None:
    limits = limits_on_latencies(found.replayed.sla)
    with st.grid(1 + len(limits), min_column_width=260):
        for limit in limits:
            show(limit_by_hour(found, limit, ink()), f"hours_{limit.metric}")
        show(gpus_by_hour(found, ink()), "hours_gpus")
    if len(found.replayed.hours) > 1:
        worst = sorted(range(len(found.replayed.hours)), key=found.replayed.goodput)[:ROWS]
        table = _hours(found, found.replayed).drop(columns="Class", errors="ignore").iloc[worst]
        st.markdown("**Worst hours**")
        st.dataframe(
            table,
            hide_index=True,
            row_height=ROW_PX,
            height=ROW_PX * min(4, len(table)) + HEADER_PX,
            column_config={
                "Requests": st.column_config.NumberColumn(format="localized"),
                "Inside the SLA": st.column_config.TextColumn(help=WORST_HELP),
            },
            alt=f"Hours with the most requests outside the SLA, the worst first: {', '.join(table['Hour'][:3])}",
        )


def _hours(found: TracePlan, seen: Replayed) -> pd.DataFrame:
    """A row for each hour with requests: its load, what its requests saw, those of a class or all, and the GPUs that
    the rate of all needs."""
    fleet = found.plan.answer
    rows = [
        ({"Class": seen.name or "all"} if found.replayed.classes else {})
        | {
            "Hour": found.trace.clock(hour.from_s),
            "Requests": int(seen.tally.gone[number]),
            "Inside the SLA": met(seen.goodput(number), 2),
        }
        | {limit_name(limit): limit.said(seen.value_s(limit, number)) for limit in limits_on_latencies(seen.sla)}
        | ({} if seen.name else {"GPUs at its rate": (found.needed[number] + fleet.spare) * fleet.candidate.gpus})
        for number, hour in enumerate(seen.hours)
        if seen.tally.gone[number]
    ]
    return pd.DataFrame(rows)


def export_trace(query: Mapping[str, str], found: TracePlan | None) -> None:
    """The link, with what it cannot carry, the report, and the plan as the command line writes it."""
    with export(query, EXAMPLE_LINK_SAYS if query.get(TRACE) == EXAMPLE else LINK_SAYS):
        if found is not None:
            name = f"trace-plan-{found.plan.answer.gpus}-gpus"
            link = address(query)
            with st.container(horizontal=True, gap="small"):
                for suffix, (label, icon) in FILES.items():
                    st.download_button(
                        label,
                        data=partial(answers.traced_file, found, link, suffix),
                        file_name=f"{name}.{suffix}",
                        mime=WRITERS[suffix][2],
                        on_click="ignore",
                        disabled=importlib.util.find_spec(answers.NEEDS[suffix]) is None,
                        icon=icon,
                        key=f"trace_{suffix}_{id(found.plan)}",
                    )
            st.download_button(
                "The plan as JSON",
                data=partial(json_of, found),
                file_name=f"{name}.json",
                mime="application/json",
                on_click="ignore",
                icon=":material/data_object:",
                help="As python -m sizing plan --trace FILE --json writes it, every hour with its percentiles.",
            )


def json_of(found: TracePlan) -> bytes:
    """The plan with every hour, and its report, as the command line writes it."""
    question = found.plan.question
    effects = sensitivities(question, found.plan.answer, found.trace)
    report = as_dict(answers.traced_report(found, effects, Cover(answers.now())))
    more = Extras(effects, verification=verification(found.plan), trace=found)
    whole = {**as_json(found.plan), **extras_json(more, question), "report": report}
    return json.dumps(finite_only(whole), indent=2).encode()


LOAD = "Load (% of the peak)"
TALL_PX = 300
DAY_HELP = "Fills in 24 example loads to start from. They are invented, not measured: replace them with your own."
EDITOR_HELP = "Relative to the busiest hour, which has the peak load of the form."
GPU_HOURS_HELP = "Hours times running GPUs, spares included; replicas are assumed to start and stop instantly."


def show_day(plan: Plan, day: Daily, scenario: Scenario) -> None:
    """The day's answer: sentence, cards, chart and the loads to edit."""
    tell_unreadable(answers.measured_points().problems)
    fleet = plan.answer
    with st.container(gap="xsmall"):
        st.title(plain(day_sentence(plan, day)), anchor=False)
        st.markdown(plain(day_working(plan, day)))
        basis_line(fleet.basis, f"At the peak {text.band(fleet)} · {fleet.candidate.source}", text.why_wide(fleet))
    tell_change_since_link(fleet.gpus, scenario)
    _cards(plan, day)
    loads, chart = st.columns([1, 3])
    with loads:
        ask_day()
    with chart:
        show(gpus_over_day(day, ink()), "day")
        rows = [(f"{h.hour}:00", significant(h.rate_per_s), h.replicas, h.gpus) for h in day.hours]
        columns = ["Hour", "Requests/s", "Replicas", "GPUs"]
        data_behind(pd.DataFrame(rows, columns=columns), "GPUs of each hour")
    warnings(fleet.basis, fleet.warnings)
    left_out(plan.rejected)


def _cards(plan: Plan, day: Daily) -> None:
    price = plan.question.price_per_gpu_hour
    with rows_of_cards(3):
        card(
            "GPUs at the peak",
            f"{day.constant_gpus:,}",
            "if sized for the peak",
            "If the fleet does not follow the load.",
        )
        paid = "" if price is None else f"{significant(price * day.gpu_hours)} a day"
        card("GPU-hours a day", f"{day.gpu_hours:,}", paid or f"of {day.constant_gpu_hours:,}", GPU_HOURS_HELP)
        saved = day.constant_gpu_hours - day.gpu_hours
        worth = count_of(saved, "GPU-hour") + ("" if price is None else f", {significant(price * saved)} a day")
        card("Saved", percent(day.saved), worth, "Compared with running the busiest hour's fleet all day.")


def ask_day() -> None:
    """A shape to start from, and the 24 loads to edit."""
    chosen = next((name for name, loads in DAYS.items() if loads == state.day), None)
    st.pills(
        "Day",
        list(DAYS),
        format_func=lambda name: f"**{name}**" if name == chosen else name,
        key="day_shape",
        on_change=_use_shape,
        help=DAY_HELP,
    )
    key = _editor_key()
    table = pd.DataFrame({"Hour": [f"{hour}:00" for hour in range(HOURS)], LOAD: list(visit().day_base)})
    load = st.column_config.NumberColumn(
        min_value=OF_PEAK.low, max_value=OF_PEAK.high, format="%g", required=True, help=EDITOR_HELP
    )
    st.data_editor(
        table,
        hide_index=True,
        disabled=["Hour"],
        height=TALL_PX,
        key=key,
        on_change=_use_edits,
        args=(key,),
        column_config={LOAD: load},
        alt="Load of each hour in percent of the peak, to edit",
    )


def _use_shape() -> None:
    state.day, state.day_shape = DAYS[state.day_shape], None


def _use_edits(key: str) -> None:
    state.day = edited(visit().day_base, state[key]["edited_rows"])


def _editor_key() -> str:
    """The key of the editor: a new one, without edits, once the day is not what the editor's own edits made of it."""
    key = f"day_editor_{visit().day_round}"
    edits = state[key]["edited_rows"] if key in state else {}
    if edited(visit().day_base, edits) != state.day:
        visit().day_base, visit().day_round = state.day, visit().day_round + 1
    return f"day_editor_{visit().day_round}"


def edited(loads: Sequence[float], rows: Mapping[int, Mapping[str, Any]]) -> tuple[float, ...]:
    """The loads with an editor's changes; as they were where a change is no load of a day or leaves none.

    >>> edited((100.0, 50.0), {1: {"Load (% of the peak)": 75}})
    (100.0, 75.0)
    """
    changed = {hour: row.get(LOAD) for hour, row in rows.items()}
    new = [changed.get(hour, load) for hour, load in enumerate(loads)]
    read = tuple(float(load) for load in new if isinstance(load, int | float) and load in OF_PEAK)
    return read if len(read) == len(new) and any(read) else tuple(loads)
