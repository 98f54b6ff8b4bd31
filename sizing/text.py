"""A plan in words and as JSON: the same sentences and keys for the page, the CLI and the report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sizing.fitting import Fit, Regime, Shares
from sizing.numbers import milliseconds, percent, significant
from sizing.plans import Fleet, Plan, Rejection, cost_of, energy_of
from sizing.plans import cost_json as cost_keys
from sizing.question import FIELDS, Question, replicas_for
from sizing.workload import METRICS

WIDE = 3
"""High end over low end of a band of GPUs from which it is said why."""


def sentence(plan: Plan) -> str:
    """The answer in one sentence.

    For instance: You need 12 x h200_sxm to serve 20 requests/s of Qwen/Qwen3-32B.
    """
    fleet, question = plan.answer, plan.question
    rate = significant(question.workload.rate_per_s)
    return f"You need {fleet.gpus} × {fleet.candidate.gpu} to serve {rate} requests/s of {fleet.candidate.model}"


def working(plan: Plan) -> str:
    """The arithmetic from the load to the count."""
    fleet, question = plan.answer, plan.question
    rate = question.workload.rate_per_s
    per_replica = fleet.requests_per_s_per_replica
    headroom = f" ({percent(question.headroom)} headroom kept)" if question.headroom else ""
    spare = f", + {fleet.spare} spare = {fleet.replicas}" if fleet.spare else ""
    each = f"{fleet.candidate.gpus} GPU{'s' if fleet.candidate.gpus > 1 else ''}"
    return (
        f"{significant(rate)} requests/s ÷ {significant(per_replica)} per replica{headroom} = "
        f"{rate / per_replica:.2f}, so {fleet.working}{spare} replicas of {each} "
        f"(TP{fleet.candidate.tp}, {fleet.candidate.precision}) = {fleet.gpus} GPUs"
    )


def binding(fleet: Fleet) -> str:
    """What binds: the stable rate, or a limit and how much room it leaves."""
    if fleet.stability_binds:
        return (
            f"stable rate: at {significant(fleet.stable_per_s)} requests/s a replica's queue grows without bound, "
            "before a limit is reached"
        )
    limit = fleet.binding
    value = fleet.predicted.value_s(limit)
    return f"{limit.name}: {milliseconds(value)} of {milliseconds(limit.limit_s)} at the planned load"


def sensitivity(plan: Plan, growth: tuple[float, ...] = (0.10, 0.25)) -> str:
    """GPUs at higher loads, the replica's capacity kept: "Load +10 %: still 12 GPUs; +25 %: 14 GPUs"."""
    fleet, rate = plan.answer, plan.question.workload.rate_per_s
    parts = []
    for more in growth:
        working = replicas_for(rate * (1 + more), fleet.requests_per_s_per_replica)
        gpus = (working + fleet.spare) * fleet.candidate.gpus
        parts.append(f"+{percent(more)}: {'still ' if gpus == fleet.gpus else ''}{gpus} GPUs")
    return f"Load {'; '.join(parts)}"


def band(fleet: Fleet) -> str:
    """The 90 % band of the GPU count."""
    if fleet.gpus_high is None:
        return f"{fleet.gpus_low} GPUs or more; at the slow end of the band no number of GPUs meets the SLA"
    if fleet.gpus_low == fleet.gpus_high:
        return f"{fleet.gpus_low} GPUs throughout the 90 % band"
    return f"{fleet.gpus_low} to {fleet.gpus_high} GPUs (90 % band)"


def why_wide(fleet: Fleet) -> str:
    """Why a band is wide, and what to do, as a sentence; empty where it is not."""
    if fleet.gpus_high is not None and fleet.gpus_high <= WIDE * fleet.gpus_low:
        return ""
    start, sigma = "The band is wide because", percent(fleet.candidate.relative_sigma)
    if fleet.basis == "estimated":
        return f"{start} the law is estimated (standard error {sigma}): a few measured points narrow it."
    return (
        f"{start} its points leave the law open (standard error {sigma}): measure more, nearest the planned load first."
    )


def peak(question: Question) -> str | None:
    """A line that says when the plan is for a peak; None when it is for the mean."""
    if question.peak_factor == 1:
        return None
    planned, mean = significant(question.workload.rate_per_s), significant(question.mean_rate_per_s)
    return f"Planned for the peak of {planned} requests/s, {question.peak_factor:.3g} × the mean of {mean}"


def costs(plan: Plan) -> list[str]:
    """Lines on price and energy; none where neither is known."""
    return [line for line in (cost_line(plan), energy_line(plan)) if line]


def cost_line(plan: Plan) -> str | None:
    """Cost per hour, month, million output tokens and 1,000 requests, and what is counted."""
    cost, price = cost_of(plan.question, plan.answer), plan.question.price_of(plan.answer.candidate.gpu)
    if cost is None or price is None:
        return None
    load = "planned rate" if plan.question.peak_factor == 1 else "mean rate"
    spares = ", spares included" if plan.answer.spare else ""
    return (
        f"Cost {cost.sentence} (at {significant(price)} per GPU-hour{spares}; tokens and requests "
        f"at the {load} all day)"
    )


def energy_line(plan: Plan) -> str | None:
    """Power of the fleet's GPUs and energy per million output tokens, upper bounds."""
    energy = energy_of(plan.question, plan.answer)
    if energy is None:
        return None
    return (
        f"GPUs draw at most {significant(energy.power_kw)} kW, "
        f"{significant(energy.kwh_per_million_output_tokens)} kWh per million output tokens "
        "(thermal design power; without servers and cooling)"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The JSON object of `sizing plan --json`: the answer's keys at the top, then alternatives and rejections."""
    answer = fleet_json(plan.answer, plan.question)
    return {
        **answer,
        "question": question_json(plan.question),
        "model": plan.answer.candidate.model,
        "sentence": sentence(plan),
        "planned_rate_per_s": plan.question.workload.rate_per_s,
        "mean_rate_per_s": plan.question.mean_rate_per_s,
        "working": working(plan),
        "mean_based": mean_based_json(plan),
        "alternatives": [fleet_json(fleet, plan.question) for fleet in plan.fleets[1:]],
        "rejected": [rejection_json(rejection) for rejection in plan.rejected],
    }


def question_json(question: Question) -> dict[str, Any]:
    """What was asked, so that a saved plan explains itself."""
    asked: dict[str, Any] = {}
    for field in FIELDS.values():
        if field.name in METRICS:
            asked["sla"] = {limit.metric: f"p{limit.percentile}:{limit.limit_s:.12g}s" for limit in question.sla.limits}
        else:
            value = field.of(question)
            asked[field.key] = str(value) if field.name == "arrivals" else value
    return asked | {"prices": dict(question.prices)}


def mean_based_json(plan: Plan) -> dict[str, Any] | None:
    """What sizing by means would buy, and what users would see there."""
    means = plan.mean_based
    if means is None:
        return None
    return {"gpus": means.gpus, "tp": means.tp, "predicted": means.predicted.as_dict(), "why": means.text}


def fleet_json(fleet: Fleet, question: Question) -> dict[str, Any]:
    """One fleet, with the keys of the CLI contract."""
    candidate = fleet.candidate
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "pp": candidate.pp,
        "gpu": candidate.gpu,
        "precision": candidate.precision,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "requests_per_s_per_replica": fleet.requests_per_s_per_replica,
        "capacity_per_replica_per_s": fleet.capacity_per_s,
        "utilization": fleet.predicted.utilization,
        "predicted": fleet.predicted.as_dict(),
        "binding": fleet.binding_name,
        "basis": fleet.basis,
        "source": candidate.source,
        "gpus_low": fleet.gpus_low,
        "gpus_high": fleet.gpus_high,
        "verified_by": fleet.predicted.method,
        "warnings": list(fleet.warnings),
        **cost_json(question, fleet),
    }


def cost_json(question: Question, fleet: Fleet) -> dict[str, float]:
    """Cost and energy of a fleet, as far as they are known."""
    cost, energy = cost_of(question, fleet), energy_of(question, fleet)
    priced = cost_keys(cost) if cost else {}
    drawn = (
        {
            "power_kw_at_most": energy.power_kw,
            "kwh_per_million_output_tokens_at_most": energy.kwh_per_million_output_tokens,
        }
        if energy
        else {}
    )
    return {**priced, **drawn}


def rejection_json(rejection: Rejection) -> dict[str, Any]:
    """One configuration left out, and why."""
    return {
        "why": rejection.why,
        "kind": rejection.kind,
        "gpu": rejection.gpu,
        "tp": rejection.tp,
        "precision": rejection.precision,
    }


# --- What `fit` says beside its tables: the rule found, what binds the engine, and what the points do not tell


def fit_lines(fitted: Fit) -> tuple[str, ...]:
    """Sentences: what was fitted beside the coefficients, what binds at the busiest level, what is not known and the
    measurement that would tell it. Points that are distrusted and lockstep are among the warnings already."""
    extra = [f"Fitted beside the coefficients: {_extra(fitted, name)}." for name in fitted.extra]
    unknown = [f"Not known: {one}." for one in fitted.unknown]
    return (*extra, *regime_lines(fitted.regime), *unknown)


def _extra(fitted: Fit, name: str) -> str:
    if name == "kv_tokens":
        return f"a KV cache of {fitted.batching.kv_tokens:,} tokens"
    return f"{percent(fitted.law.unread)} of the weights' time is saved by a single sequence"


def regime_lines(found: Regime) -> tuple[str, ...]:
    """The knee, and the two kinds of iteration at the busiest level."""
    where = f"{found.batch:,} sequences of {significant(found.context)} tokens"
    return (
        f"Weights take as long as arithmetic at {significant(found.knee_tokens)} tokens an iteration.",
        f"A decode step of {where}: {shares_text(found.decode)}; its matrix products are "
        f"{_side(found.decode_compute_bound)}.",
        f"With {significant(found.prompt_tokens)} tokens of a prompt: {shares_text(found.prompt)}; "
        f"{_side(found.prompt_compute_bound)}.",
    )


def _side(compute_bound: bool) -> str:
    return "compute-bound" if compute_bound else "memory-bound"


def shares_text(found: Shares) -> str:
    """Shares of an iteration's time, the largest first, without those under half a percent."""
    known = sorted(asdict(found).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share)}" for name, share in known if share >= 0.005)
