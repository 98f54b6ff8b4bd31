"""One run of `benchmark_core_model` or `identity_test`, step by step: prompts, warm-up, sending, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibration.load.contract import Contract
from calibration.load.pool import Workers
from calibration.metrics import window
from calibration.metrics.verdict import BUSY_CORE, LAG_ALLOWED_S, LAG_SHARE
from calibration.records import Load
from calibration.target import Described, describe
from triton_tools.clients import printing, replay
from triton_tools.clients.dataset import Given
from triton_tools.clients.flags import Asked
from triton_tools.clients.prompts import dataset_prompts, norm_dist_prompts
from triton_tools.clients.stats import Stats, stats
from triton_tools.clients.synthetic import NormalLengths, RandomPrompts

LATE_SHARE = 0.05
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. `wall_s` is from before the first gap to the last answer; `notes` qualify the figures."""

    stats: Stats
    load: Load
    wall_s: float
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The figures, by name with unit, for programs."""
        log = self.load.log
        return asdict(self.stats) | {
            "wall_s": self.wall_s,
            "errors": int((~window.answered(log)).sum()),
            "other_lengths": int((window.answered(log) & log.failed).sum()),
            "late_p99_s": replay.lateness_s(self.load),
            "definitions": printing.DEFINITIONS,
            "notes": list(self.notes),
        }


def run(asked: Asked, say: Say, on_share: replay.OnShare) -> Outcome:
    """Do the run `asked`; `say` receives the lines that the clients print on the way.

    Raises ServerError, PlanError or FileError, one line each.
    """
    served = asyncio.run(describe(asked.server))
    prompts, notes = _prompts(asked, served, say)
    due_s = asked.pacing.send_times_s(len(prompts), np.random.default_rng(asked.seed))
    with Workers(asked.processes) as workers:
        target = replay.Target(asked.server, served.contract, workers)
        say("[INFO] Warm up for benchmarking.")
        notes += replay.warm_up(target, prompts)
        say(f"[INFO] Start benchmarking on {len(prompts)} prompts.")
        load = replay.send_when_due(target, prompts, due_s, on_share, connections=asked.connections)
    notes += replay.burst_notes(asked.server, due_s, asked.connections)
    figures = stats(load.log, tokens_counted=served.contract.counted_by != "responses")
    notes += [*limits(served.contract), *doubts(load, figures)]
    return Outcome(figures, load, replay.wall_s(load, due_s), (*asked.notes, *notes))


def report(outcome: Outcome, asked: Asked) -> list[str]:
    """The lines that the clients print at the end."""
    lines = [
        f"[INFO] Total Latency: {outcome.wall_s * 1000:.3f} ms",
        f"[INFO] Total request latencies: {outcome.stats.latency_sum_s * 1000:.3f} ms",
        printing.summary_table(outcome.stats),
    ]
    if asked.script.startswith("identity_test"):
        lines.append(f"Expected op tokens {outcome.load.log.osl.mean():.2f}")
    return lines


def _prompts(asked: Asked, served: Described, say: Say) -> tuple[Given | RandomPrompts, list[str]]:
    if isinstance(asked.data, NormalLengths):
        return norm_dist_prompts(
            asked.data,
            served,
            n=asked.requests,
            max_input_len=asked.max_input_len,
            vocab_size=asked.vocab_size,
            tokenizer_dir=asked.tokenizer_dir,
            seed=asked.seed,
        )
    made, notes = dataset_prompts(
        asked.data,
        served,
        tokenizer_dir=asked.tokenizer_dir,
        special=served.contract.takes_token_ids or served.add_special_tokens,
        first=asked.requests,
        max_input_len=asked.max_input_len,
        op_tokens_per_word=asked.op_tokens_per_word,
    )
    say(f"Tokens per word:  {made.tokens_per_word:.3f}")
    if asked.requests is not None and len(made.prompts) < asked.requests:
        notes.append(f"--num_requests {asked.requests}: the data set leaves {len(made.prompts)}, each is sent once")
    return made.prompts, notes


def limits(contract: Contract) -> list[str]:
    """What a reader of the figures on output tokens must know about this model."""
    found = []
    if contract.counted_by == "responses":
        found.append("the model reports no token counts: output tokens are those asked for")
    if not contract.forces_osl:
        found.append("the model takes no maximum of tokens: it answers with as many as it likes")
    return found


def doubts(load: Load, figures: Stats) -> list[str]:
    """What a reader of the figures of `load` must know: failures, wrong lengths, and whether the client was late."""
    found = []
    answered = window.answered(load.log)
    lost, odd = load.log.where(~answered), load.log.where(answered & load.log.failed)
    if len(lost):
        found.append(
            f"{len(lost)} of {len(load.log)} requests failed and are left out, the first with: {lost.error[0]}"
        )
    if len(odd):
        found.append(
            f"{len(odd)} of {len(load.log)} answers had another length than asked for and count with the tokens that"
            f" came, the first: {odd.error[0]}"
        )
    return found + [f"client-limited, do not trust the figures: {reason}" for reason in _client(load, figures)]


def _client(load: Load, figures: Stats) -> Iterator[str]:
    """Reasons why the latencies may be the load generator's rather than the server's."""
    late_s, lag_s = replay.lateness_s(load), load.client.loop_lag_p99_s
    if late_s > LATE_SHARE * figures.latency_mean_s:
        yield f"1 % of the requests left more than {late_s * 1000:.1f} ms late; try --processes"
    if lag_s > max(LAG_ALLOWED_S, LAG_SHARE * figures.latency_mean_s):
        yield f"its event loop lagged {lag_s * 1000:.1f} ms (99th percentile); try --processes"
    if load.client.busiest_core > BUSY_CORE:
        yield f"its busiest process used {load.client.busiest_core:.0%} of a core; try --processes"
