"""The server that a plan names: what it reports, which deployment that is, and which levels are measured there."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.errors import KEY, PlanError, ServerError
from calibration.load.contract import Contract
from calibration.load.exchange import one_line
from calibration.load.grpc import GrpcClient
from calibration.load.loops import AnyContract, client
from calibration.load.openai import OpenAiClient, meet
from calibration.page import is_below
from calibration.plan import Answering, DeploymentPlan, Level, PlanFile, ServerPlan, SweepPlan, is_here
from calibration.requests.source import RequestSource
from calibration.requests.tokens import AS_TOKENIZED, ServerCount
from calibration.server_metrics import Access, requests_served
from calibration.store.database import clean
from sizing.numbers import percent
from sizing.points import UNSAID, Deployment, Scheduling

ENGINE_MODEL = "tensorrt_llm"
DRAWN = 10_000
"""Requests whose lengths are drawn to estimate how many are too long."""
TOKENIZER_MODEL = "preprocessing"
NEEDED = ("model", "precision", "gpu", "tp")
BATCHING_OF = {"v1": "static", "inflight_batching": "in_flight", "inflight_fused_batching": "in_flight"}


@dataclass(frozen=True, slots=True)
class Served:
    """A server as it answers. `engine`: what it reports about the deployment, by column of the points table.

    `scheduling`: what it reports of the engine's scheduler. `tokenizer_file` is None if the server names none, or one
    that this machine cannot read. `engine_cores`: cores of this machine on which the engine computes and which the
    client must avoid, as ``1,2``; empty for a remote engine or one on a GPU. `seen`: how the server counts prompts,
    beyond what its tokenizer says. `longest_tokens`: prompt and answer together of the longest request that it accepts;
    None if it does not report that.
    """

    contract: AnyContract
    engine: dict[str, str]
    tokenizer_file: Path | None
    add_special_tokens: bool
    engine_cores: str = ""
    seen: ServerCount = AS_TOKENIZED
    longest_tokens: int | None = None
    scheduling: Scheduling = UNSAID


@dataclass(frozen=True, slots=True)
class Described(Served):
    """A Triton server."""

    contract: Contract


async def describe(server: ServerPlan) -> Described:
    """Query a Triton server. Raises ServerError within seconds if it does not answer or does not serve the model."""
    async with client(server) as target:
        config = await target.model_config(server.model)
        if config is None:
            raise ServerError(f"{server.url} does not serve a model {server.model!r}; correct {KEY}", "server.model")
        await target.check_ready()
        engine = await target.model_config(ENGINE_MODEL)
        tokenizer = await target.model_config(TOKENIZER_MODEL)
    contract = Contract.of(config, server.tensors)
    names, said = _parameters(tokenizer), _engine_of(engine)
    if not said and config.backend == "vllm":
        said = {"engine": "vllm", "batching": "in_flight"}
    file = _tokenizer_file(names.get("tokenizer_dir", ""))
    special = names.get("add_special_tokens", "").lower() in ("true", "1")
    cores = _parameters(engine).get("engine_cores", "") if is_here(server.url) else ""
    return Described(contract, said, file, special, cores, scheduling=_scheduling_of(engine))


def serving(file: PlanFile) -> Served:
    """What the plan's server reports, with the plan's tokenizer. Raises ServerError and PlanError."""
    return asyncio.run(_serving(file))


async def _serving(file: PlanFile) -> Served:
    server = file.plan.server
    if server.protocol != "openai":
        found = await describe(server)
        return found if file.plan.tokenizer is None else replace(found, tokenizer_file=file.tokenizer_file)
    texts = any(item.dataset is not None for item in file.plan.lengths)
    sessions = any(item.sessions is not None for item in file.plan.lengths)
    met = await meet(server, file.tokenizer_file, texts=texts, sessions=sessions)
    return Served(
        met.contract,
        dict(met.said),
        file.tokenizer_file,
        add_special_tokens=False,
        seen=met.seen,
        longest_tokens=met.longest_tokens,
        scheduling=met.scheduling,
    )


def answering(server: ServerPlan) -> Answering:
    """What answers at `server.url`, whatever the plan's protocol.

    An OpenAI server lists its models, or asks for a key; Triton's HTTP port has a health page; its gRPC port, which is
    tried only for a host:port, answers about any model. Raises ServerError, one line, if none of them answers.
    """
    return asyncio.run(_answering(server.model_copy(update={"protocol": "openai"})))


async def _answering(openai: ServerPlan) -> Answering:
    try:
        return await _over_http(openai)
    except ServerError as error:
        if "://" in openai.url:
            raise
        cause = error.__cause__
    try:
        async with GrpcClient(openai.model_copy(update={"protocol": "grpc"})) as client:
            await client.model_config(openai.model)
    except ServerError:
        why = f" ({one_line(getattr(cause, 'strerror', None) or str(cause))})" if cause is not None else ""
        raise ServerError(
            f"{openai.url}: neither an OpenAI server nor Triton, over HTTP or gRPC, answers there{why}; start one, or "
            f"correct {KEY}",
            "server.url",
        ) from None
    return Answering("grpc")


async def _over_http(openai: ServerPlan) -> Answering:
    async with OpenAiClient(openai) as client:
        status, models = await client.page("/v1/models")
        if status in (401, 403):
            return Answering("openai")
        if status == 200 and isinstance(models, dict) and "data" in models:
            cards = models["data"] if isinstance(models["data"], list) else []
            return Answering(
                "openai", tuple(str(card["id"]) for card in cards if isinstance(card, dict) and "id" in card)
            )
        if 300 <= status < 400:
            await client.listed()  # raises: it says where the server redirects to
        if status in (429, 503):
            raise ServerError(
                f"{openai.url} answers /v1/models with {status}: if it is still loading its model, try again"
            )
        status, _ = await client.page("/v2/health/live")
    if status != 200 or openai.root.startswith("https:"):
        raise ServerError(
            f"{openai.url}: neither an OpenAI server (/v1/models) nor Triton (/v2/health/live) answers there; correct "
            "the URL, or name the protocol"
        )
    return Answering("http")


def deployment(plan: DeploymentPlan, engine: dict[str, str]) -> Deployment:
    """The deployment recorded with the points: as the plan says, otherwise as the server reports, otherwise as the plan
    assumes.

    Raises PlanError naming the missing key if model, precision, gpu or tp is still unknown.
    """
    told = {name: value for name in Deployment._fields if (value := getattr(plan, name)) is not None}
    known: dict[str, Any] = {name: value for name, value in told.items() if name in plan.assumed}
    known |= {name: value for name, value in engine.items() if value or name not in known}
    known |= {name: value for name, value in told.items() if name not in plan.assumed}
    missing = [name for name in NEEDED if not known.get(name)]
    if missing:
        keys = ", ".join(f"{name}: ..." for name in missing)
        raise PlanError(f"the server does not report its {', '.join(missing)}: add deployment: {{{keys}}} to the plan")
    for name in ("tp", "pp", "max_batch_size"):
        if name in known:
            known[name] = _whole(name, known[name])
    # cleaned, as the store will have them
    texts = {name: clean(value) for name, value in known.items() if isinstance(value, str)}
    return Deployment(**(known | texts))


def scheduling(plan: DeploymentPlan, said: Scheduling) -> Scheduling:
    """What is recorded of the engine's scheduler: as the plan says, otherwise as the server reports."""
    told = {name: value for name in Scheduling._fields if (value := getattr(plan, name)) is not None}
    return said._replace(**told)


def _whole(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise PlanError(f"the server says {name} = {value!r}: set {KEY} to a number of 1 or more", f"deployment.{name}")
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


def _scheduling_of(config: Any) -> Scheduling:
    """Of the TensorRT-LLM backend, which takes prompts whole, beside the decodes, unless it is to cut them.

    The C++ backend takes a missing or unreadable flag for false (docs/model_config.md of tensorrtllm_backend); what the
    Python backend then does depends on the release.
    """
    said = _parameters(config)
    if BATCHING_OF.get(said.get("gpt_model_type", "").lower()) != "in_flight":
        return UNSAID
    chunks = said.get("enable_chunked_context", "").lower()
    if chunks in ("true", "1"):
        return Scheduling("chunked")
    return Scheduling("whole_prompt") if config.backend == "tensorrtllm" or chunks in ("false", "0") else UNSAID


def _tokenizer_file(folder: str) -> Path | None:
    path = Path(folder) / "tokenizer.json"
    return path if folder and path.is_file() else None


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready to be measured by `plan`: its properties, its points' deployment, the levels.

    `scheduling`: what is known of the engine's scheduler, recorded with the points. `points`: how many of them a run
    will have, including those of the random arrivals at its end. `session` is a random part of the requests' seeds: the
    server's prefix cache may still hold prompts sent before, even by a run that was interrupted in the middle of a
    level.
    """

    plan: SweepPlan
    served: Served
    replica: Deployment
    levels: tuple[Level, ...]
    points: int = 0
    session: tuple[int, ...] = ()
    scheduling: Scheduling = UNSAID

    @property
    def contract(self) -> AnyContract:
        """Inputs and outputs of the model."""
        return self.served.contract

    def source(
        self, entry: int, seed: tuple[int, ...], *, evenly: bool = False, replayed: bool = False
    ) -> RequestSource:
        """The requests of one entry of the plan's lengths; `evenly` and `replayed`: see RequestSource."""
        served, lengths = self.served, self.plan.lengths[entry]
        tokens = served.tokenizer_file, served.add_special_tokens
        return RequestSource(lengths, *tokens, seed, served.seen, evenly, replayed)

    def seed(self, level: Level) -> tuple[int, ...]:
        """The seed of a level's requests, which is stored with them."""
        return (self.plan.seed, *self.session, level.index)

    def too_long(self) -> list[str]:
        """A line for each of the lengths with requests too long for the server: they fail, and void a level."""
        longest, found = self.served.longest_tokens, []
        for entry, lengths in dict.fromkeys((level.entry, level.lengths) for level in self.levels):
            talk = self.plan.lengths[entry].sessions
            isl, osl = lengths.sample(DRAWN, np.random.default_rng(0)) if talk is None else talk.sample[2:4]
            share = 0.0 if longest is None else float((isl + osl > longest).mean())
            if share:
                found.append(
                    f"ISL {lengths.isl:g}, OSL {lengths.osl:g}: {percent(share, 1)} of the requests are longer than "
                    f"the {longest:,} tokens that the server accepts, and will fail"
                )
        return found

    def notes(self, level: Level) -> list[str]:
        """Remarks on the lengths and times of the point of `level`."""
        counted = (
            self.served.tokenizer_file is not None or self.contract.takes_token_ids or self.served.seen.tokens_per_word
        )
        notes = [*([] if counted else ["ISL is words: no tokenizer was known"]), *self.contract.notes]
        if self.plan.lengths[level.entry].dataset is not None and (
            left_out := self.source(level.entry, ()).texts().left_out
        ):
            notes.append(f"{left_out} prompts of the data set left out by max_input_len")
        return [*notes, *self.plan.lengths[level.entry].notes_of_trace]


METRICS_PAGES = ("/metrics", "/prometheus/metrics", "/v1/metrics")


def metrics_of(server: ServerPlan) -> str | None:
    """The page of the server's own metrics: the plan's, else one at a usual path of an OpenAI server.

    Raises ServerError if the plan's page cannot be read.
    """
    if server.metrics_url is not None:
        requests_served(server.metrics_url, server.model, access(server))
        return server.metrics_url
    for page in METRICS_PAGES if server.protocol == "openai" else ():
        url = f"{server.root}{page}"
        try:
            requests_served(url, server.model, access(server.model_copy(update={"metrics_url": url})))
        except ServerError:
            continue
        return url
    return None


def access(server: ServerPlan) -> Access:
    """How the server's own metrics are read: with the same certificates as requests, and with the plan's headers, key
    included, if the page is below the server's own address.

    Raises PlanError as `OpenAiClient` does.
    """
    if server.protocol != "openai":
        return Access()
    client = OpenAiClient(server)
    own = server.metrics_url is not None and is_below(server.metrics_url, server.root)
    return Access(client.headers if own else {}, client.tls)


def prepare(file: PlanFile) -> Target:
    """Query the server. Raises ServerError if it cannot be measured, PlanError if the plan lacks a setting for it."""
    plan = file.plan
    served = serving(file)
    replica = deployment(plan.deployment, served.engine)
    metrics_url = metrics_of(plan.server)
    plan = plan.model_copy(update={"server": plan.server.model_copy(update={"metrics_url": metrics_url})})
    told = scheduling(plan.deployment, served.scheduling)
    target = Target(plan, served, replica, (), session=(secrets.randbits(64),), scheduling=told)
    means = [target.source(entry, (0,)).summary() for entry in range(len(plan.lengths))]
    levels = plan.levels(means)
    return replace(target, levels=tuple(levels), points=len(levels) + plan.check_loads + plan.verifies)
