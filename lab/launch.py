"""Start a program that dies with its parent, on some cores: `launch.py CORES PROGRAM ARGUMENTS...` (Linux; as a file).

CORES is a list such as 0,2, or an empty text for all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:  # the parent was gone before the line above
        sys.exit(1)
    if sys.argv[1]:
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    os.execv(sys.argv[2], sys.argv[2:])
