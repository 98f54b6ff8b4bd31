"""A new run: its fields, its plan, how many GPU-minutes it takes, and the button that starts it."""

from __future__ import annotations

import streamlit as st

from calibration import jobs
from calibration.errors import CalibrationError
from calibration.new_run import Duration, NewRun, duration, plan_file
from calibration.plan import PlanFile
from calibration.store import Store
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
    expected, gpus = _expected(new, file)
    st.markdown(f"**{_in_words(expected, gpus)}** {_levels(file)}")
    if startable:
        _start_button(store, file, expected, gpus)
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


def _expected(new: NewRun, file: PlanFile) -> tuple[Duration, int]:
    """How long the run takes, by points of the same deployment where there are any, and on how many GPUs."""
    said = {name: str(value) for name, value in new.labels.items()}
    alike = [p for p in answers.measured().points if said and all(str(getattr(p, n)) == v for n, v in said.items())]
    gpus = int(new.labels.get("tp", 1))
    return duration(file.plan, alike, gpus), gpus


def _in_words(expected: Duration, gpus: int) -> str:
    at_most = "At most" if expected.at_most else "About"
    each = "" if gpus == 1 else f" ({significant(expected.seconds / 60)} minutes on {gpus} GPUs)"
    return f"{at_most} {significant(expected.gpu_minutes(gpus))} GPU-minutes{each}."


def _levels(file: PlanFile) -> str:
    plan = file.plan
    if plan.adaptive is not None:
        return f"Of {len(plan.levels())} levels those that the question needs."
    checks = ", then one with random arrivals at 70 % of the most requests/s found" if plan.check_loads else ""
    several = "levels" if len(plan.levels()) > 1 else "level"
    return f"{len(plan.levels())} {several}{checks}; warm-up comes on top."


def _start_button(store: Store, file: PlanFile, expected: Duration, gpus: int) -> None:
    busy = next((run for run in store.runs() if run.target == file.plan.server.url and run.state in jobs.LIVE), None)
    if busy is not None:
        st.info(f"Run {busy.id} is measuring {plain(busy.target)}: two at once would disturb each other.")
    minutes = significant(expected.gpu_minutes(gpus))
    st.button(
        f"Start: {'at most' if expected.at_most else 'about'} {minutes} GPU-minutes",
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
