"""The engine for GPUs, on a CPU: a prompt gives the same logits however its tokens are spread over passes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lab.environment import PROJECT, ensure
from lab.reference.server import TRITON


@pytest.mark.triton
def test_pieces_decoding_and_company_do_not_change_the_logits() -> None:
    ready = ensure(TRITON)
    program = Path(__file__).with_name("forward.py")
    variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([str(ready.python), str(program)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"pieces", "decoded", "beside another", "the other"}
    assert max(found.values()) < 1e-5, found
