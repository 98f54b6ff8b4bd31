"""One request in the engine: what it asks for, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.reference.engine.lora import Adapter


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The default is greedy: the most likely one.

    Attributes:
        top_k, top_p: choose among the k most likely tokens, or the most likely that hold probability p. Both 0: greedy.
        min_length: the end token cannot come before this many output tokens.
        bad_words: token sequences that must not appear; `bias` is added to the logits, one value per vocabulary entry.
        seed: of the request's own random numbers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_length: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    bias: tuple[float, ...] = ()
    seed: int = 0


GREEDY = Sampling()


@dataclass(slots=True, eq=False)
class Request:
    """A request on its way through the engine.

    `adapter` is added to the model's weights for this request alone, so only requests with the same `reuse_key` share
    keys and values. `may_reuse` is False if the whole prompt must be computed: for `context_logits` [prompt, vocab],
    which are filled while it is read.

    The keys and values of `computed` tokens are in the cache, at `row` and in `blocks`. A request decodes when all its
    tokens but the newest are computed; before that its prompt is being read. `has_ended`: its last token, or the notice
    of its cancellation, has been handed out.

    A paused request has lost its place in the cache: it waits, and then reads its prompt again, followed by the first
    `restored` of its generated tokens. `reused` of the tokens to be read were in the cache already.
    """

    prompt: list[int]
    max_tokens: int
    end_id: int = -1
    stop_words: tuple[tuple[int, ...], ...] = ()
    sampling: Sampling = GREEDY
    wants_log_probs: bool = False
    wants_context_logits: bool = False
    wants_generation_logits: bool = False
    adapter: Adapter | None = None
    is_streamed: bool = True
    is_cancelled: bool = False
    has_ended: bool = False
    generated: list[int] = field(default_factory=list)
    context_logits: NDArray[np.float32] | None = None
    computed: int = 0
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    reuse_key: str = ""
    may_reuse: bool = True
    prefix_keys: tuple[bytes, ...] = ()
    reused: int = 0
    restored: int = 0
    is_paused: bool = False

    @property
    def longest(self) -> int:
        """The most tokens that it can have, which guaranteed_no_evict reserves."""
        return len(self.prompt) + self.max_tokens

    @property
    def to_read(self) -> int:
        """Tokens that must be in the cache before the next one can be generated."""
        return len(self.prompt) + self.restored

    @property
    def context(self) -> list[int]:
        """The `to_read` tokens."""
        return self.prompt + self.generated[: self.restored] if self.restored else self.prompt

    @property
    def reads_prompt(self) -> bool:
        return self.computed < len(self.prompt) + self.restored

    @property
    def is_complete(self) -> bool:
        """Whether all tokens are generated, or the end token or a stop word has come."""
        made = self.generated
        if len(made) >= self.max_tokens or (made and made[-1] == self.end_id):
            return True
        return any(tuple(made[-len(word) :]) == word for word in self.stop_words if word)


@dataclass(frozen=True, slots=True)
class Token:
    """One token generated for `request`; `id` is None if it was cancelled.

    `logits` [vocab] are those from which the token was chosen, if the request wants them.
    """

    request: Request
    id: int | None
    log_prob: float
    is_last: bool
    logits: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is doing: numbers of requests by state. `context_tokens`: prompt tokens still to be read.

    `paused`: waiting requests that had been running and lost their blocks to others.
    """

    waiting: int
    reading_prompt: int
    context_tokens: int
    decoding: int
    empty_slots: int
    passes: int
    paused: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold: a request beyond it is refused when it arrives, not when its turn comes."""

    max_sequence_tokens: int
    kv_tokens: int
    vocab_size: int
