"""``python -m sizing predict | fit | simulate | sessions``: one deployment, its law and what users see at a load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import click

from sizing import candidates
from sizing.analyses.closed_loop import closed_loop
from sizing.candidates import cautions_at
from sizing.cli.options import (
    F,
    as_json,
    field_option,
    length_options,
    measurement_options,
    options,
    points_of,
    protocol_of,
    refuse,
    replicas_option,
    scheduling_of,
    scheduling_options,
    seed_option,
    session_options,
    session_routing_option,
    sessions_of,
    shape_option,
    take_shape,
    workload_options,
    write_json,
)
from sizing.cli.shapes import closed_loop_json, fit_json, prediction_json
from sizing.cli.tables import console, print_cautions, print_closed_loop, print_fit, print_prediction, print_sessions
from sizing.engine import COEFFICIENTS, FREE, KV_POLICIES, POLICIES, Batching, Replica, Speculation, StepLaw
from sizing.engine_defaults import engine_named
from sizing.errors import PointsError, ScenarioError
from sizing.fitting import Fit
from sizing.numbers import milliseconds, significant
from sizing.plans import basis_of, beyond_measured
from sizing.points import Point
from sizing.question import workload_of
from sizing.queueing import predict as predict_analytically
from sizing.simulator import Failure, Watch, simulate_fleet
from sizing.simulator import simulate as run_simulation
from sizing.simulator.sessions import simulate_sessions
from sizing.simulator.state import MAX_REQUESTS
from sizing.text import cautions, fit_lines
from sizing.workload import Workload, parse_seconds

MOST_USERS = 10_000
"""Most users of a closed loop: simulating more would take minutes instead of seconds."""
deployment_options = options(
    click.option("--points", type=click.Path(), required=True, help="CSV file of measured points."),
    click.option("--model", default="", help="Use this model's points, if the file has several models."),
    click.option("--gpu", default="", help="Use this GPU's points."),
    click.option("--precision", default="", help="Use this precision's points."),
    click.option("--tp", type=int, help="Use the points of this TP."),
    click.option("--pp", type=int, help="Use the points of this PP."),
    click.option("--engine", default="", help="Use this engine's points."),
    click.option("--engine-version", default="", help="Use the points of this version of the engine."),
    shape_option,
)
known_options = options(
    click.option("--kv-tokens", type=click.IntRange(1), help="Tokens that fit in the KV cache, if known."),
    click.option("--token-budget", type=click.IntRange(1), help="Tokens per iteration, if known."),
    scheduling_options(always_given=False),
    click.option(
        "--open-loop/--no-open-loop",
        default=True,
        show_default=True,
        help="Also fit points at a constant or Poisson rate, as `plan` does.",
    ),
)


def requests_option(what: str) -> Callable[[F], F]:
    """`--requests`, with `what` the command calls them: those of sessions are turns."""
    return click.option(
        "--requests",
        type=click.IntRange(100, MAX_REQUESTS - 1),
        default=100_000,
        show_default=True,
        help=f"{what} to simulate.",
    )


def option_of(coefficient: str) -> str:
    """The option that gives a coefficient of the law: ``--kv-token`` for kv_token_s."""
    return f"--{coefficient.removesuffix('_s').replace('_', '-')}"


@click.command(
    "predict",
    epilog="\b\nExamples:\n  python -m sizing predict --points points.csv --isl 1000 --osl 200 --rate 3.0\n"
    "  python -m sizing predict --points points.csv --isl 1000 --osl 200 --concurrency 32\n",
)
@deployment_options
@known_options
@measurement_options("--points-replicas")
@length_options(required=True)
@field_option("rate", required=False)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MOST_USERS),
    help="Users in a closed loop, instead of --rate: each sends its next request when the last one is answered.",
)
@replicas_option
@click.option(
    "--method",
    type=click.Choice(["analytic", "simulate"]),
    default="analytic",
    show_default=True,
    help="analytic: by formula, at once. simulate: by discrete-event simulation.",
)
@as_json
@click.pass_context
def predict_command(
    context: click.Context, /, json_: bool, replicas: int, method: str, concurrency: int | None, **given: Any
) -> None:
    """Latency percentiles of one deployment at a load, from a law fitted to its closed-loop points.

    With --concurrency: what a load test with that many users in a closed loop would show, always by simulation.
    """
    if (given["rate"] is None) == (concurrency is None):
        raise click.UsageError("give the load by either --rate or --concurrency")
    if concurrency is not None:
        check_closed_loop(context, method)
    fitted, workload = law_of(given), workload_of(given)
    candidates.check_context(fitted.deployment.model, workload.lengths)
    found = cautions_at(fitted, workload.lengths)
    if concurrency is not None:
        loop = closed_loop(fitted, workload.lengths, workload.prefix, concurrency, replicas)
        if json_:
            write_json({"closed_loop": closed_loop_json(loop), "basis": loop.basis, "warnings": cautions(found)})
        else:
            print_closed_loop(loop, f"{fitted.deployment.label} ({loop.basis})")
            print_cautions(found)
        return
    replica, routing = fitted.at(workload.lengths.isl, workload.lengths.osl).replica, given["routing"]
    if method == "analytic":
        prediction = predict_analytically(replica, workload, replicas=replicas, routing=routing, gaps=True)
    else:
        run = run_simulation(replica, workload, replicas=replicas, routing=routing, watch=Watch(token_gaps=True))
        prediction = run.prediction()
    in_flight = workload.rate_per_s / replicas * prediction.e2e.mean_s
    candidate = candidates.from_fit(fitted, workload.lengths)
    basis = basis_of(candidate, in_flight)
    found = (*found, *(() if prediction.saturated else beyond_measured(candidate, in_flight)))
    if json_:
        warnings = cautions((*found, *prediction.warnings))
        write_json({**prediction_json(prediction), "basis": basis, "warnings": warnings})
    else:
        print_prediction(prediction, f"{fitted.deployment.label} ({basis})")
        print_cautions(found)


NOT_IN_CLOSED_LOOPS = {
    "arrivals": "a user sends the next request when the last one is answered",
    "routing": "users are divided equally among the replicas",
    "isl_law": "closed loops take a mean and a variation: give --isl and --isl-cv",
    "osl_law": "closed loops take a mean and a variation: give --osl and --osl-cv",
    "correlation": "the ISL and OSL of closed loops are drawn independently",
}
"""Parameters of `predict` that mean nothing with --concurrency, and why."""


def check_closed_loop(context: click.Context, method: str) -> None:
    """Raise UsageError for an option that a closed loop would ignore."""
    for name, why in NOT_IN_CLOSED_LOOPS.items():
        refuse(context, [name], f"does not go with --concurrency: {why}")
    if method == "analytic":
        refuse(context, ["method"], "analytic does not go with --concurrency: closed loops are simulated")


@click.command("fit", epilog="\b\nExample:\n  python -m sizing fit --points points.csv --json\n")
@deployment_options
@known_options
@measurement_options("--points-replicas", "--replicas")
@as_json
def fit_command(json_: bool, **given: Any) -> None:
    """Coefficients of the iteration-time law with 90 % intervals, error per point, what binds, what is not known."""
    fitted = law_of(given)
    if json_:
        write_json(fit_json(fitted))
    else:
        print_fit(fitted)
        for line in fit_lines(fitted):
            console().print(line, soft_wrap=True, markup=False)


LAW_HELP = {
    "weights_s": "Time to read the weights once, the least that the matrix products take, for instance 4.8ms.",
    "overhead_s": "Fixed time of an iteration, for instance 1ms.",
    "token_s": "Arithmetic of a token in an iteration, for instance 20us.",
    "sequence_s": "Time per sequence that decodes in an iteration, for instance 10us.",
    "kv_token_s": "Time per token of context that an iteration reads from the KV cache, for instance 49ns.",
    "attention_s": "Prefill attention per pair of prompt tokens, for instance 1ns.",
    "prefill_s": "Additional fixed time of an iteration with prompt tokens, for instance 0.5ms.",
    "request_s": "Time that a request spends once outside the iterations, for instance 4ms.",
}
law_options = options(
    *(
        click.option(option_of(name), name, default="0s", show_default=True, help=LAW_HELP[name])
        for name in COEFFICIENTS
    )
)
MOST_TIME_S = 3600.0
"""Of a coefficient; longer ones overflow in what a run multiplies them with."""
slot_options = options(
    click.option(
        "--max-batch-size", type=int, default=256, show_default=True, help="Sequences that a replica runs at once."
    ),
    click.option("--token-budget", type=int, default=8192, show_default=True, help="Tokens per iteration."),
    click.option(
        "--kv-tokens", type=int, default=1_000_000, show_default=True, help="Tokens that fit in the KV cache."
    ),
)


@click.command(
    "simulate",
    epilog="\b\nExample:\n  python -m sizing simulate --weights 4.8ms --overhead 1ms --token 20us --sequence 10us \\\n"
    "      --kv-token 49ns --isl 1000 --osl 200 --rate 3 --policy chunked --seed 7\n",
)
@law_options
@workload_options
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="chunked",
    show_default=True,
    help="chunked: parts of prompts run beside decodes. whole_prompt: whole prompts do. prefill_first: prompts run "
    "alone, the last one cut to fill the budget, then decodes. static: a new batch starts when the last one has "
    "finished.",
)
@slot_options
@click.option(
    "--kv-policy",
    type=click.Choice(KV_POLICIES),
    default="guaranteed_no_evict",
    show_default=True,
    help="guaranteed_no_evict: a request starts when its prompt and its output fit in the KV cache. max_utilization: "
    "it starts when its prompt fits, and is paused when the cache is full.",
)
@click.option(
    "--kv-max-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Output tokens for which KV cache is reserved, and the longest output; 0: the actual output. Not the OSL.",
)
@scheduling_options(always_given=True)
@click.option("--queue-timeout", help="Time after which a waiting request is dropped, for instance 5s.")
@click.option("--cancel", help="Time after which a client cancels its request, for instance 30s.")
@click.option(
    "--speculate",
    default="",
    help="Speculative decoding: draft tokens and their acceptance probability, for instance 4:0.7.",
)
@click.option("--token-gaps", is_flag=True, help="Also print percentiles of the gaps between tokens.")
@replicas_option
@click.option(
    "--failure",
    "failures",
    multiple=True,
    metavar="REPLICA:FROM:UNTIL",
    help="A replica (from 0) is down between these times from the start; its requests start anew on others. For "
    "instance 0:60s:180s, or 0:60s for good. Repeat it for more.",
)
@requests_option("Requests")
@seed_option
@click.option(
    "--replications",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Independent parallel runs among which --requests are divided; more than one gives 90 % intervals.",
)
@as_json
def simulate_command(json_: bool, replications: int, requests: int, seed: int, token_gaps: bool, **given: Any) -> None:
    """Latency percentiles of a simulated fleet, whose engine is given by the coefficients of its iteration-time law.

    An iteration that decodes d sequences with C tokens of context and prefills P prompt tokens takes
    overhead + knee(d + P) + sequence * d + kv-token * C, and with a prompt also attention * A + prefill.
    knee(n) is about the greater of weights and token * n; A counts the pairs of tokens that a prompt's attention joins.
    """
    replica, workload = simulated_replica(given), impatient_workload(given)
    fleet = {"replicas": given["replicas"], "routing": given["routing"], "requests": requests, "seed": seed}
    failures = [failure_of(text, requests / workload.rate_per_s) for text in given["failures"]]
    if replications > 1:
        if token_gaps or failures:
            option = "--token-gaps" if token_gaps else "--failure"
            raise ScenarioError(f"{option} applies to a single run: omit --replications")
        show_replicated(replica, workload, replications, fleet, json_)
        return
    if failures:
        alike = [replica] * fleet.pop("replicas")
        run = simulate_fleet(alike, workload, failures=failures, watch=Watch(token_gaps), **fleet)
    else:
        run = run_simulation(replica, workload, watch=Watch(token_gaps), **fleet)
    gaps_s = {f"gap_{name}_s": getattr(run.watched, f"gap_{name}_s") for name in ("p50", "p95", "p99") if token_gaps}
    found = run.prediction()
    if json_:
        extra = {"requests_per_s": run.requests_per_s, "mean_in_flight": run.mean_in_flight, "seed": seed}
        write_json({**prediction_json(found), **extra, **run.losses, **gaps_s, "warnings": cautions(found.warnings)})
    else:
        down = "".join(f"; {failure}" for failure in failures)
        print_prediction(found, f"{requests:,} requests, seed {seed}{down}")
        if token_gaps:
            figures = ", ".join(f"{name[4:7]} {milliseconds(gap_s)}" for name, gap_s in gaps_s.items())
            console().print(f"Gaps between tokens: {figures}.")


def failure_of(text: str, run_s: float) -> Failure:
    """Read ``0:60s:180s``, a replica and when it is down, in a run that lasts `run_s`.

    >>> str(failure_of("0:60s", 600.0))
    'replica 0 down from 60 s on'
    """
    number, *times = text.split(":")
    if not (number.isdecimal() and len(times) in (1, 2)):
        raise ScenarioError(f"--failure {text!r}: write it as REPLICA:FROM:UNTIL, for instance 0:60s:180s")
    failure = Failure(int(number), *(parse_seconds("--failure", each) for each in times))
    if failure.from_s >= run_s:
        raise ScenarioError(
            f"--failure {text!r}: the requests have arrived after {significant(run_s)} s: simulate more of them"
        )
    return failure


def show_replicated(replica: Replica, workload: Workload, runs: int, fleet: dict[str, Any], json_: bool) -> None:
    """Print what independent runs give, with the intervals of their means."""
    from sizing.analyses.replicated import replicated

    found, seed = replicated(replica, workload, runs=runs, **fleet), fleet["seed"]
    if json_:
        extra = {"replications": runs, "half_width_90": found.half_widths_s, "seed": seed}
        write_json({**prediction_json(found.prediction), **extra, **found.losses, "warnings": cautions(found.warnings)})
    else:
        width = milliseconds(found.half_width_s("e2e", "p95_s"))
        title = f"{found.requests:,} requests in {runs} runs, seed {seed}; 90 % interval of p95 E2E ± {width}"
        print_prediction(found.prediction, title)


def simulated_replica(given: dict[str, Any]) -> Replica:
    """The engine that the options of `simulate` describe."""
    slots = (given["policy"], given["max_batch_size"], given["token_budget"])
    batching = Batching(*slots, given["kv_tokens"], given["kv_policy"], given["kv_max_tokens"])
    batching = replace(batching, **scheduling_of(given))
    return Replica(coefficients_of(given), batching, speculation_of(given["speculate"]))


def coefficients_of(given: dict[str, Any]) -> StepLaw:
    """The law whose coefficients the options give."""
    law = FREE.with_values(**{name: parse_seconds(option_of(name), given[name]) for name in COEFFICIENTS})
    times_s = [getattr(law, name) for name in COEFFICIENTS]
    if law.overhead_s + law.weights_s + law.token_s <= 0 or min(times_s) < 0 or max(times_s) > MOST_TIME_S:
        raise ScenarioError(
            f"times must be from 0 to {MOST_TIME_S:,.0f} s, and one of --overhead, --weights, --token must be above 0"
        )
    return law


def speculation_of(text: str) -> Speculation | None:
    """Read ``4:0.7``, draft tokens and their acceptance; None for nothing.

    >>> speculation_of("4:0.7").draft_tokens
    4
    """
    if not text:
        return None
    tokens, _, share = text.partition(":")
    try:
        return Speculation(int(tokens), float(share))
    except ValueError:
        raise ScenarioError(f"--speculate {text!r}: write it as tokens:acceptance, for instance 4:0.7") from None


def impatient_workload(given: dict[str, Any]) -> Workload:
    """The workload of the common options, with the time-outs of server and clients if they are given."""
    patience_s: dict[str, Any] = {
        f"{name}_s": parse_seconds(f"--{name.replace('_', '-')}", given[name])
        for name in ("queue_timeout", "cancel")
        if given[name] is not None
    }
    return replace(workload_of(given), **patience_s)


def law_of(given: dict[str, Any]) -> Fit:
    """The law fitted to the points that the options select, with what they say of the engine."""
    points = tuple(points_of_one_deployment(given))
    return candidates.law_of(
        points,
        kv_tokens=given["kv_tokens"],
        token_budget=given["token_budget"],
        **scheduling_of(given, (point.batch_wait_steps for point in points)),
        open_loop=given["open_loop"],
        protocol=protocol_of(given),
    )


def points_of_one_deployment(given: dict[str, Any]) -> list[Point]:
    """The points of the file that the options select; PointsError if they belong to several deployments or none."""
    names = ("model", "gpu", "precision", "tp", "pp", "engine", "engine_version")
    wanted = {name: given[name] for name in names if given[name]}
    told = points_of(given)
    points = [point for point in told if all(_is(name, getattr(point, name), value) for name, value in wanted.items())]
    groups = candidates.by_deployment(points)
    if not groups:
        raise PointsError(f"{given['points']}: no point fits the options; the points hold: {candidates.held(told)}")
    if len(groups) != 1:
        chosen_by = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        labels = "; ".join(deployment.label for deployment in groups)
        raise PointsError(f"{given['points']}: choose one deployment with {chosen_by} (found: {labels})")
    take_shape(given, points[0].model)
    return points


def _is(name: str, has: Any, wanted: Any) -> bool:
    """True if a point has what an option asks for, as `plan` understands names."""
    if name == "model":
        return candidates.is_of(wanted, has)
    if name == "engine":
        return engine_named(has) == engine_named(wanted)
    return bool(has.casefold() == wanted.casefold() if isinstance(has, str) else has == wanted)


@click.command(
    "sessions",
    epilog="\b\nExample:\n  python -m sizing sessions --weights 4.8ms --overhead 1ms --token 20us --sequence 10us \\\n"
    "      --kv-token 49ns --kv-tokens 100000 --sessions-per-s 0.5 --turns 6 --first-tokens 800 \\\n"
    "      --user-tokens 80 --output-tokens 200 --think 20s --seed 7\n",
)
@law_options
@session_options(required=True)
@slot_options
@click.option("--block-tokens", type=int, default=16, show_default=True, help="Tokens per block of the KV cache.")
@click.option(
    "--prefix-cache/--no-prefix-cache",
    default=True,
    show_default=True,
    help="Keep the blocks of past turns for later ones.",
)
@scheduling_options(always_given=True)
@replicas_option
@session_routing_option("--routing")
@requests_option("Turns")
@seed_option
@as_json
def sessions_command(json_: bool, replicas: int, routing: Any, requests: int, seed: int, **given: Any) -> None:
    """Conversations of several turns, or agents that call tools: each prompt repeats everything said before it.

    The prefix cache is simulated block by block (least recently used out first): its hit rate is a result.
    """
    sessions = sessions_of(given, given["sessions_per_s"])
    batching = Batching(
        *("chunked", given["max_batch_size"], given["token_budget"], given["kv_tokens"], "max_utilization"),
        kv_block_tokens=given["block_tokens"],
        **scheduling_of(given),
        prefix_cache=given["prefix_cache"],
    )
    replica = Replica(coefficients_of(given), batching)
    run = simulate_sessions(replica, sessions, replicas=replicas, routing=routing, requests=requests, seed=seed)
    if not json_:
        print_sessions(run, f"{len(run.number):,} turns measured, seed {seed}")
        return
    seconds = {name: asdict(quantiles) for name, quantiles in run.latencies.items()}
    unknown = {name: dict.fromkeys(figures) for name, figures in seconds.items()}
    write_json(
        {
            "predicted": unknown if run.saturated else seconds,
            "hit_rate": run.hit_rate,
            "turns_per_s": run.turns_per_s,
            "sessions_in_flight": run.in_flight,
            "pauses": run.pauses,
            "rejected_share": run.turns.rejected / len(run.number),
            "saturated": run.saturated,
            "seed": seed,
        }
    )
