"""The main path of a calibration: run a plan level by level and store each point as soon as it is measured.

Progress is reported to a listener, and stored for everyone who watches the run.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from calibration.errors import (
    CalibrationError,
    Cancelled,
    ClientLimitedError,
    NothingAnswered,
    PlanError,
    ServerError,
    StoreError,
)
from calibration.levels import Pace, job_of, order_of
from calibration.load import system
from calibration.load.loops import Job, ask
from calibration.load.openai import BUSY_TRIES, BUSY_WAIT_S
from calibration.load.pool import Workers
from calibration.load.self_check import processes_needed
from calibration.metrics.measurement import measurement
from calibration.plan import Level, PlanFile, level_key, parse_plan
from calibration.records import Measurement
from calibration.server_metrics import Page, Scraper
from calibration.store import Ending, Store
from calibration.store.database import clean, patient
from calibration.store.work import give_up
from calibration.target import ENGINE_MODEL, Target, access, prepare
from sizing.numbers import per_second
from sizing.points import Point

PROBES = 2
BUSY = ("HTTP 429", "HTTP 503")
DISTURBED = ("client_limited", "shared")
"""Verdicts on a disturbance rather than the server, which would mislead an adaptive sweep: the level is repeated."""
_PROBE = 1_000_000


def run(
    file: PlanFile,
    store: Store,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    label: str = "",
    *,
    reviewed: bool = False,
) -> int:
    """Measure the levels of the plan; returns the number of the run, which lists show as `label`. The points of a
    `reviewed` run are not used before somebody accepts them.

    Raises PlanError, FileError or ServerError before anything is stored if the plan and the server do not fit, and
    StoreError if another run at the same server is active or the store fails. Later it raises ClientLimitedError if
    this machine cannot generate the planned load, ServerError if the server is lost, Cancelled when `cancel` is set,
    and KeyboardInterrupt: the points so far are kept, and `resume` continues from there.
    """
    target = prepare(file)
    label = label or f"{file.plan.server.model} at {file.plan.server.url}"
    run_id = store.create_run(
        file.text,
        folder=file.folder,
        label=label,
        levels=target.points,
        target=file.plan.server.address.lower(),
        reviewed=reviewed,
    )
    Sweep(run_id, target, store, progress, cancel).run()
    return run_id


def resume(
    run_id: int,
    store: Store,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    plan: PlanFile | None = None,
) -> int:
    """Measure the levels of run `run_id` that have no point yet, by the plan with which it was started or queued.

    `plan`, of the same server, replaces that plan for good. Raises as `run` does, StoreError if the run does not exist
    or is being measured, and PlanError if the server is now another deployment.
    """
    begun = store.run(run_id)
    if not (plan or begun.plan):
        raise PlanError(f"run {run_id} was imported and has no plan to resume: start a new run")
    with _refusal_kept(run_id, store):
        known = plan or parse_plan(begun.plan, name=f"plan of run {run_id}", folder=Path(begun.folder))
        target = prepare(known)
        for point in store.points(run_id):
            if point.deployment != target.replica:
                change = f"{point.deployment.label} then, {target.replica.label} now"
                raise PlanError(
                    f"run {run_id}: the server is not the one it was started on ({change}): start a new run"
                )
        address = target.plan.server.address.lower()
        store.restart_run(run_id, levels=target.points, target=address, plan=plan.text if plan else "")
    Sweep(run_id, target, store, progress, cancel).run(store.points(run_id, as_measured=True))
    return run_id


def how_to_continue(store: Store, run_id: int) -> str:
    """What there is of a run that has ended early, and the command that goes on with it."""
    kept = "points are kept"
    with suppress(StoreError):  # the store itself may have failed
        kept = kept if store.run(run_id).points else "nothing is measured yet"
    return f"{kept}; continue with: python -m calibration resume {run_id}"


@contextmanager
def _refusal_kept(run_id: int, store: Store) -> Iterator[None]:
    """Store why a queued run did not start: the user who queued it may not be there to read the error."""
    try:
        yield
    except (CalibrationError, KeyboardInterrupt) as error:
        with suppress(StoreError):
            if store.run(run_id).state == "queued":
                give_up(store, run_id, "failed", str(error) or "stopped before anything was measured")
        raise


class Sweep:
    """One run while it is measured: its `target`, the store, the load generator's processes, progress, cancellation.

    The run ends when `cancel` is set, or when a request to stop it is found in the store.
    """

    def __init__(
        self,
        run_id: int,
        target: Target,
        store: Store,
        listener: Listener | None = None,
        cancel: threading.Event | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.run_id, self.target = run_id, target
        self._store = store
        self._progress = Reporter(run_id, listener or Listener())
        self._cancel = cancel or threading.Event()
        self._workers = workers or Workers()
        self._page: Page | None = None
        """The server's metrics at the end of the last level."""

    def run(self, points: Sequence[Point] = ()) -> None:
        """Measure the levels that are not among `points`, which are in the order measured. Raises as `run` does."""
        alive = self._store.kept_alive(self.run_id, news=self._progress.news, on_stop=self._cancel.set)
        cores = self.target.served.engine_cores
        with self._state_kept(), alive, system.kept_off(system.read(cores)), closing(self._workers):
            done = {level_key(point) for point in points}
            missing = [level for level in self.target.levels if level.key not in done]
            if missing or len(done) < self.target.points:
                for line in self.target.too_long():
                    self._progress.says(line)
                to_come = missing or self.target.levels
                pace = self.probe(to_come[0])
                self._workers.processes = self.processes(to_come, pace)
                self._follow(missing, points, pace)

    def _follow(self, levels: Sequence[Level], points: Sequence[Point], pace: Pace) -> None:
        """Measure the `levels` one after another as the plan's order chooses them, until it chooses none.

        Raises NothingAnswered at the end if every request of some level failed: that level has no point.
        """
        says, without = self._progress.says, list[NothingAnswered]()
        again = self.target.plan.adaptive is not None
        order = order_of(self.target, levels, pace, says)
        if points and points[-1].lengths == pace.lengths:
            pace = pace.after(points[-1])  # as in a run that goes on without a stop
        while (level := order.next(points)) is not None:
            if self._cancel.is_set():
                raise Cancelled("stopped between two levels")
            try:
                if pace.lengths != level.lengths:
                    pace = self.probe(level)
                expected_s, job = order.expected_s(pace), job_of(self.target, level, pace)
                self._progress.expects(level, *expected_s)
                found = self.measure(level, job)
                if again and found.point.verdict in DISTURBED:
                    says(f"{level.label}: {found.point.verdict}, measured once more: {found.point.notes}")
                    self.target = replace(self.target, session=(secrets.randbits(64),))  # new prompts: none are cached
                    found = self.measure(level, job_of(self.target, level, pace))
                    again = found.point.verdict not in DISTURBED  # otherwise the disturbance lasts
            except NothingAnswered as error:
                says(str(error))
                without.append(error)
                order.skip(level)
                continue
            patient(partial(self._store.add_point, self.run_id, found, seed=self.target.seed(level)), says)
            self._progress.measured(level, found)
            pace = pace.after(found.point)
            points = [*points, found.point]
        if without:
            raise without[0]

    def probe(self, level: Level) -> Pace:
        """Send two requests to the idle server; the second is timed, and scaled to the mean lengths. They are sent
        again while the server says that it is busy.

        Raises NothingAnswered if one fails.
        """
        target = self.target
        contract, source = target.contract, target.source(level.entry, (*target.seed(level), _PROBE))
        requests = [*islice(source.requests(), PROBES)]
        for attempt in range(BUSY_TRIES):
            log = asyncio.run(ask(target.plan.server, contract, requests))
            faults = [error for error in log.error if error]
            if not any(error.startswith(BUSY) for error in faults) or attempt == BUSY_TRIES - 1:
                break
            time.sleep(BUSY_WAIT_S)
        if faults:
            raise NothingAnswered(f"{level.label}: the first request failed: {faults[0]}")
        ttft_s, e2e_s = float(log.first_token_s[-1] - log.sent_s[-1]), float(log.last_token_s[-1] - log.sent_s[-1])
        after = int(log.tokens[-1] - log.first_chunk_tokens[-1])
        timed = Pace(level.lengths, 1.0, e2e_s, ttft_s, (e2e_s - ttft_s) / max(1, after))
        return replace(timed, e2e_s=timed.alone_s(level.lengths))

    def processes(self, levels: Sequence[Level], pace: Pace) -> int:
        """Processes for all of `levels`: those the plan sets, otherwise as many as the heaviest level needs.

        The load generator is tested on the mock, first at the tokens/s of an idle server on every stream, more than any
        server delivers. If that is too much for this machine, it is tested at the pace estimated for the loaded server.
        Raises ClientLimitedError if that is too much as well.
        """
        plan, says = self.target.plan, self._progress.says
        if not plan.client.self_check:
            return plan.client.processes or 1
        heaviest = max(levels, key=lambda level: pace.streams(plan, level))
        check = partial(
            processes_needed,
            pace.streams(plan, heaviest),
            ttft_s=pace.ttft_s,
            itl_s=pace.itl_s,
            osl=max(1, round(heaviest.lengths.osl)),
            protocol=plan.server.protocol,
            fewest=plan.client.processes or 1,
            most=plan.client.processes,
        )
        try:
            found = check(tokens_per_s=math.inf)
        except ClientLimitedError as error:
            tokens_per_s = pace.tokens_per_s(plan, heaviest)
            says(f"at the pace of an idle server the client would not keep up: {error}")
            says(f"checked at {tokens_per_s:,.0f} tokens/s instead; each point's verdict shows whether that was enough")
            found = check(tokens_per_s=tokens_per_s)
        says(f"load generator on its mock, {found.users} streams: {found.text}")
        return found.processes

    def measure(self, level: Level, job: Job) -> Measurement:
        """Put the load of `level` on the server. Raises ServerError if it is lost, NothingAnswered and Cancelled."""
        target, server = self.target, self.target.plan.server
        until = target.plan.until_of(level)
        drive = partial(self._workers.drive, job, until, on_share=self._progress.share, cancel=self._cancel)
        seen: dict[str, float] = {}
        notes = target.notes(level)
        if server.metrics_url is None:
            load = drive()
        else:
            # an ensemble runs each step once, so every request passes through the engine's own model exactly once
            engine = ENGINE_MODEL if target.contract.is_ensemble else None
            with Scraper(server.metrics_url, server.model, engine, access=access(server), before=self._page) as scraper:
                load = drive()
            self._page = scraper.last
            seen = scraper.means((load.start_s, load.stop_s))
            load = replace(load, served=scraper.served())
            notes += [*scraper.notes(), *self._reuse(level, seen.get("kv_cache_blocks_reused", 0.0))]
        load = replace(load, counts_tokens=target.contract.counted_by != "responses")
        where = f"calibration run {self.run_id}, {server.model} at {server.url}"
        shared = target.plan.lengths[level.entry].shared_prefix
        staggered = level.kind == "concurrency" and target.plan.ramp_s is None
        return measurement(
            load,
            level,
            target.replica,
            source=where,
            notes=notes,
            server=seen,
            shared_prefix=shared,
            protocol="staggered" if staggered else "",
            scheduling=target.scheduling,
        )

    def _reuse(self, level: Level, blocks: float) -> list[str]:
        lengths = self.target.plan.lengths[level.entry]
        if blocks <= 0 or lengths.shared_prefix or not lengths.unique:
            return []
        return [
            f"{blocks:.0f} blocks of the KV cache were reused, though every prompt is unique: is the server shared?"
        ]

    @contextmanager
    def _state_kept(self) -> Iterator[None]:
        """Store how the run ends: done, interrupted or failed. An error says how to continue."""
        try:
            yield
        except KeyboardInterrupt:
            with suppress(StoreError):
                self._store.finish_run(self.run_id, "interrupted")
            raise
        except CalibrationError as raised:
            error = raised
            if raised.key == "server.url":  # which is correct: the server answered there before the run began
                error = ServerError(f"{self.target.plan.server.url}: the server stopped answering")
            state: Ending = "interrupted" if isinstance(error, Cancelled) else "failed"
            with suppress(StoreError):  # the store itself may have failed: `error` says so
                self._store.finish_run(self.run_id, state, str(error))
            raise type(error)(
                f"{error.message}; {how_to_continue(self._store, self.run_id)}",
                error.key,
            ) from None
        except BaseException as error:
            with suppress(StoreError):
                self._store.finish_run(self.run_id, "failed", f"{type(error).__name__}: {error}")
            raise
        patient(partial(self._store.finish_run, self.run_id, "done"), self._progress.says)


LINES = 40
"""Last lines of a run's messages that the store keeps."""
LONGEST_LINE = 300


class Listener:
    """Receives the progress of a run, always from the thread that called `run`. This base class ignores it."""

    def started(self, run_id: int) -> None:
        """The run is in the store."""

    def says(self, text: str) -> None:
        """A line for the user."""

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        """`level` comes next and should take `seconds`; the levels after it should take `after_s`."""

    def share(self, done: float) -> None:
        """The fraction of the current level that is done, 0 to 1."""

    def measured(self, level: Level, found: Measurement) -> None:
        """The point of `level` is in the store."""


class Reporter(Listener):
    """Keeps the progress that is stored with each heartbeat, and passes every call on to `listener`."""

    def __init__(self, run_id: int, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()  # the heartbeat's thread calls `news`
        self._lines: deque[str] = deque(maxlen=LINES)
        self._note(phase="checking the load generator")
        listener.started(run_id)

    def news(self) -> Mapping[str, Any]:
        """Columns of the table of runs: phase, fraction of the current level done, seconds left, last lines."""
        with self._lock:
            left_s = (1 - self._share) * self._level_s + self._after_s
            log = "\n".join(map(clean, self._lines))
            return {"phase": self._phase, "share": self._share, "left_s": left_s or None, "log": log}

    def says(self, text: str) -> None:
        with self._lock:
            self._lines.append(text[:LONGEST_LINE])
        self._listener.says(text)

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        self._listener.expects(level, seconds, after_s)
        self._note(phase=level.label, level_s=seconds, after_s=after_s)

    def share(self, done: float) -> None:
        with self._lock:
            self._share = min(1.0, done)
        self._listener.share(done)

    def measured(self, level: Level, found: Measurement) -> None:
        point = found.point
        verdict = f", {point.verdict}" if point.verdict else ""
        with self._lock:
            self._lines.append(f"{level.label}: {per_second(point.requests_per_s)}{verdict}")
        self._note(phase="between two levels", after_s=self._after_s)
        self._listener.measured(level, found)

    def _note(self, *, phase: str, level_s: float = 0.0, after_s: float = 0.0) -> None:
        with self._lock:
            self._phase, self._share, self._level_s, self._after_s = phase, 0.0, level_s, after_s
