"""The command that serves: ports, options and environments, refused or made before anything starts."""

import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.errors import ServerError
from lab.reference import environment
from lab.reference.server import claim_ports
from lab.reference.settings import Settings
from tests.calibration.serving import FREE_PORTS, SERVE


def run_serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVE, *options], capture_output=True, text=True, cwd=environment.PROJECT, check=False)


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--metrics-port"])
def test_a_port_in_use_is_named_with_its_option_before_anything_starts(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        others = [word for word in FREE_PORTS if word.startswith("--") and word != option]
        ended = run_serve(option, str(port), *[word for other in others for word in (other, "0")])
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert str(port) in ended.stderr and option in ended.stderr


def test_a_wrong_option_is_one_line() -> None:
    ended = run_serve("--hidden", "250")
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines() == ["error: hidden must be a multiple of twice heads (8), got 250"]


def test_help_shows_an_example() -> None:
    ended = run_serve("--help")
    assert ended.returncode == 0
    assert "python -m calibration serve --batching static" in ended.stdout


def test_port_0_becomes_three_different_free_ports() -> None:
    settings = claim_ports(Settings(grpc_port=0, http_port=0, metrics_port=0))
    assert len({settings.grpc_port, settings.http_port, settings.metrics_port, 0}) == 4


def test_a_python_without_shared_library_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(environment.sysconfig, "get_config_var", lambda name: None)
    with pytest.raises(ServerError, match=r"no shared libpython3\.\d+\.so\.1\.0") as caught:
        environment.ensure(tmp_path / "env")
    assert "\n" not in str(caught.value)


def test_an_unfinished_environment_is_made_again_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stamp means not finished, and of several that ask at once one makes it while the others wait."""
    made: list[Path] = []

    def create(wanted: environment.Environment, console: object, recipe: environment.Recipe) -> None:
        made.append(wanted.folder)
        time.sleep(0.1)
        (wanted.folder / "stamp").write_text(environment.TRITON.stamp)

    monkeypatch.setattr(environment, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "_create", create)
    (tmp_path / "venv").mkdir()  # left behind by an interrupted creation, as the log says
    (tmp_path / "install.log").touch()
    asking = [threading.Thread(target=environment.ensure, args=(tmp_path,)) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert made == [tmp_path]


def test_an_environment_of_other_pins_is_made_again_but_not_in_a_folder_somebody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(environment, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.delenv(environment.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(environment, "written", lambda path: tmp_path)  # the project's own cache
    monkeypatch.setattr(environment, "_create", lambda wanted, console, recipe: made.append(wanted.folder))
    (tmp_path / "stamp").write_text(environment.TRITON.stamp)
    environment.ensure()
    assert made == []
    other = tmp_path / "requirements.txt"
    other.write_text("nvidia-pytriton==0.0.1\n")
    monkeypatch.setattr(environment, "TRITON", replace(environment.TRITON, requirements=other))
    environment.ensure()
    assert made == [tmp_path]
    monkeypatch.setenv(environment.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ServerError, match="another version's environment: delete") as caught:
        environment.ensure()
    assert "\n" not in str(caught.value) and made == [tmp_path]


def test_somebody_s_own_venv_in_a_named_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setenv(environment.FOLDER_VARIABLE, str(tmp_path))
    own = tmp_path / "venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    with pytest.raises(ServerError, match="not made here"):
        environment.ensure()
    assert own.exists()


@pytest.mark.triton
def test_a_failed_install_is_one_line_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"nvidia-pytriton @ file://{tmp_path}/none.whl\nnumpy @ file://{tmp_path}/none.whl\n")
    monkeypatch.setattr(environment, "TRITON", replace(environment.TRITON, requirements=pins))
    with pytest.raises(ServerError, match="failed at 'torch, numpy, tokenizers") as caught:
        environment.ensure(tmp_path / "env")
    log = tmp_path / "env" / "install.log"
    assert "\n" not in str(caught.value) and str(log) in str(caught.value)
    assert "none.whl" in log.read_text()
    assert not (tmp_path / "env" / "stamp").exists()
