"""Laws of traces: parts, copies, hours and bursts of arrivals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.trace import HOUR_S, MOST_CLASSES, Trace, TraceError, dispersion, hours, merged

ARRIVALS = st.lists(st.integers(0, 4 * 3600 * 1000), min_size=2, max_size=60).map(sorted)
"""Milliseconds."""


def trace_of(ms: list[int], began_s: float = math.nan, sessions: bool = False) -> Trace:
    """Each request is known by its ISL."""
    number = np.arange(1, len(ms) + 1, dtype=np.int32)
    session = number % 3 if sessions else np.empty(0, np.int32)
    return Trace(np.array(ms) / 1000, number, number[::-1].copy(), began_s, session)


def poisson(rate_per_s: float, span_s: float, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, span_s, rng.poisson(rate_per_s * span_s)))


def of_times(arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Trace:
    tokens = np.ones(len(arrival_s), np.int32)
    return Trace(arrival_s, tokens, tokens)


def same(one: Trace, other: Trace) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("arrival_s", "isl", "osl", "session", "of_class")
    )


@given(ARRIVALS, st.booleans())
def test_the_part_from_first_to_last_is_the_trace(ms: list[int], sessions: bool) -> None:
    trace = trace_of(ms, sessions=sessions)
    assert same(trace.part(0, math.inf), trace)
    assert same(trace.scaled(1), trace)


def test_a_factor_that_makes_more_requests_than_memory_holds_is_refused() -> None:
    with pytest.raises(TraceError, match="more than 100,000,000: give a smaller factor"):
        trace_of([0, 1000, 2000], sessions=False).scaled(1e9)


@given(ARRIVALS, st.integers(0, 4 * 3600 * 1000))
def test_two_parts_are_the_whole(ms: list[int], cut_ms: int) -> None:
    """A request at the very cut is of the second; a part of fewer than two is refused."""
    trace = trace_of(ms)
    parts = [(0.0, cut_ms / 1000, [each for each in ms if each < cut_ms]),
             (cut_ms / 1000, math.inf, [each for each in ms if each >= cut_ms])]  # fmt: skip
    first = 1
    for low_s, high_s, expected in parts:
        if len(expected) < 2:
            with pytest.raises(TraceError, match=f"only {len(expected)} requests"):
                trace.part(low_s, high_s)
        else:
            part = trace.part(low_s, high_s)
            assert part.isl.tolist() == list(range(first, first + len(expected)))
        first += len(expected)


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    trace = trace_of([each * 1000 for each in range(0, 4 * 3600, 10)])
    with pytest.raises(TraceError, match="a window ends after it begins, not from 03:00 to 01:00"):
        trace.window("03:00..01:00")


def test_the_worst_hour_is_the_60_minutes_with_most_tokens_whatever_the_clock() -> None:
    rng = np.random.default_rng(4)
    for began_s in (math.nan, 13 * HOUR_S + 1500.0):
        trace = trace_of(np.sort(rng.integers(0, 4 * 3600 * 1000, 60)).tolist(), began_s)
        trace = replace(trace, isl=rng.integers(1, 100, 60, np.int32))
        tokens = trace.isl + trace.osl
        begins_s = trace.arrival_s
        most = max(tokens[(begin_s <= begins_s) & (begins_s < begin_s + HOUR_S)].sum() for begin_s in begins_s)
        worst = trace.window("worst-hour")
        assert worst.span_s < HOUR_S and (worst.isl + worst.osl).sum() == most


@given(ARRIVALS, st.integers(2, 5), st.integers(0, 9))
def test_a_whole_factor_is_so_many_times_the_requests_with_the_originals_among_them(
    ms: list[int], factor: int, seed: int
) -> None:
    """Ascending, each with its own lengths, copies between its neighbours, sessions as many times as well."""
    trace = trace_of(ms, sessions=True)
    scaled = trace.scaled(factor, seed)
    assert np.all(np.diff(scaled.arrival_s) >= 0)
    assert np.bincount(scaled.isl)[1:].tolist() == [factor] * len(trace)
    assert np.array_equal(scaled.isl + scaled.osl, np.full(len(scaled), len(trace) + 1))
    for place, arrival_s in enumerate(trace.arrival_s):
        mine = scaled.arrival_s[scaled.isl == place + 1]
        assert arrival_s in mine
        assert mine.min() >= trace.arrival_s[max(place - 1, 0)]
        assert mine.max() <= trace.arrival_s[min(place + 1, len(trace) - 1)]
    assert len(np.unique(scaled.session)) == factor * len(np.unique(trace.session))


@pytest.mark.parametrize("factor", [0.4, 1.5, 2.3, 3])
def test_a_scaled_trace_has_whole_sessions_with_their_turns_in_order(factor: float) -> None:
    """Of sixty sessions of eight turns that repeat the turns before them, so that a prefix cache finds as much."""
    rng = np.random.default_rng(1)
    arrival_s = np.cumsum(rng.exponential(10, (60, 8)), axis=1) + rng.uniform(0, 3600, (60, 1))
    isl = np.tile(np.arange(500, 1700, 150, dtype=np.int32), 60)
    session = np.repeat(np.arange(60, dtype=np.int32), 8)
    turns = Trace(arrival_s.ravel(), isl, np.full(480, 100, np.int32), session=session)
    trace = turns._taken(np.argsort(turns.arrival_s))
    scaled = trace.scaled(factor)
    assert len(scaled) == pytest.approx(factor * len(trace), abs=8)
    for each in np.unique(scaled.session):
        assert scaled.isl[scaled.session == each].tolist() == isl[:8].tolist()
    found = [each.continued().repeated_tokens(16) / each.isl.sum() for each in (trace, scaled)]
    assert found[1] == pytest.approx(found[0])


def test_sessions_of_large_numbers_stay_sessions() -> None:
    """A part of a long trace keeps the numbers of its sessions."""
    trace = replace(trace_of([0, 1000, 2000], sessions=True), session=np.array([10**8, 10**8, 5], np.int32))
    scaled = trace.scaled(1000)
    assert scaled.session.min() >= 0 and len(np.unique(scaled.session)) == 2000
    assert set(np.unique(scaled.session[scaled.isl == 3])).isdisjoint(scaled.session[scaled.isl != 3])


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.7, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rate_of_each_minute_is_scaled(factor: float, seed: int) -> None:
    """Rates that differ from minute to minute, 60 to 600 requests each.

    Requests of a minute stay in it, but for copies of its first and last. Drawn at random is whether a request comes
    once more, a binomial variable; 5 standard deviations leave one in 3.5 million outside.
    """
    rng = np.random.default_rng(seed)
    minutes = [60 * place + np.sort(rng.uniform(0, 60, rng.integers(60, 600))) for place in range(30)]
    trace = of_times(np.concatenate(minutes))
    scaled = trace.scaled(factor, seed)
    before, after = trace.counts(60), scaled.counts(60)
    part = factor % 1
    allowed = 5 * np.sqrt(before * part * (1 - part)) + 2 * math.ceil(factor)
    assert np.all(np.abs(after - factor * before) <= allowed)


@pytest.mark.parametrize("factor", [0, -1, math.inf, math.nan])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(TraceError, match="the factor of a trace must be above 0"):
        trace_of([0, 1]).scaled(factor)


@given(ARRIVALS, st.one_of(st.just(math.nan), st.floats(1e8, 7e9)))
def test_hours_share_out_the_requests(ms: list[int], began_s: float) -> None:
    """Each request is in one hour, which lasts an hour, holds it and, with a date, begins on the clock's hour."""
    trace = trace_of(ms, began_s)
    found = hours(trace)
    assert [each for hour in found for each in range(hour.first, hour.last)] == list(range(len(trace)))
    for hour in found:
        assert hour.last > hour.first
        assert hour.until_s - hour.from_s == pytest.approx(HOUR_S, abs=1e-5)
        arrivals = trace.arrival_s[hour.first : hour.last]
        assert hour.from_s - 1e-5 <= arrivals[0] and arrivals[-1] < hour.until_s + 1e-5
        of_clock = (0 if math.isnan(began_s) else began_s) + hour.from_s
        assert abs(of_clock / HOUR_S - round(of_clock / HOUR_S)) < 1e-8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate_per_s", [0.5, 20])
def test_poisson_arrivals_have_a_dispersion_of_one(seed: int, rate_per_s: float) -> None:
    """Over n seconds the index has a standard deviation of about sqrt(2/(n - 1) + 1/(n rate)); 5 of them."""
    seconds = 7200
    allowed = 5 * math.sqrt(2 / (seconds - 1) + 1 / (seconds * rate_per_s))
    assert dispersion(of_times(poisson(rate_per_s, seconds, seed))) == pytest.approx(1, abs=allowed)


@pytest.mark.parametrize("from_s", [300, 420, 1000])
def test_a_window_of_poisson_arrivals_has_a_dispersion_of_one(from_s: float) -> None:
    """The time before it is no lull of its first minutes."""
    window = of_times(poisson(5, 7200, seed=1)).part(from_s, from_s + 600)
    assert dispersion(window) == pytest.approx(1, abs=5 * math.sqrt(2 / 599 + 1 / 3000))


@pytest.mark.parametrize("size", [2, 5, 10])
def test_batches_of_k_have_a_dispersion_of_k(size: int) -> None:
    """Counts are k times a Poisson variable: variance k^2, mean k."""
    batches = poisson(3, 7200, seed=size)
    index = dispersion(of_times(np.repeat(batches, size)))
    assert index == pytest.approx(size, rel=5 * math.sqrt(2 / 7199 + 1 / (3 * 7200)))


def test_a_rate_that_changes_slowly_is_no_burst() -> None:
    """Poisson arrivals at 2 requests/s, rising to 20 within two hours, beside the same counts as one stretch."""
    rng = np.random.default_rng(3)
    seconds = np.arange(7200)
    counts = rng.poisson(2 + 18 * seconds / 7200)
    trace = of_times(np.repeat(seconds + 0.5, counts))
    assert counts.var() / counts.mean() > 3
    assert dispersion(trace) == pytest.approx(1, abs=0.15)


def test_a_short_trace_has_no_dispersion() -> None:
    assert math.isnan(dispersion(of_times(np.linspace(0, 10, 50))))


def test_the_clock_of_a_trace() -> None:
    assert trace_of([0, 1]).clock(2 * 3600 + 59) == "02:00"
    assert trace_of([0, 1], began_s=1715349600.0).clock(61) == "2024-05-10 14:01"


@pytest.mark.parametrize(
    ("arrivals", "tokens", "sessions", "said"),
    [(2, 1, 0, "one arrival, one ISL"), (2, 2, 1, "one session"), (1, 1, 0, "2 requests or more, got 1")],
)
def test_a_trace_holds_one_of_each_for_each_request(arrivals: int, tokens: int, sessions: int, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        Trace(
            np.zeros(arrivals),
            np.ones(tokens, np.int32),
            np.ones(arrivals, np.int32),
            0.0,
            np.zeros(sessions, np.int32),
        )


@given(ARRIVALS, st.data(), st.booleans())
def test_classes_that_are_told_apart_and_merged_are_the_trace(ms: list[int], data: st.DataObject, dated: bool) -> None:
    """Each request keeps its time, lengths, class and session; a trace of one class is itself."""
    trace = trace_of(ms, 1.7e9 if dated else math.nan, sessions=True)
    assert merged([trace]) is trace
    label = np.array([data.draw(st.integers(0, 2)) for _ in ms], np.uint8)
    names = ("chat", "code", "batch")
    parts = []
    for number, name in enumerate(names):
        mine = label == number
        if np.count_nonzero(mine) > 1:
            start_s = trace.arrival_s[mine][0] if dated else 0.0
            arrays = (trace.arrival_s[mine] - start_s, trace.isl[mine], trace.osl[mine], trace.began_s + start_s)
            parts.append(Trace(*arrays, trace.session[mine]).as_class(name))
    if len(parts) < 2:
        return
    whole = merged(parts)
    offset_s = whole.began_s - trace.began_s if dated else 0.0
    assert np.all(np.diff(whole.arrival_s) >= 0)
    assert len(whole) == sum(map(len, parts))
    for part in parts:
        mine = whole.of_class == whole.classes.index(part.classes[0])
        assert whole.isl[mine].tolist() == part.isl.tolist() and whole.osl[mine].tolist() == part.osl.tolist()
        of_trace = trace.arrival_s[part.isl - 1]  # its ISL tells which request it is
        assert whole.arrival_s[mine] + offset_s == pytest.approx(of_trace, abs=1e-6)
        assert np.array_equal(
            np.unique(whole.session[mine], return_inverse=True)[1], np.unique(part.session, return_inverse=True)[1]
        )
    sessions = [set(whole.session[whole.of_class == number].tolist()) for number in range(len(parts))]
    assert sum(map(len, sessions)) == len(set.union(*sessions))


def test_parts_and_copies_keep_their_class() -> None:
    trace = Trace(
        *(np.arange(60.0), np.arange(1, 61, dtype=np.int32), np.ones(60, np.int32)),
        classes=("even", "odd"),
        of_class=np.arange(60, dtype=np.uint8) % 2,
    )
    for other in (trace.part(7, 31), trace.scaled(2.5), trace.scaled(0.5)):
        assert other.classes == trace.classes
        assert other.of_class.tolist() == ((other.isl - 1) % 2).tolist()


def test_traces_that_cannot_be_merged() -> None:
    plain, dated, named = trace_of([0, 1]), trace_of([0, 1], 1.7e9), trace_of([0, 1]).as_class("a")
    with pytest.raises(TraceError, match="have dates"):
        merged([plain, dated])
    with pytest.raises(TraceError, match="have classes"):
        merged([plain, named])
    with pytest.raises(TraceError, match=f"{MOST_CLASSES} classes at most, got {MOST_CLASSES + 1}"):
        merged([plain.as_class(str(number)) for number in range(MOST_CLASSES + 1)])
    with pytest.raises(TraceError, match="one class for each"):
        Trace(np.zeros(2), np.ones(2, np.int32), np.ones(2, np.int32), classes=("a",))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 20)), min_size=2, max_size=40),
    st.integers(1, 16),
)
def test_prompts_that_repeat_all_before_go_on_and_others_begin_anew(
    requests: list[tuple[int, int, int]], block: int
) -> None:
    """One by one: the last request of each session, and whether the next prompt can hold its prompt and answer."""
    session, isl, osl = (np.array(column, np.int32) for column in zip(*requests, strict=True))
    found = Trace(np.arange(float(len(isl))), isl, osl, session=session).continued()
    last: dict[int, tuple[int, int]] = {}  # of a session: its number now, and tokens said
    numbers, repeated, fresh = [], 0, 0
    for own, prompt, answer in requests:
        goes_on = own in last and prompt >= last[own][1]
        if goes_on:
            repeated += min(last[own][1] - 1, prompt - 1) // block * block
        else:
            fresh += 1
        last[own] = (last[own][0] if goes_on else fresh, prompt + answer)
        numbers.append(last[own][0])
    pairs = set(zip(numbers, found.session.tolist(), strict=True))
    assert len(pairs) == len(set(numbers)) == len(set(found.session.tolist())) == fresh
    assert set(found.session.tolist()) == set(range(fresh))
    assert found.repeated_tokens(block) == repeated


def test_a_trace_without_sessions_goes_on_with_nothing() -> None:
    with pytest.raises(TraceError, match="knows no sessions"):
        trace_of([0, 1]).continued()
