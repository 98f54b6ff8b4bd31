"""The figures of a run of the lesson in words."""

from __future__ import annotations

from learn.lesson.outcome import Figures
from sizing.numbers import significant


def sentence(found: Figures) -> str:
    """Throughput, queue and unused slots of a run."""
    requests = "request" if found.completed == 1 else "requests"
    return (
        f"{found.completed:,} {requests} completed in {found.end:,g} ticks: {significant(found.requests_per_1k, 5)} "
        f"requests and {significant(found.tokens_per_1k, 6)} tokens per 1,000 ticks. {found.queue:,} wait at the end. "
        f"{significant(100 * found.empty)} % of the slot time is unused."
    )


def known(value: float | None) -> str:
    """A number of ticks; a dash where nothing was recorded."""
    return "-" if value is None else significant(value, 4)
