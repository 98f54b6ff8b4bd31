"""The request log: columns say the same as the timings they were made of, whole, joined or in part."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.records import RequestLog
from tests.calibration.timings import Timing, logged

times = st.floats(0, 1e6, allow_nan=False)
chunks = st.lists(st.tuples(times, st.integers(1, 9)), max_size=4).map(tuple)
timings = st.lists(
    st.builds(
        Timing, times, times, times, chunks, st.integers(1, 99), st.integers(1, 99), st.sampled_from(["", "failed"])
    ),
    max_size=8,
)


def same(one: RequestLog, other: RequestLog) -> bool:
    return all(np.array_equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(RequestLog))


@settings(max_examples=40)
@given(rows=timings)
def test_columns_say_what_the_timings_say(rows: list[Timing]) -> None:
    log = logged(rows)
    assert len(log) == len(rows)
    for number, row in enumerate(rows):
        assert log.tokens[number] == sum(tokens for _, tokens in row.tokens)
        assert log.first_chunk_tokens[number] == (row.tokens[0][1] if row.tokens else 0)
        first, last = log.first_token_s[number], log.last_token_s[number]
        assert (first, last) == (row.tokens[0][0], row.tokens[-1][0]) if row.tokens else np.isnan([first, last]).all()
        assert log.failed[number] == bool(row.error)
    assert log.begins.tolist() == [not place for row in rows for place, _ in enumerate(row.tokens)]


@settings(max_examples=40)
@given(parts=st.lists(timings, min_size=1, max_size=4))
def test_joined_logs_are_the_log_of_all_timings(parts: list[list[Timing]]) -> None:
    joined = RequestLog.joined([logged(part) for part in parts])
    assert same(joined, logged([row for part in parts for row in part]))


@settings(max_examples=40)
@given(rows=timings, seed=st.integers(0, 999))
def test_a_part_of_a_log_is_the_log_of_those_timings(rows: list[Timing], seed: int) -> None:
    chosen = np.random.default_rng(seed).random(len(rows)) < 0.5
    part = logged(rows).where(chosen)
    assert same(part, logged([row for row, take in zip(rows, chosen, strict=True) if take]))
