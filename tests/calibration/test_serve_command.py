"""The command that serves: ports and options, refused before anything starts."""

import socket
import subprocess

import pytest

from lab.environment import PROJECT
from lab.reference.settings import Settings
from lab.tritonserver import claim_ports
from tests.calibration.serving import FREE_PORTS, SERVE, serve_here


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--metrics-port"])
def test_a_port_in_use_is_named_with_its_option_before_anything_starts(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        others = [word for word in FREE_PORTS if word.startswith("--") and word != option]
        ended = serve_here(option, str(port), *[word for other in others for word in (other, "0")])
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert str(port) in ended.stderr and option in ended.stderr


def test_a_wrong_option_is_one_line() -> None:
    """As a program, for all of them."""
    ended = subprocess.run([*SERVE, "--hidden", "250"], capture_output=True, text=True, cwd=PROJECT, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines() == ["error: --hidden must be a multiple of twice --heads (8), got 250"]


def test_help_shows_an_example() -> None:
    ended = serve_here("--help")
    assert ended.exit_code == 0
    assert "python -m calibration serve --batching static" in ended.stdout


def test_port_0_becomes_three_different_free_ports() -> None:
    settings = claim_ports(Settings(grpc_port=0, http_port=0, metrics_port=0))
    assert len({settings.grpc_port, settings.http_port, settings.metrics_port, 0}) == 4
