"""A real vLLM with prefix caching, measured in sessions by this program: hit rate and TTFT of later turns, predicted.

`python -m validation.measure_servers --only sessions` measured the table beside this file: sessions that begin at
random, at a server whose steps last as on GPUs, with KV caches of three sizes, from one that holds all sessions to
one that holds little more than the turns being answered. The law is fitted to closed loops of single requests at that
server, as long as the turns are: of prompts that share nothing, and of prompts most of which is found. Hit rates of
sessions are simulated, none is told. The truth is what the server counted, and what the client timed.

One measurement of so many sessions lies points from the mean by chance where the cache is tight. So what is judged is
simulated of the very sessions that were measured (their starts, lengths and thinking times), and what is simulated of
any sessions of the workload stands beside it.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from calibration.requests.lengths import summary
from lab.vllm.settings import KV_BLOCK_TOKENS
from sizing.candidates import from_fit
from sizing.engine import Replica
from sizing.fitting import fit
from sizing.points import read_points
from sizing.simulator.sessions import requests_of, serve_sessions
from sizing.simulator.state import SERVED
from sizing.workload import Arrivals, Seconds, Sessions, Turns
from validation.evidence.claim import Claim, Setup
from validation.evidence.table import EvidenceRow, missing, noted, row_of_errors, shown

NAME, DATA = "sessions on a prefix cache", "vLLM at the pace of GPUs, measured here"
TABLE = Path(__file__).with_name("vllm-sessions.csv")
CLOSED_LOOPS = Path(__file__).with_name("vllm-sessions-loops.csv")
SESSIONS = Sessions(
    rate_per_s=1.0,
    turns=8,
    turn_law="fixed",
    first_tokens=600,
    first_cv=0.3,
    user_tokens=80,
    user_cv=0.5,
    output_tokens=32,
    output_cv=0.5,
    think_s=3.0,
    context_tokens=2048,
)
LOOPS = ((1000, 32, 0), (1000, 32, 832))
"""ISL, OSL and shared prefix of the closed loops."""
KV_TOKENS = (131_072, 24_576, 14_336)
"""Roomy, tight, thrashing."""
WINDOWS = 60
HIT_RATE_GOAL, TTFT_GOAL = 0.03, 0.15
TIMES = ("later_ttft_p50_s", "later_ttft_mean_s", "first_ttft_p50_s", "itl_mean_s")
FIGURES = ("hit_rate", *TIMES)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement: `seed` of its sessions, and its `arrivals`, of which the first `warm` ones were left out;
    `turns` answered in the time measured, and how often the engine took a turn's memory (`preemptions`). Times in
    seconds."""

    kv_tokens: int
    round: int
    seed: str
    arrivals: int
    warm: int
    turns: int
    preemptions: int
    hit_rate: float
    later_ttft_p50_s: float
    later_ttft_p95_s: float
    later_ttft_mean_s: float
    first_ttft_p50_s: float
    first_ttft_mean_s: float
    itl_mean_s: float
    verdict: str
    measured_at: str


def read_rounds(path: Path) -> list[Round]:
    """The table; empty where there is none."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Round(**{name: _KINDS[name](cell) for name, cell in row.items()}) for row in csv.DictReader(file)]


_KINDS: dict[str, Any] = {
    name: {"int": int, "float": float, "str": str}[str(kind)] for name, kind in Round.__annotations__.items()
}


@dataclass(frozen=True, slots=True)
class Case:
    """A KV cache and the rounds measured with it."""

    kv_tokens: int
    rounds: tuple[Round, ...]


def cases(setup: Setup) -> list[Case]:
    """Each size of the KV cache; quick: the roomy one."""
    rounds = sorted(read_rounds(TABLE), key=lambda each: -each.kv_tokens)
    found = [Case(size, tuple(own)) for size, own in groupby(rounds, lambda each: each.kv_tokens)]
    return found[:1] if setup.quick else found


class Told(NamedTuple):
    """A figure as simulated: of any sessions of the workload with the standard deviation of one measurement, and of the
    very sessions that were measured. Means over measurements, of times of their logarithms."""

    of_any: float
    spread: float
    of_same: float


def answer(case: Case, seed: SeedSequence) -> dict[str, Told]:
    """By figure, what is simulated from an empty server on."""
    replica = replica_of(case.kv_tokens)
    drawn = [
        _of_any(replica, case.rounds[number % len(case.rounds)], int(state))
        for number, state in enumerate(seed.generate_state(WINDOWS))
    ]
    same = [_of_same(replica, each) for each in case.rounds]
    found = {}
    for name in FIGURES:
        values, of_same = [each[name] for each in drawn], [each[name] for each in same]
        spread = statistics.stdev(values if name == "hit_rate" else map(math.log, values))
        found[name] = Told(_mean(name, values), spread, _mean(name, of_same))
    return found


def _mean(name: str, values: Sequence[float]) -> float:
    return statistics.mean(values) if name == "hit_rate" else math.exp(statistics.mean(map(math.log, values)))


@lru_cache
def _fitted() -> Replica:
    turns = SESSIONS.drawn(10_000, (0,))
    return from_fit(fit(read_points(CLOSED_LOOPS)), summary(turns.isl, turns.osl)).replica


def replica_of(kv_tokens: int) -> Replica:
    """The engine of the closed loops with a prefix cache: its blocks, of which it keeps one to itself, are vLLM's."""
    found = _fitted()
    rule = replace(
        found.batching,
        kv_tokens=kv_tokens - KV_BLOCK_TOKENS,
        kv_policy="max_utilization",
        kv_block_tokens=KV_BLOCK_TOKENS,
        prefix_cache=True,
    )
    return replace(found, batching=rule)


def _of_any(replica: Replica, measured: Round, seed: int) -> dict[str, float]:
    """The figures of a simulated measurement like `measured`, of other sessions."""
    turns = SESSIONS.drawn(measured.arrivals, (seed, 0))
    return _served(replica, turns, _starts_s(measured.arrivals, (seed, 1)), measured.warm)


def _of_same(replica: Replica, measured: Round) -> dict[str, float]:
    """The figures simulated of the sessions of `measured`, drawn as the load generator drew them."""
    seed = [int(part) for part in measured.seed.split()]
    drawn = [SESSIONS.drawn(1, [*seed, number + 1]) for number in range(measured.arrivals)]
    columns = [np.concatenate(column) for column in zip(*drawn, strict=True)]
    columns[0] = np.repeat(np.arange(len(drawn)), [len(each.isl) for each in drawn])
    return _served(replica, Turns(*columns), _starts_s(measured.arrivals, (seed[0], seed[-1])), measured.warm)


def _starts_s(arrivals: int, seed: Sequence[int]) -> Seconds:
    return Arrivals().times(arrivals, SESSIONS.rate_per_s, np.random.default_rng(seed))


def _served(replica: Replica, turns: Turns, starts_s: Seconds, warm: int) -> dict[str, float]:
    """The figures of the turns that are sent from the first session after the warm ones to the last session."""
    run = requests_of(replica, turns, starts_s, np.random.default_rng(0))
    first = np.isfinite(run["arrival_s"])
    serve_sessions(replica, run, turns.think_s, SESSIONS.system_tokens)
    sent_s = run["arrival_s"]
    chosen = (sent_s >= starts_s[warm]) & (sent_s < starts_s[-1]) & (run["outcome"] == SERVED)
    ttft_s = run["first_token_s"] - sent_s + run["outside_s"]
    many = chosen & (run["osl"] > 1)
    itl_s = (run["done_s"] - run["first_token_s"])[many] / (run["osl"][many] - 1)
    later_s = ttft_s[chosen & ~first]
    return {
        "hit_rate": float(run["found_tokens"][chosen].sum() / run["isl"][chosen].sum()),
        "later_ttft_p50_s": float(np.median(later_s)),
        "later_ttft_mean_s": float(later_s.mean()),
        "first_ttft_p50_s": float(np.median(ttft_s[chosen & first])),
        "itl_mean_s": float(itl_s.mean()),
    }


def rows(cases: Sequence[Case], answers: Sequence[dict[str, Told]]) -> list[EvidenceRow]:
    """The difference of hit rates in shares of all tokens, and relative errors of times; each judged at its worst."""
    if not cases:
        return [missing(NAME, DATA, "hit rate, TTFT", "no sessions were measured")]
    found = []
    for name in FIGURES:
        told = [(case, _measured(case, name), each[name]) for case, each in zip(cases, answers, strict=True)]
        any_, same = (
            [_error(name, getattr(each, of), measured) for _, measured, each in told] for of in ("of_any", "of_same")
        )
        limit = HIT_RATE_GOAL if name == "hit_rate" else TTFT_GOAL if name.startswith("later_ttft") else math.inf
        goal = f"worst ≤ {100 * limit:g} {'points' if name == 'hit_rate' else '%'}" if limit < math.inf else ""
        row = row_of_errors(NAME, DATA, _LABELS[name], same)
        row = replace(row, goal=goal, holds=row.worst <= limit if goal else None, note="")
        each = (
            f"{case.kv_tokens:,} tokens of KV cache: {_shown(name, one.of_same)} for {_shown(name, measured)}, "
            f"of any sessions {_shown(name, one.of_any)} ± {shown(one.spread / math.sqrt(len(case.rounds)))}"
            for case, measured, one in told
        )
        row = noted(row, "; ".join(each))
        found.append(noted(row, f"of any sessions at worst {shown(max(map(abs, any_)))}"))
    return found


def _error(name: str, told: float, measured: float) -> float:
    """Above 0 where too much is promised."""
    return told - measured if name == "hit_rate" else 1 - told / measured


_LABELS = {
    "hit_rate": "prefix cache hit rate (difference)",
    "later_ttft_p50_s": "TTFT p50 of later turns",
    "later_ttft_mean_s": "TTFT mean of later turns",
    "first_ttft_p50_s": "TTFT p50 of first turns",
    "itl_mean_s": "ITL mean",
}


def _measured(case: Case, name: str) -> float:
    return _mean(name, [getattr(each, name) for each in case.rounds])


def _shown(name: str, value: float) -> str:
    return shown(value) if name == "hit_rate" else f"{1e3 * value:.3g} ms"


VLLM_SESSIONS = Claim("measured-sessions", cases, answer, rows)
