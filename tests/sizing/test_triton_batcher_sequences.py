"""The sequence batcher: slots, backlog, idle sequences, control inputs, and iterative sequences step by step."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.errors import ScenarioError
from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.pbtxt import parse_config
from triton_tools.batcher.sequence import (
    IterativeRequest,
    SequenceOutcome,
    Step,
    simulate_iterative,
    simulate_sequences,
)

MS = 1e-3
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [-1, 1] } }
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def model(strategy: str, most: int = 4, more: str = "", instances: int = 1, name: str = "sdir") -> ModelBatching:
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    return parse_config(f'name: "{name}" max_batch_size: {most} {group} sequence_batching {{ {strategy} {more} }}')


def run(config: ModelBatching, steps: list[Step], service_ms: float = 10) -> SequenceOutcome:
    return simulate_sequences(config, lambda rows: service_ms * MS, steps)


def shown(outcome: SequenceOutcome) -> list[tuple[float, str]]:
    """(start in ms, a letter for the sequence in each row, "-" for a null request)."""
    return [
        (round(start / MS, 6), "".join("-" if row is None else str(row) for row in rows))
        for start, rows in outcome.rows()
    ]


def whole(name: Hashable, *arrivals_ms: float) -> list[Step]:
    """A sequence with a step at each time, START on the first and END on the last."""
    last = len(arrivals_ms) - 1
    return [Step(name, time * MS, start=place == 0, end=place == last) for place, time in enumerate(arrivals_ms)]


def test_direct_a_sequence_keeps_its_row_and_gaps_are_null_requests() -> None:
    outcome = run(model("direct { }"), whole("A", 0, 50) + whole("B", 0, 20, 30) + whole("C", 0, 20, 50))
    assert shown(outcome) == [(0, "ABC"), (20, "-BC"), (30, "-B"), (50, "A-C")]


def test_direct_control_inputs_row_by_row() -> None:
    outcome = run(model("direct { }", more=CONTROLS), whole(7, 0, 50) + whole(8, 0, 20))
    first, second, third = (outcome.controls(execution) for execution in outcome.executions)
    assert first == {"START": [1, 1], "END": [0, 0], "READY": [1, 1], "CORRID": [7, 8]}
    assert second == {"START": [0, 0], "END": [0, 1], "READY": [-1, 1], "CORRID": [0, 8]}
    assert third == {"START": [0], "END": [1], "READY": [1], "CORRID": [7]}


def test_without_a_free_slot_sequences_wait_in_order_of_their_start() -> None:
    steps = whole("A", 0, 30) + whole("B", 1, 2) + whole("C", 3, 4) + whole("D", 5, 6)
    outcome = run(model("direct { }", most=1), steps)
    assert [row for _, row in shown(outcome)] == ["A", "A", "B", "B", "C", "C", "D", "D"]
    assert shown(outcome)[1] == (30, "A")


def test_the_end_of_a_sequence_frees_its_row_for_the_backlog() -> None:
    steps = whole("A", 0) + whole("B", 0, 1, 2) + whole("C", 0, 1)
    assert shown(run(model("direct { }", most=2), steps)) == [(0, "AB"), (10, "CB"), (20, "CB")]


def test_an_idle_sequence_loses_its_slot_and_must_start_again() -> None:
    idle = model("direct { }", most=1, more="max_sequence_idle_microseconds: 100000")
    left_open = [Step(9, 0, start=True), Step(9, 250 * MS)]
    outcome = run(idle, left_open + whole("B", 10 * MS))
    assert shown(outcome) == [(0, "9"), (100, "B")]
    refused = [result.refused for result in outcome.results if result.refused]
    asked = "must specify the START flag on the first request of the sequence"
    assert refused == [f"inference request for sequence 9 to model 'sdir' {asked}"]
    kept_open = run(idle, [Step(9, 0, start=True), Step(9, 90 * MS), Step(9, 180 * MS, end=True)])
    assert len(kept_open.executions) == 3


def test_a_sequence_that_never_started_is_refused() -> None:
    outcome = run(model("direct { }"), [Step(9, 0), Step(9, 1 * MS, start=True)])
    assert [bool(result.refused) for result in outcome.results] == [True, False]


@pytest.mark.parametrize(("second_ms", "start_ms"), [(500, 300), (100, 100)])
def test_direct_waits_for_the_share_of_slots_or_the_delay(second_ms: float, start_ms: float) -> None:
    config = model("direct { minimum_slot_utilization: 1.0 max_queue_delay_microseconds: 300000 }", most=2)
    outcome = run(config, [Step("A", 0, start=True), Step("B", second_ms * MS, start=True)])
    assert outcome.results[0].start_s == pytest.approx(start_ms * MS, abs=1e-6)


def test_oldest_batches_the_oldest_steps_and_never_two_of_one_sequence() -> None:
    config = model("oldest { max_candidate_sequences: 4 }", most=2)
    steps = whole("A", 0, 1, 2) + whole("B", 3) + whole("C", 4, 5)
    # a step in line cannot join a batch that already has two; A's next comes when its first is done
    assert shown(run(config, steps)) == [(0, "A"), (10, "BC"), (20, "AC"), (30, "A")]


def test_oldest_candidates_are_limited_and_the_others_wait() -> None:
    config = model("oldest { max_candidate_sequences: 1 }", most=4)
    assert [row for _, row in shown(run(config, whole("A", 0, 1) + whole("B", 0, 1)))] == ["A", "A", "B", "B"]


def test_oldest_has_the_delay_and_preferred_sizes_of_a_dynamic_batcher() -> None:
    config = model("oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 5000 preferred_batch_size: 2 }")
    assert shown(run(config, whole("A", 0) + whole("B", 3) + whole("C", 20))) == [(3, "AB"), (25, "C")]


def test_two_instances_share_the_sequences() -> None:
    outcome = run(model("direct { }", most=1, instances=2), whole("A", 0, 1) + whole("B", 0, 1))
    assert shown(outcome) == [(0, "A"), (0, "B"), (10, "A"), (10, "B")]
    by_instance = {result.step.sequence: set[int]() for result in outcome.results}
    for execution in outcome.executions:
        for step in execution.steps:
            assert step is not None
            by_instance[outcome.results[step].step.sequence].add(execution.instance)
    assert sorted(map(tuple, by_instance.values())) == [(0,), (1,)]


ITERATIVE = model("", more="iterative_sequence: true " + CONTROLS)
# steps A3 B1 C2 at once, though the first starts alone; D2 and E1, F4 while they run
TRACE = [
    IterativeRequest("A", 0, 3),
    IterativeRequest("B", 1 * MS, 1),
    IterativeRequest("C", 1 * MS, 2),
    IterativeRequest("D", 250 * MS, 2),
    IterativeRequest("E", 260 * MS, 1),
    IterativeRequest("F", 260 * MS, 4),
]
# as the real server was seen to run it; each of its 200 ms steps took a few ms more
SEEN = [(0, "A"), (225, "ABC"), (427, "AECD"), (629, "F--D"), (831, "F"), (1032, "F"), (1233, "F")]
SEEN_DONE = {"B": 426, "A": 629, "C": 630, "E": 630, "D": 831, "F": 1434}


def test_iterative_sequences_join_as_soon_as_a_slot_is_free() -> None:
    outcome = simulate_iterative(ITERATIVE, lambda rows: 0.2, TRACE)
    assert [row for _, row in shown(outcome)] == [row for _, row in SEEN]
    assert [start for start, _ in shown(outcome)] == pytest.approx([start for start, _ in SEEN], abs=40)
    served = sorted((result for result in outcome.results if not result.refused), key=lambda each: each.response_s)
    done = {result.step.sequence: result.response_s / MS for result in served}
    assert done == pytest.approx(SEEN_DONE, abs=40)


def test_a_rescheduled_request_has_start_only_the_first_time() -> None:
    outcome = simulate_iterative(ITERATIVE, lambda rows: 0.2, TRACE)
    starts = [outcome.controls(execution)["START"] for execution in outcome.executions]
    assert starts[:4] == [[1], [0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]]
    assert outcome.controls(outcome.executions[3])["READY"] == [1, -1, -1, 1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=12),
    st.sampled_from(["direct { }", "oldest { max_candidate_sequences: 3 }"]),
)
def test_every_iterative_request_gets_all_its_steps_in_order(asked: list[tuple[int, int]], strategy: str) -> None:
    requests = [IterativeRequest(number, time * MS, steps) for number, (time, steps) in enumerate(asked)]
    outcome = simulate_iterative(model(strategy, 3, "iterative_sequence: true"), lambda rows: 10 * MS, requests)
    for request in requests:
        own = [result for result in outcome.results if result.step.sequence == request.sequence]
        assert len(own) == request.steps
        assert all(later.start_s >= earlier.response_s for earlier, later in pairwise(own))
    busy = sorted((run.start_ns, run.end_ns) for run in outcome.executions)
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(busy))


def test_the_wrong_batcher_is_named() -> None:
    with pytest.raises(ScenarioError, match="no sequence batcher"):
        run(parse_config("max_batch_size: 4 dynamic_batching { }"), [])
    with pytest.raises(ScenarioError, match="iterative"):
        run(ITERATIVE, [])
    with pytest.raises(ScenarioError, match="iterative_sequence is not set"):
        simulate_iterative(model("direct { }"), lambda rows: 1, [])
    with pytest.raises(ScenarioError, match="max_candidate_sequences"):
        model("oldest { }")
