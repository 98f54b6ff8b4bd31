"""``python -m sizing share``: several workloads with SLAs of their own on one fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from sizing import candidates
from sizing.answer import rejection_json
from sizing.candidates import Choice, Found
from sizing.commands.options import (
    as_json,
    choice_options,
    gpus_of,
    margin_options,
    options,
    prices_of,
    reserving,
    set_by_hand,
    tensor_parallel,
    time_limit,
    words,
    write_json,
)
from sizing.curves import read_points
from sizing.errors import NoFeasiblePlan
from sizing.fleets.scenario import ScenarioFile, parse_workload, read_scenario, scenario_of
from sizing.fleets.shapes import shared_json
from sizing.fleets.sharing import Share, least_gpus
from sizing.printing import print_shared
from sizing.rejections import distance_from_sla
from sizing.replica import Replica
from sizing.simulator import Simulated, Watch
from sizing.simulator.streams import Stream, simulate_streams
from sizing.workload import ROUTINGS, Lengths, Routing

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
    click.option("--scenario", type=click.Path(), help="YAML file with the whole question."),
    click.option("--model", help="Model name, where no --scenario is given."),
    click.option("--workload", "workloads", multiple=True, help="NAME:isl=..,osl=..,rate=..,ttft=..; several times."),
    choice_options,
    click.option("--routing", type=click.Choice(ROUTINGS), default="random", show_default=True),
    margin_options,
    click.option("--price", help="Price of one GPU-hour, any currency; by GPU: h100_sxm=2.5,h200_sxm=3.8."),
    time_limit,
    as_json,
)
@click.pass_context
def share_command(context: click.Context, /, json_: bool, scenario: str | None, **given: Any) -> None:
    """The smallest fleet on which several workloads meet their SLAs at once."""
    if scenario:
        refuse_stated_twice(context)
    asked = read_scenario(scenario) if scenario else from_options(given)
    shares = [stream.share() for stream in asked.workloads]
    found = find(asked, shares, given)
    terms = replace(asked.terms, **prices_of(given.get("price"), gpus_of(found)))
    most_osl = max(share.workload.lengths.osl for share in shares)
    fleets, missed = least_gpus(shares, reserving(found[0], given["max_tokens"], most_osl), terms, simulate_shares)
    rejected = sorted([*missed, *found[1]], key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan("no configuration meets the SLA of every workload", tuple(rejected))
    if json_:
        write_json({**shared_json(fleets[0], terms), "rejected": [rejection_json(miss) for miss in rejected]})
    else:
        print_shared(fleets[0], terms, rejected)


def refuse_stated_twice(context: click.Context) -> None:
    """UsageError for an option that the scenario file states too."""
    twice = [f"--{name.rstrip('s')}" for name in set_by_hand(context) if name in IN_FILE]
    if twice:
        raise click.UsageError(f"{', '.join(twice)} cannot go with --scenario: write it in the file")


def simulate_shares(
    replica: Replica,
    streams: Sequence[Share],
    *,
    replicas: int,
    routing: Routing,
    requests: int,
    seed: int,
    watch: Watch,
) -> tuple[Simulated, ...]:
    """The simulator of several streams, asked with workloads that carry their SLAs."""
    plain = [Stream(share.workload, share.priority) for share in streams]
    return simulate_streams(
        replica, plain, replicas=replicas, routing=routing, requests=requests, seed=seed, watch=watch
    )


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
    choice = Choice(tuple(asked.gpu), tuple(asked.precision), tuple(asked.tp), given["basis"])
    points = read_points(given["points"]) if given["points"] else []
    for share in shares:
        candidates.check_context(asked.model, share.workload.lengths)
    rates = np.array([share.workload.rate_per_s for share in shares])
    isl, osl = (
        float(rates @ [getattr(share.workload.lengths, name) for share in shares] / rates.sum())
        for name in ("isl", "osl")
    )
    return candidates.find(asked.model, Lengths(isl, osl), choice, points)
