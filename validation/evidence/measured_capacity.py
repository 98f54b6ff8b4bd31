"""The largest rate that a server carries under a limit: what a fit to its closed loops says, and what it did.

A server that shows a p95 of m under random arrivals of r requests/s carries r under a limit of m, so r is what a plan
should answer. The limit is freed from the luck of a short measurement as far as the law can tell it: it is the law's
p95 of a long run at r, times measured over predicted p95 of the very arrivals that were sent. Beside the plan's answer
stands the rule of means, the requests/s at the highest concurrency whose mean meets the limit, by the same law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sizing.analyses.verification import with_luck
from sizing.edge import BY_FORMULA, BY_SIMULATION, REQUESTS, capacity_band, load_response, run_at
from sizing.explain import NEAR_FLOOR
from sizing.numbers import percent
from sizing.plans import Candidate
from sizing.question import FIELDS, Setting
from sizing.workload import Limit, RequestMetric, Sla, Workload, metric_name
from validation.evidence.largest_rate import by_means_per_s, carried_per_s
from validation.evidence.table import (
    OPTIMISTIC,
    EvidenceRow,
    Goal,
    beside,
    missing,
    noted,
    row_of_band,
    row_of_errors,
    shown,
)

PERCENTILE = 95
HEADROOM = float(FIELDS["headroom"].default or 0)
"""What a plan keeps free unless it is told otherwise."""
DATA = "vLLM and SGLang, measured here"
GOAL = Goal(0.10)
"""One replica in ten, of servers whose mixes are all fitted."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests/s under a limit, as multiples of the rate at which the server reached it: as planned, with the ends of
    the 90 % band, and by the rule of means. 0: the limit is called out of reach.

    `near_floor`: the limit is so close to the latency of an idle replica that a plan warns of it.
    """

    planned: float
    low: float
    high: float
    by_means: float
    near_floor: bool


def capacity(
    candidate: Candidate, workload: Workload, metric: RequestMetric, measured_s: float, off: float, luck: float
) -> Capacity:
    """What a plan says of the candidate under the limit on p95 of the metric that it reached at the workload's rate.

    `off`: ln of predicted over measured, `measured_s`, for the arrivals that were sent; `luck`: its standard error, by
    which the band is widened, NaN where it is not known.
    """
    rate_per_s, replica = workload.rate_per_s, candidate.replica

    def setting(limit_s: float) -> Setting:
        return Setting(workload, Sla(Limit(metric, PERCENTILE, limit_s)), "random", 1)

    steady = run_at(replica, setting(measured_s), rate_per_s, REQUESTS)
    limit_s = measured_s if steady.saturated else steady.quantiles(metric).at(PERCENTILE) * math.exp(-off)
    asked = setting(limit_s)
    by_luck = 0.0 if math.isnan(luck) else luck
    ends = (setting(limit_s * math.exp(by)) for by in (by_luck, -by_luck))
    looser, tighter = (carried_per_s(BY_FORMULA, replica, end) for end in ends)
    of_rate = math.log(looser / tighter) / 2 if tighter else math.inf
    low, high = with_luck(capacity_band(candidate, asked), of_rate)
    planned = carried_per_s(BY_SIMULATION, replica, asked) / rate_per_s
    floor_s = load_response(replica, asked).idle.value_s(asked.sla.limits[0])
    return Capacity(
        planned,
        planned * low,
        planned * high,
        by_means_per_s(replica, asked) / rate_per_s,
        limit_s <= NEAR_FLOOR * floor_s,
    )


def rows_of(
    name: str, metric: RequestMetric, found: Mapping[str, Sequence[Capacity]], goal: Goal | None = None
) -> list[EvidenceRow]:
    """How far plans and the rule of means are from the rates of all tables in `found`, and how often bands hold these;
    limits near the floor apart."""
    name, what = f"largest rate, {name}", f"requests/s under a p{PERCENTILE} {metric_name(metric)}"
    of_table = {data: [one for one in own if not one.near_floor] for data, own in found.items()}
    judged = [one for own in of_table.values() for one in own]
    if not judged:
        return [missing(each, DATA, what, "no limit leaves room for a queue") for each in (name, f"band, {name}")]
    planned, by_means = (np.array([getattr(one, of) for one in judged]) for of in ("planned", "by_means"))
    errors = planned - 1
    row = row_of_errors(name, DATA, what, list(errors), goal)
    row = beside(row, "rule of means", list(by_means - 1), never_worse=True)
    hopeful, missed = (float(np.mean(of)) for of in (by_means - 1 > OPTIMISTIC, (1 - HEADROOM) * planned > 1))
    row = noted(row, f"that > 5 % optimistic in {shown(hopeful)}")
    row = noted(row, f"with {percent(HEADROOM)} headroom too much in {shown(missed)}")
    for data, own in of_table.items():
        if own:
            row = noted(row, f"median of {data} {shown(float(np.median([abs(one.planned - 1) for one in own])))}")
    if left := sum(map(len, found.values())) - len(judged):
        row = noted(row, f"near the floor, not judged: {left}")
    held = [one.low <= 1 <= one.high for one in judged]
    widths = [(one.high - one.low) / 2 for one in judged]
    band = row_of_band(f"band, {name}", DATA, what, errors, held, widths)
    return [row, noted(band, f"median width ± {shown(float(np.median(widths)))}")]
