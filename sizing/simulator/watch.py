"""What a run tells beside the latencies of its requests: token gaps, pauses, and what the replicas held over time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sizing.errors import ScenarioError
from sizing.simulator.gaps import Counts, TokenGaps, gap_quantiles
from sizing.simulator.records import States, Work
from sizing.workload import Seconds

MOST_SAMPLES = 4096
"""Samples kept of a replica; a longer run is sampled half as often, again and again."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What to record: every gap between tokens, and the replicas' state each `sample_every_s` seconds (inf: never)."""

    token_gaps: bool = False
    sample_every_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.sample_every_s > 0:
            raise ScenarioError(f"sample_every_s must be above 0 s, got {self.sample_every_s:g}")

    @property
    def samples(self) -> int:
        """Rows to keep for a replica."""
        return MOST_SAMPLES if math.isfinite(self.sample_every_s) else 0


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """What one replica held, at the first iteration formed after each sampling time; arrays of shape (samples,).

    Sequences `running`, requests `waiting`, whether a prompt cut in chunks was in progress (0 or 1), KV tokens held by
    the admitted, and pauses since the start.
    """

    time_s: Seconds
    running: Seconds
    waiting: Seconds
    prefilling: Seconds
    kv_tokens: Seconds
    paused: Seconds


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """What was recorded, over the whole run, of the requests simulated: those of one replica or of up to 32 where these
    stand for a larger fleet. `pauses`: times that a sequence lost its KV cache to others.

    Token gaps are what the reader of a stream sees, stalls in full (the ITL of a request is only their mean); NaN when
    they were not asked for. Within 0.8 %. `measured_gaps`: those between the first and the last measured arrival, for
    each stream of requests; none when not asked for. `series`: one for each replica simulated, none when not asked for.
    """

    pauses: int = 0
    gap_p50_s: float = math.nan
    gap_p95_s: float = math.nan
    gap_p99_s: float = math.nan
    series: tuple[TimeSeries, ...] = ()
    measured_gaps: tuple[TokenGaps, ...] = ()


def watched(states: States, work: Work, watch: Watch, measured_gaps: tuple[TokenGaps, ...] = ()) -> Watched:
    """What the replicas recorded in a run that was watched like this."""
    series: tuple[TimeSeries, ...] = ()
    if watch.samples:
        series = tuple(TimeSeries(*rows[: state["samples"]].T) for rows, state in zip(work.series, states, strict=True))
    return Watched(int(states["paused"].sum()), *gap_percentiles_s(work.gaps), series, measured_gaps)


def gap_percentiles_s(counts: Counts) -> tuple[float, float, float]:
    """p50, p95 and p99 of the gaps counted; NaN if they were not."""
    gaps_s = gap_quantiles(counts, (50, 95, 99)) if counts.size else np.full(3, math.nan)
    p50_s, p95_s, p99_s = (float(gap_s) for gap_s in gaps_s)
    return p50_s, p95_s, p99_s
