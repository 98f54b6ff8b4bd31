"""The simulated batchers against the real Triton server: same configuration, same arrivals, same batches.

The worked examples at 40 times their length (an execution takes 400 ms), each with a model of its own, all at once. A
machine that is busy with other things delivers requests late and in another order: then an example is played again,
three times beside the others and after that alone, while there is time. Where Triton forms no batches ahead it misses
the signal of a free instance and starts up to 500 ms late, so there the late simulation is accepted beside the
documented one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab.reference import server as reference
from lab.reference.settings import Settings
from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.outcome import Outcome
from triton_tools.batcher.pbtxt import parse_config
from triton_tools.batcher.requests import Request, Requests
from triton_tools.batcher.sequence import (
    IterativeRequest,
    SequenceOutcome,
    Step,
    simulate_iterative,
    simulate_sequences,
)
from triton_tools.repository import Machine

SERVICE_S = 0.4
STEP_S = 0.2
APART_S = 0.004  # requests "at the same instant" go one after the other, so that their order is known
WITHIN_S = 0.15
TRIES = 3
PATIENCE_S = 100.0
"""For so long examples that do not agree are played again, all of them together; a quiet machine needs none of it."""
COUNTED_WITHIN_S = 30.0
MESSAGES = {"timeout": "Request timeout expired", "queue_full": "Exceeds maximum queue size"}
"""What clients receive, both with UNAVAILABLE. Triton puts ``[request id: ID]`` before the second."""
CPU = Machine(device="cpu", gpu="", torch="", precision="fp32")

BASE = """
backend: "python"
input {{ name: "NAME" data_type: TYPE_INT32 dims: 1 }}
input {{ name: "STEPS" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "RAN" data_type: TYPE_INT64 dims: -1 }}
max_batch_size: {most}
instance_group {{ count: {instances} kind: KIND_CPU }}
parameters {{ key: "service_s" value {{ string_value: "{service}" }} }}
{batching}
"""


@dataclass(frozen=True, slots=True)
class Example:
    """A configuration and its requests. `ahead`: batches are formed ahead, so that starts can be compared too."""

    batching: str
    requests: tuple[Request, ...]
    most: int = 8
    instances: int = 1
    ahead: bool = True

    def config(self) -> str:
        batching = f"dynamic_batching {{ {self.batching} }}"
        return BASE.format(most=self.most, instances=self.instances, service=SERVICE_S, batching=batching)


def after(first_s: float, count: int, every_s: float = APART_S, **more: Any) -> list[Request]:
    return [Request(first_s + number * every_s, **more) for number in range(count)]


def spaced(*times_s: float) -> tuple[Request, ...]:
    return tuple(Request(time_s) for time_s in times_s)


A = Request(0)
DELAY = "max_queue_delay_microseconds: 200000"
EXAMPLES = {
    "D1": Example("", tuple(after(0, 12, 0.04))),
    "D2": Example(DELAY, spaced(0, 0.04, 0.08), most=4),
    "D3": Example(DELAY, spaced(0, 0.04, 0.08, 0.12), most=4),
    "D4": Example("preferred_batch_size: [4, 8]", (A, *after(0.04, 5))),
    "D4b": Example("", (A, *after(0.04, 5))),
    "D4d": Example("preferred_batch_size: [4, 8]", (A, *after(0.04, 13, 0.02))),
    "D4e": Example(f"preferred_batch_size: [4, 8] {DELAY}", (A, *after(0.24, 13, 0.02))),
    "D5": Example(f"preferred_batch_size: [4, 8] {DELAY}", tuple(after(0, 3))),
    "D5b": Example(f"preferred_batch_size: [4, 8] {DELAY}", (*after(0, 3), Request(0.12))),
    "D6'": Example("preferred_batch_size: [4]", (A, *after(0.04, 2, 0.04, rows=3))),
    "D6b": Example("", (A, *after(0.04, 3, 0.04, rows=3))),
    "counts": Example("", (*after(0, 2), *after(0.08, 10)), most=4, instances=2),
    "P1": Example(
        "priority_levels: 2 default_priority_level: 2",
        (A, *after(0.04, 2, priority=2), *after(0.06, 2, priority=1)),
        most=2,
        ahead=False,
    ),
    "Q1": Example("default_queue_policy { max_queue_size: 2 }", (A, *after(0.04, 3)), most=4, ahead=False),
    "Q2": Example(
        "default_queue_policy { default_timeout_microseconds: 200000 }",
        spaced(0, 0.04, 0.08, 0.32),
        most=4,
        ahead=False,
    ),
    "Q5": Example(
        "default_queue_policy { allow_timeout_override: true }", (A, Request(0.04, timeout_us=40_000)), ahead=False
    ),
    "Q7": Example(
        "max_queue_delay_microseconds: 400000 default_queue_policy { default_timeout_microseconds: 160000 }",
        (A,),
        ahead=False,
    ),
    "O1": Example("preserve_ordering: true", tuple(after(0, 4)), most=1, instances=2),
}
READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }'
SEQUENCES = {
    "iterative": f"sequence_batching {{ iterative_sequence: true {READY} }}",
    "direct": "sequence_batching { direct { minimum_slot_utilization: 1.0 max_queue_delay_microseconds: 300000 } "
    + READY
    + " }",
}
MOST_ROWS = {"iterative": 4, "direct": 2}


def sequence_config(name: str) -> str:
    return BASE.format(most=MOST_ROWS[name], instances=1, service=STEP_S, batching=SEQUENCES[name])


def folder_name(name: str) -> str:
    return name.replace("'", "_")


def write_repository(folder: Path, settings: Settings, machine: Machine) -> Path:
    configs = {name: example.config() for name, example in EXAMPLES.items()}
    configs |= {name: sequence_config(name) for name in SEQUENCES}
    program = Path(__file__).with_name("timed_model.py").read_text()
    for name, config in configs.items():
        version = folder / folder_name(name) / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(program)
        (version.parent / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a real server with a model for each example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "build", write_repository)
        patch.setattr(reference, "find_machine", lambda ready, settings: CPU)
        with reference.ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as server:
            yield server.grpc_url


@dataclass
class Seen:
    """What the server said: by request, the executions it was in or its error, and the order of the answers."""

    began_ns: int = 0
    ran: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    answered: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def batches(self) -> list[tuple[float, tuple[int, ...]]]:
        """(start in seconds after the first request, requests) of each execution, by start."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for request, executions in self.ran.items():
            for number, start, place, _ in executions:
                found.setdefault((start, number), []).append((place, request))
        members = {key: tuple(request for _, request in sorted(rows)) for key, rows in found.items()}
        return [((start - self.began_ns) / 1e9, members[start, number]) for start, number in sorted(members)]


Send = Callable[[triton.InferenceServerClient, int, Any], None]


def tensors(name: int, steps: int, rows: int = 1) -> list[triton.InferInput]:
    made = []
    for tensor, value in (("NAME", name), ("STEPS", steps)):
        made.append(triton.InferInput(tensor, [rows, 1], "INT32"))
        made[-1].set_data_from_numpy(np.full((rows, 1), value, dtype=np.int32))
    return made


def played(url: str, model: str, arrivals_s: list[float], options: Callable[[int], dict[str, Any]]) -> Seen:
    """Send request number n at its time with `options(n)`, and wait for every answer."""
    seen, left, done = Seen(), len(arrivals_s), threading.Event()
    lock = threading.Lock()

    def answered(number: int, result: Any, error: InferenceServerException | None) -> None:
        nonlocal left
        with lock:
            seen.answered.append(number)
            if error is None:
                said = result.as_numpy("RAN")[0].tolist()
                seen.ran[number] = [tuple(said[place : place + 4]) for place in range(0, len(said), 4)]
            else:
                seen.errors[number] = error.message()
            left -= 1
            if not left:
                done.set()

    with triton.InferenceServerClient(url) as client:
        before = counted(client, model)
        seen.began_ns = time.monotonic_ns()
        for number, arrival_s in enumerate(arrivals_s):
            time.sleep(max(0.0, arrival_s - (time.monotonic_ns() - seen.began_ns) / 1e9))
            client.async_infer(
                folder_name(model),
                callback=lambda result, error, number=number: answered(number, result, error),
                request_id=str(number),
                **options(number),
            )
        assert done.wait(60)
        deadline_s = time.monotonic() + COUNTED_WITHIN_S
        while seen.counts["success"] < len(seen.ran) and time.monotonic() < deadline_s:  # counted after the answer
            seen.counts = counted(client, model)
            seen.counts.subtract(before)
    return seen


def counted(client: triton.InferenceServerClient, model: str) -> Counter[str]:
    """The server's counters of a model, its batches by size among them."""
    statistics = client.get_inference_statistics(folder_name(model)).model_stats[0]
    sizes = {f"batches of {each.batch_size}": each.compute_infer.count for each in statistics.batch_stats}
    count, executions = statistics.inference_count, statistics.execution_count
    return Counter(sizes, success=statistics.inference_stats.success.count, count=count, exec_count=executions)


def asked(example: Example, url: str, name: str) -> Seen:
    def options(number: int) -> dict[str, Any]:
        request = example.requests[number]
        given = {"priority": request.priority, "timeout": request.timeout_us or None}
        return {"inputs": tensors(number, 1, request.rows), **given}

    return played(url, name, [request.arrival_s for request in example.requests], options)


def agrees(seen: Seen, outcome: Outcome, timed: bool) -> bool:
    """Whether the server made the simulated batches, refused the same requests and, if `timed`, started as told."""
    simulated, real = outcome.members(), seen.batches()
    refused = {number: MESSAGES[status] for number, status in enumerate(outcome.status) if status != "served"}
    if [members for _, members in simulated] != [members for _, members in real]:
        return False
    if set(refused) != set(seen.errors) or any(refused[number] not in seen.errors[number] for number in refused):
        return False
    return not timed or all(abs(start - told) < WITHIN_S for (start, _), (told, _) in zip(real, simulated, strict=True))


def simulations(example: Example) -> list[Outcome]:
    """The documented run and, without prefetch, the one with late starts."""
    config, requests = parse_config(example.config()), Requests.of(example.requests)
    late = [] if example.ahead else [True]
    return [simulate(config, lambda rows: SERVICE_S, requests, late_wakeup=each) for each in (False, *late)]


@pytest.fixture(scope="module")
def runs(url: str) -> dict[str, list[Seen]]:
    """The runs of each example, the last of which agrees unless three did not."""
    made: dict[str, list[Seen]] = {name: [] for name in EXAMPLES}

    def play(name: str) -> None:
        for _ in range(TRIES):
            if once(name):
                return

    def once(name: str) -> bool:
        example = EXAMPLES[name]
        time.sleep(0.6 * bool(made[name]))
        made[name].append(asked(example, url, name))
        return any(agrees(made[name][-1], told, example.ahead) for told in simulations(example))

    players = [threading.Thread(target=play, args=(name,)) for name in EXAMPLES]
    for player in players:
        player.start()
    for player in players:
        player.join()
    deadline_s = time.monotonic() + PATIENCE_S
    for name in EXAMPLES:
        agreed = any(agrees(made[name][-1], told, EXAMPLES[name].ahead) for told in simulations(EXAMPLES[name]))
        while not agreed and time.monotonic() < deadline_s:
            agreed = once(name)
    return made


def until_it_agrees(play: Callable[[], Seen], agrees: Callable[[Seen], bool]) -> Seen:
    """What was seen of the first play that agrees, or else of the last within `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        seen = play()
        if agrees(seen) or time.monotonic() > deadline_s:
            return seen


@pytest.mark.triton
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_real_server_makes_the_simulated_batches(runs: dict[str, list[Seen]], name: str) -> None:
    expected = simulations(EXAMPLES[name])
    last = runs[name][-1]
    told = [outcome.members() for outcome in expected]
    assert any(agrees(last, outcome, EXAMPLES[name].ahead) for outcome in expected), (
        f"server: {last.batches()} {last.errors}; simulated: {told}"
    )


@pytest.mark.triton
def test_responses_keep_their_order(runs: dict[str, list[Seen]]) -> None:
    assert runs["O1"][-1].answered == [0, 1, 2, 3]


@pytest.mark.triton
def test_a_full_queue_names_the_request(runs: dict[str, list[Seen]]) -> None:
    assert list(runs["Q1"][-1].errors.values()) == ["[request id: 3] Exceeds maximum queue size"]


@pytest.mark.triton
def test_the_counters_are_those_of_the_server(runs: dict[str, list[Seen]]) -> None:
    """Whatever batches a busy machine lets the server make: it counts what the simulator would count of them."""
    (outcome,) = simulations(EXAMPLES["counts"])
    counters = outcome.counters
    told = {f"batches of {size}": number for size, number in outcome.batch_sizes.items()}
    told |= {"success": counters.request_success, "count": counters.count, "exec_count": counters.exec_count}
    assert told == {
        "batches of 1": 2,
        "batches of 2": 1,
        "batches of 4": 2,
        "success": 12,
        "count": 12,
        "exec_count": 5,
    }
    assert told == tally(outcome.members())
    seen = runs["counts"][-1]
    assert {name: number for name, number in seen.counts.items() if number} == tally(seen.batches())


def tally(batches: Sequence[tuple[float, tuple[int, ...]]]) -> dict[str, int]:
    """The counters that `batches` of requests of one row come to."""
    sizes = Counter(f"batches of {len(members)}" for _, members in batches)
    requests = sum(len(members) for _, members in batches)
    return {**sizes, "success": requests, "count": requests, "exec_count": len(batches)}


def sequence_model(name: str) -> ModelBatching:
    return parse_config(sequence_config(name), name=name)


def rows_of(outcome: SequenceOutcome) -> list[tuple[Any, ...]]:
    return [tuple(row for row in rows if row is not None) for _, rows in outcome.rows()]


@pytest.mark.triton
def test_iterative_sequences_join_as_on_the_server(url: str) -> None:
    arrivals, steps = [0, 0.03, 0.034, 0.25, 0.26, 0.264], [3, 1, 2, 2, 1, 4]
    requests = [IterativeRequest(n, arrivals[n], steps[n]) for n in range(6)]
    outcome = simulate_iterative(sequence_model("iterative"), lambda rows: STEP_S, requests)
    seen = until_it_agrees(
        lambda: played(url, "iterative", list(arrivals), lambda number: {"inputs": tensors(number, steps[number])}),
        lambda seen: [members for _, members in seen.batches()] == rows_of(outcome),
    )
    assert [members for _, members in seen.batches()] == rows_of(outcome)
    widths = {start: row[3] for executions in seen.ran.values() for row in executions for start in [row[1]]}
    assert [widths[start] for start in sorted(widths)] == [len(rows) for _, rows in outcome.rows()]  # null requests


@pytest.mark.triton
@pytest.mark.parametrize("second_s", [0.5, 0.1])
def test_direct_waits_for_slots_or_the_delay_as_on_the_server(url: str, second_s: float) -> None:
    first = 100 + round(second_s * 10) * 2
    steps = [Step(0, 0, start=True, end=True), Step(1, second_s, start=True, end=True)]
    outcome = simulate_sequences(sequence_model("direct"), lambda rows: STEP_S, steps)

    def options(number: int) -> dict[str, Any]:
        return {
            "inputs": tensors(number, 1),
            "sequence_id": first + number,
            "sequence_start": True,
            "sequence_end": True,
        }

    seen = until_it_agrees(
        lambda: played(url, "direct", [step.arrival_s for step in steps], options),
        lambda seen: abs(seen.batches()[0][0] - outcome.results[0].start_s) < WITHIN_S,
    )
    assert seen.batches()[0][0] == pytest.approx(outcome.results[0].start_s, abs=WITHIN_S)
    assert [members for _, members in seen.batches()] == rows_of(outcome)


@pytest.mark.triton
def test_a_sequence_without_start_is_refused_in_the_same_words(url: str) -> None:
    (result,) = simulate_sequences(sequence_model("direct"), lambda rows: STEP_S, [Step(9, 0)]).results
    seen = played(url, "direct", [0], lambda number: {"inputs": tensors(0, 1), "sequence_id": 9})
    assert result.refused in seen.errors[0]
