"""The engine's own thread, and the building of an engine from a repository's parameters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

import torch

from lab.reference.engine.in_flight import InFlightEngine
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.parameters import Scheduling, read_scheduling
from lab.reference.engine.request import Limits, Request, Token
from lab.reference.engine.shape import Shape
from lab.reference.engine.static import StaticEngine
from lab.reference.engine.transformer import Transformer

Engine = InFlightEngine | StaticEngine


def warn(message: str) -> None:
    """Write a warning to the server's log, marked as the backend marks its own."""
    sys.stderr.write(f"[TensorRT-LLM][WARNING] {message}\n")


def build_engine(parameters: Mapping[str, str]) -> tuple[Engine, Limits]:
    """The engine described by the `tensorrt_llm` model's parameters, and its limits.

    Raises:
        ParameterError: with these parameters the backend would not load either.
    """

    def number(key: str) -> int:
        return int(parameters[key])

    scheduling = read_scheduling(parameters, warn)
    device = torch.device(parameters["device"])
    if device.type == "cpu":
        torch.set_num_threads(number("threads"))
    dtype = torch.float32 if parameters["precision"] == "fp32" else torch.bfloat16
    shape = Shape(**{key: number(key) for key in ("hidden", "layers", "heads", "kv_heads", "vocab_size")})
    model = Transformer(shape, seed=number("seed"), device=device, dtype=dtype)
    limits = Limits(number("max_sequence_tokens"), scheduling.kv_tokens, shape.vocab_size)
    cache = KvCache(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        capacity_tokens=limits.kv_tokens,
        max_requests=scheduling.max_requests,
        max_sequence_tokens=limits.max_sequence_tokens,
        device=device,
        dtype=dtype,
        reuses=scheduling.reuses_kv,
    )
    return _scheduler(scheduling, model, cache, parameters), limits


def _scheduler(scheduling: Scheduling, model: Transformer, cache: KvCache, parameters: Mapping[str, str]) -> Engine:
    budget, chunks = int(parameters["token_budget"]), scheduling.chunks_prompts
    if scheduling.is_static:
        delay_s = float(parameters["batch_delay_s"])
        return StaticEngine(model, cache, token_budget=budget, delay_s=delay_s, chunks_prompts=chunks)
    return InFlightEngine(model, cache, token_budget=budget, policy=scheduling.policy, chunks_prompts=chunks)


class Worker:
    """Runs an engine on a thread, which sleeps while there is no work, and passes the tokens of each pass to `deliver`.

    `on_stop` is called on that thread when it ends, also if the engine failed, so that no client is left waiting.
    """

    def __init__(self, engine: Engine, deliver: Callable[[list[Token]], None], on_stop: Callable[[], None]) -> None:
        self.engine = engine
        self._deliver, self._on_stop = deliver, on_stop
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request: Request) -> None:
        self.engine.add(request)
        self._wake.set()

    def stop(self) -> None:
        """End after the current pass."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self.engine.has_work:
                    if tokens := self.engine.step():
                        self._deliver(tokens)
                else:
                    self._wake.wait()
                    self._wake.clear()
        finally:
            self._on_stop()
