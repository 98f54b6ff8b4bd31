"""The JSON shapes of `predict`, `simulate` and `fit`; those of `plan` stand in sizing/text.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sizing.analyses.daily import Daily
from sizing.analyses.existing import Existing
from sizing.analyses.mixed import Mix
from sizing.analyses.sensitivity import Sensitivity, Tuned
from sizing.analyses.sharing import SharedFleet, Terms
from sizing.fitting import Distrust, Fit, PointError, Regime
from sizing.numbers import percent, significant
from sizing.plans import Cost, Fleet, Rejection, cost_at, cost_json
from sizing.points import Point
from sizing.prediction import Prediction
from sizing.question import Question
from sizing.text import fleet_json


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


# --- The JSON shapes of a fleet that exists and of a fleet that several workloads share


def existing_json(fleet: Existing) -> dict[str, Any]:
    """What a fleet that exists carries."""
    candidate = fleet.candidate
    return {
        "rate_per_s": fleet.rate_per_s,
        "limit_per_s": fleet.limit_per_s,
        "rate_low_per_s": fleet.low,
        "rate_high_per_s": fleet.high,
        "gpus": fleet.gpus,
        "unused_gpus": fleet.unused,
        "replicas": fleet.working + fleet.spare,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "pp": candidate.pp,
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.predicted.utilization,
        "predicted": fleet.predicted.as_dict(),
        "binding": fleet.binding,
        "basis": fleet.basis,
        "source": candidate.source,
        "verified_by": fleet.predicted.method,
        "warnings": list(fleet.warnings),
    }


def shared_json(fleet: SharedFleet, terms: Terms) -> dict[str, Any]:
    """A fleet that several workloads share, with what each of them sees; a count without a band (null)."""
    candidate, price = fleet.candidate, terms.price_of(fleet.candidate.gpu)
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "basis": fleet.basis,
        "source": candidate.source,
        "gpus_low": None,
        "gpus_high": None,
        "rate_per_s": fleet.rate_per_s,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.utilization,
        **({} if price is None else cost_json(shared_cost(fleet, price))),
        "working_replicas_apart": fleet.apart,
        "tightest": fleet.tightest.share.name,
        "workloads": [
            {
                "name": served.share.name,
                "rate_per_s": served.share.workload.rate_per_s,
                "priority": served.share.priority,
                "predicted": served.predicted.as_dict(),
                "binding": str(served.binding),
                "warnings": list(served.predicted.warnings),
            }
            for served in fleet.served
        ],
        "verified_by": "simulation",
        "warnings": list(fleet.warnings),
    }


def shared_cost(fleet: SharedFleet, price: float) -> Cost:
    """What a shared fleet costs at this price of a GPU-hour."""
    return cost_at(price * fleet.gpus, fleet.rate_per_s, fleet.output_tokens_per_s)


# --- What a plan may bring beside the count: sensitivities, GPUs by hour, other engine settings, a mix of GPU types


@dataclass(frozen=True, slots=True)
class Extras:
    """What was asked for; None where it was not."""

    sensitivity: tuple[Sensitivity, ...] = ()
    daily: Daily | None = None
    tuned: Tuned | None = None
    mix: Mix | None = None


def extras_json(extras: Extras, question: Question) -> dict[str, Any]:
    """The keys that join those of the plan: sensitivity, daily, tuned, mix, as far as they were asked for."""
    return {
        **({"sensitivity": [asdict(row) for row in extras.sensitivity]} if extras.sensitivity else {}),
        **({"daily": daily_json(extras.daily)} if extras.daily else {}),
        **({"tuned": tuned_json(extras.tuned, question)} if extras.tuned else {}),
        **({"mix": mix_json(extras.mix)} if extras.mix else {}),
    }


def extras_lines(extras: Extras) -> Iterator[str]:
    """One sentence for each that was asked for; sensitivities and hours have tables of their own."""
    if extras.tuned:
        yield tuned_line(extras.tuned)
    if extras.mix:
        yield mix_line(extras.mix)
    if extras.daily:
        yield daily_line(extras.daily)


def tuned_line(tuned: Tuned) -> str:
    """What the search for engine settings found."""
    batching = tuned.batching
    if tuned.gain == 0:
        return (
            f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget} are already the best: "
            f"{len(tuned.tried)} settings tried"
        )
    found = f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget}"
    gpus = f" {tuned.fleet.gpus} GPUs" if isinstance(tuned.fleet, Fleet) else ""
    if isinstance(tuned.before, Rejection):
        return f"{found}:{gpus}; the original settings miss the SLA"
    return f"{found}:{gpus} instead of {tuned.before.gpus}, a replica carries {percent(tuned.gain, sign=True)}"


def mix_line(mix: Mix) -> str:
    """The cheapest mix in one sentence."""
    groups = " + ".join(
        f"{group.gpus} × {group.fleet.candidate.gpu} ({significant(group.load_per_s)} requests/s)"
        for group in mix.groups
    )
    alone = ", ".join(f"{gpu} alone {'too few' if cost is None else significant(cost)}" for gpu, cost in mix.alone)
    return f"Cheapest mix: {groups}, {significant(mix.cost_per_hour)} per hour ({alone})"


def daily_line(daily: Daily) -> str:
    """What following the load saves."""
    return (
        f"{daily.gpu_hours} GPU-hours a day when the fleet follows the load, {daily.constant_gpu_hours} when it does "
        f"not: {percent(daily.saved)} less"
    )


def daily_json(daily: Daily) -> dict[str, Any]:
    """GPUs by hour, and GPU-hours a day."""
    return {
        "hours": [asdict(hour) for hour in daily.hours],
        "gpu_hours": daily.gpu_hours,
        "constant_gpu_hours": daily.constant_gpu_hours,
        "saved": daily.saved,
    }


def tuned_json(tuned: Tuned, question: Question) -> dict[str, Any]:
    """The settings found, the fleet with them, and every setting tried."""
    names = ("policy", "max_batch_size", "token_budget")
    return {
        **{name: getattr(tuned.batching, name) for name in names},
        "gain": tuned.gain,
        "fleet": fleet_json(tuned.fleet, question) if isinstance(tuned.fleet, Fleet) else None,
        "tried": [
            {name: getattr(trial.batching, name) for name in names}
            | {"capacity_per_replica_per_s": trial.capacity_per_s}
            for trial in tuned.tried
        ],
    }


def mix_json(mix: Mix) -> dict[str, Any]:
    """The groups of the mix and what it costs."""
    return {
        "gpus": mix.gpus,
        "cost_per_hour": mix.cost_per_hour,
        "groups": [
            {
                "gpu": group.fleet.candidate.gpu,
                "tp": group.fleet.candidate.tp,
                "precision": group.fleet.candidate.precision,
                "gpus": group.gpus,
                "replicas": group.replicas,
                "load_per_s": group.load_per_s,
                "requests_per_s_per_replica": group.rate_per_s,
            }
            for group in mix.groups
        ],
        "cost_per_hour_alone": dict(mix.alone),
    }
