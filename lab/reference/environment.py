"""The environment the reference server runs in: a venv of its own, made on first use, because its pins are not ours."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status

from calibration.errors import ServerError
from sizing.places import IMPORTED_FROM, INSTALLED, written

PROJECT = IMPORTED_FROM
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER_VARIABLE = "SIZING_TRITON_ENV"
SERVER_WHEEL = "nvidia-pytriton"
SUPPORTED = ((3, 11), (3, 12))
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment. `folder` holds the venv, its install log and the logs of the servers started from it."""

    folder: Path

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return self.venv / "lib" / f"python{PYTHON_VERSION}" / "site-packages"

    @property
    def tritonserver(self) -> Path:
        """Folder of the server: `bin/`, `backends/python/` and `python_backend_stubs/3.X/`."""
        return self.site_packages / "pytriton" / "tritonserver"

    @property
    def install_log(self) -> Path:
        return self.folder / "install.log"


def default_folder() -> Path:
    """`.cache/triton` in the project, or what SIZING_TRITON_ENV names."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser().resolve() if named else written(".cache/triton")


def import_folder(environment: Environment) -> Path:
    """The folder from which the server's programs import this project.

    Of an installed wheel only links to the packages that they need: beside them lie other versions of what the server's
    environment has.
    """
    if not INSTALLED:
        return PROJECT
    folder = environment.folder / "imports"
    folder.mkdir(exist_ok=True)
    for name in ("lab", "calibration", "sizing"):
        new = folder / f"{name}.{os.getpid()}"
        new.symlink_to(IMPORTED_FROM / name)
        new.replace(folder / name)
    return folder


def ensure(folder: Path | None = None, console: Console | None = None) -> Environment:
    """The environment, created if it is missing, half made or made from other pins.

    Two processes that ask at once wait for each other; the stamp is written last, so that an interrupted creation is
    redone. Progress goes to `console` (standard error by default).

    Raises:
        ServerError: the interpreter is too new or has no shared libpython, or pip failed (the line names its log).
    """
    libpython_folder()
    if sys.version_info[:2] not in SUPPORTED:
        raise ServerError(
            f"the reference server needs Python 3.11 or 3.12, this is {PYTHON_VERSION}: its Python backend works with "
            "numpy 1.26 alone, of which later Pythons have no build"
        )
    environment = Environment(folder or default_folder())
    try:
        environment.folder.mkdir(parents=True, exist_ok=True)
        with _locked(environment.folder / "lock"):
            if not _is_finished(environment):
                _create(environment, console or Console(stderr=True))
    except OSError as error:
        raise ServerError(
            f"cannot write the reference server's environment {environment.folder}: {error.strerror or error}; "
            f"set {FOLDER_VARIABLE} to a folder you own"
        ) from error
    return environment


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


def _stamp_text() -> str:
    """What the environment was made from: the pins and the interpreter."""
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    return f"{pins} {sys.base_prefix} {sys.version.split()[0]}\n"


def _is_finished(environment: Environment) -> bool:
    stamp = environment.folder / "stamp"
    return stamp.exists() and stamp.read_text() == _stamp_text()


def _create(environment: Environment, console: Console) -> None:
    server, *others = _split_pins(REQUIREMENTS.read_text())
    stamp = environment.folder / "stamp"
    stamp.unlink(missing_ok=True)
    shutil.rmtree(environment.venv, ignore_errors=True)
    environment.install_log.unlink(missing_ok=True)
    pip = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    steps = (
        ("environment", [sys.executable, "-m", "venv", str(environment.venv)]),
        ("torch, numpy, tokenizers (about 200 MB)", [*pip, *others]),
        ("Triton server (55 MB)", [*pip, "--no-deps", server]),
    )
    console.print(f"First use: making the reference server's environment in {environment.folder}")
    for number, (name, command) in enumerate(steps, start=1):
        title = f"[{number}/{len(steps)}] {name}"
        with console.status(title) as status:
            _run_step(name, command, environment.install_log, _showing(status, title))
        console.print(f"{title}: done", markup=False)
    stamp.write_text(_stamp_text())


def _split_pins(text: str) -> list[str]:
    """The requirement lines, the server's wheel first: it alone is installed without its dependencies."""
    pins = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return sorted(pins, key=lambda pin: not pin.startswith(SERVER_WHEEL))


def _showing(status: Status, title: str) -> Say:
    def show(line: str) -> None:
        status.update(f"{title}: {line[:90]}".replace("[", r"\["))

    return show


def _run_step(name: str, command: Sequence[str], log: Path, say: Say) -> None:
    """Run one step, its output in `log` and line by line to `say`."""
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        last_error = ""
        try:
            for line in process.stdout:
                file.write(line)
                say(line.strip())
                last_error = line.strip() if line.startswith("ERROR") else last_error
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.terminate()  # we were interrupted; a finished pip is only waited for
            process.wait()
    if process.returncode != 0:
        why = last_error or f"exit status {process.returncode}"
        raise ServerError(f"making the reference server's environment failed at '{name}': {why}; log: {log}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
