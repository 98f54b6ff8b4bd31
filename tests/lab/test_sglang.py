"""SGLang at the pace of a GPU, without SGLang: the modules that stand for GPU packages, and how long steps last."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lab.sglang.server import SglangServer, options
from lab.vllm.pace import SMALLEST, Pace
from lab.vllm.server import PACED
from lab.vllm.settings import Settings
from sizing import catalog
from sizing.catalog import Layout
from sizing.estimate import kernels

PACE = Pace("Qwen/Qwen3-32B", "h100_sxm", 2, "bf16", "sglang")
SETTINGS = Settings(http_port=8123, max_batch_size=64, kv_tokens=65_536, token_budget=4096, pace=PACE, **SMALLEST)
timed = pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, read but not run."""
    monkeypatch.syspath_prepend(PACED)
    spec = importlib.util.spec_from_file_location("paced_server", SglangServer.program)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def absences(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    finder = program.Absences()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in program.FOR_GPUS]:
        del sys.modules[name]


@pytest.mark.usefixtures("absences")
def test_a_package_for_gpus_can_be_imported_and_is_not_installed() -> None:
    assert importlib.util.find_spec("sgl_kernel") is None, "asked whether it is there, as transformers asks"
    package = importlib.import_module("sgl_kernel.elementwise")
    assert package.rmsnorm.out is not None, "read, as at the head of a module"
    assert package.register(SETTINGS.__init__) == SETTINGS.__init__, "a decorator changes nothing"
    with pytest.raises(RuntimeError, match="rmsnorm is for GPUs"):
        package.rmsnorm(1, 2)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sgl_kernels")


def batch(contexts: list[int], prompts: list[int] | None = None) -> SimpleNamespace:
    """As SGLang's ForwardBatch: decoding sequences, or the tokens that `prompts` compute now."""
    mode = SimpleNamespace(is_decode=lambda: prompts is None)
    lengths = SimpleNamespace(tolist=lambda: contexts)
    return SimpleNamespace(seq_lens=lengths, forward_mode=mode, extend_seq_lens_cpu=prompts)


@pytest.fixture
def pace(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    PACE.write(tmp_path / "pace.json")
    monkeypatch.setenv("PACE", str(tmp_path / "pace.json"))
    return program.Pace()


@timed
def test_steps_last_as_long_as_the_engines_kernels(pace: Any) -> None:
    engine = kernels.open_engine(catalog.model(PACE.model), "h100_sxm", "sglang", Layout(2), "bf16")
    assert pace.step_s(batch([512, 512])) == pytest.approx(engine.decode_s(2, 512))
    assert pace.step_s(batch([512, 512], [256, 256])) == pytest.approx(engine.mixed_s(512, 0, 512))
    cached = pace.step_s(batch([512], [128]))
    assert cached == pytest.approx(engine.mixed_s(128, 0, 512)), "what the radix cache holds is not computed"
    assert pace.step_s(batch([])) == 0.0


@timed
def test_no_step_is_shorter_than_the_gpus(pace: Any) -> None:
    step = batch([512], [512])
    begun_s = time.perf_counter()
    assert pace.keep(lambda runner, batch: "logits")("runner", step) == "logits"
    assert time.perf_counter() - begun_s >= pace.step_s(step)


def test_the_options_say_what_the_settings_say() -> None:
    told = options(SETTINGS, Path("model"))
    assert (told["--max-running-requests"], told["--max-total-tokens"]) == ("64", "65536")
    assert (told["--chunked-prefill-size"], told["--port"]) == ("4096", "8123")
    whole = Settings(chunked_prefill=False, token_budget=4096, kv_tokens=65_536)
    assert options(whole, Path("model"))["--chunked-prefill-size"] == "-1"


@timed
def test_the_process_that_computes_moves_to_the_engines_core_once(pace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[set[int]] = []
    monkeypatch.setenv("ENGINE_CORES", "3")
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: moved.append(set(cores)))
    forward = pace.keep(lambda runner, batch: "logits")
    assert not moved, "the server is made in the same file, and stays where it was started"
    forward("runner", batch([]))
    forward("runner", batch([]))
    assert moved == [{3}]
