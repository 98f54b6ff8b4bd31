"""What the command line prints for people: tables and sentences, times in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sizing import text
from sizing.analyses.closed_loop import ClosedLoop
from sizing.analyses.daily import Daily
from sizing.analyses.existing import Existing
from sizing.analyses.pools import Pools
from sizing.analyses.sensitivity import GoodputPrice, Sensitivity, Unit
from sizing.analyses.sharing import SharedFleet, Terms
from sizing.analyses.verification import Verification
from sizing.cli.shapes import shared_cost
from sizing.fitting import Fit
from sizing.numbers import count_of, gpus, met, milliseconds, per_second, percent, significant, with_unit
from sizing.plans import Fleet, Plan, Rejection
from sizing.prediction import Caution, Prediction, Quantiles
from sizing.question import Question
from sizing.text import Extras
from sizing.workload import METRICS, metric_name, of_requests

if TYPE_CHECKING:
    from sizing.analyses.session_plan import SessionPrediction
    from sizing.analyses.traced import TracePlan
    from sizing.simulator.sessions import SessionLatency, SimulatedSessions

SHOWN = 8


def console() -> Console:
    """Standard output; at least 120 columns when it is not a terminal, so that piped tables stay whole."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=max(120, found.width))


def print_plan(plan: Plan, extras: Extras) -> None:
    """The answer, its arithmetic, the SLA, cost and energy, the extras, alternatives, and what was left out."""
    out, fleet = console(), plan.answer
    say = partial(out.print, soft_wrap=True)
    say(f"[bold]{escape(text.sentence(plan))}[/bold]")
    say(escape(text.working(plan)))
    if peak := text.peak(plan.question):
        say(f"{peak}.")
    per_gpu = per_second(fleet.requests_per_s_per_gpu)
    say(f"{per_gpu} per GPU. {text.band(fleet)}. {text.why_wide(fleet)}".rstrip())
    say(f"Basis: {fleet.basis}, {escape(fleet.candidate.source)}; verified by {fleet.predicted.method}.")
    for note in text.on_all_requests(plan.question):
        say(f"{note}.")
    print_parts("compared", plan, extras)
    if means := text.sizing_by_means(plan):
        say(escape(means))
    print_parts("load", plan, extras)
    out.print(sla_table(plan.question, fleet, "over all requests replayed" if extras.trace else "at the planned load"))
    print_parts("latencies", plan, extras)
    say(f"Binding limit: {escape(text.binding(fleet, extras.trace))}. {text.sensitivity(plan)}.")
    for line in (text.cost_line(plan), text.energy_line(plan)):
        if line:
            say(f"{escape(line)}.")
    print_parts("fleets", plan, extras)
    print_cautions(fleet.warnings)
    print_parts("tables", plan, extras)
    if len(plan.fleets) > 1:
        out.print(alternatives_table(plan))
    print_rejections(plan.rejected)


def print_parts(place: Place, plan: Plan, extras: Extras) -> None:
    """What belongs in this place of the answer, of all that was asked for beside the count."""
    for name, show in PRINTED[place].items():
        if value := getattr(extras, name):
            show(value, plan)


def print_lines(name: str, value: Any, plan: Plan) -> None:
    """The sentences on a field of `Extras`."""
    for line in text.LINES[name](value, plan):
        console().print(f"{escape(line)}.", soft_wrap=True)


def print_trace(found: TracePlan, _: Plan) -> None:
    """What each class saw, and the worst hours."""
    if found.replayed.classes:
        console().print(classes_table(found))
    console().print(hours_table(found))


Place = Literal["compared", "load", "latencies", "fleets", "tables"]
PRINTED: Mapping[Place, Mapping[str, Callable[[Any, Plan], None]]] = {
    "compared": {"verification": lambda found, _: print_verification(found)},
    "load": {name: partial(print_lines, name) for name in ("trace", "sessions")},
    "latencies": {
        "trace": print_trace,
        "sessions": lambda found, _: console().print(
            session_table(found.seen.predicted, "Turns and sessions at the planned load")
        ),
    },
    "fleets": {
        **{name: partial(print_lines, name) for name in ("tuned", "mix", "daily")},
        "pools": lambda found, plan: print_pools(found, plan.question, gpus(plan.answer.gpus)),
    },
    "tables": {
        "sensitivity": lambda rows, plan: console().print(sensitivity_table(rows, plan.answer)),
        "goodput_prices": lambda prices, _: console().print(goodput_table(prices)),
        "daily": lambda found, _: console().print(daily_table(found)),
    },
}
"""How each field of `Extras` is printed, by its places in the answer, top to bottom."""


def print_pools(pools: Pools | Rejection, question: Question, in_one_fleet: str) -> None:
    """Both pools in a line each, the count in bold."""
    first, *rest = text.pools_lines(pools, question, in_one_fleet)
    out = console()
    out.print(f"[bold]{escape(first)}.[/bold]", soft_wrap=True)
    for line in rest:
        out.print(f"  {escape(line)}.", soft_wrap=True)


def sla_table(question: Question, fleet: Fleet, where: str) -> Table:
    """Each limit against its prediction."""
    table = Table("limit", "allowed", "predicted", "room", title=f"SLA {where}", title_justify="left")
    for limit in question.sla.limits:
        room = percent(1 - fleet.predicted.used(limit))
        table.add_row(limit.name, limit.allowed, fleet.predicted.said(limit), room)
    return table


def print_verification(found: Verification) -> None:
    """The sentence, and each figure that was predicted beside what was measured."""
    out = console()
    out.print(f"{escape(text.verified(found))}.", soft_wrap=True)
    if not found.figures:
        return
    table = Table("latency", "predicted", "90 % band", "measured", "95 % interval", "in the band", title_justify="left")
    table.title = f"On the server at {per_second(found.rate_per_s)}, Poisson arrivals"
    for each in found.figures:
        known = each.measured_low_s is not None and each.measured_high_s is not None
        interval = f"{milliseconds(each.measured_low_s or 0)} to {milliseconds(each.measured_high_s or 0)}"
        table.add_row(
            each.of.name,
            milliseconds(each.predicted_s),
            f"{milliseconds(each.low_s)} to {milliseconds(each.high_s)}",
            "too few requests" if each.measured_s is None else milliseconds(each.measured_s),
            interval if known else "",
            {"in": "yes", None: ""}.get(each.verdict, f"{percent(abs(each.off))} {each.verdict}"),
        )
    out.print(table)


def alternatives_table(plan: Plan) -> Table:
    """The best configurations, the answer first."""
    columns = ("GPU", "layout", "precision", "engine", "GPUs", "90 % band", "requests/s per GPU", "binds", "basis")
    table = Table(*columns, "verified by")
    table.title, table.title_justify = f"Configurations that meet the SLA ({len(plan.fleets)})", "left"
    for fleet in plan.fleets[:SHOWN]:
        table.add_row(
            fleet.candidate.gpu,
            str(fleet.candidate.layout),
            fleet.candidate.precision,
            escape(fleet.candidate.engine),
            str(fleet.gpus),
            text.counts(fleet.gpus_low, fleet.gpus_high),
            significant(fleet.requests_per_s_per_gpu),
            "stable rate" if fleet.stability_binds else escape(fleet.with_class(fleet.binding.name)),
            fleet.basis,
            text.METHOD[fleet.predicted.method],
        )
    return table


def sensitivity_table(rows: Sequence[Sensitivity], fleet: Fleet) -> Table:
    """GPUs, and the requests/s at which a replica misses the SLA, with one input changed at a time."""
    changes = [percent(effect.change, sign=True) for effect in rows[0].effects]
    table = Table("GPUs (requests/s) if", "is", *changes, title="Sensitivity", title_justify="left")
    for row in rows:
        cells = [
            "none"
            if effect.gpus is None or effect.capacity_per_s is None
            else f"{effect.gpus} ({significant(effect.capacity_per_s)})"
            for effect in row.effects
        ]
        table.add_row(row.name, quantity(row.value, row.unit), *cells)
    table.caption = (
        f"as asked: {gpus(fleet.gpus)} ({significant(fleet.capacity_per_s)}); in brackets requests/s per replica where "
        "the SLA fails, before headroom; changes are relative: 20 % headroom +25 % is 25 %; none: no fleet meets the "
        "SLA then, or there is no such value"
    )
    table.caption_justify = "left"
    return table


def goodput_table(prices: Sequence[GoodputPrice]) -> Table:
    """GPUs at rising goodput."""
    table = Table("goodput", "GPUs", "replicas", "requests/s per GPU", title=text.GOODPUT_PRICE, title_justify="left")
    for price in prices:
        name, fleet = of_requests(price.percent / 100), price.fleet
        if fleet is None:
            table.add_row(name, "SLA fails", "", "")
        else:
            each = significant(fleet.requests_per_s_per_gpu)
            table.add_row(name, str(fleet.gpus), f"{fleet.working} + {fleet.spare}", each)
    table.caption, table.caption_justify = text.GOODPUT_JUDGED, "left"
    return table


def quantity(value: float, unit: Unit) -> str:
    """A value with its unit, for people."""
    if unit == "s":
        return milliseconds(value)
    return of_requests(value) if unit == "share" else with_unit(significant(value), unit)


def daily_table(daily: Daily) -> Table:
    """GPUs to run in each hour."""
    table = Table("hour", "requests/s", "replicas", "GPUs", title="GPUs by hour", title_justify="left")
    for hour in daily.hours:
        table.add_row(f"{hour.hour:02d}:00", significant(hour.rate_per_s), str(hour.replicas), str(hour.gpus))
    return table


def classes_table(found: TracePlan) -> Table:
    """Each limit of each class against what its requests saw."""
    table = Table("class", "requests", "limit", "allowed", "replayed", "room", "inside the SLA", "its worst hour")
    for seen in found.replayed.classes:
        for number, limit in enumerate(seen.sla.limits):
            value_s, worst = seen.value_s(limit), seen.worst_hour
            whole = (escape(seen.name), f"{seen.tally.gone.sum():,}") if number == 0 else ("", "")
            inside = (
                met(seen.goodput(), 2),
                f"{found.trace.clock(seen.hours[worst].from_s)}, {met(seen.goodput(worst), 1)}",
            )
            room = percent(1 - value_s / limit.limit_s)
            of_limit = (limit.name, limit.allowed, limit.said(value_s), room)
            table.add_row(*whole, *of_limit, *(inside if number == 0 else ("", "")))
    return table


def hours_table(found: TracePlan) -> Table:
    """The hours of a replayed trace in which most requests miss a limit, worst first."""
    from sizing.simulator.recorded import limits_on_latencies  # a plan without a trace does without

    seen, answer = found.replayed, found.plan.answer
    limits = limits_on_latencies(seen.sla)
    among, on = count_of(len(seen.hours), "hour"), count_of(answer.working, "working replica")
    title = f"The worst of {among}, replayed on {on}"
    columns = ("hour", "requests", "inside the SLA", *(limit.name for limit in limits), "GPUs at its rate")
    table = Table(*columns, title=title, title_justify="left")
    for number in sorted(range(len(seen.hours)), key=seen.goodput)[:SHOWN]:
        table.add_row(
            found.trace.clock(seen.hours[number].from_s),
            f"{seen.tally.gone[number]:,}",
            met(seen.goodput(number), 1),
            *(limit.said(seen.value_s(limit, number)) for limit in limits),
            str((found.needed[number] + answer.spare) * answer.candidate.gpus),
        )
    return table


def print_existing(question: Question, fleets: Sequence[Existing], rejected: Sequence[Rejection]) -> None:
    """What an existing fleet carries: the best way to run it, the alternatives, and what was left out."""
    out, best = console(), fleets[0]
    say = partial(out.print, soft_wrap=True)
    say(f"[bold]{escape(text.existing_sentence(best))}[/bold]")
    say(
        f"{best.working} working and {best.spare} spare replicas of {escape(best.candidate.label)}, "
        f"{gpus(best.unused)} unused; the SLA fails at {per_second(best.limit_per_s)}, {percent(question.headroom)} "
        "headroom kept."
    )
    say(f"{text.existing_band(best)}. Binding: {best.binding}.")
    say(f"Basis: {best.basis}, {escape(best.candidate.source)}; verified by {text.METHOD[best.predicted.method]}.")
    print_cautions(best.warnings)
    columns = ("GPU", "layout", "precision", "engine", "requests/s", "per GPU", "90 % band", "binds", "basis")
    table = Table(*columns, "verified by")
    for fleet in fleets[:SHOWN]:
        table.add_row(
            *(fleet.candidate.gpu, str(fleet.candidate.layout), fleet.candidate.precision),
            escape(fleet.candidate.engine),
            *(significant(fleet.rate_per_s), significant(fleet.requests_per_s_per_gpu)),
            f"{significant(fleet.low)} to {significant(fleet.high)}",
            *(fleet.binding, fleet.basis, text.METHOD[fleet.predicted.method]),
        )
    out.print(table)
    print_rejections(rejected)


def print_shared(fleet: SharedFleet, terms: Terms, rejected: Sequence[Rejection]) -> None:
    """A fleet for several workloads, and what each of them sees."""
    out = console()
    say = partial(out.print, soft_wrap=True)
    workloads = count_of(len(fleet.served), "workload")
    say(f"[bold]You need {fleet.gpus:,} × {escape(fleet.candidate.gpu)} for {workloads}[/bold]")
    apart = f"; fleets of their own would need {fleet.apart:,} working" if len(fleet.served) > 1 else ""
    say(
        f"{fleet.working:,} working and {fleet.spare:,} spare replicas of {escape(fleet.candidate.label)}{apart}. "
        f"Tightest: {escape(fleet.tightest.share.name)}."
    )
    say(
        f"{per_second(fleet.requests_per_s_per_gpu)} per working GPU, {percent(fleet.utilization)} of the highest "
        "stable rate. No band: the count holds for the law as it is."
    )
    say(f"Basis: {fleet.basis}, {escape(fleet.candidate.source)}; verified by simulation.")
    price = terms.price_of(fleet.candidate.gpu)
    if price is not None:
        say(f"Cost {shared_cost(fleet, price).sentence} (at {significant(price)} per GPU-hour, spares included).")
    print_cautions(fleet.warnings)
    for served in fleet.served:
        print_cautions(served.predicted.warnings, f"{served.share.name}: ")
    table = Table("workload", "requests/s", "limit", "allowed", "predicted", "room")
    for served in fleet.served:
        for limit in served.share.sla.limits:
            table.add_row(
                *(escape(served.share.name), significant(served.share.workload.rate_per_s)),
                *(limit.name, limit.allowed, served.predicted.said(limit)),
                percent(1 - served.predicted.used(limit)),
            )
    out.print(table)
    print_rejections(rejected)


def print_cautions(found: Sequence[Caution], of: str = "", start: str = "warning") -> None:
    """One line for each caution; `of` names what it is about."""
    for line in text.cautions(found):
        console().print(f"[yellow]{start}:[/yellow] {escape(of + line)}", soft_wrap=True)


def print_rejections(rejected: Sequence[Rejection]) -> None:
    """What was left out and why."""
    if not rejected:
        return
    columns = ("GPU", "layout", "precision", "engine", "left out because")
    table = Table(*columns, title=f"Left out ({len(rejected)})", title_justify="left")
    for miss in rejected:
        table.add_row(miss.gpu, str(miss.layout), miss.precision, escape(miss.engine), escape(miss.why))
    console().print(table)


def print_ways_out(lines: Sequence[str]) -> None:
    """What the limits would have to be."""
    if lines:
        console().print("Ways to meet the SLA:")
    for line in lines:
        console().print(f"  - {escape(line)}.", soft_wrap=True)


def print_prediction(prediction: Prediction, title: str) -> None:
    """Percentiles of the latencies, and of the gaps between tokens where these are known."""
    if prediction.saturated:
        console().print(
            f"Saturated: the load is {percent(prediction.utilization)} of what can be carried in steady state."
        )
        return
    table = Table("", "mean", "p50", "p90", "p95", "p99", title=f"{escape(title)}, {prediction.method}")
    for metric in METRICS:
        quantiles = prediction.of(metric)
        if metric == "gap" and not quantiles.known:
            continue
        table.add_row(metric_name(metric), *map(milliseconds, astuple(quantiles)))
    console().print(table)
    console().print(f"Utilization {percent(prediction.utilization)} of the highest stable rate.")
    print_cautions(prediction.warnings)


def print_sessions(run: SimulatedSessions, title: str) -> None:
    """The hit rate and the latencies of turns and sessions."""
    out = console()
    if run.saturated:
        out.print("Saturated: the queue kept growing, there is no steady state.")
        return
    out.print(latency_table(run.latencies, title))
    out.print(
        f"{percent(run.hit_rate)} of prompt tokens found in the prefix cache. "
        f"{per_second(run.turns_per_s, noun='turn')}, {with_unit(significant(run.in_flight), 'sessions')} in flight, "
        f"{count_of(run.pauses, 'pause')}.",
        soft_wrap=True,
    )
    if run.turns.lost:
        out.print(f"{percent(run.turns.lost / len(run.number))} of the turns were rejected.")


def session_table(predicted: SessionPrediction, title: str) -> Table:
    """The latencies of turns and sessions of a plan."""
    return latency_table({**predicted.parts, "itl": predicted.itl, "e2e": predicted.e2e}, title)


def latency_table(latencies: Mapping[SessionLatency, Quantiles], title: str) -> Table:
    """Mean and percentiles of each latency of sessions that there is."""
    table = Table("", "mean", "p50", "p90", "p95", "p99", title=escape(title))
    for name, row in SESSION_ROWS.items():
        quantiles = latencies[name]
        if quantiles.known:
            table.add_row(row, *map(milliseconds, astuple(quantiles)))
    return table


SESSION_ROWS: dict[SessionLatency, str] = {
    "first_ttft": "TTFT, first turn",
    "later_ttft": "TTFT, later turns",
    "itl": "ITL",
    "e2e": "E2E of a turn",
    "session": "whole session",
}


def print_closed_loop(loop: ClosedLoop, title: str) -> None:
    """Requests/s and latencies of a closed loop, each with its band."""

    def cell(name: str) -> str:
        if (found := loop.latencies.get(name)) is None:
            return ""
        low, high = milliseconds(found.low).removesuffix(" ms"), milliseconds(found.high)
        return f"{milliseconds(found.value)}\n[dim]{low} to {high}[/dim]"

    users = count_of(loop.users, "user")
    on = f" on {loop.replicas} replicas" if loop.replicas > 1 else ""
    statistics, rate = ("mean", "p50", "p90", "p95", "p99"), loop.requests_per_s
    table = Table("", *statistics, title=f"{escape(title)}, closed loop of {users}{on}", caption="below: 90 % bands")
    for metric, words in {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "gap": "gap"}.items():
        row = [cell(f"{metric}_{statistic}_s") for statistic in statistics]
        if any(row):
            table.add_row(words, *row)
    console().print(table)
    band = f"{significant(rate.low)} to {significant(rate.high)}"
    console().print(f"{per_second(rate.value)} (90 % band {band}).")


def print_fit(fitted: Fit) -> None:
    """Coefficients with intervals, and the error at each point."""
    out = console()
    packed = "" if fitted.batching.padded else ", prompts packed"
    of_scheduler = text.scheduling_json(fitted.batching).items()
    settings = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in of_scheduler)
    out.print(f"{escape(fitted.deployment.label)}: policy {fitted.batching.policy}{packed}{settings}")
    table = Table("coefficient", "value", "90 % interval")
    for name in fitted.names:
        low, high = fitted.interval(name)
        table.add_row(name, microseconds(getattr(fitted.law, name)), f"{microseconds(low)} to {microseconds(high)}")
    out.print(table)
    errors = Table("ISL", "OSL", "load", "requests/s", "error", "ITL error", "TTFT error", title="At each point")
    for error in fitted.errors:
        errors.add_row(
            significant(error.point.isl),
            significant(error.point.osl),
            error.point.load_label,
            significant(error.point.requests_per_s),
            *(
                percent(share, 1, sign=True)
                for share in (error.requests_per_s_error, error.itl_error, error.ttft_error)
            ),
        )
    out.print(errors)
    unseen = "" if isnan(fitted.leave_one_out) else f"Leave-one-out error {percent(fitted.leave_one_out, 1)} (median); "
    out.print(f"{unseen}chi2 per point {fitted.chi2_per_point:.2f}.")
    print_cautions(fitted.warnings)


def microseconds(seconds: float) -> str:
    """A coefficient in microseconds."""
    return f"{significant(seconds * 1e6)} µs"
