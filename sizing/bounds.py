"""What a question may hold at most: bounds beyond which a number is a slip of the keyboard, not a fleet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sizing.errors import ScenarioError
from sizing.workload import Lengths, Prefix, Sla

MOST_RATE_PER_S = 1e6
MOST_SPARE = 10_000
MOST_HEADROOM = 0.95
MOST_PRICE = 1e6


def check_rate(rate_per_s: float) -> None:
    """ScenarioError above `MOST_RATE_PER_S` requests/s."""
    if rate_per_s > MOST_RATE_PER_S:
        raise ScenarioError(f"rate must be at most {MOST_RATE_PER_S:,.0f} requests/s, got {rate_per_s:g}")


def check_margins(headroom: float, spare: int) -> None:
    """ScenarioError unless the headroom is 0 to `MOST_HEADROOM` and the spares are 0 to `MOST_SPARE`."""
    if not 0 <= headroom <= MOST_HEADROOM:
        raise ScenarioError(f"headroom must be from 0 to {MOST_HEADROOM} (0.2 keeps 20 %), got {headroom:g}")
    if not 0 <= spare <= MOST_SPARE:
        raise ScenarioError(f"spare must be from 0 to {MOST_SPARE:,} replicas, got {spare}")


def check_price(name: str, price: float) -> None:
    """ScenarioError unless the price, called `name`, is a number from 0 to `MOST_PRICE`."""
    if not 0 <= price <= MOST_PRICE:
        raise ScenarioError(f"{name} must be 0 or more, and at most {MOST_PRICE:,.0f}, got {price:g}")


def check_priced(prices: Sequence[tuple[str, float]], general: float | None, gpus: Iterable[str]) -> None:
    """ScenarioError where some GPUs have a price and one of `gpus` has none: fleets could not be told apart."""
    named = [gpu for gpu, _ in prices]
    unknown = [gpu for gpu in gpus if gpu not in named]
    if named and unknown and general is None:
        raise ScenarioError(f"--price names {', '.join(named)} but not {unknown[0]}: give {unknown[0]}=PRICE as well")


def check_peak_factor(factor: float) -> None:
    """ScenarioError unless peak over mean is a finite number of 1 or more."""
    if not 1 <= factor < math.inf:
        raise ScenarioError(f"the peak factor must be 1 or more (peak over mean), got {factor:g}")


def check_gaps(lengths: Lengths, sla: Sla) -> None:
    """ScenarioError for a limit on ITL or gaps where a request has one output token, hence no gaps."""
    if (sla.itl or sla.gap) and lengths.osl < 2:
        which = "an ITL limit" if sla.itl else "a limit on gaps between tokens"
        raise ScenarioError(f"{which} needs OSL of 2 or more: with one output token there are no gaps")


def check_prefix(lengths: Lengths, prefix: Prefix) -> None:
    """ScenarioError for a shared prefix longer than the mean prompt that is to begin with it."""
    if prefix.tokens > lengths.isl:
        raise ScenarioError(f"prefix tokens must be at most ISL ({lengths.isl:g} tokens), got {prefix.tokens}")


def check_reserved(max_tokens: int, osl: float) -> None:
    """ScenarioError where engines would reserve fewer output tokens than the mean request needs; 0 reserves none."""
    if max_tokens < 0 or 0 < max_tokens < osl:
        raise ScenarioError(f"--max-tokens must be 0, or at least OSL ({osl:g} tokens), got {max_tokens}")
