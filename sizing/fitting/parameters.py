"""The numbers that the fit moves: logarithms of the coefficients, where the data ask for it two more, and bends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sizing.engine import COEFFICIENTS, FREE, Batching, Bend, Replica, StepLaw, bend_covariance
from sizing.numbers import Floats

LEAST_LEFT = 0.05
"""Share of a coefficient that is left where a step would take all of it."""
LEAST_UNREAD = 1e-3
"""An unread share at or below this counts as none."""
BEND_SD, PROMPT_BEND_SD = 0.10, 0.20
"""Standard deviations of a bend before the data, of decode steps and of iterations with a prompt: measured engines
deviate from the eight coefficients by 5 to 20 % at single levels."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What is fitted, what it leans on, and what stays as it is.

    `names`: the eight coefficients, then perhaps "unread" (the share of weights that one sequence does not need),
    "kv_tokens" (the size of the KV cache) and "send_s" (see `StepLaw`), then the bends at the batches `nodes`, of
    decode steps and of iterations with a prompt. `centre`, shape (names,): mean of the prior of each number. `sigma`,
    shape (names,), and `shared`, shape (names, errors): standard deviations of what each number may be off by itself,
    and of what it is off by with others, a column for each such error. The numbers are natural logarithms, of `unread`
    the logit, of bends whitened: independent standard normal variables before the data. `base`: the rest of the engine.
    """

    names: tuple[str, ...]
    centre: Floats
    sigma: Floats
    shared: Floats
    base: Replica
    least_kv_tokens: int = 1
    nodes: tuple[float, ...] = ()

    def replica(self, numbers: Floats) -> Replica:
        """The engine with these numbers."""
        seconds = [float(value) for value in np.exp(numbers[: len(COEFFICIENTS)])]
        law = self.base.law.with_values(**dict(zip(COEFFICIENTS, seconds, strict=True)))
        if self.nodes:
            law = replace(law, bend=bend_of(self.nodes, numbers[self.straight :]))
        engine = replace(self.base, law=law)
        extra = slice(len(COEFFICIENTS), self.straight)
        for name, number in zip(self.names[extra], numbers[extra], strict=True):
            engine = with_extra(engine, name, float(number), self.least_kv_tokens)
        return engine

    @property
    def covariance(self) -> Floats:
        """Of the numbers before the data, shape (names, names)."""
        return np.asarray(np.diag(self.sigma**2) + self.shared @ self.shared.T)

    @property
    def straight(self) -> int:
        """How many of the numbers are not bends; those come last."""
        return len(self.names) - 2 * len(self.nodes)

    def bending(self, nodes: Sequence[float]) -> Parameters:
        """The same and a bend at each of the batches `nodes`, ascending, for decode steps and for prompts."""
        names = [f"{kind} at {node:.3g}" for kind in ("bend", "prompt bend") for node in nodes]
        return replace(
            self,
            names=(*self.names, *names),
            centre=np.append(self.centre, np.zeros(len(names))),
            sigma=np.append(self.sigma, np.ones(len(names))),
            shared=_padded(self.shared, len(names)),
            nodes=tuple(nodes),
        )

    def plus(self, name: str, centre: float, sigma: float) -> Parameters:
        """The same and one number more."""
        return replace(
            self,
            names=(*self.names, name),
            centre=np.append(self.centre, centre),
            sigma=np.append(self.sigma, sigma),
            shared=_padded(self.shared, 1),
        )


def _padded(shared: Floats, more: int) -> Floats:
    """The same and rows of zeros for `more` numbers that share no error."""
    return np.concatenate([shared, np.zeros((more, shared.shape[1]))])


def bend_of(nodes: tuple[float, ...], white: Floats) -> Bend:
    """The bend at `nodes` for whitened numbers, of decode steps and then of prompts, shape (2 nodes,)."""
    root, half = bend_root(nodes), len(nodes)
    return Bend(
        nodes,
        tuple((BEND_SD * root @ white[:half]).tolist()),
        tuple((PROMPT_BEND_SD * root @ white[half:]).tolist()),
    )


@lru_cache(maxsize=256)
def bend_root(nodes: tuple[float, ...]) -> Floats:
    """Cholesky root of the correlation of a bend between `nodes`: it colours whitened numbers."""
    logs = np.log(nodes)
    return np.asarray(np.linalg.cholesky(bend_covariance(logs, logs) + 1e-6 * np.eye(len(logs))))


def with_extra(engine: Replica, name: str, number: float, least_kv_tokens: int = 1) -> Replica:
    """The engine with its unread share (from its logit), its KV cache or `send_s` (from their logarithms) replaced."""
    if name == "unread":
        return replace(engine, law=engine.law.with_values(unread=1 / (1 + math.exp(-number))))
    if name == "send_s":
        return replace(engine, law=engine.law.with_values(send_s=math.exp(number)))
    kv_tokens = max(least_kv_tokens, round(math.exp(min(number, 30.0))))
    return replace(engine, batching=replace(engine.batching, kv_tokens=kv_tokens))


def numbers_of(engine: Replica, names: Sequence[str]) -> Floats:
    """The numbers that `Parameters.replica` turns back into this engine (coefficients above 0)."""
    share = min(max(engine.law.unread, LEAST_UNREAD), 1 - LEAST_UNREAD)
    extras = {
        "unread": math.log(share / (1 - share)),
        "kv_tokens": math.log(engine.batching.kv_tokens),
        "send_s": math.log(engine.law.send_s) if engine.law.send_s else -math.inf,
    }
    extra = names[len(COEFFICIENTS) :]
    return np.array([*map(math.log, engine.law.seconds), *(extras[name] for name in extra)])


def stepped(numbers: Floats, shift: Floats) -> Floats:
    """The numbers moved by `shift`, the coefficients among them, which come first, by shares of their values.

    Points mostly determine sums of coefficients. Along such a sum one coefficient grows by the seconds that another
    loses: a straight line in seconds, but not in logarithms. To first order both moves are the same.
    """
    found = numbers + shift
    first = slice(len(COEFFICIENTS))
    found[first] = numbers[first] + np.log(np.maximum(LEAST_LEFT, 1 + shift[first]))
    return found


def moved(engine: Replica, names: Sequence[str], shift: Floats, least_kv_tokens: int = 1) -> Replica:
    """The engine with each of its numbers `names` moved by `shift`, shape (names,), those of its bend last, if any: see
    `stepped`. A KV cache among them keeps `least_kv_tokens`, what the longest request served needs."""
    nodes = engine.law.bend.sequences
    straight = len(names) - 2 * len(nodes)
    rest = Parameters(
        tuple(names[:straight]), np.zeros(straight), np.ones(straight), np.zeros((straight, 0)), engine, least_kv_tokens
    )
    found = rest.replica(stepped(numbers_of(engine, names[:straight]), shift[:straight]))
    if not nodes:
        return found
    old, change = engine.law.bend, bend_of(nodes, shift[straight:])
    decode, prompt = np.add(old.decode, change.decode), np.add(old.prompt, change.prompt)
    return replace(found, law=replace(found.law, bend=Bend(nodes, tuple(decode.tolist()), tuple(prompt.tolist()))))


def law_parameters(
    centre: Floats, sigma: Floats, shared: Floats, batching: Batching, prior: StepLaw | None
) -> Parameters:
    """The eight coefficients; shares of the weights that are not read, and `send_s`, stay as the prior law has them."""
    law = FREE.with_values(**dict(zip(COEFFICIENTS, map(float, np.exp(centre)), strict=True)))
    if prior:
        law = law.with_values(unread=prior.unread, unread_decay=prior.unread_decay, send_s=prior.send_s)
    return Parameters(COEFFICIENTS, centre, sigma, shared, Replica(law, batching))


# --- Least squares and roots by scipy, loaded when the first fit asks for them: a plan from estimates does without


def least_squares(*arguments: Any, **options: Any) -> Any:
    """As ``scipy.optimize.least_squares``, whose import costs a quarter of a second."""
    from scipy.optimize import least_squares as minimize

    return minimize(*arguments, **options)


def root(function: Callable[[float], float], low: float, high: float, **options: Any) -> float:
    """As ``scipy.optimize.brentq``."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, **options))


# --- How far the law itself is off: the scatter of the misfits beyond what the errors of the measurement explain
#
# No engine follows eight coefficients exactly. Without an allowance for that, precisely measured levels outweigh the
# others although the law is equally wrong at both, and small changes of the errors granted move the fit.

LEAST_FIGURES = 4
"""Figures of a kind from which its error is told."""


class LawError(NamedTuple):
    """Relative error of the law, one standard deviation, in requests/s, in TTFT, in ITL and E2E, and in the percentiles
    of the gaps between tokens; 0: not seen."""

    requests_per_s: float = 0.0
    ttft: float = 0.0
    itl: float = 0.0
    gap: float = 0.0

    @property
    def by_measure(self) -> Floats:
        """One for each of `sizing.simulator.replay.MEASURES`, shape (8,)."""
        return np.array([self.requests_per_s, self.ttft, *[self.itl] * 2, *[self.ttft] * 2, *[self.gap] * 2])

    def between(self, other: LawError, share: float) -> LawError:
        """This error (`share` 0), the other (1), or one between them, by their squares."""
        return LawError(*(math.sqrt((1 - share) * a * a + share * b * b) for a, b in zip(self, other, strict=True)))

    def widened(self, sigma: float) -> LawError:
        """With another error of all times, independent of this one."""
        return self._replace(requests_per_s=math.hypot(self.requests_per_s, sigma), itl=math.hypot(self.itl, sigma))


EXACT = LawError()
KINDS = ([0], [1, 4, 5], [2, 3], [6, 7])
"""Columns of MEASURES that share an error."""


def law_error(misfits: Floats, errors: Floats) -> LawError:
    """The law's error behind `misfits` (logs of predicted over measured, NaN: not measured) beyond the measurement's
    relative standard `errors`; both of shape (points, 8)."""
    found = []
    for columns in KINDS:
        known = np.isfinite(misfits[:, columns])
        found.append(excess(misfits[:, columns][known], errors[:, columns][known]))
    return LawError(*found)


def excess(misfits: Floats, errors: Floats) -> float:
    """The t >= 0 at which the mean of misfit^2 / (error^2 + t^2) is 1 (Paule and Mandel 1982), or 0 where it is below 1
    without it. The numbers fitted are not counted off the mean, so that few points do not make a law look wrong.

    >>> round(excess(np.array([0.05, -0.05, 0.05, -0.05]), np.full(4, 0.03)), 3)
    0.04
    """

    def too_much(error: float) -> float:
        return float(np.mean(misfits**2 / (errors**2 + error**2))) - 1

    if len(misfits) < LEAST_FIGURES or too_much(0.0) <= 0:
        return 0.0
    # With t^2 the sum of the squares each term is at most its share of the sum: the mean is below 1.
    return float(root(too_much, 0.0, float(np.linalg.norm(misfits)), xtol=1e-4))
