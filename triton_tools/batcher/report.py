"""What the command line prints about a simulated batcher and about tuning: the same facts as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.markup import escape
from rich.table import Table

from sizing.cli.tables import console
from sizing.numbers import milliseconds, percent, significant
from sizing.workload import Limit, of_requests
from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.outcome import Outcome, percentile
from triton_tools.batcher.service import ServiceTimes
from triton_tools.batcher.trial import Load, Setting, Trial, capacity_per_s
from triton_tools.batcher.tuner import Tuned

PERCENTILES = (50, 90, 95, 99)


def spread_json(values: Any) -> dict[str, float]:
    """Mean and percentiles of times in seconds."""
    mean = float(values.mean()) if len(values) else math.nan
    return {"mean_s": mean} | {f"p{q}_s": percentile(values, q) for q in PERCENTILES}


def measured_json(
    model: ModelBatching, outcome: Outcome, rate_per_s: float, service: ServiceTimes, budget: Limit | None
) -> dict[str, Any]:
    """A run of the batcher as JSON, with the counters under Triton's names."""
    counters = outcome.counters
    answer = {
        "model": model.name,
        "rate_per_s": rate_per_s,
        "requests": len(outcome.requests),
        "saturated": is_saturated(model, rate_per_s, service),
        "waiting": spread_json(outcome.waiting_s),
        "latency": spread_json(outcome.latency_s),
        "batch_sizes": {str(size): count for size, count in outcome.batch_sizes.items()},
        "mean_batch": counters.mean_batch,
        "utilization": outcome.utilization,
        "rejected": {"timeout": counters.request_failure["REJECTED"], "queue_full": counters.queue_full},
        "counters": {
            "nv_inference_request_success": counters.request_success,
            "nv_inference_request_failure": counters.request_failure,
            "nv_inference_count": counters.count,
            "nv_inference_exec_count": counters.exec_count,
            "nv_inference_queue_duration_us": counters.queue_duration_us,
            "nv_inference_compute_infer_duration_us": counters.compute_infer_duration_us,
        },
    }
    if budget:
        latency = outcome.at_percentile_s(budget.percentile)
        answer["budget"] = {
            "percentile": budget.percentile,
            "limit_s": budget.limit_s,
            "latency_s": latency,
            "met": latency <= budget.limit_s,
        }
    return answer


def print_measured(
    model: ModelBatching, outcome: Outcome, rate_per_s: float, service: ServiceTimes, budget: Limit | None
) -> None:
    """Print a run of the batcher as text."""
    out, counters = console(), outcome.counters
    load = f"{significant(rate_per_s)} requests/s, {len(outcome.requests):,} simulated"
    out.print(f"[bold]{escape(model.name)}[/bold] at {load}")
    table = Table("", "mean", *[f"p{q}" for q in PERCENTILES])
    for name, values in (("waiting", outcome.waiting_s), ("latency", outcome.latency_s)):
        table.add_row(name, *[milliseconds(value) for value in spread_json(values).values()])
    out.print(table)
    out.print(
        f"{counters.exec_count:,} executions of {significant(counters.mean_batch)} rows on average; "
        f"instances busy {percent(outcome.utilization)} of the time."
    )
    out.print("Batch sizes: " + ", ".join(f"{size} ({count:,})" for size, count in outcome.batch_sizes.items()))
    late, full = counters.request_failure["REJECTED"], counters.queue_full
    out.print(f"Rejected: {late:,} for their timeout, {full:,} by a full queue (not in Triton's failure counter).")
    if is_saturated(model, rate_per_s, service):
        then = "requests are rejected" if outcome.rejected else "waiting grows"
        out.print(f"[yellow]warning:[/yellow] the load exceeds the capacity: {then} for as long as the run lasts")
    if budget:
        latency = outcome.at_percentile_s(budget.percentile)
        holds = "holds" if latency <= budget.limit_s else "does not hold"
        refused = f"{of_requests(outcome.rejected / len(outcome.requests))} of the requests are rejected"
        seen = milliseconds(latency) if math.isfinite(latency) else refused
        out.print(
            f"Budget p{budget.percentile} {milliseconds(budget.limit_s)} {holds}: {seen}."
            + ("" if latency <= budget.limit_s else " Try --tune.")
        )


def is_saturated(model: ModelBatching, rate_per_s: float, service: ServiceTimes) -> bool:
    """Whether requests arrive faster than the instances can serve them."""
    batch = model.rows if model.dynamic else 1
    return rate_per_s >= capacity_per_s(Setting(model.instances, batch), service)


def tuned_json(found: Tuned, load: Load) -> dict[str, Any]:
    """A tuning as JSON: the setting, what was tried, and whether preferred sizes help."""
    other = found.preferred.with_preferred
    return {
        "feasible": True,
        "rate_per_s": load.rate_per_s,
        "budget": {"percentile": load.budget.percentile, "limit_s": load.budget.limit_s},
        "best": trial_json(found.best),
        "config": config_text(found.best.setting),
        "tried": [
            {"what": stage.what, "trials": [trial_json(trial) for trial in stage.trials]} for stage in found.stages
        ],
        "preferred": {
            "helps": found.preferred.helps,
            "why": found.preferred.why,
            "with": trial_json(other) if other else None,
        },
        "notes": list(found.notes),
    }


def trial_json(trial: Trial) -> dict[str, Any]:
    """One setting and its figures."""
    setting = trial.setting
    return {
        "instances": setting.instances,
        "max_batch_size": setting.max_batch_size,
        "max_queue_delay_microseconds": setting.delay_us,
        "preferred_batch_size": list(setting.preferred),
        "latency_s": trial.latency_s,
        "mean_batch": trial.mean_batch,
        "utilization": trial.utilization,
        "capacity_per_s": trial.capacity_per_s,
        "largest_rate_per_s": trial.largest_rate_per_s,
    }


def print_tuned(found: Tuned, load: Load) -> None:
    """Print a tuning as text, the setting first."""
    out, best = console(), found.best
    out.print(f"[bold]{best.setting}[/bold]", soft_wrap=True)
    latency = f"p{load.budget.percentile} latency {milliseconds(best.latency_s)}"
    out.print(
        f"At {significant(load.rate_per_s)} requests/s, {latency} of {milliseconds(load.budget.limit_s)} allowed, "
        f"{significant(best.mean_batch)} rows per execution; "
        f"within the budget up to about {significant(best.largest_rate_per_s or math.nan)} requests/s.",
        soft_wrap=True,
    )
    out.print(escape(config_text(best.setting)))
    table = Table("tried", "instances", "max batch", "delay", f"p{load.budget.percentile}", "rows", "busy", "up to")
    for stage in found.stages:
        for trial in stage.trials:
            setting = trial.setting
            table.add_row(
                stage.what,
                str(setting.instances),
                str(setting.max_batch_size),
                f"{setting.delay_us / 1000:g} ms",
                milliseconds(trial.latency_s),
                significant(trial.mean_batch),
                percent(trial.utilization),
                f"{significant(trial.largest_rate_per_s)}/s" if trial.largest_rate_per_s else "over the budget",
            )
    out.print(table)
    out.print(found.preferred.why, soft_wrap=True)
    for note in found.notes:
        out.print(f"{note}.", soft_wrap=True)


def config_text(setting: Setting) -> str:
    """The lines of config.pbtxt."""
    delay = f" max_queue_delay_microseconds: {setting.delay_us} " if setting.delay_us else " "
    return (
        f"max_batch_size: {setting.max_batch_size}\n"
        f"dynamic_batching {{{delay}}}\n"
        f"instance_group [ {{ count: {setting.instances} }} ]"
    )
