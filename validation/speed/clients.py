"""Many programs at once: clients of the HTTP API, with new questions and known ones, and beside dear ones.

Run: python -m validation.speed.clients [--clients 50] [--seconds 40] [--pause 4]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import requests

from api.routes import ROOT
from tests.browser.served import started
from validation.speed.waits import in_a_line

QUESTION: dict[str, Any] = {
    "model": "Qwen/Qwen3-32B",
    "gpu": "h200_sxm",
    "precision": "fp8",
    "isl": 2000,
    "osl": 256,
    "ttft": "p95:1s",
    "itl": "p95:30ms",
}
"""Twelve configurations: four layouts, three engines."""
DEAR: dict[str, Any] = {
    "weights": "4.8ms",
    "overhead": "1ms",
    "token": "20us",
    "sessions_per_s": 8,
    "turns": 8,
    "first_tokens": 1500,
    "user_tokens": 300,
    "output_tokens": 250,
    "think": "20s",
    "system_tokens": 1000,
    "replicas": 16,
    "kv_tokens": 400_000,
    "routing": "prefix_aware",
    "requests": 6_000_000,
}
"""Half a minute of a core: six million turns of conversations are simulated."""
MB = 1_000_000
GIVE_UP_AFTER_S = 300.0


@dataclass(slots=True)
class Asked:
    """Seconds that answers took, and responses that were none, of all clients together."""

    answer_s: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def ask(self, session: requests.Session, url: str, question: dict[str, Any]) -> None:
        """One question at the address of its command."""
        start_s = time.monotonic()
        try:
            response = session.post(url, json=question, timeout=GIVE_UP_AFTER_S)
        except requests.RequestException as error:
            self.failed[type(error).__name__] += 1
            return
        if response.ok and response.json().get("gpus", 1) > 0:
            self.answer_s.append(time.monotonic() - start_s)
        else:
            self.failed[f"{response.status_code} {response.text[:100]}"] += 1


def client(url: str, number: int, until_s: float, pause_s: float, asked: Asked) -> None:
    """Asks for another load after every pause, until `until_s` of the monotonic clock."""
    draw = random.Random(number)
    with requests.Session() as session:
        while True:
            time.sleep(draw.expovariate(1 / pause_s))
            if time.monotonic() > until_s:
                return
            asked.ask(session, f"{url}/plan", QUESTION | {"rate": round(draw.uniform(5, 200), 1)})


def all_ask(url: str, clients: int, seconds: float, pause_s: float, first: int = 0) -> Asked:
    """So many clients; those of the same numbers, from `first` on, draw the same loads every time."""
    asked, until_s = Asked(), time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda number: client(url, first + number, until_s, pause_s, asked), range(clients)))
    return asked


@contextmanager
def dear_ones(url: str, seeds: Sequence[int]) -> Iterator[Asked]:
    """Dear questions under way, all from the start on; the block goes on at once."""
    asked = Asked()
    threads = [
        threading.Thread(target=asked.ask, args=(requests.Session(), f"{url}/sessions", DEAR | {"seed": seed}))
        for seed in seeds
    ]
    for thread in threads:
        thread.start()
    yield asked
    for thread in threads:
        thread.join()


def family(pid: int) -> list[psutil.Process]:
    """A server and the processes that compute for it."""
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Seconds of processor so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running())


def main() -> None:
    """Print answers/s, seconds to an answer and errors: with new loads, the same again, and beside dear questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pause", type=float, default=4.0, help="Mean seconds between a client's questions.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started(f"sqlite:///{folder}/calibration.db") as server:
        url = f"{server.address}{ROOT}"
        all_ask(url, 4, 5.0, 0.5)  # warm: both processes are up
        processes = family(server.process.pid)

        def one_round(name: str, clients: int, first: int = 0) -> None:
            before_s, start_s = cpu_s(processes), time.monotonic()
            asked = all_ask(url, clients, options.seconds, options.pause, first)
            passed_s, count = time.monotonic() - start_s, len(asked.answer_s)
            print(f"{name}: {clients} clients for {passed_s:.0f} s, {count / passed_s:.1f} answers/s")
            print(in_a_line("  question to answer", asked.answer_s))
            print(f"  errors: {asked.failed.total()}", *asked.failed, sep="\n  ")
            print(f"  processor: {(cpu_s(processes) - before_s) / max(count, 1):.3f} s for each answer")

        one_round("loads never asked for", options.clients)
        one_round("loads asked for before", options.clients)
        few = max(1, options.clients // 5)
        one_round("a fifth of the clients, new loads", few, 1000)
        with dear_ones(url, (1, 2)) as dear:
            one_round("the same beside two dear questions", few, 2000)
        print(in_a_line("  the dear ones", dear.answer_s), *dear.failed, sep="\n  ")
        held_bytes = sum(each.memory_full_info().pss for each in family(server.process.pid))
        print(f"memory: {held_bytes / MB:.0f} MB, all processes")


if __name__ == "__main__":
    main()
