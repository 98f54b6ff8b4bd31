"""The pace of a GPU for an engine on a CPU: how long each step lasts, from a database of kernel timings.

On a CPU, steps are long and occupy the cores that the API server and the client need; on a GPU they do not. With a
model so small that its own steps hardly count, and step times from a table, an engine runs as it does with a GPU. What
is measured then is its scheduler, its cache and its servers at the pace of the kernels, repeatable at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from calibration.errors import ServerError
from sizing import catalog
from sizing.catalog import Layout
from sizing.errors import CatalogueError, EstimateUnavailable
from sizing.estimate import kernels

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
CONTEXTS = (32, 128, 256, 512, 1024, 2048, 4096)
SMALLEST: Mapping[str, Any] = {"hidden": 64, "layers": 1, "heads": 2, "kv_heads": 1}
"""The model that is actually computed: the smallest that vLLM's attention on CPUs accepts."""
PACED = Path(__file__).with_name("paced")
"""Folder of what engines run in their own environments to keep a pace."""
FORM = "MODEL,GPU,TP,PRECISION"
PROMPT_TOKENS = (16, 64, 128, 256, 512, 768, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Pace:
    """The GPU whose steps are imitated: a model of the catalogue on `tp` GPUs, by the kernel timings of `engine`."""

    model: str
    gpu: str
    tp: int
    precision: str
    engine: str = "vllm"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``Qwen/Qwen3-32B,h100_sxm,2,bf16``. Raises ServerError, one line, for anything else.

        >>> Pace.parse("Qwen/Qwen3-32B,h100_sxm,2,bf16").tp
        2
        """
        match text.split(","):
            case [model, gpu, tp, precision] if tp.isdecimal():
                return cls(model, gpu, int(tp), precision)
        raise ServerError(f"--pace {text}: must be {FORM}, such as Qwen/Qwen3-32B,h100_sxm,2,bf16")

    def write(self, file: Path) -> None:
        """Write the step times as JSON: seconds by decoding sequences and their mean context, and by prompt tokens,
        decoding sequences in the same step and mean context. Raises ServerError if there are no timings."""
        try:
            model, chip = catalog.model(self.model), catalog.gpu(self.gpu)
            precision = catalog.precision_named(self.precision) or self.precision
            engine = kernels.open_engine(model, chip.id, self.engine, Layout(self.tp), precision)
        except (CatalogueError, EstimateUnavailable) as error:
            raise ServerError(
                f"no step times for {self.model} on {self.tp} {self.gpu} in {self.precision}: {error}"
            ) from None
        decode = [[engine.decode_s(batch, context) for context in CONTEXTS] for batch in BATCHES]
        mixed = [
            [[engine.mixed_s(tokens, batch, context) for context in CONTEXTS] for batch in (0, *BATCHES)]
            for tokens in PROMPT_TOKENS
        ]
        tables = {
            "decode": {"axes": (BATCHES, CONTEXTS), "seconds": decode},
            "mixed": {"axes": (PROMPT_TOKENS, (0, *BATCHES), CONTEXTS), "seconds": mixed},
        }
        file.write_text(json.dumps(tables))
