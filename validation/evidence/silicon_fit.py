"""Fits what measured servers have beyond their kernels: the effects that sizing/estimate/silicon.py puts on a law.

Each row of the sample (see measured_silicon_rows) is predicted from the kernels of its own engine in its own layout, in
a closed loop whose users begin together. Six effects a server (EFFECTS) are sums over levels, from the mean of all to
the server itself: a linear mixed model in logarithms of TTFT and ITL, linearised by Gauss-Newton, with given standard
deviations of the effects (ridge; Robinson 1991, Statist. Sci. 6:15) and weights of Student's t against outliers (Lange,
Little, Taylor 1989, JASA 84:881). Two levels serve the fit alone and are not handed on: the server, and whose client
measured. The spread is the 90 % quantile of what is left when groups are left out, over 1.645.

    python -m validation.evidence.silicon_fit [--out file.json]
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from sizing import catalog
from sizing.catalog import Layout
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.silicon import (
    EFFECTS,
    FARTHEST,
    SILICON,
    WHOLE,
    Server,
    Silicon,
    estimated_policy,
    shares_of,
    with_effects,
)
from sizing.estimate.timed import time_engine
from sizing.fitting.levels import concurrency, point_runs
from sizing.numbers import Floats
from sizing.points import Point, Protocol
from sizing.simulator.replay import Replay
from validation.evidence.measured_silicon_rows import Series, read_sample, sample_path

METRICS = ("ttft", "itl", "requests")
SIGMAS_OF_BAND = 1.645
BURST = Protocol("burst", "all")
"""Users of the sample began together, and its means hold all requests."""
EFFECT_SIGMAS = np.array([0.15, 0.2, 0.25, 0.12, 0.3, 0.4])
"""Standard deviations of the effects (EFFECTS) where LEVEL_SIGMAS is 1."""
LEVEL_SIGMAS = {
    "all": 4.0,
    "kind": 0.35,
    "engine": 0.35,
    "generation": 0.35,
    "precision": 0.35,
    "engine, kind": 0.35,
    "engine, generation": 0.35,
    "class": 0.5,
    "gpu": 0.25,
    "version": 0.35,
    "model": 0.3,
    "server": 0.35,
    "client": 0.3,
}
CLIENT_SIGMAS = np.array([1.0, 1.0, 1.0, 1.0, 5.0, 4.0])
"""A client's own share in TTFT is larger than anything else that servers differ in: these multiply "client"."""
FIT_ONLY = ("server", "client")
NOISE = np.array([0.5, 0.2])
"""Standard deviations of a row's ln TTFT and ln ITL about its server's."""
FREEDOM = 4.0
START = np.array([-0.05, 0.0, -1.0, 0.0, 0.0, 0.0])
STEPS, LONGEST_STEP, DIFFERENCE = 4, 0.5, 0.05
LEFT_OUT = ("both", "model", "gpu")
"""What groups of rows are left out by: model and GPU, model, GPU; the names of Silicon.spread."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A measured closed loop, the law and the KV cache by its own engine's kernels, and what it belongs to. `client`:
    whose it was."""

    point: Point
    law: StepLaw
    kv_tokens: int
    server: Server
    client: str
    layout: Layout

    @property
    def levels(self) -> Mapping[str, str]:
        """All levels of its effects."""
        own = f"{self.server} TP{self.point.tp}"
        return {**self.server.levels, "server": own, "client": self.client}

    @property
    def waits(self) -> bool:
        """True if the KV cache cannot hold all users: then TTFT says how large it is and little of iterations."""
        return concurrency(self.point) * (self.point.isl + self.point.osl) > self.kv_tokens

    def group(self, left_out: str) -> str:
        """What is left out with this row."""
        model, gpu = self.server.model, self.server.gpu
        return {"both": f"{model} {gpu}", "model": model, "gpu": gpu}[left_out]


def read_rows(path: Path, every: int = 1) -> tuple[list[Row], Counter[str]]:
    """The rows whose own engine has kernels in their own layout, and how many others were left out for which reason.
    `every`: take one series in so many."""
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    for series in read_sample(path).series[::every]:
        try:
            rows += rows_of(series)
        except EstimateUnavailable as error:
            left_out[str(error)] += len(series.points)
    return rows, left_out


def rows_of(series: Series) -> list[Row]:
    """A series with its law. Raises EstimateUnavailable, with the reason, where there is none of its layout."""
    first = series.points[0]
    ranks, *split = (float(size) for size in series.server[7:])
    model, gpu = catalog.of_shape(first.model), catalog.gpus().get(first.gpu)
    if model is None or gpu is None:
        raise EstimateUnavailable("whose model or GPU the catalogue lacks")
    if first.pp > 1 or ranks > 1:
        raise EstimateUnavailable("with pipeline stages or data-parallel attention")
    if first.tp > gpu.gpus_per_server:
        raise EstimateUnavailable("with TP beyond a server")
    blocks = first.precision == "fp8" and model.checkpoint == "fp8_block"
    precision = "fp8_block" if blocks else first.precision
    by_matrix, whole = (1, 1) if model.kind == "dense" else (round(split[0]), round(split[1]))
    layout = Layout(first.tp, ep=whole)
    if model.kind == "moe" and by_matrix * whole != first.tp:
        raise EstimateUnavailable("without timings of their engine and layout")
    try:
        opened = kernels.open_engine(model, gpu.id, first.engine, layout, precision)
        timed = time_engine(opened, model.unrouted)
    except EstimateUnavailable:
        raise EstimateUnavailable("without timings of their engine and layout") from None
    server = Server(first.engine, gpu.id, precision, model.kind, first.engine_version, model.shape)
    client = "InferenceX" if series.varied else "NVIDIA"
    return [
        Row(point, timed.law, max(timed.memory.kv_tokens(length), length), server, client, layout)
        for point in series.points
        for length in [math.ceil(point.isl + point.osl) + 1]
    ]


def predicted(laws: Sequence[StepLaw], kv_tokens: Sequence[int], points: Sequence[Point]) -> Floats:
    """ln of METRICS of closed loops by these laws, shape (points, 3); no limit on the batch, which nobody told."""
    found = []
    for law, kv, point in zip(laws, kv_tokens, points, strict=True):
        users = concurrency(point)
        step_s = law.decode_s(users, users * (point.isl + point.osl / 2))
        rough = replace(point, requests_per_s=users / (point.osl * step_s + law.prefill_alone_s(point.isl)))
        ahead = Server(point.engine, point.gpu, point.precision, "", point.engine_version).lookahead_steps
        policy = estimated_policy(point.engine)
        replica = Replica(law, Batching(policy, max(256, users), kv_tokens=kv, lookahead_steps=ahead))
        found.append(Replay(point_runs([rough], BURST), replica).means(replica)[0, 1:3])
    return figures(np.array(found), points)


def figures(latencies_s: Floats, points: Sequence[Point]) -> Floats:
    """ln of METRICS from mean TTFT and ITL, shape (points, 2): requests/s by Little's law, as those measured."""
    users, osl = np.array([(concurrency(point), point.osl) for point in points], float).T
    per_s = users / (latencies_s[:, 0] + (osl - 1) * latencies_s[:, 1])
    return np.asarray(np.log(np.column_stack([latencies_s, per_s])))


class Study:
    """The rows, the laws' response to effects about those of the whole sample, and fits to parts of it."""

    def __init__(self, rows: Sequence[Row], steps: int = STEPS) -> None:
        self.rows = rows
        points = [row.point for row in rows]
        self.measured = figures(np.array([(point.ttft_mean_s, point.itl_mean_s) for point in points], float), points)
        names = {(level, name): None for row in rows for level, name in row.levels.items()}
        self.columns = {name: place for place, name in enumerate(names)}
        self.design = np.zeros((len(rows), len(self.columns)))
        for place, row in enumerate(rows):
            self.design[place, [self.columns[name] for name in row.levels.items()]] = 1
        self.sigmas = np.array([LEVEL_SIGMAS[level] * EFFECT_SIGMAS for level, _ in self.columns])
        self.sigmas[[level == "client" for level, _ in self.columns]] *= CLIENT_SIGMAS
        self.trust = np.ones((len(rows), 2))
        self.trust[[row.waits for row in rows], 0] = 0.0
        effects = np.tile(START, (len(rows), 1))
        self._linearise(effects)
        for _ in range(steps):
            step = self.design @ self.fit(np.ones(len(rows), np.bool_)) - effects
            effects = effects + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
            self._linearise(effects)

    def _linearise(self, effects: Floats) -> None:
        """Set what a fit needs: the slopes of ln TTFT and ln ITL, over noise and times the prior's standard deviations,
        and the targets."""
        here = self.predicted(effects)[:, :2]
        slopes = np.empty((*here.shape, len(EFFECTS)))
        for place in range(len(EFFECTS)):
            there = effects.copy()
            there[:, place] += DIFFERENCE
            slopes[:, :, place] = (self.predicted(there)[:, :2] - here) / DIFFERENCE
        slopes /= NOISE[:, None]
        self._target = (self.measured[:, :2] - here) / NOISE + np.einsum("nmk,nk->nm", slopes, effects)
        spread = np.einsum("nc,nmk,ck->nmck", self.design, slopes, self.sigmas)
        self._slopes = spread.reshape(*here.shape, -1)

    def fit(self, told: NDArray[np.bool_]) -> Floats:
        """Effects of all columns from the rows `told`, shape (columns, 6); 0 for those of no such row."""
        slopes, target, trust = self._slopes[told], self._target[told], self.trust[told]
        weights = trust
        for _ in range(3):
            by_row = slopes * (weights**2)[:, :, None]
            normal = np.tensordot(by_row, slopes, axes=((0, 1), (0, 1)))
            normal[np.diag_indices_from(normal)] += 1
            found = np.linalg.solve(normal, np.einsum("nmk,nm->k", by_row, target))
            off = target - slopes @ found
            weights = trust * np.sqrt((FREEDOM + 1) / (FREEDOM + off**2))
        return np.asarray(found.reshape(self.sigmas.shape) * self.sigmas)

    def predicted(self, effects: Floats, whole: bool = True) -> Floats:
        """ln of METRICS of the rows with these effects, or with as much of them as is applied, shape (rows, 3)."""
        of_rows = [WHOLE if whole else shares_of(row.server) for row in self.rows]
        laws = [with_effects(row.law, *each) for row, *each in zip(self.rows, effects, of_rows, strict=True)]
        return predicted(laws, [row.kv_tokens for row in self.rows], [row.point for row in self.rows])

    def groups(self, left_out: str) -> NDArray[np.str_]:
        """Which group each row is left out with, shape (rows,)."""
        return np.array([row.group(left_out) for row in self.rows])

    @cached_property
    def off(self) -> Mapping[str, Floats]:
        """By what is left out with a row: ln of METRICS predicted from all other groups, over what was measured."""
        return {left_out: self._off(self.groups(left_out)) for left_out in LEFT_OUT}

    def _off(self, groups: NDArray[np.str_]) -> Floats:
        effects = np.zeros((len(self.rows), len(EFFECTS)))
        for group in sorted(set(groups)):
            out = groups == group
            effects[out] = self.design[out] @ self.fit(~out)
        effects = np.clip(effects, -FARTHEST, FARTHEST)
        return self.predicted(effects, whole=False) - self.measured

    def kinds(self) -> NDArray[np.str_]:
        """The class of each row's spread (Server.group), shape (rows,)."""
        return np.array([row.server.group for row in self.rows])

    def silicon(self) -> Silicon:
        """What all rows say."""
        values = self.fit(np.ones(len(self.rows), np.bool_))
        effects: dict[str, dict[str, tuple[float, ...]]] = {}
        for (level, name), place in self.columns.items():
            told = level not in FIT_ONLY and not (level == "version" and name.endswith(" "))  # a release without a name
            if told:
                effects.setdefault(level, {})[name] = tuple(values[place].tolist())
        kinds = self.kinds()
        spread = {
            left_out: {kind: dict(zip(METRICS, sigmas(off[kinds == kind]), strict=True)) for kind in sorted(set(kinds))}
            for left_out, off in self.off.items()
        }
        servers = [row.server for row in self.rows]
        models, gpus = sorted({one.model for one in servers}), sorted({one.gpu for one in servers})
        return Silicon(effects, spread, tuple(models), tuple(gpus))


def sigmas(off: Floats) -> list[float]:
    """Standard errors of METRICS whose 90 % bands hold nine in ten of the errors `off`, shape (rows, 3)."""
    nine_in_ten: list[float] = (np.quantile(np.abs(off), 0.9, axis=0) / SIGMAS_OF_BAND).tolist()
    return nine_in_ten


def left_sigmas(off: Floats, kinds: NDArray[np.str_], groups: NDArray[np.str_]) -> Floats:
    """For each row the standard errors of METRICS by the rows of its class in other groups, shape (rows, 3): of its own
    group nothing is known. Infinite where the class has no other."""
    found = np.full(off.shape, np.inf)
    for kind, group in set(zip(kinds.tolist(), groups.tolist(), strict=True)):
        others = (kinds == kind) & (groups != group)
        if others.any():
            found[(kinds == kind) & (groups == group)] = sigmas(off[others])
    return found


ABOUT = "Written by python -m validation.evidence.silicon_fit from the measured sample in aiconfigurator-core 0.12.0"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=SILICON, show_default=True)
def main(out: Path) -> None:
    """Fit all rows and write the effects and the spread; takes two minutes."""
    path = sample_path()
    if path is None:
        raise click.ClickException("the measured sample is not here: pip install aiconfigurator-core==0.12.0")
    if not kernels.available():
        raise click.ClickException(kernels.MISSING)
    rows, left_out = read_rows(path)
    found = Study(rows).silicon()
    told = {
        "about": f"{ABOUT}: {len(rows)} rows. Effects, in logarithms: {', '.join(EFFECTS)}.",
        "effects": {level: {name: _short(row) for name, row in rows.items()} for level, rows in found.effects.items()},
        "spread": {
            left: {kind: {metric: round(sigma, 4) for metric, sigma in row.items()} for kind, row in of_kind.items()}
            for left, of_kind in found.spread.items()
        },
        "models": found.models,
        "gpus": found.gpus,
    }
    out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    click.echo(f"{len(rows)} rows; left out: {', '.join(f'{count} {why}' for why, count in left_out.most_common())}")


def _short(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


if __name__ == "__main__":
    main()
