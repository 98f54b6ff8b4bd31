"""Text that every database and file format takes."""

from __future__ import annotations


def clean(text: str) -> str:
    """`text` with a replacement mark for NUL and for halves of characters, which PostgreSQL, UTF-8 and Parquet refuse.

    >>> clean("a\\0b") == clean("a\\ud800b") == "a\\ufffdb"
    True
    """
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
