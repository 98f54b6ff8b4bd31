"""Every sentence about an answer, and a plan as JSON: page, command line and report say the same from here.

Errors, and the reasons of rejections, are worded where they arise; help for a form or a chart is on its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, isnan
from string import Formatter
from typing import TYPE_CHECKING, Any

from sizing.deploy.settings import settings_json
from sizing.engine import UNLIMITED_KV_TOKENS, Batching
from sizing.engine_defaults import ENGINE_NAMES
from sizing.errors import one_line
from sizing.numbers import count_of, gpus, met, milliseconds, per_second, percent, significant, with_unit
from sizing.plans import Basis, Fleet, Plan, Rejection, cost_of, energy_of
from sizing.prediction import Caution, CautionKind, Method, Prediction
from sizing.question import ADMISSION, FIELDS, Question, replicas_for
from sizing.token_law import TokenLaw
from sizing.trace import dispersion
from sizing.workload import METRICS, SHARES, Arrivals, Lengths, Limit, metric_name, of_requests

if TYPE_CHECKING:
    from sizing.analyses.daily import Daily
    from sizing.analyses.existing import Existing
    from sizing.analyses.mixed import Mix
    from sizing.analyses.pools import Pools
    from sizing.analyses.relax import Relaxation, Together
    from sizing.analyses.sensitivity import GoodputPrice, Sensitivity, Tuned
    from sizing.analyses.session_plan import Seen, SessionPlan
    from sizing.analyses.traced import TracePlan
    from sizing.analyses.verification import Figure, Verification
    from sizing.fitting import Fit, Regime, Shares

BASES: dict[Basis, str] = {
    "measured": "a run on a server at exactly this point",
    "fitted": "from a law fitted to measured points: no more users, and lengths within a factor of two of theirs",
    "extrapolated": "from a law fitted to measured points, beyond their users or a factor of two of their lengths",
    "estimated": "from a database of kernel timings: not measured, or scaled by points of one load level",
    "what-if": "a change that nobody has measured, computed from a law",
}
METHOD: dict[Method, str] = {"analytic": "formula", "simulation": "simulation"}
LEFT_OUT = {
    "memory": ("does not fit in memory", "do not fit in memory"),
    "sla": ("misses the SLA", "miss the SLA"),
    "no_data": ("has no data", "have no data"),
    "cost": ("cannot win", "cannot win"),
    "engine": ("is not the fastest engine", "are not the fastest engine"),
    "too_few": ("lacks GPUs", "lack GPUs"),
}
"""Kinds of reasons to leave a configuration out, said of one and of several."""
ENGINE = re.compile(rf"(?<![\w./:-])({'|'.join(ENGINE_NAMES)})(?![\w/-]|[.:]\w)")
"""An engine's name as a word of its own: no part of a path, a file's name or a model's."""


def spelt(text: str) -> str:
    """`text` with the names of engines as their makers spell them.

    >>> spelt("h200_sxm TP1 fp8 vllm, 10 measured points, vllm 0.25.1"), spelt("vllm-bench.json of trtllm")
    ('h200_sxm TP1 fp8 vLLM, 10 measured points, vLLM 0.25.1', 'vllm-bench.json of TensorRT-LLM')
    """
    return ENGINE.sub(lambda found: ENGINE_NAMES[found[1]], text)


def capital(text: str) -> str:
    """`text` with a capital first letter, the rest as it is; a name in front stays one: a URL, or a first word with a
    figure or an underscore in it or a colon after it.

    >>> capital("no answer"), capital("http://gpu-7:8000: no answer")
    ('No answer', 'http://gpu-7:8000: no answer')
    >>> capital("chat: misses p95 TTFT"), capital("gpt-oss-120b needs 3 GB more")
    ('chat: misses p95 TTFT', 'gpt-oss-120b needs 3 GB more')
    """
    word = text.partition(" ")[0]
    is_name = any(letter in ":_" or letter.isdigit() for letter in word)
    return text if is_name else text[:1].upper() + text[1:]


def counts(low: float, high: float | None) -> str:
    """A band of a count; open where its slow end misses the SLA with any number."""
    if high is None:
        return f"{low:,.0f} or more"
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


# --- A plan in sentences

WIDE = 3
"""High end over low end of a band of GPUs from which it is said why."""


def sentence(plan: Plan) -> str:
    """The answer in one sentence.

    For instance: You need 12 x h200_sxm to serve 20 requests/s of Qwen/Qwen3-32B.
    """
    fleet, question = plan.answer, plan.question
    load = plan.serves or f"to serve {per_second(question.workload.rate_per_s)}"
    return f"You need {fleet.gpus:,} × {fleet.candidate.gpu} {load} of {fleet.candidate.model}"


DECIMALS = 9
"""Of a number of replicas that is no whole one, at most."""


def working(plan: Plan) -> str:
    """The arithmetic from the load to the count."""
    fleet, question = plan.answer, plan.question
    rate = question.workload.rate_per_s
    per_replica = fleet.requests_per_s_per_replica
    headroom = f" ({percent(question.headroom)} headroom kept)" if question.headroom else ""
    spare = f", + {fleet.spare:,} spare = {fleet.replicas:,}" if fleet.spare else ""
    each, replicas = gpus(fleet.candidate.gpus), "replica" if fleet.replicas == 1 else "replicas"
    more = fleet.working > question.replicas_at(fleet.capacity_per_s)
    shown = {n: (float(f"{rate:.{n}g}"), float(f"{per_replica:.{n}g}")) for n in range(3, 10)}
    # So many digits that the reader's own division gives the count.
    digits = next((n for n, (load, of_one) in shown.items() if replicas_for(load, of_one) == fleet.working), 3)
    load, of_one = shown[digits]
    needed = replicas_for(load, of_one)
    # So many decimals that it does not read as another count: 3.003, so 4.
    decimals = next((n for n in range(2, DECIMALS) if ceil(round(load / of_one, n)) == needed), DECIMALS)
    so = f"but fewer than {fleet.working:,} miss the SLA:" if more else "so"
    return (
        f"{per_second(rate, digits)} ÷ {significant(per_replica, digits)} per replica{headroom} = "
        f"{load / of_one:,.{decimals}f}, {so} {fleet.working:,}{spare} {replicas} of {each} "
        f"({fleet.candidate.layout}, {fleet.candidate.precision}) = {gpus(fleet.gpus)}"
    )


def binding(fleet: Fleet, traced: TracePlan | None = None) -> str:
    """What binds: the stable rate, or a limit and how much room it leaves; of a trace over all requests replayed."""
    if traced:
        seen, limit = traced.binding
        of = f"requests of {seen.name}" if seen.name else "requests replayed"
        value = limit.said(seen.value_s(limit))
        if limit.metric == "goodput":
            return f"{limit.name}: these use up {value} over all {of}"
        return f"{limit.name}: {value} of {limit.allowed} over all {of}"
    if fleet.stability_binds:
        return (
            f"stable rate: at {per_second(fleet.stable_per_s)} a replica's queue grows without bound, "
            "before a limit is reached"
        )
    limit, beyond = fleet.binding, fleet.predicted.beyond(fleet.binding)
    turned = f", and {of_requests(beyond)} of the requests are turned away, which counts as beyond it" if beyond else ""
    return f"{limit.name}: {against(limit, fleet.predicted)} at the planned load{turned}"


def against(limit: Limit, predicted: Prediction) -> str:
    """What is predicted beside its limit: "285 ms of 1,000 ms", "0.2 % of 0.5 %", of goodput what keeps the limits and
    how far those that must keep them use them up."""
    if limit.metric != "goodput":
        return f"{predicted.said(limit)} of {limit.allowed}"
    used = percent(predicted.value_s(limit))
    return f"{predicted.said(limit)} of the requests keep all limits, {limit.allowed} use up {used} of them at most,"


GROWTH = (0.10, 0.25)
"""Rises of the load for which GPUs are said."""


def sensitivity(plan: Plan) -> str:
    """GPUs at higher loads, the replica's capacity kept: "Load +10 %: still 12 GPUs; +25 %: 14 GPUs".

    Of other arrivals than Poisson a replica's share is as bursty as the size of the fleet makes it, and a new plan may
    differ: that is said.
    """
    fleet, rate = plan.answer, plan.question.workload.rate_per_s
    parts = []
    for more in GROWTH:
        working = max(fleet.working, replicas_for(rate * (1 + more), fleet.requests_per_s_per_replica))
        count = (working + fleet.spare) * fleet.candidate.gpus
        parts.append(f"+{percent(more)}: {'still ' if count == fleet.gpus else ''}{gpus(count)}")
    uneven = fleet.working > 1 and plan.question.workload.arrivals.kind != "poisson"
    kept = (
        " at the same requests/s per replica (a larger fleet splits bursts differently: a new plan may differ)"
        if uneven
        else ""
    )
    return f"Load {'; '.join(parts)}{kept}"


def band(fleet: Fleet) -> str:
    """The 90 % band of the GPU count."""
    if fleet.gpus_high is None:
        return f"{gpus(fleet.gpus_low)} or more; at the slow end of the band no number of GPUs meets the SLA"
    if fleet.gpus_low == fleet.gpus_high:
        return f"{gpus(fleet.gpus_low)} throughout the 90 % band"
    return f"{fleet.gpus_low:,} to {fleet.gpus_high:,} GPUs (90 % band)"


def why_wide(fleet: Fleet) -> str:
    """Why a band is wide, and what to do, as a sentence; empty where it is not."""
    if fleet.gpus_high is not None and fleet.gpus_high <= WIDE * fleet.gpus_low:
        return ""
    start, sigma = "The band is wide because", percent(fleet.candidate.relative_sigma)
    if fleet.candidate.unmeasured:
        return f"{start} the law is estimated (standard error {sigma}): a few measured points narrow it."
    if fleet.basis == "estimated":
        return (
            f"{start} only the scale of the law was measured, at one load level (standard error {sigma}): a second "
            "level narrows it."
        )
    return (
        f"{start} its points leave the law open (standard error {sigma}): measure more, nearest the planned load first."
    )


def peak(question: Question) -> str | None:
    """A line that says when the plan is for a peak; None when it is for the mean."""
    if question.peak_factor == 1:
        return None
    planned, mean = per_second(question.workload.rate_per_s), significant(question.mean_rate_per_s)
    return f"Planned for the peak of {planned}, {question.peak_factor:.3g} × the mean of {mean}"


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


def sizing_by_means(plan: Plan) -> str | None:
    """What sizing by mean latency would buy, and what becomes of the SLA there; None where the rule finds nothing."""
    means, question = plan.mean_based, plan.question
    if means is None:
        return None
    seen = means.predicted
    blind = " The rule does not see single gaps: it takes the limit on them for one on the mean ITL."
    kinds = {"poisson": "Poisson", "constant": "evenly spaced"}
    arrivals = "the trace's" if means.replayed else kinds.get(question.workload.arrivals.kind, "bursty")
    limit = seen.binding(question.sla)
    if seen.meets(question.sla):
        outcome = f"with {arrivals} arrivals the SLA holds"
    elif seen.saturated:
        outcome = f"with {arrivals} arrivals queues grow without end"
    else:
        outcome = (
            f"with {arrivals} arrivals and {question.routing.replace('_', ' ')} routing "
            f"{metric_name(limit.metric) if limit.metric in SHARES else limit.name} would be "
            f"{seen.said(limit)}, the limit is {limit.allowed}"
        )
    return (
        f"Sizing by mean latency gives {gpus(means.gpus)} ({means.replicas:,} × {means.layout}, no headroom or spare): "
        f"{outcome}.{blind if question.sla.gap else ''}"
    )


def on_all_requests(question: Question) -> Iterator[str]:
    """What is to be known of goodput and of requests that are turned away, without full stops; nothing where neither is
    asked for."""
    sla, workload = question.sla, question.workload
    if sla.goodput and sla.gap:
        yield "The limit on the gap takes no part in goodput: it is judged separately"
    if workload.admits_all:
        return
    turned = []
    if workload.queue_limit:
        turned.append(f"a replica rejects requests while {workload.queue_limit:,} wait")
    if question.queue_timeout:
        turned.append(f"requests that waited {question.queue_timeout.removesuffix('s')} s are dropped")
    yield (
        f"{capital(' and '.join(turned))}: the answer is sized by simulation, where such requests miss every limit; "
        "figures by formula take all requests as admitted"
    )


GOODPUT_PRICE = "Price of goodput"
GOODPUT_JUDGED = (
    "Goodput: the share of all requests that meet every limit set on TTFT, ITL or E2E at once, whatever percentiles "
    "these were given. Every row has the answer's configuration; each fleet is sized by simulation."
)


def goodput_sentence(prices: Sequence[GoodputPrice]) -> str:
    """What the step from the lowest to the highest goodput takes, without a full stop."""
    kept = [price for price in prices if price.fleet]
    failed = [price for price in prices if not price.fleet]
    if not kept:
        return f"No number of GPUs keeps the limits for {prices[0].percent:g} % of the requests"
    first, last = kept[0], kept[-1]
    counts = [gpus(price.fleet.gpus) for price in (first, last) if price.fleet]
    end = f"; no number of GPUs keeps {failed[0].percent:g} %" if failed else ""
    if first is last:
        return f"{first.percent:g} % goodput takes {counts[0]}{end}"
    return f"{first.percent:g} % goodput takes {counts[0]}, {last.percent:g} % takes {counts[1]}{end}"


# --- What a server showed at the planned load, beside what was predicted of it


def verified(found: Verification) -> str:
    """Whether the server does at the planned load what its law says, without a full stop.

    For instance: Verified on the server at 3.4 requests/s per replica: p95 TTFT 301 ms (270 to 340 ms predicted).
    """
    at = f"at {per_second(found.rate_per_s)} per replica"
    if found.why_not:
        return f"Not verified on the server {at}: {found.why_not.rstrip('.')}"
    missed = [
        f"{one.of.name} misses its limit of {milliseconds(one.of.limit_s)}" for one in found.decisive if one.missed
    ]
    outside = [one for one in found.figures if one.verdict != "in" and one.measured_s is not None]
    if found.verified:
        rest = [f"{one.of.name}, which the SLA does not limit, {_outside(one)}" for one in outside]
        return "; but ".join(
            [f"Verified on the server {at}: {', '.join(map(_inside, found.decisive))}", *missed, *rest]
        )
    out = [f"{one.of.name} {_outside(one)}" for one in outside if one.limited]
    return f"Not verified on the server {at}: {'; '.join([*out, *missed])}"


def _inside(figure: Figure) -> str:
    return f"{figure.of.name} {milliseconds(figure.measured_s or 0.0)} ({_predicted(figure)} predicted)"


def _outside(figure: Figure) -> str:
    return (
        f"was {milliseconds(figure.measured_s or 0.0)}, {percent(abs(figure.off))} {figure.verdict} its band of "
        f"{_predicted(figure)}"
    )


def _predicted(figure: Figure) -> str:
    return f"{milliseconds(figure.low_s)} to {milliseconds(figure.high_s)}"


def verification_json(found: Verification | None) -> dict[str, Any] | None:
    """The key ``verification``: the verdict, the sentence, and every figure; null where nothing was compared."""
    if found is None:
        return None
    return {
        "verified": found.verified,
        "why": verified(found),
        "requests_per_s": found.rate_per_s,
        "requests": found.requests,
        "measured_at": found.measured_at,
        "figures": [_figure_json(figure) for figure in found.figures],
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "metric": figure.of.metric,
        "percentile": figure.of.percentile,
        "predicted_s": figure.predicted_s,
        "low_s": figure.low_s,
        "high_s": figure.high_s,
        "measured_s": figure.measured_s,
        "measured_low_s": figure.measured_low_s,
        "measured_high_s": figure.measured_high_s,
        "limit_s": figure.of.limit_s if figure.limited else None,
        "verdict": figure.verdict,
    }


# --- A fleet that exists, a day, a mix of GPU types and other engine settings in sentences


def existing_sentence(fleet: Existing) -> str:
    """For instance: 16 × h200_sxm serve 38.4 requests/s of Qwen/Qwen3-32B."""
    verb = "serves" if fleet.gpus == 1 else "serve"
    rate = per_second(fleet.rate_per_s)
    return f"{fleet.gpus:,} × {fleet.candidate.gpu} {verb} {rate} of {fleet.candidate.model}"


def existing_band(fleet: Existing) -> str:
    """The 90 % band of the rate that a fleet carries."""
    if fleet.low <= 0:
        return f"at most {per_second(fleet.high)}; at the slow end of the 90 % band the SLA is not met"
    return f"{significant(fleet.low)} to {per_second(fleet.high)} (90 % band)"


def day_sentence(plan: Plan, daily: Daily) -> str:
    """For instance: You need 3 to 9 × h200_sxm over the day to serve up to 20 requests/s of Qwen/Qwen3-32B."""
    fewest, most = min(hour.gpus for hour in daily.hours), max(hour.gpus for hour in daily.hours)
    count = f"{fewest:,} to {most:,}" if fewest < most else f"{most:,}"
    candidate, rate = plan.answer.candidate, per_second(plan.question.workload.rate_per_s)
    return f"You need {count} × {candidate.gpu} over the day to serve up to {rate} of {candidate.model}"


def day_working(plan: Plan, daily: Daily) -> str:
    """What following the load saves, and of what the hours are made."""
    candidate, spare = plan.answer.candidate, plan.answer.spare
    kept = f", {spare} spare at all hours" if spare else ""
    return (
        f"{count_of(daily.gpu_hours, 'GPU-hour')} a day in replicas of {gpus(candidate.gpus)} "
        f"({candidate.layout}, {candidate.precision}){kept}; the peak's fleet all day: {gpus(daily.constant_gpus)} × "
        f"{len(daily.hours)} h = {daily.constant_gpu_hours:,}, so {percent(daily.saved)} saved{by_formula(daily)}"
    )


def by_formula(daily: Daily) -> str:
    """How hours were sized that have a load below the busiest one's; empty where none has."""
    most = max(hour.rate_per_s for hour in daily.hours)
    return "; below the busiest hour by formula" if any(0 < hour.rate_per_s < most for hour in daily.hours) else ""


def tuned_line(tuned: Tuned) -> str:
    """What the search for engine settings found."""
    batching = tuned.batching
    if tuned.gain == 0:
        return (
            f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget} are already the best: "
            f"{len(tuned.tried)} settings tried"
        )
    ranks = tuned.fleet.candidate.layout.lanes if isinstance(tuned.fleet, Fleet) else 1
    all_ = f" (of its {ranks} ranks and stages together)" if ranks > 1 else ""
    found = f"Batch limit {batching.max_batch_size} and token budget {batching.token_budget}{all_}"
    if isinstance(tuned.fleet, Rejection) or isinstance(tuned.before, Rejection):
        count = f" {gpus(tuned.fleet.gpus)}" if isinstance(tuned.fleet, Fleet) else ""
        return f"{found}:{count}; the original settings miss the SLA"
    now, before = tuned.fleet.gpus, tuned.before.gpus
    count = f"still {gpus(now)}" if now == before else f"{gpus(now)} instead of {before:,}"
    return f"{found}: {count}, a replica carries {percent(tuned.gain)} more"


def mix_line(mix: Mix) -> str:
    """The cheapest mix in one sentence; layouts where two groups have GPUs of one type."""
    own = [group.fleet.candidate for group in mix.groups]
    repeated = len({candidate.gpu for candidate in own}) < len(own)
    names = [f"{candidate.gpu} {candidate.layout}" if repeated else candidate.gpu for candidate in own]
    groups = " + ".join(
        f"{group.gpus:,} × {name} ({per_second(group.load_per_s)})"
        for group, name in zip(mix.groups, names, strict=True)
    )
    alone = ", ".join(f"{gpu} alone {'too few' if cost is None else significant(cost)}" for gpu, cost in mix.alone)
    return f"Cheapest mix: {groups}, {significant(mix.cost_per_hour)} per hour ({alone})"


def daily_line(daily: Daily) -> str:
    """What following the load saves."""
    return (
        f"{count_of(daily.gpu_hours, 'GPU-hour')} a day when the fleet follows the load, "
        f"{daily.constant_gpu_hours:,} when it does not: {percent(daily.saved)} less{by_formula(daily)}"
    )


def trace_lines(found: TracePlan) -> tuple[str, ...]:
    """What was replayed, how the worst hour went, how far the count may differ for other days, and GPU-hours."""
    trace, seen, fleet = found.trace, found.replayed, found.plan.answer
    ends = f"{trace.clock(float(trace.arrival_s[0]))} to {trace.clock(float(trace.arrival_s[-1]))}"
    bursts = dispersion(trace)
    varying = (
        ""
        if isnan(bursts)
        else f"; counts per second vary {significant(bursts, 2)} times as much as Poisson arrivals would"
    )
    worst = found.worst_hour
    lines = [
        f"Trace: {count_of(len(trace), 'request')} from {ends}, {per_second(trace.rate_per_s)} on average and "
        f"{significant(found.plan.question.workload.rate_per_s)} in the busiest hour{varying}",
        f"Replayed: {met(seen.goodput(), 2)} of the requests meet all limits on requests"
        f"{' of their class' if seen.classes else ''}; in the worst hour, "
        f"{trace.clock(seen.hours[worst].from_s)}, {met(seen.goodput(worst), 1)}",
    ]
    if fleet.candidate.replica.batching.prefix_cache:
        lines.append(f"{percent(seen.hit_rate(), 1)} of the prompt tokens were found in the prefix cache")
    if again := found.sampling:
        low, high = ((working + fleet.spare) * fleet.candidate.gpus for working in (again.low, again.high or 0))
        told = f"{gpus(low)} or more" if again.high is None else with_unit(counts(low, high), "GPUs")
        lines.append(f"Other traffic of this kind ({again.blocks} {again.of}, resampled): {told} in 90 % of cases")
    lines.append(
        f"{with_unit(significant(found.gpu_hours), 'GPU-hours')} if the fleet follows the rate of each hour, "
        f"{significant(found.constant_gpu_hours)} if it does not"
    )
    lines += (capital(note) for note in found.notes)
    return tuple(lines)


def sessions_lines(found: SessionPlan) -> tuple[str, ...]:
    """What sessions come to: how many, what the prefix cache holds, where it begins to thrash, and other routings."""
    seen, fleet, turns = found.seen, found.plan.answer, found.turns
    asked = found.load.sessions
    lines = [
        f"Sessions: {significant(seen.in_flight)} in flight, including those between two turns; "
        f"{significant(seen.rate_per_s)} start per second, {per_second(seen.turns_per_s, noun='turn')}; "
        f"{with_unit(significant(found.gpus_per_100), 'GPUs')} per 100 in flight",
        f"Prefix cache: {percent(seen.hit_rate)} of prompt tokens are found; the contexts of all sessions in flight "
        f"take {percent(found.filled(seen))} of the KV cache",
    ]
    if cliff := found.cliff:
        lines.append(cliff_line(found, cliff))
    if found.routings:
        shown = (
            f"{SESSION_ROUTING[name]} {percent(each.hit_rate)}" + ("" if each.meets else " (misses the SLA)")
            for name, each in found.routings
        )
        lines.append(f"Tokens found by routing, on the same fleet: {', '.join(shown)}")
    if found.all_found and found.none_found:
        lines.append(
            f"Working replicas by formula: {found.all_found} if everything that a prompt repeats were found, "
            f"{found.none_found} if only the system prompt were; by simulation {fleet.working}"
        )
    if turns.each < 0.97 * asked.turns:
        lines.append(
            f"Sessions end after {with_unit(significant(turns.each), 'turns')} on average, not "
            f"{significant(asked.turns)}: their context of {asked.context_tokens:,} tokens is full"
        )
    return tuple(lines)


def share_of_load(times: float) -> str:
    """A multiple of the planned load, in per cent as long as that is easily read.

    >>> share_of_load(0.25), share_of_load(1.4), share_of_load(115.33)
    ('25 % of the load', '140 % of the load', '115 times the load')
    """
    return f"{percent(times)} of the load" if times < 10 else f"{significant(times)} times the load"


def cliff_line(found: SessionPlan, cliff: Seen) -> str:
    """Where the cache begins to thrash."""
    times = significant(cliff.rate_per_s / found.seen.rate_per_s)
    if cliff.saturated and cliff.hit_rate >= 0.9 * found.seen.hit_rate:
        return f"At {times} times this load the queue grows without end, with {percent(cliff.hit_rate)} still found"
    if cliff.saturated:
        return f"At {times} times this load contexts crowd each other out of the cache and the queue grows without end"
    later = cliff.predicted.parts["later_ttft"]
    waits = f", and p95 TTFT of later turns is {milliseconds(later.p95_s)}" if later.known else ""
    found_then = f"{percent(cliff.hit_rate)} are found"
    return f"At {times} times this load contexts crowd each other out of the cache: {found_then}{waits}"


SESSION_ROUTING = {
    "affinity": "session affinity",
    "prefix_aware": "prefix-aware",
    "least_outstanding": "least outstanding",
    "random": "random",
}


def session_assumptions(found: SessionPlan) -> Iterator[str]:
    """What must be true of sessions and servers for the count to hold."""
    asked, fleet = found.load.sessions, found.plan.answer
    batching = fleet.candidate.replica.batching
    yield "Sessions start at random and independently of each other (Poisson), and their number is steady."
    how = "on average, their number geometric" if asked.turn_law == "geometric" else "each"
    yield (
        f"{with_unit(significant(asked.turns), 'turns')} {how}; a prompt repeats everything before it and adds new "
        f"tokens: {significant(asked.first_tokens)} at first, {significant(asked.user_tokens)} later; answers of "
        f"{significant(asked.output_tokens)}."
    )
    if asked.system_tokens:
        yield f"All sessions begin with the same {asked.system_tokens:,} tokens, which every replica holds."
    yield f"A turn comes {significant(asked.think_s)} s after the last answer on average (exponential)."
    if asked.context_tokens:
        yield f"A turn beyond {asked.context_tokens:,} tokens ends its session."
    yield f"Turns are routed {SESSION_ROUTING_WORDS[found.load.routing]}."
    yield (
        f"Each replica keeps the blocks of past turns ({batching.kv_block_tokens} tokens each) while its KV cache of "
        f"{batching.kv_tokens:,} tokens has room, and runs {BATCHING[batching.policy]}: at most "
        f"{batching.max_batch_size:,} requests at once, {batching.token_budget:,} tokens an iteration."
    )
    yield "All replicas are identical, and no GPU is throttled or shared."


SESSION_ROUTING_WORDS = {
    "affinity": "to the replica of their session, which is drawn at random",
    "random": "to a replica at random",
    "least_outstanding": "to the replica with the fewest requests outstanding",
    "prefix_aware": "to the replica that has most of their session cached",
}


# --- What a report says beside its numbers: what the count includes and assumes, how sure it is, what its terms mean

EXCLUDES = (
    "network and gateway: latencies begin when a request reaches the server and end when its last token leaves it",
    "tokenization and other CPU work around the engine, unless the measured points include it",
    "cold starts: loading weights, compiling engines, scaling up",
    "failures beyond the spare replicas, and load lost while a replica is replaced",
    "other workloads on the same GPUs",
    "servers, storage, network, power supply and staff in the cost",
)
DEFINITIONS = (
    ("TTFT", "time to first token: from the arrival of a request to its first output token, waiting included"),
    ("ITL", "inter-token latency: (E2E − TTFT) / (OSL − 1), one mean value for each request"),
    ("Gap", "time between two successive output tokens of a request; percentiles are of all requests' gaps together"),
    ("E2E", "end to end: from the arrival of a request to its last output token"),
    ("ISL, OSL", "input and output sequence length of a request, in tokens"),
    ("TP, PP, DP", "tensor, pipeline and data parallel size: their product is the number of GPUs in a replica"),
    ("EP", "expert parallel size: in how many ways whole experts are divided among the same GPUs"),
    ("Replica", "one instance of the engine with its GPUs; spare replicas stand idle"),
    ("Capacity", "requests/s of one replica just before the first limit of the SLA fails"),
    ("Headroom", "share of the capacity kept free: a replica is planned at (1 − headroom) × capacity"),
    ("Requests/s per GPU", "planned load of a working replica divided by its GPUs, idle ones included"),
    ("90 % band", "the counts at both ends of the uncertainty of the engine's times, equally likely on either side"),
    ("Utilization", "planned load divided by the highest stable load"),
    ("Given", "entered by the user"),
    *((capital(basis), meaning) for basis, meaning in BASES.items()),
)
ARRIVALS = {
    "poisson": "Requests arrive at random and independently of each other (Poisson).",
    "constant": "Requests arrive in even gaps.",
    "gamma": "Requests arrive in bursts: gaps are gamma distributed with a coefficient of variation of {cv:g}.",
    "batch": "Requests arrive in groups of {size}, the groups at random.",
}
ROUTING = {
    "random": "Each request goes to a replica at random.",
    "round_robin": "Requests go to the replicas in turn.",
    "power_of_two": "Each request goes to the less loaded of two replicas drawn at random.",
    "least_outstanding": "Each request goes to the replica with the fewest requests outstanding.",
}
BATCHING = {
    "chunked": "in-flight batching, prompts in chunks",
    "prefill_first": "in-flight batching, prompts first",
    "whole_prompt": "in-flight batching, whole prompts",
    "static": "static batching",
}


def cache_known(batching: Batching) -> bool:
    """True unless points of a model that the catalogue does not have leave open how many tokens the KV cache holds."""
    return batching.kv_tokens < UNLIMITED_KV_TOKENS


def includes(question: Question, fleet: Fleet) -> Iterator[str]:
    """What the count covers."""
    yield "waiting in the replica's queue, computing the prompt, and every decode step, at the planned load"
    yield (
        "the limits of batch size and KV cache memory, which make requests wait or pause"
        if cache_known(fleet.candidate.replica.batching)
        else "the limit of batch size, which makes requests wait; not that of KV cache memory, which is not known"
    )
    if question.headroom:
        yield f"headroom: replicas are planned at {percent(1 - question.headroom)} of the load at which the SLA fails"
    if fleet.spare:
        yield f"{count_of(fleet.spare, 'spare replica')} on top of those that carry the load"


NO_CACHE_LIMIT = "and a KV cache that is never full, as its size is not known"


def assumptions(question: Question, fleet: Fleet, replayed: bool = False) -> Iterator[str]:
    """What must be true of the workload and the servers for the count to hold. `replayed`: the count is that of a
    recorded trace."""
    workload, batching = question.workload, fleet.candidate.replica.batching
    if replayed:
        yield "Requests arrive at the recorded times with the recorded lengths; for the headroom the trace is faster."
        yield "Latency against load and the sensitivities are by formula, for Poisson arrivals."
    else:
        yield ARRIVALS[workload.arrivals.kind].format(cv=workload.arrivals.cv, size=workload.arrivals.size)
        steady = "is sustained: latencies are steady-state values"
        yield f"The load of {per_second(workload.rate_per_s)} {steady}."
        yield lengths_sentence(workload.lengths)
    yield ROUTING[question.routing]
    for line in on_all_requests(question):
        yield f"{line}."
    if workload.prefix.tokens:
        yield (
            f"{workload.prefix.tokens:,} tokens of each prompt are shared, and cached with a probability of "
            f"{percent(workload.prefix.hit_rate)}."
        )
    yield (
        f"Each replica runs {BATCHING[batching.policy]}: at most {batching.max_batch_size:,} requests at once, "
        f"{batching.token_budget:,} tokens an iteration, "
        f"{f'{batching.kv_tokens:,} tokens of KV cache' if cache_known(batching) else NO_CACHE_LIMIT}."
    )
    if batching.lookahead_steps:
        yield (
            "The engine fixes what an iteration holds "
            f"{with_unit(f'{batching.lookahead_steps:g}', 'iterations')} before it starts "
            "(asynchronous scheduling): a request that arrives at a busy replica waits for as many more."
        )
    if batching.receive_interval_steps > 1:
        yield (
            f"The engine looks for new requests every {batching.receive_interval_steps:,} decode steps, after prompts "
            "and when it is idle: a request that arrives meanwhile waits for its next look."
        )
    if batching.batch_wait_steps:
        yield (
            f"Prompts wait for others, {batching.batch_wait_steps:,} decode steps at most, while all tokens of an "
            f"iteration would be less than {percent(batching.batch_wait_ratio)} of those that it may have."
        )
    yield "All replicas are identical, and no GPU is throttled or shared."


def lengths_sentence(lengths: Lengths) -> str:
    """How the lengths of requests vary."""
    if lengths.fixed:
        return "Every request has the same lengths."
    if lengths.isl_law is None and lengths.osl_law is None:
        return (
            f"Lengths are lognormal, with coefficients of variation of {lengths.isl_cv:g} (ISL) and "
            f"{lengths.osl_cv:g} (OSL), correlated by {lengths.correlation:g}."
        )
    isl, osl = _law_words(lengths.isl_law, lengths.isl_cv), _law_words(lengths.osl_law, lengths.osl_cv)
    correlated = f", correlated by {lengths.correlation:g}" if lengths.correlation else ""
    return f"Input lengths: {isl}. Output lengths: {osl}{correlated}."


LONGEST_LAW = 80
"""Characters of a law in a sentence; reports have it whole among what was asked."""


def _law_words(law: TokenLaw | None, cv: float) -> str:
    if cv == 0:
        return "all equal"
    kind = "lognormal" if law is None else one_line(str(law), LONGEST_LAW)
    return f"{kind} (CV {significant(cv)})"


def accuracy(fleet: Fleet) -> str:
    """What is known of how far off this answer may be."""
    sigma = significant(100 * fleet.candidate.relative_sigma)
    checked = "checked by simulation" if fleet.verified else "by formula, not checked by simulation"
    start = f"The count is {checked}; the law of the engine's times has a standard error of {sigma} %"
    if fleet.basis == "estimated" and not fleet.candidate.unmeasured:
        return (
            f"{start} at the one load level that was measured; its shape, and so how times change with the load, is a "
            "day-zero estimate. Measure a second level before buying."
        )
    if fleet.basis == "estimated":
        return (
            f"{start}. Nothing was measured: the table of evidence does not cover day-zero estimates. "
            "Measure before buying."
        )
    if fleet.basis == "extrapolated":
        return f"{start} in the measured range; this answer lies outside. Measure closer to it before buying."
    return f"{start}, for no more users than were measured and lengths within a factor of two."


# --- A plan as JSON


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
        value = field.of(question)
        if field.name in METRICS:
            asked["sla"] = {limit.key: limit.text for limit in question.sla.given}
        elif field.name not in SHARES and not (field.name in ADMISSION and value == field.default):
            asked[field.key] = str(value) if isinstance(value, Arrivals | TokenLaw) else value
    return asked | {"prices": dict(question.prices)}


def mean_based_json(plan: Plan) -> dict[str, Any] | None:
    """What sizing by means would buy, and what users would see there."""
    means = plan.mean_based
    if means is None:
        return None
    said = {"gpus": means.gpus, **means.layout.as_dict(), "predicted": means.predicted.as_dict()}
    return {**said, "why": sizing_by_means(plan)}


def fleet_json(fleet: Fleet, question: Question) -> dict[str, Any]:
    """One fleet, with the keys of the CLI contract."""
    candidate = fleet.candidate
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        **candidate.layout.as_dict(),
        "gpu": candidate.gpu,
        "precision": candidate.precision,
        "engine": candidate.engine,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "requests_per_s_per_replica": fleet.requests_per_s_per_replica,
        "capacity_per_replica_per_s": fleet.capacity_per_s,
        "utilization": fleet.predicted.utilization,
        "predicted": fleet.predicted.as_dict(),
        **of_all_json(fleet.predicted),
        "binding": fleet.binding_name,
        "basis": fleet.basis,
        "source": candidate.source,
        "gpus_low": fleet.gpus_low,
        "gpus_high": fleet.gpus_high,
        "verified_by": fleet.predicted.method,
        "warnings": cautions(fleet.warnings),
        **scheduling_json(candidate.replica.batching),
        "engine_settings": settings_json(candidate, [question.workload], fleet.in_flight),
        **cost_json(question, fleet),
    }


SCHEDULING = ("lookahead_steps", "receive_interval_steps", "batch_wait_steps", "batch_wait_ratio")
"""Fields of Batching: what keeps requests that have arrived from the next iteration."""


def scheduling_json(batching: Batching) -> dict[str, Any]:
    """The fields SCHEDULING that are not the usual ones."""
    usual = Batching()
    return {name: value for name in SCHEDULING if (value := getattr(batching, name)) != getattr(usual, name)}


def of_all_json(predicted: Prediction) -> dict[str, float]:
    """Shares of all requests: of those within all limits where goodput was asked, of those turned away where some
    are."""
    goodput = {"goodput": predicted.joint.goodput} if predicted.joint else {}
    return {**goodput, **({"rejected_share": predicted.rejected} if predicted.rejected else {})}


def cost_json(question: Question, fleet: Fleet) -> dict[str, float]:
    """Cost and energy of a fleet, as far as they are known."""
    found = cost.as_dict() if (cost := cost_of(question, fleet)) else {}
    if energy := energy_of(question, fleet):
        found["power_kw_at_most"] = energy.power_kw
        found["kwh_per_million_output_tokens_at_most"] = energy.kwh_per_million_output_tokens
    return found


def rejection_json(rejection: Rejection) -> dict[str, Any]:
    """One configuration left out, and why."""
    return {
        "why": rejection.why,
        "kind": rejection.kind,
        "gpu": rejection.gpu,
        **rejection.layout.as_dict(),
        "precision": rejection.precision,
        "engine": rejection.engine,
    }


# --- Ways to meet an SLA that no configuration meets


def ways_out_lines(alone: Sequence[Relaxation], together: Together | None) -> tuple[str, ...]:
    """What each limit would have to be, alone or with the others, without full stops."""
    lines = [line for way in alone for line in _way_out(way)]
    if together:
        half = f"; at {_all_of(together.roomy)} they carry half of what they can" * (together.roomy != together.limits)
        lines.append(
            f"No single limit is enough: {together.candidate.label} meets {_all_of(together.limits)}, its replicas "
            f"nearly idle{half}"
        )
    return tuple(lines)


def _all_of(limits: Sequence[Limit]) -> str:
    return " and ".join(
        f"{each.name} {'at' if each.metric == 'goodput' else 'of'} {each.said(each.limit_s)}" for each in limits
    )


NOT_ALONE = "no value is enough alone, because another limit fails too"


def _way_out(way: Relaxation) -> Iterator[str]:
    name, asked, smallest, roomy = way.limit.name, way.limit.said(way.limit.limit_s), way.smallest, way.roomy
    if smallest is None or roomy is None or way.candidate is None:
        yield f"{name}: {NOT_ALONE}"
    elif smallest.limit_s <= way.limit.limit_s:
        yield f"{name}: {asked} can be met, another limit fails"
    else:
        half = f"; at {roomy.said(roomy.limit_s)} they carry half of what they can" if roomy != smallest else ""
        least = smallest.said(smallest.limit_s)
        nearly_idle = f"with {way.candidate.label}, whose replicas are then nearly idle"
        yield f"{name}: {least} (by simulation) instead of {asked}, {nearly_idle}{half}"
    if way.percentile and way.percentile_candidate:
        of = way.percentile.percentile
        lower = of_requests(of / 100) if way.limit.metric == "goodput" else f"p{of}"
        yield f"{name}: {way.percentile_candidate.label} meets {asked} at {lower}"


# --- Two pools, one for prompts and one for tokens, beside one fleet


def pools_lines(pools: Pools | Rejection, question: Question, in_one_fleet: str) -> tuple[str, ...]:
    """The count, each pool and what users see of both, without full stops at the end; `in_one_fleet`: the count without
    pools, in words."""
    if isinstance(pools, Rejection):
        return (f"Disaggregated prefill and decode: no fleet; {pools.why}",)
    count = f"{gpus(pools.gpus)} (90 % band {counts(pools.gpus_low, pools.gpus_high)})"
    found = [f"Disaggregated prefill and decode: {count}, in one fleet {in_one_fleet}"]
    for name, fleet in (("Prefill", pools.prefill), ("Decode", pools.decode)):
        replicas = f"{fleet.working} + {fleet.spare} spare replicas of {fleet.candidate.label}"
        busy = percent(fleet.predicted.utilization)
        found.append(f"{name}: {gpus(fleet.gpus)}, {replicas}, {busy} of the stable rate")
    if pools.predicted:
        seen = [f"{limit.name} {against(limit, pools.predicted)}" for limit in question.sla.limits]
        verified = f"Verified by {pools.verified_by}, headroom kept"
        found.append(f"Both together at the planned load: {', '.join(seen)}. {verified}")
    return tuple(found)


# --- What an answer holds beside its count


@dataclass(frozen=True, slots=True)
class Extras:
    """What an answer holds beside its count, as far as it was asked for; None or empty where it was not.

    Each output has a table of these fields: `PRINTED` of sizing/cli/tables.py, `KEYS` of sizing/cli/shapes.py,
    `SECTIONS` and `REMARKS` of sizing/report/build.py, and by its JSON key `BESIDE` of api/mcp_server.py.
    tests/sizing/test_report_beside.py finds a field that one of them lacks.
    """

    sensitivity: tuple[Sensitivity, ...] = ()
    daily: Daily | None = None
    tuned: Tuned | None = None
    mix: Mix | None = None
    verification: Verification | None = None
    pools: Pools | Rejection | None = None
    trace: TracePlan | None = None
    goodput_prices: tuple[GoodputPrice, ...] = ()
    sessions: SessionPlan | None = None


LINES: Mapping[str, Callable[[Any, Plan], tuple[str, ...]]] = {
    "verification": lambda found, _: (verified(found),),
    "trace": lambda found, _: trace_lines(found),
    "sessions": lambda found, _: sessions_lines(found),
    "tuned": lambda found, _: (tuned_line(found),),
    "mix": lambda found, _: (mix_line(found),),
    "daily": lambda found, _: (daily_line(found),),
    "pools": lambda found, plan: pools_lines(found, plan.question, gpus(plan.answer.gpus)),
}
"""Sentences on fields of `Extras`, without full stops at the end; the other fields are tables."""


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
    if name == "send_s":
        return f"the server's front end takes {milliseconds(fitted.law.send_s)} to send a token"
    saved = f"{percent(fitted.law.unread)} of the weights' time is saved by a single sequence"
    used = 1 - fitted.law.unread_decay
    return f"{saved}, as if a token used {percent(used)} of a model's experts" if used < 1 else saved


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


# --- Cautions: in the templates ``ms`` writes a time, ``%`` a share (``1%`` with a decimal, ``+%`` with a sign),
# --- ``gpus`` a count of GPUs, ``requests`` a share of requests, which may be small

CAUTIONS: dict[CautionKind, str] = {
    "approximate_arrivals": "{arrivals} arrivals: percentiles are approximate; simulate to be sure",
    "unseen_herding": (
        "least-outstanding routing of equal answers can send them in herds, which only simulation shows"
    ),
    "not_modelled": "the formulas leave out {left_out}; simulate to be sure",
    "crowded": (
        "{waiting:%} of the requests wait for {places}: p95 TTFT by formula is then rough, 15 % off and at times 45 %; "
        "simulate to be sure"
    ),
    "wide_prompts": (
        "prompts vary by {cv:.2g} times their mean (CV), and a long one holds up many others: p99 TTFT and ITL by "
        "formula are then 10 to 60 % too low, and lower above a CV of 2; simulate to be sure"
    ),
    "herding": (
        "least-outstanding routing of equal answers can herd: replicas whose requests finish together attract the next "
        "burst; round robin, or outputs that vary, show what the fleet can do"
    ),
    "lost_requests": (
        "{share:requests} of the requests were rejected, timed out or cancelled: the latencies are those of the others"
    ),
    "saturation_disputed": (
        "the {saturated} finds the load saturated, the {steady} does not: the load is at the edge of what is stable"
    ),
    "methods_differ": (
        "formula and simulation differ by {apart:%} on p{percentile} {metric:name}: {formula_s:ms} against "
        "{simulation_s:ms}; the simulation counts"
    ),
    "beyond_measured": (
        "a replica would hold {in_flight:.0f} requests at once, measured were at most {most:.0f}: calibrate at or "
        "above the planned concurrency"
    ),
    "below_measured": (
        "a replica would hold {in_flight:.1f} requests at once, measured were at least {fewest:.0f}: calibrate from "
        "one user on"
    ),
    "beyond_context": (
        "{share:1%} of the requests, with {of_tokens:1%} of the prompt tokens, are longer than the {tokens:,} tokens "
        "that the model takes, and are served here: a server refuses them; a law of lengths that ends there leaves "
        "them out"
    ),
    "near_floor": (
        "more GPUs will not help: {limit} is {floor_s:ms}{by_formula} on a nearly idle replica, of {limit_s:ms} "
        "allowed; what makes a request slow is {cause}, not the queue"
    ),
    "front_end": (
        "some {sending_s:ms} of a mean TTFT of {ttft_s:ms} go by in the server's front end, which sends "
        "{tokens_per_s:,.0f} tokens/s one after another: more of its processes (vLLM: --api-server-count) would "
        "shorten it"
    ),
    "diluted": (
        "{diluted}: with {longer_osl:,} output tokens instead of {osl:g}, {longer_gpus:gpus} would do (by formula), "
        "fewer than {gpus}{advice}"
    ),
    "poor_fit": (
        "the law misses the points: it is still off there, by {misses}, and so may the answer be, whose band allows "
        "for it. Most likely {likely}"
    ),
    "distrusted_point": (
        "the point at ISL {isl:g}, OSL {osl:g}, {load_kind} {load_value:g} disagrees with the others: the law gives "
        "{figure} {off:+%} ({sigmas:.0f} standard errors); it has little weight in the fit: measure it again"
    ),
    "fitted_kv_tokens": (
        "fewer sequences ran at once than there were users: fitted with a KV cache of about {kv_tokens:,} tokens; give "
        "its size if you know it"
    ),
    "estimated_kv_tokens": (
        "the points do not tell the size of the KV cache: it is estimated to hold {kv_tokens:,} tokens; give kv_tokens "
        "of the points if you know it"
    ),
    "refuted_kv_tokens": (
        "the points say that the KV cache holds {told:,} tokens, but their requests held {held:,.0f} at once, by "
        "Little's law: that size is not used; were they measured on several replicas (replicas of the points), or is "
        "it one rank's?"
    ),
    "refuted_slots": (
        "the points say that at most {told:,} sequences run at once, but {decoding:,.0f} did, by Little's law: that "
        "limit is not used; were they measured on several replicas (replicas of the points), or is it one rank's?"
    ),
    "unknown_kv_tokens": (
        "the size of the KV cache is not known, so no request waits for memory; requests as long as these, "
        "{tokens:,.0f} tokens, were not measured: give kv_tokens of the points"
    ),
    "no_ttft": (
        "no TTFT was measured, and no ITL: what a prompt costs is hardly known, and a TTFT may be off by a factor of "
        "several: measure with streaming"
    ),
    "no_itl": (
        "all answers measured have one token: what a decode step takes is hardly known, and an ITL may be off by a "
        "factor of several: measure longer answers"
    ),
    "unused_points": (
        "no measured point is of this model and this choice, so the answer is an estimate; the points hold: {have}"
    ),
    "fell_behind": (
        "open loops that the server did not keep up with, by more than 5 % of their rate, are left out of the fit: "
        "{points} of {given}"
    ),
    "fitted_slots": (
        "fewer sequences ran at once than there were users, and the KV cache had room for more: fitted with at most "
        "{max_batch_size:,} at once; give max_batch_size of the points if you know it"
    ),
    "fitted_budget": (
        "at most {token_budget:,} tokens went through an iteration: fitted with that token budget; give "
        "token_budget of the points if you know another"
    ),
    "fitted_lookahead": (
        "by its defaults {engine} fixes iterations ahead; the points are explained better without, so the fit takes it "
        "to be off: give lookahead_steps of the points if you know it"
    ),
    "fitted_unread": (
        "a single sequence runs faster than batches explain: {unread:%} of the weights' time is saved there"
    ),
    "fitted_experts": (
        "few sequences run faster than a dense model explains: fitted as a mixture of experts that uses {used:%} of "
        "its experts for a token; name a model of the catalogue or give its config.json, and its shape says so"
    ),
    "fitted_dense": (
        "the catalogue lacks {model}, so it was taken for a dense model; a mixture of experts carries more than that "
        "at more users than were measured: name a model of the catalogue or give its config.json, and its shape says "
        "so"
    ),
    "lockstep": (
        "the points look like users who started together and stayed in lockstep, with equal lengths: engine overheads "
        "hide there; measure with lengths that vary, or start the users one after the other"
    ),
    "all_queued": (
        "users waited for slots or memory at every level: a TTFT without a queue is hardly known, and may be far off: "
        "measure a few users too"
    ),
    "one_level": (
        "estimated, scaled by {points} at {load}: how times change with the load is not measured; measure one more "
        "level, far from it"
    ),
    "few_points": "only {points} points: the law leans on its priors; measure 1, 8, 64 and the batch limit",
    "one_isl": (
        "all prompts measured have about {isl:,.0f} tokens, so what a longer one costs is not known: measure one more "
        "level with prompts of {longer:,.0f} tokens before asking for other lengths"
    ),
    "unmeasured_isl": (
        "prompts of {asked:,.0f} tokens were not measured, only of about {isl:,.0f}: TTFT and the load of prompts may "
        "be off by a factor of two; measure one more level with prompts of {longer:,.0f} tokens"
    ),
    "no_timings": "no kernel timings ({why}): a roofline, good to a factor of {factor:.2g}",
    "scaled_law": (
        "no kernel timings ({why}): scaled from the law of {relative}; where models of the catalogue were scaled so, 9 "
        "of 10 step times were within a factor of {factor:.2g}"
    ),
    "other_engine": "no {asked} timings for this model, GPU and precision: those of {used} are used",
    "moe_on_blackwell": (
        "mixture of experts on Blackwell: measured servers scatter about such estimates more than all others do"
    ),
    "slower_than_bf16": (
        "the {precision} kernels of {engine} were timed {factor:.2g} times as long as its own in bf16 on this GPU: a "
        "server may be tuned, or choose others; measure one, or compare other precisions and engines"
    ),
    "rough_timings": "the law follows the kernel timings within {rms_error:%} (rms) only",
}
LIKELY = {
    "memory": (
        "memory or a limit on the batch: at {load} (ISL {isl:,g}, OSL {osl:,g}) only {decoding:,.0f} requests decoded "
        "at once; give kv_tokens and max_batch_size of the points"
    ),
    "level": (
        "a fault at {load} (ISL {isl:,g}, OSL {osl:,g}), which stands apart from the other levels: measure it again"
    ),
    "start": (
        "the start of the run, when prompts queue, was counted in TTFT: say how the users began (protocol of the "
        "points), let them start one after the other, or measure an open loop"
    ),
    "unlike": (
        "an engine that works otherwise than the law: give its batching and max_batch_size, or measure more levels"
    ),
}
"""What may make the law miss the points."""
MISSED = {"requests_per_s": "requests/s", "ttft": "TTFT", "itl": "ITL"}
"""What a law may miss, by the name of its error."""
LEAST_SHOWN = 0.005
"""Error of the law that is said: smaller ones would read 0 %."""
NOT_MODELLED = {
    "max_waiting": "the limit on waiting requests",
    "queue_timeout": "queue timeouts",
    "cancel": "clients that give up",
    "roughness": "padding, knee and jitter of the engine",
    "long_prompts": "whole prompts that have no room beside the decodes, and hold up others",
    "recompute": "what paused requests compute again",
    "static_speculation": "speculation under static batching",
    "static_prefix": "the shared prefix under static batching",
}
SLOW_BY = {
    "ttft": "its prompt's length",
    "itl": "the time of one decode step",
    "gap": "the time of one decode step",
    "e2e": "its own length",
}
"""What makes a request slow on an idle replica."""
DILUTED = {
    "itl": "ITL is the mean over an answer's tokens, so longer answers dilute a stall",
    "gap": "Gaps are counted over all tokens, so longer answers dilute the stalls among them",
}


class _Units(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "ms":
            return milliseconds(value)
        if format_spec == "gpus":
            return gpus(value)
        if format_spec == "requests":
            return of_requests(value)
        if format_spec == "name":
            return metric_name(value)
        if format_spec.endswith("%"):
            return percent(value, int(format_spec.strip("+%") or 0), sign=format_spec.startswith("+"))
        return str(super().format_field(value, format_spec))


def caution(found: Caution) -> str:
    """One caution in words, without a capital and a full stop."""
    facts: dict[str, Any] = dict(found.facts)
    if found.kind == "not_modelled":
        facts["left_out"] = " and ".join(NOT_MODELLED[name] for name in facts["settings"])
    elif found.kind == "poor_fit":
        facts["likely"] = LIKELY[facts["cause"]].format(**facts)
        shown = [name for name in MISSED if facts[name] >= LEAST_SHOWN]
        misses = [f"{percent(facts[name])} in {MISSED[name]}" for name in shown]
        facts["misses"] = " and ".join(", ".join(misses).rsplit(", ", 1))
    elif found.kind == "one_level":
        facts["points"] = count_of(facts["points"], "measured point")
    elif found.kind == "near_floor":
        # Above the limit only where the simulation, which counts, found it kept.
        facts["by_formula"] = " by formula" if facts["floor_s"] > facts["limit_s"] else ""
        facts["cause"] = SLOW_BY[facts["metric"]]
    elif found.kind == "diluted":
        advice = "; if single stalls matter, limit the gap between tokens, for instance to 100 ms at p99"
        facts |= {"diluted": DILUTED[facts["metric"]], "advice": "" if facts["gap_limited"] else advice}
    return _Units().vformat(CAUTIONS[found.kind], (), facts)


def cautions(found: Iterable[Caution]) -> list[str]:
    """Several cautions in words."""
    return [caution(each) for each in found]
