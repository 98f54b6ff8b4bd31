"""The burst on the local Triton server, at a tenth of the prompt lengths: V1, in-flight, and V1's points for a fit."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.errors import ServerError
from calibration.load import system
from calibration.load.pool import Workers
from calibration.metrics.window import answered
from calibration.plan import ServerPlan, TensorNames, parse_plan
from calibration.requests.source import PromptRequest
from calibration.run import run
from calibration.store import Store
from calibration.target import describe
from lab.reference.server import ReferenceServer
from lab.reference.settings import SPECIAL_TOKENS, Batching, Settings
from sizing.points import Point
from sizing.workload import Lengths
from triton_tools.clients.dataset import Given
from triton_tools.clients.replay import Target, keep_in_flight, send_when_due
from validation.speed.identity_burst import ISL_CV, OSL_CV, PROMPTS, Answered, Burst, drawn

LENGTHS = Lengths(80, 41.5, ISL_CV, OSL_CV)
LONGEST = 256
SLOTS, TOKEN_BUDGET, KV_TOKENS = 8, 2048, 16_384
MODEL = "tensorrt_llm"
WARM_UP = Lengths(80, 8)
PLAN = """
server: {{url: "{url}", model: tensorrt_llm}}
lengths: [{{isl: {isl}, osl: {osl}, isl_cv: {isl_cv}, osl_cv: {osl_cv}}}]
concurrency: [1, 4, 8, 16]
check_load: 0
budget_s: {budget_s}
client: {{self_check: false}}
"""
"""A sweep of V1 alone. Where a batch takes whoever waits, 16 users keep its 8 places full and 4 do not."""


def settings(batching: Batching) -> Settings:
    """A server like the published engine: 8 at once, room for 8 whole prompts in a pass, and no waiting for company."""
    return Settings(
        batching=batching,
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        max_batch_size=SLOTS,
        token_budget=TOKEN_BUDGET,
        kv_tokens=KV_TOKENS,
        batch_delay_s=0.0,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is up, its engine's process, and what sends bursts to it.

    Answers are asked for in one piece, as the published client does.
    """

    url: str
    target: Target
    engine_pid: int

    def answer(self, burst: Burst, seed: int) -> tuple[Burst, Answered]:
        """Send the burst at once: when each request was really sent, and answered, in the order of sending.

        Raises ServerError where a request failed.
        """
        prompts = Given(tuple(_requests(burst, seed)))
        before_s = processor_s(self.engine_pid)
        log = send_when_due(self.target, prompts, burst.sent_s).log
        engine_s = processor_s(self.engine_pid) - before_s
        if not answered(log).all():
            raise ServerError(f"a burst lost requests: {next(error for error in log.error if error)}")
        order = np.argsort(log.sent_s, kind="stable")
        start_s = log.sent_s.min()
        sent_s, end_s = log.sent_s[order] - start_s, log.end_s[order] - start_s
        return Burst(sent_s, log.isl[order], log.osl[order]), Answered(end_s, end_s - sent_s, engine_s)


def processor_s(pid: int) -> float:
    """Seconds of processor that a process has taken, as Linux counts them: without what others do on its core."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def engine_of(server: ReferenceServer) -> int:
    """The process in which Triton runs the model `tensorrt_llm` of this server. Raises ServerError if there is none."""
    model = f"{server.tokenizer.parents[1]}/{MODEL}/".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if model in path.read_bytes():
                return int(path.parent.name)
    raise ServerError(f"no process runs {MODEL} of the server at {server.grpc_url}")


def _requests(burst: Burst, seed: int) -> Iterator[PromptRequest]:
    rng = np.random.default_rng([seed, 1])
    first = len(SPECIAL_TOKENS)
    for isl, osl in zip(burst.isl.tolist(), burst.osl.tolist(), strict=True):
        yield PromptRequest("", isl, osl, tuple(rng.integers(first, Settings().vocab_size, isl).tolist()))


@contextmanager
def servers() -> Iterator[tuple[Server, Server]]:
    """V1 and in-flight, both up and warm, so that bursts can alternate: what else the machine does meets both alike."""
    with ExitStack() as stack:
        up = [stack.enter_context(ReferenceServer(settings(kind))) for kind in ("static", "in_flight")]
        whole = TensorNames(constants={"streaming": False})
        plans = [ServerPlan(url=one.grpc_url, model=MODEL, tensors=whole) for one in up]
        told = [asyncio.run(describe(plan)) for plan in plans]
        stack.enter_context(system.kept_off(system.read(told[0].engine_cores)))
        workers = stack.enter_context(Workers())
        pair = [
            Server(plan.url, Target(plan, one.contract, workers), engine_of(server))
            for server, plan, one in zip(up, plans, told, strict=True)
        ]
        warm_up = Given(tuple(_requests(drawn(WARM_UP, 0, LONGEST, 2 * SLOTS), 0)))
        for server in pair:
            keep_in_flight(server.target, warm_up, SLOTS, 2 * SLOTS)
        static, in_flight = pair
        yield static, in_flight


def bursts(pair: Sequence[Server], seeds: Sequence[int]) -> Iterator[tuple[Burst, Answered, Answered]]:
    """One burst after another on both servers in turn: as it was sent to V1, V1's answers, in-flight's."""
    for seed in seeds:
        burst = drawn(LENGTHS, seed, LONGEST, PROMPTS)
        sent, static = pair[0].answer(burst, seed)
        _, in_flight = pair[1].answer(burst, seed)
        yield sent, static, in_flight


def static_points(server: Server, budget_s: float) -> list[Point]:
    """Closed loops of V1, measured as a calibration does, for `budget_s` seconds a level at most."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/points.db")
        text = PLAN.format(
            url=server.url, isl=LENGTHS.isl, osl=LENGTHS.osl, isl_cv=ISL_CV, osl_cv=OSL_CV, budget_s=budget_s
        )
        return store.points(run(parse_plan(text, name="V1", folder=Path(folder)), store))
