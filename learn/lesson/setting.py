"""What the lesson simulates: how requests are batched and arrive, and how many ticks prompts and tokens take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sizing.errors import ScenarioError

Batching = Literal["static", "in_flight", "one_prefill"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
LoadKind = Literal["batch", "concurrency", "rate"]

BOUNDS: Mapping[str, tuple[float, float]] = {
    "slots": (1, 64),
    "prefill_ticks": (0.1, 1000),
    "itl_ticks": (0.1, 1000),
    "chunks": (1, 64),
    "mean_tokens": (1, 1000),
    "std_tokens": (0, 1000),
    "ticks": (1, 20_000),
    "seed": (0, 2**32 - 1),
}
LOAD_BOUNDS: Mapping[LoadKind, tuple[float, float]] = {
    "batch": (1, 20_000),
    "concurrency": (1, 2_000),
    "rate": (0.001, 50),
}
"""Minimum and maximum of each number, so that a run takes a few seconds at most."""
WHOLE = ("slots", "chunks", "ticks", "seed")


def check(name: str, value: float, low: float, high: float, *, whole: bool) -> None:
    """ScenarioError for a `value` outside `low` to `high`, or one that must be whole and is not."""
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        got = f"{value:g}" if abs(value) < 1e300 else "a far larger number"  # which no float holds
        raise ScenarioError(f"{name} must be {kind} from {low:g} to {high:,g}, got {got}")


def written(value: object) -> str:
    """A value as it is read back: whole numbers without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def number(name: str, text: str) -> float:
    """`text` as a finite number; ScenarioError otherwise."""
    try:
        value = float(text)
    except ValueError:
        raise ScenarioError(f"{name}: {text[:40]!r} is not a number") from None
    if not math.isfinite(value):
        raise ScenarioError(f"{name}: {text[:40]!r} is not a finite number")
    return value


def whole(name: str, text: str) -> int:
    """`text` as a whole number; ScenarioError otherwise."""
    value = number(name, text)
    if value != int(value):
        raise ScenarioError(f"{name}: {text[:40]!r} is not a whole number")
    return int(value)


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive: `amount` at once at tick 0, always `amount` in the system, or `amount` per tick.

    >>> Load.parse("rate:0.46"), str(Load("batch", 100))
    (Load(kind='rate', amount=0.46), 'batch:100')
    """

    kind: LoadKind
    amount: float

    def __post_init__(self) -> None:
        check(f"load {self.kind}", self.amount, *LOAD_BOUNDS[self.kind], whole=self.kind != "rate")

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read ``batch:100``, ``concurrency:3`` or ``rate:0.46``. Raises ScenarioError."""
        kind, _, amount = text.partition(":")
        for known in get_args(LoadKind):
            if kind == known:
                return cls(known, number("load", amount))
        raise ScenarioError(f"load {text!r}: write batch:100, concurrency:3 or rate:0.46 (requests per tick)")

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of the lesson; the usual one is the first picture of the course.

    A prompt takes `prefill_ticks` in all, in `chunks` equal parts; a token after the first `itl_ticks`. Output tokens
    are normal with `mean_tokens` and `std_tokens`, cut to whole tokens, at least 1. The run ends with the first step
    that reaches `ticks`. Raises ScenarioError for a number out of `BOUNDS`.
    """

    batching: Batching = "static"
    load: Load = Load("batch", 100)
    slots: int = 4
    prefill_ticks: float = 2
    itl_ticks: float = 1
    chunks: int = 1
    mean_tokens: float = 10
    std_tokens: float = 5
    ticks: int = 100
    seed: int = 42

    def __post_init__(self) -> None:
        if self.batching not in BATCHINGS:
            raise ScenarioError(f"batching {self.batching!r}: choose one of {', '.join(BATCHINGS)}")
        for name, (low, high) in BOUNDS.items():
            check(name, getattr(self, name), low, high, whole=name in WHOLE)

    @property
    def text(self) -> str:
        """What differs from the usual run, as ``key=value;key=value``; empty for the usual run."""
        usual = Setting()
        names = (field.name for field in fields(self))
        changed = [(name, getattr(self, name)) for name in names if getattr(self, name) != getattr(usual, name)]
        return ";".join(f"{name}={written(value)}" for name, value in changed)

    @classmethod
    def of(cls, text: str) -> Setting:
        """The setting written as `text`. Raises ScenarioError for an unknown key or an impossible value.

        >>> Setting.of("batching=in_flight;chunks=2").chunks
        2
        """
        values: dict[str, Any] = {}
        for part in filter(None, text.split(";")):
            name, _, value = part.partition("=")
            if name == "load":
                values[name] = Load.parse(value)
            elif name == "batching":
                values[name] = value
            elif name in BOUNDS:
                values[name] = whole(name, value) if name in WHOLE else number(name, value)
            else:
                raise ScenarioError(f"{name[:40]!r} is no setting of the lesson: {', '.join(NAMES)}")
        return cls(**values)


NAMES = tuple(field.name for field in fields(Setting))
