"""A campaign: inputs numbered from 0, each made of the seed and its number alone, read in processes of their own."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import commands
from tests.fuzz.attempt import attempt
from tests.fuzz.readers import FILES, Reader, prepare

COMMANDS = Reader("command line", lambda: [b"[]"], commands.run, 8, lambda raw, rng: commands.sample(rng))
ROOT = Path(__file__).parents[2]
MOST_ADDRESS_BYTES = 6 << 30
"""Of a process, so that no input takes the machine down: most of it is what libraries reserve and never use."""


@dataclass(frozen=True, slots=True)
class Result:
    """Input `number`, the reader it went to, and what came of it; see `attempt.Came`."""

    number: int
    reader: str
    size_bytes: int
    fault: str
    refused: bool
    cpu_s: float
    peak_mb: float


MOST_BARREN = 5
"""Processes in a row that may die before their second input: more means that none gets under way."""


def input_of(seed: int, number: int) -> tuple[int, bytes]:
    """The place of the reader among `all_readers()`, and the input for it."""
    rng = random.Random(f"{seed}:{number}")
    readers = all_readers()
    place = rng.choices(range(len(readers)), [reader.share for reader in readers])[0]
    reader = readers[place]
    return place, reader.change(rng.choice(reader.samples()), rng)


def all_readers() -> Sequence[Reader]:
    """Files, links and command lines."""
    return (*FILES, COMMANDS)


def work(seed: int, numbers: Iterable[int], folder: Path) -> Iterator[Result]:
    """Read these inputs, one after another, in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESS_BYTES, MOST_ADDRESS_BYTES))
    prepare(folder / "made")
    for reader in FILES:  # what loads on first use is not the input's doing
        for sample in reader.samples():
            came = attempt(reader.read, sample, folder / "warm", most_s=100, most_mb=10_000)
            assert not came.fault, f"{reader.name} does not take its own sample: {came.fault}"
    for number in numbers:
        place, raw = input_of(seed, number)
        reader = all_readers()[place]
        yield Result(number, reader.name, len(raw), **asdict(attempt(reader.read, raw, folder / "input")))


def campaign(seed: int, inputs: int, processes: int) -> list[Result]:
    """All results, by number. A process that dies leaves a fault for the input it died of, and another goes on."""
    with ThreadPoolExecutor(processes) as pool:
        parts = pool.map(lambda first: list(_supervised(seed, range(first, inputs, processes))), range(processes))
        return sorted((result for part in parts for result in part), key=lambda result: result.number)


def _supervised(seed: int, numbers: Sequence[int]) -> Iterator[Result]:
    left, barren = list(numbers), 0
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        with TemporaryDirectory(prefix="fuzz-") as folder:
            command = [sys.executable, "-W", "error", "-m", "tests.fuzz.worker", folder, str(seed)]
            command += [str(left[0]), str(left[-1] + 1), str(step)]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        found = [Result(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
        yield from found
        left = left[len(found) :]
        barren = 0 if found else barren + 1
        if left:
            fault = f"died: exit {done.returncode}: {' '.join(done.stderr.split())[-1500:]}"
            assert barren < MOST_BARREN, f"{barren} processes read nothing before they died; the last: {fault}"
            yield Result(left.pop(0), "?", 0, fault, False, 0.0, 0.0)


def summary(seed: int, results: Sequence[Result]) -> str:
    """Lines for people: what was read, what was refused, the slowest and the largest, and every fault."""
    kinds = Counter(result.fault.partition(":")[0] for result in results if result.fault)
    slowest = max(results, key=lambda result: result.cpu_s)
    largest = max(results, key=lambda result: result.peak_mb)
    refused = Counter(result.reader for result in results if result.refused)
    lines = [
        f"{reader:32} {count:6} inputs, {refused[reader]:6} refused"
        for reader, count in sorted(Counter(result.reader for result in results).items())
    ]
    lines += [f"input {result.number}, {result.reader}: {result.fault}" for result in results if result.fault]
    lines.append(
        f"seed {seed}: {len(results)} inputs, {sum(refused.values())} refused; tracebacks {kinds['traceback']}, "
        f"over memory {kinds['memory']}, over time {kinds['time']}, long lines {kinds['line']}, died {kinds['died']}; "
        f"slowest {slowest.cpu_s:.2f} s ({slowest.reader}, input {slowest.number}), "
        f"largest {largest.peak_mb:.0f} MB ({largest.reader}, input {largest.number})"
    )
    return "\n".join(lines)
