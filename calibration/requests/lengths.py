"""The lengths of a plan's requests: drawn from a law, or read from a file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from calibration.errors import FileError
from calibration.requests.tokens import Encoder, encoder_of
from sizing.errors import ScenarioError
from sizing.token_law import TokenLaw
from sizing.trace import TraceError
from sizing.trace_files import read_trace_noted
from sizing.workload import Lengths, Seconds, Sessions, Tokens, TurnLaw, Turns, parse_seconds

Law = Literal["lognormal", "normal"]
Window = tuple[int, int]
Quantiles = tuple[float, float]
"""Two numbers from 0 to below 1."""
LEAST_QUANTILE = 2.0**-60
"""The normal law has no value at the quantile 0."""
EVENLY = (np.arange(4096) + 0.5) / 4096
"""Quantiles for means that have no formula."""
ROUNDING_COUNTS = 2.0
"""Mean of a lognormal law, in tokens, below which rounding to whole ones, and to at least 1, moves it by up to 6 %."""


@dataclass(frozen=True, slots=True)
class Side:
    """The law of one of the two lengths: uniform from `low` to `high`, or `law` with mean `mean` and `cv`."""

    mean: float
    cv: float
    law: Literal["lognormal", "normal", "uniform"] | TokenLaw
    low: int = 1
    high: int = 1

    def at(self, quantile: float) -> int:
        """The length at a quantile from 0 to below 1: in tokens, at least 1."""
        if isinstance(self.law, TokenLaw):
            return int(self.law.at(np.array([quantile]))[0])
        if self.law == "uniform":
            return self.low + int(quantile * (self.high - self.low + 1))
        if self.cv == 0:
            return max(1, round(self.mean))
        score = NormalDist().inv_cdf(max(quantile, LEAST_QUANTILE))
        if self.law == "normal":
            return max(1, round(self.mean * (1 + self.cv * score)))
        sigma = math.sqrt(math.log1p(self.cv**2))
        return max(1, round(self.mean * math.exp(sigma * score - sigma**2 / 2)))

    def mean_and_cv(self) -> tuple[float, float]:
        """Mean and coefficient of variation of the lengths drawn; before rounding to tokens if that hardly matters."""
        if self.law == "normal" and self.cv:
            return _normal_from_one(self.mean, self.cv * self.mean)
        if self.law == "lognormal" and self.cv and self.mean < ROUNDING_COUNTS:
            return _mean_and_cv(np.array([self.at(share) for share in EVENLY]), None)
        return self.mean, self.cv

    def least_mean(self, fewest: int) -> float:
        """The mean of the lengths drawn if nothing shorter than `fewest` can be sent."""
        return float(np.mean([max(self.at(share), fewest) for share in EVENLY]))


def side(length: float | Window | str, cv: float, law: Law) -> Side:
    """The law of lengths with mean `length` and coefficient of variation `cv`, the uniform law in the window `length`,
    or the law in a text. A mean of one token does not vary, since nothing is shorter."""
    if isinstance(length, str):
        said = _law(length)
        return Side(said.mean, said.cv, said)
    if not isinstance(length, tuple):
        return Side(length, cv if length > 1 else 0.0, law)
    low, high = length
    mean = (low + high) / 2
    return Side(mean, math.sqrt(((high - low + 1) ** 2 - 1) / 12) / mean, "uniform", low, high)


def _normal_from_one(mean: float, sd: float) -> tuple[float, float]:
    """Mean and cv of max(1, X), X normal: E = Φ(a) + mean·(1-Φ(a)) + sd·φ(a), a = (1-mean)/sd; E² alike."""
    a = (1 - mean) / sd
    below = (1 + math.erf(a / math.sqrt(2))) / 2
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    first = below + mean * (1 - below) + sd * density
    second = below + (mean**2 + sd**2) * (1 - below) + sd * (mean + 1) * density
    return first, math.sqrt(max(0.0, second - first**2)) / first


@dataclass(frozen=True, slots=True)
class Drawn:
    """Input and output lengths, each drawn from its own law."""

    isl: Side
    osl: Side

    def pair(self, number: int, quantiles: Quantiles) -> tuple[int, int]:
        """(ISL, OSL) of a request, each at a quantile of its own."""
        isl, osl = quantiles
        return self.isl.at(isl), self.osl.at(osl)

    def summary(self) -> Lengths:
        """Means and coefficients of variation of the laws."""
        isl_mean, isl_cv = self.isl.mean_and_cv()
        osl_mean, osl_cv = self.osl.mean_and_cv()
        return Lengths(isl_mean, osl_mean, isl_cv, osl_cv)


# --- Files with the lengths of requests: histograms of lengths, data sets of texts, recorded traces
#
# Their content is only data: texts are sent as prompts, numbers are checked.

LARGEST_FILE_BYTES = 256 * 2**20
LONGEST_TOKENS = 1_000_000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Pairs of lengths and their frequencies: arrays of shape (n,), with the cumulative `share` rising to exactly 1."""

    isl: Tokens
    osl: Tokens
    share: Seconds

    def pair(self, number: int, quantiles: Quantiles) -> tuple[int, int]:
        """(ISL, OSL) of a request: the row of the file at the first of the quantiles."""
        row = int(np.searchsorted(self.share, quantiles[0], side="right"))
        return int(self.isl[row]), int(self.osl[row])

    def summary(self) -> Lengths:
        """Weighted means and coefficients of variation."""
        return summary(self.isl, self.osl, np.diff(self.share, prepend=0.0))


@dataclass(frozen=True, slots=True)
class LengthsTrace:
    """Requests as recorded: seconds since the first, and lengths; arrays of shape (n,), in order of arrival.

    `notes`: what was left out of the file, sorted or assumed.
    """

    arrival_s: Seconds
    isl: Tokens
    osl: Tokens
    notes: tuple[str, ...] = ()

    def pair(self, number: int, quantiles: Quantiles) -> tuple[int, int] | None:
        """(ISL, OSL) of request `number`; None after the last."""
        return (int(self.isl[number]), int(self.osl[number])) if number < len(self.isl) else None

    def taken(self, order: NDArray[np.int64]) -> LengthsTrace:
        """The lengths in another order, at the times of the file."""
        return replace(self, isl=self.isl[order], osl=self.osl[order])

    def summary(self) -> Lengths:
        """Means and coefficients of variation."""
        return summary(self.isl, self.osl)


@dataclass(frozen=True, slots=True)
class Text:
    """One item of a data set: a prompt, and an answer to it, empty if the file has none."""

    prompt: str
    answer: str


def summary(isl: Tokens, osl: Tokens, weights: Seconds | None = None) -> Lengths:
    """Means and coefficients of variation of lengths in arrays of shape (n,)."""
    isl_mean, isl_cv = _mean_and_cv(isl, weights)
    osl_mean, osl_cv = _mean_and_cv(osl, weights)
    return Lengths(isl_mean, osl_mean, isl_cv, osl_cv)


def _mean_and_cv(values: Tokens, weights: Seconds | None) -> tuple[float, float]:
    if values.min() == values.max():
        return float(values[0]), 0.0  # exactly, without the rounding errors of weights
    mean = float(np.average(values, weights=weights))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=weights))) / mean


def read_histogram(path: Path) -> LengthHistogram:
    """A CSV with the columns isl, osl and, unless every pair is as frequent, weight. Raises FileError."""
    rows = list(_csv_rows(path, ("isl", "osl")))
    isl = np.array([_tokens(row, "isl", where) for where, row in rows], np.int64)
    osl = np.array([_tokens(row, "osl", where) for where, row in rows], np.int64)
    weight = np.array([_number(row, "weight", where) if "weight" in row else 1.0 for where, row in rows])
    if not weight.sum():
        raise FileError(f"{path}: every weight is 0; give at least one pair of lengths a weight above 0")
    share = np.cumsum(weight)
    return LengthHistogram(isl, osl, share / share[-1])


def read_trace(path: Path) -> LengthsTrace:
    """The requests in any trace that the planner reads (`sizing.trace_files`). Raises FileError."""
    if not path.is_file():
        raise _absent(path)
    try:
        trace, _, notes = read_trace_noted(path)
    except TraceError as error:
        raise FileError(str(error)) from None
    longest = int(max(trace.isl.max(), trace.osl.max()))
    if longest > LONGEST_TOKENS:
        raise FileError(f"{path}: it has a prompt or answer of {longest:,} tokens, at most {LONGEST_TOKENS:,} are sent")
    times_s, isl, osl = trace.arrival_s, trace.isl.astype(np.int64), trace.osl.astype(np.int64)
    return LengthsTrace(times_s - times_s[0], isl, osl, notes)


def read_dataset(path: Path) -> list[Text]:
    """A JSON list of {input, instruction, output}, the last two optional.

    A prompt is input and instruction, joined as by the clients of the TensorRT-LLM backend. Raises FileError.
    """
    content = _json(_read(path), str(path))
    if not isinstance(content, list) or not content:
        raise FileError(f'{path}: a data set is a JSON list of {{"input", "instruction", "output"}}')
    return [_text(item, f"{path}, item {number}") for number, item in enumerate(content, start=1)]


def _text(item: Any, where: str) -> Text:
    if not isinstance(item, dict):
        raise FileError(f"{where}: not an object with the keys input, instruction, output")
    parts = {key: item.get(key, "") for key in ("input", "instruction", "output")}
    for key, value in parts.items():
        if not isinstance(value, str):
            raise FileError(f"{where}, key {key!r}: text is needed, this is {type(value).__name__}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise FileError(f"{where}, key {key!r}: half a surrogate pair, which is not text; remove it")
    prompt = " ".join(part for part in (parts["input"], parts["instruction"]) if part)
    if not prompt.strip():
        raise FileError(f"{where}, key 'input': is missing or empty")
    return Text(prompt, parts["output"])


def _csv_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
    """(where, row) of each line of a CSV that has all `columns`."""
    reader = csv.DictReader(StringIO(_read(path), newline=""))
    row = None
    try:
        if not set(columns) <= set(reader.fieldnames or ()):
            raise FileError(f"{path}: no header with the columns {', '.join(columns)}")
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise FileError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if row is None:
        raise FileError(f"{path}: the file has a header and no rows")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where}: not JSON ({error})") from None


def _read(path: Path) -> str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_FILE_BYTES:
            limit = f"{LARGEST_FILE_BYTES >> 20} MiB"
            raise FileError(f"{path}: {size_bytes >> 20} MiB are more than the {limit} read; cut the file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise _absent(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read ({error})") from None


def _absent(path: Path) -> FileError:
    return FileError(f"{path}: no such file; correct the path, which starts at the plan's folder")


def _number(row: Row, name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise FileError(f"{where}, {name}: a number of 0 or more is needed (got {row[name]!r})")
    return value


def _tokens(row: Row, name: str, where: str) -> int:
    value = _number(row, name, where)
    if not (value.is_integer() and 1 <= value <= LONGEST_TOKENS):
        raise FileError(f"{where}, {name}: a whole number from 1 to {LONGEST_TOKENS} is needed (got {row[name]!r})")
    return int(value)


Whole = Annotated[int, Field(ge=1, le=LONGEST_TOKENS)]
Cv = Annotated[float, Field(ge=0, le=10)]
FileName = Annotated[str, Field(min_length=1)]
FILES = ("histogram", "dataset", "trace")
USUAL_ISL_CV, USUAL_OSL_CV = 0.3, 0.5


def _law(text: str) -> TokenLaw:
    law = TokenLaw.parse(text)
    if law is None or law.cells[-1][1] > LONGEST_TOKENS:
        raise ScenarioError(
            f"a law of lengths within 1 to {LONGEST_TOKENS} tokens is needed; for a lognormal, its mean"
        )
    return law


def _length(given: object) -> float | Window | str:
    if isinstance(given, str):
        try:
            return str(_law(given))
        except ScenarioError as error:
            raise ValueError(str(error)) from None
    if isinstance(given, list | tuple) and len(given) == 2 and all(type(end) is int for end in given):
        low, high = given
        if 1 <= low <= high <= LONGEST_TOKENS:
            return low, high
    elif isinstance(given, float | int) and not isinstance(given, bool) and 1 <= given <= LONGEST_TOKENS:
        return float(given)
    raise ValueError(f"a mean (2000) or a window of whole numbers ([1, 300]) is needed, within 1 to {LONGEST_TOKENS}")


Length = Annotated[float | Window | str, BeforeValidator(_length)]


MOST_TURNS = 10_000
SAMPLED_TURNS, FEWEST_SAMPLED = 200_000, 100
"""Turns that a sample of sessions has on average, but not of fewer sessions than these."""


class SessionsPlan(BaseModel):
    """Conversations, or the steps of agents, with the keys of the options of ``sizing sessions``.

    ``{turns: 6, first_tokens: 800, user_tokens: 80, output_tokens: 200, think: 20s}``; `think_s` is `think` in seconds.
    See `sizing.workload.Sessions`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    turns: float
    first_tokens: float
    user_tokens: float
    output_tokens: float
    turn_law: TurnLaw = "geometric"
    first_cv: Cv = 0.0
    user_cv: Cv = 0.0
    output_cv: Cv = 0.0
    think: str | None = None
    think_s: Annotated[float, Field(ge=0)] | None = None
    system_tokens: int = 0
    context_tokens: int = 0

    @model_validator(mode="after")
    def _is_a_workload(self) -> Self:
        if self.think is not None and self.think_s is not None:
            raise ValueError("think and think_s exclude each other: give one of them")
        try:
            found = self.started_at(1.0)
        except ScenarioError as error:
            raise ValueError(str(error)) from None
        for name in ("first_tokens", "user_tokens", "output_tokens", "system_tokens"):
            if getattr(self, name) > LONGEST_TOKENS:
                raise ValueError(f"{name} must be at most {LONGEST_TOKENS}, got {getattr(self, name):g}")
        if found.turns > MOST_TURNS:
            raise ValueError(f"turns must be at most {MOST_TURNS}, got {found.turns:g}")
        if not len(self.sample.isl):
            raise ValueError(f"no first turn fits in context_tokens, {found.context_tokens:,}: raise it")
        return self

    def started_at(self, rate_per_s: float) -> Sessions:
        """The workload with `rate_per_s` sessions starting per second. Raises ScenarioError."""
        said = self.model_dump(exclude={"think", "think_s"})
        think_s = self.think_s or 0.0 if self.think is None else parse_seconds("think", self.think)
        return Sessions(rate_per_s, think_s=think_s, **said)

    @property
    def sample(self) -> Turns:
        """Turns of many sessions, always the same."""
        return _sampled(self)

    @property
    def mean_turns(self) -> float:
        """Mean number of turns of a session that fit into its context."""
        return len(self.sample.isl) / _sessions_sampled(self)

    def summary(self) -> Lengths:
        """Means and coefficients of variation of prompts and answers, of all turns together."""
        turns = self.sample
        return summary(turns.isl, turns.osl)


def _sessions_sampled(plan: SessionsPlan) -> int:
    return max(FEWEST_SAMPLED, round(SAMPLED_TURNS / plan.turns))


@lru_cache(maxsize=16)
def _sampled(plan: SessionsPlan) -> Turns:
    return plan.started_at(1.0).drawn(_sessions_sampled(plan), (0,))


class LengthsPlan(BaseModel):
    """One entry of a plan's `lengths`, in tokens: `isl` and `osl`, one of the files, or `sessions`.

    ``{isl: 2000, osl: 256}``: means. Lengths vary with the coefficients of variation `isl_cv` and `osl_cv` (see
    `varied` for the defaults), lognormal or by ``law: normal``, where values below 1 token become 1; 0: all equal.
    ``{isl: [100, 300], osl: [10, 20]}``: uniform over the whole numbers in the window, ends included.
    ``{isl: "points:200@0.8,4000@0.2", osl: 20}``: another law, written as in `sizing.token_law`.
    ``{histogram: lengths.csv}``: pairs with the frequencies in the file.
    ``{trace: trace.csv}``: the file's requests, once, in their order if replayed, else in an order drawn by the seed,
    because a level may not use the whole file; any file that `sizing.trace_files` reads.
    ``{dataset: texts.json}``: the file's texts in such an order, repeatedly. Prompts longer than `max_input_len` are
    left out; `osl`, if given, replaces the lengths of the file's answers.
    ``{sessions: {turns: 6, ...}}``: sessions of several turns, each of which repeats the conversation so far, with the
    server's answers (SessionsPlan). The plan's `rates` are then random starts of sessions per second, and its
    `concurrency` users have one session after another.

    Each prompt is unique from its first token, after `shared_prefix` tokens that all prompts of a level share. With
    ``unique: false`` the texts of a data set are sent unchanged. `concurrency`: a single closed loop with that many
    users, in place of the plan's levels.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    isl: Length | None = None
    osl: Length | None = None
    isl_cv: Cv = 0.0
    osl_cv: Cv = 0.0
    law: Law = "lognormal"
    histogram: FileName | None = None
    dataset: FileName | None = None
    trace: FileName | None = None
    sessions: SessionsPlan | None = None
    max_input_len: Whole | None = None
    unique: bool = True
    shared_prefix: Annotated[int, Field(ge=0, le=LONGEST_TOKENS)] = 0
    concurrency: Whole | None = None

    @model_validator(mode="after")
    def _one_source_and_its_keys(self) -> Self:
        sources = [name for name in (*FILES, "sessions") if getattr(self, name) is not None]
        if len(sources) > 1:
            raise ValueError(f"{sources[0]} and {sources[1]} exclude each other: give one of them")
        if not sources and (self.isl is None or self.osl is None):
            raise ValueError("give isl and osl, or one of histogram, dataset, trace, sessions")
        for name in _NOT_WITH[sources[0] if sources else "isl"]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does not go with {sources[0] if sources else 'isl and osl'}")
        if self.dataset is not None and isinstance(self.osl, tuple | str):
            raise ValueError("osl: a window does not go with dataset, nor does a law: give one number, or none")
        for name in ("isl", "osl"):
            if isinstance(getattr(self, name), tuple | str) and getattr(self, f"{name}_cv"):
                raise ValueError(f"{name}_cv does not go with a window of {name}, nor with a law, which already vary")
        return self

    def varied(self) -> LengthsPlan:
        """The same, but means without a given variation vary like chat traffic: ISL by 30 %, OSL by 50 %.

        Users who start together with equal requests stay in lockstep, which hides how the engine handles other loads.
        """
        silent = {
            f"{side}_cv": cv
            for side, cv in (("isl", USUAL_ISL_CV), ("osl", USUAL_OSL_CV))
            if isinstance(getattr(self, side), float) and f"{side}_cv" not in self.model_fields_set
        }
        return self if self.dataset is not None else self.model_copy(update=silent)

    def within(self, folder: Path) -> LengthsPlan:
        """The same with a relative path of a file starting at `folder`."""
        placed = {name: str(folder / path) for name in FILES if (path := getattr(self, name)) is not None}
        return self.model_copy(update=placed)

    def law_of_pairs(self) -> Drawn | LengthHistogram | LengthsTrace:
        """The law that gives (ISL, OSL) of each request; not for a data set or sessions. Raises FileError."""
        if self.histogram is not None:
            return _histogram(Path(self.histogram))
        if self.trace is not None:
            return _trace(Path(self.trace))
        if self.isl is None or self.osl is None:
            raise ValueError("the lengths of a data set are those of its texts, and those of sessions of their turns")
        return Drawn(side(self.isl, self.isl_cv, self.law), side(self.osl, self.osl_cv, self.law))

    def texts(self, encoder: Encoder) -> Texts:
        """The texts of a data set, counted by `encoder`. Raises FileError."""
        fixed_osl = round(self.osl) if isinstance(self.osl, float) else None
        return _counted(Path(str(self.dataset)), encoder, self.max_input_len, fixed_osl, self.unique)

    def summary(self, encoder: Encoder | None = None) -> Lengths:
        """Means and coefficients of variation; of the data, if the lengths are in a file. Raises FileError.

        A data set is counted by `encoder`, or in words without one.
        """
        if self.dataset is not None:
            return self.texts(encoder or encoder_of(None, False)).summary()
        if self.sessions is not None:
            return self.sessions.summary()
        return self.law_of_pairs().summary()

    @property
    def arrivals_s(self) -> Seconds | None:
        """Arrivals of a trace in seconds from the first, shape (n,); None without a trace. Raises FileError."""
        return None if self.trace is None else _trace(Path(self.trace)).arrival_s

    @property
    def notes_of_trace(self) -> tuple[str, ...]:
        """Remarks on how the file of a trace was read; () without a trace. Raises FileError."""
        return () if self.trace is None else _trace(Path(self.trace)).notes


_DRAWN_KEYS = ("isl", "osl", "isl_cv", "osl_cv", "law")
_TEXT_KEYS = ("max_input_len", "unique")
_NOT_WITH = {
    "isl": _TEXT_KEYS,
    "histogram": _DRAWN_KEYS + _TEXT_KEYS,
    "trace": _DRAWN_KEYS + _TEXT_KEYS,
    "dataset": ("isl", "isl_cv", "osl_cv", "law", "shared_prefix"),
    "sessions": (*_DRAWN_KEYS, *_TEXT_KEYS, "shared_prefix"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The prompts of a data set with their lengths, arrays of shape (n,); `left_out` were too long."""

    prompts: tuple[str, ...]
    isl: Tokens
    osl: Tokens
    left_out: int

    def summary(self) -> Lengths:
        """Means and coefficients of variation."""
        return summary(self.isl, self.osl)


@lru_cache(maxsize=4)
def _counted(path: Path, encoder: Encoder, longest: int | None, osl: int | None, unique: bool) -> Texts:
    """The texts in a file with their lengths. `unique`: each prompt will start with one more word of one token."""
    texts = read_dataset(path)
    isl = np.array([_prompt_tokens(encoder, text, unique) for text in texts], np.int64)
    limit = longest or LONGEST_TOKENS
    fits: NDArray[np.bool_] = isl <= limit
    if not fits.any():
        raise FileError(f"{path}: the shortest prompt has {isl.min()} tokens; max_input_len {limit} leaves out all")
    kept = [text for text, fit in zip(texts, fits, strict=True) if fit]
    answers = np.array([osl or _answer_tokens(encoder, text, path) for text in kept], np.int64)
    return Texts(tuple(text.prompt for text in kept), isl[fits], answers, len(texts) - len(kept))


def _prompt_tokens(encoder: Encoder, text: Text, unique: bool) -> int:
    sent = f"{encoder.words[0]} {text.prompt}" if unique else text.prompt
    ids = encoder.encode(sent)
    return encoder.count(sent) if ids is None else len(ids)


def _answer_tokens(encoder: Encoder, text: Text, path: Path) -> int:
    count = encoder.count(text.answer)
    if not count:
        raise FileError(f"{path}: the item {text.prompt[:40]!r} has no output; add one, or give osl in the plan")
    return count


_histogram = lru_cache(maxsize=4)(read_histogram)
_trace = lru_cache(maxsize=4)(read_trace)
