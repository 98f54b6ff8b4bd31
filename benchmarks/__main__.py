"""``make bench``: every benchmark of this folder, one after the other in one run, so that their figures compare."""

from __future__ import annotations

import runpy
from pathlib import Path

ATTENDED = ("__init__", "__main__", "accuracy", "waits")
UNATTENDED = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ATTENDED)

for name in UNATTENDED:
    print(f"\n== {name}", flush=True)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
