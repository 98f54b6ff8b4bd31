"""Reading config.pbtxt, the checks at loading, service-time curves, and custom batching strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from sizing.errors import PointsError, ScenarioError
from triton_tools.batcher.config import DynamicBatching, ModelBatching, QueuePolicy, SequenceBatching
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.pbtxt import SCHEMA, parse_config, read_config
from triton_tools.batcher.requests import Request, Requests
from triton_tools.batcher.service import parse_service_times
from triton_tools.batcher.strategy import VolumeBatching, find_strategy, load_strategy


def test_the_schema_is_tritons() -> None:
    assert SCHEMA.read_bytes() == model_config_pb2.DESCRIPTOR.serialized_pb


def test_every_field_of_the_dynamic_batcher_is_read() -> None:
    text = """
    name: "m" max_batch_size: 16
    instance_group [ { count: 2 kind: KIND_GPU gpus: [0, 1] }, { kind: KIND_CPU } ]
    dynamic_batching {
      preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100
      priority_levels: 3 default_priority_level: 2
      default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 allow_timeout_override: true }
      priority_queue_policy { key: 3 value { max_queue_size: 5 } }
    }
    parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/s.py" } }
    """
    policy = QueuePolicy("DELAY", 7, True)
    dynamic = DynamicBatching((4, 8), 100, False, 3, 2, policy, ((3, QueuePolicy(max_size=5)),))
    assert parse_config(text) == ModelBatching("m", 16, 5, dynamic, strategy_path="/s.py")
    assert (dynamic.policy_of(1), dynamic.policy_of(3)) == (policy, QueuePolicy(max_size=5))


def test_without_a_batcher_every_request_is_an_execution() -> None:
    model = parse_config("max_batch_size: 8")
    assert (model.dynamic, model.sequence) == (None, None)
    outcome = simulate(model, lambda rows: 0.01, Requests.of([Request(0), Request(0), Request(0, rows=3)]))
    assert [batch.rows for batch in outcome.batches] == [1, 1, 3]
    assert [batch.start_ns for batch in outcome.batches] == [0, 10_000_000, 20_000_000]


@pytest.mark.parametrize("given", ['backend: "onnxruntime"', 'platform: "tensorrt_plan"', 'backend: "tensorflow"'])
def test_some_backends_complete_the_dynamic_batcher(given: str) -> None:
    """As their sources do (AutoCompleteConfig): for batches above 1, unless a scheduler is given."""
    assert parse_config(f"{given} max_batch_size: 8").dynamic == DynamicBatching()
    assert parse_config(f"{given} max_batch_size: 1").dynamic is None
    assert parse_config(f"{given} max_batch_size: 8 sequence_batching {{ }}").dynamic is None
    assert parse_config('backend: "python" max_batch_size: 8').dynamic is None


def test_a_group_on_the_cpu_has_two_instances_for_some_backends() -> None:
    """Triton's SetDefaultInstanceCount; other backends, kinds and counts as they are written."""
    group = "instance_group { kind: KIND_CPU }"
    assert parse_config(f'backend: "onnxruntime" {group}').instances == 2
    assert parse_config(f'platform: "tensorflow_graphdef" {group} {group}').instances == 4
    assert parse_config(f'backend: "python" {group}').instances == 1
    assert parse_config('backend: "onnxruntime" instance_group { kind: KIND_GPU }').instances == 1
    assert parse_config('backend: "onnxruntime" instance_group { kind: KIND_CPU count: 1 }').instances == 1


def test_the_defaults_of_the_sequence_batcher() -> None:
    assert parse_config("sequence_batching { }").sequence == SequenceBatching("direct", 1_000_000)


def test_a_folder_names_a_model_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    path = tmp_path / "encoder" / "config.pbtxt"
    path.write_text("max_batch_size: 2")
    assert read_config(path).name == "encoder"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }", "preferred_batch_size 5: must be from 1 to"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "preferred_batch_size 0"),
        ("dynamic_batching { priority_levels: 2 }", "default_priority_level must be from 1 to priority_levels, 2"),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "got 3"),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 } }",
            "priority_queue_policy 3",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "one priority level",
        ),
        (
            "dynamic_batching { preserve_ordering: true default_queue_policy "
            "{ timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "timeout_action DELAY",
        ),
        ('platform: "ensemble" ensemble_scheduling { }', "simulate the models of its steps"),
        ("max_batch_size: -1", "max_batch_size must be 0 or more"),
        ("dynamic_batching { preferred: 5 }", '1:20 : Message type .* has no field named "preferred"'),
        ("dynamic_batching {", "not a model configuration"),
        ("dynamic_batching { } sequence_batching { }", "member of oneof|exclude each other"),
        ("sequence_batching { direct { minimum_slot_utilization: 1.5 } }", "minimum_slot_utilization"),
        ("sequence_batching { control_input { control { kind: 2147483648 } } }", "Value out of range: 2147483648"),
        (
            "sequence_batching { control_input { control { kind: 77 } } }",
            "Control: 77 is no Kind; there are 0, 1, 2, 3",
        ),
        (
            "dynamic_batching { default_queue_policy { timeout_action: 7 } }",
            "ModelQueuePolicy: 7 is no TimeoutAction; there are 0, 1",
        ),
        ('name: "' + 900_000 * "\\" + '"', "more than 200 backslashes in a row"),
        ("max_batch_size: 2147483647", "max_batch_size must be at most 100,000 here"),
        ("instance_group { count: 2147483647 }", "at most 10,000 instances are simulated"),
    ],
)
def test_what_triton_would_not_load_is_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=says) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_levels_their_policies_mean_nothing() -> None:
    """Triton 2.51 loads such a model, and creates the queue of the default policy alone."""
    dynamic = parse_config(
        "dynamic_batching { default_priority_level: 1 priority_queue_policy { key: 1 value { max_queue_size: 3 } } }"
    ).dynamic
    assert dynamic is not None
    assert dynamic.policy_of(dynamic.level_of(1)) == QueuePolicy()
    assert dynamic.prefetches


def test_a_configuration_without_end_is_refused() -> None:
    with pytest.raises(ScenarioError, match="larger than 1 MB"):
        read_config("/dev/zero")


def test_a_run_that_lasts_longer_than_its_clock_is_refused() -> None:
    """Nanoseconds of more than a few hundred years are no 64-bit number."""
    with pytest.raises(ScenarioError, match="would take longer than 1e"):
        Requests.poisson(1e-7, 1000, np.random.default_rng(0))
    assert len(Requests.poisson(1e-5, 1000, np.random.default_rng(0))) == 1000


def test_a_request_larger_than_the_batch_is_refused_in_tritons_words() -> None:
    with pytest.raises(ScenarioError, match="inference request batch-size must be <= 4 for 'model'"):
        simulate(ModelBatching(max_batch_size=4), lambda rows: 1, Requests.of([Request(0, rows=5)]))


def test_a_measured_curve_is_straight_between_its_points_and_has_an_end(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("batch_size,service_time_ms\n8,20\n2,8\n4,10\n")
    service = parse_service_times(str(table)).of(3)
    assert [service(rows) for rows in (1, 2, 3, 4, 6, 8)] == pytest.approx([0.008, 0.008, 0.009, 0.010, 0.015, 0.020])
    with pytest.raises(ScenarioError, match="largest batch size measured is 8"):
        service(9)


def test_curves_by_instances(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("instances,batch_size,service_time_us\n1,1,500\n2,1,800\n")
    measured = parse_service_times(str(table))
    assert [measured.of(count)(1) for count in (1, 2)] == pytest.approx([0.0005, 0.0008])
    with pytest.raises(ScenarioError, match="no service times for 3 instances"):
        measured.of(3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size,time\n1,2\n", "needs the columns batch_size"),
        ("batch_size,service_time_s\n", "has no rows"),
        ("batch_size,service_time_s\n1,x\n", "line 2"),
        ("batch_size,service_time_s\n0,1\n", "line 2: batch_size must be at least 1"),
        ("batch_size,service_time_s\n1,1\n1,2\n", "twice"),
        ("batch_size,service_time_s\n1,-1\n", "above 0"),
        ("batch_size,service_time_s\n" + 200_000 * "1", "neither a file that can be read"),
    ],
)
def test_faulty_tables_are_named_by_line(text: str, says: str, tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text(text)
    with pytest.raises(PointsError, match=says):
        parse_service_times(str(table))


def test_a_table_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_bytes(b"\xef\xbb\xbfbatch_size,service_time_ms\r\n1,9\r\n2,10\r\n")
    assert parse_service_times(str(table)).of(1)(2) == 0.010


@pytest.mark.parametrize("text", ["nowhere.csv", "8+1*n", "8ms+n", "a\0b", 5000 * "x"])
def test_neither_law_nor_file(text: str) -> None:
    with pytest.raises(PointsError, match="neither a file"):
        parse_service_times(text)


def test_a_law_has_any_size() -> None:
    service = parse_service_times("8ms + 500us*n").of(1)
    assert service(100) == pytest.approx(0.058)
    assert parse_service_times("5ms").of(1)(7) == 0.005


class Watched(VolumeBatching):
    """Volume batching that notes which of its roles are played."""

    calls: list[str] = []  # noqa: RUF012  one list for all, because the values are frozen

    def batcher_initialize(self, model: ModelBatching) -> int:
        self.calls.append("batcher_initialize")
        return VolumeBatching.batcher_initialize(self, model)

    def batch_initialize(self, batcher: int) -> Any:
        self.calls.append("batch_initialize")
        return VolumeBatching.batch_initialize(self, batcher)

    def batch_finalize(self, batch: Any) -> None:
        self.calls.append("batch_finalize")

    def batcher_finalize(self, batcher: int) -> None:
        self.calls.append("batcher_finalize")


def test_a_strategy_ends_batches_earlier_and_plays_all_roles() -> None:
    Watched.calls.clear()
    sizes = [1, 60, 50, 40, 200, 10, 10]
    requests = Requests.of([Request(0 if not n else 0.001, size_bytes=size) for n, size in enumerate(sizes)])
    outcome = simulate(ModelBatching(max_batch_size=8), lambda rows: 0.01, requests, Watched(100))
    assert [batch.members for batch in outcome.batches] == [(0,), (1,), (2, 3), (4,), (5, 6)]
    assert (Watched.calls[0], Watched.calls[-1]) == ("batcher_initialize", "batcher_finalize")
    assert Watched.calls.count("batch_initialize") == Watched.calls.count("batch_finalize") >= 5
    assert Watched.calls.count("batcher_initialize") == Watched.calls.count("batcher_finalize") == 1


class Refusing(VolumeBatching):
    def include_request(self, request: Request, batch: Any) -> bool:
        return False


def test_a_strategy_that_refuses_even_alone_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="refuses request 0 even in an empty batch"):
        simulate(ModelBatching(max_batch_size=8), lambda rows: 0.01, Requests.of([Request(0)]), Refusing(1))


def test_a_strategy_is_looked_for_in_version_and_model_folder(tmp_path: Path) -> None:
    version, named = tmp_path / "m" / "1", tmp_path / "named.py"
    version.mkdir(parents=True)
    model = ModelBatching()
    assert find_strategy(model, version) is None
    for folder in (version.parent, version):
        (folder / "batchstrategy.py").write_text("")
        assert find_strategy(model, version) == folder / "batchstrategy.py"
    named.write_text("")
    assert find_strategy(ModelBatching(strategy_path=str(named)), version) == named
    with pytest.raises(ScenarioError, match="TRITON_BATCH_STRATEGY_PATH: there is no file"):
        find_strategy(ModelBatching(strategy_path="/nowhere.py"), version)


def test_a_strategy_file_defines_all_five_roles(tmp_path: Path) -> None:
    file = tmp_path / "batchstrategy.py"
    file.write_text("from triton_tools.batcher.strategy import VolumeBatching\nstrategy = VolumeBatching(5)\n")
    loaded = load_strategy(file)
    assert isinstance(loaded, VolumeBatching) and loaded.most_bytes == 5
    file.write_text(
        "class Half:\n    def include_request(self, request, batch):\n        return True\nstrategy = Half()\n"
    )
    with pytest.raises(ScenarioError, match="lacks batcher_initialize, batch_initialize, batch_finalize"):
        load_strategy(file)
    with pytest.raises(ScenarioError, match="is a Python file"):
        load_strategy(tmp_path / "batchstrategy.so")
