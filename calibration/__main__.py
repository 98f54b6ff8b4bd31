"""``python -m calibration``, or the script ``sizing-calibrate``: measurements on the command line."""

import os

# As in `sizing.__main__`: on several cores `size` spent five times as much CPU, most of it in threads that wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from calibration.cli import main

if __name__ == "__main__":
    main()
