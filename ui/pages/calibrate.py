"""Calibrate: what is the answer based on, and how to measure one's own?"""

import streamlit as st

from calibration.errors import CalibrationError
from calibration.store import Run, Store
from sizing.numbers import count_of
from ui import answers
from ui.scenario import Scenario
from ui.views import new_run
from ui.views.coverage import coverage_view, import_view
from ui.views.new_run import new_run_view, size_view
from ui.views.runs import runs_view
from ui.visit import chosen, visit
from ui.words import plain, sentence_case

VIEWS = {
    "coverage": "Coverage",
    "size": "From a server to a GPU count",
    "new": "New run",
    "runs": "Runs",
    "import": "Import",
}


def page(scenario: Scenario) -> None:
    """The whole page: one view at a time, the others cost nothing."""
    new_run.keep()
    try:
        store = answers.store()
        runs = store.runs()
    except CalibrationError as error:
        st.title("The points store is unreachable", anchor=False)
        st.error(plain(str(error)), icon=":material/database_off:")
        st.markdown("Until it is back, answers rest on estimates and on the points shipped with the program.")
        return
    st.title(_title(runs), anchor=False)
    for problem in answers.measured_points().problems:
        st.warning(plain(problem), title="Measured points could not be read")
    shown = chosen("View", VIEWS, "calibrate")
    _tell(shown, runs)
    try:
        _draw(shown, store, scenario, runs)
    except CalibrationError as error:  # somebody else wrote an impossible value, or removed the run just now
        st.error(plain(sentence_case(str(error))), title="This cannot be shown", icon=":material/database_off:")


def _title(runs: list[Run]) -> str:
    """What is there, in a sentence."""
    points = answers.measured_points().points
    if live := answers.live(runs):
        return f"Run {live[0].id} is active" if len(live) == 1 else f"{len(live)} runs are active"
    if not points:
        return "No points measured yet"
    deployments = len({point.deployment for point in points})
    return f"{count_of(len(points), 'point')} of {count_of(deployments, 'deployment')} measured"


def _tell(shown: str, runs: list[Run]) -> None:
    """What the last button led to, once; and that a run goes on, where that is not on screen anyway."""
    if refused := visit().refused:
        st.error(plain(sentence_case(refused)), title="That did not work", icon=":material/block:")
    if done := visit().said:
        st.success(plain(done), icon=":material/check_circle:")
    visit().refused = visit().said = ""
    if shown != "runs" and (live := answers.live(runs)):
        named = ", ".join(str(run.id) for run in live)
        st.caption(f":material/hourglass_top: Active: run {named}. Runs shows its progress.")


def _draw(shown: str, store: Store, scenario: Scenario, runs: list[Run]) -> None:
    if shown == "coverage":
        coverage_view(scenario, sum(run.pending for run in runs))
    elif shown == "size":
        size_view(store, scenario)
    elif shown == "new":
        new_run_view(store, scenario)
    elif shown == "runs":
        runs_view(store)
    else:
        import_view(store)


page(visit().scenario)
