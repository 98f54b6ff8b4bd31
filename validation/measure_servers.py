"""Measure a real vLLM and a real SGLang on this machine: the points by which `sizing validate` judges.

python -m validation.measure_servers                    # all servers that the tables lack, some five hours
python -m validation.measure_servers --only dense --only mixture
python -m validation.measure_servers --only sessions    # a prefix cache of three sizes, 28 minutes

A server of its own for each configuration, at the pace of the CPU or of GPUs (`lab.pace`). Its closed loops and
its random arrivals take turns (closed, Poisson, closed again, Poisson, ...), so that a machine that drifts shows in the
levels that were measured twice and not in the errors of the law. Nothing else may run meanwhile; a level is measured
again if other virtual machines took processor time from this one, or the client was late. A mix goes into the table
when all of it is measured; an interrupted one is measured anew.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import psutil
from rich.console import Console

from calibration.errors import ServerError
from calibration.levels import arrivals_wanted
from calibration.load import system
from calibration.plan import PlanFile, SweepPlan, parse_plan
from calibration.progress import Bar
from calibration.run import DISTURBED, run
from calibration.store import Store
from calibration.store.records_file import decoded_about, read_log
from lab.pace import SMALLEST, Pace
from lab.sglang.server import SglangServer
from lab.vllm.server import MODEL, VllmServer
from lab.vllm.settings import Settings
from sizing.points import Point, read_points, write_points
from sizing.workload import Arrivals
from validation.evidence.measured_arrivals import DRAWN, Drawn, Identity, identity, server_of, write_drawn
from validation.evidence.measured_sessions import CLOSED_LOOPS, KV_TOKENS, LOOPS, SESSIONS, TABLE, Round, read_rounds

EVIDENCE = Path(__file__).parent / "evidence"
LEVELS = ((1, 4, 16), (2, 8, 32))
"""Users of the closed loops, in two rounds; the first is then measured again."""
SHARES = (0.5, 0.7, 0.85)
"""Random arrivals: requests/s as shares of the most that a closed loop answered."""
ROUNDS = 3
"""Of random arrivals, each with other gaps and prompts."""
SERVED = Settings(http_port=0, max_sequence_tokens=2048, kv_tokens=32_768, token_budget=1024)


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of the requests, lognormal with coefficients of variation `cv` of prompt and output; `shared`: tokens at
    their head that all prompts share."""

    isl: int
    osl: int
    shared: int = 0
    cv: tuple[float, float] = (0.3, 0.5)

    @property
    def entry(self) -> dict[str, Any]:
        """As an entry of a plan's lengths."""
        entry = {"isl": self.isl, "osl": self.osl, "isl_cv": self.cv[0], "osl_cv": self.cv[1]}
        return entry | ({"shared_prefix": self.shared} if self.shared else {})


CHAT, READING, WRITING = Mix(128, 48), Mix(400, 16), Mix(32, 96)


MOST_STOLEN, MOST_STOLEN_UNCOMPUTED, TRIES = 0.01, 0.15, 10
"""Share of its processors' time that other machines on the same host may take from this one while it measures; that of
a server that computes no model beside a paced GPU: with a tenth of it taken ITL was that of a hundredth to 3 %, TTFT
to 6 %; and how often a level that lost more, or whose client was late, is measured again."""
SAME_S, MOST_LATE = 1e-6, 10
"""Times that are the same but for rounding, and warm-up requests that may count as measured."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A server and what it is asked, closed loops and random arrivals for so many seconds a level. The points have its
    model, whose shape a fit knows if the catalogue does, and its name before their round; `table` is where they go, and
    `slots_told` whether they say how many sequences the server runs at most, which vLLM does not tell. `most_stolen`:
    see MOST_STOLEN."""

    model: str
    name: str
    settings: Settings
    mixes: tuple[Mix, ...]
    closed_s: float = 10.0
    open_s: float = 25.0
    table: str = "vllm-cpu.csv"
    slots_told: bool = True
    most_stolen: float = MOST_STOLEN
    engine: type[VllmServer] = VllmServer

    @property
    def server(self) -> str:
        """For people, and for `--only`."""
        return f"{self.model}, {self.name}" if self.name else self.model


DENSE = Pace("Qwen/Qwen3-32B", "h100_sxm", 2, "bf16")
MIXTURE = Pace("Qwen/Qwen3-235B-A22B", "h100_sxm", 8, "fp8")
LENGTHS = (Mix(512, 64), Mix(1500, 24), Mix(64, 128))
SHARED, SMALL = Mix(1500, 48, shared=1200), Mix(128, 256)


def paced(name: str, pace: Pace, mixes: tuple[Mix, ...], open_s: float = 45.0, **limits: Any) -> Configuration:
    """A server whose steps last as on GPUs: the model that is computed beside is as small as vLLM takes."""
    name = f"pace of {pace.tp} H100{name}"
    settings = Settings(http_port=0, max_sequence_tokens=4096, kv_tokens=131_072, token_budget=2048, pace=pace)
    return Configuration(
        pace.model, name, replace(settings, **{**SMALLEST, **limits}), mixes, 15.0, open_s, "vllm-paced.csv"
    )


def sglang(name: str, pace: Pace, mixes: tuple[Mix, ...], **limits: Any) -> Configuration:
    """The same of SGLang, with its radix cache."""
    limits = {"token_budget": 4096, "max_batch_size": 64, "kv_reuse": True} | limits
    served = paced(name, pace, mixes, 30.0, **limits)
    return replace(
        served,
        name=f"SGLang at the {served.name}",
        table="sglang-paced.csv",
        slots_told=False,
        most_stolen=MOST_STOLEN_UNCOMPUTED,
        engine=SglangServer,
    )


CONFIGURATIONS = (
    Configuration("dense", "", SERVED, (CHAT, READING, WRITING)),
    Configuration("mixture", "", replace(SERVED, experts=8), (CHAT, READING, WRITING)),
    paced("", DENSE, LENGTHS, 60.0),
    paced("", MIXTURE, LENGTHS),
    paced(", prefix cache", DENSE, (SHARED,), kv_reuse=True),
    paced(", small KV cache", DENSE, (SMALL,), kv_tokens=4096, max_sequence_tokens=2048),
    paced(", small chunks", DENSE, (Mix(1500, 24), Mix(512, 64)), token_budget=256),
    paced(", wide lengths", DENSE, (Mix(400, 80, cv=(1.0, 1.0)),)),
    paced(", whole prompts", DENSE, (Mix(600, 48),), chunked_prefill=False, max_sequence_tokens=2048),
    replace(paced(", few slots", DENSE, (Mix(512, 64),), max_batch_size=8), slots_told=False),
    paced(", look-ahead", DENSE, (Mix(512, 64), Mix(1500, 24)), look_ahead=True),
    sglang("", DENSE, LENGTHS),
    sglang(", small KV cache", DENSE, (SMALL,), kv_tokens=4096, max_sequence_tokens=2048),
    sglang(", prefix cache", DENSE, (SHARED,)),
    sglang(", small chunks", DENSE, LENGTHS[1:2], token_budget=512),
    sglang(", overlapped", DENSE, LENGTHS[:2], look_ahead=True),
    sglang(", receive interval", DENSE, LENGTHS[:1], look_ahead=True, receive_interval_steps=10),
)


SESSION_SERVER = paced("", DENSE, (), max_sequence_tokens=SESSIONS.context_tokens, kv_reuse=True)
SESSION_ROUNDS, SESSION_S = 2, 150.0


def plan_of(
    configuration: Configuration, server: VllmServer, lengths: dict[str, Any], seed: int, **loads: Any
) -> PlanFile:
    """The plan of one run."""
    slots = {"max_batch_size": configuration.settings.max_batch_size} if configuration.slots_told else {}
    plan = {
        "server": {"protocol": "openai", "url": server.url, "model": MODEL, "metrics_url": server.metrics_url},
        "deployment": {
            "model": configuration.model,
            "precision": "fp32",
            "gpu": "paced" if configuration.settings.look_ahead else "cpu",  # a CPU would not look ahead
            "tp": 1,
            **slots,
        },
        "lengths": [lengths],
        "check_load": 0,
        "seed": seed,
        "client": {"self_check": False, "processes": 1},
        "until": {"half_width": 0.001},
        **loads,
    }
    return parse_plan("".join(f"{key}: {json.dumps(value)}\n" for key, value in plan.items()))


def measured(
    configuration: Configuration, mix: Mix, server: VllmServer, console: Console
) -> tuple[list[Point], dict[Identity, Drawn]]:
    """The points of one mix, each with the round it was measured in as its source, and how their random arrivals were
    drawn: no two mixes, and no two servers, have the same."""
    found, drawn = list[Point](), dict[Identity, Drawn]()
    server_name = f"{configuration.name}; " if configuration.name else ""
    of_mix = 100 * (zlib.crc32(f"{configuration.server} {mix.isl}".encode()) % 10**6)
    with TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/points.db")

        def measure(name: str, seed: int, **loads: Any) -> None:
            file = plan_of(configuration, server, mix.entry, of_mix + seed, **loads)
            run_id = undisturbed(file, store, console, configuration.most_stolen)
            [each] = store.measurements(run_id)
            point = replace(each.point, source=f"{server_name}{name}")
            found.append(point)
            if point.load_kind == "poisson_rate":
                [records] = store.records(run_id).values()
                drawn[identity(point)] = drawn_of(records, each.facts, file.plan, point.load_value)

        def closed(name: str, seed: int, levels: Sequence[int]) -> None:
            for number, users in enumerate(levels):
                measure(f"closed loops, {name}", seed + number, concurrency=[users], budget_s=configuration.closed_s)

        for number, levels in enumerate(LEVELS):
            closed("first", 3 * number, levels)
        most_per_s = max(point.requests_per_s for point in found)
        for number in range(ROUNDS):
            for share_number, share in enumerate(SHARES):
                rate, seed = round(share * most_per_s, 3), 10 + 3 * number + share_number
                measure(f"arrivals {number + 1}", seed, rates=[rate], budget_s=configuration.open_s)
            if number < len(LEVELS):
                closed("again", 20 + 3 * number, LEVELS[number])
    return found, drawn


def undisturbed(file: PlanFile, store: Store, console: Console, most_stolen: float = MOST_STOLEN) -> int:
    """Run the plan until other machines take no more than that share from this one meanwhile and the client is never
    late: the number of that run.

    Raises ServerError if none is so.
    """
    for _ in range(TRIES):
        before = psutil.cpu_times()
        with Bar(console) as bar:
            run_id = run(file, store, bar)
        stolen = stolen_share(before, psutil.cpu_times())
        late = [point for point in store.points(run_id) if point.verdict in DISTURBED]
        if stolen <= most_stolen and not late:
            return run_id
        lost = f"Other machines on this host took {stolen:.1%} of the processors' time"
        console.print(f"{'The client was late' if late else lost}: measured again")
    raise ServerError(f"other machines on this host disturbed each of {TRIES} runs: try later")


def stolen_share(before: Any, after: Any) -> float:
    """Of the time that this machine would have used between two readings of `psutil.cpu_times`, what others got; 0
    where the system does not tell."""
    used_s, stolen_s = (
        sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in names)
        for names in (("user", "nice", "system", "irq", "softirq"), ("steal",))
    )
    return stolen_s / (used_s + stolen_s) if stolen_s else 0.0


def drawn_of(records: Path, facts: Mapping[str, float], plan: SweepPlan, rate_per_s: float) -> Drawn:
    """How random arrivals were drawn for a level of the plan, by its records: see `calibration.levels.arrivals_of`,
    whose seed is that of the plan and of the level. How many arrivals were warm-up depends on what the run knew of the
    server, and all times on how many there were: the number is that which gives the times of the records.

    Raises ServerError if there is none.
    """
    level = next(level for level in plan.levels() if not level.closed and level.value == rate_per_s)
    log, seed = read_log(records), decoded_about(records.read_bytes(), str(records)).seed
    due_s, of_times = np.sort(log.intended_s[log.turn == 0]), (seed[0], seed[-1])
    warm = int((due_s < facts["window_start_s"]).sum())
    fewest = arrivals_wanted(plan, level) + 1
    for arrivals in range(fewest, fewest + 2 * warm + MOST_LATE):
        times_s = Arrivals().times(arrivals, rate_per_s, np.random.default_rng(of_times))
        both = min(arrivals, len(due_s))
        if np.allclose(np.diff(times_s[:both]), np.diff(due_s[:both]), rtol=0, atol=SAME_S):
            return Drawn(of_times, arrivals, warm, seed)
    raise ServerError(f"{records}: no number of arrivals gives the times of these records")


def sessions_measured(server: VllmServer, number: int, console: Console, budget_s: float = SESSION_S) -> Round:
    """One round of sessions at `server`."""
    entry = {"sessions": {name: value for name, value in asdict(SESSIONS).items() if name != "rate_per_s"}}
    with TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/points.db")
        loads = {"rates": [SESSIONS.rate_per_s], "budget_s": budget_s}
        file = plan_of(SESSION_SERVER, server, entry, 30 + number, **loads)
        run_id = undisturbed(file, store, console)
        [found] = store.measurements(run_id)
        [records] = store.records(run_id).values()
        seed = decoded_about(records.read_bytes(), str(records)).seed
        drawn = drawn_of(records, found.facts, file.plan, SESSIONS.rate_per_s)
    return Round(
        kv_tokens=server.settings.kv_tokens,
        round=number,
        seed=" ".join(map(str, seed)),
        arrivals=drawn.arrivals,
        warm=drawn.warm,
        turns=found.point.requests or 0,
        preemptions=round(found.server["preemptions"]),
        hit_rate=found.server["prefix_tokens_found_share"],
        **{name: found.facts[name] for name in _OF_FACTS},
        itl_mean_s=found.point.itl_mean_s or 0.0,
        verdict=found.point.verdict,
        measured_at=found.point.measured_at,
    )


_OF_FACTS = ("later_ttft_p50_s", "later_ttft_p95_s", "later_ttft_mean_s", "first_ttft_p50_s", "first_ttft_mean_s")


def session_loops(server: VllmServer, console: Console) -> list[Point]:
    """Closed loops at the server of sessions, of single requests as long as turns are."""
    found: list[Point] = []
    for isl, osl, shared in LOOPS:
        for number, users in enumerate(LEVELS):
            with TemporaryDirectory() as folder:
                store = Store(f"sqlite:///{folder}/points.db")
                loads = {"concurrency": [*users], "budget_s": SESSION_SERVER.closed_s}
                plan = plan_of(SESSION_SERVER, server, Mix(isl, osl, shared).entry, number, **loads)
                points = store.points(undisturbed(plan, store, console))
            found += [replace(point, source=f"{SESSION_SERVER.name}, sessions; closed loops") for point in points]
    return found


def measure_sessions(folder: Path, console: Console) -> None:
    """Measure the closed loops and the sizes of the KV cache that the tables lack, each at a server of its own."""
    if not (loops := folder / CLOSED_LOOPS.name).is_file():
        with VllmServer(SESSION_SERVER.settings, console) as server, system.kept_off(system.of_engine(1)):
            be_prompt()
            points = session_loops(server, console)
        with loops.open("w", encoding="utf-8", newline="") as file:
            write_points(points, file)
    table = folder / TABLE.name
    known = read_rounds(table)
    for kv_tokens in KV_TOKENS:
        if kv_tokens in {each.kv_tokens for each in known}:
            continue
        settings = replace(SESSION_SERVER.settings, kv_tokens=kv_tokens)
        with VllmServer(settings, console) as server, system.kept_off(system.of_engine(1)):
            be_prompt()
            known += [sessions_measured(server, number, console) for number in range(1, SESSION_ROUNDS + 1)]
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [column.name for column in fields(Round)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, known))


def be_prompt() -> None:
    """The API server, which has the client's core too, gives way to it: a client that waits stamps tokens late."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*(one.server for one in CONFIGURATIONS), "sessions"]),
    help="This server.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=EVIDENCE,
    help="Of the tables to add to; default: the evidence's own.",
)
def main(only: Sequence[str], folder: Path) -> None:
    """Measure the servers that the table lacks, one after another."""
    console = Console(stderr=True)
    if not only or "sessions" in only:
        measure_sessions(folder, console)
    for configuration in CONFIGURATIONS:
        table = folder / configuration.table
        known = read_points(table) if table.is_file() else []
        there = {(server_of(point), point.isl) for point in known}
        lacking = [mix for mix in configuration.mixes if (configuration.server, mix.isl) not in there]
        if not lacking or (only and configuration.server not in only):
            continue
        with configuration.engine(configuration.settings, console) as server, system.kept_off(system.of_engine(1)):
            be_prompt()
            for mix in lacking:
                points, drawn = measured(configuration, mix, server, console)
                known += points
                with table.open("w", encoding="utf-8", newline="") as file:
                    write_points(known, file)
                write_drawn(folder / DRAWN.name, drawn)


if __name__ == "__main__":
    main()
