"""What the Method page tells: its texts, the accuracy table, where the data come from, what changed; and the search."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sizing import catalog
from sizing.errors import CatalogueError
from sizing.estimate import day_zero
from sizing.estimate.kernels import LIBRARY
from sizing.files import resource
from sizing.numbers import count_of
from sizing.points import Deployment, Point
from sizing.report.build import cells

TEXTS = resource("data/method")
ACCURACY = resource("docs/accuracy.md")
CHANGES = resource("CHANGELOG.md")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]*\)")
"""A link to a file of the repository, which a browser cannot follow."""
ROW = re.compile(r"^\|.*\|$")


@dataclass(frozen=True, slots=True)
class Chapter:
    """A title and its paragraphs, each markdown; a formula stands in one paragraph with what it says in words."""

    title: str
    paragraphs: tuple[str, ...]

    def matching(self, words: Sequence[str]) -> Chapter:
        """The paragraphs that hold every word, letter case apart."""
        found = [text for text in self.paragraphs if all(word.casefold() in text.casefold() for word in words)]
        return Chapter(self.title, tuple(found))


@cache
def texts() -> Mapping[str, Chapter]:
    """The written sections by the name of their file, in order. Empty when the folder is missing."""
    return {path.stem.partition("-")[2]: section(path.read_text("utf-8")) for path in sorted(TEXTS.glob("*.md"))}


def section(text: str) -> Chapter:
    """A section from markdown: its first line is the title, blank lines part the paragraphs."""
    title, _, rest = text.strip().partition("\n")
    return Chapter(title.lstrip("# "), tuple(part.strip() for part in re.split(r"\n\s*\n", rest) if part.strip()))


def search(sections: Iterable[Chapter], query: str) -> list[Chapter]:
    """The sections that have paragraphs with every word of the query, these alone."""
    words = query.split()
    found = (each.matching(words) for each in sections)
    return [each for each in found if each.paragraphs]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """docs/accuracy.md: what is said around the table, its rows by column, and the line that sums them up."""

    about: Chapter
    rows: tuple[Mapping[str, str], ...]
    verdict: str


def accuracy() -> Accuracy | None:
    """The accuracy page as it was last written; None when it is missing."""
    text = read(ACCURACY)
    return None if text is None else accuracy_of(text)


def accuracy_of(text: str) -> Accuracy:
    """Prose, rows of the one table, and the last line of the accuracy page."""
    lines = text.splitlines()
    table = [line for line in lines if ROW.match(line)]
    prose = "\n".join(line for line in lines if not ROW.match(line) and line.strip() != "## The table")
    about = section(without_file_links(prose))
    verdict = next((part for part in reversed(about.paragraphs) if part.startswith("Goals:")), "")
    rest = Chapter(about.title, tuple(part for part in about.paragraphs if part != verdict))
    return Accuracy(rest, tuple(rows_of(table)), verdict)


def rows_of(table: Sequence[str]) -> list[Mapping[str, str]]:
    """Rows of a markdown table by the names in its first line; none where it has no rows."""
    if len(table) < 3:
        return []
    header, _, *rows = (cells(line) for line in table)
    return [dict(zip(header, row, strict=False)) for row in rows]


def changes() -> Chapter | None:
    """The newest section of the changelog; None when there is no changelog."""
    text = read(CHANGES)
    return None if text is None else newest(text)


def newest(changelog: str) -> Chapter:
    """The first section under a heading of the second level, its own headings one level down."""
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    found = section(without_file_links(parts[1])) if len(parts) > 1 else Chapter("Nothing yet", ())
    return Chapter(found.title, tuple(re.sub(r"^### ", "#### ", part) for part in found.paragraphs))


def without_file_links(text: str) -> str:
    """The words of links into the repository, without the links."""
    return LINK.sub(r"\1", text)


def read(path: Path) -> str | None:
    """Text of a file, None when it is not there."""
    return path.read_text("utf-8") if path.is_file() else None


def sources() -> list[tuple[str, str]]:
    """Where catalogue and estimates come from, as their files say; a file that cannot be read says that."""
    try:
        gpus, models, laws = catalog.gpus(), catalog.models(), day_zero.read_rows(day_zero.LAWS)
    except CatalogueError as error:
        return [("Catalogue and estimates", str(error))]
    timed = [row for row in laws if not row["why_not"]]
    engines = sorted({f"{row['engine']} {row['engine_version']}" for row in timed})
    kernels = f"the kernel database ({LIBRARY})"
    return [
        (
            f"{len(gpus)} GPUs",
            "memory, bandwidth, speed and power from vendors' data sheets, of those with timings as kept by "
            f"{kernels}; data/catalog/gpus.yaml",
        ),
        (
            f"{len(models)} models",
            f"sizes and shapes from their published configurations, many as bundled with {kernels}; "
            "data/catalog/models.yaml",
        ),
        (
            f"{len(timed):,} laws and memory sizes before measuring",
            f"from timings of {', '.join(engines)} in {kernels}; data/laws/day_zero.csv",
        ),
    ]


def measurements(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Each measured deployment: how many points, how many void, when, and by what."""
    groups: dict[Deployment, list[Point]] = {}
    for point in points:
        groups.setdefault(point.deployment, []).append(point)
    return [(deployment.label, _measured(group)) for deployment, group in groups.items()]


def _measured(points: Sequence[Point]) -> str:
    days = sorted(point.measured_at[:10] for point in points if point.measured_at)
    when = f"on {days[0]}" if days else "at an unknown date"
    if days and days[0] != days[-1]:
        when = f"from {days[0]} to {days[-1]}"
    void = sum(point.void for point in points)
    sources = " · ".join(sorted({point.source for point in points if point.source})) or "unknown"
    return f"{count_of(len(points), 'point')}{f' ({void:,} void)' if void else ''}, measured {when}; source: {sources}"
