"""A server without a network: models with known times, behind the same calls as the real drivers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from calibration.load.contract import Contract, ModelInput
from calibration.load.loops import Job
from calibration.metrics.precision import Until
from calibration.plan import ServerPlan
from calibration.records import ClientHealth, Load
from calibration.requests.source import PromptRequest
from calibration.target import Described
from tests.calibration.bench.logs import length_fault
from tests.calibration.timings import Timing, logged
from triton_tools.clients import clients, comparison

IDS = {"input_ids": ModelInput("INT32", False), "request_output_len": ModelInput("INT32", False)}
TEXT = {"text_input": ModelInput("BYTES", False), "max_tokens": ModelInput("INT32", False)}
CONTRACTS = {
    "tensorrt_llm": Contract("tensorrt_llm", IDS, ("output_ids",), batched=True),
    "ensemble": Contract("ensemble", TEXT, ("text_output", "output_ids"), batched=True),
    "llama-python": Contract("llama-python", TEXT, ("text_output",), batched=False, decoupled=False),
}


@dataclass
class FakeServer:
    """Each model answers a request of n tokens within ``first_s + n * token_s[model]``; `jobs` are those driven.

    Every `fail_every`-th request fails, every `short_every`-th answer lacks a token (0: none).
    """

    first_s: float = 0.1
    token_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CONTRACTS, 0.01))
    fail_every: int = 0
    short_every: int = 0
    client: ClientHealth = field(default_factory=ClientHealth)
    jobs: list[tuple[Job, list[PromptRequest]]] = field(default_factory=list)

    async def describe(self, server: ServerPlan) -> Described:
        return Described(CONTRACTS[server.model], {}, None, False)

    def drive(self, job: Job, until: Until, *, on_share: Callable[[float], None], **_: Any) -> Load:
        requests = list(job.source.requests())
        self.jobs.append((job, requests))
        on_share(1.0)
        took_s = [self.first_s + request.osl * self.token_s[job.server.model] for request in requests]
        if job.arrivals_s is not None:
            due_s = job.arrivals_s.tolist()
        else:
            free_s = [0.0] * (job.users or 1)
            due_s = [heapq.heapreplace(free_s, free_s[0] + s) for s in took_s]
        rows = zip(due_s, took_s, requests, strict=True)
        log = logged(self._timing(i, *row) for i, row in enumerate(rows, start=1))
        return Load(log, 0.0, float(log.end_s.max()), len(log), "count", self.client)

    def _timing(self, number: int, due_s: float, took_s: float, request: PromptRequest) -> Timing:
        fails = bool(self.fail_every) and number % self.fail_every == 0
        count = request.osl - (bool(self.short_every) and number % self.short_every == 0)
        tokens = () if fails else ((due_s + took_s, count),)
        error = "out of blocks" if fails else length_fault(count, request.osl)
        return Timing(due_s, due_s, due_s + took_s, tokens, request.isl, request.osl, error)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The fake in place of the network, for both commands."""
    fake = FakeServer()

    class Workers:
        def __init__(self, processes: int) -> None:
            self.drive = fake.drive

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

    for module in (clients, comparison):
        monkeypatch.setattr(module, "describe", fake.describe)
        monkeypatch.setattr(module, "Workers", Workers)
    return fake
