"""Triton model `tensorrt_llm`: hands each request to the engine's thread and streams its tokens back.

A client that leaves is noticed when it asked this model directly; tritonserver 2.51 passes a cancellation on to no step
of an ensemble that is under way, so behind `ensemble` such a request runs to its end.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from calibration.load import cores
from calibration.reference.contract import TENSORRT_LLM
from calibration.reference.engine.inputs import InputError, read_request
from calibration.reference.engine.metrics import Metrics
from calibration.reference.engine.request import Request, Token
from calibration.reference.engine.worker import Worker, build_engine

HOUSEKEEPING_S = 0.2
INPUT_NAMES = tuple(tensor.name for tensor in TENSORRT_LLM.inputs)
NO_CONTEXT_LOGITS = np.zeros((1, 1, 1), np.float32)
NO_GENERATION_LOGITS = np.zeros((1, 1, 1, 1), np.float32)


@dataclass(slots=True, eq=False)
class Flight:
    """A request and the way back to its client."""

    request: Request
    sender: Any
    name: str
    log_probs: list[float] = field(default_factory=list)


class TritonPythonModel:
    """Called by Triton's Python backend. Decoupled: `execute` returns at once, answers come from the sending thread."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        cores.stay_on(cores.read(parameters["engine_cores"]))
        self.excludes_prompt = parameters["exclude_input_in_output"].lower() in ("true", "1")
        self.engine, self.limits = build_engine(parameters)
        self.flights: dict[Request, Flight] = {}
        self.answers: queue.SimpleQueue[list[Token] | None] = queue.SimpleQueue()
        self.metrics = Metrics(pb_utils, args, self.engine)
        self.sending = threading.Thread(target=self._send, name="sending", daemon=True)
        self.sending.start()
        self.worker = Worker(self.engine, self.answers.put, lambda: self.answers.put(None))

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            tensors = {name: array for name in INPUT_NAMES if (array := _array(request, name)) is not None}
            if bool(tensors.get("stop", np.zeros(1)).any()):
                self._stop(request.request_id(), sender)
                continue
            try:
                parsed = read_request(tensors, self.limits)
                self._take_off(Flight(parsed, sender, request.request_id()))
            except InputError as error:
                _refuse(sender, str(error))

    def finalize(self) -> None:
        self.worker.stop()
        self.sending.join()
        self.metrics.close()

    def _take_off(self, flight: Flight) -> None:
        if flight.name and any(other.name == flight.name for other in tuple(self.flights.values())):
            raise InputError(f"requestId {flight.name} is already in progress, request is ignored.")
        if not self.worker.is_alive:
            raise InputError("the engine has stopped; the server's log says why")
        self.flights[flight.request] = flight
        self.worker.submit(flight.request)

    def _stop(self, name: str, sender: Any) -> None:
        """Stop the flight of that name. The stop is acknowledged first: clients rely on that order."""
        if not name:
            _refuse(sender, "Cannot send stop request without specifying a request_id")
            return
        named = [flight for flight in tuple(self.flights.values()) if flight.name == name]
        if not named:
            _refuse(
                sender, f"Received stop request for requestId {name} but it's not active (might be completed already)."
            )
            return
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        named[0].request.is_cancelled = True

    def _send(self) -> None:
        """The sending thread: the engine goes on with its next pass while answers are on their way.

        It also looks for clients that are gone, because a sender must not be asked about its client by one thread
        while another sends its last response: the server frees the sender then, and died of it.
        """
        next_round_s = 0.0
        while (tokens := self._next_tokens()) is not None:
            for token in tokens:
                try:
                    self._send_token(token)
                except pb_utils.TritonModelException as error:  # one client's trouble must not silence the others
                    sys.stderr.write(f"[tensorrt_llm] a response was lost: {error}\n")
                    token.request.is_cancelled = True
            if time.monotonic() >= next_round_s:
                self._keep_house()
                next_round_s = time.monotonic() + HOUSEKEEPING_S
        for flight in tuple(self.flights.values()):
            _refuse(flight.sender, "the engine stopped before this request was done")

    def _next_tokens(self) -> list[Token] | None:
        """What the engine made; nothing when it was silent for one round; None when it has stopped."""
        try:
            return self.answers.get(timeout=HOUSEKEEPING_S)
        except queue.Empty:
            return []

    def _send_token(self, token: Token) -> None:
        flight = self.flights[token.request]
        if token.id is not None:
            flight.log_probs.append(token.log_prob)
        if token.is_last:
            del self.flights[token.request]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if token.is_last else 0
        if token.request.is_streamed and token.id is not None:
            flight.sender.send(self._response(flight, [token.id], flight.log_probs[-1:]), flags=flags)
        elif token.request.is_streamed and token.is_last:
            flight.sender.send(flags=flags)
        elif token.is_last:
            prompt = [] if self.excludes_prompt else token.request.prompt
            flight.sender.send(self._response(flight, prompt + token.request.generated, flight.log_probs), flags=flags)

    def _response(self, flight: Flight, ids: list[int], log_probs: list[float]) -> Any:
        outputs = {
            "output_ids": np.array([[ids]], np.int32),
            "sequence_length": np.array([[len(ids)]], np.int32),
            "cum_log_probs": np.array([[sum(flight.log_probs)]], np.float32),
            "output_log_probs": np.array([[log_probs]], np.float32),
            "context_logits": NO_CONTEXT_LOGITS,
            "generation_logits": NO_GENERATION_LOGITS,
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])

    def _keep_house(self) -> None:
        """Look for clients that are gone, and publish the metrics."""
        for flight in tuple(self.flights.values()):
            if flight.sender.is_cancelled():
                flight.request.is_cancelled = True
        self.metrics.publish()


def _array(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _refuse(sender: Any, message: str) -> None:
    sys.stderr.write(f"[tensorrt_llm] refused: {message}\n")
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
