"""Demand out of a real Prometheus: rates, lengths and latencies that were put into it come out; faults are one line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.demand import arrivals_of, dispersion, law_in, profile
from calibration.prometheus import EXPOSITIONS, Histogram, Prometheus, PrometheusError, Source, source_of
from sizing.demand_model import Gamma, Mmpp, read_model
from sizing.errors import ScenarioError
from tests.calibration.prometheus_server import HOST, Past, asked, free_port, prometheus, ramp
from tests.sizing.test_cli import run

DAY_S, HOUR_S, EVERY_S = 86_400.0, 3600.0, 30.0
RATES = [1.0 + hour % 6 for hour in range(24)]
"""Requests/s by hour of the day, UTC."""
NASTY = 'm"} or vector(1) # \\ {x='
ISL = {100.0: 100.0, 200.0: 300.0, 500.0: 400.0, 1000.0: 150.0, math.inf: 50.0}
ISL_TOTAL = 100 * 60 + 300 * 160 + 400 * 300 + 150 * 700 + 50 * 1500.0
OSL = {10.0: 0.0, 20.0: 500.0, 50.0: 500.0, math.inf: 0.0}
OSL_TOTAL = 500 * 15 + 500 * 35.0


def a_day(end_s: float) -> list[tuple[float, float]]:
    """A counter over 25 hours that rises by the rate of each hour."""
    at_s = np.arange(end_s - 25 * HOUR_S, end_s + 1, EVERY_S)
    rates = np.array(RATES)[(at_s[:-1] % DAY_S // HOUR_S).astype(int)]
    return list(zip(at_s.tolist(), np.concatenate([[0.0], np.cumsum(rates * EVERY_S)]).tolist(), strict=True))


@pytest.fixture(scope="module")
def end_s() -> float:
    return float(time.time() // EVERY_S * EVERY_S)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, end_s: float) -> Iterator[str]:
    """A Prometheus with a day of vLLM, and half an hour of other servers."""
    past, begin_s = Past(), end_s - 1800
    day = {"model_name": "day"}
    for reason in ("stop", "length"):  # two series of one model
        half = [(at_s, value / 2) for at_s, value in a_day(end_s)]
        past.counter("vllm:request_success_total", day | {"finished_reason": reason}, half)
    for name, counts, total in (("prompt", ISL, ISL_TOTAL), ("generation", OSL, OSL_TOTAL)):
        past.histogram(f"vllm:request_{name}_tokens", day, counts, total, begin_s, end_s)
        past.histogram(f"sglang:{name}_tokens_histogram", {"model_name": "sg"}, counts, total, begin_s, end_s)
        kind = {"gen_ai_token_type": {"prompt": "input", "generation": "output"}[name], "gen_ai_request_model": "gw"}
        past.histogram("gen_ai_client_token_usage_token", kind, counts, total, begin_s, end_s)
        past.histogram(f"vllm:request_{name}_tokens", {"model_name": NASTY}, counts, total, begin_s, end_s)
    past.counter("vllm:request_success_total", {"model_name": NASTY}, ramp(700, begin_s, end_s))
    past.histogram("vllm:time_to_first_token_seconds", day, {0.1: 90.0, 1.0: 10.0, math.inf: 0.0}, 10.0, begin_s, end_s)
    for name in ("prompt_tokens_histogram", "time_to_first_token_seconds"):
        past.histogram(f"sglang:{name}", {"model_name": "flat"}, {math.inf: 1000.0}, 320_000.0, begin_s, end_s)
    for model in ("sg", "flat"):
        past.counter("sglang:num_requests_total", {"model_name": model}, ramp(1000, begin_s, end_s))
    seconds, gateway = {0.1: 0.0, 1.0: 1000.0, math.inf: 0.0}, {"gen_ai_request_model": "gw"}
    past.histogram("gen_ai_server_request_duration_seconds", gateway, seconds, 500.0, begin_s, end_s)
    past.counter("trtllm_request_success_total", {"model_name": "rt"}, ramp(1000, begin_s, end_s))
    past.counter("trtllm_prompt_tokens_total", {"model_name": "rt"}, ramp(320_000, begin_s, end_s))
    past.counter("vllm:request_success_total", {"model_name": "broken", "pod": "a"}, ramp(1000, begin_s, end_s))
    unknown = [(at_s, math.nan) for at_s, _ in ramp(1000, begin_s, end_s)]
    past.counter("vllm:request_success_total", {"model_name": "broken", "pod": "b"}, unknown)
    whole = ramp(1800, begin_s, end_s)
    for pod, series in (("a", whole), ("b", [*whole[:30], *whole[-30:]])):
        past.counter("vllm:request_success_total", {"model_name": "unseen", "pod": pod}, series)
    # Triton's counters have no _total, which OpenMetrics wants of a counter; a gauge reads alike
    past._add("nv_inference_request_success", "gauge", "nv_inference_request_success", {"model": "tr"},
              ramp(1000, begin_s, end_s))  # fmt: skip
    with prometheus(tmp_path_factory.mktemp("prometheus"), str(past)) as url:
        yield url


def demand(url: str, end_s: float, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    asked_for = [] if "--from" in words else ["--from", f"{end_s - 1800:.0f}"]
    return run(["demand", "prometheus", url, "--to", f"{end_s:.0f}", "--step", "2m", *asked_for, *words], capsys)


def test_a_day_comes_out_as_it_went_in(
    url: str, end_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trace = tmp_path / "demand.json", tmp_path / "trace.csv"
    words = ("--model", "day", "--from", f"{end_s - DAY_S:.0f}", "--out", str(out), "--json")
    code, printed, err = demand(url, end_s, capsys, *words)
    assert (code, err) == (0, "")
    model, told = read_model(out), json.loads(printed)
    in_two_hours = (max(RATES) - min(RATES)) * 120 / HOUR_S  # of a step, wherever the minutes of its hour put it
    assert model.rates_per_s == pytest.approx(RATES, abs=in_two_hours)
    assert told["requests"] == pytest.approx(sum(RATES) * HOUR_S, rel=0.01)
    assert (model.arrivals.kind, model.correlation) == ("poisson", 0.0)
    assert model.isl.mean == pytest.approx(ISL_TOTAL / 1000, rel=0.001)
    assert model.osl.mean == pytest.approx(OSL_TOTAL / 1000, rel=0.001)
    assert told["latencies"]["ttft"]["p50_s"] == pytest.approx(0.1 * 50 / 90)
    code, printed, err = run(["demand", "draw", str(out), "--days", "0.5", "--out", str(trace)], capsys)
    assert (code, err) == (0, "") and len(trace.read_text().splitlines()) > 100_000


def test_buckets_keep_their_shares(url: str, end_s: float) -> None:
    source = source_of(Prometheus(url), None, "day", {}, 1800, end_s)
    found = source.histogram("isl", 1800, end_s)
    assert found is not None
    law = law_in(found)
    lengths = law.at((np.arange(100_000) + 0.5) / 100_000)
    for edge in (100, 200, 500, 1000):
        wanted = sum(count for upper, count in ISL.items() if upper <= edge) / 1000
        assert (lengths <= edge).mean() == pytest.approx(wanted, abs=0.002)


@pytest.mark.parametrize(
    ("model", "title"), [("sg", "SGLang"), ("gw", "a gateway (OpenTelemetry GenAI)"), (NASTY, "vLLM")]
)
def test_every_kind_of_server_is_found_by_its_model(
    url: str, end_s: float, capsys: pytest.CaptureFixture[str], model: str, title: str
) -> None:
    """A name that would be PromQL of its own is a name."""
    code, printed, err = demand(url, end_s, capsys, "--model", model, "--json")
    assert (code, err) == (0, "")
    told = json.loads(printed)
    assert (told["metrics"], told["served_model"]) == (title, model)
    assert told["requests"] == pytest.approx(700 if model == NASTY else 1000, rel=0.01)


@pytest.mark.parametrize("what", ["isl", "osl", "ttft", "itl", "gap", "e2e"])
def test_sglang_has_each_histogram_under_one_of_its_names(what: str) -> None:
    """On a page of SGLang 0.5.23."""
    page = (Path(__file__).parent / "load" / "sglang" / "metrics.txt").read_text()
    families = EXPOSITIONS["sglang"].families(what)
    assert [f"\n{family.name}_count{{" in page for family in families].count(True) == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("rt", "TensorRT-LLM has no histogram of ISL (their mean is 320): give --isl-law"),
        ("tr", "Triton has no histogram of ISL: give --isl-law"),
        ("flat", "SGLang has no histogram of ISL (their mean is 320): give --isl-law"),
    ],
)
def test_servers_without_lengths_say_so(
    url: str, end_s: float, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    code, _, err = demand(url, end_s, capsys, "--model", model)
    assert code == 2 and said in err and err.count("\n") == 1
    laws = ("--isl-law", "uniform:100-300", "--osl-law", "points:50")
    code, printed, err = demand(url, end_s, capsys, "--model", model, *laws)
    assert (code, err) == (0, "") and "ISL 200 tokens" in printed and "independent" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "nobody"), "it has no model 'nobody': give --model, one of 'broken', 'day'"),
        ((), "it has several models: give --model, one of 'broken', 'day', 'm\""),
        (("--metrics", "sglang", "--label", "namespace=none"), "no samples of sglang:num_requests_total in the 1800s"),
        (("--from", "2020-01-01", "--to", "2020-01-02", "--model", "day"), "no samples of vllm:request_success_total"),
        (("--model", "day", "--step", "20s"), "a --step of two scrapes or more"),
        (("--model", "broken"), "vllm:request_success_total of 'broken' is not a number (nan) on at least one server"),
        (("--model", "day", "--from", "-1x"), "--from '1x': write it as"),
        (("--model", "day", "--from", "soon"), "--from 'soon': write now"),
        (("--model", "day", "--from", "now"), "--from must be two steps"),
        (("--model", "day", "--from", "0001-01-01"), "--from must be 400 days before --to at most"),
        (("--model", "day", "--label", "a-b=c"), "--label 'a-b=c': write NAME=VALUE"),
        (("--model", "day", "--arrivals", "gamma"), "--arrivals 'gamma': gamma.cv: is missing"),
        (("--model", "day", "--isl-law", "lognormal"), "--isl-law 'lognormal'"),
        (("--model", "day", "--api-key-env", "NO_SUCH_KEY"), "--api-key-env: that environment variable holds no key"),
        (("--model", "day", "--ca-file", "/nowhere"), "--ca-file '/nowhere': not certificates"),
    ],
)
def test_a_fault_is_one_line(
    url: str, end_s: float, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, printed, err = demand(url, end_s, capsys, *words)
    assert (code, printed) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert said in err


def test_requests_while_a_server_is_not_scraped_are_missed_and_it_is_said(
    url: str, end_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers with 1,800 requests each, one of them unseen for 61 of the 121 scrapes in half an hour: its counter
    gains half of its 1,800 meanwhile, a quarter of all."""
    laws = ("--isl-law", "points:100", "--osl-law", "points:50", "--json")
    said = {}
    for words in ((), ("--label", "pod=a")):
        code, printed, err = demand(url, end_s, capsys, "--model", "unseen", *laws, *words)
        assert (code, err) == (0, "")
        said[words] = " ".join(json.loads(printed)["notes"])
    assert "of the 3,600 requests that the counters gained over the whole time are in no step" in said[()]
    assert float(said[()].split(" %")[0]) == pytest.approx(25, abs=3)
    assert "in no step" not in said["--label", "pod=a"]


def test_of_a_histogram_whose_last_bucket_alone_is_scraped_no_quantile_is_known(url: str, end_s: float) -> None:
    source = source_of(Prometheus(url), None, "flat", {}, 1800, end_s)
    buckets = 'sum by (le) (increase(sglang:time_to_first_token_seconds_bucket{model_name="flat"}[1800s]))'
    (theirs,) = asked(url, f"histogram_quantile(0.5, {buckets})", end_s)
    assert theirs["value"][1] == "NaN" and source.histogram("ttft", 1800, end_s) is None


def test_quantiles_are_those_of_prometheus(url: str, end_s: float) -> None:
    source = source_of(Prometheus(url), None, "day", {}, 1800, end_s)
    for what, name in (("isl", "vllm:request_prompt_tokens"), ("ttft", "vllm:time_to_first_token_seconds")):
        found = source.histogram(what, 1800, end_s)
        assert found is not None
        for share in (0.05, 0.5, 0.9, 0.95, 0.99):
            buckets = f'sum by (le) (increase({name}_bucket{{model_name="day"}}[1800s]))'
            (theirs,) = asked(url, f"histogram_quantile({share}, {buckets})", end_s)
            assert found.quantile(share) == pytest.approx(float(theirs["value"][1]))


def test_a_live_exposition_is_scraped(tmp_path: Path) -> None:
    """A server's own process, with the client library that engines use, scraped each second."""
    port = free_port()
    with prometheus(tmp_path, scraped=[f"{HOST}:{port}"]) as url:
        process = subprocess.Popen([sys.executable, "-c", LIVE, str(port)])
        try:
            source = first_source(Prometheus(url))
            found = source.histogram("osl", 60, time.time())
        finally:
            process.kill()
            process.wait()
    assert source.model == "live" and found is not None
    assert found.mean == pytest.approx(30.0) and found.quantile(0.5) == pytest.approx(35.0)


def first_source(server: Prometheus) -> Source:
    """The metrics of the only model, as soon as requests of it are there."""
    until_s = time.monotonic() + 60
    while True:
        try:
            source = source_of(server, "vllm", None, {}, 60, time.time())
            if source.requests(60, time.time()) > 0:
                return source
        except PrometheusError:
            assert time.monotonic() < until_s
        time.sleep(0.2)


LIVE = """
import sys, time
from prometheus_client import Counter, Histogram, start_http_server
requests = Counter("vllm:request_success", "", ["model_name", "finished_reason"]).labels("live", "stop")
tokens = Histogram("vllm:request_generation_tokens", "", ["model_name"], buckets=(20, 50, 100)).labels("live")
start_http_server(int(sys.argv[1]), "127.0.0.1")
while True:
    requests.inc(5)
    for _ in range(5):
        tokens.observe(30)
    time.sleep(0.2)
"""


# --- What is no Prometheus

ANSWERS: dict[str, tuple[int, bytes, str]] = {
    "unauthorized": (401, b"no", "HTTP 401, it asks for a key: name its environment variable with --api-key-env"),
    "page": (200, b"<html>", "not an answer of Prometheus: not JSON"),
    "missing": (404, b"not found", "HTTP 404: no Prometheus HTTP API there"),
    "list": (200, b"[1, 2]", "not an answer of Prometheus: no vector"),
    "deep": (200, b"[" * 100_000, "not an answer of Prometheus: not JSON"),
    "kind": (200, b'{"status": "success", "data": {"resultType": "scalar", "result": []}}', "no vector"),
    "series": (200, b'{"status": "success", "data": {"resultType": "vector", "result": [3]}}', "not objects"),
    "labels": (
        200,
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"a": 1}, "value": [1, "2"]}]}}',
        "labels that are not text",
    ),
    "sample": (
        200,
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1]}]}}',
        "a sample that is not a time and a number",
    ),
    "endless": (
        200,
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [%s, "1"]}]}}'
        % (b"1" * 400),
        "a sample that is not a time and a number",
    ),
    "refused": (400, b'{"status": "error", "error": "too\\nmany\\u001b[31m samples"}', "refuses the query ('too many"),
    "half": (200, b"", "the answer is incomplete"),
    "slow": (200, b"", "timed out"),
}


class Odd(BaseHTTPRequestHandler):
    """Answers /NAME/api/... as `ANSWERS` has it; `half` and `slow` promise more than they send."""

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        status, body, _ = ANSWERS[name]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + 10 * (name in ("half", "slow"))))
        self.end_headers()
        self.wfile.write(body)
        if name == "slow":
            threading.Event().wait(2.0)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    with ThreadingHTTPServer((HOST, 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_no_prometheus_is_one_line(odd: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demand", "prometheus", f"{odd}/{name}", "--from", "-1h", "--timeout", "0.5"]
    code, printed, err = run(words, capsys)
    assert (code, printed) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert ANSWERS[name][2] in err and "\x1b" not in err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("prometheus:9090", "is not the URL of a server"),
        ("ftp://host", "is not the URL of a server"),
        ("http://host:port", "is not the URL of a server"),
        ("http://me:secret@host", "would be seen by others"),
        (f"http://{HOST}:1", "does not answer"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, err = run(["demand", "prometheus", url, "--from", "-1h"], capsys)
    assert (code, printed) == (2, "") and said in err and err.count("\n") == 1 and "secret" not in err


# --- Laws

COUNTS = st.lists(st.integers(0, 1000), min_size=2, max_size=12).filter(lambda counts: sum(counts) > 0)


@given(COUNTS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_quantile_is_in_its_interval_and_rises(counts: list[int], one: float, other: float) -> None:
    edges = [2.0**number for number in range(len(counts) - 1)] + [math.inf]
    found = Histogram(tuple(edges), tuple(map(float, counts)))
    low, high = found.interval(one)
    assert low <= found.quantile(one) <= high
    assert found.quantile(min(one, other)) <= found.quantile(max(one, other))


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [20, 300])
def test_a_quantile_is_outside_its_interval_as_rarely_as_promised(share: float, count: int) -> None:
    """Of uniform values, whose quantile is the share: 5 % of the samples on either side, within what 1,000 tell."""
    edges = np.linspace(0, 1, 1_001)
    values = np.random.default_rng(1).random((1_000, count))
    samples = [Histogram((*edges[1:], math.inf), (*map(float, np.histogram(each, edges)[0]), 0.0)) for each in values]
    low, high = np.array([sample.interval(share) for sample in samples]).T
    assert max((low > share).mean(), (high < share).mean()) < 0.064


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200))
def test_a_law_keeps_shares_of_buckets_and_the_mean_as_far_as_they_allow(lengths: list[int]) -> None:
    """Of lengths within finite buckets: shares are exact, and the mean is the recorded one or the nearest that half a
    bucket to either side allows."""
    edges = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0]
    counts, _ = np.histogram(np.array(lengths) - 0.5, [0.0, *edges])
    found = Histogram((*edges, math.inf), (*counts.astype(float).tolist(), 0.0), float(sum(lengths)))
    law = law_in(found)
    for edge in edges:
        share = sum(weight for _, high, weight in law.cells if high <= edge) / sum(cell[2] for cell in law.cells)
        assert share == pytest.approx(float((np.array(lengths) <= edge).mean()), abs=1e-9)
    flat = law_in(Histogram(found.edges, found.counts)).mean
    recorded = float(np.mean(lengths))
    assert abs(law.mean - recorded) <= abs(flat - recorded) + 1e-6


def test_hours_without_samples_make_a_profile_that_needs_none() -> None:
    step_s = 600.0
    whole = [(at_s, 60.0) for at_s in np.arange(step_s, 2 * DAY_S + 1, step_s)]
    rates, notes = profile(whole, step_s)
    assert rates == pytest.approx([0.1] * 24) and not notes
    gap = [(at_s, count) for at_s, count in whole if at_s % DAY_S > 2 * HOUR_S]
    rates, notes = profile(gap, step_s)
    assert rates == pytest.approx([0.1]) and "flat" in notes[0]
    assert len(profile([(at_s, 1.0) for at_s in np.arange(step_s, 15 * DAY_S, step_s)], step_s)[0]) == 168


@pytest.mark.parametrize("step_s", [60, 300, 1800])
def test_a_rate_that_changes_on_the_hour_is_no_burst(step_s: int) -> None:
    """Poisson counts of a week, the rate one or three by turns; a step is known by its end, which may be the hour's."""
    ends_s = np.arange(step_s, 7 * DAY_S + 1, step_s)
    counts = np.random.default_rng(1).poisson(step_s * np.where((ends_s - 1) // 3600 % 2, 3, 1))
    found = dispersion(list(zip(ends_s.tolist(), counts.tolist(), strict=True)), step_s)
    free = len(counts) * (1 - step_s / HOUR_S)
    assert found == pytest.approx(1, abs=5 * math.sqrt(2 / free))


def test_arrivals_are_told_by_name() -> None:
    assert arrivals_of("gamma:cv=2") == Gamma(2.0)
    assert arrivals_of("mmpp:low_factor=0.5,low_s=120,high_s=30") == Mmpp(0.5, 120.0, 30.0)
    for text in ("weibull", "gamma:cv=x", "gamma:cv=1,x=2", "mmpp:low_s=1"):
        with pytest.raises(ScenarioError, match="--arrivals"):
            arrivals_of(text)


def test_every_exposition_counts_requests_of_a_model() -> None:
    for exposition in EXPOSITIONS.values():
        assert exposition.requests and exposition.model_label and exposition.ttft
