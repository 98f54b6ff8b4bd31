"""The Calibrate page in every state: what is measured, a plan, runs that go on or were lost, files good and bad."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import yaml
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block

from calibration import jobs
from calibration.plan import parse_plan
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store.work import accept, discard, enqueue, requeue
from sizing import planner
from sizing.candidates import from_fit
from sizing.fitting import fit
from sizing.numbers import percent
from sizing.points import write_points
from sizing.question import Question
from tests.app.conftest import ONE, keep, point, query_of, text_of
from tests.calibration.openai_server import MODEL, openai_server
from ui import answers

LEVELS = (1, 2, 4, 8, 16, 32)
POINTS = [point(n) for n in LEVELS]
NO_LIMIT = {"ttft": "off", "itl": "off"}
Open = Callable[..., AppTest]


@pytest.fixture
def calibrate(opened: Open) -> Callable[..., AppTest]:
    """Open the Calibrate page on a view; the question has no limit, unless parameters of the link say more."""

    def open_(view: str, **parameters: str) -> AppTest:
        return opened(page="calibrate", **{**NO_LIMIT, **parameters, "show.calibrate": view})

    return open_


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    monkeypatch.setenv(jobs.TARGETS_VARIABLE, "gpu-7:8001, http://evil/")


def words(app: AppTest) -> str:
    """All that is written on the page."""
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "success")
    return text_of(
        "\n".join(f"{getattr(part.proto, 'title', '')} {part.value}" for kind in kinds for part in app.main.get(kind))
    )


def press(app: AppTest, label: str) -> AppTest:
    """Press the button whose label begins so."""
    next(button for button in app.main.button if button.label.startswith(label)).click().run()
    assert not app.exception
    return app


def speaks(app: AppTest, protocol: str) -> AppTest:
    """Choose the protocol, as no server answers."""
    return next(box for box in app.main.selectbox if box.label == "Protocol").set_value(protocol).run()


def labels(app: AppTest) -> list[str]:
    return [button.label for button in app.main.button]


def waiting(store: Store, points: list[object] | None = None, target: str = "gpu-7:8001") -> int:
    """A run started from the page that has ended, its points not looked at yet."""
    run_id = enqueue(store, "lengths: [{isl: 6, osl: 4}]\nconcurrency: [1]\n", label="ensemble", target=target)
    store.restart_run(run_id, levels=len(POINTS))
    for one in POINTS if points is None else points:
        store.add_point(run_id, one)  # type: ignore[arg-type]
    store.finish_run(run_id, "done")
    return run_id


# Coverage


def test_an_empty_store_says_what_to_do(calibrate: Callable[..., AppTest]) -> None:
    app = calibrate("coverage")
    assert app.title[0].value == "No points measured yet"
    assert "Nothing has been measured yet" in words(app) and "Set at least one limit" in words(app)


def test_coverage_has_a_row_for_each_deployment_and_lengths(calibrate: Callable[..., AppTest], store: Store) -> None:
    keep(store, [*POINTS[:-1], replace(POINTS[-1], verdict="client_limited")])
    keep(store, [point(n, isl=3000) for n in (1, 2)])
    keep(store, [point(4, gpu="b200_sxm"), point(2, gpu="b200_sxm", load_kind="poisson_rate")])
    for run in store.runs():
        store.finish_run(run.id, "done")
    app = calibrate("coverage")
    table = app.main.dataframe[0].value
    assert app.title[0].value == "10 points of 2 deployments measured"
    assert sorted(table["Levels (users)"]) == ["1, 2", "1, 2, 4, 8, 16", "4"]
    assert sorted(table["Void"]) == [0, 0, 1]
    assert [*table.columns][:3] == ["Model", "GPU", "Precision"]  # short ones: a phone shows more than one of them
    of_b200 = table[table["GPU"] == "b200_sxm TP1"].iloc[0]
    assert (of_b200["Model"], of_b200["Engine"]) == ("acme/tiny", "TensorRT-LLM 1.2")
    assert of_b200["Open loops"] == 1 and of_b200["Basis"] == "None"
    assert set(table["Last measured"]) == {"2026-11-20"}


def test_a_rate_that_the_server_kept_up_with_is_a_level_too(calibrate: Callable[..., AppTest], store: Store) -> None:
    keep(store, [point(4), point(2, load_kind="poisson_rate", load_value=2.0, requests_per_s=2.0)])
    table = calibrate("coverage").main.dataframe[0].value
    assert table.iloc[0]["Open loops"] == 1 and table.iloc[0]["Basis"] == "Fitted"


def test_one_level_of_a_catalogued_model_scales_its_estimate(calibrate: Callable[..., AppTest], store: Store) -> None:
    keep(store, [point(8, model="Qwen/Qwen3-8B", precision="bf16")])
    app = calibrate(
        "coverage",
        model="Qwen/Qwen3-8B",
        gpu="h100_sxm",
        tp="1",
        precision="bf16",
        isl="1000",
        osl="200",
        ttft="p95:1s",
    )
    assert app.main.dataframe[0].value.iloc[0]["Basis"] == "Estimated"
    said = text_of("\n".join(part.value for part in (*app.markdown, *app.caption)))
    assert ":violet-badge" in words(app)
    assert "scaled by 1 measured point, TensorRT-LLM 1.2" in said


def test_the_present_answer_is_told_with_its_basis_and_the_next_level(
    calibrate: Callable[..., AppTest], store: Store
) -> None:
    keep(store, POINTS)
    app = calibrate("coverage", model="acme/tiny", gpu="any", isl="1000", osl="200", ttft="p95:1s", itl="p95:30ms")
    assert ":green-badge" in words(app) or ":blue-badge" in words(app)
    assert "You need" in words(app) and "6 measured points" in words(app)
    assert "Measure " not in words(app)
    press(app, "Where to measure next?")
    assert "By the closed loops alone: " in words(app) or "this question needs no more measurements" in words(app)


def test_prompts_of_one_length_are_to_be_measured_at_another_first(
    calibrate: Callable[..., AppTest], store: Store
) -> None:
    """The answer warns of it, so the advice begins with it."""
    keep(store, POINTS)
    app = calibrate("coverage", model="acme/tiny", gpu="any", isl="2000", osl="200", ttft="p95:2s", itl="p95:60ms")
    press(app, "Where to measure next?")
    assert "Measure 1 user, 4,000 in, 200 out." in words(app) and "Prompts of one length were measured" in words(app)


def test_without_a_measured_deployment_the_advice_is_where_to_begin(calibrate: Callable[..., AppTest]) -> None:
    app = press(calibrate("coverage", ttft="p95:1s"), "Where to measure next?")
    assert "Measure 1 user, 2,000 in, 256 out." in words(app)
    press(app, "Plan this run")
    assert query_of(app)["show.calibrate"] == "new"
    assert "5 levels, then one with random arrivals" in words(app)


def test_points_that_wait_are_named_and_not_counted(calibrate: Callable[..., AppTest], store: Store) -> None:
    waiting(store)
    app = calibrate("coverage")
    assert "Awaiting acceptance, and not counted here: 6 points" in words(app)
    assert app.title[0].value == "No points measured yet"


def test_a_store_that_cannot_be_reached_is_one_clear_page(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    app = calibrate("runs")
    assert app.title[0].value == "The points store is unreachable"
    assert DATABASE_VARIABLE in words(app)


# A new run


def test_where_starting_is_off_the_plan_is_there_to_run_by_hand(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(jobs.ALLOW_VARIABLE, raising=False)
    app = calibrate("new", isl="700", osl="90", isl_cv="0.4")
    assert not any(label.startswith("Start") for label in labels(app))
    assert "Runs cannot be started from this page" in words(app) and f"{jobs.ALLOW_VARIABLE}=1" in words(app)
    text, command = app.main.code[0].value, app.main.code[1].value
    plan = parse_plan(text).plan
    assert [level.value for level in plan.levels()] == [1, 5, 21, 89, 1]
    means, long = plan.lengths
    assert (long.isl, long.osl, long.isl_cv) == (2800, 90, 0.4)
    assert (means.isl, means.osl, means.isl_cv, means.osl_cv) == (700, 90, 0.4, 0)
    assert command == "python -m calibration run plan.yaml"


@pytest.mark.usefixtures("allowed")
def test_only_servers_on_the_list_can_be_picked_and_minutes_are_told_before(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, object]] = []
    monkeypatch.setattr(jobs, "_launch", lambda store, run_id, plan: started.append(yaml.safe_load(plan)))
    app = calibrate("new")
    assert "http://evil/ is not host:port" in words(app)
    server = next(box for box in app.main.selectbox if box.label == "Server (host:port)")
    assert server.options == ["gpu-7:8001"]
    speaks(app, "grpc")
    app.main.multiselect[0].set_value([8, 2])
    next(box for box in app.main.number_input if box.label == "Time limit per level (s)").set_value(60)
    next(box for box in app.main.number_input if box.label == "TP (GPUs)").set_value(4)
    app.run()
    assert "At most 16 GPU-minutes of measuring." in words(app)  # 4 levels of a minute on 4 GPUs
    press(app, "Start: at most 16 GPU-minutes of measuring")
    (plan,) = started
    assert plan["concurrency"] == [2, 8] and plan["budget_s"] == 60 and plan["deployment"] == {"tp": 4}
    assert query_of(app)["show.calibrate"] == "runs" and query_of(app)["show.measured_run"] == "1"
    again = speaks(calibrate("new"), "grpc")
    assert "Run 1 is measuring gpu-7:8001" in words(again)
    assert next(button for button in again.main.button if button.label.startswith("Start")).disabled


@pytest.mark.usefixtures("allowed")
def test_a_run_for_the_question_alone_has_its_budget(calibrate: Callable[..., AppTest]) -> None:
    app = speaks(calibrate("new", ttft="p95:1s"), "grpc")
    app.main.toggle[0].set_value(True).run()
    assert "At most 30 GPU-minutes" in words(app)
    adaptive = parse_plan(app.main.code[0].value).plan.adaptive
    assert adaptive is not None and (adaptive.rate, adaptive.ttft, adaptive.itl) == (20, "p95:1.0s", None)


def test_an_openai_server_is_asked_for_its_endpoint(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(jobs.ALLOW_VARIABLE, raising=False)
    app = calibrate("new")
    speaks(app, "openai")
    next(box for box in app.main.selectbox if box.label == "Endpoint").set_value("chat").run()
    assert not app.exception
    server = parse_plan(app.main.code[0].value).plan.server
    assert (server.protocol, server.endpoint, server.url) == ("openai", "chat", "http://HOST:8001")


@pytest.mark.usefixtures("allowed")
def test_a_form_that_is_no_plan_says_so(calibrate: Callable[..., AppTest]) -> None:
    app = speaks(calibrate("new"), "grpc")
    app.main.multiselect[0].set_value([]).run()
    assert not app.exception
    assert "This is not a plan yet" in words(app) and "no load levels" in words(app)


@pytest.mark.usefixtures("allowed")
def test_a_server_is_sized_for_the_question_of_the_page(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(jobs, "_launch", lambda store, run_id, plan: started.append(plan))
    assert "Set at least one limit" in words(calibrate("size"))
    app = calibrate("size", ttft="p95:1s", isl="700", osl="90", rate="12")
    assert "12 requests/s" in words(app) and "700 tokens in and 90 out, p95 TTFT within 1,000 ms" in words(app)
    speaks(app, "openai")
    assert "An OpenAI-compatible server does not report its GPU" in words(app) and not labels(app)
    next(box for box in app.main.text_input if box.label == "GPU").set_value("h200_sxm")
    next(box for box in app.main.number_input if box.label == "TP (GPUs)").set_value(2)
    next(box for box in app.main.number_input if box.label == "Minutes of load").set_value(5.0)
    app.run()
    assert "Taken: precision bf16" in words(app) and "then the planned load of a replica" in words(app)
    press(app, "Start: at most 16 GPU-minutes")  # 5 of load and 3 of verification, of 2 GPUs
    plan = parse_plan(started[0]).plan
    assert plan.concurrency == [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 128] and plan.server.protocol == "openai"
    assert plan.adaptive is not None and (plan.adaptive.rate, plan.adaptive.ttft) == (12, "p95:1.0s")
    assert [plan.adaptive.budget_s(gpus) for gpus in (1, 2, 4)] == [300] * 3, "whatever TP the server says of itself"
    assert plan.adaptive.verify_minutes == 3
    assert plan.levels()[0].lengths.isl == 700
    assert (plan.deployment.gpu, plan.deployment.precision, plan.deployment.tp) == ("h200_sxm", "bf16", 2)
    assert query_of(app)["show.calibrate"] == "runs"


def test_what_a_server_speaks_is_found_once_in_a_visit(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    with openai_server() as server:
        monkeypatch.setenv(jobs.TARGETS_VARIABLE, server.url.removeprefix("http://"))
        app = calibrate("new")
        assert f"An OpenAI-compatible server answers at {server.url.removeprefix('http://')}" in words(app)
        asked = len(server.heads)
        next(box for box in app.main.selectbox if box.label == "Endpoint").set_value("chat").run()
        assert len(server.heads) == asked == 1
        plan = parse_plan(app.main.code[0].value).plan.server
        assert (plan.protocol, plan.model, plan.endpoint, plan.url) == ("openai", MODEL, "chat", server.url)
        speaks(app, "http")
        assert parse_plan(app.main.code[0].value).plan.server.protocol == "http", "the choice of the user goes before"
    app = calibrate("size", ttft="p95:1s")
    assert "Nothing to measure answers there" in words(app) and "Connection refused" in words(app)
    assert labels(app) == ["Ask again"] and not app.main.code
    assert "Connection refused" in words(press(app, "Ask again"))


# Runs


def test_a_run_for_a_question_ends_with_its_answer_and_the_way_to_the_size_page(
    calibrate: Callable[..., AppTest], store: Store
) -> None:
    plan = """
lengths: [{isl: 1000, osl: 200, isl_cv: 0, osl_cv: 0}]
concurrency: [1, 2, 4, 8, 16, 32]
adaptive: {gpu_minutes: 5, rate: 7, itl: "p95:40ms"}
"""
    run_id = enqueue(store, plan, label="ensemble", target="gpu-7:8001")
    store.restart_run(run_id, levels=6)
    store.add_point(run_id, POINTS[0])
    store.finish_run(run_id, "interrupted")
    assert "This question has no answer yet" in words(calibrate("runs"))
    requeue(store, run_id)
    store.restart_run(run_id, levels=6)
    for one in POINTS[1:]:
        store.add_point(run_id, one)
    store.finish_run(run_id, "done")
    app = calibrate("runs", rate="99")
    assert "× h100_sxm to serve 7 requests/s of acme/tiny" in words(app) and "90 % band" in words(app)
    press(app, "Accept 6 points")
    press(app, "Open on the Size page")
    assert "to serve 7 requests/s of acme/tiny" in text_of(app.title[0].value)
    assert (query_of(app)["gpu"], query_of(app)["points"], query_of(app)["itl"]) == ("h100_sxm", "on", "p95:0.04s")


def test_points_are_accepted_only_after_they_were_seen_and_then_answers_rest_on_them(
    calibrate: Callable[..., AppTest], store: Store
) -> None:
    run_id = waiting(store)
    app = calibrate("runs")
    fitted = fit(POINTS)
    worst = max(abs(error.requests_per_s_error) for error in fitted.errors)
    assert (
        f"requests/s within {percent(worst, 1)} at every point, median error {percent(fitted.leave_one_out, 1)} "
        in words(app)
    )
    assert len(app.get("plotly_chart")) == 3 and "points within 10 %" in app.get("plotly_chart")[0].proto.alt
    assert answers.measured_points().points == ()
    press(app, "Accept 6 points")
    assert answers.measured_points().points == tuple(POINTS)
    assert app.title[0].value == "6 points of 1 deployment measured"
    press(app, "Discard these points")
    assert answers.measured_points().points == () and store.run(run_id).discarded == 6
    press(app, "Accept 6 points")
    assert store.run(run_id).discarded == 0


def test_void_and_distrusted_points_are_listed(calibrate: Callable[..., AppTest], store: Store) -> None:
    wrong = replace(POINTS[3], requests_per_s=2 * POINTS[3].requests_per_s)
    void = replace(POINTS[5], verdict="unsteady", notes="unsteady: E2E drifted by 30 %")
    waiting(store, [*POINTS[:3], wrong, POINTS[4], void])
    told = words(calibrate("runs"))
    assert "void: unsteady.** E2E drifted by 30 %" in told
    assert "concurrency 8 disagrees with the others" in told


def test_all_points_void_is_said(calibrate: Callable[..., AppTest], store: Store) -> None:
    waiting(store, [replace(POINTS[0], verdict="errors")])
    assert "Every point is void" in words(calibrate("runs"))


def test_a_decision_of_another_browser_is_told_and_kept(calibrate: Callable[..., AppTest], store: Store) -> None:
    run_id = waiting(store, [replace(POINTS[0], verdict="errors")])
    app = calibrate("runs")
    accept(store, run_id)
    press(app, "Discard")
    assert store.run(run_id).discarded == 0
    assert "(points accepted: 1, discarded: 0, awaiting acceptance: 0)" in words(app)
    assert "has changed" not in words(press(app, "Discard these points")) and store.run(run_id).discarded == 1
    accept(store, run_id)
    discard(store, run_id)
    assert "has changed" not in words(press(app, "Accept 1 point")) and store.run(run_id).discarded == 0


def test_an_impossible_value_in_the_store_is_one_line(calibrate: Callable[..., AppTest], store: Store) -> None:
    waiting(store)
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE points SET tp = -3")
    assert "The store holds an impossible value: a point of run 1, column tp" in words(calibrate("runs"))


def test_a_run_that_goes_on_shows_how_far_and_can_be_stopped(
    calibrate: Callable[..., AppTest], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = enqueue(store, "plan", label="ensemble", target="gpu-7:8001")
    store.restart_run(run_id, levels=4)
    store.add_point(run_id, POINTS[0])
    news = {"phase": "ISL 1000, OSL 200, concurrency 4", "share": 0.5, "left_s": 130.0, "log": "first line\nsecond"}
    store._beat(run_id, jobs.work(store, run_id).owner, news)
    app = calibrate("runs")
    assert app.title[0].value == f"Run {run_id} is active"
    progress = app.get("progress")[0].proto
    assert progress.value == 37  # (1 + 0.5) / 4
    assert (
        text_of(progress.text) == "1 of 4 levels · ISL 1000, OSL 200, concurrency 4, 50 % of it · about 2 minutes left"
    )
    assert app.main.code[0].value == "first line\nsecond"
    assert not any(label.startswith("Stop") for label in labels(app))
    monkeypatch.setattr(jobs, "seen_to", lambda *_: None)
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    app = press(calibrate("runs"), "Stop the run")
    assert "Stop requested" in words(app) and jobs.work(store, run_id).stopping_for_s is not None
    assert "Runs shows its progress" in words(calibrate("import"))


def test_a_lost_run_shows_its_last_lines_and_how_to_go_on(
    calibrate: Callable[..., AppTest], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = enqueue(store, "lengths: [{isl: 6, osl: 4}]\nconcurrency: [1]\n", label="ensemble", target="gpu-7:8001")
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET host = 'elsewhere', heartbeat = heartbeat - 91, log = 'it said so'")
    monkeypatch.delenv(jobs.ALLOW_VARIABLE, raising=False)
    app = calibrate("runs")
    assert "lost: its process is gone" in words(app)
    assert [code.value for code in app.main.code] == ["it said so", f"python -m calibration resume {run_id}"]
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    monkeypatch.setenv(jobs.TARGETS_VARIABLE, "gpu-7:8001")
    resumed: list[int] = []
    monkeypatch.setattr(jobs, "_launch", lambda store, run_id, plan: resumed.append(run_id))
    app = press(calibrate("runs"), "Resume")
    assert resumed == [run_id] and store.run(run_id).state == "queued"


def test_a_run_of_the_link_is_shown_and_one_that_is_not_there_is_not_missed(
    calibrate: Callable[..., AppTest], store: Store
) -> None:
    first, second = waiting(store), waiting(store, target="gpu-8:8001")
    links = [{key: said} for key in ("show.measured_run", "show.run") for said in (str(first), "99", "x")]  # also old
    shown = [calibrate("runs", **link).main.selectbox[0].value for link in links]
    assert shown == 2 * [first, second, second]


def test_a_run_is_apart_from_the_settings_of_simulate(opened: Open, store: Store) -> None:
    waiting(store)
    app = opened(ONE, "calibrate", **{"show.calibrate": "runs", "show.run": "seed=7"})
    app.switch_page("ui/pages/simulate.py").run()
    assert not app.exception and app.number_input(key="simulate_seed").value == 7
    app.session_state["show.calibrate"] = "new"
    app.switch_page("ui/pages/calibrate.py").run()
    assert not app.exception and app.number_input(key="run_seed").value == 0


# Import


def uploaded(app: AppTest, name: str, content: bytes) -> AppTest:
    app.get("file_uploader")[0].set_value((name, content, "text/plain")).run()
    assert not app.exception
    return app


def table(points: list[object]) -> bytes:
    text = StringIO()
    write_points(points, text)  # type: ignore[arg-type]
    return text.getvalue().encode()


def test_a_file_is_seen_before_it_is_taken_in(calibrate: Callable[..., AppTest], store: Store) -> None:
    app = uploaded(calibrate("import"), "../../points.csv", table(POINTS))
    assert "**points.csv: 6 points**, 0 void. Measured 2026-11-20." in words(app)
    assert store.runs() == [] and len(app.get("plotly_chart")) == 3
    press(app, "Accept 6 points")
    assert store.points() == POINTS
    assert store.run(1).label == "imported from points.csv"
    assert "Run 1 holds the points." in words(app) and "All points are accepted (6)" in words(app)
    again = press(uploaded(calibrate("import"), "points.csv", table(POINTS)), "Accept 6 points")
    assert "already had these points" in words(again) and len(store.runs()) == 1


def test_levels_measured_again_are_said_to_be_in_further_runs(calibrate: Callable[..., AppTest], store: Store) -> None:
    """A file that holds a known run and one more level of it, then two more of both."""
    again = [replace(POINTS[0], requests_per_s=factor * POINTS[0].requests_per_s) for factor in (1.1, 1.2)]
    press(uploaded(calibrate("import"), "points.csv", table(POINTS)), "Accept 6 points")
    app = press(uploaded(calibrate("import"), "points.csv", table([*POINTS, again[0]])), "Accept 7 points")
    assert "Run 1 holds the points. Levels measured again are in 1 more run." in words(app)
    app = press(uploaded(calibrate("import"), "points.csv", table([*POINTS, *again])), "Accept 8 points")
    assert "Run 1 holds the points. Levels measured again are in 2 more runs." in words(app)
    assert len(store.runs()) == 3


def test_a_file_that_is_taken_in_or_left_behind_is_not_held(
    calibrate: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    monkeypatch.setattr(MemoryUploadedFileManager, "remove_file", lambda _, session_id, file_id: freed.append(file_id))
    app = uploaded(calibrate("import"), "points.csv", table(POINTS))
    first = app.session_state.visit.uploaded
    assert first and freed == []
    second = uploaded(app, "other.csv", table(POINTS)).session_state.visit.uploaded
    assert freed == [first] and second != first
    press(app, "Accept 6 points")
    assert freed == [first, second] and app.session_state.visit.uploaded is None


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("secrets.json", b'{"api_key": "sk-123"}', "secrets.json: not a file of any known kind"),
        ("a.csv", b"", "a.csv: the file is empty"),
        ("run.zip", b"PK\x03\x04 and then nothing", "run.zip: not a calibration run, or damaged"),
        ("x.pkl", b"\x80\x04\x95cos\nsystem", "x.pkl: not UTF-8 text"),
    ],
)
def test_what_is_no_file_of_points_is_refused_in_a_line(
    calibrate: Callable[..., AppTest], store: Store, tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    before = set(tmp_path.rglob("*")) - {store.database.records}
    app = uploaded(calibrate("import"), name, content)
    assert "This file was not accepted" in words(app) and says in words(app)
    assert "sk-123" not in words(app) and "api_key" not in words(app)
    assert set(tmp_path.rglob("*")) - {store.database.records} == before | set(tmp_path.glob("calibration.db*"))


def fold_of_details(app: AppTest) -> Block:
    """The fields for what a file leaves out."""
    return next(fold for fold in app.main.expander if fold.label.startswith("Deployment and load"))


def test_a_file_that_does_not_say_its_load_is_asked_for_it_in_words(calibrate: Callable[..., AppTest]) -> None:
    content = (Path(__file__).parents[1] / "calibration" / "importers" / "files" / "genai_perf.csv").read_bytes()
    app = uploaded(calibrate("import"), "genai_perf.csv", content)
    for label, text in (("Model", "Qwen/Qwen3-8B"), ("Precision", "fp8"), ("GPU", "h100_sxm")):
        next(box for box in app.main.text_input if box.label == label).set_value(text)
    next(box for box in app.main.number_input if box.label == "TP (GPUs)").set_value(1)
    assert "give “Concurrency (users)” or “Rate (requests/s)”" in words(app.run())


def test_a_file_that_leaves_something_out_names_the_field(calibrate: Callable[..., AppTest], store: Store) -> None:
    content = (Path(__file__).parents[1] / "calibration" / "importers" / "files" / "vllm.json").read_bytes()
    app = uploaded(calibrate("import"), "vllm.json", content)
    assert "“GPU”" in words(app) and "--gpu" not in words(app)
    assert "This file does not say everything" in words(app) and fold_of_details(app).proto.expanded
    for label, text in (("Model", "Qwen/Qwen3-8B"), ("Precision", "fp8"), ("GPU", "h100_sxm")):
        next(box for box in app.main.text_input if box.label == label).set_value(text)
    next(box for box in app.main.number_input if box.label == "TP (GPUs)").set_value(1)
    app.run()
    assert any(label.startswith("Accept") for label in labels(app)), words(app)
    assert not fold_of_details(app).proto.expanded
    assert "requests/s not compared, being those offered, of the whole run or of the only level." in words(app)
    assert "—" not in words(app)
    assert len(app.get("plotly_chart")) == 2, "TTFT and ITL"
    assert os.listdir(store.database.records) == []


def test_a_level_at_the_planned_load_is_told_on_the_size_page(opened: Open, store: Store) -> None:
    asked = {"model": "acme/tiny", "gpu": "any", "isl": "1000", "osl": "200", "rate": "7", "ttft": "off"}
    question = Question.of({"model": "acme/tiny", "isl": 1000, "osl": 200, "rate": 7, "itl": "p95:40ms"})
    load = planner.plan(question, [from_fit(fit(POINTS), question.workload.lengths)]).answer.load_per_s
    slow = {"requests": 600, "verdict": "steady", "itl_p95_s": 0.2, "load_kind": "poisson_rate"}
    keep(store, [*POINTS, point(1, **slow, load_value=load)])  # type: ignore[arg-type]
    store.finish_run(1, "done")
    app = opened(**asked, itl="p95:40ms")
    assert "Not verified on the server at" in words(app) and "p95 ITL was 200 ms" in words(app)
