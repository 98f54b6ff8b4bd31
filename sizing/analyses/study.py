"""The study file (YAML): a base question, axes to vary, and either every combination or a random sample of them.

    base:  {model: Qwen/Qwen3-32B, gpu: h200_sxm, precision: fp8, isl: 2000, osl: 256, itl: p95:30ms}
    axes:
      rate: [5, 20, 80]
      tp:   [1, 2]
      ttft: [p95:500ms, p95:2s]
    # or, in place of every combination:  sample: 1000, and then an axis may be {low: 200, high: 8000} (log-uniform)

Keys of `base` and `axes` (`KEYS`) are options of ``python -m sizing plan``, written with underscores.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
import platform
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from numpy.random import SeedSequence
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sizing import candidates, files, planner
from sizing.candidates import Choice, Found
from sizing.cli.options import MOST_GPUS, layouts_named, tensor_parallel, words
from sizing.engine import Replica
from sizing.errors import LONGEST_QUOTE, ScenarioError, SizingError, first_fault
from sizing.files import read_yaml
from sizing.fitting import STARTS, Protocol
from sizing.numbers import Floats
from sizing.plans import NoFeasiblePlan, Plan
from sizing.points import Point
from sizing.prediction import Caution, Prediction, Quantiles
from sizing.question import FIELDS, Question, with_laws
from sizing.simulator import simulate
from sizing.stats import mean_half_width
from sizing.text import cautions
from sizing.workload import OF_REQUESTS, Lengths, RequestMetric, Routing, Workload

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
MOST = 200_000
"""Most scenarios of a study: this many take seconds and 350 MB to read, and days to answer."""


ASKED = (
    "isl osl isl_cv osl_cv rate arrivals routing ttft itl gap e2e headroom spare isl_law osl_law "
    "goodput rejected queue_limit queue_timeout correlation prefix_tokens prefix_hit"
).split()
KEYS: dict[str, Any] = {
    "model": (str, ...),
    "gpu": (str, ""),
    "precision": (str, "any"),
    "tp": (int | str, "any"),
    "engine": (str, "any"),
    "layout": (str, "any"),
    "points": (str, ""),
    "protocol": (Literal["", *STARTS], ""),
    "points_replicas": (Annotated[int, Field(ge=1, le=MOST_GPUS)], 1),
    "basis": (Literal["measured", "any"], "any"),
    **{name: FIELDS[name].entry for name in ASKED},
}
"""Type and default of every key of a scenario; its columns in the table of results, in this order."""
INPUT_COLUMNS = tuple(KEYS)
Written = create_model("Written", __config__=STRICT, **KEYS)


@dataclass(frozen=True, slots=True)
class StudyScenario:
    """One question, in the words of the command line; `points`: a CSV file, relative to the study file; `protocol` and
    `points_replicas`: how it was measured."""

    given: dict[str, Any]

    @property
    def question(self) -> Question:
        """The planner's question; raises ScenarioError for an impossible one."""
        return Question.of(self.given)

    @property
    def choice(self) -> Choice:
        """What may be bought; raises ScenarioError for a TP that is no number."""
        given = self.given
        which = words(given["gpu"]), words(given["precision"]), tensor_parallel(str(given["tp"]))
        return Choice(*which, given["basis"], words(given["engine"]), layouts_named(given["layout"]))

    @property
    def points(self) -> str:
        """Name of the file of points, empty for none."""
        return str(self.given["points"])

    @property
    def table(self) -> tuple[str, int]:
        """The file of points, and the replicas behind the endpoint where its rows do not say."""
        return self.points, int(self.given["points_replicas"])

    @property
    def protocol(self) -> Protocol:
        """How the users of the points began, as far as it is told."""
        return Protocol.named(self.given["protocol"])


class LogUniform(BaseModel):
    """An axis of a random sample: log-uniform from `low` to `high`, rounded to three digits."""

    model_config = STRICT

    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _rises(self) -> LogUniform:
        if self.high < self.low:
            raise ValueError(f"high ({self.high:g}) is below low ({self.low:g})")
        return self


Axis = list[str | int | float] | LogUniform


class StudyFile(BaseModel):
    """The file as written: `sample` scenarios drawn with `seed`, or every combination where it is not given."""

    model_config = STRICT

    base: dict[str, str | int | float] = {}
    axes: dict[str, Axis] = Field(min_length=1)
    sample: int | None = Field(default=None, ge=1, le=MOST)
    seed: int = Field(default=0, ge=0)


def read_study(path: Path | str) -> list[StudyScenario]:
    """The scenarios of a study file, each checked. Raises ScenarioError naming the file and what is wrong in it."""
    try:
        file = StudyFile.model_validate(read_yaml(path, "study file"))
    except ValidationError as error:
        raise ScenarioError(f"{path}, {first_fault(error, 'the whole study')}") from None
    scenarios = []
    for place, values in enumerate(_combinations(file, str(path)), start=1):
        try:
            given = with_laws(file.base | values, Path(path).parent)
            scenario = StudyScenario(Written.model_validate(given).model_dump())
            _ = scenario.question, scenario.choice
        except ValidationError as error:
            raise ScenarioError(f"{path}, scenario {place}, {first_fault(error)}") from None
        except ScenarioError as error:
            raise ScenarioError(f"{path}, scenario {place}: {error}") from None
        scenarios.append(scenario)
    return scenarios


def _combinations(file: StudyFile, name: str) -> Iterator[dict[str, Any]]:
    """Values of the axes, scenario by scenario."""
    for axis, values in file.axes.items():
        if values == []:
            raise ScenarioError(f"{name}: axis {axis!r} has no values; list one or more")
    if file.sample is not None:
        rng = np.random.default_rng(file.seed)
        for _ in range(file.sample):
            yield {axis: _drawn(values, rng) for axis, values in file.axes.items()}
        return
    listed = {axis: values for axis, values in file.axes.items() if isinstance(values, list)}
    for axis in file.axes:
        if axis not in listed:
            raise ScenarioError(f"{name}: axis {axis!r} is a range; give `sample: NUMBER`, or list its values")
    count = math.prod(map(len, listed.values()))
    if count > MOST:
        raise ScenarioError(f"{name}: the axes make {count:,} scenarios, more than {MOST:,}; give `sample: NUMBER`")
    yield from (dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values()))


def _drawn(axis: Axis, rng: np.random.Generator) -> str | int | float:
    if isinstance(axis, LogUniform):
        return float(f"{math.exp(rng.uniform(math.log(axis.low), math.log(axis.high))):.3g}")
    return axis[int(rng.integers(len(axis)))]


Cell = str | int | float | None
ANSWER_COLUMNS = (
    *("gpus", "gpus_low", "gpus_high", "replicas", "chosen", "requests_per_s_per_gpu", "utilization"),
    *("binding", "answer_basis", "verified_by", "why"),
)


def answer(item: tuple[StudyScenario, tuple[Point, ...]], seed: SeedSequence) -> dict[str, Cell]:
    """The cells COLUMNS; without a count where nothing meets the SLA, and `why` says what stands in the way.

    The planner's simulations have fixed seeds, so `seed` is not used.
    """
    scenario, points = item
    question = scenario.question
    try:
        found, rejected = _found(question.model, question.workload.lengths, scenario.choice, points, scenario.protocol)
        return _cells(planner.plan(question, found, rejected))
    except NoFeasiblePlan as error:
        nearest = f": {error.rejected[0].why}" if error.rejected else ""
        return dict.fromkeys(ANSWER_COLUMNS) | {"why": f"{error}{nearest}"}
    except SizingError as error:
        return dict.fromkeys(ANSWER_COLUMNS) | {"why": str(error)}


@lru_cache(maxsize=64)
def _found(model: str, lengths: Lengths, choice: Choice, points: Sequence[Point], protocol: Protocol) -> Found:
    """Candidates, kept for scenarios that differ in load and SLA only: fitting is half of a plan's time."""
    return candidates.find(model, lengths, choice, points, protocol)


def _cells(plan: Plan) -> dict[str, Cell]:
    fleet = plan.answer
    return {
        "gpus": fleet.gpus,
        "gpus_low": fleet.gpus_low,
        "gpus_high": fleet.gpus_high,
        "replicas": fleet.replicas,
        "chosen": fleet.candidate.label,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.predicted.utilization,
        "binding": fleet.binding_name,
        "answer_basis": fleet.basis,
        "verified_by": fleet.predicted.method,
        "why": "; ".join(cautions(fleet.warnings)),
    }


# --- The results of a study (CSV): a row per scenario, written as it is answered, so that a study can be interrupted
#
# Rows hold the whole question and its answer. While the study runs they are in the order in which they were
# answered; at its end the file is rewritten in the order of the scenarios. `inputs` is a hash of what the answers
# depend on besides the question: the measured points, and this package.

COLUMNS = ("scenario", "inputs", *INPUT_COLUMNS, *ANSWER_COLUMNS)


class ResultsFile:
    """The file at `path` as it grows; `done` are the places of the scenarios (from 0) whose rows it holds.

    Use as ``with``. Raises ScenarioError when the file is there but of another study, that is of other questions or
    `inputs`, or no table of results, and when it cannot be written.
    """

    def __init__(self, path: Path, study: Sequence[StudyScenario], inputs: str) -> None:
        self._path, self._study, self._inputs = path, study, inputs
        self._rows = _rows(path, study, inputs)
        _replace(path, self._rows)  # a row cut off in the middle is dropped

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self._rows)

    @property
    def answered(self) -> int:
        """Rows with a count of GPUs."""
        return sum(row["gpus"] != "" for row in self._rows.values())

    def __enter__(self) -> Self:
        with _writing(self._path):
            self._file = self._path.open("a", newline="", encoding="utf-8")
        return self

    def add(self, place: int, answer: Mapping[str, Cell]) -> None:
        """Write the answer to the scenario at `place`, at once."""
        own: dict[str, Cell] = {"scenario": place + 1, "inputs": self._inputs}
        self._rows[place] = _texts(own | self._study[place].given | dict(answer))
        with _writing(self._path):
            self._file.write(_line(self._rows[place].values()))
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _writing(self._path):
            self._file.close()
        if len(self._rows) == len(self._study):
            _replace(self._path, self._rows)


def _rows(path: Path, study: Sequence[StudyScenario], inputs: str) -> dict[int, dict[str, str]]:
    """The complete rows of the file, by place; empty when it does not exist."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ScenarioError(f"--out {path}: not a file that can hold results; give another name")
        held = path.read_bytes()
        text = held[: held.rfind(b"\n") + 1].decode()  # the last row may be cut off, even inside a letter
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{path}: cannot be read as a table of results ({reason})") from None
    if _line(COLUMNS).encode().startswith(held):
        return {}
    rows = {}
    for row in _table(path, text):
        place = int(row["scenario"]) - 1 if re.fullmatch("[0-9]{1,9}", row["scenario"]) else -1
        where = f"{path}: row {row['scenario'][:LONGEST_QUOTE]}"
        if not 0 <= place < len(study) or _question(row) != _texts(study[place].given):
            raise ScenarioError(f"{where} belongs to another study; give --out another name")
        if row["inputs"] != inputs:
            raise ScenarioError(
                f"{where} belongs to another study: the same question, but other points or another version of this "
                "package; give --out another name"
            )
        rows[place] = {column: row[column] for column in COLUMNS}
    return rows


def _table(path: Path, text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    with suppress(csv.Error):
        if tuple(reader.fieldnames or ()) == COLUMNS:
            return list(reader)
    raise ScenarioError(f"{path}: not a table of results of this version; give --out another name")


def _replace(path: Path, rows: Mapping[int, Mapping[str, str]]) -> None:
    """Write all rows in the order of the scenarios; the file is the old one or the new one at any moment."""
    fresh = path.with_name(path.name + ".new")
    with _writing(path):
        with fresh.open("w", newline="", encoding="utf-8") as file:
            file.write(_line(COLUMNS))
            file.writelines(_line(rows[place].values()) for place in sorted(rows))
        fresh.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"--out {path}: cannot be written ({error.strerror or error})") from None


def _question(row: Mapping[str, str]) -> dict[str, str]:
    return {column: row[column] for column in INPUT_COLUMNS}


def _texts(row: Mapping[str, Cell]) -> dict[str, str]:
    """Cells as text on one line, floats in full so that equal results are equal files; unknown is empty."""
    return {column: "" if value is None else " ".join(str(value).split()) for column, value in row.items()}


def _line(cells: object) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)  # type: ignore[arg-type]
    return out.getvalue()


# --- Work on many items: in this process, on all cores, or on a Dask cluster, bit for bit the same wherever it runs
#
# What an item draws at random depends on its place in the list and the study's seed alone, never on who computes it
# or when: `numpy.random.SeedSequence(seed).spawn(n)[place]`. An item whose worker dies is computed again by another.

CLUSTER = "lab.cluster"
"""Found by name: few installations have a cluster."""
PACKAGES = ("numpy", "scipy", "numba")
"""Libraries that compute results: another version may give other numbers."""


class WorkersLost(SizingError):
    """Worker processes died again and again, or the cluster is gone."""


@cache
def code() -> tuple[str, ...]:
    """What results depend on: versions of Python and of PACKAGES, a hash of this package's sources and of its data."""
    data = [path for name in ("data/catalog", "data/laws") for path in files.resource(name).rglob("*")]
    named = {path.relative_to(files.IMPORTED_FROM).as_posix(): path for path in files.PACKAGE.rglob("*.py")}
    named |= {path.relative_to(files.SHIPPED).as_posix(): path for path in data if path.is_file()}
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(name.encode() + named[name].read_bytes())
    return ".".join(platform.python_version_tuple()[:2]), *map(_version, PACKAGES), digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return ""


Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item, SeedSequence], Result]
LIVES = 4
"""How often the worker processes may die before a study gives up: an item that kills every worker would never end."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Where work runs: `cluster`, the address of a Dask scheduler such as ``tcp://10.0.0.5:8786``, or else this machine
    with `processes` processes (0: one for each core; 1: in this process)."""

    processes: int = 0
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise ScenarioError(f"processes must be 0 (one for each core) or more, got {self.processes}")
        if self.cluster and not re.fullmatch(r"(tcp|tls|ws|wss)://[^:/]+:\d+", self.cluster):
            raise ScenarioError(f"cluster {self.cluster!r}: write it as tcp://HOST:PORT, as `dask scheduler` prints it")

    @property
    def cores(self) -> int:
        """Processes that work on this machine at once."""
        return self.processes or int(cpu_count())


HERE = Machines()
"""Every core of this machine."""


def run_all(
    work: Work[Item, Result],
    items: Sequence[Item],
    *,
    seed: int = 0,
    machines: Machines = HERE,
    progress: Callable[[int], AbstractContextManager[Callable[[], None]]] | None = None,
) -> list[Result]:
    """The results of ``work(item, seed of its place)`` in the order of the items.

    `work` must be a function that another process can import. `progress`, given the number of items, is entered for
    the time of the work and yields what is called after each (see sizing.analyses.study). What `work` raises is raised.
    """
    results: dict[int, Result] = {}
    with progress(len(items)) if progress else nullcontext(lambda: None) as step:
        for place, result in completed(work, enumerate(items), seed=seed, machines=machines):
            results[place] = result
            step()
    return [results[place] for place in range(len(items))]


def completed(
    work: Work[Item, Result],
    numbered: Iterable[tuple[int, Item]],
    *,
    seed: int = 0,
    machines: Machines = HERE,
) -> Iterator[tuple[int, Result]]:
    """Places and results as they come, for some (place, item) of a study: the rest may have been done before."""
    job = Seeded(work, seed)
    left = dict(numbered)
    if machines.cluster:
        yield from import_module(CLUSTER).on_cluster(job, left, machines.cluster)
    elif machines.cores == 1 or len(left) < 2:
        yield from ((place, job(place, item)) for place, item in left.items())
    else:
        yield from _on_cores(job, left, machines.cores)


@dataclass(frozen=True, slots=True)
class Seeded:
    """`work` with the seed that belongs to the place of an item."""

    work: Callable[[Any, SeedSequence], Any]
    seed: int

    def __call__(self, place: int, item: Any) -> Any:
        return self.work(item, SeedSequence(self.seed, spawn_key=(place,)))


def _on_cores(job: Seeded, left: dict[int, Any], processes: int) -> Iterator[tuple[int, Any]]:
    """Every core of this machine; what a process that died has left undone goes to new ones."""
    for _ in range(LIVES):
        pool = Parallel(n_jobs=processes, backend="loky", return_as="generator_unordered")
        try:
            for place, result in pool(delayed(_placed)(job, place, item) for place, item in list(left.items())):
                del left[place]
                yield place, result
            return
        except TerminatedWorkerError:
            continue
    raise WorkersLost(
        f"worker processes died {LIVES} times ({len(left)} items left): too little memory? Use fewer processes"
    )


def _placed(job: Seeded, place: int, item: Any) -> tuple[int, Any]:
    return place, job(place, item)


# --- A long simulation in independent parts, run side by side and merged, with a confidence interval from their spread

NAMES = ("mean_s", "p50_s", "p90_s", "p95_s", "p99_s")


@dataclass(frozen=True, slots=True, eq=False)
class Replicated:
    """Runs of one question with seeds of their own: `values_s` has shape (runs, metrics, 5), the five of Quantiles.

    Means over the runs, and the half width of a 90 % interval around them by Student's t: the runs are independent,
    so the interval holds whatever the correlation of requests within a run. Each run starts empty and leaves out its
    own warm-up; a percentile of a run is biased by about one over its requests, so runs should be long (100,000).
    `losses`: shares of the requests that had no complete answer, see `Simulated`.
    """

    values_s: Floats
    requests: int
    saturated: bool
    utilization: float
    losses: Mapping[str, float]
    warnings: tuple[Caution, ...]

    @property
    def prediction(self) -> Prediction:
        """Means over the runs."""
        ttft, itl, e2e = (Quantiles(*map(float, row)) for row in self.values_s.mean(axis=0))
        rejected = self.losses["rejected_share"] + self.losses["timed_out_share"]
        return Prediction(
            *(ttft, itl, e2e, self.saturated, self.utilization, "simulation"),
            warnings=self.warnings,
            rejected=rejected,
        )

    def half_width_s(self, metric: RequestMetric, name: str) -> float:
        """Half the 90 % interval of ``mean_s``, ``p50_s``, ``p90_s``, ``p95_s`` or ``p99_s``; infinite for one run."""
        runs = len(self.values_s)
        if runs < 2 or self.saturated:
            return math.inf
        values = self.values_s[:, OF_REQUESTS.index(metric), NAMES.index(name)]
        return mean_half_width(values)

    @property
    def half_widths_s(self) -> dict[RequestMetric, dict[str, float]]:
        """All of them, by metric and name; infinite where there is no interval."""
        return {metric: {name: self.half_width_s(metric, name) for name in NAMES} for metric in OF_REQUESTS}


def replicated(
    replica: Replica,
    workload: Workload,
    *,
    runs: int = 8,
    requests: int = 800_000,
    replicas: int = 1,
    routing: Routing = "random",
    seed: int = 0,
    machines: Machines = HERE,
) -> Replicated:
    """`requests` requests in `runs` independent simulations of equal length on the given machines, merged.

    The same seed gives the same numbers on any machines. Raises ScenarioError for numbers out of range.
    """
    if runs < 1 or requests < 10 * runs:
        raise ScenarioError(f"runs must be 1 or more, of at least 10 requests each; got {runs} of {requests} requests")
    one = partial(_one_run, replica, workload, replicas, routing)
    found, losses = zip(*run_all(one, [requests // runs] * runs, seed=seed, machines=machines), strict=True)
    values_s = np.array(
        [[[getattr(run.of(metric), name) for name in NAMES] for metric in OF_REQUESTS] for run in found]
    )
    mean_losses = {reason: fmean(each[reason] for each in losses) for reason in losses[0]}
    warnings = tuple(caution for caution in found[0].warnings if caution.kind != "lost_requests")
    if lost := sum(mean_losses.values()):
        warnings += (Caution("lost_requests", {"share": lost}),)
    saturated, utilization = any(run.saturated for run in found), found[0].utilization
    return Replicated(values_s, requests // runs * runs, saturated, utilization, mean_losses, warnings)


def _one_run(
    replica: Replica, workload: Workload, replicas: int, routing: Routing, requests: int, seed: SeedSequence
) -> tuple[Prediction, Mapping[str, float]]:
    number = int(seed.generate_state(1)[0])
    run = simulate(replica, workload, replicas=replicas, routing=routing, requests=requests, seed=number)
    return run.prediction(), run.losses


def bar(label: str, done: int = 0) -> Callable[[int], AbstractContextManager[Callable[[], None]]]:
    """What `run_all` takes as `progress`; `done` items were done before. Nothing is drawn off a terminal."""

    @contextmanager
    def drawn(total: int) -> Iterator[Callable[[], None]]:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        progress = Progress(
            TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal
        )
        with progress:
            task = progress.add_task(label, total=total, completed=done)
            yield lambda: progress.advance(task)

    return drawn
