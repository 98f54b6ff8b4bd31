"""The life of the local server: it stops, dies and fails to start without leaving anything running."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibration.errors import ServerError
from lab.environment import PROJECT
from lab.reference.server import ReferenceServer
from lab.reference.settings import Settings
from tests.calibration.serving import FREE_PORTS, PROMPT, SERVE, WITHIN_S, http, until


def started(*options: str, folder: Path = PROJECT, **variables: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A serving process, and what its READY line says."""
    process = subprocess.Popen(
        [*SERVE, *FREE_PORTS, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[:1] == ["READY"], process.communicate()[1]
    return process, dict(word.split("=") for word in line[1:])


def processes_below(pid: int) -> set[int]:
    """Process ids of all descendants."""
    table = [line.split() for line in subprocess.check_output(["ps", "-e", "-o", "pid=,ppid="], text=True).splitlines()]
    found, level = set[int](), {pid}
    while level:
        level = {int(child) for child, parent in table if int(parent) in level}
        found |= level
    return found


def tritonservers_below(pid: int) -> Iterator[int]:
    for child in processes_below(pid):
        try:
            if Path(f"/proc/{child}/comm").read_text().strip() == "tritonserver":
                yield child
        except FileNotFoundError:  # it ended between the two looks
            continue


def all_gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}/exe").is_symlink() and os.path.exists(f"/proc/{pid}/exe") for pid in pids)


@pytest.mark.triton
def test_serve_starts_in_any_folder_and_stops_on_sigterm_leaving_nothing_running(tmp_path: Path) -> None:
    process, urls = started("--batching", "static", folder=tmp_path, PYTHONPATH=str(PROJECT))
    below = processes_below(process.pid)
    assert len(below) >= 4  # the server and three stubs
    config = http(f"{urls['http']}/v2/models/tensorrt_llm/config")
    assert config["parameters"]["gpt_model_type"]["string_value"] == "V1"
    body = {"text_input": PROMPT, "max_tokens": 5, "end_id": -1}
    assert len(http(f"{urls['http']}/v2/models/ensemble/generate", body)["output_ids"]) == len(PROMPT.split()) + 5
    assert "nv_trt_llm_v1_metrics" in http(urls["metrics"])
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, errors) == (0, "")
    until(lambda: all_gone(below))


@pytest.mark.triton
def test_serve_stops_on_ctrl_c_while_it_starts() -> None:
    process = subprocess.Popen([*SERVE, *FREE_PORTS], stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    until(lambda: any(True for _ in tritonservers_below(process.pid)))
    below = processes_below(process.pid)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, printed) == (0, "")
    until(lambda: all_gone(below))


@pytest.mark.triton
def test_a_server_that_dies_is_one_line_and_its_rest_is_cleared() -> None:
    process, _ = started()
    below = processes_below(process.pid)
    os.kill(next(tritonservers_below(process.pid)), signal.SIGKILL)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 2
    assert len(errors.strip().splitlines()) == 1
    assert "ended with status -9" in errors and ".log" in errors
    until(lambda: all_gone(below))


@pytest.mark.triton
def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    process, _ = started(TMPDIR=str(tmp_path))  # nobody is left to remove its work folder
    below = processes_below(process.pid)
    process.kill()
    process.communicate(timeout=WITHIN_S)
    until(lambda: all_gone(below))


@pytest.mark.triton
def test_a_start_that_fails_says_why_and_where_the_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of models whose program does not load: the line comes from the server's own log."""
    from lab.reference import server as module

    def build_broken(folder: Path, *_: object) -> Path:
        version = folder / "tensorrt_llm" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text("raise RuntimeError('no such engine')\n")
        (folder / "tensorrt_llm" / "config.pbtxt").write_text('name: "tensorrt_llm"\nbackend: "python"\n')
        return folder

    monkeypatch.setattr(module, "build", build_broken)
    with pytest.raises(ServerError, match="no such engine") as caught:
        ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)).__enter__()
    message = str(caught.value)
    assert "\n" not in message
    assert Path(message.rpartition("log: ")[2]).exists()
