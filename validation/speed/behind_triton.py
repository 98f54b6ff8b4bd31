"""What Triton adds to vLLM: the same engine and model measured through vLLM's own server and behind tritonserver.

Run: python -m validation.speed.behind_triton [--rounds 2] [--requests 100]

vLLM runs on the CPU, its model is small and its weights are random: the engine's share of the times is not a GPU's, but
what the servers add to a request and to a token is their own work, on this machine's cores. The two are measured in
turns, each on a server started anew, with the same users and exact lengths. Where there is a core to spare, the client
keeps off the engine's. "adds" is the mean behind Triton less that of vLLM alone, then its least and most over the
rounds. CPU is that of the server's processes in a round by its requests: the engine's own, which wait by spinning, and
the others, which speak the protocol. Four starts and sixteen levels of 100 requests take some five minutes on two quiet
cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from calibration.load import system
from calibration.plan import parse_plan
from calibration.run import run
from calibration.store import Store
from lab.life import Server
from lab.vllm.behind_triton import MODEL_BEHIND_TRITON, VllmBehindTriton
from lab.vllm.server import MODEL, VllmServer
from lab.vllm.settings import BehindTriton, Settings
from sizing.numbers import milliseconds, percent, significant
from sizing.points import Point

USERS = (1, 2, 4, 8)
ISL, OSL = 128, 32
SETTINGS = Settings(http_port=0)
ALONE, BEHIND = "vLLM alone", "behind Triton"
FIGURES = {
    "requests/s": "requests_per_s",
    "TTFT mean": "ttft_mean_s",
    "TTFT p50": "ttft_p50_s",
    "ITL mean": "itl_mean_s",
    "E2E mean": "e2e_mean_s",
}
PLAN = """
server: {{{server}}}
tokenizer: {tokenizer}
lengths: [{{isl: {isl}, osl: {osl}, isl_cv: 0, osl_cv: 0}}]
concurrency: {users}
deployment: {{model: small, precision: fp32, gpu: cpu, tp: 1}}
requests_per_level: {requests}
check_load: 0
client: {{self_check: false}}
"""


@dataclass(frozen=True, slots=True)
class Round:
    """The points of one way, and CPU seconds of a request: the engine's, and those of all else in the server."""

    points: list[Point]
    engine_s: float
    others_s: float


@contextmanager
def served(way: str) -> Iterator[tuple[Server, str, Path]]:
    """A server, what a plan says of it, and the folder of its model's tokenizer."""
    if way == ALONE:
        with VllmServer(SETTINGS) as alone:
            yield alone, f"protocol: openai, url: '{alone.url}', model: {MODEL}", alone.tokenizer
    else:
        with VllmBehindTriton(BehindTriton(**asdict(SETTINGS), grpc_port=0, metrics_port=0)) as behind:
            yield behind, f"protocol: grpc, url: '{behind.grpc_url}', model: {MODEL_BEHIND_TRITON}", behind.tokenizer


def measure(way: str, requests: int, store: Store) -> Round:
    """A point for each number of users, on a server of its own."""
    with served(way) as (server, where, tokenizer), system.kept_off(system.of_engine(SETTINGS.threads)):
        plan = PLAN.format(server=where, tokenizer=tokenizer, isl=ISL, osl=OSL, users=list(USERS), requests=requests)
        before = cpu_s(server.pid)
        points = store.points(run(parse_plan(plan, name=way), store))
        spent = [after - earlier for earlier, after in zip(before, cpu_s(server.pid), strict=True)]
    assert [(point.isl, point.osl, point.errors) for point in points] == [(ISL, OSL, 0)] * len(USERS)
    count = sum(point.requests or 0 for point in points)
    return Round(sorted(points, key=lambda point: point.load_value), spent[0] / count, spent[1] / count)


def cpu_s(session: int) -> tuple[float, float]:
    """Seconds of CPU of the session's processes so far: vLLM's engine, which names its processes so, and the others."""
    engine = others = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, stat = (folder / "cmdline").read_text(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(stat[3]) == session:
            spent_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            engine, others = (engine + spent_s, others) if name.startswith("VLLM::") else (engine, others + spent_s)
    return engine, others


def table_of(found: dict[str, list[Round]]) -> Table:
    """Every figure of every number of users, both ways, each round beside the other."""
    rounds = len(found[ALONE])
    table = Table("users", "figure", *[f"{way} {turn + 1}" for turn in range(rounds) for way in found], "adds", "")
    table.title = f"ISL {ISL}, OSL {OSL}"
    for index, users in enumerate(USERS):
        for name, field in FIGURES.items():
            alone, behind = ([getattr(each.points[index], field) for each in found[way]] for way in (ALONE, BEHIND))
            written = significant if field == "requests_per_s" else milliseconds
            values = [value for pair in zip(alone, behind, strict=True) for value in pair]
            table.add_row(str(users), name, *map(written, values), *added(alone, behind, field))
        table.add_section()
    for name, field in (("CPU, engine", "engine_s"), ("CPU, others", "others_s")):
        alone, behind = ([getattr(each, field) for each in found[way]] for way in (ALONE, BEHIND))
        values = [value for pair in zip(alone, behind, strict=True) for value in pair]
        table.add_row("all", name, *map(milliseconds, values), *added(alone, behind, field))
    return table


def added(alone: Sequence[float], behind: Sequence[float], field: str) -> tuple[str, str]:
    """The mean of what Triton adds, as a share of what vLLM alone has too, and the range over the rounds."""
    differences = [there - here for here, there in zip(alone, behind, strict=True)]
    mean, base = sum(differences) / len(differences), sum(alone) / len(alone)
    if field == "requests_per_s":
        return percent(mean / base, 1, sign=True), ""
    least, most = (1e3 * pick(differences) for pick in (min, max))
    return f"{1e3 * mean:+.2f} ms ({percent(mean / base, 1, sign=True)})", f"{least:+.2f} to {most:+.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="How often each is measured, in turns.")
    parser.add_argument("--requests", type=int, default=100, help="Requests of each number of users.")
    given = parser.parse_args()
    found: dict[str, list[Round]] = {ALONE: [], BEHIND: []}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{Path(folder) / 'points.db'}")
        for _ in range(given.rounds):
            for way, rounds in found.items():
                rounds.append(measure(way, given.requests, store))
                print(f"{way}: done", flush=True)
    Console(width=150).print(table_of(found))


if __name__ == "__main__":
    main()
