"""What a law leaves unexplained in the measured times, by batch: fitted at each measured pair of lengths.

Engines change kernels, tiles and captured graphs with the batch, by 5 to 20 % at single levels, and eight smooth
coefficients cannot follow. So where the points show that the law is off, law and bend (see `sizing.engine.Bend`) are
fitted together to the levels of one pair of lengths, leaning on the law of all. At other lengths bends do harm: there
the common law applies, and an answer in between moves from one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sizing.engine import BEND_KNOTS, Batching, Bend, Replica, StepLaw, bend_covariance
from sizing.fitting.levels import decoding
from sizing.fitting.parameters import BEND_SD, PROMPT_BEND_SD, LawError
from sizing.fitting.search import Trial
from sizing.numbers import Floats
from sizing.points import Point

APART = 0.15
"""Levels whose batches are nearer than this in ln(sequences) share a node."""
BENDING = 2.0
"""Mean squared misfit, in errors of the measurement, above which the law is believed to be off."""
SPREAD = 0.3
"""How far the law of one pair of lengths may lie from the law of all, as a share of its prior's standard deviation."""
LEAST_OPEN = 1e-4
"""Changes of the logarithms of times that are all smaller than this count as none."""
REACH = math.log(2.0)
"""Distance in ln(ISL) or ln(OSL) from measured lengths at which their bend has faded away."""


@dataclass(frozen=True, slots=True, eq=False)
class BentLaw:
    """The law with its bend at one pair of measured mean lengths, in tokens.

    `covariance`, shape (names, names): of the numbers `names`, those of the bends whitened and last. `law_error`: how
    far law and bend were still off. `open_sizes`: size of the bend found, of decode steps and of prompts, as a
    share of what was thought possible; what is left open between the nodes is as large.
    """

    isl: float
    osl: float
    law: StepLaw
    batching: Batching
    names: tuple[str, ...]
    covariance: Floats
    law_error: LawError
    open_sizes: tuple[float, float]

    @property
    def replica(self) -> Replica:
        """The engine at these lengths."""
        return Replica(self.law, self.batching)

    def nearness(self, isl: float, osl: float) -> float:
        """1 at these lengths, falling to 0 at twice or half of either."""
        distance = max(abs(math.log(isl / self.isl)), abs(math.log(osl / self.osl)))
        return max(0.0, 1 - distance / REACH)


def nodes_of(points: Sequence[Point]) -> tuple[float, ...]:
    """Batches at which a bend can be seen: sequences that decoded at each level, ascending, near ones merged."""
    kept: list[float] = []
    for batch in sorted(decoding(point) for point in points):
        if not kept or math.log(batch / kept[-1]) > APART:
            kept.append(batch)
    return tuple(kept)


def bend(best: Trial) -> tuple[BentLaw, ...]:
    """The laws with bends, one for each pair of lengths measured at two batches or more; none where the law fits."""
    if best.chi2_per_point <= BENDING or best.observed.trace is not None:
        return ()
    groups: dict[tuple[float, float], list[int]] = {}
    for row, point in enumerate(best.observed.points):
        lengths = next((own for own in groups if are_alike(own, point)), (point.isl, point.osl))
        groups.setdefault(lengths, []).append(row)
    alone = len(groups) == 1
    bent = [
        _bent(best, rows, alone)
        for rows in groups.values()
        if len(nodes_of([best.observed.points[row] for row in rows])) > 1
    ]
    spread = 1.0 if alone else _spread_found(bent)
    sizes = _sizes_found([trial for trial, _ in bent])
    return tuple(_bent_law(trial, slopes, spread, sizes) for trial, slopes in bent)


def _bent(best: Trial, rows: Sequence[int], alone: bool) -> tuple[Trial, Floats]:
    """The law with its bend fitted to the levels `rows`, and the slopes of its residuals."""
    points = tuple(best.observed.points[row] for row in rows)
    nodes = nodes_of(points)
    plain = best.parameters
    if not alone:  # the other lengths are in the law of all, which this one leans on
        plain = replace(plain, centre=best.numbers, sigma=SPREAD * plain.sigma, shared=SPREAD * plain.shared)
    parameters = plain.bending(nodes)
    start = np.append(best.numbers, np.zeros(2 * len(nodes)))
    trial = Trial(replace(best.observed, points=points), parameters, start, robust=True, errors=best.errors[list(rows)])
    trial.doubt = best.doubt[list(rows)]
    trial.search(evaluations=6, stride=0.1, central=True, carried=True)
    trial.allow_for_law()
    trial.search(evaluations=4, stride=0.1, carried=True)
    trial.allow_for_law()
    return trial, trial.slopes(trial.numbers)


def _spread_found(bent: Sequence[tuple[Trial, Floats]]) -> float:
    """How far the laws of single lengths lie from the law of all, as a share of `SPREAD`, 1 at most.

    The sum of their squared whitened distances over the number of coefficients that the levels determine, with a prior
    worth two (the evidence framework of MacKay 1992, Neural Comput. 4:415). If it is small, coefficients that the
    levels of one pair of lengths leave open are unlikely to lie far off.
    """
    squares, told = 0.0, 0.0
    for trial, slopes in bent:
        straight = trial.parameters.straight
        from_prior = trial.whitened(trial.numbers)[:straight]
        prior = slopes[-len(trial.numbers) :][:straight]
        left_open = prior @ np.linalg.inv(slopes.T @ slopes) @ prior.T
        squares += float(from_prior @ from_prior)
        told += straight - float(np.trace(left_open))
    return math.sqrt(min(1.0, (1 + squares) / (2 + told)))


def _sizes_found(bent: Sequence[Trial]) -> tuple[float, float]:
    """How large the bends of decode steps and of prompts are, as a share of what was thought possible, 1 at most: root
    mean square over all nodes at all lengths, with a prior worth two nodes."""
    squares, told = np.zeros(2), 0
    for trial in bent:
        parts = trial.numbers[trial.parameters.straight :].reshape(2, -1)
        squares += np.square(parts).sum(axis=1)
        told += parts.shape[1]
    decode, prompt = np.sqrt(np.minimum(1.0, (1 + squares) / (2 + told)))
    return float(decode), float(prompt)


def _bent_law(trial: Trial, slopes: Floats, spread: float, sizes: tuple[float, float]) -> BentLaw:
    """The result of one pair of lengths; `spread` and `sizes` scale the prior's standard deviations of the straight
    numbers and of the bends."""
    straight, half = trial.parameters.straight, len(trial.parameters.nodes)
    covariance = trial.covariance(slopes, np.concatenate([np.full(straight, spread), np.repeat(sizes, half)]))
    points = trial.observed.points
    isl, osl = (float(np.mean([getattr(point, name) for point in points])) for name in ("isl", "osl"))
    law, batching, names = trial.replica.law, trial.replica.batching, trial.parameters.names
    return BentLaw(isl, osl, law, batching, names, covariance, trial.law_error, sizes)


def are_alike(lengths: tuple[float, float], point: Point) -> bool:
    """True where the point's mean lengths are these within 5 %."""
    return max(abs(math.log(point.isl / lengths[0])), abs(math.log(point.osl / lengths[1]))) < 0.05


@lru_cache(maxsize=256)
def open_bends(sequences: tuple[float, ...], sizes: tuple[float, float], most: float) -> Floats:
    """What bends of decode steps and of prompts, of these `sizes`, may still be after measurements at the batches
    `sequences`: independent changes of one standard error each, shape (changes, 2, 23), at the knots of `Bend.tables`.
    Beyond `most` sequences a bend stays as open as there.

    The changes are eigenvectors of the Gaussian process given its values at `sequences` (Rasmussen and Williams 2006,
    section 2.2). Errors between different batches are independent, so they partly cancel where the batch keeps
    changing.
    """
    nodes, knots = np.log(sequences), np.minimum(BEND_KNOTS, math.log(most))
    own = np.unique(knots)
    reach = bend_covariance(own, nodes)
    left = bend_covariance(own, own) - reach @ np.linalg.inv(bend_covariance(nodes, nodes)) @ reach.T
    variances, directions = np.linalg.eigh(left)
    changes = (np.sqrt(np.maximum(0.0, variances))[:, None] * directions.T)[:, np.searchsorted(own, knots)]
    decode, prompt = (size * sd * changes for size, sd in zip(sizes, (BEND_SD, PROMPT_BEND_SD), strict=True))
    none = np.zeros_like(changes)
    both = np.concatenate([np.stack([decode, none], axis=1), np.stack([none, prompt], axis=1)])
    return np.asarray(both[np.abs(both).max(axis=(1, 2)) > LEAST_OPEN])


def bent_further(law: StepLaw, change: Floats) -> StepLaw:
    """The law with its bends changed at all knots, `change` of shape (2, 23)."""
    tables = change + (law.bend.tables if law.bend.sequences else 0.0)
    knots = tuple(np.exp(BEND_KNOTS).tolist())
    return replace(law, bend=Bend(knots, *(tuple(table.tolist()) for table in tables)))
