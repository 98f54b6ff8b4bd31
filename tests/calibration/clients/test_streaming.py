"""A built repository that streams, served locally, asked as the backend's own clients ask."""

import re
from collections.abc import Iterator

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.calibration.clients.serving import LONG, PROMPT, STOP_AFTER_S, TEXT, Served, kinds, served_as
from tests.calibration.clients.wire import V05, V08, Client

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module", params=kinds(decoupled=True), ids=str)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_as(request.param, tmp_path_factory.mktemp("streaming") / "models") as running:
        yield running


def new_tokens(client: Client, output_len: int, name: str) -> list[int]:
    return [token for answer in client.stream(PROMPT, output_len, name) for token in client.tokens(answer) or []]


def test_each_answer_is_one_new_token(served: Served) -> None:
    with served.client() as client:
        pieces = [client.tokens(answer) for answer in client.stream(PROMPT, 16, "1")]
    assert [len(piece or []) for piece in pieces] == [1] * 16


def test_a_stop_is_acknowledged_without_tensors_and_ends_the_stream_early(served: Served) -> None:
    with served.client() as client:
        whole = new_tokens(client, LONG, "whole")
        answers = [client.tokens(answer) for answer in client.stream(PROMPT, LONG, "2001", STOP_AFTER_S)]
        stopped = [token for answer in answers for token in answer or []]
        assert answers.count(None) == 1
        assert len(whole) == LONG and 0 < len(stopped) < LONG
        assert stopped == whole[: len(stopped)]
        assert len(new_tokens(client, 4, "2001")) == 4  # the name is free again, and the server well


def test_a_stop_of_nothing_is_refused(served: Served) -> None:
    with served.client() as client:
        answers = [*client.stream(PROMPT, 1, "77", stop_after_s=1.0), *client.stream(PROMPT, 1, "", stop_after_s=0.1)]
    assert [answer.message() for answer in answers if isinstance(answer, InferenceServerException)] == [
        "Received stop request for requestId 77 but it's not active (might be completed already).",
        "Cannot send stop request without specifying a request_id",
    ]


def test_a_unary_call_is_refused(served: Served) -> None:
    with served.client() as client:
        (error,) = client.unary(PROMPT, 4, "1")
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.UNIMPLEMENTED"
    assert error.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"


def test_the_other_release_is_refused_by_its_types_or_tensors(served: Served) -> None:
    with served.other_client() as client:
        (error,) = client.stream(PROMPT, 4, "1")
    assert isinstance(error, InferenceServerException)
    if client.dialect is V05:
        types = "data-type is 'UINT32', but model 'tensorrt_llm' expects 'INT32'"
        assert re.fullmatch(rf"\[request id: 1\] inference input '\w+' {types}", error.message())
    else:
        assert re.fullmatch(r".*unexpected inference input '\w+' for model 'tensorrt_llm'", error.message())


def test_streamed_text_is_read_beam_by_beam_without_a_batch(served: Served) -> None:
    for model in ("ensemble", "tensorrt_llm_bls") if served.dialect is V08 else ("ensemble",):
        with served.client() as client:
            client.triton.start_stream(client.put)
            client.triton.async_stream_infer(model, served.dialect.text_request(TEXT, 8, stream=True))
            client.triton.stop_stream()
            answers = [client.answers.get_nowait() for _ in range(client.answers.qsize())]
        assert all(isinstance(answer, triton.InferResult) for answer in answers), answers
        pieces = [answer.as_numpy("text_output")[0].decode() for answer in answers]
        assert len(pieces) == 8 and all(piece.isalpha() for piece in pieces)
