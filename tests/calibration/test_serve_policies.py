"""A built repository on the real tritonserver: its policy, KV reuse and limits at work, and its refusal."""

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from calibration.server_metrics import read_page
from lab.life import HOST
from lab.reference.tokenizer import words
from tests.calibration.repository.loader import SMALL, Served
from triton_tools.repository.builder import build_repository
from triton_tools.repository.options import Options
from triton_tools.repository.staging import stage

WITHIN_S = 60.0
# slow enough for its gauges, set five times a second, to be seen under way
MACHINE = replace(SMALL, max_sequence_tokens=512, kv_tokens=1024, hidden=256, layers=4, heads=4)
OPTIONS = Options(
    engine_dir="/engines/llama",
    tokenizer_dir="/tokenizers/llama",
    max_batch_size=16,
    policy="max_utilization",
    enable_kv_cache_reuse=True,
    kv_cache_free_gpu_mem_fraction=0.5,
)
WORDS = words(60)
PROMPTS = [" ".join([WORDS[number], *WORDS[10:50]]) for number in range(8)]  # 41 tokens, different from the first on

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("policies")
    with Served(stage(build_repository(folder / "built", OPTIONS), folder / "staged", MACHINE)) as server:
        assert server.refusal == ""
        yield server


def gauges(served: Served, family: str, label: str) -> dict[str, float]:
    page = read_page(f"http://{HOST}:{served.settings.metrics_port}/metrics")
    return page.by(f"nv_trt_llm_{family}_metrics", label)


def blocks(served: Served) -> dict[str, float]:
    return gauges(served, "kv_cache_block", "kv_cache_block_type")


def settled(served: Served, **wanted: float) -> dict[str, float]:
    """All gauges of the blocks once some have these values; each is set by itself, so a page may hold old and new."""
    deadline = time.monotonic() + WITHIN_S
    while not wanted.items() <= (seen := blocks(served)).items():
        assert time.monotonic() < deadline, f"wanted {wanted}, the server says {seen}"
        time.sleep(0.05)
    return seen


def text(served: Served, prompt: str, max_tokens: int) -> str:
    body = {"text_input": prompt, "max_tokens": max_tokens, "end_id": -1, "bad_words": "", "stop_words": ""}
    answer: str = served.generate("ensemble", body)["text_output"]
    return answer


def seen_within(served: Served, family: str, label: str, name: str, least: float) -> bool:
    deadline = time.monotonic() + WITHIN_S
    while gauges(served, family, label)[name] < least:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_prompt_asked_again_reuses_blocks_and_gets_the_same_answer(served: Served) -> None:
    before = settled(served, max=32, free=32)  # half of 1024 tokens
    first = text(served, PROMPTS[0], 20)
    assert text(served, PROMPTS[0], 20) == first
    settled(served, reused=before["reused"] + 2, used=0, free=32, fraction=0)  # two full blocks of 41 tokens


def test_requests_are_paused_for_lack_of_room_and_all_are_answered_as_if_alone(served: Served) -> None:
    alone = text(served, PROMPTS[0], 400)
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        answers[prompt] = text(served, prompt, 400)  # 28 blocks of 32 in the end

    asking = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in asking:
        thread.start()
    assert seen_within(served, "inflight_batcher", "inflight_batcher_specific_metric", "paused_requests", 1)
    assert seen_within(served, "kv_cache_block", "kv_cache_block_type", "fraction", 0.5)
    for thread in asking:
        thread.join(WITHIN_S)
    assert set(answers) == set(PROMPTS)
    assert answers[PROMPTS[0]] == alone
    assert len({answer.partition(" ")[2] for answer in answers.values()}) == len(PROMPTS)


def test_the_log_has_the_backends_warnings(served: Served) -> None:
    log = served.log.read_text()
    assert "[TensorRT-LLM][WARNING] enable_chunked_context is not specified, will be set to false." in log
    assert "[TensorRT-LLM][WARNING] max_tokens_in_paged_kv_cache is not specified, will use default value" in log
    assert "batch_scheduler_policy" not in log


def test_an_unknown_batching_type_does_not_load_and_the_backend_says_why(tmp_path: Path) -> None:
    staged = stage(build_repository(tmp_path / "built", OPTIONS), tmp_path / "staged", MACHINE)
    for other in set(staged.iterdir()) - {staged / "tensorrt_llm"}:
        shutil.rmtree(other)
    file = staged / "tensorrt_llm" / "config.pbtxt"
    config = text_format.Parse(file.read_text(), pb.ModelConfig())
    config.parameters["gpt_model_type"].string_value = "magic"
    file.write_text(text_format.MessageToString(config))
    with Served(staged) as server:
        assert "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching." in server.refusal
