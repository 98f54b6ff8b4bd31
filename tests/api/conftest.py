"""The API under test: two processes that compute, served over HTTP from a thread, over a store of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import requests
import uvicorn
from starlette.applications import Starlette

from api import routes as api
from api.workers import Workers
from calibration.store import DATABASE_VARIABLE

QUESTION = {
    "model": "Qwen/Qwen3-32B",
    "gpu": "h200_sxm",
    "precision": "fp8",
    "tp": "1",
    "engine": "trtllm",
    "isl": 2000,
    "osl": 256,
    "rate": 20,
    "ttft": "p95:1s",
    "itl": "p95:30ms",
}
"""A plan with a single candidate."""
LIMIT_S = 30.0


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the API answers."""

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        yield
        workers.end()

    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as bound:
        patch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path_factory.mktemp('api') / 'calibration.db'}")
        workers = Workers(2, LIMIT_S)
        app = Starlette(routes=api.routes(workers), lifespan=lifespan)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}{api.ROOT}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def post(address: str) -> Callable[..., requests.Response]:
    """Ask the command `name`."""

    def ask(name: str, body: object = None, **more: Any) -> requests.Response:
        given = {"json": body} if "content" not in more else {}
        return requests.post(f"{address}/{name}", **given, **more, timeout=300)

    return ask
