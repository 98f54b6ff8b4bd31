"""SGLang's OpenAI server with steps as long as a GPU's, run as a program in SGLang's environment with its options.

Scheduler, KV cache, radix cache, sampling, servers and metrics are SGLang's own. Of the model nothing is computed but
the logits of each sequence's last token, from its embedding: the layers would take processor time from the server. On a
CPU their attention is a loop over the sequences, and with thirty of them lasts longer than a GPU's step. What remains
of the step's time is slept. PACE names the JSON file that `lab.pace` wrote. With overlapped scheduling SGLang goes on
while a step lasts: the next one queues behind it, as in the stream of a GPU. SGLang starts its scheduler in a process
that runs this file again, so both see the same modules.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from step_times import StepTimes

FOR_GPUS = ("sgl_kernel", "torchvision", "torchaudio", "timm")
"""Packages that SGLang imports and never needs for a text model on a CPU."""


def _nothing(of: object, name: str) -> Any:
    """The attribute `name` of an absent package: a class that has any attribute in turn."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing(name, (), {})


class Nothing(type):
    """The class of what an absent package defines; as a decorator it does nothing."""

    __getattr__ = _nothing

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and callable(given[0]) and not named:
            return given[0]
        raise RuntimeError(f"{cls.__name__} is for GPUs")


class Absent(ModuleType):
    """A package that is not there."""

    __version__ = "0"
    __getattr__ = _nothing


class Absences(MetaPathFinder, Loader):
    """Imports FOR_GPUS as empty packages, but says of them that they are not installed when asked."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] not in FOR_GPUS or _is_only_asked():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)  # the import system gives it the path of a package

    def exec_module(self, module: ModuleType) -> None:
        pass


def _is_only_asked() -> bool:
    """True within importlib.util.find_spec."""
    frame: FrameType | None = sys._getframe(2)
    while frame and "importlib" in frame.f_code.co_filename:
        if frame.f_code is importlib.util.find_spec.__code__:
            return True
        frame = frame.f_back
    return False


def step_s(times: StepTimes, batch: Any) -> float:
    """Seconds that the GPU would take for a ForwardBatch of SGLang: prompts or decoding sequences, never both."""
    contexts = batch.seq_lens.tolist()
    if batch.forward_mode.is_decode() or not contexts:
        return float(times.decode_s(contexts))
    return float(times.mixed_s(sum(batch.extend_seq_lens_cpu), 0, contexts))


class Stream:
    """A GPU's queue of steps, each of which starts when it is queued and the one before it has ended."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def queue(self, seconds: float) -> None:
        """One more step."""
        self.free_s = max(time.perf_counter(), self.free_s) + seconds

    def event(self) -> Event:
        """What torch.cpu.Event() gives instead of an event that is always past."""
        return Event(self)


class Event:
    """A mark in a stream: it is past when all steps queued before it have ended."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._due_s = stream, 0.0

    def record(self, stream: object = None) -> None:
        """Set the mark here."""
        self._due_s = self._stream.free_s

    def query(self) -> bool:
        """True if it is past."""
        return time.perf_counter() >= self._due_s

    def synchronize(self) -> None:
        """Wait until it is past."""
        time.sleep(max(0.0, self._due_s - time.perf_counter()))


def paced(forward: Callable[..., Any], times: StepTimes, stream: Stream, *, overlapped: bool) -> Callable[..., Any]:
    """The forward pass of a model runner, which returns no sooner than the GPU would, or at once if steps may overlap
    with scheduling, which then waits for the event that it has recorded."""
    cores = {int(core) for core in os.environ.get("ENGINE_CORES", "").split(",") if core}

    def at_its_pace(runner: Any, batch: Any, *given: Any, **named: Any) -> Any:
        if cores:  # the process that computes has them for itself; those of the server were started on the others
            os.sched_setaffinity(0, cores)
            cores.clear()
        stream.queue(step_s(times, batch))
        found = forward(runner, batch, *given, **named)
        if not overlapped:
            time.sleep(max(0.0, stream.free_s - time.perf_counter()))
        return found

    return at_its_pace


def embedded(model: Any, input_ids: Any, *_given: object, **_named: object) -> Any:
    """Replaces the layers of a model: the logits follow from the tokens' embeddings alone. The weights are random, so
    the tokens drawn are as good as any."""
    return model.embed_tokens(input_ids)


if __name__ in ("__main__", "__mp_main__"):
    sys.meta_path.append(Absences())
    import torch.cpu
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.models.llama import LlamaModel

    gpu = Stream()
    torch.cpu.Event = gpu.event
    overlapped = "--disable-overlap-schedule" not in sys.argv
    LlamaModel.forward = embedded
    ModelRunner.forward = paced(ModelRunner.forward, StepTimes(), gpu, overlapped=overlapped)

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
