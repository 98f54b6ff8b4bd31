"""Errors of the sizing package, and the one line in which bad input is described.

    SizingError
    ├── ScenarioError        the question is wrong: a negative rate, an unknown unit, an SLA of 0 s
    │   ├── YamlError        a YAML file cannot be read: file, line and column are named
    │   └── RequestTooLong   the longest request never fits in the KV cache of a replica
    ├── PointsError          a points table cannot be used: file, line and column are named
    ├── CatalogueError       an unknown model or GPU (nearest names suggested), or a faulty catalogue file
    ├── FitError             the measured points cannot support a law
    ├── EstimateUnavailable  no day-zero estimate for this model, GPU, precision and TP
    ├── DoesNotFit           the weights leave no room for the KV cache; carries the missing bytes
    ├── TimeLimitReached     no answer within the time allowed; says what took so long
    ├── NotComputed          a server's processes gave no answer, whatever the question
    └── NoFeasiblePlan       no configuration meets the SLA; carries every rejection and the nearest miss

Each message is one line that says what was wrong, where, and what to do. The CLI prints it unchanged: whatever it
quotes, it is never longer than `sizing.errors.LONGEST`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 290
"""Characters of a message: with ``error: `` before it, a line of less than 300."""
LONGEST_QUOTE = 60
LONGEST_KEY = 80
LONGEST_REASON = 180
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_IN_WORDS = {"dict": "a mapping", "list": "a list", "tuple": "a list"}


def one_line(text: str, longest: int = LONGEST) -> str:
    """`text` on one line of at most `longest` characters, cut in the middle; unprintable characters become blanks.

    However long `text` is, only its ends are examined.

    >>> one_line("two\\nlines, \\x1b[31mred"), one_line("abcdefghijkl", 7)
    ('two lines, [31mred', 'abcd…kl')
    """
    if len(text) > 8 * longest:
        text = f"{text[: 4 * longest]}…{text[-4 * longest :]}"
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    if len(line) <= longest:
        return line
    tail = longest // 3
    return f"{line[: longest - tail - 1]}…{line[-tail:]}"


def quoted(value: object, longest: int = LONGEST_QUOTE) -> str:
    """A value as shown in a message: text and numbers at most `longest` long, lists and mappings as their kind.

    >>> quoted("fast"), quoted(1.5), quoted([1, 2])
    ("'fast'", '1.5', 'a list')
    """
    if isinstance(value, str):
        return repr(one_line(value, longest))
    if value is None or isinstance(value, bool | int | float):
        return one_line(repr(value), longest)
    kind = type(value).__name__
    return _IN_WORDS.get(kind, f"a {kind}")


class Fault(NamedTuple):
    """The place in a document, as ``server.url``, and what is wrong with it."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


_TRIED = re.compile(r"[a-z]+-[a-z]+\[.*\]", re.DOTALL)
"""What pydantic puts between keys for a kind of value that it tried there."""


def first_fault(error: ValidationError, whole: str = "the whole") -> Fault:
    """The first fault that a model found, with an unknown key before anything missing because of it.

    `whole`: the name of the document if the fault is not at a key.
    """
    found = error.errors(include_url=False, include_context=False)
    fault = min(found, key=lambda each: each["type"] not in (*_UNKNOWN, "value_error"))
    named = (part for part in map(str, fault["loc"]) if not _TRIED.fullmatch(part))
    key = one_line(".".join(named), LONGEST_KEY) or whole
    if fault["type"] in _UNKNOWN:
        return Fault(key, "unknown key")
    if fault["type"] == "missing":
        return Fault(key, "is missing")
    reason = one_line(fault["msg"].removeprefix("Value error, "), LONGEST_REASON)
    given = "" if isinstance(fault["input"], dict) else f" (got {quoted(fault['input'])})"
    return Fault(key, reason + given)


class SizingError(Exception):
    """Base of all errors this package raises on purpose. `exit_code`: that of a command which ends with this error."""

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ScenarioError(SizingError):
    """The question itself is wrong."""


class YamlError(ScenarioError):
    """A YAML file cannot be read: file, line and column are named."""


class PointsError(SizingError):
    """A points table cannot be used."""


class CatalogueError(SizingError):
    """An unknown model or GPU, or a faulty catalogue file."""


class FitError(SizingError):
    """The measured points cannot support a law."""


class EstimateUnavailable(SizingError):
    """No day-zero estimate exists for this model, GPU, precision and TP."""


class DoesNotFit(SizingError):
    """The model does not fit: ``missing_bytes`` per GPU are lacking (weights, activations, one request's KV cache)."""

    def __init__(self, message: str, missing_bytes: float) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class RequestTooLong(ScenarioError):
    """The longest request never fits in the KV cache of a replica."""


class TimeLimitReached(SizingError):
    """No answer within the time that a question may take to compute."""


class NotComputed(SizingError):
    """A server's processes gave no answer, whatever the question."""
