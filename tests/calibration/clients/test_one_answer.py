"""A built repository that gives one answer per call, served locally, asked as the backend's own clients ask."""

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.calibration.clients.serving import LONG, PROMPT, STOP_AFTER_S, TEXT, Served, kinds, served_as
from tests.calibration.clients.wire import V05, V08, Client, tensor

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module", params=kinds(decoupled=False), ids=str)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_as(request.param, tmp_path_factory.mktemp("one_answer") / "models") as running:
        yield running


def new_tokens(client: Client, output_len: int, name: str) -> list[int]:
    (answer,) = client.unary(PROMPT, output_len, name)
    made = client.tokens(answer)
    assert made is not None and made[: len(PROMPT)] == PROMPT  # neither contract leaves the prompt out by itself
    return made[len(PROMPT) :]


def test_a_stop_is_acknowledged_before_the_stopped_answer_comes_early(served: Served) -> None:
    """In the other order the client of v0.8 ends in an exception: it keeps the lengths of the last answer."""
    with served.client() as client:
        whole = new_tokens(client, LONG, "whole")
        word, answer = map(client.tokens, client.unary(PROMPT, LONG, "2001", STOP_AFTER_S))
        assert word is None and answer is not None
        stopped = answer[len(PROMPT) :]
        assert len(whole) == LONG and 0 < len(stopped) < LONG
        assert stopped == whole[: len(stopped)]
        assert len(new_tokens(client, 4, "2001")) == 4  # the name is free again, and the server well


def test_a_stop_of_nothing_is_refused(served: Served) -> None:
    with served.client() as client:
        _, late = client.unary(PROMPT, 1, "77", stop_after_s=1.0)
        client.send(served.dialect.stop(), "")
        nameless = client.next()
    assert isinstance(late, InferenceServerException) and isinstance(nameless, InferenceServerException)
    assert late.message() == (
        "Received stop request for requestId 77 but it's not active (might be completed already)."
    )
    assert nameless.message() == "Cannot send stop request without specifying a request_id"


def test_the_other_release_is_refused_by_its_types_or_tensors(served: Served) -> None:
    with served.other_client() as client:
        (error,) = client.unary(PROMPT, 4, "1")
    assert isinstance(error, InferenceServerException)
    if client.dialect is V05:
        types = "data-type is 'UINT32', but model 'tensorrt_llm' expects 'INT32'"
        assert re.fullmatch(rf"\[request id: 1\] inference input '\w+' {types}", error.message())
    else:
        assert re.fullmatch(r".*unexpected inference input '\w+' for model 'tensorrt_llm'", error.message())


def test_a_benchmark_finds_its_lengths_in_the_first_output(served: Served) -> None:
    """It sends random ids far above any vocabulary, and counts tokens by the shape of whatever output comes first."""
    prompt = np.random.default_rng(0).integers(0, 2**31 - 1, 40).tolist()
    client = triton.InferenceServerClient(served.url)
    result = client.infer("tensorrt_llm", served.dialect.benchmark_request(prompt, 20), request_id="3")
    answer: dict[str, Any] = result.get_response(as_json=True)
    client.close()
    assert answer["id"] == "3"
    assert answer["outputs"][0]["name"] == "output_ids"
    assert [int(size) for size in answer["outputs"][0]["shape"]] == [1, 1, 60]
    assert result.as_numpy("output_ids")[0][0][:40].tolist() == prompt


def test_eight_sent_at_once_get_what_each_gets_alone(served: Served) -> None:
    """As the identity test does it: all are on their way before the first is answered."""
    with served.client() as client:
        alone = {}
        for number in range(8):
            client.send(served.dialect.benchmark_request(PROMPT[: 2 + number], 5 + number), str(number))
            alone[str(number)] = client.tokens(client.next())
        for number in range(8):
            client.send(served.dialect.benchmark_request(PROMPT[: 2 + number], 5 + number), str(number))
        together = [client.next() for _ in range(8)]
    assert all(isinstance(answer, triton.InferResult) for answer in together), together
    assert {answer.get_response().id: client.tokens(answer) for answer in together} == alone


def test_the_three_models_by_hand_give_what_the_ensemble_gives(served: Served) -> None:
    """As the end-to-end test does it, tensor by tensor."""
    whole = served.dialect.whole
    client = triton.InferenceServerClient(served.url)
    empty = [tensor(name, [[b""]], object) for name in ("BAD_WORDS_DICT", "STOP_WORDS_DICT")]
    query = [tensor("QUERY", [[TEXT.encode()]], object), *empty, tensor("REQUEST_OUTPUT_LEN", [[9]], whole)]
    engine, post = chain(served)
    before = client.infer("preprocessing", query)
    made = client.infer("tensorrt_llm", passed_on(before, engine))
    after = client.infer("postprocessing", passed_on(made, post))
    texts = {"text_input": TEXT.encode(), "bad_words": b"", "stop_words": b""}
    inputs = [tensor(name, [[text]], object) for name, text in texts.items()]
    ensemble = client.infer("ensemble", [*inputs, tensor("max_tokens", [[9]], whole)])
    client.close()
    text = ensemble.as_numpy("text_output")
    assert after.as_numpy("OUTPUT") == text
    words = text[0].decode().split()
    assert words[:5] == TEXT.split() and len(words) == 5 + 9


def chain(served: Served) -> tuple[dict[str, str], dict[str, str]]:
    """For the engine and for postprocessing: each input and the output of the model before it that fills it."""
    engine = {"input_ids": "INPUT_ID", "input_lengths": "REQUEST_INPUT_LEN", "request_output_len": "REQUEST_OUTPUT_LEN"}
    post = {"TOKENS_BATCH": "output_ids"}
    if served.dialect is V08:
        engine |= {"end_id": "OUT_END_ID", "pad_id": "OUT_PAD_ID"}
        more = ("sequence_length", "cum_log_probs", "output_log_probs", "context_logits", "generation_logits")
        post |= {name.upper(): name for name in more}
    return engine, post


def passed_on(result: triton.InferResult, names: dict[str, str]) -> list[triton.InferInput]:
    arrays = {inner: result.as_numpy(outer) for inner, outer in names.items()}
    return [tensor(inner, array, array.dtype) for inner, array in arrays.items()]


def test_a_cancelled_call_leaves_the_server_well(served: Served) -> None:
    with served.client() as client:
        inputs = served.dialect.request(PROMPT, LONG, streaming=False)
        call = client.triton.async_infer("tensorrt_llm", inputs, client.put, request_id="4")
        time.sleep(STOP_AFTER_S)
        call.cancel()
        error = client.next()
        assert isinstance(error, InferenceServerException) and error.status() == "StatusCode.CANCELLED"
        assert len(new_tokens(client, 4, "5")) == 4
