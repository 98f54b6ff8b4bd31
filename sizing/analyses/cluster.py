"""Items on a Dask cluster: workers may come, go and die while the study runs.

dask scheduler                                   on one machine, which prints its address
dask worker tcp://HOST:8786 --nthreads 1         on every other, where this package can be imported

Dask asks for no password: whoever reaches the scheduler's port can run code there. For trusted networks only.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sizing import places
from sizing.errors import ScenarioError, SizingError

WAIT_S = 20
"""How long a scheduler, then its first worker, is waited for."""
RETRIES = 2
"""Tries more for an item that raises: a worker short of memory or disk is not the item's fault."""
PACKAGES = ("numpy", "scipy", "numba", "aiconfigurator-core")
"""What computes beside this package: another version may give other numbers."""
OTHER_CODE = "install the same package, data, Python, " + ", ".join(PACKAGES) + " there"


class WorkersLost(SizingError):
    """Worker processes died again and again, or the cluster is gone."""


@dataclass(frozen=True, slots=True)
class SameCode:
    """A job that runs only where the code is `expected`: a worker may join after the study has begun."""

    job: Callable[[int, Any], Any]
    expected: tuple[str, ...]

    def __call__(self, place: int, item: Any) -> Any:
        if code() != self.expected:
            raise ScenarioError(f"the cluster's worker on {platform.node()} has other versions; {OTHER_CODE}")
        return self.job(place, item)


def on_cluster(job: Callable[[int, Any], Any], items: Mapping[int, Any], address: str) -> Iterator[tuple[int, Any]]:
    """Places and results of ``job(place, item)``, as they come.

    Items are tasks of their own: when a worker dies, the scheduler gives its items, those done but not fetched too, to
    others. Raises ScenarioError when nobody answers at the address, no worker is there, or one has other code;
    WorkersLost when an item's workers die again and again, or the scheduler goes away.
    """
    from distributed import Client, KilledWorker, as_completed  # 1 s to import: only studies on a cluster pay for it
    from distributed.comm.core import CommClosedError

    try:
        client = Client(address, timeout=WAIT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ScenarioError(f"cluster {address}: no Dask scheduler answers there ({error})") from None
    with client:
        _check_workers(client, address)
        same = SameCode(job, code())
        places = {client.submit(same, place, item, pure=False, retries=RETRIES): place for place, item in items.items()}
        for future in as_completed(list(places), loop=client.loop):  # type: ignore[no-untyped-call]
            place = places.pop(future)
            try:
                result = future.result()
            except (KilledWorker, CommClosedError, CancelledError) as error:
                why = " ".join(str(error).split())
                raise WorkersLost(f"cluster {address}: item {place + 1} was lost with its workers ({why})") from None
            yield place, result
            future.release()


def _check_workers(client: Any, address: str) -> None:
    """Workers with other code would answer another question: better none."""
    try:
        client.wait_for_workers(1, timeout=WAIT_S)
    except TimeoutError:
        raise ScenarioError(f"cluster {address}: it has no workers; start `dask worker {address}`") from None
    here = code()
    for worker, there in client.run(code, on_error="return").items():
        if there != here:
            why = f"cannot run this package ({there})" if isinstance(there, Exception) else "has other versions"
            raise ScenarioError(f"cluster {address}: worker {worker} {why}; {OTHER_CODE}")


@cache
def code() -> tuple[str, ...]:
    """What results depend on: versions of Python and of PACKAGES, a hash of this package's sources and of its data."""
    data = [path for name in ("data/catalog", "data/laws") for path in places.resource(name).rglob("*")]
    named = {path.relative_to(places.IMPORTED_FROM).as_posix(): path for path in places.PACKAGE.rglob("*.py")}
    named |= {path.relative_to(places.SHIPPED).as_posix(): path for path in data if path.is_file()}
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(name.encode() + named[name].read_bytes())
    return ".".join(platform.python_version_tuple()[:2]), *map(_version, PACKAGES), digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
