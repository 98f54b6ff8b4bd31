"""Runs a program of engine scenarios in the reference environment, which alone has torch."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from lab.environment import PROJECT, ensure
from lab.reference.server import TRITON

SMALL = {
    "device": "cpu",
    "threads": "1",
    "precision": "fp32",
    "hidden": "64",
    "layers": "2",
    "heads": "4",
    "kv_heads": "2",
    "vocab_size": "300",
    "seed": "7",
    "max_sequence_tokens": "128",
    "kv_tokens": "256",
    "max_batch_size": "6",
    "token_budget": "40",
    "enable_chunked_context": "True",
    "gpt_model_type": "inflight_fused_batching",
    "batch_delay_s": "0",
}


def run(program: str, *scenarios: dict[str, Any]) -> list[Any]:
    """Run scenarios in one process; what `program`, a file beside this one, prints about each."""
    ready = ensure(TRITON)
    answer = subprocess.run(
        [str(ready.python), str(Path(__file__).with_name(program))],
        input=json.dumps(scenarios),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONWARNINGS": "error"},
    )
    assert answer.returncode == 0, answer.stderr
    found: list[Any] = json.loads(answer.stdout)
    return found
