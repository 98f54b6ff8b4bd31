"""A real Prometheus (`make system` unpacks Debian's), with metrics of the past in it, or scraping live servers."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HOST = "127.0.0.1"
UNPACKED = Path(__file__).parents[2] / ".cache" / "prometheus" / "usr" / "bin"
READY_WITHIN_S = 60.0
Series = Sequence[tuple[float, float]]
"""Times in seconds since 1970 and values of a counter."""


def program(name: str) -> str:
    """Its path; the test is skipped where Prometheus is not installed, and fails where CI should have installed it."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        missing = f"{name} is not here: `make system` unpacks Debian's package prometheus"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return found


@contextmanager
def prometheus(folder: Path, past: str = "", scraped: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a Prometheus with the OpenMetrics text `past`, that scrapes ``host:port`` of `scraped`."""
    server = program("prometheus")
    data, config, port = folder / "data", folder / "prometheus.yml", free_port()
    job = {"job_name": "servers", "scrape_interval": "1s", "scrape_timeout": "1s"}
    targets = {"static_configs": [{"targets": list(scraped)}]}
    config.write_text(json.dumps({"scrape_configs": [job | targets]}))  # YAML too
    data.mkdir()
    if past:
        (folder / "past.om").write_text(past, encoding="utf-8")
        made = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(folder / "past.om"), str(data)]
        subprocess.run(made, check=True, capture_output=True, timeout=120)
    url = f"http://{HOST}:{port}"
    listens = f"--web.listen-address={HOST}:{port}"
    kept = "--storage.tsdb.retention.time=400d"
    with (folder / "log").open("wb") as log:
        words = [server, f"--config.file={config}", f"--storage.tsdb.path={data}", listens, kept]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + READY_WITHIN_S
        while not ready(url):
            assert process.poll() is None and time.monotonic() < until_s, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server((HOST, 0)) as held:
        return int(held.getsockname()[1])


def ready(url: str) -> bool:
    """Whether Prometheus answers queries."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def asked(url: str, promql: str, at_s: float) -> list[dict[str, Any]]:
    """What Prometheus answers to a query, past the code under test."""
    query = urllib.parse.urlencode({"query": promql, "time": at_s})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=30) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    found: list[dict[str, Any]] = said["data"]["result"]
    return found


def ramp(total: float, start_s: float, end_s: float, every_s: float = 15.0) -> Series:
    """A counter that rises evenly from 0 to `total`."""
    steps = round((end_s - start_s) / every_s)
    return [(start_s + every_s * step, total * step / steps) for step in range(steps + 1)]


def escaped(value: str) -> str:
    """A label's value as the exposition formats write it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Past:
    """Metrics of the past as OpenMetrics text, family by family."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, list[str]]] = {}

    def counter(self, name: str, labels: Mapping[str, str], series: Series) -> None:
        """`name` with ``_total``."""
        self._add(name.removesuffix("_total"), "counter", name, labels, series)

    def histogram(
        self,
        name: str,
        labels: Mapping[str, str],
        counts: Mapping[float, float],
        total: float,
        start_s: float,
        end_s: float,
    ) -> None:
        """Values counted by upper edge of their bucket, evenly over a time; `total`: their sum."""
        reached = 0.0
        for edge, count in sorted(counts.items()):
            reached += count
            le = "+Inf" if math.isinf(edge) else repr(float(edge))
            self._add(name, "histogram", f"{name}_bucket", {**labels, "le": le}, ramp(reached, start_s, end_s))
        self._add(name, "histogram", f"{name}_count", labels, ramp(reached, start_s, end_s))
        self._add(name, "histogram", f"{name}_sum", labels, ramp(total, start_s, end_s))

    def _add(self, family: str, kind: str, name: str, labels: Mapping[str, str], series: Series) -> None:
        text = ",".join(f'{label}="{escaped(value)}"' for label, value in labels.items())
        lines = self._families.setdefault(family, (kind, []))[1]
        lines += [f"{name}{{{text}}} {float(value)!r} {at_s:.3f}" for at_s, value in series]

    def __str__(self) -> str:
        parts = ["\n".join([f"# TYPE {family} {kind}", *lines]) for family, (kind, lines) in self._families.items()]
        return "\n".join([*parts, "# EOF", ""])
