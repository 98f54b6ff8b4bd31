"""Progress of the active run; accept or discard the points of finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import isfinite

import pandas as pd
import streamlit as st

from calibration import jobs
from calibration.errors import CalibrationError
from calibration.plan import parse_plan
from calibration.store import LIVE, LOST_AFTER_S, Run, Store
from calibration.store.work import RunProgress, accept, discard, work
from sizing.fitting import Fit, PointError
from sizing.numbers import count_of, percent, significant
from sizing.points import Point, doubts
from sizing.question import Question
from sizing.text import band, caution, sentence, working
from sizing.workload import LIMITED
from ui import answers, link
from ui.answers import FittedPoints, trials
from ui.charts.fit import QUANTITIES, parity
from ui.link import PREFIX
from ui.look import ink, show
from ui.scenario import Scenario
from ui.visit import visit
from ui.words import plain, sentence_case

POOR = 2.0
"""Mean squared error, in errors granted to the measurement, above which the law does not fit."""
UNFORESEEN = 0.2
"""Median error at points left out, above which there are too few of them."""


def review(points: Sequence[Point], key: str) -> None:
    """Everything that is to be seen before `points` are accepted; `key` tells its charts from others on the page."""
    with st.spinner("Fitting the law of these points…"):
        found = trials(points)
    for number, trial in enumerate(found):
        if len(found) > 1:
            st.subheader(plain(trial.deployment.label), anchor=False)
        else:
            st.caption(plain(trial.deployment.label))
        _law(trial, f"{key}_{number}")
        _table(trial)


def _law(trial: FittedPoints, key: str) -> None:
    if len(trial.void) == len(trial.points):
        st.warning("Every point is void: accepted or not, no answer will use them. Measure again.")
        return
    if trial.fitted is None:
        st.info(f"No law can be fitted to these points alone: {plain(trial.why)}.".replace("..", "."))
        return
    fitted = trial.fitted
    odd = [distrust.point for distrust in fitted.distrusted]
    places = frozenset(place for place, error in enumerate(fitted.errors) if error.point in odd)
    st.markdown(_verdict(fitted))
    charts = [parity(quantity, fitted.errors, places, ink()) for quantity in QUANTITIES]
    grid = st.grid("auto", min_column_width=280)
    for number, chart in enumerate(chart for chart in charts if chart is not None):
        with grid:
            show(chart, f"{key}_{number}")
    for warning in fitted.warnings:
        said = plain(sentence_case(caution(warning)))
        if warning.kind == "distrusted_point":
            st.warning(said, icon=":material/help:")
        else:
            st.caption(f":material/warning: {said}")


def _verdict(fitted: Fit) -> str:
    """How well the law gives the points back, in a sentence."""
    unseen = (
        f", median error {percent(fitted.leave_one_out, 1)} at points left out"
        if isfinite(fitted.leave_one_out)
        else ""
    )
    chi2 = fitted.chi2_per_point
    if chi2 > POOR:
        fits = "**the law does not fit well**"
    elif isfinite(fitted.leave_one_out) and fitted.leave_one_out > UNFORESEEN:
        fits = "it fits, but **does not predict points it has not seen: measure more levels**"
    else:
        fits = "the law fits"
    return (
        f"Fitted to {count_of(len(fitted.errors), 'point')}: {rates_within(fitted)}{unseen}. "
        f"χ² per point {significant(chi2)} (1 is perfect, above 2 poor): {fits}."
    )


def rates_within(fitted: Fit) -> str:
    """How far the law's requests/s are off at most, and at how many points, distrusted ones aside; those offered, or of
    a whole run, are not compared, nor those of the only level, which say no more than its TTFT and ITL."""
    odd = {distrust.point for distrust in fitted.distrusted}
    trusted = [error.requests_per_s_error for error in fitted.errors if error.point not in odd]
    off = [abs(error) for error in trusted if isfinite(error)]
    aside = f" ({len(odd)} distrusted)" if odd else ""
    if not off:
        return f"requests/s not compared, being those offered, of the whole run or of the only level{aside}"
    where = (
        "every point"
        if len(off) == len(fitted.errors)
        else f"{count_of(len(off), 'point')} where it can be compared{aside}"
    )
    return f"requests/s within {percent(max(off), 1)} at {where}"


def _table(trial: FittedPoints) -> None:
    errors = {} if trial.fitted is None else {error.point: error for error in trial.fitted.errors}
    with st.expander(f"Data of {count_of(len(trial.points), 'point')}", expanded=trial.fitted is None):
        table = pd.DataFrame([_point_row(point, errors.get(point)) for point in trial.points])
        told = [column for column in table if table[column].any()]
        st.dataframe(table[told], hide_index=True, alt="The points with their verdicts and the law's errors")
    if trial.void:
        with st.expander(f"{len(trial.void)} void: kept, never fitted", icon=":material/block:"):
            for point in trial.void:
                st.caption(f"**{plain(_level(point))}: {plain(_verdict_of(point))}.** {plain(reasons(point))}")


def _point_row(point: Point, error: PointError | None) -> dict[str, str]:
    """A point as text: what is unknown stays empty."""
    numbers = {
        "Requests/s": point.requests_per_s,
        "TTFT mean (ms)": _ms(point.ttft_mean_s),
        "ITL mean (ms)": _ms(point.itl_mean_s),
        "E2E mean (s)": point.e2e_mean_s,
        "Law's error in requests/s (%)": error and 100 * error.requests_per_s_error,
        "Law's error in TTFT (%)": error and 100 * error.ttft_error,
        "Law's error in ITL (%)": error and 100 * error.itl_error,
    }
    told = {
        name: significant(value) if value is not None and isfinite(value) else "" for name, value in numbers.items()
    }
    return {"Level": _level(point), "Verdict": _verdict_of(point), **told, "Doubts": "; ".join(doubts(point))}


def _level(point: Point) -> str:
    return f"{point.isl:,g} in, {point.osl:,g} out, {point.load_label}"


def _verdict_of(point: Point) -> str:
    """For people: steady, not judged, or void with its reason."""
    words = point.verdict.replace("_", " ")
    return f"void: {words}" if point.void else words or "not judged"


def reasons(point: Point) -> str:
    """The notes on a void point without the verdict that they begin with."""
    return point.notes.removeprefix(f"{point.verdict}: ")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


state = st.session_state
LOOK_EVERY_S = 1.0
RUN, OLD_RUN = PREFIX + "measured_run", PREFIX + "run"
"""Where a link has the run; an old one has it where settings of Simulate are now, which are never a number alone."""
ROWS_PX, HEADER_PX, ROWS_SEEN = 28, 38, 8
STATE_WORDS = {
    "queued": "starting",
    "running": "running",
    "lost": f"lost: its process is gone, or has been silent for {LOST_AFTER_S:g} s",
    "done": "done",
    "interrupted": "interrupted",
    "failed": "failed",
}


def runs_view(store: Store) -> None:
    """The list, and the run picked from it."""
    runs = store.runs()
    if not runs:
        st.info("No run yet. Start one under New run, or import points under Import.")
        return
    run = _picked(runs)
    _about(run)
    if run.state in LIVE:
        st.fragment(_panel, run_every=LOOK_EVERY_S)(store, run.id)
    else:
        _ended(store, run)
    with st.expander("All runs" if len(runs) > 1 else "The run as a row"):
        table = pd.DataFrame([_run_row(run) for run in runs])
        height = ROWS_PX * min(len(runs), ROWS_SEEN) + HEADER_PX
        st.dataframe(table, hide_index=True, row_height=ROWS_PX, height=height, alt="All runs, newest first")


def show_run(run_id: int) -> None:
    """Make the page show that run from its next drawing on."""
    state[PREFIX + "calibrate"], state[RUN] = "runs", run_id


def _picked(runs: list[Run]) -> Run:
    """The run of the URL, else the newest."""
    by_id = {run.id: run for run in runs}
    if str(state.get(OLD_RUN, "")).isdecimal():
        state.setdefault(RUN, state.pop(OLD_RUN))
    wanted = str(state.get(RUN, ""))
    state[RUN] = int(wanted) if wanted.isdecimal() and int(wanted) in by_id else runs[0].id
    picked = st.selectbox("Run", list(by_id), format_func=lambda run_id: _line(by_id[run_id]), key=RUN)
    visit().shown[RUN] = str(picked)
    return by_id[picked]


def _line(run: Run) -> str:
    waiting = f", {run.pending} awaiting acceptance" if run.pending and run.state not in LIVE else ""
    now = "in progress" if run.state in LIVE else STATE_WORDS[run.state].split(":")[0]
    return f"Run {run.id}: {now}{waiting}. {run.label}, {_when(run.created)}"


def _about(run: Run) -> None:
    void = f" ({run.void} void)" if run.void else ""
    of = f" of {run.levels}" if run.levels else ""
    ended = f", ended {_when(run.ended)}" if run.ended else ""
    measured = "" if run.state in LIVE else f" · {run.points}{of} levels measured{void}"
    text = f"{run.label}{measured} · started {_when(run.created)}{ended}"
    st.caption(plain(text))


def _when(moment: str) -> str:
    """An ISO 8601 time in UTC, for people."""
    return f"{moment[:16].replace('T', ' ')} UTC"


def _panel(store: Store, run_id: int) -> None:
    """The run while it goes on, drawn anew every second; when it has ended the whole page is, once."""
    try:
        run, now = store.run(run_id), work(store, run_id)
    except CalibrationError as error:
        st.warning(plain(str(error)), title="The store does not respond; the run continues")
        return
    if run.state not in LIVE:
        st.rerun()
    done = min(1.0, (run.points + now.share) / run.levels) if run.levels else 0.0
    st.progress(done, text=_progress(run, now))
    st.caption(f"Reported {significant(max(0.0, now.silent_s), 2)} s ago by {plain(str(now.owner))}")
    if log := jobs.log_tail(store, run_id):
        st.code(log, language=None, height=180, wrap_lines=True)
    if now.stopping_for_s is not None:
        st.info(f"Stop requested {now.stopping_for_s:.0f} s ago. It drops the level in progress; points are kept.")
    elif jobs.is_allowed():
        st.button("Stop the run", icon=":material/stop_circle:", on_click=_stop, args=(store, run_id), help=STOP_HELP)
    else:
        st.caption("Runs cannot be started from this page, nor stopped.")


def _stop(store: Store, run_id: int) -> None:
    try:
        jobs.stop(store, run_id)
    except CalibrationError as error:
        visit().refused = str(error)


STOP_HELP = "Drops the level in progress and keeps the points so far; the run can be resumed."


def _progress(run: Run, now: RunProgress) -> str:
    levels = f"{run.points} of {run.levels} levels" if run.levels else "asking the server"
    phase = f" · {now.phase}" if now.phase else ""
    share = f", {percent(now.share)} of it" if now.share else ""
    left = f" · about {_minutes(now.left_s)} left" if now.left_s else ""
    return plain(f"{levels}{phase}{share}{left}")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _ended(store: Store, run: Run) -> None:
    if run.state in ("lost", "failed", "interrupted"):
        _broken(store, run)
    points = store.points(run.id, as_measured=True)
    if not points:
        return
    _answer(run, points)
    if run.pending:
        st.markdown(f"**Awaiting acceptance: {count_of(run.pending, 'point')}.** Until then no answer uses them.")
        _decide(store, run)
    elif run.discarded:
        st.markdown(f"Discarded: {count_of(run.discarded, 'point')}. No answer uses them.")
        _decide(store, run)
    else:
        st.markdown(f"All points are accepted ({run.points}): answers use those that are not void.")
    review(points, f"run_{run.id}")
    if not run.pending and not run.discarded:
        st.button("Discard these points", icon=":material/delete:", on_click=_discard, args=(store, run))


SIZE = "ui/pages/size.py"


def _answer(run: Run, points: Sequence[Point]) -> None:
    """The answer to the question that an adaptive run was made for, by its points alone, and the way to it."""
    try:
        plan = parse_plan(run.plan).plan if run.plan else None
    except CalibrationError:  # of another version of the program
        return
    if plan is None or plan.adaptive is None:
        return
    question = plan.adaptive.question(points[0].model, points[0].lengths)
    with st.spinner("Sizing and simulating…"):
        outcome = answers.answer_from(points, question)
    if outcome.plan is None:
        st.info(plain(f"{sentence_case(outcome.reason)}."), title=outcome.title)
        return
    fleet = outcome.plan.answer
    st.subheader(plain(sentence(outcome.plan)), anchor=False)
    st.markdown(plain(f"{working(outcome.plan)}. {band(fleet)}."))
    waits = run.pending + run.discarded
    if st.button("Open on the Size page", icon=":material/straighten:", disabled=waits > 0, help=OPEN_HELP):
        visit().to_fill = link.to_query(_scenario(question, points[0]))
        st.switch_page(SIZE)


OPEN_HELP = "The question of this run, answered from its measured points, once they are accepted."


def _scenario(question: Question, point: Point) -> Scenario:
    """The question as the form holds it, about the deployment that was measured."""
    workload, sla = question.workload, question.sla
    lengths = workload.lengths
    return Scenario(
        model=question.model,
        gpus=(point.gpu,),
        precisions=(point.precision,),
        tps=(point.tp,),
        rate_per_s=workload.rate_per_s,
        isl=round(lengths.isl),
        isl_cv=lengths.isl_cv,
        osl=round(lengths.osl),
        osl_cv=lengths.osl_cv,
        **{metric: getattr(sla, metric) for metric in LIMITED},
        queue_limit=workload.queue_limit or None,
        queue_timeout_s=workload.queue_timeout_s if math.isfinite(workload.queue_timeout_s) else None,
        headroom=question.headroom,
        spare=question.spare,
        routing=question.routing,
        arrivals=workload.arrivals,
    )


def _decide(store: Store, run: Run) -> None:
    waiting = run.pending + run.discarded
    with st.container(horizontal=True):
        st.button(
            f"Accept {count_of(waiting, 'point')}",
            type="primary" if run.void < run.points else "secondary",
            icon=":material/check:",
            on_click=_accept,
            args=(store, run),
            help="Answers for this deployment then use them.",
        )
        if run.pending:
            st.button("Discard", icon=":material/delete:", on_click=_discard, args=(store, run), help=DISCARD_HELP)


DISCARD_HELP = "The points stay in the store for the record, but no answer uses them. You can accept them later."


def _accept(store: Store, seen: Run) -> None:
    _set_standing(accept, store, seen)


def _discard(store: Store, seen: Run) -> None:
    _set_standing(discard, store, seen)


def _set_standing(change: Callable[[Store, int], object], store: Store, seen: Run) -> None:
    """Accept or discard the points of a run, unless somebody else has decided since the visitor has `seen` them."""
    try:
        now = store.run(seen.id)
        accepted = now.points - now.pending - now.discarded
        if (now.points, now.pending, now.discarded) == (seen.points, seen.pending, seen.discarded):
            change(store, seen.id)
        elif (accepted if change is accept else now.discarded) < now.points:
            visit().refused = (
                f"Run {now.id} has changed since this page showed it (points accepted: {accepted}, discarded: "
                f"{now.discarded}, awaiting acceptance: {now.pending}). Nothing was done: look at it again, then decide"
            )
    except CalibrationError as error:  # the store went away, or may only be read
        visit().refused = str(error)
    answers.read_again()


def _broken(store: Store, run: Run) -> None:
    """Why a run has ended early, its last lines, and how to go on."""
    title = f"Run {run.id}: {STATE_WORDS[run.state]}"
    why = run.error
    said = f"{sentence_case(why.rstrip('.'))}. " if why else ""
    kept = "Points measured so far are kept." if run.points else "Nothing is measured yet."
    st.warning(plain(f"{said}{kept}"), title=title)
    if log := jobs.log_tail(store, run.id):
        with st.expander("Last lines of the run"):
            st.code(log, language=None, height=180, wrap_lines=True)
    if not run.plan:
        return
    try:
        jobs.check_target(run.target)
    except CalibrationError as error:
        st.caption(f"{plain(str(error))}. On the command line:")
        st.code(f"python -m calibration resume {run.id}", language="sh")
        return
    left = f" ({run.levels - run.points} levels left)" if run.levels > run.points else ""
    st.button(f"Resume{left}", icon=":material/play_arrow:", type="primary", on_click=_resume, args=(store, run.id))


def _resume(store: Store, run_id: int) -> None:
    try:
        jobs.go_on(store, run_id)
    except CalibrationError as error:
        visit().refused = str(error)


def _run_row(run: Run) -> dict[str, str | int]:
    return {
        "Run": run.id,
        "State": STATE_WORDS[run.state],
        "Points": f"{run.points} of {run.levels}",
        "Void": run.void,
        "Awaiting acceptance": run.pending,
        "Discarded": run.discarded,
        "Server and model": run.label,
        "Started": _when(run.created),
    }
