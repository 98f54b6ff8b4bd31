"""Runs of one replica over requests written by hand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sizing.engine import Replica, StepLaw
from sizing.simulator.fleet import run_stream
from sizing.simulator.sampling import prefixes_found
from sizing.simulator.state import Requests, engine_of, idle_states, requests_of, work_space

NOTHING = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)
CLOCK = NOTHING.with_values(overhead_s=1.0)  # one second an iteration
COUNT = NOTHING.with_values(token_s=1.0)  # one second a token


class Ran(NamedTuple):
    run: Requests
    state: Any
    gaps: Any
    rows: Any


def asked(*rows: dict[str, Any]) -> Requests:
    """Requests with one token in and out unless a row says otherwise."""
    run = requests_of(
        np.array([row.get("isl", 1) for row in rows]),
        np.array([row.get("osl", 1) for row in rows]),
        np.array([float(row["at"]) for row in rows]),
    )
    for place, row in enumerate(rows):
        for field in set(row) - {"at", "isl", "osl"}:
            run[field][place] = row[field]
    return run


def serve(replica: Replica, run: Requests, every_s: float = math.inf, samples: int = 0, seed: int = 0) -> Ran:
    streams = int(run["stream"].max()) + 1
    shared = np.concatenate([prefixes_found(run[run["stream"] == stream]) for stream in range(streams)])
    states = idle_states(1, seed, every_s)
    work = work_space(replica, 1, gaps=True, samples=samples, streams=streams, prefixes=shared)
    run_stream(engine_of(replica, by_priority=bool(np.ptp(run["priority"]))), states, work, run)
    return Ran(run, states[0], work.gaps, work.series[0][: states[0]["samples"]])


def times(replica: Replica, *rows: dict[str, Any]) -> list[tuple[int, float, float]]:
    """(outcome, first token, end) of each request."""
    run = serve(replica, asked(*rows)).run
    return [(int(r["outcome"]), float(r["first_token_s"]), float(r["done_s"])) for r in run]
