"""Plans: defaults, the levels they mean, and one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.errors import PlanError
from calibration.plan import parse_plan, read_plan

MINIMAL = "lengths: [{isl: 64, osl: 32}]\nconcurrency: [1, 16]\n"


def test_levels_are_every_lengths_at_every_load_in_the_order_written() -> None:
    text = "lengths: [{isl: 64, osl: 32}, {isl: 9, osl: 8, osl_cv: 0.5}]\nconcurrency: [16, 1]\nrates: [2.5]\n"
    levels = parse_plan(text).plan.levels()
    assert [(level.lengths.isl, level.kind, level.value) for level in levels] == [
        (isl, *load) for isl in (64, 9) for load in (("concurrency", 16), ("concurrency", 1), ("poisson_rate", 2.5))
    ]
    assert [level.index for level in levels] == list(range(6))
    assert len({level.key for level in levels}) == 6


@pytest.mark.parametrize(("users", "requests"), [(1, 50), (5, 50), (6, 60), (64, 640)])
def test_ten_requests_a_user_but_at_least_fifty(users: int, requests: int) -> None:
    (level,) = parse_plan(f"lengths: [{{isl: 1, osl: 1}}]\nconcurrency: [{users}]").plan.levels()
    assert level.requests == requests


def test_requests_per_level_is_taken_where_given() -> None:
    assert {level.requests for level in parse_plan(MINIMAL + "requests_per_level: 7").plan.levels()} == {7}


def test_a_relative_tokenizer_lies_beside_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(MINIMAL + "tokenizer: tok/tokenizer.json\n")
    assert read_plan(path).tokenizer_file == tmp_path / "tok" / "tokenizer.json"
    assert parse_plan(MINIMAL + "tokenizer: none").tokenizer_file is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("[1, 2]", "mapping"),
        ("lengths: [{isl: 64", "line 1: not YAML"),
        ("concurrency: [1]", "lengths: is missing"),
        ("lengths: [{isl: 64, osl: 32}]", "no load levels"),
        ("lengths: []\nconcurrency: [1]", "lengths: List should have at least 1 item"),
        (MINIMAL + "speed: 9", "speed: unknown key"),
        (MINIMAL + "server: {uri: x}", "server.uri: unknown key"),
        (MINIMAL + "server: {url: 'http://127.0.0.1:8000'}", "server.url: "),
        (MINIMAL + "deployment: {tp: two}", "deployment.tp: "),
        (MINIMAL + "budget_s: .nan", "budget_s: "),
        (MINIMAL + "budget_s: -1", "budget_s: "),
        (MINIMAL + "budget_s: .inf", "budget_s: "),
        (MINIMAL + "seed: true", "seed: "),
        (MINIMAL + "warm_up: -1", "warm_up: "),
        ("lengths: [{isl: .nan, osl: 32}]\nconcurrency: [1]", "lengths.0.isl: "),
        ("lengths: [{isl: 64, osl: 0}]\nconcurrency: [1]", "lengths.0.osl: "),
        ("lengths: [{isl: 64, osl: 32, osl_cv: -0.1}]\nconcurrency: [1]", "lengths.0.osl_cv: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [0]", "concurrency.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [1.5]", "concurrency.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nrates: [0]", "rates.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [4, 1, 4]", "concurrency: 4 is there more than once"),
    ],
)
def test_a_faulty_plan_is_one_line_naming_file_and_key(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_unreadable_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such plan file"):
        read_plan(tmp_path / "absent.yaml")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(binary)
