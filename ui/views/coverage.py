"""What has been measured, what the present question's answer stands on, and which level to measure next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple

import pandas as pd
import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from calibration.errors import CalibrationError
from calibration.importers import KINDS
from calibration.incoming import MOST_UPLOAD_BYTES, POINTS_TABLE, Upload, take_in
from calibration.store import Store
from sizing import text
from sizing.analyses.next_level import Option
from sizing.errors import SizingError
from sizing.estimate import prior_law
from sizing.fitting.levels import is_stable
from sizing.numbers import count_of
from sizing.plans import Plan
from sizing.points import Deployment, Point, Series
from sizing.text import spelt
from sizing.workload import Lengths
from ui import answers
from ui.link import PREFIX
from ui.scenario import Scenario
from ui.views import new_run
from ui.views.runs import review, show_run
from ui.visit import let_go, visit
from ui.words import BASIS_HELP, BASIS_LOOK, plain

state = st.session_state
ROW_PX, HEADER_PX, ROWS_SEEN = 28, 38, 10
ENOUGH = 2
"""Load levels from which a law can be fitted, its shape included."""


def coverage_view(scenario: Scenario, waiting: int) -> None:
    """`waiting` points of the store are not accepted yet."""
    if waiting:
        st.info(f"Awaiting acceptance, and not counted here: {count_of(waiting, 'point')}. See Runs.")
    if points := answers.measured_points().points:
        _measured(points)
    else:
        st.markdown("**Nothing has been measured yet.** Plan a run under New run, or import a file under Import.")
    _stands_on(scenario)


def _measured(points: Sequence[Point]) -> None:
    groups = _groups(points)
    table = pd.DataFrame([_row(series, group) for series, group in groups.items()])
    st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=ROW_PX * min(len(table), ROWS_SEEN) + HEADER_PX,
        column_config={
            "Levels (users)": st.column_config.TextColumn(help="Concurrency levels (closed loops) that are not void."),
            "Open loops": st.column_config.NumberColumn(
                help="Levels at a request rate. Those that the server kept up with are fitted; a level that verifies "
                "a plan is predicted without it."
            ),
            "Void": st.column_config.NumberColumn(help="Levels that say nothing of the server; Curves tells why."),
            "Basis": st.column_config.TextColumn(help=BASIS_OF_ANSWERS),
            "Last measured": st.column_config.TextColumn("Measured", help="Last, where it was more than once."),
            "Engine": st.column_config.TextColumn(width=100),  # what is left at a desk
        },
        alt=f"What has been measured: {len(points)} points in {len(table)} rows of deployment and lengths",
    )


Group = dict[Series, list[Point]]


def _groups(points: Sequence[Point]) -> Group:
    """The points by deployment, lengths and shared prefix; those of the scenario's model come first."""
    found: Group = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    wanted = visit().scenario.model

    def place(series: Series) -> tuple[bool, str, tuple[float, ...], tuple[float, ...]]:
        deployment, lengths, prefix = series
        return deployment.model != wanted, deployment.label, astuple(lengths), astuple(prefix)

    return {series: found[series] for series in sorted(found, key=place)}


def _row(series: Series, group: Sequence[Point]) -> dict[str, object]:
    deployment, lengths, prefix = series
    good = [point for point in group if not point.void]
    users = sorted({point.load_value for point in good if point.closed})
    rates = {point.load_value for point in good if is_stable(point)}
    varied = "" if lengths.fixed else f" (CV {lengths.isl_cv:g}, {lengths.osl_cv:g})"
    engine = spelt(f"{deployment.engine} {deployment.engine_version}".strip()) or "not named"
    batching = deployment.batching if deployment.batching != "in_flight" else ""
    return {
        "Model": deployment.model,
        "GPU": f"{deployment.gpu} {deployment.layout}",
        "Precision": deployment.precision,
        "ISL, OSL (tokens)": f"{lengths.isl:,g}, {lengths.osl:,g}{varied}{prefix.label}",
        "Levels (users)": ", ".join(f"{value:,g}" for value in users),
        "Open loops": sum(not point.closed for point in good),
        "Void": len(group) - len(good),
        "Last measured": max((point.measured_at for point in group), default="")[:10] or "unknown",
        "Basis": _basis_of_answers(deployment, lengths, len(users) + len(rates)),
        "Engine": ", ".join(filter(None, (engine, batching))),  # the longest, so last
    }


def _basis_of_answers(deployment: Deployment, lengths: Lengths, levels: int) -> str:
    if levels >= ENOUGH:
        return "Fitted"
    if levels and prior_law(deployment, lengths):
        return "Estimated"
    return "None"


BASIS_OF_ANSWERS = (
    "Of answers inside the measured range; outside it: extrapolated. Estimated: scaled by the one level measured. "
    "None: two levels are needed."
)


def _stands_on(scenario: Scenario) -> None:
    """What the present question's answer rests on, and what would make it surer."""
    st.subheader("What the current answer rests on", anchor=False)
    if scenario.missing:
        st.markdown(f"{scenario.missing} to get an answer first.")
        return
    with st.spinner("Finding what the answer rests on…"):
        outcome = answers.outcome(scenario)
    if outcome.plan is None:
        st.markdown(f"**{plain(outcome.title)}.** {plain(outcome.reason)}")
    else:
        _basis(outcome.plan)
    _next(scenario, outcome.plan)


def _basis(plan: Plan) -> None:
    fleet = plan.answer
    icon, colour = BASIS_LOOK[fleet.basis]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(fleet.basis.capitalize(), icon=icon, color=colour)
        st.markdown(plain(text.sentence(plan)))
    st.caption(plain(f"{BASIS_HELP[fleet.basis]} {text.band(fleet)}; {fleet.candidate.source}."))


def _next(scenario: Scenario, plan: Plan | None) -> None:
    """Which level to measure next: seconds of work, so only when asked for, and for that question alone."""
    deployment = _deployment(scenario, plan)
    if st.button("Where to measure next?", icon=":material/explore:", help=NEXT_HELP):
        visit().advice_for = scenario
    if visit().advice_for != scenario:
        return
    with st.spinner("Ranking levels by how much they would narrow the band…"):
        advice = answers.advice(scenario, deployment)
    if advice.option is None:
        st.markdown(plain(advice.text))
        return
    option = advice.option
    level = f"{count_of(option.users, 'user')}, {option.lengths.isl:,g} in, {option.lengths.osl:,g} out"
    st.markdown(f"**Measure {plain(level)}.** {plain(advice.text)}")
    st.button("Plan this run", icon=":material/add:", on_click=_plan, args=(option, deployment))


NEXT_HELP = "Ranks every unmeasured level by how much it would narrow the band of this answer per minute of measuring."


def _deployment(scenario: Scenario, plan: Plan | None) -> Deployment | None:
    """The measured deployment that the question is about: the answer's, else the first of the model."""
    own = [p.deployment for p in answers.measured_points().points if p.model.lower() == scenario.model.lower()]
    if plan is not None:
        best = plan.answer.candidate
        same = [d for d in own if (d.gpu, d.layout, d.precision) == (best.gpu, best.layout, best.precision)]
        return same[0] if same else None
    return own[0] if own else None


def _plan(option: Option, deployment: Deployment | None) -> None:
    """Fill the form of a new run with that level, and go there."""
    new_run.fill(option.lengths, (option.users,) if deployment else new_run.FEW, deployment)
    state[PREFIX + "calibrate"] = "new"


# --- Import: the file of another tool, a points table or an exported run, looked at before it is taken in

TOLD = "Detected from the file"
KIND_NAMES = {
    POINTS_TABLE: "Points table (CSV)",
    "aiperf": "AIPerf",
    "genai-perf": "GenAI-Perf",
    "perf-analyzer": "Perf Analyzer",
    "guidellm": "GuideLLM",
    "vllm": "vLLM bench serve",
    "op-stats": "op_stats_csv of the TensorRT-LLM clients",
}
TEXTS = {
    "model": "Model",
    "precision": "Precision",
    "gpu": "GPU",
    "engine": "Engine",
    "engine_version": "Engine version",
    "batching": "Batching",
}
WHOLE = {"tp": "TP (GPUs)", "pp": "PP", "max_batch_size": "Max batch size", "concurrency": "Concurrency (users)"}
REAL = {"isl": "Input (tokens)", "osl": "Output (tokens)", "rate": "Rate (requests/s)"}
FIELD_NAMES = {**TEXTS, **WHOLE, **REAL, "arrivals": "Arrivals"}
EXAMPLES = {"model": "such as Qwen/Qwen3-32B", "precision": "such as bf16", "gpu": "such as h200_sxm"}
LAWS = ("", "poisson", "constant", "gamma")


def import_view(store: Store) -> None:
    """The whole view."""
    *tools, last = (KIND_NAMES[kind] for kind in KINDS)
    written = f"a file written by {', '.join(tools)} or {last}"
    st.markdown(f"A run exported from another store (.zip), a points table, or {written}.")
    number = visit().uploader  # a new uploader, an empty one, after each file that is taken in
    left, right = st.columns([2, 1])
    file = left.file_uploader("File", key=f"import_{number}", max_upload_size=MOST_UPLOAD_BYTES // 1_000_000)
    names = {TOLD: TOLD, **KIND_NAMES}
    kind = right.selectbox("Written by", list(names), format_func=names.__getitem__, key="import_kind")
    _let_go_of_all_but(file)
    upload = _upload(file, kind, _said()) if file else None
    found = _read(upload) if upload else ()
    lacking = isinstance(found, str) and _in_fields(found) != found
    if isinstance(found, str):
        title = "This file does not say everything" if lacking else "This file was not accepted"
        st.error(plain(_in_fields(found)), title=title, icon=":material/block:")
    _ask(opened=lacking)
    if upload is None:
        st.caption("Nothing is stored before you have reviewed and accepted the points.")
    elif not isinstance(found, str):
        _looked_at(store, upload, found)


def _let_go_of_all_but(file: UploadedFile | None) -> None:
    """Free the file before this one, taken in or left behind: Streamlit holds each for as long as the page is open."""
    before, now = visit().uploaded, file.file_id if file else None
    if before and before != now:
        let_go(before)
    visit().uploaded = now


def _ask(opened: bool) -> None:
    """The fields for what the file leaves out."""
    with (
        st.expander("Deployment and load details missing from the file", expanded=opened),
        st.grid(3, min_column_width=200),
    ):
        for name, title in FIELD_NAMES.items():
            key = f"import_{name}"
            if name in TEXTS:
                st.text_input(title, max_chars=120, key=key, placeholder=EXAMPLES.get(name, ""))
            elif name in WHOLE:
                st.number_input(title, 1, 1_000_000, None, step=1, key=key, placeholder="None")
            elif name in REAL:
                st.number_input(title, 0.001, 1_000_000.0, None, format="%g", key=key, placeholder="None")
            else:
                st.selectbox(title, LAWS, format_func=lambda law: law or TOLD, key=key)


def _said() -> dict[str, object]:
    """What the fields hold; none of them before they are first drawn."""
    values = {name: state.get(f"import_{name}") for name in FIELD_NAMES}
    return {name: value.strip() if isinstance(value, str) else value for name, value in values.items() if value}


def _upload(file: UploadedFile, kind: str, said: dict[str, object]) -> Upload:
    return Upload(file.name, file.getvalue(), None if kind == TOLD else kind, tuple(sorted(said.items())))


def _read(upload: Upload) -> tuple[Point, ...] | str:
    """The points in the file, or what is wrong with it."""
    with st.spinner("Reading the file…"):
        return answers.read(upload)


def _looked_at(store: Store, upload: Upload, points: tuple[Point, ...]) -> None:
    """The points in the file, and the button that takes them in."""
    void = sum(point.void for point in points)
    st.markdown(f"**{plain(upload.shown_name)}: {count_of(len(points), 'point')}**, {void:,} void. {_about(points)}")
    st.button(
        f"Accept {count_of(len(points), 'point')}",
        type="primary",
        icon=":material/check:",
        on_click=_take_in,
        args=(store, upload),
        help="Stores the points; answers for this deployment then use them.",
    )
    review(points, "import")


def _about(points: tuple[Point, ...]) -> str:
    days = sorted({point.measured_at[:10] for point in points if point.measured_at})
    return plain(f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else "The file gives no date.")


def _take_in(store: Store, upload: Upload) -> None:
    try:
        stored = take_in(store, upload)
    except (CalibrationError, SizingError) as error:
        visit().refused = str(error)
        return
    visit().uploader += 1
    _let_go_of_all_but(None)
    answers.read_again()
    visit().said = _said_of(stored)
    show_run(stored[0][0])


def _said_of(stored: Sequence[tuple[int, bool]]) -> str:
    """Of the runs of an upload, each with whether it is new."""
    (first, _), more = stored[0], len(stored) - 1
    if not any(new for _, new in stored):
        return f"Run {first} already had these points; they are accepted."
    again = f" Levels measured again are in {count_of(more, 'more run')}." if more else ""
    return f"Run {first} holds the points.{again}"


def _in_fields(message: str) -> str:
    """The message of the command line with its options called as the fields above are, without their letters."""
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)(?: [A-Z]\b)?", lambda found: _field(found[1]), message)


def _field(option: str) -> str:
    name = FIELD_NAMES.get(option.replace("-", "_"))
    return f"“{name}”" if name else f"--{option}"
