"""When the clients send: at a rate with exponential or equal gaps, with given gaps in turn, or all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibration.errors import PlanError
from sizing.workload import Seconds

DelayDist = Literal["exponential_dist", "constant"]
OFFLINE = -1.0


@dataclass(frozen=True, slots=True)
class Pacing:
    """The gaps before requests: with the mean ``1 / rate_per_s`` or, if given, `gaps_s` in turn.

    A rate of -1 sends everything at once. Raises PlanError for an impossible rate or gap.
    """

    rate_per_s: float = OFFLINE
    dist: DelayDist = "exponential_dist"
    gaps_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rate_per_s <= 0 and self.rate_per_s != OFFLINE:
            raise PlanError(f"--request_rate {self.rate_per_s:g}: give requests/s above 0, or -1 to send all at once")
        if any(gap_s < 0 for gap_s in self.gaps_s):
            raise PlanError(f"--time_bet_reqs {_words(self.gaps_s)}: a gap in seconds cannot be negative")
        if self.gaps_s and self.rate_per_s != OFFLINE:
            raise PlanError("--time_bet_reqs and --request_rate both say when to send: give one of them")

    @classmethod
    def of(cls, rate_per_s: float | None, dist: DelayDist | None, gaps_s: tuple[float, ...] = ()) -> Pacing:
        """The pacing by the flags, each None if not given. Raises PlanError if they contradict each other."""
        if dist is not None and rate_per_s in (None, OFFLINE):
            raise PlanError(f"--time_delay_dist {dist}: it shapes the gaps of a --request_rate, and none is given")
        if gaps_s and rate_per_s == OFFLINE:
            raise PlanError("--request_rate -1 sends all at once, --time_bet_reqs with gaps: give one of them")
        return cls(OFFLINE if rate_per_s is None else rate_per_s, dist or "exponential_dist", gaps_s)

    @property
    def at_once(self) -> bool:
        """Whether everything is sent at once, without gaps."""
        return self.rate_per_s == OFFLINE and not any(self.gaps_s)

    @property
    def random(self) -> bool:
        """Whether gaps are drawn at random."""
        return self.rate_per_s != OFFLINE and self.dist == "exponential_dist"

    def send_times_s(self, n: int, rng: np.random.Generator) -> Seconds:
        """When `n` requests are due, in seconds from the start, shape (n,); there is a gap before the first one too."""
        return np.cumsum(self._gaps(n, rng))

    def _gaps(self, n: int, rng: np.random.Generator) -> Seconds:
        if self.gaps_s:
            return np.resize(np.array(self.gaps_s, np.float64), n)
        if self.rate_per_s == OFFLINE:
            return np.zeros(n)
        mean_s = 1 / self.rate_per_s
        return np.full(n, mean_s) if self.dist == "constant" else rng.exponential(mean_s, n)

    def __str__(self) -> str:
        if self.gaps_s:
            return f"gaps of {_words(self.gaps_s)} s in turn"
        if self.rate_per_s == OFFLINE:
            return "all at once"
        return f"{self.rate_per_s:g} requests/s, {'equal' if self.dist == 'constant' else 'exponential'} gaps"


def _words(gaps_s: Sequence[float]) -> str:
    return " ".join(f"{gap_s:g}" for gap_s in gaps_s)
