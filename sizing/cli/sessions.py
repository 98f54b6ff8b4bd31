"""``python -m sizing sessions``: conversations of several turns, or agents, on engines with a prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, get_args

import click

from sizing.cli.laws import coefficients_of, law_options, slot_options
from sizing.cli.options import F, as_json, lookahead_option, options, write_json
from sizing.cli.tables import print_sessions
from sizing.engine import Batching, Replica
from sizing.simulator.sessions import SESSION_ROUTINGS, simulate_sessions
from sizing.workload import Sessions, TurnLaw, parse_seconds


def tokens_options(name: str, mean: str) -> Callable[[F], F]:
    """The options of one kind of tokens: mean, and coefficient of variation."""
    return options(
        click.option(f"--{name}-tokens", type=float, required=True, help=mean),
        click.option(
            f"--{name}-cv", type=float, default=0.0, show_default=True, help="Their coefficient of variation."
        ),
    )


@click.command(
    "sessions",
    epilog="\b\nExample:\n  python -m sizing sessions --weights 4.8ms --overhead 1ms --token 20us --sequence 10us \\\n"
    "      --kv-token 49ns --kv-tokens 100000 --sessions-per-s 0.5 --turns 6 --first-tokens 800 \\\n"
    "      --user-tokens 80 --output-tokens 200 --think 20s --seed 7\n",
)
@law_options
@click.option("--sessions-per-s", type=float, required=True, help="Sessions that start in a second, of the fleet.")
@click.option("--turns", type=float, required=True, help="Turns of a session, mean.")
@click.option(
    "--turn-law", type=click.Choice(get_args(TurnLaw)), default="geometric", show_default=True, help="How they vary."
)
@tokens_options("first", "Prompt tokens of the first turn, mean, the system prompt excluded.")
@tokens_options("user", "Tokens that a later turn adds to all before it, mean.")
@tokens_options("output", "Tokens of an answer, mean.")
@click.option(
    "--think", default="0s", show_default=True, help="Mean time from an answer to the next turn, exponential."
)
@click.option("--system-tokens", type=int, default=0, show_default=True, help="Tokens that all sessions begin with.")
@click.option(
    "--context-tokens", type=int, default=0, show_default=True, help="A turn beyond it ends its session; 0: no limit."
)
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
    names = ("turns", "turn_law", "system_tokens", "context_tokens")
    tokens = [f"{kind}_{figure}" for kind in ("first", "user", "output") for figure in ("tokens", "cv")]
    sessions = Sessions(
        given["sessions_per_s"],
        think_s=parse_seconds("--think", given["think"]),
        **{name: given[name] for name in (*names, *tokens)},
    )
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
