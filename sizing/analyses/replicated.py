"""A long simulation in independent parts, run side by side and merged, with a confidence interval from their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
from numpy.random import SeedSequence

from sizing.analyses.parallel import HERE, Machines, run_all
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.prediction import Caution, Prediction, Quantiles
from sizing.simulator import simulate
from sizing.stats import mean_half_width
from sizing.workload import OF_REQUESTS, RequestMetric, Routing, Workload

NAMES = ("mean_s", "p50_s", "p90_s", "p95_s", "p99_s")


@dataclass(frozen=True, slots=True, eq=False)
class Replicated:
    """Runs of one question with seeds of their own: `values_s` has shape (runs, metrics, 5), the five of Quantiles.

    Means over the runs, and the half width of a 90 % interval around them by Student's t: the runs are independent,
    so the interval holds whatever the correlation of requests within a run. Each run starts empty and leaves out its
    own warm-up; a percentile of a run is biased by about one over its requests, so runs should be long (100,000).
    `losses`: shares of the requests that had no complete answer, see `Simulated`.
    """

    values_s: Floats
    requests: int
    saturated: bool
    utilization: float
    losses: Mapping[str, float]
    warnings: tuple[Caution, ...]

    @property
    def prediction(self) -> Prediction:
        """Means over the runs."""
        ttft, itl, e2e = (Quantiles(*map(float, row)) for row in self.values_s.mean(axis=0))
        rejected = self.losses["rejected_share"] + self.losses["timed_out_share"]
        return Prediction(
            *(ttft, itl, e2e, self.saturated, self.utilization, "simulation"),
            warnings=self.warnings,
            rejected=rejected,
        )

    def half_width_s(self, metric: RequestMetric, name: str) -> float:
        """Half the 90 % interval of ``mean_s``, ``p50_s``, ``p90_s``, ``p95_s`` or ``p99_s``; infinite for one run."""
        runs = len(self.values_s)
        if runs < 2 or self.saturated:
            return math.inf
        values = self.values_s[:, OF_REQUESTS.index(metric), NAMES.index(name)]
        return mean_half_width(values)

    @property
    def half_widths_s(self) -> dict[RequestMetric, dict[str, float]]:
        """All of them, by metric and name; infinite where there is no interval."""
        return {metric: {name: self.half_width_s(metric, name) for name in NAMES} for metric in OF_REQUESTS}


def replicated(
    replica: Replica,
    workload: Workload,
    *,
    runs: int = 8,
    requests: int = 800_000,
    replicas: int = 1,
    routing: Routing = "random",
    seed: int = 0,
    machines: Machines = HERE,
) -> Replicated:
    """`requests` requests in `runs` independent simulations of equal length on the given machines, merged.

    The same seed gives the same numbers on any machines. Raises ScenarioError for numbers out of range.
    """
    if runs < 1 or requests < 10 * runs:
        raise ScenarioError(f"runs must be 1 or more, of at least 10 requests each; got {runs} of {requests} requests")
    one = partial(_one_run, replica, workload, replicas, routing)
    found, losses = zip(*run_all(one, [requests // runs] * runs, seed=seed, machines=machines), strict=True)
    values_s = np.array(
        [[[getattr(run.of(metric), name) for name in NAMES] for metric in OF_REQUESTS] for run in found]
    )
    mean_losses = {reason: fmean(each[reason] for each in losses) for reason in losses[0]}
    warnings = tuple(caution for caution in found[0].warnings if caution.kind != "lost_requests")
    if lost := sum(mean_losses.values()):
        warnings += (Caution("lost_requests", {"share": lost}),)
    saturated, utilization = any(run.saturated for run in found), found[0].utilization
    return Replicated(values_s, requests // runs * runs, saturated, utilization, mean_losses, warnings)


def _one_run(
    replica: Replica, workload: Workload, replicas: int, routing: Routing, requests: int, seed: SeedSequence
) -> tuple[Prediction, Mapping[str, float]]:
    number = int(seed.generate_state(1)[0])
    run = simulate(replica, workload, replicas=replicas, routing=routing, requests=requests, seed=number)
    return run.prediction(), run.losses
