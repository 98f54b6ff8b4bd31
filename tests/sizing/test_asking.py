"""What can be asked of measured points: a closed loop of other users, points of several replicas, other prompts."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sizing.analyses.next_level import Option
from sizing.candidates import cautions_at
from sizing.cli import main
from sizing.engine import Batching, Replica
from sizing.fitting import fit
from sizing.fitting.parameters import LawError, moved
from sizing.points import Point, write_points
from sizing.prediction import Caution
from sizing.text import caution
from sizing.workload import Lengths
from tests.sizing.simulated_levels import LAW, SERVER, simulated_point

LENGTHS = Lengths(1000, 200, 0.3, 0.3)
ASK = ["predict", "--isl", "1000", "--osl", "200", "--isl-cv", "0.3", "--osl-cv", "0.3"]


@cache
def levels() -> tuple[Point, ...]:
    return tuple(simulated_point(Option(LENGTHS, users, 400)) for users in (1, 8, 64))


def table(path: Path, points: Sequence[Point]) -> list[str]:
    text = io.StringIO()
    write_points(points, text)
    path.write_text(text.getvalue(), "utf-8")
    return ["--points", str(path)]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def test_a_closed_loop_is_what_a_measurement_of_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = simulated_point(Option(LENGTHS, 24, 1000))
    code, out, _ = run([*ASK, *table(tmp_path / "p.csv", levels()), "--concurrency", "24", "--json"], capsys)
    answer = json.loads(out)
    assert (code, answer["basis"]) == (0, "fitted")
    for name in ("requests_per_s", "ttft_mean_s", "itl_mean_s"):
        found = answer["closed_loop"][name]
        assert found["low"] < found["value"] < found["high"]
        assert found["value"] == pytest.approx(getattr(truth, name), rel=0.25 if name == "ttft_mean_s" else 0.08)


def test_one_output_token_has_no_itl_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--isl", "1000", "--osl", "1", "--concurrency", "4", "--json"]
    code, out, _ = run([*asked, *table(tmp_path / "p.csv", levels())], capsys)
    found = json.loads(out)["closed_loop"]
    assert code == 0 and found["itl_mean_s"] is None and found["ttft_p95_s"]["value"] > 0


def test_the_load_is_a_rate_or_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for load in (["--rate", "1", "--concurrency", "4"], []):
        code, out, err = run([*ASK, *table(tmp_path / "p.csv", levels()), *load], capsys)
        assert (code, out) == (2, "")
        assert "either --rate or --concurrency" in err and err.count("\n") == 1


@pytest.mark.parametrize("option", ["--points-replicas", "--replicas"])
def test_points_of_several_replicas_give_the_law_of_one(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four = [
        replace(each, load_value=4 * each.load_value, requests_per_s=4 * each.requests_per_s, requests=1600)
        for each in levels()
    ]
    _, one, _ = run(["fit", "--json", *table(tmp_path / "one.csv", levels())], capsys)
    _, all_four, _ = run(["fit", "--json", *table(tmp_path / "four.csv", four), option, "4"], capsys)
    assert json.loads(all_four)["coefficients"] == json.loads(one)["coefficients"]


@pytest.mark.parametrize(("users", "replicas", "each"), [(64, 4, 16), (6, 4, 2), (3, 4, 1), (1, 4, 1), (64, 1, 64)])
def test_a_replica_has_whole_users_and_keeps_littles_law(users: int, replicas: int, each: int) -> None:
    point = replace(levels()[0], load_value=users, requests_per_s=0.5 * users)
    one = point.of_one(replicas)
    assert (one.load_value, one.requests_per_s) == (each, pytest.approx(0.5 * each))


def test_how_the_users_began_is_taken_as_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal = [simulated_point(Option(Lengths(1000, 200), users, 200)) for users in (1, 8, 64)]
    for protocol, together in (("staggered", False), ("together", True), ("burst", True)):
        arguments = ["fit", "--json", *table(tmp_path / "p.csv", equal), "--protocol", protocol]
        code, out, _ = run(arguments, capsys)
        assert (code, json.loads(out)["lockstep"]) == (0, together)


def test_prompts_of_one_length_say_nothing_of_longer_ones() -> None:
    found = fit(levels())
    assert Caution("one_isl", {"isl": 1000.0, "longer": 4000.0}) in found.warnings
    assert {"one_isl", "unmeasured_isl"}.isdisjoint(each.kind for each in cautions_at(found, LENGTHS))
    (elsewhere,) = (each for each in cautions_at(found, Lengths(8000, 200)) if "isl" in each.kind)
    assert "prompts of 8,000 tokens were not measured" in caution(elsewhere)
    more = fit([*levels(), simulated_point(Option(Lengths(4000, 200, 0.3, 0.3), 1, 100))])
    assert "one_isl" not in [each.kind for each in more.warnings]


@cache
def long_requests() -> tuple[Point, ...]:
    """An engine whose memory holds 15 requests of 8,000 tokens."""
    server = Replica(LAW, Batching("chunked", kv_tokens=120_000))
    return tuple(simulated_point(Option(Lengths(7000, 1000), users, 250), server) for users in (1, 10, 50, 250))


def test_memory_is_named_where_it_holds_users_up() -> None:
    told_wrong = fit(long_requests(), kv_tokens=10**6)
    (why,) = (each for each in told_wrong.warnings if each.kind == "poor_fit")
    assert why.facts["cause"] == "memory"
    assert "give kv_tokens and max_batch_size of the points" in caution(why)
    assert "poor_fit" not in [each.kind for each in fit(long_requests(), kv_tokens=120_000).warnings]


def test_a_start_that_is_told_is_not_blamed_for_ttft() -> None:
    """60 ms to the first token at any load, 10 ms to each further one, 8 places; users began one after the other."""
    base = replace(levels()[0], model="Qwen/Qwen3-8B", gpu="l40s", engine="vllm", batching="in_flight")
    base = replace(base, max_batch_size=None, isl=64.0, osl=32.0, osl_cv=0.5, itl_mean_s=0.01, duration_s=6.0)
    closed = []
    for users, rate in ((5, 13.5), (21, 21.6)):
        ttft_s = users / rate - 0.31
        told = replace(base, load_value=users, requests_per_s=rate, requests=6 * round(rate), protocol="staggered")
        closed.append(replace(told, ttft_mean_s=ttft_s, ttft_p50_s=ttft_s))
    arrivals = replace(base, load_kind="poisson_rate", load_value=15, requests_per_s=15.0, requests=90)
    found = fit([*closed, replace(arrivals, ttft_mean_s=0.065, ttft_p50_s=0.06)])
    assert [each.facts["cause"] for each in found.warnings if each.kind == "poor_fit"] == ["unlike"]


@pytest.mark.parametrize(
    ("ttft", "words"),
    [
        (0.4, "off there, by 12 % in requests/s, 40 % in TTFT and 30 % in ITL, and"),
        (0.004, "off there, by 12 % in requests/s and 30 % in ITL, and"),
    ],
)
def test_a_law_that_is_off_is_said_to_be_so_where_it_is(ttft: float, words: str) -> None:
    off = LawError(requests_per_s=0.12, ttft=ttft, itl=0.3)
    assert words in caution(Caution("poor_fit", off._asdict() | {"cause": "unlike"}))


def test_no_variant_of_a_law_has_too_little_memory_for_what_was_served() -> None:
    one, _, many, most = long_requests()
    wrong = replace(most, itl_mean_s=(most.itl_mean_s or 0) * 0.3)  # so that memory is hardly known
    found = fit([one, many, wrong])
    assert "kv_tokens" in found.extra
    assert all(engine.batching.kv_tokens >= 8000 for pair in found.variants for engine in pair)


def test_a_cache_is_never_moved_below_what_was_served() -> None:
    names = ("weights_s", "overhead_s", "token_s", "sequence_s", "kv_token_s", "attention_s", "prefill_s", "request_s")
    shift = [0.0] * 8 + [-20.0]
    engine = replace(SERVER, batching=replace(SERVER.batching, kv_tokens=120_000))
    assert moved(engine, (*names, "kv_tokens"), np.array(shift), 8000).batching.kv_tokens == 8000


def test_a_plan_from_points_that_memory_limits_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--model m --isl 7000 --osl 1000 --rate 2 --e2e p95:60s --json".split()
    code, out, err = run(["plan", *table(tmp_path / "p.csv", long_requests()), *asked], capsys)
    assert (code, err) == (0, "")
    assert json.loads(out)["gpus"] >= 1


def test_a_prediction_says_all_that_a_plan_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the formula leaves out, and that more requests at once than were measured are extrapolated: in JSON too."""
    asked = [*ASK, *table(tmp_path / "p.csv", levels()), "--rate", "22", "--arrivals", "gamma:cv=2"]
    code, out, _ = run([*asked, "--json"], capsys)
    answer = json.loads(out)
    held = 22 * answer["predicted"]["e2e"]["mean_s"]
    assert (code, answer["basis"]) == (0, "extrapolated")
    assert held > 64 and any("measured were at most 64" in each for each in answer["warnings"])
    assert any("percentiles are approximate" in each for each in answer["warnings"])


def test_of_two_versions_of_an_engine_one_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [replace(point, engine="lmdeploy", engine_version=version) for version in ("1", "2") for point in levels()]
    asked = [*ASK, *table(tmp_path / "p.csv", both), "--rate", "3"]
    code, _, err = run(asked, capsys)
    assert code == 2 and "--engine-version" in err
    assert run([*asked, "--engine-version", "2"], capsys)[0] == 0
