"""Errors of reports: each message is one line that says what was wrong, where, and what to do."""

from __future__ import annotations

from sizing.errors import SizingError


class ReportError(SizingError):
    """A report cannot be read or written: the file, its size, its schema, a value in it, or where it should go."""


class ReportToolMissing(ReportError):
    """A package that one of the formats needs is not installed."""
