"""Broken model repositories: what was done to a sound one, and who refuses it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

Harm = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """`harm` breaks a repository; `says`: words of the fault that must be named; `ours`: why we refuse what loads."""

    name: str
    harm: Harm
    says: str
    ours: str = ""


def edit(model: str, change: Callable[[Any], object]) -> Harm:
    """Change the configuration as a message."""

    def harm(folder: Path) -> None:
        file = folder / model / "config.pbtxt"
        config = text_format.Parse(file.read_text(), pb.ModelConfig())
        change(config)
        file.write_text(text_format.MessageToString(config))

    return harm


def replace(model: str, old: str, new: str) -> Harm:
    """Change the configuration as text, as a hand would."""

    def harm(folder: Path) -> None:
        file = folder / model / "config.pbtxt"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return harm


def parameter(model: str, key: str, value: str) -> Harm:
    return edit(model, lambda config: setattr(config.parameters[key], "string_value", value))


def tensor(config: Any, name: str) -> Any:
    return next(entry for entry in (*config.input, *config.output) if entry.name == name)


def dims(model: str, name: str, *sizes: int) -> Harm:
    def change(config: Any) -> None:
        entry = tensor(config, name)
        entry.ClearField("dims")
        entry.dims.extend(sizes)

    return edit(model, change)


def step(number: int, change: Callable[[Any], object]) -> Harm:
    return edit("ensemble", lambda config: change(config.ensemble_scheduling.step[number]))


def both(*harms: Harm) -> Harm:
    def harm(folder: Path) -> None:
        for one in harms:
            one(folder)

    return harm


def rename_lengths(folder: Path) -> None:
    edit("tensorrt_llm", lambda config: setattr(tensor(config, "input_lengths"), "name", "lengths"))(folder)
    step(1, lambda one: one.input_map.update({"lengths": one.input_map.pop("input_lengths")}))(folder)


def cycle(one: Any) -> None:
    one.input_map["BAD_WORDS_DICT"] = "text_output"
    one.input_map["STOP_WORDS_DICT"] = "bad_words"
    one.input_map["EMBEDDING_BIAS_WORDS"] = "stop_words"


def drop_words(config: Any) -> None:
    """What the circle leaves without a reader, so that the circle is the only fault."""
    left = [entry for entry in config.input if entry.name != "embedding_bias_words"]
    config.ClearField("input")
    config.input.extend(left)


def second_version(folder: Path) -> None:
    """The policy serves the newest version alone."""
    shutil.copytree(folder / "preprocessing" / "1", folder / "preprocessing" / "2")


def reshaped(outside: list[int], inside: list[int]) -> Harm:
    """An optional input that the model sees in another shape than clients."""
    mood = pb.ModelInput(name="MOOD", data_type=pb.TYPE_INT32, dims=outside, optional=True)
    mood.reshape.shape.extend(inside)
    return edit("preprocessing", lambda config: config.input.append(mood))


def outside_reshaped(folder: Path) -> None:
    """An input of the ensemble that steps receive in another shape than clients send."""
    mood = pb.ModelInput(name="mood", data_type=pb.TYPE_INT32, dims=[1, -1])
    mood.reshape.shape.append(-1)
    edit("ensemble", lambda config: config.input.append(mood))(folder)
    step(0, lambda one: one.input_map.update(MOOD="mood"))(folder)
    reshaped([-1], [-1])(folder)


def warmed(batch_size: int = 1, *, lacks: str = "", size: int = 1, kind: int = 0, rank: int = 0) -> Harm:
    """A sample request for the postprocessing, of the inputs that it needs."""

    def change(config: Any) -> None:
        sample = config.model_warmup.add(name="first", batch_size=batch_size)
        for tensor in config.input:
            if not tensor.optional and tensor.name != lacks:
                given = sample.inputs[tensor.name]
                given.data_type, given.zero_data = kind or tensor.data_type, True
                given.dims.extend([size] * (rank or len(tensor.dims)))

    return edit("postprocessing", change)


def control(name: str, kind: str, values: str) -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'


def sequences(*inside: str) -> Harm:
    return replace("preprocessing", "instance_group", f"sequence_batching {{ {' '.join(inside)} }} instance_group")


YES = "int32_false_true: [0, 1]"
BATCHER = "dynamic_batching {"

LOADED = (
    Case("nothing", lambda folder: None, ""),
    Case("backend left out", replace("postprocessing", 'backend: "python"', ""), ""),
    Case("ensemble's input reshaped", outside_reshaped, ""),
    Case("warmed up", warmed(), ""),
    Case("warm-up that is not sent", warmed(0, lacks="SEQUENCE_LENGTH"), ""),
    Case(
        "platform of another backend", edit("postprocessing", lambda c: setattr(c, "platform", "onnxruntime_onnx")), ""
    ),
    Case("step without a batch", edit("postprocessing", lambda c: setattr(c, "max_batch_size", 0)), ""),
    Case(
        "ragged without a batch",
        both(
            edit("postprocessing", lambda c: setattr(c, "max_batch_size", 0)),
            edit("postprocessing", lambda c: setattr(c.input[0], "allow_ragged_batch", True)),
        ),
        "",
    ),
    Case("controls", sequences(control("C", "CORRID", "data_type: TYPE_STRING"), control("S", "START", YES)), ""),
    Case("ensemble without a batch", edit("ensemble", lambda c: setattr(c, "max_batch_size", 0)), ""),
)
"""What Triton loads, because it completes it or does not mind."""

CASES = (
    Case(
        "max_batch_size left open", replace("tensorrt_llm", "max_batch_size: 8", "max_batch_size: ${size}"), "${size}"
    ),
    Case("decoupled left open", replace("tensorrt_llm", "decoupled: true", "decoupled: ${mode}"), "${mode}"),
    Case("count left open", replace("preprocessing", "count: 1", "count: ${count}"), "${count}"),
    Case("unknown field", replace("preprocessing", "max_batch_size", "max_batch"), "max_batch"),
    Case("brace missing", replace("postprocessing", "instance_group {", "instance_group "), ""),
    Case("name twice", replace("preprocessing", 'name: "prep', 'name: "x"\nname: "prep'), "multiple"),
    Case("unknown type", replace("preprocessing", "TYPE_STRING", "TYPE_TEXT"), "TYPE_TEXT"),
    Case("no type", replace("preprocessing", "data_type: TYPE_STRING", ""), "no data_type"),
    Case("no dims", dims("preprocessing", "QUERY"), "no dims"),
    Case("dims 0", dims("preprocessing", "QUERY", 0), "at least 1"),
    Case("dims -2", dims("postprocessing", "OUTPUT", -2), "at least 1"),
    Case("reshape of another size", dims("tensorrt_llm", "end_id", 2), "differ in size"),
    Case("reshape across -1", reshaped([2, -1, 2], [4, -1]), "differ in size"),
    Case("reshape to 0", reshaped([1], [0]), "reshape holds [0]"),
    Case("format of one dimension", edit("preprocessing", lambda c: setattr(c.input[0], "format", 1)), "needs 3 dims"),
    Case(
        "shape tensor", edit("preprocessing", lambda c: setattr(c.input[0], "is_shape_tensor", True)), "shape tensors"
    ),
    Case("name is not the folder's", replace("postprocessing", '"postprocessing"', '"post"'), "must be the same"),
    Case("no backend", replace("postprocessing", 'backend: "python"', 'backend: "phyton"'), "phyton"),
    Case("no version", lambda folder: shutil.rmtree(folder / "ensemble" / "1"), "no version"),
    Case(
        "input twice",
        edit("preprocessing", lambda c: c.input.add().CopyFrom(c.input[0])),
        "declared twice",
        "one of the two is lost",
    ),
    Case("no program", lambda folder: (folder / "preprocessing" / "1" / "model.py").unlink(), "no model.py"),
    Case("no configuration", lambda folder: (folder / "preprocessing" / "config.pbtxt").unlink(), "no config.pbtxt"),
    Case("negative batch", edit("preprocessing", lambda c: setattr(c, "max_batch_size", -1)), "negative"),
    Case(
        "version not there", edit("postprocessing", lambda c: c.version_policy.specific.versions.append(3)), "version"
    ),
    Case("preferred too large", replace("tensorrt_llm", "batch_size: 8\n}", "batch_size: 9\n}"), "between 1 and"),
    Case("default level", replace("tensorrt_llm", BATCHER, BATCHER + "priority_levels: 2 "), "default_priority"),
    Case(
        "level out of range",
        replace(
            "tensorrt_llm",
            BATCHER,
            BATCHER + "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} } ",
        ),
        "level 3",
    ),
    Case(
        "order and levels",
        replace(
            "tensorrt_llm",
            BATCHER,
            BATCHER + "preserve_ordering: true priority_levels: 2 default_priority_level: 1 ",
        ),
        "one priority level",
    ),
    Case(
        "order and delay",
        replace(
            "tensorrt_llm",
            BATCHER,
            BATCHER + "preserve_ordering: true default_queue_policy { timeout_action: DELAY "
            "default_timeout_microseconds: 9 } ",
        ),
        "DELAY",
    ),
    Case(
        "sequence preferred",
        sequences("oldest { max_candidate_sequences: 4 preferred_batch_size: 9 }"),
        "between 1 and",
    ),
    Case("utilization", sequences("direct { minimum_slot_utilization: 1.5 }"), "between 0 and 1"),
    Case("control without values", sequences(control("S", "START", "")), "with two values"),
    Case("control of one value", sequences(control("S", "START", "int32_false_true: 0")), "with two values"),
    Case("control of two lists", sequences(control("S", "READY", f"fp32_false_true: [0, 1] {YES}")), "with two values"),
    Case("control twice", sequences(control("S", "START", YES), control("T", "START", YES)), "START is given twice"),
    Case("control name twice", sequences(control("S", "START", YES), control("S", "END", YES)), "name of its own"),
    Case("control without a name", sequences(control("", "START", YES)), "name of its own"),
    Case("correlation id", sequences(control("C", "CORRID", "data_type: TYPE_FP32")), "CORRID needs"),
    Case("negative count", replace("preprocessing", "count: 1", "count: -1"), "count is -1", "Triton uses 1"),
    Case("CPU with GPUs", replace("preprocessing", "count: 1", "count: 1 gpus: 0"), "lists gpus"),
    Case("model with GPUs", replace("preprocessing", "kind: KIND_CPU", "kind: KIND_MODEL gpus: 0"), "KIND_MODEL lists"),
    Case("profile", replace("preprocessing", "count: 1", 'count: 1 profile: "0"'), "only TensorRT has profiles"),
    Case(
        "cache of a stream",
        edit("tensorrt_llm", lambda c: setattr(c.response_cache, "enable", True)),
        "decoupled model cannot",
    ),
    Case(
        "cache of sequences",
        replace(
            "preprocessing", "instance_group", "sequence_batching { } response_cache { enable: true } instance_group"
        ),
        "sequence_batching cannot",
    ),
    Case(
        "instances of an ensemble", edit("ensemble", lambda c: c.instance_group.add(count=1)), "cannot have an instance"
    ),
    Case("step unknown", step(0, lambda one: setattr(one, "model_name", "pre")), "no such model"),
    Case("step version", step(0, lambda one: setattr(one, "model_version", 4)), "no version 4"),
    Case("older version", both(second_version, step(0, lambda one: setattr(one, "model_version", 1))), "no version 1"),
    Case("no step", edit("ensemble", lambda c: c.ensemble_scheduling.ClearField("step")), "no step"),
    Case("input unknown", step(0, lambda one: one.input_map.update({"QUESTION": "text_input"})), "no input 'QUESTION'"),
    Case("output unknown", step(0, lambda one: one.output_map.update({"IDS": "_IDS"})), "no output 'IDS'"),
    Case("nobody reads", step(1, lambda one: one.output_map.update({"sequence_length": "_LENGTH"})), "nothing reads"),
    Case("nobody writes", step(2, lambda one: one.input_map.update({"TOKENS_BATCH": "_TOKENS"})), "nothing writes"),
    Case("input not mapped", step(1, lambda one: one.input_map.pop("input_ids")), "nothing is mapped"),
    Case("two writers", step(1, lambda one: one.output_map.update({"output_ids": "_INPUT_ID"})), "is written by"),
    Case("circle", both(step(0, cycle), edit("ensemble", drop_words)), "a cycle"),
    Case(
        "types differ",
        edit("ensemble", lambda c: setattr(tensor(c, "max_tokens"), "data_type", pb.TYPE_UINT32)),
        "writes UINT32",
    ),
    Case("shapes differ", dims("tensorrt_llm", "input_ids", -1, -1), "takes [-1, -1, -1]"),
    Case("sizes differ", dims("preprocessing", "REQUEST_INPUT_LEN", 2), "writes [-1, 2]"),
    Case("batch too large", edit("ensemble", lambda c: setattr(c, "max_batch_size", 16)), "takes at most 8"),
    Case(
        "input unread",
        edit("ensemble", lambda c: c.input.add(name="mood", data_type=pb.TYPE_STRING, dims=[1])),
        "no step reads it",
    ),
    Case(
        "output unwritten",
        edit("ensemble", lambda c: c.output.add(name="mood", data_type=pb.TYPE_STRING, dims=[1])),
        "no step writes it",
    ),
    Case("no batch dimension", edit("tensorrt_llm", lambda c: setattr(c, "max_batch_size", 0)), "max_batch_size"),
    Case("warm-up lacks an input", warmed(lacks="SEQUENCE_LENGTH"), "lacks the input SEQUENCE_LENGTH"),
    Case("warm-up of any size", warmed(size=-1), "a sample has a size"),
    Case("warm-up of another type", warmed(kind=pb.TYPE_FP32), "is FP32, the model takes INT32"),
    Case("warm-up of another shape", warmed(rank=4), "has dims [1, 1, 1, 1]"),
    Case("warm-up beyond the batch", warmed(9), "batch_size 9 is above max_batch_size (8)"),
    # what Triton's core lets pass
    Case(
        "batching type",
        parameter("tensorrt_llm", "gpt_model_type", "magic"),
        "Invalid gpt_model_type",
        "the TensorRT-LLM backend refuses it",
    ),
    Case(
        "engine left open",
        parameter("tensorrt_llm", "gpt_model_path", "${engine_dir}"),
        "${engine_dir}",
        "the TensorRT-LLM backend refuses it",
    ),
    Case(
        "policy",
        parameter("tensorrt_llm", "batch_scheduler_policy", "best"),
        "batch_scheduler_policy",
        "the backend ignores the value in silence",
    ),
    Case(
        "flag",
        parameter("tensorrt_llm", "enable_kv_cache_reuse", "yes"),
        "exactly one of",
        "the backend ignores the value in silence",
    ),
    Case(
        "fraction",
        parameter("tensorrt_llm", "kv_cache_free_gpu_mem_fraction", "90"),
        "fraction",
        "the backend ignores the value in silence",
    ),
    Case(
        "KV limit",
        parameter("tensorrt_llm", "max_tokens_in_paged_kv_cache", "4k"),
        "whole number",
        "the backend ignores the value in silence",
    ),
    Case(
        "two postprocessors",
        replace("postprocessing", "count: 1", "count: 2"),
        "overtake",
        "tokens of a stream come out of order",
    ),
    Case(
        "BLS not decoupled",
        replace("tensorrt_llm_bls", "decoupled: true", ""),
        "cannot stream",
        "its first stream fails",
    ),
    Case("tensor renamed", rename_lengths, "'input_lengths' of the v0.8", "clients of the contract are refused"),
)
