"""SGLang at the pace of a GPU, without SGLang: the modules that stand for GPU packages, and how long steps last."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lab.life import on_other_cores, why_ended
from lab.pace import PACED, SMALLEST, Pace
from lab.sglang.server import SglangServer, flags
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
    spec = importlib.util.spec_from_file_location("sglang_server", SglangServer.program)
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
def times(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    PACE.write(tmp_path / "pace.json")
    monkeypatch.setenv("PACE", str(tmp_path / "pace.json"))
    return program.StepTimes()


@timed
def test_steps_last_as_long_as_the_engines_kernels(program: ModuleType, times: Any) -> None:
    engine = kernels.open_engine(catalog.model(PACE.model), "h100_sxm", "sglang", Layout(2), "bf16")
    assert program.step_s(times, batch([512, 512])) == pytest.approx(engine.decode_s(2, 512))
    assert program.step_s(times, batch([512, 512], [256, 256])) == pytest.approx(engine.mixed_s(512, 0, 512))
    cached = program.step_s(times, batch([512], [128]))
    assert cached == pytest.approx(engine.mixed_s(128, 0, 512)), "what the radix cache holds is not computed"
    assert program.step_s(times, batch([])) == 0.0


@timed
def test_no_step_is_shorter_than_the_gpus(program: ModuleType, times: Any) -> None:
    step = batch([512], [512])
    forward = program.paced(lambda runner, batch: "logits", times, program.Stream(), overlapped=False)
    begun_s = time.perf_counter()
    assert forward("runner", step) == "logits"
    assert time.perf_counter() - begun_s >= program.step_s(times, step)


@timed
def test_overlapped_steps_queue_one_behind_the_other(program: ModuleType, times: Any) -> None:
    gpu, step = program.Stream(), batch([512], [512])
    forward = program.paced(lambda runner, batch: "logits", times, gpu, overlapped=True)
    begun_s, marks = time.perf_counter(), []
    for _ in range(3):
        forward("runner", step)
        marks.append(gpu.event())
        marks[-1].record()
    assert not marks[0].query(), "the scheduler goes on meanwhile"
    waited = []
    for mark in marks:
        mark.synchronize()
        assert mark.query()
        waited.append(time.perf_counter() - begun_s)
    for steps, waited_s in enumerate(waited, 1):
        assert waited_s >= steps * program.step_s(times, step)
    forward("runner", step)
    assert gpu.free_s >= begun_s + waited[-1] + program.step_s(times, step), "an idle GPU starts when it is asked"


def test_of_the_layers_nothing_is_computed(program: ModuleType) -> None:
    model = SimpleNamespace(embed_tokens=lambda tokens: [7.0 * token for token in tokens])  # and no layers
    assert program.embedded(model, [1, 2], "positions", "batch", input_embeds=None, pp_proxy_tensors=None) == [7, 14]


def test_a_mark_that_was_not_recorded_is_past(program: ModuleType) -> None:
    assert program.Stream().event().query()


def test_the_step_times_are_sglangs_whatever_the_pace_says() -> None:
    server = SglangServer(replace(SETTINGS, pace=replace(PACE, engine="vllm")))
    assert server.settings.pace == PACE


def test_the_options_say_what_the_settings_say() -> None:
    said = " ".join(flags(SETTINGS, Path("model")))
    for option in ("max-running-requests 64", "max-total-tokens 65536", "chunked-prefill-size 4096", "port 8123"):
        assert f"--{option}" in said
    assert "--disable-radix-cache" in said
    assert "--disable-overlap-schedule" in said
    assert "--disable-overlap-schedule" not in flags(replace(SETTINGS, look_ahead=True), Path("model"))
    assert "--scheduler-recv-interval 1 " in said
    assert "--scheduler-recv-interval 30 " in " ".join(
        flags(replace(SETTINGS, receive_interval_steps=30), Path("model"))
    )
    assert "--disable-radix-cache" not in flags(replace(SETTINGS, kv_reuse=True), Path("model"))
    whole = flags(replace(SETTINGS, chunked_prefill=False), Path("model"))
    assert "--chunked-prefill-size -1" in " ".join(whole)
    assert "--mem-fraction-static" in whole, (
        "without chunks SGLang keeps all memory for activations, and none for tokens"
    )


def test_the_line_on_a_server_that_does_not_start_is_not_about_models_it_never_serves(tmp_path: Path) -> None:
    """As SGLang 0.5.23 ended: its log holds a line for each model that needs a GPU, before and beside the error."""
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-11-29 03:32:42] Ignore import error when loading sglang.srt.models.mamba: cannot import name\n"
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=-0.049.\n"
    )
    assert why_ended(1, log).startswith("ValueError: Loaded weights")
    assert why_ended(-signal.SIGKILL, log).startswith("it was killed"), "nobody who is killed can say so"


def test_the_engine_has_the_last_core_and_the_server_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("calibration.load.system.usable", lambda: {0, 1, 2})
    server = SglangServer(SETTINGS)
    monkeypatch.setattr(server, "_work", tmp_path)
    assert server._variables()["ENGINE_CORES"] == "2"
    assert on_other_cores(server.kept_free, "program")[2] == "0,1"


@timed
def test_the_process_that_computes_moves_to_the_engines_core_once(
    program: ModuleType, times: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[set[int]] = []
    monkeypatch.setenv("ENGINE_CORES", "3")
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: moved.append(set(cores)))
    forward = program.paced(lambda runner, batch: "logits", times, program.Stream(), overlapped=False)
    assert not moved, "the server is made in the same file, and stays where it was started"
    forward("runner", batch([]))
    forward("runner", batch([]))
    assert moved == [{3}]
