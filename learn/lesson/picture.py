"""A run of the lesson as lines of text: a letter for each step and slot, the queue below, over a scale of ticks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from learn.lesson.outcome import EMPTY, Step

GOES_ON = "-"
"""Of a step that takes more than one tick, after its letter."""
SCALE = 10
LEGEND = f"p prompt, d token, . empty, {GOES_ON} the step goes on; queue: requests that wait, where it changes"


def picture(steps: Sequence[Step], until: float, width: int = 100) -> list[str]:
    """The steps that begin before `until` ticks, a character for a tick, `width` ticks to a block of lines.

    Steps that begin within a tick share its character: the last one is drawn.
    """
    drawn = [step for step in steps if step.start < until]
    end = min(max(step.start + step.ticks for step in drawn), until)
    rows = [slot_row(drawn, place) for place in range(len(drawn[0].slots))]
    names = [f"slot {place + 1}" for place in range(len(rows))]
    lines = [("ticks", scale(int(end) + 1)), *zip(names, rows, strict=True), ("queue", queue_row(drawn))]
    return list(blocks(lines, int(end + 0.999), width))


def slot_row(steps: Sequence[Step], place: int) -> str:
    """One slot over time."""
    row = ""
    for step in steps:
        letter = "." if step.slots[place].stage == EMPTY else step.slots[place].stage
        begin, end = int(step.start), max(int(step.start + step.ticks), int(step.start) + 1)
        row = row[:begin].ljust(begin, GOES_ON) + letter + (letter if letter == "." else GOES_ON) * (end - begin - 1)
    return row


def queue_row(steps: Sequence[Step]) -> str:
    """The number of waiting requests, written at each step where it changes and there is room."""
    row, before = "", -1
    for step in steps:
        begin = int(step.start)
        if step.queue != before and (not row or len(row) < begin):
            row = row.ljust(begin) + str(step.queue)
            before = step.queue
    return row


def scale(ticks: int) -> str:
    """0, 10, 20 ... at their places."""
    return "".join(str(tick).ljust(SCALE) for tick in range(0, ticks, SCALE))


def blocks(lines: Sequence[tuple[str, str]], end: int, width: int) -> Iterator[str]:
    """The lines with their names, `width` characters at a time, an empty line between blocks."""
    for begin in range(0, end, width):
        if begin:
            yield ""
        for name, text in lines:
            yield f"{name:>8}  {text[begin : min(begin + width, end)]}".rstrip()
