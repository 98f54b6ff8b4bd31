"""Links: every scenario survives the way into a URL and back, bad values are named, old links open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sizing.analyses.daily import HOURS
from sizing.catalog import Layout
from sizing.question import (
    ARRIVAL_CV,
    ARRIVAL_SIZE,
    HEADROOM,
    LIMIT_S,
    PEAK_FACTOR,
    PRICE,
    QUEUE,
    RATE,
    SHARE,
    SPARE,
    TIMEOUT_S,
    TOKENS,
    VARIATION,
    Range,
)
from sizing.workload import METRICS, PERCENTILES, ROUTINGS, Arrivals, Limit
from tests.sizing.token_laws import law_of, laws
from ui import link
from ui.link import ANY, Stamp
from ui.scenario import FLEET, OF_PEAK, OF_SERVER, Scenario

LINES = [
    line for line in (Path(__file__).parent / "old_links.txt").read_text().splitlines() if line[:1] not in ("", "#")
]
OLD_LINKS = list(zip(LINES[::2], LINES[1::2], strict=True))

names = some.text(min_size=1, max_size=60).filter(
    lambda text: text.strip() and text.isprintable() and "," not in text and text != ANY
)


def floats(allowed: Range) -> some.SearchStrategy[float]:
    return some.floats(allowed.low, allowed.high)


def whole(allowed: Range) -> some.SearchStrategy[int]:
    return some.integers(int(allowed.low), int(allowed.high))


def limits(metric: str) -> some.SearchStrategy[Limit | None]:
    return some.none() | some.builds(Limit, some.just(metric), some.sampled_from(PERCENTILES), floats(LIMIT_S))


WAYS = some.sampled_from([1, 2, 4, 8, 16])
LAYOUTS = some.builds(lambda tp, pp, dp: Layout(tp, pp, dp, tp * dp), WAYS, WAYS, WAYS)
tokens = whole(TOKENS)
arrivals = some.sampled_from([Arrivals(), Arrivals("constant", 0.0)]) | some.builds(
    Arrivals, some.just("gamma"), floats(ARRIVAL_CV)
)
arrivals |= some.builds(Arrivals, some.just("batch"), size=whole(ARRIVAL_SIZE))
scenarios = some.builds(
    Scenario,
    model=names | some.just("org/name,with a comma"),
    gpus=some.lists(names, unique=True, max_size=3).map(tuple),
    precisions=some.lists(names, unique=True, max_size=3).map(tuple),
    tps=some.lists(some.integers(1, 1024), unique=True, max_size=3).map(tuple),
    layouts=some.lists(LAYOUTS, unique=True, max_size=3).map(tuple),
    rate_per_s=floats(RATE),
    isl=tokens,
    isl_cv=floats(VARIATION),
    osl=tokens,
    osl_cv=floats(VARIATION),
    **{metric: limits(metric) for metric in METRICS},
    headroom=floats(HEADROOM),
    spare=whole(SPARE),
    routing=some.sampled_from(ROUTINGS),
    arrivals=arrivals,
    price_per_gpu_hour=some.none() | floats(PRICE),
    use_points=some.booleans(),
    prefix_share=floats(SHARE),
    prefix_hit=floats(SHARE),
    peak_factor=floats(PEAK_FACTOR),
    gpus_per_server=some.none() | whole(OF_SERVER),
    fleet_gpus=whole(FLEET),
    isl_law=some.none() | laws,
    osl_law=some.none() | laws,
    day=some.lists(floats(OF_PEAK), min_size=HOURS, max_size=HOURS).map(tuple).filter(any),
    goodput=some.none() | some.builds(lambda tenths: Limit.goodput(tenths / 10), some.integers(500, 999)),
    rejected=some.none() | some.builds(lambda parts: Limit.rejected(parts / 100), some.integers(1, 5000)),
    queue_limit=some.none() | whole(QUEUE),
    queue_timeout_s=some.none() | floats(TIMEOUT_S),
)
stamps = some.builds(
    Stamp, some.just("") | some.dates().map(str), some.text("0123456789abcdef", min_size=8, max_size=8)
)


@given(scenarios)
def test_a_scenario_survives_its_link(scenario: Scenario) -> None:
    query = dict(parse_qsl(urlencode(link.to_query(scenario)), strict_parsing=True))
    assert link.from_query(query) == (scenario, [])


@given(scenarios, whole(FLEET), stamps)
def test_the_answer_and_its_data_travel_beside_the_scenario(scenario: Scenario, gpus: int, data: Stamp) -> None:
    query = dict(parse_qsl(urlencode(link.to_query(scenario, gpus, data)), strict_parsing=True))
    assert (link.answer_of(query), link.data_of(query)) == (gpus, data)
    assert link.from_query(query) == (scenario, [])


keys = some.sampled_from([*link.FIELDS, "v", "n", "data", "x"])


@given(some.dictionaries(keys, some.text(max_size=30), min_size=1))
def test_no_query_breaks_the_codec_and_only_a_link_of_ours_is_read_without_a_word(query: dict[str, str]) -> None:
    scenario, problems = link.from_query(query)
    assert problems or link.from_query(link.to_query(scenario)) == (scenario, [])
    assert problems  # no drawn query can hold every field


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rate", "-3", "from 0.000001 to 1,000,000 requests/s"),
        ("rate", "nan", "from 0.000001"),
        ("rate", "inf", "from 0.000001"),
        ("rate", "abc", "number"),
        ("isl", "12.5", "whole number"),
        ("tp", "4,99999", "from 1 to 1,024 GPUs"),
        ("ttft", "p95:30", "unit"),
        ("ttft", "p97:1s", "p50, p90, p95, p99"),
        ("itl", "p95:-1ms", "above 0"),
        ("headroom", "1.5", "from 0 to 0.9"),
        ("routing", "best", "least_outstanding"),
        ("arrivals", "gamma:cv=101", "from 0.01 to 100"),
        ("arrivals", "batch:size=9999999", "arrivals"),
        ("gpu", "h200_sxm,,h100_sxm", "name"),
        ("model", "", "name"),
        ("points", "yes", "on, off"),
        ("spare", "²", "whole number"),
        ("model", "a\u202eb", "printable"),
        ("gpu", ",".join(f"g{n}" for n in range(60)), "at most 50"),
        ("prefix", "1.2", "from 0 to 1"),
        ("prefix_hit", "-0.1", "from 0 to 1"),
        ("peak_factor", "0.5", "from 1 to 100,000"),
        ("server", "0", "from 1 to 1,024 GPUs"),
        ("have", "1e3", "whole number"),
        ("day", "1,2,3", "24 loads"),
        ("day", ",".join(["0"] * 24), "not all 0"),
        ("day", ",".join(["101"] * 24), "from 0 to 100"),
        ("day", ",".join(["1"] * 25), "24 loads"),
    ],
)
def test_a_bad_value_is_named_with_what_would_do_and_what_is_used(key: str, value: str, said: str) -> None:
    scenario, problems = link.from_query({**link.to_query(Scenario(rate_per_s=75.0)), key: value})
    assert len(problems) == 1
    assert problems[0].startswith(f"{key}={value[:1]}") and said in problems[0] and "Used instead" in problems[0]
    assert key == "rate" or scenario.rate_per_s == 75.0


def test_a_field_that_the_link_lacks_and_one_that_nobody_knows_are_named() -> None:
    query = link.to_query(Scenario())
    del query["isl"]
    _, problems = link.from_query({**query, "gpus": "h200_sxm"})
    assert len(problems) == 2
    assert "isl" in problems[0] and "gpus" in problems[1]


def test_a_link_written_by_hand_is_told_once_that_defaults_fill_it() -> None:
    scenario, problems = link.from_query({"rate": "75"})
    assert scenario == Scenario(rate_per_s=75.0)
    assert problems == ["Written by hand (no version in the link), so defaults are used for what it leaves out."]


def test_a_newer_version_is_named() -> None:
    assert "v=3" in link.from_query({**link.to_query(Scenario()), "v": "3"})[1][0]


@pytest.mark.parametrize("beside", [{"n": "-9"}, {"n": "9 GPUs"}, {"data": "yesterday"}, {"data": "2026-11-20"}])
def test_an_answer_that_is_none_is_named_and_ignored(beside: dict[str, str]) -> None:
    query = link.to_query(Scenario()) | beside
    scenario, problems = link.from_query(query)
    assert scenario == Scenario() and len(problems) == 1 and problems[0].startswith("=".join(*beside.items()))
    assert link.answer_of(query) is None and link.data_of(query) is None


LONG, LONG_NUMBER, MARKUP, CONTROL = "9" * 10_000, "9" * 400, "<script>alert(1)</script>", "a\x00\x07\n\u202eb"


@pytest.mark.parametrize("value", [LONG, LONG_NUMBER, MARKUP * 400, CONTROL, "," * 10_000])
@pytest.mark.parametrize("key", [*link.FIELDS, "n", "data", "v", "nobody"])
def test_a_hostile_value_is_told_in_one_short_line_of_visible_signs(key: str, value: str) -> None:
    _, problems = link.from_query(link.to_query(Scenario()) | {key: value})
    assert len(problems) == 1
    assert len(problems[0]) < 400 and problems[0].isprintable()


def test_many_unknown_parameters_are_one_line() -> None:
    _, problems = link.from_query(link.to_query(Scenario()) | {f"key{n}": "" for n in range(1000)})
    assert len(problems) == 1 and "and 992 more" in problems[0]


def test_a_parameter_that_comes_twice_is_named() -> None:
    assert link.repeated({"rate": 1, "isl": 2, "osl": 3}) == [
        "Repeated in the link, so the last value is used: isl, osl."
    ]
    assert link.repeated({"rate": 1}) == []


def test_a_link_that_says_only_what_to_show_opens_on_the_default() -> None:
    assert link.from_query({"show.size": "day"}) == (Scenario(), [])


def opens_on(told: str) -> Scenario:
    """The scenario that a line of old_links.txt tells."""
    values: dict[str, Any] = json.loads(told)
    for metric in METRICS:
        if values.get(metric) is not None:
            values[metric] = Limit.parse(metric, values[metric])
    if "arrivals" in values:
        values["arrivals"] = Arrivals.parse(values["arrivals"])
    values |= {name: law_of(text) for name, text in values.items() if name in ("isl_law", "osl_law")}
    if "layouts" in values:
        values["layouts"] = [Layout.parse(word) for word in values["layouts"]]
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return replace(Scenario(), **values)


@pytest.mark.parametrize(("old", "told"), OLD_LINKS)
def test_old_links_still_open_on_what_they_said_without_a_word(old: str, told: str) -> None:
    assert link.from_query(dict(parse_qsl(old, strict_parsing=True))) == (opens_on(told), [])


def test_the_old_links_know_every_field_of_the_codec() -> None:
    known = {key for old, _ in OLD_LINKS for key in dict(parse_qsl(old))}
    assert known >= set(link.to_query(Scenario(), 9, Stamp("", "0" * 8)))


def test_a_limit_on_gaps_stands_in_a_link_only_where_it_is_set() -> None:
    assert "gap" not in link.to_query(Scenario())
    limited = replace(Scenario(), gap=Limit("gap", 99, 0.1))
    query = link.to_query(limited)
    assert query["gap"] == "p99:0.1s"
    assert link.from_query(query) == (limited, [])
    assert link.from_query(query | {"gap": "off"}) == (Scenario(), [])
    (problem,) = link.from_query(query | {"gap": "p98:1s"})[1]
    assert "gap" in problem


def test_goodput_and_admission_stand_in_a_link_only_where_they_are_set() -> None:
    new = {"goodput", "rejected", "queue_limit", "queue_timeout"}
    assert not new & set(link.to_query(Scenario()))
    each = replace(Scenario(), ttft=Limit("ttft", 0, 1.0), goodput=Limit.goodput(99.5), queue_limit=16)
    scenario = replace(each, queue_timeout_s=2.5, rejected=Limit.rejected(0.5))
    query = link.to_query(scenario)
    assert query["ttft"] == "1.0s" and query["goodput"] == "99.5%" and query["rejected"] == "0.5%"
    assert link.from_query(query) == (scenario, [])
    assert link.from_query(query | dict.fromkeys(("goodput", *new - {"goodput"}), "off") | {"ttft": "p95:1.0s"}) == (
        Scenario(),
        [],
    )
    read, (problem,) = link.from_query({key: value for key, value in query.items() if key != "goodput"})
    assert read == replace(scenario, goodput=None, ttft=Limit("ttft", 95, 1.0))
    assert "needs a percentile" in problem
    for text in ("99", "99.99%", "20%", "p99:1s"):
        assert "goodput" in link.from_query(query | {"goodput": text})[1][0]


def test_a_law_of_lengths_stands_in_a_link_only_where_it_is_set() -> None:
    assert not {"isl_law", "osl_law"} & set(link.to_query(Scenario()))
    scenario = replace(Scenario(), isl_law=law_of("points:200@0.8,4000@0.2"))
    query = link.to_query(scenario)
    assert (query["isl_law"], query["isl"]) == ("points:200@0.8,4000@0.2", "960")
    assert link.from_query(query) == (scenario, [])
    assert link.from_query(query | {"isl_law": "off"})[0].isl_law is None
    read, (problem,) = link.from_query(query | {"isl": "2000"})
    assert read == scenario and problem == "isl=2000: isl_law has another mean. Used instead: 960."


@pytest.mark.parametrize("text", ["uniform:", "uniform:9-1", "histogram:lengths.csv", "points:1@x", 13_000 * "9"])
def test_a_broken_law_in_a_link_is_one_line_and_the_lengths_stay_lognormal(text: str) -> None:
    scenario, (problem,) = link.from_query(link.to_query(Scenario()) | {"osl_law": text})
    assert scenario == Scenario()
    assert problem.startswith("osl_law=") and "\n" not in problem and len(problem) < 400
