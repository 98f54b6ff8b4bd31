"""The Curves page's measured points: what the law says of them, and what to do when there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing.fitting import fit
from sizing.numbers import percent, significant
from sizing.points import write_points
from tests.app.conftest import keep, point, query_of, text_of
from ui import answers
from ui.views.runs import rates_within

Open = Callable[..., AppTest]
LEVELS = (1, 2, 4, 8, 16, 32)


@pytest.fixture
def curves(opened: Open) -> Callable[[], AppTest]:
    """Open the measured points of the Curves page on a question without an SLA."""

    def open_() -> AppTest:
        return opened(page="curves", ttft="off", itl="off", **{"show.chart": "measured"})

    return open_


def series(app: AppTest, title: str) -> dict[str, tuple[list[float], list[float]]]:
    """Name -> (x, y) of every trace of the chart with that title."""
    figures = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    chart = next(figure for figure in figures if figure["layout"]["title"]["text"] == title)
    return {trace["name"]: (trace["x"], trace["y"]) for trace in chart["data"]}


def test_an_empty_store_says_what_to_run(curves: Callable[[], AppTest]) -> None:
    app = curves()
    assert app.title[0].value == "No points measured yet"
    text = "\n".join(part.value for part in app.markdown)
    assert "python -m calibration serve" in text and "python -m calibration run plan.yaml" in text


def test_points_are_drawn_as_measured_in_the_units_of_the_title(curves: Callable[[], AppTest], store: Store) -> None:
    points = [point(n) for n in LEVELS]
    keep(store, points)
    app = curves()
    assert series(app, "Requests/s")["mean, measured"] == ([*LEVELS], [p.requests_per_s for p in points])
    assert series(app, "Mean ITL (ms)")["mean, measured"][1] == [p.itl_mean_s * 1000 for p in points if p.itl_mean_s]
    assert series(app, "Mean E2E (s)")["mean, measured"][1] == [p.e2e_mean_s for p in points]
    speed, rate = series(app, "Requests/s per GPU")["throughput, measured"]
    assert speed == [1 / p.itl_mean_s for p in points if p.itl_mean_s]
    assert rate == [p.requests_per_s / p.gpus for p in points]
    assert significant(points[-1].requests_per_s) in text_of(app.title[0].value)
    assert "TensorRT-LLM 1.2" in text_of("\n".join(part.value for part in app.caption))


def test_the_line_is_the_fitted_law_and_its_error_is_told(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    app = curves()
    captions = "\n".join(part.value for part in app.caption)
    own = [p for p in answers.measured_points().points if p.deployment == point(1).deployment]
    fitted = answers.fitted(own)
    assert not isinstance(fitted, str)
    worst = max(abs(error.requests_per_s_error) for error in fitted.errors)
    assert f"within {percent(worst, 1)}" in captions and f"{percent(fitted.leave_one_out, 1)} median error" in captions
    line = series(app, "Requests/s")["mean, fitted law"]
    assert line == ([*LEVELS], [error.requests_per_s for error in fitted.errors])


def test_the_link_opens_the_curve_that_was_picked(opened: Open, store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    longer = [replace(point(n), isl=4 * point(n).isl, requests_per_s=point(n).requests_per_s / 2) for n in LEVELS]
    for size in (64, 128):
        keep(store, [replace(each, max_batch_size=size) for each in (*longer, *map(point, LEVELS))])
    query = {"ttft": "off", "itl": "off", "show.chart": "measured"}
    app = opened(page="curves", **query)
    deployments = app.main.selectbox[0]
    deployments.set_value(next(each for each in deployments.options if "at most 128" in each)).run()
    app.main.selectbox[1].set_value(app.main.selectbox[1].options[-1]).run()
    again = opened(page="curves", **query_of(app))
    assert [box.value for box in again.main.selectbox] == [box.value for box in app.main.selectbox]
    assert again.title[0].value == app.title[0].value


def test_void_points_are_told_with_their_reasons_and_not_drawn(curves: Callable[[], AppTest], store: Store) -> None:
    points = [point(n) for n in LEVELS]
    reason = "client_limited: p99 of requests sent 9 ms late"
    keep(store, [*points[:-1], replace(points[-1], verdict="client_limited", notes=reason)])
    app = curves()
    assert series(app, "Requests/s")["mean, measured"][0] == [*LEVELS[:-1]]
    assert app.expander[0].label.startswith("1 measured, but void")
    told = text_of(app.expander[0].caption[0].value)
    assert "32 users: client-limited.**" in told and "9 ms late" in told and "client_limited" not in told


def test_a_store_of_void_points_alone_shows_them(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [replace(point(4), verdict="unsteady", notes="unsteady: E2E drifted")])
    app = curves()
    assert app.title[0].value == "No points measured yet"
    assert "4 users: unsteady.**" in app.expander[0].caption[0].value


def test_a_single_point_is_drawn_without_a_law(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(8)])
    app = curves()
    assert list(series(app, "Requests/s")) == ["mean, measured"]
    assert any("No fitted law" in part.value for part in app.caption)


def test_unknown_latencies_leave_gaps_not_zeros(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(n, ttft_mean_s=None, e2e_mean_s=None) for n in LEVELS])
    app = curves()
    assert series(app, "Mean TTFT (ms)")["mean, measured"][1] == [None] * len(LEVELS)
    assert any("not measured" in chart.proto.alt for chart in app.get("plotly_chart"))


def test_a_curve_is_picked_by_deployment_and_lengths(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    keep(store, [point(n, isl=3000) for n in (1, 2)])
    keep(store, [point(n, gpu="b200_sxm", requests_per_s=1000.0 * n) for n in (1, 2)])
    app = curves()
    deployment, lengths = app.main.selectbox
    assert len(deployment.options) == 2 and len(lengths.options) == 1
    deployment.select_index(1).run()
    lengths = app.main.selectbox[1]
    assert lengths.options == ["1,000 in, 200 out", "3,000 in, 200 out"]
    lengths.select_index(1).run()
    assert series(app, "Requests/s")["mean, measured"][0] == [1, 2]


def test_the_reference_engine_is_said_not_to_be_as_fast_as_others(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(n, gpu="A CPU", engine="reference-torch") for n in LEVELS])
    assert any("not how fast TensorRT-LLM or a GPU is" in part.value for part in curves().info)


def test_varied_lengths_are_a_curve_of_their_own(curves: Callable[[], AppTest], store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    keep(store, [point(n, osl_cv=0.5) for n in LEVELS])
    assert curves().main.selectbox[1].options == ["1,000 in, 200 out", "1,000 in, 200 out, varied (CV 0 and 0.5)"]


def test_shipped_files_are_shown_beside_the_store_and_a_broken_one_is_named(
    curves: Callable[[], AppTest], store: Store, tmp_path: Path
) -> None:
    with (tmp_path / "shipped.csv").open("w") as file:
        write_points([point(n, model="shipped/model") for n in LEVELS], file)
    (tmp_path / "broken.csv").write_text("model,tp\na,1\n")
    keep(store, [point(n) for n in LEVELS])
    app = curves()
    assert any("shipped/model" in option for option in app.main.selectbox[0].options)
    assert "broken.csv" in text_of(app.warning[0].value)


def test_a_shipped_table_that_is_imported_too_counts_once(store: Store, tmp_path: Path) -> None:
    points = [point(n) for n in LEVELS]
    with (tmp_path / "shipped.csv").open("w", encoding="utf-8", newline="") as file:
        write_points(points, file)
    keep(store, [*points, point(64)])
    assert len(answers.measured_points().points) == len(LEVELS) + 1


def test_a_store_that_cannot_be_read_is_named(curves: Callable[[], AppTest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    app = curves()
    assert DATABASE_VARIABLE in text_of(app.warning[0].value)


def test_the_table_has_a_row_for_every_point(curves: Callable[[], AppTest], store: Store) -> None:
    points = [point(n) for n in LEVELS]
    keep(store, points)
    assert len(curves().main.dataframe[0].value) == len(points)


def test_why_the_requests_of_an_only_level_are_not_compared_is_true_of_it() -> None:
    """They were neither offered nor of the whole run: one user's, in a window."""
    alone = replace(point(1, model="Qwen/Qwen3-8B"), engine="vllm", precision="bf16", protocol="staggered")
    assert "or of the only level" in rates_within(fit([alone]))


def test_how_far_requests_per_s_are_off_is_said_of_the_points_compared(
    curves: Callable[[], AppTest], store: Store
) -> None:
    """Six closed loops, one of them distrusted, and two offered rates, which no law can miss: five are compared."""
    points = [point(n) for n in LEVELS]
    wrong = replace(points[3], requests_per_s=2 * points[3].requests_per_s)
    offered = [replace(point(n), load_kind="poisson_rate", load_value=point(n).requests_per_s) for n in (2, 8)]
    keep(store, [*points[:3], wrong, *points[4:], *offered])
    said = text_of("\n".join(part.value for part in curves().caption))
    assert "at 5 points where it can be compared (1 distrusted)" in said
