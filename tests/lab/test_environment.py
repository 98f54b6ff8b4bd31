"""The environments of servers: made once, never over somebody else's, and refused in one line."""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.errors import ServerError
from lab import environment, tritonserver
from lab.reference.server import TRITON


def test_a_python_without_shared_library_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(tritonserver.sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setenv(TRITON.variable, str(tmp_path / "env"))
    with pytest.raises(ServerError, match=r"no shared libpython3\.\d+\.so\.1\.0") as caught:
        environment.ensure(TRITON)
    assert "\n" not in str(caught.value)


def test_an_unfinished_environment_is_made_again_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stamp means not finished, and of several that ask at once one makes it while the others wait."""
    made: list[Path] = []

    def create(wanted: environment.Environment, console: object, recipe: environment.Recipe) -> None:
        made.append(wanted.folder)
        time.sleep(0.1)
        (wanted.folder / "stamp").write_text(TRITON.stamp)

    monkeypatch.setattr(tritonserver, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "_create", create)
    monkeypatch.setenv(TRITON.variable, str(tmp_path))
    (tmp_path / "venv").mkdir()  # left behind by an interrupted creation, as the log says
    (tmp_path / "install.log").touch()
    asking = [threading.Thread(target=environment.ensure, args=(TRITON,)) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert made == [tmp_path]


def test_an_environment_of_other_pins_is_made_again_but_not_in_a_folder_somebody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(tritonserver, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.delenv(TRITON.variable, raising=False)
    monkeypatch.setattr(environment, "written", lambda path: tmp_path)  # the project's own cache
    monkeypatch.setattr(environment, "_create", lambda wanted, console, recipe: made.append(wanted.folder))
    (tmp_path / "stamp").write_text(TRITON.stamp)
    environment.ensure(TRITON)
    assert made == []
    other = tmp_path / "requirements.txt"
    other.write_text("nvidia-pytriton==0.0.1\n")
    changed = replace(TRITON, requirements=other)
    environment.ensure(changed)
    assert made == [tmp_path]
    monkeypatch.setenv(TRITON.variable, str(tmp_path))
    with pytest.raises(ServerError, match="another version's environment: delete") as caught:
        environment.ensure(changed)
    assert "\n" not in str(caught.value) and made == [tmp_path]


def test_somebody_s_own_venv_in_a_named_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tritonserver, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setenv(TRITON.variable, str(tmp_path))
    own = tmp_path / "venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    with pytest.raises(ServerError, match="not made here"):
        environment.ensure(TRITON)
    assert own.exists()


@pytest.mark.triton
def test_a_failed_install_is_one_line_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRITON.variable, str(tmp_path / "env"))
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"nvidia-pytriton @ file://{tmp_path}/none.whl\nnumpy @ file://{tmp_path}/none.whl\n")
    with pytest.raises(ServerError, match="failed at 'torch, numpy, tokenizers") as caught:
        environment.ensure(replace(TRITON, requirements=pins))
    log = tmp_path / "env" / "install.log"
    assert "\n" not in str(caught.value) and str(log) in str(caught.value)
    assert "none.whl" in log.read_text()
    assert not (tmp_path / "env" / "stamp").exists()
