"""The JSON shapes of `predict`, `simulate` and `fit`; those of `plan` stand in sizing/answer.py."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sizing.curves import Point
from sizing.fitting import Distrust, Fit, PointError, Regime
from sizing.prediction import Prediction


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The keys of `predict` and `simulate`."""
    return {
        "predicted": prediction.as_dict(),
        "saturated": prediction.saturated,
        "utilization": prediction.utilization,
        "method": prediction.method,
    }


def fit_json(fitted: Fit) -> dict[str, Any]:
    """The keys of `fit`."""
    return {
        "deployment": fitted.deployment._asdict(),
        "policy": fitted.batching.policy,
        "coefficients": {
            name: dict(
                zip(("value_s", "low_s", "high_s"), (getattr(fitted.law, name), *fitted.interval(name)), strict=True)
            )
            for name in fitted.names
        },
        "extra": {name: extra_value(fitted, name) for name in fitted.extra},
        "points": [point_error_json(error) for error in fitted.errors],
        "leave_one_out": fitted.leave_one_out,
        "chi2_per_point": fitted.chi2_per_point,
        "law_error": fitted.law_error._asdict(),
        "distrusted": [distrust_json(distrust) for distrust in fitted.distrusted],
        "unknown": [unknown._asdict() for unknown in fitted.unknown],
        "lockstep": fitted.lockstep,
        "regime": regime_json(fitted.regime),
        "warnings": list(fitted.warnings),
    }


def extra_value(fitted: Fit, name: str) -> float:
    """What was fitted beside the coefficients: the share "unread", or "kv_tokens"."""
    return fitted.batching.kv_tokens if name == "kv_tokens" else float(getattr(fitted.law, name))


def distrust_json(distrust: Distrust) -> dict[str, Any]:
    """A point that disagrees with the others: which, and its worst figure."""
    where = load_json(distrust.point)
    return where | {"figure": distrust.figure, "off": distrust.off, "sigmas": distrust.sigmas}


def regime_json(found: Regime) -> dict[str, Any]:
    """What binds at the busiest level measured, and what an iteration's time is spent on."""
    both = {"decode": asdict(found.decode), "prompt": asdict(found.prompt)}
    return found._asdict() | both | {"decode_bound": found.decode.bound, "prompt_bound": found.prompt.bound}


def point_error_json(error: PointError) -> dict[str, Any]:
    """One point: where it was measured, what the law gives, and by how much that differs."""
    return load_json(error.point) | {name: value for name, value in error._asdict().items() if name != "point"}


def load_json(point: Point) -> dict[str, Any]:
    """Where a point was measured; requests/s in place of users where its load is open."""
    closed = point.load_kind == "concurrency"
    load: dict[str, Any] = {"concurrency" if closed else "rate_per_s": point.load_value}
    return {"isl": point.isl, "osl": point.osl, "load_kind": point.load_kind, **load}


def finite_only(value: Any) -> Any:
    """`value` with every number that JSON cannot hold replaced by None."""
    if isinstance(value, dict):
        return {key: finite_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(item) for item in value]
    if isinstance(value, float) and not (float("-inf") < value < float("inf")):
        return None
    return value
