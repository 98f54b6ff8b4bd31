"""A report to a file, in the format that the file's name ends in; the writers load when they are asked for."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sizing.errors import first_fault
from sizing.files import whole
from sizing.plans import Rejection
from sizing.report.build import Cover, refusal_of
from sizing.report.model import MOST_BYTES, Report, ReportError, from_dict, parse, question_digest
from sizing.report.tables import line

WRITERS = {
    "html": ("sizing.report.document", "as_html", "text/html"),
    "pdf": ("sizing.report.document", "as_pdf", "application/pdf"),
    "xlsx": ("sizing.report.xlsx", "as_xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "json": ("sizing.report.model", "as_json", "application/json"),
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
    try:
        with whole(path) as part:
            part.write_bytes(data)
    except (OSError, ValueError) as error:
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
    """Letters, digits, single points and hyphens of a text: what every file system takes in a name."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+|[.]{2,}", "-", plain)[:LONGEST_PART].strip("-.").lower()


# --- Reports out of saved files: what `plan --json` printed, with or without an answer, or a report's own JSON

OLD_PLAN = "it contains no report: save the output of `python -m sizing plan ... --json` of this version"
_REJECTED = TypeAdapter(list[Rejection])


def read(path: Path) -> Report:
    """The report in a file. Raises ReportError, one line naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            return report_in(parse(file.read(MOST_BYTES + 1)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ReportError(f"{line(str(path))}: cannot be read ({reason})") from None
    except ReportError as error:
        raise ReportError(f"{line(str(path))}: {error}") from None


def report_in(document: dict[str, Any]) -> Report:
    """The report in a JSON object."""
    if "schema" in document:
        return from_dict(document)
    if isinstance(document.get("report"), dict):
        return from_dict(document["report"])
    if document.get("feasible") is False:
        return unanswered(document)
    if "workloads" in document:
        raise ReportError("a plan of several workloads has no report")
    raise ReportError(OLD_PLAN)


def _with_layouts(rejected: Any) -> Any:
    """Rejections as answers list them, where a layout is a number for each kind of parallelism."""
    if not isinstance(rejected, list) or not all(isinstance(each, dict) for each in rejected):
        return rejected
    ways = ("tp", "pp", "dp", "ep")
    return [
        {name: value for name, value in each.items() if name not in ways}
        | {"layout": {name: each[name] for name in ways if name in each}}
        for each in rejected
    ]


def unanswered(document: dict[str, Any]) -> Report:
    """What `plan --json` once printed where no configuration meets the SLA; the question is not in it."""
    try:
        rejected = _REJECTED.validate_python(_with_layouts(document.get("rejected")))
    except ValidationError as error:
        raise ReportError(f"rejected: {first_fault(error).reason}") from None
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    why = str(document.get("why", ""))
    return refusal_of(None, "No configuration meets this SLA", why, rejected, Cover(made_at))
