"""The ensemble: whether every step's model exists, receives its inputs, and writes what later steps read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2 as pb

from triton_tools.repository.check.core import served_versions
from triton_tools.repository.check.faults import Fault, ModelFolder
from triton_tools.repository.source import named


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor of the ensemble, as its writer or a reader declares it: type, and shape without the batch dimension."""

    data_type: int
    dims: tuple[int, ...]
    batched: bool
    model: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape, with the batch dimension in front if there is one."""
        return (-1, *self.dims) if self.batched else self.dims


def wiring_faults(ensemble: ModelFolder, models: Mapping[str, ModelFolder]) -> Iterator[Fault]:
    """Faults of an ensemble whose own configuration was read."""
    config = ensemble.config
    steps = config.ensemble_scheduling.step
    if not steps:
        yield ensemble.refused("the ensemble has no step", "ensemble_scheduling")
    wires: dict[str, Wire] = {}
    for tensor in config.input:
        wires[tensor.name] = _wire(tensor, config, "the ensemble's input")
    # steps run once their inputs are there, whatever their order in the file: first all writers, then the readers
    for number in range(len(steps)):
        yield from _step(ensemble, number, models)
        yield from _written(ensemble, number, models, wires)
    for number in range(len(steps)):
        yield from _read(ensemble, number, models, wires)
    yield from _outputs(ensemble, wires)
    yield from _unused(ensemble)
    yield from _circles(ensemble, wires)


def _at(ensemble: ModelFolder, number: int, mapping: str, key: str, message: str) -> Fault:
    line = ensemble.source.line_in_step(number, mapping, key) if ensemble.source else 0
    return Fault(ensemble.file, line, "error", message)


def _step(ensemble: ModelFolder, number: int, models: Mapping[str, ModelFolder]) -> Iterator[Fault]:
    step = ensemble.config.ensemble_scheduling.step[number]
    place = ("ensemble_scheduling", 0, "step", number)
    if step.model_name not in models:
        yield ensemble.refused(f"step {step.model_name!r}: there is no such model in the repository", *place)
        return
    other = models[step.model_name]
    if not other.is_read:
        yield ensemble.refused(f"step {step.model_name!r}: its configuration cannot be read", *place)
        return
    if step.model_version > 0 and step.model_version not in served_versions(other):
        yield ensemble.refused(f"step {step.model_name!r} serves no version {step.model_version}", *place)
    theirs, ours = other.config.max_batch_size, ensemble.config.max_batch_size
    if ours > theirs > 0:  # a step without a batch dimension receives the whole batch as it is
        yield ensemble.refused(
            f"max_batch_size is {ours}, but step {step.model_name!r} takes at most {theirs}", "max_batch_size"
        )
    missing = [t.name for t in other.config.input if not t.optional and t.name not in step.input_map]
    if missing:
        yield ensemble.refused(f"step {step.model_name!r}: nothing is mapped to its input {', '.join(missing)}", *place)


def _written(
    ensemble: ModelFolder, number: int, models: Mapping[str, ModelFolder], wires: dict[str, Wire]
) -> Iterator[Fault]:
    step = ensemble.config.ensemble_scheduling.step[number]
    other = models.get(step.model_name)
    if other is None or not other.is_read:
        wires |= {name: Wire(0, (), False, step.model_name) for name in step.output_map.values()}
        return
    known = {tensor.name: tensor for tensor in other.config.output}
    for inner, outer in step.output_map.items():
        if inner not in known:
            message = f"step {step.model_name!r} has no output {inner!r}"
            yield _at(ensemble, number, "output_map", inner, message)
        if outer in wires:
            message = f"tensor {outer!r} is written by {step.model_name!r} and by {wires[outer].model}"
            yield _at(ensemble, number, "output_map", inner, message)
        tensor = known.get(inner, pb.ModelOutput())
        wires[outer] = _wire(tensor, other.config, step.model_name)


def _read(
    ensemble: ModelFolder, number: int, models: Mapping[str, ModelFolder], wires: Mapping[str, Wire]
) -> Iterator[Fault]:
    step = ensemble.config.ensemble_scheduling.step[number]
    other = models.get(step.model_name)
    if other is None or not other.is_read:
        return
    known = {tensor.name: tensor for tensor in other.config.input}
    for inner, outer in step.input_map.items():
        if inner not in known:
            message = f"step {step.model_name!r} has no input {inner!r}"
        elif outer not in wires:
            message = f"step {step.model_name!r} reads {outer!r}, which nothing writes"
        else:
            reader = _wire(known[inner], other.config, f"{step.model_name}.{inner}")
            message = _mismatch(outer, wires[outer], reader)
        if message:
            yield _at(ensemble, number, "input_map", inner, message)


def _outputs(ensemble: ModelFolder, wires: Mapping[str, Wire]) -> Iterator[Fault]:
    for number, tensor in enumerate(ensemble.config.output):
        if tensor.name not in wires:
            yield ensemble.refused(f"output {tensor.name!r}: no step writes it", "output", number)
            continue
        reader = _wire(tensor, ensemble.config, "the ensemble's output")
        message = _mismatch(tensor.name, wires[tensor.name], reader)
        if message:
            yield ensemble.refused(message, "output", number)


def _unused(ensemble: ModelFolder) -> Iterator[Fault]:
    read = {outer for step in ensemble.config.ensemble_scheduling.step for outer in step.input_map.values()}
    for number, tensor in enumerate(ensemble.config.input):
        if tensor.name not in read:
            yield ensemble.refused(f"input {tensor.name!r}: no step reads it", "input", number)

    shown = {tensor.name for tensor in ensemble.config.output}
    for number, step in enumerate(ensemble.config.ensemble_scheduling.step):
        for inner, outer in step.output_map.items():
            if outer not in read | shown:
                yield _at(ensemble, number, "output_map", inner, f"tensor {outer!r} is written, but nothing reads it")


def _circles(ensemble: ModelFolder, wires: Mapping[str, Wire]) -> Iterator[Fault]:
    """Steps that wait for each other: their inputs are written only after they themselves have run."""
    written = {tensor.name for tensor in ensemble.config.input}
    waiting = dict(enumerate(ensemble.config.ensemble_scheduling.step))
    while ready := [n for n, step in waiting.items() if not (set(step.input_map.values()) & set(wires)) - written]:
        for number in ready:
            written |= set(waiting.pop(number).output_map.values())
    for number, step in waiting.items():
        message = f"step {step.model_name!r} waits for a tensor that depends on its own outputs: a cycle"
        yield ensemble.refused(message, "ensemble_scheduling", 0, "step", number)


def _wire(tensor: pb.ModelInput | pb.ModelOutput, config: pb.ModelConfig, model: str) -> Wire:
    inside = config.HasField("ensemble_scheduling") and tensor.HasField("reshape")  # what clients see is not what flows
    dims = tensor.reshape.shape if inside else tensor.dims
    return Wire(tensor.data_type, tuple(dims), bool(config.max_batch_size), model)


def _mismatch(name: str, writer: Wire, reader: Wire) -> str:
    """How the reader and the writer of a tensor differ; empty if they agree, or if one of them is unknown."""
    if not writer.data_type or not reader.data_type:
        return ""
    if writer.data_type != reader.data_type:
        names = [named(pb.DataType, wire.data_type).removeprefix("TYPE_") for wire in (writer, reader)]
        return f"tensor {name!r}: {writer.model} writes {names[0]}, {reader.model} takes {names[1]}"
    # as Triton compares them: a model with a batch dimension may meet one without, in either way of counting
    if _fits(writer.dims, reader.dims) or _fits(writer.shape, reader.shape):
        return ""
    return f"tensor {name!r}: {writer.model} writes {list(writer.shape)}, {reader.model} takes {list(reader.shape)}"


def _fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(-1 in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))
