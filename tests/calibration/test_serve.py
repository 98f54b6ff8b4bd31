"""The reference server from outside: its commands, its environment, and the real tritonserver behind them."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from calibration.errors import ServerError
from calibration.reference import environment
from calibration.reference.server import ReferenceServer, claim_ports
from calibration.reference.settings import Settings

WITHIN_S = 60.0
PROMPT = "baba gito bila bebo hemi"
SERVE = [sys.executable, "-m", "calibration", "serve"]
FREE_PORTS = ["--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail if it never does."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)


# ---- what needs no server -------------------------------------------------------------------------------------------


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

    def create(wanted: environment.Environment, console: object) -> None:
        made.append(wanted.folder)
        time.sleep(0.1)
        (wanted.folder / "stamp").write_text(environment._stamp_text())

    monkeypatch.setattr(environment, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "_create", create)
    (tmp_path / "venv").mkdir()  # left behind by an interrupted creation
    asking = [threading.Thread(target=environment.ensure, args=(tmp_path,)) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert made == [tmp_path]


def test_an_environment_of_other_pins_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(environment, "SUPPORTED", (sys.version_info[:2],))
    monkeypatch.setattr(environment, "_create", lambda wanted, console: made.append(wanted.folder))
    (tmp_path / "stamp").write_text(environment._stamp_text())
    environment.ensure(tmp_path)
    assert made == []
    other = tmp_path / "requirements.txt"
    other.write_text("nvidia-pytriton==0.0.1\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", other)
    environment.ensure(tmp_path)
    assert made == [tmp_path]


@pytest.mark.triton
def test_a_failed_install_is_one_line_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"nvidia-pytriton @ file://{tmp_path}/none.whl\nnumpy @ file://{tmp_path}/none.whl\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", pins)
    with pytest.raises(ServerError, match="failed at 'torch, numpy, tokenizers") as caught:
        environment.ensure(tmp_path / "env")
    log = tmp_path / "env" / "install.log"
    assert "\n" not in str(caught.value) and str(log) in str(caught.value)
    assert "none.whl" in log.read_text()
    assert not (tmp_path / "env" / "stamp").exists()


# ---- one server, asked in many ways ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as running:
        yield running


def tensor(name: str, value: Any, dtype: type) -> triton.InferInput:
    array = np.array(value, dtype=dtype)
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def ensemble_inputs(text: str, max_tokens: int, stream: bool = True, **more: Any) -> list[triton.InferInput]:
    types = {"bad_words": object, "stop_words": object, "embedding_bias_words": object, "random_seed": np.uint64}
    types |= dict.fromkeys(("temperature", "top_p", "embedding_bias_weights"), np.float32)
    types |= {"return_log_probs": bool}
    given = {"end_id": -1, **more}
    return [
        tensor("text_input", [[text.encode()]], object),
        tensor("max_tokens", [[max_tokens]], np.int32),
        tensor("stream", [[stream]], bool),
        *(
            tensor(name, [value if isinstance(value, list) else [value]], types.get(name, np.int32))
            for name, value in given.items()
        ),
    ]


Answer = triton.InferResult | InferenceServerException


class Stream:
    """A gRPC stream whose answers can be waited for."""

    def __init__(self, url: str) -> None:
        self.client = triton.InferenceServerClient(url)
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put(result if error is None else error))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_stream()
        self.client.close()

    def ask(self, inputs: list[triton.InferInput], model: str = "ensemble", request_id: str = "") -> None:
        self.client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def next(self) -> Answer:
        return self.answers.get(timeout=WITHIN_S)

    def whole(self, inputs: list[triton.InferInput]) -> list[triton.InferResult]:
        """Every answer with tensors until the final one; fails on an error."""
        self.ask(inputs)
        return self.rest()

    def rest(self) -> list[triton.InferResult]:
        results = []
        while True:
            answer = self.next()
            if isinstance(answer, InferenceServerException):
                raise answer
            if answer.as_numpy("output_ids") is not None:
                results.append(answer)
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return results


def ids(results: list[triton.InferResult]) -> list[int]:
    return [int(token) for result in results for token in result.as_numpy("output_ids").reshape(-1)]


def completed(server: ReferenceServer, inputs: list[triton.InferInput]) -> list[triton.InferResult]:
    with Stream(server.grpc_url) as stream:
        return stream.whole(inputs)


def http(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{url}", data), timeout=WITHIN_S) as response:
        text = response.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def gauges(server: ReferenceServer, family: str) -> dict[str, float]:
    """Value by category label of one of the backend's metric families."""
    text = http(server.metrics_url)
    found = re.findall(rf"^nv_trt_llm_{family}_metrics\{{(.*?)\}} (\S+)$", text, re.MULTILINE)
    assert found, f"no family {family}"
    return {
        next(v for k, v in re.findall(r'(\w+)="(.*?)"', labels) if k.endswith(("type", "metric"))): float(value)
        for labels, value in found
    }


@pytest.mark.triton
def test_four_models_are_ready(server: ReferenceServer) -> None:
    index = http(f"{server.http_url}/v2/repository/index", {})
    assert {entry["name"]: entry["state"] for entry in index} == dict.fromkeys(
        ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"), "READY"
    )


@pytest.mark.triton
def test_a_streamed_completion_is_one_token_per_answer(server: ReferenceServer) -> None:
    results = completed(server, ensemble_inputs(PROMPT, 17))
    assert len(results) == 17
    tokenizer = Tokenizer.from_file(str(server.tokenizer))
    for result in results:
        assert result.as_numpy("output_ids").shape == (1, 1, 1)
        token = int(result.as_numpy("output_ids").item())
        assert result.as_numpy("text_output").reshape(-1)[0].decode() == tokenizer.decode([token])
        assert result.as_numpy("context_logits").shape == (1, 1, 1)
        assert result.as_numpy("generation_logits").shape == (1, 1, 1, 1)


@pytest.mark.triton
def test_an_unstreamed_completion_is_one_answer_with_prompt_and_the_same_tokens(server: ReferenceServer) -> None:
    streamed = ids(completed(server, ensemble_inputs(PROMPT, 9)))
    results = completed(server, ensemble_inputs(PROMPT, 9, stream=False))
    prompt = Tokenizer.from_file(str(server.tokenizer)).encode(PROMPT).ids
    assert len(results) == 1
    assert len(prompt) == len(PROMPT.split())
    assert ids(results) == prompt + streamed
    assert results[0].as_numpy("output_ids").shape == (1, 1, len(prompt) + 9)


@pytest.mark.triton
def test_generate_over_http(server: ReferenceServer) -> None:
    body = {"text_input": PROMPT, "max_tokens": 6, "stream": False, "end_id": -1}
    answer = http(f"{server.http_url}/v2/models/ensemble/generate", body)
    assert answer["text_output"].startswith(PROMPT)
    assert len(answer["output_ids"]) == len(PROMPT.split()) + 6


@pytest.mark.triton
def test_eight_streams_at_once_get_what_each_gets_alone(server: ReferenceServer) -> None:
    prompts = [" ".join(PROMPT.split()[start:] + ["buba"] * start) for start in range(4)]
    alone = [ids(completed(server, ensemble_inputs(prompt, 20))) for prompt in prompts]
    streams = [Stream(server.grpc_url) for _ in range(8)]
    for number, stream in enumerate(streams):
        stream.ask(ensemble_inputs(prompts[number % 4], 20))
    for number, stream in enumerate(streams):
        with stream:
            assert ids(stream.rest()) == alone[number % 4]


@pytest.mark.triton
def test_log_probs_are_of_the_tokens_and_add_up(server: ReferenceServer) -> None:
    results = completed(server, ensemble_inputs(PROMPT, 8, return_log_probs=True))
    single = [float(result.as_numpy("output_log_probs").item()) for result in results]
    running = [float(result.as_numpy("cum_log_probs").item()) for result in results]
    assert all(-np.log(2048) < value < 0 for value in single)  # the greedy token beats a uniform guess
    assert running == pytest.approx(np.cumsum(single), rel=1e-5)
    silent = completed(server, ensemble_inputs(PROMPT, 2))
    assert [result.as_numpy("cum_log_probs").item() for result in silent] == [0.0, 0.0]


@pytest.mark.triton
def test_end_token_stops_early_and_minus_one_never_does(server: ReferenceServer) -> None:
    free = ids(completed(server, ensemble_inputs(PROMPT, 12)))
    stop = free[4]
    assert ids(completed(server, ensemble_inputs(PROMPT, 12, end_id=stop))) == free[: free.index(stop) + 1]
    assert len(free) == 12


@pytest.mark.triton
def test_words_and_bias_steer_the_output(server: ReferenceServer) -> None:
    tokenizer = Tokenizer.from_file(str(server.tokenizer))
    free = ids(completed(server, ensemble_inputs(PROMPT, 12)))
    word = tokenizer.decode([free[3]])
    stopped = ids(completed(server, ensemble_inputs(PROMPT, 12, stop_words=[word.encode()])))
    assert stopped == free[: free.index(free[3]) + 1]
    without = ids(completed(server, ensemble_inputs(PROMPT, 12, bad_words=[word.encode()])))
    assert free[3] not in without and len(without) == 12
    pushed = ensemble_inputs(PROMPT, 5, embedding_bias_words=[b"bebe"], embedding_bias_weights=[1000.0])
    assert ids(completed(server, pushed)) == tokenizer.encode("bebe").ids * 5


@pytest.mark.triton
def test_sampling_follows_its_seed(server: ReferenceServer) -> None:
    def sampled(seed: int) -> list[int]:
        return ids(completed(server, ensemble_inputs(PROMPT, 10, top_k=50, temperature=1.5, random_seed=seed)))

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (lambda: ensemble_inputs(PROMPT, 600), "exceeds the maximum sequence length of 512"),
        (lambda: ensemble_inputs(PROMPT, 3, beam_width=2), "Requested beam width 2 is larger than"),
        (lambda: ensemble_inputs("", 3), "prompt is empty"),
        (lambda: ensemble_inputs(PROMPT, 0), "request_output_len must be at least 1"),
    ],
)
def test_what_cannot_be_served_comes_back_as_a_triton_error(
    server: ReferenceServer, inputs: Callable[[], list[triton.InferInput]], says: str
) -> None:
    with pytest.raises(InferenceServerException, match=says) as caught:
        completed(server, inputs())
    assert "\n" not in str(caught.value)
    assert len(completed(server, ensemble_inputs(PROMPT, 2))) == 2  # and the next request is served


@pytest.mark.triton
def test_a_batch_of_two_is_refused(server: ReferenceServer) -> None:
    inputs = [tensor("text_input", [[b"baba"], [b"baba"]], object), tensor("max_tokens", [[2], [2]], np.int32)]
    with pytest.raises(InferenceServerException, match="batch size of 1"):
        completed(server, inputs)


def engine_inputs(
    prompt: list[int], max_tokens: int, stop: bool = False, stream: bool = False
) -> list[triton.InferInput]:
    return [
        tensor("input_ids", [prompt], np.int32),
        tensor("input_lengths", [[len(prompt)]], np.int32),
        tensor("request_output_len", [[max_tokens]], np.int32),
        tensor("streaming", [[stream]], bool),
        tensor("stop", [[stop]], bool),
    ]


@pytest.mark.triton
def test_clients_that_leave_free_their_places(server: ReferenceServer) -> None:
    passes = gauges(server, "general")["iteration_counter"]
    streams = [Stream(server.grpc_url) for _ in range(16)]
    for stream in streams:
        stream.ask(engine_inputs([5, 6, 7], 500, stream=True), "tensorrt_llm")
    until(lambda: gauges(server, "request")["active"] == 16)
    until(lambda: gauges(server, "inflight_batcher")["generation_requests"] == 16)
    assert gauges(server, "kv_cache_block")["used"] == 16 * 32  # 503 tokens in blocks of 16
    for stream in streams:
        stream.client.stop_stream(cancel_requests=True)
        stream.client.close()
    until(lambda: gauges(server, "kv_cache_block")["used"] == 0)
    blocks = gauges(server, "kv_cache_block")
    assert blocks["free"] == blocks["max"] == 1024
    assert gauges(server, "request")["active"] == 0
    assert gauges(server, "general")["iteration_counter"] - passes < 500  # they did not run to their ends


@pytest.mark.triton
def test_a_stop_request_is_acknowledged_before_the_early_answer(server: ReferenceServer) -> None:
    with Stream(server.grpc_url) as stream:
        stream.ask(engine_inputs([5, 6, 7], 500), "tensorrt_llm", "41")
        stream.ask(engine_inputs([1], 0, stop=True), "tensorrt_llm", "41")
        acknowledged, answer = stream.next(), stream.next()
    assert isinstance(acknowledged, triton.InferResult) and isinstance(answer, triton.InferResult)
    assert acknowledged.as_numpy("output_ids") is None
    tokens = answer.as_numpy("output_ids").reshape(-1).tolist()
    assert tokens[:3] == [5, 6, 7]
    assert len(tokens) < 503
    with Stream(server.grpc_url) as stream:
        stream.ask(engine_inputs([1], 0, stop=True), "tensorrt_llm", "41")
        assert "not active" in str(stream.next())


# ---- its life -------------------------------------------------------------------------------------------------------


def started(*options: str, **variables: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A serving process, and what its READY line says."""
    process = subprocess.Popen(
        [*SERVE, *FREE_PORTS, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=environment.PROJECT,
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
def test_serve_stops_on_sigterm_and_leaves_nothing_running() -> None:
    process, urls = started("--batching", "static")
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
    process = subprocess.Popen([*SERVE, *FREE_PORTS], stdout=subprocess.PIPE, text=True, cwd=environment.PROJECT)
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
    from calibration.reference import server as module

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
