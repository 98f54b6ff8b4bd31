"""A new run: its fields, its plan, how many GPU-minutes it takes, and the button that starts it."""

from __future__ import annotations

from functools import partial

import streamlit as st

from calibration import jobs
from calibration.errors import CalibrationError
from calibration.jobs import Duration, NewRun, Question, duration, plan_file
from calibration.plan import LENGTHS, MOST_USERS, Answering, PlanFile, level_s, users_of
from calibration.plan import USUAL as USUAL_SERVED
from calibration.store import LIVE, Store
from sizing.errors import SizingError
from sizing.numbers import count_of, per_second, significant
from sizing.points import Deployment
from sizing.workload import LIMITED, Lengths
from ui import answers, link
from ui.answers import USERS
from ui.scenario import Scenario
from ui.views.runs import show_run
from ui.visit import number_kept, visit
from ui.words import plain, sentence_case

# --- The fields of a new run: what they may hold, what they start with, and the run they describe

state = st.session_state
_number = partial(number_kept, persist_state=None)
PLACE = "HOST:8001"
"""Stands for the server in a plan that is started by hand."""
LABELS = {
    "model": "Model",
    "precision": "Precision",
    "gpu": "GPU",
    "engine": "Engine",
    "engine_version": "Engine version",
}
LABEL_HELP = "Recorded with the points. Empty: as the server reports; the run asks for it if the server does not know."
LONGEST_LABEL = 120
UNREAD = "Not read"
FEW = USERS[::3][:4]
"""Users of the levels that a run begins with: 1, 5, 21 and 89."""
USUAL = {
    "run_served": "ensemble",
    "run_longest": 120,
    "run_half": 5.0,
    "run_seed": 0,
    "run_budget": 30.0,
    "run_minutes": 10.0,
    "run_verify": 3.0,
    "run_long": True,
}


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
        fill(scenario.lengths, FEW, None)


def keep() -> None:
    """What was typed survives a look at another view, for whose time the fields are not drawn."""
    state.update({key: state[key] for key in state if str(key).startswith("run_")})


def server() -> dict[str, str] | None:
    """Draw where the server is: only servers that the operator named can be picked, and are asked what they speak.

    None, with the reason on screen, where nothing answers and no protocol was chosen.
    """
    names = list(jobs.targets().allowed) if jobs.is_allowed() else []
    target, model, protocol, *metrics = st.columns([2, 2, 1, 2] if names else [2, 2, 1])
    target.selectbox("Server (host:port)", names or [PLACE], key="run_target", help=TARGET_HELP)
    spoken = ({DETECTED: "Detected"} if names else {}) | PROTOCOLS
    protocol.selectbox("Protocol", list(spoken), format_func=spoken.__getitem__, key="run_protocol", help=PROTOCOL_HELP)
    found = None
    if state.run_protocol == DETECTED:
        found = _answering(state.run_target)
        _fill_model(found)
    model.text_input("Model on the server", max_chars=LONGEST_LABEL, key="run_served", help=SERVED_HELP)
    if names:
        metrics[0].selectbox("Metrics endpoint (host:port)", [UNREAD, *names], key="run_metrics", help=METRICS_HELP)
    if state.run_protocol == DETECTED and found is None:
        return None
    spoken_there = state.run_protocol if found is None else found.protocol
    if found is not None:
        listed = f" Its models: {plain(', '.join(found.models[:5]))}." if found.models else ""
        st.caption(f":material/check: {ANSWERS[found.protocol]} answers at {plain(state.run_target)}.{listed}")
    if spoken_there == "openai":
        st.selectbox("Endpoint", list(ENDPOINTS), format_func=ENDPOINTS.__getitem__, key="run_endpoint")
    read = state.get("run_metrics", UNREAD) if names else UNREAD
    return {
        "target": state.run_target,
        "model": state.run_served.strip(),
        "protocol": spoken_there,
        "endpoint": state.get("run_endpoint", "completions"),
        "metrics": "" if read == UNREAD else read,
    }


def _answering(target: str) -> Answering | None:
    """What answers at a server of the operator's list, asked once in a visit; None, with the reason on screen."""
    known = visit().answering
    if target not in known:
        with st.spinner(f"Asking {plain(target)}"):
            try:
                known[target] = jobs.answering_at(target)
            except CalibrationError as error:
                known[target] = str(error.named({"server.url": "the address"}))
    found = known[target]
    if not isinstance(found, str):
        return found
    st.warning(plain(sentence_case(found)), title="Nothing to measure answers there")
    st.button("Ask again", icon=":material/refresh:", on_click=_forget, args=(target,))
    return None


def _forget(target: str) -> None:
    visit().answering.pop(target, None)


def _fill_model(found: Answering | None) -> None:
    """The first model that the server lists, unless somebody typed another."""
    ours = (USUAL["run_served"], visit().filled.get("run_served"))
    if found is not None and state.run_served in ours and state.run_served not in found.models:
        state.run_served = visit().filled["run_served"] = (*found.models, USUAL["run_served"])[0]


DETECTED = ""
ANSWERS = {"grpc": "Triton (gRPC)", "http": "Triton (HTTP)", "openai": "An OpenAI-compatible server"}
PROTOCOL_HELP = "Detected: the server is asked once. Your own choice takes precedence."
PROTOCOLS = {"grpc": "gRPC", "http": "HTTP", "openai": "OpenAI"}
ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
TARGET_HELP = f"Servers that the operator lists in {jobs.TARGETS_VARIABLE}."
SERVED_HELP = (
    "The Triton model that requests go to: ensemble, tensorrt_llm, tensorrt_llm_bls or another text model. Over "
    "OpenAI: a name that the server lists."
)
METRICS_HELP = "The server's own metrics, read during each level to check that no other client loads it."


def labels() -> dict[str, str | int]:
    """Draw the deployment's fields; those that say something."""
    with st.expander("Deployment, if the server does not report it"):
        columns = st.columns(3)
        for number, (name, title) in enumerate(LABELS.items()):
            columns[number % 3].text_input(title, max_chars=LONGEST_LABEL, key=f"run_{name}", help=LABEL_HELP)
        with columns[2]:
            _number(
                "TP (GPUs)", 1, 1024, "run_tp", optional=True, step=1, placeholder="None", help="GPUs of a replica."
            )
    said = {name: str(state[f"run_{name}"]).strip() for name in LABELS}
    return {name: text for name, text in said.items() if text} | ({"tp": state.run_tp} if state.run_tp else {})


def lengths() -> Lengths:
    """Draw the lengths of the requests to send."""
    isl, osl, isl_cv, osl_cv = st.columns(4)
    with isl:
        _number("Input (tokens)", 1, 1_000_000, "run_isl", step=1)
    with isl_cv:
        _number("Input variation (CV)", 0.0, 5.0, "run_isl_cv", step=0.1, format="%g", help=CV_HELP)
    with osl:
        _number("Output (tokens)", 1, 1_000_000, "run_osl", step=1)
    with osl_cv:
        _number("Output variation (CV)", 0.0, 5.0, "run_osl_cv", step=0.1, format="%g", help=CV_HELP)
    if not (state.run_isl_cv or state.run_osl_cv):
        st.caption(f":material/info: All requests have equal lengths. {CV_HELP}")
    return Lengths(state.run_isl, state.run_osl, state.run_isl_cv, state.run_osl_cv)


CV_HELP = (
    "Users with equal requests can stay in lockstep, which hides how the server handles other loads. 0.3 for "
    "the input and 0.5 for the output vary like chat."
)


def load(scenario: Scenario) -> dict[str, object]:
    """Draw the levels, how long each may take, and whether all of them are wanted."""
    users = st.multiselect("Concurrency (users)", USERS, key="run_users", help=USERS_HELP)
    left, middle, right = st.columns(3)
    with left:
        longest_s = _number("Time limit per level (s)", 1, 3600, "run_longest", step=10, help=LONGEST_HELP)
    with middle:
        half = _number("Accuracy of means (± %)", 1.0, 50.0, "run_half", format="%g", help=LONGEST_HELP)
    with right:
        seed = _number("Seed", 0, 2**31 - 1, "run_seed", step=1, help="Determines prompts and arrivals.")
    values = {"concurrency": tuple(users), "longest_s": longest_s, "half_width": half / 100, "seed": seed}
    question = _question(scenario)
    long = st.toggle("One level with long prompts", key="run_long", help=LONG_HELP)
    long_isl = min(LONG * state.run_isl, LONGEST_ISL) if long and users else 0
    return values | {"question": question, "long_isl": 0 if long_isl == state.run_isl else long_isl}


LONG, LONGEST_ISL = 4, 1_000_000
"""Prompts of the level that tells what a prompt costs by its length, over the others'; tokens at most."""
LONG_HELP = (
    "One user with prompts 4 times as long. Prompts of a single length do not show what longer ones cost. Has no "
    "effect if the server does not accept such prompts."
)
USERS_HELP = (
    "Concurrency levels to measure: so many users, each sending the next request when the last one is answered."
)
LONGEST_HELP = "A level ends when the means of TTFT, ITL and requests/s are known this precisely, or its time is up."


def _question(scenario: Scenario) -> Question:
    """The question of an adaptive run; empty for one of all levels."""
    if scenario.missing or not st.toggle(
        "Only the levels that this question needs", key="run_adaptive", help=ADAPTIVE_HELP
    ):
        return {}
    minutes = _number("Budget (GPU-minutes)", 1.0, 10_000.0, "run_budget", format="%g")
    return {"gpu_minutes": minutes, **question_of(scenario)}


def question_of(scenario: Scenario) -> Question:
    """The question of the page as a plan's ``adaptive`` has it, without a budget."""
    query = link.to_query(scenario)
    limits: Question = {metric: query[metric] for metric in LIMITED if getattr(scenario, metric) is not None}
    waits: Question = {"queue_limit": scenario.queue_limit} if scenario.queue_limit else {}
    waits = {**waits, "queue_timeout": f"{scenario.queue_timeout_s!r}s"} if scenario.queue_timeout_s else waits
    floats = {name: float(getattr(scenario, name)) for name in ("headroom", *LENGTHS)}
    rate: Question = {"rate": scenario.rate_per_s, "arrivals": query["arrivals"]}
    return {**rate, **limits, **waits, **floats, "routing": scenario.routing, "spare": scenario.spare}


ADAPTIVE_HELP = (
    "Measures only the levels that determine the GPU count of the question on the left. The run stops "
    "when the count no longer changes."
)


def run_of(scenario: Scenario) -> NewRun | None:
    """Draw all fields; the run that they describe, None where no server answers."""
    where = server()
    said = labels()
    tokens = lengths()
    asked = load(scenario)
    return None if where is None else NewRun(**where, lengths=tokens, labels=said, **asked)  # type: ignore[arg-type]


def new_run_view(store: Store, scenario: Scenario) -> None:
    """The whole view."""
    startable = _startable()
    usual(scenario)
    new = run_of(scenario)
    if new is not None:
        offer(store, new, startable)


def size_view(store: Store, scenario: Scenario) -> None:
    """From a server to a GPU count: the server is asked for, the question is the page's own."""
    startable = _startable()
    usual(scenario)
    if scenario.missing:
        st.info(f"{scenario.missing} on the left: the levels to measure follow from the question.")
        return
    limits = ", ".join(f"{limit.name} within {limit.allowed}" for limit in scenario.question.sla.limits)
    st.markdown(
        f"How many GPUs for **{per_second(scenario.rate_per_s)}**, {scenario.isl:,} tokens in and "
        f"{scenario.osl:,} out, {limits}? The form on the left changes the question. Only the levels that its answer "
        "needs are measured."
    )
    where, said = server(), labels()
    taken: dict[str, str | int] = {}
    left, right = st.columns(2)
    with left:
        minutes = _number("Minutes of load", 1.0, 600.0, "run_minutes", step=1.0, format="%g", help=MINUTES_HELP)
    with right:
        verify = _number("Minutes of verification", 0.0, 600.0, "run_verify", step=1.0, format="%g", help=VERIFY_HELP)
    if where is None:
        return
    if where["protocol"] == "openai":
        taken = {name: value for name, value in USUAL_LABELS.items() if name not in said}
        if "gpu" not in said:
            st.warning("Enter it under Deployment.", title="An OpenAI-compatible server does not report its GPU")
            return
        if taken:
            st.caption(
                f"Taken: {', '.join(f'{name} {value}' for name, value in taken.items())}, unless said otherwise, here "
                "or by the server."
            )
    new = NewRun(
        **where,  # type: ignore[arg-type]
        lengths=scenario.lengths,
        concurrency=tuple(users_of(MOST_USERS)),
        labels=said,
        assumed=taken,
        longest_s=level_s(60 * minutes),
        question={"minutes": minutes, **question_of(scenario), "verify_minutes": verify},
    )
    offer(store, new, startable)


USUAL_LABELS: dict[str, str | int] = {"precision": USUAL_SERVED["precision"], "tp": int(USUAL_SERVED["tp"])}
MINUTES_HELP = (
    "At most; the run ends earlier when the count is sure. Stopped, it keeps its points and its answer so far."
)


VERIFY_HELP = (
    "Afterwards a replica's planned load is sent at random times, and the Size page shows whether the server performs "
    "as predicted. A 95th percentile takes three minutes or more; 0: no verification."
)


def offer(store: Store, new: NewRun, startable: bool) -> None:
    """The plan of the fields, how long it takes, and the button that starts it or the way to start it by hand."""
    try:
        file = plan_file(new)
        file.plan.levels()
    except (CalibrationError, SizingError) as error:
        st.warning(plain(sentence_case(str(error).removeprefix("the form, "))), title="This is not a plan yet")
        return
    expected = _expected(new, file)
    minutes = _in_words(expected, new)
    st.markdown(f"**{sentence_case(minutes)}.** {_levels(file, expected)}")
    if startable:
        _start_button(store, file, minutes)
    with st.expander("The plan", expanded=not startable):
        st.code(file.text, language="yaml")
    if not startable:
        _by_hand(file)


def _startable() -> bool:
    """Whether the page may start runs; if not, why."""
    if not jobs.is_allowed():
        st.info(
            "A run loads a server and costs GPU time, and anyone with this page's address could press the button. The "
            f"operator turns it on by starting the app with {jobs.ALLOW_VARIABLE}=1 and the servers that may be "
            f"measured in {jobs.TARGETS_VARIABLE}. Until then: fill in the plan here, and run it on the command line.",
            title="Runs cannot be started from this page",
        )
        return False
    targets = jobs.targets()
    for entry in targets.faulty:
        st.warning(plain(f"{entry[:80]} is not host:port and is ignored."), title=f"In {jobs.TARGETS_VARIABLE}")
    if not targets.allowed:
        st.warning(
            f"The operator lists the servers that may be measured: {jobs.TARGETS_VARIABLE}=gpu-7:8001,gpu-8:8001",
            title="No server may be measured from this page",
        )
    return bool(targets.allowed)


def _expected(new: NewRun, file: PlanFile) -> Duration:
    """How long the run takes, by points of the same deployment where there are any."""
    said = {name: str(value) for name, value in new.labels.items()}
    alike = [
        p for p in answers.measured_points().points if said and all(str(getattr(p, n)) == v for n, v in said.items())
    ]
    return duration(file.plan, alike, _gpus(new))


def _gpus(new: NewRun) -> int:
    """GPUs of the replica; 1 where the form does not say."""
    return int(new.labels.get("tp", 1))


def _in_words(expected: Duration, new: NewRun) -> str:
    """For the button: "at most 12 GPU-minutes of measuring". Without TP it is per GPU, a budget of them apart."""
    bound = "at most" if expected.at_most else "about"
    measuring = " of measuring" if expected.at_most and not new.question else ""
    each = "" if "tp" in new.labels or "gpu_minutes" in new.question else " per GPU of the server"
    return f"{bound} {significant(expected.gpu_minutes(_gpus(new)))} GPU-minutes{measuring}{each}"


def _levels(file: PlanFile, expected: Duration) -> str:
    """What is measured, and what the minutes do not hold."""
    plan, levels = file.plan, len(file.plan.levels())
    if plan.adaptive is not None:
        then = ", then the planned load of a replica" if plan.verifies else ""
        return f"Of {levels} levels, those that the question needs{then}."
    checks = ", then one with random arrivals at 70 % of the most requests/s found" if plan.check_loads else ""
    warm_up = "Each level's warm-up and drain take about four request durations more." if expected.at_most else ""
    return f"{count_of(levels, 'level')}{checks}. {warm_up}"


def _start_button(store: Store, file: PlanFile, minutes: str) -> None:
    busy = next(
        (run for run in store.runs() if run.target == file.plan.server.address.lower() and run.state in LIVE), None
    )
    if busy is not None:
        st.info(f"Run {busy.id} is measuring {plain(busy.target)}: two runs at once would disturb each other.")
    st.button(
        f"Start: {minutes}",
        type="primary",
        icon=":material/play_arrow:",
        disabled=busy is not None,
        on_click=_start,
        args=(store, file),
    )


def _start(store: Store, file: PlanFile) -> None:
    try:
        show_run(jobs.start(store, file))
    except CalibrationError as error:
        visit().refused = str(error)


def _by_hand(file: PlanFile) -> None:
    st.download_button(
        "Download plan.yaml",
        file.text,
        file_name="plan.yaml",
        mime="application/yaml",
        on_click="ignore",
        icon=":material/download:",
    )
    st.markdown(f"Replace `{PLACE}` with the address of your server, then run:")
    st.code("python -m calibration run plan.yaml", language="sh")
