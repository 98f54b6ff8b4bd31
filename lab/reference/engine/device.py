"""The device on which the engine computes here: a program of the reference environment, it prints one line of JSON."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version


def describe(wanted: str) -> dict[str, str]:
    """`device` cpu or cuda, the GPU's name ("" on a CPU), torch's version and the number format used there.

    Raises ValueError if cuda is wanted and torch sees none. A CPU build of torch is known by the version of its wheel:
    importing torch to ask it would take two seconds of CPU at every start of a server.
    """
    built, gpu = version("torch"), ""
    if not built.endswith("+cpu"):
        import torch

        built = str(torch.__version__)
        gpu = torch.cuda.get_device_name() if wanted != "cpu" and torch.cuda.is_available() else ""
    if wanted == "cuda" and not gpu:
        raise ValueError("torch sees no CUDA device")
    return {
        "device": "cuda" if gpu else "cpu",
        "gpu": gpu,
        "torch": built,
        "precision": "bf16" if gpu else "fp32",
    }


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(describe(sys.argv[1])))
    except ValueError as error:
        sys.exit(str(error))
