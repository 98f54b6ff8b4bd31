"""``make bench``, after ``sizing bench``: every benchmark of this folder in one run, so that their figures compare.

Run: python -m validation.speed, or with names: python -m validation.speed identity
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ATTENDED = (
    "__init__",
    "__main__",
    "accuracy",
    "behind_triton",
    "golden",
    "waits",
    "identity_burst",
    "parity",
    "identity_llama",
    "identity_server",
)
UNATTENDED = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ATTENDED)

wanted = sys.argv[1:]
sys.argv[1:] = []
for name in wanted or UNATTENDED:
    print(f"\n== {name}", flush=True)
    runpy.run_module(f"validation.speed.{name}", run_name="__main__")
