"""The mock's service of requests of any protocol: slots, due times of tokens, the log of true timings."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2

from calibration.errors import PlanError
from sizing.numbers import Floats

# --- The mock's true timings of each request, on the same clock as local clients

Ints = NDArray[np.int64]
NEVER = float("nan")


class Record:
    """One request while it is served; times that have not come yet are NaN."""

    __slots__ = ("final_sent_s", "first_sent_s", "first_tokens", "last_sent_s", "received_s", "tokens")

    def __init__(self, received_s: float) -> None:
        self.received_s = received_s
        self.first_sent_s = self.last_sent_s = self.final_sent_s = NEVER
        self.first_tokens = self.tokens = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """Requests as columns, arrays of shape (n,) in order of arrival; NaN: the event did not happen.

    Times are seconds of CLOCK_MONOTONIC (`time.perf_counter` on Linux) at which the mock had read the request, and gave
    the response with its first tokens, its last tokens, its end, to the operating system. `first_tokens` came with
    the first of them, `tokens` in all. `responses` and `cpu_s` (seconds of one core) are of the mock as a whole.
    """

    received_s: Floats
    first_sent_s: Floats
    last_sent_s: Floats
    final_sent_s: Floats
    first_tokens: Ints
    tokens: Ints
    responses: int = 0
    cpu_s: float = 0.0

    def __len__(self) -> int:
        return len(self.received_s)

    @classmethod
    def of(cls, records: list[Record], *, responses: int, cpu_s: float) -> Truth:
        """The columns of `records`."""
        columns: dict[str, Any] = {
            name: np.array([getattr(record, name) for record in records], kind) for name, kind in _COLUMNS.items()
        }
        return cls(responses=responses, cpu_s=cpu_s, **columns)

    @property
    def ttft_s(self) -> Floats:
        """Time to the first tokens of each request, including the wait for a slot."""
        return np.asarray(self.first_sent_s - self.received_s)

    @property
    def itl_s(self) -> Floats:
        """Mean gap of each request's tokens after those of its first response; NaN if there are none."""
        after = self.tokens - self.first_tokens
        gaps: Floats = np.divide(
            self.last_sent_s - self.first_sent_s, after, out=np.full(len(self), np.nan), where=after > 0
        )
        return gaps

    def between(self, start_s: float, stop_s: float) -> Truth:
        """The requests that arrived in [start_s, stop_s) and were answered completely."""
        chosen = (self.received_s >= start_s) & (self.received_s < stop_s) & ~np.isnan(self.last_sent_s)
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def means(self, start_s: float, stop_s: float) -> dict[str, float]:
        """Means over `between`, by field of `calibration.load.self_check.TrueTimes`; NaN without requests."""
        chosen = self.between(start_s, stop_s)
        itl_s = chosen.itl_s[~np.isnan(chosen.itl_s)]
        return {
            "requests": len(chosen),
            "ttft_s": float(chosen.ttft_s.mean()) if len(chosen) else NEVER,
            "itl_s": float(itl_s.mean()) if itl_s.size else NEVER,
        }

    def save(self, path: Path) -> None:
        """Write the log to `path`, for `load`."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        with path.open("wb") as file:
            np.savez(file, totals=np.array([self.responses, self.cpu_s]), **columns)

    @classmethod
    def load(cls, path: Path) -> Truth:
        """Read what `save` wrote to `path`."""
        with np.load(path) as stored:
            responses, cpu_s = stored["totals"].tolist()
            columns: dict[str, Any] = {name: stored[name] for name in _COLUMNS}
        return cls(responses=round(responses), cpu_s=cpu_s, **columns)


_COLUMNS: dict[str, type] = {
    "received_s": np.float64,
    "first_sent_s": np.float64,
    "last_sent_s": np.float64,
    "final_sent_s": np.float64,
    "first_tokens": np.int64,
    "tokens": np.int64,
}

# --- A connection of the mock: bytes are collected and written once per tick, and the time of writing is recorded


class Wire(asyncio.Protocol):
    """Base of the mock's connections."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._moments: list[tuple[Record, tuple[str, ...]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports have another type

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._out.clear()

    def close(self) -> None:
        """End the connection once the collected bytes are written."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Abort the connection."""
        self.flush()
        if self.transport is not None:
            self.transport.abort()

    def put(self, data: bytes, record: Record | None = None, moments: tuple[str, ...] = ()) -> None:
        """Collect `data`; `moments` of `record` are set when it is written."""
        self._out.append(data)
        if record is not None:
            self._moments.append((record, moments))

    def flush(self) -> None:
        """Write the collected bytes."""
        if self.transport is None or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        now_s = time.perf_counter()
        self.transport.write(data)
        for record, moments in self._moments:
            for moment in moments:
                setattr(record, moment, now_s)
        self._moments.clear()


# --- A timer wheel: many thousand due times per second, with a single timer of the event loop

T = TypeVar("T")
TICKS_PER_S = 1000.0  # event loops count in milliseconds


class Wheel(Generic[T]):
    """Items with their due times, rounded to the nearest millisecond; those due together are delivered as one list.

    Nothing wakes the loop while nothing is due. Items that a busy loop makes late come late; none is left out.
    """

    def __init__(self, on_due: Callable[[list[T]], None]) -> None:
        self._on_due = on_due
        self._buckets: dict[int, list[T]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        self._loop = asyncio.get_running_loop()

    def at(self, due_s: float, item: T) -> None:
        """Deliver `item` at `due_s` of `time.perf_counter`."""
        tick = round(due_s * TICKS_PER_S)
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.append(item)
            return
        self._buckets[tick] = [item]
        heapq.heappush(self._ticks, tick)
        if self._timer is None or tick < self._armed:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = self._loop.call_later(max(0.0, self._armed / TICKS_PER_S - time.perf_counter()), self._turn)

    def _turn(self) -> None:
        self._timer = None
        # because of the rounding, a timer that fires half a tick early still finds its items: the loop never spins
        now = round(time.perf_counter() * TICKS_PER_S)
        while self._ticks and self._ticks[0] <= now:
            self._on_due(self._buckets.pop(heapq.heappop(self._ticks)))
        if self._ticks:
            self._arm()


# --- The mock's script: when the tokens of an answer come, and its peculiarities


@dataclass(frozen=True, slots=True)
class Script:
    """How the mock answers a request for `osl` tokens (its ``max_tokens``). Times in seconds.

    The first response with tokens leaves `ttft_s` after the request came, or after one of the `slots` became free for
    it; each carries `tokens_per_response` tokens, the last what is left, and is followed by the next after `itl_s` for
    each of its tokens. `slots` None: any number of requests are served at once.

    `empty_first`: a response without tokens leaves at once. `late_final_s`: the last tokens are not marked final, an
    empty response that long after them is. `final_flag` False: nothing is marked. `short_by`: so many tokens are
    withheld. `error_every`, `hang_up_every` (0 never, n every n-th request): an error message in place of an answer;
    the stream ends after the first token. Over HTTP nothing is ever marked final, and the end of the body is the end.

    Raises PlanError if a value is not possible.
    """

    ttft_s: float = 0.02
    itl_s: float = 0.005
    tokens_per_response: int = 1
    empty_first: bool = False
    late_final_s: float = 0.0
    final_flag: bool = True
    slots: int | None = None
    short_by: int = 0
    error_every: int = 0
    hang_up_every: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise PlanError(f"mock: {field.name} must be a number of 0 or more, got {value}")
        for name in ("tokens_per_response", "slots"):
            if getattr(self, name) == 0:
                raise PlanError(f"mock: {name} must be 1 or more, got 0")

    def e2e_s(self, osl: int) -> float:
        """Seconds from a request to the last of its `osl` tokens, without waiting for a slot.

        >>> Script(ttft_s=0.02, itl_s=0.005).e2e_s(64)
        0.335
        """
        responses = math.ceil(max(1, osl - self.short_by) / self.tokens_per_response)
        return self.ttft_s + (responses - 1) * self.tokens_per_response * self.itl_s

    def requests_per_s(self, users: int, osl: int) -> float:
        """Requests/s of a client without delay in a closed loop of `users`, by Little's law.

        >>> round(Script(ttft_s=0.02, itl_s=0.005).requests_per_s(users=256, osl=64))
        764
        """
        served = users if self.slots is None else min(users, self.slots)
        return served / (self.e2e_s(osl) + self.late_final_s)


Moment = Literal["first_sent_s", "last_sent_s", "final_sent_s"]


class Outlet(Protocol):
    """The destination of the responses to one request: a stream of a gRPC connection, or the body of an HTTP answer.

    `wire` is the connection that is to be flushed after something was sent.
    """

    wire: Wire

    def response(self, tokens: int, final: bool) -> bytes:
        """A response as bytes for `send`, which may be sent repeatedly."""

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        """Queue a response. The time at which it leaves is written to `moments` of `record`."""

    def finish(self) -> None:
        """Everything was sent."""

    def fail(self, message: str) -> None:
        """Answer the request with an error."""

    def hang_up(self) -> None:
        """The stream or connection ends in the middle of an answer."""


class Answer:
    """One request being served: `left` tokens remain, the next response is due at `due_s`."""

    __slots__ = ("due_s", "hangs_up", "left", "middle", "osl", "outlet", "record", "serving")

    def __init__(self, outlet: Outlet, osl: int, record: Record) -> None:
        self.outlet: Outlet | None = outlet
        self.osl = self.left = osl
        self.record = record
        self.due_s = 0.0
        self.middle = b""
        self.serving = self.hangs_up = False


class Service:
    """Serves requests as `script` says. One for all connections of a mock."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._wheel: Wheel[Answer] = Wheel(self._due)
        self._records: list[Record] = []
        self._waiting: deque[Answer] = deque()
        self._serving = 0
        self._responses = 0
        self._gap_s = script.itl_s * script.tokens_per_response

    def truth(self) -> Truth:
        """The log so far."""
        return Truth.of(self._records, responses=self._responses, cpu_s=time.process_time())

    def receive(self, outlet: Outlet, osl: int) -> Answer:
        """Serve a request for `osl` tokens that has just arrived."""
        script = self._script
        record = Record(time.perf_counter())
        self._records.append(record)
        answer = Answer(outlet, osl - script.short_by, record)
        number = len(self._records)
        answer.hangs_up = _is_due(number, script.hang_up_every)
        if _is_due(number, script.error_every):
            answer.outlet = None
            outlet.fail("out of blocks")
            return answer
        if script.empty_first:
            self._responses += 1
            outlet.send(outlet.response(0, final=False))
        if script.slots is None or self._serving < script.slots:
            self._start(answer)
        else:
            self._waiting.append(answer)
        return answer

    def drop(self, answer: Answer) -> None:
        """The client has cancelled the request: nothing more is sent, and its slot is free."""
        if answer.outlet is not None:
            answer.outlet = None
            answer.record.tokens = answer.osl - max(0, answer.left)
            self._release(answer)

    def _start(self, answer: Answer) -> None:
        self._serving += 1
        answer.serving = True
        answer.due_s = time.perf_counter() + self._script.ttft_s
        self._wheel.at(answer.due_s, answer)

    def _release(self, answer: Answer) -> None:
        if not answer.serving:
            return
        answer.serving = False
        self._serving -= 1
        while self._waiting and (self._script.slots is None or self._serving < self._script.slots):
            waiting = self._waiting.popleft()
            if waiting.outlet is not None:
                self._start(waiting)

    def _due(self, answers: list[Answer]) -> None:
        """Send what is due now: this runs for every response."""
        tokens, gap_s, at = self._script.tokens_per_response, self._gap_s, self._wheel.at
        touched = set()
        for answer in answers:
            outlet = answer.outlet
            if outlet is None:
                continue
            touched.add(outlet.wire)
            if answer.middle and answer.left > tokens:
                outlet.send(answer.middle)
                self._responses += 1
                answer.left -= tokens
                answer.due_s += gap_s
                at(answer.due_s, answer)
            else:
                self._edge(answer, outlet)
        for wire in touched:
            wire.flush()

    def _edge(self, answer: Answer, outlet: Outlet) -> None:
        """The first response with tokens, the last, or the empty one after it."""
        self._responses += 1
        script, record = self._script, answer.record
        tokens = min(answer.left, script.tokens_per_response)
        if answer.hangs_up and record.first_tokens:
            self.drop(answer)
            outlet.hang_up()
            return
        answer.left -= tokens
        over = answer.left <= 0 and (tokens <= 0 or not script.late_final_s)
        moments: list[Moment] = []
        if tokens > 0:
            moments += [] if record.first_tokens else ["first_sent_s"]
            moments += [] if answer.left > 0 else ["last_sent_s"]
            record.first_tokens = record.first_tokens or tokens
        moments += ["final_sent_s"] if over else []
        outlet.send(outlet.response(max(0, tokens), final=over), record, *moments)
        self._go_on(answer, outlet, over)

    def _go_on(self, answer: Answer, outlet: Outlet, over: bool) -> None:
        script = self._script
        if answer.left > 0:
            if not answer.hangs_up:
                answer.middle = answer.middle or outlet.response(script.tokens_per_response, final=False)
            answer.due_s += self._gap_s
            self._wheel.at(answer.due_s, answer)
        elif over:
            self.drop(answer)
            outlet.finish()
        else:
            self._release(answer)
            self._wheel.at(time.perf_counter() + script.late_final_s, answer)


def _is_due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


# --- The mock's model as Triton would describe it, and its responses as bytes prepared once and sent often
#
# The model is an ensemble of the TensorRT-LLM backend's kind (`text_input`, `max_tokens` ... in; `text_output`,
# `output_ids` out). Every token is the word "word" and the id 7.

MODEL, ENGINE = "ensemble", "tensorrt_llm"
MAX_BATCH_SIZE = 256
ENGINE_SAYS = {"model": "mock", "precision": "none", "gpu": "none", "tp": "1", "engine": "mock"}
ASKED_BY = ("max_tokens", "request_output_len")
FINAL = "triton_final_response"
INPUTS = (  # name, datatype, optional
    ("text_input", "BYTES", False),
    ("max_tokens", "INT32", False),
    ("stream", "BOOL", True),
    ("end_id", "INT32", True),
    ("min_tokens", "INT32", True),
    ("exclude_input_in_output", "BOOL", True),
)
OUTPUTS = (("text_output", "BYTES"), ("output_ids", "INT32"))
_KIND = {
    "BYTES": model_config_pb2.TYPE_STRING,
    "INT32": model_config_pb2.TYPE_INT32,
    "BOOL": model_config_pb2.TYPE_BOOL,
}
# the protobuf tags of ModelInferResponse.id (3) and ModelStreamInferResponse.infer_response (2)
_ID, _INFER_RESPONSE = b"\x1a", b"\x12"


def config(model: str) -> Any:
    """The ModelConfig of `model`; None if there is no such model."""
    if model not in (MODEL, ENGINE):
        return None
    found = model_config_pb2.ModelConfig(name=model, max_batch_size=MAX_BATCH_SIZE)
    found.model_transaction_policy.decoupled = True
    if model == ENGINE:
        for key, value in ENGINE_SAYS.items():
            found.parameters[key].string_value = value
        return found
    found.platform = "ensemble"
    for name, datatype, optional in INPUTS:
        found.input.add(name=name, data_type=_KIND[datatype], dims=[1], optional=optional)
    for name, datatype in OUTPUTS:
        found.output.add(name=name, data_type=_KIND[datatype], dims=[-1])
    return found


def config_json(model: str) -> bytes | None:
    """The same in the form of Triton's HTTP endpoint."""
    found = config(model)
    if found is None:
        return None
    written: dict[str, Any] = json_format.MessageToDict(found, preserving_proto_field_name=True)
    for tensor in (*written.get("input", ()), *written.get("output", ())):
        tensor["dims"] = [int(size) for size in tensor["dims"]]  # protobuf writes 64-bit numbers as text
    return json.dumps(written).encode()


def asked(request: Any) -> int | None:
    """The number of tokens that a ModelInferRequest asks for; None if it does not say."""
    for position, tensor in enumerate(request.inputs):
        if tensor.name in ASKED_BY:
            if position < len(request.raw_input_contents):
                return int.from_bytes(request.raw_input_contents[position], "little", signed=True)
            return next(iter(tensor.contents.int_contents), None)
    return None


def grpc_response(request_id: str, tokens: int, final: bool | None) -> bytes:
    """A ModelStreamInferResponse with `tokens` new tokens, as a gRPC message; `final` None: without the flag."""
    name = request_id.encode()
    response = _outputs(tokens, final) + _ID + _varint(len(name)) + name
    return grpc_message(_INFER_RESPONSE + _varint(len(response)) + response)


def grpc_error(message: str) -> bytes:
    """The ModelStreamInferResponse that Triton sends if a request fails, as a gRPC message."""
    return grpc_message(service_pb2.ModelStreamInferResponse(error_message=message).SerializeToString())


def grpc_message(payload: bytes) -> bytes:
    """A message in gRPC's framing: uncompressed flag, length, message."""
    return b"\x00" + struct.pack(">I", len(payload)) + payload


@lru_cache(maxsize=4096)
def _outputs(tokens: int, final: bool | None) -> bytes:
    """A ModelInferResponse without its request's id, which may follow: fields may have any order."""
    answer = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1")
    if tokens:
        text = " ".join(["word"] * tokens).encode()
        ids = np.full(tokens, 7, np.int32)
        answer.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
        answer.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, tokens])
        answer.raw_output_contents.extend((struct.pack("<I", len(text)) + text, ids.tobytes()))
    if final is not None:
        answer.parameters[FINAL].bool_param = final
    return bytes(answer.SerializeToString())


@lru_cache(maxsize=4096)
def server_sent_event(tokens: int) -> bytes:
    """A response of generate_stream with `tokens` new tokens, as a chunk of an HTTP/1.1 body.

    As Triton does it, a tensor of one element is written as a number, not as a list of one.
    """
    ids = 7 if tokens == 1 else [7] * tokens
    text = " ".join(["word"] * tokens)
    answer = {"model_name": MODEL, "model_version": "1", "output_ids": ids, "text_output": text}
    return http_chunk(b"data: " + json.dumps(answer).encode() + b"\n\n")


# --- The same model on an OpenAI server that reports itself as vLLM

OPENAI_MODELS = json.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "vllm"}]}
).encode()
OPENAI_VERSION = b'{"version": "mock"}'
_USAGE = '"usage":{"prompt_tokens":%6d,"total_tokens":%6d,"completion_tokens":%6d}}'
_EVENT = 'data: {"id":"cmpl-mock","object":"%s","created":0,"model":"%s","choices":[%s],'


def prompt_tokens(asked: Mapping[str, Any]) -> int:
    """Tokens of the prompt in the body of a request, one per word; 4 more around a chat's."""
    if "messages" in asked:
        return 4 + sum(len(str(message["content"]).split()) for message in asked["messages"])
    prompt = asked.get("prompt", asked.get("text_input", ""))
    return len(prompt) if isinstance(prompt, list) else len(str(prompt).split())


class OpenAiEvents:
    """The events of one answer, with `tokens` reported so far."""

    def __init__(self, chat: bool) -> None:
        self.tokens = 0
        self._kind = "chat.completion.chunk" if chat else "text_completion"
        self._choice = '{"index":0,"delta":{"content":"%s"}}' if chat else '{"index":0,"text":"%s"}'

    def template(self, tokens: int) -> bytes:
        """The argument of `filled` for a response with `tokens` new tokens."""
        return b"%d" % tokens

    def filled(self, template: bytes, prompt: int) -> bytes:
        """The event that reports so many more tokens, as a chunk of an HTTP/1.1 body."""
        new = int(template)
        self.tokens += new
        return http_chunk(_openai_head(self._kind, self._choice, new) + self._usage(prompt))

    def last(self, prompt: int) -> bytes:
        """The closing events: usage alone, and [DONE]."""
        return _openai_head(self._kind, "", 0) + self._usage(prompt) + b"data: [DONE]\n\n"

    def _usage(self, prompt: int) -> bytes:
        return (_USAGE % (prompt, prompt + self.tokens, self.tokens)).encode() + b"\n\n"


@lru_cache(maxsize=4096)
def _openai_head(kind: str, choice: str, tokens: int) -> bytes:
    text = choice % (" word" * tokens) if choice else ""
    return (_EVENT % (kind, MODEL, text)).encode()


def http_chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body.

    >>> http_chunk(b"word")
    b'4\\r\\nword\\r\\n'
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
