"""Where files are: those that come with the program, and those that it writes.

In a checkout both are beside the packages. A wheel carries `data/`, `docs/accuracy.md` and the changelog inside
`sizing/shipped/`, and nothing may be written there: what an installed program writes goes to the user's own folder.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSIDE_WHEEL = PACKAGE / "shipped"
INSTALLED = INSIDE_WHEEL.is_dir()
"""True in an installed wheel, False in a checkout (also one that is installed as editable)."""
SHIPPED = INSIDE_WHEEL if INSTALLED else PACKAGE.parent
IMPORTED_FROM = PACKAGE.parent
"""The folder that a process of our own needs on its path to import the packages."""


def resource(name: str) -> Path:
    """A file or folder that comes with the program, by its name in the repository: ``data/catalog``, ``CHANGELOG.md``.

    >>> resource("data/catalog/gpus.yaml").is_file()
    True
    """
    return SHIPPED / name


def written(name: str) -> Path:
    """Where a file is written by default: ``data/calibration.db`` in a checkout.

    Installed: ``calibration.db`` in ``$XDG_DATA_HOME/sizing``, by default ``~/.local/share/sizing``.
    """
    if not INSTALLED:
        return SHIPPED / name
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "sizing" / name.removeprefix("data/")


@cache
def version() -> str:
    """The program's version: of the installed wheel, or in a checkout what pyproject.toml says."""
    if INSTALLED:
        from importlib import metadata  # 20 ms, which only reports pay for

        return metadata.version("sizing")
    import tomllib

    return str(tomllib.loads(resource("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
