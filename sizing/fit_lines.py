"""What `fit` says beside its tables: the rule found, what binds the engine, and what the points do not tell."""

from __future__ import annotations

from dataclasses import asdict

from sizing.fitting import Fit, Regime, Shares
from sizing.numbers import percent, significant


def fit_lines(fitted: Fit) -> tuple[str, ...]:
    """Sentences: what was fitted beside the coefficients, what binds at the busiest level, what is not known and the
    measurement that would tell it. Points that are distrusted and lockstep are among the warnings already."""
    extra = [f"Fitted beside the coefficients: {_extra(fitted, name)}." for name in fitted.extra]
    unknown = [f"Not known: {one}." for one in fitted.unknown]
    return (*extra, *regime_lines(fitted.regime), *unknown)


def _extra(fitted: Fit, name: str) -> str:
    if name == "kv_tokens":
        return f"a KV cache of {fitted.batching.kv_tokens:,} tokens"
    return f"{percent(fitted.law.unread)} of the weights' time is saved by a single sequence"


def regime_lines(found: Regime) -> tuple[str, ...]:
    """The knee, and the two kinds of iteration at the busiest level."""
    where = f"{found.batch:,} sequences of {significant(found.context)} tokens"
    return (
        f"Weights take as long as arithmetic at {significant(found.knee_tokens)} tokens an iteration.",
        f"A decode step of {where}: {shares_text(found.decode)}; its matrix products are "
        f"{_side(found.decode_compute_bound)}.",
        f"With {significant(found.prompt_tokens)} tokens of a prompt: {shares_text(found.prompt)}; "
        f"{_side(found.prompt_compute_bound)}.",
    )


def _side(compute_bound: bool) -> str:
    return "compute-bound" if compute_bound else "memory-bound"


def shares_text(found: Shares) -> str:
    """Shares of an iteration's time, the largest first, without those under half a percent."""
    known = sorted(asdict(found).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share)}" for name, share in known if share >= 0.005)
