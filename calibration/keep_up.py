"""Before a sweep: how many processes the load generator needs for the heaviest level, found on its own mock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from calibration.errors import ClientLimitedError
from calibration.levels import Level
from calibration.load.self_check import Distortion, processes_needed
from calibration.measure import Pace, Target, arrivals_of
from calibration.plan import SweepPlan


def processes(target: Target, levels: Sequence[Level], pace: Pace, says: Callable[[str], None]) -> int:
    """Processes for all of `levels`: those the plan names, else as many as keep the heaviest level true.

    Held against the mock first at the tokens/s that the streams would take at the timings of an idle server, more than
    any server gives. If that is too much for this machine, then at the pace guessed for the loaded server. Raises
    ClientLimitedError if that is too much as well.
    """
    client = target.plan.client
    if not client.self_check:
        return client.processes or 1
    heaviest = max(levels, key=lambda level: _streams(target.plan, level, pace))
    try:
        found = _found(target, heaviest, pace, math.inf)
    except ClientLimitedError as error:
        tokens_per_s = _tokens_per_s(target.plan, heaviest, pace)
        says(f"at the pace of an idle server it would not keep up: {error}")
        says(f"held against {tokens_per_s:,.0f} tokens/s instead; the verdict of each point tells if that was too few")
        found = _found(target, heaviest, pace, tokens_per_s)
    says(f"load generator on its mock, {found.users} streams: {found.text}")
    return found.processes


def _found(target: Target, level: Level, pace: Pace, tokens_per_s: float) -> Distortion:
    osl = max(1, round(level.lengths.osl))
    chosen = target.plan.client.processes
    return processes_needed(
        _streams(target.plan, level, pace),
        tokens_per_s,
        pace.ttft_s,
        pace.itl_s,
        osl,
        target.plan.server.protocol,
        fewest=chosen or 1,
        most=chosen,
    )


def _streams(plan: SweepPlan, level: Level, pace: Pace) -> int:
    """Requests in flight at the level, for an open loop by Little's law at the idle server's pace, doubled."""
    users = level.value if level.kind == "concurrency" else 2 * _peak_per_s(plan, level) * pace.e2e_s
    return max(1, math.ceil(users))


def _peak_per_s(plan: SweepPlan, level: Level) -> float:
    """The highest rate of an open loop over a second or more."""
    if level.kind == "schedule":
        return max(stage.rate for stage in plan.schedule)
    if level.kind == "trace":
        times_s = arrivals_of(plan, level, Pace(level.lengths, 1.0, 1.0))
        return float(np.bincount((times_s - times_s[0]).astype(np.int64)).max())
    return level.value


def _tokens_per_s(plan: SweepPlan, level: Level, pace: Pace) -> float:
    if level.kind != "concurrency":
        return _peak_per_s(plan, level) * level.lengths.osl
    return level.value * level.lengths.osl / pace.e2e_at_s(level.value)
