"""The load generator as a whole: processes that share one job, and the parent that opens and closes the window."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import numpy as np

from calibration.errors import Cancelled, PlanError, WorkerError
from calibration.load import system
from calibration.load.loops import Job
from calibration.load.worker import STOP, Begin, Broken, Finished, Go, News, Ready
from calibration.metrics.precision import Done, StopRule, Until
from calibration.records import ClientHealth, Ended, Load, RequestLog

# --- A process of the load generator as its parent sees it: started, reached over a pipe, ended
#
# It is a program of its own, because gRPC does not survive a fork, and a process spawned by `multiprocessing` runs the
# caller's main module again, which in a web app is the app.

PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from calibration.load import worker; worker.main()"


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A process that runs `calibration.load.worker`, and this end of its pipe."""

    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]

    @classmethod
    def start(cls) -> Self:
        """A new process; it starts within about a second, and orders may be sent to it at once."""
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the parent, which then ends the workers
        )
        theirs.close()  # so that the pipe ends when the process does
        return cls(process, ours)

    def send(self, order: Any) -> None:
        """Raises WorkerError if the process is dead."""
        try:
            self.pipe.send(order)
        except OSError:
            raise self._death() from None

    def receive(self) -> Any:
        """Wait for the next report. Raises WorkerError if the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None

    def kill(self) -> None:
        """End the process at once; its connections close, so the server cancels what is in flight."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def _death(self) -> WorkerError:
        self.process.kill()
        return WorkerError(
            f"a process of the load generator died (exit code {self.process.wait()}) in the middle of a level: "
            "measure the level again; exit code -9 may mean a lack of memory"
        )


LOOK_EVERY_S = 0.05
START_IN_S = 0.02
HOPELESS = 10
OnShare = Callable[[float], None]


def drive(
    job: Job,
    until: Until,
    *,
    processes: int = 1,
    on_share: OnShare = lambda share: None,
    cancel: threading.Event | None = None,
) -> Load:
    """Put the load of `job` on its server until `until` is met; the log of every request, and the window.

    The load comes from `processes` processes (at most one per user), started for this level. Closed loop: the window
    opens when every user is warm and closes when the rule is met. Open loop: it lasts from the first measured arrival
    to the last, to the first without a request, or until the rule is met. Requests still in flight are then waited for.
    `on_share` receives the fraction of the level that is done, from this thread.

    Raises ServerError if the server is not there or is lost, PlanError if the requests end before the window opens,
    Cancelled when `cancel` is set, WorkerError if a process dies, and KeyboardInterrupt; no process is left behind.
    """
    with Workers(processes) as own:
        return own.drive(job, until, on_share=on_share, cancel=cancel)


class Workers:
    """Processes of the load generator, kept over the levels of a sweep. Use as ``with``; they start at the first level.

    Not thread-safe.
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._crew: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drive(
        self, job: Job, until: Until, *, on_share: OnShare = lambda share: None, cancel: threading.Event | None = None
    ) -> Load:
        """As the function `drive`, in these processes; an error ends them, and new ones are started when needed."""
        _check(job)
        enough = len(job.arrivals_s) if job.arrivals_s is not None else job.users or 1
        crew = self._started(max(1, min(self.processes, enough)))
        try:
            return _WholeLevel(crew, job, until, on_share, cancel or threading.Event()).run()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes at once; their connections close, which cancels what is in flight."""
        for worker in self._crew:
            worker.kill()
        self._crew.clear()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the running processes."""
        return tuple(worker.process.pid for worker in self._crew)

    def _started(self, needed: int) -> list[Member]:
        while len(self._crew) < needed:
            self._crew.append(Member.start())
        return self._crew[:needed]


def _check(job: Job) -> None:
    if job.arrivals_s is not None and len(job.arrivals_s) < job.warm_up + 2:
        raise PlanError(
            f"{len(job.arrivals_s)} arrivals, of which {job.warm_up} are warm-up: an open loop needs at least two "
            "more; give more requests, or a smaller warm_up"
        )


class _WholeLevel:
    """One level as the parent sees it: which workers are ready and warm, when the window opened, why it closed."""

    def __init__(
        self, crew: Sequence[Member], job: Job, until: Until, on_share: OnShare, cancel: threading.Event
    ) -> None:
        self._crew = crew
        self._by_pipe: dict[Any, Member] = {worker.pipe: worker for worker in crew}
        self._job = job
        self._until = until
        self._on_share = on_share
        self._cancel = cancel
        self._ready = 0
        self._warm_s: dict[Member, float] = {}
        self._finished: dict[Member, Finished] = {}
        self._answers = self._failures = 0
        self._unseen: list[Done] = []
        self._rule: StopRule | None = None
        self._ended: Ended | None = None

    def run(self) -> Load:
        here = frozenset(system.usable())
        for shard, worker in enumerate(self._crew):
            worker.send(Begin(self._job, shard, len(self._crew), here))
        while self._ready < len(self._crew):
            self._look()
        self._origin_s = time.perf_counter() + START_IN_S
        self._tell(Go(self._origin_s))
        while len(self._finished) < len(self._crew):
            self._look()
            self._follow()
        return self._load()

    def _tell(self, order: Any) -> None:
        for worker in self._crew:
            worker.send(order)

    def _look(self) -> None:
        """Receive reports, for at most 50 ms."""
        for pipe in wait(list(self._by_pipe), LOOK_EVERY_S):
            worker = self._by_pipe[pipe]
            match worker.receive():
                case Ready():
                    self._ready += 1
                case News(done, failed, warm_s):
                    self._unseen += done
                    self._answers += len(done)
                    self._failures += failed
                    self._note_warm(worker, warm_s)
                case Finished() as finished:
                    self._finished[worker] = finished
                    self._note_warm(worker, finished.warm_s)
                case Broken(error):
                    raise error
        if self._cancel.is_set():
            raise Cancelled("the level was cancelled; it is not measured")

    def _note_warm(self, worker: Member, warm_s: float | None) -> None:
        if warm_s is not None:
            self._warm_s[worker] = warm_s

    def _start_s(self) -> float | None:
        """When the window opened; None if it has not yet."""
        if self._job.arrivals_s is not None:
            return self._origin_s + float(self._job.arrivals_s[self._job.warm_up])
        return max(self._warm_s.values()) if len(self._warm_s) == len(self._crew) else None

    def _follow(self) -> None:
        """Open the window, pass the answers in it to the stop rule, and close it when the rule is met."""
        start_s, now_s = self._start_s(), time.perf_counter()
        if self._ended is None and self._hopeless(now_s):
            self._end("failing")
        if start_s is None or now_s < start_s:
            return
        if self._rule is None:
            self._rule = StopRule(self._until, start_s)
        self._rule.add([done for done in self._unseen if done.end_s >= start_s])
        self._unseen.clear()
        self._on_share(min(1.0, max(self._rule.share(now_s), self._sent(start_s, now_s))))
        if self._ended is None and (ended := self._rule.ended(now_s) or self._ran_out()):
            self._end(ended)

    def _sent(self, start_s: float, now_s: float) -> float:
        """A lower bound on the fraction of the window that is over: an open loop ends with its last arrival."""
        arrivals_s = self._job.arrivals_s
        return 0.0 if arrivals_s is None else (now_s - start_s) / (self._origin_s + float(arrivals_s[-1]) - start_s)

    def _end(self, ended: Ended) -> None:
        self._ended = ended
        self._tell(STOP)

    def _ran_out(self) -> Ended | None:
        """One process that stopped by itself, without requests, ends the full load of all."""
        return "schedule" if any(found.stopped_s is not None for found in self._finished.values()) else None

    def _hopeless(self, now_s: float) -> bool:
        """Whether requests fail so often that no interval would ever be narrow enough: then the level ends early.

        A few users whose requests all time out would take long to fail `HOPELESS` times: two time-outs are enough.
        """
        enough = self._failures >= HOPELESS or now_s - self._origin_s >= 2 * self._job.server.timeout_s
        return enough and self._failures > self._answers

    def _load(self) -> Load:
        start_s = self._start_s()
        stops_s = [found.stopped_s for found in self._finished.values() if found.stopped_s is not None]
        log = RequestLog.joined([found.log for found in self._finished.values()])
        arrivals_s = self._job.arrivals_s
        has_turns = bool(log.turn.any())  # that are due when an answer is complete, not by the clock
        due_s = log.intended_s if arrivals_s is None or has_turns else self._origin_s + arrivals_s
        ends_s = [] if arrivals_s is None else [self._origin_s + float(arrivals_s[-1])]
        stop_s = min([*ends_s, *stops_s])
        if self._ended == "failing" and (start_s is None or stop_s <= start_s):
            start_s = self._origin_s  # ended before every user was warm: the point shows everything seen
        if start_s is None or stop_s <= start_s:
            raise PlanError("the requests ended before every user was warm: give more of them, or a smaller warm_up")
        issued = int(np.sum((due_s >= start_s) & (due_s < stop_s)))
        offered_per_s = None if arrivals_s is None else issued / (stop_s - start_s)
        return Load(
            log, start_s, stop_s, issued, self._ended or "schedule", self._client(start_s, stop_s), offered_per_s
        )

    def _client(self, start_s: float, stop_s: float) -> ClientHealth:
        """The state of the processes within the window: preparing prompts and draining are no load."""
        pulses = [found.pulse for found in self._finished.values()]
        shares = [pulse.cores(start_s, stop_s) for pulse in pulses]
        lags_s = np.concatenate([pulse.lags_s(start_s, stop_s) for pulse in pulses])
        lag_p99_s = float(np.percentile(lags_s, 99)) if lags_s.size else 0.0
        return ClientHealth(len(shares), sum(shares), max(shares), lag_p99_s)
