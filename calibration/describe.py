"""What a server says of itself: what its model takes, which deployment it is, where its tokenizer lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.errors import PlanError, ServerError
from calibration.load import cores
from calibration.load.contract import Contract, Input
from calibration.load.loops import client
from calibration.server_plan import DeploymentPlan, ServerPlan, TensorNames, is_here
from sizing.curves import Deployment

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
        engine=_engine(engine),
        tokenizer_file=_tokenizer_file(names.get("tokenizer_dir", "")),
        add_special_tokens=names.get("add_special_tokens", "").lower() in ("true", "1"),
        engine_cores=cores.read(_parameters(engine).get("engine_cores", "")) if is_here(server.url) else (),
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


def _engine(config: Any) -> dict[str, str]:
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
        inputs={tensor.name: Input(_datatype(tensor), tensor.optional) for tensor in config.input},
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
