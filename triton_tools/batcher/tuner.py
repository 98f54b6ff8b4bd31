"""Tune the dynamic batcher in the order that Triton's guide recommends.

Start from the default batcher with a maximum batch size. Within the latency budget, trade latency for throughput: first
by a larger maximum batch size, then by a delay, raised until the budget is exceeded. Leave preferred sizes alone unless
one is much faster than its neighbours. Add an instance only if no batching of fewer instances meets the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from sizing.numbers import milliseconds, significant
from sizing.plans import NoFeasiblePlan
from triton_tools.batcher.preferred import PreferredVerdict, judge_preferred
from triton_tools.batcher.service import Measured, ServiceTimes
from triton_tools.batcher.trial import FINAL_REQUESTS, Load, Setting, Trial, attempt, largest_rate

MAX_INSTANCES = 8
LARGEST_BATCH = 256
"""Largest maximum batch size that is tried with a law; with a measured curve, it is the largest measured size."""
DELAY_SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
WORTH = 1.02
"""How much more a setting must carry to be preferred to one with a lower latency."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the tuning: what was varied, and the settings tried."""

    what: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The setting found, verified in a longer run with other arrivals, and how it was found."""

    best: Trial
    stages: tuple[Stage, ...]
    preferred: PreferredVerdict
    notes: tuple[str, ...]


def tune(measured: Measured, load: Load, start_batch: int, max_instances: int = MAX_INSTANCES) -> Tuned:
    """The setting that carries the most, with the fewest instances that meet the budget at the load.

    `start_batch`: the maximum batch size to begin with.

    Raises:
        NoFeasiblePlan: no setting meets the budget; the message has the nearest miss.
        ScenarioError: `start_batch` or `max_instances` below 1, or a batch size beyond the measured ones.
    """
    if start_batch < 1 or max_instances < 1:
        raise ScenarioError("tuning needs a maximum batch size and a number of instances of at least 1")
    tried: list[Stage] = []
    for instances in _counts(measured, max_instances):
        service = measured.of(instances)
        stages = _process(instances, service, load, start_batch)
        tried += stages
        for candidate in _ranked(stages, load):
            checked = attempt(candidate.setting, service, replace(load, seed=load.seed + 1), FINAL_REQUESTS)
            if checked.meets(load.budget):
                best = replace(checked, largest_rate_per_s=candidate.largest_rate_per_s)
                verdict = judge_preferred(best, service, load)
                return Tuned(best, tuple(tried), verdict, tuple(_notes(measured, instances)))
    raise NoFeasiblePlan(_nearest_miss(tried, load), ())


def _counts(measured: Measured, most: int) -> Iterable[int]:
    return [count for count in measured.instances if count <= most] or range(1, most + 1)


def _process(instances: int, service: ServiceTimes, load: Load, start_batch: int) -> list[Stage]:
    default = _measured(Setting(instances, start_batch), service, load)
    stages = [Stage("default batcher", (default,))]
    sizes = [size for size in _batch_sizes(service, start_batch) if size != start_batch]
    others = [_measured(Setting(instances, size), service, load) for size in sizes]
    stages.append(Stage("other batch sizes", tuple(others)))
    # a near miss may still be saved: with several instances, a short delay makes executions fewer and fuller
    base = next(iter(_ranked(stages, load)), min([default, *others], key=lambda trial: trial.latency_s))
    if base.latency_s < float("inf"):
        stages.append(Stage("delay raised", tuple(_delays(base, service, load))))
    return stages


def _batch_sizes(service: ServiceTimes, start_batch: int) -> list[int]:
    """The powers of two below the largest size that may be tried, and that size."""
    most = max(start_batch, service.largest or min(LARGEST_BATCH, 8 * start_batch))
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sorted({*sizes, most})


def _delays(base: Trial, service: ServiceTimes, load: Load) -> Iterable[Trial]:
    """Trials with a rising delay, up to the first that exceeds the budget; all of them if `base` itself exceeds it."""
    for share in DELAY_SHARES:
        delay_us = max(1, round(load.budget.limit_s * share * 1e6))
        trial = _measured(replace(base.setting, delay_us=delay_us), service, load)
        yield trial
        if base.meets(load.budget) and not trial.meets(load.budget):
            return


def _measured(setting: Setting, service: ServiceTimes, load: Load) -> Trial:
    """A trial, with the largest rate if the budget is met at the load."""
    trial = attempt(setting, service, load)
    if not trial.meets(load.budget):
        return trial
    return replace(trial, largest_rate_per_s=largest_rate(setting, service, load, load.rate_per_s))


def _ranked(stages: Iterable[Stage], load: Load) -> list[Trial]:
    """The trials within the budget, best first: the largest rate; among those within 2 % of it, the lowest latency;
    among those within 2 % of that, the shortest delay and the smallest batch.
    """
    left = [trial for stage in stages for trial in stage.trials if trial.meets(load.budget)]
    ranked = []
    while left:
        most = max(trial.largest_rate_per_s or 0.0 for trial in left)
        near = [trial for trial in left if (trial.largest_rate_per_s or 0.0) * WORTH >= most]
        quick = WORTH * min(trial.latency_s for trial in near)
        quickest = [trial for trial in near if trial.latency_s <= quick]
        chosen = min(quickest, key=lambda trial: (trial.setting.delay_us, trial.setting.max_batch_size))
        ranked.append(chosen)
        left.remove(chosen)
    return ranked


def _notes(measured: Measured, instances: int) -> Iterable[str]:
    yield "Latency is the server's, queue and execution; network and pre-processing come on top"
    if instances > 1 and instances not in measured.instances:
        yield (
            f"{instances} instances are taken to run at the speed of one, each with a GPU or cores of its own; "
            "on a shared one, measure them together (column instances)"
        )


def _nearest_miss(tried: list[Stage], load: Load) -> str:
    nearest = min((trial for stage in tried for trial in stage.trials), key=lambda trial: trial.latency_s)
    budget = f"p{load.budget.percentile} latency of {milliseconds(load.budget.limit_s)}"
    asked = f"{significant(load.rate_per_s)} requests/s with a {budget}"
    if nearest.latency_s == float("inf"):
        most = max(trial.capacity_per_s for stage in tried for trial in stage.trials)
        return f"no setting carries {asked}: the capacity of the largest tried is {significant(most)} requests/s"
    return f"no setting carries {asked}: nearest is {nearest.setting}, with {milliseconds(nearest.latency_s)}"
