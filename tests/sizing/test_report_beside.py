"""What stands beside count and latencies: every part in every output, ways out of an SLA, and GPUs over a day."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial

import pytest

from api.mcp_server import BESIDE
from sizing.cli.shapes import KEYS
from sizing.cli.tables import PRINTED
from sizing.numbers import milliseconds, significant
from sizing.report.build import REMARKS, SECTIONS
from sizing.report.model import SCHEMA, Report, ReportError, as_dict, as_json
from sizing.report.write import WRITERS, render
from sizing.text import LINES, Extras, ways_out_lines
from tests.sizing.report_cases import (
    QUESTION,
    RATES,
    STRICT,
    STRICTER,
    Page,
    daily,
    day_report,
    pdf_text,
    plan,
    refusal_with_ways,
    report,
    rows_below,
    sheets,
    squeezed,
    ways,
)
from ui import answers
from ui.views import answer, compare, sessions, traced

FIELDS = {field.name for field in dataclasses.fields(Extras)}
ON_PAGES: dict[str, Callable[..., object]] = {
    "sensitivity": answers.report,
    "daily": traced.show_day,
    "verification": answer.show_plan,
    "pools": compare.draw_pools,
    "trace": traced.show_replayed,
    "goodput_prices": answer.show_prices,
    "sessions": sessions.show_sessions,
}
NOT_ON_PAGES = {"tuned", "mix"}
"""What no page asks: a search of minutes, and prices and stocks of every GPU, for which the form has no fields."""
RENAMED = {"pools": "disaggregated", "goodput_prices": "goodput_price"}
"""JSON keys of parts that are called otherwise: a contract."""
NOT_BESIDE = {
    "trace": "its requests are in a file, which a program cannot send",
    "sensitivity": "the tool `explain` tells it",
}
"""JSON keys that are not told beside the count by MCP, and why."""


def test_every_output_tells_every_part_of_an_answer() -> None:
    assert {name for place in PRINTED.values() for name in place} == FIELDS
    assert KEYS.keys() == FIELDS
    assert {*SECTIONS, *REMARKS} == FIELDS and not {*SECTIONS} & {*REMARKS}
    assert {*REMARKS} <= LINES.keys() <= FIELDS
    assert not ON_PAGES.keys() & NOT_ON_PAGES and ON_PAGES.keys() | NOT_ON_PAGES == FIELDS


def test_mcp_tells_every_json_key_that_a_part_adds() -> None:
    keys = {RENAMED.get(name, name) for name in FIELDS}
    assert keys - NOT_BESIDE.keys() == BESIDE.keys() - {"workloads"}  # of a fleet that several share


def test_the_smallest_relaxation_is_the_planner_s_in_all_four() -> None:
    found = refusal_with_ways(STRICT)
    ttft, itl = ways(STRICT)[0]
    assert itl.smallest and itl.roomy and itl.candidate and itl.smallest.limit_s > itl.limit.limit_s
    said = [milliseconds(each.limit_s) for each in (itl.limit, itl.smallest, itl.roomy)]
    page = Page(render(found, "html").decode())
    rows = {row[0]: row for row in page.table("Limit")}
    assert rows["p95 ITL"][1:4] == said and rows["p95 ITL"][5] == itl.candidate.label
    printed = pdf_text(render(found, "pdf"))
    assert all(squeezed("".join(row)) in printed for row in rows.values())
    in_book = {row[0]: row for row in rows_below(sheets(render(found, "xlsx"))["Answer"], "Limit")}
    seconds = [each.limit_s for each in (itl.limit, itl.smallest, itl.roomy)]
    assert list(in_book["p95 ITL"][1:4]) == pytest.approx([1000 * each for each in seconds])
    in_json = json.loads(render(found, "json"))["ways_out"][1]
    assert [in_json[name]["value"] for name in ("limit", "smallest", "roomy")] == seconds
    # TTFT alone does not help: it is ITL that is missed
    assert ttft.smallest is None and rows["p95 TTFT"][2] == in_book["p95 TTFT"][2] == "none alone"
    assert not found.together


def test_a_limit_that_is_met_is_said_to_be_kept() -> None:
    found = refusal_with_ways(QUESTION)  # a question that has an answer
    assert all(way.smallest and way.smallest.limit_s <= way.limit.limit_s for way in ways(QUESTION)[0])
    shown = Page(render(found, "html").decode()).table("Limit")
    assert [row[2:4] for row in shown] == [["kept as asked", "\u2014"]] * len(QUESTION.sla.limits)


def test_where_no_limit_alone_will_do_all_that_must_give_are_named() -> None:
    alone, nearest = ways(STRICTER)
    assert nearest is not None and len(nearest.limits) == 2 and not any(way.smallest for way in alone)
    found = refusal_with_ways(STRICTER)
    assert [(row.name, row.smallest.value) for row in found.together] == [
        (f"p95 {limit.metric.upper()}", limit.limit_s) for limit in nearest.limits
    ]
    texts = {
        "html": Page(render(found, "html").decode()).text,
        "pdf": pdf_text(render(found, "pdf")),
        "json": render(found, "json").decode(),
    }
    for limit in nearest.limits:
        for suffix in ("html", "pdf"):
            assert squeezed(milliseconds(limit.limit_s)) in squeezed(texts[suffix])
        assert str(limit.limit_s) in texts["json"]
    assert all(squeezed(nearest.candidate.label) in squeezed(text) for text in texts.values())
    cells = [cell for row in sheets(render(found, "xlsx"))["Answer"] for cell in row]
    assert all(any(cell == pytest.approx(1000 * limit.limit_s) for cell in cells) for limit in nearest.limits)


def test_ways_out_in_words_have_the_figures_of_the_tables() -> None:
    ttft, itl = ways(STRICT)[0]
    lines = ways_out_lines(*ways(STRICT)[:1], None)
    assert itl.smallest and itl.roomy and itl.candidate
    said = [milliseconds(each.limit_s) for each in (itl.smallest, itl.limit, itl.roomy)]
    assert lines[0] == f"{ttft.limit.name}: no value is enough alone, because another limit fails too"
    assert lines[1].startswith(f"p95 ITL: {said[0]} (by simulation) instead of {said[1]}, with {itl.candidate.label}")
    assert said[2] in lines[1]
    _, together = ways(STRICTER)
    assert together is not None
    (last,) = ways_out_lines((), together)
    assert last.startswith("No single limit is enough: ") and together.candidate.label in last
    assert all(f"{limit.name} of {milliseconds(limit.limit_s)}" in last for limit in together.limits)


def test_the_hours_are_the_planner_s_in_all_four() -> None:
    found, day = day_report(), daily()
    hours = [(f"{hour.hour}:00", significant(hour.rate_per_s), hour.replicas, hour.gpus) for hour in day.hours]
    page = Page(render(found, "html").decode())
    assert page.table("Hour") == [[name, rate, f"{n:,}", f"{gpus:,}"] for name, rate, n, gpus in hours]
    printed = pdf_text(render(found, "pdf"))
    assert all(squeezed("".join(row)) in printed for row in page.table("Hour"))
    in_book = rows_below(sheets(render(found, "xlsx"))["Over a day"], "Hour")
    assert [row[0] for row in in_book] == [hour[0] for hour in hours]
    numbers = [(hour.rate_per_s, hour.replicas, hour.gpus, day.constant_gpus) for hour in day.hours]
    assert [tuple(row[1:5]) for row in in_book] == [pytest.approx(each) for each in numbers]
    in_json = json.loads(render(found, "json"))["day"]
    assert in_json["load"]["values"] == list(RATES) and in_json["gpus"]["values"] == [hour.gpus for hour in day.hours]
    assert in_json["gpu_hours"]["value"] == day.gpu_hours and in_json["saved"]["value"] == day.saved
    for text in (page.text, printed):
        for said in (
            f"{day.gpu_hours:,} GPU-hours",
            f"{day.constant_gpu_hours:,}",
            f"{significant(100 * day.saved)} %",
        ):
            assert squeezed(said) in squeezed(text)


def test_a_day_grows_with_its_load_up_to_the_plan_s_own_fleet() -> None:
    gpus = [value or 0 for value in day_report().day.gpus.values]  # type: ignore[union-attr]
    assert gpus == sorted(gpus) and gpus[0] < gpus[-1] == plan().answer.gpus
    assert max(gpus) == day_report().day.constant_gpus.value  # type: ignore[union-attr]


def test_without_a_day_nothing_of_it_is_said() -> None:
    assert report().day is None
    for suffix in ("html", "json"):
        assert "ver a day" not in render(report(), suffix).decode()
    assert "Over a day" not in sheets(render(report(), "xlsx"))
    assert "Overaday" not in pdf_text(render(report(), "pdf"))


def test_the_chart_of_the_day_says_what_it_shows() -> None:
    page = Page(render(day_report(), "html").decode())
    figures = [attributes["aria-label"] or "" for tag, attributes in page.tags if tag == "figure"]
    (said,) = [each for each in figures if each.startswith("GPUs over the day")]
    assert f"{daily().hours[0].gpus} at 0:00" in said and f"{daily().gpu_hours:,} GPU-hours" in said
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("made", [day_report, partial(refusal_with_ways, STRICT), partial(refusal_with_ways, STRICTER)])
def test_what_stands_beside_comes_back_as_it_went(made: Callable[[], Report]) -> None:
    found = made()
    assert Report.from_json(as_json(found)) == found
    assert all(render(found, suffix) for suffix in WRITERS)


def test_the_schema_before_this_one_opens_without_what_it_lacked() -> None:
    values = as_dict(report()) | {"schema": "sizing-report/1"}
    for name in ("ways_out", "together", "day", "traffic", "sessions"):
        del values[name]
    assert Report.from_json(json.dumps(values)) == report()
    assert json.loads(as_json(Report.from_json(json.dumps(values))))["schema"] == SCHEMA
    with pytest.raises(ReportError, match="day: not a field of sizing-report/1"):
        Report.from_json(json.dumps(values | {"day": as_dict(day_report())["day"]}))


@pytest.mark.parametrize("values", [[1.0] * 23, [1.0] * 25, [1.0] * 23 + [None]])
def test_a_day_has_24_hours(values: list[float | None]) -> None:
    document = as_dict(day_report())
    document["day"]["gpus"]["values"] = values
    with pytest.raises(ReportError, match="24"):
        Report.from_json(json.dumps(document))
