"""What-ifs: the plan under changes nobody has measured, each an explicit change of law or scheduling."""

from sizing.whatif.adapters import Lora
from sizing.whatif.comparison import Comparison, what_if
from sizing.whatif.drafting import Medusa, ReDrafter, Speculative
from sizing.whatif.parse import parse_change
from sizing.whatif.pools import Pools, disaggregate
from sizing.whatif.scheduling import BatchLimit, ChunkedPrefill, KvReuse
from sizing.whatif.setup import Setup, WhatIf
from sizing.whatif.weights import AtPrecision, AtTp, Sparse

__all__ = [
    "AtPrecision",
    "AtTp",
    "BatchLimit",
    "ChunkedPrefill",
    "Comparison",
    "KvReuse",
    "Lora",
    "Medusa",
    "Pools",
    "ReDrafter",
    "Setup",
    "Sparse",
    "Speculative",
    "WhatIf",
    "disaggregate",
    "parse_change",
    "what_if",
]
