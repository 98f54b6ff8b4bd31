"""A contract's model as Triton's configuration message, and the message as text."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from lab.reference.contract import Model, Step, Tensor

CONFIG_FILE = "config.pbtxt"


def model_message(model: Model, max_batch_size: int) -> pb.ModelConfig:
    """A configuration with name, batch size, inputs and outputs. With batch size 0, tensors have no batch dimension."""
    config = pb.ModelConfig(name=model.name, max_batch_size=max_batch_size)
    for tensor in model.inputs:
        config.input.append(_input(tensor))
    for tensor in model.outputs:
        config.output.add(name=tensor.name, data_type=data_type(tensor), dims=tensor.dims)
    return config


def add_steps(config: pb.ModelConfig, steps: Iterable[Step]) -> None:
    """Make `config` an ensemble of these steps, each on the newest version of its model."""
    config.platform = "ensemble"
    for step in steps:
        config.ensemble_scheduling.step.add(
            model_name=step.model, model_version=-1, input_map=dict(step.inputs), output_map=dict(step.outputs)
        )


def add_instances(config: pb.ModelConfig, count: int) -> None:
    """Give `config` `count` instances. The engine too is KIND_CPU, as published: the backend chooses its GPUs."""
    config.instance_group.add(count=count, kind=pb.ModelInstanceGroup.KIND_CPU)


def _input(tensor: Tensor) -> pb.ModelInput:
    message = pb.ModelInput(
        name=tensor.name,
        data_type=data_type(tensor),
        dims=tensor.dims,
        optional=tensor.optional,
        allow_ragged_batch=tensor.ragged,
    )
    if tensor.scalar:
        message.reshape.SetInParent()  # present but empty: the model sees shape []
    return message


def data_type(tensor: Tensor) -> int:
    """The data type's number in Triton's schema."""
    return int(pb.DataType.Value(f"TYPE_{tensor.data_type}"))


def as_text(config: pb.ModelConfig) -> str:
    """`config` as the text of a config.pbtxt."""
    text: str = text_format.MessageToString(config)
    return text
