"""How much of the SLA a replica uses up as its load rises: the small curve in a table of configurations."""

from __future__ import annotations

import math

import numpy as np

from sizing.capacity import load_response
from sizing.plan import Fleet, Question
from sizing.planner import setting_of

BEYOND = 1.1
"""Times the capacity up to which the curve goes: the limit is crossed on the picture."""


def sla_use(question: Question, fleet: Fleet, steps: int = 12) -> tuple[float, ...]:
    """Predicted over allowed latency of the tightest limit at `steps` even loads from idle to `BEYOND` x the capacity.

    1 is the limit; never falling; read off the formula's response, which the planner has already asked for.
    """
    response = load_response(fleet.candidate.replica, setting_of(question, fleet.working))
    rates = np.linspace(float(response.rates_per_s[0]), BEYOND * fleet.capacity_per_s, steps)
    return tuple(math.exp(response.excess_at(float(rate))) for rate in rates)
