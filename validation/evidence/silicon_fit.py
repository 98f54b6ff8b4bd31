"""Fits what measured servers have beyond their kernels: the effects that sizing/estimate/silicon.py puts on a law.

Each row of the sample (see measured_silicon_rows) is predicted from the kernels of its own engine in its own layout, in
a closed loop whose users begin together. Six effects a server (EFFECTS) are sums over levels, from the mean of all to
the server itself: a linear mixed model in logarithms of TTFT and ITL, linearised by Gauss-Newton, with given standard
deviations of the effects (ridge; Robinson 1991, Statist. Sci. 6:15) and weights of Student's t against outliers (Lange,
Little, Taylor 1989, JASA 84:881). Two levels serve the fit alone and are not handed on: the server, and whose client
measured. The spread is the 90 % quantile of what is left when groups are left out, over 1.645.

Dense models and mixtures of experts have a fit each, both to all rows. That of mixtures lets their prompts differ more
by engine, class and model (MIXTURE_SIGMAS): so says the marginal likelihood of their rows, which `--deviations` prints,
while that of dense servers' is content with what is given.

    python -m validation.evidence.silicon_fit [--out file.json] [--deviations]
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
from scipy.linalg import cho_solve
from scipy.optimize import minimize

from sizing import catalog
from sizing.catalog import Layout
from sizing.engine import Batching, Replica, StepLaw
from sizing.engine_defaults import engine_defaults
from sizing.errors import EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.silicon import (
    EFFECTS,
    FARTHEST,
    KINDS,
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
from sizing.points import KnownPolicy, Point, Protocol
from sizing.simulator.replay import Replay
from sizing.stats import Z90
from validation.evidence.measured_silicon_rows import Series, read_sample, sample_path

METRICS = ("ttft", "itl", "requests")
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
MIXTURE_SIGMAS = {
    ("engine, kind", "request"): 0.5,
    ("class", "prompt"): 0.25,
    ("model", "prompt"): 0.3,
    ("model", "prompt_step"): 0.7,
    ("model", "request"): 0.25,
}
"""Standard deviations instead, of what is said of mixtures to mixtures: where the likely one is far larger. What
prompts add to an iteration is about as likely to differ by model as by engine and release; by model, left-out servers
of either half of the groups were predicted better."""
FIT_ONLY = ("server", "client")
OF_A_KIND = ("kind", "engine, kind", "class", "model")
"""Levels whose names are of one kind of model each; what all others tell of one kind holds for the other too."""
NOISE = np.array([0.5, 0.2])
"""Standard deviations of a row's ln TTFT and ln ITL about its server's."""
FREEDOM = 4.0
START = np.array([-0.05, 0.0, -1.0, 0.0, 0.0, 0.0])
STEPS, LONGEST_STEP, DIFFERENCE = 4, 0.5, 0.05
PROMPTS = 3
"""Place of the first effect on prompts and requests in EFFECTS."""
SIGMAS_SIGMA, ROUNDS = 0.7, 3
"""Standard deviation of ln of the standard deviations about those given, and how often outliers are weighed again."""
GENERATED_BATCH = 512
"""The batch limit that NVIDIA's generator gives an engine which is expected to run no larger one."""
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
        timed = time_engine(opened, model.unrouted, catalog.unread_share(model, opened.layout))
    except EstimateUnavailable:
        raise EstimateUnavailable("without timings of their engine and layout") from None
    server = Server(first.engine, gpu.id, precision, model.kind, first.engine_version, model.shape)
    client = "InferenceX" if series.varied else "NVIDIA"
    points = [as_started(point, server, client) for point in series.points]
    return [
        Row(point, timed.law, max(timed.memory.kv_tokens(length), length), server, client, layout)
        for point in points
        for length in [math.ceil(point.isl + point.osl) + 1]
    ]


def as_started(point: Point, server: Server, client: str) -> Point:
    """A row with how its server was started, as far as that is known and not the engine's default. InferenceX: by its
    launch scripts (benchmarks/*.sh of SemiAnalysisAI/InferenceX). NVIDIA, which does not say: as its own generator
    starts these engines (rule_plugin/trtllm.rule and vllm.rule of ai-dynamo/aiconfigurator), by whose budget TTFT of
    the rows scatters about their kernels half as widely as by the engines' defaults."""
    if client == "InferenceX":
        starts = {"sglang": _sglang_as_started, "trtllm": _trtllm_as_started}
        return starts[server.engine](point, server) if server.engine in starts else point
    if server.engine == "sglang":
        return point
    policy: KnownPolicy = "whole_prompt" if server.engine == "trtllm" else point.policy
    return replace(point, policy=policy, token_budget=GENERATED_BATCH + round(point.isl) + 1500)


def _sglang_as_started(point: Point, server: Server) -> Point:
    """With large chunks everywhere, on Blackwell with a receive interval that grows at 16 users. Rows show it: on B200
    and B300 TTFT takes ten steps longer from 8 to 16 users, on H200, which is started without, it does not."""
    interval = 1 if server.generation != "blackwell" else 10 if concurrency(point) < 16 else 30
    chunk = 16_384 if server.precision == "nvfp4" else 32_768
    return replace(point, token_budget=chunk, receive_interval_steps=interval)


def _trtllm_as_started(point: Point, server: Server) -> Point:
    """With whole prompts, and a token budget by model: of DeepSeek as much as one prompt beside all users needs. Llama
    70B at 1k/1k on fewer than eight GPUs lets prompts wait for others up to 20 steps, which is what the TTFT of its
    rows lacked, to the step; on eight GPUs, and at other lengths, it does not."""
    nominal = 1024 if point.isl < 1024 else 8192
    if server.kind == "dense":
        waits = nominal == 1024 and point.osl < 1024 and point.tp < 8
        return replace(
            point, policy="whole_prompt", token_budget=16_384, batch_wait_steps=20 * waits, batch_wait_ratio=0.9
        )
    if server.precision == "mxfp4":
        return replace(point, policy="whole_prompt", token_budget=20_000)
    alone = 64 * math.ceil((concurrency(point) + nominal + 64) / 64)
    if server.precision == "nvfp4":
        budget = 2200
    else:
        budget = max(8192, alone) if server.engine_version.startswith("1.2") else alone
    return replace(point, policy="whole_prompt", token_budget=budget)


def predicted(laws: Sequence[StepLaw], kv_tokens: Sequence[int], points: Sequence[Point]) -> Floats:
    """ln of METRICS of closed loops by these laws, shape (points, 3); what nobody tells of a scheduler is the engine's
    default for the GPU, and the batch has no limit."""
    found = []
    for law, kv, point in zip(laws, kv_tokens, points, strict=True):
        users = concurrency(point)
        step_s = law.decode_s(users, users * (point.isl + point.osl / 2))
        rough = replace(point, requests_per_s=users / (point.osl * step_s + law.prefill_alone_s(point.isl)))
        ahead = Server(point.engine, point.gpu, point.precision, "", point.engine_version).lookahead_steps
        memory = catalog.memory_bytes(point.gpu)
        defaults = engine_defaults(point.engine, point.engine_version, point.gpu, memory)
        slots, budget = max(256, users), defaults.token_budgets[0]
        usual = Batching(estimated_policy(point.engine), slots, budget, kv, lookahead_steps=ahead)
        replica = Replica(law, replace(usual, **point.scheduling.told))
        found.append(Replay(point_runs([rough], BURST), replica).means(replica)[0, 1:3])
    return figures(np.array(found), points)


def figures(latencies_s: Floats, points: Sequence[Point]) -> Floats:
    """ln of METRICS from mean TTFT and ITL, shape (points, 2): requests/s by Little's law, as those measured."""
    users, osl = np.array([(concurrency(point), point.osl) for point in points], float).T
    per_s = users / (latencies_s[:, 0] + (osl - 1) * latencies_s[:, 1])
    return np.asarray(np.log(np.column_stack([latencies_s, per_s])))


class Study:
    """The rows, the laws' response to effects about those of the whole sample, and fits to parts of it, for servers of
    one kind of model: dense or moe."""

    def __init__(self, rows: Sequence[Row], kind: str, steps: int = STEPS) -> None:
        self.rows, self.kind = rows, kind
        self.own = np.array([row.server.kind == kind for row in rows])
        points = [row.point for row in rows]
        self.measured = figures(np.array([(point.ttft_mean_s, point.itl_mean_s) for point in points], float), points)
        names = {(level, name): row.server.kind for row in rows for level, name in row.levels.items()}
        self.columns = {name: place for place, name in enumerate(names)}
        self.design = np.zeros((len(rows), len(self.columns)))
        for place, row in enumerate(rows):
            self.design[place, [self.columns[name] for name in row.levels.items()]] = 1
        wide = [kind == "moe" == of for of in names.values()]
        self.sigmas = np.array([given_sigmas(level, own) for (level, _), own in zip(names, wide, strict=True)])
        self.trust = np.ones((len(rows), 2))
        self.trust[[row.waits for row in rows], 0] = 0.0
        effects = np.tile(START, (len(rows), 1))
        self._linearise(effects)
        for _ in range(steps):
            step = self.design @ self.fit(np.ones(len(rows), np.bool_)) - effects
            effects = effects + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
            self._linearise(effects)

    def _linearise(self, effects: Floats) -> None:
        """Set what a fit needs: the slopes of ln TTFT and ln ITL, and the targets, both over noise."""
        here = self.predicted(effects)[:, :2]
        self.slopes = np.empty((*here.shape, len(EFFECTS)))
        for place in range(len(EFFECTS)):
            there = effects.copy()
            there[:, place] += DIFFERENCE
            self.slopes[:, :, place] = (self.predicted(there)[:, :2] - here) / DIFFERENCE
        self.slopes /= NOISE[:, None]
        self.target = (self.measured[:, :2] - here) / NOISE + np.einsum("nmk,nk->nm", self.slopes, effects)

    def fit(self, told: NDArray[np.bool_]) -> Floats:
        """Effects of all columns from the rows `told`, shape (columns, 6); 0 for those of no such row."""
        target, trust = self.target[told], self.trust[told]
        slopes = np.einsum("nc,nmk,ck->nmck", self.design[told], self.slopes[told], self.sigmas)
        slopes = slopes.reshape(*target.shape, -1)
        weights = trust
        for _ in range(3):
            by_row = slopes * (weights**2)[:, :, None]
            normal = np.tensordot(by_row, slopes, axes=((0, 1), (0, 1)))
            normal[np.diag_indices_from(normal)] += 1
            found = np.linalg.solve(normal, np.einsum("nmk,nm->k", by_row, target))
            weights = trust * students_t(target - slopes @ found)
        return np.asarray(found.reshape(self.sigmas.shape) * self.sigmas)

    def predicted(self, effects: Floats, whole: bool = True) -> Floats:
        """ln of METRICS of the rows with these effects, or with as much of them as is applied, shape (rows, 3)."""
        of_rows = [WHOLE if whole else shares_of(row.server) for row in self.rows]
        laws = [with_effects(row.law, *each) for row, *each in zip(self.rows, effects, of_rows, strict=True)]
        return predicted(laws, [row.kv_tokens for row in self.rows], [row.point for row in self.rows])

    def groups(self, left_out: str) -> NDArray[np.str_]:
        """Which group each row is left out with, shape (rows,)."""
        return np.array([row.group(left_out) for row in self.rows])

    def off(self, left_out: str) -> Floats:
        """Of the rows of this kind, ln of METRICS predicted from all other groups, over what was measured."""
        groups, effects = self.groups(left_out), np.zeros((len(self.rows), len(EFFECTS)))
        for group in sorted(set(groups[self.own])):
            out = groups == group
            effects[out] = self.design[out] @ self.fit(~out)
        effects = np.clip(effects, -FARTHEST, FARTHEST)
        return np.asarray((self.predicted(effects, whole=False) - self.measured)[self.own])

    def found(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """What all rows say of servers of this kind: by level and name, values of EFFECTS; of an engine that ran the
        other kind only, too."""
        values, found = self.fit(np.ones(len(self.rows), np.bool_)), dict[str, dict[str, tuple[float, ...]]]()
        for (level, name), place in self.columns.items():
            told = level not in FIT_ONLY and not (level == "version" and name.endswith(" "))  # a release without a name
            if told and (level not in OF_A_KIND or self.design[self.own, place].any()):
                found.setdefault(level, {})[name] = tuple(values[place].tolist())
        return found

    def likely_sigmas(self) -> Mapping[str, Floats]:
        """By level, the standard deviations of the effects (EFFECTS) under which the rows of this kind are likeliest
        (marginal likelihood of a Gaussian process; Rasmussen & Williams 2006, section 5.4.1). Those of steps stay as
        given; the others have a log-normal prior about what is given (SIGMAS_SIGMA). Within one kind two levels are
        none: "kind" is "all", and "engine, kind" is "engine"."""
        place, metric = np.nonzero(self.own[:, None] & (self.trust > 0))
        slopes, target = self.slopes[place, metric], self.target[place, metric]
        given = {level: given_sigmas(level) for level in LEVEL_SIGMAS if level not in ("kind", "engine, kind")}
        names = {level: np.array([self.rows[int(row)].levels[level] for row in place]) for level in given}
        same = {level: one[:, None] == one for level, one in names.items()}
        free = np.array([row[PROMPTS:] for row in given.values()])

        def sigmas_of(logs: Floats) -> dict[str, Floats]:
            own = free * np.exp(logs.reshape(free.shape))
            return {
                level: np.concatenate([row[:PROMPTS], found])
                for (level, row), found in zip(given.items(), own, strict=True)
            }

        def covariance(sigmas: Mapping[str, Floats]) -> Floats:
            total = np.zeros((len(place), len(place)))
            for level, row in sigmas.items():
                total += ((slopes * row**2) @ slopes.T) * same[level]
            return total

        def surprise(logs: Floats, noise: Floats) -> tuple[float, Floats]:
            sigmas = sigmas_of(logs)
            factor = np.linalg.cholesky(covariance(sigmas) + np.diag(noise))
            inverse = cho_solve((factor, True), np.eye(len(place)))
            pull = inverse @ target
            beyond = np.outer(pull, pull) - inverse
            slope = [
                -(row**2 * np.einsum("nk,nk->k", slopes, (beyond * same[level]) @ slopes))[PROMPTS:]
                for level, row in sigmas.items()
            ]
            value = (
                target @ pull / 2 + np.log(np.diag(factor)).sum() + (logs / SIGMAS_SIGMA) @ (logs / SIGMAS_SIGMA) / 2
            )
            return float(value), np.concatenate(slope) + logs / SIGMAS_SIGMA**2

        logs, noise = np.zeros(free.size), np.ones(len(place))
        for _ in range(ROUNDS):
            of_rows = covariance(sigmas_of(logs))
            for _ in range(ROUNDS):
                found = of_rows @ np.linalg.solve(of_rows + np.diag(noise), target)
                noise = students_t(target - found) ** -2.0
            logs = minimize(surprise, logs, (noise,), "L-BFGS-B", jac=True).x
        return sigmas_of(logs)


class Studies:
    """All rows, each predicted by the study of its own kind."""

    def __init__(self, rows: Sequence[Row], steps: int = STEPS) -> None:
        present = [kind for kind in KINDS if any(row.server.kind == kind for row in rows)]
        self.rows, self.of_kind = rows, [Study(rows, kind, steps) for kind in present]
        self.measured = self.of_kind[0].measured

    @cached_property
    def off(self) -> Mapping[str, Floats]:
        """By what is left out with a row: ln of METRICS predicted from all other groups, over what was measured."""
        found = {left_out: np.empty(self.measured.shape) for left_out in LEFT_OUT}
        for left_out, off in found.items():
            for study in self.of_kind:
                off[study.own] = study.off(left_out)
        return found

    def groups(self, left_out: str) -> NDArray[np.str_]:
        """Which group each row is left out with, shape (rows,)."""
        return self.of_kind[0].groups(left_out)

    def kinds(self) -> NDArray[np.str_]:
        """The class of each row's spread (Server.group), shape (rows,)."""
        return np.array([row.server.group for row in self.rows])

    def silicon(self) -> Silicon:
        """What all rows say."""
        kinds = self.kinds()
        spread = {
            left_out: {kind: dict(zip(METRICS, sigmas(off[kinds == kind]), strict=True)) for kind in sorted(set(kinds))}
            for left_out, off in self.off.items()
        }
        servers = [row.server for row in self.rows]
        models, gpus = sorted({one.model for one in servers}), sorted({one.gpu for one in servers})
        return Silicon({study.kind: study.found() for study in self.of_kind}, spread, tuple(models), tuple(gpus))


def given_sigmas(level: str, of_mixtures: bool = False) -> Floats:
    """Standard deviations of a level's effects, shape (6,)."""
    given = LEVEL_SIGMAS[level] * EFFECT_SIGMAS * (CLIENT_SIGMAS if level == "client" else 1.0)
    wide = MIXTURE_SIGMAS if of_mixtures else {}
    return np.array([wide.get((level, effect), sigma) for effect, sigma in zip(EFFECTS, given, strict=True)])


def students_t(off: Floats) -> Floats:
    """Weights of what is off by so many standard deviations of noise."""
    return np.asarray(np.sqrt((FREEDOM + 1) / (FREEDOM + off**2)))


def sigmas(off: Floats) -> list[float]:
    """Standard errors of METRICS whose 90 % bands hold nine in ten of the errors `off`, shape (rows, 3)."""
    nine_in_ten: list[float] = (np.quantile(np.abs(off), 0.9, axis=0) / Z90).tolist()
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
@click.option("--deviations", is_flag=True, help="Print the likeliest standard deviations of effects; write nothing.")
def main(out: Path, deviations: bool) -> None:
    """Fit all rows and write the effects and the spread; takes three minutes."""
    path = sample_path()
    if path is None:
        raise click.ClickException("the measured sample is not here: pip install aiconfigurator-core==0.12.0")
    if not kernels.available():
        raise click.ClickException(kernels.MISSING)
    rows, left_out = read_rows(path)
    studies = Studies(rows)
    if deviations:
        for study in studies.of_kind:
            click.echo(f"{study.kind}: likeliest standard deviations of {', '.join(EFFECTS[PROMPTS:])} (given)")
            for level, likely in study.likely_sigmas().items():
                pairs = zip(likely[PROMPTS:], given_sigmas(level)[PROMPTS:], strict=True)
                click.echo(f"  {level:<20}" + "   ".join(f"{sigma:.2f} ({given:.2f})" for sigma, given in pairs))
        return
    found = studies.silicon()
    told = {
        "about": f"{ABOUT}: {len(rows)} rows. Effects, in logarithms: {', '.join(EFFECTS)}.",
        "effects": {
            kind: {level: {name: _short(row) for name, row in rows.items()} for level, rows in levels.items()}
            for kind, levels in found.effects.items()
        },
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
