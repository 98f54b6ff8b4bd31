"""What the TensorRT-LLM backend and its clients demand beyond Triton's core: parameters, contract, streaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tritonclient.grpc import model_config_pb2 as pb

from lab.reference.contract import Model, Tensor
from triton_tools.repository import legal
from triton_tools.repository.check.faults import Fault, ModelFolder
from triton_tools.repository.contracts import CONTRACTS, V05, V08, Contract
from triton_tools.repository.options import forced_policy
from triton_tools.repository.source import named


def contract_of(models: Mapping[str, ModelFolder]) -> Contract | None:
    """The contract of a repository, detected from its engine's inputs and parameters; None if it is a later one."""
    engine = models.get("tensorrt_llm")
    if engine is None:
        return None
    types = {tensor.name: tensor.data_type for tensor in engine.config.input}
    if types.get("request_output_len") == pb.TYPE_UINT32:
        return V05
    later = {"lora_task_id", "num_return_sequences", "decoder_input_ids", "return_perf_metrics"}
    return None if later & set(types) or "decoding_mode" in engine.config.parameters else V08


def backend_faults(models: Mapping[str, ModelFolder], contract: Contract | None) -> Iterator[Fault]:
    """Faults that Triton's core does not notice."""
    for model in models.values():
        if model.is_read and model.name in legal.RULES:
            yield from _parameters(model)
    if contract:
        for published in contract.models:
            if published.name in models and models[published.name].is_read:
                yield from _tensors(models[published.name], published, contract)
    yield from _streaming(models, contract)


def _parameters(model: ModelFolder) -> Iterator[Fault]:
    given = {key: value.string_value for key, value in model.config.parameters.items()}
    for key, rule in legal.RULES[model.name].items():
        if key not in given and rule.required and key != "tokenizer_type":
            yield model.wrong_parameter(key, f"parameter {key} is missing: give {rule.says}")
    for key, text in given.items():
        rule_of_key = legal.RULES[model.name].get(key)
        yield from _parameter(model, key, text, rule_of_key)


def _parameter(model: ModelFolder, key: str, text: str, rule: legal.Rule | None) -> Iterator[Fault]:
    left = legal.placeholders(text)
    if left:
        required = rule is not None and rule.required
        then = rule.otherwise if rule and required else "it counts as not given"
        severity: legal.Severity = "error" if required else "warning"
        yield model.wrong_parameter(key, f"parameter {key}: ${{{left[0]}}} is not filled in; {then}", severity)
    elif rule is None or rule.holds(text) or (not text.strip() and not rule.required):
        return
    elif key == "batch_scheduler_policy":
        yield model.wrong_parameter(key, _policy(text), "warning" if text in legal.POLICY_ALIASES else "error")
    else:
        says = f"parameter {key} is {text!r}, and must be {rule.says}; otherwise {rule.otherwise}"
        yield model.wrong_parameter(key, says)


def _policy(text: str) -> str:
    meant = legal.POLICY_ALIASES.get(text)
    legal_ones = " or ".join(legal.POLICIES)
    if meant:
        return f"batch_scheduler_policy {text} is not a value of the backend, which takes {meant}: write that"
    return f"batch_scheduler_policy is {text!r}, and must be {legal_ones}; the backend uses guaranteed_no_evict"


def _tensors(model: ModelFolder, published: Model, contract: Contract) -> Iterator[Fault]:
    for side, tensors in (("input", published.inputs), ("output", published.outputs)):
        declared = {tensor.name: (number, tensor) for number, tensor in enumerate(getattr(model.config, side))}
        for tensor in tensors:
            if tensor.name not in declared:
                if not tensor.optional:
                    yield model.wrong(f"{side} {tensor.name!r} of the {contract.name} contract is missing")
                continue
            number, found = declared[tensor.name]
            message = _difference(tensor, found)
            if message:
                where = f"{side} {tensor.name!r}: {message} in the {contract.name} contract"
                yield model.wrong(where, side, number)


def _difference(tensor: Tensor, found: pb.ModelInput | pb.ModelOutput) -> str:
    """How a declared tensor differs from the published one in what clients and other models rely on."""
    name = named(pb.DataType, found.data_type).removeprefix("TYPE_")
    if name != tensor.data_type:
        return f"{name}, which is {tensor.data_type}"
    if tuple(found.dims) != tensor.dims:
        return f"dims {list(found.dims)}, which are {list(tensor.dims)}"
    return ""


def _streaming(models: Mapping[str, ModelFolder], contract: Contract | None) -> Iterator[Fault]:
    engine = models.get("tensorrt_llm")
    if engine is None or not engine.config.model_transaction_policy.decoupled:
        return
    text = {key: value.string_value for key, value in engine.config.parameters.items()}
    chunked = legal.flag(text.get("enable_chunked_context", "")) and contract is not V05
    if text.get("batch_scheduler_policy") == "max_utilization" and not chunked:
        message = forced_policy((contract or V08).name)
        yield engine.wrong_parameter("batch_scheduler_policy", message, "warning")
    after = models.get("postprocessing")
    groups = after.config.instance_group if after else []
    if after and sum(max(group.count, 1) for group in groups) > 1:
        yield after.wrong(
            "postprocessing has more than 1 instance and the engine streams: tokens of one stream overtake each other",
            "instance_group",
            0,
            "count",
        )
    bls = models.get("tensorrt_llm_bls")
    if bls and bls.is_read and not bls.config.model_transaction_policy.decoupled:
        yield bls.wrong("tensorrt_llm is decoupled and this model is not: it cannot stream", "model_transaction_policy")


def missing_models(models: Mapping[str, ModelFolder], contract: Contract | None) -> list[str]:
    """Models that every TensorRT-LLM repository has."""
    needed = [model.name for model in (contract or CONTRACTS["v0.8"]).models if model.name != "tensorrt_llm_bls"]
    return [name for name in needed if name not in models]
