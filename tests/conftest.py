"""Settings of all tests: where CI is set, hypothesis draws the same examples every time, so that a run repeats."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from rich.console import Console

from calibration.errors import ServerError
from lab.environment import PYTHON_VERSION, Recipe, ensure
from lab.reference.server import TRITON
from lab.tritonserver import SUPPORTED
from lab.vllm.server import RECIPE
from sizing.__main__ import OBJECTS_BETWEEN_COLLECTIONS

# How long an example takes on a busy machine says nothing. A law without a number of its own has 50 examples, others at
# each run; in CI, where they are the same, 60.
settings.register_profile("unhurried", deadline=None, max_examples=50)
settings.register_profile("ci", settings.get_profile("unhurried"), max_examples=60, derandomize=True, print_blob=True)
settings.load_profile("unhurried")
if os.environ.get("CI"):
    settings.load_profile("ci")

# Container images often set this. The tests start hundreds of processes: unless bytecode is kept, each of them compiles
# the program anew, and each worker every test file.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


gc.disable()  # until all is collected: test files, libraries and items stay, and each search for garbage looks at them

HERE = Path(__file__).parent
LONG = (HERE, HERE / "fuzz")
"""Folders whose own files run blocks of documentation, examples, a wheel and a campaign: a minute and more each."""
PROGRAMS = (
    *(HERE / name for name in ("test_docs.py", "test_examples.py", "test_package.py", "fuzz/test_campaign.py")),
    *(HERE / "calibration" / name for name in ("test_kills.py", "test_jobs.py")),
)
"""Files that run many programs: documentation, examples, a wheel, a campaign, runs that are killed."""
WAITING = tuple(HERE / "calibration" / name for name in ("test_size.py", "test_check.py", "test_rude_servers.py"))
"""Files that measure servers whose times are long on purpose: minutes of waiting and little work."""
STARTED = {"team", "alone", "either", "dask"}
"""Fixtures that start our own server, as a team does and as `make app` does, or a cluster."""
SERVERS = {"triton": TRITON, "vllm": RECIPE}
"""Markers of tests that start a server, and what the environment is made of that it runs in."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, whole, so that no worker is left alone with one at the end of the run.

    Those that wait for a server or a browser before those that run many programs: files of a worker overlap best so.
    Then those that need a server's environment, which may be in the making until then. Triton needs a Python that its
    binary supports; elsewhere its tests say so instead of failing.
    """
    if sys.version_info[:2] not in SUPPORTED:
        reason = f"Triton's Python backend has no build for Python {PYTHON_VERSION}"
        for item in filter(_marked("triton"), items):
            item.add_marker(pytest.mark.skip(reason=reason))
    for item in items:
        if item.path in (*PROGRAMS, *WAITING) or not STARTED.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
    kinds = {item.path: _kind(item) for item in items}
    for item in items:
        kinds[item.path] = min(kinds[item.path], _kind(item))
    items.sort(key=lambda item: kinds[item.path])


def _kind(item: pytest.Item) -> int:
    if item.path in WAITING or item.get_closest_marker("browser"):
        return 0
    if item.path.parent in LONG:
        return 1
    return 2 if any(map(item.get_closest_marker, SERVERS)) else 3


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now stays. Of several workers the first makes the servers' environments beside its tests: on a
    new machine, two minutes."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # as in a program: a page and an example make many that live shortly
    gc.enable()
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        wanted = [recipe for name, recipe in SERVERS.items() if any(map(_marked(name), session.items))]
        threading.Thread(target=_make, args=(wanted,), daemon=True).start()


def _marked(name: str) -> Callable[[pytest.Item], bool]:
    return lambda item: item.get_closest_marker(name) is not None


def _make(recipes: Sequence[Recipe]) -> None:
    for recipe in recipes:
        with suppress(ServerError):  # the tests that need it say so
            ensure(recipe, console=Console(quiet=True))
