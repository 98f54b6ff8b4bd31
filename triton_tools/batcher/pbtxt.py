"""Read config.pbtxt through Triton's own protobuf schema.

The schema is `model_config.pb` beside this file: a copy of the serialized descriptor in tritonclient, so that reading a
configuration needs no client and no network library. A test checks that the two are equal.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)

from sizing.errors import ScenarioError
from triton_tools.batcher.config import (
    DEFAULT_IDLE_US,
    Control,
    DynamicBatching,
    ModelBatching,
    QueuePolicy,
    SequenceBatching,
    TimeoutAction,
)

MOST_BYTES = 1_000_000
BACKSLASHES = 200 * "\\"
SCHEMA = Path(__file__).with_name("model_config.pb")
STRATEGY_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
"""The backend that Triton takes if only the platform is given."""
BATCHED = ("tensorrt", "onnxruntime", "tensorflow")
"""Backends that complete a configuration without a scheduler by the default dynamic batcher."""
FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")


def read_config(path: str | Path) -> ModelBatching:
    """What the config.pbtxt at `path` says about batching.

    Raises:
        ScenarioError: there is no such file, it does not follow Triton's schema (line and column are named), or Triton
            would refuse the configuration.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode()
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(raw) > MOST_BYTES:
        raise ScenarioError(f"{path}: larger than {MOST_BYTES // 1_000_000} MB, which no model configuration is")
    try:
        return parse_config(text, name=path.resolve().parent.name)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error


def parse_config(text: str, name: str = "model") -> ModelBatching:
    """The batching in a configuration's text; `name` is the model's if the text has none.

    >>> parse_config("max_batch_size: 8 dynamic_batching { }").dynamic
    DynamicBatching(preferred=(), delay_us=0, preserve_ordering=False, priority_levels=0, default_priority=0, \
policy=QueuePolicy(timeout_action='REJECT', timeout_us=0, allow_override=False, max_size=0), level_policies=())
    """
    config = model_config_class()()
    if BACKSLASHES in text:  # for which the parser takes quadratic time
        raise ScenarioError(f"not a model configuration: more than {len(BACKSLASHES)} backslashes in a row")
    try:
        text_format.Parse(text, config)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        # an enum's number of more than 32 bits raises ValueError
        raise ScenarioError(f"not a model configuration: {error}") from error
    if config.HasField("ensemble_scheduling"):
        raise ScenarioError("an ensemble runs nothing itself: simulate the models of its steps")
    backend = config.backend or PLATFORMS.get(config.platform, "")
    if config.max_batch_size > 1 and backend in BATCHED and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()
    strategy = config.parameters[STRATEGY_PARAMETER].string_value if STRATEGY_PARAMETER in config.parameters else ""
    return ModelBatching(
        name=config.name or name,
        max_batch_size=config.max_batch_size,
        instances=sum(_instances(group, backend) for group in config.instance_group) or 1,
        dynamic=_dynamic(config.dynamic_batching) if config.HasField("dynamic_batching") else None,
        sequence=_sequence(config.sequence_batching) if config.HasField("sequence_batching") else None,
        strategy_path=strategy,
    )


@cache
def model_config_class() -> type[Any]:
    """The message class inference.ModelConfig, in a descriptor pool of its own."""
    schema = descriptor_pb2.FileDescriptorProto.FromString(SCHEMA.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return cast("type[Any]", message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig")))


def _instances(group: Any, backend: str) -> int:
    """Instances of a group on all of its GPUs; without a count there is one, or two on the CPU for some backends."""
    on_cpu = group.kind == group.KIND_CPU and backend in ("onnxruntime", "tensorflow")
    return (group.count if group.count > 0 else 1 + on_cpu) * max(1, len(group.gpus))


def _policy(message: Any) -> QueuePolicy:
    action = _named(message, "TimeoutAction", message.timeout_action)
    return QueuePolicy(
        timeout_action=cast("TimeoutAction", action),
        timeout_us=message.default_timeout_microseconds,
        allow_override=message.allow_timeout_override,
        max_size=message.max_queue_size,
    )


def _dynamic(message: Any) -> DynamicBatching:
    levels = message.priority_queue_policy
    return DynamicBatching(
        preferred=tuple(message.preferred_batch_size),
        delay_us=message.max_queue_delay_microseconds,
        preserve_ordering=message.preserve_ordering,
        priority_levels=message.priority_levels,
        default_priority=message.default_priority_level,
        policy=_policy(message.default_queue_policy),
        level_policies=tuple((level, _policy(levels[level])) for level in sorted(levels)),
    )


def _sequence(message: Any) -> SequenceBatching:
    oldest = message.HasField("oldest")
    chosen = message.oldest if oldest else message.direct
    return SequenceBatching(
        strategy="oldest" if oldest else "direct",
        idle_us=message.max_sequence_idle_microseconds or DEFAULT_IDLE_US,
        delay_us=chosen.max_queue_delay_microseconds,
        minimum_utilization=0.0 if oldest else round(chosen.minimum_slot_utilization, 6),  # a 32-bit float
        max_candidates=chosen.max_candidate_sequences if oldest else 0,
        preferred=tuple(chosen.preferred_batch_size) if oldest else (),
        preserve_ordering=chosen.preserve_ordering if oldest else False,
        iterative=message.iterative_sequence,
        controls=tuple(_control(given.name, control) for given in message.control_input for control in given.control),
    )


def _control(name: str, message: Any) -> Control:
    kind = _named(message, "Kind", message.kind).removeprefix("CONTROL_SEQUENCE_")
    given = [getattr(message, field) for field in FALSE_TRUE if len(getattr(message, field)) == 2]
    return Control(name, kind, (float(given[0][0]), float(given[0][1])) if given else None)


def _named(message: Any, enum: str, number: int) -> str:
    """The name of an enum's value. Proto3 accepts numbers without a name, which raise ScenarioError here."""
    values = message.DESCRIPTOR.enum_types_by_name[enum].values_by_number
    if number not in values:
        raise ScenarioError(
            f"{message.DESCRIPTOR.name}: {number} is no {enum}; there are {', '.join(map(str, values))}"
        )
    return str(values[number].name)
