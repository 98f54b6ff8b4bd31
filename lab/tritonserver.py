"""The real tritonserver from its wheel: its files, ports and flags, and a running server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console

from calibration.errors import ServerError
from lab.environment import OURS, PROJECT, PYTHON_VERSION, Environment
from lab.life import HOST, Server, free_port, on_other_cores
from lab.reference.settings import PORTS, option

SUPPORTED = ((3, 11), (3, 12))


class HasPorts(Protocol):
    """Settings of a Triton server, a frozen dataclass. Port 0 means any free port."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def grpc_port(self) -> int: ...

    @property
    def http_port(self) -> int: ...

    @property
    def metrics_port(self) -> int: ...


Settings = TypeVar("Settings", bound=HasPorts)


class TritonServer(Server, Generic[Settings]):
    """A running tritonserver as a context manager, ready when all its models are.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
    """

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        super().__init__(settings.grpc_port, console)
        self.settings = settings

    @property
    def grpc_url(self) -> str:
        return f"{HOST}:{self.settings.grpc_port}"

    @property
    def http_url(self) -> str:
        return f"{HOST}:{self.settings.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"{HOST}:{self.settings.metrics_port}/metrics"

    @property
    def _pages(self) -> tuple[str, ...]:
        return ready_pages(self.settings)

    def _claim_ports(self) -> None:
        self.settings = claim_ports(self.settings)
        self.log = self.log.with_name(f"server-{self.settings.grpc_port}.log")


def ready_pages(settings: HasPorts) -> tuple[str, str]:
    """Pages that answer when all models are ready: tritonserver serves its metrics only after that."""
    pages = (f"{settings.http_port}/v2/health/ready", f"{settings.metrics_port}/metrics")
    return f"http://{HOST}:{pages[0]}", f"http://{HOST}:{pages[1]}"


def claim_ports(settings: Settings) -> Settings:
    """`settings` with every port 0 replaced by a free one.

    Raises:
        ServerError: a port is in use; the line names the port and its option.
    """
    sockets = {}
    try:
        for name in PORTS:
            sockets[name] = free_port(getattr(settings, name), option(name))
        return replace(settings, **{name: probe.getsockname()[1] for name, probe in sockets.items()})
    finally:
        for probe in sockets.values():
            probe.close()


def spawn(
    ready: Environment,
    settings: HasPorts,
    repository: Path,
    work: Path,
    log: Path,
    variables: Mapping[str, str],
    threads: int = 0,
) -> subprocess.Popen[bytes]:
    """Start tritonserver on `repository`, with its files in `work`; the last `threads` cores are left to the engine.

    Raises:
        ServerError: the wheel has no Python backend for this Python.
    """
    server = ready.site_packages / "pytriton" / "tritonserver"
    executable = server / "bin" / "tritonserver"
    executable.chmod(0o755)
    backends = _lay_out_backend(server, work / "backends")
    ports = [f"{option(name)}={getattr(settings, name)}" for name in PORTS]
    addresses = [f"--{kind}-address={HOST}" for kind in ("grpc", "http", "metrics")]
    places = [f"--model-repository={repository}", f"--backend-directory={backends}"]
    memory = f"--backend-config=python,shm-region-prefix-name={work.name}"
    flags = [*places, *ports, *addresses, memory, "--allow-gpu-metrics=false", "--exit-timeout-secs=10"]
    with log.open("wb") as output:
        return subprocess.Popen(
            on_other_cores(threads, str(executable), *flags),
            env={**os.environ, **variables, "LD_LIBRARY_PATH": _library_path(ready)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, and stop() ends server and stubs together
        )


def _lay_out_backend(server: Path, backends: Path) -> Path:
    """The Python backend with the stub of this Python version, where tritonserver looks for it.

    Beside it lie links to our packages: a stub, whose Python ignores PYTHONPATH, imports from this folder.
    """
    stub = server / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerError(f"Triton's wheel has no Python backend for Python {PYTHON_VERSION}: use 3.11 or 3.12")
    target = backends / "python"
    target.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy(server / "backends" / "python" / name, target)
    shutil.copy(stub, target)
    (target / stub.name).chmod(0o755)
    for name in OURS:
        (target / name).symlink_to(PROJECT / name)
    return backends


def _library_path(ready: Environment) -> str:
    """LD_LIBRARY_PATH of tritonserver and its stubs.

    This interpreter's libpython comes first: with the system's, a stub would find another standard library and crash.
    """
    libraries = [libpython_folder(), ready.site_packages / "nvidia_pytriton.libs"]
    given = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([*map(str, libraries), *([given] if given else [])])


def check_python() -> None:
    """Raises ServerError if this interpreter cannot run the Python backend, in one line."""
    libpython_folder()
    if sys.version_info[:2] not in SUPPORTED:
        raise ServerError(
            f"Triton's Python backend needs Python 3.11 or 3.12, this is {PYTHON_VERSION}: it needs numpy 1.26, "
            "which has no build for later Pythons"
        )


def libpython_folder() -> Path:
    """Folder of this interpreter's shared libpython, which the server's Python backend loads.

    Raises:
        ServerError: this Python was built without a shared library and none is installed beside it.
    """
    name = f"libpython{PYTHON_VERSION}.so.1.0"
    base = Path(sys.base_prefix)
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    places = [sysconfig.get_config_var("LIBDIR"), base / "lib", base / "lib64", base / "lib" / multiarch]
    for place in places:
        if place and (Path(place) / name).exists():
            return Path(place)
    raise ServerError(
        f"{sys.executable} has no shared {name}, which Triton's Python backend needs: install it "
        f"(Debian and Ubuntu: libpython{PYTHON_VERSION}) or use a Python built with --enable-shared"
    )
