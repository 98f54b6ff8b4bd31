"""Text and numbers as the writers show them: nothing invisible, nothing endless, numbers with three digits."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sizing.numbers import milliseconds, significant
from sizing.report.quantity import Quantity

COUNTS = ("GPUs", "replicas", "points", "GPU-hours")
LONGEST = 300
"""Characters of a text where a layout holds only a line or a cell."""
LONGEST_NOTES = 5_000
NONE = "—"
UNTITLED = "Untitled"
PICTURES = 0x2400
"""Where Unicode has pictures of the control characters."""
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
"""Characters that cannot be seen or that turn the direction of others; not newline and tab."""


def visible(text: str) -> str:
    """`text` with every hidden character shown: controls as their pictures, marks of direction by number.

    >>> visible("a\\x07b\\u202e")
    'a␇b⟨U+202E⟩'
    """
    return HIDDEN.sub(lambda found: seen(ord(found[0])), text)


def seen(code: int) -> str:
    """One hidden character, to look at."""
    if code < 0x20:
        return chr(PICTURES + code)
    return chr(PICTURES + 0x21) if code == 0x7F else f"⟨U+{code:04X}⟩"


def line(text: str, longest: int = LONGEST) -> str:
    """A text on one line, cut with an ellipsis."""
    joined = visible(" ".join(text[: 4 * longest].split()))
    whole = len(joined) <= longest and len(text) <= 4 * longest
    return joined if whole else f"{joined[: longest - 1].rstrip()}…"


def paragraphs(text: str) -> tuple[str, ...]:
    """Notes as paragraphs, cut with an ellipsis."""
    cut = text if len(text) <= LONGEST_NOTES else f"{text[: LONGEST_NOTES - 1]}…"
    return tuple(visible(each) for each in cut.splitlines() if each.strip())


def number_of(quantity: Quantity) -> str:
    """A number for a table whose heading names the unit; times and shares carry theirs.

    >>> number_of(Quantity(0.0247, "s", "estimated")), number_of(Quantity(9, "GPUs", "estimated"))
    ('24.7 ms', '9')
    """
    value = quantity.value
    if value is None:
        return NONE
    if quantity.unit == "s":
        return milliseconds(value)
    if quantity.unit == "share":
        return f"{significant(100 * value)} %"
    return f"{value:,.0f}" if quantity.unit in COUNTS else significant(value)


def text_of(quantity: Quantity) -> str:
    """A number with its unit.

    >>> text_of(Quantity(20, "requests/s", "given"))
    '20 requests/s'
    """
    if quantity.unit in ("s", "share", "") or quantity.value is None:
        return number_of(quantity)
    one = quantity.value == 1 and quantity.unit in COUNTS
    return f"{number_of(quantity)} {quantity.unit.removesuffix('s') if one else quantity.unit}"


def capital(text: str) -> str:
    """`text` with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def when(made_at: str) -> str:
    """A time as people write it: 2026-11-20 10:00 UTC; what is no such time stays as it is.

    >>> when("2026-11-20T10:00:00+00:00")
    '2026-11-20 10:00 UTC'
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d(\.\d+)?)?(\+00:00|Z)", made_at)
    return f"{found[1]} {found[2]} UTC" if found else line(made_at, 40)


def moment(made_at: str) -> datetime:
    """When a report was made, the only date in its files; the beginning of 1980 where it does not say."""
    try:
        made = datetime.fromisoformat(made_at)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)
    return made if made.tzinfo else made.replace(tzinfo=UTC)
