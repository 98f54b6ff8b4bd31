"""Work on many items: in this process, on all cores, or on a Dask cluster, bit for bit the same wherever it runs.

What an item draws at random depends on its place in the list and the seed alone, never on who computes it or when:
`numpy.random.SeedSequence(seed).spawn(n)[place]`. An item whose worker dies is computed again by another.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from numpy.random import SeedSequence
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sizing import files
from sizing.errors import ScenarioError, SizingError

CLUSTER = "lab.cluster"
"""Found by name: few installations have a cluster."""
PACKAGES = ("numpy", "scipy", "numba")
"""Libraries that compute results: another version may give other numbers."""


class WorkersLost(SizingError):
    """Worker processes died again and again, or the cluster is gone."""


@cache
def code() -> tuple[str, ...]:
    """What results depend on: versions of Python and of PACKAGES, a hash of this package's sources and of its data."""
    data = [path for name in ("data/catalog", "data/laws") for path in files.resource(name).rglob("*")]
    named = {path.relative_to(files.IMPORTED_FROM).as_posix(): path for path in files.PACKAGE.rglob("*.py")}
    named |= {path.relative_to(files.SHIPPED).as_posix(): path for path in data if path.is_file()}
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(name.encode() + named[name].read_bytes())
    return ".".join(platform.python_version_tuple()[:2]), *map(_version, PACKAGES), digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return ""


Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item, SeedSequence], Result]
LIVES = 4
"""How often the worker processes may die before a study gives up: an item that kills every worker would never end."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Where work runs: `cluster`, the address of a Dask scheduler such as ``tcp://10.0.0.5:8786``, or else this machine
    with `processes` processes (0: one for each core; 1: in this process)."""

    processes: int = 0
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise ScenarioError(f"processes must be 0 (one for each core) or more, got {self.processes}")
        if self.cluster and not re.fullmatch(r"(tcp|tls|ws|wss)://[^:/]+:\d+", self.cluster):
            raise ScenarioError(f"cluster {self.cluster!r}: write it as tcp://HOST:PORT, as `dask scheduler` prints it")

    @property
    def cores(self) -> int:
        """Processes that work on this machine at once."""
        return self.processes or int(cpu_count())


HERE = Machines()
"""Every core of this machine."""


def run_all(
    work: Work[Item, Result],
    items: Sequence[Item],
    *,
    seed: int = 0,
    machines: Machines = HERE,
    progress: Callable[[int], AbstractContextManager[Callable[[], None]]] | None = None,
) -> list[Result]:
    """The results of ``work(item, seed of its place)`` in the order of the items.

    `work` must be a function that another process can import. `progress`, given the number of items, is entered for
    the time of the work and yields what is called after each (see `bar`). What `work` raises is raised.
    """
    results: dict[int, Result] = {}
    with progress(len(items)) if progress else nullcontext(lambda: None) as step:
        for place, result in completed(work, enumerate(items), seed=seed, machines=machines):
            results[place] = result
            step()
    return [results[place] for place in range(len(items))]


def completed(
    work: Work[Item, Result],
    numbered: Iterable[tuple[int, Item]],
    *,
    seed: int = 0,
    machines: Machines = HERE,
) -> Iterator[tuple[int, Result]]:
    """Places and results as they come, for some (place, item) of a study: the rest may have been done before."""
    job = Seeded(work, seed)
    left = dict(numbered)
    if machines.cluster:
        yield from import_module(CLUSTER).on_cluster(job, left, machines.cluster)
    elif machines.cores == 1 or len(left) < 2:
        yield from ((place, job(place, item)) for place, item in left.items())
    else:
        yield from _on_cores(job, left, machines.cores)


@dataclass(frozen=True, slots=True)
class Seeded:
    """`work` with the seed that belongs to the place of an item."""

    work: Callable[[Any, SeedSequence], Any]
    seed: int

    def __call__(self, place: int, item: Any) -> Any:
        return self.work(item, SeedSequence(self.seed, spawn_key=(place,)))


def _on_cores(job: Seeded, left: dict[int, Any], processes: int) -> Iterator[tuple[int, Any]]:
    """Every core of this machine; what a process that died has left undone goes to new ones."""
    for _ in range(LIVES):
        pool = Parallel(n_jobs=processes, backend="loky", return_as="generator_unordered")
        try:
            for place, result in pool(delayed(_placed)(job, place, item) for place, item in list(left.items())):
                del left[place]
                yield place, result
            return
        except TerminatedWorkerError:
            continue
    raise WorkersLost(
        f"worker processes died {LIVES} times ({len(left)} items left): too little memory? Use fewer processes"
    )


def _placed(job: Seeded, place: int, item: Any) -> tuple[int, Any]:
    return place, job(place, item)


def bar(label: str, done: int = 0) -> Callable[[int], AbstractContextManager[Callable[[], None]]]:
    """What `run_all` takes as `progress`; `done` items were done before. Nothing is drawn off a terminal."""

    @contextmanager
    def drawn(total: int) -> Iterator[Callable[[], None]]:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        progress = Progress(
            TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal
        )
        with progress:
            task = progress.add_task(label, total=total, completed=done)
            yield lambda: progress.advance(task)

    return drawn
