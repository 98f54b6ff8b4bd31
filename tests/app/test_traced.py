"""Recorded traffic on the Size page: the file, its parts, the answer, and what a link can say of it."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE
from sizing.analyses.traced import TracePlan, plan_trace
from sizing.candidates import find
from sizing.cli import cli
from sizing.text import sentence, trace_lines
from sizing.trace import HOUR_S, Trace, dispersion, hours
from sizing.workload import Limit, Sla
from tests.app.conftest import ONE, open_query, query_of, text_of
from ui import answers, computing, link
from ui.charts.base import LIGHT
from ui.charts.traced import MOST_POINTS, gpus_by_hour, lengths_of_requests, limit_by_hour, requests_over_time
from ui.scenario import DAYS, example_trace
from ui.views.traced import FILES, IN_PLACE, LINKED, clock_marks, json_of
from ui.visit import Visit, remembered

Open = Callable[..., AppTest]
HOURS, RATES_PER_S = 3, (1.5, 6.0, 3.0)
TO_TRACE = {"show.size": "trace"}


def requests(began_s: float = math.nan) -> Trace:
    """Three hours of which the second has half of all requests."""
    rng = np.random.default_rng(0)
    arrival_s = np.sort(
        np.concatenate([(hour + rng.random(int(rate * HOUR_S))) * HOUR_S for hour, rate in enumerate(RATES_PER_S)])
    ).round(3)
    isl, osl = (np.rint(rng.lognormal(mean, 0.6, len(arrival_s))).astype(np.int32) + 1 for mean in (6.2, 4.8))
    return Trace(arrival_s, isl, osl, began_s)


def table(trace: Trace) -> bytes:
    rows = zip(trace.arrival_s.tolist(), trace.isl.tolist(), trace.osl.tolist(), strict=True)
    return "\n".join(["arrival_s,isl,osl", *(f"{at!r},{isl},{osl}" for at, isl, osl in rows), ""]).encode()


TRACE = requests()
FILE = table(TRACE)


def uploaded(app: AppTest, content: bytes = FILE, name: str = "traffic.csv") -> AppTest:
    """The app after this file was given as a trace."""
    app.main.get("file_uploader")[0].set_value((name, content, "text/csv")).run()
    assert not app.exception
    return app


def shown(app: AppTest) -> str:
    """All text of the main page, as read."""
    main = app.main
    parts = (*main.title, *main.markdown, *main.caption, *main.warning, *main.info, *main.error)
    return text_of("\n".join(str(part.value) for part in parts))


def found_by(app: AppTest) -> TracePlan:
    """The last answer of the visit."""
    visit: Visit = app.session_state["visit"]
    found: answers.Reply[TracePlan] = list(visit.trace_answers.values())[-1]
    assert found.found is not None
    return found.found


def alts(app: AppTest) -> str:
    return "\n".join(chart.proto.alt for chart in app.get("plotly_chart"))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> AppTest:
    """The page with the answer for the trace, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("answered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABASE_VARIABLE, f"sqlite:///{folder / 'calibration.db'}")
        patch.setattr(computing, "SHIPPED", folder)
        return uploaded(open_query({**link.to_query(ONE), **TO_TRACE}))


@pytest.fixture(scope="module")
def by_command(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the command line answers to the same question."""
    file = tmp_path_factory.mktemp("trace") / "traffic.csv"
    file.write_bytes(FILE)
    limits = [f"--{limit.metric}=p{limit.percentile}:{limit.limit_s}s" for limit in ONE.question.sla.limits]
    choice = ["--model", ONE.model, "--gpu", "h200_sxm", "--precision", "fp8", "--tp", "1", "--engine", "trtllm"]
    done = CliRunner().invoke(cli, ["plan", *choice, "--trace", str(file), *limits, "--json"])
    assert done.exit_code == 0
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_without_a_trace_the_page_asks_for_one_and_gives_no_count(opened: Open) -> None:
    app = opened(**TO_TRACE)
    assert "recorded traffic" in app.title[0].value and not app.metric and "n" not in query_of(app)
    assert "visit" in shown(app) and LINKED not in shown(app)
    told = app.main.dataframe[0].value
    assert len(told) == len(answers.FORMATS) and "TIMESTAMP" in set(told["Time of arrival"])


def test_the_answer_is_that_of_the_command_line(answered: AppTest, by_command: dict[str, object]) -> None:
    found = found_by(answered)
    assert text_of(answered.title[0].value) == by_command["sentence"] == sentence(found.plan)
    numbers = {metric.label: metric.value for metric in answered.metric}
    assert numbers["GPUs"] == str(by_command["gpus"])
    for line in trace_lines(found)[1:]:
        assert line in shown(answered)
    assert IN_PLACE in shown(answered) and f"{len(TRACE):,} requests" in shown(answered)
    assert query_of(answered)["show.trace"] == answered.session_state["visit"].recorded.digest
    assert "n" not in query_of(answered)


def test_its_file_is_what_the_command_line_writes(answered: AppTest, by_command: dict[str, object]) -> None:
    page, command = (rounded(text) for text in (json_of(found_by(answered)), json.dumps(by_command)))
    assert page.keys() == command.keys()
    made = page["report"].pop("made_at"), command["report"].pop("made_at")  # type: ignore[attr-defined]
    assert page == command and all(map(datetime.fromisoformat, made)), "a report from it has its date"


def test_the_command_line_makes_a_report_of_its_file(answered: AppTest, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "report.json"
    plan.write_bytes(json_of(found_by(answered)))
    done = CliRunner().invoke(cli, ["report", "--plan", str(plan), "--out", str(out)])
    assert done.exit_code == 0 and json.loads(out.read_bytes())["traffic"], done.output


def rounded(document: str | bytes) -> dict[str, object]:
    """A JSON document without the last digits of its numbers, which depend on the order of sums."""
    found: dict[str, object] = json.loads(document, parse_float=lambda text: float(f"{float(text):.9g}"))
    return found


def test_every_hour_has_its_bars_and_its_row(answered: AppTest) -> None:
    found, limits = found_by(answered), ONE.question.sla.limits
    for limit in limits:
        assert f"{limit.name} of each hour" in alts(answered)
    worst = (
        answered.main.dataframe[1].value
        if "Hour" in answered.main.dataframe[1].value
        else answered.main.dataframe[0].value
    )
    assert set(worst["Hour"]) == {"00:00", "01:00", "02:00"} and worst["Hour"].iloc[0] == "01:00"
    assert list(gpus_by_hour(found, LIGHT).figure.data[0].y) == [
        (needed + 1) * found.plan.answer.candidate.gpus for needed in found.needed
    ]
    for limit in limits:
        drawn = limit_by_hour(found, limit, LIGHT).figure.data[0].y
        seen = [found.replayed.quantiles(limit.metric, hour).at(limit.percentile) for hour in range(HOURS)]  # type: ignore[arg-type]
        assert list(drawn) == pytest.approx([1000 * value for value in seen])


def test_load_and_lengths_of_the_form_do_not_count_and_all_else_does(opened: Open) -> None:
    app = uploaded(opened(**TO_TRACE))
    first = found_by(app)
    app.sidebar.number_input(key="rate_per_s").set_value(300.0).run()
    app.sidebar.number_input(key="isl").set_value(50).run()
    assert found_by(app) is first and text_of(app.title[0].value) == sentence(first.plan)
    app.sidebar.number_input(key="headroom").set_value(60.0).run()
    app.sidebar.number_input(key="spare").set_value(3).run()
    then = found_by(app)
    assert then.plan.answer.working > first.plan.answer.working and then.plan.answer.spare == 3


def test_a_prefix_is_a_share_of_the_trace_s_own_prompts() -> None:
    asked = answers.question_of(replace(ONE, prefix_share=0.5, prefix_hit=1.0), TRACE)
    assert asked.workload.prefix.tokens == pytest.approx(TRACE.isl.mean() / 2, abs=1)
    assert asked.workload.rate_per_s == pytest.approx(max(RATES_PER_S), rel=0.01)


def test_the_queue_s_limits_count_and_so_does_a_limit_on_rejected_requests() -> None:
    limited = replace(ONE, rejected=Limit.rejected(1), queue_limit=50, queue_timeout_s=2.0)
    asked = answers.question_of(limited, TRACE)
    assert (asked.workload.queue_limit, asked.workload.queue_timeout_s) == (50, 2.0)
    assert asked.sla.rejected == limited.rejected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"show.window": "worst-hour"}, len(TRACE.window("worst-hour"))),
        ({"show.window": "part", "show.part": "02:00..03:00"}, int(3.0 * HOUR_S)),
        ({"show.window": "part"}, len(TRACE)),
        ({"show.scale": "0.25", "show.window": "worst-hour"}, int(1.5 * HOUR_S)),
    ],
)
def test_a_part_of_it_is_replayed_and_stands_in_the_link(opened: Open, view: dict[str, str], expected: int) -> None:
    app = uploaded(opened(**TO_TRACE, **view))
    replayed = len(found_by(app).trace)
    assert replayed == expected if "show.scale" not in view else abs(replayed - expected) < 5 * math.sqrt(expected)
    assert query_of(app).items() >= view.items()
    assert f"{replayed:,} requests" in shown(app)


@pytest.mark.parametrize(
    "view",
    [
        {"show.scale": "nan"},
        {"show.scale": "1e9"},
        {"show.scale": "much"},
        {"show.window": "best-hour"},
        {"show.window": "part", "show.part": "..;rm"},
    ],
)
def test_a_part_that_nobody_can_choose_is_the_whole(opened: Open, view: dict[str, str]) -> None:
    app = uploaded(opened(**TO_TRACE, **view))
    assert len(found_by(app).trace) == len(TRACE)


def test_controls_choose_the_part(opened: Open) -> None:
    app = uploaded(opened(**TO_TRACE))
    app.main.number_input(key="show.scale").set_value(2.0).run()
    assert not app.exception and len(found_by(app).trace) == 2 * len(TRACE)
    app.main.button_group(key="show.window").set_value("part").run()
    app.main.select_slider[0].set_value(("01:00", "02:00")).run()
    assert not app.exception
    assert len(found_by(app).trace) == 2 * int(6.0 * HOUR_S)
    assert query_of(app)["show.part"] == "01:00..02:00" and query_of(app)["show.scale"] == "2.0"
    assert "replayed" in str(app.get("plotly_chart")[-2].proto.spec)
    app.session_state["show.part"] = "00:00..01:00"  # as the browser's Back does
    app.run()
    assert query_of(app)["show.part"] == "00:00..01:00" and app.main.select_slider[0].value == ("00:00", "01:00")


def test_a_link_asks_for_the_trace_that_it_cannot_carry(opened: Open) -> None:
    digest = answers.trace_digest(TRACE)
    app = opened(**TO_TRACE, **{"show.trace": digest})
    assert LINKED in shown(app) and query_of(app)["show.trace"] == digest
    assert "another trace" not in shown(uploaded(app))
    other = uploaded(opened(**TO_TRACE, **{"show.trace": "0" * 16}))
    assert "made with another trace" in shown(other)


def test_the_example_opens_by_its_link_and_says_what_it_is(opened: Open) -> None:
    app = opened(**TO_TRACE, **{"show.trace": answers.EXAMPLE, "show.window": "worst-hour", "show.scale": "0.2"})
    assert "You need" in app.title[0].value and "invented" in shown(app)
    assert query_of(app)["show.trace"] == answers.EXAMPLE
    next(button for button in app.main.button if button.label == "Forget this trace").click().run()
    assert not app.exception and not app.metric and "show.trace" not in query_of(app)
    next(button for button in app.main.button if button.label == "Try an example").click().run()
    assert "You need" in app.title[0].value and query_of(app)["show.trace"] == answers.EXAMPLE


def test_the_example_is_an_office_day_with_bursts() -> None:
    trace = example_trace()
    counts = np.array([hour.last - hour.first for hour in hours(trace)])
    assert len(counts) == 24 and trace.arrival_s[-1] < 24 * HOUR_S
    assert np.corrcoef(counts, DAYS["Office hours"])[0, 1] > 0.95
    assert counts.max() / HOUR_S == pytest.approx(12.0, rel=0.15)
    assert dispersion(trace) > 1.3
    assert answers.trace_digest(trace) == answers.trace_digest(example_trace())


SPAN = b"arrival_s,isl,osl\n0,5,5\n9000000,5,5\n"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "arrival_s"),
        (b"arrival_s,isl,osl\n0,5,5\n1,many,5\n", "'many'"),
        (b"arrival_s,isl,osl\n0,5,5\n", "2 requests or more"),
        (gzip.compress(FILE)[:-20], "cut off or damaged"),
        (SPAN, "more than the 31"),
    ],
)
def test_what_is_no_trace_is_said_in_a_line_and_changes_nothing(opened: Open, content: bytes, part: str) -> None:
    app = uploaded(uploaded(opened(**TO_TRACE)), content, "../<b>no</b>.csv")
    assert [part in text_of(error.value) for error in app.main.error] == [True]
    line = app.main.error[0].value
    assert "\n" not in line and "<b>" not in line.replace("\\<", "") and "/tmp" not in line
    assert text_of(app.title[0].value) == sentence(found_by(app).plan)


@pytest.mark.parametrize(
    ("name", "most", "part"),
    [
        ("MOST_KEPT", 5000, "than the 5,000 of this page"),
        ("MOST_KEPT_IN_ALL", 5000, "holds too many traces"),
        ("MOST_UNPACKED_BYTES", 1 << 16, "once unpacked"),
        ("MOST_UPLOAD_BYTES", 1 << 10, "larger than"),
        ("MOST_REPLAYED", 5000, "that this page replays"),
    ],
)
def test_more_than_a_page_can_take_is_refused_with_the_way_out(
    opened: Open, monkeypatch: pytest.MonkeyPatch, name: str, most: int, part: str
) -> None:
    monkeypatch.setattr(answers, name, most)
    app = opened(**TO_TRACE)
    uploaded(app, gzip.compress(FILE) if name == "MOST_UNPACKED_BYTES" else FILE)
    assert [part in text_of(error.value) for error in app.main.error] == [True]
    assert not app.metric
    assert name == "MOST_KEPT_IN_ALL" or "no such limit" in text_of(app.main.error[0].value)


def test_a_table_of_very_many_rows_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"arrival_s": np.zeros(50_000), "isl": np.ones(50_000), "osl": np.ones(50_000)}), file)
    monkeypatch.setattr(answers, "MOST_KEPT", 49_999)
    assert "than the 49,999 of this page" in str(answers.recorded("t.parquet", file.read_bytes()))


def test_no_fleet_is_told_without_a_count(opened: Open) -> None:
    app = uploaded(opened(replace(ONE, itl=Limit("itl", 99, 0.0001)), **TO_TRACE))
    assert app.title[0].value == "No configuration meets this SLA"
    assert not app.metric and "You need" not in shown(app) and "Nearest miss" in shown(app)
    assert "instead of 0.1 ms" in shown(app), shown(app)


def test_a_dear_trace_is_refused_with_its_reason_above_the_trace(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = uploaded(opened(**TO_TRACE))
    monkeypatch.setenv("SIZING_TIME_LIMIT_S", "1e-6")
    app.sidebar.number_input(key="spare").set_value(2).run()
    assert not app.exception
    assert "takes too long" in shown(app) and "takes less time" in shown(app)
    monkeypatch.setenv("SIZING_TIME_LIMIT_S", "0")
    app.run()
    assert "You need" in app.title[0].value


@settings(max_examples=40)
@given(
    st.floats(0, 86_000),
    st.floats(1, 31 * 86_400),
    st.one_of(st.just(math.nan), st.floats(1e8, 4e9)),
    st.integers(0, 1000),
)
def test_charts_hold_every_request_in_few_points(first_s: float, span_s: float, began_s: float, seed: int) -> None:
    """Rates times their seconds add up to the requests, shares to 100 %; the slider's marks name the whole trace."""
    rng = np.random.default_rng(seed)
    arrival_s = first_s + np.sort(rng.uniform(0, span_s, 200))
    trace = Trace(arrival_s, *(rng.integers(1, 9000, 200).astype(np.int32) for _ in range(2)), began_s=began_s)
    steps = requests_over_time(trace, None, LIGHT).figure.data[0]
    assert len(steps.y) <= MOST_POINTS + 2
    each = next(s for s in (1, 60, 120, 300, 600, 900, 1800, 3600) if round(sum(steps.y[:-1]) * s, 6) == 200)
    assert each * (len(steps.y) - 1) >= trace.span_s
    for line in lengths_of_requests(trace, LIGHT).figure.data:
        assert sum(line.y[:-1]) == pytest.approx(100)
    marks = clock_marks(trace)
    assert len(marks) == len(set(marks)) <= 202
    assert len(trace.window(f"{marks[0]}..{marks[-1]}")) == 200


def test_the_digest_is_that_of_the_requests() -> None:
    same, later = requests(), requests(1.7e9)
    assert answers.trace_digest(same) == answers.trace_digest(TRACE) != answers.trace_digest(later)
    longer = Trace(same.arrival_s, same.isl + 1, same.osl)
    assert answers.trace_digest(longer) != answers.trace_digest(same)


def test_the_last_few_are_remembered() -> None:
    values: dict[object, object] = {}
    made: list[int] = []

    def ask(key: int) -> int:
        return remembered(values, key, lambda: made.append(key) or key, 2)  # type: ignore[func-returns-value]

    assert [ask(key) for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]


def test_a_plan_of_gaps_alone_has_hours_too() -> None:
    """A limit on gaps between tokens is no one request's: it has no chart of its own."""
    scenario = replace(ONE, ttft=None, itl=None, gap=Limit("gap", 99, 0.1))
    question = answers.question_of(scenario, TRACE)
    assert question.sla == Sla(Limit("gap", 99, 0.1))
    found = plan_trace(question, TRACE, *find(ONE.model, question.workload.lengths, ONE.choice))
    assert len(gpus_by_hour(found, LIGHT).figure.data[0].y) == HOURS


def test_files_of_the_answer_are_its_report(answered: AppTest) -> None:
    found = found_by(answered)
    labels = {button.proto.label for button in answered.get("download_button")}
    assert labels >= {label for label, _ in FILES.values()}
    page = answers.traced_file(found, "https://sizing.example/?x=1", "html").decode()
    assert "Recorded traffic" in page and "Poisson arrivals of the trace" in page
    assert "https://sizing.example/?x=1" in page
    starts = {"pdf": b"%PDF", "xlsx": b"PK"}
    for suffix, begin in starts.items():
        assert answers.traced_file(found, "", suffix).startswith(begin)


def test_what_binds_is_said_of_the_requests_replayed(answered: AppTest) -> None:
    assert "over all requests replayed" in shown(answered) and "planned load" not in shown(answered)


def test_a_second_file_is_a_class_with_limits_of_its_own(opened: Open) -> None:
    app = uploaded(opened(**TO_TRACE), name="chat.csv")
    alone = found_by(app).plan.answer
    next(toggle for toggle in app.main.toggle if toggle.label.startswith("Add it")).set_value(True).run()
    uploaded(app, name="code.csv")
    both = found_by(app)
    assert both.trace.classes == ("chat", "code") and len(both.trace) == 2 * len(TRACE)
    assert both.plan.answer.working > alone.working
    assert f"chat ({len(TRACE):,} requests), code ({len(TRACE):,} requests)" in shown(app)
    limits = "code:ttft=p50:4s,itl=none"
    app.main.text_input(key="show.classes").set_value(limits).run()
    assert not app.exception and query_of(app)["show.classes"] == limits
    chat, code = found_by(app).replayed.classes
    assert chat.sla == ONE.question.sla and [str(limit) for limit in code.sla.limits] == ["p50 TTFT <= 4000 ms"]
    table = next(frame.value for frame in app.main.dataframe if "Class" in frame.value and "Limit" in frame.value)
    assert table["Class"].tolist() == ["chat"] * len(chat.sla.limits) + ["code"]
    app.main.text_input(key="show.classes").set_value("batch:ttft=p50:4s").run()
    assert not app.exception and "the trace has 'chat', 'code'" in shown(app)


def test_a_class_column_is_read_on_the_page(opened: Open) -> None:
    rows = FILE.decode().splitlines()
    named = [f"{row},{'chat' if place % 2 else 'code'}" for place, row in enumerate(rows[1:])]
    app = uploaded(opened(**TO_TRACE), "\n".join([f"{rows[0]},class", *named, ""]).encode())
    assert [seen.name for seen in found_by(app).replayed.classes] == ["code", "chat"]
