"""``python -m sizing plan``: how many GPUs, and on request by hour of the day, by cost, with other engine settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from sizing import answer, candidates, planner
from sizing.capacity import BY_SIMULATION
from sizing.commands.options import (
    as_json,
    choice_of,
    choice_options,
    length_options,
    margin_options,
    options,
    per_gpu,
    question_of,
    reserving,
    sla_options,
    write_json,
)
from sizing.curves import read_points
from sizing.errors import ScenarioError
from sizing.extras import Extras, extras_json
from sizing.fleets.daily import daily_rates, gpus_by_hour
from sizing.fleets.mixed import Mix, Supply, cheapest_mix
from sizing.plan import Fleet, Plan, Question
from sizing.sensitivity import sensitivities
from sizing.tuning import tune

EXAMPLES = """\b
Examples:
  python -m sizing plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms
  python -m sizing plan ... --rate 8 --peak-factor 2.5 --price 2.5
  python -m sizing plan ... --daily 2,1,1,1,1,2,4,8,15,20,22,21,18,20,22,21,18,14,10,8,6,5,4,3
  python -m sizing plan ... --gpu h100_sxm,h200_sxm --price h100_sxm=2.5,h200_sxm=3.8 --mix --available h100_sxm=8
  python -m sizing plan --model M --gpu h200_sxm --workload chat:isl=1000,osl=200,rate=5,ttft=p95:1s \\
      --workload batch:isl=4000,osl=500,rate=1,e2e=p95:60s
"""
LOAD_NEEDED = ("isl", "osl")


@click.command("plan", epilog=EXAMPLES)
@options(
    click.option("--model", required=True, help="Model name, for instance Qwen/Qwen3-32B."),
    choice_options,
    length_options(required=False),
    click.option("--rate", type=float, help="Requests per second offered to the fleet."),
    click.option("--peak-factor", type=float, default=1.0, help="Plan for this many times --rate, the mean."),
    click.option("--daily", help="24 hourly rates, comma-separated, instead of --rate: GPUs by hour."),
    sla_options,
    margin_options,
    click.option("--price", help="Price of one GPU-hour, any currency; by GPU: h100_sxm=2.5,h200_sxm=3.8."),
    click.option("--mix", is_flag=True, help="The cheapest mix of the GPU types; needs a price for each."),
    click.option("--owned", help="With --mix: GPUs already paid for, h100_sxm=8."),
    click.option("--available", help="With --mix: the most there are of a GPU, h200_sxm=16."),
    click.option("--tune", "tuned", is_flag=True, help="Search the best batch limit and chunk size for the answer."),
    click.option("--workload", "workloads", multiple=True, help="NAME:isl=..,osl=..,rate=..,ttft=..; several times."),
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
    question = priced(planned(given), given)
    points = read_points(given["points"]) if given["points"] else []
    found, left_out = candidates.find(question.model, question.workload.lengths, choice_of(given), points)
    plan = planner.plan(question, reserving(found, given["max_tokens"]), left_out)
    more = extras(plan, given)
    if json_:
        write_json({**answer.as_json(plan), **extras_json(more, question)})
    else:
        from sizing.printing import print_plan  # costs rich, which JSON does without

        print_plan(plan, more)


def planned(given: Mapping[str, Any]) -> Question:
    """The question, for the peak of the load. Raises what click raises for a missing option."""
    for name in LOAD_NEEDED:
        if given[name] is None:
            raise click.MissingParameter(param_type="option", param_hint=f"'--{name}'")
    if (given["rate"] is None) == (given["daily"] is None):
        raise click.UsageError("give the load by either --rate or --daily")
    if given["daily"] is not None:
        if given["peak_factor"] != 1:
            raise click.UsageError("--daily already has the peak: leave --peak-factor out")
        rates = daily_rates(given["daily"])
        peak, factor = max(rates), max(rates) / (sum(rates) / len(rates))
    else:
        peak, factor = given["rate"] * given["peak_factor"], given["peak_factor"]
    return replace(question_of({**given, "rate": peak}), peak_factor=factor)


def priced(question: Question, given: Mapping[str, Any]) -> Question:
    """The question with its prices."""
    general, by_gpu = per_gpu("--price", given["price"])
    return replace(question, price_per_gpu_hour=general, prices=by_gpu)


def extras(plan: Plan, given: Mapping[str, Any]) -> Extras:
    """What was asked beside the count."""
    question, fleet = plan.question, plan.answer
    return Extras(
        sensitivities(question, fleet),
        gpus_by_hour(question, fleet, daily_rates(given["daily"])) if given["daily"] is not None else None,
        tune(question, fleet.candidate) if given["tuned"] else None,
        mixed(plan, given) if given["mix"] else None,
    )


def mixed(plan: Plan, given: Mapping[str, Any]) -> Mix:
    """The cheapest mix of the best fleet of each GPU type, each verified by simulation."""
    by_gpu: dict[str, Fleet] = {}
    for fleet in sorted(plan.fleets, key=lambda fleet: -fleet.requests_per_s_per_gpu):
        by_gpu.setdefault(fleet.candidate.gpu, fleet)
    fleets = [
        fleet if fleet.verified else planner.size(plan.question, fleet.candidate, BY_SIMULATION)
        for fleet in by_gpu.values()
    ]
    verified = [fleet for fleet in fleets if isinstance(fleet, Fleet)]
    return cheapest_mix(plan.question, verified, supplies(plan.question, [*by_gpu], given))


def supplies(question: Question, gpus: list[str], given: Mapping[str, Any]) -> dict[str, Supply]:
    """Price, owned and available GPUs of each type that has a price."""
    owned, available = (dict(per_gpu(f"--{name}", given[name])[1]) for name in ("owned", "available"))
    unknown = (owned.keys() | available.keys()) - set(gpus)
    if unknown:
        raise ScenarioError(f"--owned or --available names {min(unknown)}, which is not among the fleets: {gpus}")
    return {
        gpu: Supply(price, int(owned.get(gpu, 0)), available.get(gpu, float("inf")))
        for gpu in gpus
        if (price := question.price_of(gpu)) is not None
    }


def shared_instead(context: click.Context, json_: bool, given: dict[str, Any]) -> None:
    """Several workloads: the command `share` answers."""
    group = context.parent.command if context.parent else None
    share = group.get_command(context, "share") if isinstance(group, click.Group) else None
    if share is None:
        raise click.UsageError("--workload needs the command group")
    names = {parameter.name for parameter in share.params}
    context.invoke(share, json_=json_, scenario=None, **{key: given[key] for key in given if key in names})
