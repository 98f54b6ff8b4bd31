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
from sizing.analyses.sensitivity import goodput_prices, sensitivities, tune
from sizing.analyses.verification import verification
from sizing.cli.options import (
    SESSION_SHAPE,
    SESSION_TOKENS,
    as_json,
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
    session_options,
    sessions_of,
    set_by_hand,
    sla_options,
    time_limit,
    write_json,
)
from sizing.cli.shapes import extras_json
from sizing.edge import BY_SIMULATION
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.question import ADMISSION, FIELDS, LENGTHS, Question
from sizing.simulator.sessions import SESSION_ROUTINGS, SessionLatency
from sizing.text import Extras, rejection_json
from sizing.workload import METRICS, Limit, Sla

if TYPE_CHECKING:
    from sizing.analyses.session_plan import SessionLoad, SessionPlan, TurnsByPlace
    from sizing.analyses.traced import TracePlan
    from sizing.trace_files import Reading


class Reported(NoFeasiblePlan):
    """No configuration meets the SLA; with what the JSON says beside: the report that lists ways to meet it, or the
    plan without the changes that made it fail."""

    def __init__(self, error: NoFeasiblePlan, beside: Mapping[str, Any]) -> None:
        super().__init__(str(error), error.rejected)
        self.beside = beside


def show(error: NoFeasiblePlan, json_: bool) -> None:
    """The rejections as a table, or as JSON without any count."""
    if json_:
        rejected = [rejection_json(rejection) for rejection in error.rejected]
        beside = error.beside if isinstance(error, Reported) else {}
        write_json({"feasible": False, "why": str(error), "rejected": rejected, **beside})
    else:
        from sizing.cli.tables import print_rejections  # costs rich, which JSON does without

        print_rejections(error.rejected)


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
    click.option("--daily", help="24 hourly rates, comma-separated, instead of --rate: GPUs by hour."),
    click.option(
        "--trace",
        "traces",
        multiple=True,
        help="Recorded requests, a CSV, Parquet or JSON lines file, in place of lengths and load; several times for "
        "classes of requests, NAME=FILE each.",
    ),
    click.option(
        "--trace-window",
        default="all",
        show_default=True,
        help="Of the trace: all, worst-hour, or FROM..TO as 02:30..04:00 or with dates.",
    ),
    click.option("--trace-scale", default=1.0, show_default=True, help="Times the requests of the trace, bursts kept."),
    click.option("--class", "classes", multiple=True, help="Limits of a class of the trace: NAME:ttft=..,itl=none."),
    click.option(
        "--prefix-cache",
        is_flag=True,
        help="With --trace: turns of a session find in the KV cache what is left of those before them.",
    ),
    click.option("--users", type=click.IntRange(1), help="Users or agents at once, in sessions, in place of --rate."),
    session_options(required=False),
    click.option(
        "--session-routing",
        type=click.Choice(SESSION_ROUTINGS),
        default="affinity",
        show_default=True,
        help="Who gets a turn: the replica of its session, any, the least busy one, the one with most of it cached.",
    ),
    sla_options,
    click.option("--first-ttft", help="Of sessions: limit on TTFT of first turns, for instance p95:2s."),
    click.option("--later-ttft", help="Of sessions: limit on TTFT of later turns, for instance p95:500ms."),
    click.option("--session-time", help="Limit on the time of a whole session or task, for instance p95:600s."),
    margin_options,
    field_option("price"),
    click.option("--mix", is_flag=True, help="Find the cheapest mix of GPU types; needs a price for each."),
    click.option("--owned", help="With --mix: GPUs already owned, h100_sxm=8."),
    click.option("--available", help="With --mix: the number available of a GPU, h200_sxm=16."),
    click.option("--disaggregated", is_flag=True, help="Also: prefill and decode in pools of their own, best layouts."),
    click.option("--tune", "tuned", is_flag=True, help="Search the best batch limit and chunk size for the answer."),
    click.option("--goodput-price", is_flag=True, help="Also: GPUs at 90, 95, 99 and 99.9 % goodput, limits at once."),
    click.option("--workload", "workloads", multiple=True, help="NAME:isl=..,osl=..,rate=..,ttft=..; several times."),
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
    points = points_of(given)
    recorded = talks = None
    if given["users"] is not None or given["sessions_per_s"] is not None:
        question, talks = planned_sessions(context, given)
    elif not given["traces"]:
        check_no_sessions(context)
        question = planned(given)
    else:
        question, recorded = planned_trace(context, given)
    found = candidates.find(question.model, question.workload.lengths, choice_of(given), points, protocol_of(given))
    gpus, stock = gpus_of(found), {name: given[name] for name in ("owned", "available")}
    question = replace(question, **prices_of(given["price"], gpus))
    counts = {name: counts_of(f"--{name}", text, gpus) for name, text in stock.items()}
    reserved = configured(found[0], given, question.workload.lengths.osl)
    try:
        replayed = None if recorded is None else replays(question, recorded, reserved, found[1], given)
        simulated = None if talks is None else simulates(question, *talks, reserved, found[1])
        special = replayed or simulated
        plan = special.plan if special else planner.plan(question, reserved, found[1])
    except NoFeasiblePlan as error:
        load = talks[0] if talks else None
        if not json_:
            raise
        refusal = refusal_json(error, question, reserved, load, recorded is not None)
        raise Reported(error, {"report": refusal}) from None
    more = Extras(sessions=simulated)
    if simulated is None:
        more = replace(extras(plan, given, counts, reserved), trace=replayed)
    if json_:
        write_json({**answer.as_json(plan), **extras_json(more, question), "report": report_json(plan, more)})
    else:
        from sizing.cli.tables import print_plan  # costs rich, which JSON does without

        print_plan(plan, more)


def planned(given: Mapping[str, Any]) -> Question:
    """The question, for the peak of the load. Raises what click raises for a missing option."""
    for name in LOAD_NEEDED:
        if given[name] is None:
            raise click.MissingParameter(param_type="option", param_hint=f"'--{name}'")
    if not given["mix"]:
        for name in ("owned", "available"):
            if given[name] is not None:
                raise click.UsageError(f"--{name} goes with --mix")
    for name in ("classes", "prefix_cache"):
        if given[name]:
            raise click.UsageError(f"--{'class' if name == 'classes' else 'prefix-cache'} goes with --trace")
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

    by_hand = set_by_hand(context)
    for name in (*OF_TRACES, *NOT_REPLAYED):
        if name in by_hand:
            option = TYPED.get(name, name.replace("_", "-"))
            why = "the trace has its own" if name in OF_TRACES else "its answer would not be replayed"
            raise click.UsageError(f"--{option} does not go with --trace: {why}")
    if given["prefix_cache"] and (twice := {*by_hand} & {"prefix_tokens", "prefix_hit"}):
        raise click.UsageError(f"--{min(twice).replace('_', '-')} does not go with --prefix-cache: the replay finds it")
    reading = read_traces(given["traces"])
    trace = reading.trace.window(given["trace_window"]).scaled(given["trace_scale"])
    lengths = {name: getattr(lengths_of(trace), name) for name in LENGTHS}
    load = {"rate": busiest_rate_per_s(trace), "peak_factor": peak_factor(trace)}
    return Question.of({**given, **lengths, **load, "price": None}), reading._replace(trace=trace)


OF_SESSIONS = (
    *("prefix_tokens", "prefix_hit", "routing", "gap", "traces", "trace_window", "trace_scale", "classes"),
    *("prefix_cache", "goodput", "goodput_price", "rejected", *ADMISSION),
)
TYPED = {"tuned": "tune", "traces": "trace", "classes": "class"}
"""Options by parameters that are not called as they are typed."""
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

    by_hand = set_by_hand(context)
    for name in (*OF_TRACES, *OF_SESSIONS, *NOT_REPLAYED):
        if name in by_hand:
            option = TYPED.get(name, name.replace("_", "-"))
            why = (
                "its answer would not be simulated"
                if name in NOT_REPLAYED
                else "sessions have their own load and limits"
            )
            raise click.UsageError(f"--{option} does not go with --users and --sessions-per-s: {why}")
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


def check_no_sessions(context: click.Context) -> None:
    """UsageError for what describes sessions where there is no number of them."""
    by_hand = set_by_hand(context)
    for name in (*SESSION_SHAPE, "session_routing", *LIMITS_OF_SESSIONS):
        if name in by_hand:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --users or --sessions-per-s")


def simulates(
    question: Question,
    load: SessionLoad,
    turns: TurnsByPlace,
    found: Sequence[Candidate],
    rejected: Sequence[Rejection],
) -> SessionPlan:
    """The plan of sessions; on a terminal, which fleet is being simulated."""
    from rich.console import Console

    from sizing.analyses.session_plan import plan_sessions

    with Console(stderr=True).status("sessions") as status:
        return plan_sessions(question, load, turns, found, rejected, progress=status.update)


def replays(
    question: Question,
    recorded: Reading,
    found: Sequence[Candidate],
    rejected: Sequence[Rejection],
    given: Mapping[str, Any],
) -> TracePlan:
    """The plan of a trace; on a terminal, which fleet is being replayed."""
    from rich.console import Console

    from sizing.analyses.traced import class_slas, plan_trace

    slas = class_slas(recorded.trace, question.sla, given["classes"])
    with Console(stderr=True).status(f"{len(recorded.trace):,} requests") as status:
        planned = plan_trace(
            question,
            recorded.trace,
            found,
            rejected,
            slas=slas,
            prefix_cache=given["prefix_cache"],
            progress=status.update,
        )
    return replace(planned, notes=recorded.notes)


def report_json(plan: Plan, more: Extras) -> dict[str, Any]:
    """The plan as `python -m sizing report` reads it."""
    from sizing.report.build import Cover, report_of  # only --json writes it
    from sizing.report.model import as_dict

    curve = None if more.sessions else load_curve(plan.question, plan.answer)
    return as_dict(report_of(plan, curve, more, Cover(now())))


def refusal_json(
    error: NoFeasiblePlan, question: Question, found: Sequence[Candidate], load: SessionLoad | None, replayed: bool
) -> dict[str, Any]:
    """Why there is no plan, as `python -m sizing report` reads it; with ways to meet the SLA, unless of sessions.
    `replayed`: of a recorded trace."""
    from sizing.analyses.relax import relaxations, together
    from sizing.report.build import Cover, refusal_of
    from sizing.report.model import as_dict

    missed = load is None and any(rejection.kind == "sla" for rejection in error.rejected)
    alone, nearest = (relaxations(question, found), together(question, found)) if missed else ((), None)
    title = "No configuration meets this SLA"
    why = title, str(error), error.rejected, Cover(now())
    return as_dict(refusal_of(question, *why, alone, nearest, load, replayed))


def now() -> str:
    """This second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def extras(
    plan: Plan, given: Mapping[str, Any], counts: Mapping[str, Mapping[str, int]], found: Sequence[Candidate]
) -> Extras:
    """What was asked beside the count; `found`: the candidates of the plan."""
    question, fleet, pools = plan.question, plan.answer, None
    if given["disaggregated"]:
        from sizing.analyses.pools import pools_of  # costs the what-ifs, which nothing else here needs

        pools = pools_of(question, found)
    return Extras(
        sensitivities(question, fleet),
        gpus_by_hour(question, fleet, daily_rates(given["daily"])) if given["daily"] is not None else None,
        tune(question, fleet.candidate) if given["tuned"] else None,
        mixed(plan, **counts) if given["mix"] else None,
        verification(plan),
        pools,
        goodput_prices=goodput_prices(question, fleet.candidate) if given["goodput_price"] else (),
    )


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
    """Several workloads: the command `share` answers."""
    group = context.parent.command if context.parent else None
    share = group.get_command(context, "share") if isinstance(group, click.Group) else None
    if share is None:
        raise click.UsageError("--workload needs the command group")
    names = {parameter.name for parameter in share.params}
    unknown = [f"--{name.replace('_', '-')}" for name in set_by_hand(context) if name not in names]
    if unknown:
        raise click.UsageError(
            f"{', '.join(unknown)} cannot be combined with --workload: each --workload contains lengths, load, "
            "arrivals and limits; the other options apply to a single workload"
        )
    context.invoke(share, json_=json_, scenario=None, **{key: given[key] for key in given if key in names})
