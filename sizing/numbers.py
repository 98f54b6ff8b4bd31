"""Numbers written for people: three significant digits, thousands separators, times in the unit that fits."""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in scientific notation between 0.001 and 10^15.

    >>> significant(12345.6), significant(0.83333), significant(20.0), significant(41)
    ('12,346', '0.833', '20', '41')
    """
    if not math.isfinite(value):
        return "—" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(seconds: float, beside_s: float = 0.0) -> str:
    """A time for people: milliseconds below ten seconds, seconds above, and where a time above stands `beside` it.

    >>> milliseconds(0.0412), milliseconds(12.34), milliseconds(1.0), milliseconds(math.nan)
    ('41.2 ms', '12.3 s', '1,000 ms', '—')
    >>> milliseconds(1.709, beside_s=12.0)
    '1.71 s'
    """
    if not math.isfinite(seconds):
        return significant(seconds)
    return f"{significant(seconds)} s" if max(seconds, beside_s) >= 10 else f"{significant(seconds * 1000)} ms"


def percent(share: float, decimals: int = 0, *, sign: bool = False) -> str:
    """A share in percent, never negative zero; a dash where it is not known.

    >>> percent(0.2), percent(0.0814, 1), percent(0.25, sign=True), percent(math.nan, sign=True)
    ('20 %', '8.1 %', '+25 %', '—')
    >>> percent(-0.0004, 1, sign=True)
    '+0.0 %'
    """
    if math.isnan(share):
        return "—"
    return f"{100 * share:{'+' if sign else ''}z.{decimals}f} %"


def met(share: float, decimals: int = 0) -> str:
    """A share of requests in percent that is said to be all of them only where it is.

    >>> met(1.0, 2), met(0.99999, 2), met(0.9995), met(0.9949)
    ('100.00 %', 'over 99.99 %', 'over 99 %', '99 %')
    """
    shown = percent(share, decimals)
    return (
        f"over {percent(1 - 0.01 / 10**decimals, decimals)}" if share < 1 and shown == percent(1, decimals) else shown
    )


def minutes(seconds: float) -> str:
    """How long something takes.

    >>> minutes(45.2), minutes(192)
    ('45 s', '3.2 minutes')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} minutes"


def gpus(count: int) -> str:
    """A count in words.

    >>> gpus(1), gpus(12)
    ('1 GPU', '12 GPUs')
    """
    return count_of(count, "GPU")


def count_of(count: int, noun: str) -> str:
    """A count and what is counted, of which the plural has an s more.

    >>> count_of(1, "replica"), count_of(1200, "replica")
    ('1 replica', '1,200 replicas')
    """
    return with_unit(f"{count:,}", f"{noun}s")


PLURAL = re.compile(r"(?<=\w)s(?=$|/)")
"""The end of what a unit counts: of "requests/s" that of the requests."""


def with_unit(number: str, unit: str) -> str:
    """A number as it is shown and its unit, named in the plural, which loses its s beside a 1.

    >>> with_unit("1", "requests/s per GPU"), with_unit("1", "GPU-hours"), with_unit("1.5", "tokens")
    ('1 request/s per GPU', '1 GPU-hour', '1.5 tokens')
    >>> with_unit("1", "per million output tokens"), with_unit("1", "kWh per million output tokens")
    ('1 per million output tokens', '1 kWh per million output tokens')
    """
    counted, per, of = unit.partition("per ")
    return f"{number} {PLURAL.sub('', counted, count=1) if number == '1' else counted}{per}{of}"


def per_second(rate: float, digits: int = 3, noun: str = "request") -> str:
    """A rate in words.

    >>> per_second(1.0), per_second(0.5), per_second(2.0, noun="session")
    ('1 request/s', '0.5 requests/s', '2 sessions/s')
    """
    return with_unit(significant(rate, digits), f"{noun}s/s")
