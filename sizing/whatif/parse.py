"""Reads a change from the command line: ``precision=fp8``, ``speculative:draft_tokens=4,acceptance=0.7``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any

from sizing.errors import ScenarioError
from sizing.whatif.adapters import Lora
from sizing.whatif.drafting import Medusa, ReDrafter, Speculative
from sizing.whatif.scheduling import BatchLimit, ChunkedPrefill, KvReuse
from sizing.whatif.setup import WhatIf
from sizing.whatif.weights import AtPrecision, AtTp, Sparse

KINDS: Mapping[str, type[WhatIf]] = MappingProxyType(
    {
        "precision": AtPrecision,
        "tp": AtTp,
        "sparsity": Sparse,
        "speculative": Speculative,
        "medusa": Medusa,
        "redrafter": ReDrafter,
        "kv_reuse": KvReuse,
        "lora": Lora,
        "chunked_prefill": ChunkedPrefill,
        "batch_limit": BatchLimit,
    }
)
_READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType({"int": int, "float": float, "str": str})


def parse_change(text: str) -> WhatIf:
    """One change: ``KIND``, ``KIND=VALUE`` (its first setting) or ``KIND:NAME=VALUE,...``.

    Raises ScenarioError, which names the choices.

    >>> parse_change("precision=fp8")
    AtPrecision(to='fp8')
    >>> parse_change("speculative:draft_tokens=3,acceptance=0.8")
    Speculative(draft_tokens=3, acceptance=0.8, draft_size=0.05)
    >>> parse_change("chunked_prefill=off")
    ChunkedPrefill(chunk=0)
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:([:=])(.*))?", text)
    if not found or found[1] not in KINDS:
        raise ScenarioError(f"--change {text!r}: the changes are {', '.join(KINDS)}")
    kind, sign, rest = KINDS[found[1]], found[2], found[3] or ""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if sign == "=":
        rest = f"{next(iter(known))}={rest}"
    given = dict(_setting(text, part, known) for part in rest.split(",") if part.strip())
    missing = [name for name, field in known.items() if field.default is MISSING and name not in given]
    if missing:
        raise ScenarioError(f"--change {text!r}: give {missing[0]}, for instance {example(found[1])}")
    return kind(**given)


def _setting(text: str, part: str, known: Mapping[str, Field[Any]]) -> tuple[str, Any]:
    name, _, value = (piece.strip() for piece in part.partition("="))
    if name not in known:
        raise ScenarioError(f"--change {text!r}: no setting {name!r}; there are {', '.join(known)}")
    value = "0" if value == "off" else value
    read = _READERS[str(known[name].type)]
    try:
        return name, read(value)
    except ValueError:
        what = "a whole number" if read is int else "a number"
        raise ScenarioError(f"--change {text!r}: {name} must be {what}, got {value!r}") from None


def example(kind: str) -> str:
    """How to write a change of this kind.

    >>> example("medusa")
    'medusa:heads=4,acceptance=0.6,tree=0,head_size=0.02'
    """
    needed = {"precision": "precision=fp8", "tp": "tp=4", "chunked_prefill": "chunked_prefill=2048 (or =off)"}
    needed |= {"batch_limit": "batch_limit=64", "kv_reuse": "kv_reuse:tokens=1000,hit_rate=0.8"}
    settings = ",".join(f"{field.name}={field.default}" for field in fields(KINDS[kind]))  # type: ignore[arg-type]
    return needed.get(kind, f"{kind}:{settings}")
