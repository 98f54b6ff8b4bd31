"""Servers' metrics in Prometheus: requests, lengths and latencies of one model over a time, by its HTTP API.

It uses ``query`` and ``query_range`` (https://prometheus.io/docs/prometheus/latest/querying/api/), which Thanos, Mimir
and VictoriaMetrics have too. No answer is executed, and every value in a query is quoted.
"""

from __future__ import annotations

import json
import math
import os
import re
import ssl
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import click

from calibration.page import get
from sizing.cli.options import options
from sizing.errors import ScenarioError, SizingError, quoted

ANSWER_WITHIN_S = 30.0
MOST_SAMPLES = 10_000
"""Most samples of one query: Prometheus refuses more than 11,000."""
LISTED = 5
CHANCE = 0.05
"""Greatest probability that a quantile lies below its interval, and the same above it."""
Labels = Mapping[str, str]


class PrometheusError(SizingError):
    """A Prometheus server cannot be reached or understood, or lacks the metrics asked for."""


# --- The names of each kind of server's metrics


@dataclass(frozen=True, slots=True)
class Family:
    """A histogram: its name without ``_bucket``, the labels that select it, and its `unit` in seconds."""

    name: str
    labels: Labels = field(default_factory=dict)
    unit: float = 1.0


@dataclass(frozen=True, slots=True)
class Exposition:
    """The metrics of one kind of server. Of several families, the first with samples counts.

    `requests`: counter of answered requests; `model_label`: the label with the model. `itl` is the mean gap of each
    request, `gap` that of each token. `tokens`: counters of prompt and output tokens, if the server has no histograms
    of them.
    """

    title: str
    requests: str
    model_label: str
    isl: tuple[Family, ...] = ()
    osl: tuple[Family, ...] = ()
    ttft: tuple[Family, ...] = ()
    itl: tuple[Family, ...] = ()
    gap: tuple[Family, ...] = ()
    e2e: tuple[Family, ...] = ()
    tokens: tuple[str, ...] = ()

    def families(self, what: str) -> tuple[Family, ...]:
        """The families of `what`: isl, osl, ttft, itl, gap or e2e."""
        found: tuple[Family, ...] = getattr(self, what)
        return found

    def means(self, side: str) -> list[tuple[str, str, Labels]]:
        """Pairs of counters whose quotient is the mean isl or osl of a request, each with the labels that select it."""
        if self.tokens:
            return [(dict(zip(("isl", "osl"), self.tokens, strict=True))[side], self.requests, {})]
        return [(f"{family.name}_sum", f"{family.name}_count", family.labels) for family in self.families(side)]

    @property
    def spellings(self) -> tuple[Exposition, ...]:
        """This exposition and, if its names have colons, the same with underscores: Python's client library writes them
        for a Prometheus before version 3, which asks for OpenMetrics."""
        if ":" not in self.requests:
            return (self,)
        names: dict[str, Any] = {
            what: tuple(replace(family, name=family.name.replace(":", "_")) for family in self.families(what))
            for what in ("isl", "osl", "ttft", "itl", "gap", "e2e")
        }
        return self, replace(self, requests=self.requests.replace(":", "_"), **names)


def _of_tokens(kind: str) -> tuple[Family, ...]:
    labels = {"gen_ai_token_type": kind}
    return Family("gen_ai_client_token_usage_token", labels), Family("gen_ai_client_token_usage", labels)


EXPOSITIONS: Final = {
    "vllm": Exposition(
        "vLLM",
        "vllm:request_success_total",
        "model_name",
        isl=(Family("vllm:request_prompt_tokens"),),
        osl=(Family("vllm:request_generation_tokens"),),
        ttft=(Family("vllm:time_to_first_token_seconds"),),
        itl=(Family("vllm:request_time_per_output_token_seconds"),),
        gap=(Family("vllm:inter_token_latency_seconds"), Family("vllm:time_per_output_token_seconds")),  # before 0.11
        e2e=(Family("vllm:e2e_request_latency_seconds"),),
    ),
    "sglang": Exposition(
        "SGLang",
        "sglang:num_requests_total",
        "model_name",
        isl=(Family("sglang:prompt_tokens_histogram"),),
        osl=(Family("sglang:generation_tokens_histogram"),),
        ttft=(Family("sglang:time_to_first_token_seconds"),),
        itl=(
            Family("sglang:request_time_per_output_token_seconds"),
            Family("sglang:time_per_output_token_seconds"),  # of old versions
        ),
        gap=(Family("sglang:inter_token_latency_seconds"),),
        e2e=(Family("sglang:e2e_request_latency_seconds"),),
    ),
    "trtllm": Exposition(
        "TensorRT-LLM",
        "trtllm_request_success_total",
        "model_name",
        ttft=(Family("trtllm_time_to_first_token_seconds"),),
        itl=(Family("trtllm_time_per_output_token_seconds"),),
        e2e=(Family("trtllm_e2e_request_latency_seconds"),),
        tokens=("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
    ),
    "gateway": Exposition(
        "a gateway (OpenTelemetry GenAI)",
        "gen_ai_server_request_duration_seconds_count",
        "gen_ai_request_model",
        isl=_of_tokens("input"),
        osl=_of_tokens("output"),
        ttft=(Family("gen_ai_server_time_to_first_token_seconds"),),
        itl=(Family("gen_ai_server_time_per_output_token_seconds"),),
        e2e=(Family("gen_ai_server_request_duration_seconds"),),
    ),
    "triton": Exposition(
        "Triton",
        "nv_inference_request_success",
        "model",
        ttft=(Family("nv_inference_first_response_histogram_ms", unit=1e-3),),
    ),
}
"""Kinds of servers, those with the most metrics first: if vLLM runs behind Triton or a gateway, vLLM's are used."""


# --- The HTTP API


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server at `url`, http(s)://host:port with or without a path, queried with `headers`.

    Raises PrometheusError for an invalid URL.
    """

    url: str
    headers: Labels = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    within_s: float = ANSWER_WITHIN_S

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            known = False
        if "@" in self.url.partition("://")[2].partition("/")[0] or (not known and "@" in self.url):
            raise PrometheusError("a user or password in the URL would be seen by others: give --api-key-env")
        if not known:
            raise PrometheusError(f"{quoted(self.url)} is not the URL of a server: write http://host:9090")

    def query(self, promql: str, at_s: float) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series at `at_s`; NaN and infinite values too."""
        found = self._result("query", "vector", query=promql, time=f"{at_s:.3f}")
        return [(self._labels(each), self._value(each.get("value"))[1]) for each in found]

    def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[tuple[float, float]]:
        """Times and values of the query's single series, from start to end, both included."""
        found: list[tuple[float, float]] = []
        while start_s <= end_s:
            last_s = min(end_s, start_s + step_s * (MOST_SAMPLES - 1))
            asked = {"query": promql, "start": f"{start_s:.3f}", "end": f"{last_s:.3f}", "step": f"{step_s:g}"}
            for each in self._result("query_range", "matrix", **asked):
                pairs = each.get("values")
                if not isinstance(pairs, list):
                    raise self._garbage("series without values")
                found += [pair for pair in map(self._value, pairs) if math.isfinite(pair[1])]
            start_s = start_s + step_s * MOST_SAMPLES
        return found

    def _result(self, what: str, kind: str, **asked: str) -> list[dict[str, Any]]:
        address = f"{self.url.rstrip('/')}/api/v1/{what}?{urlencode(asked, errors='replace')}"
        try:
            status, body = get(address, self.within_s, self.headers, self.tls)
        except OSError as error:
            raise PrometheusError(f"{self.url}: Prometheus does not answer ({error.strerror or error})") from None
        if status in (401, 403):
            raise PrometheusError(
                f"{self.url}: HTTP {status}, it asks for a key: name its environment variable with --api-key-env"
            )
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            if status != 200:
                raise PrometheusError(f"{self.url}: HTTP {status}: no Prometheus HTTP API there") from None
            raise self._garbage("not JSON") from None
        if isinstance(said, dict) and said.get("status") == "error":
            raise PrometheusError(f"{self.url}: HTTP {status}: it refuses the query ({quoted(said.get('error'), 120)})")
        data = said.get("data") if isinstance(said, dict) else None
        if not isinstance(data, dict) or data.get("resultType") != kind or not isinstance(data.get("result"), list):
            raise self._garbage(f"no {kind}")
        if not all(isinstance(each, dict) for each in data["result"]):
            raise self._garbage("series that are not objects")
        found: list[dict[str, Any]] = data["result"]
        return found

    def _labels(self, series: Mapping[str, Any]) -> dict[str, str]:
        labels = series.get("metric")
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise self._garbage("labels that are not text")
        return labels

    def _value(self, pair: Any) -> tuple[float, float]:
        try:
            at_s, text = pair
            return float(at_s), float(text)
        except (TypeError, ValueError, OverflowError):
            raise self._garbage("a sample that is not a time and a number") from None

    def _garbage(self, what: str) -> PrometheusError:
        return PrometheusError(f"{self.url}: not an answer of Prometheus: {what}")


def selector(labels: Labels) -> str:
    """Labels as a PromQL selector, with values quoted as in JSON.

    >>> selector({"model_name": 'a "b" {c}'})
    '{model_name="a \\\\"b\\\\" {c}"}'
    """
    return f"{{{','.join(f'{name}={json.dumps(value, ensure_ascii=False)}' for name, value in labels.items())}}}"


# --- Histograms


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values by bucket: ascending upper `edges`, the last infinite; `counts` in each; `total`: the sum of all values.

    A bucket contains values above the previous edge, or 0, up to its own edge, as in Prometheus. `counts` need not be
    whole numbers: Prometheus extrapolates to the ends of a time.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None = None

    @classmethod
    def of(cls, cumulative: Mapping[float, float], total: float | None = None) -> Histogram:
        """From cumulative counts by edge. Raises ValueError if there are none."""
        edges = sorted(cumulative)
        if not edges:
            raise ValueError("a histogram needs buckets")
        reached = list(accumulate((cumulative[edge] for edge in edges), max))
        if edges[-1] != math.inf:
            edges, reached = [*edges, math.inf], [*reached, reached[-1]]
        counts = tuple(upper - lower for lower, upper in zip([0.0, *reached], reached, strict=False))
        return cls(tuple(edges), counts, total)

    @property
    def count(self) -> float:
        """The number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The exact mean; None if the sum is unknown or nothing was counted."""
        return self.total / self.count if self.total is not None and self.count > 0 else None

    def quantile(self, share: float) -> float:
        """As PromQL's ``histogram_quantile``: linear within a bucket, and the last finite edge beyond it."""
        place, reached = self._place(share)
        low, high = self._ends(place)
        if math.isinf(high):
            return low
        within = share * self.count - reached
        return low + (high - low) * (within / self.counts[place] if self.counts[place] else 1.0)

    def interval(self, share: float) -> tuple[float, float]:
        """The interval that contains the quantile with 90 % confidence: its buckets may be wide, and of n independent
        values a binomial number is below it. The ends are those of the buckets of two order statistics, each beyond the
        quantile with a chance of 5 % at most (David and Nagaraja 2003, Order Statistics, 7.1)."""
        from scipy.special import bdtr, bdtrik  # a tenth of a second, and only a comparison needs them

        n = max(1, math.floor(self.count))
        first = 0 if bdtr(0, n, share) > CHANCE else math.floor(bdtrik(CHANCE, n, share)) + 1
        last = math.ceil(bdtrik(1 - CHANCE, n, share)) + 1
        low = self._ends(self._place(min(first / n, share))[0])[0] if first else 0.0
        high = math.inf if last > n else self._ends(self._place(max(last / n, share))[0])[1]
        return low, high

    def _place(self, share: float) -> tuple[int, float]:
        """The bucket at a fraction of the values, and the number of values before it."""
        reached = list(accumulate(self.counts))
        place = min(bisect_left(reached, share * self.count), len(reached) - 1)
        return place, reached[place] - self.counts[place]

    def _ends(self, place: int) -> tuple[float, float]:
        return (self.edges[place - 1] if place else 0.0), self.edges[place]


# --- One model's metrics


@dataclass(frozen=True, slots=True)
class Source:
    """The metrics of `model` at `server`, named as in `exposition`, selected by `labels`."""

    server: Prometheus
    exposition: Exposition
    model: str
    labels: Labels

    def requests(self, span_s: float, at_s: float) -> float:
        """Requests answered in the `span_s` seconds up to `at_s`. Raises PrometheusError if a server's are not a
        number, because those of the others would be too few."""
        found = self._rise(self.exposition.requests, {}, span_s, at_s) or 0.0
        if not math.isfinite(found):
            raise PrometheusError(
                f"{self.server.url}: {self.exposition.requests} of {quoted(self.model)} is not a number ({found}) on "
                "at least one server: select the others with --label"
            )
        return found

    def reaches_across(self, span_s: float, at_s: float) -> bool:
        """Whether the first and the last quarter of the `span_s` seconds up to `at_s` have samples. Without them the
        requests are those of a shorter time, and their rate over the whole would be too low."""
        quarter_s = math.ceil(span_s / 4)
        promql = f"count(count_over_time({self.exposition.requests}{selector(self.labels)}[{promql_span(quarter_s)}]))"
        return all(self.server.query(promql, end_s) for end_s in (at_s - span_s + quarter_s, at_s))

    def counts(self, start_s: float, end_s: float, step_s: float) -> list[tuple[float, float]]:
        """Requests answered in each step of `step_s` seconds, by the end of the step."""
        promql = f"sum(increase({self.exposition.requests}{selector(self.labels)}[{promql_span(step_s)}]))"
        return self.server.query_range(promql, start_s + step_s, end_s, step_s)

    def histogram(self, what: str, span_s: float, at_s: float) -> Histogram | None:
        """The histogram of isl, osl (tokens), ttft, itl, gap or e2e (s) over a time; None if nothing was counted, or
        only its last bucket was scraped, which contains any value. Buckets whose counts are not numbers are left out.
        """
        for family in self.exposition.families(what):
            labels = selector({**self.labels, **family.labels})
            promql = f"sum by (le) (increase({family.name}_bucket{labels}[{promql_span(span_s)}]))"
            up_to: dict[float, float] = {}
            for found, count in self.server.query(promql, at_s):
                if not math.isfinite(count):
                    continue
                edge = self._edge(found.get("le", "")) * family.unit
                up_to[edge] = up_to.get(edge, 0.0) + count
            if any(map(math.isfinite, up_to)) and max(up_to.values()) > 0:
                total = self._increase(f"{family.name}_sum", family.labels, span_s, at_s)
                return Histogram.of(up_to, None if total is None else total * family.unit)
        return None

    def mean_tokens(self, side: str, span_s: float, at_s: float) -> float | None:
        """Mean isl or osl of a request, from counters of tokens or the sum of a histogram; None if there are none."""
        for total, count, labels in self.exposition.means(side):
            tokens, requests = (self._increase(name, labels, span_s, at_s) for name in (total, count))
            if tokens and requests:
                return tokens / requests
        return None

    def _increase(self, name: str, labels: Labels, span_s: float, at_s: float) -> float | None:
        found = self._rise(name, labels, span_s, at_s)
        return found if found is not None and math.isfinite(found) else None

    def _rise(self, name: str, labels: Labels, span_s: float, at_s: float) -> float | None:
        promql = f"sum(increase({name}{selector({**self.labels, **labels})}[{promql_span(span_s)}]))"
        found = self.server.query(promql, at_s)
        return found[0][1] if found else None

    def _edge(self, text: str) -> float:
        try:
            edge = float(text)
        except ValueError:
            edge = math.nan
        if math.isnan(edge):
            raise PrometheusError(f"{self.server.url}: a bucket without an upper end: le={quoted(text)}")
        return edge


def source_of(
    server: Prometheus,
    kind: str | None,
    model: str | None,
    labels: Labels,
    span_s: float,
    at_s: float,
    usual: str | None = None,
) -> Source:
    """The metrics of `model`, named as in `kind`. By default, of the only model, or of several the one called `usual`,
    and of the first kind that has it.

    Raises PrometheusError if there is none in that time, or if it could be any of several.
    """
    seen: list[str] = []
    kinds = [EXPOSITIONS[kind]] if kind else EXPOSITIONS.values()
    for exposition in (spelling for each in kinds for spelling in each.spellings):
        label = exposition.model_label
        promql = f"sum by ({label}) (increase({exposition.requests}{selector(labels)}[{promql_span(span_s)}]))"
        names = sorted({found.get(label, "") for found, _ in server.query(promql, at_s)})
        wanted = model or (names[0] if len(names) == 1 else usual)
        if wanted is not None and wanted in names:
            return Source(server, exposition, wanted, {**labels, label: wanted})
        seen += [name for name in names if name not in seen]
        if model is None and names:
            break
    if seen:
        listed = ", ".join(quoted(name) for name in seen[:LISTED])
        which = f"it has no model {quoted(model)}" if model else "it has several models"
        raise PrometheusError(f"{server.url}: {which}: give --model, one of {listed}")
    names_of = ", ".join(each.requests for each in kinds)
    raise PrometheusError(
        f"{server.url}: no samples of {names_of} in the {promql_span(span_s)} asked for: are the servers scraped?"
    )


# --- Times, and the options of commands

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LEAST_S, MOST_S = 1.0, 400 * 86_400.0


def promql_span(seconds: float) -> str:
    """A time in PromQL, in whole seconds."""
    return f"{round(seconds)}s"


def span_of(option: str, text: str) -> float:
    """Seconds in a time such as 15m, 7d or 1h30m. Raises ScenarioError.

    >>> span_of("--window", "1h30m")
    5400.0
    """
    if not re.fullmatch(r"(?:[0-9]{1,9}[smhdw])+", text.strip()):
        raise ScenarioError(f"{option} {quoted(text)}: write it as 30s, 15m, 24h, 7d or 2w")
    seconds = float(sum(int(n) * _UNITS[unit] for n, unit in re.findall("([0-9]+)([smhdw])", text)))
    if not LEAST_S <= seconds <= MOST_S:
        raise ScenarioError(f"{option} {quoted(text)}: it must be 1s to 400d")
    return seconds


def moment_of(option: str, text: str, now_s: float) -> float:
    """Seconds since 1970 of now, -7d, a date in ISO 8601 (UTC unless it names a zone) or seconds since 1970.

    >>> moment_of("--to", "2024-05-10T16:00:00+02:00", 0.0), moment_of("--from", "-1h", 7200.0)
    (1715349600.0, 3600.0)
    """
    text = text.strip()
    if text == "now":
        return now_s
    if text.startswith("-"):
        return now_s - span_of(option, text[1:])
    if re.fullmatch(r"[0-9]{9,10}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ScenarioError(
            f"{option} {quoted(text)}: write now, a time back such as -7d, or a date such as 2024-05-10T14:00"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """Labels from texts NAME=VALUE. Raises ScenarioError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]{0,99}", name):
            raise ScenarioError(f"--label {quoted(text)}: write NAME=VALUE, for instance namespace=prod")
        found[name] = value
    return found


metrics_option = click.option(
    "--metrics",
    type=click.Choice(list(EXPOSITIONS)),
    help="Kind of server whose metrics to read; default: the first of these that has any.",
)
server_options: Callable[[Any], Any] = options(
    click.option("--model", help="Model, by its name in the metrics; default: the only one."),
    metrics_option,
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="NAME=VALUE",
        help="Read only series with this label; may be repeated.",
    ),
    click.option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds a key, which is sent as a bearer token."
    ),
    click.option(
        "--ca-file", type=click.Path(), help="Certificates (PEM) to trust for HTTPS, in addition to the system's."
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0.1, 600),
        default=ANSWER_WITHIN_S,
        show_default=True,
        help="Longest time of one answer of Prometheus, in seconds.",
    ),
)


def server_of(url: str, given: Mapping[str, Any]) -> Prometheus:
    """The server at `url`, with `server_options`. Raises PrometheusError and ScenarioError."""
    headers = {"Accept": "application/json"}
    if (name := given["api_key_env"]) is not None:
        key = os.environ.get(name, "")
        if not key or not key.isascii() or not key.isprintable():
            raise ScenarioError("--api-key-env: that environment variable holds no key: export it, and run again")
        headers["Authorization"] = f"Bearer {key}"
    tls = None
    if given["ca_file"]:
        try:
            tls = ssl.create_default_context()
            tls.load_verify_locations(given["ca_file"])
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise ScenarioError(f"--ca-file {quoted(given['ca_file'])}: not certificates ({said})") from None
    return Prometheus(url, headers, tls, given["timeout_s"])
