"""The local server on a real Triton: streamed and unstreamed answers, sampling, errors, clients that leave."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from lab.reference.server import ReferenceServer
from lab.reference.settings import Settings
from tests.calibration.serving import (
    PROMPT,
    Stream,
    completed,
    engine_inputs,
    ensemble_inputs,
    gauges,
    http,
    ids,
    tensor,
    until,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as running:
        yield running


@pytest.mark.triton
def test_four_models_are_ready(server: ReferenceServer) -> None:
    index = http(f"{server.http_url}/v2/repository/index", {})
    assert {entry["name"]: entry["state"] for entry in index} == dict.fromkeys(
        ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"), "READY"
    )


@pytest.mark.triton
def test_a_streamed_completion_is_one_token_per_answer(server: ReferenceServer) -> None:
    results = completed(server, ensemble_inputs(PROMPT, 17))
    assert len(results) == 17
    tokenizer = Tokenizer.from_file(str(server.tokenizer))
    for result in results:
        assert result.as_numpy("output_ids").shape == (1, 1, 1)
        token = int(result.as_numpy("output_ids").item())
        assert result.as_numpy("text_output").reshape(-1)[0].decode() == tokenizer.decode([token])
        assert result.as_numpy("context_logits").shape == (1, 1, 1)
        assert result.as_numpy("generation_logits").shape == (1, 1, 1, 1)


@pytest.mark.triton
def test_an_unstreamed_completion_is_one_answer_with_prompt_and_the_same_tokens(server: ReferenceServer) -> None:
    streamed = ids(completed(server, ensemble_inputs(PROMPT, 9)))
    results = completed(server, ensemble_inputs(PROMPT, 9, stream=False))
    prompt = Tokenizer.from_file(str(server.tokenizer)).encode(PROMPT).ids
    assert len(results) == 1
    assert len(prompt) == len(PROMPT.split())
    assert ids(results) == prompt + streamed
    assert results[0].as_numpy("output_ids").shape == (1, 1, len(prompt) + 9)


@pytest.mark.triton
def test_generate_over_http(server: ReferenceServer) -> None:
    body = {"text_input": PROMPT, "max_tokens": 6, "stream": False, "end_id": -1}
    answer = http(f"{server.http_url}/v2/models/ensemble/generate", body)
    assert answer["text_output"].startswith(PROMPT)
    assert len(answer["output_ids"]) == len(PROMPT.split()) + 6


@pytest.mark.triton
def test_eight_streams_at_once_get_what_each_gets_alone(server: ReferenceServer) -> None:
    prompts = [" ".join(PROMPT.split()[start:] + ["buba"] * start) for start in range(4)]
    alone = [ids(completed(server, ensemble_inputs(prompt, 20))) for prompt in prompts]
    streams = [Stream(server.grpc_url) for _ in range(8)]
    for number, stream in enumerate(streams):
        stream.ask(ensemble_inputs(prompts[number % 4], 20))
    for number, stream in enumerate(streams):
        with stream:
            assert ids(stream.rest()) == alone[number % 4]


@pytest.mark.triton
def test_log_probs_are_of_the_tokens_and_add_up(server: ReferenceServer) -> None:
    results = completed(server, ensemble_inputs(PROMPT, 8, return_log_probs=True))
    single = [float(result.as_numpy("output_log_probs").item()) for result in results]
    running = [float(result.as_numpy("cum_log_probs").item()) for result in results]
    assert all(-np.log(2048) < value < 0 for value in single)  # the greedy token beats a uniform guess
    assert running == pytest.approx(np.cumsum(single), rel=1e-5)
    silent = completed(server, ensemble_inputs(PROMPT, 2))
    assert [result.as_numpy("cum_log_probs").item() for result in silent] == [0.0, 0.0]


@pytest.mark.triton
def test_end_token_stops_early_and_minus_one_never_does(server: ReferenceServer) -> None:
    free = ids(completed(server, ensemble_inputs(PROMPT, 12)))
    stop = free[4]
    assert ids(completed(server, ensemble_inputs(PROMPT, 12, end_id=stop))) == free[: free.index(stop) + 1]
    assert len(free) == 12


@pytest.mark.triton
def test_words_and_bias_steer_the_output(server: ReferenceServer) -> None:
    tokenizer = Tokenizer.from_file(str(server.tokenizer))
    free = ids(completed(server, ensemble_inputs(PROMPT, 12)))
    word = tokenizer.decode([free[3]])
    stopped = ids(completed(server, ensemble_inputs(PROMPT, 12, stop_words=[word.encode()])))
    assert stopped == free[: free.index(free[3]) + 1]
    without = ids(completed(server, ensemble_inputs(PROMPT, 12, bad_words=[word.encode()])))
    assert free[3] not in without and len(without) == 12
    pushed = ensemble_inputs(PROMPT, 5, embedding_bias_words=[b"bebe"], embedding_bias_weights=[1000.0])
    assert ids(completed(server, pushed)) == tokenizer.encode("bebe").ids * 5


@pytest.mark.triton
def test_sampling_follows_its_seed(server: ReferenceServer) -> None:
    def sampled(seed: int) -> list[int]:
        return ids(completed(server, ensemble_inputs(PROMPT, 10, top_k=50, temperature=1.5, random_seed=seed)))

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (lambda: ensemble_inputs(PROMPT, 600), "exceeds the maximum sequence length of 512"),
        (lambda: ensemble_inputs(PROMPT, 3, beam_width=2), "Requested beam width 2 is larger than"),
        (lambda: ensemble_inputs("", 3), "prompt is empty"),
        (lambda: ensemble_inputs(PROMPT, 0), "request_output_len must be at least 1"),
    ],
)
def test_what_cannot_be_served_comes_back_as_a_triton_error(
    server: ReferenceServer, inputs: Callable[[], list[triton.InferInput]], says: str
) -> None:
    with pytest.raises(InferenceServerException, match=says) as caught:
        completed(server, inputs())
    assert "\n" not in str(caught.value)
    assert len(completed(server, ensemble_inputs(PROMPT, 2))) == 2  # and the next request is served


@pytest.mark.triton
def test_a_batch_of_two_is_refused(server: ReferenceServer) -> None:
    inputs = [tensor("text_input", [[b"baba"], [b"baba"]], object), tensor("max_tokens", [[2], [2]], np.int32)]
    with pytest.raises(InferenceServerException, match="batch size of 1"):
        completed(server, inputs)


@pytest.mark.triton
def test_clients_that_leave_free_their_places(server: ReferenceServer) -> None:
    passes = gauges(server, "general")["iteration_counter"]
    streams = [Stream(server.grpc_url) for _ in range(16)]
    for stream in streams:
        stream.ask(engine_inputs([5, 6, 7], 500, stream=True), "tensorrt_llm")
    until(lambda: gauges(server, "request")["active"] == 16)
    until(lambda: gauges(server, "inflight_batcher")["generation_requests"] == 16)
    assert gauges(server, "kv_cache_block")["used"] == 16 * 32  # 503 tokens in blocks of 16
    for stream in streams:
        stream.client.stop_stream(cancel_requests=True)
        stream.client.close()
    until(lambda: gauges(server, "kv_cache_block")["used"] == 0)
    blocks = gauges(server, "kv_cache_block")
    assert blocks["free"] == blocks["max"] == 1024
    assert gauges(server, "request")["active"] == 0
    assert gauges(server, "general")["iteration_counter"] - passes < 500  # they did not run to their ends


@pytest.mark.triton
def test_a_stop_request_is_acknowledged_before_the_early_answer(server: ReferenceServer) -> None:
    with Stream(server.grpc_url) as stream:
        stream.ask(engine_inputs([5, 6, 7], 500), "tensorrt_llm", "41")
        stream.ask(engine_inputs([1], 0, stop=True), "tensorrt_llm", "41")
        acknowledged, answer = stream.next(), stream.next()
    assert isinstance(acknowledged, triton.InferResult) and isinstance(answer, triton.InferResult)
    assert acknowledged.as_numpy("output_ids") is None
    tokens = answer.as_numpy("output_ids").reshape(-1).tolist()
    assert tokens[:3] == [5, 6, 7]
    assert len(tokens) < 503
    with Stream(server.grpc_url) as stream:
        stream.ask(engine_inputs([1], 0, stop=True), "tensorrt_llm", "41")
        assert "not active" in str(stream.next())
