"""Errors of the calibration package.

    CalibrationError
    ├── PlanError
    ├── FileError
    ├── ClientLimitedError
    ├── ServerError
    │   └── NothingAnswered
    ├── RepositoryError
    ├── WorkerError
    ├── Cancelled
    ├── Undecided
    └── StoreError
        └── StoreAway

Each message is one line that says what was wrong, where, and what to do. The CLI prints it unchanged: whatever a
message quotes of a server or a file, it is never longer than `sizing.errors.LONGEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from sizing.errors import one_line

KEY = "{key}"


class CalibrationError(Exception):
    """Base of all errors this package raises on purpose.

    `key` is the plan's key that the message is about, such as ``server.model``; it replaces `KEY` in `message`.
    """

    def __init__(self, message: str = "", key: str = "") -> None:
        self.message, self.key = message, key
        super().__init__(one_line(message.replace(KEY, f"{key} in the plan") if key else message))

    def named(self, names: Mapping[str, str]) -> Self:
        """The same error for a user who wrote no plan and knows its keys by other `names`."""
        name = names.get(self.key)
        return self if name is None else type(self)(self.message.replace(KEY, name))


class PlanError(CalibrationError):
    """A sweep plan is wrong: file, key and what are named."""


class ServerError(CalibrationError):
    """A server cannot be started, reached or understood, or stopped answering."""


class NothingAnswered(ServerError):
    """No request of a level was answered in its window; the first error is named. Other levels may succeed."""


class StoreError(CalibrationError):
    """Runs and points cannot be written or read, or the run asked for does not exist."""


class StoreAway(StoreError):
    """The database does not answer at the moment, or is locked: the same may succeed a little later."""


class FileError(CalibrationError):
    """A file of a benchmark tool, a data set or a trace is not what it should be: file, key and what are named."""


class ClientLimitedError(CalibrationError):
    """The load generator on this machine cannot keep up with the planned load; what it can do is named."""


class RepositoryError(CalibrationError):
    """A model repository cannot be built, filled or read: option, file and what are named."""


class WorkerError(CalibrationError):
    """A process of the load generator died in the middle of a level."""


class Undecided(CalibrationError):
    """The measurements are too few, or too uncertain, for an answer."""


class Cancelled(CalibrationError):
    """A level was cancelled while it was measured."""
