"""The method's answer as values and JSON: the load, the cost, the sizing, beside our planner's answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from learn.course.cost import Tco
from learn.course.fleet import CourseSizing
from learn.course.throughput import Throughput
from sizing.plans import Plan
from sizing.text import fleet_json


@dataclass(frozen=True, slots=True)
class Load:
    """Mean requests/s (None where only the peak was given), requests/s at the peak, and how the peak was obtained."""

    mean_per_s: float | None
    peak_per_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Whole servers and fractions of one, the API beside them, and the split per token; None where not asked for."""

    fractional: Tco
    whole: Tco
    api_per_1000: float | None
    per_million: tuple[float, float] | None


def throughput_json(measured: Throughput, gpus: int) -> dict[str, Any]:
    """A throughput with its six parameters and the GPU."""
    point = measured.point
    return {
        **{name: getattr(point, name) for name in ("model", "precision", "isl", "osl", "tp", "gpu")},
        "concurrency": measured.concurrency,
        "requests_per_s_per_instance": measured.per_instance,
        "requests_per_s_per_gpu": measured.per_gpu,
        "requests_per_s_per_server": measured.per_gpus(gpus),
        "concurrency_per_server": measured.concurrency_per_gpus(gpus),
        "ttft_mean_s": point.ttft_mean_s,
        "e2e_mean_s": point.e2e_mean_s,
    }


def sizing_json(sizing: CourseSizing) -> dict[str, Any]:
    """The answer of the method."""
    return {
        "throughput": throughput_json(sizing.throughput, sizing.gpus_per_server),
        "peak_per_s": sizing.peak_per_s,
        "instances": sizing.instances,
        "gpus": sizing.gpus,
        "servers": sizing.servers,
        "whole_servers": sizing.whole_servers,
    }


def course_json(sizing: CourseSizing, load: Load, cost: Cost | None, plan: Plan | str | None) -> dict[str, Any]:
    """The method's answer, the load, the cost, and our planner's answer."""
    mine = None
    if plan is not None:
        mine = {"why_not": plan} if isinstance(plan, str) else fleet_json(plan.answer, plan.question)
    return {**sizing_json(sizing), "load": asdict(load), "cost": asdict(cost) if cost else None, "ours": mine}
