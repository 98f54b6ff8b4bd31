"""``python -m sizing``: the planner on the command line."""

import gc

from sizing.cli import main

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python's 700 would search the objects of all modules again and again while they load: a tenth of a short run."""

if __name__ == "__main__":
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    main()
