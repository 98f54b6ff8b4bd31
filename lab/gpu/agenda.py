"""What to measure, the most valuable first, and how long each level is expected to take on this card."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lab.gpu.engine.shapes import SHAPES
from lab.reference.settings import Batching

Pair = tuple[int, int]
Kind = Literal["users", "share"]

PAIRS: tuple[Pair, ...] = ((1000, 200), (128, 128), (2000, 256), (200, 1000), (1000, 1000))
SMALL_PAIRS: tuple[Pair, ...] = ((64, 16), (16, 32))
ISL_CV, OSL_CV = 0.3, 0.3
COARSE, FINE, SMALL_USERS = (1, 64, 256), (16, 128, 4, 32), (1, 4)
SHARES = (0.6, 0.85)
LONG_TOKENS = 1000
START_S = {"cuda": 60.0, "cpu": 12.0}
"""Seconds to replace one server with another: weights, kernels, CUDA graphs."""
LEAST_WINDOW_S = {"cuda": 10.0, "cpu": 3.0}
WAVES, WARM_UP = 2.5, 1
MOST_WINDOW_S = 45.0
DRIFT_S = 2.0  # the metrics page before and after, connections, prompts generated ahead


@dataclass(frozen=True, slots=True)
class Served:
    """A server: the shape of its model, its batching, and which of its Triton models is measured."""

    shape: str
    batching: Batching = "in_flight"
    asked: str = "tensorrt_llm"

    @property
    def label(self) -> str:
        return f"{self.shape} {self.batching} {self.asked}"

    def runs_on(self, other: Served | None) -> bool:
        """Whether a server that was started for `other` can be measured as this one too."""
        return other is not None and (self.shape, self.batching) == (other.shape, other.batching)


@dataclass(frozen=True, slots=True)
class Item:
    """One level: `load` users in a closed loop, or Poisson arrivals at a fraction `load` of the highest measured rate.

    `again`: the same level a second time, to see how far apart two measurements of it are.
    """

    served: Served
    pair: Pair
    kind: Kind
    load: float
    again: bool = False

    @property
    def key(self) -> str:
        """The name under which the point is stored."""
        isl, osl = self.pair
        return f"{self.served.label} {isl}/{osl} {self.kind} {self.load:g}{' again' if self.again else ''}"

    @property
    def run_label(self) -> str:
        """The name of the run of the store that the point belongs to."""
        return f"{self.served.label}{' again' if self.again else ''}"


def agenda(is_small: bool = False) -> tuple[Item, ...]:
    """Everything worth measuring, in order; what does not fit the budget is left for the next call."""
    if is_small:
        return tuple(_small())
    main = Served("llama-3.1-8b")
    return (
        *_closed(main, PAIRS, COARSE),
        *_random(main, PAIRS),
        Item(main, PAIRS[0], "users", 64, again=True),
        Item(Served("llama-3.1-8b", asked="ensemble"), PAIRS[0], "users", 8),
        *_closed(Served("llama-3.1-8b", "static"), PAIRS[:1], (64, 16)),
        *_one_pair("qwen3-8b"),
        *_one_pair("qwen3-1.7b"),
        *_one_pair("qwen3-32b"),
        *_closed(main, PAIRS, FINE),
    )


def _one_pair(shape: str) -> list[Item]:
    served = Served(shape)
    return [*_closed(served, PAIRS[:1], COARSE), *_random(served, PAIRS[:1])]


def _small() -> Iterator[Item]:
    main = Served("small")
    yield from _closed(main, SMALL_PAIRS, SMALL_USERS)
    yield from _random(main, SMALL_PAIRS[:1])
    yield Item(main, SMALL_PAIRS[0], "users", 4, again=True)
    yield Item(Served("small", asked="ensemble"), SMALL_PAIRS[0], "users", 2)
    yield from _closed(Served("small", "static"), SMALL_PAIRS[:1], SMALL_USERS[1:2])


def _closed(served: Served, pairs: Collection[Pair], users: Iterable[int]) -> list[Item]:
    """The closed loops, load by load over all pairs, so that every pair soon has a curve, though a coarse one.

    Pairs with long answers have half the users: a level of 256 of them would take as long as three others.
    """
    return [Item(served, (isl, osl), "users", _fewer(count, osl)) for count in users for isl, osl in pairs]


def _fewer(users: int, osl: int) -> int:
    return users // 2 if osl >= LONG_TOKENS and users > 1 else users


def _random(served: Served, pairs: Collection[Pair]) -> list[Item]:
    return [Item(served, pair, "share", share) for share in SHARES for pair in pairs]


@dataclass(slots=True)
class Card:
    """What is known about the card: device, bandwidth, rate of matrix products, and how it compares with the estimate.

    `slower` by server: measured over estimated seconds of the last closed-loop point.
    """

    device: str
    bytes_per_s: float
    flops_per_s: float
    slower: dict[str, float] = field(default_factory=dict)

    def e2e_s(self, served: Served, pair: Pair, users: float) -> float:
        """Rough seconds of a request of `pair` with `users` in flight: bytes, products, and 2 ms more per pass."""
        shape, (isl, osl) = SHAPES[served.shape], pair
        size = 2 if self.device == "cuda" else 4
        held = shape.kv_values_per_token * (isl + osl / 2)
        reading_s = size * (shape.step_weights + users * held) / (0.7 * self.bytes_per_s)
        prompt_s = 2 * shape.step_weights * isl / (0.5 * self.flops_per_s)
        pass_s = reading_s + 0.002 + 2e-5 * users + users * prompt_s / osl
        return (prompt_s + osl * pass_s) * self.slower.get(served.label, 1.0)

    def learn(self, served: Served, pair: Pair, users: float, e2e_s: float) -> None:
        """Correct the estimates for `served` by one measured point."""
        self.slower[served.label] = e2e_s / (self.e2e_s(served, pair, users) / self.slower.get(served.label, 1.0))

    def window_s(self, item: Item, e2e_s: float) -> float:
        """How long a level of such requests is measured: two and a half times their duration, within limits.

        For random arrivals the lower limit is twice as high, because their percentiles need more requests.
        """
        least_s = LEAST_WINDOW_S[self.device] * (2 if item.kind == "share" else 1)
        return min(MOST_WINDOW_S, max(least_s, WAVES * e2e_s))

    def expected_s(self, item: Item, users: float) -> float:
        """Seconds for one level: ramp-up, warm-up, window, and the end of the last requests."""
        e2e_s = self.e2e_s(item.served, item.pair, users)
        return DRIFT_S + (WARM_UP + 2) * e2e_s + self.window_s(item, e2e_s)


def users_of(item: Item, highest: Mapping[tuple[str, Pair], float], card: Card) -> float | None:
    """Requests in flight at an item; None for random arrivals until a closed loop has shown the highest rate."""
    if item.kind == "users":
        return item.load
    rate = highest.get((item.served.label, item.pair))
    return None if rate is None else max(1.0, item.load * rate * card.e2e_s(item.served, item.pair, 32))


def next_item(
    items: Iterable[Item],
    done: Collection[str],
    left_s: float,
    card: Card,
    highest: Mapping[tuple[str, Pair], float],
    running: Served | None,
) -> Item | None:
    """The first item that is not done and fits into `left_s`, the start of another server included.

    While the `running` server has items left that fit, no other is started, because a start costs as much as several
    levels. None if nothing fits any more.
    """
    fitting = []
    for item in items:
        users = users_of(item, highest, card)
        if item.key in done or users is None:
            continue
        start_s = 0.0 if item.served.runs_on(running) else START_S[card.device]
        if start_s + card.expected_s(item, users) <= left_s:
            fitting.append(item)
    return next((item for item in fitting if item.served.runs_on(running)), next(iter(fitting), None))
