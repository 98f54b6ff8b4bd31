"""Total cost of ownership: what servers cost in a year, per 1,000 requests and per million tokens, beside an API."""

from __future__ import annotations

from dataclasses import dataclass

from learn.course.demand import YEAR_S
from sizing.workload import finite


@dataclass(frozen=True, slots=True)
class ServerPrice:
    """Price of a server, years of depreciation, hosting per year, licence per GPU and year, its GPUs.

    >>> ServerPrice(320_000, 4, 3_000, 4_500).per_year
    119000.0
    """

    price: float
    years: float
    hosting_per_year: float
    licence_per_gpu_year: float
    gpus: int = 8

    def __post_init__(self) -> None:
        for name in ("price", "hosting_per_year", "licence_per_gpu_year"):
            finite(name.replace("_", " "), getattr(self, name), above=-1e-12)
        finite("years", self.years)
        finite("GPUs per server", self.gpus)

    @property
    def per_year(self) -> float:
        """Cost of one server in a year."""
        return self.price / self.years + self.hosting_per_year + self.gpus * self.licence_per_gpu_year


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """Price of an API per million input and per million output tokens.

    >>> ApiPrice(1, 3).per_1000_requests(isl=2000, osl=200)
    2.6
    """

    per_million_in: float
    per_million_out: float

    def __post_init__(self) -> None:
        finite("price of a million input tokens", self.per_million_in, above=-1e-12)
        finite("price of a million output tokens", self.per_million_out, above=-1e-12)

    def per_1000_requests(self, isl: float, osl: float) -> float:
        """Price of 1,000 requests of these lengths."""
        return (isl * self.per_million_in + osl * self.per_million_out) / 1000


@dataclass(frozen=True, slots=True)
class Tco:
    """Yearly cost of the system, and per 1,000 requests when every second is as busy as the peak, and on average."""

    per_year: float
    per_1000_at_peak: float
    per_1000_at_mean: float


def tco(servers: float, price: ServerPrice, peak_per_s: float, mean_per_s: float) -> Tco:
    """Cost of `servers`, a whole number or not, divided by all the requests that they serve.

    Raises ScenarioError for a load or number of servers that is not above 0.
    """
    per_year = finite("servers", servers) * price.per_year
    peak, mean = finite("peak requests/s", peak_per_s), finite("mean requests/s", mean_per_s)
    return Tco(per_year, 1000 * per_year / (peak * YEAR_S), 1000 * per_year / (mean * YEAR_S))


def per_token(per_1000_requests: float, isl: float, osl: float, out_over_in: float) -> tuple[float, float]:
    """Cost of a million input and of a million output tokens, in the ratio of an API's prices.

    >>> tuple(round(price, 3) for price in per_token(0.0907, 2000, 200, 3))
    (0.035, 0.105)
    """
    per_in = 1000 * per_1000_requests / (isl + out_over_in * osl)
    return per_in, out_over_in * per_in
