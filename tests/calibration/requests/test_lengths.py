"""Lengths: what is drawn has the means the summary says, files are read or refused in one line."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from calibration.errors import CalibrationError, FileError
from calibration.requests.lengths import LengthsPlan, read_dataset, read_histogram, read_trace
from calibration.requests.source import RequestSource
from calibration.requests.tokens import encoder_of
from sizing.workload import Lengths

DRAWS = 4000


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def drawn(plan: LengthsPlan, n: int = DRAWS) -> tuple[np.ndarray, np.ndarray]:
    law = plan.law_of_pairs()
    quantiles = np.random.default_rng(0).random((n, 2)).tolist()
    pairs = [law.pair(number, (of_isl, of_osl)) for number, (of_isl, of_osl) in enumerate(quantiles)]
    isl, osl = np.array(pairs).T
    return isl, osl


@pytest.mark.parametrize(
    "keys",
    [
        {"isl": 64, "osl": 32},
        {"isl": 50, "osl": 200, "isl_cv": 0.5, "osl_cv": 1.0},
        {"isl": 128, "osl": 20, "isl_cv": 0.1, "osl_cv": 0.1, "law": "normal"},
        {"isl": 12, "osl": 5, "isl_cv": 1.0, "osl_cv": 3.0, "law": "normal"},
        {"isl": [100, 300], "osl": [1, 2]},
        {"isl": [7, 7], "osl": 16, "osl_cv": 0.2},
        {"isl": "points:200@0.8,4000@0.2", "osl": "histogram:1-50@3,51-400@1"},
    ],
)
def test_what_is_drawn_has_the_means_and_variations_of_the_summary(keys: dict[str, object]) -> None:
    plan = LengthsPlan(**keys)
    said = plan.summary()
    for values, mean, cv in zip(drawn(plan), (said.isl, said.osl), (said.isl_cv, said.osl_cv), strict=True):
        assert values.min() >= 1
        # 4 standard errors of the mean, and what rounding to whole tokens adds
        assert values.mean() == pytest.approx(mean, abs=4 * cv * mean / math.sqrt(DRAWS) + 0.02)
        assert values.std() == pytest.approx(cv * mean, rel=0.15, abs=0.02 + 1 / 24)


def test_the_old_four_keys_mean_what_they_meant() -> None:
    assert LengthsPlan(isl=2000, osl=256, isl_cv=0.5).summary() == Lengths(2000, 256, 0.5, 0.0)


@settings(max_examples=60, deadline=None)
@given(low=st.integers(1, 500), width=st.integers(0, 500))
def test_a_window_is_kept_and_its_moments_are_those_of_its_numbers(low: int, width: int) -> None:
    plan = LengthsPlan(isl=[low, low + width], osl=[low, low + width])
    isl, _ = drawn(plan, 30)
    assert low <= isl.min() <= isl.max() <= low + width
    numbers = np.arange(low, low + width + 1)
    assert plan.summary().isl == pytest.approx(numbers.mean())
    assert plan.summary().isl_cv == pytest.approx(numbers.std() / numbers.mean())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "give isl and osl, or one of histogram, dataset, trace"),
        ({"isl": 5}, "give isl and osl"),
        ({"isl": 0, "osl": 2}, "a mean"),
        ({"isl": [5, 2], "osl": 2}, "a mean"),
        ({"isl": [5, 2.5], "osl": 2}, "a mean"),
        ({"isl": True, "osl": 2}, "a mean"),
        ({"isl": float("nan"), "osl": 2}, "a mean"),
        ({"isl": [1, 5], "osl": 2, "isl_cv": 0.5}, "isl_cv does not go with a window"),
        ({"histogram": "a.csv", "trace": "b.csv"}, "exclude each other"),
        ({"histogram": "a.csv", "isl": 4}, "isl does not go with histogram"),
        ({"trace": "a.csv", "law": "normal"}, "law does not go with trace"),
        ({"isl": 5, "osl": 2, "unique": False}, "unique does not go with isl and osl"),
        ({"isl": 5, "osl": 2, "max_input_len": 9}, "max_input_len does not go"),
        ({"isl": 5, "osl": 2, "mean": 3}, "Extra inputs"),
        ({"isl": 5, "osl": 2, "osl_cv": 1e200}, "less than or equal to 10"),
        ({"dataset": "a.json", "osl": [1, 4]}, "osl: a window does not go with dataset"),
        ({"dataset": "a.json", "osl": "points:4"}, "osl: a window does not go with dataset, nor does a law"),
        ({"isl": "points:4", "osl": 2, "isl_cv": 0.5}, "nor with a law"),
        ({"isl": "points:4-2", "osl": 2}, "lengths 'points:4-2'"),
        ({"isl": "lognormal", "osl": 2}, "for a lognormal, its mean"),
        ({"isl": 2, "osl": "uniform:1-2000000"}, "within 1 to 1000000 tokens"),
        ({"dataset": "a.json", "shared_prefix": 4}, "shared_prefix does not go with dataset"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        LengthsPlan(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"isl": [2, 9], "osl": 3, "osl_cv": 0.5, "shared_prefix": 4},
        {"dataset": "a.json", "osl": 40, "unique": False},
        {"trace": "a.csv"},
    ],
)
def test_a_plan_survives_json(keys: dict[str, object]) -> None:
    plan = LengthsPlan(**keys)
    assert LengthsPlan(**json.loads(plan.model_dump_json())) == plan


def test_a_histogram_is_joint_and_weighted(tmp_path: Path) -> None:
    path = written(tmp_path, "h.csv", "isl,osl,weight\n10,100,3\n20,50,1\n999,999,0\n")
    plan = LengthsPlan(histogram="h.csv").within(tmp_path)
    isl, osl = drawn(plan)
    assert set(zip(isl.tolist(), osl.tolist(), strict=True)) == {(10, 100), (20, 50)}
    assert (isl == 10).mean() == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / DRAWS))
    said = plan.summary()
    assert (said.isl, said.osl) == pytest.approx((12.5, 87.5))
    assert said.isl_cv == pytest.approx(math.sqrt(0.75 * 2.5**2 + 0.25 * 7.5**2) / 12.5)
    assert read_histogram(path).share[-1] == 1.0


def test_equal_lengths_in_a_file_vary_by_exactly_nothing(tmp_path: Path) -> None:
    written(tmp_path, "h.csv", "osl,isl,weight\n7,33,0.1\n7,33,0.7\n7,33,0.3\n")
    assert LengthsPlan(histogram="h.csv").within(tmp_path).summary() == Lengths(33, 7)


def test_three_formats_of_a_trace_say_the_same(tmp_path: Path) -> None:
    ours = written(tmp_path, "ours.csv", "arrival_s,isl,osl\n7.5,30,3\n5,10,1\n5.25,20,2\n")
    azure = written(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,10,1\n2023-11-16 18:15:46.2500000,20,2\n"
        "2023-11-16 18:15:48.5000000,30,3\n",
    )
    rows = [(0, 10, 1), (250, 20, 2), (2500, 30, 3)]
    mooncake = written(
        tmp_path,
        "mooncake.jsonl",
        "\n".join(
            json.dumps({"timestamp": at, "input_length": isl, "output_length": osl, "hash_ids": [0]})
            for at, isl, osl in rows
        ),
    )
    for path in (ours, azure, mooncake):
        trace = read_trace(path)
        assert trace.arrival_s.tolist() == pytest.approx([0, 0.25, 2.5])
        assert (trace.isl.tolist(), trace.osl.tolist()) == ([10, 20, 30], [1, 2, 3])


def test_a_trace_ends_and_tells_when_its_requests_came(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", "arrival_s,isl,osl\n0,10,1\n2,20,2\n3,30,3\n")
    plan = LengthsPlan(trace="t.csv").within(tmp_path)
    assert plan.arrivals_s is not None
    assert plan.arrivals_s.tolist() == [0, 2, 3]
    assert LengthsPlan(isl=3, osl=4).arrivals_s is None
    replayed = RequestSource(plan, None, False, (0,), replayed=True)
    assert [(r.isl, r.osl) for r in replayed.requests()] == [(10, 1), (20, 2), (30, 3)]
    assert [r.isl for r in replayed.requests(1, 2)] == [20]
    assert plan.summary() == Lengths(20, 2, math.sqrt(200 / 3) / 20, math.sqrt(2 / 3) / 2)


@pytest.mark.parametrize("evenly", [False, True])
def test_a_level_sees_the_whole_file_where_it_does_not_get_through(evenly: bool, tmp_path: Path) -> None:
    """A file that begins with its short requests: 60 of them have the mean of all within their sampling error, and
    those of a closed loop far closer; every request comes once."""
    rows = [(100, 8)] * 300 + [(900, 72)] * 300
    written(tmp_path, "t.csv", "arrival_s,isl,osl\n" + "".join(f"{n},{i},{o}\n" for n, (i, o) in enumerate(rows)))
    source = RequestSource(LengthsPlan(trace="t.csv").within(tmp_path), None, False, (3,), evenly=evenly)
    lengths = [(r.isl, r.osl) for shard in (0, 1) for r in source.requests(shard, 2)]
    assert sorted(lengths) == sorted(rows)
    first = np.array([r.osl for r in islice(source.requests(), 60)])
    assert abs(first.mean() - 40) < (1.5 if evenly else 4 * 32 / math.sqrt(60))


def test_answers_of_one_token_are_of_one_token() -> None:
    """Prefill alone is measured so; between one token and two, rounding moves the mean."""
    assert LengthsPlan(isl=64, osl=1).varied().summary() == Lengths(64, 1, 0.3, 0)
    source = RequestSource(LengthsPlan(isl=64, osl=1.3, osl_cv=0.5), None, False, (0,))
    sent = np.array([r.osl for r in islice(source.requests(), 4000)])
    assert source.summary().osl == pytest.approx(sent.mean(), abs=4 * sent.std() / math.sqrt(4000))
    assert source.summary().osl > 1.33


def test_a_data_set_is_what_its_texts_are(tmp_path: Path) -> None:
    items = [
        {"input": "one two three", "instruction": "sum up:", "output": "four words of answer"},
        {"input": "a very long story that is told at length", "output": "x"},
        {"input": "five", "output": "six"},
    ]
    written(tmp_path, "d.json", json.dumps(items))
    plan = LengthsPlan(dataset="d.json", max_input_len=6, unique=False).within(tmp_path)
    found = list(islice(RequestSource(plan, None, False, (0,)).requests(), 4))
    assert sorted(r.prompt for r in found[:2]) == ["five", "one two three sum up:"] and found[:2] == found[2:]
    assert {(r.prompt[:3], r.isl, r.osl) for r in found} == {("one", 5, 4), ("fiv", 1, 1)}
    assert plan.texts(encoder_of(None, False)).left_out == 1
    assert plan.summary() == Lengths(3, 2.5, 2 / 3, 0.6)
    orders = {next(RequestSource(plan, None, False, (seed,)).requests()).prompt for seed in range(20)}
    assert orders == {"one two three sum up:", "five"}  # a level may not get through a file: it begins anywhere
    forced = plan.model_copy(update={"osl": 40.0})
    assert {r.osl for r in islice(RequestSource(forced, None, False, (0,)).requests(), 4)} == {40}


def test_unique_texts_open_with_a_word_of_their_own_which_counts(tmp_path: Path) -> None:
    written(tmp_path, "d.json", json.dumps([{"input": "same text", "output": "y"}] * 3))
    plan = LengthsPlan(dataset="d.json").within(tmp_path)
    found = list(islice(RequestSource(plan, None, False, (0,)).requests(), 50))
    assert len({r.prompt.split()[0] for r in found}) == 50
    assert all(r.prompt.endswith(" same text") and r.isl == 3 for r in found)
    assert plan.summary() == Lengths(3, 1)


HISTOGRAMS = [
    ("", "no header"),
    ("a,b\n1,2\n", "no header with the columns isl, osl"),
    ("isl,osl\n", "no rows"),
    ("isl,osl\n4,5\n4,x\n", r"line 3, osl: .* \(got 'x'\)"),
    ("isl,osl\n4\n", "line 2, osl"),
    ("isl,osl\n0,5\n", "line 2, isl"),
    ("isl,osl\n4,2.5\n", "line 2, osl"),
    ("isl,osl\n4,nan\n", "line 2, osl"),
    ("isl,osl\n4,1e300\n", "line 2, osl"),
    ("isl,osl,weight\n4,5,-1\n", "line 2, weight"),
    ("isl,osl,weight\n4,5,0\n", "every weight is 0"),
]
TRACES = [
    ("arrival_s,isl\n1,2\n", "osl"),
    ("arrival_s,isl,osl\n-1,2,3\n2,2,3\n", "row 2, column 'arrival_s'"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,2,3\n", "row 2, column 'TIMESTAMP': 'yesterday' is no time"),
    ("arrival_s,isl,osl\n1,2000000,3\n2,2,3\n", "a prompt or answer of 2,000,000 tokens, at most 1,000,000"),
]
DATASETS = [
    ("{", "not JSON"),
    ("[]", "a data set is a JSON list"),
    ("{}", "a data set is a JSON list"),
    ("[1]", "item 1: not an object"),
    ('[{"input": "a", "output": 3}]', "item 1, key 'output': text is needed, this is int"),
    ('[{"input": "a\\ud800"}]', "item 1, key 'input': half a surrogate pair"),
    ('[{"output": "a"}]', "item 1, key 'input': is missing or empty"),
]


@pytest.mark.parametrize(
    ("read", "content", "says"),
    [
        *((read_histogram, *case) for case in HISTOGRAMS),
        *((read_trace, *case) for case in TRACES),
        *((read_dataset, *case) for case in DATASETS),
    ],
)
def test_a_faulty_file_is_one_line_that_names_the_place(read: object, content: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, "file.csv", content)
    with pytest.raises(FileError, match=says) as error:
        read(path)  # type: ignore[operator]
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_faulty_line_of_a_json_trace_is_named(tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 3, "output_length": 3}\n'
    for content, says in (
        (good + "{", "row 2: no JSON object"),
        (good + "[]", "row 2: no JSON object"),
        ("\n", "t.jsonl"),
    ):
        with pytest.raises(FileError, match=says):
            read_trace(written(tmp_path, "t.jsonl", content))


def test_absent_huge_and_binary_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="no such file"):
        LengthsPlan(histogram="absent.csv").within(tmp_path).summary()
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot be read"):
        read_histogram(tmp_path / "b.csv")
    monkeypatch.setattr("calibration.requests.lengths.LARGEST_FILE_BYTES", 2)
    with pytest.raises(FileError, match="more than the"):
        read_histogram(tmp_path / "b.csv")


def test_a_data_set_without_answers_or_with_too_long_prompts_says_so(tmp_path: Path) -> None:
    written(tmp_path, "d.json", json.dumps([{"input": "some words here"}]))
    with pytest.raises(FileError, match="has no output; add one, or give osl"):
        LengthsPlan(dataset="d.json").within(tmp_path).summary()
    with pytest.raises(FileError, match="the shortest prompt has 4 tokens; max_input_len 2"):
        LengthsPlan(dataset="d.json", max_input_len=2).within(tmp_path).summary()


GOOD = {
    read_histogram: "isl,osl,weight\n10,100,3\n20,50,1\n",
    read_trace: "arrival_s,isl,osl\n0,10,1\n2.5,20,2\n",
    read_dataset: '[{"input": "a b", "instruction": "c", "output": "d"}]',
}


@settings(max_examples=60, deadline=None)
@given(
    read=st.sampled_from(list(GOOD)),
    place=st.integers(0, 60),
    cut=st.integers(0, 4),
    put=st.sampled_from(["", "NaN", "-", "1e999", '"', ",", "\n", "\x00", "[", "{", "é", "9" * 400]),
)
def test_a_mutated_file_is_read_or_refused_with_a_typed_error(
    read: object, place: int, cut: int, put: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = GOOD[read]  # type: ignore[index]
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_text(text[:place] + put + text[place + cut :])
    try:
        read(path)  # type: ignore[operator]
    except CalibrationError as error:
        assert "\n" not in str(error)
