"""What is said of bad input: one short line, in which foreign text is cut and does nothing to a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 290
"""Characters of a message: with ``error: `` before it, a line of less than 300."""
LONGEST_QUOTE = 60
LONGEST_KEY = 80
LONGEST_REASON = 180
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_KINDS = {"dict": "a mapping", "list": "a list", "tuple": "a list"}


def one_line(text: str, longest: int = LONGEST) -> str:
    """`text` on one line of at most `longest` characters, cut in the middle; what cannot be printed becomes a blank.

    However long `text` is, only its ends are looked at.

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
    """A value as a message shows it: text and numbers at most `longest` long, of lists and mappings what they are.

    >>> quoted("fast"), quoted(1.5), quoted([1, 2])
    ("'fast'", '1.5', 'a list')
    """
    if isinstance(value, str):
        return repr(one_line(value, longest))
    if value is None or isinstance(value, bool | int | float):
        return one_line(repr(value), longest)
    kind = type(value).__name__
    return _KINDS.get(kind, f"a {kind}")


class Fault(NamedTuple):
    """The place in a document, as ``server.url``, and what is wrong with it."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


def first_fault(error: ValidationError, whole: str = "the whole") -> Fault:
    """The first fault that a model found, an unknown key before what is missing because of it.

    `whole`: what the document is called where the fault is not at a key.
    """
    found = error.errors(include_url=False, include_context=False)
    fault = min(found, key=lambda each: each["type"] not in (*_UNKNOWN, "value_error"))
    key = one_line(".".join(map(str, fault["loc"])), LONGEST_KEY) or whole
    if fault["type"] in _UNKNOWN:
        return Fault(key, "unknown key")
    if fault["type"] == "missing":
        return Fault(key, "is missing")
    reason = one_line(fault["msg"].removeprefix("Value error, "), LONGEST_REASON)
    given = "" if isinstance(fault["input"], dict) else f" (got {quoted(fault['input'])})"
    return Fault(key, reason + given)
