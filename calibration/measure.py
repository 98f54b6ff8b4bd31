"""One load level, from prompts to point; and the probe that tells how long levels will take."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from calibration import metrics
from calibration.describe import Described, deployment, describe
from calibration.errors import ServerError
from calibration.load import Load, OnDone, arrival_times, closed_loop, open_loop
from calibration.plan import Level, PlanFile, ServerPlan, SweepPlan
from calibration.requests import Encoder, Request, TokenizerFile, WordCounter, requests
from calibration.triton import Client, StreamPool, requests_served
from sizing.curves import Deployment, Point
from sizing.workload import Lengths

OnAnswer = Callable[[int, int], None]
PROBES = 2
MADE_AHEAD = 1.5
COUNTERS_SETTLE_S = 0.5  # Triton counts a request a little after its last response has left
_PROBE = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """A server found ready to be measured as `plan` says: what it is, what is written on its points, how it counts."""

    plan: SweepPlan
    served: Described
    replica: Deployment
    encoder: Encoder


def prepare(file: PlanFile) -> Target:
    """Ask the server. Raises ServerError if it cannot be measured, PlanError if the plan lacks something for it."""
    plan = file.plan
    served = asyncio.run(describe(plan.server))
    replica = deployment(plan.deployment, served.engine)
    _served_so_far(plan.server)  # a wrong metrics_url is to fail now
    return Target(plan, served, replica, _encoder(file, served))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests of `lengths` were answered last: mean E2E of `e2e_s` with `users` in flight."""

    lengths: Lengths
    users: float
    e2e_s: float

    def after(self, point: Point) -> Pace:
        """The pace seen at `point`."""
        return replace(self, users=point.mean_in_flight or self.users, e2e_s=point.e2e_mean_s or self.e2e_s)

    def e2e_at_s(self, users: float) -> float:
        """A guess for another load, good enough for progress bars: E2E grows with the root of the users."""
        return self.e2e_s * math.sqrt(max(1.0, users / self.users))

    def expected_s(self, plan: SweepPlan, level: Level) -> float:
        """Seconds that `level` will take: warm-up, measured requests within the budget, end of the last."""
        if level.kind == "concurrency":
            e2e_s = self.e2e_at_s(level.value)
            measuring_s = level.requests * e2e_s / level.value
            return min(measuring_s, plan.budget_s or math.inf) + (plan.warm_up + 2) * e2e_s
        warm_up = warm_up_arrivals(plan, level, self)
        measuring_s = min(level.requests / level.value, plan.budget_s or math.inf)
        return warm_up / level.value + measuring_s + self.e2e_s


def warm_up_arrivals(plan: SweepPlan, level: Level, pace: Pace) -> int:
    """Arrivals to leave out in an open loop: `warm_up` for each request that Little's law puts in flight."""
    return plan.warm_up * max(1, math.ceil(level.value * pace.e2e_s))


def _encoder(file: PlanFile, served: Described) -> Encoder:
    """The tokenizer that the plan names, else the server's, else words."""
    if file.plan.tokenizer == "none":
        return WordCounter()
    path = file.tokenizer_file or served.tokenizer_file
    return WordCounter() if path is None else TokenizerFile(path, served.add_special_tokens)


async def probe(target: Target, level: Level, run_id: int) -> Pace:
    """Two requests on the idle server, of which the second is timed. Raises ServerError if one fails."""
    url = target.plan.server.url
    async with Client(target.plan.server) as client:
        stream = client.stream(target.served.contract)
        for request in islice(_requests(target, level, run_id, salt=_PROBE), PROBES):
            reply = await stream.infer(request)
            if reply.error:
                raise ServerError(f"{url}: the first request failed: {reply.error}")
    return Pace(level.lengths, 1.0, reply.end_s - reply.sent_s)


async def measure(target: Target, level: Level, pace: Pace, run_id: int, on_answer: OnAnswer) -> Point:
    """The point of one level. Raises ServerError if the server is lost or answers nothing."""
    server = target.plan.server
    drive = _closed if level.kind == "concurrency" else _open

    def on_done(done: int) -> None:
        on_answer(done, level.requests)

    if server.metrics_url is not None:
        await asyncio.sleep(COUNTERS_SETTLE_S)
    before = _served_so_far(server)
    async with Client(server) as client:
        load = await drive(client, target, level, _requests(target, level, run_id), pace, on_done)
    source = f"calibration run {run_id}, {server.model} at {server.url}"
    return metrics.point(load, level, target.replica, source=source, notes=_notes(target, load, before))


async def _closed(
    client: Client, target: Target, level: Level, source: Iterator[Request], pace: Pace, on_done: OnDone
) -> Load:
    plan = target.plan
    users = [client.stream(target.served.contract).infer for _ in range(round(level.value))]
    return await closed_loop(
        users,
        _made_ahead(source, level.requests + (plan.warm_up + 1) * len(users)),
        measured=level.requests,
        warm_up=plan.warm_up,
        ramp_s=pace.e2e_s if plan.ramp_s is None else plan.ramp_s,
        budget_s=plan.budget_s,
        on_done=on_done,
    )


async def _open(
    client: Client, target: Target, level: Level, source: Iterator[Request], pace: Pace, on_done: OnDone
) -> Load:
    plan = target.plan
    warm_up = warm_up_arrivals(plan, level, pace)
    rng = np.random.default_rng([plan.seed, level.index])
    arrivals_s = arrival_times(level.value, warm_up + level.requests + 1, rng)
    return await open_loop(
        StreamPool(client, target.served.contract).infer,
        _made_ahead(source, len(arrivals_s)),
        arrivals_s=arrivals_s,
        warm_up=warm_up,
        budget_s=plan.budget_s,
        on_done=on_done,
    )


def _requests(target: Target, level: Level, run_id: int, salt: int = 0) -> Iterator[Request]:
    """Requests of one level. The run's number is in the seed: a repeated plan must not meet its own cached prefixes."""
    rng = np.random.default_rng([target.plan.seed, run_id, level.index + salt])
    return requests(level.lengths, target.encoder, rng)


def _made_ahead(source: Iterator[Request], n: int) -> Iterator[Request]:
    """Prompts made before the load starts, so that making them takes no time from it."""
    return chain(list(islice(source, math.ceil(n * MADE_AHEAD))), source)


def _served_so_far(server: ServerPlan) -> int | None:
    return None if server.metrics_url is None else requests_served(server.metrics_url, server.model)


def _notes(target: Target, load: Load, before: int | None) -> list[str]:
    found = []
    if isinstance(target.encoder, WordCounter):
        found.append("ISL is words: no tokenizer was known")
    if target.served.contract.counted_by == "responses":
        found.append("OSL is responses: the model tells no token counts")
    after = _served_so_far(target.plan.server)
    if before is not None and after is not None and after - before > len(load.timings):
        found.append(f"{after - before - len(load.timings)} requests of others on the server meanwhile")
    return found
