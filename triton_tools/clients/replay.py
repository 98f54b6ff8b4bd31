"""Send prompts through the project's own drivers as the clients do: a warm-up, requests when due, a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, cast

import numpy as np

from calibration.load.contract import Contract
from calibration.load.loops import Job
from calibration.load.pool import Workers
from calibration.metrics import window
from calibration.metrics.precision import Until
from calibration.plan import ServerPlan
from calibration.records import Load
from calibration.requests.source import PromptRequest, RequestSource
from sizing.workload import Seconds

WARM_UPS = 10
WARM_UP_OSL = 100
HTTP_CONNECTIONS = 128  # the clients' -c, which they obey over HTTP only
OnShare = Callable[[float], None]


def unwatched(share: float) -> None:
    """Nobody looks at the progress."""


class Prompts(Protocol):
    """What a driver needs: the prompts of its shard, every `shards`-th from number `shard` on."""

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]: ...


@dataclass(frozen=True, slots=True)
class First:
    """The first `n` requests of `source`, or all if it has fewer."""

    source: Prompts
    n: int

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        return islice(self.source.requests(shard, shards), len(range(shard, self.n, shards)))


@dataclass(frozen=True, slots=True)
class Again:
    """One request, `n` times."""

    request: PromptRequest
    n: int

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        return (self.request for _ in range(shard, self.n, shards))


@dataclass(frozen=True, slots=True)
class Target:
    """One model of a server, and the processes that put load on it."""

    server: ServerPlan
    contract: Contract
    workers: Workers


def warm_up(target: Target, prompts: Prompts) -> list[str]:
    """Send ten requests of the first prompt with 100 output tokens, one by one, as the clients do before they measure.

    Returns notes on those that failed. Raises ServerError if the server is gone.
    """
    first = next(prompts.requests())
    log = keep_in_flight(target, Again(replace(first, osl=WARM_UP_OSL), WARM_UPS), 1, WARM_UPS).log
    failed = log.where(~window.answered(log))
    if not len(failed):
        return []
    return [f"{len(failed)} of {len(log)} warm-up requests failed, the last with: {failed.error[-1]}"]


def send_when_due(
    target: Target,
    prompts: Prompts,
    due_s: Seconds,
    on_share: OnShare = unwatched,
    *,
    connections: int = HTTP_CONNECTIONS,
) -> Load:
    """Send the i-th prompt ``due_s[i]`` seconds after the start, whether or not answers have come (open loop).

    As in the clients, prompts that are all due at once share `connections` over HTTP: the others are sent as soon as
    one is free. Raises ServerError if the server is gone.
    """
    n = len(due_s)
    if due_s[-1] > due_s[0]:
        return _drive(target, First(prompts, n), n, on_share, arrivals_s=due_s)
    # all at once: as many users as may be in flight, because such an open loop has neither a rate nor a window
    users = n if target.server.protocol == "grpc" else min(n, connections)
    load = keep_in_flight(target, prompts, users, n, on_share)
    due_at_s = load.log.sent_s.copy()
    due_at_s[np.argsort(due_at_s, kind="stable")[:users]] = due_at_s.min()
    return replace(load, log=replace(load.log, intended_s=due_at_s))


def burst_notes(server: ServerPlan, due_s: Seconds, connections: int) -> list[str]:
    """A note if connections, not the server, limited how many requests of a burst were in flight."""
    if server.protocol == "grpc" or due_s[-1] > due_s[0] or len(due_s) <= connections:
        return []
    return [f"over HTTP at most {connections} of {len(due_s)} requests were in flight: the clients' -c"]


def keep_in_flight(target: Target, prompts: Prompts, users: int, n: int, on_share: OnShare = unwatched) -> Load:
    """Keep `users` requests in flight until `n` prompts have been sent (closed loop), and wait for the last answers.

    Raises ServerError if the server is gone.
    """
    return _drive(target, First(prompts, n), n, on_share, users=min(users, n))


def _drive(
    target: Target,
    prompts: Prompts,
    n: int,
    on_share: OnShare,
    *,
    users: int | None = None,
    arrivals_s: Seconds | None = None,
) -> Load:
    job = Job(
        server=target.server,
        contract=target.contract,
        source=cast(RequestSource, prompts),  # a driver calls nothing but `requests` of its source
        users=users,
        arrivals_s=arrivals_s,
        warm_up=0,
        ramp_s=0.0,
        ahead=n,
    )
    return target.workers.drive(job, Until(requests_min=n, requests_max=n), on_share=on_share)


def wall_s(load: Load, due_s: Seconds) -> float:
    """Seconds from the start, before the gap of the first request, to the end of the last answer."""
    return float(load.log.end_s.max() - load.log.intended_s.min() + due_s[0])


def lateness_s(load: Load) -> float:
    """The 99th percentile of how late requests left this client, in seconds."""
    return float(np.percentile(load.log.sent_s - load.log.intended_s, 99))
