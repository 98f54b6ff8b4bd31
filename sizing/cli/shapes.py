"""The JSON shapes of `predict`, `simulate` and `fit`; those of `plan` stand in sizing/text.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from sizing.analyses.closed_loop import ClosedLoop
from sizing.analyses.daily import Daily
from sizing.analyses.existing import Existing
from sizing.analyses.mixed import Mix
from sizing.analyses.sensitivity import GoodputPrice, Tuned
from sizing.analyses.sharing import SharedFleet, Terms
from sizing.deploy.settings import settings_json
from sizing.engine import COEFFICIENTS
from sizing.fitting import BentLaw, Distrust, Fit, PointError, Regime
from sizing.plans import Cost, Fleet, Rejection, cost_at
from sizing.points import Point
from sizing.prediction import Prediction
from sizing.question import Question
from sizing.text import (
    Extras,
    cautions,
    fleet_json,
    of_all_json,
    question_json,
    rejection_json,
    scheduling_json,
    verification_json,
)
from sizing.trace import dispersion
from sizing.workload import OF_REQUESTS

if TYPE_CHECKING:
    from sizing.analyses.pools import Pools
    from sizing.analyses.session_plan import Seen, SessionPlan
    from sizing.analyses.traced import TracePlan
    from sizing.simulator.recorded import Replayed


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The keys of `predict` and `simulate`."""
    return {
        "predicted": prediction.as_dict(),
        "saturated": prediction.saturated,
        "utilization": prediction.utilization,
        "method": prediction.method,
    }


def closed_loop_json(loop: ClosedLoop) -> dict[str, Any]:
    """The closed loop of `predict --concurrency`: figures as value, low and high, latencies named as in the points
    table; null for the ITL of one output token."""
    found = asdict(loop)
    return {"itl_mean_s": None, **found.pop("latencies"), **found, "method": "simulation"}


def fit_json(fitted: Fit) -> dict[str, Any]:
    """The keys of `fit`."""
    return {
        "deployment": fitted.deployment._asdict(),
        "policy": fitted.batching.policy,
        **scheduling_json(fitted.batching),
        "coefficients": {
            name: dict(
                zip(("value_s", "low_s", "high_s"), (getattr(fitted.law, name), *fitted.interval(name)), strict=True)
            )
            for name in fitted.names
        },
        "extra": {name: extra_value(fitted, name) for name in fitted.extra},
        "bends": [bend_json(bent) for bent in fitted.bent],
        "points": [point_error_json(error) for error in fitted.errors],
        "leave_one_out": fitted.leave_one_out,
        "chi2_per_point": fitted.chi2_per_point,
        "law_error": fitted.law_error._asdict(),
        "distrusted": [distrust_json(distrust) for distrust in fitted.distrusted],
        "unknown": [unknown._asdict() for unknown in fitted.unknown],
        "lockstep": fitted.lockstep,
        "regime": regime_json(fitted.regime),
        "warnings": cautions(fitted.warnings),
    }


def bend_json(bent: BentLaw) -> dict[str, Any]:
    """The law with its bend at one pair of lengths: factors on decode steps and on iterations with a prompt."""
    bend = bent.law.bend
    factors = {"decode": np.exp(bend.decode).tolist(), "prompt": np.exp(bend.prompt).tolist()}
    law = {name: getattr(bent.law, name) for name in (*COEFFICIENTS, "send_s")}
    return {"isl": bent.isl, "osl": bent.osl, "law": law, "sequences": list(bend.sequences), **factors}


def extra_value(fitted: Fit, name: str) -> float:
    """What was fitted beside the coefficients: the share "unread", "kv_tokens", or "send_s"."""
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
    load: dict[str, Any] = {"concurrency" if point.closed else "rate_per_s": point.load_value}
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
        **candidate.layout.as_dict(),
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "engine": candidate.engine,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.predicted.utilization,
        "predicted": fleet.predicted.as_dict(),
        **of_all_json(fleet.predicted),
        "binding": fleet.binding,
        "basis": fleet.basis,
        "source": candidate.source,
        "verified_by": fleet.predicted.method,
        "warnings": cautions(fleet.warnings),
    }


def shared_json(fleet: SharedFleet, terms: Terms) -> dict[str, Any]:
    """A fleet that several workloads share, with what each of them sees; a count without a band (null)."""
    candidate, price = fleet.candidate, terms.price_of(fleet.candidate.gpu)
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        **candidate.layout.as_dict(),
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "engine": candidate.engine,
        "basis": fleet.basis,
        "source": candidate.source,
        "gpus_low": None,
        "gpus_high": None,
        "rate_per_s": fleet.rate_per_s,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.utilization,
        **({} if price is None else shared_cost(fleet, price).as_dict()),
        "working_replicas_apart": fleet.apart,
        "tightest": fleet.tightest.share.name,
        "workloads": [
            {
                "name": served.share.name,
                "rate_per_s": served.share.workload.rate_per_s,
                "priority": served.share.priority,
                "predicted": served.predicted.as_dict(),
                "binding": str(served.binding),
                "warnings": cautions(served.predicted.warnings),
            }
            for served in fleet.served
        ],
        "verified_by": "simulation",
        "warnings": cautions(fleet.warnings),
        "engine_settings": settings_json(
            candidate, [served.share.workload for served in fleet.served], fleet.in_flight
        ),
    }


def shared_cost(fleet: SharedFleet, price: float) -> Cost:
    """What a shared fleet costs at this price of a GPU-hour."""
    return cost_at(price * fleet.gpus, fleet.rate_per_s, fleet.output_tokens_per_s)


# --- What a plan may bring beside the count: sensitivities, GPUs by hour, other engine settings, a mix of GPU types


KEYS: Mapping[str, Callable[[Any, Question], dict[str, Any]]] = {
    "sensitivity": lambda rows, _: {"sensitivity": [asdict(row) for row in rows]},
    "daily": lambda found, _: {"daily": daily_json(found)},
    "tuned": lambda found, question: {"tuned": tuned_json(found, question)},
    "mix": lambda found, _: {"mix": mix_json(found)},
    "pools": lambda found, question: {"disaggregated": pools_json(found, question)},
    "trace": lambda found, _: {"trace": trace_json(found), "question": question_json(found.question)},
    "goodput_prices": lambda prices, _: {"goodput_price": [*map(goodput_price_json, prices)]},
    "sessions": lambda found, question: _of_sessions(found, question),
    "verification": lambda found, _: {"verification": verification_json(found)},
}
"""The keys of each field of `Extras`."""


def extras_json(extras: Extras, question: Question) -> dict[str, Any]:
    """The keys that join those of the plan: verification, which may be null, and those of what else was asked for."""
    found: dict[str, Any] = {"verification": None}
    for name, keys in KEYS.items():
        if value := getattr(extras, name):
            found |= keys(value, question)
    return found


def _of_sessions(found: SessionPlan, question: Question) -> dict[str, Any]:
    """What sessions come to, and the settings of engines that take a session to its end: a later turn is longer than
    the mean prompt."""
    fleet = found.plan.answer
    settings = settings_json(fleet.candidate, [question.workload], fleet.in_flight)
    longest = {"max_model_tokens": found.load.sessions.context_tokens or None}
    return {"sessions": sessions_json(found), "engine_settings": {**settings, **longest}}


def goodput_price_json(price: GoodputPrice) -> dict[str, Any]:
    """What one goodput takes; nulls where no number of replicas keeps it."""
    fleet = price.fleet
    return {
        "goodput": round(price.percent / 100, 6),
        "gpus": fleet and fleet.gpus,
        "replicas": fleet and fleet.replicas,
        "requests_per_s_per_gpu": fleet and fleet.requests_per_s_per_gpu,
    }


def sessions_json(found: SessionPlan) -> dict[str, Any]:
    """What sessions come to on the answer's fleet: the planned load, every routing, and rising loads."""
    asked = asdict(found.load.sessions) | {"rate_per_s": found.seen.rate_per_s}
    return {
        "users": found.load.users,
        "asked": asked,
        "routing": found.load.routing,
        "gpus_per_100_in_flight": found.gpus_per_100,
        "context_tokens_in_flight": found.context_tokens(found.seen),
        "kv_tokens": found.kv_tokens,
        "working_all_found": found.all_found,
        "working_system_prompt_found": found.none_found,
        **seen_json(found, found.seen),
        "routings": {name: seen_json(found, seen) for name, seen in found.routings},
        "rising_load": [seen_json(found, seen) for seen in found.curve],
    }


def seen_json(found: SessionPlan, seen: Seen) -> dict[str, Any]:
    """The answer's fleet under one load of sessions; latencies are unknown where the queue grew all the time."""
    seconds = seen.predicted.as_dict()
    unknown = {name: dict.fromkeys(figures) for name, figures in seconds.items()}
    return {
        "sessions_per_s": seen.rate_per_s,
        "turns_per_s": seen.turns_per_s,
        "sessions_in_flight": seen.in_flight,
        "hit_rate": seen.hit_rate,
        "contexts_over_kv_cache": found.filled(seen),
        "pauses": seen.pauses,
        "rejected_share": seen.rejected_share,
        "saturated": seen.saturated,
        "meets_sla": seen.meets,
        "latencies": unknown if seen.saturated else seconds,
    }


def trace_json(found: TracePlan) -> dict[str, Any]:
    """What was replayed, the share of requests inside the SLA, the band of resampled traces, and each hour."""
    trace, seen, gpus = found.trace, found.replayed, found.plan.answer.candidate.gpus
    spare = found.plan.answer.spare
    again = found.sampling
    bounds = (None, None) if again is None else (again.low, again.high)
    low, high = (None if working is None else (working + spare) * gpus for working in bounds)
    return {
        "requests": len(trace),
        "began_at": None if isnan(trace.began_s) else trace.clock(0.0),
        "span_s": trace.span_s,
        "rate_per_s": trace.rate_per_s,
        "dispersion_1_s": dispersion(trace),
        "goodput": seen.goodput(),
        "lost": int(seen.tally.lost.sum()),
        **hit_rate_json(found, seen),
        "gpus_low_sampling": low,
        "gpus_high_sampling": high,
        "sampling_blocks": None if again is None else f"{again.blocks} {again.of}",
        "worst_hour": found.worst_hour,
        "notes": list(found.notes),
        "hours": [hour_json(found, number) for number in range(len(seen.hours))],
        **({"classes": [class_json(found, one) for one in seen.classes]} if seen.classes else {}),
    }


def class_json(found: TracePlan, seen: Replayed) -> dict[str, Any]:
    """One class of a replayed trace: its limits, what its requests saw, in all and in each hour in which some came."""
    predicted = seen.prediction(0.0)
    limits = [
        {**asdict(limit), "value_s": predicted.value_s(limit), "exceeding_share": seen.exceeding_share(limit)}
        for limit in seen.sla.limits
    ]
    return {
        "name": seen.name,
        "requests": int(seen.tally.gone.sum()),
        "goodput": seen.goodput(),
        "lost": int(seen.tally.lost.sum()),
        **hit_rate_json(found, seen),
        "limits": limits,
        "predicted": predicted.as_dict(),
        "worst_hour": seen.worst_hour,
        "hours": [hour_seen_json(found, seen, number) for number, requests in enumerate(seen.tally.gone) if requests],
    }


def hit_rate_json(found: TracePlan, seen: Replayed, hour: int | None = None) -> dict[str, float]:
    """The share of prompt tokens found in the prefix cache, where there is one."""
    cached = found.plan.answer.candidate.replica.batching.prefix_cache
    return {"hit_rate": seen.hit_rate(hour)} if cached else {}


def hour_json(found: TracePlan, number: int) -> dict[str, Any]:
    """One hour of a replayed trace: its load, what its requests saw, and GPUs that its rate needs, spares included."""
    answer = found.plan.answer
    return {
        **hour_seen_json(found, found.replayed, number),
        "gpus": (found.needed[number] + answer.spare) * answer.candidate.gpus,
    }


def hour_seen_json(found: TracePlan, seen: Replayed, number: int) -> dict[str, Any]:
    """What the requests of an hour saw, all of them or those of a class."""
    hour = seen.hours[number]
    return {
        "from_s": hour.from_s,
        "clock": found.trace.clock(hour.from_s),
        "requests": int(seen.tally.gone[number]),
        "goodput": seen.goodput(number),
        **hit_rate_json(found, seen, number),
        "predicted": {metric: asdict(seen.quantiles(metric, number)) for metric in OF_REQUESTS},
    }


def pools_json(pools: Pools | Rejection, question: Question) -> dict[str, Any]:
    """Two pools, both with the keys of `plan`, and their assumptions; or why there are none."""
    if isinstance(pools, Rejection):
        return rejection_json(pools)
    return {
        "gpus": pools.gpus,
        "gpus_low": pools.gpus_low,
        "gpus_high": pools.gpus_high,
        "prefill": fleet_json(pools.prefill, question),
        "decode": fleet_json(pools.decode, question),
        "transfer_s": pools.transfer_s,
        "verified_by": pools.verified_by,
        "assumptions": list(pools.assumptions),
        **({"predicted": pools.predicted.as_dict()} if pools.predicted else {}),
    }


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
                **group.fleet.candidate.layout.as_dict(),
                "precision": group.fleet.candidate.precision,
                "engine": group.fleet.candidate.engine,
                "gpus": group.gpus,
                "replicas": group.replicas,
                "load_per_s": group.load_per_s,
                "requests_per_s_per_replica": group.rate_per_s,
            }
            for group in mix.groups
        ],
        "cost_per_hour_alone": dict(mix.alone),
    }
