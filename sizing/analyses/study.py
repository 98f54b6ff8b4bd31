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
import io
import itertools
import math
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.random import SeedSequence
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from sizing import candidates, planner
from sizing.candidates import Choice, Found
from sizing.cli.options import MOST_GPUS, choice_of
from sizing.errors import LONGEST_QUOTE, ScenarioError, SizingError, first_fault
from sizing.files import read_yaml
from sizing.fitting import STARTS, Protocol
from sizing.plans import NoFeasiblePlan, Plan
from sizing.points import Point
from sizing.question import FIELDS, Question, with_laws
from sizing.text import cautions
from sizing.workload import Lengths

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
        return choice_of(self.given | {"tp": str(self.given["tp"])})

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
