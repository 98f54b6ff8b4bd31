"""What the backend's own clients of v0.5 and v0.8 put on the wire, and how they read the answers: names, shapes, types.

Written from the published interface, to hold the local server to it.
"""

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

WITHIN_S = 90.0
END_ID = 50256  # GPT-2's, far outside the vocabulary of the local model: such a request runs to its full length
Answer = triton.InferResult | InferenceServerException


def tensor(name: str, values: Any, dtype: Any) -> triton.InferInput:
    array = np.array(values, dtype=dtype)
    return triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)


@dataclass(frozen=True)
class Dialect:
    """One release of the contract: its whole numbers, and whether `sequence_length` comes beside `output_ids`."""

    contract: str
    whole: type
    says_length: bool

    def request(self, prompt: Sequence[int], output_len: int, streaming: bool) -> list[triton.InferInput]:
        """The tensors of one request in the order in which the client of that release sends them."""
        inputs = [
            tensor("input_ids", [list(prompt)], np.int32),
            tensor("input_lengths", [[len(prompt)]], np.int32),
            tensor("request_output_len", [[output_len]], self.whole),
            tensor("beam_width", [[1]], self.whole),
            tensor("temperature", [[1.0]], np.float32),
            tensor("streaming", [[streaming]], bool),
            tensor("end_id", [[END_ID]], self.whole),
        ]
        if self.contract == "v0.8":
            inputs += [
                tensor("pad_id", [[END_ID]], np.int32),
                tensor("return_log_probs", [[False]], bool),
                tensor("runtime_top_k", [[1]], np.int32),
                tensor("runtime_top_p", [[0.0]], np.float32),
            ]
        return inputs

    def benchmark_request(self, prompt: Sequence[int], output_len: int) -> list[triton.InferInput]:
        """What the benchmark (v0.8) and the identity test (v0.5) send: three tensors, in v0.8 an end id of -1 too."""
        inputs = [
            tensor("input_ids", [list(prompt)], np.int32),
            tensor("input_lengths", [[len(prompt)]], np.int32),
            tensor("request_output_len", [[output_len]], self.whole),
        ]
        return [*inputs, tensor("end_id", [[-1]], np.int32)] if self.contract == "v0.8" else inputs

    def text_request(self, text: str, output_len: int, stream: bool) -> list[triton.InferInput]:
        """What the text clients send to `ensemble`; v0.5 wants both word lists, be they empty."""
        inputs = [
            tensor("text_input", [[text.encode()]], object),
            tensor("max_tokens", [[output_len]], self.whole),
            tensor("stream", [[stream]], bool),
            tensor("beam_width", [[1]], self.whole),
            tensor("temperature", [[1.0]], np.float32),
        ]
        empty = [tensor(name, [[b""]], object) for name in ("bad_words", "stop_words")]
        return [*inputs, *empty] if self.contract == "v0.5" else inputs

    def stop(self) -> list[triton.InferInput]:
        """A stop request: its one prompt token is whatever was in memory, its lengths are 0."""
        return [
            tensor("input_ids", [[-559038737]], np.int32),
            tensor("input_lengths", [[0]], np.int32),
            tensor("request_output_len", [[0]], self.whole),
            tensor("stop", [[True]], bool),
        ]


V05 = Dialect("v0.5", np.uint32, says_length=False)
V08 = Dialect("v0.8", np.int32, says_length=True)


@dataclass
class Client:
    """A client as those of the backend work: all answers are collected in the order in which they come."""

    url: str
    dialect: Dialect
    answers: queue.Queue[Answer] = field(default_factory=queue.Queue)

    def __enter__(self) -> Self:
        self.triton = triton.InferenceServerClient(self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.triton.close()

    def stream(self, prompt: Sequence[int], output_len: int, name: str, stop_after_s: float = 0.0) -> list[Answer]:
        """One streamed request and, if `stop_after_s`, its stop: every answer until the server closes the stream."""
        self.triton.start_stream(self.put)
        self.triton.async_stream_infer(
            "tensorrt_llm", self.dialect.request(prompt, output_len, streaming=True), request_id=name
        )
        if stop_after_s:
            time.sleep(stop_after_s)
            self.triton.async_stream_infer(
                "tensorrt_llm", self.dialect.stop(), request_id=name, parameters={"Streaming": True}
            )
        self.triton.stop_stream()
        return [self.answers.get_nowait() for _ in range(self.answers.qsize())]

    def unary(self, prompt: Sequence[int], output_len: int, name: str, stop_after_s: float = 0.0) -> list[Answer]:
        """One request in one call and, if `stop_after_s`, its stop in another: their answers as they come."""
        self.send(self.dialect.request(prompt, output_len, streaming=False), name)
        if not stop_after_s:
            return [self.next()]
        time.sleep(stop_after_s)
        self.send(self.dialect.stop(), name)
        return [self.next(), self.next()]

    def send(self, inputs: list[triton.InferInput], name: str) -> None:
        self.triton.async_infer("tensorrt_llm", inputs, self.put, request_id=name, parameters={"Streaming": False})

    def put(self, result: triton.InferResult | None, error: InferenceServerException | None) -> None:
        answer = result if error is None else error
        assert answer is not None
        self.answers.put(answer)

    def next(self) -> Answer:
        return self.answers.get(timeout=WITHIN_S)

    def tokens(self, answer: Answer) -> list[int] | None:
        """Token ids of one answer as the client reads them; None for one without tensors, the word that it stops."""
        if isinstance(answer, InferenceServerException):
            raise answer
        ids = answer.as_numpy("output_ids")
        if ids is None:
            return None
        assert ids.dtype == np.int32 and ids.shape[:2] == (1, 1)
        lengths = answer.as_numpy("sequence_length")
        assert (lengths is not None) == self.dialect.says_length
        length = ids.shape[2] if lengths is None else int(lengths[0][0])
        return [int(token) for token in ids[0][0][:length]]
