"""Reports out of saved files: what `plan --json` printed, with or without an answer, or a report's own JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sizing.plan import Rejection
from sizing.report.build import Cover, refusal_of
from sizing.report.errors import ReportError
from sizing.report.json import MOST_BYTES, from_dict, parse
from sizing.report.model import Report
from sizing.report.words import line

OLD_PLAN = "no report in it: save what `python -m sizing plan ... --json` of this version prints"

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
    raise ReportError(OLD_PLAN)


def unanswered(document: dict[str, Any]) -> Report:
    """What `plan --json` once printed where no configuration meets the SLA; the question is not in it."""
    try:
        rejected = _REJECTED.validate_python(document.get("rejected"))
    except ValidationError as error:
        raise ReportError(f"rejected: {error.errors()[0]['msg']}") from None
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    why = str(document.get("why", ""))
    return refusal_of(None, "No configuration meets this SLA", why, rejected, Cover(made_at))
