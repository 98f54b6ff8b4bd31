"""Readiness: the server is ready once it has answered a first question, and while its data is available."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import fail_after, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse

from calibration.errors import StoreError
from calibration.store import Store
from sizing import catalog
from sizing.errors import CatalogueError
from ui.computing import first_answer_there

WITHIN_S = 4.0
"""A part that takes longer has failed. Probes must wait longer than this."""
HOLDS_FOR_S = 2.0
"""Cache lifetime of a verdict, so that probes query the store at most once per interval."""
SAID_AFTER_S = 4.0
"""A first answer takes some seconds of a core, as the shipped points are fitted, and some minutes more where the
simulator is yet to be compiled."""
GETTING_READY = (
    "Getting ready: fitting the measured points. After an installation or update the simulator is compiled first, "
    "which takes some minutes."
)
Verdict = dict[str, str]
_first_is_given = threading.Event()
_first_is_given.set()


class Health:
    """The last verdict on each part, "ok" or what is wrong in two words, and when it was reached.

    The endpoint needs no login, so it says nothing of where the store is.
    """

    def __init__(self) -> None:
        self._verdict: Verdict = {}
        self._until_s = 0.0
        self._one_at_a_time = asyncio.Lock()
        self._planner = "starting"

    @asynccontextmanager
    async def while_serving(self, _app: object) -> AsyncIterator[None]:
        """From the server's start to its end: the first question is its own, so that no visitor waits for it."""
        _first_is_given.clear()
        first = asyncio.create_task(self._answer_once())
        slow = asyncio.create_task(_tell_where_slow(first))
        yield
        first.cancel()
        slow.cancel()

    async def _answer_once(self) -> None:
        try:
            self._planner = await to_thread.run_sync(first_answer_there, abandon_on_cancel=True)
        finally:
            _first_is_given.set()

    async def respond(self, _request: Request) -> JSONResponse:
        """200 when every part is well, 503 when one is not, and the verdict on each as JSON."""
        verdict = {"planner": self._planner, **await self._data()}
        well = set(verdict.values()) == {"ok"}
        return JSONResponse(verdict, 200 if well else 503, headers={"Cache-Control": "no-store"})

    async def _data(self) -> Verdict:
        """The verdict on catalogue and store, not older than `HOLDS_FOR_S`."""
        async with self._one_at_a_time:
            if time.monotonic() >= self._until_s:
                self._verdict = await _examine()
                self._until_s = time.monotonic() + HOLDS_FOR_S
            return self._verdict


def wait_for_first_answer() -> None:
    """Return once the server in this process has its first answer; at once where it has, or is not asked for one."""
    _first_is_given.wait()


def has_first_answer() -> bool:
    """False while the server in this process works on its first answer, and what is asked meanwhile has to wait."""
    return _first_is_given.is_set()


async def _tell_where_slow(first: asyncio.Task[None]) -> None:
    """Say on stderr why nothing is answered yet, and when that is over."""
    start_s = time.monotonic()
    await asyncio.wait({first}, timeout=SAID_AFTER_S)
    if not first.done():
        print(GETTING_READY, file=sys.stderr)
        await asyncio.wait({first})
        print(f"Ready after {time.monotonic() - start_s:.0f} s.", file=sys.stderr)


async def _examine() -> Verdict:
    try:
        with fail_after(WITHIN_S):
            return await to_thread.run_sync(_look, abandon_on_cancel=True)
    except TimeoutError:
        return {"catalogue": "not known", "store": "too slow"}


def _look() -> Verdict:
    verdict = {"catalogue": "ok", "store": "ok"}
    try:
        catalog.gpus(), catalog.models()
    except CatalogueError:
        verdict["catalogue"] = "not readable"
    try:
        Store()  # connects, and reads the version of the tables
    except StoreError:
        verdict["store"] = "not reachable"
    return verdict
