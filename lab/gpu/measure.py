"""Measure this machine's GPU unattended: as much as fits the given time, the most valuable first, stored at once.

    python -m lab.gpu.measure --budget-s 540 --out OUT [--resume measured.tar.gz] [--device cpu --small]

On a machine without network, lab.gpu.go starts it with the carried packages. When nothing more fits, it ends with
status 0 and says what is left.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from calibration.errors import CalibrationError
from lab.environment import PYTHON_VERSION
from lab.gpu.agenda import Card, Item, agenda, next_item, users_of
from lab.gpu.kept import Kept, log
from lab.gpu.level import Session, highest_rates
from lab.gpu.served import Setup, kernels_agree, program
from lab.gpu.watch import Watch
from lab.reference.server import TRITON

RESERVE_S = 12.0
"""Seconds reserved in the budget for the last archive and the end of the server."""
NOMINAL = {"cuda": (4.0e12, 7.0e14), "cpu": (5.0e9, 2.0e10)}
ALLOWED_DIFFERENCE = 0.02
"""Largest relative difference between bf16 kernels and float32 arithmetic on the same numbers."""
MOST_FAILURES = 2
BENCHED = ("llama-3.1-8b", "qwen3-8b", "qwen3-1.7b", "qwen3-32b")


@click.command()
@click.option("--budget-s", type=float, default=540.0, show_default=True, help="Seconds that this call may take.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the results.")
@click.option("--work", type=click.Path(path_type=Path), help="Working folder; unset: OUT/work.")
@click.option("--resume", type=click.Path(path_type=Path), help="The archive of an earlier call.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--ops", type=click.Choice(["auto", "triton", "torch"]), default="auto", show_default=True)
@click.option("--small", is_flag=True, help="A tiny model and short levels: a rehearsal.")
@click.option("--processes", type=int, help="Processes of the load generator; unset: 6, on a CPU 1.")
def measure(
    budget_s: float,
    out: Path,
    work: Path | None,
    resume: Path | None,
    device: str,
    ops: str,
    small: bool,
    processes: int | None,
) -> None:
    """Measure until nothing more fits into --budget-s."""
    ends_s = time.monotonic() + budget_s - RESERVE_S
    kept = Kept(work or out / "work", out, resume)
    kept.start_log()
    adopt_carried_environment()
    with Watch(kept.work / "gpu.csv") as watch:
        ceilings(kept, device, small)
        chosen = operations(kept, device, ops)
        bench(kept, device, chosen, ("small",) if small else BENCHED[:1])
        card = card_of(kept, device)
        session = Session(kept, card, watch, processes or (6 if device == "cuda" else 1))
        left = follow(agenda(small), kept, card, session, setups(kept, device, chosen, small), ends_s)
        if not small:
            bench(kept, device, chosen, BENCHED, ends_s)
    kept.save()
    log.info("%d of %d levels are done; %d are left", len(agenda(small)) - left, len(agenda(small)), left)


def adopt_carried_environment() -> None:
    """Stamp an environment that lab.gpu.go created like the reference server's own, so that it is not created again."""
    folder = TRITON.default_folder
    if (folder / "venv" / "lib" / f"python{PYTHON_VERSION}" / "site-packages" / "machine.pth").exists():
        (folder / "stamp").write_text(TRITON.stamp)


def ceilings(kept: Kept, device: str, small: bool) -> None:
    """Measure bandwidth, product rate and environment, once."""
    if kept.fact("ceilings") is None:
        found = program("lab.gpu.ceilings", device, within_s=120)
        log.info("ceilings: %s", found)
        kept.learn("ceilings", found)
        kept.learn("is_small", small)
        kept.save()


def operations(kept: Kept, device: str, ops: str) -> str:
    """Which operations the engine uses: Triton kernels, if they compile and agree with plain torch."""
    if ops != "auto":
        return ops
    if kept.fact("kernels") is None:
        kept.learn("kernels", kernels_agree(device))
        log.info("kernels against plain torch: %s", kept.fact("kernels"))
    difference = kept.fact("kernels").get("difference", float("nan"))
    return "triton" if device == "cuda" and difference <= ALLOWED_DIFFERENCE else "torch"


def bench(kept: Kept, device: str, ops: str, shapes: tuple[str, ...], ends_s: float | None = None) -> None:
    """Measure step times of the engine alone, once for each shape, until `ends_s` if that is given."""
    for shape in shapes:
        fits = ends_s is None or time.monotonic() + 60 < ends_s
        if fits and kept.fact(f"engine {shape}") is None:
            found = program("lab.gpu.engine.bench", shape, device, ops, within_s=120)
            log.info("engine alone, %s: %s", shape, found.get("why", "done"))
            kept.learn(f"engine {shape}", found)
            kept.save()


def card_of(kept: Kept, device: str) -> Card:
    """The card as measured, or else with the figures assumed for such cards."""
    nominal_bytes, nominal_flops = NOMINAL[device]
    found = kept.fact("ceilings")
    return Card(device, found.get("read_bytes_per_s", nominal_bytes), found.get("bf16_flops_per_s", nominal_flops))


def setups(kept: Kept, device: str, ops: str, small: bool) -> dict[tuple[str, str], Setup]:
    """How each server is started, by shape and batching."""
    memory = float(kept.fact("ceilings").get("memory_bytes") or 140e9)
    limits = {"max_batch_size": 8, "max_sequence_tokens": 512, "token_budget": 256} if small else {}
    pairs = {(item.served.shape, item.served.batching) for item in agenda(small)}
    return {
        (shape, batching): Setup(shape, batching, device, ops, memory_bytes=memory, **limits)
        for shape, batching in pairs
    }


def follow(
    items: tuple[Item, ...],
    kept: Kept,
    card: Card,
    session: Session,
    setups: dict[tuple[str, str], Setup],
    ends_s: float,
) -> int:
    """Measure items until none fits any more; how many are left."""
    failures: dict[str, int] = {}
    given_up: set[str] = set()
    try:
        while True:
            done = set(session.done()) | given_up
            highest = highest_rates(session)
            left_s = ends_s - time.monotonic()
            item = next_item(items, done, left_s, card, highest, session.running)
            if item is None:
                return sum(item.key not in session.done() for item in items)
            users = users_of(item, highest, card)
            assert users is not None, "an item whose load is unknown is never next"
            log.info("%s, about %.0f of %.0f s", item.key, card.expected_s(item, users), left_s)
            try:
                session.serve(item.served, setups[item.served.shape, item.served.batching], left_s)
                session.measure(item, users, highest, ends_s)
            except CalibrationError as error:
                log.info("%s: %s", item.key, error)
                failures[item.key] = failures.get(item.key, 0) + 1
                session.stop()
                if failures[item.key] >= MOST_FAILURES:
                    given_up.add(item.key)
                if sum(failures.values()) >= 2 * MOST_FAILURES and not session.done():
                    log.info("no level could be measured: see server-*.log")
                    return len(items)
            kept.save()
    finally:
        session.stop()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    measure()
