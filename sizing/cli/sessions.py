"""``python -m sizing sessions``: conversations of several turns, or agents, on engines with a prefix cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from sizing.cli.laws import coefficients_of, law_options, slot_options
from sizing.cli.options import as_json, lookahead_option, session_options, sessions_of, write_json
from sizing.cli.tables import print_sessions
from sizing.engine import Batching, Replica
from sizing.simulator.sessions import SESSION_ROUTINGS, simulate_sessions


@click.command(
    "sessions",
    epilog="\b\nExample:\n  python -m sizing sessions --weights 4.8ms --overhead 1ms --token 20us --sequence 10us \\\n"
    "      --kv-token 49ns --kv-tokens 100000 --sessions-per-s 0.5 --turns 6 --first-tokens 800 \\\n"
    "      --user-tokens 80 --output-tokens 200 --think 20s --seed 7\n",
)
@law_options
@session_options(required=True)
@slot_options
@click.option("--block-tokens", type=int, default=16, show_default=True, help="Tokens of a block of the KV cache.")
@click.option("--prefix-cache/--no-prefix-cache", default=True, show_default=True, help="Keep blocks of past turns.")
@lookahead_option(0.0)
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--routing",
    type=click.Choice(SESSION_ROUTINGS),
    default="affinity",
    show_default=True,
    help="Who gets a turn: the replica of its session, any, the least busy one, the one that has most of it cached.",
)
@click.option("--requests", type=click.IntRange(100), default=100_000, show_default=True, help="Turns to simulate.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@as_json
def sessions_command(json_: bool, replicas: int, routing: Any, requests: int, seed: int, **given: Any) -> None:
    """Conversations of several turns, or agents that call tools: each prompt repeats all that was said before.

    How much of it is found in the prefix cache is simulated: block by block, least recently used first out.
    """
    sessions = sessions_of(given, given["sessions_per_s"])
    batching = Batching(
        *("chunked", given["max_batch_size"], given["token_budget"], given["kv_tokens"], "max_utilization"),
        kv_block_tokens=given["block_tokens"],
        lookahead_steps=given["lookahead_steps"],
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
