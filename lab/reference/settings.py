"""Settings of the reference server: ports, batching, limits, and the size of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from calibration.errors import ServerError

Batching = Literal["in_flight", "static"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
Policy = Literal["guaranteed_no_evict", "max_utilization"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)

KV_BLOCK_TOKENS = 16
SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
PORTS = ("grpc_port", "http_port", "metrics_port")
LEAST = dict.fromkeys(("max_batch_size", "layers", "heads", "kv_heads", "threads"), 1) | {
    "max_sequence_tokens": 2,
    "seed": 0,
    "hidden": 2,
    "vocab_size": len(SPECIAL_TOKENS) + 1,
}
"""The least values of the settings that every local engine has."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a reference server. Port 0 means any free port.

    The defaults make a model small enough for one core: over the ensemble its token rate stays below the roughly 2,500
    tokens/s at which tritonserver 2.51 corrupted its heap (when streams ran ahead of the one postprocessing instance).

    Attributes:
        batching: in_flight (requests join and leave between steps) or static (a batch runs until its longest ends).
        max_batch_size: most requests computed at once; more wait in the engine's queue.
        kv_tokens: capacity of the KV cache in tokens; rounded down to whole blocks of 16.
        max_sequence_tokens: longest prompt plus output; beyond it a request is refused.
        token_budget: most tokens in one forward pass; longer prompts are computed in chunks.
        policy: in-flight batching only: guaranteed_no_evict (a request starts when the cache can hold its longest
            sequence) or max_utilization (when its prompt fits; it may be paused if blocks run out, and computed again).
        kv_reuse: full blocks of prompts are kept in the KV cache, and reused by prompts that begin alike.
        batch_delay_s: static batching only: how long an idle engine waits for more requests before it starts a batch.
        hidden, layers, heads, kv_heads, vocab_size: the model; its weights are random, drawn from `seed`.
        threads: CPU threads of the engine.
    """

    batching: Batching = "in_flight"
    grpc_port: int = 8001
    http_port: int = 8000
    metrics_port: int = 8002
    max_batch_size: int = 32
    kv_tokens: int = 16_384
    max_sequence_tokens: int = 512
    token_budget: int = 512
    batch_delay_s: float = 0.005
    hidden: int = 512
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    vocab_size: int = 2048
    seed: int = 0
    threads: int = 1
    device: Device = "auto"
    policy: Policy = "guaranteed_no_evict"
    kv_reuse: bool = False

    def __post_init__(self) -> None:
        """Raises ServerError with one line that names the first wrong setting."""
        self._check_choices()
        self._check_ranges()
        self._check_shape()

    def _check_choices(self) -> None:
        for name, allowed in (("batching", BATCHINGS), ("policy", POLICIES), ("device", DEVICES)):
            if getattr(self, name) not in allowed:
                raise ServerError(f"{option(name)} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def _check_ranges(self) -> None:
        check_engine(self, {"batch_delay_s": 0})
        if self.kv_tokens < KV_BLOCK_TOKENS:
            raise ServerError(f"--kv-tokens must be at least one block of {KV_BLOCK_TOKENS}, got {self.kv_tokens}")
        check_ports({name: getattr(self, name) for name in PORTS})

    def _check_shape(self) -> None:
        if self.hidden % (2 * self.heads):
            raise ServerError(f"--hidden must be a multiple of twice --heads ({self.heads}), got {self.hidden}")


def option(name: str) -> str:
    """A setting as the command `serve` spells it, by which errors name it.

    >>> option("kv_tokens")
    '--kv-tokens'
    """
    return "--" + name.replace("_", "-")


def check_engine(settings: Any, least: Mapping[str, int]) -> None:
    """The rules of every local engine, with the `least` values of settings that only this one has.

    Raises ServerError with one line that names the first wrong setting.
    """
    for name, smallest in (LEAST | dict(least)).items():
        if getattr(settings, name) < smallest:
            raise ServerError(f"{option(name)} must be at least {smallest}, got {getattr(settings, name)}")
    if settings.token_budget < settings.max_batch_size:
        raise ServerError(
            f"--token-budget must be at least --max-batch-size ({settings.max_batch_size}: every running request takes "
            f"one token of it), got {settings.token_budget}"
        )
    if settings.heads % settings.kv_heads:
        raise ServerError(f"--heads must be a multiple of --kv-heads ({settings.kv_heads}), got {settings.heads}")


def check_ports(ports: Mapping[str, int]) -> None:
    """Raises ServerError with one line that names the first port that is invalid or given twice."""
    for name, port in ports.items():
        if not 0 <= port <= 65_535:
            raise ServerError(f"{option(name)} must be between 0 and 65535, got {port}")
        if port and list(ports.values()).count(port) > 1:
            each = ", ".join(map(option, ports))
            raise ServerError(f"{option(name)} {port} is asked for twice: each of {each} needs a port of its own")
