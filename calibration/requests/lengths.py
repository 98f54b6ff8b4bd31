"""Which lengths requests have, as a plan says it: drawn from a law, or read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from calibration.errors import FileError
from calibration.requests.length_files import (
    LONGEST_TOKENS,
    Histogram,
    Text,
    Trace,
    read_dataset,
    read_histogram,
    read_trace,
    summary,
)
from calibration.requests.length_laws import Drawn, Law, Window, side
from calibration.requests.tokens import Encoder, encoder_of
from sizing.workload import Lengths, Seconds, Tokens

Whole = Annotated[int, Field(ge=1, le=LONGEST_TOKENS)]
Cv = Annotated[float, Field(ge=0, le=10)]
FileName = Annotated[str, Field(min_length=1)]
FILES = ("histogram", "dataset", "trace")
USUAL_ISL_CV, USUAL_OSL_CV = 0.3, 0.5


def _length(given: object) -> float | Window:
    if isinstance(given, list | tuple) and len(given) == 2 and all(type(end) is int for end in given):
        low, high = given
        if 1 <= low <= high <= LONGEST_TOKENS:
            return low, high
    elif isinstance(given, float | int) and not isinstance(given, bool) and 1 <= given <= LONGEST_TOKENS:
        return float(given)
    raise ValueError(f"a mean (2000) or a window of whole numbers ([1, 300]) is needed, within 1 to {LONGEST_TOKENS}")


Length = Annotated[float | Window, BeforeValidator(_length)]


class LengthsPlan(BaseModel):
    """One entry of a plan's `lengths`, in tokens: `isl` and `osl`, or one of the files.

    ``{isl: 2000, osl: 256}``: means. `isl_cv`, `osl_cv` (coefficients of variation) say how lengths vary, lognormal or
    by ``law: normal``, where what would be below 1 token is 1; 0 makes all equal. A plan varies them unless said.
    ``{isl: [100, 300], osl: [10, 20]}``: any whole number in the window, ends included, equally often.
    ``{histogram: lengths.csv}``: pairs with the frequencies of the file. ``{trace: trace.csv}``: the file's requests in
    their order, once. ``{dataset: texts.json}``: the file's texts in their order, again and again; longer prompts than
    `max_input_len` are left out; an `osl` given takes the place of the answers' lengths.

    Each prompt is unique from its first token, after `shared_prefix` tokens which all prompts of a level share. With
    ``unique: false`` the texts of a data set are sent as they are.
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
    max_input_len: Whole | None = None
    unique: bool = True
    shared_prefix: Annotated[int, Field(ge=0, le=LONGEST_TOKENS)] = 0

    @model_validator(mode="after")
    def _one_source_and_its_keys(self) -> Self:
        files = [name for name in FILES if getattr(self, name) is not None]
        if len(files) > 1:
            raise ValueError(f"{files[0]} and {files[1]} exclude each other: give one of them")
        if not files and (self.isl is None or self.osl is None):
            raise ValueError("give isl and osl, or one of histogram, dataset, trace")
        for name in _NOT_WITH[files[0] if files else "isl"]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does not go with {files[0] if files else 'isl and osl'}")
        if self.dataset is not None and isinstance(self.osl, tuple):
            raise ValueError("osl: a window does not go with dataset, give one number, or none")
        for name in ("isl", "osl"):
            if isinstance(getattr(self, name), tuple) and getattr(self, f"{name}_cv"):
                raise ValueError(f"{name}_cv does not go with a window of {name}, which says it all")
        return self

    def varied(self) -> LengthsPlan:
        """The same, but means of which nothing else is said vary as chat traffic does: ISL by 30 %, OSL by 50 %.

        Users with equal requests that start together stay in step for ever, and hide what an engine does with others.
        """
        silent = {
            f"{side}_cv": cv
            for side, cv in (("isl", USUAL_ISL_CV), ("osl", USUAL_OSL_CV))
            if isinstance(getattr(self, side), float) and f"{side}_cv" not in self.model_fields_set
        }
        return self if self.dataset is not None else self.model_copy(update=silent)

    def within(self, folder: Path) -> LengthsPlan:
        """The same with the file's path taken from `folder`, where it is not absolute."""
        return self.model_copy(update={name: str(folder / path) for name, path in self._files()})

    def _files(self) -> list[tuple[str, str]]:
        return [(name, getattr(self, name)) for name in FILES if getattr(self, name) is not None]

    def law_of_pairs(self) -> Drawn | Histogram | Trace:
        """What tells (ISL, OSL) of a request by its number. Not for a data set. Raises FileError."""
        if self.histogram is not None:
            return _histogram(Path(self.histogram))
        if self.trace is not None:
            return _trace(Path(self.trace))
        if self.isl is None or self.osl is None:
            raise ValueError("the lengths of a data set are those of its texts")
        return Drawn(side(self.isl, self.isl_cv, self.law), side(self.osl, self.osl_cv, self.law))

    def texts(self, encoder: Encoder) -> Texts:
        """The texts of a data set, counted by `encoder`. Raises FileError."""
        fixed_osl = round(self.osl) if isinstance(self.osl, float) else None
        return _counted(Path(str(self.dataset)), encoder, self.max_input_len, fixed_osl, self.unique)

    def summary(self, encoder: Encoder | None = None) -> Lengths:
        """Means and coefficients of variation, of the data where a file gives the lengths. Raises FileError.

        A data set is counted by `encoder`, in words without one.
        """
        if self.dataset is not None:
            return self.texts(encoder or encoder_of(None, False)).summary()
        return self.law_of_pairs().summary()

    @property
    def arrivals_s(self) -> Seconds | None:
        """When the requests of a trace came, seconds from the first, shape (n,); None without one. Raises FileError."""
        return None if self.trace is None else _trace(Path(self.trace)).arrival_s


_DRAWN_KEYS = ("isl", "osl", "isl_cv", "osl_cv", "law")
_TEXT_KEYS = ("max_input_len", "unique")
_NOT_WITH = {
    "isl": _TEXT_KEYS,
    "histogram": _DRAWN_KEYS + _TEXT_KEYS,
    "trace": _DRAWN_KEYS + _TEXT_KEYS,
    "dataset": ("isl", "isl_cv", "osl_cv", "law", "shared_prefix"),
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
    """`unique`: prompts will open with a word of one token more."""
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


@lru_cache(maxsize=4)
def _histogram(path: Path) -> Histogram:
    return read_histogram(path)


@lru_cache(maxsize=4)
def _trace(path: Path) -> Trace:
    return read_trace(path)
