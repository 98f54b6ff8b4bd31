"""``python -m sizing capacity``: the inverse question, requests/s that a fleet which exists can carry."""

from __future__ import annotations

from typing import Any

import click

from sizing import candidates
from sizing.answer import rejection_json
from sizing.commands.options import (
    as_json,
    choice_of,
    choice_options,
    length_options,
    margin_options,
    options,
    question_of,
    reserving,
    sla_options,
    time_limit,
    write_json,
)
from sizing.curves import read_points
from sizing.errors import NoFeasiblePlan
from sizing.fleets.existing import best_first
from sizing.fleets.shapes import existing_json
from sizing.printing import print_existing
from sizing.rejections import distance_from_sla

EXAMPLE = """\b
Example:
  python -m sizing capacity --gpus 16 --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 \\
      --isl 2000 --osl 256 --ttft p95:1s --itl p95:30ms
  python -m sizing capacity --gpus 4 --model reference-512x4 --points data/curves/reference-cpu.csv \\
      --isl 64 --osl 32 --ttft p95:200ms --itl p95:40ms
"""


@click.command("capacity", epilog=EXAMPLE)
@options(
    click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs of the fleet that exists."),
    click.option("--model", required=True, help="Model name, for instance Qwen/Qwen3-32B."),
    choice_options,
    length_options(required=True),
    sla_options,
    margin_options,
    time_limit,
    as_json,
)
def capacity_command(json_: bool, gpus: int, **given: Any) -> None:
    """The largest rate that a fleet of --gpus GPUs serves under the SLA, headroom and spares kept."""
    question = question_of(given)
    points = read_points(given["points"]) if given["points"] else []
    found, left_out = candidates.find(question.model, question.workload.lengths, choice_of(given), points)
    fleets, rejected = best_first(question, reserving(found, given["max_tokens"], question.workload.lengths.osl), gpus)
    rejected = sorted([*rejected, *left_out], key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan(f"{gpus} GPUs carry no load under {question.sla}", tuple(rejected))
    if json_:
        others = [existing_json(fleet) for fleet in fleets[1:]]
        write_json({**existing_json(fleets[0]), "alternatives": others, "rejected": [*map(rejection_json, rejected)]})
    else:
        print_existing(question, fleets, rejected)
