"""The numbers that the fit moves: logarithms of the coefficients, and where the data ask for it two more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.replica import Batching, Replica
from sizing.steptime import COEFFICIENTS, StepLaw

Floats = NDArray[np.float64]

LEAST_UNREAD = 1e-3
"""An unread share at or below this counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What is fitted, what it leans on, and what stays as it is.

    `names`: the eight coefficients, then perhaps "unread" (the share of weights that one sequence does not need) and
    "kv_tokens" (the size of the KV cache). `centre`, `sigma`, shape (names,): mean and standard deviation of the prior
    of each number. The numbers are natural logarithms, of `unread` the logit. `base`: the rest of the engine.
    """

    names: tuple[str, ...]
    centre: Floats
    sigma: Floats
    base: Replica
    least_kv_tokens: int = 1

    def replica(self, numbers: Floats) -> Replica:
        """The engine with these numbers."""
        seconds = [float(value) for value in np.exp(numbers[: len(COEFFICIENTS)])]
        law = self.base.law.with_values(**dict(zip(COEFFICIENTS, seconds, strict=True)))
        engine = replace(self.base, law=law)
        for name, number in zip(self.names[len(COEFFICIENTS) :], numbers[len(COEFFICIENTS) :], strict=True):
            engine = with_extra(engine, name, float(number), self.least_kv_tokens)
        return engine

    def plus(self, name: str, centre: float, sigma: float) -> Parameters:
        """The same and one number more."""
        return replace(
            self,
            names=(*self.names, name),
            centre=np.append(self.centre, centre),
            sigma=np.append(self.sigma, sigma),
        )


def with_extra(engine: Replica, name: str, number: float, least_kv_tokens: int = 1) -> Replica:
    """The engine with its unread share (from its logit) or its KV cache (from its logarithm) replaced."""
    if name == "unread":
        return replace(engine, law=engine.law.with_values(unread=1 / (1 + math.exp(-number))))
    kv_tokens = max(least_kv_tokens, round(math.exp(min(number, 30.0))))
    return replace(engine, batching=replace(engine.batching, kv_tokens=kv_tokens))


def numbers_of(engine: Replica, names: Sequence[str]) -> Floats:
    """The numbers that `Parameters.replica` turns back into this engine (coefficients above 0)."""
    numbers = [math.log(value) for value in engine.law.seconds]
    if "unread" in names:
        share = min(max(engine.law.unread, LEAST_UNREAD), 1 - LEAST_UNREAD)
        numbers.append(math.log(share / (1 - share)))
    if "kv_tokens" in names:
        numbers.append(math.log(engine.batching.kv_tokens))
    return np.array(numbers)


def moved(engine: Replica, names: Sequence[str], shift: Floats) -> Replica:
    """The engine with each of its numbers `names` moved by `shift`, shape (names,)."""
    rest = Parameters(tuple(names), np.zeros(len(names)), np.ones(len(names)), engine)
    return rest.replica(numbers_of(engine, names) + shift)


def law_parameters(centre: Floats, sigma: Floats, batching: Batching, prior: StepLaw | None) -> Parameters:
    """The eight coefficients; shares of the weights that are not read stay as the prior law has them."""
    unread = (prior.unread, prior.unread_decay) if prior else (0.0, 0.0)
    law = StepLaw(*(float(value) for value in np.exp(centre)))
    law = law.with_values(unread=unread[0], unread_decay=unread[1])
    return Parameters(COEFFICIENTS, centre, sigma, Replica(law, batching))
