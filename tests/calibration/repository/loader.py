"""The real tritonserver, started on a model repository as an operator starts it: what it says, or what it answers."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab import life, tritonserver
from lab.environment import ensure
from lab.reference.server import TRITON, variables
from lab.reference.settings import Settings

READY_WITHIN_S = 90.0
GIVEN_UP_S = 30.0  # a model without its model.py makes tritonserver 2.51 wait for the Python stub for ever
SMALL = Settings(grpc_port=0, http_port=0, metrics_port=0, hidden=32, layers=1, heads=2, kv_heads=1, vocab_size=64)
FAULT = re.compile(r"^E\d{4} .*?\] \"?(.*)")
STATE = re.compile(r"^\| \S+ +\| \S+ +\| (UNAVAILABLE: .*?) *\|$")
HARMLESS = ("cuda", "pinned", "dcgm")


class Served:
    """As a context manager: a tritonserver on `repository`. `refusal` is empty when all its models are READY."""

    def __init__(self, repository: Path, within_s: float = READY_WITHIN_S) -> None:
        self.repository = repository
        self.within_s = within_s
        self.refusal = ""

    def __enter__(self) -> Self:
        ready = ensure(TRITON)
        self.settings = tritonserver.claim_ports(SMALL)
        self.work = Path(tempfile.mkdtemp(prefix="repository-triton-"))
        self.log = self.work / "log"
        given = variables(ready, self.settings)
        self.process = tritonserver.spawn(ready, self.settings, self.repository, self.work, self.log, given)
        self.refusal = self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(0.5)  # unloading its models takes seconds, in which nothing is proved
        except subprocess.TimeoutExpired:
            self.process.kill()
        life.kill_group(self.process.pid)
        self.process.wait()
        shutil.rmtree(self.work, ignore_errors=True)
        for region in life.SHARED_MEMORY.glob(f"{self.work.name}*"):
            region.unlink(missing_ok=True)

    def generate(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._ask(f"models/{model}/generate", body))
        return answer

    def stream(self, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        lines = self._ask(f"models/{model}/generate_stream", body).splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    def _wait(self) -> str:
        """What the log says when the server gives up, or does not get ready in time; empty when it is ready."""
        deadline = time.monotonic() + self.within_s
        while not all(map(life.answers, tritonserver.ready_pages(self.settings))):
            # it has given up once it says so; unloading what did load can take it long
            if self.process.poll() is not None or "failed to load all models" in self.log.read_text(errors="replace"):
                return self._said() or f"ended with status {self.process.poll()}"
            if time.monotonic() > deadline:
                return self._said() or f"not READY within {self.within_s:.0f} s"
            time.sleep(0.05)
        return ""

    def _said(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        states = [found[1] for line in lines if (found := STATE.match(line))]
        faults = [found[1].rstrip('"') for line in lines if (found := FAULT.match(line))]
        told = [text for text in (*states, *faults) if not any(word in text.lower() for word in HARMLESS)]
        return told[0] if told else ""

    def _ask(self, path: str, body: dict[str, Any]) -> str:
        url = f"http://{life.HOST}:{self.settings.http_port}/v2/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=READY_WITHIN_S) as response:
                text: str = response.read().decode()
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{url}: {refused.code} {refused.read().decode(errors='replace')}") from refused
        return text
