"""One reading of a server's Prometheus page: fetched within limits of time and size, and parsed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from calibration.errors import ServerError
from calibration.page import get

ANSWER_WITHIN_S = 3.0
LONGEST_LINE = 4096
PREFIX = "nv_"  # Triton's families, and those of its TensorRT-LLM backend

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Page:
    """Triton's metrics at `at_s` (time.perf_counter): samples by name of the family, without those that are NaN."""

    at_s: float
    families: Mapping[str, tuple[Sample, ...]]

    def by(self, family: str, label: str, **labels: str) -> dict[str, float]:
        """Values by `label`, of the samples that also carry all of `labels`; samples alike are summed."""
        found: dict[str, float] = {}
        for given, value in self._matching(family, labels):
            if label in given:
                found[given[label]] = found.get(given[label], 0.0) + value
        return found

    def values(self, family: str, **labels: str) -> list[float]:
        """Values of the samples that carry all of `labels`, [] where there is none."""
        return [value for _, value in self._matching(family, labels)]

    def total(self, family: str, **labels: str) -> float | None:
        """The sum of `values`; None where there is none."""
        return sum(self.values(family, **labels), 0.0) if self.values(family, **labels) else None

    def _matching(self, family: str, labels: Labels) -> Iterable[Sample]:
        for given, value in self.families.get(family, ()):
            if labels.items() <= given.items():
                yield given, value


def read_page(url: str) -> Page:
    """The page at `url`, as it was when its answer had come.

    Raises ServerError if it cannot be had within 3 s, is larger than 4 MiB, or is not a page of Triton's.
    """
    try:
        status, body = get(url, ANSWER_WITHIN_S)
    except OSError as error:
        raise _missing(url, str(error)) from None
    if status != 200:
        raise _missing(url, f"HTTP {status}")
    return parse_page(body.decode("utf-8", "replace"), url, time.perf_counter())


def _missing(url: str, reason: str) -> ServerError:
    return ServerError(f"{url}: no metrics there ({reason}); correct server.metrics_url in the plan")


def parse_page(text: str, url: str, at_s: float) -> Page:
    """The families of Triton in `text`, the Prometheus text format. Raises ServerError naming `url`."""
    # comments are left out: by their TYPE lines the parser would rename counters
    lines = [line for line in text.splitlines() if line.startswith(PREFIX)]
    if not lines:
        raise ServerError(f"{url}: no metrics of a Triton server there; correct server.metrics_url in the plan")
    families: dict[str, list[Sample]] = {}
    for line in lines:
        if len(line) > LONGEST_LINE:
            raise ServerError(f"{url}: a line of {len(line)} characters is not Triton's: {line[:40]!r}...")
        try:
            read = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except (ValueError, IndexError):  # the parser raises both, for different faults of a line
            raise ServerError(f"{url}: not Prometheus text: {line[:80]!r}") from None
        for sample in read:
            if math.isfinite(sample.value):
                families.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return Page(at_s, {name: tuple(samples) for name, samples in families.items()})
