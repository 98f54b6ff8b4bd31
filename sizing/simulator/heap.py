"""A binary min-heap of running sequences, ordered by the decode step at which each finishes; compiled by numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from threading import local
from time import thread_time
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import event
from numpy.typing import NDArray

from sizing.budget import unbilled

Compiled = TypeVar("Compiled", bound=Callable[..., object])
Heap = NDArray[np.int64]

REQUEST_BITS = 24
MAX_REQUESTS = 1 << REQUEST_BITS
"""Requests one simulation can hold: a heap key is (finishing step, request) packed in one integer."""

_FOLDER = Path(__file__).parent
_BESIDE = ("replica.py", "steptime.py", "workload.py")
STAMPED = (*sorted(_FOLDER.glob("*.py")), *(_FOLDER.parent / name for name in _BESIDE))
"""The files that machine code is made of: kernels, and the modules whose constants are frozen into them."""
_SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in STAMPED)).hexdigest()


def compiled(function: Compiled) -> Compiled:
    """`function` compiled to machine code on first use, and kept on disk for the next process.

    numba drops kept code when the function's own file changes, not when a function that it calls or a constant that it
    uses does, in another file. So the stamp on the code holds all files of STAMPED. Functions are inlined where they
    are called: a run is three times as fast for it.
    """
    return _compiled(function, inlined=True)


def compiled_apart(function: Compiled) -> Compiled:
    """The same for what happens rarely: it is called, not inlined, and compiling takes less time."""
    return _compiled(function, inlined=False)


def _compiled(function: Compiled, inlined: bool) -> Compiled:
    kernel: Any = njit(cache=True, nogil=True, error_model="numpy", forceinline=inlined)(function)
    kept = kernel._cache._cache_file
    kept._source_stamp = (kept._source_stamp, _SOURCES)
    return cast(Compiled, kernel)


class _Compiling(event.Listener, local):
    """Takes compiling, a minute once on a machine, out of what a question may cost; one compilation calls others."""

    depth, began_s = 0, 0.0

    def on_start(self, _: event.Event) -> None:
        if self.depth == 0:
            self.began_s = thread_time()
        self.depth += 1

    def on_end(self, _: event.Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            unbilled(thread_time() - self.began_s)


event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


@compiled
def push(heap: Heap, size: int, step: int, request: int) -> None:
    """Add a request that finishes at `step` to a heap of `size` keys; the caller counts."""
    key = (step << REQUEST_BITS) | request
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if heap[parent] <= key:
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = key


@compiled
def pop(heap: Heap, size: int) -> int:
    """Remove and return the request that finishes first (lowest index on ties)."""
    request = heap[0] & (MAX_REQUESTS - 1)
    last = size - 1
    key = heap[last]
    hole = 0
    child = 1
    while child < last:
        if child + 1 < last and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[hole] = heap[child]
        hole = child
        child = 2 * hole + 1
    heap[hole] = key
    return int(request)


@compiled
def first_step(heap: Heap) -> int:
    """The decode step at which the next sequence finishes."""
    return int(heap[0] >> REQUEST_BITS)


@compiled
def request_at(heap: Heap, place: int) -> int:
    """The request at one place of the heap, 0 to size - 1, in no particular order."""
    return int(heap[place] & (MAX_REQUESTS - 1))


@compiled
def step_at(heap: Heap, place: int) -> int:
    """The decode step at which the sequence at one place finishes."""
    return int(heap[place] >> REQUEST_BITS)


@compiled
def remove(heap: Heap, size: int, place: int) -> None:
    """Take out the sequence at one place; those after it are pushed again, which is quick: they are ordered already."""
    kept = place
    for later in range(place + 1, size):
        push(heap, kept, step_at(heap, later), request_at(heap, later))
        kept += 1
