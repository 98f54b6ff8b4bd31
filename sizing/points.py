"""Measured points, the curves and deployments they belong to, and the points table (CSV) that carries them."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TextIO

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sizing.catalog import Layout
from sizing.engine import MOST_INTERVAL as MOST_INTERVAL
from sizing.engine import MOST_LOOKAHEAD, Policy
from sizing.errors import LONGEST_QUOTE, PointsError, first_fault, quoted
from sizing.numbers import per_second, significant
from sizing.workload import MOST_CV, MOST_TOKENS, OF_REQUESTS, PERCENTILES, Lengths, Prefix

LoadKind = Literal[
    "concurrency", "constant_rate", "poisson_rate", "gamma_rate", "schedule", "trace", "sessions", "session_rate"
]
"""Meaning of the load value: users of a closed loop; requests/s; users who have one session after another, thinking
between its turns; sessions that begin in a second."""
Verdict = Literal[
    "", "steady", "overloaded", "unsteady", "client_limited", "shared", "errors", "wrong_lengths", "little"
]
"""How good a point is: "" not judged, "steady" fit for use, every other void, and why."""
NOT_VOID: tuple[Verdict, ...] = ("", "steady")
"""Verdicts of points that are not void."""
Start = Literal["", "staggered", "together", "burst"]
"""How the users of a closed loop started: one after the other, in the same instant, within a millisecond; ""
unknown."""
KnownPolicy = Literal["", Policy]
"""How an engine forms its iterations (`sizing.engine.Policy`); "" unknown."""
UNITS: Mapping[LoadKind, str] = {
    "concurrency": "users",
    "sessions": "users with sessions",
    "session_rate": "sessions/s",
}
"""Unit of the load value, by kind; for all others requests/s."""
ONE_ISL = 1.2
"""Longest over shortest ISL up to which prompts count as equally long."""
Text = Annotated[str, Field(min_length=1)]
Gpus = Annotated[int, Field(ge=1, le=10**6)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Tokens = Annotated[float, Field(ge=1, le=MOST_TOKENS)]
Variation = Annotated[float, Field(ge=0, le=MOST_CV)]
Rate = Annotated[float, Field(ge=1e-9, le=1e9)]
TokenRate = Annotated[float, Field(ge=1e-9, le=1e12)]
InFlight = Annotated[float, Field(ge=0, le=1e9)]
Latency = Annotated[float, Field(ge=0, le=1e6)]
PrefixTokens = Annotated[float, Field(ge=0, le=MOST_TOKENS)]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[float, Field(ge=0, le=MOST_LOOKAHEAD)]
Interval = Annotated[int, Field(ge=1, le=MOST_INTERVAL)]
Wait = Annotated[int, Field(ge=0, le=MOST_INTERVAL)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Duration = Annotated[float, Field(gt=0, le=1e9)]
"""Bounds on what a server can do: beyond them a number is a typo or in another unit, and the arithmetic overflows."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(allow_inf_nan=False, extra="forbid"))
class Point:
    """One load level, measured: a row of the points table. Times in seconds; unknown = None.

    `itl` is the mean gap after the first token, one value per request; `gap` are gaps between single tokens. In an open
    loop, latencies run from the moment a request was due, even if it was sent late. `load_value` is users in a closed
    loop and requests/s in an open one, for a schedule or trace their mean. `prefix_tokens`: how many tokens at their
    start the prompts share; `prefix_hit`: the share of requests that found them in the server's prefix cache. Unknown
    counts as none. `kv_tokens` and `kv_block_tokens`: how many tokens the instance's KV cache and a block of it hold,
    according to the server. `protocol`: how the users of a closed loop started; their warm-up is left out of the
    figures if they were *staggered*. `policy`, `token_budget`, `lookahead_steps`, `receive_interval_steps`,
    `batch_wait_steps` and `batch_wait_ratio`: how the engine schedules, as far as its server or its owner says so.
    """

    model: Text
    precision: Text
    gpu: Text
    tp: Gpus
    pp: Gpus = 1
    engine: str = ""
    engine_version: str = ""
    batching: str = ""
    max_batch_size: Count | None = None
    isl: Tokens
    osl: Tokens
    isl_cv: Variation = 0.0
    osl_cv: Variation = 0.0
    load_kind: LoadKind
    load_value: Rate
    duration_s: Duration | None = None
    requests: Count | None = None
    errors: Count | None = None
    requests_per_s: Rate
    output_tokens_per_s: TokenRate | None = None
    mean_in_flight: InFlight | None = None
    ttft_mean_s: Latency | None = None
    ttft_p50_s: Latency | None = None
    ttft_p90_s: Latency | None = None
    ttft_p95_s: Latency | None = None
    ttft_p99_s: Latency | None = None
    itl_mean_s: Latency | None = None
    itl_p50_s: Latency | None = None
    itl_p90_s: Latency | None = None
    itl_p95_s: Latency | None = None
    itl_p99_s: Latency | None = None
    e2e_mean_s: Latency | None = None
    e2e_p50_s: Latency | None = None
    e2e_p90_s: Latency | None = None
    e2e_p95_s: Latency | None = None
    e2e_p99_s: Latency | None = None
    gap_p50_s: Latency | None = None
    gap_p95_s: Latency | None = None
    gap_p99_s: Latency | None = None
    source: str = ""
    measured_at: str = ""
    notes: str = ""
    verdict: Verdict = ""
    prefix_tokens: PrefixTokens | None = None
    prefix_hit: Share | None = None
    kv_tokens: Count | None = None
    protocol: Start = ""
    policy: KnownPolicy = ""
    token_budget: Count | None = None
    lookahead_steps: Steps | None = None
    receive_interval_steps: Interval | None = None
    batch_wait_steps: Wait | None = None
    batch_wait_ratio: Ratio | None = None
    kv_block_tokens: Count | None = None

    @property
    def void(self) -> bool:
        """True for a point that was measured but does not describe the server's steady state: it is never fitted."""
        return self.verdict not in NOT_VOID

    @property
    def closed(self) -> bool:
        """True for a closed loop of `load_value` concurrent users."""
        return self.load_kind == "concurrency"

    @property
    def deployment(self) -> Deployment:
        """Everything that determines how one instance behaves."""
        return Deployment(*(getattr(self, name) for name in Deployment._fields))

    @property
    def scheduling(self) -> Scheduling:
        """What is known of the engine's scheduler."""
        told = Scheduling(*(getattr(self, name) for name in Scheduling._fields))
        return told._replace(token_budget=told.token_budget or None)

    @property
    def lengths(self) -> Lengths:
        """The distribution of the requests' lengths."""
        return Lengths(self.isl, self.osl, self.isl_cv, self.osl_cv)

    @property
    def prefix(self) -> Prefix:
        """The tokens shared and found in the cache; none if either number is unknown."""
        if not self.prefix_tokens or not self.prefix_hit:
            return Prefix()
        return Prefix(round(self.prefix_tokens), self.prefix_hit)

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that a mean request computes: those not found in the cache."""
        return self.isl - self.prefix.found_tokens(self.isl, self.isl_cv)

    @property
    def series(self) -> Series:
        """What the points of one curve have in common. Hit shares are rounded to tenths, because a server's counts
        differ slightly from level to level."""
        return Series(self.deployment, self.lengths, self.prefix.rounded)

    @property
    def gpus(self) -> int:
        """GPUs of the instance: tensor times pipeline parallel."""
        return self.tp * self.pp

    def of_one(self, replicas: int) -> Point:
        """This load as seen by one of so many equal replicas, all of which served it behind one endpoint.

        A user is on one replica at a time, so users become a whole number, at least one; requests/s are divided in the
        same proportion, which preserves Little's law.
        """
        share = 1 / replicas
        if self.load_kind in ("concurrency", "sessions"):
            share = max(1, round(self.load_value / replicas)) / self.load_value
        if replicas == 1 or share >= 1:
            return self
        per_second = {
            name: value * share
            for name in ("load_value", "requests_per_s", "output_tokens_per_s", "mean_in_flight")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **per_second, requests=self.requests and max(1, round(self.requests * share)))

    @property
    def load_label(self) -> str:
        """The load offered, in words: ``16 users`` for a closed loop, ``12 requests/s`` for an open one."""
        if self.load_kind not in UNITS:
            return per_second(self.load_value)
        unit = UNITS[self.load_kind]
        if self.load_value == 1:
            unit = unit.replace("users", "user").replace("sessions/s", "session/s")
        return f"{significant(self.load_value)} {unit}"

    @property
    def little(self) -> float | None:
        """requests/s x mean E2E over the concurrency held: 1 by Little's law, None if it is unknown."""
        in_flight = self.load_value if self.closed else self.mean_in_flight
        if self.e2e_mean_s is None or not in_flight:
            return None
        return self.requests_per_s * self.e2e_mean_s / in_flight


class Scheduling(NamedTuple):
    """How an engine schedules, as told: fields of `sizing.engine.Batching`, "" or None where nothing is known."""

    policy: KnownPolicy = ""
    token_budget: int | None = None
    lookahead_steps: float | None = None
    receive_interval_steps: int | None = None
    batch_wait_steps: int | None = None
    batch_wait_ratio: float | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The fields of which something is known, by the names that Batching has for them."""
        return {name: value for name, value in self._asdict().items() if value not in ("", None)}


UNSAID = Scheduling()


class Deployment(NamedTuple):
    """Model, precision, GPU, TP, PP, engine and version, batching settings."""

    model: str
    precision: str
    gpu: str
    tp: int
    pp: int = 1
    engine: str = ""
    engine_version: str = ""
    batching: str = ""
    max_batch_size: int | None = None

    @property
    def layout(self) -> Layout:
        """How its GPUs share the model, as far as points record it."""
        return Layout(self.tp, self.pp)

    @property
    def label(self) -> str:
        """A line for tables and charts."""
        engine = f"{self.engine} {self.engine_version}".strip() or "engine not named"
        batching = f", {self.batching}" if self.batching else ""
        return f"{self.model} {self.precision}, {self.gpu} {self.layout}, {engine}{batching}"


TELLING = ("steady", "overloaded")
"""Verdicts on a level of random arrivals that show whether a server performs as planned."""


def same_isl(lengths: Iterable[float]) -> bool:
    """True for ISLs within 20 % of each other: they do not show how the cost of a prompt depends on its length."""
    known = list(lengths)
    return max(known) <= ONE_ISL * min(known)


STARTS: dict[str, Literal["together", "ramp", "burst"]] = {
    "together": "together",
    "staggered": "ramp",
    "burst": "burst",
}
"""How the users of a closed loop may start, by the names that planners know."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How the points were measured, as far as it affects means.

    `start`: users of a closed loop started one after the other (*ramp*), all in the same instant (*together*), within a
    millisecond (*burst*: the first prompt is alone in its iteration, and all others wait for it: two users see a TTFT
    1.5 times that of one, not twice), or it is unknown: then the fit infers it from the residuals. `counted`: requests
    of the *steady* state, or *all* starting from an empty server, and in an open loop those completed within
    `duration_s`. `ttft_sigma`: relative standard error of a mean TTFT. `inferred`: the start was not given, the fit
    found it.
    """

    start: Literal["ramp", "together", "burst", "unknown"] = "unknown"
    counted: Literal["steady", "all"] = "steady"
    ttft_sigma: float = 0.04
    inferred: bool = False

    @classmethod
    def named(cls, name: str) -> Protocol:
        """The protocol by the name that planners know, one of STARTS; empty: unknown."""
        return cls(STARTS[name]) if name else cls()

    @property
    def at_once(self) -> bool:
        """True if the users of a closed loop started together, to the millisecond: equal requests stay in lockstep."""
        return self.start in ("together", "burst")


UNTOLD = Protocol()


class Series(NamedTuple):
    """What may be drawn as one curve: deployment, distribution of lengths, and the prefix that prompts share."""

    deployment: Deployment
    lengths: Lengths
    prefix: Prefix


class Curve(NamedTuple):
    """The points of one deployment, one distribution of lengths (means and coefficients of variation) and one shared
    prefix, by rising load."""

    deployment: Deployment
    lengths: Lengths
    points: tuple[Point, ...]
    prefix: Prefix = Prefix()


_POINTS = TypeAdapter(Point)
_BEHIND = TypeAdapter(dict[str, Gpus])
COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Point))
MOST_POINTS = 100_000
MOST_BYTES = 50_000_000
LONGEST_LINE = 100_000
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
KEPT_UP = 0.95
"""Share of the rate offered in an open loop from which a server counts as having kept up with it."""
REPLICAS = "replicas"
"""An additional column of tables from elsewhere: replicas behind the measured endpoint."""
NEEDED = ("model", "precision", "gpu", "tp", "isl", "osl", "load_kind", "load_value", "requests_per_s")


def read_points(path: Path | str, most: int = MOST_POINTS, *, replicas: int = 1) -> list[Point]:
    """The points of a CSV file with the columns of the points table; empty cells are unknown values.

    If several equal replicas served one endpoint, a point is the load as seen by one of them (see `Point.of_one`): the
    number of replicas is the row's value in a column `replicas`, else the caller's.

    Raises PointsError, one line naming file, row and column, if the file is missing, is not a points table, holds more
    than `most` points, or a value is impossible.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise PointsError(f"{path}: larger than {MOST_BYTES // 1_000_000} MB, which no points table is")
        return _parse(csv.reader(_lines(raw)), str(path), most, replicas)
    except FileNotFoundError:
        raise PointsError(f"{path}: no such points file") from None
    except UnicodeDecodeError:
        raise PointsError(f"{path}: cannot be read as a points table: not UTF-8 text") from None
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise PointsError(f"{path}: cannot be read as a CSV points table ({reason})") from None


def _lines(raw: bytes) -> Iterator[str]:
    for line in TextIOWrapper(BytesIO(raw), encoding="utf-8-sig", newline=""):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line of {len(line):,} characters")
        yield line


def _parse(rows: Iterator[list[str]], name: str, most: int, replicas: int) -> list[Point]:
    rows = ([cell.strip() for cell in row] for row in rows)
    header = _header(next(rows, []), name)
    points: dict[Point, int] = {}
    for number, row in enumerate(rows, start=2):
        if not any(row):  # a spreadsheet writes an empty row as commas
            continue
        if len(points) == most:
            raise PointsError(f"{name}: more than {most:,} points: split it")
        point = _point(header, row, f"{name}, row {number}", replicas)
        if point in points:
            raise PointsError(f"{name}, row {number}: the point of row {points[point]} again: keep one of them")
        points[point] = number
    if not points:
        raise PointsError(f"{name}: the file holds no points, only a header")
    return list(points)


def _header(header: list[str], name: str) -> list[str]:
    for sign, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and sign in header[0]:
            raise PointsError(f"{name}: columns are separated by {called}: write it with commas, decimals with points")
    for column in NEEDED:
        if column not in header:
            raise PointsError(f"{name}: column {column!r} is missing; a points table needs {', '.join(NEEDED)}")
    for place, column in enumerate(header):
        if column not in (*COLUMNS, REPLICAS):
            near = difflib.get_close_matches(column[:LONGEST_QUOTE], COLUMNS)
            hint = f"did you mean {' or '.join(near)}?" if near else "leave it out"
            raise PointsError(f"{name}: unknown column {quoted(column)}: {hint}")
        if column in header[:place]:
            raise PointsError(f"{name}: column {column!r} is there twice: keep one of them")
    return header


def _point(header: list[str], row: list[str], where: str, replicas: int) -> Point:
    if len(row) > len(header):
        raise PointsError(f"{where}: more cells than columns")
    known: dict[str, Any] = {column: _value(cell) for column, cell in zip(header, row, strict=False) if cell}
    try:
        behind = _BEHIND.validate_python({REPLICAS: known.pop(REPLICAS, replicas)})[REPLICAS]
        return _POINTS.validate_python(known).of_one(behind)
    except ValidationError as error:
        fault = first_fault(error)
        raise PointsError(f"{where}, column {fault.key!r}: {fault.reason}") from None


def write_points(points: Iterable[Point], file: TextIO) -> None:
    """Write the points table. Text that a spreadsheet would run as a formula gets a leading apostrophe."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        writer.writerow([_cell(getattr(point, column)) for column in COLUMNS])


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value


def _value(cell: str) -> str:
    """The text behind a cell: without the apostrophe that `_cell` puts before a formula's first character."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_STARTS) else cell


def curves(points: Sequence[Point]) -> list[Curve]:
    """Closed-loop points that are not void, grouped by deployment, lengths and shared prefix, each curve by rising
    concurrency."""
    groups: dict[Series, list[Point]] = {}
    for point in points:
        if point.closed and not point.void:
            groups.setdefault(point.series, []).append(point)
    return [
        Curve(deployment, lengths, tuple(sorted(group, key=lambda point: point.load_value)), prefix)
        for (deployment, lengths, prefix), group in groups.items()
    ]


def doubts(point: Point) -> list[str]:
    """Reasons to distrust a point: Little's law broken by over 5 %, percentiles out of order, unlikely units."""
    found = []
    if point.little is not None and not math.isclose(point.little, 1, abs_tol=0.05):
        found.append(f"requests/s x mean E2E is {point.little:.2f} x the load in flight; Little's law wants 1")
    for metric in OF_REQUESTS:
        values = [getattr(point, f"{metric}_p{q}_s") for q in PERCENTILES]
        known = [value for value in values if value is not None]
        if known != sorted(known):
            found.append(f"{metric} percentiles fall instead of rising")
    if point.ttft_mean_s and point.e2e_mean_s and point.ttft_mean_s > point.e2e_mean_s:
        found.append("mean TTFT is longer than mean E2E")
    if point.itl_mean_s and point.itl_mean_s > 10:
        found.append(f"mean ITL of {point.itl_mean_s:g} s: were milliseconds written as seconds?")
    return found
