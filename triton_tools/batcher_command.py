"""``python -m sizing batcher``: how Triton's batcher handles a load, and which settings suit it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from sizing.cli.options import as_json, check_companions, options, refuse, write_json
from sizing.errors import ScenarioError
from sizing.workload import Limit, finite, parse_seconds
from triton_tools.batcher.config import DynamicBatching, ModelBatching
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.pbtxt import read_config
from triton_tools.batcher.report import measured_json, print_measured, print_tuned, tuned_json
from triton_tools.batcher.requests import Requests
from triton_tools.batcher.service import Measured, parse_service_times
from triton_tools.batcher.strategy import BatchStrategy, find_strategy, load_strategy
from triton_tools.batcher.trial import Load
from triton_tools.batcher.tuner import MAX_INSTANCES, tune

EXAMPLE = """\b
Examples:
  python -m sizing batcher model/config.pbtxt --service-times '8ms+1ms*n' --rate 300
  python -m sizing batcher model/config.pbtxt --service-times times.csv --rate 300 --budget p95:50ms --tune --json
\b
times.csv has the columns batch_size and service_time_ms (or _us, _s) and, if several instances were
measured at work together, instances.
"""
PLAIN = (
    "Tuned without the configuration's priorities, queue policies and preserve_ordering: keep them, and simulate that"
)


@click.command("batcher", epilog=EXAMPLE)
@click.argument("config", type=click.Path(path_type=Path))
@options(
    click.option(
        "--service-times",
        required=True,
        help="Time of one execution: a CSV file, or a law of the batch size n such as '8ms+1ms*n'.",
    ),
    click.option("--rate", type=float, required=True, help="Requests per second, as Poisson arrivals."),
    click.option("--budget", help="Limit on the latency in the server, for instance p95:50ms."),
    click.option("--tune", is_flag=True, help="Find the max batch size, queue delay and instances that meet --budget."),
    click.option(
        "--max-instances",
        type=click.IntRange(1),
        default=MAX_INSTANCES,
        show_default=True,
        help="Most instances to try, with --tune.",
    ),
    click.option(
        "--requests",
        type=click.IntRange(100, 5_000_000),
        default=50_000,
        show_default=True,
        help="Requests to simulate.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the arrivals."),
    click.option(
        "--strategy",
        help="Custom batching strategy, a Python file that is executed; auto: the file that Triton would find.",
    ),
    click.option(
        "--late-wakeup", is_flag=True, help="Include Triton 2.51's late starts when batches are not prefetched."
    ),
    as_json,
)
@click.pass_context
def batcher_command(context: click.Context, /, json_: bool, config: Path, **given: Any) -> int:
    """Simulate Triton's dynamic batcher: waiting times, batch sizes and rejections; with --tune, better settings.

    CONFIG is the model's config.pbtxt. Exit code 3: the budget is not met, or no setting meets it.
    """
    check_companions(context, {("tune",): ("max_instances",)})
    if given["tune"]:
        refuse(context, ("requests", "strategy", "late_wakeup"), "does not go with --tune, which has runs of its own")
    model = read_config(config)
    finite("--rate (requests/s)", given["rate"])
    measured = parse_service_times(given["service_times"])
    budget = budget_of(given["budget"]) if given["budget"] else None
    if given["tune"]:
        return tuned(model, measured, budget, given, json_)
    service = measured.of(model.instances)
    requests = Requests.poisson(given["rate"], given["requests"], np.random.default_rng(given["seed"]))
    strategy = strategy_of(given["strategy"], model, config)
    outcome = simulate(model, service, requests, strategy, late_wakeup=given["late_wakeup"])
    if json_:
        write_json(measured_json(model, outcome, given["rate"], service, budget))
    else:
        print_measured(model, outcome, given["rate"], service, budget)
    missed = budget is not None and not outcome.at_percentile_s(budget.percentile) <= budget.limit_s
    return 3 if missed else 0


def tuned(model: ModelBatching, measured: Measured, budget: Limit | None, given: dict[str, Any], json_: bool) -> int:
    """Search for better settings and print them (--tune); the exit code."""
    if budget is None:
        raise ScenarioError("--tune needs --budget, for instance p95:50ms")
    if model.sequence:
        raise ScenarioError(f"{model.name} has a sequence batcher: --tune is for the dynamic batcher")
    load = Load(given["rate"], budget, given["seed"])
    found = tune(measured, load, model.rows, given["max_instances"])
    if model.dynamic and replace(model.dynamic, preferred=(), delay_us=0) != DynamicBatching():
        found = replace(found, notes=(*found.notes, PLAIN))
    if json_:
        write_json(tuned_json(found, load))
    else:
        print_tuned(found, load)
    return 0


def budget_of(text: str) -> Limit:
    """``p95:50ms`` as a limit on latency."""
    percentile_, _, time = text.partition(":")
    if not re.fullmatch("p[1-9][0-9]{0,8}", percentile_) or not time:
        raise ScenarioError(f"--budget {text!r}: write it as percentile:time, for instance p95:50ms")
    return Limit("e2e", int(percentile_[1:]), parse_seconds("--budget", time))


def strategy_of(text: str | None, model: ModelBatching, config: Path) -> BatchStrategy | None:
    """The strategy in the file `text` or, for auto, the one that Triton would find for the newest version."""
    if not text:
        return None
    if text != "auto":
        return load_strategy(Path(text))
    folder = config.resolve().parent
    versions = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal())
    found = find_strategy(model, folder / str(versions[-1] if versions else 1))
    if found is None:
        raise ScenarioError(f"--strategy auto: no batchstrategy.py beside {config} or in its newest version")
    return load_strategy(found)
