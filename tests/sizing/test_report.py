"""The report's value: the planner's own numbers, JSON and back, and what may never be in it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sizing import planner
from sizing import text as answer
from sizing.analyses.curves import load_curve
from sizing.analyses.daily import Daily, gpus_by_hour
from sizing.analyses.sensitivity import sensitivities
from sizing.catalog import Layout
from sizing.edge import latency_band, predict_at
from sizing.engine import UNLIMITED_KV_TOKENS
from sizing.explain import cost_rejection
from sizing.plans import Candidate, cost_of
from sizing.points import Point
from sizing.question import replicas_for
from sizing.report import tables
from sizing.report.build import CHOSEN, Cover, cells, evidence, refusal_of, report_of, source_of
from sizing.report.charts import traffic_chart
from sizing.report.document import as_html
from sizing.report.model import (
    MOST_BYTES,
    SCHEMA,
    ClassLimit,
    Quantity,
    Report,
    ReportError,
    SourceRow,
    Traffic,
    TrafficHour,
    Unit,
    as_dict,
    as_json,
    digest,
    question_digest,
    with_cover,
)
from sizing.report.sections import scenario_toml
from sizing.report.write import file_name
from sizing.text import DEFINITIONS, LINES, Extras, accuracy
from sizing.workload import Limit, Sla
from tests.sizing.report_cases import CANDIDATES, COVER, QUESTION, RATES, REJECTED, daily, plan, refusal, report

TEXT = st.text(max_size=40)


ONE_OF_SEVERAL = re.compile(r"(?<![\d.,])1 (GPUs|GPU-hours|hours|replicas|requests|tokens|turns|sessions|points)\b")


def test_one_of_anything_is_no_plural() -> None:
    """One GPU for one request/s, of one token each, which runs for an hour of the day and for one of the trace."""
    lengths = dataclasses.replace(QUESTION.workload.lengths, osl=1.0, osl_cv=0.0)
    workload = dataclasses.replace(QUESTION.workload, rate_per_s=1.0, lengths=lengths)
    asked = dataclasses.replace(QUESTION, workload=workload, sla=Sla(Limit("ttft", 95, 0.5)), spare=0)
    found = planner.plan(asked, CANDIDATES[:1])
    busy_once = gpus_by_hour(asked, found.answer, (0.0,) * 23 + (1.0,))
    rows = sensitivities(asked, found.answer)
    made = report_of(found, load_curve(asked, found.answer), Extras(rows, busy_once), COVER)
    assert made.answer is not None and made.answer.gpus.value == 1 and busy_once.gpu_hours == 1
    hour = TrafficHour("0:00", Quantity(1.0, "requests", "given"), Quantity(1.0, "share", "estimated"), (), SOME_GPU)
    traffic = traffic_chart(Traffic((), (), (hour,), SOME_GPU)).alt
    said = [as_html(made), as_json(made), *LINES["daily"](busy_once, found), traffic]
    assert not [text for each in said if (text := ONE_OF_SEVERAL.search(each))]
    assert "1 request/s" in said[0] and "As asked: 1 GPU." in said[0] and "1 GPU-hour a day" in said[0]


SOME_GPU = Quantity(1.0, "GPUs", "estimated")


def test_a_cache_of_unknown_size_is_given_none() -> None:
    (of_known,) = (line for line in report().assumptions if "at once" in line)
    assert of_known.endswith("400,000 tokens of KV cache.")
    rule = dataclasses.replace(CANDIDATES[0].replica.batching, kv_tokens=UNLIMITED_KV_TOKENS)
    engine = dataclasses.replace(CANDIDATES[0], replica=dataclasses.replace(CANDIDATES[0].replica, batching=rule))
    made = report_of(planner.plan(QUESTION, [engine]), None, Extras(), COVER)
    (of_unknown,) = (line for line in made.assumptions if "at once" in line)
    assert of_unknown.endswith("and a KV cache that is never full, as its size is not known.")
    assert "not that of KV cache memory" in " ".join(made.includes)
    assert "not that of KV cache memory" not in " ".join(report().includes)


def test_every_number_is_the_planner_s() -> None:
    found, fleet = report(), plan().answer
    assert found.answer is not None
    assert (found.answer.gpus.value, found.answer.working.value) == (fleet.gpus, fleet.working)
    assert found.answer.planned_per_gpu.value == fleet.requests_per_s_per_gpu
    assert [each.gpus.value for each in found.configurations] == [each.gpus for each in plan().fleets]
    assert [row.predicted.value for row in found.limits] == [fleet.predicted.value_s(x) for x in QUESTION.sla.limits]
    assert [row.limit.value for row in found.limits] == [limit.limit_s for limit in QUESTION.sla.limits]
    assert (found.sentence, found.working) == (answer.sentence(plan()), answer.working(plan()))
    assert [(row.gpu, row.why) for row in found.left_out if row.kind == "memory"] == [(REJECTED.gpu, REJECTED.why)]
    cost = cost_of(QUESTION, fleet)
    assert cost is not None
    assert found.cost[0].value == Quantity(cost.per_hour, "per hour", fleet.basis)


def test_every_number_has_a_unit_and_a_basis() -> None:
    def walk(value: object) -> None:
        if isinstance(value, dict) and "value" in value and "unit" in value:
            assert value["basis"] in ("given", "estimated")
        elif isinstance(value, dict):
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(as_dict(report()))
    given_ = {row.key: row.value for row in report().inputs}
    assert given_["rate_per_s"] == Quantity(40.0, "requests/s", "given")
    assert given_["ttft_p95_s"] == Quantity(0.5, "s", "given")


def test_the_planned_load_lies_on_its_curve() -> None:
    curves, fleet = report().curves, plan().answer
    assert curves is not None
    for curve, limit in zip(curves.curves, QUESTION.sla.limits, strict=True):
        assert curve.planned_s == fleet.predicted.value_s(limit)
        known = [value for value in curve.latency.values if value is not None]
        below = [v for x, v in zip(curves.load.values, known, strict=False) if x is not None and x <= fleet.load_per_s]
        assert max(below) <= 1.15 * fleet.predicted.value_s(limit)  # the curve is by formula, the plan simulated


@pytest.mark.parametrize("found", [report, refusal])
def test_json_comes_back_as_it_went(found: object) -> None:
    value = found()  # type: ignore[operator]
    document = as_json(value)
    assert Report.from_json(document) == value
    assert as_json(Report.from_json(document.encode())) == document
    assert json.loads(document)["schema"] == SCHEMA


@settings(max_examples=40, deadline=None)
@given(title=TEXT, notes=TEXT, value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_comes_back(title: str, notes: str, value: float) -> None:
    cost = dataclasses.replace(report().cost[0], value=Quantity(value, "per hour", "given"))
    changed = dataclasses.replace(report(), title=title, notes=notes, cost=(cost,))
    assert Report.from_json(as_json(changed)) == changed


@settings(max_examples=200, deadline=None)
@given(value=st.floats(1e-6, 1e9), unit=st.sampled_from(["s", "share", "GPUs", "requests/s"]))
def test_a_number_reads_as_what_it_is(value: float, unit: Unit) -> None:
    text = tables.number_of(Quantity(value, unit, "given"))
    digits, _, shown = text.removeprefix("over ").partition(" ")
    scale = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}[shown]
    error = 0.5 if unit == "GPUs" else 0.0051 * value
    assert float(digits.replace(",", "")) * scale == pytest.approx(value, abs=error)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "JSON object"),
        ("{}", "schema None"),
        ('{"schema": "sizing-report/999"}', SCHEMA),
        ('{"schema": ["sizing-report/2"]}', SCHEMA),
        (json.dumps({"schema": SCHEMA}), "title"),
        (b"\xff\xfe", "not JSON"),
        (b" " * (MOST_BYTES + 1), "larger"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(document: str | bytes, said: str) -> None:
    with pytest.raises(ReportError) as error:
        Report.from_json(document)
    assert said in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ('"tp": 1,', '"tp": 0,', "tp"),
        ('"title":', '"tilte":', "tilte: unknown key"),
        ('"value": 40.0', '"value": NaN', "finite"),
        ('"value": 40.0', '"value": 1e999', "finite"),
        ('"unit": "s"', '"unit": "hours"', "unit"),
    ],
)
def test_one_impossible_value_is_named(good: str, bad: str, said: str) -> None:
    document = as_json(report())
    assert good in document
    with pytest.raises(ReportError, match=said):
        Report.from_json(document.replace(good, bad, 1))


def test_curves_and_rows_must_be_of_a_piece() -> None:
    values = as_dict(report())
    values["curves"]["load"]["values"] = values["curves"]["load"]["values"][:-1]
    with pytest.raises(ReportError, match="as many latencies as there are loads"):
        Report.from_json(json.dumps(values))
    values = as_dict(report())
    values["sensitivity"][0]["effects"] = values["sensitivity"][0]["effects"][:-1]
    with pytest.raises(ReportError, match="same changes"):
        Report.from_json(json.dumps(values))


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(ReportError, match="title"):
        with_cover(report(), title="x" * 1_000_000)
    assert with_cover(report(), title=None) == report()


def test_a_report_without_an_answer_holds_no_count() -> None:
    document = as_json(refusal())
    assert refusal().answer is None
    assert not re.search(r"\d+ GPUs", document)
    assert '"unit": "GPUs"' not in document and "72" not in document and "36" not in document
    unasked = refusal_of(None, "No configuration meets this SLA", "why", [REJECTED], COVER)
    assert unasked.left_out[0].why == REJECTED.why and not unasked.inputs


def test_the_digest_tells_reports_apart() -> None:
    assert digest(report()) == digest(Report.from_json(as_json(report())))
    assert digest(report()) != digest(with_cover(report(), notes="other"))


def test_the_question_s_digest_is_of_what_was_asked_alone() -> None:
    asked = question_digest(report())
    other = dataclasses.replace(report().inputs[1], value=Quantity(41.0, "requests/s", "given"))
    link = "http://x.test/?v=1"
    assert asked == question_digest(with_cover(report(), title="other", notes="other", link="http://y.test/a?v=1&n=3"))
    assert asked == question_digest(dataclasses.replace(report(), made_at="2027-01-01T00:00:00+00:00"))
    assert asked != question_digest(dataclasses.replace(report(), inputs=(report().inputs[0], other)))
    assert asked != question_digest(with_cover(report(), link=f"{link}&gpu=big"))  # what may be bought
    assert asked in file_name(report(), "pdf")


def test_another_choice_day_or_limit_of_a_class_is_another_question() -> None:
    def compared(candidates: Sequence[Candidate], hours: Daily | None = None) -> Report:
        return report_of(planner.plan(QUESTION, candidates, [REJECTED]), None, Extras(daily=hours), Cover(""))

    def within(limit_s: float) -> Report:
        share, seconds = Quantity(1.0, "share", "estimated"), Quantity(0.2, "s", "estimated")
        requests, gpus = Quantity(100.0, "requests", "given"), Quantity(2.0, "GPUs", "estimated")
        limit = Quantity(limit_s, "s", "given")
        of_class = ClassLimit("ttft", 95, "code", requests, limit, seconds, share, share, "00:00", share)
        hour = TrafficHour("00:00", requests, share, (), gpus)
        return dataclasses.replace(whole, traffic=Traffic((), (), (hour,), gpus, (of_class,)))

    whole = compared(CANDIDATES)
    fp8 = [dataclasses.replace(each, precision="fp8") for each in CANDIDATES]
    backwards = gpus_by_hour(QUESTION, plan().answer, RATES[::-1])
    different = (
        whole,
        compared(CANDIDATES[:2]),
        compared(fp8),
        compared(CANDIDATES, daily()),
        compared(CANDIDATES, backwards),
        within(0.3),
        within(0.5),
    )
    assert len({*map(question_digest, different)}) == len(different)
    assert question_digest(compared(CANDIDATES[::-1])) == question_digest(whole)
    assert question_digest(with_cover(whole, link="http://x.test/")) == question_digest(whole)


def band_of(limit: Limit, **of_law: object) -> tuple[float, float]:
    """The band of a latency where the candidate's law is known otherwise."""
    fleet = plan().answer
    candidate = dataclasses.replace(fleet.candidate, **of_law)  # type: ignore[arg-type]
    return latency_band(candidate, QUESTION.setting(fleet.working), fleet.load_per_s)(limit)


def test_the_band_of_a_latency_grows_with_the_doubt_and_holds_the_value() -> None:
    for limit in QUESTION.sla.limits:
        bands = [band_of(limit, relative_sigma=value) for value in (0.0, 0.02, 0.1)]
        assert bands[0] == pytest.approx((1.0, 1.0))
        assert bands[2][0] < bands[1][0] < 1 < bands[1][1] < bands[2][1]
        # at the same load a faster engine is also less busy: the times shrink by at least the factor of the law
        assert bands[1][0] <= math.exp(-1.645 * 0.02) * (1 + 1e-9)


def test_an_engine_that_cannot_carry_the_load_opens_the_band() -> None:
    assert band_of(QUESTION.sla.limits[0], relative_sigma=1.0)[1] == math.inf


def test_pairs_of_laws_add_in_quadrature() -> None:
    replica = plan().answer.candidate.replica
    pair = (
        dataclasses.replace(replica, law=replica.law.scaled(1.01)),
        dataclasses.replace(replica, law=replica.law.scaled(1 / 1.01)),
    )
    limit = QUESTION.sla.limits[1]

    def band(*pairs: object) -> tuple[float, float]:
        return band_of(limit, variants=pairs)

    assert math.log(band(pair, pair)[1]) == pytest.approx(math.sqrt(2) * math.log(band(pair)[1]))
    assert band(pair)[0] == pytest.approx(1 / band(pair)[1])


def test_a_law_too_slow_for_the_load_leaves_the_band_its_fast_end() -> None:
    fleet, limit = plan().answer, QUESTION.sla.limits[0]
    fast, same, slow = (
        dataclasses.replace(fleet.candidate.replica, law=fleet.candidate.replica.law.scaled(by)) for by in (0.9, 1, 3)
    )
    fast_s, same_s = (
        predict_at(each, QUESTION.setting(fleet.working), fleet.load_per_s).value_s(limit) for each in (fast, same)
    )
    low, high = band_of(limit, variants=((fast, slow),))
    assert (limit.metric, limit.percentile, high) == ("ttft", 95, math.inf)
    assert math.log(low) == pytest.approx(-1.645 * math.hypot(math.log(fast_s / same_s), 0.06), rel=1e-3)


def test_evidence_is_read_from_the_page_that_holds_it() -> None:
    rows = evidence()
    assert {row.claim for row in rows} == set(CHOSEN)  # a claim renamed there is renamed here
    assert any(row.holds == "no" for row in rows) and any(row.holds == "yes" for row in rows)
    assert cells(r"| a \| b | c |") == ["a | b", "c"]
    assert all(row.median.endswith("%") for row in rows)


def test_estimates_name_the_catalogue_and_no_points() -> None:
    source = source_of(plan().answer)
    assert source.points == 0 and not source.measured_from and len(source.digest) == 12


def measured(load: int, **fields: object) -> Point:
    known: dict[str, object] = {
        "model": "Acme/Tiny",
        "precision": "bf16",
        "gpu": "small",
        "tp": 1,
        "engine": "vLLM",
        "engine_version": "0.9",
        "isl": 1000,
        "osl": 200,
        "load_kind": "concurrency",
        "load_value": load,
        "requests_per_s": load / 5,
        "measured_at": f"2026-11-{load:02d}T10:00:00+00:00",
    }
    return Point(**{**known, **fields})  # type: ignore[arg-type]


def test_a_fitted_law_names_its_points_their_engine_dates_and_digest() -> None:
    fleet = plan().answer
    fitted = dataclasses.replace(
        fleet.candidate, gpu="small", layout=Layout(), basis="fitted", source="2 measured points, vLLM 0.9"
    )
    used = (measured(3), measured(7))

    def source(points: tuple[Point, ...]) -> SourceRow:
        return source_of(dataclasses.replace(fleet, candidate=dataclasses.replace(fitted, fitted_to=points)))

    found = source(used)
    assert (found.points, found.engine, found.basis) == (2, "vLLM 0.9", "fitted")
    assert (found.measured_from, found.measured_to) == (used[0].measured_at, used[1].measured_at)
    assert found.digest == source(used).digest != source(used[:1]).digest
    pair = fitted.replica, fitted.replica
    scaled = dataclasses.replace(fitted, fitted_to=used[:1], basis="estimated", variants=(pair,))
    one = source_of(dataclasses.replace(fleet, candidate=scaled))
    assert (one.points, one.measured_from, one.digest) == (1, used[0].measured_at, source(used[:1]).digest)
    assert "standard error of 5 % at the one load level" in accuracy(dataclasses.replace(fleet, candidate=scaled))
    changed = dataclasses.replace(fitted, fitted_to=used, basis="what-if")
    assert source_of(dataclasses.replace(fleet, candidate=changed)).points == 0, "nobody measured what might be"


@pytest.mark.parametrize("layout", [Layout(4, 2), Layout(dp=8, ep=8), Layout(tp=2, dp=4, ep=8)])
def test_what_multiplies_to_the_gpus_of_a_replica_is_defined(layout: Layout) -> None:
    (sizes,) = (term for term, meaning in DEFINITIONS if "their product is the number of GPUs" in meaning)
    ways = layout.as_dict()
    assert math.prod(ways[name.lower()] for name in sizes.split(", ")) == layout.gpus
    assert {name.rstrip("0123456789") for name in str(layout).split()} <= {*sizes.split(", "), *dict(DEFINITIONS)}


def test_the_scenario_is_toml() -> None:
    hostile = dataclasses.replace(report().inputs[0], value='"\x7f\n\\ = 1' + 3000 * "x")  # as long as a histogram
    text = scenario_toml(dataclasses.replace(report(), inputs=(hostile, *report().inputs[1:])))
    found = tomllib.loads(text)
    assert found["model"] == hostile.value and found["rate_per_s"] == 40 and found["osl_cv"] == 0.5


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_file_name_is_safe_on_every_file_system(model: str, gpu: str) -> None:
    found = report().configurations[0]
    name = file_name(
        dataclasses.replace(report(), model=model, configurations=(dataclasses.replace(found, gpu=gpu),)), "pdf"
    )
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") and len(name) < 150
    assert name.startswith("sizing") and name.endswith(".pdf") and ".." not in name


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e3))
@example(30.0, 9.99)  # 3.003, so 4
@example(0.1, 293.0)  # 0.0003, so 1
@example(30.0, 10.0)
def test_the_quotient_in_the_working_is_seen_to_give_the_count(rate_per_s: float, per_replica: float) -> None:
    workload = dataclasses.replace(QUESTION.workload, rate_per_s=rate_per_s)
    asked = dataclasses.replace(QUESTION, workload=workload, headroom=0.0)
    rate = dict.fromkeys(("capacity_per_s", "requests_per_s_per_replica"), per_replica)
    fleet = dataclasses.replace(plan().answer, working=replicas_for(rate_per_s, per_replica), **rate)
    shown = re.search(
        r" = ([\d,.]+), so ([\d,]+)", answer.working(dataclasses.replace(plan(), question=asked, fleets=(fleet,)))
    )
    assert shown is not None
    quotient, count = (float(text.replace(",", "")) for text in shown.groups())
    assert quotient <= count < quotient + 1


def test_large_counts_read_alike_in_every_sentence() -> None:
    low, working, high = 166_520, 227_384, 331_316
    fleet = dataclasses.replace(plan().answer, working=working, spare=1, working_low=low, working_high=high)
    many, each = dataclasses.replace(plan(), fleets=(fleet,)), fleet.candidate.gpus
    assert answer.sentence(many).startswith(f"You need {(working + 1) * each:,} × ")
    assert answer.band(fleet) == f"{(low + 1) * each:,} to {(high + 1) * each:,} GPUs (90 % band)"
    assert "227,384" in answer.working(many) and "+ 1 spare = 227,385 replicas" in answer.working(many)
    assert "225,293 of the same GPU" in cost_rejection(fleet.candidate, 361_044, 225_293).why
