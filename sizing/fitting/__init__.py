"""The iteration-time law fitted to measured levels (closed loops, open loops, traces), with its uncertainty."""

from sizing.fitting.bends import BentLaw
from sizing.fitting.fit import fit, fit_trace
from sizing.fitting.levels import ServedTrace
from sizing.fitting.result import (
    CoveredRange,
    Distrust,
    Fit,
    PointError,
    Regime,
    Shares,
    Unknown,
    is_compute_bound,
    knee_tokens,
    regime,
    shares,
)
from sizing.points import STARTS, UNTOLD, Protocol

__all__ = [
    "STARTS",
    "UNTOLD",
    "BentLaw",
    "CoveredRange",
    "Distrust",
    "Fit",
    "PointError",
    "Protocol",
    "Regime",
    "ServedTrace",
    "Shares",
    "Unknown",
    "fit",
    "fit_trace",
    "is_compute_bound",
    "knee_tokens",
    "regime",
    "shares",
]
