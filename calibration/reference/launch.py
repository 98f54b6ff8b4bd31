"""Start a program that dies with its parent: `launch.py PROGRAM ARGUMENTS...` (Linux; run as a file)."""

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
    os.execv(sys.argv[1], sys.argv[1:])
