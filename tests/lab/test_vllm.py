"""A real vLLM on the CPU: a small mixture of experts, its cache too small for all, measured through its OpenAI API."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from calibration.demand import demand_of
from calibration.errors import ServerError
from calibration.plan import parse_plan
from calibration.prometheus import Prometheus, PrometheusError, source_of
from calibration.run import run
from calibration.store import DATABASE_VARIABLE, Store
from lab.environment import Environment, ensure
from lab.life import answers
from lab.vllm.server import MODEL, RECIPE, VllmServer, configuration, flags, write_model
from lab.vllm.settings import Settings
from sizing.token_law import TokenLaw
from tests.calibration.prometheus_server import asked, prometheus
from tests.calibration.serving import SERVE, serve_here

PACE = "Qwen/Qwen3-32B,h100_sxm,2,bf16"
SMALL = Settings(
    http_port=0,
    hidden=256,
    layers=2,
    heads=4,
    kv_heads=2,
    experts=4,
    max_batch_size=16,
    max_sequence_tokens=256,
    kv_tokens=1024,
    token_budget=256,
    kv_reuse=True,
)


@pytest.fixture(scope="module")
def server() -> Iterator[VllmServer]:
    """The server that this file shares; skipped only where its environment cannot be made."""
    try:
        ensure(RECIPE)
    except ServerError as error:
        pytest.skip(f"vLLM's environment cannot be made here: {error}")
    with VllmServer(SMALL) as started:
        yield started


def ask(server: VllmServer, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


SUCCESSES = "vllm:request_success_total"


def counter(server: VllmServer, name: str) -> float:
    lines = [line for line in ask(server, "/metrics").splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_what_was_asked_for_is_served(server: VllmServer) -> None:
    """The model's name, exact lengths, and a cache of as many tokens as asked for."""
    server.check()
    assert [one["id"] for one in json.loads(ask(server, "/v1/models"))["data"]] == [MODEL]
    body = {"model": MODEL, "prompt": [7, 8, 9], "max_tokens": 12, "ignore_eos": True}
    usage = json.loads(ask(server, "/v1/completions", body))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)
    assert 'kv_cache_size_tokens="1024"' in ask(server, "/metrics")


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_calibration_measures_it_and_sees_it_preempt(
    server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve users of up to 170 tokens on a cache of 1,024: vLLM starts more than it can finish, and says so. The
    prompts that share 64 tokens are found in its prefix cache."""
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'points.db'}")
    plan = (
        f"server: {{protocol: openai, url: '{server.url}', model: {MODEL}, metrics_url: '{server.metrics_url}'}}\n"
        "lengths: [{isl: 70, osl: 100, isl_cv: 0, osl_cv: 0, shared_prefix: 64}]\nconcurrency: [2, 12]\n"
        "deployment: {precision: fp32, gpu: cpu, tp: 1}\ncheck_load: 0\nrequests_per_level: 36\n"
        "client: {self_check: false}\n"
    )
    store = Store()
    before = counter(server, "vllm:num_preemptions_total")
    run(parse_plan(plan), store)
    few, crowd = store.points(1)
    for point in (few, crowd):
        assert (point.engine, point.isl, point.osl, point.errors) == ("vllm", 70, 100, 0)
    assert max(few.prefix_hit or 0.0, crowd.prefix_hit or 0.0) > 0.5  # told by counters that are read once a second
    assert counter(server, "vllm:num_preemptions_total") > before
    assert crowd.requests_per_s > few.requests_per_s


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_what_it_tells_prometheus_is_its_demand(server: VllmServer, tmp_path: Path) -> None:
    """Requests that it answers while a real Prometheus scrapes it: their number, lengths and latencies come out."""
    sent, scrapes = 120, 16
    with prometheus(tmp_path, scraped=[server.url.removeprefix("http://")]) as url:
        metrics, body = Prometheus(url), {"model": MODEL, "prompt": [7] * 20, "max_tokens": 4, "ignore_eos": True}
        wait_for(lambda: source_of(metrics, "vllm", None, {}, 30, time.time()))
        before = counter(server, SUCCESSES)
        for _ in range(sent):
            ask(server, "/v1/completions", body)
        wait_for(lambda: seen(url, before + sent, scrapes))
        end_s = time.time()
        source = source_of(metrics, "vllm", None, {}, 600, end_s)
        law = {"isl": TokenLaw.parse("points:20"), "osl": None}
        found = demand_of(source, end_s - 600, end_s, 300.0, laws=law)
    assert source.model == MODEL
    # Prometheus extrapolates a step's increase by at most 1.1 mean scrape intervals at either end of its samples, and
    # not below zero: each counter by its own value at the first, so that tokens and requests differ as much
    extrapolated = 2.2 / (scrapes - 1)
    assert sent * 0.999 <= found.requests <= sent * (1 + extrapolated)
    assert found.lengths["isl"].mean == pytest.approx(20)
    assert found.model.osl.mean == pytest.approx(4, rel=extrapolated)
    ttft, e2e = (found.latencies[what].quantile(0.5) for what in ("ttft", "e2e"))
    assert 0 < ttft <= e2e and 0 < found.latencies["itl"].quantile(0.5) < e2e


def seen(url: str, successes: float, scrapes: int) -> None:
    """That Prometheus has so many scrapes, and these successes in the last one; PrometheusError otherwise."""
    series = asked(url, f"{SUCCESSES}[10m]", time.time())
    newest = sum(float(one["values"][-1][1]) for one in series)
    if newest < successes or min(len(one["values"]) for one in series) < scrapes:
        raise PrometheusError(f"{newest:g} successes seen, of {successes:g}")


def wait_for(there: Callable[[], object]) -> None:
    """Until something is there that a PrometheusError says is not."""
    until_s = time.monotonic() + 180
    while True:
        try:
            there()
            return
        except PrometheusError as error:
            assert time.monotonic() < until_s, error
            time.sleep(0.2)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_nothing_is_left_of_a_server_that_ended(server: VllmServer) -> None:
    """A second one, ended while it loads: no process, no folder."""
    with pytest.raises(ServerError, match="vLLM was not ready within 1 s; log: "):
        second = VllmServer(SMALL)
        second.ready_within_s = 1.0
        second.__enter__()
    assert not answers(f"{second.url}/health")
    left = subprocess.run(["pgrep", "-f", f"--port {second.settings.http_port}"], capture_output=True, check=False)
    assert left.stdout == b""
    server.check()  # the first has not noticed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "vllm", "--policy", "max_utilization"), "--policy is for --engine triton"),
        (("--engine", "vllm", "--grpc-port", "0"), "--grpc-port is for --engine triton"),
        (("--experts", "4"), "--experts is for --engine vllm"),
        (("--behind", "triton"), "--behind is for --engine vllm"),
        (("--engine", "vllm", "--behind", "triton", "--batching", "static"), "--batching is for --engine triton"),
        (("--engine", "vllm", "--behind", "triton", "--grpc-port", "8000"), "--grpc-port 8000 is asked for twice"),
        (("--engine", "vllm", "--experts", "1"), "--experts must be 0 for a dense model"),
        (("--engine", "vllm", "--hidden", "100"), "--hidden must be a multiple of 32 times --heads"),
        (("--engine", "vllm", "--kv-tokens", "100"), "--kv-tokens must hold a sequence of 512 tokens"),
        (("--engine", "vllm", "--token-budget", "8"), "--token-budget must be at least --max-batch-size"),
        (("--look-ahead",), "--look-ahead is for --engine vllm or sglang"),
        (("--pace", PACE), "--pace is for --engine vllm or sglang"),
        (("--engine", "vllm", "--receive-interval-steps", "2"), "--receive-interval-steps is for --engine sglang"),
        (
            ("--engine", "sglang", "--receive-interval-steps", "0", "--pace", PACE),
            "--receive-interval-steps must be at least 1",
        ),
        (("--engine", "vllm", "--look-ahead"), "--look-ahead takes the --pace of a GPU"),
        (("--engine", "sglang"), "SGLang needs the pace of a GPU here: --pace MODEL,GPU,TP,PRECISION"),
        (("--engine", "sglang", "--pace", PACE, "--experts", "4"), "--experts is for --engine vllm"),
        (
            ("--engine", "vllm", "--behind", "triton", "--look-ahead", "--pace", PACE),
            "--look-ahead is for vLLM's own server",
        ),
        (
            ("--engine", "vllm", "--no-chunked-prefill", "--token-budget", "500"),
            "with --no-chunked-prefill, --token-budget must hold a sequence of 512 tokens",
        ),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], said: str) -> None:
    ended = serve_here(*options)
    assert ended.exit_code == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: {said}")


def test_a_cuda_build_of_torch_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip brought one, vLLM would end without saying why."""
    version = Environment(tmp_path).site_packages / "torch" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text("__all__ = ['__version__', 'cuda']\n__version__ = '2.13.0+cu130'\ncuda = '13.0'\n")
    (tmp_path / "stamp").write_text(RECIPE.stamp)
    monkeypatch.setenv(RECIPE.variable, str(tmp_path))
    command = [*SERVE, "--engine", "vllm", "--http-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert "needs a CPU build of torch" in line and "2.13.0+cu130" in line
    with pytest.raises(ServerError, match=f"{tmp_path}/venv .* `bin/python -m pip install .* torch==2.13.0 "):
        ensure(RECIPE)
    version.write_text("__version__ = '2.13.0+cpu'\n")
    ensure(RECIPE)


def test_a_model_folder_says_what_the_settings_say(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SMALL)
    config = json.loads((folder / "config.json").read_text())
    assert config == configuration(SMALL)
    assert (config["model_type"], config["num_local_experts"], config["hidden_size"]) == ("mixtral", 4, 256)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(words) == SMALL.vocab_size


def test_vllm_is_told_the_limits(tmp_path: Path) -> None:
    words = flags(SMALL, tmp_path)
    told = dict(pairwise(words))
    assert (told["--max-num-seqs"], told["--max-model-len"], told["--max-num-batched-tokens"]) == ("16", "256", "256")
    assert int(told["--num-gpu-blocks-override"]) * int(told["--block-size"]) == 1024
    assert "--enable-prefix-caching" in words
