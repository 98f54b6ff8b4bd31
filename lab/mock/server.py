"""The mock as a program: both protocols in one event loop of one process; its true timings on request."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from lab.mock import grpc_server, http_server
from lab.mock.service import INPUTS, MODEL, OUTPUTS, Script, Service, Wire

HOST = "127.0.0.1"
BACKLOG = 4096
MANY_OBJECTS = 200_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running mock: its addresses as host:port, and its service."""

    grpc_url: str
    http_url: str
    service: Service


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop if it is installed, in the mock's own process."""
    gc.freeze()
    gc.set_threshold(MANY_OBJECTS)  # otherwise each collection, over all records, would delay every answer
    try:
        import uvloop
    except ImportError:  # uvloop has no build for Windows
        return asyncio.run(main)
    return uvloop.run(main)


async def serve(script: Script, until: Callable[[Serving], Awaitable[None]], ports: tuple[int, int] = (0, 0)) -> None:
    """Serve on `ports` (gRPC, HTTP; 0: a free one) until `until(serving)` returns. Raises OSError for a port in use."""
    service = Service(script)
    loop = asyncio.get_running_loop()
    wires: WeakSet[Wire] = WeakSet()

    def tracked(make: Callable[[], Wire]) -> Callable[[], Wire]:
        def made() -> Wire:
            wires.add(wire := make())
            return wire

        return made

    makers: tuple[Callable[[], Wire], ...] = (grpc_server.serve(service, script), http_server.serve(service))
    servers = [
        await loop.create_server(tracked(make), HOST, port, backlog=BACKLOG)
        for make, port in zip(makers, ports, strict=True)
    ]
    addresses = [f"{HOST}:{server.sockets[0].getsockname()[1]}" for server in servers]
    try:
        await until(Serving(addresses[0], addresses[1], service))
    finally:
        for server in servers:
            server.close()
        for wire in wires:
            wire.abort()
        await asyncio.sleep(0)  # the loop closes their sockets


async def obey(serving: Serving) -> None:
    """Print addresses and model as a line of JSON on stdout, then answer questions on stdin, one per line.

    ``{"window": [start_s, stop_s]}`` is answered with the fields of `TrueTimes`; ``{"save": "truth.npz"}`` writes the
    whole truth to that file. If the process at the other end of stdin dies, the mock ends too.
    """
    model = {"model": MODEL, "inputs": INPUTS, "outputs": [name for name, _ in OUTPUTS]}
    _say({"grpc_url": serving.grpc_url, "http_url": serving.http_url, **model})
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(sys.stdin.fileno(), "rb"))
    async for line in reader:
        question, truth = json.loads(line), serving.service.truth()
        if "window" in question:
            _say(truth.means(*question["window"]))
        else:
            truth.save(Path(question["save"]))
            _say(question)


def _say(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(serve(Script(**json.loads(sys.argv[1])), obey))
