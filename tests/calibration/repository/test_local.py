"""The model repository parses back into the published v0.8.0 contract, and its ensemble is wired without loose ends."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tritonclient.grpc import model_config_pb2 as pb

from calibration.errors import ServerError
from lab.reference import contract
from lab.reference.engine.parameters import read_scheduling
from lab.reference.settings import SPECIAL_TOKENS, Settings
from lab.reference.tokenizer import make_tokenizer, words
from triton_tools.repository import Machine, build

GPU = Machine(device="cuda", gpu="NVIDIA H200", torch="2.13.0", precision="bf16")

# The v0.8.0 wire contract, written out a second time from the published configuration and in another shape than the
# table under test: per model, "name TYPE dims flags" with o = optional, r = ragged, s = scalar (reshape to []).
PUBLISHED_INPUTS = {
    "preprocessing": """QUERY STRING -1; REQUEST_OUTPUT_LEN INT32 -1; BAD_WORDS_DICT STRING -1 o;
        STOP_WORDS_DICT STRING -1 o; EMBEDDING_BIAS_WORDS STRING -1 o; EMBEDDING_BIAS_WEIGHTS FP32 -1 o;
        END_ID INT32 -1 o; PAD_ID INT32 -1 o""",
    "tensorrt_llm": """input_ids INT32 -1 r; input_lengths INT32 1 s; request_output_len INT32 1;
        draft_input_ids INT32 -1 or; end_id INT32 1 os; pad_id INT32 1 os; stop_words_list INT32 2,-1 or;
        bad_words_list INT32 2,-1 or; embedding_bias FP32 -1 or; beam_width INT32 1 os; temperature FP32 1 os;
        runtime_top_k INT32 1 os; runtime_top_p FP32 1 os; len_penalty FP32 1 os; repetition_penalty FP32 1 os;
        min_length INT32 1 os; presence_penalty FP32 1 os; frequency_penalty FP32 1 os; random_seed UINT64 1 os;
        return_log_probs BOOL 1 os; return_context_logits BOOL 1 os; return_generation_logits BOOL 1 os;
        stop BOOL 1 o; streaming BOOL 1 o; prompt_embedding_table FP16 -1,-1 or; prompt_vocab_size INT32 1 os;
        lora_weights FP16 -1,-1 or; lora_config INT32 -1,3 or""",
    "postprocessing": """TOKENS_BATCH INT32 -1,-1; SEQUENCE_LENGTH INT32 -1; CUM_LOG_PROBS FP32 -1;
        OUTPUT_LOG_PROBS FP32 -1,-1; CONTEXT_LOGITS FP32 -1,-1 o; GENERATION_LOGITS FP32 -1,-1,-1 o""",
    "ensemble": """text_input STRING -1; max_tokens INT32 -1; bad_words STRING -1 o; stop_words STRING -1 o;
        end_id INT32 1 o; pad_id INT32 1 o; top_k INT32 1 o; top_p FP32 1 o; temperature FP32 1 o;
        length_penalty FP32 1 o; repetition_penalty FP32 1 o; min_length INT32 1 o; presence_penalty FP32 1 o;
        frequency_penalty FP32 1 o; random_seed UINT64 1 o; return_log_probs BOOL 1 o;
        return_context_logits BOOL 1 o; return_generation_logits BOOL 1 o; beam_width INT32 1 o; stream BOOL 1 o;
        prompt_embedding_table FP16 -1,-1 o; prompt_vocab_size INT32 1 o; embedding_bias_words STRING -1 o;
        embedding_bias_weights FP32 -1 o""",
}
PUBLISHED_OUTPUTS = {
    "preprocessing": """INPUT_ID INT32 -1; REQUEST_INPUT_LEN INT32 1; BAD_WORDS_IDS INT32 2,-1;
        STOP_WORDS_IDS INT32 2,-1; EMBEDDING_BIAS FP32 -1; REQUEST_OUTPUT_LEN INT32 -1; OUT_END_ID INT32 -1;
        OUT_PAD_ID INT32 -1""",
    "tensorrt_llm": """output_ids INT32 -1,-1; sequence_length INT32 -1; cum_log_probs FP32 -1;
        output_log_probs FP32 -1,-1; context_logits FP32 -1,-1; generation_logits FP32 -1,-1,-1""",
    "postprocessing": """OUTPUT STRING -1; OUT_CUM_LOG_PROBS FP32 -1; OUT_OUTPUT_LOG_PROBS FP32 -1,-1;
        OUT_CONTEXT_LOGITS FP32 -1,-1; OUT_GENERATION_LOGITS FP32 -1,-1,-1""",
    "ensemble": """text_output STRING -1; cum_log_probs FP32 -1; output_log_probs FP32 -1,-1;
        context_logits FP32 -1,-1; generation_logits FP32 -1,-1,-1; output_ids INT32 -1,-1""",
}


def described(tensor: pb.ModelInput | pb.ModelOutput) -> str:
    flags = ""
    if isinstance(tensor, pb.ModelInput):
        flags = "o" * tensor.optional + "r" * tensor.allow_ragged_batch
        flags += "s" * (tensor.HasField("reshape") and not tensor.reshape.shape)
    name = pb.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return " ".join([tensor.name, name, ",".join(map(str, tensor.dims)), flags]).strip()


def split(text: str) -> list[str]:
    return [" ".join(entry.split()) for entry in text.split(";")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("repository") / "models", Settings(batching="static", kv_tokens=1000), GPU)


def read(repository: Path, model: str) -> pb.ModelConfig:
    return text_format.Parse((repository / model / "config.pbtxt").read_text(), pb.ModelConfig())


@pytest.mark.parametrize("model", PUBLISHED_INPUTS)
def test_tensors_are_those_of_the_published_configuration(repository: Path, model: str) -> None:
    config = read(repository, model)
    assert [described(tensor) for tensor in config.input] == split(PUBLISHED_INPUTS[model])
    assert [described(tensor) for tensor in config.output] == split(PUBLISHED_OUTPUTS[model])


def test_every_model_has_a_version_and_the_python_ones_their_program(repository: Path) -> None:
    assert sorted(folder.name for folder in repository.iterdir()) == sorted(PUBLISHED_INPUTS)
    for model in PUBLISHED_INPUTS:
        config = read(repository, model)
        assert config.name == model
        assert (config.backend or config.platform) == ("ensemble" if model == "ensemble" else "python")
        assert (repository / model / "1" / "model.py").exists() == (model != "ensemble")
        assert (repository / model / "1").is_dir()


def test_only_the_engine_is_decoupled_and_nothing_holds_requests_back(repository: Path) -> None:
    for model in PUBLISHED_INPUTS:
        config = read(repository, model)
        assert config.model_transaction_policy.decoupled == (model == "tensorrt_llm")
        assert config.dynamic_batching.max_queue_delay_microseconds == 0


def test_postprocessing_has_one_instance_so_that_tokens_keep_their_order(repository: Path) -> None:
    assert [group.count for group in read(repository, "postprocessing").instance_group] == [1]


def test_ensemble_consumes_only_what_is_produced_before(repository: Path) -> None:
    config = read(repository, "ensemble")
    types = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        model = read(repository, step.model_name)
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for name, source in step.input_map.items():
            assert types[source][0] == inputs[name].data_type, f"{step.model_name}.{name} <- {source}"
        required = {name for name, tensor in inputs.items() if not tensor.optional}
        assert required <= set(step.input_map)
        assert set(step.output_map) <= set(outputs)
        types |= {target: (outputs[name].data_type, []) for name, target in step.output_map.items()}
    for tensor in config.output:
        assert types[tensor.name][0] == tensor.data_type


def test_every_ensemble_input_reaches_a_model(repository: Path) -> None:
    config = read(repository, "ensemble")
    used = {source for step in config.ensemble_scheduling.step for source in step.input_map.values()}
    assert {tensor.name for tensor in config.input} <= used


def test_a_client_counts_the_token_ids_that_postprocessing_reads(repository: Path) -> None:
    steps = {step.model_name: step for step in read(repository, "ensemble").ensemble_scheduling.step}
    assert steps["tensorrt_llm"].output_map["output_ids"] == "output_ids"
    assert steps["postprocessing"].input_map["TOKENS_BATCH"] == "output_ids"


def test_parameters_describe_the_deployment(repository: Path) -> None:
    given = {key: value.string_value for key, value in read(repository, "tensorrt_llm").parameters.items()}
    assert given["gpt_model_type"] == "V1"
    assert (given["gpu"], given["precision"], given["tp"], given["pp"]) == ("NVIDIA H200", "bf16", "1", "1")
    assert given["batching"] == "static"
    assert given["batch_scheduler_policy"] == "guaranteed_no_evict"
    assert int(given["kv_tokens"]) == 992  # 62 whole blocks of 16 tokens in 1000
    assert given["engine_version"] == "triton 2.51.0 / torch 2.13.0"


def test_policy_and_reuse_are_the_engines_own_parameters(tmp_path: Path) -> None:
    folder = build(tmp_path / "models", Settings(policy="max_utilization", kv_reuse=True), GPU)
    given = {key: value.string_value for key, value in read(folder, "tensorrt_llm").parameters.items()}
    said: list[str] = []
    found = read_scheduling(given, said.append)
    assert (found.policy, found.reuses_kv, found.chunks_prompts) == ("max_utilization", True, True)
    assert said == []


def test_max_batch_size_reaches_every_model(tmp_path: Path) -> None:
    folder = build(tmp_path / "models", Settings(max_batch_size=7), GPU)
    assert {read(folder, model.name).max_batch_size for model in contract.MODELS} == {7}


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ServerError, match="not an empty folder") as caught:
        build(tmp_path, Settings(), GPU)
    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_tokenizer_file_is_the_one_the_models_read(repository: Path) -> None:
    for model in ("preprocessing", "postprocessing"):
        folder = Path(read(repository, model).parameters["tokenizer_dir"].string_value)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.get_vocab_size() == Settings().vocab_size


@given(st.lists(st.integers(min_value=len(SPECIAL_TOKENS), max_value=499), min_size=1, max_size=80))
def test_every_word_is_one_token_both_ways(ids: list[int]) -> None:
    tokenizer = make_tokenizer(500)
    text = tokenizer.decode(ids)
    assert len(text.split()) == len(ids)
    assert tokenizer.encode(text).ids == ids


def test_words_are_distinct_up_to_the_largest_vocabulary() -> None:
    most = 6400  # 80 syllables, two per word
    assert len(set(words(most))) == most
    with pytest.raises(ServerError, match="--vocab-size must be at most 6403"):
        words(most + 1)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"batching": "magic"}, "--batching "),
        ({"policy": "best"}, "--policy must be one of guaranteed_no_evict, max_utilization"),
        ({"grpc_port": 70_000}, "--grpc-port "),
        ({"grpc_port": 8000}, "asked for twice"),
        ({"hidden": 250}, "--hidden "),
        ({"kv_heads": 3}, "--kv-heads "),
        ({"token_budget": 8}, "--token-budget "),
        ({"kv_tokens": 15}, "--kv-tokens "),
        ({"layers": 0}, "--layers "),
        ({"max_sequence_tokens": 1}, "--max-sequence-tokens "),
    ],
)
def test_wrong_settings_are_named_in_one_line(wrong: dict[str, object], names: str) -> None:
    with pytest.raises(ServerError, match=names) as caught:
        Settings(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
