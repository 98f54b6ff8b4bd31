"""Cores: on a machine without GPU the engine's cores are the device, and nothing else may compute on them meanwhile.

Sharing them, the local server gave up to a third fewer requests/s, and its ITL moved by half between runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


def usable() -> set[int]:
    """The cores this process may use; empty where the system does not tell (it is not Linux)."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def of_engine(threads: int) -> tuple[int, ...]:
    """The last `threads` usable cores, for the engine alone; none where that would leave no core for the rest."""
    cores = sorted(usable())
    return tuple(cores[-threads:]) if len(cores) > threads else ()


def stay_on(cores: Iterable[int]) -> None:
    """Bind every thread of this process, and those they start, to `cores`; nothing happens for none."""
    if wanted := set(cores):
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), wanted)


@contextmanager
def kept_off(cores: Iterable[int]) -> Iterator[None]:
    """Meanwhile this process uses its other cores only, if it has any."""
    before = usable()
    stay_on(before - set(cores))
    try:
        yield
    finally:
        stay_on(before)


def written(cores: Iterable[int]) -> str:
    """Cores as a parameter's text: ``1,2``."""
    return ",".join(map(str, cores))


def read(text: str) -> tuple[int, ...]:
    """Cores from a parameter's text; none if it is not a list of numbers.

    >>> read("1,2"), read("${engine_cores}")
    ((1, 2), ())
    """
    parts = text.split(",")
    return tuple(map(int, parts)) if all(part.strip().isdigit() for part in parts) else ()
