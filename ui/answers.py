"""The pages' queries to sizing and to the points store, cached between visits and visitors."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import math
import os
import pickle
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlencode
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import streamlit as st
from pyarrow import parquet

from calibration.errors import CalibrationError
from calibration.incoming import Upload, preview
from calibration.plan import users_of
from calibration.store import DATABASE_VARIABLE, LIVE, Run, Store
from sizing import catalog
from sizing.analyses import relax
from sizing.analyses.curves import (
    FleetSizes,
    LengthCell,
    LoadCurve,
    SpeedCurve,
    fleet_sizes,
    load_curve,
)
from sizing.analyses.daily import Daily, gpus_by_hour
from sizing.analyses.next_level import LevelChoice, Option, Stop, choose, usable
from sizing.analyses.pools import Pools
from sizing.analyses.sensitivity import GoodputPrice, Sensitivity, goodput_prices, sensitivities
from sizing.analyses.session_plan import (
    SessionLimit,
    SessionLoad,
    SessionPlan,
    plan_sessions,
    session_question,
    session_ways_out,
)
from sizing.analyses.traced import (
    TracePlan,
    busiest_rate_per_s,
    class_slas,
    class_ways_out,
    lengths_of,
    peak_factor,
    plan_trace,
)
from sizing.analyses.verification import Verification, verification
from sizing.budget import checkpoint
from sizing.candidates import Choice, catalogued, cautions_at, law_of
from sizing.catalog import layouts
from sizing.edge import predict_at
from sizing.engine_defaults import engine_named
from sizing.errors import FitError, ScenarioError, SizingError
from sizing.estimate import ENGINES
from sizing.files import resource
from sizing.fitting import Fit
from sizing.fitting.result import CoveredRange
from sizing.memory_use import Misfit, elsewhere, misfits
from sizing.numbers import percent, significant
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.points import Deployment, Point
from sizing.prediction import Caution, Prediction
from sizing.question import Question
from sizing.report.build import Cover, refusal_of, report_of
from sizing.report.model import Report, question_digest, with_cover
from sizing.report.write import WRITERS, file_name, render
from sizing.text import Extras, spelt, ways_out_lines
from sizing.trace import DAY_S, Trace, TraceError, merged
from sizing.trace_files import FORMATS, read_trace_noted
from sizing.workload import SHARES, Lengths, Prefix, Sla
from ui import computing, link
from ui.computing import Available, Carried, Outcome, Ways, answered, computed, found_for, title_of
from ui.link import PREFIX, Stamp
from ui.scenario import Scenario, example_trace
from ui.visit import Recorded, remembered, visit

ESTIMATES = (resource("data/catalog"), resource("data/laws"))
"""Folders of the data that estimates rest on."""
DATE = re.compile(r"\d{4}-\d\d-\d\d")
NEW_POINTS_WITHIN_S = 10
"""New points in the store become visible after at most this long."""


def measured_points() -> Available:
    """The points of the store and of the files shipped in data/curves, each once: a shipped file may be imported."""
    return _measured(os.environ.get(DATABASE_VARIABLE, ""), str(computing.SHIPPED))


def read_again() -> None:
    """Make points just added to the store, accepted or discarded visible to the next question."""
    _measured.clear()


@st.cache_resource(ttl=NEW_POINTS_WITHIN_S, show_spinner=False)
def _measured(database: str, folder: str) -> Available:
    points, problems = computing.shipped_points(folder)
    try:
        points += Store(database or None).points()
    except CalibrationError as error:
        problems.append(str(error))
    points = list(dict.fromkeys(points))
    return Available(tuple(points), digest(points), tuple(problems))


def outcome(scenario: Scenario) -> Outcome:
    """The plan of a scenario, or why there is none. Never raises on user input."""
    have = points_for(scenario)
    nothing = nothing_to_choose_from(scenario, have)
    return nothing or answered(lambda: _outcome(scenario.question, scenario.choice, have.digest, have), Outcome)


def points_for(scenario: Scenario) -> Available:
    """The points that may count for a scenario; none where it leaves them out."""
    return measured_points() if scenario.use_points else Available((), "", ())


def nothing_to_choose_from(scenario: Scenario, have: Available) -> Outcome | None:
    """The answer if neither a GPU was chosen nor anything was measured; None otherwise."""
    if scenario.gpus or any(point.model.lower() == scenario.model.lower() and not point.void for point in have.points):
        return None
    reason = f"No usable point of {scenario.model} has been measured: choose a GPU for an estimate."
    return Outcome(None, "Choose a GPU or measure one", reason)


PICKLED: dict[str | type[Any], Callable[[Any], Any]] = {Question: pickle.dumps, Choice: pickle.dumps}
"""How keys of caches are made of these: Streamlit takes thirty times as long to go through their fields."""


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=PICKLED)
def _outcome(question: Question, choice: Choice, digest: str, _have: Available) -> Outcome:
    asked = question, choice
    return computed(computing.outcome, *asked, _have, key=(*asked, digest), model=question.model)


def stamp(scenario: Scenario) -> Stamp:
    """The data that the answer to a scenario rests on."""
    have = points_for(scenario)
    return _stamp(scenario.model, have.digest, have.points)


@st.cache_data(max_entries=256, show_spinner=False)
def _stamp(model: str, digest: str, _points: Sequence[Point]) -> Stamp:
    """Digest of this model's usable points and of the files that estimates rest on."""
    points = [point for point in _points if point.model.lower() == model.lower() and not point.void]
    sha = hashlib.sha256(_estimates_digest())
    sha.update("\n".join(map(repr, points)).encode())
    dates = [date for point in points if DATE.fullmatch(date := point.measured_at[:10])]
    return Stamp(max(dates, default=""), sha.hexdigest()[:8])


@functools.cache
def _estimates_digest() -> bytes:
    sha = hashlib.sha256()
    for path in sorted(path for folder in ESTIMATES for path in folder.iterdir() if path.is_file()):
        sha.update(path.read_bytes())
    return sha.digest()


def fitted(points: Sequence[Point]) -> Fit | str:
    """The law fitted to points, all of one deployment, or why there is none."""
    return _fitted(digest(points), points)


@st.cache_resource(max_entries=64, show_spinner=False)
def _fitted(digest: str, _points: Sequence[Point]) -> Fit | str:
    model = _points[0].model if _points else ""
    return computed(computing.fitted, tuple(_points), key=(digest,), model=model)


def digest(points: Sequence[Point]) -> str:
    """The same for the same points."""
    return hashlib.sha256("\n".join(map(repr, points)).encode()).hexdigest()


def model_names() -> list[str]:
    """Models of the catalogue and of the measured points."""
    return sorted({*catalog.models(), *(point.model for point in measured_points().points)}, key=str.lower)


def gpu_names() -> list[str]:
    """GPUs of the catalogue and of the measured points."""
    return sorted({*catalog.gpus(), *(point.gpu for point in measured_points().points)})


def precision_names(model: str, gpus: Sequence[str]) -> list[str]:
    """Precisions in which the model can run on one of the GPUs, by the catalogue or by what was measured."""
    known_model = catalogued(model)
    known = [catalog.gpus()[gpu] for gpu in gpus if gpu in catalog.gpus()]
    by_catalogue = [name for gpu in known for name in catalog.precisions(gpu, known_model)] if known_model else []
    by_points = [point.precision for point in measured_points().points if point.model == model]
    return list(dict.fromkeys([*by_catalogue, *by_points]))


def engine_names(model: str) -> list[str]:
    """Engines of which kernels were timed, and those that the model was measured with."""
    measured = [engine_named(point.engine) for point in measured_points().points if point.model == model]
    return list(dict.fromkeys([*ENGINES, *filter(None, measured)]))


def layout_names(model: str, gpus: Sequence[str]) -> list[str]:
    """Layouts beyond tensor parallelism in which the model is run on one of the GPUs."""
    known_model = catalogued(model)
    if known_model is None:
        return []
    known = [catalog.gpus()[gpu] for gpu in gpus if gpu in catalog.gpus()]
    found = [
        each
        for gpu in known
        for precision in catalog.precisions(gpu, known_model)
        for each in layouts(known_model, gpu, precision)
        if each.tp < each.gpus or each.ep > 1
    ]
    return list(dict.fromkeys(map(str, found)))


# --- Queries of the Calibrate page to store, jobs and sizing, cached where they are slow

USERS = tuple(users_of(512))
"""The concurrencies that a new run offers and the advice chooses from."""
LEVEL_S = 120.0
REQUESTS = 400
"""Assumed requests per level, for the advice: enough to know its means to a few per cent."""


def store() -> Store:
    """The store of this server. Raises StoreError if it cannot be reached."""
    return _store(os.environ.get(DATABASE_VARIABLE, ""))


@st.cache_resource(max_entries=4, show_spinner=False)
def _store(url: str) -> Store:
    return Store(url or None)


def live(runs: Iterable[Run]) -> list[Run]:
    """Those that are queued or running."""
    return [run for run in runs if run.state in LIVE]


@dataclass(frozen=True, slots=True)
class FittedPoints:
    """The points of one deployment and the law fitted to them, or why there is none (`why`)."""

    deployment: Deployment
    points: tuple[Point, ...]
    fitted: Fit | None
    why: str = ""

    @property
    def void(self) -> tuple[Point, ...]:
        """Those that are never fitted."""
        return tuple(point for point in self.points if point.void)


def trials(points: Sequence[Point]) -> list[FittedPoints]:
    """The points, each deployment with a law of its own."""
    found = []
    for deployment in dict.fromkeys(point.deployment for point in points):
        own = tuple(point for point in points if point.deployment == deployment)
        law = fitted(own)
        fit_and_why = (law, "") if isinstance(law, Fit) else (None, law)
        found.append(FittedPoints(deployment, own, *fit_and_why))
    return found


def read(upload: Upload) -> tuple[Point, ...] | str:
    """The points in a file that was uploaded, or what is wrong with it."""
    return _read(upload.digest, upload)


@st.cache_data(max_entries=16, show_spinner=False)
def _read(digest: str, _upload: Upload) -> tuple[Point, ...] | str:
    try:
        return preview(store(), _upload)
    except (CalibrationError, SizingError) as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Advice:
    """Where to measure next: a level and the reason for it, or only the reason why none is worth it."""

    option: Option | None
    text: str


def advice(scenario: Scenario, deployment: Deployment | None) -> Advice:
    """The next level for the scenario's question, by the accepted points of `deployment`; None: nothing is measured."""
    points = tuple(point for point in measured_points().points if point.deployment == deployment)
    return _advice(scenario, digest(points), points)


@st.cache_data(max_entries=64, show_spinner=False)
def _advice(scenario: Scenario, digest: str, _points: tuple[Point, ...]) -> Advice:
    measured = dict.fromkeys(point.lengths for point in _points if point.closed)
    asked = replace(scenario.lengths, isl_law=None, osl_law=None)  # points know means and variations
    offered = dict.fromkeys([asked, *measured])
    options = [Option(lengths, users, REQUESTS, limit_s=LEVEL_S) for lengths in offered for users in USERS]
    try:
        question = scenario.question
        found = choose(_points, options, question, budget_s=3600.0, guess_s=lambda option: LEVEL_S)
        unmeasured = _unmeasured_isl(_points, asked)
    except SizingError as error:
        return Advice(None, str(error))
    if unmeasured is not None:
        longer = replace(asked, isl=float(unmeasured.facts["longer"]))  # type: ignore[arg-type]
        why = "Prompts of one length were measured, so how their time grows is not known: this matters most."
        return Advice(Option(longer, 1, REQUESTS, limit_s=LEVEL_S), why)
    if isinstance(found, LevelChoice):
        return Advice(found.option, _why(found))
    return Advice(None, _stopped(found))


def _unmeasured_isl(points: tuple[Point, ...], asked: Lengths) -> Caution | None:
    """What the law of `points` says against prompts of another length than theirs; nothing where there is no law."""
    with suppress(FitError):
        cautions = cautions_at(law_of(usable(points)), asked)
        return next((each for each in cautions if each.kind == "unmeasured_isl"), None)
    return None


def _why(choice: LevelChoice) -> str:
    now = f"By the closed loops alone: {choice.belief}. " if choice.belief is not None else ""
    if choice.aim == "gain":
        return f"{now}This level would narrow the band by about {percent(choice.narrows)}."
    if choice.aim == "reach":
        return f"{now}A planned replica would hold more requests at once than any measured level: measure there once."
    if choice.belief is not None:
        return f"{now}One level only scales an estimate: a second, far from it, tells how times change with the load."
    return "There is no law for this deployment yet: two levels, far apart, give a first one."


def _stopped(stop: Stop) -> str:
    reasons = {
        "settled": "The last points no longer change the answer: this question needs no more measurements",
        "budget": "No level fits into an hour of measuring",
        "worth": "No level that fits into an hour would narrow the band of the answer by a tenth",
        "nothing": "Every candidate level has been measured",
        "misfit": "No law fits these points: check the void and distrusted ones, and measure the whole grid again",
    }
    return f"{reasons[stop.because]}{f' ({stop.belief})' if stop.belief is not None else ''}."


# --- Queries of the Curves page to sizing, cached between visits and visitors

LENGTHS_AGREE = 0.02
"""Largest relative difference of mean lengths between a measured point and the scenario drawn together."""


ANSWER = ""
"""In place of a fleet's name: the plan's answer."""


def curve(scenario: Scenario, name: str, fleet: Fleet) -> LoadCurve:
    """Latency against load of a replica of the fleet called `name`."""
    return _curve(scenario.question, scenario.choice, points_for(scenario).digest, name, fleet)


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=PICKLED)
def _curve(question: Question, choice: Choice, digest: str, name: str, _fleet: Fleet) -> LoadCurve:
    key = question, choice, digest, name
    return computed(load_curve, question, _fleet, key=key, model=question.model)


def pools(scenario: Scenario) -> Pools | Rejection | str:
    """Prefill and decode in two pools, of the scenario's candidates; or why there are none."""
    have = points_for(scenario)
    return _pools(scenario.question, scenario.choice, have.digest, have)


@st.cache_data(max_entries=64, show_spinner=False)
def _pools(question: Question, choice: Choice, digest: str, _have: Available) -> Pools | Rejection | str:
    asked = question, choice
    return computed(computing.pools, *asked, _have, key=(*asked, digest), model=question.model)


def answer_from(points: Sequence[Point], question: Question) -> Outcome:
    """The plan that the points of one deployment alone give, accepted or not; or why there is none."""
    return _answer_from(question, digest(points), points)


@st.cache_data(max_entries=64, show_spinner=False)
def _answer_from(question: Question, digest: str, _points: Sequence[Point]) -> Outcome:
    return computed(computing.outcome_of, tuple(_points), question, key=(question, digest), model=question.model)


def verified(scenario: Scenario, plan: Plan) -> Verification | None:
    """What a server showed at the planned load; None where that was not measured."""
    return _verified(scenario.question, scenario.choice, points_for(scenario).digest, plan)


@st.cache_data(max_entries=256, show_spinner=False, hash_funcs=PICKLED)
def _verified(question: Question, choice: Choice, digest: str, _plan: Plan) -> Verification | None:
    return verification(_plan)


def prediction(scenario: Scenario, name: str, fleet: Fleet, rate_per_s: float) -> Prediction:
    """Latencies if each of the fleet's working replicas gets this many requests/s, by formula."""
    return _prediction(scenario, points_for(scenario).digest, name, fleet, rate_per_s)


@st.cache_data(max_entries=256, show_spinner=False)
def _prediction(scenario: Scenario, digest: str, name: str, _fleet: Fleet, rate_per_s: float) -> Prediction:
    return predict_at(_fleet.candidate.replica, scenario.question.setting(_fleet.working), rate_per_s)


def sizes(scenario: Scenario, name: str, fleet: Fleet, low_per_s: float, high_per_s: float) -> FleetSizes:
    """GPUs of the fleet from one load to another."""
    return _sizes(scenario, points_for(scenario).digest, name, fleet, low_per_s, high_per_s)


@st.cache_data(max_entries=256, show_spinner=False)
def _sizes(
    scenario: Scenario, digest: str, name: str, _fleet: Fleet, low_per_s: float, high_per_s: float
) -> FleetSizes:
    arguments = scenario.question, _fleet, low_per_s, high_per_s
    key = scenario, digest, name, low_per_s, high_per_s
    return computed(fleet_sizes, *arguments, key=key, model=scenario.model)


def speeds(scenario: Scenario, plan: Plan | None) -> list[SpeedCurve]:
    """Every candidate of the scenario at rising load, including those that miss the SLA; none without a question."""
    have = points_for(scenario)
    return _speeds(scenario, have.digest, have, plan)


@st.cache_data(max_entries=64, show_spinner=False)
def _speeds(scenario: Scenario, digest: str, _have: Available, _plan: Plan | None) -> list[SpeedCurve]:
    question = _question(scenario)
    if question is None:
        return []
    asked = question, scenario.choice
    return computed(computing.speeds, *asked, _have, _plan, key=(*asked, digest), model=question.model)


def lengths(scenario: Scenario, name: str, fleet: Fleet) -> tuple[LengthCell, ...]:
    """Requests/s per GPU of the fleet's configuration at other lengths."""
    have = points_for(scenario)
    return _lengths(scenario, have.digest, name, fleet, have.points)


@st.cache_data(max_entries=64, show_spinner=False)
def _lengths(
    scenario: Scenario, digest: str, name: str, _fleet: Fleet, _points: Sequence[Point]
) -> tuple[LengthCell, ...]:
    covered = coverage(_fleet.candidate, _points)
    return computed(
        computing.over_lengths,
        *(scenario.question, _fleet, covered),
        key=(scenario, digest, name),
        model=scenario.model,
    )


def coverage(candidate: Candidate, points: Sequence[Point]) -> CoveredRange | None:
    """Lengths and concurrency that closed-loop points of this configuration cover; None where there are none."""
    own = [point for point in points if point.closed and is_of(point, candidate)]
    if not own:
        return None
    isl, osl = [point.isl for point in own], [point.osl for point in own]
    return CoveredRange(round(max(point.load_value for point in own)), (min(isl), max(isl)), (min(osl), max(osl)))


def open_loop(scenario: Scenario, fleet: Fleet) -> list[Point]:
    """Points of the fleet's configuration measured at offered rates, at the scenario's lengths."""
    return [
        point
        for point in points_for(scenario).points
        if point.load_kind not in ("concurrency", "sessions", "session_rate")
        and is_of(point, fleet.candidate)
        and same(point.lengths, scenario.lengths)
        and point.prefix.rounded == scenario.prefix.rounded
    ]


def is_of(point: Point, candidate: Candidate) -> bool:
    """True for a usable point that was measured on the candidate's own configuration."""
    own = (candidate.model, candidate.gpu, candidate.layout, candidate.precision, candidate.engine)
    measured = (point.model, point.gpu, point.deployment.layout, point.precision, engine_named(point.engine))
    return not point.void and [str(name).casefold() for name in measured] == [str(name).casefold() for name in own]


def same(measured: Lengths, asked: Lengths) -> bool:
    """True for lengths that agree in their means, and in whether they vary."""
    agree = all(
        abs(one - other) <= LENGTHS_AGREE * other
        for one, other in ((measured.isl, asked.isl), (measured.osl, asked.osl))
    )
    return agree and measured.fixed == asked.fixed


state = st.session_state


def named(fleets: Sequence[Fleet]) -> dict[str, Fleet]:
    """Name -> fleet, in the order given; duplicate names are distinguished by source, then by a number."""
    labels = Counter(fleet.candidate.label for fleet in fleets)
    found: dict[str, Fleet] = {}
    for fleet in fleets:
        label = fleet.candidate.label
        name = label if labels[label] == 1 else f"{label}, {fleet.candidate.source}"
        number = 1
        while name in found:
            number += 1
            name = f"{label}, {fleet.candidate.source}, no. {number}"
        found[name] = fleet
    return found


def pick_one(fleets: Sequence[Fleet]) -> tuple[str, Fleet]:
    """A pick list of the fleets, the answer first; the choice is in the URL as ``show.fleet``."""
    names, key = named(fleets), PREFIX + "fleet"
    if state.get(key) not in names:
        state[key] = next(iter(names))
    st.selectbox(
        "Configuration",
        list(names),
        format_func=spelt,
        key=key,
        width=420,
        persist_state="session",
        help="The answer is the first; others by their number of GPUs.",
    )
    visit().shown[key] = state[key]
    return state[key], names[state[key]]


def small_curves(scenario: Scenario, plan: Plan) -> dict[str, tuple[float, ...]]:
    """For each fleet by name, how the SLA is used up from no load to just beyond the capacity; 1 is the limit."""
    return _small_curves(scenario, points_for(scenario).digest, plan)


@st.cache_data(max_entries=256, show_spinner=False)
def _small_curves(scenario: Scenario, digest: str, _plan: Plan) -> dict[str, tuple[float, ...]]:
    key = scenario, digest
    return computed(computing.sla_uses, scenario.question, named(_plan.fleets), key=key, model=scenario.model)


# --- Cached queries of the Size page alone: relaxations, what fits, what a fleet carries, a day's GPUs


def carried(scenario: Scenario) -> Carried:
    """The inverse question of a scenario: what its number of GPUs can serve. Never raises on user input."""
    have = points_for(scenario)
    if nothing := nothing_to_choose_from(scenario, have):
        return Carried(None, nothing.title, nothing.reason)
    return answered(
        lambda: _carried(_at_no_rate(scenario), scenario.fleet_gpus, scenario.choice, have.digest, have), Carried
    )


def _at_no_rate(scenario: Scenario) -> Question:
    """The question without its load, which is irrelevant here, so that changing it hits the cache."""
    return replace(scenario, rate_per_s=1.0).question


@st.cache_data(max_entries=128, show_spinner=False)
def _carried(question: Question, gpus: int, choice: Choice, digest: str, _have: Available) -> Carried:
    asked = question, gpus, choice
    return computed(computing.carried, *asked, _have, key=(*asked, digest), model=question.model)


def ways_out(scenario: Scenario) -> Ways:
    """Ways to meet the SLA, for a scenario whose candidates all miss it."""
    have = points_for(scenario)
    return _ways_out(_at_no_rate(scenario), scenario.choice, have.digest, have)


@st.cache_data(max_entries=64, show_spinner=False)
def _ways_out(question: Question, choice: Choice, digest: str, _have: Available) -> Ways:
    asked = question, choice
    return computed(computing.ways_out, *asked, _have, key=(*asked, digest), model=question.model)


@st.cache_data(max_entries=64, show_spinner=False)
def what_fits(model: str, lengths: Lengths, rejected: tuple[Rejection, ...]) -> tuple[Misfit, ...]:
    """What would fit instead of each configuration left out for memory."""
    return misfits(model, lengths, rejected)


@st.cache_data(max_entries=64, show_spinner=False)
def fits_elsewhere(model: str, lengths: Lengths, besides: tuple[str, ...]) -> Candidate | None:
    """The smallest configuration that fits on a GPU other than these."""
    return elsewhere(model, lengths, besides)


def day_of(scenario: Scenario, plan: Plan) -> Daily:
    """GPUs hour by hour, the answer's fleet at the busiest."""
    return _day(scenario.question, scenario.choice, points_for(scenario).digest, scenario.day_per_s, plan)


@st.cache_data(max_entries=128, show_spinner=False)
def _day(question: Question, choice: Choice, digest: str, rates_per_s: tuple[float, ...], _plan: Plan) -> Daily:
    key = question, choice, digest, rates_per_s
    return computed(gpus_by_hour, _plan.question, _plan.answer, rates_per_s, key=key, model=question.model)


def goodput_prices_of(scenario: Scenario, plan: Plan) -> tuple[GoodputPrice, ...]:
    """GPUs of the answer's configuration at rising goodput."""
    return _goodput_prices(scenario.question, scenario.choice, points_for(scenario).digest, plan)


@st.cache_data(max_entries=64, show_spinner=False)
def _goodput_prices(question: Question, choice: Choice, digest: str, _plan: Plan) -> tuple[GoodputPrice, ...]:
    key = question, choice, digest
    return computed(goodput_prices, _plan.question, _plan.answer.candidate, key=key, model=question.model)


# --- Recorded traffic: what a visitor brings, and the fleets that serve it

MOST_UPLOAD_BYTES = 100 * 2**20
"""A trace file on the page; `server.maxUploadSize` must allow it."""
MOST_UNPACKED_BYTES = 1 << 30
MOST_KEPT = 5_000_000
"""Requests of a trace that a visit keeps, 20 bytes each; `MOST_KEPT_IN_ALL` of all visits to this process."""
MOST_KEPT_IN_ALL = 25_000_000
MOST_DAYS = 31
MOST_REPLAYED = 2_000_000
"""Requests that the page replays, on one fleet after the other."""
PARTS_KEPT, ANSWERS_KEPT = 2, 8
"""Of a visit: parts of its trace, and answers, as many as hold `ANSWERED_KEPT` requests together."""
ANSWERED_KEPT = 4_000_000
PART_BYTES = 1 << 20
EXAMPLE = "example"
"""In place of a digest: a link that has it opens with the example."""
NO_SUCH_LIMIT = "python -m sizing plan --trace FILE has no such limit"
_recorded: WeakSet[Recorded] = WeakSet()
_recording = Lock()


FleetPlan = TypeVar("FleetPlan", TracePlan, SessionPlan)


@dataclass(frozen=True, slots=True, eq=False)
class Reply(Generic[FleetPlan]):
    """The fleets for a trace or for sessions, or why there are none, with what the limits would have to be."""

    found: FleetPlan | None
    title: str = ""
    reason: str = ""
    rejected: tuple[Rejection, ...] = ()
    ways_out: tuple[str, ...] = ()


def _reply(plan: Callable[[], FleetPlan], ways: Callable[[Sequence[Rejection]], Iterable[str]]) -> Reply[FleetPlan]:
    """The fleets; if no configuration serves, why, and the `ways` to meet the SLA."""
    try:
        return Reply(plan())
    except NoFeasiblePlan as error:
        missed = error
    return Reply(None, title_of(missed.rejected), str(missed), missed.rejected, tuple(ways(missed.rejected)))


def recorded(name: str, content: bytes) -> Recorded | str:
    """The trace in a file, or what is wrong with it in a line; `name` is shown and never used as a path."""
    shown = Upload(name, b"").shown_name
    if len(content) > MOST_UPLOAD_BYTES:
        return f"{shown}: larger than {MOST_UPLOAD_BYTES // 2**20} MB: pack it by gzip; {NO_SUCH_LIMIT}"
    try:
        with TemporaryDirectory(prefix="trace-") as folder:
            file = Path(folder) / "trace"
            file.write_bytes(content)
            try:
                _check_size(file)
                reading = read_trace_noted(file)
                _check_kept(reading.trace, file)
            except TraceError as error:
                return str(error).replace(str(file), shown)
    except OSError as error:
        return f"{shown}: cannot be stored for reading ({error.strerror or error})"
    form = FORMATS[reading.kind].label
    return keep(Recorded(shown, reading.trace, trace_digest(reading.trace), (f"read as {form}", *reading.notes)))


def joined(found: Recorded, more: Recorded) -> Recorded | str:
    """Two traces as one, each a class by the name of its file unless it names classes itself; or why they cannot be."""
    each = (one.trace if one.trace.classes else one.trace.as_class(one.name.partition(".")[0]) for one in (found, more))
    try:
        trace = merged([*each])
        _check_kept(trace, Path(more.name))
    except TraceError as error:
        return str(error)
    notes = (*found.notes, *(f"{more.name}: {note}" for note in more.notes))
    return keep(Recorded(f"{found.name} + {more.name}", trace, trace_digest(trace), notes))


def _check_size(file: Path) -> None:
    """TraceError for a file of which reading would take too much memory or time: few bytes can be packed from many."""
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic == b"PAR1":
        with suppress(pa.ArrowException, OSError):  # who reads it says what is wrong
            _check_count(parquet.ParquetFile(file).metadata.num_rows, file)
        return
    size = lines = 0
    unpacked = gzip.open if magic[:2] == b"\x1f\x8b" else open
    with suppress(EOFError, gzip.BadGzipFile, zlib.error), unpacked(file, "rb") as opened:
        while part := opened.read(PART_BYTES):
            checkpoint("unpacking of a trace")
            size, lines = size + len(part), lines + part.count(b"\n")
            _check_count(lines, file)
            if size > MOST_UNPACKED_BYTES:
                raise TraceError(f"{file}: over {MOST_UNPACKED_BYTES // 2**20:,} MB once unpacked: {NO_SUCH_LIMIT}")


def _check_count(requests: int, file: Path) -> None:
    if requests > MOST_KEPT:
        raise TraceError(f"{file}: more requests than the {MOST_KEPT:,} of this page: {NO_SUCH_LIMIT}")


def _check_kept(trace: Trace, file: Path) -> None:
    """TraceError for a trace that is too long, or has too many requests, to be kept for a visit."""
    _check_count(len(trace), file)
    if trace.span_s > MOST_DAYS * DAY_S:
        days = significant(trace.span_s / DAY_S)
        raise TraceError(f"{file}: it lasts {days} days, more than the {MOST_DAYS} of this page: {NO_SUCH_LIMIT}")


def keep(found: Recorded) -> Recorded | str:
    """The trace, counted among those that visits to this process hold; or why there is no room for it."""
    with _recording:
        if len(found.trace) + sum(len(one.trace) for one in _recorded) > MOST_KEPT_IN_ALL:
            return "The server currently holds too many traces: try again in a few minutes"
        _recorded.add(found)
    return found


def trace_digest(trace: Trace) -> str:
    """The same for the same requests at the same times."""
    sha = hashlib.sha256(repr(trace.began_s).encode())
    if trace.classes:
        sha.update(repr(trace.classes).encode())
    for array in (trace.arrival_s, trace.isl, trace.osl, trace.session, trace.of_class):
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]


@functools.cache
def example() -> Recorded:
    """The example that can be tried without a file."""
    return Recorded("An invented day", example_trace(), EXAMPLE)


class Part(NamedTuple):
    """Which part of a trace is replayed: `window` as in `Trace.window`, `scale` as in `Trace.scaled`; `limits` of its
    classes as in `class_slas`."""

    digest: str
    window: str
    scale: float
    limits: tuple[str, ...] = ()


def part_of(found: Recorded, part: Part) -> Trace | str:
    """The requests of a part, or why it cannot be replayed here."""

    def made() -> Trace | str:
        try:
            within = found.trace.window(part.window)
            if (requests := len(within) * part.scale) > MOST_REPLAYED:
                return (
                    f"{requests:,.0f} requests are more than the {MOST_REPLAYED:,} that this page replays: choose a "
                    f"shorter part or a smaller scale; {NO_SUCH_LIMIT}"
                )
            return within.scaled(part.scale)
        except ScenarioError as error:
            return str(error)

    return remembered(visit().trace_parts, part, made, PARTS_KEPT)


def traced(scenario: Scenario, part: Part, trace: Trace, progress: Callable[[str], None]) -> Reply[TracePlan]:
    """The fleets that serve a part of a trace, of which the form says all but load, arrivals and lengths.

    Never raises on user input. `progress` hears of each replay; a visit remembers its last few answers.
    """
    have, asked = points_for(scenario), _without_load(scenario)
    if nothing := nothing_to_choose_from(scenario, have):
        return Reply(None, nothing.title, nothing.reason)

    def plan() -> Reply[TracePlan]:
        question = question_of(asked, trace)
        found = found_for(question, asked.choice, have)
        slas = class_slas(trace, question.sla, part.limits)

        def ways(rejected: Sequence[Rejection]) -> Iterator[str]:
            if not trace.classes:
                yield from ways_out_lines(*relax.ways_out(rejected, question, found[0]))
            for name, each in class_ways_out(rejected, question, trace, slas, found[0]) if trace.classes else ():
                yield from (f"{name}: {line}" for line in ways_out_lines(*each))

        return _reply(lambda: plan_trace(question, trace, *found, slas=slas, progress=progress), ways)

    most = min(ANSWERS_KEPT, max(1, ANSWERED_KEPT // len(trace)))
    return remembered(visit().trace_answers, (part, asked, have.digest), lambda: answered(plan, Reply), most)


def traced_file(found: TracePlan, link: str, suffix: str) -> bytes:
    """The report of a trace's answer in one of the formats, made now."""
    plan, cover = found.plan, Cover(now(), link=link)
    return render(traced_report(found, sensitivities(plan.question, plan.answer, found.trace), cover), suffix)


def traced_report(found: TracePlan, effects: Sequence[Sensitivity], cover: Cover) -> Report:
    """The report of a trace's answer; `effects` are those of its inputs."""
    curve = load_curve(found.plan.question, found.plan.answer)
    extras = Extras(tuple(effects), verification=verification(found.plan), trace=found)
    return report_of(found.plan, curve, extras, cover)


def for_sessions(
    scenario: Scenario, load: SessionLoad, limits: tuple[SessionLimit, ...], progress: Callable[[str], None]
) -> Reply[SessionPlan]:
    """The fleets that serve sessions, of which the form says all but load, lengths, arrivals, routing, prefix, limits
    on shares of the requests, queue limit and timeout.

    Never raises on user input. `progress` hears of each simulation; a visit remembers its last few answers.
    """
    usual, have = Scenario(), points_for(scenario)
    of_requests = ("prefix_share", "prefix_hit", "routing", "gap", *SHARES, "queue_limit", "queue_timeout_s")
    asked = replace(_without_load(scenario.without_goodput), **{name: getattr(usual, name) for name in of_requests})
    if nothing := nothing_to_choose_from(scenario, have):
        return Reply(None, nothing.title, nothing.reason)

    def plan() -> Reply[SessionPlan]:
        sla = Sla(asked.ttft, asked.itl, asked.e2e, *limits)
        terms = {name: getattr(asked, name) for name in ("headroom", "spare", "price_per_gpu_hour")}
        question, turns = session_question(asked.model, load, sla, **terms)
        found = found_for(question, asked.choice, have)
        return _reply(
            lambda: plan_sessions(question, load, turns, *found, progress=progress),
            lambda rejected: ways_out_lines(*session_ways_out(rejected, question, load, found[0])),
        )

    key = (load, limits, asked, have.digest)
    return remembered(visit().session_answers, key, lambda: answered(plan, Reply), ANSWERS_KEPT)


def _without_load(scenario: Scenario) -> Scenario:
    """The scenario with what a trace has of its own as it is by default, so that changing it changes no answer."""
    usual = Scenario()
    of_trace = ("rate_per_s", "isl", "isl_cv", "isl_law", "osl", "osl_cv", "osl_law", "arrivals", "peak_factor")
    beside = ("day", "fleet_gpus", "gpus_per_server")
    return replace(scenario, **{name: getattr(usual, name) for name in (*of_trace, *beside)})


def question_of(scenario: Scenario, trace: Trace) -> Question:
    """The scenario's question with the lengths of a trace and the rate of its busiest hour."""
    lengths, rate_per_s = lengths_of(trace), busiest_rate_per_s(trace)
    tokens = round(scenario.prefix_share * lengths.isl)
    prefix = Prefix(min(tokens, int(lengths.isl)), scenario.prefix_hit) if tokens else Prefix()
    asked = scenario.question
    workload = replace(asked.workload, lengths=lengths, rate_per_s=rate_per_s, prefix=prefix)
    return replace(asked, workload=workload, peak_factor=peak_factor(trace))


# --- From a scenario to its report, and from a report to the bytes that a button hands out

NEEDS = {"pdf": "typst", "xlsx": "xlsxwriter", "html": "matplotlib"}
"""Packages without which a format cannot be written."""
NO_COVER = Cover(made_at="")
MOMENT_S = 3.0
"""Between a click and the run of the page that a change of the form has started just before it, at most."""
Beside = Literal["", "day", "goodput"]
"""What the page Size shows that a report takes in: the GPUs over a day, or at rising goodput."""
SIZE_SHOWS = f"{PREFIX}size"
"""Of a link: what it opens the page Size on."""


def now() -> str:
    """This second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def report(
    scenario: Scenario, outcome: Outcome, *, title: str, author: str, notes: str, address: str, beside: Beside = ""
) -> Report:
    """The report of an outcome, made now. Quick where only the cover has changed. `address`: of the app.

    `beside`: with the GPUs of each hour of the scenario's day, or at rising goodput.
    """
    digest = points_for(scenario).digest
    found = _answered(scenario, digest, beside, outcome.plan) if outcome.plan else _refused(scenario, outcome)
    gpus = outcome.plan.answer.gpus if outcome.plan else None
    made = dataclasses.replace(found, made_at=now())
    where = link_of(scenario, gpus, address, beside)
    return with_cover(made, title=title or None, author=author, notes=notes, link=where)


def link_of(scenario: Scenario, gpus: int | None, address: str, beside: Beside = "") -> str:
    """The link that opens the scenario, with the answer of today; `address` without path and query."""
    shown = {SIZE_SHOWS: beside} if beside else {}
    return f"{address.rstrip('/')}/?{urlencode(link.to_query(scenario, gpus) | shown)}"


def asked_beside() -> Beside:
    """What the page Size shows that the report takes in; its choice then stands in this page's link too."""
    shown = st.session_state.get(SIZE_SHOWS)
    if shown != "day" and shown != "goodput":
        return ""
    visit().shown |= {SIZE_SHOWS: shown}
    return cast(Beside, shown)


@st.cache_resource(max_entries=64, show_spinner=False)
def _answered(scenario: Scenario, digest: str, beside: Beside, _plan: Plan) -> Report:
    daily = day_of(scenario, _plan) if beside == "day" else None
    judged = any((scenario.ttft, scenario.itl, scenario.e2e))
    extras = Extras(
        sensitivities(_plan.question, _plan.answer),
        daily,
        verification=verified(scenario, _plan),
        goodput_prices=goodput_prices_of(scenario, _plan) if beside == "goodput" and judged else (),
    )
    plan = replace(_plan, question=replace(_plan.question, peak_factor=scenario.day_peak_factor)) if daily else _plan
    return report_of(plan, curve(scenario, ANSWER, _plan.answer), extras, NO_COVER)


def _refused(scenario: Scenario, outcome: Outcome) -> Report:
    question = _question(scenario)
    ways = ways_out(scenario) if question and any(each.kind == "sla" for each in outcome.rejected) else Ways((), None)
    cover = (outcome.title, outcome.reason, outcome.rejected, NO_COVER)
    return refusal_of(question, *cover, ways.alone, ways.together)


def _question(scenario: Scenario) -> Question | None:
    try:
        return scenario.question
    except SizingError:
        return None


class Handed:
    """The file that a session was given last: of which question, and when. Files are made away from the page's run."""

    def __init__(self) -> None:
        self._question, self._at_s = "", -math.inf

    def out(self, found: Report, suffix: str) -> bytes:
        """The file, whose question is remembered from the moment it was asked for."""
        self._question, self._at_s = question_digest(found), time.monotonic()
        return render(found, suffix)

    def belated(self, found: Report, since_s: float) -> bool:
        """True when a file of another question was asked for later than a moment before `since_s`."""
        return self._at_s > since_s - MOMENT_S and self._question != question_digest(found)


def download(found: Report, suffix: str, handed: Handed) -> tuple[str, str, Callable[[], bytes]]:
    """File name, media type and a function that makes the file when the button is pressed, away from the page.

    The button belongs to the run that drew it: pressed together with a change of the form it still gives the file of
    the question before, which its name and content say; `handed` then lets the page say it too.
    """
    return file_name(found, suffix), WRITERS[suffix][2], partial(handed.out, found, suffix)
