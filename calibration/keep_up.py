"""Before a sweep: how many processes the load generator needs for the heaviest level, found on its own mock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from calibration.errors import ClientLimitedError
from calibration.load.self_check import Distortion, processes_needed
from calibration.measure import Pace, Target
from calibration.plan import Level


def processes(target: Target, levels: Sequence[Level], pace: Pace, says: Callable[[str], None]) -> int:
    """Processes for all of `levels`: those the plan names, else as many as keep the heaviest level true.

    Held against the mock first at the tokens/s that the streams would take at the timings of an idle server, more than
    any server gives. If that is too much for this machine, then at the pace guessed for the loaded server. Raises
    ClientLimitedError if that is too much as well.
    """
    client = target.plan.client
    if not client.self_check:
        return client.processes or 1
    heaviest = max(levels, key=lambda level: _streams(level, pace))
    try:
        found = _found(target, heaviest, pace, math.inf)
    except ClientLimitedError:
        found = _found(target, heaviest, pace, _tokens_per_s(heaviest, pace))
    says(f"load generator on its mock, {found.users} streams: {found.text}")
    return max(found.processes, client.processes or 1)


def _found(target: Target, level: Level, pace: Pace, tokens_per_s: float) -> Distortion:
    osl = max(1, round(level.lengths.osl))
    protocol = target.plan.server.protocol
    return processes_needed(
        _streams(level, pace), tokens_per_s, pace.ttft_s, pace.itl_s, osl, protocol, most=target.plan.client.processes
    )


def _streams(level: Level, pace: Pace) -> int:
    """Requests in flight at the level, for an open loop by Little's law at the idle server's pace, doubled."""
    users = level.value if level.kind == "concurrency" else 2 * level.value * pace.e2e_s
    return max(1, math.ceil(users))


def _tokens_per_s(level: Level, pace: Pace) -> float:
    if level.kind != "concurrency":
        return level.value * level.lengths.osl
    return level.value * level.lengths.osl / pace.e2e_at_s(level.value)
