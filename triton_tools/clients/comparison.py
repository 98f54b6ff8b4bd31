"""Two models behind one server, run in turn on the same prompts: how much faster the second is, and how certainly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.errors import PlanError
from calibration.load.pool import Workers
from calibration.plan import ServerPlan
from calibration.records import Load
from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import RequestSource
from calibration.target import Described, describe
from sizing.workload import Seconds
from triton_tools.clients import printing, replay
from triton_tools.clients.clients import doubts, limits
from triton_tools.clients.dataset import TOKENS_PER_WORD
from triton_tools.clients.pacing import Pacing
from triton_tools.clients.prompts import dataset_prompts
from triton_tools.clients.speedup import CONFIDENCE, SpeedUp, speed_up
from triton_tools.clients.stats import Stats, stats

DEFAULT_REQUESTS = 50
CACHED = (
    "every run sends the same prompts of the data set: if the server keeps prompts in a cache, all runs but the"
    " first find them there; turn the cache off, or give --isl and --osl, which draw new prompts for each pair"
)
WARM_UP_PAIR = -1
SHOWN = ("requests_per_s", "output_tokens_per_s", "latency_mean_s", "latency_p90_s", "latency_p99_s", "in_flight_mean")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which two models to compare, and how: `requests` prompts of `data`, `repeats` times each, an odd number plus one.

    `load`: the users of a closed loop, or when to send. `servers`: where A and B are. `notes`: flags that have no
    effect here.
    """

    servers: tuple[ServerPlan, ServerPlan]
    data: Path | LengthsPlan
    load: int | Pacing
    requests: int | None
    repeats: int
    tokenizer_dir: Path | None = None
    max_input_len: int | None = None
    op_tokens_per_word: float = TOKENS_PER_WORD
    seed: int = 0
    processes: int = 1
    notes: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """How often both are run: an even number, so that each comes first equally often."""
        return self.repeats + self.repeats % 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result: ``runs[0][i]`` of A and ``runs[1][i]`` of B are a pair, on the same prompts."""

    models: tuple[str, str]
    runs: tuple[tuple[Stats, ...], tuple[Stats, ...]]
    notes: tuple[str, ...]

    @property
    def speed_up(self) -> SpeedUp:
        """The speed-up of B over A."""
        return speed_up(*self.runs)

    def as_json(self) -> dict[str, Any]:
        """The figures, by name with unit, for programs: each run, each model's mean and spread, and the speed-up."""
        return {
            "models": [
                {"model": model, "mean": _of(runs, np.mean), "standard_deviation": _of(runs, _spread)}
                | {"runs": [asdict(run) for run in runs]}
                for model, runs in zip(self.models, self.runs, strict=True)
            ],
            "speed_up": asdict(self.speed_up),
            "confidence": CONFIDENCE,
            "definitions": printing.DEFINITIONS,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two models, with its requests for each repeat."""

    target: replay.Target
    served: Described

    def stats(self, load: Load) -> Stats:
        return stats(load.log, tokens_counted=self.served.contract.counted_by != "responses")


def compare(wanted: Wanted, on_share: replay.OnShare) -> Comparison:
    """Warm both models up, then run them in pairs, the order changing from pair to pair: A B, B A, A B, ...

    The number of pairs is even, so that neither a drift of the machine nor what the first run of a pair leaves in a
    cache favours one side. Each pair has new prompts, unless they come from a data set.

    Raises ServerError, PlanError or FileError.
    """
    with Workers(wanted.processes) as workers:
        sides = [_side(server, workers) for server in wanted.servers]
        prompts_of, n, notes = _prompts(wanted, [side.served for side in sides])
        notes += _notes(wanted, n)
        for side in sides:
            notes += replay.warm_up(side.target, prompts_of(WARM_UP_PAIR))
        runs: tuple[list[Stats], list[Stats]] = ([], [])
        for number, (pair, which) in enumerate(_order(wanted.pairs)):
            part = _part(on_share, number, 2 * wanted.pairs)
            load = _run(wanted, sides[which], prompts_of(pair), n, part)
            runs[which].append(sides[which].stats(load))
            notes += [f"{wanted.servers[which].model}: {doubt}" for doubt in doubts(load, runs[which][-1])]
    models = (wanted.servers[0].model, wanted.servers[1].model)
    return Comparison(models, (tuple(runs[0]), tuple(runs[1])), tuple(dict.fromkeys(notes)))


def _order(pairs: int) -> list[tuple[int, int]]:
    """The pair and the side of each run: sides 0, 1 in even pairs and 1, 0 in odd ones."""
    return [(pair, side) for pair in range(pairs) for side in ((0, 1) if pair % 2 == 0 else (1, 0))]


def _side(server: ServerPlan, workers: Workers) -> _Side:
    served = asyncio.run(describe(server))
    return _Side(replay.Target(server, served.contract, workers), served)


def _run(wanted: Wanted, side: _Side, prompts: replay.Prompts, n: int, on_share: replay.OnShare) -> Load:
    if isinstance(wanted.load, int):
        return replay.keep_in_flight(side.target, prompts, wanted.load, n, on_share)
    return replay.send_when_due(side.target, prompts, _due_s(wanted.load, n, wanted.seed), on_share)


def _due_s(pacing: Pacing, n: int, seed: int) -> Seconds:
    return pacing.send_times_s(n, np.random.default_rng(seed))


def _notes(wanted: Wanted, n: int) -> list[str]:
    """Notes that hold for every run."""
    notes = list(wanted.notes)
    if wanted.pairs > wanted.repeats:
        notes.append(
            f"--repeats {wanted.repeats}: {wanted.pairs} pairs were run, so that each model came first as often"
        )
    if isinstance(wanted.data, Path):
        notes.append(CACHED)
    if isinstance(wanted.load, Pacing):
        due_s = _due_s(wanted.load, n, wanted.seed)
        notes += replay.burst_notes(wanted.servers[0], due_s, replay.HTTP_CONNECTIONS)
    return notes


def _prompts(wanted: Wanted, served: Sequence[Described]) -> tuple[Callable[[int], replay.Prompts], int, list[str]]:
    """The prompts of each pair by its number, how many a run sends, and notes. Both models receive the same."""
    notes = [f"{one.contract.model}: {note}" for one in served for note in limits(one.contract)]
    strictest = next((one for one in served if one.contract.takes_token_ids), served[0])
    special = any(one.add_special_tokens for one in served)
    if isinstance(wanted.data, Path):
        made, more = dataset_prompts(
            wanted.data,
            strictest,
            tokenizer_dir=wanted.tokenizer_dir,
            special=special,
            first=wanted.requests,
            max_input_len=wanted.max_input_len,
            op_tokens_per_word=wanted.op_tokens_per_word,
        )
        n = wanted.requests or len(made.prompts)
        if n > len(made.prompts):
            more.append(f"the data set has {len(made.prompts)} prompts: they are sent again to make {n} requests")
        prompts = made.prompts.repeated(n)
        return (lambda pair: prompts), n, notes + more
    lengths = wanted.data
    tokenizer = _tokenizer_file(wanted, strictest)
    if tokenizer is None:
        notes.append("input lengths are words: no tokenizer is known, give --tokenizer_dir")

    def drawn(pair: int) -> RequestSource:
        return RequestSource(lengths, tokenizer, special, (wanted.seed, pair + 1))

    return drawn, wanted.requests or DEFAULT_REQUESTS, notes


def _tokenizer_file(wanted: Wanted, served: Described) -> Path | None:
    place = wanted.tokenizer_dir
    if place is not None:
        return place / "tokenizer.json" if place.is_dir() else place
    if served.tokenizer_file is None and served.contract.takes_token_ids:
        raise PlanError(f"model {served.contract.model!r} takes token ids: give --tokenizer_dir with a tokenizer.json")
    return served.tokenizer_file


def _part(on_share: replay.OnShare, before: int, runs: int) -> replay.OnShare:
    return lambda share: on_share((before + share) / runs)


def _of(runs: Sequence[Stats], statistic: Callable[[list[float]], Any]) -> dict[str, float]:
    return {name: float(statistic([getattr(run, name) for run in runs])) for name in SHOWN}


def _spread(values: list[float]) -> float:
    """The sample standard deviation."""
    return float(np.std(values, ddof=1))


def table(comparison: Comparison) -> str:
    """A row for each model, with mean and spread over its runs, and the speed-up below."""
    head = ("Model", "Requests/Sec", "OP tokens/sec", "Avg. latency (ms)", "P90 (ms)", "P99 (ms)", "InFlight")
    rows = [_row(model, runs) for model, runs in zip(comparison.models, comparison.runs, strict=True)]
    gain = comparison.speed_up
    a, b = comparison.models
    return "\n".join(
        [
            printing.boxed(head, rows),
            f"speed-up of {b} over {a}, {len(comparison.runs[0])} pairs of runs:",
            f"  requests/s  {gain.requests_per_s}",
            f"  tokens/s    {gain.output_tokens_per_s}",
            f"  latency     {gain.latency}",
        ]
    )


def _row(model: str, runs: Sequence[Stats]) -> list[str]:
    cells = [model]
    for name in SHOWN:
        scale = 1000 if name.endswith("_s") and name.startswith("latency") else 1
        values = [getattr(run, name) * scale for run in runs]
        cells.append(f"{np.mean(values):.2f} ± {_spread(values):.2f}")
    return cells
