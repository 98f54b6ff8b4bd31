"""Built repositories served locally, asked as the backend's own clients ask: two of the eight kinds, by choice all."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from calibration.reference import environment
from calibration.repository.builder import build_repository
from calibration.repository.options import Batching, Options
from tests.calibration.clients.wire import V05, V08, WITHIN_S, Client, Dialect, tensor

pytestmark = pytest.mark.triton

Kind = tuple[Dialect, Batching, bool]
EVERY = "SIZING_EVERY_REPOSITORY" in os.environ
KINDS: list[Kind] = [(V08, "in_flight", True), (V05, "static", False)]
if EVERY:
    KINDS = list(itertools.product((V05, V08), ("in_flight", "static"), (True, False)))
SERVE = [sys.executable, "-m", "calibration", "serve", "--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]
PROMPT = list(range(5, 15))
TEXT = "baba gito bila bebo hemi"
LONG = 450  # tokens: takes the local model a second, so that a stop comes in time
STOP_AFTER_S = 0.2


def named(kind: Kind) -> str:
    dialect, batching, decoupled = kind
    return f"{dialect.contract}-{batching}{'-decoupled' * decoupled}"


@dataclass(frozen=True)
class Served:
    url: str
    dialect: Dialect
    decoupled: bool

    def client(self) -> Client:
        return Client(self.url, self.dialect, self.decoupled)


@pytest.fixture(scope="module", params=KINDS, ids=named)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`repository build`, then `serve --repository`, as a user does it; engine and tokenizer are not to be found."""
    dialect, batching, decoupled = request.param
    options = Options("/engines/e", "/tokenizers/t", contract=dialect.contract, batching=batching, decoupled=decoupled)
    folder = build_repository(tmp_path_factory.mktemp("repository") / "models", options)
    with serving(folder) as url:
        yield Served(url, dialect, decoupled)


class serving:  # noqa: N801 - used as a function is
    """As a context manager: `serve --repository FOLDER`; gives the gRPC address."""

    def __init__(self, folder: Path) -> None:
        self.command = [*SERVE, "--repository", str(folder)]

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=environment.PROJECT
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        ready = self.process.stdout.readline()
        found = re.match(r"READY grpc=(\S+) ", ready)
        assert found, ready + self.process.stderr.read()
        return found[1]

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=WITHIN_S)


def test_a_completion_has_as_many_tokens_as_asked(served: Served) -> None:
    with served.client() as client:
        answers = client.complete(PROMPT, 16, "1")
        pieces = [client.tokens(answer) for answer in answers]
    if served.decoupled:
        assert [len(piece or []) for piece in pieces] == [1] * 16  # new tokens only, one after another
    else:
        assert len(pieces) == 1 and pieces[0] is not None
        assert pieces[0][: len(PROMPT)] == PROMPT and len(pieces[0]) == len(PROMPT) + 16


def test_a_stop_is_acknowledged_and_ends_the_request_early(served: Served) -> None:
    """The word that it stops has no tensors; where each call has one answer, it comes before the stopped answer."""
    with served.client() as client:
        whole = tokens(client, LONG, "whole")
        answers = [client.tokens(answer) for answer in client.complete(PROMPT, LONG, "2001", STOP_AFTER_S)]
        assert answers.count(None) == 1
        if not served.decoupled:
            assert answers[0] is None and len(answers) == 2
        stopped = [token for answer in answers for token in answer or []][0 if served.decoupled else len(PROMPT) :]
        assert 0 < len(stopped) < LONG
        assert stopped == whole[: len(stopped)]
        assert len(tokens(client, 4, "2001")) == 4  # the name is free again, and the server well


def tokens(client: Client, output_len: int, name: str) -> list[int]:
    """The new tokens of one undisturbed request."""
    made = [token for answer in client.complete(PROMPT, output_len, name) for token in client.tokens(answer) or []]
    return made if client.streams else made[len(PROMPT) :]


def test_a_stop_of_nothing_is_refused(served: Served) -> None:
    with served.client() as client:
        *_, error = client.complete(PROMPT, 1, "77", stop_after_s=1.0)
        assert isinstance(error, InferenceServerException)
        assert error.message() == (
            "Received stop request for requestId 77 but it's not active (might be completed already)."
        )
        *_, error = client.complete(PROMPT, 1, "", stop_after_s=0.5)
        assert isinstance(error, InferenceServerException)
        assert error.message() == "Cannot send stop request without specifying a request_id"


def test_the_other_release_is_refused_by_its_types(served: Served) -> None:
    other = V08 if served.dialect is V05 else V05
    with Client(served.url, other, served.decoupled) as client:
        (error,) = client.complete(PROMPT, 4, "1")
    assert isinstance(error, InferenceServerException)
    if other is V05:
        types = "data-type is 'UINT32', but model 'tensorrt_llm' expects 'INT32'"
        assert re.fullmatch(rf"\[request id: 1\] inference input '\w+' {types}", error.message())
    else:
        assert re.fullmatch(r".*unexpected inference input '\w+' for model 'tensorrt_llm'", error.message())


def test_a_unary_call_of_a_streaming_model_is_refused(served: Served) -> None:
    if not served.decoupled:
        pytest.skip("this one answers unary calls: the other tests ask it so")
    with served.client() as client:
        (error,) = client.unary(PROMPT, 4, "1")
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.UNIMPLEMENTED"
    assert error.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"


def test_a_benchmark_finds_its_lengths_in_the_first_output(served: Served) -> None:
    """It sends random ids far above any vocabulary, and counts tokens by the shape of whatever output comes first."""
    if served.decoupled:
        pytest.skip("the benchmarks ask for one answer per call")
    prompt = np.random.default_rng(0).integers(0, 2**31 - 1, 40).tolist()
    client = triton.InferenceServerClient(served.url)
    result = client.infer("tensorrt_llm", served.dialect.benchmark_request(prompt, 20), request_id="3")
    answer: dict[str, Any] = result.get_response(as_json=True)
    client.close()
    assert answer["id"] == "3"
    assert answer["outputs"][0]["name"] == "output_ids"
    assert [int(size) for size in answer["outputs"][0]["shape"]] == [1, 1, 60]


def test_many_at_once_get_what_each_gets_alone(served: Served) -> None:
    """All are sent before the first is answered, as the identity test does it."""
    if served.decoupled:
        pytest.skip("the identity test asks for one answer per call")
    prompts = [PROMPT[: 2 + number] for number in range(8)]
    with served.client() as client:
        alone = {}
        for number, prompt in enumerate(prompts):
            client._send(served.dialect.benchmark_request(prompt, 5 + number), str(number))
            alone[str(number)] = client.tokens(client.next())
        for number, prompt in enumerate(prompts):
            client._send(served.dialect.benchmark_request(prompt, 5 + number), str(number))
        for _ in prompts:
            answer = client.next()
            assert isinstance(answer, triton.InferResult)
            assert client.tokens(answer) == alone[answer.get_response().id]


def test_the_three_models_by_hand_give_what_the_ensemble_gives(served: Served) -> None:
    if served.decoupled:
        pytest.skip("by hand means one answer per call")
    client = triton.InferenceServerClient(served.url)
    whole, empty = served.dialect.whole, tensor("BAD_WORDS_DICT", [[b""]], object)
    length = tensor("REQUEST_OUTPUT_LEN", [[9]], whole)
    asked = [tensor("QUERY", [[TEXT.encode()]], object), empty, tensor("STOP_WORDS_DICT", [[b""]], object), length]
    before = client.infer("preprocessing", asked)
    names = {"input_ids": "INPUT_ID", "input_lengths": "REQUEST_INPUT_LEN", "request_output_len": "REQUEST_OUTPUT_LEN"}
    if served.dialect is V08:
        names |= {"end_id": "OUT_END_ID", "pad_id": "OUT_PAD_ID"}
    engine = client.infer("tensorrt_llm", passed_on(before, names))
    names = {"TOKENS_BATCH": "output_ids"}
    if served.dialect is V08:
        lower = ("sequence_length", "cum_log_probs", "output_log_probs", "context_logits", "generation_logits")
        names |= {name.upper(): name for name in lower}
    after = client.infer("postprocessing", passed_on(engine, names))
    texts = {"text_input": TEXT.encode(), "bad_words": b"", "stop_words": b""}
    inputs = [tensor(name, [[text]], object) for name, text in texts.items()]
    ensemble = client.infer("ensemble", [*inputs, tensor("max_tokens", [[9]], whole)])
    client.close()
    text = ensemble.as_numpy("text_output")
    assert after.as_numpy("OUTPUT") == text
    assert text[0].decode().split()[:5] == TEXT.split() and len(text[0].decode().split()) == 5 + 9


def passed_on(result: triton.InferResult, names: dict[str, str]) -> list[triton.InferInput]:
    """Outputs of one model as the inputs `names` of the next."""
    arrays = {inner: result.as_numpy(outer) for inner, outer in names.items()}
    return [tensor(inner, array, array.dtype) for inner, array in arrays.items()]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_streamed_text_is_read_beam_by_beam_without_a_batch(served: Served, model: str) -> None:
    if not served.decoupled or served.dialect is V05:
        pytest.skip("the client of v0.8 asks so: both models, one stream")
    with served.client() as client:
        client.triton.start_stream(client._put)
        inputs = [
            tensor("text_input", [[TEXT.encode()]], object),
            tensor("max_tokens", [[8]], np.int32),
            tensor("stream", [[True]], bool),
            tensor("beam_width", [[1]], np.int32),
            tensor("temperature", [[1.0]], np.float32),
        ]
        client.triton.async_stream_infer(model, inputs, request_id="")
        client.triton.stop_stream()
        pieces = []
        while not client.answers.empty():
            answer = client.answers.get()
            assert isinstance(answer, triton.InferResult), answer
            pieces.append(answer.as_numpy("text_output")[0].decode())
    assert len(pieces) == 8 and all(piece.isalpha() for piece in pieces)


def test_a_cancelled_call_leaves_the_server_well(served: Served) -> None:
    if served.decoupled:
        pytest.skip("a stream is cancelled in the tests of the server's own repository")
    with served.client() as client:
        call = client.triton.async_infer(
            "tensorrt_llm", served.dialect.request(PROMPT, LONG, streaming=False), client._put, request_id="4"
        )
        time.sleep(STOP_AFTER_S)
        call.cancel()
        error = client.next()
        assert isinstance(error, InferenceServerException) and error.status() == "StatusCode.CANCELLED"
        assert len(tokens(client, 4, "5")) == 4
