"""Requests/s per GPU of one configuration at other lengths: what happens when prompts or answers grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sizing.candidates import check_context
from sizing.capacity import load_response
from sizing.errors import DoesNotFit, EstimateUnavailable, ScenarioError
from sizing.estimate import estimate
from sizing.plan import Basis, Candidate, Fleet, Question
from sizing.planner import setting_of
from sizing.workload import MOST_TOKENS, Lengths

ISL_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
OSL_FACTORS = (0.5, 1.0, 2.0)
"""Times the scenario's lengths at which the grid stands."""


@dataclass(frozen=True, slots=True)
class LengthCell:
    """One pair of lengths, in tokens: planned requests/s per GPU there, or None and `why` there are none."""

    isl: float
    osl: float
    requests_per_s_per_gpu: float | None
    basis: Basis
    why: str = ""


def length_grid(question: Question, fleet: Fleet, covers: Callable[[Lengths], bool]) -> tuple[LengthCell, ...]:
    """The fleet's configuration at multiples of the question's ISL and OSL, row by row of rising OSL.

    By formula, times what the fleet's own capacity differs from it; headroom kept. `covers` tells whether lengths lie
    within what was measured; it is not asked of estimates.
    """
    as_it_was = load_response(fleet.candidate.replica, setting_of(question, fleet.working))
    # Where the formula puts an idle replica over a limit that the simulation found kept, as much is taken for kept.
    kept = 0.0 if as_it_was.rate_per_s(0.0) else as_it_was.excess_at(fleet.capacity_per_s)
    correction = fleet.capacity_per_s / as_it_was.rate_per_s(kept)
    lengths = question.workload.lengths
    cells = []
    for osl in _around(lengths.osl, OSL_FACTORS):
        for isl in _around(lengths.isl, ISL_FACTORS):
            asked = replace(lengths, isl=isl, osl=osl)
            cells.append(_cell(question, fleet, asked, kept, correction, covers))
    return tuple(cells)


def _around(tokens: float, factors: tuple[float, ...]) -> list[float]:
    return sorted({min(max(1.0, float(round(tokens * factor))), MOST_TOKENS) for factor in factors})


def _cell(
    question: Question,
    fleet: Fleet,
    lengths: Lengths,
    kept: float,
    correction: float,
    covers: Callable[[Lengths], bool],
) -> LengthCell:
    basis: Basis = fleet.candidate.basis
    if basis != "estimated":
        basis = "fitted" if covers(lengths) else "extrapolated"
    try:
        candidate = _at_lengths(fleet.candidate, lengths)
        asked = replace(question, workload=replace(question.workload, lengths=lengths))
    except (ScenarioError, DoesNotFit, EstimateUnavailable) as error:
        return LengthCell(lengths.isl, lengths.osl, None, basis, str(error))
    capacity_per_s = correction * load_response(candidate.replica, setting_of(asked, fleet.working)).rate_per_s(kept)
    if capacity_per_s == 0:
        return LengthCell(lengths.isl, lengths.osl, None, basis, "misses the SLA even alone")
    per_gpu = capacity_per_s * (1 - question.headroom) / candidate.gpus
    return LengthCell(lengths.isl, lengths.osl, per_gpu, basis)


def _at_lengths(candidate: Candidate, lengths: Lengths) -> Candidate:
    """The candidate for requests of other lengths: an estimate counts its KV cache anew.

    Raises ScenarioError beyond the model's context, DoesNotFit where one request does not fit into the KV cache.
    """
    check_context(candidate.model, lengths)
    if candidate.basis == "estimated":
        return estimate(candidate.model, candidate.gpu, candidate.tp, candidate.precision, lengths)
    tokens = lengths.isl + lengths.osl
    if tokens > candidate.replica.batching.kv_tokens:
        held = candidate.replica.batching.kv_tokens
        raise DoesNotFit(f"the KV cache holds {held:,} tokens, a request has {tokens:,.0f}", 0.0)
    return candidate
