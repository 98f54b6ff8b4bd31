"""Adapters, logits, stops and refusals on the real server, decoupled and not: results and messages to the letter."""

import queue
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab.life import HOST
from lab.reference.engine.request_ids import request_number
from lab.reference.server import ReferenceServer
from lab.reference.settings import Settings
from tests.calibration.adapter_files import everywhere, make_adapter
from tests.calibration.repository.loader import SMALL, Served
from tests.calibration.serving import WITHIN_S, Stream, engine_inputs, ids, tensor, until
from triton_tools.repository.builder import build_repository
from triton_tools.repository.options import Options
from triton_tools.repository.staging import stage

pytestmark = pytest.mark.triton

PLACES = 6
SETTINGS = Settings(grpc_port=0, http_port=0, metrics_port=0, max_batch_size=PLACES, layers=6, vocab_size=512)
MODEL = {"hidden": SETTINGS.hidden, "heads": SETTINGS.heads, "kv_heads": SETTINGS.kv_heads}
SLOWER = replace(SMALL, hidden=256, layers=8)  # so that a stop after 50 ms comes long before the end
LONG = 480
PROMPT = [5, 6, 7]
NO_ADAPTER: list[triton.InferInput] = []
Answer = triton.InferResult | InferenceServerException


def adapter(rows: list[tuple[int, int, int]], seed: int) -> list[triton.InferInput]:
    weights, config = make_adapter(MODEL, rows, seed)
    return [tensor("lora_weights", weights, np.float16), tensor("lora_config", config, np.int32)]


LORA_STATES = [NO_ADAPTER, adapter(everywhere(SETTINGS.layers, 8), 1), adapter(everywhere(SETTINGS.layers, 4), 2)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ReferenceServer(SETTINGS) as server:
        yield server.grpc_url


@pytest.fixture
def stream(url: str) -> Iterator[Stream]:
    with Stream(url) as opened:
        yield opened


def result(answer: Answer) -> triton.InferResult:
    assert isinstance(answer, triton.InferResult), answer.message()
    return answer


def error(answer: Answer) -> str:
    assert isinstance(answer, InferenceServerException)
    assert answer.status() == "StatusCode.INTERNAL" or answer.status() is None  # a stream's errors have no code
    return str(answer.message())


def tokens_of(answer: Answer) -> list[int]:
    return ids([result(answer)])


def ask(stream: Stream, name: str = "", max_tokens: int = LONG, is_streamed: bool = False) -> None:
    stream.ask(engine_inputs(PROMPT, max_tokens, stream=is_streamed), "tensorrt_llm", name)


def stop(stream: Stream, name: str) -> None:
    stream.ask(engine_inputs([1], 0, stop=True), "tensorrt_llm", name)


def test_six_requests_at_once_with_three_lora_states_get_what_each_gets_alone(url: str) -> None:
    def inputs(number: int) -> list[triton.InferInput]:
        return engine_inputs([3 + number // 3, *PROMPT], 24) + LORA_STATES[number % 3]

    def completed(stream: Stream, number: int) -> list[int]:
        stream.ask(inputs(number), "tensorrt_llm")
        return tokens_of(stream.next())

    streams = [Stream(url) for _ in range(6)]
    alone = [completed(stream, number) for number, stream in enumerate(streams)]
    for number, stream in enumerate(streams):
        stream.ask(inputs(number), "tensorrt_llm")
    for number, stream in enumerate(streams):
        with stream:
            assert tokens_of(stream.next()) == alone[number]
    assert len({tuple(tokens) for tokens in alone}) == 6


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("name", ["41", "a name"])
def test_a_stop_after_200_ms_is_acknowledged_and_then_ends_the_request_early(
    stream: Stream, name: str, is_streamed: bool
) -> None:
    ask(stream, name, is_streamed=is_streamed)
    time.sleep(0.2)
    stop(stream, name)
    before, acknowledged = 0, result(stream.next())
    while acknowledged.as_numpy("output_ids") is not None:  # tokens of a stream that were on their way
        before, acknowledged = before + 1, result(stream.next())
    assert acknowledged.get_response().outputs == []
    if not is_streamed:
        tokens = tokens_of(stream.next())
        assert tokens[:3] == PROMPT
        assert 3 < len(tokens) < 3 + LONG
    else:
        rest = stream.rest()
        assert 0 < before + len(rest) < LONG
    stop(stream, name)
    assert error(stream.next()) == (
        f"Received stop request for requestId {request_number(name)} but it's not active (might be completed already)."
    )


def test_a_second_request_of_the_same_id_is_ignored_and_the_first_goes_on(stream: Stream) -> None:
    for name, same in (("41", "041"), ("a name", "a name")):
        ask(stream, name, 40)
        ask(stream, same, 40)
        assert error(stream.next()) == (f"requestId {request_number(name)} is already in progress, request is ignored.")
        assert len(tokens_of(stream.next())) == 3 + 40


@pytest.mark.parametrize("name", ["", "0"])
def test_a_stop_needs_an_id_and_0_is_none(stream: Stream, name: str) -> None:
    ask(stream, name, 8)
    ask(stream, name, 8)
    stop(stream, name)
    answers = [stream.next() for _ in range(3)]
    (refusal,) = [answer for answer in answers if isinstance(answer, InferenceServerException)]
    assert error(refusal) == "Cannot send stop request without specifying a request_id"
    assert [len(tokens_of(answer)) for answer in answers if answer is not refusal] == [11, 11]


def test_a_request_that_is_stopped_while_it_waits_is_ignored(url: str, stream: Stream) -> None:
    company = [Stream(url) for _ in range(PLACES)]
    for number, other in enumerate(company):
        ask(other, str(100 + number), is_streamed=True)
    for other in company:
        result(other.next())
    ask(stream, "7")
    stop(stream, "7")
    assert result(stream.next()).get_response().outputs == []
    assert error(stream.next()) == (
        "Encountered error for requestId 7: request Id 7 has been stopped. Request is ignored."
    )
    for number, other in enumerate(company):
        with other:
            stop(other, str(100 + number))
            other.rest()


def refused(stream: Stream, inputs: list[triton.InferInput], name: str = "") -> str:
    stream.ask(inputs, "tensorrt_llm", name)
    return error(stream.next())


def test_what_the_engine_cannot_run_is_refused_in_the_backends_words(stream: Stream) -> None:
    beams = [*engine_inputs(PROMPT, 4), tensor("beam_width", [[3]], np.int32)]
    head = "Encountered error for requestId 77: Cannot process new request: "
    assert refused(stream, beams, "77") == f"{head}Requested beam width 3 is larger than configured max beam width 1"
    long = engine_inputs([4] * 600, 4)
    assert refused(stream, long, "77") == f"{head}Prompt length (600) exceeds maximum input length (511)."
    two = [tensor("input_ids", [PROMPT, PROMPT], np.int32), tensor("input_lengths", [[3], [3]], np.int32)]
    two.append(tensor("request_output_len", [[4], [4]], np.int32))
    assert refused(stream, two, "77").startswith(f"{head}Expected batch dimension to be 1 for each request")
    weights, config = make_adapter(MODEL, [(1, 0, 2)], 1)
    lora = [tensor("lora_weights", weights[:, :, :-1], np.float16), tensor("lora_config", config, np.int32)]
    message = refused(stream, engine_inputs(PROMPT, 4) + lora, "77")
    assert message.startswith(f"{head}lora_weights has to few values for attn_q")
    message = refused(stream, engine_inputs(PROMPT, 4) + lora[:1], "77")
    assert message.startswith(f"{head}Request for LoRA inference must have both lora_weights and lora_keys")
    nameless = re.match(r"Encountered error for requestId (\d+): Cannot process", refused(stream, beams))
    assert nameless and int(nameless[1]) >= 2**31  # without an id: a number of the server's own


def test_a_unary_call_on_a_decoupled_model_is_refused_by_triton(url: str) -> None:
    with triton.InferenceServerClient(url) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("tensorrt_llm", engine_inputs(PROMPT, 4))
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert caught.value.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"


def wanting(is_streamed: bool = False) -> list[triton.InferInput]:
    flags = ("return_log_probs", "return_context_logits", "return_generation_logits")
    return engine_inputs(PROMPT, 5, stream=is_streamed) + [tensor(name, [[True]], bool) for name in flags]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logits_and_log_probs_reach_the_client_and_agree(stream: Stream, is_streamed: bool) -> None:
    stream.ask(wanting(is_streamed), "tensorrt_llm")
    parts = stream.rest()
    made = np.concatenate([part.as_numpy("generation_logits") for part in parts], axis=2)
    log_probs = np.concatenate([part.as_numpy("output_log_probs") for part in parts], axis=2)
    assert parts[0].as_numpy("context_logits").shape == (1, 3, SETTINGS.vocab_size)
    assert made.shape == (1, 1, 5, SETTINGS.vocab_size)
    chosen = made.max(axis=-1) - np.log(np.exp(made.astype(np.float64)).sum(axis=-1))
    assert log_probs == pytest.approx(chosen, abs=1e-4)
    assert made.argmax(axis=-1).ravel().tolist() == ids(parts)[-5:]
    last_of_prompt = parts[0].as_numpy("context_logits")[0, -1]
    assert last_of_prompt == pytest.approx(made[0, 0, 0], abs=1e-4)


def test_only_the_outputs_named_in_the_request_come_and_in_the_contracts_order(stream: Stream) -> None:
    named = [triton.InferRequestedOutput(name) for name in ("cum_log_probs", "output_ids")]
    stream.client.async_stream_infer("tensorrt_llm", wanting(), outputs=named)
    assert [output.name for output in result(stream.next()).get_response().outputs] == ["output_ids", "cum_log_probs"]
    stream.client.async_stream_infer("tensorrt_llm", engine_inputs(PROMPT, 2))
    all_of_them = [output.name for output in result(stream.next()).get_response().outputs]
    assert all_of_them[0] == "output_ids" and len(all_of_them) == 6


# ---- repositories that are not decoupled ----------------------------------------------------------------------------


class Unary:
    """Unary calls that do not wait for each other; answers come in the order in which they are done."""

    def __init__(self, served: Served) -> None:
        self.client = triton.InferenceServerClient(f"{HOST}:{served.settings.grpc_port}")
        self.answers: queue.Queue[Answer] = queue.Queue()

    def ask(self, inputs: list[triton.InferInput], name: str = "") -> Any:
        """The call under way, which can be cancelled."""

        def keep(result: Any, error: Any) -> None:
            self.answers.put(result if error is None else error)

        return self.client.async_infer("tensorrt_llm", inputs, keep, request_id=name)

    def next(self) -> Answer:
        return self.answers.get(timeout=WITHIN_S)


def unary_inputs(max_tokens: int, integer: type = np.int32, **more: bool) -> list[triton.InferInput]:
    given = [
        tensor("input_ids", [PROMPT], np.int32),
        tensor("input_lengths", [[len(PROMPT) if max_tokens else 0]], np.int32),
        tensor("request_output_len", [[max_tokens]], integer),
    ]
    return given + [tensor(name, [[value]], bool) for name, value in more.items()]


@pytest.mark.parametrize(
    ("contract", "batching", "excludes"),
    [("v0.8", "in_flight", True), ("v0.5", "static", None)],
)
def test_a_repository_that_is_not_decoupled_answers_unary_calls(
    contract: str, batching: Any, excludes: bool | None, tmp_path: Path
) -> None:
    folders = {"engine_dir": "/engines/llama", "tokenizer_dir": "/tokenizers/llama"}
    options = Options(
        **folders, contract=contract, batching=batching, exclude_input_in_output=excludes, max_batch_size=8
    )
    staged = stage(build_repository(tmp_path / "built", options), tmp_path / "staged", SLOWER)
    integer, prompt = (np.uint32 if contract == "v0.5" else np.int32), 0 if excludes else 3
    with Served(staged) as served:
        assert served.refusal == ""
        unary = Unary(served)
        for number in range(8):
            unary.ask(unary_inputs(4 + number, integer))
        answers = [result(unary.next()) for _ in range(8)]
        lengths = sorted(answer.as_numpy("output_ids").shape[2] for answer in answers)
        assert lengths == [prompt + 4 + number for number in range(8)]
        outputs = [output.name for output in answers[0].get_response().outputs]
        assert outputs == ["output_ids"] if contract == "v0.5" else len(outputs) == 6
        unary.ask(unary_inputs(4, integer, streaming=True))
        assert error(unary.next()) == "Streaming is only supported if model is deployed using decoupled mode."
        stop_early(unary, integer, prompt)
        cancel(unary, integer)


def stop_early(unary: Unary, integer: type, prompt: int) -> None:
    """A long request is stopped; the acknowledgement comes first, without outputs."""
    unary.ask(unary_inputs(500, integer), "12345")
    time.sleep(0.05)
    unary.ask(unary_inputs(0, integer, stop=True), "12345")
    acknowledged, answer = result(unary.next()), result(unary.next())
    assert acknowledged.as_numpy("output_ids") is None
    assert prompt < answer.as_numpy("output_ids").shape[2] < prompt + 500


def cancel(unary: Unary, integer: type) -> None:
    """The client of a long request gives up: it is told so, and its id is free again."""
    unary.ask(unary_inputs(500, integer), "5").cancel()
    cancelled = unary.next()
    assert isinstance(cancelled, InferenceServerException)
    assert cancelled.status() == "StatusCode.CANCELLED"

    def is_free() -> bool:
        unary.ask(unary_inputs(4, integer), "5")
        return isinstance(unary.next(), triton.InferResult)

    until(is_free)
