"""The guided steps of the lesson: files of data/lesson, each a title, the run it speaks of, and what to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from learn.lesson.setting import Setting
from sizing.errors import CatalogueError, ScenarioError
from sizing.files import resource

FOLDER = resource("data/lesson")


@dataclass(frozen=True, slots=True)
class Guide:
    """One guided step: `text` is markdown."""

    title: str
    setting: Setting
    text: str


@cache
def guides() -> Mapping[str, Guide]:
    """The steps in order, by the name of their file without its number; empty when the folder is missing."""
    files = sorted(FOLDER.glob("*.md"))
    return MappingProxyType({path.stem.partition("-")[2]: guide(path.read_text("utf-8"), path.name) for path in files})


def guide(text: str, name: str) -> Guide:
    """A step from its file: ``# title``, ``run: key=value;...``, then the text. Raises CatalogueError otherwise."""
    title, _, rest = text.strip().partition("\n")
    run, _, body = rest.strip().partition("\n")
    if not title.startswith("# ") or not run.startswith("run:"):
        raise CatalogueError(f"{name}: begin with a line '# title' and a line 'run: key=value;key=value'")
    try:
        setting = Setting.of(run.removeprefix("run:").strip())
    except ScenarioError as error:
        raise CatalogueError(f"{name}, line 'run:': {error}") from None
    return Guide(title.removeprefix("# ").strip(), setting, body.strip())
