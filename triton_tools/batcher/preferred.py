"""Whether preferred batch sizes would help, and why, judged by the service-time curve and by simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.numbers import milliseconds, significant
from triton_tools.batcher.service import ServiceTimes
from triton_tools.batcher.trial import FINAL_REQUESTS, Load, Trial, attempt

FASTER = 1.1
"""How much faster per row than the next size a batch size must be to stand out."""
GAIN = 0.95
"""Preferred sizes help if the latency falls to this fraction or below."""


@dataclass(frozen=True, slots=True)
class PreferredVerdict:
    """The tuned setting compared with the same setting plus preferred sizes, under the same arrivals.

    `standing_out`: sizes much faster per row than the next larger size; only such sizes can be worth a preference.
    """

    plain: Trial
    with_preferred: Trial | None
    standing_out: tuple[int, ...]
    helps: bool
    why: str


def judge_preferred(best: Trial, service: ServiceTimes, load: Load) -> PreferredVerdict:
    """Try preferred sizes on the tuned setting: those that stand out, or else the maximum and half of it."""
    most = best.setting.max_batch_size
    out = standing_out(service, most)
    sizes = tuple(sorted({*(out or (most // 2,)), most} - {0}))
    if most == 1:
        return PreferredVerdict(best, None, (), False, "With single-row batches there is no size to prefer.")
    verification = replace(load, seed=load.seed + 1)
    other = attempt(replace(best.setting, preferred=sizes), service, verification, FINAL_REQUESTS)
    helps = bool(out) and other.latency_s <= GAIN * best.latency_s
    return PreferredVerdict(best, other, out, helps, _why(best, other, service, load, out, helps))


def standing_out(service: ServiceTimes, most: int) -> tuple[int, ...]:
    """Sizes below `most` that are at least 10 % faster per row than the next size, and than all smaller ones."""
    per_row = {size: service(size) / size for size in range(1, most + 1)}
    return tuple(
        size
        for size in range(1, most)
        if per_row[size] * FASTER <= per_row[size + 1] and per_row[size] == min(per_row[n] for n in range(1, size + 1))
    )


def _why(best: Trial, other: Trial, service: ServiceTimes, load: Load, out: tuple[int, ...], helps: bool) -> str:
    most, sizes = best.setting.max_batch_size, list(other.setting.preferred)
    simulated = (
        f"simulated with {sizes}, p{load.budget.percentile} latency is {milliseconds(other.latency_s)} instead of "
        f"{milliseconds(best.latency_s)}, and an execution has {significant(other.mean_batch)} rows instead of "
        f"{significant(best.mean_batch)}"
    )
    if out:
        does = "help" if helps else "still do not help"
        return f"Much faster per row than the next size: {_listed(out)}. Preferred sizes {does}: {simulated}."
    half = max(1, most // 2)
    per_row = f"{milliseconds(service(half) / half)} per row at {half}, {milliseconds(service(most) / most)} at {most}"
    return (
        f"Preferred sizes do not help: no size is much faster per row than the next ({per_row}), so cutting a batch "
        f"short at a preferred size only leaves rows for another execution; {simulated}."
    )


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
