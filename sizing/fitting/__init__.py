"""The iteration-time law fitted to measured closed-loop points, with its uncertainty."""

from sizing.fitting.least_squares import Fit, PointError, Range, fit

__all__ = ["Fit", "PointError", "Range", "fit"]
