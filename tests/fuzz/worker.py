"""``python -m tests.fuzz.worker FOLDER SEED FIRST STOP STEP``: reads its inputs, a line of JSON for each."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.campaign import work

if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    seed, first, stop, step = map(int, numbers)
    for result in work(seed, range(first, stop, step), Path(folder)):
        print(json.dumps(asdict(result)), flush=True)
