"""Functions compiled to machine code by numba, which is kept on disk and made again where it is stale."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import local
from time import thread_time
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import event

from sizing.budget import unbilled

Compiled = TypeVar("Compiled", bound=Callable[..., object])
_FOLDER = Path(__file__).parent
_BESIDE = ("compiled.py", "engine.py", "workload.py")
STAMPED = (*sorted((_FOLDER / "simulator").glob("*.py")), *(_FOLDER / name for name in _BESIDE))
"""The files that machine code is made of: kernels, and the modules whose constants are frozen into them."""
_SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in STAMPED)).hexdigest()


def compiled(function: Compiled) -> Compiled:
    """`function` compiled to machine code on first use, and kept on disk for the next process.

    numba drops cached code when the function's own file changes, not when a function or constant that it
    uses changes in another file. So the stamp on the code covers all files of STAMPED. Functions are inlined where they
    are called: a run is three times as fast for it.
    """
    return _compiled(function, inlined=True)


def compiled_apart(function: Compiled) -> Compiled:
    """The same for rare events: called, not inlined, so that compiling takes less time."""
    return _compiled(function, inlined=False)


def _compiled(function: Compiled, inlined: bool) -> Compiled:
    kernel: Any = njit(cache=True, nogil=True, error_model="numpy", forceinline=inlined)(function)
    kept = kernel._cache._cache_file
    kept._source_stamp = (kept._source_stamp, _SOURCES)
    return cast(Compiled, kernel)


_compilers: set[int] = set()


def has_compiled() -> bool:
    """Whether this process has compiled anything, not one that it was forked from: the compiler holds hundreds of MB
    from then on."""
    return os.getpid() in _compilers


class _Compiling(event.Listener, local):
    """Excludes compilation, a minute once per machine, from a question's time limit; compilations nest."""

    depth, began_s = 0, 0.0

    def on_start(self, _: event.Event) -> None:
        if self.depth == 0:
            self.began_s = thread_time()
            if not has_compiled() and sys.stderr.isatty():
                sys.stderr.write("Compiling the simulator, once after an installation or update: some minutes.\n")
        self.depth += 1

    def on_end(self, _: event.Event) -> None:
        self.depth -= 1
        _compilers.add(os.getpid())
        if self.depth == 0:
            unbilled(thread_time() - self.began_s)


event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]
