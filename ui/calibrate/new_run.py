"""A new run: its fields, its plan, how many GPU-minutes it takes, and the button that starts it."""

from __future__ import annotations

import streamlit as st

from calibration import jobs
from calibration.errors import CalibrationError
from calibration.new_run import Duration, NewRun, duration, plan_file
from calibration.plan import PlanFile
from calibration.store import LIVE, Store
from sizing.errors import SizingError
from sizing.numbers import significant
from ui import answers
from ui.calibrate import fields
from ui.calibrate.runs import show_run
from ui.scenario import Scenario
from ui.words import plain, sentence_case

state = st.session_state


def new_run_view(store: Store, scenario: Scenario) -> None:
    """The whole view."""
    startable = _startable()
    fields.usual(scenario)
    new = fields.run_of(scenario)
    try:
        file = plan_file(new)
        file.plan.levels()
    except (CalibrationError, SizingError) as error:
        st.warning(plain(sentence_case(str(error).removeprefix("the form, "))), title="This is no plan yet")
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
            "A run loads a server and costs GPU time, and whoever has this page's address could press the button. The "
            f"operator turns it on by starting the app with {jobs.ALLOW_VARIABLE}=1 and the servers that may be "
            f"measured in {jobs.TARGETS_VARIABLE}. Until then: fill in the plan here, and run it on the command line.",
            title="Starting runs from this page is off",
        )
        return False
    targets = jobs.targets()
    for entry in targets.faulty:
        st.warning(plain(f"{entry[:80]} is no host:port and is left out."), title=f"In {jobs.TARGETS_VARIABLE}")
    if not targets.allowed:
        st.warning(
            f"The operator lists the servers that may be measured: {jobs.TARGETS_VARIABLE}=gpu-7:8001,gpu-8:8001",
            title="No server may be measured from this page",
        )
    return bool(targets.allowed)


def _expected(new: NewRun, file: PlanFile) -> Duration:
    """How long the run takes, by points of the same deployment where there are any."""
    said = {name: str(value) for name, value in new.labels.items()}
    alike = [p for p in answers.measured().points if said and all(str(getattr(p, n)) == v for n, v in said.items())]
    return duration(file.plan, alike, _gpus(new))


def _gpus(new: NewRun) -> int:
    """GPUs of the replica; 1 where the form does not say."""
    return int(new.labels.get("tp", 1))


def _in_words(expected: Duration, new: NewRun) -> str:
    """For the button: "at most 12 GPU-minutes of measuring". Without TP it is per GPU, an adaptive budget apart."""
    bound = "at most" if expected.at_most else "about"
    measuring = " of measuring" if expected.at_most and not new.question else ""
    each = "" if "tp" in new.labels or new.question else " per GPU of the server"
    return f"{bound} {significant(expected.gpu_minutes(_gpus(new)))} GPU-minutes{measuring}{each}"


def _levels(file: PlanFile, expected: Duration) -> str:
    """What is measured, and what the minutes do not hold."""
    plan, levels = file.plan, len(file.plan.levels())
    if plan.adaptive is not None:
        return f"Of {levels} levels those that the question needs."
    checks = ", then one with random arrivals at 70 % of the most requests/s found" if plan.check_loads else ""
    warm_up = "Each level's warm-up and end take the time of about four requests more." if expected.at_most else ""
    return f"{levels} {'level' if levels == 1 else 'levels'}{checks}. {warm_up}"


def _start_button(store: Store, file: PlanFile, minutes: str) -> None:
    busy = next((run for run in store.runs() if run.target == file.plan.server.url and run.state in LIVE), None)
    if busy is not None:
        st.info(f"Run {busy.id} is measuring {plain(busy.target)}: two at once would disturb each other.")
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
        state.calibrate_refused = str(error)


def _by_hand(file: PlanFile) -> None:
    st.download_button(
        "Download plan.yaml",
        file.text,
        file_name="plan.yaml",
        mime="application/yaml",
        on_click="ignore",
        icon=":material/download:",
    )
    st.markdown(f"Put your server in the place of `{fields.PLACE}`, then:")
    st.code("python -m calibration run plan.yaml", language="sh")
