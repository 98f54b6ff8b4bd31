"""The iteration-time law fitted to measured levels (closed loops, open loops, traces), with its uncertainty."""

from sizing.fitting.fit import fit, fit_trace
from sizing.fitting.levels import Protocol, Trace
from sizing.fitting.result import (
    Distrust,
    Fit,
    PointError,
    Range,
    Regime,
    Shares,
    Unknown,
    is_compute_bound,
    knee_tokens,
    regime,
    shares,
)

__all__ = [
    "Distrust",
    "Fit",
    "PointError",
    "Protocol",
    "Range",
    "Regime",
    "Shares",
    "Trace",
    "Unknown",
    "fit",
    "fit_trace",
    "is_compute_bound",
    "knee_tokens",
    "regime",
    "shares",
]
