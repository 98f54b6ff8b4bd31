"""A real tritonserver that loads one model repository after another and says what it thinks of each."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from calibration.load import cores
from calibration.reference import environment, server
from calibration.reference.settings import Settings

WITHIN_S = 120.0
GIVEN_UP_S = 60.0  # a repository without a model.py makes tritonserver 2.51 wait for its Python stub for ever
SMALL = Settings(grpc_port=0, http_port=0, metrics_port=0, hidden=32, layers=1, heads=2, kv_heads=1, vocab_size=64)


class Loader:
    """As a context manager: a tritonserver with no model, until `load`."""

    def __enter__(self) -> Self:
        ready = environment.ensure()
        self.settings = server.claim_ports(SMALL)
        self.work = Path(tempfile.mkdtemp(prefix="repository-triton-"))
        self.folder = self.work / "repository"
        self.folder.mkdir()
        backends = server._install_backend(ready, self.work / "backends")
        executable = ready.tritonserver / "bin" / "tritonserver"
        executable.chmod(0o755)
        launch = str(Path(server.__file__).with_name("launch.py"))
        usable = cores.written(sorted(cores.usable()))
        command = [
            sys.executable,
            launch,
            usable,
            str(executable),
            *server._flags(self.settings, self.folder, backends),
        ]
        self.log = self.work / "log"
        with self.log.open("wb") as log:
            self.process = server._spawn([*command, "--model-control-mode=explicit"], ready, self.settings, log)
        self._until(lambda: self._is_live())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        server._kill_group(self.process.pid)
        self.process.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    @property
    def grpc_url(self) -> str:
        return f"{server.HOST}:{self.settings.grpc_port}"

    def load(self, repository: Path) -> str:
        """Load every model of `repository`: what the server says against it, empty if all are READY."""
        shutil.copytree(repository, self.folder, dirs_exist_ok=True)
        names = sorted(path.name for path in repository.iterdir())  # ensemble comes first and brings its steps
        said = ""
        for name in names:
            said = said or self._post(f"repository/models/{name}/load")
        if said:
            return said
        ready = {model["name"] for model in self._index() if model.get("state") == "READY"}
        return "" if ready >= set(names) else f"not READY: {', '.join(set(names) - ready)}"

    def unload(self) -> None:
        for model in self._index():
            if model.get("state") == "READY":
                self._post(f"repository/models/{model['name']}/unload", {"parameters": {"unload_dependents": True}})
        self._until(lambda: not any(model.get("state") in ("READY", "UNLOADING") for model in self._index()))
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    def generate(self, model: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._ask(f"models/{model}/generate", body)
        return answer

    def stream(self, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        request = self._request(f"models/{model}/generate_stream", body)
        with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
            lines = response.read().decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    def _index(self) -> list[dict[str, Any]]:
        index: list[dict[str, Any]] = self._ask("repository/index", {})
        return index

    def _post(self, path: str, body: dict[str, Any] | None = None) -> str:
        try:
            self._ask(path, body or {}, GIVEN_UP_S)
        except TimeoutError:
            self.__exit__(None, None, None)
            self.__enter__()
            return f"not loaded within {GIVEN_UP_S:.0f} s"
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read()).get("error", error.reason))
        return ""

    def _ask(self, path: str, body: dict[str, Any], within_s: float = WITHIN_S) -> Any:
        with urllib.request.urlopen(self._request(path, body), timeout=within_s) as response:
            return json.loads(response.read() or b"{}")

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        url = f"http://{server.HOST}:{self.settings.http_port}/v2/{path}"
        return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _is_live(self) -> bool:
        try:
            url = f"http://{server.HOST}:{self.settings.http_port}/v2/health/live"
            with urllib.request.urlopen(url, timeout=1.0) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def _until(self, condition: Any) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "never came true"
            time.sleep(0.05)
