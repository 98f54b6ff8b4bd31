"""Links: every scenario survives the way into a URL and back, bad values are named, old links open."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sizing.workload import METRICS, PERCENTILES, ROUTINGS, Arrivals, Limit
from ui import link
from ui.scenario import ARRIVAL_CV, ARRIVAL_SIZE, HEADROOM, LIMIT_S, PRICE, RATE, TOKENS, VARIATION, Range, Scenario

OLD_LINKS = [
    line for line in (Path(__file__).parent / "links.txt").read_text().splitlines() if line[:1] not in ("", "#")
]

names = some.text(some.characters(exclude_categories=["Cs"], exclude_characters=","), min_size=1, max_size=60).filter(
    lambda text: text.strip() and text != link.ANY
)


def floats(allowed: Range) -> some.SearchStrategy[float]:
    return some.floats(allowed.low, allowed.high)


def limits(metric: str) -> some.SearchStrategy[Limit | None]:
    return some.none() | some.builds(Limit, some.just(metric), some.sampled_from(PERCENTILES), floats(LIMIT_S))


tokens = some.integers(int(TOKENS.low), int(TOKENS.high))
arrivals = some.sampled_from([Arrivals(), Arrivals("constant", 0.0)]) | some.builds(
    Arrivals, some.just("gamma"), floats(ARRIVAL_CV)
)
arrivals |= some.builds(Arrivals.batches, some.integers(int(ARRIVAL_SIZE.low), int(ARRIVAL_SIZE.high)))
scenarios = some.builds(
    Scenario,
    model=names | some.just("org/name,with a comma"),
    gpus=some.lists(names, unique=True, max_size=3).map(tuple),
    precisions=some.lists(names, unique=True, max_size=3).map(tuple),
    tps=some.lists(some.integers(1, 1024), unique=True, max_size=3).map(tuple),
    rate_per_s=floats(RATE),
    isl=tokens,
    isl_cv=floats(VARIATION),
    osl=tokens,
    osl_cv=floats(VARIATION),
    **{metric: limits(metric) for metric in METRICS},
    headroom=floats(HEADROOM),
    spare=some.integers(0, 64),
    routing=some.sampled_from(ROUTINGS),
    arrivals=arrivals,
    price_per_gpu_hour=some.none() | floats(PRICE),
    use_points=some.booleans(),
)


@given(scenarios)
def test_a_scenario_survives_its_link(scenario: Scenario) -> None:
    query = dict(parse_qsl(urlencode(link.to_query(scenario)), strict_parsing=True))
    assert link.from_query(query) == (scenario, [])


@given(some.dictionaries(some.sampled_from([*link.FIELDS, "v", "n", "x"]), some.text(max_size=30), min_size=1))
def test_no_query_breaks_the_codec_and_only_a_link_of_ours_is_read_without_a_word(query: dict[str, str]) -> None:
    scenario, problems = link.from_query(query)
    assert problems or link.from_query(link.to_query(scenario)) == (scenario, [])
    assert problems  # no drawn query can hold every field


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rate", "-3", "from 0.001 to 1,000,000 requests/s"),
        ("rate", "nan", "from 0.001"),
        ("rate", "inf", "from 0.001"),
        ("rate", "abc", "number"),
        ("isl", "12.5", "whole number"),
        ("tp", "4,99999", "from 1 to 1,024 GPUs"),
        ("ttft", "p95:30", "unit"),
        ("ttft", "p97:1s", "p50, p90, p95, p99"),
        ("itl", "p95:-1ms", "above 0"),
        ("headroom", "1.5", "from 0 to 0.9"),
        ("routing", "best", "least_outstanding"),
        ("arrivals", "gamma:cv=99", "from 0.1 to 10"),
        ("arrivals", "batch:size=99999", "from 1 to 10,000"),
        ("gpu", "h200_sxm,,h100_sxm", "name"),
        ("model", "", "name"),
        ("points", "yes", "on, off"),
        ("spare", "²", "whole number"),
    ],
)
def test_a_bad_value_is_named_with_what_would_do_and_what_is_used(key: str, value: str, said: str) -> None:
    scenario, problems = link.from_query({**link.to_query(Scenario(rate_per_s=75.0)), key: value})
    assert len(problems) == 1
    assert problems[0].startswith(f"{key}={value}") and said in problems[0] and "Used instead" in problems[0]
    assert key == "rate" or scenario.rate_per_s == 75.0


def test_a_field_that_the_link_lacks_and_one_that_nobody_knows_are_named() -> None:
    query = link.to_query(Scenario())
    del query["isl"]
    _, problems = link.from_query({**query, "gpus": "h200_sxm"})
    assert len(problems) == 2
    assert "isl" in problems[0] and "gpus" in problems[1]


def test_another_version_is_named() -> None:
    assert "v=2" in link.from_query({**link.to_query(Scenario()), "v": "2"})[1][0]


def test_the_answer_travels_beside_the_scenario() -> None:
    query = link.to_query(Scenario(), gpus=9)
    assert link.answer_of(query) == 9
    assert link.from_query(query) == (Scenario(), [])
    assert link.answer_of({"n": "-9"}) is None


@pytest.mark.parametrize("old", OLD_LINKS)
def test_old_links_still_open_without_a_word(old: str) -> None:
    assert link.from_query(dict(parse_qsl(old, strict_parsing=True)))[1] == []
