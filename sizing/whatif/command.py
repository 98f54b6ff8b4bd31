"""``python -m sizing whatif``: the plan before and after changes nobody has measured, and what that assumes."""

from __future__ import annotations

from typing import Any

import click

from sizing import answer, candidates, planner
from sizing.candidates import Choice
from sizing.commands.options import (
    as_json,
    sla_of,
    sla_options,
    tensor_parallel,
    words,
    workload_of,
    workload_options,
    write_json,
)
from sizing.curves import read_points
from sizing.errors import NoFeasiblePlan, ScenarioError
from sizing.plan import Candidate, Fleet, Question, Rejection
from sizing.whatif.comparison import Comparison, what_if
from sizing.whatif.parse import KINDS, example, parse_change
from sizing.whatif.pools import Pools, disaggregate
from sizing.whatif.printing import print_comparison, print_pools

EXAMPLE = "\b\nChanges (may be repeated, made in order):\n" + "".join(f"  {example(kind)}\n" for kind in KINDS)
EXAMPLE += """
\b
Example:
  python -m sizing whatif --change precision=fp8 --change speculative:draft_tokens=4,acceptance=0.7 \\
      --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2 \\
      --isl 2000 --osl 256 --rate 20 --ttft p95:1s --itl p95:30ms
"""


@click.command("whatif", epilog=EXAMPLE)
@click.option("--change", "changes", multiple=True, help="A change, see below; may be repeated.")
@click.option("--disaggregated", is_flag=True, help="Also: prompts and tokens in two pools of replicas.")
@click.option("--model", required=True, help="Model name, for instance Qwen/Qwen3-32B.")
@click.option("--gpu", default="", help="GPUs to compare, comma-separated. Without it: those in --points.")
@click.option("--precision", default="any", show_default=True, help="Precisions, comma-separated, or any.")
@click.option("--tp", default="any", show_default=True, help="Tensor parallel sizes, comma-separated, or any.")
@workload_options
@sla_options
@click.option("--headroom", type=float, default=0.2, show_default=True, help="Share of a replica's capacity kept free.")
@click.option("--spare", type=int, default=1, show_default=True, help="Spare replicas beside the working ones.")
@click.option("--points", type=click.Path(), help="Measured points (CSV); without: day-zero estimates.")
@click.option("--basis", type=click.Choice(["measured", "any"]), default="any", show_default=True)
@as_json
def whatif_command(json_: bool, changes: tuple[str, ...], disaggregated: bool, **given: Any) -> None:
    """The best fleet of a plan, and the fleet it would be if the engine, the model or the prompts were changed."""
    if not changes and not disaggregated:
        raise ScenarioError(f"give at least one --change ({', '.join(KINDS)}) or --disaggregated")
    made = [parse_change(text) for text in changes]
    question = Question(
        model=given["model"],
        workload=workload_of(given),
        sla=sla_of(given),
        routing=given["routing"],
        headroom=given["headroom"],
        spare=given["spare"],
    )
    found = what_if(question, _candidate(question, given), made)
    pools = disaggregate(found.setup) if disaggregated else None
    if json_:
        write_json(comparison_json(found, changes) | (pools_json(pools, question) if pools else {}))
    else:
        print_comparison(found, changes)
        if pools:
            print_pools(pools, found)
    if isinstance(found.after, Rejection):
        raise NoFeasiblePlan(f"with the changes no fleet meets {question.sla}", (found.after,))


def _candidate(question: Question, given: dict[str, Any]) -> Candidate:
    """The one candidate of the choice, or the plan's answer where there are several."""
    choice = Choice(words(given["gpu"]), words(given["precision"]), tensor_parallel(given["tp"]), given["basis"])
    points = read_points(given["points"]) if given["points"] else []
    found, left_out = candidates.find(question.model, question.workload.lengths, choice, points)
    return found[0] if len(found) == 1 else planner.plan(question, found, left_out).answer.candidate


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


def pools_json(pools: Pools | Rejection, question: Question) -> dict[str, Any]:
    """The key of `--disaggregated`: both pools with the keys of `plan`, and their assumptions."""
    if isinstance(pools, Rejection):
        return {"disaggregated": answer.rejection_json(pools)}
    fleets = {name: answer.fleet_json(getattr(pools, name), question) for name in ("prefill", "decode")}
    rest: dict[str, Any] = {"transfer_s": pools.transfer_s, "verified_by": pools.verified_by}
    rest["assumptions"] = list(pools.assumptions)
    if pools.predicted:
        rest["predicted"] = pools.predicted.as_dict()
    return {"disaggregated": {"gpus": pools.gpus, **fleets, **rest}}
