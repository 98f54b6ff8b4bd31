"""A report to a file, in the format that the file's name ends in; the writers load when they are asked for."""

from __future__ import annotations

import os
import re
import unicodedata
from importlib import import_module
from pathlib import Path
from typing import Any

from sizing.report.errors import ReportError
from sizing.report.json import question_digest
from sizing.report.model import Report
from sizing.report.words import line

WRITERS = {
    "html": ("sizing.report.html", "as_html", "text/html"),
    "pdf": ("sizing.report.pdf", "as_pdf", "application/pdf"),
    "xlsx": ("sizing.report.xlsx", "as_xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "json": ("sizing.report.json", "as_json", "application/json"),
}
"""Format -> module and function that write it, and its media type."""
LONGEST_PART = 40
"""Characters of a model or GPU in a file's name."""


def render(report: Report, suffix: str) -> bytes:
    """The report in one of the formats of `WRITERS`, as bytes."""
    module, function, _ = WRITERS[suffix]
    found: Any = getattr(import_module(module), function)(report)
    return found.encode() if isinstance(found, str) else bytes(found)


def suffix_of(path: Path) -> str:
    """The format that a file's name asks for. Raises ReportError for another."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in WRITERS:
        known = ", ".join(f".{each}" for each in WRITERS)
        raise ReportError(f"{line(str(path))}: the name must end in one of {known}")
    return suffix


def write(report: Report, path: Path) -> None:
    """Write the report; the file is there whole or not at all. Raises ReportError where it cannot be written."""
    data = render(report, suffix_of(path))
    part = path.with_name(f".{path.name[:LONGEST_PART]}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except (OSError, ValueError) as error:
        part.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ReportError(f"{line(str(path))}: cannot be written ({reason})") from None


def file_name(report: Report, suffix: str) -> str:
    """A name that every file system takes: ``sizing-<model>-<gpu>-<rate>rps-<date>-<question>.<suffix>``.

    Without an answer ``no-answer`` stands for the GPU; ``<question>`` is the digest of what was asked.
    """
    gpu = report.answer.gpu if report.answer else "no-answer"
    rate = report.given("rate_per_s")
    parts = (report.model, gpu, f"{rate:.6g}rps" if rate else "", report.made_at[:10], question_digest(report))
    return f"{'-'.join(['sizing', *filter(None, map(name_part, parts))])}.{suffix}"


def name_part(text: str) -> str:
    """Letters, digits, points and hyphens of a text: what every file system takes in a name."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", plain)[:LONGEST_PART].strip("-.").lower()
