"""A report as JSON and back: a versioned schema, bounded in size, read strictly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from sizing.report.errors import ReportError
from sizing.report.model import Input, Report

SCHEMA: Final = "sizing-report/2"
SINCE: Final = {"sizing-report/1": (), SCHEMA: ("ways_out", "together", "day")}
"""Schema -> what came with it. Every schema that is here can be read: a report lacks what came later than its own. A
field that comes, goes or changes its meaning is another schema."""
MOST_BYTES = 8_000_000
"""Of a document to read: far more than any report that this program writes."""
QUOTED = 60
DIGEST = 12
"""Characters of a SHA-256 that are shown: enough to tell documents apart."""

QUESTION_DIGEST = 8
ANSWER = "n="
"""The parameter of a link that holds the answer that its writer saw."""

_REPORT = TypeAdapter(Report)
_INPUTS = TypeAdapter(tuple[Input, ...])


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain values, its schema first."""
    return {"schema": SCHEMA, **_REPORT.dump_python(report, mode="json")}


def as_json(report: Report) -> str:
    """The report as a JSON document; the same report gives the same text."""
    return json.dumps(as_dict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def digest(report: Report) -> str:
    """The first characters of the SHA-256 of the report's JSON: tells whether two files are of one report."""
    return hashlib.sha256(as_json(report).encode()).hexdigest()[:DIGEST]


def question_digest(report: Report) -> str:
    """The first characters of the SHA-256 of what was asked: tells whether two reports answer the same question.

    Of the inputs and of the link's parameters, which also name what may be bought; not of answer, cover, date, address.
    """
    link = [each for each in report.link.partition("?")[2].split("&") if not each.startswith(ANSWER)]
    asked = [_INPUTS.dump_python(report.inputs, mode="json"), link]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:QUESTION_DIGEST]


def from_json(document: str | bytes) -> Report:
    """The report in a JSON document. Raises ReportError: no JSON, too large, another schema, an impossible value."""
    return from_dict(parse(document))


def parse(document: str | bytes) -> dict[str, Any]:
    """The JSON object in a document of at most `MOST_BYTES`. Raises ReportError."""
    if len(document) > MOST_BYTES:
        raise ReportError(f"larger than {MOST_BYTES:,} bytes: no report of this program is")
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"no JSON document ({quoted(str(error))})") from None
    if not isinstance(found, dict):
        raise ReportError("a JSON object is needed, as `plan --json` or a report's JSON has it")
    return found


def from_dict(values: dict[str, Any]) -> Report:
    """The report in plain values with their schema. Raises ReportError."""
    schema = values.get("schema")
    if not isinstance(schema, str) or schema not in SINCE:
        raise ReportError(f"schema {quoted(repr(schema))}: this program reads {' and '.join(SINCE)}")
    known = list(SINCE)
    later = [field for each in known[known.index(schema) + 1 :] for field in SINCE[each]]
    if unknown := [field for field in later if field in values]:
        raise ReportError(f"{unknown[0]}: not a field of {schema}")
    try:
        return _REPORT.validate_python({key: value for key, value in values.items() if key != "schema"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the report"
        raise ReportError(f"{quoted(where)}: {first['msg']} (got {quoted(repr(first['input']))})") from None
    except RecursionError:
        raise ReportError("nested too deeply") from None


def with_cover(report: Report, **texts: str | None) -> Report:
    """The report with another title, author, notes or link; None leaves what is there. Raises ReportError."""
    changed = {name: text for name, text in texts.items() if text is not None}
    try:
        return dataclasses.replace(report, **changed)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def quoted(text: str) -> str:
    """The beginning of a text, for a message of one line."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTED else f"{line[:QUOTED]}…"
