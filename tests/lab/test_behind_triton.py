"""The same vLLM behind the real tritonserver: what Triton's vLLM backend promises its clients, and a calibration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calibration.errors import ServerError
from calibration.store import DATABASE_VARIABLE, Store
from lab.environment import ensure
from lab.reference.server import TRITON
from lab.vllm.behind_triton import VllmBehindTriton
from lab.vllm.server import RECIPE
from sizing import catalog
from sizing.catalog import Layout
from sizing.estimate import kernels
from tests.calibration.serving import FREE_PORTS, SERVE, WITHIN_S, until
from tests.calibration.test_serve_life import all_gone, processes_below

SIZES = "--hidden 256 --layers 2 --heads 4 --kv-heads 2 --max-sequence-tokens 256 --kv-tokens 1024 --token-budget 256"
BEHIND_TRITON = [*SERVE, "--engine", "vllm", "--behind", "triton", *FREE_PORTS]
real = [pytest.mark.vllm, pytest.mark.triton, pytest.mark.timeout(600)]


def marked(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


@dataclass(frozen=True)
class Serving:
    """`python -m calibration serve` at work: its process, its READY line, its temporary files."""

    process: subprocess.Popen[str]
    ready: dict[str, str]
    folder: Path

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The answer of Triton's HTTP port, also where it is an error."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://{self.ready['http']}/v2/models/{self.ready['model']}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def generate(self, text: str, sampling: str, **given: bool) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.ask("/generate", {"text_input": text, "sampling_parameters": sampling, **given})
        )
        return found


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server that this file shares, until the last test ends it."""
    with started(tmp_path_factory.mktemp("serving"), *SIZES.split()) as server:
        yield server


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Serving]:
    """A server with these options; skipped only where an environment is missing."""
    try:
        ensure(VllmBehindTriton.recipe)
        ensure(TRITON)
    except ServerError as error:
        pytest.skip(f"the environments cannot be made here: {error}")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*BEHIND_TRITON, *options], **pipes, env={**os.environ, "TMPDIR": str(folder)}) as process:
        try:
            line = process.stdout.readline().split() if process.stdout else []
            assert line[:1] == ["READY"], process.communicate()[1]
            yield Serving(process, dict(word.split("=") for word in line[1:]), folder)
        finally:
            process.terminate()
            process.communicate(timeout=WITHIN_S)


@marked
def test_its_contract_is_that_of_triton_s_vllm_backend(serving: Serving) -> None:
    """As its documentation has it: names, types and policy, none of which a config.pbtxt has to repeat."""
    config = json.loads(serving.ask("/config"))
    assert (serving.ready["model"], config["backend"], config["max_batch_size"]) == ("vllm_model", "vllm", 0)
    assert config["model_transaction_policy"] == {"decoupled": True}
    inputs = {tensor["name"]: (tensor["data_type"], tensor["optional"]) for tensor in config["input"]}
    assert inputs["text_input"] == ("TYPE_STRING", False)
    assert inputs["sampling_parameters"] == ("TYPE_STRING", True)
    assert inputs["stream"] == inputs["return_num_output_tokens"] == ("TYPE_BOOL", True)
    outputs = {tensor["name"]: tensor["data_type"] for tensor in config["output"]}
    assert (outputs["text_output"], outputs["num_output_tokens"]) == ("TYPE_STRING", "TYPE_UINT32")


@marked
def test_an_answer_in_one_piece_and_in_many(serving: Serving) -> None:
    """Greedy decoding: the same tokens either way, as many as asked for; in one piece the prompt stands before them."""
    sampling = json.dumps({"max_tokens": 7, "ignore_eos": True, "temperature": "0"})
    told = {"return_num_output_tokens": True, "return_num_input_tokens": True, "return_finish_reason": True}
    whole = serving.generate("bama kolo nemi", sampling, **told)
    assert (whole["num_input_tokens"], whole["num_output_tokens"], whole["finish_reason"]) == (3, 7, "length")
    assert whole["text_output"].startswith("bama kolo nemi ") and len(whole["text_output"].split()) == 10
    body = {"text_input": "bama kolo nemi", "sampling_parameters": sampling, "stream": True, **told}
    lines = [line for line in serving.ask("/generate_stream", body).splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert sum(event["num_output_tokens"] for event in events) == 7 and len(events) > 1
    assert "bama kolo nemi" + "".join(event["text_output"] for event in events) == whole["text_output"]
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["length"]
    short = serving.generate("bama", "", exclude_input_in_output=True)  # vLLM's own default of 16 tokens
    assert 1 <= len(short["text_output"].split()) <= 16


@marked
@pytest.mark.parametrize(
    ("text", "sampling", "said"),
    [
        ("bama", "[]", "sampling_parameters must be a JSON object"),
        ("bama", "{", "Expecting property name"),
        ("bama", '{"max_tokens": 0}', "max_tokens must be at least 1, got 0"),
        ("bama", '{"temperature": "warm"}', "Expected `float`, got `str`"),
        ("bama " * 300, '{"max_tokens": 5}', "maximum context length is 256 tokens"),
    ],
)
def test_a_wrong_request_is_told_in_one_line_and_the_next_is_served(
    serving: Serving, text: str, sampling: str, said: str
) -> None:
    refused = serving.generate(text, sampling)
    assert list(refused) == ["error"] and "\n" not in refused["error"] and said in refused["error"]
    assert "text_output" in serving.generate("bama", '{"max_tokens": 1}')


@marked
def test_a_calibration_counts_the_tokens_of_its_stream(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tokenizer,) = serving.folder.glob("vllm-server-*/small/tokenizer.json")
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"server: {{protocol: grpc, url: '{serving.ready['grpc']}', model: {serving.ready['model']}, "
        f"metrics_url: 'http://{serving.ready['metrics']}'}}\ntokenizer: {tokenizer}\n"
        "lengths: [{isl: 60, osl: 20, isl_cv: 0, osl_cv: 0}]\nconcurrency: [1, 4]\n"
        "deployment: {model: small, precision: fp32, gpu: cpu, tp: 1}\ncheck_load: 0\nrequests_per_level: 20\n"
        "client: {self_check: false}\n"
    )
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'points.db'}")
    ended = subprocess.run(
        [sys.executable, "-m", "calibration", "run", str(plan)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    alone, four = Store().points(1)
    for point in (alone, four):
        assert (point.engine, point.batching, point.isl, point.osl, point.errors) == ("vllm", "in_flight", 60, 20, 0)
    assert alone.itl_mean_s is not None and alone.ttft_p50_s is not None


@marked
def test_it_dies_with_its_parent(serving: Serving) -> None:
    """Server, stub and the engine's own processes: none stays when whoever started them is killed."""
    below = processes_below(serving.process.pid)
    assert len(below) >= 4  # the server, its stub, vLLM's engine and worker
    serving.process.kill()
    serving.process.wait()
    until(lambda: all_gone(below))


@marked
@pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)
def test_it_keeps_the_pace_of_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each token of one user takes a decode step of the kernels, at least."""
    engine = kernels.open_engine(catalog.model("Qwen/Qwen3-32B"), "h100_sxm", "vllm", Layout(2), "bf16")
    with started(tmp_path_factory.mktemp("paced"), "--pace", "Qwen/Qwen3-32B,h100_sxm,2,bf16") as paced:
        begun = time.monotonic()
        answer = paced.generate("bama", '{"max_tokens": 65, "ignore_eos": true}', return_num_output_tokens=True)
        took_s = time.monotonic() - begun
    assert answer["num_output_tokens"] == 65 and took_s >= 64 * engine.decode_s(1, 32)


@marked
@pytest.mark.parametrize("variable", [RECIPE.variable, TRITON.variable])
def test_an_environment_that_cannot_be_made_is_one_line(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").touch()
    given = {**os.environ, variable: str(tmp_path / "file" / "environment")}
    ended = subprocess.run(BEHIND_TRITON, capture_output=True, text=True, check=False, env=given)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: cannot write ") and line.endswith(f"set {variable} to a folder you own")
