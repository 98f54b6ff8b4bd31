"""Triton model `tensorrt_llm`: hands each request to the engine's thread and streams its tokens back.

If a client cancels a request to this model itself, it ends; tritonserver 2.51 passes no cancellation on to the steps
of a running ensemble, so a request to `ensemble` runs to its end.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from calibration.load import system
from lab.reference.contract import TENSORRT_LLM
from lab.reference.engine import refusals
from lab.reference.engine.answers import Answer
from lab.reference.engine.inputs import read_request, sent_prompt
from lab.reference.engine.metrics import Metrics
from lab.reference.engine.refusals import InputError
from lab.reference.engine.request import Request, Token
from lab.reference.engine.request_ids import request_number
from lab.reference.engine.worker import Worker, build_engine

HOUSEKEEPING_S = 0.2
FIRST_OWN_NUMBER = 2**31
"""Requests without an id are numbered from here on, above what clients count with."""
INPUT_NAMES = tuple(tensor.name for tensor in TENSORRT_LLM.inputs)


@dataclass(slots=True, eq=False)
class Flight:
    """A request and the way back to its client. Messages call it by its `number`."""

    request: Request
    answer: Answer
    sender: Any
    number: int


class TritonPythonModel:
    """Called by Triton's Python backend. `execute` returns at once, answers come from the sending thread.

    Where the model is not decoupled, each request gets exactly one answer, and none can be streamed.
    """

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        system.stay_on(system.read(parameters["engine_cores"]))
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.excludes_prompt = parameters["exclude_input_in_output"] in ("True", "true", "TRUE", "1")
        self.engine, self.limits = build_engine(parameters)
        self.flights: dict[Request, Flight] = {}
        self.ending = threading.Lock()  # a request is either stopped or finally answered, never both
        self.own_numbers: Iterator[int] = itertools.count(FIRST_OWN_NUMBER)
        self.answers: queue.SimpleQueue[list[Token] | None] = queue.SimpleQueue()
        self.metrics = Metrics(pb_utils, args, self.engine)
        self.sending = threading.Thread(target=self._send, name="sending", daemon=True)
        self.sending.start()
        self.worker = Worker(self.engine, self.answers.put, lambda: self.answers.put(None))

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            number = request_number(request.request_id())
            tensors = {name: array for name in INPUT_NAMES if (array := _array(request, name)) is not None}
            try:
                if _is_set(tensors, "stop"):
                    self._stop(number, sender)
                else:
                    self._take_off(number, tensors, set(request.requested_output_names()), sender)
            except InputError as error:
                _refuse(sender, str(error))

    def finalize(self) -> None:
        self.worker.stop()
        self.sending.join()
        self.metrics.close()

    def _take_off(self, number: int, tensors: dict[str, Any], outputs: set[str], sender: Any) -> None:
        if number and self._in_flight(number):
            raise InputError(refusals.already_in_progress(number))
        if _is_set(tensors, "streaming") and not self.is_decoupled:
            raise InputError(refusals.NOT_DECOUPLED)
        if not self.worker.is_alive:
            raise InputError("the engine has stopped; the server's log says why")
        number = number or next(self.own_numbers)
        try:
            request = read_request(tensors, self.limits, self.engine.model.shape, outputs)
        except InputError as error:
            raise InputError(refusals.cannot_process(number, str(error))) from error
        answer = Answer(request, outputs, [] if self.excludes_prompt else sent_prompt(tensors))
        self.flights[request] = Flight(request, answer, sender, number)
        self.worker.submit(request)

    def _in_flight(self, number: int) -> list[Flight]:
        return [flight for flight in tuple(self.flights.values()) if flight.number == number]

    def _stop(self, number: int, sender: Any) -> None:
        """Stop the flight of that number. The stop is acknowledged first: clients rely on that order."""
        if not number:
            raise InputError(refusals.STOP_WITHOUT_ID)
        with self.ending:
            stopped = self._in_flight(number)
            if not stopped:
                raise InputError(refusals.not_active(number))
            sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            for flight in stopped:
                flight.request.is_cancelled = True

    def _send(self) -> None:
        """The sending thread: the engine goes on with its next pass while answers are on their way.

        It also looks for clients that are gone: with the last response the server frees the sender, and it crashed when
        another thread asked that sender about its client meanwhile.
        """
        next_round_s = 0.0
        while (tokens := self._next_tokens()) is not None:
            for token in tokens:
                try:
                    self._send_token(token)
                except pb_utils.TritonModelException as error:  # one client's failure must not affect the others
                    sys.stderr.write(f"[tensorrt_llm] a response was lost: {error}\n")
                    token.request.is_cancelled = True
            if time.monotonic() >= next_round_s:
                self._keep_house()
                next_round_s = time.monotonic() + HOUSEKEEPING_S
        for flight in tuple(self.flights.values()):
            _refuse(flight.sender, "the engine stopped before this request was done")

    def _next_tokens(self) -> list[Token] | None:
        """The engine's results; none if there were none for one round; None if it has stopped."""
        try:
            return self.answers.get(timeout=HOUSEKEEPING_S)
        except queue.Empty:
            return []

    def _send_token(self, token: Token) -> None:
        flight = self.flights[token.request]
        flight.answer.add(token)
        if token.is_last:
            with self.ending:
                del self.flights[token.request]
                self._send_part(flight, token)
        else:
            self._send_part(flight, token)

    def _send_part(self, flight: Flight, token: Token) -> None:
        request = flight.request
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if token.is_last else 0
        if token.id is None and not flight.answer.ids and not request.computed:
            _refuse(flight.sender, refusals.stopped_while_waiting(flight.number), flight.sender.is_cancelled())
        elif request.is_streamed and token.id is not None:
            flight.sender.send(_response(flight.answer.part()), flags=flags)
        elif request.is_streamed and token.is_last:
            flight.sender.send(flags=flags)
        elif token.is_last:
            flight.sender.send(_response(flight.answer.whole()), flags=flags)

    def _keep_house(self) -> None:
        """Look for clients that are gone, and publish the metrics."""
        for flight in tuple(self.flights.values()):
            if flight.sender.is_cancelled():
                flight.request.is_cancelled = True
        self.metrics.publish()


def _array(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _is_set(tensors: dict[str, Any], name: str) -> bool:
    return name in tensors and bool(tensors[name].any())


def _response(tensors: dict[str, Any]) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])


def _refuse(sender: Any, message: str, is_cancelled: bool = False) -> None:
    sys.stderr.write(f"[tensorrt_llm] refused: {message}\n")
    code = pb_utils.TritonError.CANCELLED if is_cancelled else pb_utils.TritonError.INTERNAL
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
