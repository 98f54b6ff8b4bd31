"""Text that every database and file format takes, and that does nothing to a terminal it is printed on."""

from __future__ import annotations

_BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *_BIDI]
_HARMLESS = str.maketrans(dict.fromkeys(_CONTROLS, "\ufffd") | dict.fromkeys(_BREAKS, " "))


def clean(text: str) -> str:
    """`text` as one line: tabs and line breaks as blanks, and a replacement mark for each other control character.

    Control characters (C0, C1) move the cursor or set the clipboard of a terminal, and marks of writing direction make
    a text read as another. Replaced, not left out: no text becomes empty.

    >>> clean("two\\nlines, \\x1b[31mred") == "two lines, \\ufffd[31mred"
    True
    """
    return storable(text).translate(_HARMLESS)


def storable(text: str) -> str:
    """`text` with a replacement mark for NUL and for halves of characters, which PostgreSQL, UTF-8 and Parquet refuse.

    >>> storable("a\\0b") == storable("a\\ud800b") == "a\\ufffdb"
    True
    """
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
