"""Errors of the sizing package.

    SizingError
    ├── ScenarioError        the question is wrong: a negative rate, an unknown unit, an SLA of 0 s
    │   └── YamlError        a YAML file cannot be read: file, line and column are named
    ├── PointsError          a points table cannot be used: file, line and column are named
    ├── CatalogueError       an unknown model or GPU (nearest names suggested), or a faulty catalogue file
    ├── FitError             the measured points cannot carry a law
    ├── EstimateUnavailable  no day-zero estimate for this model, GPU, precision and TP
    ├── DoesNotFit           the weights leave no room for the KV cache; carries the missing bytes
    ├── TimeLimitReached     no answer within the time allowed; says what took so long
    └── NoFeasiblePlan       no configuration meets the SLA; carries every rejection and the nearest miss

Each message is one line that says what was wrong, where, and what to do. The CLI prints it as it is: whatever it
quotes, it is never longer than `sizing.faults.LONGEST`.
"""

from __future__ import annotations

from sizing.faults import one_line


class SizingError(Exception):
    """Base of all errors this package raises on purpose. `exit_code`: that of a command which ends with this error."""

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ScenarioError(SizingError):
    """The question itself is wrong."""


class YamlError(ScenarioError):
    """A YAML file cannot be read: file, line and column are named."""


class PointsError(SizingError):
    """A points table cannot be used."""


class CatalogueError(SizingError):
    """An unknown model or GPU, or a faulty catalogue file."""


class FitError(SizingError):
    """The measured points cannot carry a law."""


class EstimateUnavailable(SizingError):
    """No day-zero estimate exists for this model, GPU, precision and TP."""


class DoesNotFit(SizingError):
    """The model does not fit: ``missing_bytes`` per GPU are lacking (weights, activations, one request's KV cache)."""

    def __init__(self, message: str, missing_bytes: float) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class TimeLimitReached(SizingError):
    """No answer within the time that a question may take to compute."""
