"""``python -m sizing``, or the script ``sizing``: the planner on the command line."""

import atexit
import gc
import os
from typing import NoReturn

# numpy's linear algebra reads it once, when it loads: on systems this small more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sizing.cli import main

OBJECTS_BETWEEN_COLLECTIONS = 250_000
"""More than the modules of a plan create: with Python's 700, the collector would scan them again and again while they
load, a tenth of a short run."""


def start(program: str = "sizing") -> NoReturn:
    """Answer the command line of this process, called `program` in its help."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)  # else all modules are taken apart object by object at the end, a sixth of a short run
    main(program=program)


if __name__ == "__main__":
    start("python -m sizing")
