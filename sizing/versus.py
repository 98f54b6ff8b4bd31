"""Two configurations side by side, in one sentence: how many times the GPUs, how many times the cost."""

from __future__ import annotations

from sizing.cost import cost_of
from sizing.numbers import significant
from sizing.plan import Fleet, Question


def versus(question: Question, one: Fleet, other: Fleet) -> str:
    """What `one` needs, as a multiple of what `other` needs, with both bases; and whether the bands tell them apart.

    For instance: h200_sxm TP2 fp8 (estimated) needs 0.69 × the GPUs of h100_sxm TP4 fp8 (fitted): 11 against 16.
    """
    first, second = (f"{fleet.candidate.label} ({fleet.basis})" for fleet in (one, other))
    counts = f"{one.gpus:,} against {other.gpus:,}"
    if one.gpus == other.gpus:
        said = f"{first} needs as many GPUs as {second}: {one.gpus:,}"
    else:
        said = f"{first} needs {significant(one.gpus / other.gpus)} × the GPUs of {second}: {counts}"
    return f"{said}{_cost(question, one, other)}. {_bands(one, other)}".rstrip()


def _cost(question: Question, one: Fleet, other: Fleet) -> str:
    first, second = cost_of(question, one), cost_of(question, other)
    if first is None or second is None:
        return ""
    if first.per_hour == second.per_hour:
        return f", and costs as much: {significant(first.per_hour)} per hour"
    against = f"{significant(first.per_hour)} against {significant(second.per_hour)} per hour"
    if second.per_hour == 0:
        return f", and costs {against}"
    return f", and costs {significant(first.per_hour / second.per_hour)} × as much: {against}"


def bands_overlap(one: Fleet, other: Fleet) -> bool:
    """True when the 90 % bands of the two counts have a number of GPUs in common."""
    return _reaches(one, other.gpus_low) and _reaches(other, one.gpus_low)


def _reaches(fleet: Fleet, gpus: int) -> bool:
    return fleet.gpus_high is None or gpus <= fleet.gpus_high


def _bands(one: Fleet, other: Fleet) -> str:
    if not bands_overlap(one, other):
        return "Their 90 % bands do not overlap."
    first, second = (_band(fleet) for fleet in (one, other))
    return f"Their 90 % bands overlap ({first} and {second} GPUs): measuring both may turn this round."


def _band(fleet: Fleet) -> str:
    return f"{fleet.gpus_low:,} or more" if fleet.gpus_high is None else f"{fleet.gpus_low:,} to {fleet.gpus_high:,}"
