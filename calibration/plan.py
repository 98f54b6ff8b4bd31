"""The plan of a sweep: which server, which lengths, which load levels; read from YAML and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator, model_validator

from calibration.adapt_plan import AdaptivePlan
from calibration.errors import PlanError
from calibration.levels import Level, LevelKey
from calibration.metrics.stopping import Until
from calibration.plan_fields import ArrivalsText, Count, Positive, Share, Strict, Text
from calibration.requests.lengths import LengthsPlan
from calibration.server_plan import DeploymentPlan, ServerPlan
from sizing.curves import LoadKind
from sizing.errors import YamlError
from sizing.faults import first_fault
from sizing.workload import Arrivals, Lengths
from sizing.yaml_file import parse_yaml, yaml_text

FEWEST_ARRIVALS = 2
MOST_LEVELS = 10_000
ALL_OF_THEM = 10**9
BUDGET_S = 120.0
"""Longest measuring of a level whose plan names neither a time nor a number of requests."""


class StagePlan(Strict):
    """`rate` requests/s for `for_s` seconds; a rate of 0 is a pause."""

    for_s: Positive
    rate: Share


class ClientPlan(Strict):
    """The load generator: in how many `processes` it runs (default: as many as it needs).

    `self_check`: before a sweep it must show on a mock of known timings that it can measure the heaviest level.
    """

    processes: Count | None = None
    self_check: bool = True


class SweepPlan(Strict):
    """Each of `lengths` at every level of load.

    Closed loop: `concurrency` users. Open loop: `rates` in requests/s with gaps by `arrivals` (poisson, constant or
    gamma:cv=2); one `schedule` of stages; and, for lengths that are a trace, its own arrivals at each speed of
    `replay`. Open-loop points are for checking predictions: they are never fitted.

    A level is measured `until` its means are known well enough, for `budget_s` seconds at most (default 120), or for
    `requests_per_level` requests and the few that are sent before all users have stopped. A schedule or trace is sent
    whole unless `budget_s` cuts it. `warm_up` requests a user come before and are left out. Users start spread
    over `ramp_s` (default: about the time of one request). Lengths of which only the means are given vary (see
    LengthsPlan). A sweep of closed loops alone ends with random arrivals at `check_load` of the highest requests/s
    found (default 0.7; 0: no such level), once for each of the lengths: they tell engine overheads apart that closed
    loops cannot. Prompts follow from `seed` and the run's number. `tokenizer`
    is a tokenizer.json; unset, the server is asked; ``none`` counts words. With `adaptive`, only those levels of the
    closed loop are measured that the question in it needs.
    """

    server: ServerPlan = ServerPlan()
    deployment: DeploymentPlan = DeploymentPlan()
    lengths: Annotated[list[LengthsPlan], Field(min_length=1)]
    concurrency: list[Count] = Field(default_factory=list)
    rates: list[Positive] = Field(default_factory=list)
    arrivals: ArrivalsText = "poisson"
    schedule: list[StagePlan] = Field(default_factory=list)
    replay: list[Positive] = Field(default_factory=list)
    until: Until = Until()
    requests_per_level: Count | None = None
    warm_up: Annotated[int, Field(ge=0)] = 2
    check_load: Annotated[float, Field(ge=0, lt=1)] = 0.7
    ramp_s: Share | None = None
    budget_s: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    tokenizer: Text | None = None
    client: ClientPlan = ClientPlan()
    adaptive: AdaptivePlan | None = None

    @field_validator("lengths", mode="after")
    @classmethod
    def _varied(cls, lengths: list[LengthsPlan]) -> list[LengthsPlan]:
        return [item.varied() for item in lengths]

    @model_validator(mode="after")
    def _some_levels_none_twice(self) -> SweepPlan:
        if not (self.concurrency or self.rates or self.schedule or self.replay):
            raise ValueError("no load levels: give concurrency, for instance [1, 4, 16], or rates in requests/s")
        due = sum(stage.for_s * stage.rate for stage in self.schedule)
        if self.schedule and due < FEWEST_ARRIVALS:
            raise ValueError(f"schedule: its stages come to {due:g} requests, at least {FEWEST_ARRIVALS} are needed")
        if self.adaptive is not None and not self.concurrency:
            raise ValueError("adaptive: it chooses among closed-loop levels: give concurrency, for instance [1, 8, 64]")
        if self.replay and not any(item.trace for item in self.lengths):
            raise ValueError("replay: none of the lengths is a trace, for instance {trace: requests.csv}")
        loads = len(self.concurrency) + len(self.rates) + len(self.replay) + bool(self.schedule)
        if len(self.lengths) * loads > MOST_LEVELS:
            raise ValueError(f"{len(self.lengths):,} lengths at {loads:,} loads are more than {MOST_LEVELS:,} levels")
        for name in ("lengths", "concurrency", "rates", "replay"):
            value = next((value for value, times in Counter(getattr(self, name)).items() if times > 1), None)
            if value is not None:
                raise ValueError(f"{name}: {value} is there more than once")
        return self

    def levels(self, lengths: Sequence[Lengths] | None = None) -> list[Level]:
        """The levels in the order in which they are measured: for each lengths, concurrency first, then open loops.

        `lengths`: what each entry of the plan comes to, where the tokens of its files have been counted. Raises
        PlanError if two levels could not be told apart, FileError if a file of lengths cannot be used.
        """
        means = [item.summary() for item in self.lengths] if lengths is None else lengths
        pairs = [(entry, mean, *load) for entry, mean in enumerate(means) for load in self._loads(self.lengths[entry])]
        levels = [
            Level(i, mean, kind, value, self._requests(kind, value), entry)
            for i, (entry, mean, kind, value) in enumerate(pairs)
        ]
        seen: dict[LevelKey, Level] = {}
        for level in levels:
            if seen.setdefault(level.key, level) is not level:
                raise PlanError(f"two levels of the plan have the same means and load: {level.label}; drop one of them")
        return levels

    def _loads(self, item: LengthsPlan) -> list[tuple[LoadKind, float]]:
        loads: list[tuple[LoadKind, float]] = [("concurrency", float(users)) for users in self.concurrency]
        loads += [(self.rate_kind, rate) for rate in self.rates]
        if self.schedule:
            lasts_s = sum(stage.for_s for stage in self.schedule)
            loads.append(("schedule", sum(stage.for_s * stage.rate for stage in self.schedule) / lasts_s))
        times_s = item.arrivals_s
        if times_s is not None:
            if self.replay and (len(times_s) < 2 or times_s[-1] <= times_s[0]):
                raise PlanError(f"{item.trace}: a trace to replay needs requests at two times or more")
            loads += [("trace", speed * (len(times_s) - 1) / float(times_s[-1] - times_s[0])) for speed in self.replay]
        return loads

    @property
    def rate_kind(self) -> LoadKind:
        """The kind of a level of random or evenly spaced arrivals."""
        return _RATE_KINDS[Arrivals.parse(self.arrivals).kind]

    @property
    def check_loads(self) -> int:
        """Open-loop levels that end the sweep, at loads known only then: one for each of the lengths, or none."""
        named = self.rates or self.schedule or self.replay or self.adaptive or not self.concurrency
        return 0 if named or not self.check_load else len(self.lengths)

    def _requests(self, kind: LoadKind, value: float) -> int:
        if self.requests_per_level is not None:
            return self.requests_per_level
        return max(50, 10 * round(value)) if kind == "concurrency" else 100

    def until_of(self, level: Level) -> Until:
        """When the level has been measured long enough."""
        if level.kind in ("schedule", "trace"):  # these end when all their requests are sent
            return Until(requests_min=ALL_OF_THEM, budget_s=self.budget_s)
        if self.requests_per_level is not None:
            return Until(requests_min=level.requests, requests_max=level.requests, budget_s=self.budget_s)
        budget_s = self.budget_s or self.until.budget_s or BUDGET_S
        return self.until.model_copy(update={"budget_s": budget_s})


_RATE_KINDS: dict[str, LoadKind] = {
    "poisson": "poisson_rate",
    "constant": "constant_rate",
    "gamma": "gamma_rate",
}


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
        text = yaml_text(path, "plan file")
    except YamlError as error:
        raise PlanError(str(error)) from None
    return parse_plan(text, name=str(path), folder=path.resolve().parent)


def parse_plan(text: str, name: str = "plan", folder: Path | None = None) -> PlanFile:
    """The plan in `text`; `name` is how errors call it. Raises PlanError.

    >>> parse_plan("lengths: [{isl: 64, osl: 32}]\\nconcurrency: [1, 4]").plan.levels()[1].label
    'ISL 64, OSL 32, concurrency 4'
    """
    try:
        content = parse_yaml(text, name)
    except YamlError as error:
        raise PlanError(str(error)) from None
    if not isinstance(content, dict):
        raise PlanError(f"{name}: a plan is a YAML mapping with lengths and concurrency, this is {_kind(content)}")
    try:
        plan = SweepPlan.model_validate(content)
    except ValidationError as error:
        raise PlanError(f"{name}, {first_fault(error, 'the whole plan')}") from None
    folder = folder or Path.cwd()
    placed = plan.model_copy(update={"lengths": [item.within(folder) for item in plan.lengths]})
    return PlanFile(placed, text, folder)


def _kind(content: object) -> str:
    return "empty" if content is None else f"a {type(content).__name__}"
