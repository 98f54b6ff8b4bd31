"""The plan of a sweep: which server, which lengths, which load levels; read from YAML and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibration.errors import PlanError
from sizing.curves import LoadKind, Point
from sizing.workload import Lengths

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Batching = Literal["in_flight", "static"]
LevelKey = tuple[float, float, float, float, LoadKind, float]


@dataclass(frozen=True, slots=True)
class Level:
    """One load level of a sweep: `value` users (closed loop) or requests/s (open loop), `requests` of them measured.

    `index` is its place in the plan.
    """

    index: int
    lengths: Lengths
    kind: LoadKind
    value: float
    requests: int

    @property
    def key(self) -> LevelKey:
        """What tells levels of one run apart; the same for the point that was measured at it."""
        return (
            self.lengths.isl,
            self.lengths.osl,
            self.lengths.isl_cv,
            self.lengths.osl_cv,
            self.kind,
            self.value,
        )

    @property
    def label(self) -> str:
        """For progress lines: ``ISL 64, OSL 32, concurrency 4``."""
        load = f"concurrency {self.value:g}" if self.kind == "concurrency" else f"{self.value:g} requests/s"
        return f"ISL {self.lengths.isl:g}, OSL {self.lengths.osl:g}, {load}"


def level_key(point: Point) -> LevelKey:
    """The key of the level at which `point` was measured."""
    return (point.isl, point.osl, point.isl_cv, point.osl_cv, point.load_kind, point.load_value)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TensorNames(_Strict):
    """What a model calls its tensors, where its names are not those of the TensorRT-LLM backend.

    `prompt` (text) or `token_ids` and `prompt_length` go in, with `max_tokens`; `text` or `output_ids` come out.
    `constants` are further inputs and the value that every request gives them.
    """

    prompt: Text | None = None
    token_ids: Text | None = None
    prompt_length: Text | None = None
    max_tokens: Text | None = None
    text: Text | None = None
    output_ids: Text | None = None
    constants: dict[str, str | bool | int | float] = {}


class ServerPlan(_Strict):
    """Where requests go: `url` (host:port) of gRPC or, by `protocol`, of HTTP; the Triton `model`.

    A request takes `timeout_s` at most. `metrics_url` (http://host:port/metrics), if set, is read during each level for
    the server's own view, and to check that nobody else loads the server meanwhile.
    """

    url: Annotated[str, Field(pattern=r"^[^/\s]+:\d+$")] = "127.0.0.1:8001"
    protocol: Literal["grpc", "http"] = "grpc"
    model: Text = "ensemble"
    tensors: TensorNames = TensorNames()
    metrics_url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    timeout_s: Positive = 120.0


class DeploymentPlan(_Strict):
    """What is written on the points where the server does not say it itself, or says it wrong."""

    model: Text | None = None
    precision: Text | None = None
    gpu: Text | None = None
    tp: Count | None = None
    pp: Count | None = None
    engine: str | None = None
    engine_version: str | None = None
    batching: Batching | None = None
    max_batch_size: Count | None = None


class LengthsPlan(_Strict):
    """Mean input and output tokens, and their coefficients of variation (0 = every request the same)."""

    isl: Annotated[float, Field(ge=1)]
    osl: Annotated[float, Field(ge=1)]
    isl_cv: Annotated[float, Field(ge=0)] = 0.0
    osl_cv: Annotated[float, Field(ge=0)] = 0.0


class SweepPlan(_Strict):
    """Every pair of lengths at every level: `concurrency` (closed loop) and `rates` (Poisson open loop, requests/s).

    `requests_per_level` requests are measured at each level (default: the larger of 50 and ten a user, or 100 at a
    rate), fewer where `budget_s` seconds of measuring are over first. `warm_up` requests a user come before and are
    left out. Users start spread over `ramp_s` (default: about the time of one request). Prompts follow from `seed` and
    the run's number. `tokenizer` is a tokenizer.json; unset, the server is asked; ``none`` counts words.
    """

    server: ServerPlan = ServerPlan()
    deployment: DeploymentPlan = DeploymentPlan()
    lengths: Annotated[list[LengthsPlan], Field(min_length=1)]
    concurrency: list[Count] = []
    rates: list[Positive] = []
    requests_per_level: Count | None = None
    warm_up: Annotated[int, Field(ge=0)] = 2
    ramp_s: Annotated[float, Field(ge=0)] | None = None
    budget_s: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    tokenizer: Text | None = None

    @model_validator(mode="after")
    def _some_levels_none_twice(self) -> SweepPlan:
        if not self.concurrency and not self.rates:
            raise ValueError("no load levels: give concurrency, for instance [1, 4, 16], or rates in requests/s")
        for name in ("lengths", "concurrency", "rates"):
            values = getattr(self, name)
            repeated = [value for value in values if values.count(value) > 1]
            if repeated:
                raise ValueError(f"{name}: {repeated[0]} is there more than once")
        return self

    def levels(self) -> list[Level]:
        """The levels in the order in which they are measured: for each lengths, concurrency first, then rates."""
        loads: list[tuple[LoadKind, float]] = [("concurrency", float(users)) for users in self.concurrency]
        loads += [("poisson_rate", rate) for rate in self.rates]
        pairs = [
            (Lengths(item.isl, item.osl, item.isl_cv, item.osl_cv), *load) for item in self.lengths for load in loads
        ]
        return [
            Level(i, lengths, kind, value, self._requests(kind, value))
            for i, (lengths, kind, value) in enumerate(pairs)
        ]

    def _requests(self, kind: LoadKind, value: float) -> int:
        if self.requests_per_level is not None:
            return self.requests_per_level
        return max(50, 10 * round(value)) if kind == "concurrency" else 100


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A checked plan with the text it was read from, so that a run can be resumed without the file.

    `folder` is where relative paths in the plan start.
    """

    plan: SweepPlan
    text: str
    folder: Path

    @property
    def tokenizer_file(self) -> Path | None:
        """The tokenizer.json that the plan names, None where it names none."""
        named = self.plan.tokenizer
        return None if named in (None, "none") else self.folder / str(named)


def read_plan(path: Path | str) -> PlanFile:
    """The plan in a YAML file. Raises PlanError, one line: file, key, what is wrong with it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"{path}: no such plan file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read as a plan ({error})") from None
    return parse_plan(text, name=str(path), folder=path.resolve().parent)


def parse_plan(text: str, name: str = "plan", folder: Path | None = None) -> PlanFile:
    """The plan in `text`; `name` is how errors call it. Raises PlanError.

    >>> parse_plan("lengths: [{isl: 64, osl: 32}]\\nconcurrency: [1, 4]").plan.levels()[1].label
    'ISL 64, OSL 32, concurrency 4'
    """
    content = _yaml(text, name)
    if not isinstance(content, dict):
        raise PlanError(f"{name}: a plan is a YAML mapping with lengths and concurrency, this is {_kind(content)}")
    try:
        plan = SweepPlan.model_validate(content)
    except ValidationError as error:
        raise PlanError(f"{name}, {_first_fault(error)}") from None
    return PlanFile(plan, text, folder or Path.cwd())


def _yaml(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "unreadable characters"
        raise PlanError(f"{name}{where}: not YAML: {what}") from None


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"]) or "the whole plan"
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key"
    if fault["type"] == "missing":
        return f"{key}: is missing"
    message = fault["msg"].removeprefix("Value error, ")
    given = "" if isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
    return f"{key}: {message}{given}"


def _kind(content: object) -> str:
    return "empty" if content is None else f"a {type(content).__name__}"
