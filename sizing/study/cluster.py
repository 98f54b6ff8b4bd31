"""Items on a Dask cluster: workers may come, go and die while the study runs.

dask scheduler                                   on one machine, which prints its address
dask worker tcp://HOST:8786 --nthreads 1         on every other, where this package can be imported
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sizing.errors import ScenarioError

WAIT_S = 20
"""How long a scheduler, then its first worker, is waited for."""
RETRIES = 2
"""Tries more for an item that raises: a worker short of memory or disk is not the item's fault."""


def on_cluster(job: Callable[[int, Any], Any], items: Mapping[int, Any], address: str) -> Iterator[tuple[int, Any]]:
    """Places and results of ``job(place, item)``, as they come.

    Items are tasks of their own: when a worker dies, the scheduler gives its items, those done but not fetched too, to
    others. Raises ScenarioError when nobody answers at the address, no worker is there, or one has other code.
    """
    from distributed import Client, as_completed  # 1 s to import: only studies on a cluster pay for it

    try:
        client = Client(address, timeout=WAIT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ScenarioError(f"cluster {address}: no Dask scheduler answers there ({error})") from None
    with client:
        _check_workers(client, address)
        places = {client.submit(job, place, item, pure=False, retries=RETRIES): place for place, item in items.items()}
        for future in as_completed(list(places), loop=client.loop):  # type: ignore[no-untyped-call]
            place = places.pop(future)
            yield place, future.result()
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
            raise ScenarioError(
                f"cluster {address}: worker {worker} {why}; install the same package, Python and numpy there"
            )


def code() -> tuple[str, str, str]:
    """What results depend on: versions of Python and numpy, and a hash of this package's sources."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return ".".join(platform.python_version_tuple()[:2]), np.__version__, digest.hexdigest()
