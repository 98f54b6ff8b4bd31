"""A campaign of kill -9: `calibration run` and `resume` are killed at random moments, and no recorded level is lost.

    python -m tests.calibration.kills --kills 25 --store sqlite --seed 1
    python -m tests.calibration.kills --kills 25 --store postgresql --seed 1

The mock is measured level by level in short levels. A sweep is killed again and again, mostly in the middle of a level,
now and then while its process starts or writes; after each kill every level that was told or recorded before must be
there as it was, once, with the log of its requests, and the lock on the server must be free. Sweeps are resumed until
they are done, and new ones begun, until there have been so many kills. The exit code is 1 if anything was lost.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from calibration.plan import level_key
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store.database import RECORDS_VARIABLE
from sizing.points import Point
from tests.calibration.mock_server import ROOT, Script, subprocess_server
from tests.calibration.postgres import new_schema, postgres, wheel

LEVELS = 12
LEVEL_S = 0.4
KILLED_WITHIN_S = 9.0
ENDS_WITHIN_S = 300.0
TOLD = re.compile(r"^ISL 6, OSL 4, concurrency (\d+): .* requests/s", re.MULTILINE)
"""What is printed as soon as a level is recorded."""


@dataclass
class Campaign:
    """What has been seen so far: `recorded` are all points of each run, as they were when they were first there."""

    store: Store
    recorded: dict[int, list[Point]] = field(default_factory=dict)
    kills: int = 0
    in_levels: int = 0
    faults: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Compare the store with what was recorded before; what is new is recorded."""
        for run in self.store.runs():
            now = self.store.points(run.id, as_measured=True)
            before = self.recorded.get(run.id, [])
            if now[: len(before)] != before:
                self.faults.append(f"run {run.id}: of {len(before)} points before, some are gone or changed")
            keys = [level_key(point) for point in now]
            if len(set(keys)) != len(keys):
                self.faults.append(f"run {run.id}: a level is there twice")
            for point in now[len(before) :]:
                log = self.store.log(run.id, level_key(point))
                if log is None or len(log) < (point.requests or 1):
                    self.faults.append(f"run {run.id}: the requests of {point.load_value:g} users are not all there")
            self.recorded[run.id] = now

    @property
    def levels(self) -> int:
        """Levels that are recorded."""
        return sum(map(len, self.recorded.values()))


def campaign(url: str, folder: Path, server: str, kills: int, seed: int, says: Callable[[str], None]) -> Campaign:
    """Kill sweeps of the mock at `server`, host:port, with their points in the database `url`, so many times."""
    rng, seen = random.Random(seed), Campaign(Store(url))
    plan = folder / "plan.yaml"
    plan.write_text(
        f"server: {{url: '{server}'}}\nlengths: [{{isl: 6, osl: 4, isl_cv: 0, osl_cv: 0}}]\n"
        f"concurrency: {list(range(1, LEVELS + 1))}\nuntil: {{half_width: 0.001}}\nbudget_s: {LEVEL_S}\n"
        "check_load: 0\nclient: {self_check: false}\n"
    )
    command = ["run", str(plan)]
    while True:
        delay_s = rng.uniform(0.0, KILLED_WITHIN_S) if seen.kills < kills else ENDS_WITHIN_S
        code, told = _killed_after(command, url, folder, delay_s)
        seen.look()
        runs = seen.store.runs()
        there = {point.load_value for point in seen.recorded[runs[0].id]} if runs else set()
        if not {float(users) for users in TOLD.findall(told)} <= there:
            seen.faults.append(f"run {runs[0].id if runs else 0}: a level was told and is not there: {told}")
        if code == -signal.SIGKILL and delay_s < ENDS_WITHIN_S:
            seen.kills += 1
            state = runs[0].state if runs else "not begun"
            seen.in_levels += state == "lost"
            says(f"kill {seen.kills} after {delay_s:.2f} s: run {state}, {seen.levels} levels recorded")
        elif code != 0:
            seen.faults.append(f"{' '.join(command[:2])} ended with exit code {code}: {told[-300:].strip()}")
            return seen
        if runs and runs[0].state != "done":
            command = ["resume", str(runs[0].id)]
            continue
        if runs:
            _check_whole(seen, runs[0].id)
            if seen.kills >= kills:
                return seen
        command = ["run", str(plan)]


def _check_whole(seen: Campaign, run_id: int) -> None:
    users = [point.load_value for point in seen.recorded[run_id]]
    if users != list(range(1, LEVELS + 1)):
        seen.faults.append(f"run {run_id} is done with the levels {users}")


def _killed_after(command: list[str], url: str, folder: Path, delay_s: float) -> tuple[int, str]:
    """Exit code of the command, killed with -9 if it has not ended after `delay_s`, and what it said."""
    environment = os.environ | {DATABASE_VARIABLE: url, RECORDS_VARIABLE: str(folder / "records")}
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "calibration", *command], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.seek(0)
        return process.returncode, said.read()


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of that kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'points.db'}"
        return
    package = wheel()
    if package is None:
        raise click.ClickException("there is no PostgreSQL in a wheel for this system")
    with postgres(package) as socket:
        yield new_schema(socket, "kills")


@click.command()
@click.option("--kills", type=click.IntRange(1), default=25, show_default=True)
@click.option("--store", type=click.Choice(["sqlite", "postgresql"]), default="sqlite", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(kills: int, store: str, seed: int) -> None:
    """Kill sweeps of the mock with -9, and count what is lost."""
    begun_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as name,
        database(store, Path(name)) as url,
        subprocess_server(Script(ttft_s=0.004, itl_s=0.001)) as server,
    ):
        os.environ[RECORDS_VARIABLE] = str(Path(name) / "records")
        seen = campaign(url, Path(name), server, kills, seed, click.echo)
        runs = len(seen.recorded)
    for fault in seen.faults:
        click.echo(f"LOST: {fault}")
    click.echo(
        f"{store}: {seen.kills} kills, {seen.in_levels} of them of a run under way; {seen.levels} levels recorded in "
        f"{runs} runs, {len(seen.faults)} lost or doubled; {time.monotonic() - begun_s:.0f} s"
    )
    sys.exit(1 if seen.faults else 0)


if __name__ == "__main__":
    main()
