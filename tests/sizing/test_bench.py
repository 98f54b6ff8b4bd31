"""The bench: the plain Python loop gives the simulator's times; goals are judged on the right side."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, Replica
from sizing.errors import SizingError
from sizing.simulator import simulate_trace
from validation import bench
from validation.bench import Figure
from validation.evidence.server import LAW
from validation.plain_loop import serve


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 12),
    budget=st.integers(16, 400),
    load=st.floats(0.2, 3.0),
    requests=st.integers(2, 40),
)
def test_the_plain_loop_is_the_same_scheduler(seed: int, slots: int, budget: int, load: float, requests: int) -> None:
    """Prompts cut in chunks, slots that run out, idle times: all within a microsecond."""
    rng = np.random.default_rng(seed)
    replica = Replica(LAW.with_values(prefill_s=1e-3), Batching("chunked", slots, budget))
    arrival_s = np.cumsum(rng.exponential(0.2 / load, requests))
    isl, osl = rng.integers(1, 300, requests), rng.integers(2, 60, requests)
    first_token_s, done_s = serve(replica, arrival_s.tolist(), isl.tolist(), osl.tolist())
    run = simulate_trace(replica, arrival_s, isl, osl)
    assert np.allclose(np.array(first_token_s) - arrival_s + LAW.request_s, run.ttft_s, rtol=0, atol=1e-6)
    assert np.allclose(np.array(done_s) - arrival_s + LAW.request_s, run.e2e_s, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("value", "met"), [(0.9, True), (1.0, True), (1.1, False), (math.nan, False)])
def test_goals_are_met_on_the_right_side(value: float, met: bool) -> None:
    assert Figure("a_s", value, "", goal=1.0).met is met
    assert Figure("a_s", value, "").met is None
    if not math.isnan(value):
        assert Figure("a_per_s", 1 / value, "", goal=1.0, least=True).met is met


def test_the_command_prints_figures_goals_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [
        Figure("a_s", 2.0, "slow", 1.0),
        Figure("b_per_s", 5.0, "quick", 3.0, least=True),
        Figure("c", math.nan, ""),
        Figure("d_s", math.nan, "cannot be measured", 1.0),
    ]
    monkeypatch.setattr(bench, "figures", lambda: iter(measured))
    found = json.loads(CliRunner().invoke(bench.bench_command, ["--json"]).stdout)
    assert (found["a_s"], found["b_per_s"], found["c"]) == (2.0, 5.0, None)
    assert found["goals"] == {"a_s": 1.0, "b_per_s": 3.0, "d_s": 1.0} and found["missed"] == ["a_s", "d_s"]
    assert found["cpus"] >= 1 and found["python"]
    assert "missed" in CliRunner().invoke(bench.bench_command).stdout


def test_both_simulators_serve_the_same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that is 1 % off is found out before it is timed."""
    monkeypatch.setattr(bench, "REQUESTS", 300)
    assert [figure.name for figure in bench.simulators()] == ["simulator_requests_per_s", "python_loop_requests_per_s"]
    monkeypatch.setattr(bench, "serve", lambda server, *lists: serve(Replica(server.law.scaled(1.01)), *lists))
    with pytest.raises(SizingError, match="differ by"):
        next(bench.simulators())
