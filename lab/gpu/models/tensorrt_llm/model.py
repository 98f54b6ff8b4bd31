"""Triton model `tensorrt_llm` on a GPU: the reference model with an engine of real shape behind it.

A fast engine produces more tokens than the Python backend can send one by one. Here the tokens of one request that are
waiting to be sent go out in one response, so that the engine never waits for answers to be sent.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lab.gpu.engine.build import build_engine
from lab.reference.engine.request import Request, Token
from lab.reference.models.tensorrt_llm import model as reference

SWITCH_S = 2e-4  # the engine's thread must not wait 5 ms for the sending thread after each pass


@dataclass(slots=True)
class Waiting:
    """Tokens of one request that are waiting to be sent, in order."""

    request: Request
    tokens: list[Token] = field(default_factory=list)


def by_request(tokens: list[Token]) -> list[Waiting]:
    """`tokens` by request, in their order; requests whose first token is among them come first."""
    waiting: dict[Request, Waiting] = {}
    for token in tokens:
        waiting.setdefault(token.request, Waiting(token.request)).tokens.append(token)
    return sorted(waiting.values(), key=lambda item: len(item.request.generated) > len(item.tokens))


class TritonPythonModel(reference.TritonPythonModel):
    """The reference model with another engine and another way to send tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        sys.setswitchinterval(SWITCH_S)
        vars(reference)["build_engine"] = build_engine
        super().initialize(args)

    def _next_tokens(self) -> list[Any] | None:
        tokens = super()._next_tokens()
        if tokens is None:
            return None
        while True:
            try:
                more = self.answers.get_nowait()
            except queue.Empty:
                return by_request(tokens)
            if more is None:
                self.answers.put(None)
                return by_request(tokens)
            tokens += more

    def _send_token(self, waiting: Any) -> None:
        last = waiting.tokens[-1]
        ids = [token.id for token in waiting.tokens if token.id is not None]
        if not last.request.is_streamed or last.request.wants_log_probs or len(ids) < 2:
            for token in waiting.tokens:
                super()._send_token(token)
            return
        flight = self.flights[last.request]
        if last.is_last:
            del self.flights[last.request]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last.is_last else 0
        flight.sender.send(_response(ids, flight.answer.outputs), flags=flags)


def _response(ids: list[int], wanted: Collection[str]) -> Any:
    """Several tokens in one response to a request that asked for no probabilities.

    It must not have outputs that were not requested: the stub drops them without holding the interpreter's lock, which
    crashes it with Python 3.12.
    """
    made = {
        "output_ids": np.array([[ids]], np.int32),
        "sequence_length": np.array([[len(ids)]], np.int32),
        "cum_log_probs": np.zeros((1, 1), np.float32),
        "output_log_probs": np.zeros((1, 1, len(ids)), np.float32),
        "context_logits": np.zeros((1, 1, 1), np.float32),
        "generation_logits": np.zeros((1, 1, 1, 1), np.float32),
    }
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, made[name]) for name in made if name in wanted])
