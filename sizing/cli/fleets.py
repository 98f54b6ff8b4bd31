"""``python -m sizing capacity``, what a fleet which exists can carry, and ``share``, several workloads on one fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from sizing import candidates
from sizing.analyses.existing import best_first
from sizing.analyses.relax import ways_out
from sizing.analyses.sharing import (
    ScenarioFile,
    Share,
    least_gpus,
    parse_workload,
    read_scenario,
    scenario_of,
    share_of,
    workloads_ways_out,
)
from sizing.candidates import Choice, Found
from sizing.cli.options import (
    Reported,
    as_json,
    choice_of,
    choice_options,
    configured,
    field_options,
    gpus_of,
    layouts_named,
    length_options,
    margin_options,
    model_options,
    options,
    points_of,
    prices_of,
    protocol_of,
    set_by_hand,
    shown_late,
    sla_options,
    tensor_parallel,
    time_limit,
    words,
    write_json,
)
from sizing.cli.shapes import existing_json, shared_json
from sizing.cli.tables import print_existing, print_shared
from sizing.errors import ScenarioError, quoted
from sizing.explain import distance_from_sla
from sizing.plans import NoFeasiblePlan
from sizing.question import Question
from sizing.text import rejection_json, ways_out_lines
from sizing.workload import Lengths

EXAMPLE = """\b
Example:
  python -m sizing capacity --gpus 16 --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 \\
      --isl 2000 --osl 256 --ttft p95:1s --itl p95:30ms
  python -m sizing capacity --gpus 4 --model reference-512x4 --points data/curves/reference-cpu.csv \\
      --isl 64 --osl 32 --ttft p95:200ms --itl p95:40ms
"""


@click.command("capacity", epilog=EXAMPLE)
@options(
    click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs in the existing fleet."),
    model_options(required=True),
    choice_options,
    length_options(required=True),
    sla_options,
    margin_options,
    time_limit,
    as_json,
)
def capacity_command(json_: bool, gpus: int, **given: Any) -> None:
    """The largest rate that a fleet of --gpus GPUs serves within the SLA, with headroom and spares."""
    question = Question.of({**given, "rate": 1.0})
    lengths, points = question.workload.lengths, points_of(given)
    found, left_out = candidates.find(question.model, lengths, choice_of(given), points, protocol_of(given))
    reserved = configured(found, given, lengths.osl)
    try:
        with shown_late():
            fleets, rejected = best_first(question, reserved, gpus, left_out)
    except NoFeasiblePlan as error:
        fitting = [each for each in reserved if each.gpus * (1 + question.spare) <= gpus]
        raise Reported(error, {}, ways_out_lines(*ways_out(error.rejected, question, fitting, gpus=gpus))) from None
    if json_:
        others = [existing_json(fleet) for fleet in fleets[1:]]
        write_json({**existing_json(fleets[0]), "alternatives": others, "rejected": [*map(rejection_json, rejected)]})
    else:
        print_existing(question, fleets, rejected)


# --- ``python -m sizing share``: several workloads with SLAs of their own on one fleet

EXAMPLES = """\b
Examples:
  python -m sizing share --model Qwen/Qwen3-32B --gpu h200_sxm --tp 2 \\
      --workload chat:isl=1000,osl=200,rate=5,ttft=p95:1s --workload batch:isl=4000,osl=500,rate=1,e2e=p95:60s
  python -m sizing share --scenario fleet.yaml

\b
fleet.yaml:
  model: Qwen/Qwen3-32B
  gpu: [h200_sxm]
  tp: [2]
  workloads:
    - {name: chat, isl: 1000, osl: 200, rate: 5, ttft: p95:1s, itl: p95:30ms}
    - {name: batch, isl: 4000, osl: 500, rate: 1, e2e: p95:60s, priority: 1}
"""
IN_FILE = ("model", "workloads", "gpu", "precision", "tp", "routing", "headroom", "spare")
"""Parameters that a scenario file states."""


@click.command("share", epilog=EXAMPLES)
@options(
    click.option("--scenario", type=click.Path(), help="YAML file with the whole question, see below."),
    model_options(required=False),
    click.option(
        "--workload",
        "workloads",
        multiple=True,
        help="A workload, for instance chat:isl=1000,osl=200,rate=5,ttft=p95:1s; may be repeated.",
    ),
    choice_options,
    field_options("routing", "headroom", "spare", "price"),
    time_limit,
    as_json,
)
@click.pass_context
def share_command(context: click.Context, /, json_: bool, scenario: str | None, **given: Any) -> None:
    """The smallest fleet on which several workloads meet their SLAs at once."""
    if scenario:
        refuse_stated_twice(context)
    asked = read_scenario(scenario) if scenario else from_options(given)
    shares = [share_of(stream) for stream in asked.workloads]
    found = find(asked, shares, given)
    terms = replace(asked.terms, **prices_of(given.get("price"), gpus_of(found)))
    most_osl = max(share.workload.lengths.osl for share in shares)
    reserved = configured(found[0], given, most_osl)
    with shown_late():
        fleets, missed = least_gpus(shares, reserved, terms)
    rejected = sorted([*missed, *found[1]], key=distance_from_sla)
    if not fleets:
        refused = NoFeasiblePlan("no configuration meets the SLA of every workload", tuple(rejected))
        ways = workloads_ways_out(missed, asked.model, shares, reserved, terms.routing)
        raise Reported(refused, {}, [f"{name}: {line}" for name, way in ways for line in ways_out_lines(*way)])
    if json_:
        write_json({**shared_json(fleets[0], terms), "rejected": [rejection_json(miss) for miss in rejected]})
    else:
        print_shared(fleets[0], terms, rejected)


def refuse_stated_twice(context: click.Context) -> None:
    """Raise UsageError for an option that the scenario file states too."""
    twice = [option for name, option in set_by_hand(context).items() if name in IN_FILE]
    if twice:
        raise click.UsageError(f"{', '.join(twice)} cannot be combined with --scenario: put it in the file")


def from_options(given: dict[str, Any]) -> ScenarioFile:
    """The scenario that the options describe; the checks are those of the file."""
    if not given["model"] or not given["workloads"]:
        raise click.UsageError("give --scenario FILE, or --model and --workload (once for each workload)")
    content = {
        "model": given["model"],
        "gpu": [*words(given["gpu"])],
        "precision": [*words(given["precision"])],
        "tp": [*tensor_parallel(given["tp"])],
        **{name: given[name] for name in ("routing", "headroom", "spare")},
        "workloads": [parse_workload(text) for text in given["workloads"]],
    }
    return scenario_of(content, "--workload")


def find(asked: ScenarioFile, shares: Sequence[Share], given: dict[str, Any]) -> Found:
    """Candidates for the lengths of all workloads: the mean ones, and every one within the model's context."""
    which = tuple(asked.gpu), tuple(asked.precision), tuple(asked.tp)
    choice = Choice(*which, given["basis"], words(given["engine"]), layouts_named(given["layout"]))
    for share in shares:
        try:
            candidates.check_context(asked.model, share.workload.lengths)
        except ScenarioError as error:
            raise ScenarioError(f"workload {quoted(share.name)}: {error}") from None
    rates = np.array([share.workload.rate_per_s for share in shares])
    isl, osl = (
        float(rates @ [getattr(share.workload.lengths, name) for share in shares] / rates.sum())
        for name in ("isl", "osl")
    )
    return candidates.find(asked.model, Lengths(isl, osl), choice, points_of(given), protocol_of(given))
