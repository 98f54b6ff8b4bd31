"""The usual method: its worked example, its arithmetic, where it errs, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincc

from learn.course import (
    ApiPrice,
    Goal,
    ServerPrice,
    best,
    example,
    peak_from_mean,
    per_token,
    requests_per_s,
    size,
    tco,
    throughput,
)
from learn.course.beside import Terms, compared, ours
from learn.course.corrections import corrections
from sizing.cli import main
from sizing.errors import ScenarioError
from sizing.plans import NoFeasiblePlan
from sizing.points import Point

SERVER = ServerPrice(320_000, 4, 3_000, 4_500)


def test_the_call_centre() -> None:
    assert round(example.mean_per_s(), 2) == 28.54
    assert round(example.peak_per_s(), 2) == 199.77
    tight, loose = (size(sizing.throughput, 200) for sizing in example.sizings())
    assert (round(tight.servers, 1), tight.gpus, tight.throughput.concurrency) == (4.8, 39, 10)
    assert (round(loose.servers, 1), loose.gpus, loose.throughput.concurrency) == (2.8, 23, 25)
    assert round(tight.throughput.per_gpus(8), 1) == 41.6 and round(loose.throughput.per_gpus(8), 1) == 70.7
    assert (tight.whole_servers, loose.whole_servers) == (5, 3)
    assert [sizing.gpus for sizing in example.sizings()] == [39, 23], "at 199.77 as at 200"


def test_the_published_points_keep_littles_law() -> None:
    assert all(math.isclose(point.little or 0, 1, abs_tol=0.04) for point in example.measured())


def test_the_course_s_costs() -> None:
    assert SERVER.per_year == 119_000
    at_peak = tco(200 / 41.6, SERVER, 200, example.mean_per_s())
    assert round(at_peak.per_year) == 572_115
    assert round(at_peak.per_1000_at_peak, 4) == 0.0907
    assert round(at_peak.per_1000_at_mean, 3) == 0.636
    assert round(tco(5, SERVER, 200, example.mean_per_s()).per_1000_at_mean, 3) == 0.661
    assert ApiPrice(1, 3).per_1000_requests(2000, 200) == 2.6
    assert [round(price, 3) for price in per_token(at_peak.per_1000_at_peak, 2000, 200, 3)] == [0.035, 0.105]


def test_one_of_each_is_written_in_the_singular() -> None:
    point = replace(example.sizings()[0].throughput.point, tp=1)
    told = size(throughput(point), peak_per_s=1.0, gpus_per_server=1).sentence
    assert told.endswith("per 1 GPU = 0.19 servers: 1 instance on 1 GPU, 1 whole server")


def test_where_the_course_errs_both_figures_are_told() -> None:
    tokens, concurrency, cost, price, median = corrections()
    assert ("37.18" in tokens.course, "3 GPUs" in tokens.course) == (True, True)
    assert ("31.79" in tokens.ours, "4 GPUs" in tokens.ours) == (True, True)
    assert concurrency.course.startswith("100 (1,024 ms)") and concurrency.ours.startswith("50 (630 ms)")
    assert "4 GPUs" in concurrency.ours
    assert cost.course == "0.436" and all(figure in cost.ours for figure in ("0.0907", "0.636", "0.661"))
    assert (price.course, price.ours) == ("0.17 and 0.50", "0.035 and 0.105")
    assert (median.course, median.ours) == ("16.27", "62.0")


PEAKS = {200: 224, 0.5: 2, 1: 3, 5: 9, 10: 15, 20: 28, 50: 62, 100: 117}


@pytest.mark.parametrize(("mean", "peak"), PEAKS.items())
def test_the_peak_of_a_mean(mean: float, peak: int) -> None:
    assert peak_from_mean(mean) == peak


@settings(max_examples=200)
@given(st.floats(0.001, 1e5), st.floats(0.01, 0.999))
def test_the_peak_is_the_quantile_of_the_poisson_law(mean: float, share: float) -> None:
    """By definition: the least count whose distribution function Q(count + 1, mean) reaches the share, to rounding."""
    count = peak_from_mean(mean, share)
    assert gammaincc(count + 1, mean) >= share * (1 - 1e-9)
    assert count == 0 or gammaincc(count, mean) < share * (1 + 1e-9)


@pytest.mark.parametrize("mean", [0.0, -1.0, math.inf, math.nan, 1e12])
def test_a_mean_that_no_load_has_is_refused(mean: float) -> None:
    with pytest.raises(ScenarioError, match="mean requests/s"):
        peak_from_mean(mean)


@given(st.floats(1, 1e6), st.floats(0.1, 100), st.floats(1, 1e5))
def test_users_to_requests_is_littles_law(users: float, each: float, session_s: float) -> None:
    rate = requests_per_s(users, each, session_s)
    assert rate * session_s / each == pytest.approx(users)


def measured(concurrency: float, per_s: float, tp: int = 1, **fields: object) -> Point:
    known = {"model": "M", "precision": "fp8", "gpu": "H100", "isl": 2000, "osl": 200, "load_kind": "concurrency"}
    return Point(**{**known, "tp": tp, "load_value": concurrency, "requests_per_s": per_s, **fields})  # type: ignore[arg-type]


@given(st.integers(1, 8), st.floats(0.1, 100), st.integers(1, 500), st.floats(0.1, 1e4))
def test_units_agree_and_instances_carry_the_peak(tp: int, per_s: float, concurrency: int, peak: float) -> None:
    sizing = size(throughput(measured(concurrency, per_s, tp)), peak)
    unit = sizing.throughput
    assert unit.per_gpu * tp == pytest.approx(unit.per_instance) and unit.per_gpus(8) == pytest.approx(8 * per_s / tp)
    assert unit.concurrency_per_gpus(8) == pytest.approx(8 * concurrency / tp)
    assert sizing.gpus % tp == 0 and sizing.instances * per_s >= peak * (1 - 1e-12)
    assert (sizing.instances - 1) * per_s < peak
    assert sizing.whole_servers * 8 >= sizing.gpus and sizing.servers <= sizing.gpus / 8 * (1 + 1e-12)


def test_the_best_point_is_best_per_gpu_and_keeps_every_limit() -> None:
    slow = measured(100, 30, ttft_mean_s=2.0, e2e_mean_s=3.0)
    two = measured(40, 24, tp=2, ttft_mean_s=0.2, e2e_mean_s=2.0)
    one = measured(20, 10, ttft_mean_s=0.3, e2e_mean_s=2.0)
    void = measured(20, 99, ttft_mean_s=0.1, verdict="errors")
    open_loop = replace_load(measured(20, 99, ttft_mean_s=0.1))
    points = [slow, two, one, void, open_loop, measured(5, 99)]
    assert best(points, [Goal.parse("ttft", "500ms")]).point is two
    assert best(points, [Goal.parse("ttft", "5s")]).point is slow
    assert best(points, [Goal.parse("ttft", "5s"), Goal.parse("e2e", "2s")]).point is two
    with pytest.raises(NoFeasiblePlan, match=r"nearest is M fp8, H100 TP2.*200 ms"):
        best(points, [Goal.parse("ttft", "50ms")])
    with pytest.raises(NoFeasiblePlan, match="p95 TTFT was not measured"):
        best(points, [Goal.parse("ttft", "p95:5s")])
    with pytest.raises(ScenarioError, match="no concurrency"):
        throughput(open_loop)


def replace_load(point: Point) -> Point:
    return replace(point, load_kind="poisson_rate")


def test_our_planner_answers_the_same_question_with_percentiles_and_margins() -> None:
    goal = Goal.parse("ttft", "500ms")
    sizing = size(best(example.measured(), [goal]), 100)
    bare, safe = Terms(headroom=0, spare=0), Terms()
    few, more = (ours(example.measured(), sizing, [goal], terms) for terms in (bare, safe))
    assert few.answer.predicted.ttft.p95_s <= 0.5 and few.question.sla.limits[0].percentile == 95
    assert few.answer.candidate.precision == sizing.throughput.point.precision
    assert few.answer.working <= more.answer.working and more.answer.spare == 1
    told = compared(sizing, more, safe)
    assert f"{sizing.gpus} GPUs" in told and f"{more.answer.gpus} GPUs" in told and "20 % headroom" in told


FILE = str(example.FILE)
BY_HAND = {
    "model": "Llama3-8B",
    "precision": "fp8",
    "tp": "1",
    "isl": "2000",
    "osl": "200",
    "concurrency": "10",
    "requests-per-s": "5.1954",
}


def command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["course", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def given_by_hand(**changes: str | None) -> list[str]:
    options = {**BY_HAND, **changes}
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]


@pytest.mark.parametrize(
    ("name", "value"), [("isl", "1e300"), ("tp", "9" * 23), ("model", ""), ("requests-per-s", "1e-320")]
)
def test_what_cannot_have_been_measured_is_one_line(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command([*given_by_hand(**{name: value}), "--peak", "10"], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")


def test_the_example_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(["--example"], capsys)
    assert (code, err) == (0, "")
    for told in ("28.54", "199.77", "4.8 servers", "39 GPUs", "2.8 servers", "23 GPUs", "0.436", "0.0907"):
        assert told in out
    assert json.loads(command(["--example", "--json"], capsys)[1])["sizings"][0]["gpus"] == 39


def test_a_throughput_by_hand_needs_its_six_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command([*given_by_hand(), "--peak", "200", "--json"], capsys)
    told = json.loads(out)
    assert code == 0 and told["gpus"] == 39 and told["ours"] is None
    assert {name: told["throughput"][name] for name in ("model", "precision", "isl", "osl", "concurrency", "tp")} == {
        "model": "Llama3-8B",
        "precision": "fp8",
        "isl": 2000,
        "osl": 200,
        "concurrency": 10,
        "tp": 1,
    }
    for name in BY_HAND:
        code, _, err = command([*given_by_hand(**{name: None}), "--peak", "200"], capsys)
        assert code == 2 and f"--{name}" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("load", "peak"),
    [
        (["--peak", "200"], 200),
        (["--mean", "200"], 224),
        (["--mean", "20", "--peak-factor", "7"], 140),
        (["--per-year", "900000000", "--peak-factor", "1"], 900e6 / 365 / 86_400),
        (["--users", "4000", "--requests-per-session", "30", "--session-s", "600", "--peak-factor", "1"], 200),
    ],
)
def test_the_load_may_be_said_in_five_ways(load: list[str], peak: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(command([*given_by_hand(), *load, "--json"], capsys)[1])["peak_per_s"] == pytest.approx(peak)


def test_costs_and_an_api_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    prices = "--server-price 320000 --years 4 --hosting 3000 --licence 4500 --api 1,3".split()
    options = [*given_by_hand(**{"requests-per-s": "5.2"}), "--mean", "28.538813", "--peak-factor", "7", *prices]
    cost = json.loads(command([*options, "--json"], capsys)[1])["cost"]
    assert cost["api_per_1000"] == 2.6 and round(cost["whole"]["per_1000_at_mean"], 3) == 0.661
    assert "595,000 a year" in command(options, capsys)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("--peak 2", 2, "missing"),
        (f"--points {FILE} --peak 2", 2, "at least one limit"),
        (f"--points {FILE} --ttft 300ms", 2, "load once"),
        (f"--points {FILE} --ttft 300ms --peak 2 --mean 1", 2, "load once"),
        (f"--points {FILE} --ttft soon --peak 2", 2, "--ttft"),
        (f"--points {FILE} --ttft p12:1s --peak 2", 2, "p95"),
        (f"--points {FILE} --ttft 300ms --peak -2", 2, "peak"),
        (f"--points {FILE} --ttft 300ms --peak 2 --model X", 2, "no point"),
        (f"--points {FILE} --ttft 300ms --users 5", 2, "--session-s"),
        (f"--points {FILE} --ttft 300ms --mean 2 --peak-factor 0.5", 2, "--peak-factor"),
        ("--points none.csv --ttft 300ms --peak 2", 2, "no such points file"),
        ("--example --ttft 300ms", 2, "--ttft does not go with --example"),
        ("--peak 2 --ttft 300ms", 2, "--ttft goes with --points"),
        ("--peak 2 --headroom 0.1", 2, "--headroom goes with --points"),
        (f"--points {FILE} --ttft 300ms --peak 2 --requests-per-s 5", 2, "--requests-per-s does not go with --points"),
        (f"--points {FILE} --ttft 300ms --peak 2 --peak-factor 2", 2, "--peak-factor does not go with --peak"),
        (f"--points {FILE} --ttft 300ms --peak 2 --session-s 9", 2, "--session-s goes with --users"),
        (f"--points {FILE} --ttft 300ms --peak 2 --years 5", 2, "--years goes with --server-price"),
        (f"--points {FILE} --ttft 1ms --peak 2", 3, "nearest"),
    ],
)
def test_bad_input_is_one_line(arguments: str, code: int, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _, err = command(arguments.split(), capsys)
    assert found == code and named in err and err.count("\n") == 1
