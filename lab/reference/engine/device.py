"""Which device the engine computes on here: run as a program in the reference environment, it prints one JSON line."""

from __future__ import annotations

import json
import sys

import torch


def describe(wanted: str) -> dict[str, str]:
    """`device` cpu or cuda, the GPU's name ("" on a CPU), torch's version and the number format used there."""
    is_cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    return {
        "device": "cuda" if is_cuda else "cpu",
        "gpu": torch.cuda.get_device_name() if is_cuda else "",
        "torch": str(torch.__version__),
        "precision": "bf16" if is_cuda else "fp32",
    }


if __name__ == "__main__":
    if sys.argv[1] == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    sys.stdout.write(json.dumps(describe(sys.argv[1])))
