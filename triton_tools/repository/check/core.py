"""What Triton's core demands of every model: name, versions, tensors, batching, instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tritonclient.grpc import model_config_pb2 as pb

from triton_tools.batcher.pbtxt import FALSE_TRUE, PLATFORMS
from triton_tools.repository.check.faults import Fault, ModelFolder
from triton_tools.repository.source import named

SHIPPED = {
    "python",
    "tensorrtllm",
    "tensorrt",
    "onnxruntime",
    "pytorch",
    "tensorflow",
    "openvino",
    "dali",
    "fil",
    "vllm",
}
FILES = {
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.pt": "pytorch",
    "model.graphdef": "tensorflow",
    "model.savedmodel": "tensorflow",
    "model.xml": "openvino",
    "model.py": "python",
}
"""The backend that Triton takes by the model's file if the configuration names neither backend nor platform."""
CORRELATION_IDS = (pb.TYPE_UINT64, pb.TYPE_INT64, pb.TYPE_UINT32, pb.TYPE_INT32, pb.TYPE_STRING)


def core_faults(model: ModelFolder) -> Iterator[Fault]:
    """Faults of a single model, whatever its backend."""
    yield from _names(model)
    yield from _versions(model)
    for side in ("input", "output"):
        yield from _tensors(model, side)
    yield from _batching(model)
    yield from _queue(model)
    yield from _sequences(model)
    yield from _instances(model)
    yield from _warmups(model)


def _names(model: ModelFolder) -> Iterator[Fault]:
    config = model.config
    if config.name and config.name != model.name:
        yield model.refused(f"name is {config.name!r}, but its folder is {model.name!r}: they must be the same", "name")
    if not _backend(model) and not config.platform:
        yield model.refused("neither backend nor platform is given, nor a file that tells: name one")
    elif not _backend(model) and config.platform != "ensemble":
        yield model.refused(f"platform {config.platform!r} is not known here: give a backend", "platform")
    if config.backend and config.backend not in SHIPPED:
        message = f"backend {config.backend!r} is not shipped with Triton: the server must have a library of that name"
        yield model.refused(message, "backend")
    if (config.platform == "ensemble") != config.HasField("ensemble_scheduling"):
        yield model.refused("platform 'ensemble' and ensemble_scheduling belong together: one is missing", "platform")


def _backend(model: ModelFolder) -> str:
    """The backend that is given, or else the one that Triton completes; empty if there is none."""
    config = model.config
    if config.backend or config.platform:
        return config.backend or PLATFORMS.get(config.platform, "")
    if config.default_model_filename:
        return FILES.get(config.default_model_filename, "")
    first = min((path for path in model.path.iterdir() if path.is_dir()), default=model.path)
    return next((backend for name, backend in FILES.items() if (first / name).exists()), "")


def _versions(model: ModelFolder) -> Iterator[Fault]:
    config = model.config
    served = served_versions(model)
    if not served:
        yield Fault(model.path, 0, "error", "no version folder that the version policy serves: make one, named 1")
    if _backend(model) != "python":
        return
    program = config.default_model_filename or "model.py"
    for number in served:
        if not (model.path / str(number) / program).is_file():
            yield Fault(model.path / str(number), 0, "error", f"no {program}: the Python backend has nothing to run")


def served_versions(model: ModelFolder) -> list[int]:
    """The version folders that the version policy serves."""
    numbers = [path for path in model.path.iterdir() if path.is_dir() and path.name.isdigit() and path.name[0] != "0"]
    versions = sorted(int(path.name) for path in numbers)
    policy = model.config.version_policy
    if policy.HasField("all"):
        return versions
    if policy.HasField("specific"):
        return [number for number in versions if number in policy.specific.versions]
    count = policy.latest.num_versions if policy.HasField("latest") else 1
    return versions[-count:]


def _tensors(model: ModelFolder, side: str) -> Iterator[Fault]:
    tensors = getattr(model.config, side)
    if not tensors and model.config.backend == "tensorrtllm":
        yield model.refused(f"no {side} is declared")
    seen: set[str] = set()
    for number, tensor in enumerate(tensors):
        if not tensor.name:
            yield model.refused(f"an {side} without a name", side, number)
        if tensor.name in seen:
            yield model.wrong(f"{side} {tensor.name!r} is declared twice", side, number)
        seen.add(tensor.name)
        if tensor.data_type == pb.TYPE_INVALID:
            yield model.refused(f"{side} {tensor.name!r} has no data_type", side, number)
        yield from _dims(model, side, number)


def _dims(model: ModelFolder, side: str, number: int) -> Iterator[Fault]:
    tensor = getattr(model.config, side)[number]
    if not tensor.dims:
        yield model.refused(f"{side} {tensor.name!r} has no dims", side, number)
    for size in tensor.dims:
        if size < 1 and size != -1:
            yield model.refused(
                f"{side} {tensor.name!r}: dims hold {size}; a dimension is at least 1, or -1 for any", side, number
            )
    if tensor.HasField("reshape"):
        yield from _reshape(model, side, number)
    if side == "input" and tensor.format and len(tensor.dims) != 3:
        yield model.refused(f"input {tensor.name!r}: a format needs 3 dims", side, number, "format")
    if tensor.is_shape_tensor and _backend(model) != "tensorrt":
        yield model.refused(f"{side} {tensor.name!r}: only TensorRT has shape tensors", side, number, "is_shape_tensor")


def _reshape(model: ModelFolder, side: str, number: int) -> Iterator[Fault]:
    tensor = getattr(model.config, side)[number]
    shape = list(tensor.reshape.shape)
    if any(size < 1 and size != -1 for size in shape):
        yield model.refused(
            f"{side} {tensor.name!r}: reshape holds {shape}; a dimension is at least 1, or -1 for any",
            side,
            number,
            "reshape",
        )
    elif _size(list(tensor.dims)) != _size(shape):
        yield model.refused(
            f"{side} {tensor.name!r}: dims {list(tensor.dims)} and reshape {shape} differ in size",
            side,
            number,
            "reshape",
        )
    elif not shape and not model.config.max_batch_size:
        yield model.refused(
            f"{side} {tensor.name!r}: reshape to [] needs a max_batch_size above 0", side, number, "reshape"
        )


def _size(dims: list[int]) -> list[int]:
    """The products of the fixed dimensions before, between and after the variable ones."""
    sizes = [1]
    for dim in dims:
        if dim == -1:
            sizes.append(1)
        else:
            sizes[-1] *= dim
    return sizes


def _batching(model: ModelFolder) -> Iterator[Fault]:
    config = model.config
    if config.max_batch_size < 0:
        yield model.refused(f"max_batch_size is {config.max_batch_size}: it cannot be negative", "max_batch_size")
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield model.refused("a decoupled model cannot have a response_cache", "response_cache")
    if config.response_cache.enable and config.HasField("sequence_batching"):
        yield model.refused("a model with sequence_batching cannot have a response_cache", "response_cache")


def _queue(model: ModelFolder) -> Iterator[Fault]:
    config, at = model.config, "dynamic_batching"
    if not config.HasField(at):
        return
    batcher = config.dynamic_batching
    yield from _preferred(model, batcher.preferred_batch_size, at, 0, "preferred_batch_size")
    levels = batcher.priority_levels
    if levels and not 1 <= batcher.default_priority_level <= levels:
        yield model.refused(
            f"default_priority_level {batcher.default_priority_level} must lie between 1 and priority_levels "
            f"({levels})",
            at,
            0,
            "priority_levels",
        )
    for level in batcher.priority_queue_policy:
        if levels and not 1 <= level <= levels:
            yield model.refused(f"priority_queue_policy for level {level}: there are {levels} levels", at)
    yield from _ordering(model)


def _preferred(model: ModelFolder, sizes: Iterable[int], *steps: str | int) -> Iterator[Fault]:
    most = model.config.max_batch_size
    for size in sizes:
        if not 0 < size <= max(most, 0):
            yield model.refused(f"preferred_batch_size {size} must lie between 1 and max_batch_size ({most})", *steps)


def _sequences(model: ModelFolder) -> Iterator[Fault]:
    batcher, at = model.config.sequence_batching, "sequence_batching"
    yield from _preferred(model, batcher.oldest.preferred_batch_size, at, 0, "oldest", 0, "preferred_batch_size")
    if not 0 <= batcher.direct.minimum_slot_utilization <= 1:
        yield model.refused("minimum_slot_utilization must lie between 0 and 1", at, 0, "direct")
    names = [given.name for given in batcher.control_input]
    if "" in names or len(set(names)) < len(names):
        yield model.refused("every control_input needs a name of its own", at, 0, "control_input")
    seen: set[int] = set()
    for number, given in enumerate(batcher.control_input):
        for control in given.control:
            kind = named(pb.ModelSequenceBatching.Control.Kind, control.kind)
            lists = [len(getattr(control, field)) for field in FALSE_TRUE if getattr(control, field)]
            place = (at, 0, "control_input", number)
            if control.kind in seen:
                yield model.refused(f"{kind} is given twice", *place)
            seen.add(control.kind)
            if control.kind == pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
                if lists or control.data_type not in CORRELATION_IDS:
                    yield model.refused(f"{kind} needs a data_type of whole numbers or STRING alone", *place)
            elif lists != [2]:
                yield model.refused(f"{kind} needs one of {', '.join(FALSE_TRUE)}, with two values", *place)


def _ordering(model: ModelFolder) -> Iterator[Fault]:
    batcher, at = model.config.dynamic_batching, "dynamic_batching"
    if not batcher.preserve_ordering:
        return
    if batcher.priority_levels > 1:
        yield model.refused("preserve_ordering allows only one priority level", at, 0, "preserve_ordering")
    policies = [batcher.default_queue_policy, *batcher.priority_queue_policy.values()]
    if any(policy.default_timeout_microseconds and policy.timeout_action for policy in policies):
        yield model.refused("preserve_ordering and the timeout_action DELAY exclude each other", at)


def _instances(model: ModelFolder) -> Iterator[Fault]:
    config = model.config
    if config.platform == "ensemble" and config.instance_group:
        yield model.refused("an ensemble cannot have an instance_group: it runs nothing itself", "instance_group")
    for number, group in enumerate(config.instance_group):
        if group.count < 0:
            yield model.wrong(
                f"instance_group count is {group.count}: Triton uses 1", "instance_group", number, "count"
            )
        if group.kind in (pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_MODEL) and group.gpus:
            kind = pb.ModelInstanceGroup.Kind.Name(group.kind)
            yield model.refused(f"instance_group of {kind} lists gpus", "instance_group", number, "gpus")
        if group.profile and _backend(model) != "tensorrt":
            yield model.refused("only TensorRT has profiles", "instance_group", number, "profile")


def _warmups(model: ModelFolder) -> Iterator[Fault]:
    """Samples that the model would refuse, with which it does not load. One with a batch_size of 0 is not sent."""
    config = model.config
    known = {tensor.name: tensor for tensor in config.input}
    needed = [tensor.name for tensor in config.input if not tensor.optional]
    for number, sample in enumerate(config.model_warmup if config.platform != "ensemble" else ()):
        if not sample.batch_size:
            continue
        at, place = f"model_warmup {sample.name!r}", ("model_warmup", number)
        if sample.batch_size > max(config.max_batch_size, 1):
            message = f"batch_size {sample.batch_size} is above max_batch_size ({config.max_batch_size})"
            yield model.refused(f"{at}: {message}", *place, "batch_size")
        if missing := [name for name in needed if name not in sample.inputs]:
            yield model.refused(f"{at} lacks the input {', '.join(missing)}", *place)
        for name, given in sorted(sample.inputs.items()):
            if -1 in given.dims:
                yield model.refused(f"{at}: the dims of {name!r} hold -1, but a sample has a size", *place)
            elif name in known and (why := _unlike(known[name], given)):
                yield model.refused(f"{at}: {name!r} {why}", *place)


def _unlike(tensor: pb.ModelInput, given: pb.ModelWarmup.Input) -> str:
    """How a sample's tensor differs from the model's input; empty if it does not."""
    if given.data_type != tensor.data_type:
        kinds = [named(pb.DataType, one.data_type).removeprefix("TYPE_") for one in (given, tensor)]
        return f"is {kinds[0]}, the model takes {kinds[1]}"
    pairs = zip(given.dims, tensor.dims, strict=False)
    if len(given.dims) != len(tensor.dims) or any(wanted not in (-1, size) for size, wanted in pairs):
        return f"has dims {list(given.dims)}, the model takes {list(tensor.dims)}"
    return ""
