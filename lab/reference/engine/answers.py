"""From the engine's results to the output tensors of a `tensorrt_llm` answer, in the order of the contract."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.reference.engine.request import Request, Token

NO_CONTEXT_LOGITS = np.zeros((1, 1, 1), np.float32)
NO_GENERATION_LOGITS = np.zeros((1, 1, 1, 1), np.float32)


@dataclass(slots=True)
class Answer:
    """The answer to one client: the requested outputs, and the results so far.

    A streamed answer is sent in parts of one token, with its log-probability and logits; the logits of the prompt come
    with the first. Any other is sent whole: `prompt` (empty to leave it out) and all tokens.
    """

    request: Request
    outputs: Collection[str]
    prompt: Sequence[int] = ()
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, token: Token) -> None:
        # stored here, because the request has tokens that were not sent yet
        if token.id is not None:
            self.ids.append(token.id)
            self.log_probs.append(token.log_prob)
            if token.logits is not None:
                self.logits.append(token.logits)

    def part(self) -> dict[str, NDArray[Any]]:
        """The newest token alone."""
        context = self.request.context_logits if len(self.ids) == 1 else None
        newest, self.logits = self.logits[-1:], []
        return self._tensors(self.ids[-1:], self.log_probs[-1:], context, newest)

    def whole(self) -> dict[str, NDArray[Any]]:
        """The whole answer, or the part of a stopped request."""
        context = self.request.context_logits
        if context is not None and not self.ids:
            context = context[: self.request.computed]
        return self._tensors([*self.prompt, *self.ids], self.log_probs, context, self.logits)

    def _tensors(
        self,
        ids: list[int],
        log_probs: list[float],
        context: NDArray[np.float32] | None,
        logits: Sequence[NDArray[np.float32]],
    ) -> dict[str, NDArray[Any]]:
        made = {
            "output_ids": np.array([[ids]], np.int32),
            "sequence_length": np.array([[len(ids)]], np.int32),
            "cum_log_probs": np.array([[sum(self.log_probs)]], np.float32),
            "output_log_probs": np.array([[log_probs]], np.float32),
            "context_logits": NO_CONTEXT_LOGITS if context is None else context[None],
            "generation_logits": np.stack(logits)[None, None] if logits else NO_GENERATION_LOGITS,
        }
        return {name: array for name, array in made.items() if name in self.outputs}
