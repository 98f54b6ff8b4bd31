"""``python -m sizing``: the planner on the command line."""

import gc
import os

# numpy's linear algebra reads it once, when it loads: on systems this small more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sizing.cli.main import main

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python's 700 would search the objects of all modules again and again while they load: a tenth of a short run."""

if __name__ == "__main__":
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    main()
