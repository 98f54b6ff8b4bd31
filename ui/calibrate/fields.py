"""The fields of a new run: what they may hold, what they start with, and the run they describe."""

from __future__ import annotations

import streamlit as st

from calibration import jobs
from calibration.new_run import NewRun, Question
from sizing.curves import Deployment
from sizing.workload import METRICS, Lengths
from ui import link
from ui.calibrating import USERS
from ui.scenario import Scenario

state = st.session_state

PLACE = "HOST:8001"
"""Stands for the server in a plan that is started by hand."""
LABELS = {"model": "Model", "precision": "Precision", "gpu": "GPU", "engine": "Engine", "engine_version": "Its version"}
LABEL_HELP = "Written on the points. Empty: as the server says itself; it says so if it does not know."
LONGEST_LABEL = 120
UNREAD = "Not read"
USUAL = {"run_served": "ensemble", "run_longest": 120, "run_half": 5.0, "run_seed": 0, "run_budget": 30.0}


def fill(lengths: Lengths, users: tuple[int, ...], deployment: Deployment | None) -> None:
    """Write a run into the form: lengths, levels, and what is on the points of that deployment."""
    state.run_isl, state.run_osl = round(lengths.isl), round(lengths.osl)
    state.run_isl_cv, state.run_osl_cv = lengths.isl_cv, lengths.osl_cv
    state.run_users = [user for user in USERS if user in users]
    for name in LABELS:
        state[f"run_{name}"] = getattr(deployment, name) if deployment else ""
    state.run_tp = deployment.tp if deployment else None


def usual(scenario: Scenario) -> None:
    """What the form opens on: the scenario's lengths and a few levels."""
    for key, value in USUAL.items():
        state.setdefault(key, value)
    if "run_isl" not in state:
        fill(scenario.lengths, (1, 4, 16, 64), None)


def keep() -> None:
    """What was typed survives a look at another view, for whose time the fields are not drawn."""
    state.update({key: state[key] for key in state if str(key).startswith("run_")})


def server() -> dict[str, str]:
    """Draw where the server is: only servers that the operator named can be picked."""
    names = list(jobs.targets().allowed) if jobs.is_allowed() else []
    target, model, protocol, metrics = st.columns([2, 2, 1, 2] if names else [2, 2, 1, 0.01])
    target.selectbox("Server (host:port)", names or [PLACE], key="run_target", help=TARGET_HELP)
    model.text_input("Model on the server", max_chars=LONGEST_LABEL, key="run_served", help=SERVED_HELP)
    protocol.selectbox("Protocol", list(PROTOCOLS), format_func=PROTOCOLS.__getitem__, key="run_protocol")
    if names:
        metrics.selectbox("Its metrics (host:port)", [UNREAD, *names], key="run_metrics", help=METRICS_HELP)
    read = state.get("run_metrics", UNREAD) if names else UNREAD
    return {
        "target": state.run_target,
        "model": state.run_served.strip(),
        "protocol": state.run_protocol,
        "metrics": "" if read == UNREAD else read,
    }


PROTOCOLS = {"grpc": "gRPC", "http": "HTTP"}
TARGET_HELP = f"Servers that the operator lists in {jobs.TARGETS_VARIABLE}."
SERVED_HELP = "The Triton model that requests go to: ensemble, tensorrt_llm, tensorrt_llm_bls or another text model."
METRICS_HELP = "The server's own metrics, read during each level to check nobody else loads it."


def labels() -> dict[str, str | int]:
    """Draw the deployment's fields; those that say something."""
    with st.expander("Deployment, where the server does not say it itself"):
        columns = st.columns(3)
        for number, (name, title) in enumerate(LABELS.items()):
            columns[number % 3].text_input(title, max_chars=LONGEST_LABEL, key=f"run_{name}", help=LABEL_HELP)
        columns[2].number_input("TP (GPUs)", 1, 1024, step=1, key="run_tp", help="GPUs of a replica.")
    said = {name: str(state[f"run_{name}"]).strip() for name in LABELS}
    return {name: text for name, text in said.items() if text} | ({"tp": state.run_tp} if state.run_tp else {})


def lengths() -> Lengths:
    """Draw the lengths of the requests to send."""
    isl, osl, isl_cv, osl_cv = st.columns(4)
    isl.number_input("Input (tokens)", 1, 1_000_000, step=1, key="run_isl")
    isl_cv.number_input("Input variation (CV)", 0.0, 5.0, step=0.1, format="%g", key="run_isl_cv", help=CV_HELP)
    osl.number_input("Output (tokens)", 1, 1_000_000, step=1, key="run_osl")
    osl_cv.number_input("Output variation (CV)", 0.0, 5.0, step=0.1, format="%g", key="run_osl_cv", help=CV_HELP)
    if not (state.run_isl_cv or state.run_osl_cv):
        st.caption(f":material/info: Equal requests. {CV_HELP}")
    return Lengths(state.run_isl, state.run_osl, state.run_isl_cv, state.run_osl_cv)


CV_HELP = (
    "Users whose requests are all equal can stay in step, which hides what the server does with other loads. 0.3 for "
    "the input and 0.5 for the output vary like chat."
)


def load(scenario: Scenario) -> dict[str, object]:
    """Draw the levels, how long each may take, and whether all of them are wanted."""
    users = st.multiselect("Concurrency (users)", USERS, key="run_users", help=USERS_HELP)
    left, middle, right = st.columns(3)
    longest_s = left.number_input("Longest time per level (s)", 1, 3600, step=10, key="run_longest", help=LONGEST_HELP)
    half = middle.number_input("Means known to ± (%)", 1.0, 50.0, format="%g", key="run_half", help=LONGEST_HELP)
    seed = right.number_input("Seed", 0, 2**31 - 1, step=1, key="run_seed", help="Prompts and arrivals follow from it.")
    values = {"concurrency": tuple(users), "longest_s": longest_s, "half_width": half / 100, "seed": seed}
    return values | {"question": _question(scenario)}


USERS_HELP = "Users of the closed loop, one level each: every one sends its next request when its last is answered."
LONGEST_HELP = "A level ends when the means of TTFT, ITL and requests/s are known that well, or its time is over."


def _question(scenario: Scenario) -> Question:
    """The question of an adaptive run; empty for one of all levels."""
    if scenario.missing or scenario.arrivals.kind == "batch":
        return {}
    if not st.toggle("Only the levels that this question needs", key="run_adaptive", help=ADAPTIVE_HELP):
        return {}
    minutes = st.number_input("Budget (GPU-minutes)", 1.0, 10_000.0, format="%g", key="run_budget")
    query = link.to_query(scenario)
    limits: Question = {metric: query[metric] for metric in METRICS if getattr(scenario, metric) is not None}
    asked: Question = {
        name: getattr(scenario, name) for name in ("headroom", "spare", "routing", "isl", "osl", "isl_cv", "osl_cv")
    }
    floats = {name: float(getattr(scenario, name)) for name in ("headroom", "isl", "osl", "isl_cv", "osl_cv")}
    rate: Question = {"gpu_minutes": minutes, "rate": scenario.rate_per_s, "arrivals": query["arrivals"]}
    return {**rate, **limits, **asked, **floats}


ADAPTIVE_HELP = (
    "Of the levels above those are measured that make the GPU count of the question on the left sure. The run stops "
    "when the count no longer changes."
)


def run_of(scenario: Scenario) -> NewRun:
    """Draw all fields; the run that they describe."""
    where = server()
    said = labels()
    tokens = lengths()
    return NewRun(**where, lengths=tokens, labels=said, **load(scenario))  # type: ignore[arg-type]
