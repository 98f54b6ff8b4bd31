"""Every broken repository is refused with the fault named, where it stands; sound ones pass; the real server agrees."""

import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.repository.broken import CASES, LOADED, Case, parameter, replace
from tests.calibration.repository.loader import GIVEN_UP_S, SMALL, Served
from triton_tools.repository.builder import build_repository
from triton_tools.repository.check import check
from triton_tools.repository.options import Options
from triton_tools.repository.staging import stage

SOUND = Options(engine_dir="/engines/llama", tokenizer_dir="/tokenizers/llama", decoupled=True, max_batch_size=8)
# takes the engine's place where only the server's word on the configuration is asked: it loads without torch
LIGHT = "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
COMBINATIONS = list(
    itertools.product(
        ("v0.8", "v0.5"), ("in_flight", "static"), ("guaranteed_no_evict", "max_utilization"), (True, False)
    )
)

EVERY = "SIZING_EVERY_REPOSITORY" in os.environ
"""All that the real server is shown takes five to ten minutes: without this variable a part of it, of every kind."""
# the first one answers in tests/calibration/clients/test_streaming.py
BUILT = COMBINATIONS if EVERY else COMBINATIONS[5::5]
SHOWN = (*LOADED, *CASES) if EVERY else (LOADED[0], *CASES[::6])


def given(contract: str, batching: str, policy: str, decoupled: bool) -> dict[str, Any]:
    folders = {"engine_dir": "/engines/llama", "tokenizer_dir": "/tokenizers/llama"}
    return folders | {"contract": contract, "batching": batching, "policy": policy, "decoupled": decoupled}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound repository that runs here."""
    folder = tmp_path_factory.mktemp("sound")
    return stage(build_repository(folder / "built", SOUND), folder / "staged", SMALL)


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "models")
    return tmp_path / "models"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_repository_is_refused_and_the_fault_named(case: Case, broken: Path) -> None:
    case.harm(broken)
    errors = [fault for fault in check(broken) if fault.severity == "error"]
    assert errors
    assert any(case.says in fault.message for fault in errors), [fault.message for fault in errors]
    assert all(fault.is_ours for fault in errors) == bool(case.ours)


@pytest.mark.parametrize("case", LOADED, ids=lambda case: case.name)
def test_what_triton_loads_is_not_refused(case: Case, broken: Path) -> None:
    case.harm(broken)
    assert [fault.message for fault in check(broken) if fault.severity == "error"] == []


@pytest.mark.parametrize("platform", ["tensorrt_plan", "onnxruntime_onnx", "pytorch_libtorch", "tensorflow_savedmodel"])
def test_a_platform_stands_for_its_backend(platform: str, broken: Path) -> None:
    """tritonserver 2.51 looks for the library of the backend that the platform stands for."""
    replace("postprocessing", 'backend: "python"', f'platform: "{platform}"')(broken)
    assert [fault.message for fault in check(broken) if fault.severity == "error"] == []


@pytest.mark.parametrize(("contract", "batching", "policy", "decoupled"), COMBINATIONS)
def test_what_is_built_is_found_sound(
    contract: str, batching: str, policy: str, decoupled: bool, tmp_path: Path
) -> None:
    options = Options(**given(contract, batching, policy, decoupled))
    faults = check(build_repository(tmp_path / "models", options))
    assert [fault.severity for fault in faults] == ["warning"] * (decoupled and policy == "max_utilization")


def test_the_line_is_that_of_the_fault(broken: Path) -> None:
    file = broken / "tensorrt_llm" / "config.pbtxt"
    parameter("tensorrt_llm", "batch_scheduler_policy", "best")(broken)
    replace("tensorrt_llm", "preferred_batch_size: 8", "preferred_batch_size: 9")(broken)
    lines = file.read_text().splitlines()
    found = {lines[fault.line - 1].strip() for fault in check(broken) if fault.path == file}
    assert "preferred_batch_size: 9" in found
    policy = lines.index('  key: "batch_scheduler_policy"')
    assert policy + 2 in {fault.line for fault in check(broken)}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("TYPE_STRING", "99", "99, which is STRING"),
        ("TYPE_STRING", "99999999999", "out of range"),
        (
            "instance_group",
            "sequence_batching { control_input { name: 'S' control { kind: 9 } } } instance_group",
            "9 needs",
        ),
    ],
)
def test_a_number_that_no_enum_has_is_a_fault(old: str, new: str, says: str, broken: Path) -> None:
    replace("preprocessing", old, new)(broken)
    assert any(says in fault.message for fault in check(broken))


@pytest.mark.triton
@pytest.mark.timeout(1200)
def test_the_real_server_refuses_what_we_refuse(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of both verdicts, which is printed; where we alone refuse, the case says why."""

    def both(numbered: tuple[int, Case]) -> tuple[str, bool]:
        """The row of a case, and whether the verdicts differ where they should not."""
        number, case = numbered
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        (folder / "tensorrt_llm" / "1" / "model.py").write_text(LIGHT)
        case.harm(folder)
        ours = [fault.message for fault in check(folder) if fault.severity == "error"]
        named = next((message for message in ours if case.says in message), "sound")
        with Served(folder, GIVEN_UP_S) as served:
            theirs = served.refusal
        row = f"| {case.name} | {named} | {theirs or 'READY'} | {case.ours} |"
        return row, bool(theirs) != (bool(ours) and not case.ours)

    with ThreadPoolExecutor(3) as pool:  # a server that hangs is waited for beside the others
        rows = list(pool.map(both, enumerate(SHOWN)))
    with capsys.disabled():
        print(*(row for row, _ in rows), sep="\n", flush=True)
    differ = [row for row, is_other in rows if is_other]
    assert not differ, "\n".join(differ)


@pytest.mark.triton
@pytest.mark.parametrize(("contract", "batching", "policy", "decoupled"), BUILT)
def test_what_is_built_loads_and_answers(
    contract: str, batching: str, policy: str, decoupled: bool, tmp_path: Path
) -> None:
    options = Options(**given(contract, batching, policy, decoupled), max_batch_size=8)
    staged = stage(build_repository(tmp_path / "built", options), tmp_path / "staged", SMALL)
    body = {"text_input": "baba bani", "max_tokens": 4, "end_id": 63, "bad_words": "", "stop_words": ""}
    with Served(staged) as served:
        assert served.refusal == ""
        for model in ("ensemble", "tensorrt_llm_bls") if contract == "v0.8" else ("ensemble",):
            if decoupled:
                assert len(served.stream(model, body | {"stream": True})) == 4
            else:
                assert len(served.generate(model, body)["text_output"].split()) == 2 + 4
