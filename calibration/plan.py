"""The plan of a sweep: which server, which lengths, which load levels; read from YAML and checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from calibration.errors import PlanError
from calibration.metrics.precision import Until
from calibration.records import MOST_REQUESTS
from calibration.requests.lengths import LengthsPlan
from sizing.errors import ScenarioError, YamlError, first_fault, quoted
from sizing.files import parse_yaml, yaml_text
from sizing.numbers import per_second
from sizing.points import Interval, KnownPolicy, LoadKind, Point, Ratio, Steps, Wait
from sizing.question import FIELDS, Question
from sizing.workload import Arrivals, Lengths

# --- Shared by the parts of a plan: strictness, and the types of numbers and texts


def _known_arrivals(text: str) -> str:
    if not text.startswith(("poisson", "constant", "gamma")):
        raise ValueError(f"arrivals {text!r}: use poisson, constant or gamma:cv=NUMBER (for instance gamma:cv=2)")
    try:
        Arrivals.parse(text)
    except ScenarioError as error:
        raise ValueError(str(error)) from None
    return text


MOST_PER_S, MOST_AT_ONCE = 1e6, 100_000
MOST_S, MOST_WARM_UP, MOST_PROCESSES = 1e7, 1000, 256
"""More than any load generator sends, any server answers or anybody waits for (1e7 s are four months)."""
Positive = Annotated[float, Field(gt=0, le=MOST_S)]
ZeroOrMore = Annotated[float, Field(ge=0, le=MOST_S)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=MOST_PER_S)]
RateOrPause = Annotated[float, Field(ge=0, le=MOST_PER_S)]
Users = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
Text = Annotated[str, Field(min_length=1)]
ArrivalsText = Annotated[str, AfterValidator(_known_arrivals)]
"""The law of the gaps between requests: ``poisson``, ``constant`` or ``gamma:cv=2``."""


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


Batching = Literal["in_flight", "static"]


class TensorNames(Strict):
    """The names of a model's tensors, where they are not those of the TensorRT-LLM backend.

    Inputs are `prompt` (text), or `token_ids` and `prompt_length`, and `max_tokens`; outputs are `text` or
    `output_ids`. `constants` are further inputs, with the value that they have in every request.
    """

    prompt: Text | None = None
    token_ids: Text | None = None
    prompt_length: Text | None = None
    max_tokens: Text | None = None
    text: Text | None = None
    output_ids: Text | None = None
    constants: dict[str, str | bool | int | float] = Field(default_factory=dict)


Protocol = Literal["grpc", "http", "openai"]
Endpoint = Literal["completions", "chat"]
_HOST, _PORT = r"([^/\s@?#:\[\]]+|\[[0-9a-fA-F:.]+\])", r":(\d{1,5})"
_ADDRESS = re.compile(f"(){_HOST}{_PORT}")
_BASE_URL = re.compile(f"(?:(https?)://)?{_HOST}(?:{_PORT})?" r"(/[^\s?#]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OUR_HEADERS = ("host", "content-type", "content-length", "transfer-encoding", "connection", "accept")
_SECRET_WORDS = {"authorization", "auth", "cookie", "key", "apikey", "token", "secret", "password"}
"""Words of which the name of a header with a secret has one."""
_OUR_FIELDS = ("model", "prompt", "messages", "stream", "max_tokens", "n")
OF_OPENAI = ("endpoint", "api_key_env", "ca_file", "headers", "body")


class ServerPlan(Strict):
    """Where requests are sent and how. A request takes `timeout_s` at most.

    `protocol`: ``grpc`` or ``http`` for Triton, where `url` is host:port and `model` the Triton model; or ``openai``,
    where `url` is ``http://host:8000`` or ``https://host``, and `model` a name that the server lists.
    `metrics_url` (http://host:port/metrics), if set, is read during each level for the server's own view, and to check
    that nobody else loads the server at the same time.

    The other keys are for ``openai``. `endpoint`: /v1/completions or /v1/chat/completions. `api_key_env`: the
    environment variable that holds the key; the key itself is never part of a plan. `ca_file`: certificates to trust
    for HTTPS in addition to the system's. `headers` and `body`: further headers and body fields of every request; the
    header value ``$NAME`` is that of an environment variable, and a field set to null is left out.
    """

    protocol: Protocol = "grpc"
    url: Text = "127.0.0.1:8001"
    model: Text = "ensemble"
    tensors: TensorNames = TensorNames()
    metrics_url: Text | None = None
    timeout_s: Positive = 120.0
    endpoint: Endpoint = "completions"
    api_key_env: str | None = None
    ca_file: Text | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("url", mode="after")
    @classmethod
    def _of_its_protocol(cls, url: str, info: ValidationInfo) -> str:
        openai = info.data.get("protocol") == "openai"
        found = (_BASE_URL if openai else _ADDRESS).fullmatch(url)
        if "@" in url or "?" in url:
            return url  # refused below, where what may be a secret is not shown
        if found is None and openai:
            raise ValueError("http://host:port or https://host is needed, an IPv6 address in brackets")
        if found is None:
            raise ValueError("host:port is needed, [::1]:8001 in IPv6; http://host:port goes with protocol: openai")
        if found[3] and not 0 < int(found[3]) < 65536:
            raise ValueError("a port is a number from 1 to 65535")
        return url

    @field_validator("headers", mode="before")
    @classmethod
    def _of_text(cls, headers: object) -> object:
        for name, value in headers.items() if isinstance(headers, dict) else ():
            if not isinstance(value, str):
                raise ValueError(f"the value of {quoted(name)} is no text: put it in quotes")
        return headers

    @model_validator(mode="after")
    def _fits_its_protocol(self) -> ServerPlan:
        """Errors about a key that may hold a secret do not quote its value."""
        if "@" in self.url or (self.metrics_url and "@" in self.metrics_url.partition("://")[2].partition("/")[0]):
            name = "url" if "@" in self.url else "metrics_url"
            remedy = ": name its variable as api_key_env" * (self.protocol == "openai")
            raise ValueError(f"{name}: a user or password would be stored with the plan{remedy}")
        if "?" in self.url:
            raise ValueError("url: a query would be stored with the plan: leave it out")
        if self.metrics_url and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.metrics_url):
            raise ValueError("metrics_url: http://host:port/metrics is needed")
        if self.protocol != "openai":
            for name in OF_OPENAI:
                if name in self.model_fields_set:
                    raise ValueError(f"{name} goes with protocol: openai only")
            return self
        if "tensors" in self.model_fields_set:
            raise ValueError("tensors goes with Triton's protocols, grpc and http, only")
        for name in ("url", "model"):
            if name not in self.model_fields_set:
                raise ValueError(f"{name} is missing, which protocol: openai needs")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise ValueError(
                "api_key_env must be the name of an environment variable; the key itself stays out of plans"
            )
        _check_headers(self.headers)
        for name in _OUR_FIELDS:
            if name in self.body:
                raise ValueError(f"body: {name} is set for each request and cannot be chosen")
        return self

    @property
    def address(self) -> str:
        """host:port, the default port of its scheme filled in."""
        found = _BASE_URL.fullmatch(self.url) if self.protocol == "openai" else None
        if found is None:
            return self.url
        return f"{found[2]}:{int(found[3] or (443 if found[1] == 'https' else 80))}"

    @property
    def root(self) -> str:
        """The base of an OpenAI server's paths: ``https://host:port`` and a prefix, without ``/v1``."""
        found = _BASE_URL.fullmatch(self.url)
        assert found is not None, "checked when the plan was made"
        prefix = (found[4] or "").rstrip("/").removesuffix("/v1")
        return f"{found[1] or 'http'}://{self.address}{prefix}"


def _check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError("headers: a name of letters, digits and - is needed")
        if name.lower() in _OUR_HEADERS:
            raise ValueError(f"headers: {name} is set by the client and cannot be chosen")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"headers: the value of {name} is not one line of ASCII text")
        if value.startswith("$"):
            if not _VARIABLE.fullmatch(value[1:]):
                raise ValueError(f"headers: the value of {name} is $ and not the name of an environment variable")
        elif _SECRET_WORDS & set(re.split("[-_]", name.lower())):
            raise ValueError(
                f"headers: {name} would be stored with the plan: name an environment variable, as api_key_env or as "
                f"{name}: $NAME"
            )


def is_here(url: str) -> bool:
    """True for an address of this machine itself.

    >>> is_here("127.0.0.1:8001"), is_here("gpu-7:8001")
    (True, False)
    """
    host = url.rpartition(":")[0].lower()
    return host in ("localhost", "[::1]", "0.0.0.0") or host.startswith("127.")


def same_server(one: str, other: str) -> bool:
    """Whether two addresses, each host:port as in a plan, are certainly of the same server.

    >>> same_server("GPU-7:8001", "gpu-7:8001"), same_server("localhost:8001", "127.0.0.1:08001")
    (True, True)
    """
    hosts, ports = zip(*(address.lower().rpartition(":")[::2] for address in (one, other)), strict=True)
    alike = hosts[0] == hosts[1] or (is_here(one) and is_here(other))
    return alike and ports[0].lstrip("0") == ports[1].lstrip("0")


@dataclass(frozen=True, slots=True)
class Answering:
    """What answers at an address: its `protocol`, and the `models` that an OpenAI server lists without a key."""

    protocol: Protocol
    models: tuple[str, ...] = ()


class DeploymentPlan(Strict):
    """Deployment facts of the points that the server does not report, or reports wrongly. Keys listed in `assumed` give
    way to what the server reports.

    `policy`, `token_budget`, `lookahead_steps`, `receive_interval_steps`, `batch_wait_steps` and `batch_wait_ratio` say
    how the engine schedules (`sizing.engine.Batching`): vLLM does not report them. A fit finds what neither says, or
    assumes the default.
    """

    model: Text | None = None
    precision: Text | None = None
    gpu: Text | None = None
    tp: Count | None = None
    pp: Count | None = None
    engine: str | None = None
    engine_version: str | None = None
    batching: Batching | None = None
    max_batch_size: Count | None = None
    policy: KnownPolicy | None = None
    token_budget: Count | None = None
    lookahead_steps: Steps | None = None
    receive_interval_steps: Interval | None = None
    batch_wait_steps: Wait | None = None
    batch_wait_ratio: Ratio | None = None
    assumed: list[Literal["precision", "gpu", "tp", "pp"]] = Field(default_factory=list)


ASKED = (
    "rate isl osl isl_cv osl_cv arrivals routing ttft itl gap e2e goodput rejected queue_limit queue_timeout "
    "headroom spare"
).split()
LENGTHS = "isl osl isl_cv osl_cv".split()


class Budget(Strict):
    """Budget of an adaptive sweep, in GPU-minutes or in minutes of server time. It stops earlier at a narrow `band`.

    `verify_minutes`: how long the planned load of a replica is then offered at random; 0: not at all.
    """

    gpu_minutes: Positive | None = None
    minutes: Positive | None = None
    band: Annotated[float, Field(gt=0, le=1)] = 0.2
    verify_minutes: ZeroOrMore = 0.0

    @model_validator(mode="after")
    def _can_be_asked(self) -> Budget:
        if (self.gpu_minutes is None) == (self.minutes is None):
            raise ValueError("needs gpu_minutes or minutes, one of them")
        try:
            self.question("", Lengths(1000, 1000))
        except ScenarioError as error:
            raise ValueError(str(error).removeprefix("--")) from None
        return self

    def question(self, model: str, first: Lengths) -> Question:
        """The question about `model`; lengths that the plan leaves out are those of `first`. Raises ScenarioError."""
        usual = {name: getattr(first, name) for name in LENGTHS}
        return Question.of(usual | self.model_dump(include={*ASKED}, exclude_none=True) | {"model": model})

    def budget_s(self, gpus: int) -> float:
        """Seconds that an instance of `gpus` GPUs may be measured."""
        return 60 * self.minutes if self.minutes else 60 * (self.gpu_minutes or 0.0) / gpus


_ENTRIES: dict[str, Any] = {name: FIELDS[name].entry for name in ASKED}
_OPEN: dict[str, Any] = dict.fromkeys(LENGTHS, (float | None, None))
AdaptivePlan = create_model("AdaptivePlan", __base__=Budget, **(_ENTRIES | _OPEN))
"""Measure only the levels of the grid that one question's GPU count needs, within `gpu_minutes` or `minutes`.

The question has the fields of a capacity plan, of which `rate` and one limit are required; `isl`, `osl` and their
variations default to the first lengths of the plan. The sweep stops when the 90 % band of the count is no wider than
the fraction `band` of it, or than one replica. With `verify_minutes`, a last level then offers the planned load of a
replica.
"""


LevelKey = tuple[float, float, float, float, LoadKind, float]


@dataclass(frozen=True, slots=True)
class Level:
    """One load level of a sweep: `value` users (closed loop), requests/s (open loop) or sessions/s.

    `requests` are measured: about so many if the plan sets the number, else at least so many. `index` is the level's
    position in the plan and `entry` that of its lengths, with the means and variations `lengths`. `verifies`: this is
    the last level of an adaptive sweep, at the planned load of a replica.
    """

    index: int
    lengths: Lengths
    kind: LoadKind
    value: float
    requests: int
    entry: int = 0
    verifies: bool = False

    @property
    def key(self) -> LevelKey:
        """Distinguishes the levels of one run; the point measured at a level has the same key."""
        return (
            self.lengths.isl,
            self.lengths.osl,
            self.lengths.isl_cv,
            self.lengths.osl_cv,
            self.kind,
            self.value,
        )

    @property
    def closed(self) -> bool:
        """True for a closed loop: each user waits for an answer before sending the next request."""
        return self.kind in ("concurrency", "sessions")

    @property
    def label(self) -> str:
        """For progress lines: ``ISL 64, OSL 32, concurrency 4``."""
        noun = "session" if self.kind == "session_rate" else "request"
        users = "concurrency" if self.kind == "concurrency" else "concurrent sessions"
        load = f"{users} {self.value:g}" if self.closed else per_second(self.value, noun=noun)
        return f"ISL {self.lengths.isl:g}, OSL {self.lengths.osl:g}, {load}"


def level_key(point: Point) -> LevelKey:
    """The key of the level at which `point` was measured."""
    return (point.isl, point.osl, point.isl_cv, point.osl_cv, point.load_kind, point.load_value)


RATE_KINDS: dict[str, LoadKind] = {"poisson": "poisson_rate", "constant": "constant_rate", "gamma": "gamma_rate"}
"""Law of the arrivals -> kind of an open-loop level."""
FEWEST_ARRIVALS = 2
MOST_LEVELS = 10_000
ALL_OF_THEM = 10**9
BUDGET_S = 120.0
"""Longest time of a level if the plan sets neither a time nor a number of requests."""


class StagePlan(Strict):
    """`rate` requests/s for `for_s` seconds; a rate of 0 is a pause."""

    for_s: Positive
    rate: RateOrPause


class ClientPlan(Strict):
    """The load generator: the number of its `processes` (default: as many as it needs).

    `self_check`: before a sweep it is tested on a mock with known timings, at the heaviest level's load.
    """

    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] | None = None
    self_check: bool = True


class SweepPlan(Strict):
    """Each of `lengths` at every level of load.

    Closed loop: `concurrency` users. Open loop: `rates` in requests/s with gaps by `arrivals` (poisson, constant or
    gamma:cv=2); one `schedule` of stages; and, for lengths that are a trace, its own arrivals at each speed of
    `replay`. For lengths that are sessions, `rates` are sessions/s, and `concurrency` users have one session after
    another. Levels at a constant or Poisson rate that the server keeps up with are fitted as well; other open loops and
    sessions are for checking predictions.

    A level is measured `until` its means are known precisely enough, for `budget_s` seconds at most (default 120), or
    for `requests_per_level` requests and the few that are sent before all users have stopped. A schedule or trace is
    sent in full unless `budget_s` cuts it. The first `warm_up` requests (sessions) of each user are left out. Users
    start one after the other over `ramp_s` (default: about the time of one request). Lengths given only by their means
    vary (see LengthsPlan). A sweep of closed loops alone ends with random arrivals at the fraction `check_load` of the
    highest requests/s found (default 0.7; 0: no such level), once for each of the lengths: they reveal overheads of the
    engine that closed loops cannot. Prompts depend on `seed` and are new in every run. `tokenizer` is a tokenizer.json
    or its folder; if unset, the server is asked; ``none`` counts words. With `adaptive`, only the closed-loop levels
    that its question needs are measured.
    """

    server: ServerPlan = ServerPlan()
    deployment: DeploymentPlan = DeploymentPlan()
    lengths: Annotated[list[LengthsPlan], Field(min_length=1)]
    concurrency: list[Users] = Field(default_factory=list)
    rates: list[Rate] = Field(default_factory=list)
    arrivals: ArrivalsText = "poisson"
    schedule: list[StagePlan] = Field(default_factory=list)
    replay: list[Positive] = Field(default_factory=list)
    until: Until = Until()
    requests_per_level: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = None
    warm_up: Annotated[int, Field(ge=0, le=MOST_WARM_UP)] = 2
    check_load: Annotated[float, Field(ge=0, lt=1)] = 0.7
    ramp_s: ZeroOrMore | None = None
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
        if self.schedule and not FEWEST_ARRIVALS <= due <= MOST_REQUESTS:
            raise ValueError(
                f"schedule: its stages come to {due:g} requests, {FEWEST_ARRIVALS} to {MOST_REQUESTS:,} are needed"
            )
        if self.adaptive is not None and not self.concurrency:
            raise ValueError("adaptive: it chooses among closed-loop levels: give concurrency, for instance [1, 8, 64]")
        if self.verifies and self.rate_kind != "poisson_rate":
            raise ValueError("adaptive: verify_minutes offers random arrivals: leave out arrivals, or give poisson")
        if self.replay and not any(item.trace for item in self.lengths):
            raise ValueError("replay: none of the lengths is a trace, for instance {trace: requests.csv}")
        if any(item.sessions for item in self.lengths):
            self._check_sessions()
        loads = len(self.concurrency) + len(self.rates) + len(self.replay) + bool(self.schedule)
        if len(self.lengths) * loads > MOST_LEVELS:
            raise ValueError(f"{len(self.lengths):,} lengths at {loads:,} loads are more than {MOST_LEVELS:,} levels")
        for name in ("lengths", "concurrency", "rates", "replay"):
            value = next((value for value, times in Counter(getattr(self, name)).items() if times > 1), None)
            if value is not None:
                raise ValueError(f"{name}: {value} is repeated")
        return self

    def _check_sessions(self) -> None:
        """Raises ValueError if a key of the plan cannot be combined with sessions."""
        if self.server.protocol != "openai" or self.server.endpoint != "completions":
            raise ValueError(
                "sessions repeat the token ids of the server's answers, which take protocol: openai and endpoint: "
                "completions"
            )
        for name in ("schedule", "replay", "adaptive"):
            if getattr(self, name):
                raise ValueError(f"{name} does not go with sessions: give concurrency or rates")
        if self.rates and self.rate_kind != "poisson_rate":
            raise ValueError("arrivals: sessions begin at random: leave it out, or give poisson")

    def levels(self, lengths: Sequence[Lengths] | None = None) -> list[Level]:
        """The levels in the order in which they are measured: for each lengths, concurrency first, then open loops.

        `lengths`: means and variations of each entry of the plan, if the tokens of its files have been counted. Raises
        PlanError if two levels have the same key, FileError if a file of lengths cannot be used.
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
                raise PlanError(f"two levels of the plan have the same means and load: {level.label}; remove one")
        return levels

    def _loads(self, item: LengthsPlan) -> list[tuple[LoadKind, float]]:
        closed: LoadKind = "concurrency" if item.sessions is None else "sessions"
        if item.concurrency is not None:
            return [(closed, float(item.concurrency))]
        loads: list[tuple[LoadKind, float]] = [(closed, float(users)) for users in self.concurrency]
        loads += [(self.rate_kind if item.sessions is None else "session_rate", rate) for rate in self.rates]
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
        return RATE_KINDS[Arrivals.parse(self.arrivals).kind]

    @property
    def check_loads(self) -> int:
        """Open-loop levels at the end of the sweep, whose loads depend on its points: one for each of the lengths that
        has the plan's own concurrency, or none."""
        named = self.rates or self.schedule or self.replay or self.adaptive or not self.concurrency
        if named or not self.check_load:
            return 0
        return sum(item.concurrency is None and item.sessions is None for item in self.lengths)

    @property
    def verifies(self) -> bool:
        """Whether an adaptive sweep ends with the planned load of a replica."""
        return self.adaptive is not None and self.adaptive.verify_minutes > 0

    def _requests(self, kind: LoadKind, value: float) -> int:
        if self.requests_per_level is not None:
            return self.requests_per_level
        return max(50, 10 * round(value)) if kind in ("concurrency", "sessions") else 100

    def until_of(self, level: Level) -> Until:
        """When the level has been measured long enough."""
        if level.kind in ("schedule", "trace"):  # these end when all their requests are sent
            return Until(requests_min=ALL_OF_THEM, budget_s=self.budget_s)
        if level.verifies:
            assert self.adaptive is not None
            return Until(requests_min=ALL_OF_THEM, budget_s=60 * self.adaptive.verify_minutes)
        if self.requests_per_level is not None:
            return Until(requests_min=level.requests, requests_max=level.requests, budget_s=self.budget_s)
        budget_s = self.budget_s or self.until.budget_s or BUDGET_S
        return self.until.model_copy(update={"budget_s": budget_s})


# --- The levels that an adaptive sweep chooses from if the user names none

MOST_USERS = 128
LEVELS_IN_BUDGET = 10
"""A level takes at most 1 / LEVELS_IN_BUDGET of the budget, so that several fit into it."""
SHORTEST_S, LONGEST_S = 5.0, 120.0
USUAL: Mapping[str, str] = {"precision": "bf16", "tp": "1"}
"""Assumed of a deployment if neither the server nor the user says it."""


def users_of(most: int) -> list[int]:
    """1, 2, 3, 5 and so on, each the sum of the two before it, up to `most`.

    A partly filled tile of a matrix product costs as much as a full one, so batches of 16, 32 or 64 are the cheapest of
    their kind (NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization"): with a 32B model in fp8 on
    an H200, a decode step of vLLM takes 12.9 ms with 16 sequences and 16.7 ms with 17. A law fitted to powers of two
    alone is too fast between them; most of these levels lie there.

    >>> users_of(64)
    [1, 2, 3, 5, 8, 13, 21, 34, 55, 64]
    """
    users, after = [1], 2
    while after < most:
        users, after = [*users, after], users[-1] + after
    return [*users, most]


def level_s(budget_s: float) -> float:
    """Seconds that one level may take out of `budget_s`."""
    return min(LONGEST_S, max(SHORTEST_S, budget_s / LEVELS_IN_BUDGET))


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A checked plan with the text it was read from, so that a run can be resumed without the file.

    Relative paths in the plan start at `folder`.
    """

    plan: SweepPlan
    text: str
    folder: Path

    @property
    def tokenizer_file(self) -> Path | None:
        """The tokenizer.json that the plan names, itself or by its folder; None where it names none."""
        named = self.plan.tokenizer
        if named in (None, "none"):
            return None
        path = self.folder / str(named)
        return path / "tokenizer.json" if path.is_dir() else path


def read_plan(path: Path | str) -> PlanFile:
    """The plan in a YAML file. Raises PlanError: one line with the file, the key and the fault."""
    path = Path(path)
    try:
        text = yaml_text(path, "plan file")
    except YamlError as error:
        raise PlanError(str(error)) from None
    return parse_plan(text, name=str(path), folder=path.resolve().parent)


def parse_plan(text: str, name: str = "plan", folder: Path | None = None) -> PlanFile:
    """The plan in `text`, which errors call `name`. Raises PlanError.

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
    server = plan.server
    if server.ca_file is not None:
        server = server.model_copy(update={"ca_file": str(folder / server.ca_file)})
    placed = plan.model_copy(update={"server": server, "lengths": [item.within(folder) for item in plan.lengths]})
    return PlanFile(placed, text, folder)


def _kind(content: object) -> str:
    return "empty" if content is None else f"a {type(content).__name__}"
