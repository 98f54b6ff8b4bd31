"""What is built is the published contract, carries every option, and refuses what cannot be."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from calibration.errors import RepositoryError
from lab.reference.contract import Model
from triton_tools.repository.builder import build_repository
from triton_tools.repository.check import check
from triton_tools.repository.contracts import V05, V08
from triton_tools.repository.options import Options, Queueing, warnings

BASE: dict[str, Any] = {"engine_dir": "/engines/llama", "tokenizer_dir": "/tokenizers/llama"}

# the published v0.5.0 tables a second time, in another shape than the ones under test; flags as in test_local
PUBLISHED_V05 = {
    "preprocessing": (
        "QUERY STRING -1; BAD_WORDS_DICT STRING -1; STOP_WORDS_DICT STRING -1; REQUEST_OUTPUT_LEN UINT32 -1",
        "INPUT_ID INT32 -1; REQUEST_INPUT_LEN INT32 1; BAD_WORDS_IDS INT32 2,-1; STOP_WORDS_IDS INT32 2,-1; "
        "REQUEST_OUTPUT_LEN UINT32 -1",
    ),
    "tensorrt_llm": (
        "input_ids INT32 -1; input_lengths INT32 1 s; request_output_len UINT32 1; end_id UINT32 1 os; "
        "pad_id UINT32 1 os; beam_width UINT32 1 os; temperature FP32 1 os; runtime_top_k UINT32 1 os; "
        "runtime_top_p FP32 1 os; len_penalty FP32 1 os; repetition_penalty FP32 1 os; min_length UINT32 1 os; "
        "presence_penalty FP32 1 os; random_seed UINT64 1 os; stop BOOL 1 o; streaming BOOL 1 o",
        "output_ids INT32 -1,-1",
    ),
    "postprocessing": ("TOKENS_BATCH INT32 -1,-1", "OUTPUT STRING -1,-1"),
}


def read(folder: Path, model: str) -> pb.ModelConfig:
    return text_format.Parse((folder / model / "config.pbtxt").read_text(), pb.ModelConfig())


def described(entry: pb.ModelInput | pb.ModelOutput) -> str:
    flags = ""
    if isinstance(entry, pb.ModelInput):
        flags = "o" * entry.optional + "s" * (entry.HasField("reshape") and not entry.reshape.shape)
    name = pb.DataType.Name(entry.data_type).removeprefix("TYPE_")
    return " ".join([entry.name, name, ",".join(map(str, entry.dims)), flags]).strip()


@pytest.mark.parametrize("model", PUBLISHED_V05)
def test_v05_is_the_published_one(model: str, tmp_path: Path) -> None:
    config = read(build_repository(tmp_path / "models", Options(**BASE, contract="v0.5")), model)
    inputs, outputs = PUBLISHED_V05[model]
    assert "; ".join(described(entry) for entry in config.input) == inputs
    assert "; ".join(described(entry) for entry in config.output) == outputs


def test_v08_has_a_bls_with_the_ensembles_face(tmp_path: Path) -> None:
    folder = build_repository(tmp_path / "models", Options(**BASE))
    ensemble, bls = read(folder, "ensemble"), read(folder, "tensorrt_llm_bls")
    assert [(t.name, t.data_type, list(t.dims)) for t in bls.input] == [
        (t.name, t.data_type, list(t.dims)) for t in ensemble.input
    ]
    assert [t.name for t in bls.output] == [t.name for t in ensemble.output]
    assert "output_ids" not in {t.name for t in ensemble.output}  # the local server's own extension
    assert (folder / "tensorrt_llm_bls" / "1" / "wiring.json").exists()
    assert not (build_repository(tmp_path / "old", Options(**BASE, contract="v0.5")) / "tensorrt_llm_bls").exists()


def test_every_parameter_of_the_template_is_written(tmp_path: Path) -> None:
    for contract in (V05, V08):
        folder = build_repository(tmp_path / contract.name, Options(**BASE, contract=contract.name))
        for model, published in contract.parameters.items():
            written = {key: value.string_value for key, value in read(folder, model).parameters.items()}
            assert set(written) == set(published)
            assert not any("${" in value for value in written.values())


def test_options_reach_the_configuration(tmp_path: Path) -> None:
    options = Options(
        **BASE,
        batching="static",
        policy="max_utilization",
        decoupled=True,
        max_batch_size=16,
        max_tokens_in_paged_kv_cache=4096,
        kv_cache_free_gpu_mem_fraction=0.8,
        enable_kv_cache_reuse=True,
        enable_trt_overlap=False,
        gpu_device_ids=(0, 1),
        preprocessing_instances=3,
        bls_instances=2,
        tokenizer_type="llama",
    )
    folder = build_repository(tmp_path / "models", options)
    engine = read(folder, "tensorrt_llm")
    given = {key: value.string_value for key, value in engine.parameters.items() if value.string_value}
    assert given == {
        "gpt_model_type": "V1",
        "gpt_model_path": "/engines/llama",
        "batch_scheduler_policy": "max_utilization",
        "max_tokens_in_paged_kv_cache": "4096",
        "kv_cache_free_gpu_mem_fraction": "0.8",
        "enable_kv_cache_reuse": "True",
        "enable_trt_overlap": "False",
        "gpu_device_ids": "0,1",
        "max_beam_width": "1",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    assert engine.backend == "tensorrtllm" and engine.model_transaction_policy.decoupled
    assert list(engine.dynamic_batching.preferred_batch_size) == [16]
    assert {read(folder, model.name).max_batch_size for model in V08.models} == {16}
    assert read(folder, "preprocessing").instance_group[0].count == 3
    assert read(folder, "tensorrt_llm_bls").instance_group[0].count == 2
    assert read(folder, "preprocessing").parameters["tokenizer_type"].string_value == "llama"
    assert read(folder, "postprocessing").parameters["tokenizer_dir"].string_value == "/tokenizers/llama"


def test_the_queue_reaches_the_engine_alone(tmp_path: Path) -> None:
    queue = Queueing((4, 8), 100, 64, 5000, "DELAY", allow_timeout_override=True)
    for contract in ("v0.8", "v0.5"):
        folder = build_repository(tmp_path / contract, Options(**BASE, contract=contract, queueing=queue))
        batcher = read(folder, "tensorrt_llm").dynamic_batching
        assert (list(batcher.preferred_batch_size), batcher.max_queue_delay_microseconds) == ([4, 8], 100)
        policy = batcher.default_queue_policy
        assert (policy.max_queue_size, policy.default_timeout_microseconds) == (64, 5000)
        assert (policy.timeout_action, policy.allow_timeout_override) == (pb.ModelQueuePolicy.DELAY, True)
        assert not read(folder, "preprocessing").HasField("dynamic_batching")
    plain = build_repository(tmp_path / "plain", Options(**BASE, contract="v0.5"))
    assert not read(plain, "tensorrt_llm").HasField("dynamic_batching")  # v0.5 has no batcher of Triton's


def test_the_text_model_has_no_batch_dimension(tmp_path: Path) -> None:
    options = Options(**BASE, text_model="llama-python", text_model_dir="/weights/llama")
    folder = build_repository(tmp_path / "models", options)
    config = read(folder, "llama-python")
    assert config.max_batch_size == 0
    shown = [described(entry) for entry in (*config.input, *config.output)]
    assert shown == ["text_input STRING -1", "max_tokens UINT32 -1", "text_output STRING -1"]
    assert check(folder) == []


def test_the_alias_is_written_as_what_it_means_and_said(tmp_path: Path) -> None:
    options = Options(**BASE, policy="guaranteed_completion")
    folder = build_repository(tmp_path / "models", options)
    assert read(folder, "tensorrt_llm").parameters["batch_scheduler_policy"].string_value == "guaranteed_no_evict"
    assert len(warnings(options)) == 1 and "guaranteed_completion" in warnings(options)[0]


def test_a_decoupled_model_cannot_run_max_utilization_and_it_is_said() -> None:
    def said(**given: Any) -> bool:
        return any("decoupled" in line for line in warnings(Options(**BASE, policy="max_utilization", **given)))

    assert said(decoupled=True) and said(decoupled=True, contract="v0.5")
    assert not said(decoupled=False) and not said(decoupled=True, enable_chunked_context=True)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"contract": "v0.9"}, "contract"),
        ({"policy": "best"}, "policy"),
        ({"engine_dir": " "}, "engine_dir"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"kv_cache_free_gpu_mem_fraction": 1.5}, "kv_cache_free_gpu_mem_fraction"),
        ({"decoupled": True, "postprocessing_instances": 2}, "overtake"),
        ({"contract": "v0.5", "enable_kv_cache_reuse": True}, "v0.5"),
        ({"max_num_sequences": 4}, "v0.8"),
        ({"text_model": "ensemble", "text_model_dir": "/w"}, "text_model"),
        ({"text_model": "llama"}, "text_model_dir"),
        ({"tokenizer_type": "gpt"}, "tokenizer_type"),
    ],
)
def test_a_wrong_option_is_one_line(wrong: dict[str, object], names: str) -> None:
    with pytest.raises(RepositoryError, match=names) as caught:
        Options(**(BASE | wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("queue", "says"),
    [
        ({"priority_levels": 2}, "default_priority_level must be from 1 to"),
        ({"priority_levels": 2, "default_priority_level": 3}, "got 3"),
        (
            {"priority_levels": 2, "default_priority_level": 1, "preserve_ordering": True},
            "preserve_ordering allows one",
        ),
        ({"preserve_ordering": True, "timeout_us": 5, "timeout_action": "DELAY"}, "excludes the timeout_action DELAY"),
        ({"default_priority_level": 1}, "nothing without priority_levels"),
        ({"timeout_action": "DELAY"}, "nothing without timeout_us"),
        ({"preferred_batch_sizes": (256,)}, "at most max_batch_size, got 256"),
    ],
)
def test_a_queue_that_triton_refuses_or_ignores_is_not_built(queue: dict[str, Any], says: str) -> None:
    """Triton's messages on the same configurations are in the table of docs/repositories.md."""
    with pytest.raises(RepositoryError, match=says):
        Options(**BASE, queueing=Queueing(**queue))


@pytest.mark.parametrize(
    ("unused", "says"),
    [
        ({"contract": "v0.5", "accumulate_tokens": True}, "v0.5 has none"),
        ({"contract": "v0.5", "bls_instances": 2}, "v0.5 has none"),
        ({"text_model_dir": "/weights"}, "nothing without text_model"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(unused: dict[str, Any], says: str) -> None:
    with pytest.raises(RepositoryError, match=says):
        Options(**BASE | unused)


def test_a_gpu_has_no_negative_number() -> None:
    with pytest.raises(RepositoryError, match="gpu_device_ids must be 0 or more, got -1"):
        Options(**BASE, gpu_device_ids=(0, -1))


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RepositoryError, match="not an empty folder"):
        build_repository(tmp_path, Options(**BASE))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_both_contracts_name_every_wire_once() -> None:
    """Every required input of a step is fed by the ensemble's inputs or an earlier step, as published."""
    for contract in (V05, V08):
        ensemble = contract.model("ensemble")
        assert isinstance(ensemble, Model)
        written = {tensor.name for tensor in ensemble.inputs}
        for step in contract.steps:
            model = contract.model(step.model)
            assert isinstance(model, Model)
            assert {tensor.name for tensor in model.inputs if not tensor.optional} <= {
                inner for inner, _ in step.inputs
            }
            assert {outer for _, outer in step.inputs} <= written
            written |= {outer for _, outer in step.outputs}
        assert {tensor.name for tensor in ensemble.outputs} <= written
