"""One level of the agenda: start the right server, put the load on it, and store the point."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from calibration.errors import Cancelled
from calibration.levels import Pace, job_of
from calibration.load.pool import Workers
from calibration.plan import Level, PlanFile, parse_plan
from calibration.records import Measurement
from calibration.run import Sweep
from calibration.store import Store
from calibration.target import Target, prepare
from lab.gpu.agenda import ISL_CV, OSL_CV, PAIRS, SMALL_PAIRS, WARM_UP, Card, Item, Pair, Served
from lab.gpu.kept import Kept, log
from lab.gpu.served import GpuServer, Setup
from lab.gpu.watch import Watch
from sizing.files import yaml_of
from sizing.points import Point

USABLE = ("", "steady", "unsteady", "client_limited")


class Session:
    """What outlasts one level: the running server, the processes of the load generator, and the store."""

    def __init__(self, kept: Kept, card: Card, watch: Watch, processes: int) -> None:
        self._kept, self._card, self._watch, self._processes = kept, card, watch, processes
        self._store = Store(f"sqlite:///{kept.database}")
        self._open = ExitStack()
        self._workers = Workers(processes)
        self._server: GpuServer | None = None
        self._targets: dict[str, Target] = {}
        self.running: Served | None = None
        self._keys: dict[str, Point] = dict(self._found())

    def done(self) -> Mapping[str, Point]:
        """The points measured so far, by the key of their item."""
        return self._keys

    def serve(self, served: Served, setup: Setup, within_s: float) -> None:
        """Ensure that the server for `served` is running, by replacing another one if necessary. Raises ServerError."""
        if self._server is not None and served.runs_on(self.running):
            self._server.check()
            self.running = served
            return
        self.stop()
        started_s = time.monotonic()
        steps = self._kept.work / f"steps-{served.shape}-{served.batching}-{int(time.time())}.csv"
        server = GpuServer(setup, steps)
        server.ready_within_s = min(server.ready_within_s, within_s)
        try:
            self._server = self._open.enter_context(server)
        finally:
            if server.log.exists():
                shutil.copyfile(server.log, self._kept.work / f"server-{served.shape}-{served.batching}.log")
        self.running = served
        log.info(
            "%s serves after %.0f s, %d tokens of KV cache", served.label, time.monotonic() - started_s, setup.kv_tokens
        )

    def stop(self) -> None:
        """Stop the server and the load generator."""
        self._workers.close()
        self._open.close()
        self._open, self._server, self.running = ExitStack(), None, None
        self._targets.clear()

    def measure(self, item: Item, users: float, highest: Mapping[tuple[str, Pair], float], ends_s: float) -> None:
        """Measure `item` and store its point, unless `ends_s` cuts the level short. Raises CalibrationError."""
        target, e2e_s = self._target(item), self._card.e2e_s(item.served, item.pair, users)
        target = _timed(target, self._card.window_s(item, e2e_s))
        level = _level(target, item, highest)
        pace = Pace(level.lengths, users, e2e_s, 0.1 * e2e_s, 0.9 * e2e_s / level.lengths.osl)
        run_id = self._run(item, target)
        cancel = threading.Event()
        alarm = threading.Timer(max(0.1, ends_s - time.monotonic()), cancel.set)
        alarm.start()
        try:
            with self._store.kept_alive(run_id):
                sweep = Sweep(run_id, target, self._store, cancel=cancel, workers=self._workers)
                found = self._with_card(sweep.measure(level, job_of(target, level, pace)))
                self._store.add_point(run_id, found, seed=target.seed(level))
        except Cancelled:
            log.info("%s: cut by the end of the budget, not kept", item.key)
            return
        finally:
            alarm.cancel()
            self._store.finish_run(run_id, "interrupted")
        self._note(item, found.point)

    def _note(self, item: Item, point: Point) -> None:
        self._keys[item.key] = point
        kept = self._kept.fact("points") or {}
        self._kept.learn("points", kept | {item.key: [item.run_label, *_place(point)]})
        if item.kind == "users" and point.e2e_mean_s:
            self._card.learn(item.served, item.pair, item.load, point.e2e_mean_s)
        log.info(
            "  %.2f requests/s, TTFT %.1f ms, ITL %.2f ms, E2E %.0f ms, Little %.3f, %s",
            point.requests_per_s,
            1000 * (point.ttft_mean_s or 0),
            1000 * (point.itl_mean_s or 0),
            1000 * (point.e2e_mean_s or 0),
            point.little or 0,
            point.verdict,
        )

    def _found(self) -> list[tuple[str, Point]]:
        """Points of earlier calls, by the keys stored with them."""
        places = {tuple(place): key for key, place in (self._kept.fact("points") or {}).items()}
        found = []
        for run in self._store.runs():
            for point in self._store.points(run.id):
                key = places.get((run.label, *_place(point)))
                if key is not None:
                    found.append((key, point))
        return found

    def _target(self, item: Item) -> Target:
        assert self._server is not None, "call serve first"
        if item.served.label not in self._targets:
            plan = plan_of(item.served, self._server.grpc_url, self._server.metrics_url, self._processes)
            self._targets[item.served.label] = prepare(plan)
        return self._targets[item.served.label]

    def _run(self, item: Item, target: Target) -> int:
        """The item's run in the store, new or continued."""
        for run in self._store.runs():
            if run.label == item.run_label:
                self._store.restart_run(run.id)
                return run.id
        text = yaml_of(target.plan.model_dump(mode="json", exclude_defaults=True))
        return self._store.create_run(text, label=item.run_label, target=target.plan.server.url)

    def _with_card(self, found: Measurement) -> Measurement:
        """Add the card's power, memory and clocks during the level to the server's own figures."""
        stop_s = time.time() - (found.point.e2e_mean_s or 0.0)
        start_s = stop_s - (found.point.duration_s or 0.0)
        return replace(found, server={**found.server, **self._watch.means(start_s, stop_s)})


def highest_rates(session: Session) -> dict[tuple[str, Pair], float]:
    """The highest requests/s of each server and pair in closed loops, client-limited ones included."""
    found: dict[tuple[str, Pair], float] = {}
    for key, point in session.done().items():
        if point.closed and point.verdict in USABLE and not key.endswith("again"):
            label = " ".join(key.split(" ")[:3])
            place = (label, (round(point.isl), round(point.osl)))
            found[place] = max(found.get(place, 0.0), point.requests_per_s)
    return found


def plan_of(served: Served, grpc_url: str, metrics_url: str, processes: int) -> PlanFile:
    """The plan of one server: all pairs, and any closed-loop level; the other levels are chosen while it runs."""
    pairs = SMALL_PAIRS if served.shape == "small" else PAIRS
    content = {
        "server": {"url": grpc_url, "model": served.asked, "metrics_url": f"http://{metrics_url}", "timeout_s": 90.0},
        "lengths": [{"isl": float(isl), "osl": float(osl), "isl_cv": ISL_CV, "osl_cv": OSL_CV} for isl, osl in pairs],
        "concurrency": [1],
        "warm_up": WARM_UP,
        "check_load": 0.0,
        "client": {"processes": processes, "self_check": False},
    }
    return parse_plan(yaml_of(content), name=served.label)


def _timed(target: Target, budget_s: float) -> Target:
    return replace(target, plan=target.plan.model_copy(update={"budget_s": budget_s}))


def _level(target: Target, item: Item, highest: Mapping[tuple[str, Pair], float]) -> Level:
    entry = next(level for level in target.levels if _pair(level) == item.pair)
    if item.kind == "users":
        return replace(entry, index=round(item.load), value=float(item.load))
    rate = float(f"{item.load * highest[item.served.label, item.pair]:.3g}")
    return replace(entry, index=1000 + round(100 * item.load), kind="poisson_rate", value=rate, requests=20)


def _pair(level: Level) -> Pair:
    return round(level.lengths.isl), round(level.lengths.osl)


def _place(point: Point) -> list[object]:
    return [point.isl, point.osl, point.load_kind, point.load_value]
