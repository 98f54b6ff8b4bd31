"""Settings of all tests: where CI is set, hypothesis draws the same examples every time, so that a run repeats."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import settings
from rich.console import Console

from calibration.errors import ServerError
from lab.environment import PYTHON_VERSION, Recipe, ensure
from lab.reference.server import TRITON
from lab.tritonserver import SUPPORTED
from lab.vllm.server import RECIPE
from sizing.__main__ import OBJECTS_BETWEEN_COLLECTIONS
from tests.long import file_of, function_of, listed, parts, seconds_by_file

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

STARTED = {"team", "alone", "either", "dask"}
"""Fixtures that start our own server, as a team does and as `make app` does, or a cluster."""
SERVERS = {"triton": TRITON, "vllm": RECIPE}
"""Markers of tests that start a server, and what the environment is made of that it runs in."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        type=_part,
        help="of the tests that take long (tests/long.csv) and those with servers and browsers, the K-th of N parts; "
        "K is taken modulo N. All other tests run, too.",
    )


def _part(text: str) -> tuple[int, int]:
    which, number = map(int, text.split("/"))
    return which % number, number


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark long tests, leave out those of other parts, and bring long files first, whole, so that no worker is left
    alone with one at the end of the run.

    Tests that need a server's environment come after them: until then it may be in the making. Triton needs a Python
    that its binary supports; elsewhere its tests say so instead of failing.
    """
    if sys.version_info[:2] not in SUPPORTED:
        reason = f"Triton's Python backend has no build for Python {PYTHON_VERSION}"
        for item in filter(_marked("triton"), items):
            item.add_marker(pytest.mark.skip(reason=reason))
    seconds = listed()
    for item in items:
        if function_of(item.nodeid) in seconds or not STARTED.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
    if config.option.part:
        which, number = config.option.part
        part_of = parts(seconds, number)
        others = {item for item in items if part_of.get(file_of(item.nodeid), which) != which and _sometimes(item)}
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
    here = {function_of(item.nodeid) for item in items}
    long_files = seconds_by_file({test: took_s for test, took_s in seconds.items() if test in here})
    served = {file_of(item.nodeid) for item in items if any(map(item.get_closest_marker, SERVERS))}

    def order(item: pytest.Item) -> tuple[int, float]:
        file = file_of(item.nodeid)
        if file in served:
            return 1, 0.0
        return (0, -long_files[file]) if file in long_files else (2, 0.0)

    items.sort(key=order)


def _sometimes(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("long", "browser", *SERVERS)))


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
