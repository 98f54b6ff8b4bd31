"""What a simulated run teaches, in words: what to know of it first, then what else."""

from __future__ import annotations

import numpy as np

from sizing.numbers import milliseconds, significant
from sizing.simulator import Simulated
from sizing.workload import Limit, Metric, Sla, metric_name

STALLED = 3.0
"""Times the mean ITL from which one token gap in a hundred is worth a sentence."""
SLOWEST = 0.05
"""Share of the requests, those with the longest TTFT, of which it is said what they waited for."""


def learned(run: Simulated, sla: Sla, load_per_s: float) -> list[str]:
    """Sentences, what matters most first; `load_per_s`: requests/s offered to each replica."""
    if run.saturated:
        return [_saturated(run, load_per_s)]
    found = [_lost(run), _paused(run), *(_missed(run, limit) for limit in sla.limits), _stalls(run), _first_token(run)]
    said = [sentence for sentence in found if sentence]
    return said if any(found[:-2]) else [_kept(run, sla), *said]


def _saturated(run: Simulated, load_per_s: float) -> str:
    rate = significant(load_per_s)
    if run.utilization >= 1:
        most = significant(load_per_s / run.utilization)
        return f"No steady state: {rate} requests/s come, a replica carries {most}, and the waiting line only grows"
    return f"No steady state at {rate} requests/s: the waiting line grew all along"


def _lost(run: Simulated) -> str:
    if not run.lost:
        return ""
    reasons = {"turned away": run.rejected, "dropped from the line": run.timed_out, "given up": run.cancelled}
    told = ", ".join(f"{count:,} {name}" for name, count in reasons.items() if count)
    return f"{_share(run.lost / len(run.outcome))} of the requests got no answer: {told}"


def _paused(run: Simulated) -> str:
    pauses = run.watched.pauses
    if not pauses:
        return ""
    times = "once" if pauses == 1 else f"{pauses:,} times"
    return f"The KV cache overflowed: {times} a sequence lost its tokens to others and had them computed again"


def _missed(run: Simulated, limit: Limit) -> str:
    share = run.exceeding_share(limit)
    allowed = 1 - limit.percentile / 100
    if share <= allowed + 1e-9:
        return ""
    over = f"exceed the {metric_name(limit.metric)} limit of {milliseconds(limit.limit_s)}"
    lost = " or got no answer" if run.lost else ""
    return f"{_share(share)} of the {_many(limit.metric)} {over}{lost}; {_share(allowed)} may"


def _kept(run: Simulated, sla: Sla) -> str:
    """The limit with the least room, as shares of requests or of gaps."""
    limit = max(sla.limits, key=lambda limit: run.exceeding_share(limit) / (1 - limit.percentile / 100))
    share = run.exceeding_share(limit)
    nobody = "No gap between tokens" if limit.metric == "gap" else "No request"
    beyond = f"{nobody} exceeds" if share == 0 else f"{_share(share)} of the {_many(limit.metric)} exceed"
    allowed = f"{_share(1 - limit.percentile / 100)} may"
    every = "a limit" if len(sla.limits) > 1 and share == 0 else f"the {metric_name(limit.metric)} limit"
    return f"The SLA is kept: {beyond} {every}" + (
        "" if share == 0 else f" of {milliseconds(limit.limit_s)}; {allowed}"
    )


def _stalls(run: Simulated) -> str:
    """Token gaps against their means: what a reader sees that the ITL of a request hides."""
    itl_s = run.itl_s[np.isfinite(run.itl_s)]
    if not itl_s.size or not run.watched.gap_p99_s > STALLED * itl_s.mean():
        return ""
    mean, gap = milliseconds(float(itl_s.mean())), milliseconds(run.watched.gap_p99_s)
    return (
        f"Means hide stalls: ITL is {mean} on average, yet one token in a hundred comes more than {gap} after the one "
        "before it, while prompts of others are computed"
    )


def _first_token(run: Simulated) -> str:
    """What the slowest first tokens waited for."""
    known = np.isfinite(run.ttft_s)
    if not known.any():
        return ""
    ttft_s, queue_s = run.ttft_s[known], run.queue_s[known]
    slowest = ttft_s >= np.quantile(ttft_s, 1 - SLOWEST)
    waited = float(queue_s[slowest].sum() / ttft_s[slowest].sum())
    return (
        f"In the slowest {_share(SLOWEST)} of first tokens {waited * 100:.0f} % of the time is waiting for the prompt "
        "to be begun"
    )


def _many(metric: Metric) -> str:
    return "gaps between tokens" if metric == "gap" else "requests"


def _share(share: float) -> str:
    """A share in per cent, three digits of it, never 0 where there is something."""
    return f"{significant(100 * share)} %"


def exceedances(run: Simulated, sla: Sla) -> list[tuple[Limit, float, float]]:
    """For each limit the share of requests (or gaps) beyond it and the share that may be."""
    return [(limit, run.exceeding_share(limit), 1 - limit.percentile / 100) for limit in sla.limits]
