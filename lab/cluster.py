"""Items on a Dask cluster: workers may come, go and die while the study runs.

dask scheduler                                   on one machine, which prints its address
dask worker tcp://HOST:8786 --nthreads 1         on every other, where this package can be imported

Dask asks for no password: whoever reaches the scheduler's port can run code there. For trusted networks only.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from sizing.analyses.study import PACKAGES, WorkersLost, code
from sizing.errors import ScenarioError

WAIT_S = 20
"""How long a scheduler, then its first worker, is waited for."""
RETRIES = 2
"""Tries more for an item that raises: a worker short of memory or disk is not the item's fault."""
OTHER_CODE = "install the same package, data, Python, " + ", ".join(PACKAGES) + " there"


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
        left = {client.submit(same, place, item, pure=False, retries=RETRIES): place for place, item in items.items()}
        for future in as_completed(list(left), loop=client.loop):  # type: ignore[no-untyped-call]
            place = left.pop(future)
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
