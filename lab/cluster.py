"""The items of a study on a Dask cluster; workers may come, go and die while it runs.

dask scheduler                                   on one machine; it prints its address
dask worker tcp://HOST:8786 --nthreads 1         on the others, where this package can be imported

Dask asks for no password, and anyone who can reach the scheduler's port can run code there: use it only inside a
trusted network.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sizing.analyses.parallel import PACKAGES, WorkersLost, code
from sizing.errors import ScenarioError

WAIT_S = 20
"""Time to wait for a scheduler, and then for its first worker."""
DESERTED_AFTER_S = 60.0
"""A study ends once the cluster has had no worker for this long; without this limit it would never end."""
LOOK_EVERY_S = 2.0
RETRIES = 2
"""Retries of an item that raises: a worker may be short of memory or disk."""
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
    """Places and results of ``job(place, item)``, in the order of completion.

    Each item is a task: when a worker dies, the scheduler gives its items, including those that are done but not
    fetched, to other workers.

    Raises ScenarioError if no scheduler answers at the address, if there is no worker, or if one has other code;
    WorkersLost if an item's workers die repeatedly, if there is no worker for `DESERTED_AFTER_S`, or if the scheduler
    goes away.
    """
    from distributed import Client, KilledWorker, as_completed  # 1 s to import: only studies on a cluster pay for it
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import NoWorkerError

    try:
        client = Client(address, timeout=WAIT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ScenarioError(f"cluster {address}: no Dask scheduler answers there ({error})") from None
    with client:
        _check_workers(client, address)
        same = SameCode(job, code())
        left = {client.submit(same, place, item, pure=False, retries=RETRIES): place for place, item in items.items()}
        with _cancelled_when_deserted(client, left) as deserted:
            for future in as_completed(list(left), loop=client.loop):  # type: ignore[no-untyped-call]
                place = left[future]
                try:
                    result = future.result()
                except NoWorkerError as error:  # of a scheduler whose own `no-workers-timeout` is shorter than ours
                    raise WorkersLost(_deserted(address, error.timeout, len(left))) from None
                except (KilledWorker, CommClosedError, CancelledError) as error:
                    if deserted.is_set():
                        raise WorkersLost(_deserted(address, DESERTED_AFTER_S, len(left))) from None
                    why = " ".join(str(error).split())
                    raise WorkersLost(
                        f"cluster {address}: item {place + 1} was lost with its workers ({why})"
                    ) from None
                yield place, result
                del left[future]
                future.release()


@contextmanager
def _cancelled_when_deserted(client: Any, futures: Collection[Any]) -> Iterator[threading.Event]:
    """Cancel the futures once the cluster has had no worker for `DESERTED_AFTER_S`; the event is set just before.

    Dask itself sets no limit to the wait for a worker, whether an item is unfinished or its result was lost before it
    was fetched. A scheduler that does not answer is another matter, which the client notices by itself.
    """
    over, deserted = threading.Event(), threading.Event()

    def watch() -> None:
        seen_s = time.monotonic()
        while not over.wait(LOOK_EVERY_S):
            try:
                if client.status != "running" or client.nthreads():
                    seen_s = time.monotonic()
            except OSError:
                seen_s = time.monotonic()
            if time.monotonic() - seen_s >= DESERTED_AFTER_S:
                deserted.set()
                client.cancel(list(futures))
                return

    thread = threading.Thread(target=watch, daemon=True, name="watch over the cluster's workers")
    thread.start()
    try:
        yield deserted
    finally:
        over.set()
        thread.join(LOOK_EVERY_S)  # it may be waiting for a scheduler that is gone; closing the client ends that


def _deserted(address: str, silent_s: float, left: int) -> str:
    return (
        f"cluster {address}: it has had no workers for {silent_s:g} s, with {left} items left; start "
        f"`dask worker {address}`, and repeat the command"
    )


def _check_workers(client: Any, address: str) -> None:
    """Refuse workers with other code, because their results would differ."""
    try:
        client.wait_for_workers(1, timeout=WAIT_S)
    except TimeoutError:
        raise ScenarioError(f"cluster {address}: it has no workers; start `dask worker {address}`") from None
    here = code()
    for worker, there in client.run(code, on_error="return").items():
        if there != here:
            why = f"cannot run this package ({there})" if isinstance(there, Exception) else "has other versions"
            raise ScenarioError(f"cluster {address}: worker {worker} {why}; {OTHER_CODE}")
