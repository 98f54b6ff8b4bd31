"""From users to requests per second, and from a mean to a peak."""

from __future__ import annotations

import math

from sizing.errors import ScenarioError
from sizing.workload import finite

YEAR_S = 365 * 86_400.0
PEAK_SHARE = 0.95
"""Share of the seconds of a day in which at most the peak number of requests arrive."""
MOST_MEAN_PER_S = 1e9


def requests_per_s(users: float, requests_per_session: float, session_s: float) -> float:
    """Requests/s of `users` present at once who each send `requests_per_session` in a session of `session_s` seconds.

    >>> requests_per_s(60, 1, 20), requests_per_s(30, 1, 10)
    (3.0, 3.0)
    """
    finite("users", users)
    finite("requests per session", requests_per_session)
    finite("session", session_s, unit=" s")
    return users * requests_per_session / session_s


def per_second(requests_per_year: float) -> float:
    """Average requests/s for this many requests in a year of 365 days.

    >>> round(per_second(30e6 * 10 * 3), 2)
    28.54
    """
    return finite("requests per year", requests_per_year) / YEAR_S


def peak_from_mean(mean_per_s: float, share: float = PEAK_SHARE) -> int:
    """The number of requests not exceeded in a `share` of the seconds, for random arrivals at this mean rate.

    The quantile of the Poisson law: the least whole number whose distribution function reaches `share`. It covers
    the randomness of single seconds only, not the hours of a day: for those multiply the mean by a factor.

    >>> peak_from_mean(200), peak_from_mean(0.5)
    (224, 2)
    """
    from scipy.special import pdtr, pdtrik

    if not 0 < share < 1:
        raise ScenarioError(f"share of the seconds must be between 0 and 1, got {share:g}")
    if finite("mean requests/s", mean_per_s) > MOST_MEAN_PER_S:
        raise ScenarioError(f"mean requests/s must be at most {MOST_MEAN_PER_S:g}, got {mean_per_s:g}")
    if share <= math.exp(-mean_per_s):
        return 0
    count: int = math.ceil(pdtrik(share, mean_per_s))
    return count - 1 if count > 0 and pdtr(count - 1, mean_per_s) >= share else count
