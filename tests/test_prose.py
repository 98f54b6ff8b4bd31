"""Phrases that read as translated stay out of documentation and programs: each with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "calibration",
    "data",
    "deploy",
    "docs",
    "examples",
    "lab",
    "learn",
    "sizing",
    "triton_tools",
    "ui",
    "validation",
)
INSTEAD = {
    r"slip of the keyboard": "almost certainly a typo",
    r"hangs? on (where|how|what)": "depends on",
    r"\bto hand\b": "available",
    r"\bfor ever\b": "indefinitely, without end",
    r"told apart": "distinguished",
    r"as good as 0": "effectively zero",
    r"hardly tell": "barely constrain",
    r"gets on,": "progresses",
    r"(what must|would have to) give": "ways to meet the SLA; the relaxation needed",
    r"is to fail now": "fails early",
    r"\bWho (has|was|gives)\b|Whose request|Everybody whose": "the request, the user",
}
"""Pattern -> what a native speaker writes."""


def files(pattern: str, rooms: Iterable[str] = ROOMS) -> list[Path]:
    return [*ROOT.glob(pattern), *(path for room in rooms for path in sorted((ROOT / room).rglob(pattern)))]


def found(pattern: str, paths: list[Path]) -> list[str]:
    """Where a pattern occurs, as file:line: text; it may run over the end of a line."""
    words = re.compile(pattern.replace(" ", r"\s+"))
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in paths
        for text in [path.read_text(encoding="utf-8")]
        for match in words.finditer(text)
    ]


@pytest.mark.parametrize("pattern", INSTEAD)
def test_documentation_is_written_in_plain_english(pattern: str) -> None:
    pages = [path for path in files("*.md") if path.name != "CHANGELOG.md"]
    assert len(pages) > 20
    assert found(pattern, pages) == [], f"write: {INSTEAD[pattern]}"


@pytest.mark.parametrize("pattern", INSTEAD)
def test_programs_are_written_in_plain_english(pattern: str) -> None:
    programs = files("*.py")
    assert len(programs) > 50
    assert found(pattern, programs) == [], f"write: {INSTEAD[pattern]}"
