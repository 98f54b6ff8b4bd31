"""The mock's service of requests, whatever protocol they came by: slots, the tokens' due times, the log of truth."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal, Protocol

from calibration.mock.script import Script
from calibration.mock.truth import Record, Truth
from calibration.mock.wheel import Wheel
from calibration.mock.wire import Wire

Moment = Literal["first_sent_s", "last_sent_s", "final_sent_s"]


class Outlet(Protocol):
    """Where the responses to one request go: a stream of a gRPC connection, or the body of an HTTP answer.

    `wire` is the connection that is to be flushed after something was sent.
    """

    wire: Wire

    def response(self, tokens: int, final: bool) -> bytes:
        """A response as bytes for `send`: the same may be sent again and again."""

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        """Queue a response. The time at which it really leaves is written to `moments` of `record`."""

    def finish(self) -> None:
        """Everything was sent."""

    def fail(self, message: str) -> None:
        """The request gets an error in place of an answer."""

    def hang_up(self) -> None:
        """What carries the answers ends in the middle of one."""


class Answer:
    """One request being served: `left` tokens to go, the next response of them at `due_s`."""

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
        """What was done until now."""
        return Truth.of(self._records, responses=self._responses, cpu_s=time.process_time())

    def receive(self, outlet: Outlet, osl: int) -> Answer:
        """Serve a request for `osl` tokens that came just now."""
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
        """The client has given up the request: nothing more is sent, its slot is free."""
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
        """Send what is due now: the one place that runs for every response."""
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
