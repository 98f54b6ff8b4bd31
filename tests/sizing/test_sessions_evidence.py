"""Evidence of sessions: a table made by an engine that is known must be found again, and another engine missed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from numpy.random import SeedSequence

from sizing.engine import Batching, Replica
from sizing.simulator.sessions import simulate_sessions
from validation.evidence import measured_sessions
from validation.evidence.measured_sessions import SESSIONS, Case, Round, answer, replica_of, rows
from validation.evidence.server import LAW

KV_TOKENS = 24_576


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Replica:
    known = Replica(LAW.scaled(2), Batching("chunked", 32, 2048, 131_072))
    monkeypatch.setattr(measured_sessions, "_fitted", lambda: known)
    return known


def measured(replica: Replica, number: int) -> Round:
    """What a measurement that is as long as ten of those simulated shows, of other sessions than are drawn there."""
    run = simulate_sessions(replica, SESSIONS, requests=20_000, seed=number)
    first, later = run.latencies["first_ttft"], run.latencies["later_ttft"]
    times = (later.p50_s, later.p95_s, later.mean_s, first.p50_s, first.mean_s, run.latencies["itl"].mean_s)
    return Round(KV_TOKENS, number, f"{number} 7 0", 240, 50, len(run.number), 0, run.hit_rate, *times, "steady", "")


def test_sessions_of_an_engine_that_is_known_are_predicted() -> None:
    case = Case(KV_TOKENS, tuple(measured(replica_of(KV_TOKENS), number) for number in (1, 2)))
    told = answer(case, SeedSequence(0))
    assert 0.3 < case.rounds[0].hit_rate < 0.75, "the cache decides"
    assert told["hit_rate"].of_any == pytest.approx(case.rounds[0].hit_rate, abs=0.02)
    assert told["later_ttft_p50_s"].of_any == pytest.approx(case.rounds[0].later_ttft_p50_s, rel=0.06)
    assert abs(told["hit_rate"].of_same - told["hit_rate"].of_any) < 4 * told["hit_rate"].spread
    assert [row.holds for row in rows([case], [told])] == [True, True, True, None, None]


def test_a_smaller_cache_and_a_slower_engine_are_not(engine: Replica) -> None:
    rule = replica_of(KV_TOKENS).batching
    small = replace(replica_of(KV_TOKENS), batching=replace(rule, kv_tokens=KV_TOKENS * 3 // 4))
    slow = replace(replica_of(KV_TOKENS), law=engine.law.scaled(1.3))
    for other, place in ((small, 0), (slow, 1)):
        case = Case(KV_TOKENS, (measured(other, 1), measured(other, 2)))
        found = rows([case], [answer(case, SeedSequence(0))])
        assert found[place].holds is False, found[place]


def test_what_was_not_measured_is_said() -> None:
    (row,) = rows([], [])
    assert (row.n, row.note) == (0, "no sessions were measured")
