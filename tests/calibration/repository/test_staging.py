"""A repository that is staged keeps its own say: what the reference engine then does is what the backend would."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from lab.reference.engine.parameters import Scheduling, read_scheduling
from lab.reference.settings import Settings
from triton_tools.repository.builder import build_repository
from triton_tools.repository.options import Options
from triton_tools.repository.staging import stage

FOLDERS = {"engine_dir": "/engines/llama", "tokenizer_dir": "/tokenizers/llama"}
# of these only what the engine and its machine can hold may count
HERE = Settings(
    batching="static", policy="max_utilization", kv_reuse=True, kv_tokens=1600, max_batch_size=20, vocab_size=64
)


def staged(folder: Path, options: Options) -> dict[str, str]:
    """The parameters of `tensorrt_llm` once staged."""
    made = stage(build_repository(folder / "built", options), folder / "staged", HERE)
    config = text_format.Parse((made / "tensorrt_llm" / "config.pbtxt").read_text(), pb.ModelConfig())
    return {key: value.string_value for key, value in config.parameters.items()}


def scheduling(folder: Path, **options: Any) -> Scheduling:
    return read_scheduling(staged(folder, Options(**FOLDERS, **options)), lambda _: None)


@pytest.mark.parametrize(
    ("contract", "batching", "policy", "decoupled"),
    list(
        itertools.product(
            ("v0.8", "v0.5"), ("in_flight", "static"), ("guaranteed_no_evict", "max_utilization"), (True, False)
        )
    ),
)
def test_every_combination_runs_as_the_backend_would(
    contract: str, batching: str, policy: str, decoupled: bool, tmp_path: Path
) -> None:
    found = scheduling(tmp_path, contract=contract, batching=batching, policy=policy, decoupled=decoupled)
    holds = policy == "max_utilization" and batching == "in_flight" and not decoupled
    assert found == Scheduling(
        is_static=batching == "static",
        policy="max_utilization" if holds else "guaranteed_no_evict",
        kv_tokens=1600,
        max_requests=20,
        reuses_kv=False,
        chunks_prompts=False,
    )


def test_limits_reuse_and_chunks_are_the_repositorys(tmp_path: Path) -> None:
    asked = {"policy": "max_utilization", "decoupled": True, "enable_chunked_context": True}
    limits = {"max_tokens_in_paged_kv_cache": 1000, "kv_cache_free_gpu_mem_fraction": 0.25}
    found = scheduling(tmp_path, **asked, **limits, enable_kv_cache_reuse=True)
    assert found == Scheduling(
        False, "max_utilization", kv_tokens=400, max_requests=20, reuses_kv=True, chunks_prompts=True
    )
    assert scheduling(tmp_path / "v05", contract="v0.5", max_num_sequences=3).max_requests == 3


def test_what_a_client_records_of_it_does_not_contradict_it(tmp_path: Path) -> None:
    parameters = staged(tmp_path, Options(**FOLDERS))
    assert "batching" not in parameters  # clients read it off gpt_model_type
    assert parameters["gpt_model_type"] == "inflight_fused_batching"
    assert parameters["engine"] == "reference-torch"


@pytest.mark.parametrize("contract", ["v0.8", "v0.5"])
def test_the_answer_holds_the_prompt_unless_it_is_left_out(contract: str, tmp_path: Path) -> None:
    options = Options(**FOLDERS, contract=contract)
    assert staged(tmp_path / "a", options)["exclude_input_in_output"] in ("", "False")
    if contract == "v0.8":
        without = replace(options, exclude_input_in_output=True)
        assert staged(tmp_path / "b", without)["exclude_input_in_output"] == "True"
