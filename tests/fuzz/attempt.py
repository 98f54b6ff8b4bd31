"""One input given to one reader, under limits of memory and time: what came of it."""

from __future__ import annotations

import faulthandler
import gc
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.readers import TYPED, Read

MOST_MB = 512
MOST_S = 10.0
LONGEST_LINE = 300
WATCHDOG_S = 120.0
"""Of wall clock, after which a call that does not come back from C is ended with its process."""
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Came:
    """What came of an input. `fault` is empty where it was read or refused as it should be.

    `refused`: the reader raised an error of its package. `cpu_s` of this process, `peak_mb` above what it held before.
    """

    fault: str
    refused: bool
    cpu_s: float
    peak_mb: float


class Overtime(BaseException):
    """The reader took more than `MOST_S` of CPU; no Exception, so that no reader takes it for a fault of the input."""


def attempt(read: Read, raw: bytes, folder: Path, most_s: float = MOST_S, most_mb: float = MOST_MB) -> Came:
    """Give `raw` to a reader, in an empty `folder` that is gone afterwards."""
    folder.mkdir(parents=True)
    refused, fault = False, ""
    before_mb, start_s = _memory_mb("VmRSS"), time.process_time()
    _reset_peak()
    try:
        with _within(most_s):
            read(raw, folder)
    except TYPED as error:
        refused, fault = True, _unfit(str(error))
    except Overtime:
        fault = f"time: over {most_s:g} s of CPU"
    except Exception as error:
        where = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[:-6:-1]
        )
        fault = f"traceback: {type(error).__name__}: {str(error)[:200]} ({where})"
    cpu_s, peak_mb = time.process_time() - start_s, _memory_mb("VmHWM") - before_mb
    shutil.rmtree(folder, ignore_errors=True)
    if peak_mb > 50:
        gc.collect()
    if not fault and cpu_s > most_s:
        fault = f"time: {cpu_s:.1f} s of CPU"
    if not fault and peak_mb > most_mb:
        fault = f"memory: {peak_mb:.0f} MB"
    return Came(fault, refused, cpu_s, peak_mb)


def _unfit(line: str) -> str:
    if "\n" in line or len(line) > LONGEST_LINE:
        return f"line: {len(line)} characters, {line.count(chr(10))} breaks: {line[:100]!r}"
    return ""


@contextmanager
def _within(most_s: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Overtime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, most_s)
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _memory_mb(field: str) -> float:
    """VmRSS, what the process holds now, or VmHWM, the most it held since the last `_reset_peak`."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
