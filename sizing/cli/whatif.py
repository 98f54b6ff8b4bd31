"""``python -m sizing whatif``: the plan before and after changes nobody has measured, and what that assumes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from sizing import candidates, planner
from sizing import text as answer
from sizing.analyses.pools import Pools, disaggregate
from sizing.analyses.relax import ways_out
from sizing.analyses.whatif import KINDS, Comparison, example, parse_change, what_if
from sizing.cli.options import (
    Reported,
    as_json,
    choice_of,
    margin_options,
    model_options,
    points_of,
    protocol_of,
    shown_late,
    sla_options,
    which_options,
    workload_options,
    write_json,
)
from sizing.cli.shapes import pools_json
from sizing.cli.tables import console, print_cautions, print_pools
from sizing.errors import ScenarioError
from sizing.numbers import gpus, per_second, percent, significant
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Rejection
from sizing.question import Question
from sizing.text import binding

BANDS = "An error of the law moves both counts the same way: the change between them is surer than either band says."


def print_comparison(found: Comparison, changes: tuple[str, ...]) -> None:
    """Both fleets side by side, then what binds, then the assumptions; one fleet where nothing is changed."""
    say = partial(console().print, soft_wrap=True)
    say(f"[bold]{escape(headline(found, changes))}[/bold]")
    if changes:
        console().print(table_of(found))
    for name, side in (("Before", found.before), ("After", found.after))[: 2 if changes else 1]:
        if isinstance(side, Rejection):
            say(f"{name}: no fleet; {escape(side.why)}.")
        else:
            say(f"{name}, binding: {escape(binding(side))}.")
            print_cautions(side.warnings, start=f"warning, {name.lower()}")
    if changes:
        say(BANDS)
        _print_assumptions(found.assumptions)
        say(f"Nobody has measured this: calibrate before buying. Both fleets are sized by {found.sized_by}.")


def headline(found: Comparison, changes: tuple[str, ...]) -> str:
    """For instance: With precision=fp8: 10 GPUs instead of 14 (h200_sxm) for 20 requests/s of Qwen/Qwen3-32B."""
    question, gpu = found.question, found.setup.candidate.gpu
    load = f"({gpu}) for {per_second(question.workload.rate_per_s)} of {question.model}"
    if not changes:
        return f"As it is: {_gpus(found.before)} {load}"
    return f"With {', '.join(changes)}: {_instead(_gpus(found.after), _gpus(found.before))} {load}"


def _instead(now: str, before: str) -> str:
    return f"still {now}" if now == before else f"{now} instead of {before}"


def _gpus(side: Fleet | Rejection) -> str:
    return gpus(side.gpus) if isinstance(side, Fleet) else "no fleet"


def table_of(found: Comparison) -> Table:
    """GPUs, what each carries and the latencies of the SLA at the planned load: before, after, and the change."""
    table = Table("", "before", "after", "change", caption="Latencies at the planned load, each fleet on its own GPUs")
    table.caption_justify = "left"
    sides = (found.before, found.after)

    def said(name: str, cell: Callable[[Fleet], str]) -> None:
        table.add_row(name, *(escape(cell(side)) if isinstance(side, Fleet) else "-" for side in sides), "")

    def counted(name: str, value: Callable[[Fleet], float], show: Callable[[float], str]) -> None:
        values = [value(side) if isinstance(side, Fleet) else None for side in sides]
        before, after = values
        change = percent(after / before - 1, sign=True) if before and after is not None else ""
        change = "same" if change == "+0 %" else change
        table.add_row(name, *("-" if each is None else show(each) for each in values), change)

    said("replica", lambda fleet: fleet.candidate.label)
    said("working + spare replicas", lambda fleet: f"{fleet.working} + {fleet.spare}")
    counted("GPUs, spares included", lambda fleet: fleet.gpus, str)
    said("90 % band of the GPUs", lambda fleet: answer.counts(fleet.gpus_low, fleet.gpus_high))
    counted("requests/s per GPU", lambda fleet: fleet.requests_per_s_per_gpu, significant)
    for limit in found.question.sla.limits:
        counted(str(limit), lambda fleet, limit=limit: fleet.predicted.value_s(limit), limit.said)  # type: ignore[misc]
    said("basis", lambda fleet: fleet.basis)
    return table


def _print_assumptions(lines: tuple[str, ...]) -> None:
    out = console()
    out.print("This assumes:")
    for line in lines:
        out.print(f"  - {escape(line)}", soft_wrap=True)


EXAMPLE = "\b\nChanges (may be repeated; precision and tp are made first):\n"
EXAMPLE += "".join(f"  {example(kind)}\n" for kind in KINDS)
EXAMPLE += """
\b
Example:
  python -m sizing whatif --change precision=fp8 --change speculative:draft_tokens=4,acceptance=0.7 \\
      --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms
"""


@click.command("whatif", epilog=EXAMPLE)
@click.option("--change", "changes", multiple=True, help="A change, see below; may be repeated.")
@click.option("--disaggregated", is_flag=True, help="Also size separate prefill and decode pools.")
@model_options(required=True)
@which_options
@workload_options
@sla_options
@margin_options
@as_json
def whatif_command(json_: bool, changes: tuple[str, ...], disaggregated: bool, **given: Any) -> None:
    """The plan before and after changes of the engine, the model or the prompts that nobody has measured."""
    if not changes and not disaggregated:
        raise ScenarioError(f"give at least one --change ({', '.join(KINDS)}) or --disaggregated")
    made = [parse_change(text) for text in changes]
    question = Question.of(given)
    with shown_late():
        found = what_if(question, _candidate(question, given), made)
        pools = disaggregate(found.setup) if disaggregated else None
    missed = None
    if isinstance(found.after, Rejection):
        error = NoFeasiblePlan(f"with the changes no fleet meets {question.sla}", (found.after,))
        missed = refused(error, found.setup.question, [found.setup.candidate])
    if json_:
        both = comparison_json(found, changes) | (
            {"disaggregated": pools_json(pools, found.setup.question)} if pools else {}
        )
        if missed:
            raise Reported(missed, both, missed.ways_out)
        write_json(both)
    else:
        print_comparison(found, changes)
        if pools:
            print_pools(pools, found.setup.question, _gpus(found.after))
            if isinstance(pools, Pools):
                _print_assumptions(pools.assumptions[len(found.assumptions) :])
    if missed:
        raise missed


def _candidate(question: Question, given: dict[str, Any]) -> Candidate:
    """The one candidate of the choice, or the plan's answer where there are several."""
    lengths, points = question.workload.lengths, points_of(given)
    found, left_out = candidates.find(question.model, lengths, choice_of(given), points, protocol_of(given))
    if len(found) == 1:
        return found[0]
    try:
        return planner.plan(question, found, left_out).answer.candidate
    except NoFeasiblePlan as error:
        raise refused(error, question, found) from None


def refused(error: NoFeasiblePlan, question: Question, found: list[Candidate]) -> Reported:
    """The error with ways to meet the SLA."""
    return Reported(error, {}, answer.ways_out_lines(*ways_out(error.rejected, question, found)))


def comparison_json(found: Comparison, changes: tuple[str, ...]) -> dict[str, Any]:
    """The keys of `whatif --json`: both fleets with the keys of `plan`, the changes and the assumptions."""

    def side(fleet: Fleet | Rejection, question: Question) -> dict[str, Any]:
        return answer.fleet_json(fleet, question) if isinstance(fleet, Fleet) else answer.rejection_json(fleet)

    return {
        "changes": list(changes),
        "before": side(found.before, found.question),
        "after": side(found.after, found.setup.question),
        "assumptions": list(found.assumptions),
    }
