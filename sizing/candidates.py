"""The ways to serve a model that a plan compares: fitted to measured points, or estimated where there are none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from sizing.catalog import PRECISIONS, TENSOR_PARALLEL, Layout, Model, layouts, precision_named
from sizing.catalog import gpu as gpu_named
from sizing.catalog import gpus as catalogued_gpus
from sizing.catalog import model as model_named
from sizing.catalog import precisions as precisions_of
from sizing.engine import UNLIMITED_KV_TOKENS
from sizing.engine_defaults import engine_named
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable, FitError, RequestTooLong, ScenarioError
from sizing.estimate import ENGINES, estimate, timed_engines
from sizing.fitting import UNTOLD, Fit, Protocol, fit
from sizing.plans import Candidate, Rejection, Why
from sizing.points import Deployment, Point, same_isl
from sizing.prediction import Caution
from sizing.workload import Lengths

Found = tuple[list[Candidate], list[Rejection]]
Key = tuple[str, str, Layout, str]

KV_BLOCK_TOKENS = 16
"""vLLM's, for engines of which no size is known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Hardware and software to compare: GPUs, precisions, layouts, engines. Empty precisions = all sensible ones.

    `tps` are pure tensor-parallel layouts, in addition to the other `layouts`; with neither, all sensible ones. Empty
    `gpus` = those that the points were measured on. Empty `engines` = those that the model was measured with, or, if it
    was not, every engine with timings. `basis` "measured" leaves estimates out.
    """

    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    tps: tuple[int, ...] = ()
    basis: Literal["measured", "any"] = "any"
    engines: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()

    @property
    def asked(self) -> tuple[Layout, ...]:
        """The layouts requested by name, empty for any."""
        return tuple(dict.fromkeys((*map(Layout, self.tps), *self.layouts)))

    def allows(self, deployment: Deployment) -> bool:
        """True when a measured deployment is among the choices."""
        return (
            (not self.gpus or is_among(deployment.gpu, self.gpus))
            and (not self.precisions or is_among(deployment.precision, self.precisions))
            and (not self.asked or deployment.layout in map(_told, self.asked))
            and (not self.engines or engine_named(deployment.engine) in map(engine_named, self.engines))
        )


def _told(layout: Layout) -> Layout:
    """The part of a layout that points record: their columns do not include experts."""
    return replace(layout, ep=1)


def is_among(name: str, names: Sequence[str]) -> bool:
    """True when `name` is one of `names`, ignoring case."""
    return name.casefold() in (each.casefold() for each in names)


def is_of(model: str, name: str) -> bool:
    """True when both names are of one model: by the catalogue where it knows them, else ignoring case."""
    return model.casefold() == name.casefold() or _catalogued_id(model) == _catalogued_id(name)


def _catalogued_id(name: str) -> str:
    known = catalogued(name)
    return (known.id if known else name).casefold()


def check_choice(choice: Choice, points: Sequence[Point]) -> None:
    """ScenarioError for a precision, TP or engine by whose name no candidate could exist, measured or estimated."""
    known = list(dict.fromkeys([*PRECISIONS, *(point.precision for point in points)]))
    for precision in choice.precisions:
        if not is_among(precision, known):
            raise ScenarioError(f"precision {precision}: not known; known are {', '.join(known)}")
    engines = list(dict.fromkeys([*ENGINES, *(engine_named(point.engine) for point in points if point.engine)]))
    for engine in choice.engines:
        if engine_named(engine) not in engines:
            raise ScenarioError(f"engine {engine}: not known; known are {', '.join(engines)}")
    tps = sorted({*TENSOR_PARALLEL, *(point.tp for point in points)})
    for tp in choice.tps:
        if tp not in tps:
            raise ScenarioError(f"TP {tp}: not one of {', '.join(map(str, tps))}; ask for it as the layout tp{tp}")


def find(
    model: str,
    lengths: Lengths,
    choice: Choice,
    points: Sequence[Point] = (),
    protocol: Protocol = UNTOLD,
    *,
    expected: bool = True,
) -> Found:
    """Candidates and what had to be left out, measured deployments first. `protocol`: how the points were measured.
    `expected`: the points were given for this question, so estimates carry a caution if none of them is used.

    Raises CatalogueError for a GPU or model that is neither measured nor in the catalogue, ScenarioError when there is
    nothing to choose from, and for requests longer than the model's context.
    """
    check_context(model, lengths)
    check_choice(choice, points)
    candidates, rejected = measured(model, lengths, choice, points, protocol)
    own = {
        engine_named(point.engine) for point in points if is_of(model, point.model) and is_among(point.gpu, choice.gpus)
    }
    only_measured = [point.gpu for point in points if not is_among(point.gpu, list(catalogued_gpus()))]
    to_estimate = [gpu for gpu in choice.gpus if not is_among(gpu, only_measured)]
    if choice.basis == "any" and to_estimate:
        covered = {key_of(each.gpu, each.precision, each.layout, each.engine) for each in candidates}
        more, left_out = estimated(model, lengths, choice, to_estimate, covered, own)
        if expected and points and not candidates and not rejected:
            unused = Caution("unused_points", {"have": held(points)})
            more = [replace(each, warnings=(*each.warnings, unused)) for each in more]
        candidates, rejected = candidates + more, rejected + left_out
    if not candidates and not rejected:
        raise ScenarioError(nothing_measured(model, points, choice.basis))
    return candidates, rejected


def measured(
    model: str, lengths: Lengths, choice: Choice, points: Sequence[Point], protocol: Protocol = UNTOLD
) -> Found:
    """One candidate for each measured deployment of the model that the choice allows, fitted to all of its points:
    closed loops, if measured, and rates that it kept up with."""
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    for deployment, group in by_deployment(points).items():
        if not is_of(model, deployment.model) or not choice.allows(deployment):
            continue
        try:
            found = from_fit(law_of(tuple(group), protocol=protocol), lengths, group)
            if found.basis == "estimated" and choice.basis == "measured":
                raise FitError("points of one load level only scale an estimate: measure a second, or allow estimates")
            candidates.append(found)
        except (FitError, RequestTooLong) as error:
            engine = engine_named(deployment.engine)
            names = deployment.gpu, deployment.layout, deployment.precision
            kind: Why = "no_data" if isinstance(error, FitError) else "memory"
            rejected.append(Rejection(*names, kind, str(error), engine=engine))
    return candidates, rejected


law_of = lru_cache(maxsize=64)(fit)
"""`sizing.fitting.fit` of a tuple of points, cached for the next question, which does not change the fit."""


def check_context(model: str, lengths: Lengths) -> None:
    """ScenarioError where the mean request is longer than the catalogue's model can attend to."""
    known = catalogued(model)
    tokens = lengths.isl + lengths.osl
    if known and known.max_context_tokens and tokens > known.max_context_tokens:
        raise ScenarioError(
            f"ISL + OSL are {tokens:,.0f} tokens, {known.name} takes {known.max_context_tokens:,} at most: shorten them"
        )


def catalogued(model: str) -> Model | None:
    """The catalogue's entry, None for the user's own model."""
    try:
        return model_named(model)
    except CatalogueError:
        return None


def by_deployment(points: Sequence[Point]) -> dict[Deployment, list[Point]]:
    """Points grouped by everything that determines how an instance behaves."""
    groups: dict[Deployment, list[Point]] = {}
    for point in points:
        groups.setdefault(point.deployment, []).append(point)
    return groups


def from_fit(fitted: Fit, lengths: Lengths, points: Sequence[Point] = ()) -> Candidate:
    """The candidate of a fit; "fitted" when the lengths are within the measured range, "estimated" where one load level
    scales a day-zero law.

    `points`: all of the deployment, from which it takes the levels of random arrivals.
    """
    deployment = fitted.deployment
    count, scaled = len(fitted.errors), "scaled by " if fitted.of_one_level else ""
    noun = "point" if count == 1 else "points"
    local = fitted.at(lengths.isl, lengths.osl)
    return Candidate(
        model=deployment.model,
        gpu=deployment.gpu,
        layout=deployment.layout,
        precision=deployment.precision,
        replica=local.replica,
        basis=fitted.basis(lengths),
        source=f"{scaled}{count} measured {noun}, {deployment.engine} {deployment.engine_version}".rstrip(", "),
        relative_sigma=local.relative_sigma,
        engine=engine_named(deployment.engine),
        calibrated_in_flight=fitted.calibrated.concurrency,
        calibrated_from=fitted.calibrated.fewest,
        variants=local.variants_seen(lengths),
        warnings=cautions_at(fitted, lengths),
        fitted_to=tuple(error.point for error in fitted.errors),
        protocol=UNTOLD if fitted.protocol.inferred else fitted.protocol,
        open_loops=tuple(point for point in points if point.load_kind == "poisson_rate"),
    )


def cautions_at(fitted: Fit, lengths: Lengths) -> tuple[Caution, ...]:
    """Cautions about the fit at these mean lengths: prompts of one length say nothing about others, and no other length
    is needed if the question is about the measured one."""
    found = []
    for each in fitted.warnings:
        if each.kind == "one_isl":
            measured = float(each.facts["isl"])  # type: ignore[arg-type]
            if same_isl((measured, lengths.isl)):
                continue
            longer = max(float(each.facts["longer"]), lengths.isl)  # type: ignore[arg-type]
            each = Caution("unmeasured_isl", {"isl": measured, "asked": lengths.isl, "longer": longer})
        found.append(each)
    longest = max(error.point.isl + error.point.osl for error in fitted.errors)
    if fitted.batching.kv_tokens == UNLIMITED_KV_TOKENS and lengths.isl + lengths.osl > LONGER * longest:
        found.append(Caution("unknown_kv_tokens", {"tokens": lengths.isl + lengths.osl}))
    if round(lengths.osl) > 1 and all(round(error.point.osl) <= 1 for error in fitted.errors):
        found.append(Caution("no_itl"))
    return tuple(found)


LONGER = 1.2
"""Request tokens relative to the longest measured request, above which it may need memory that the measured did not."""


def estimated(
    model: str,
    lengths: Lengths,
    choice: Choice,
    gpus: Sequence[str],
    covered: set[Key],
    measured_on: Collection[str] = (),
) -> Found:
    """Day-zero estimates for each of the `gpus` at every precision, layout and engine of the choice that no measurement
    covers. If no engine is chosen, a measured one covers all of them, and only engines that the model was `measured_on`
    are estimated.

    None for a model that is measured but not in the catalogue; CatalogueError if it is neither.
    """
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    labels: set[str] = set()
    known_model = catalogued(model) if covered else model_named(model)
    if known_model is None:
        return [], []
    for gpu, precision, layout, engine in _uncovered(known_model, choice, gpus, covered, measured_on):
        try:
            found = estimate(known_model.id, gpu, layout, precision, lengths, engine=engine)
            if found.label not in labels:  # experts split otherwise than asked are a layout of their own
                candidates.append(found)
                labels.add(found.label)
        except (DoesNotFit, EstimateUnavailable) as error:
            kind: Why = "memory" if isinstance(error, DoesNotFit) else "no_data"
            rejected.append(Rejection(gpu, layout, precision, kind, str(error), engine=engine))
    return candidates, rejected


def _uncovered(
    model: Model, choice: Choice, gpus: Sequence[str], covered: set[Key], measured_on: Collection[str]
) -> Iterator[tuple[str, str, Layout, str]]:
    """GPU, precision, layout and engine of each estimate to make."""
    known_engines = tuple(engine for engine in ENGINES if engine in measured_on)
    wanted = tuple(map(engine_named, choice.engines))
    covered_at_all = set() if wanted else {key_of(*key[:3]) for key in covered}
    precisions = tuple(precision.casefold() for precision in choice.precisions)
    for gpu in (gpu_named(name).id for name in gpus):
        for precision in precisions or precisions_of(gpu_named(gpu), model) or (model.checkpoint,):
            for layout in choice.asked or _sensible(model, gpu, precision):
                if key_of(gpu, precision, layout) not in covered_at_all:
                    for engine in wanted or known_engines or _timed(model, gpu, layout, precision) or ("",):
                        if key_of(gpu, precision, layout, engine) not in covered:
                            yield gpu, precision, layout, engine


def _timed(model: Model, gpu: str, layout: Layout, precision: str) -> tuple[str, ...]:
    """Engines with timings of the layout, or of its substitute: the same tensor parallelism with whole experts."""
    whole = replace(layout, ep=layout.tp if model.kind == "moe" and layout.gpus == layout.tp else layout.ep)
    known = timed_engines(model, gpu, layout, precision), timed_engines(model, gpu, whole, precision)
    return tuple(engine for engine in ENGINES if engine in known[0] + known[1])


def _sensible(model: Model, gpu: str, precision: str) -> Sequence[Layout]:
    """Layouts to compare when none is requested: those with timings; for a model without any, all layouts, scaled from
    its relatives; and tensor parallelism in any case."""
    by_tensor = [Layout(tp) for tp in TENSOR_PARALLEL]
    form = precision_named(precision)
    if form is None:
        return by_tensor
    chip = gpu_named(gpu)
    known = layouts(model, chip, form)
    timed = [each for each in known if timed_engines(model, gpu, each, form)]
    if not timed and chip.timed:
        return known
    taken = {each.tp for each in timed if each.tp == each.gpus}
    return [*timed, *(each for each in by_tensor if each.tp not in taken)]


def with_prefix_cache(candidate: Candidate, kv_tokens: int) -> Candidate:
    """The candidate with a prefix cache, by vLLM's rules, and so many tokens of KV cache.

    Blocks are those of its engine: single tokens in SGLang, vLLM's where the size is not known. A request starts once
    its prompt fits, as in vLLM and, nearly, in SGLang, which reserves little for answers; TensorRT-LLM keeps its rule.
    """
    rule, engine = candidate.replica.batching, engine_named(candidate.engine)
    block = rule.kv_block_tokens if engine == "sglang" or rule.kv_block_tokens > 1 else KV_BLOCK_TOKENS
    policy = rule.kv_policy if engine == "trtllm" else "max_utilization"
    rule = replace(rule, kv_tokens=kv_tokens, kv_policy=policy, kv_block_tokens=block, prefix_cache=True)
    return replace(candidate, replica=replace(candidate.replica, batching=rule), open_loops=())


def key_of(gpu: str, precision: str, layout: Layout, engine: str = "") -> Key:
    """The key under which two candidates of a model are the same, ignoring case."""
    return gpu.casefold(), precision.casefold(), _told(layout), engine


def nothing_measured(model: str, points: Sequence[Point], basis: Literal["measured", "any"]) -> str:
    """Why there is nothing to choose from, and what to do."""
    if points:
        return f"no measured point of {model} fits the choice; the points hold: {held(points)}"
    if basis == "measured":
        return "without estimates there is nothing to choose from: give measured points (--points file.csv)"
    return "name at least one GPU to estimate (--gpu h200_sxm) or give measured points (--points file.csv)"


NAMED = 5
"""Deployments that a line names."""


def held(points: Sequence[Point]) -> str:
    """What `points` are of, the first few deployments by name."""
    have = sorted({f"{point.model} on {point.gpu} TP{point.tp} {point.precision}" for point in points})
    more = f" and {len(have) - NAMED} more" if len(have) > NAMED else ""
    return "; ".join(have[:NAMED]) + more
