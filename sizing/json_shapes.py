"""The JSON shapes of `predict`, `simulate` and `fit`; those of `plan` stand in sizing/answer.py."""

from __future__ import annotations

from typing import Any

from sizing.fitting import Fit, PointError
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
        "points": [point_error_json(error) for error in fitted.errors],
        "leave_one_out": fitted.leave_one_out,
        "chi2_per_point": fitted.chi2_per_point,
        "warnings": list(fitted.warnings),
    }


def point_error_json(error: PointError) -> dict[str, Any]:
    """One point: where it was measured, what the law gives, and by how much that differs."""
    given = {"isl": error.point.isl, "osl": error.point.osl, "concurrency": error.point.load_value}
    return given | {name: value for name, value in error._asdict().items() if name != "point"}


def finite_only(value: Any) -> Any:
    """`value` with every number that JSON cannot hold replaced by None."""
    if isinstance(value, dict):
        return {key: finite_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(item) for item in value]
    if isinstance(value, float) and not (float("-inf") < value < float("inf")):
        return None
    return value
