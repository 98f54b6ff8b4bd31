"""What a plan may bring beside the count: sensitivities, GPUs by hour, other engine settings, a mix of GPU types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sizing.answer import fleet_json
from sizing.fleets.daily import Daily
from sizing.fleets.mixed import Mix
from sizing.numbers import percent, significant
from sizing.plan import Fleet, Question, Rejection
from sizing.sensitivity import Sensitivity
from sizing.tuning import Tuned


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
            f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget} are best as they are, "
            f"{len(tuned.tried)} settings tried"
        )
    found = f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget}"
    gpus = f" {tuned.fleet.gpus} GPUs" if isinstance(tuned.fleet, Fleet) else ""
    if isinstance(tuned.before, Rejection):
        return f"{found}:{gpus}, where the settings as they were miss the SLA"
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
