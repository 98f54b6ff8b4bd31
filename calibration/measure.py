"""One load level, from prompts to measurement; and the probe that tells how long levels will take."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from calibration.errors import NothingAnswered, PlanError, ServerError
from calibration.load import system
from calibration.load.contract import Contract, ModelInput
from calibration.load.loops import Job, arrival_times, ask, client, schedule_times
from calibration.load.pool import Workers
from calibration.metrics.measurement import measurement
from calibration.plan import DeploymentPlan, Level, PlanFile, ServerPlan, SweepPlan, TensorNames, is_here
from calibration.records import Measurement
from calibration.requests.source import RequestSource
from calibration.server_metrics import Scraper, requests_served
from sizing.points import Deployment, Point
from sizing.workload import Arrivals, Lengths, Seconds

# --- What a server says of itself: what its model takes, which deployment it is, where its tokenizer lies

ENGINE_MODEL = "tensorrt_llm"
TOKENIZER_MODEL = "preprocessing"
NEEDED = ("model", "precision", "gpu", "tp")
BATCHING_OF = {"v1": "static", "inflight_batching": "in_flight", "inflight_fused_batching": "in_flight"}


@dataclass(frozen=True, slots=True)
class Described:
    """`engine`: what the model `tensorrt_llm` says of the deployment, by column name of the points table.

    `tokenizer_file` is None where the server names none, or one that cannot be read from here. `engine_cores`: cores of
    this machine on which the engine computes, to be left to it; none for an engine elsewhere or on a GPU.
    """

    contract: Contract
    engine: dict[str, str]
    tokenizer_file: Path | None
    add_special_tokens: bool
    engine_cores: tuple[int, ...] = ()


async def describe(server: ServerPlan) -> Described:
    """Ask the server. Raises ServerError, within a few seconds, if it does not answer or does not serve the model."""
    async with client(server) as target:
        config = await target.model_config(server.model)
        if config is None:
            raise ServerError(
                f"{server.url}: no model {server.model!r} is served there; correct server.model in the plan"
            )
        await target.check_ready()
        engine = await target.model_config(ENGINE_MODEL)
        tokenizer = await target.model_config(TOKENIZER_MODEL)
    names = _parameters(tokenizer)
    return Described(
        contract=_contract(config, server.tensors),
        engine=_engine_of(engine),
        tokenizer_file=_tokenizer_file(names.get("tokenizer_dir", "")),
        add_special_tokens=names.get("add_special_tokens", "").lower() in ("true", "1"),
        engine_cores=system.read(_parameters(engine).get("engine_cores", "")) if is_here(server.url) else (),
    )


def deployment(plan: DeploymentPlan, engine: dict[str, str]) -> Deployment:
    """The deployment to write on the points: the plan's word first, then the server's.

    Raises PlanError naming the key to add if model, precision, gpu or tp is known to neither.
    """
    known: dict[str, Any] = dict(engine)
    known |= {name: value for name, value in plan.model_dump().items() if value is not None}
    missing = [name for name in NEEDED if not known.get(name)]
    if missing:
        keys = ", ".join(f"{name}: ..." for name in missing)
        raise PlanError(f"the server does not say its {', '.join(missing)}: add deployment: {{{keys}}} to the plan")
    for name in ("tp", "pp", "max_batch_size"):
        if name in known:
            known[name] = _whole(name, known[name])
    defaults: dict[str, Any] = {"pp": 1, "engine": "", "engine_version": "", "batching": "", "max_batch_size": None}
    return Deployment(**(defaults | known))


def _whole(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise PlanError(
            f"the server says {name} = {value!r}: set deployment.{name} in the plan to a number of 1 or more"
        )
    return number


def _parameters(config: Any) -> dict[str, str]:
    if config is None:
        return {}
    return {key: parameter.string_value for key, parameter in config.parameters.items()}


def _engine_of(config: Any) -> dict[str, str]:
    said = {key: value for key, value in _parameters(config).items() if not value.startswith("${")}
    engine = {name: said[name] for name in Deployment._fields if said.get(name)}
    kind = said.get("gpt_model_type", "").lower()
    if "batching" not in engine and kind in BATCHING_OF:
        engine["batching"] = BATCHING_OF[kind]
    if config is not None and config.max_batch_size > 0:
        engine["max_batch_size"] = str(config.max_batch_size)
    return engine


def _contract(config: Any, tensors: TensorNames) -> Contract:
    contract = Contract(
        model=config.name,
        inputs={tensor.name: ModelInput(_datatype(tensor), tensor.optional) for tensor in config.input},
        outputs=tuple(tensor.name for tensor in config.output),
        batched=config.max_batch_size > 0,
        tensors=tensors,
        decoupled=None if config.platform == "ensemble" else config.model_transaction_policy.decoupled,
    )
    contract.check()
    return contract


def _datatype(tensor: Any) -> str:
    known = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    name = known[tensor.data_type].name if tensor.data_type in known else f"TYPE_{tensor.data_type}"
    return "BYTES" if name == "TYPE_STRING" else str(name).removeprefix("TYPE_")


def _tokenizer_file(folder: str) -> Path | None:
    path = Path(folder) / "tokenizer.json"
    return path if folder and path.is_file() else None


OnShare = Callable[[float], None]
PROBES = 2
MADE_AHEAD = 1.5
NORMAL_95 = 1.96
E2E_VARIANCE = 0.05
CHECKS_AND_BATCHES = 1.5
MOST_MADE_AHEAD = 20_000
_PROBE = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """A server found ready to be measured as `plan` says: what it is, what is written on its points, the levels.

    `session` tells this measuring apart from every other one, in the seeds of its requests: what was sent once may lie
    in the server's prefix cache, also after a run was broken off in the middle of a level.
    """

    plan: SweepPlan
    served: Described
    replica: Deployment
    levels: tuple[Level, ...]
    session: tuple[int, ...] = ()

    @property
    def contract(self) -> Contract:
        """What the model takes and gives."""
        return self.served.contract


def prepare(file: PlanFile) -> Target:
    """Ask the server. Raises ServerError if it cannot be measured, PlanError if the plan lacks something for it."""
    plan = file.plan
    served = asyncio.run(describe(plan.server))
    if file.tokenizer_file is not None:
        served = replace(served, tokenizer_file=file.tokenizer_file)
    elif plan.tokenizer == "none":
        served = replace(served, tokenizer_file=None)
    replica = deployment(plan.deployment, served.engine)
    if plan.server.metrics_url is not None:
        requests_served(plan.server.metrics_url, plan.server.model)  # a wrong address is to fail now
    target = Target(plan, served, replica, ())
    means = [source(target, entry, (0,)).summary() for entry in range(len(plan.lengths))]
    return replace(target, levels=tuple(plan.levels(means)))


def source(target: Target, entry: int, seed: tuple[int, ...]) -> RequestSource:
    """The requests of one entry of the plan's lengths."""
    served = target.served
    return RequestSource(target.plan.lengths[entry], served.tokenizer_file, served.add_special_tokens, seed)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests of `lengths` were answered last: mean E2E of `e2e_s` with `users` in flight.

    `ttft_s` and `itl_s` are those of a request alone on the server.
    """

    lengths: Lengths
    users: float
    e2e_s: float
    ttft_s: float = 0.0
    itl_s: float = 0.0

    def after(self, point: Point) -> Pace:
        """The pace seen at `point`."""
        return replace(self, users=point.mean_in_flight or self.users, e2e_s=point.e2e_mean_s or self.e2e_s)

    def e2e_at_s(self, users: float) -> float:
        """A guess for another load, good enough for progress bars: E2E grows with the root of the users."""
        return self.e2e_s * math.sqrt(max(1.0, users / self.users))

    def alone_s(self, lengths: Lengths) -> float:
        """E2E of a request of other lengths alone on the server, as far as the probe tells: ISL hardly counts."""
        return self.ttft_s + max(0.0, lengths.osl - 1) * self.itl_s or self.e2e_s

    def expected_s(self, plan: SweepPlan, level: Level) -> float:
        """Seconds that `level` will take: ramp and warm-up, measuring, end of the last request."""
        if level.kind in ("schedule", "trace"):
            return float(arrivals_of(plan, level, self)[-1]) + self.e2e_s
        alone_s = self.alone_s(level.lengths)
        if level.kind == "concurrency":
            e2e_s = self.e2e_at_s(level.value) * alone_s / self.alone_s(self.lengths)
            return self._measuring_s(plan, level, level.value / e2e_s) + (plan.warm_up + 2) * e2e_s
        warm_up = warm_up_arrivals(plan, level, self)
        return warm_up / level.value + self._measuring_s(plan, level, level.value) + alone_s

    def _measuring_s(self, plan: SweepPlan, level: Level, per_s: float) -> float:
        budget_s = plan.until_of(level).budget_s or math.inf
        return min(expected_requests(plan, level) / per_s, budget_s)


def expected_requests(plan: SweepPlan, level: Level) -> int:
    """Requests that a level is thought to take, its budget apart.

    A mean of n values with variation c is known to ±1.96 c / √n. What varies is mostly the output length, and E2E by
    some 20 % beside it; answers are correlated and intervals looked at in steps, which takes half as many again.
    """
    until = plan.until_of(level)
    if until.requests_max is not None:
        return until.requests_max
    variance = level.lengths.osl_cv**2 + E2E_VARIANCE
    wanted = CHECKS_AND_BATCHES * variance * (NORMAL_95 / until.half_width) ** 2
    return max(until.requests_min or level.requests, math.ceil(wanted))


def warm_up_arrivals(plan: SweepPlan, level: Level, pace: Pace) -> int:
    """Arrivals to leave out in an open loop: `warm_up` for each request that Little's law puts in flight."""
    return plan.warm_up * max(1, math.ceil(level.value * pace.e2e_s))


def probe(target: Target, level: Level) -> Pace:
    """Two requests on the idle server, of which the second is timed. Raises NothingAnswered if one fails."""
    requests = source(target, level.entry, (*seed_of(target, level), _PROBE)).requests()
    log = asyncio.run(ask(target.plan.server, target.contract, islice(requests, PROBES)))
    faults = [error for error in log.error if error]
    if faults:
        raise NothingAnswered(f"{level.label}: the first request failed: {faults[0]}")
    ttft_s, e2e_s = float(log.first_token_s[-1] - log.sent_s[-1]), float(log.last_token_s[-1] - log.sent_s[-1])
    after = int(log.tokens[-1] - log.first_chunk_tokens[-1])
    return Pace(level.lengths, 1.0, float(log.end_s[-1] - log.sent_s[-1]), ttft_s, (e2e_s - ttft_s) / max(1, after))


def measure(
    target: Target,
    level: Level,
    pace: Pace,
    run_id: int,
    workers: Workers,
    on_share: OnShare,
    cancel: threading.Event | None = None,
) -> Measurement:
    """Measure one level. Raises ServerError if the server is lost or answers nothing, Cancelled by `cancel`."""
    plan, server = target.plan, target.plan.server
    load_job, until = job(target, level, pace), plan.until_of(level)
    seen: dict[str, float] = {}
    notes = _notes(target, level)
    if server.metrics_url is None:
        load = workers.drive(load_job, until, on_share=on_share, cancel=cancel)
    else:
        with Scraper(server.metrics_url, server.model, _engine(target)) as scraper:
            load = workers.drive(load_job, until, on_share=on_share, cancel=cancel)
        seen = scraper.means((load.start_s, load.stop_s))
        load = replace(load, served=scraper.served())
        notes += [*scraper.notes(), *_reuse(plan, level, seen)]
    where = f"calibration run {run_id}, {server.model} at {server.url}"
    return measurement(load, level, target.replica, source=where, notes=notes, server=seen)


def _engine(target: Target) -> str | None:
    """The engine's own model, where each request runs through it exactly once: an ensemble runs each step once."""
    return ENGINE_MODEL if target.contract.is_ensemble else None


def _reuse(plan: SweepPlan, level: Level, seen: Mapping[str, float]) -> list[str]:
    reused = seen.get("kv_cache_blocks_reused", 0.0)
    if reused <= 0 or plan.lengths[level.entry].shared_prefix or not plan.lengths[level.entry].unique:
        return []
    return [f"{reused:.0f} blocks of the KV cache were reused, though every prompt is unique: is the server shared?"]


def seed_of(target: Target, level: Level) -> tuple[int, ...]:
    """The seed of a level's requests, kept with them."""
    return (target.plan.seed, *target.session, level.index)


def job(target: Target, level: Level, pace: Pace) -> Job:
    """The load of `level`, as the processes of the load generator are told it."""
    plan = target.plan
    requests = source(target, level.entry, seed_of(target, level))
    if level.kind == "concurrency":
        users, e2e_s = round(level.value), pace.e2e_at_s(level.value)
        ramp_s = pace.e2e_s if plan.ramp_s is None else plan.ramp_s
        ahead = _ahead(plan, level, users / e2e_s) + (plan.warm_up + 1) * users
        return Job(
            plan.server, target.contract, requests, users=users, warm_up=plan.warm_up, ramp_s=ramp_s, ahead=ahead
        )
    arrivals_s = arrivals_of(plan, level, pace)
    warm_up = 0 if level.kind in ("schedule", "trace") else warm_up_arrivals(plan, level, pace)
    return Job(
        plan.server,
        target.contract,
        requests,
        arrivals_s=arrivals_s,
        warm_up=warm_up,
        ahead=min(len(arrivals_s), MOST_MADE_AHEAD),
    )


def _ahead(plan: SweepPlan, level: Level, per_s: float) -> int:
    """Prompts made before the load starts, so that making them takes no time from it."""
    budget_s = plan.until_of(level).budget_s or math.inf
    wanted = min(MADE_AHEAD * expected_requests(plan, level), 2 * per_s * budget_s)
    return min(MOST_MADE_AHEAD, math.ceil(wanted))


def arrivals_of(plan: SweepPlan, level: Level, pace: Pace) -> Seconds:
    """When the requests of an open loop fall due, seconds from its start, those to be left out first."""
    rng = np.random.default_rng([plan.seed, level.index])
    law = Arrivals.parse(plan.arrivals)
    if level.kind == "schedule":
        return schedule_times([(stage.for_s, stage.rate) for stage in plan.schedule], law, rng)
    if level.kind == "trace":
        times_s = plan.lengths[level.entry].arrivals_s
        assert times_s is not None, "a level of kind trace has lengths that are a trace"
        rate_per_s = (len(times_s) - 1) / float(times_s[-1] - times_s[0])
        return np.asarray((times_s - times_s[0]) * (rate_per_s / level.value))
    until = plan.until_of(level)
    warm_up = warm_up_arrivals(plan, level, pace)
    wanted = until.requests_max or max(level.requests, math.ceil(level.value * (until.budget_s or 0.0)))
    return arrival_times(law, level.value, warm_up + wanted + 1, rng)


def _notes(target: Target, level: Level) -> list[str]:
    counted = target.served.tokenizer_file is not None or target.contract.takes_token_ids
    words = [] if counted else ["ISL is words: no tokenizer was known"]
    return [*words, *target.contract.notes, *_left_out(target, level)]


def _left_out(target: Target, level: Level) -> list[str]:
    if target.plan.lengths[level.entry].dataset is None:
        return []
    texts = source(target, level.entry, ()).texts()
    return [f"{texts.left_out} prompts of the data set left out by max_input_len"] if texts.left_out else []
