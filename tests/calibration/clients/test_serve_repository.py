"""What `serve --repository` refuses before it starts anything."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from calibration.__main__ import main
from triton_tools.repository.builder import build_repository
from triton_tools.repository.options import Options

OPTIONS = Options("/engines/e", "/tokenizers/t")


def serve(*arguments: str) -> Result:
    ended = CliRunner().invoke(main, ["serve", *arguments])
    assert ended.exit_code == 2 and ended.stdout == ""
    return ended


def test_a_repository_that_triton_refuses_is_refused_with_file_and_line(tmp_path: Path) -> None:
    folder = build_repository(tmp_path / "models", OPTIONS)
    file = folder / "tensorrt_llm" / "config.pbtxt"
    lines = file.read_text().splitlines()
    at = next(number for number, line in enumerate(lines, start=1) if "max_batch_size" in line)
    lines[at - 1] = "max_batch_size: ${triton_max_batch_size}"
    file.write_text("\n".join(lines))
    *faults, error = serve("--repository", str(folder)).stderr.splitlines()
    assert any(fault.startswith(f"{file}:{at}: error: ${{triton_max_batch_size}} is not filled in") for fault in faults)
    assert error == f"error: tritonserver would not load {folder}: {len(faults)} errors, named above"


def test_one_error_is_one_error(tmp_path: Path) -> None:
    folder = build_repository(tmp_path / "models", OPTIONS)
    file = folder / "postprocessing" / "config.pbtxt"
    file.write_text(re.sub("max_batch_size: [0-9]+", "max_batch_size: -1", file.read_text()))
    _, error = serve("--repository", str(folder)).stderr.splitlines()
    assert error.endswith(": 1 error, named above")
    assert CliRunner().invoke(main, ["repository", "check", str(folder)]).output.endswith("\n1 error, 0 warnings\n")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert len(serve("--repository", str(tmp_path / "none")).stderr.splitlines()) == 1


@pytest.mark.parametrize("option", [["--batching", "static"], ["--batching", "in_flight"]])
def test_what_the_repository_says_itself_cannot_be_given_again(tmp_path: Path, option: list[str]) -> None:
    folder = build_repository(tmp_path / "models", OPTIONS)
    said = serve("--repository", str(folder), *option).stderr
    assert said == "error: --batching and --repository exclude each other: the repository determines it\n"
