"""A plan from estimates loads nothing large that it does without: a library costs a fresh process a quarter second."""

from __future__ import annotations

import subprocess
import sys

import pytest

DISPENSABLE = (
    *("scipy.stats", "scipy.optimize", "scipy.interpolate", "scipy.integrate", "rich", "aiconfigurator_core"),
    "sizing.analyses.whatif",
)
PLAN = "plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --isl 100 --osl 10 --rate 1 --ttft p95:1s --json"
ASK = f"""
import sys
from sizing.cli import main
try:
    main({PLAN.split()!r})
except SystemExit as end:
    print("loaded", end.code, *(name for name in {DISPENSABLE!r} if name in sys.modules))
"""


@pytest.mark.long
def test_a_plan_from_estimates_loads_what_it_needs() -> None:
    """The last line names the exit code, 0, and nothing else."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded 0"
