"""The pace of a GPU on a machine without one: step times of the kernel timings, kept by the worker that vLLM runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from calibration.errors import ServerError
from lab.pace import PACED, Pace
from lab.vllm.server import arguments
from lab.vllm.settings import Settings
from sizing import catalog
from sizing.catalog import Layout
from sizing.estimate import kernels

PACE = Pace("Qwen/Qwen3-32B", "h100_sxm", 2, "bf16")
pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class New:
    req_id: str
    prompt_token_ids: list[int]
    num_computed_tokens: int = 0


@dataclass
class Step:
    """As vLLM's SchedulerOutput."""

    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[New] = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    finished_req_ids: set[str] = field(default_factory=set)


class InstantWorker:
    """In place of vLLM's worker: a machine that computes in no time and notes what its runner is told."""

    def __init__(self, ahead: bool = False) -> None:
        self.scheduler_config = SimpleNamespace(async_scheduling=ahead)

    def init_device(self) -> None:
        self.runner_looks_ahead = self.scheduler_config.async_scheduling

    def execute_model(self, step: Step) -> None: ...

    def sample_tokens(self, grammar: None) -> str:
        return "tokens"


@pytest.fixture
def worker_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The class of the worker, without vLLM."""
    stands_for = {
        "vllm": {},
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.cpu_worker": {"CPUWorker": InstantWorker},
        "vllm.v1.outputs": {"AsyncModelRunnerOutput": object},
    }
    for name, content in stands_for.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    PACE.write(tmp_path / "pace.json")
    monkeypatch.setenv("PACE", str(tmp_path / "pace.json"))
    monkeypatch.syspath_prepend(PACED)
    spec = importlib.util.spec_from_file_location("vllm_worker", PACED / "vllm_worker.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.PacedWorker


@pytest.fixture
def worker(worker_of: Any) -> Any:
    return worker_of()


def test_a_request_takes_the_kernels_time_from_its_prompt_to_its_last_token(worker: Any) -> None:
    engine = kernels.open_engine(catalog.model(PACE.model), "h100_sxm", "vllm", Layout(2), "bf16")
    prompt = worker.step_s(Step({"a": 512}, [New("a", [7] * 512)]))
    assert prompt == pytest.approx(engine.mixed_s(512, 0, 512))
    token = worker.step_s(Step({"a": 1}, scheduled_cached_reqs=Cached(["a"], [512])))
    assert token == pytest.approx(engine.decode_s(1, 512))
    beside = Step({"a": 1, "b": 256}, [New("b", [7] * 512)], Cached(["a"], [513]))
    assert worker.step_s(beside) == pytest.approx(engine.mixed_s(256, 1, 256), rel=0.02), "half of a prompt of 512"
    rest = Step({"a": 1, "b": 256}, scheduled_cached_reqs=Cached(["a", "b"], [514, 256]))
    assert worker.step_s(rest) == pytest.approx(engine.mixed_s(256, 1, 512), rel=0.02)
    both = Step({"a": 1, "b": 1}, scheduled_cached_reqs=Cached(["a", "b"], [515, 512]), finished_req_ids={"c"})
    assert worker.step_s(both) == pytest.approx(engine.decode_s(2, 513), rel=0.02)


def test_what_decodes_beside_a_prompt_counts(worker_of: Any) -> None:
    engine = kernels.open_engine(catalog.model(PACE.model), "h100_sxm", "vllm", Layout(2), "bf16")
    times = worker_of.__init__.__globals__["StepTimes"]()
    assert times.mixed_s(256, 64, [512]) == pytest.approx(engine.mixed_s(256, 64, 512))
    assert times.mixed_s(256, 64, [512]) > 1.02 * times.mixed_s(256, 0, [512])


def test_a_cached_prefix_is_not_computed(worker: Any) -> None:
    cached = worker.step_s(Step({"a": 128}, [New("a", [7] * 512, num_computed_tokens=384)]))
    assert cached < worker.step_s(Step({"b": 512}, [New("b", [7] * 512)]))


def test_no_step_is_shorter_than_the_chips(worker: Any) -> None:
    step = Step({"a": 512}, [New("a", [7] * 512)])
    begun_s = time.perf_counter()
    worker.execute_model(step)
    assert worker.sample_tokens(None) == "tokens"
    assert time.perf_counter() - begun_s >= worker.step_s(step)


class Clock:
    """Time that passes in sleep alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_where_the_engine_looks_ahead_a_step_queues_behind_the_one_before_it(
    worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a GPU: both are taken at once, and each is done when the chip would have done it."""
    clock = Clock()
    monkeypatch.setitem(worker_of.execute_model.__globals__, "time", clock)
    worker = worker_of(ahead=True)
    worker.init_device()
    assert (worker.runner_looks_ahead, worker.scheduler_config.async_scheduling) == (False, True)
    step = Step({"a": 512}, [New("a", [7] * 512)])
    awaited = []
    for _ in range(2):
        worker.execute_model(step)
        awaited.append(worker.sample_tokens(None))
    assert clock.now_s == 0
    for number, output in enumerate(awaited, start=1):
        assert output.get_output() == "tokens"
        assert clock.now_s == pytest.approx(number * worker.step_s(step))


def test_the_table_is_json_that_any_engine_could_read(tmp_path: Path) -> None:
    PACE.write(tmp_path / "pace.json")
    tables = json.loads((tmp_path / "pace.json").read_text())
    for table in tables.values():
        shape, inner = [], table["seconds"]
        while isinstance(inner, list):
            shape.append(len(inner))
            inner = inner[0]
        assert shape == [len(axis) for axis in table["axes"]]


@pytest.mark.parametrize("pace", [PACE, None])
def test_the_worker_runs_in_the_engines_process(tmp_path: Path, pace: Pace | None) -> None:
    """The engine polls for the answer of another process: that would take a core from the servers it is to imitate."""
    assert arguments(Settings(pace=pace), tmp_path)["distributed_executor_backend"].endswith("UniProcExecutor")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Qwen/Qwen3-32B", "must be MODEL,GPU,TP,PRECISION"),
        ("Qwen/Qwen3-32B,h100_sxm,two,bf16", "must be MODEL,GPU,TP,PRECISION"),
        ("nobody/none,h100_sxm,2,bf16", "no step times for nobody/none on 2 h100_sxm in bf16"),
        ("Qwen/Qwen3-32B,abacus,2,bf16", "on 2 abacus in bf16: unknown GPU"),
        ("Qwen/Qwen3-32B,h100_sxm,2,int4", "on 2 h100_sxm in int4: vllm: no setting for int4"),
    ],
)
def test_a_pace_that_nobody_knows_is_refused_in_a_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=said) as refused:
        Pace.parse(text).write(tmp_path / "pace.json")
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_a_pace_finds_the_timings_by_itself(tmp_path: Path) -> None:
    """In a process of its own: here the check above has already put them on the path."""
    code = "import sys, pathlib; from lab.pace import Pace; Pace.parse(sys.argv[1]).write(pathlib.Path(sys.argv[2]))"
    written = tmp_path / "steps.json"
    subprocess.run([sys.executable, "-c", code, "Qwen/Qwen3-32B,h100_sxm,2,bf16", written], check=True)
    assert json.loads(written.read_text())["decode"]
