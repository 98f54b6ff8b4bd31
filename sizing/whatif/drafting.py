"""What if a cheap draft proposed tokens for the model to check: a draft model, Medusa's heads, ReDrafter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from sizing.numbers import percent
from sizing.replica import Speculation
from sizing.steptime import StepLaw
from sizing.whatif.setup import Setup, reading_s, refilled, sheet_of

DRAFT_SIGMA = 0.20
TEXT = "acceptance depends on the text, the temperature and the draft's training: measure it on your own prompts"


@dataclass(frozen=True, slots=True)
class Speculative:
    """A draft model of `draft_size` times the parameters proposes `draft_tokens` tokens a step, one by one."""

    draft_tokens: int = 4
    acceptance: float = 0.7
    draft_size: float = 0.05

    def apply(self, setup: Setup) -> Setup:
        """Adds the draft's passes to each decode step, its weights and its KV cache to the memory."""
        _check_share("speculative", "draft_size", self.draft_size)
        # Parameters grow as layers x width^2 and, width with layers: depth as the cube root, KV cache as depth x width.
        depth, cache = self.draft_size ** (1 / 3), self.draft_size ** (2 / 3)
        law = setup.candidate.replica.law
        weights_s = reading_s(law, sheet_of(setup.candidate))
        draft = StepLaw(
            weights_s=self.draft_size * weights_s,
            overhead_s=depth * (law.overhead_s + law.weights_s - weights_s),
            token_s=self.draft_size * law.token_s,
            sequence_s=depth * law.sequence_s,
            kv_token_s=cache * law.kv_token_s,
        )
        lines = (
            f"a draft model of {percent(self.draft_size, 1)} of the parameters: its passes take that share of the "
            f"model's weights and arithmetic, {percent(depth)} of its overheads (fewer layers) and {percent(cache)} of "
            "its KV cache",
            "the draft's own reading of the prompts is left out",
        )
        return _drafted(setup, "speculative", self.draft_tokens, self.acceptance, draft, self.draft_size, cache, lines)


@dataclass(frozen=True, slots=True)
class Medusa:
    """`heads` extra output heads propose a token each from the model's own last state; `tree` candidate tokens checked.

    `acceptance`: chance that a head is right (in the tree: that one of its candidates is) if those before it were.
    `head_size`: weights of one head over the model's, 2 % for 7 billion parameters and 32,000 words.
    """

    heads: int = 4
    acceptance: float = 0.6
    tree: int = 0
    head_size: float = 0.02

    def apply(self, setup: Setup) -> Setup:
        """Adds the heads to each step; candidates beyond one chain cost the arithmetic of a token each."""
        _check_share("medusa", "head_size", self.head_size)
        if self.tree and self.tree < self.heads:
            raise ScenarioError(f"medusa: tree must be 0 (one chain) or at least heads ({self.heads}), got {self.tree}")
        law, beyond = setup.candidate.replica.law, max(self.tree - self.heads, 0)
        draft = StepLaw(
            weights_s=self.head_size * reading_s(law, sheet_of(setup.candidate)),
            overhead_s=0.0,
            token_s=self.head_size * law.token_s,
            sequence_s=law.token_s * beyond / max(self.heads, 1),
            kv_token_s=0.0,
        )
        lines = (
            f"{self.heads} heads of {percent(self.head_size, 1)} of the weights each, {self.tree or self.heads} "
            "candidate tokens checked for each sequence and step, those beyond one chain at their full arithmetic",
            "claimed by its authors for one sequence: 2.2 times as fast, 2.3 to 3.6 with the model trained along "
            "(arXiv 2401.10774); in full batches less, since checking costs arithmetic",
        )
        taken = self.heads * self.head_size
        return _drafted(setup, "medusa", self.heads, self.acceptance, draft, taken, 0.0, lines)


@dataclass(frozen=True, slots=True)
class ReDrafter:
    """A small recurrent network fed with the model's state proposes `draft_tokens` tokens a step."""

    draft_tokens: int = 4
    acceptance: float = 0.7
    draft_size: float = 0.02

    def apply(self, setup: Setup) -> Setup:
        """Adds the recurrent passes to each step; they have no KV cache."""
        _check_share("redrafter", "draft_size", self.draft_size)
        law = setup.candidate.replica.law
        weights_s = self.draft_size * reading_s(law, sheet_of(setup.candidate))
        draft = StepLaw(weights_s, 0.0, self.draft_size * law.token_s, 0.0, 0.0)
        lines = (
            f"a recurrent draft of {percent(self.draft_size, 1)} of the weights, run once a proposed token, no KV "
            "cache",
            "claimed by its authors: 2.7 times the tokens/s of a greedy H100 with TensorRT-LLM at small batches "
            "(arXiv 2403.09919 and Apple 2024)",
        )
        taken = self.draft_size
        return _drafted(setup, "redrafter", self.draft_tokens, self.acceptance, draft, taken, 0.0, lines)


def _drafted(
    setup: Setup, name: str, tokens: int, acceptance: float, draft: StepLaw, taken: float, cache: float,
    lines: tuple[str, ...],
) -> Setup:  # fmt: skip
    """The setup with a draft whose weights take the share `taken` of the model's, its KV cache the share `cache`."""
    if tokens == 0:
        return setup.unchanged("no tokens are proposed")
    replica, speculation = setup.candidate.replica, Speculation(tokens, acceptance, draft)
    if replica.speculation is not None:
        raise ScenarioError(f"{name}: the engine already checks the proposals of another draft")
    sheet = sheet_of(setup.candidate)
    held = refilled(setup, sheet, sheet, taken_bytes=taken * sheet.weight_bytes)
    batching = replace(replica.batching, kv_tokens=_beside_a_draft(held, cache))
    step = (
        f"{tokens} proposed tokens a step, each accepted with chance {acceptance:g} if those before it were: "
        f"{speculation.tokens_per_step:.2f} tokens a step (Leviathan, Kalman, Matias 2023, arXiv 2211.17192)"
    )
    changed = replace(replica, batching=batching, speculation=speculation)
    return setup.changed(step, *lines, TEXT, sigma=DRAFT_SIGMA, replica=changed)


def _beside_a_draft(kv_tokens: int, cache: float) -> int:
    return max(1, int(kv_tokens / (1 + cache)))


def _check_share(name: str, field: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ScenarioError(f"{name}: {field} must be a share of the model from 0 to below 1, got {value:g}")
