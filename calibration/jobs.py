"""Runs started from the app, each in its own process, if the operator allows it and only at the operator's servers.

The operator sets environment variables: SIZING_ALLOW_RUNS=1 allows starting, SIZING_RUN_TARGETS lists the servers that
may be measured (host:port, separated by commas), and SIZING_RUN_API_KEY, if set, is the key for OpenAI servers among
them. The state of a run is in the store, not here.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from calibration.errors import PlanError, ServerError, StoreAway, StoreError
from calibration.plan import BUDGET_S, Answering, Endpoint, Level, PlanFile, Protocol, ServerPlan, SweepPlan, parse_plan
from calibration.store import DATABASE_VARIABLE, LIVE, Store
from calibration.store.database import RECORDS_VARIABLE, clean
from calibration.store.runs import Owner
from calibration.store.work import ask_to_stop, enqueue, give_up, hand_over, requeue, work
from sizing.files import IMPORTED_FROM, yaml_of
from sizing.points import Point
from sizing.workload import Lengths

ALLOW_VARIABLE = "SIZING_ALLOW_RUNS"
TARGETS_VARIABLE = "SIZING_RUN_TARGETS"
KEY_VARIABLE = "SIZING_RUN_API_KEY"
PATIENCE_S = 20.0
"""Time that a run has to stop when it is asked to; after SIGTERM it has half as long again."""
LOOK_EVERY_S = 0.2
ASK_AGAIN_AFTER_S = 1.0
"""Pause before a database that was away is asked again."""
ASK_WITHIN_S = 8.0
LOG_BYTES = 8000
PLAN_FILE, LOG_FILE = "plan.yaml", "log.txt"
_TARGET = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]):([0-9]{1,5})")
_PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "OPENBLAS_NUM_THREADS",
    RECORDS_VARIABLE,
    KEY_VARIABLE,
)
_PASSED_ON_FAMILY = "PG"
"""Prefix of the variables of PostgreSQL's client, such as the places of certificates and passwords."""

Answer = TypeVar("Answer")


class Targets(NamedTuple):
    """The operator's list: the servers that may be measured, and the entries that are not host:port."""

    allowed: tuple[str, ...]
    faulty: tuple[str, ...]


def is_allowed() -> bool:
    """Whether the operator lets the app start runs."""
    return os.environ.get(ALLOW_VARIABLE) == "1"


def targets() -> Targets:
    """The operator's list of servers, in its order, without repetitions."""
    return parse_targets(os.environ.get(TARGETS_VARIABLE, ""))


def parse_targets(text: str) -> Targets:
    """The servers in a list such as ``gpu-7:8001, gpu-8:8001``, in lower case.

    >>> parse_targets("GPU-7:8001,http://evil:80/x").allowed
    ('gpu-7:8001',)
    """
    entries = list(dict.fromkeys(entry.strip().lower() for entry in text.split(",") if entry.strip()))
    good = [entry for entry in entries if (found := _TARGET.fullmatch(entry)) and 0 < int(found[1]) < 65536]
    return Targets(tuple(good), tuple(entry for entry in entries if entry not in good))


def start(store: Store, file: PlanFile) -> int:
    """Start a run of the plan in its own process, and return its number. Its points must be accepted before use.

    Raises PlanError if the operator does not allow it, StoreError if a run at the same server is active or the store
    fails.
    """
    server = file.plan.server
    check_target(server.address)
    if server.metrics_url is not None:
        check_target(server.metrics_url.removeprefix("http://").removesuffix("/metrics"))
    run_id = enqueue(store, file.text, label=f"{server.model} at {server.url}", target=server.address.lower())
    _launch(store, run_id, file.text)
    return run_id


def go_on(store: Store, run_id: int) -> None:
    """Continue a run that was lost, failed or interrupted with its remaining levels. Raises as `start` does."""
    run = store.run(run_id)
    check_target(run.target)
    requeue(store, run_id)
    _launch(store, run_id, run.plan)


def answering_at(target: str) -> Answering:
    """What answers at a server of the operator's list, within `ASK_WITHIN_S` in all.

    The operator's key is sent only to a server that asks for one. Raises PlanError if the target is not on the list,
    ServerError, one line, if nothing that can be measured answers.
    """
    check_target(target)
    asked: Future[Answering] = Future()
    threading.Thread(target=_ask, args=(target, asked), daemon=True, name=f"ask {target}").start()
    try:
        return asked.result(ASK_WITHIN_S)
    except TimeoutError:  # a name that takes long to resolve, for which connections have no time-out
        raise ServerError(f"{target}: no answer within {ASK_WITHIN_S:g} s; correct the address") from None


def _ask(target: str, asked: Future[Answering]) -> None:
    from calibration.target import answering  # loads the clients, which most pages do not need

    server = ServerPlan(protocol="openai", url=target, model="ensemble")
    try:
        found = answering(server)
        if found.protocol == "openai" and not found.models and os.environ.get(KEY_VARIABLE):
            found = answering(server.model_copy(update={"api_key_env": KEY_VARIABLE}))
        asked.set_result(found)
    except Exception as error:  # raised again where the answer is awaited
        asked.set_exception(error)


def check_target(target: str) -> None:
    """Raises PlanError if starting runs is not allowed, or if `target` is not on the operator's list."""
    _check_allowed()
    if target.lower() not in targets().allowed:
        raise PlanError(f"{clean(target)[:80]} is not on the operator's list of servers: add it to {TARGETS_VARIABLE}")


def _check_allowed() -> None:
    if not is_allowed():
        raise PlanError(
            f"starting and stopping runs from the app is off: the operator enables it with {ALLOW_VARIABLE}=1"
        )


def stop(store: Store, run_id: int) -> None:
    """Ask a run to stop; a thread makes sure that it does (`seen_to`).

    Raises PlanError if starting and stopping runs is not allowed, StoreError if the store fails.
    """
    _check_allowed()
    ask_to_stop(store, run_id)
    threading.Thread(target=seen_to, args=(store, run_id), daemon=True, name=f"stop run {run_id}").start()


def seen_to(store: Store, run_id: int, patience_s: float = PATIENCE_S) -> None:
    """Wait until a run has stopped as asked; after `patience_s` its processes receive SIGTERM, later SIGKILL.

    Only processes on this machine that certainly belong to the run are signalled. The database may be away
    for any time: it is asked again until it answers, and that time does not count, because the run itself cannot read
    meanwhile that it was asked to stop.
    """
    why = ""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s / 2)):
        if _ends_within(store, run_id, wait_s):
            break
        owner = _once_it_answers(partial(work, store, run_id)).owner
        if owner == Owner.here():
            why = "it was stopped before its process had started"
            break
        if not owner.is_near or not owner.lives(0.0):
            return
        _signal(owner.pid, number)
        why = "it did not stop when requested, and was terminated"
    else:
        _ends_within(store, run_id, patience_s)
    if why:
        _once_it_answers(partial(give_up, store, run_id, "interrupted", why))


def log_tail(store: Store, run_id: int) -> str:
    """The last lines of a run: from its log file if that is on this machine, else those in the store."""
    try:
        with (store.folder(run_id) / LOG_FILE).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        text = ""
    return "\n".join(clean(line) for line in (text.strip() or work(store, run_id).log).split("\n")[-40:])


_children: list[subprocess.Popen[bytes]] = []
"""Processes started by this one; they are polled when the next one starts, so that none stays a zombie."""


def _launch(store: Store, run_id: int, plan: str) -> None:
    _children[:] = [child for child in _children if child.poll() is None]
    try:
        folder = store.folder(run_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / PLAN_FILE).write_text(plan, encoding="utf-8")
        with (folder / LOG_FILE).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "calibration", "resume", str(run_id)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it outlives the app, and its pid is that of its process group
                env=_environment(store),
            )
    except OSError as error:
        give_up(store, run_id, "failed", f"its process cannot be started: {error.strerror or error}")
        raise StoreError(f"run {run_id} cannot be started: {error.strerror or error}; free some space") from None
    _children.append(child)
    hand_over(store, run_id, child.pid)


def _environment(store: Store) -> dict[str, str]:
    """The variables that a run needs, without keys and passwords that the app has for other purposes."""
    passed = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_FAMILY)
    }
    url = store.database.url.render_as_string(hide_password=False)
    return passed | {"PYTHONPATH": str(IMPORTED_FROM), DATABASE_VARIABLE: url}


def _ends_within(store: Store, run_id: int, wait_s: float) -> bool:
    """Whether the run ends within `wait_s`, not counting the time that the database takes to answer."""
    waited_s = 0.0
    while _once_it_answers(partial(store.run, run_id)).state in LIVE:
        if waited_s > wait_s:
            return False
        time.sleep(LOOK_EVERY_S)
        waited_s += LOOK_EVERY_S
    return True


def _once_it_answers(ask: Callable[[], Answer]) -> Answer:
    """The result of `ask`, which is repeated until the database is back, however long that takes."""
    while True:
        try:
            return ask()
        except StoreAway:
            time.sleep(ASK_AGAIN_AFTER_S)


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # it has just ended, or belongs to another user


# --- A plan from the fields of a form, checked like any other; and the time it will take, before it is started

Text = str | int
Question = Mapping[str, str | float | int]


@dataclass(frozen=True, slots=True)
class NewRun:
    """The fields. `labels` are keys of a plan's ``deployment``; the server reports the others, and `assumed` has values
    for those that it does not report.

    `endpoint` is for protocol openai. `metrics` is the host:port of the server's own metrics, empty for none. A level
    is measured until its means are known to `half_width`, for `longest_s` seconds at most. `long_isl`: tokens of the
    prompts of one more level, with a single user; 0: none. `question` are keys of a plan's ``adaptive``; with them,
    only the levels of `concurrency` that the question needs are measured.
    """

    target: str
    lengths: Lengths
    concurrency: tuple[int, ...]
    long_isl: int = 0
    model: str = "ensemble"
    protocol: Protocol = "grpc"
    endpoint: Endpoint = "completions"
    metrics: str = ""
    labels: Mapping[str, Text] = field(default_factory=dict)
    assumed: Mapping[str, Text] = field(default_factory=dict)
    longest_s: float = BUDGET_S
    half_width: float = 0.05
    check_load: float = 0.7
    seed: int = 0
    question: Question = field(default_factory=dict)


def plan_file(new: NewRun) -> PlanFile:
    """The plan in the fields. Raises PlanError, one line that names the field."""
    server: dict[str, object] = {"url": new.target, "model": new.model, "protocol": new.protocol}
    if new.protocol == "openai":
        server |= {"url": f"http://{new.target}", "endpoint": new.endpoint}
        server |= {"api_key_env": KEY_VARIABLE} if os.environ.get(KEY_VARIABLE) else {}
    if new.metrics:
        server["metrics_url"] = f"http://{new.metrics}/metrics"
    entries = [{name: float(getattr(new.lengths, name)) for name in ("isl", "osl", "isl_cv", "osl_cv")}]
    if new.long_isl:
        entries.append({**entries[0], "isl": float(new.long_isl), "concurrency": 1})
    content: dict[str, object] = {
        "server": server,
        "deployment": {**new.assumed, **new.labels, **({"assumed": list(new.assumed)} if new.assumed else {})},
        "lengths": entries,
        "concurrency": sorted(new.concurrency),
        "until": {"half_width": new.half_width},
        "budget_s": float(new.longest_s),
        "check_load": new.check_load,
        "seed": new.seed,
    }
    if new.question:
        content["adaptive"] = dict(new.question)
    return parse_plan(yaml_of(content), name="the form")


class Duration(NamedTuple):
    """Seconds of server time that a plan takes: an expectation, or `at_most` so many."""

    seconds: float
    at_most: bool

    def gpu_minutes(self, gpus: int) -> float:
        """The same in minutes, times the GPUs of the replica that is measured."""
        return self.seconds * gpus / 60


def duration(plan: SweepPlan, points: Sequence[Point], gpus: int = 1) -> Duration:
    """How long `plan` takes on a replica of `gpus` GPUs: for an adaptive plan its budget and verification, else the sum
    over its levels.

    `points` were measured on the same deployment before. If one has the same lengths, the sweep's own estimate is used;
    otherwise every level is assumed to take its longest time, without the warm-up, which is unknown.
    """
    if plan.adaptive is not None:
        return Duration(plan.adaptive.budget_s(gpus) + 60 * plan.adaptive.verify_minutes, True)
    levels = plan.levels()
    alike = [p for p in points if p.lengths == levels[0].lengths and p.closed and p.e2e_mean_s]
    if not alike:
        each_s = [plan.until_of(level).budget_s or BUDGET_S for level in levels]
    else:
        each_s = [_expected_s(plan, level, alike) for level in levels]
    return Duration(sum(each_s) + plan.check_loads * max(each_s), not alike)


def _expected_s(plan: SweepPlan, level: Level, alike: Sequence[Point]) -> float:
    """The sweep's own estimate, as if the point with the nearest number of users had just been measured."""
    from calibration.levels import Pace  # loads the clients, which most pages do not need

    near = min(alike, key=lambda point: abs(math.log(point.load_value / level.value)))
    assert near.e2e_mean_s is not None, "only such points are asked"
    pace = Pace(near.lengths, near.load_value, near.e2e_mean_s, near.ttft_mean_s or 0.0, near.itl_mean_s or 0.0)
    return pace.expected_s(plan, level)
