"""Live servers beside their plan: a real Prometheus with metrics that are where the plan has them, or not."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.demand import law_in
from calibration.prometheus import Histogram
from calibration.watch import Planned, Row
from sizing.cli import main
from tests.calibration.prometheus_server import Past, asked, prometheus, ramp
from tests.sizing.test_cli import PLAN, run

SPAN_S, AHEAD_S = 3600.0, 900.0
"""Of the metrics, and how far they reach beyond now: windows stay full however long the tests take."""
EDGES = [*np.geomspace(1e-3, 100.0, 120).round(6).tolist(), math.inf]
"""Narrower than those of engines, so that a verdict is sure."""
COARSE = [0.01, 1.0, 100.0, math.inf]
CASES: dict[str, dict[str, float]] = {
    "as-planned": {},
    "busy": {"rate": 1.5},
    "long": {"isl": 1.5},
    "slow": {"itl": 2.0},
    "waits": {"ttft": 4.0},
    "brief": {"osl": 0.5},
    "coarse": {},
    "idle": {"rate": 0.0},
    "mute": {},
    "few": {"rate": 1e-3, "isl": 1.2},
    "new": {"rate": 1.5},
    "gone": {},
}
"""What differs from the plan, as a factor, by name of the model."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, out = tmp_path_factory.mktemp("plan") / "plan.json", StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main([*PLAN, "--json"])
    path.write_text(out.getvalue())
    return path


@pytest.fixture(scope="module")
def url(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus with metrics of vLLM for each of `CASES`: lognormal latencies through the plan's p50 and p95."""
    planned, past, now_s = Planned.of(plan), Past(), time.time()
    for model, factors in CASES.items():
        labels = {"model_name": model}
        end_s = now_s + (-300 if model == "gone" else AHEAD_S)
        begin_s = now_s - 300 if model == "new" else end_s - SPAN_S
        requests = 0.98 * planned.rate_per_s * factors.get("rate", 1.0) * (end_s - begin_s)
        past.counter("vllm:request_success_total", labels, ramp(requests, begin_s, end_s))
        for side, name in (("isl", "prompt"), ("osl", "generation")):
            mean = (planned.report.given(side) or 0.0) * factors.get(side, 1.0)
            total = requests * mean
            past.histogram(f"vllm:request_{name}_tokens", labels, {1e5: requests, math.inf: 0.0}, total, begin_s, end_s)
        for latency in planned.fleet.latencies:
            if (model, latency.metric) == ("mute", "itl"):
                continue
            name = {
                "ttft": "time_to_first_token",
                "itl": "request_time_per_output_token",
                "e2e": "e2e_request_latency",
            }[latency.metric]
            p50_s, p95_s = latency.p50.value or 0.0, latency.p95.value or 0.0
            sigma = math.log(p95_s / p50_s) / 1.6449
            law = NormalDist(math.log(p50_s * factors.get(latency.metric, 1.0)), max(sigma, 1e-6))
            edges = COARSE if model == "coarse" else EDGES
            shares = [law.cdf(math.log(edge)) if math.isfinite(edge) else 1.0 for edge in edges]
            counts = dict(zip(edges, np.diff([0.0, *shares]) * requests, strict=True))
            mean_s = latency.mean.value or 0.0
            past.histogram(f"vllm:{name}_seconds", labels, counts, requests * mean_s, begin_s, end_s)
    with prometheus(tmp_path_factory.mktemp("prometheus"), str(past)) as url:
        yield url


def watch(plan: Path, url: str, model: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run(["watch", "--plan", str(plan), "--prometheus", url, "--model", model, *words], capsys)


def told(plan: Path, url: str, model: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code, printed, err = watch(plan, url, model, capsys, "--json", *words)
    assert err == ""
    return code, json.loads(printed)


@pytest.mark.parametrize(
    ("model", "code", "above", "said"),
    [
        ("as-planned", 0, set(), ""),
        ("busy", 1, {"requests/s"}, "load: requests/s is +"),
        ("long", 1, {"mean ISL"}, "lengths: mean ISL is +50 % off the plan"),
        ("slow", 1, {"p95 ITL"}, "the step time moved"),
        ("waits", 1, {"p95 TTFT"}, "requests wait, or prompts take longer"),
        ("brief", 0, set(), "lengths: mean OSL is -50 % off the plan"),
        ("coarse", 0, set(), ""),
        ("idle", 0, set(), ""),
    ],
)
def test_what_moved_is_told(
    plan: Path, url: str, capsys: pytest.CaptureFixture[str], model: str, code: int, above: set[str], said: str
) -> None:
    got, found = told(plan, url, model, capsys)
    assert got == code and found["inside"] == (code == 0)
    assert {row["name"] for row in found["rows"] if row["verdict"] == "above"} == above
    assert said in " ".join(found["moved"])
    rows = {row["name"]: row for row in found["rows"]}
    assert found["model"] == model and {"p50 TTFT", "p95 E2E"} <= rows.keys()
    if model == "coarse":  # everything in one bucket: nothing can be said of it
        assert rows["p95 TTFT"]["verdict"] == "unclear"
        assert (rows["p95 TTFT"]["low"], rows["p95 TTFT"]["high"]) == (0.01, 1)
    elif model == "idle":
        assert rows["p95 TTFT"]["verdict"] is None and "No request" in found["notes"][-1]
    else:
        assert all(row["low"] <= row["live"] <= row["high"] for row in found["rows"])


@pytest.mark.parametrize("model", ["new", "gone"])
def test_a_window_that_samples_do_not_reach_across_has_no_rate(
    plan: Path, url: str, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    """Of five minutes half as busy again as planned, fifteen would have half the planned load."""
    code, printed, err = watch(plan, url, model, capsys)
    assert (code, printed) == (2, "") and "begin or end inside the 900s" in err and err.count("\n") == 1
    if model == "new":
        code, found = told(plan, url, model, capsys, "--window", "4m")
        assert code == 1 and found["rows"][0]["verdict"] == "above"


def test_more_replicas_may_carry_more(plan: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    working = Planned.of(plan).working
    code, found = told(plan, url, "busy", capsys, "--replicas", str(math.ceil(2 * working)))
    assert code == 0 and found["inside"]


def test_people_read_one_table(plan: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, err = watch(plan, url, "slow", capsys)
    assert (code, err) == (1, "")
    assert "vLLM, model slow, last 15 minutes" in printed and printed.rstrip().endswith("Outside the plan.")
    assert "p95 ITL" in printed and "above, over the limit" in printed


def test_a_limited_latency_that_servers_do_not_report_is_named(
    plan: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Triton, for one, has neither ITL nor gaps."""
    code, printed, _ = watch(plan, url, "mute", capsys)
    assert code == 0 and "There are no metrics of ITL from vLLM here." in printed
    assert "no metrics of" not in watch(plan, url, "as-planned", capsys)[1]


@pytest.fixture
def for_goodput(plan: Path, tmp_path: Path) -> Path:
    """The plan as if it had a limit on goodput alone."""
    saved = json.loads(plan.read_text())
    of_shares = {"unit": "share", "basis": "estimated"}
    shown = {name: of_shares | {"value": 0.5} for name in ("limit", "predicted", "low", "high", "room")}
    saved["report"]["limits"] = [{"metric": "goodput", "percentile": 99.0, "kept": True, **shown}]
    path = tmp_path / "goodput.json"
    path.write_text(json.dumps(saved))
    return path


NOT_COMPARED = "The plan's limit on 99 % goodput is not compared: histograms have no such share"


def test_a_limit_that_no_histogram_tells_is_named(plan: Path, for_goodput: Path) -> None:
    assert Planned.of(for_goodput).not_compared == [NOT_COMPARED] and not Planned.of(for_goodput).limits
    assert not Planned.of(plan).not_compared


def test_nobody_takes_a_limit_for_kept_that_was_not_looked_at(
    for_goodput: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = told(for_goodput, url, "slow", capsys)
    assert NOT_COMPARED in found["notes"]


def test_limits_of_classes_are_named_as_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Servers' histograms hold the requests of all classes."""
    trace, saved = tmp_path / "trace.csv", tmp_path / "plan.json"
    rows = [f"{number / 2},500,50,{'chat' if number % 3 else 'code'}" for number in range(600)]
    trace.write_text("\n".join(["arrival_s,isl,osl,class", *rows, ""]))
    asked = ["--trace", str(trace), "--tp", "2", "--engine", "vllm", "--ttft", "p95:2s", "--class", "chat:ttft=p90:1s"]
    code, out, _ = run(["plan", "--model", "Qwen/Qwen3-32B", "--gpu", "h200_sxm", *asked, "--json"], capsys)
    assert code == 0
    saved.write_text(out)
    (said,) = Planned.of(saved).not_compared
    assert "p90 TTFT of chat" in said and "p95 TTFT of code" in said and "not compared" in said


def test_the_model_of_the_plan_is_taken_of_several(
    plan: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all models here none is called as the plan's; renamed, one is."""
    code, printed, err = run(["watch", "--plan", str(plan), "--prometheus", url], capsys)
    assert (code, printed) == (2, "") and "it has several models: give --model" in err and err.count("\n") == 1
    renamed = tmp_path / "renamed.json"
    saved = json.loads(plan.read_text())
    saved["report"]["model"] = "busy"
    renamed.write_text(json.dumps(saved))
    code, printed, err = run(["watch", "--plan", str(renamed), "--prometheus", url], capsys)
    assert (code, err) == (1, "") and "model busy" in printed


def test_the_dashboard_asks_what_prometheus_answers(
    plan: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grafana's classic model: panels that do not overlap, with thresholds as lines; every query has an answer."""
    out = tmp_path / "dashboard.json"
    code, _, err = run(["watch", "--plan", str(plan), "--dashboard", str(out)], capsys)
    assert (code, err) == (0, "")
    found, planned = json.loads(out.read_text()), Planned.of(plan)
    assert (found["id"], found["uid"]) == (None, None) and found["schemaVersion"] >= 36
    assert {each["name"] for each in found["templating"]["list"]} == {"datasource", "model"}
    lines: dict[str, set[float]] = {}
    places = set()
    for panel in found["panels"]:
        defaults = panel["fieldConfig"]["defaults"]
        first, *steps = defaults["thresholds"]["steps"]
        assert first["value"] is None and steps == sorted(steps, key=lambda step: step["value"]) and steps
        assert defaults["custom"]["thresholdsStyle"] == {"mode": "line"} and panel["type"] == "timeseries"
        lines[panel["title"]] = {step["value"] for step in steps}
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        places.add((grid["x"], grid["y"]))
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            promql = target["expr"].replace("$model", "as-planned").replace("$__rate_interval", "5m")
            (answer,) = asked(url, promql, time.time())
            assert float(answer["value"][1]) > 0
    assert len(places) == len(found["panels"]) == len({panel["id"] for panel in found["panels"]})
    assert planned.rate_per_s in lines["Requests/s"] and planned.report.given("isl") in lines["Mean ISL"]
    for limit in planned.report.limits:
        assert limit.limit.value in lines[limit.name]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --prometheus, --dashboard, or both"),
        (("--prometheus", "http://127.0.0.1:1"), "does not answer"),
        (("--prometheus", "http://127.0.0.1:1", "--window", "soon"), "--window 'soon': write it as"),
        (("--dashboard", "/nowhere/x.json"), "cannot be written"),
        (("--dashboard", "x.json", "--metrics", "llm"), "Invalid value for '--metrics'"),
    ],
)
def test_a_fault_is_one_line(plan: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, printed, err = run(["watch", "--plan", str(plan), *words], capsys)
    assert (code, printed) == (2, "") and err.startswith("error: ") and err.count("\n") == 1 and said in err


def test_a_plan_without_an_answer_is_none_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"feasible": False, "why": "too slow", "rejected": []}))
    code, _, err = run(["watch", "--plan", str(path), "--dashboard", str(tmp_path / "x.json")], capsys)
    assert code == 2 and "it holds no answer to compare with" in err and err.count("\n") == 1


def test_a_mean_length_is_as_sure_as_lengths_vary(plan: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of some twenty requests of any length says little, though the plan is for one length."""
    assert not Planned.of(plan).report.given("isl_cv")
    _, found = told(plan, url, "few", capsys)
    (isl,) = (row for row in found["rows"] if row["name"] == "mean ISL")
    assert found["requests"] < 30 and isl["live"] == pytest.approx(1.2 * isl["planned"])
    assert isl["verdict"] == "unclear"


def test_means_of_lengths_are_within_their_interval_as_often_as_promised() -> None:
    """90 % of the samples of 200 lognormal lengths, cv 0.8, in vLLM's buckets; wide buckets only add to it."""
    rng, edges = np.random.default_rng(1), [*(1.0 * m * 10**e for e in range(5) for m in (1, 2, 5)), math.inf]
    sigma = math.sqrt(math.log(1 + 0.8**2))
    within = 0
    for lengths in np.ceil(rng.lognormal(math.log(800), sigma, (400, 200))):
        counts, _ = np.histogram(lengths, [0.5, *(edge + 0.5 for edge in edges)])
        law = law_in(Histogram(tuple(edges), tuple(map(float, counts)), float(lengths.sum())))
        error = 1.645 * law.cv * lengths.mean() / math.sqrt(len(lengths))
        within += abs(lengths.mean() - 800 * math.exp(sigma**2 / 2) - 0.5) <= error
    assert 0.88 <= within / 400 <= 0.97


SECONDS = st.floats(1e-3, 1e3)


@given(*[SECONDS] * 5)
def test_a_verdict_is_only_given_where_it_is_sure(
    one: float, two: float, three: float, four: float, five: float
) -> None:
    band_low, band_high = sorted((one, two))
    low, live, high = sorted((three, four, five))
    row = Row("latency", "p95 TTFT", "s", 1.0, band_low, band_high, live, low, high)
    apart = low >= band_high or high <= band_low
    assert (row.verdict in ("above", "below")) == apart
    assert row.verdict != "in" or band_low <= live <= band_high
    assert row.outside == (row.verdict == "above")
