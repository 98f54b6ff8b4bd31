"""The mock's gRPC by hand against the same mock on grpc.aio: streamed responses/s, and CPU of the mock for each.

Run: python -m validation.speed.mock [--seconds 2] [--rounds 2]

Both serve the same script (TTFT 20 ms, ITL 5 ms, 64 tokens, one in a response) to the real load generator, in turns.
"itl" is the mean that the mock itself kept: above 5 ms the mock is the bottleneck, not the load generator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import grpc
import grpc.aio
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import service_pb2

from calibration.load.pool import Workers
from calibration.load.self_check import job, started, until
from lab.mock import server, service
from lab.mock.process import RunningMock
from lab.mock.service import Moment, Record, Script, Service, Wire

SCRIPT = Script(ttft_s=0.02, itl_s=0.005)
OSL = 64
USERS = (32, 128)
PROGRAMS = {"by hand": "lab.mock.server", "grpc.aio": "validation.speed.mock"}


class Call(Wire):
    """One ModelStreamInfer call of grpc.aio: responses wait here for the coroutine that writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[tuple[bytes, Record | None, tuple[Moment, ...]]] = deque()
        self.more = asyncio.Event()
        self.hung_up = False

    def flush(self) -> None:
        self.more.set()


class AioOutlet:
    """The responses to one request on such a call."""

    def __init__(self, call: Call, request_id: str) -> None:
        self.wire: Wire = call
        self._call, self._id = call, request_id

    def response(self, tokens: int, final: bool) -> bytes:
        return service.grpc_response(self._id, tokens, final)[5:]  # grpc.aio puts the length before it

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        self._call.waiting.append((response, record, moments))

    def finish(self) -> None: ...

    def fail(self, message: str) -> None:
        self.send(service.grpc_error(message)[5:])
        self._call.flush()

    def hang_up(self) -> None:
        self._call.hung_up = True
        self._call.flush()


async def serve_aio(script: Script) -> None:
    """The mock on grpc.aio until stdin ends: the call that a load needs, in raw bytes as by hand."""
    mock = Service(script)

    async def infer(requests: AsyncIterator[bytes], context: Any) -> None:
        call = Call()

        async def read() -> None:
            async for raw in requests:
                request = service_pb2.ModelInferRequest.FromString(raw)
                mock.receive(AioOutlet(call, request.id), service.asked(request) or 1)

        reading = asyncio.create_task(read())
        try:
            while True:
                await call.more.wait()
                call.more.clear()
                while call.waiting:
                    response, record, moments = call.waiting.popleft()
                    now_s = time.perf_counter()
                    for moment in moments:
                        setattr(record, moment, now_s)
                    await context.write(response)
                if call.hung_up:
                    await context.abort(grpc.StatusCode.INTERNAL, "hung up")
        finally:
            reading.cancel()

    handler = grpc.stream_stream_rpc_method_handler(infer)
    aio = grpc.aio.server()
    aio.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelStreamInfer": handler})]
    )
    url = f"{server.HOST}:{aio.add_insecure_port(f'{server.HOST}:0')}"
    await aio.start()
    await server.obey(server.Serving(url, "", mock))
    await aio.stop(None)


def measured(program: str, users: int, seconds: float) -> tuple[float, float, float]:
    """Responses/s that the load generator got of one mock, CPU of the mock in µs for each, ITL of the mock in ms."""
    with started(asdict(SCRIPT), RunningMock, program) as mock, Workers() as workers:
        before = mock.truth()
        load = workers.drive(job(mock, SCRIPT.e2e_s(OSL), users, OSL, "grpc"), until(seconds))
        truth = mock.truth()
    inside = (load.log.chunk_at_s >= load.start_s) & (load.log.chunk_at_s < load.stop_s)
    cpu_s = (truth.cpu_s - before.cpu_s) / (truth.responses - before.responses)
    return inside.sum() / load.duration_s, 1e6 * cpu_s, 1e3 * truth.means(load.start_s, load.stop_s)["itl_s"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="How long each row is measured.")
    parser.add_argument("--rounds", type=int, default=2, help="How often each is measured, in turns; means are shown.")
    given = parser.parse_args()
    rows = [(users, name) for users in USERS for name in PROGRAMS]
    found: dict[tuple[int, str], list[tuple[float, float, float]]] = {row: [] for row in rows}
    for _ in range(given.rounds):
        for users, name in rows:
            found[users, name].append(measured(PROGRAMS[name], users, given.seconds))
    table = Table("streams", "mock", "responses/s", "of", "CPU a response", "ITL of the mock", title="gRPC of the mock")
    for (users, name), values in found.items():
        per_s, cpu_us, itl_ms = (sum(column) / len(column) for column in zip(*values, strict=True))
        ideal = f"{SCRIPT.requests_per_s(users, OSL) * OSL:,.0f}"
        table.add_row(str(users), name, f"{per_s:,.0f}", ideal, f"{cpu_us:.1f} µs", f"{itl_ms:.2f} ms")
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):  # started by `measured`
        server.run(serve_aio(Script(**json.loads(sys.argv[1]))))
    else:
        main()
