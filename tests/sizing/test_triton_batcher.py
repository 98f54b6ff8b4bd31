"""The dynamic batcher's worked examples: one instance, 10 ms for any batch, single-row requests unless said.

Requests are named A, B, C ... in order of arrival. An example reads: configuration, arrivals, what must start when.
"""

from __future__ import annotations

from dataclasses import replace
from string import ascii_uppercase

import pytest

from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.outcome import Outcome
from triton_tools.batcher.pbtxt import parse_config
from triton_tools.batcher.requests import Request, Requests

MS = 1e-3
REJECT_5MS = "default_queue_policy { default_timeout_microseconds: 5000 }"


def model(batching: str, most: int = 8, instances: int = 1) -> ModelBatching:
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    return parse_config(f"max_batch_size: {most} {group} dynamic_batching {{ {batching} }}")


def at(*arrivals_ms: float) -> list[Request]:
    return [Request(arrival * MS) for arrival in arrivals_ms]


def run(config: ModelBatching, requests: list[Request], service_ms: float = 10, **options: bool) -> Outcome:
    return simulate(config, lambda rows: service_ms * MS, Requests.of(requests), **options)


def told(outcome: Outcome) -> list[tuple[float, str]]:
    """(start in ms, letters of the members) of each batch."""
    return [
        (batch.start_ns / 1e6, "".join(ascii_uppercase[member] for member in batch.members))
        for batch in outcome.batches
    ]


def sizes(outcome: Outcome) -> list[tuple[float, int]]:
    return [(batch.start_ns / 1e6, batch.rows) for batch in outcome.batches]


def refused(outcome: Outcome) -> dict[str, tuple[str, float]]:
    """Letter -> (why, when in ms) of the requests not served."""
    return {
        ascii_uppercase[number]: (status, outcome.response_ns[number] / 1e6)
        for number, status in enumerate(outcome.status)
        if status != "served"
    }


def test_d1_default_batches_are_as_large_as_what_waits() -> None:
    assert told(run(model(""), at(*range(12)))) == [(0, "A"), (10, "BCDEFGHI"), (20, "JKL")]


def test_d2_a_batch_that_does_not_fill_goes_when_the_delay_is_over() -> None:
    assert told(run(model("max_queue_delay_microseconds: 5000", 4), at(0, 1, 2))) == [(5, "ABC")]


def test_d3_a_full_batch_does_not_wait() -> None:
    assert told(run(model("max_queue_delay_microseconds: 5000", 4), at(0, 1, 2, 3))) == [(3, "ABCD")]


def test_d4_preferred_sizes_split_what_could_go_together() -> None:
    preferred = model("preferred_batch_size: [4, 8]")
    assert sizes(run(preferred, at(0, 1, 1, 1, 1, 1))) == [(0, 1), (10, 4), (20, 1)]
    assert sizes(run(model(""), at(0, 1, 1, 1, 1, 1))) == [(0, 1), (10, 5)]  # D4b


def test_d4c_of_requests_at_one_instant_the_largest_preferred_size_goes_first() -> None:
    outcome = run(model("preferred_batch_size: [4, 8]"), at(0, *[1] * 13))
    assert sizes(outcome) == [(0, 1), (10, 8), (20, 4), (30, 1)]


def test_d4d_of_requests_that_trickle_in_a_waiting_batch_freezes_at_the_smallest() -> None:
    outcome = run(model("preferred_batch_size: [4, 8]"), at(0, *[1 + step / 2 for step in range(13)]))
    assert sizes(outcome) == [(0, 1), (10, 4), (20, 8), (30, 1)]


def test_d4e_with_any_delay_the_waiting_batch_grows_on() -> None:
    config = model("preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100")
    outcome = run(config, at(0, *[1 + step / 2 for step in range(13)]))
    assert sizes(outcome) == [(0.1, 1), (10.1, 8), (20.1, 5)]


@pytest.mark.parametrize(
    ("arrivals", "batches"),
    [
        ([0, 0, 0], [(0.1, 3)]),
        ([0, 0, 0, 0.06], [(0.06, 4)]),
        ([0, 0, 0, 0, 0], [(0, 4), (10, 1)]),
    ],
    ids=["D5", "D5b", "D5c"],
)
def test_d5_a_delay_holds_what_is_no_preferred_size(arrivals: list[float], batches: list[tuple[float, int]]) -> None:
    assert sizes(run(model("preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100"), at(*arrivals))) == batches


def test_d6_requests_of_several_rows() -> None:
    three = replace(Request(0), rows=3)
    idle = run(model("preferred_batch_size: [4]"), [three, three])
    assert sizes(idle) == [(0, 3), (10, 3)]
    behind = [Request(0), replace(three, arrival_s=1 * MS), replace(three, arrival_s=2 * MS)]
    assert sizes(run(model("preferred_batch_size: [4]"), behind)) == [(0, 1), (10, 6)]  # D6'
    assert sizes(run(model(""), [three, three, three])) == [(0, 6), (10, 3)]  # D6b


def test_d7_two_instances_take_a_batch_each() -> None:
    outcome = run(model("", 4, instances=2), at(*[0] * 10))
    assert sizes(outcome) == [(0, 4), (0, 4), (10, 2)]
    assert {batch.instance for batch in outcome.batches[:2]} == {0, 1}


def test_d8_requests_at_once_go_in_whole_batches() -> None:
    assert sizes(run(model("", 4), at(*[0] * 10))) == [(0, 4), (10, 4), (20, 2)]


def test_p1_the_higher_priority_overtakes() -> None:
    config = model("priority_levels: 2 default_priority_level: 2", 2)
    requests = [Request(0), *[Request(MS, priority=priority) for priority in (2, 2, 1, 1)]]
    assert told(run(config, requests)) == [(0, "A"), (10, "DE"), (20, "BC")]


@pytest.mark.parametrize("priority", [0, 3])
def test_a_priority_that_does_not_exist_is_the_default_one(priority: int) -> None:
    config = model("priority_levels: 2 default_priority_level: 1", 2)
    requests = [Request(0), Request(MS, priority=2), Request(MS, priority=priority)]
    assert told(run(config, requests)) == [(0, "A"), (10, "CB")]


def test_q1_a_full_queue_refuses_at_once() -> None:
    outcome = run(model("default_queue_policy { max_queue_size: 2 }", 4), at(0, 1, 1, 1))
    assert told(outcome) == [(0, "A"), (10, "BC")]
    assert refused(outcome) == {"D": ("queue_full", 1)}
    assert (outcome.counters.queue_full, outcome.counters.request_failure) == (1, {"REJECTED": 0})


def test_q2_late_requests_are_rejected_when_the_batcher_looks() -> None:
    outcome = run(model(REJECT_5MS, 4), at(0, 1, 2, 8))
    assert told(outcome) == [(0, "A"), (10, "D")]
    assert refused(outcome) == {"B": ("timeout", 10), "C": ("timeout", 10)}
    assert outcome.counters.request_failure == {"REJECTED": 2}


def test_q3_late_requests_go_behind_those_in_time() -> None:
    policy = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 }"
    assert told(run(model(policy, 2), at(0, 1, 2, 8))) == [(0, "A"), (10, "DB"), (20, "C")]


def test_q4_a_request_at_its_deadline_is_still_good() -> None:
    assert told(run(model(REJECT_5MS), at(0, 5))) == [(0, "A"), (10, "B")]


def test_q5_an_override_of_no_timeout_has_no_effect() -> None:
    config = model("default_queue_policy { allow_timeout_override: true }")
    assert told(run(config, [Request(0), Request(MS, timeout_us=1000)])) == [(0, "A"), (10, "B")]


def test_q6_an_override_can_only_shorten() -> None:
    config = model("default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 8000 }")
    outcome = run(config, [Request(0), Request(MS, timeout_us=3000), Request(1.5 * MS, timeout_us=20_000)])
    assert told(outcome) == [(0, "A")]
    assert refused(outcome) == {"B": ("timeout", 10), "C": ("timeout", 10)}


def test_q7_a_timeout_shorter_than_the_delay_rejects_on_an_idle_server() -> None:
    config = model("max_queue_delay_microseconds: 10000 default_queue_policy { default_timeout_microseconds: 4000 }")
    outcome = run(config, at(0))
    assert told(outcome) == []
    assert refused(outcome) == {"A": ("timeout", pytest.approx(4, abs=0.001))}
    assert outcome.response_ns[0] > 4_000_000


def test_o1_responses_keep_the_order_of_requests() -> None:
    service = {1: 30, 2: 10, 3: 20}  # by rows, so that later ones finish first
    requests = Requests.of([replace(Request(0), rows=rows) for rows in (1, 2, 3, 2)])
    ordered = model("preserve_ordering: true preferred_batch_size: [1]", 3, instances=2)
    responses = simulate(ordered, lambda rows: service[rows] * MS, requests).response_ns
    free = simulate(model("preferred_batch_size: [1]", 3, instances=2), lambda rows: service[rows] * MS, requests)
    assert sorted(responses) == list(responses)
    assert list(free.response_ns) != sorted(free.response_ns)


def test_with_all_default_policies_nothing_is_late_and_without_prefetch_the_poll_can_be_asked_for() -> None:
    queue = "default_queue_policy { max_queue_size: 9 }"
    assert sizes(run(model(queue), at(0, 1), 400)) == [(0, 1), (400, 1)]
    assert sizes(run(model(queue), at(0, 1), 400, late_wakeup=True)) == [(0, 1), (900, 1)]
    assert sizes(run(model(""), at(0, 1), 400, late_wakeup=True)) == [(0, 1), (400, 1)]


def test_while_nothing_is_free_expiry_is_noticed_every_half_second() -> None:
    outcome = run(model(REJECT_5MS), at(0, 1), 2000)
    assert refused(outcome) == {"B": ("timeout", 501)}


def test_requests_of_other_inputs_end_the_batch() -> None:
    requests = [Request(0), *[Request(MS, inputs=shape) for shape in ("x", "x", "y", "x")]]
    assert told(run(model(""), requests)) == [(0, "A"), (10, "BC"), (20, "D"), (30, "E")]


def counted(outcome: Outcome) -> tuple[int, int, int]:
    counters = outcome.counters
    return counters.request_success, counters.count, counters.exec_count


def test_the_count_metrics_of_the_documentation() -> None:
    one, eight = Request(0), Request(0, rows=8)
    plain = parse_config("max_batch_size: 9")
    assert counted(run(plain, [one])) == (1, 1, 1)
    assert counted(run(plain, [eight])) == (1, 8, 1)
    assert counted(run(plain, [one, eight])) == (2, 9, 2)
    assert counted(run(model("", 9), [one, one])) == (2, 2, 1)
    assert counted(run(model("", 9), [one, eight])) == (2, 9, 1)


def test_twelve_inferences_in_five_executions() -> None:
    outcome = run(model("", 4, instances=2), at(*[0] * 10, 50, 100))
    assert (outcome.counters.count, outcome.counters.exec_count) == (12, 5)
    assert outcome.batch_sizes == {1: 2, 2: 1, 4: 2}
    assert outcome.counters.mean_batch == pytest.approx(12 / 5)
    assert outcome.counters.compute_infer_duration_us == pytest.approx(12 * 10_000)  # the whole batch's, per request
