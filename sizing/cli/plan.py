"""``python -m sizing plan``: how many GPUs, and on request by hour of the day, by cost, with other engine settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sizing import candidates, planner
from sizing import text as answer
from sizing.analyses.curves import load_curve
from sizing.analyses.daily import daily_rates, gpus_by_hour, peak_over_mean
from sizing.analyses.mixed import Mix, Supply, cheapest_mix, worth_mixing
from sizing.analyses.relax import NO_WAYS, ways_out
from sizing.analyses.sensitivity import goodput_prices, sensitivities, tune
from sizing.analyses.verification import verification
from sizing.cli.options import (
    SESSION_SHAPE,
    SESSION_TOKENS,
    Reported,
    as_json,
    check_companions,
    choice_of,
    choice_options,
    configured,
    counts_of,
    field_option,
    gpus_of,
    length_options,
    margin_options,
    model_options,
    options,
    points_of,
    prices_of,
    protocol_of,
    refuse,
    session_options,
    session_routing_option,
    sessions_of,
    set_by_hand,
    shown_late,
    sla_options,
    time_limit,
    write_json,
)
from sizing.cli.shapes import extras_json
from sizing.edge import BY_SIMULATION
from sizing.numbers import gpus as in_words
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.question import ADMISSION, FIELDS, LENGTHS, Question
from sizing.simulator.sessions import SessionLatency
from sizing.text import Extras, rejection_json
from sizing.workload import METRICS, Limit, Sla

if TYPE_CHECKING:
    from sizing.analyses.session_plan import SessionLoad, SessionPlan, TurnsByPlace
    from sizing.analyses.traced import TracePlan
    from sizing.report.model import InputRow
    from sizing.trace import Trace
    from sizing.trace_files import Reading


def show(error: NoFeasiblePlan, json_: bool) -> None:
    """The rejections as a table, and ways to meet the SLA; or as JSON without any count."""
    ways_out = error.ways_out if isinstance(error, Reported) else ()
    if json_:
        rejected = [rejection_json(rejection) for rejection in error.rejected]
        beside = error.beside if isinstance(error, Reported) else {}
        ways = {"ways_out": list(ways_out)} if ways_out else {}
        write_json({"feasible": False, "why": str(error), "rejected": rejected, **ways, **beside})
    else:
        from sizing.cli.tables import print_rejections, print_ways_out  # costs rich, which JSON does without

        print_rejections(error.rejected)
        print_ways_out(ways_out)


EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms
  python -m sizing plan --model Qwen/Qwen3-8B --gpu h100_sxm --isl 1000 --osl 200 --ttft p95:1s \\
      --rate 8 --peak-factor 2.5 --price 2.5
  python -m sizing plan --model Qwen/Qwen3-8B --gpu h100_sxm --isl 1000 --osl 200 --ttft p95:1s \\
      --daily 2,1,1,1,1,2,4,8,15,20,22,21,18,20,22,21,18,14,10,8,6,5,4,3
  python -m sizing plan --model Qwen/Qwen3-8B --gpu h100_sxm,h200_sxm --isl 1000 --osl 200 --ttft p95:1s \\
      --rate 80 --price h100_sxm=2.5,h200_sxm=3.8 --mix --available h100_sxm=8
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --workload chat:isl=1000,osl=200,rate=5,ttft=p95:1s \\
      --workload batch:isl=4000,osl=500,rate=1,e2e=p95:60s
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --ttft p95:1s --itl p95:30ms \\
      --trace chat=monday.csv --trace code=completions.jsonl.gz --class code:ttft=p95:300ms,itl=none
  python -m sizing plan --model reference-512x4 --points data/curves/reference-cpu.csv \\
      --isl 64 --osl 32 --rate 20 --ttft p95:200ms --itl p95:40ms
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --users 200 --turns 8 --first-tokens 600 \\
      --user-tokens 120 --output-tokens 300 --think 30s --later-ttft p95:500ms --itl p95:40ms
"""
LOAD_NEEDED = ("isl", "osl")


@click.command("plan", epilog=EXAMPLES)
@options(
    model_options(required=True),
    choice_options,
    length_options(required=False),
    field_option("rate", required=False),
    field_option("peak_factor"),
    click.option(
        "--daily", help="24 hourly rates in requests/s, comma-separated, instead of --rate: also GPUs by hour."
    ),
    click.option(
        "--trace",
        "traces",
        multiple=True,
        help="File of recorded requests (CSV, Parquet, JSON lines), in place of lengths and load. May be repeated, as "
        "NAME=FILE, for classes of requests.",
    ),
    click.option(
        "--trace-window",
        default="all",
        show_default=True,
        help="Part of the trace: all, worst-hour, or FROM..TO, for instance 02:30..04:00, or with dates.",
    ),
    click.option(
        "--trace-scale",
        default=1.0,
        show_default=True,
        help="Factor on the number of requests in the trace; bursts are preserved.",
    ),
    click.option(
        "--class",
        "classes",
        multiple=True,
        help="Limits for a class of the trace, for instance code:ttft=p95:300ms,itl=none; may be repeated.",
    ),
    click.option(
        "--prefix-cache",
        is_flag=True,
        help="With --trace: a turn finds what the KV cache still holds of the turns before it in its session.",
    ),
    click.option(
        "--users", type=click.IntRange(1), help="Users or agents at once, each in a session, instead of --rate."
    ),
    session_options(required=False),
    session_routing_option("--session-routing"),
    sla_options,
    click.option("--first-ttft", help="With sessions: limit on the TTFT of first turns, for instance p95:2s."),
    click.option("--later-ttft", help="With sessions: limit on the TTFT of later turns, for instance p95:500ms."),
    click.option(
        "--session-time", help="With sessions: limit on the duration of a whole session, for instance p95:600s."
    ),
    margin_options,
    field_option("price"),
    click.option("--mix", is_flag=True, help="Also find the cheapest mix of GPU types; needs a --price for each."),
    click.option("--owned", help="With --mix: GPUs already owned, for instance h100_sxm=8."),
    click.option("--available", help="With --mix: the most GPUs of a type, for instance h200_sxm=16."),
    click.option(
        "--disaggregated", is_flag=True, help="Also size separate prefill and decode pools, each in its best layout."
    ),
    click.option(
        "--tune",
        "tuned",
        is_flag=True,
        help="Also find the batch limit and chunk size with which the answer needs the fewest GPUs.",
    ),
    click.option("--goodput-price", is_flag=True, help="Also give the GPUs for a goodput of 90, 95, 99 and 99.9 %."),
    click.option(
        "--workload",
        "workloads",
        multiple=True,
        help="One of several workloads on the fleet, for instance chat:isl=1000,osl=200,rate=5,ttft=p95:1s.",
    ),
    time_limit,
    as_json,
)
@click.pass_context
def plan_command(context: click.Context, /, json_: bool, **given: Any) -> None:
    """The smallest fleet whose latency percentiles meet the SLA at the planned load.

    Several workloads (--workload) share the fleet; see also `python -m sizing share`.
    """
    if given["workloads"]:
        shared_instead(context, json_, given)
        return
    check_companions(context, COMPANIONS)
    points = points_of(given)
    recorded = talks = None
    if given["users"] is not None or given["sessions_per_s"] is not None:
        question, talks = planned_sessions(context, given)
    elif not given["traces"]:
        question = planned(given)
    else:
        question, recorded = planned_trace(context, given)
    found = candidates.find(question.model, question.workload.lengths, choice_of(given), points, protocol_of(given))
    gpus, stock = gpus_of(found), {name: given[name] for name in ("owned", "available")}
    question = replace(question, **prices_of(given["price"], gpus))
    counts = {name: counts_of(f"--{name}", text, gpus) for name, text in stock.items()}
    reserved = configured(found[0], given, question.workload.lengths.osl)
    try:
        with shown_late():
            replayed = None if recorded is None else replays(question, recorded, reserved, found[1], given)
            simulated = None if talks is None else simulates(question, *talks, reserved, found[1])
            special = replayed or simulated
            plan = special.plan if special else planner.plan(question, reserved, found[1])
            more = Extras(sessions=simulated)
            if simulated is None:
                mix = mixed(plan, **counts) if given["mix"] else None
                plan = as_available(plan, reserved, counts["available"])
                trace = recorded.trace if recorded else None
                beside = extras(plan, given, reserved, counts["available"], trace)
                more = replace(beside, trace=replayed, mix=mix)
    except NoFeasiblePlan as error:
        load, trace = talks[0] if talks else None, recorded.trace if recorded else None
        raise refused(error, question, reserved, given, json_, load=load, trace=trace) from None
    if json_:
        write_json({**answer.as_json(plan), **extras_json(more, question), "report": report_json(plan, more)})
    else:
        from sizing.cli.tables import print_plan  # costs rich, which JSON does without

        print_plan(plan, more)


def planned(given: Mapping[str, Any]) -> Question:
    """The question, for the peak of the load. Raises UsageError for options that are missing or contradict."""
    for name in LOAD_NEEDED:
        if given[name] is None:
            raise click.MissingParameter(param_type="option", param_hint=f"'--{name}'")
    if (given["rate"] is None) == (given["daily"] is None):
        raise click.UsageError("give the load by either --rate or --daily")
    if given["daily"] is not None:
        if given["peak_factor"] != 1:
            raise click.UsageError("--daily already contains the peak: omit --peak-factor")
        rates = daily_rates(given["daily"])
        peak, factor = max(rates), peak_over_mean(rates)
    else:
        factor = given["peak_factor"]
        FIELDS["peak_factor"].check(factor)
        peak = given["rate"] * factor
    return Question.of({**given, "rate": peak, "peak_factor": factor, "price": None})


OF_TRACES = ("isl", "osl", "isl_cv", "osl_cv", "isl_law", "osl_law", "correlation", "arrivals", "rate", "peak_factor")
NOT_REPLAYED = ("daily", "mix", "tuned", "disaggregated", "goodput_price")


def planned_trace(context: click.Context, given: Mapping[str, Any]) -> tuple[Question, Reading]:
    """The question with the lengths of the trace that --trace names and the rate of its busiest hour, and the trace."""
    from sizing.analyses.traced import busiest_rate_per_s, lengths_of, peak_factor
    from sizing.trace_files import read_traces

    refuse(context, OF_TRACES, "does not go with --trace: the trace has its own")
    refuse(context, NOT_REPLAYED, "does not go with --trace: its answer would not be replayed")
    if given["prefix_cache"]:
        refuse(context, ("prefix_tokens", "prefix_hit"), "does not go with --prefix-cache: the replay finds it")
    reading = read_traces(given["traces"])
    trace = reading.trace.window(given["trace_window"]).scaled(given["trace_scale"])
    lengths = {name: getattr(lengths_of(trace), name) for name in LENGTHS}
    load = {"rate": busiest_rate_per_s(trace), "peak_factor": peak_factor(trace)}
    return Question.of({**given, **lengths, **load, "price": None}), reading._replace(trace=trace)


NOT_OF_SESSIONS = ("prefix_tokens", "prefix_hit", "routing", "gap", "traces", "goodput", "rejected", *ADMISSION)
LIMITS_OF_SESSIONS: dict[str, SessionLatency] = {
    "first_ttft": "first_ttft",
    "later_ttft": "later_ttft",
    "session_time": "session",
}


def planned_sessions(
    context: click.Context, given: Mapping[str, Any]
) -> tuple[Question, tuple[SessionLoad, TurnsByPlace]]:
    """The question of sessions, and what it does not hold: the sessions, and what their turns are like."""
    from sizing.analyses.session_plan import SessionLimit, SessionLoad, session_question, within_context

    unfit = "does not go with --users and --sessions-per-s"
    refuse(context, (*OF_TRACES, *NOT_OF_SESSIONS), f"{unfit}: sessions have their own load and limits")
    refuse(context, NOT_REPLAYED, f"{unfit}: its answer would not be simulated")
    if given["users"] is not None and given["sessions_per_s"] is not None:
        raise click.UsageError("give the load by either --users or --sessions-per-s")
    for name in ("turns", *(f"{kind}_tokens" for kind in SESSION_TOKENS)):
        if given[name] is None:
            raise click.MissingParameter(param_type="option", param_hint=f"'--{name.replace('_', '-')}'")
    sessions = within_context(given["model"], sessions_of(given, given["sessions_per_s"] or 1.0))
    load = SessionLoad(sessions, given["users"], given["session_routing"])
    own = (
        SessionLimit.on(of, given[name], f"--{name.replace('_', '-')}")
        for name, of in LIMITS_OF_SESSIONS.items()
        if given[name]
    )
    sla = Sla(*(Limit.parse(metric, given[metric]) for metric in METRICS if given[metric]), *own)
    terms = {name: given[name] for name in ("headroom", "spare")}
    question, turns = session_question(given["model"], load, sla, **terms)
    return question, (load, turns)


COMPANIONS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("users", "sessions_per_s"): (*SESSION_SHAPE, "session_routing", *LIMITS_OF_SESSIONS),
    ("traces",): ("trace_window", "trace_scale", "classes", "prefix_cache"),
    ("mix",): ("owned", "available"),
}
"""Parameters of which one must be given -> those that mean nothing without."""


def simulates(
    question: Question,
    load: SessionLoad,
    turns: TurnsByPlace,
    found: Sequence[Candidate],
    rejected: Sequence[Rejection],
) -> SessionPlan:
    """The plan of sessions."""
    from sizing.analyses.session_plan import plan_sessions

    return plan_sessions(question, load, turns, found, rejected)


def replays(
    question: Question,
    recorded: Reading,
    found: Sequence[Candidate],
    rejected: Sequence[Rejection],
    given: Mapping[str, Any],
) -> TracePlan:
    """The plan of a trace."""
    from sizing.analyses.traced import class_slas, plan_trace

    slas = class_slas(recorded.trace, question.sla, given["classes"])
    cached = given["prefix_cache"]
    planned = plan_trace(question, recorded.trace, found, rejected, slas=slas, prefix_cache=cached)
    return replace(planned, notes=recorded.notes)


def class_lines(
    error: NoFeasiblePlan, question: Question, trace: Trace, found: Sequence[Candidate], given: Mapping[str, Any]
) -> tuple[str, ...]:
    """What the limits of each class of a trace would have to be."""
    from sizing.analyses.traced import class_slas, class_ways_out

    slas = class_slas(trace, question.sla, given["classes"])
    ways = class_ways_out(error.rejected, question, trace, slas, found)
    return tuple(f"{name}: {line}" for name, way in ways for line in answer.ways_out_lines(*way))


def report_json(plan: Plan, more: Extras) -> dict[str, Any]:
    """The plan as `python -m sizing report` reads it."""
    from sizing.report.build import Cover, report_of  # only --json writes it
    from sizing.report.model import as_dict

    curve = None if more.sessions else load_curve(plan.question, plan.answer)
    return as_dict(report_of(plan, curve, more, Cover(now())))


def refused(
    error: NoFeasiblePlan,
    question: Question,
    found: Sequence[Candidate],
    given: Mapping[str, Any],
    json_: bool,
    *,
    load: SessionLoad | None,
    trace: Trace | None,
) -> Reported:
    """The error with ways to meet the SLA and, for JSON, why there is no plan as `python -m sizing report` reads it."""
    rows = NO_WAYS  # a report's rows of limits do not tell first turns from later ones, nor classes: lines do
    if load:
        from sizing.analyses.session_plan import session_ways_out

        lines = answer.ways_out_lines(*session_ways_out(error.rejected, question, load, found))
    elif trace is not None and trace.classes:
        lines = class_lines(error, question, trace, found, given)
    else:
        rows = ways_out(error.rejected, question, found)
        lines = answer.ways_out_lines(*rows)
    if not json_:
        return Reported(error, {}, lines)
    from sizing.report.build import Cover, refusal_of
    from sizing.report.model import as_dict

    why = "No configuration meets this SLA", str(error), error.rejected, Cover(now())
    told, beside = () if rows[0] else lines, asked_beside(question, given, trace)
    report = refusal_of(question, *why, *rows, load, trace is not None, told, beside)
    return Reported(error, {"report": as_dict(report)}, lines)


def asked_beside(question: Question, given: Mapping[str, Any], trace: Trace | None) -> tuple[InputRow, ...]:
    """The hours of a day and the limits of a trace's classes, of which the question knows nothing."""
    from sizing.report.sections import class_inputs, daily_input

    if trace is not None:
        from sizing.analyses.traced import class_slas

        own = class_slas(trace, question.sla, given["classes"])
        return class_inputs(question.sla, dict(zip(trace.classes, own, strict=True)))
    return (daily_input(daily_rates(given["daily"])),) if given["daily"] is not None else ()


def now() -> str:
    """This second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def extras(
    plan: Plan,
    given: Mapping[str, Any],
    found: Sequence[Candidate],
    available: Mapping[str, int],
    trace: Trace | None,
) -> Extras:
    """Everything that was asked for beside the count; `found`: the candidates of the plan; `available`: GPUs of a type,
    where not as many as one likes; `trace`: that the plan is for."""
    question, fleet, pools = plan.question, plan.answer, None
    if given["disaggregated"]:
        from sizing.analyses.pools import pools_within  # costs the what-ifs, which nothing else here needs

        pools = pools_within(question, found, available)
    return Extras(
        sensitivities(question, fleet, trace),
        gpus_by_hour(question, fleet, daily_rates(given["daily"])) if given["daily"] is not None else None,
        tune(question, fleet.candidate) if given["tuned"] else None,
        verification=verification(plan),
        pools=pools,
        goodput_prices=goodput_prices(question, fleet.candidate) if given["goodput_price"] else (),
    )


def as_available(plan: Plan, found: Sequence[Candidate], available: Mapping[str, int]) -> Plan:
    """The plan by GPUs of which there are enough for a fleet; as it was where no type alone is."""
    within, left_out = plan, list(plan.rejected)
    while (answer := within.answer).gpus > (most := available.get(answer.candidate.gpu, answer.gpus)):
        gpu = answer.candidate.gpu
        left_out.append(
            Rejection.of(answer.candidate, "too_few", f"{in_words(answer.gpus)} needed, {most:,} available")
        )
        found = [each for each in found if each.gpu != gpu]
        try:
            within = planner.plan(plan.question, found, left_out)
        except NoFeasiblePlan:
            return plan
    return within


def mixed(plan: Plan, owned: Mapping[str, int], available: Mapping[str, int]) -> Mix:
    """The cheapest mix of the fleets of all GPU types, each verified by simulation; counts by GPU name."""
    fleets = [
        fleet if fleet.verified else planner.size(plan.question, fleet.candidate, BY_SIMULATION)
        for fleet in worth_mixing(plan.fleets)
    ]
    verified = [fleet for fleet in fleets if isinstance(fleet, Fleet)]
    supplies = {
        gpu: Supply(price, owned.get(gpu, 0), available.get(gpu, math.inf))
        for gpu in {fleet.candidate.gpu for fleet in plan.fleets}
        if (price := plan.question.price_of(gpu)) is not None
    }
    return cheapest_mix(plan.question, verified, supplies)


def shared_instead(context: click.Context, json_: bool, given: dict[str, Any]) -> None:
    """Let the command `share` answer for several workloads."""
    group = context.parent.command if context.parent else None
    share = group.get_command(context, "share") if isinstance(group, click.Group) else None
    if share is None:
        raise click.UsageError("--workload needs the command group")
    names = {parameter.name for parameter in share.params}
    unknown = [option for name, option in set_by_hand(context).items() if name not in names]
    if unknown:
        raise click.UsageError(
            f"{', '.join(unknown)} cannot be combined with --workload: each --workload contains lengths, load, "
            "arrivals and limits; the other options apply to a single workload"
        )
    context.invoke(share, json_=json_, scenario=None, **{key: given[key] for key in given if key in names})
