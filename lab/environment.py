"""The environments of local servers: each has its own venv, created on first use, because its pins differ from ours."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status

from calibration.errors import ServerError
from sizing.files import IMPORTED_FROM, INSTALLED, written

PROJECT = IMPORTED_FROM
OURS = ("lab", "calibration", "sizing")
"""The packages of this project that the servers' programs import."""
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

Say = Callable[[str], None]
Step = tuple[str, list[str]]
"""The name of a step, and its arguments of `pip install`."""


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
    def install_log(self) -> Path:
        return self.folder / "install.log"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made: for which server, from which pins, in which steps, and in which folder of the
    project's cache unless `variable` names another.

    `check_python` and `check` raise ServerError: the first if this interpreter cannot run the server, before anything
    is created, the second if the installed packages cannot.
    """

    server: str
    requirements: Path
    folder: str
    variable: str
    steps: Callable[[Path], Sequence[Step]]
    check_python: Callable[[], None] = lambda: None
    check: Callable[[Environment], None] = lambda _: None

    @property
    def named(self) -> str:
        """The folder in the environment variable; empty if it is not set."""
        return os.environ.get(self.variable, "")

    @property
    def default_folder(self) -> Path:
        return Path(self.named).expanduser().resolve() if self.named else written(self.folder)

    @property
    def stamp(self) -> str:
        """A text of what the environment was made from: the pins and the interpreter."""
        made_from = hashlib.sha256("\n".join(pins(self.requirements)).encode()).hexdigest()
        return f"{made_from} {sys.base_prefix} {sys.version.split()[0]}\n"


def pins(requirements: Path) -> list[str]:
    """The lines of a requirements file that name a package."""
    lines = [line.strip() for line in requirements.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def import_folder(environment: Environment) -> Path:
    """The folder from which the server's programs import this project.

    For an installed wheel it has only links to the packages needed, because other versions of the server's libraries
    are installed next to them.
    """
    if not INSTALLED:
        return PROJECT
    folder = environment.folder / "imports"
    folder.mkdir(exist_ok=True)
    for name in OURS:
        new = folder / f"{name}.{os.getpid()}"
        new.symlink_to(IMPORTED_FROM / name)
        new.replace(folder / name)
    return folder


def ensure(recipe: Recipe, console: Console | None = None) -> Environment:
    """The environment of `recipe`: created if it is missing, incomplete or from other pins.

    Two processes that call this at once wait for each other; the stamp is written last, so that an interrupted creation
    is repeated. Progress goes to `console` (standard error by default).

    In a folder named by the recipe's variable nothing is deleted: a finished environment from other pins or another
    Python, or one made by another program, is left unchanged.

    Raises:
        ServerError: this Python or the installed packages cannot run the server, the named folder has another
            environment, or pip failed (the line names its log).
    """
    recipe.check_python()
    environment = Environment(recipe.default_folder)
    try:
        environment.folder.mkdir(parents=True, exist_ok=True)
        with _locked(environment.folder / "lock"):
            if not _is_finished(environment, recipe):
                if recipe.named:
                    _refuse_to_replace(environment, recipe)
                _create(environment, console or Console(stderr=True), recipe)
    except OSError as error:
        raise ServerError(
            f"cannot write {recipe.server}'s environment {environment.folder}: {error.strerror or error}; "
            f"set {recipe.variable} to a folder you own"
        ) from error
    recipe.check(environment)
    return environment


def _is_finished(environment: Environment, recipe: Recipe) -> bool:
    stamp = environment.folder / "stamp"
    return stamp.exists() and stamp.read_text() == recipe.stamp


def _refuse_to_replace(environment: Environment, recipe: Recipe) -> None:
    """ServerError unless the folder has no environment, or one whose creation was interrupted."""
    finished = (environment.folder / "stamp").exists()
    if finished or (environment.venv.exists() and not environment.install_log.exists()):
        kind = "another version's environment" if finished else "an environment that was not made here"
        raise ServerError(
            f"{environment.folder} has {kind}: delete its folder venv and its file stamp to create it again, or "
            f"set {recipe.variable} to another folder"
        )


def _create(environment: Environment, console: Console, recipe: Recipe) -> None:
    stamp = environment.folder / "stamp"
    stamp.unlink(missing_ok=True)
    shutil.rmtree(environment.venv, ignore_errors=True)
    environment.install_log.unlink(missing_ok=True)
    pip = [str(environment.python), "-m", "pip", "install", "--no-compile", "--disable-pip-version-check", "--no-input"]
    steps = [("environment", [sys.executable, "-m", "venv", str(environment.venv)])]
    steps += [(name, [*pip, *arguments]) for name, arguments in recipe.steps(recipe.requirements)]
    console.print(f"First use: creating {recipe.server}'s environment in {environment.folder}")
    for number, (name, command) in enumerate(steps, start=1):
        title = f"[{number}/{len(steps)}] {name}"
        with console.status(title) as status:
            _run_step(recipe, name, command, environment.install_log, _showing(status, title))
        console.print(f"{title}: done", markup=False)
    stamp.write_text(recipe.stamp)


def _showing(status: Status, title: str) -> Say:
    def show(line: str) -> None:
        status.update(f"{title}: {line[:90]}".replace("[", r"\["))

    return show


def _run_step(recipe: Recipe, name: str, command: Sequence[str], log: Path, say: Say) -> None:
    """Run one step; its output goes to `log` and line by line to `say`."""
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
        raise ServerError(f"creating {recipe.server}'s environment failed at '{name}': {why}; log: {log}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
