"""Student's t, from scipy, which is loaded when the first quantile is asked for.

Importing scipy.special takes a third of a second: the processes of the load generator import this and never ask.
"""

from __future__ import annotations


def t_quantile(degrees: float, share: float) -> float:
    """The value below which a t-distributed variable of `degrees` degrees of freedom lies with probability `share`.

    >>> round(t_quantile(10, 0.975), 3)
    2.228
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))
