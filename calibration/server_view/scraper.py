"""The server's own view of a load level: its metrics page, read each second, becomes means over the level."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Self

from calibration.errors import ServerError
from calibration.server_view.prometheus import Page, read_page
from calibration.server_view.server_means import SUCCESS, counter_means, gauge_means, increase

EVERY_S = 1.0
COUNTERS_SETTLE_S = 0.5
"""Triton counts a request a little after its last response has left, on a busy machine later."""
MOST_SETTLING = 4
Window = tuple[float, float]


def requests_served(metrics_url: str, model: str) -> int:
    """Requests that `model` has answered since the server started.

    Raises ServerError if the page cannot be had or does not count the model's requests.
    """
    return round(_served(read_page(metrics_url), metrics_url, model))


def _served(page: Page, url: str, model: str) -> float:
    count = page.total(SUCCESS, model=model)
    if count is None:
        raise ServerError(f"{url}: no {SUCCESS} of model {model!r} there; correct server.metrics_url in the plan")
    return count


@dataclass(slots=True)
class Scraper:
    """Reads the page at `metrics_url` at both ends of a ``with`` block and each second in between, on its own thread.

    Entering raises ServerError if the page cannot be used. A page that is missed later is a note, never an error.
    `engine` is a model that answers each request to `model` once, and that others may load directly.
    """

    metrics_url: str
    model: str
    engine: str | None = None
    every_s: float = EVERY_S
    _pages: list[Page] = field(default_factory=list, init=False)
    _missed: list[str] = field(default_factory=list, init=False)
    _closed: bool = field(default=False, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._pages.append(self._settled())
        self._thread = threading.Thread(target=self._read_on, name="metrics scraper", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            time.sleep(COUNTERS_SETTLE_S)
            self._closed = self._read()

    def _settled(self) -> Page:
        """A page in which every request sent before is counted: the count stands still, or else others are at work."""
        before = math.nan
        for _ in range(MOST_SETTLING):
            time.sleep(COUNTERS_SETTLE_S / 2)
            page = read_page(self.metrics_url)
            count = _served(page, self.metrics_url, self.model)
            if count == before:
                break
            before = count
        return page

    def _read_on(self) -> None:
        next_s = time.perf_counter() + self.every_s
        while not self._stop.wait(max(0.0, next_s - time.perf_counter())):
            self._read()
            next_s = max(next_s + self.every_s, time.perf_counter())

    def _read(self) -> bool:
        try:
            self._pages.append(read_page(self.metrics_url))
        except ServerError as error:
            self._missed.append(str(error))
            return False
        return True

    def means(self, window: Window | None = None) -> dict[str, float]:
        """What the pages say of the level, by name with unit; what they do not tell is not there.

        Gauges are means over the readings inside `window` (start and stop in time.perf_counter seconds), counters are
        differences over the whole of it; without a window, or where it holds fewer than two readings, of all of them.
        ``requests_served`` always counts the whole level. Durations are means per request that was finished then.
        """
        pages = self._inside(window)
        found = gauge_means(pages, self.model)
        if not restarted(self._pages, self.model):
            found |= counter_means(pages[0], pages[-1], self.model)
            if self._closed:
                found["requests_served"] = increase(self._pages[0], self._pages[-1], SUCCESS, self.model)
        return found

    def _inside(self, window: Window | None) -> Sequence[Page]:
        start_s, stop_s = window or (-math.inf, math.inf)
        inside = [page for page in self._pages if start_s <= page.at_s <= stop_s]
        return inside if len(inside) > 1 else self._pages

    def served(self) -> int | None:
        """Requests of all clients that were answered from the first page to the last; None if they cannot be told."""
        if not self._closed or restarted(self._pages, self.model):
            return None
        models = (self.model,) if self.engine is None else (self.model, self.engine)
        return max(round(increase(self._pages[0], self._pages[-1], SUCCESS, model)) for model in models)

    def notes(self) -> list[str]:
        """What a reader of the point must know."""
        found = []
        if restarted(self._pages, self.model):
            found.append("the server's counters fell: it was started anew meanwhile")
        if self._missed:
            tries = len(self._missed) + len(self._pages)
            found.append(f"server metrics missed {len(self._missed)} of {tries} times, first: {self._missed[0]}")
        return found


def restarted(pages: Iterable[Page], model: str) -> bool:
    """True if the model's count of requests ever fell, or vanished, from one page to a later one."""
    counts = [page.total(SUCCESS, model=model) or 0.0 for page in pages]
    return any(later < earlier for earlier, later in pairwise(counts))
