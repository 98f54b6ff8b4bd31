"""Settings of the local vLLM: port, limits, and the size of its model."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.errors import ServerError
from lab.pace import Pace
from lab.reference.settings import PORTS, check_engine, check_ports

KV_BLOCK_TOKENS = 32
"""vLLM's attention on CPUs needs blocks of a multiple of this size."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a local vLLM. Port 0 means any free port.

    Attributes:
        max_batch_size: most sequences scheduled at once (vLLM's max_num_seqs); more wait.
        kv_tokens: capacity of the KV cache in tokens; rounded down to whole blocks of 32.
        max_sequence_tokens: longest prompt plus output (max_model_len); beyond it a request is refused.
        token_budget: most tokens in one step (max_num_batched_tokens); longer prompts are computed in chunks.
        chunked_prefill: False: a prompt starts when the budget holds all of it beside those that decode.
        look_ahead: asynchronous scheduling of vLLM, overlapped scheduling of SGLang, the default of both beside GPUs: a
            step is chosen while the one before it runs. It needs a pace: on a CPU there is nothing to run ahead of.
        receive_interval_steps: of SGLang alone: decode steps from one look at new requests to the next.
        kv_reuse: vLLM's prefix caching: full blocks of prompts are kept, and reused by prompts that begin alike.
        hidden, layers, heads, kv_heads, vocab_size: the model; its weights are random, drawn from `seed`.
        experts: of each layer, of which a token takes two; 0: a dense model.
        threads: CPU cores of the engine.
        pace: the GPU whose steps it imitates; None: as fast as this machine computes.
    """

    http_port: int = 8000
    max_batch_size: int = 32
    kv_tokens: int = 16_384
    max_sequence_tokens: int = 512
    token_budget: int = 512
    chunked_prefill: bool = True
    look_ahead: bool = False
    receive_interval_steps: int = 1
    kv_reuse: bool = False
    hidden: int = 512
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    vocab_size: int = 2048
    experts: int = 0
    seed: int = 0
    threads: int = 1
    pace: Pace | None = None

    def __post_init__(self) -> None:
        """Raises ServerError with one line that names the first wrong setting."""
        check_engine(self, {"experts": 0, "kv_tokens": KV_BLOCK_TOKENS, "receive_interval_steps": 1})
        check_ports({"http_port": self.http_port})
        if self.experts == 1:
            raise ServerError("--experts must be 0 for a dense model, else at least the 2 that a token takes, got 1")
        if self.look_ahead and self.pace is None:
            raise ServerError("--look-ahead takes the --pace of a GPU: a CPU has nothing to run ahead of")
        if not self.chunked_prefill and self.token_budget < self.max_sequence_tokens:
            raise ServerError(
                f"with --no-chunked-prefill, --token-budget must hold a sequence of {self.max_sequence_tokens} tokens, "
                f"got {self.token_budget}"
            )
        if self.kv_tokens // KV_BLOCK_TOKENS <= -(-self.max_sequence_tokens // KV_BLOCK_TOKENS):
            raise ServerError(
                f"--kv-tokens must hold a sequence of {self.max_sequence_tokens} tokens and a block of "
                f"{KV_BLOCK_TOKENS} that vLLM keeps to itself, got {self.kv_tokens}"
            )
        if self.hidden % (32 * self.heads):
            raise ServerError(
                f"--hidden must be a multiple of 32 times --heads ({self.heads}), for vLLM's attention, got "
                f"{self.hidden}"
            )


@dataclass(frozen=True, slots=True)
class BehindTriton(Settings):
    """Settings of a local vLLM behind Triton, which has three ports."""

    grpc_port: int = 8001
    metrics_port: int = 8002

    def __post_init__(self) -> None:
        """Raises ServerError like the settings of vLLM."""
        Settings.__post_init__(self)  # super() without arguments does not work in a dataclass with slots
        if self.look_ahead:
            raise ServerError(
                "--look-ahead is for vLLM's own server: behind Triton, its platform for CPUs turns it off"
            )
        check_ports({name: getattr(self, name) for name in PORTS})
