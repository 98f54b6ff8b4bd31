"""The server's view: means are those of the pages served, and bad pages are errors at the start, notes later."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration import server_metrics
from calibration import server_metrics as server_view
from calibration.errors import ServerError
from calibration.server_metrics import (
    Page,
    Scraper,
    counter_means,
    gauge_means,
    parse_page,
    read_page,
    requests_served,
    restarted,
)
from calibration.time_split import split
from sizing.points import Point
from tests.calibration.kept import POINT


def page_text(
    served: int = 0,
    request_s: float = 0.0,
    waiting: float = 0,
    context: float = 0,
    generation: float = 0,
    power_w: float = 0,
    energy_j: float = 0,
) -> str:
    """An ensemble whose requests took `request_s` seconds together, 10 % of them queued; two GPUs alike."""
    us = request_s * 1e6
    return f"""# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="ensemble",version="1"}} {served}
nv_inference_request_success{{model="postprocessing",version="1"}} {served * 8}
nv_inference_request_success{{model="idle",version="1"}} 77
nv_inference_request_failure{{model="ensemble",reason="OTHER",version="1"}} 2
nv_inference_request_duration_us{{model="ensemble",version="1"}} {us}
nv_inference_queue_duration_us{{model="ensemble",version="1"}} {us / 10}
nv_inference_request_duration_us{{model="postprocessing",version="1"}} {us / 5}
nv_inference_count{{model="ensemble",version="1"}} {served * 3}
nv_inference_exec_count{{model="ensemble",version="1"}} {served}
nv_inference_pending_request_count{{model="ensemble",version="1"}} {waiting}
nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="waiting",version="1"}} {waiting}
nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="context",version="1"}} {context}
nv_trt_llm_inflight_batcher_metrics{{inflight_batcher_specific_metric="generation_requests",model="tensorrt_llm",version="1"}} {generation}
nv_trt_llm_inflight_batcher_metrics{{inflight_batcher_specific_metric="micro_batch_id",model="tensorrt_llm",version="1"}} 5
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="used",model="tensorrt_llm",version="1"}} {generation * 10}
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="tensorrt_llm",version="1"}} 400
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"}} 16
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="reused",model="tensorrt_llm",version="1"}} {served * 2}
nv_trt_llm_general_metrics{{general_type="iteration_counter",model="tensorrt_llm",version="1"}} {served * 4}
nv_gpu_power_usage{{gpu_uuid="a"}} {power_w}
nv_gpu_power_usage{{gpu_uuid="b"}} {power_w}
nv_gpu_utilization{{gpu_uuid="a"}} 0.25
nv_gpu_utilization{{gpu_uuid="b"}} 0.75
nv_energy_consumption{{gpu_uuid="a"}} {energy_j}
nv_energy_consumption{{gpu_uuid="b"}} {energy_j}
nv_gpu_memory_used_bytes{{gpu_uuid="a"}} 1000
nv_gpu_memory_used_bytes{{gpu_uuid="b"}} NaN
"""  # noqa: E501


def page(at_s: float, **load: float) -> Page:
    return parse_page(page_text(**load), "test", at_s)  # type: ignore[arg-type]


def test_counters_become_means_per_request() -> None:
    first, last = (
        page(10.0, served=5, request_s=3.0, energy_j=100.0),
        page(20.0, served=25, request_s=13.0, energy_j=130),
    )
    found = counter_means(first, last, "ensemble")
    assert found["request_mean_s"] == pytest.approx(10 / 20)
    assert found["queue_mean_s"] == pytest.approx(1 / 20)
    assert found["batch_mean"] == pytest.approx(3)
    assert found["postprocessing.request_mean_s"] == pytest.approx(2 / 160)
    assert found["postprocessing.requests_per_request"] == pytest.approx(8)
    assert found["finished_per_s"] == pytest.approx(2)
    assert found["engine_iterations_per_s"] == pytest.approx(8)
    assert found["kv_cache_blocks_reused"] == 40
    assert found["requests_failed"] == 0
    assert (found["gpu_energy_j"], found["gpu_energy_per_request_j"]) == pytest.approx((60, 3))
    assert not any(name.startswith("idle") or "compute" in name for name in found)


def test_a_level_in_which_nothing_finished_has_no_means_per_request() -> None:
    found = counter_means(page(0.0, served=5), page(1.0, served=5), "ensemble")
    assert found["finished_per_s"] == 0
    assert all(math.isfinite(value) for value in found.values())
    assert "request_mean_s" not in found


def test_gauges_become_means_over_the_readings() -> None:
    found = gauge_means(
        [page(0, waiting=2, generation=10, power_w=100), page(1, waiting=4, generation=30, power_w=300)], "ensemble"
    )
    assert found["pending_requests_mean"] == found["engine_requests_waiting_mean"] == 3
    assert found["batcher_generation_requests_mean"] == 20
    assert found["kv_cache_used_share_mean"] == pytest.approx(0.5)
    assert (found["kv_cache_tokens_per_block"], found["kv_cache_tokens"]) == (16, 400 * 16)
    assert found["gpu_power_mean_w"] == 400  # both GPUs
    assert found["gpu_utilization_mean"] == 0.5
    assert found["gpu_memory_used_bytes"] == 1000  # a NaN is no reading
    assert not any("micro_batch" in name or "reused" in name for name in found)


def test_of_two_engines_only_the_models_own_is_told() -> None:
    both = page_text(waiting=3) + page_text(waiting=5).replace('model="tensorrt_llm"', 'model="other"')
    pages = [parse_page(both, "test", 0.0)]
    assert gauge_means(pages, "other")["engine_requests_waiting_mean"] == 5
    assert "engine_requests_waiting_mean" not in gauge_means(pages, "ensemble")


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_a_restart_is_a_count_that_falls(counts: list[int]) -> None:
    texts = [f'nv_inference_request_success{{model="ensemble"}} {count}' for count in counts]
    pages = [parse_page(text, "test", float(at)) for at, text in enumerate(texts)]
    assert restarted(pages, "ensemble") == (counts != sorted(counts))


Answer = Callable[[int], tuple[int, bytes, float]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a page; `answer`(number of the request) gives its status, body and seconds of delay."""
    asked = iter(range(10**6))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, delay_s = answer(next(asked))
            time.sleep(delay_s)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the reader had enough

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # closing the server then waits for answers under way
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_view, "COUNTERS_SETTLE_S", 0.0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + 20
    while not condition():
        assert time.perf_counter() < deadline_s
        time.sleep(0.005)


def test_a_level_is_told_from_its_first_reading_to_its_last() -> None:
    asked: list[int] = []

    def answer(number: int) -> tuple[int, bytes, float]:
        asked.append(number)
        return 200, page_text(served=10 * number, request_s=5.0 * number, waiting=number).encode(), 0.0

    with serving(answer) as url, Scraper(url, "ensemble", every_s=0.02) as scraper:
        wait_for(lambda: len(asked) > 5)
    found = scraper.means()
    first, last = server_view.MOST_SETTLING - 1, len(asked) - 1  # the count never stands still before
    assert found["requests_served"] == scraper.served() == 10 * (last - first)
    assert found["request_mean_s"] == pytest.approx(0.5)
    assert found["engine_requests_waiting_mean"] == pytest.approx((first + last) / 2)
    assert scraper.notes() == []


def test_what_was_counted_late_belongs_to_the_load_before() -> None:
    """Two requests of the level before are counted when the page has been read once already."""
    counts = iter([7, 9, 9])

    def answer(number: int) -> tuple[int, bytes, float]:
        return 200, page_text(served=next(counts, 29)).encode(), 0.0

    with serving(answer) as url, Scraper(url, "ensemble", every_s=60) as scraper:
        pass
    assert scraper.served() == 20


def test_requests_to_the_engine_past_the_ensemble_are_counted() -> None:
    success = 'nv_inference_request_success{{model="{}",version="1"}} {}\n'

    def answer(number: int) -> tuple[int, bytes, float]:
        served = 0 if number < 2 else 10
        return 200, (success.format("ensemble", served) + success.format("engine", served * 1.5)).encode(), 0.0

    for engine, expected in (("engine", 15), (None, 10), ("absent", 10)):
        with serving(answer) as url, Scraper(url, "ensemble", engine, every_s=60) as scraper:
            pass
        assert scraper.served() == expected


def test_a_window_picks_the_readings_inside_it() -> None:
    scraper = Scraper("http://absent/metrics", "ensemble")
    scraper._pages = [page(float(at), served=at * at, request_s=at, waiting=at) for at in range(10)]
    found = scraper.means((2.5, 6.5))
    assert found["engine_requests_waiting_mean"] == pytest.approx((3 + 4 + 5 + 6) / 4)
    assert found["finished_per_s"] == pytest.approx((36 - 9) / 3)
    assert found["request_mean_s"] == pytest.approx(3 / (36 - 9))
    assert scraper.means((2.5, 3.5)) == scraper.means()  # one reading tells no difference


def test_a_restart_in_the_middle_is_a_note_and_no_means_of_counters() -> None:
    counts = [50, 50, 60, 3, 9]

    def answer(number: int) -> tuple[int, bytes, float]:
        return 200, page_text(served=counts[min(number, 4)], waiting=1).encode(), 0.0

    with serving(answer) as url, Scraper(url, "ensemble", every_s=0.02) as scraper:
        wait_for(lambda: len(scraper._pages) > 4)
    assert scraper.notes() == ["the server was restarted during the level: its counters fell"]
    found = scraper.means()
    assert found["engine_requests_waiting_mean"] == 1
    assert "requests_served" not in found
    assert "request_mean_s" not in found


@pytest.mark.parametrize(
    ("late", "says"),
    [
        ((404, b"gone", 0.0), "no metrics there"),
        ((200, b"<html>busy</html>", 0.0), "no metrics of a known server"),
        ((200, b"nv_x{ 1", 0.0), "not Prometheus text"),
        ((200, b"", 0.6), "timed out"),
    ],
)
def test_a_page_missed_in_the_middle_is_a_note(
    late: tuple[int, bytes, float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if late[2]:
        monkeypatch.setattr(server_metrics, "ANSWER_WITHIN_S", 0.3)

    def answer(number: int) -> tuple[int, bytes, float]:
        return (200, page_text(served=max(1, number)).encode(), 0.0) if number != 2 else late

    with serving(answer) as url, Scraper(url, "ensemble", every_s=0.02) as scraper:
        wait_for(lambda: len(scraper._pages) > 2)
    (note,) = scraper.notes()
    assert "readings of the metrics failed, first: " in note
    assert says in note
    assert scraper.means()["finished_per_s"] > 0


def test_a_server_that_is_gone_at_the_end_leaves_the_level_without_a_count() -> None:
    def answer(number: int) -> tuple[int, bytes, float]:
        return (200, page_text(served=max(1, number)).encode(), 0.0) if number < 4 else (503, b"", 0.0)

    with serving(answer) as url, Scraper(url, "ensemble", every_s=0.02) as scraper:
        wait_for(lambda: len(scraper._missed) > 1)
    assert "requests_served" not in scraper.means()
    assert scraper.means()["finished_per_s"] > 0


def test_the_thread_ends_with_a_level_that_fails() -> None:
    with serving(lambda number: (200, page_text().encode(), 0.0)) as url:
        with pytest.raises(RuntimeError, match="level"), Scraper(url, "ensemble") as scraper:
            raise RuntimeError("level")
        assert scraper._thread is not None
        assert not scraper._thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((404, b"", 0.0), "no metrics there"),
        ((200, b"", 0.0), "no metrics of a known server"),
        ((200, b"<html>hello</html>", 0.0), "no metrics of a known server"),
        ((200, b'nv_a{b="c" 1\n', 0.0), "not Prometheus text"),
        ((200, b'nv_a{c="d", ="e"} 1\n', 0.0), "not Prometheus text"),
        ((200, b'nv_a{b="' + b"c" * 5000 + b'"} 1\n', 0.0), "a line of 5012 characters"),
        ((200, b"\xff\xfe\x00nv_", 0.0), "no metrics of a known server"),
        ((200, b"nv_x 1\n" * 700_000, 0.0), "more than 4 MiB"),
        (
            (200, b'nv_inference_request_success{model="b"} 1\n', 0.0),
            "no nv_inference_request_success of model 'ensemble'",
        ),
        ((200, b"", 0.6), "timed out"),
    ],
)
def test_a_page_that_cannot_be_used_is_an_error_at_the_start(
    answer: tuple[int, bytes, float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer[2]:
        monkeypatch.setattr(server_metrics, "ANSWER_WITHIN_S", 0.3)
    with serving(lambda number: answer) as url:
        for use in (lambda: requests_served(url, "ensemble"), lambda: Scraper(url, "ensemble").__enter__()):
            with pytest.raises(ServerError, match=says) as error:
                use()
            assert url in str(error.value)
            assert "\n" not in str(error.value)


def test_nobody_there_is_an_error_too() -> None:
    for url in ("http://127.0.0.1:9/metrics", "http://127.0.0.1:99999/metrics"):
        with pytest.raises(ServerError, match=r"correct server\.metrics_url"):
            read_page(url)


def test_requests_are_counted_over_the_versions_of_the_model_alone() -> None:
    text = page_text(served=4) + 'nv_inference_request_success{model="ensemble",version="2"} 3\n'
    with serving(lambda number: (200, text.encode(), 0.0)) as url:
        assert requests_served(url, "ensemble") == 7


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 3000), cut=st.integers(0, 5), put=st.text(alphabet='{}"=,\\\n #x9\0é', max_size=4))
def test_a_mutated_page_is_parsed_or_refused_with_a_typed_error(place: int, cut: int, put: str) -> None:
    text = page_text(served=3)
    try:
        parsed = parse_page(text[:place] + put + text[place + cut :], "test", 0.0)
    except ServerError:
        return
    counter_means(parsed, page(1.0, served=5), "ensemble")
    gauge_means([parsed], "ensemble")


def point(ttft_s: float | None, e2e_s: float | None, rate_per_s: float = 2.0) -> Point:
    return Point(
        model="m",
        precision="fp16",
        gpu="g",
        tp=1,
        isl=10,
        osl=10,
        load_kind="concurrency",
        load_value=4,
        requests_per_s=rate_per_s,
        ttft_mean_s=ttft_s,
        e2e_mean_s=e2e_s,
    )


@settings(max_examples=40, deadline=None)
@given(
    queue_s=st.floats(0, 5),
    prefill_s=st.floats(0.01, 5),
    decode_s=st.floats(0.01, 20),
    processing_s=st.floats(0, 0.1),
    network_s=st.floats(0, 0.1),
    rate_per_s=st.floats(0.1, 100),
)
def test_in_a_steady_state_the_split_gives_back_the_parts(
    queue_s: float, prefill_s: float, decode_s: float, processing_s: float, network_s: float, rate_per_s: float
) -> None:
    """By Little's law a server with those times holds rate x time requests in each state."""
    whole_s = queue_s + prefill_s + decode_s + processing_s
    states = {
        "waiting": queue_s * rate_per_s,
        "context": prefill_s * rate_per_s,
        "generation": decode_s * rate_per_s,
    }
    pages = [
        parse_page(page_text(served=served, request_s=whole_s * served, **states), "test", served / rate_per_s)
        for served in (0, 1000)
    ]
    server = counter_means(*pages, "ensemble") | gauge_means(pages, "ensemble")
    found = split(point(queue_s + prefill_s + network_s, whole_s + network_s, rate_per_s), server)
    assert (found.queue_s, found.prefill_s, found.decode_s) == pytest.approx((queue_s, prefill_s, decode_s), abs=1e-6)
    assert found.network_and_client_s == pytest.approx(network_s, abs=1e-6)
    assert found.other_s == pytest.approx(processing_s, abs=1e-5)


def test_an_engines_own_queue_is_not_counted_as_prefill_again() -> None:
    """SGLang times the queue and the first response, which holds it, and no prefill."""
    means = {"engine_queue_mean_s": 0.4, "first_response_mean_s": 0.5, "request_mean_s": 2.0}
    found = split(point(0.5, 2.0), means)
    assert (found.queue_s, found.prefill_s, found.decode_s) == pytest.approx((0.4, 0.1, 1.5))
    assert found.other_s == pytest.approx(0.0, abs=1e-9)


def test_what_the_server_does_not_tell_stays_empty() -> None:
    nothing = split(point(0.1, 1.0), {})
    assert (nothing.queue_s, nothing.prefill_s, nothing.decode_s, nothing.network_and_client_s) == (None,) * 4
    assert nothing.other_s is None
    hand_over = split(point(0.1, 1.0), {"request_mean_s": 0.004, "queue_mean_s": 0.001})
    assert hand_over.network_and_client_s is None  # decoding takes 0.9 s: 4 ms is no whole request
    assert hand_over.queue_s == 0.001
    assert split(point(0.1, 1.0), {"request_mean_s": 1.5}).network_and_client_s is None
    assert split(point(None, None), {"request_mean_s": 1.5}).network_and_client_s is None


def test_static_batching_and_first_response_histograms_tell_too() -> None:
    static = {"batcher_total_generation_tokens_mean": 6.0}
    assert split(point(0.1, 4.0, rate_per_s=2.0), static).decode_s == 3.0
    timed = {"request_mean_s": 0.9, "first_response_mean_s": 0.3, "queue_mean_s": 0.1}
    found = split(point(0.35, 1.0), timed)
    assert (found.prefill_s, found.decode_s) == pytest.approx((0.2, 0.6))
    assert found.other_s == pytest.approx(0.0)


# Engines with metrics of their own


def vllm_text(served: int = 0, running: float = 0, waiting: float = 0, share: float = 0, hits: int = 0) -> str:
    """Requests of 2 s each, 0.25 s of them queued and 0.5 s to the first token; 100 prompt tokens a request."""
    of = 'engine="0",model_name="toy"'
    return f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{of}}} {running}
vllm:num_requests_waiting{{{of}}} {waiting}
vllm:kv_cache_usage_perc{{{of}}} {share}
vllm:num_preemptions_total{{{of}}} {served // 10}
vllm:prefix_cache_queries_total{{{of}}} {100 * served}
vllm:prefix_cache_hits_total{{{of}}} {hits}
vllm:request_success_total{{finished_reason="length",{of}}} {served}
vllm:request_success_total{{finished_reason="abort",{of}}} 0
vllm:iteration_tokens_total_count{{{of}}} {served * 8}
vllm:e2e_request_latency_seconds_bucket{{le="0.3",{of}}} 0
vllm:e2e_request_latency_seconds_count{{{of}}} {served}
vllm:e2e_request_latency_seconds_sum{{{of}}} {served * 2}
vllm:request_queue_time_seconds_count{{{of}}} {served}
vllm:request_queue_time_seconds_sum{{{of}}} {served * 0.25}
vllm:request_prefill_time_seconds_count{{{of}}} {served}
vllm:request_prefill_time_seconds_sum{{{of}}} {served * 0.25}
vllm:request_decode_time_seconds_count{{{of}}} {served}
vllm:request_decode_time_seconds_sum{{{of}}} {served * 1.5}
vllm:cache_config_info{{block_size="16",cache_dtype="auto",num_gpu_blocks="2048",num_gpu_blocks_override="None"}} 1.0
"""


def test_vllm_tells_requests_times_cache_and_prefix() -> None:
    first, last = (
        parse_page(vllm_text(10, 4, 0, 0.2, hits=0), "test", 10.0),
        parse_page(vllm_text(30, 8, 2, 0.6, hits=800), "test", 20.0),
    )
    found = counter_means(first, last, "toy")
    assert found["finished_per_s"] == 2
    assert found["engine_iterations_per_s"] == 16
    assert found["preemptions"] == 2
    assert found["prefix_tokens_found_mean"] == 40
    assert (found["request_mean_s"], found["engine_queue_mean_s"], found["engine_decode_mean_s"]) == (2, 0.25, 1.5)
    assert "requests_failed" not in found  # vLLM does not tell
    gauges = gauge_means([first, last], "toy")
    assert (gauges["engine_requests_running_mean"], gauges["engine_requests_waiting_mean"]) == (6, 1)
    assert gauges["kv_cache_used_share_mean"] == pytest.approx(0.4)
    assert (gauges["kv_cache_tokens_per_block"], gauges["kv_cache_tokens"]) == (16, 16 * 2048)


@pytest.mark.parametrize(
    ("more", "tokens"),
    [("", 4096 * 16), (',kv_cache_size_tokens="None"', 4096 * 16), (',kv_cache_size_tokens="24000"', 2 * 24_000)],
)
def test_of_two_vllm_engines_each_tells_the_blocks_of_both_and_its_own_tokens(more: str, tokens: int) -> None:
    """vLLM 0.32, v1/engine/core_client.py: "Sum num_gpu_blocks from all engines in DP case", "Keep these as per-engine
    cache_config_info values"."""
    texts = [f'vllm:cache_config_info{{block_size="16",engine="{n}",num_gpu_blocks="4096"{more}}} 1.0' for n in (0, 1)]
    gauges = gauge_means([parse_page("\n".join(texts), "test", 0.0)], "toy")
    assert gauges["kv_cache_tokens"] == tokens


def test_an_engine_that_restarts_is_seen_by_its_count() -> None:
    pages = [parse_page(vllm_text(served), "test", 0.0) for served in (5, 2)]
    assert restarted(pages, "toy")
    assert not restarted(pages[::-1], "toy")


def test_a_restart_of_llama_cpp_is_seen_though_it_counts_no_requests() -> None:
    texts = (f"llamacpp:prompt_tokens_total {n}\nllamacpp:n_decode_total {n}" for n in (50, 7))
    before, after = (parse_page(text, "test", 0.0) for text in texts)
    assert restarted((before, after), "toy")
    assert not restarted((after, before), "toy")


@pytest.mark.parametrize(
    ("served", "notes"), [(50, []), (3, ["the server was restarted between the previous level and this one"])]
)
def test_a_restart_between_two_levels_is_a_note(served: int, notes: list[str]) -> None:
    before = parse_page(page_text(served=50), "test", 0.0)

    def answer(number: int) -> tuple[int, bytes, float]:
        return 200, page_text(served=served).encode(), 0.0

    with serving(answer) as url, Scraper(url, "ensemble", before=before) as scraper:
        pass
    assert scraper.notes() == notes
    assert scraper.last.total("nv_inference_request_success", model="ensemble") == served


def test_an_engine_behind_triton_adds_to_what_triton_counts() -> None:
    first, last = (parse_page(page_text(served=n) + vllm_text(n, running=3), "test", float(n)) for n in (0, 10))
    found = counter_means(first, last, "ensemble")
    assert found["finished_per_s"] == 1
    assert found["requests_failed"] == 0
    assert gauge_means([last], "ensemble")["engine_requests_running_mean"] == 3


def test_sglang_and_tensorrt_llm_tell_the_same_under_their_names() -> None:
    sglang = [
        f"""sglang:num_requests_total{{model_name="toy"}} {n}
sglang:num_running_reqs{{model_name="toy"}} 5
sglang:num_queue_reqs{{model_name="toy"}} 3
sglang:token_usage{{model_name="toy"}} 0.5
sglang:max_total_num_tokens{{model_name="toy"}} 120000
sglang:prompt_tokens_total{{model_name="toy"}} {n * 50}
sglang:cached_tokens_total{{model_name="toy"}} {n * 20}
sglang:num_retracted_requests_total{{model_name="toy"}} {n // 5}
sglang:queue_time_seconds_sum{{model_name="toy"}} {n * 0.5}
sglang:queue_time_seconds_count{{model_name="toy"}} {n}
"""
        for n in (0, 10)
    ]
    trtllm = [
        f"""trtllm_request_success_total{{finished_reason="length",model_name="toy"}} {n}
trtllm_num_requests_running{{model_name="toy"}} 5
trtllm_num_requests_waiting{{model_name="toy"}} 3
trtllm_kv_cache_utilization{{model_name="toy"}} 0.5
trtllm_kv_cache_max_blocks{{model_name="toy"}} 3750
trtllm_kv_cache_tokens_per_block{{model_name="toy"}} 32
trtllm_max_batch_size_static{{model_name="toy"}} 256
trtllm_prompt_tokens_total{{model_name="toy"}} {n * 50}
trtllm_prompt_cached_tokens_total{{model_name="toy"}} {n * 20}
trtllm_request_queue_time_seconds_sum{{model_name="toy"}} {n * 0.5}
trtllm_request_queue_time_seconds_count{{model_name="toy"}} {n}
"""
        for n in (0, 10)
    ]
    for texts in (sglang, trtllm):
        first, last = (parse_page(text, "test", 10.0 * at) for at, text in enumerate(texts))
        found = counter_means(first, last, "toy") | gauge_means([first, last], "toy")
        assert found["finished_per_s"] == 1
        assert found["prefix_tokens_found_mean"] == 20
        assert found["engine_queue_mean_s"] == 0.5
        assert (found["engine_requests_running_mean"], found["engine_requests_waiting_mean"]) == (5, 3)
        assert (found["kv_cache_used_share_mean"], found["kv_cache_tokens"]) == (0.5, 120_000)
    assert found["engine_max_batch_size"] == 256
    by_pytorch = "trtllm_max_batch_size_static 0\ntrtllm_max_num_tokens_runtime 0\ntrtllm_num_requests_running 0\n"
    assert gauge_means([parse_page(by_pytorch, "test", 0.0)], "toy") == {"engine_requests_running_mean": 0}


def test_the_ranks_of_an_sglang_engine_tell_one_cache_and_the_same_requests() -> None:
    """SGLang 0.5.23: every rank writes the constants (managers/scheduler.py, emit_metrics_constants), the first TP rank
    of each pipeline stage the rest (is_stats_logging_rank)."""
    text = "".join(
        f'sglang:max_total_num_tokens{{dp_rank="{dp}",pp_rank="{pp}",tp_rank="{tp}"}} 120000\n'
        + f'sglang:num_running_reqs{{dp_rank="{dp}",pp_rank="{pp}",tp_rank="{tp}"}} 5\n' * (tp == 0)
        + f'sglang:num_retracted_requests_total{{dp_rank="{dp}",pp_rank="{pp}",tp_rank="{tp}"}} 2\n' * (tp == 0)
        for dp in (0, 1)
        for pp in (0, 1)
        for tp in (0, 1, 2, 3)
    )
    page = parse_page(text, "test", 10.0)
    gauges = gauge_means([page], "toy")
    assert (gauges["kv_cache_tokens"], gauges["engine_requests_running_mean"]) == (2 * 120_000, 2 * 5)
    assert counter_means(Page(0.0, {}), page, "toy")["preemptions"] == 2 * 2


def test_priorities_are_parts_of_the_requests_that_sglang_tells_beside_them() -> None:
    """SGLang 0.5.23, observability/metrics_collector.py: "the total is recorded under priority=''"."""
    running = {"": 7, "0": 4, "10": 3}
    text = "".join(f'sglang:num_running_reqs{{priority="{each}",tp_rank="0"}} {n}\n' for each, n in running.items())
    assert gauge_means([parse_page(text, "test", 0.0)], "toy")["engine_requests_running_mean"] == 7


def test_the_json_of_tensorrt_llm_is_read_as_means_over_its_passes() -> None:
    cache = '"kvCacheStats": {"usedNumBlocks": 30, "maxNumBlocks": 120, "tokensPerBlock": 32}'
    text = f'[{{"numActiveRequests": 2, {cache}}}, {{"numActiveRequests": 4, "numQueuedRequests": 1, {cache}}}, 7]'
    busy, idle = parse_page(text, "test", 0.0), parse_page("[]", "test", 1.0)
    found = gauge_means([busy, idle], "toy")
    assert (found["engine_requests_running_mean"], found["engine_requests_waiting_mean"]) == (3, 1)
    assert (found["kv_cache_used_share_mean"], found["kv_cache_tokens"]) == (0.25, 120 * 32)
    assert "finished_per_s" in counter_means(busy, idle, "toy")
    endless = parse_page(f'[{{"numActiveRequests": 1{"0" * 400}}}, {{"numActiveRequests": 4}}]', "test", 0.0)
    assert gauge_means([endless, endless], "toy")["engine_requests_running_mean"] == 4
    with pytest.raises(ServerError, match="neither Prometheus text nor JSON"):
        parse_page("[" * 100_000, "test", 0.0)


@pytest.mark.parametrize("rank", ["attentionDpRank", "rank"])
def test_ranks_of_attention_data_parallelism_add_up(rank: str) -> None:
    """TensorRT-LLM, adp_iter_stats.py: a row a rank; rank 0 has the queue, the cache is a copy of rank 0's."""
    cache = {"usedNumBlocks": 30, "maxNumBlocks": 120, "tokensPerBlock": 32}
    passes = [
        {rank: each, "numActiveRequests": 5, "numQueuedRequests": 0 if each else queued, "kvCacheStats": cache}
        for queued in (8, 4)
        for each in range(4)
    ]
    page = parse_page(json.dumps(passes), "test", 0.0)
    found = gauge_means([page], "toy")
    assert (found["engine_requests_running_mean"], found["engine_requests_waiting_mean"]) == (20, 6)
    assert (found["kv_cache_used_share_mean"], found["kv_cache_tokens"]) == (0.25, 4 * 120 * 32)


def test_the_level_of_an_engine_that_counts_no_requests_cannot_be_called_shared() -> None:
    with serving(lambda number: (200, b'[{"numActiveRequests": 1}]', 0.0)) as url:
        assert requests_served(url, "toy") is None
        with Scraper(url, "toy", every_s=0.05) as scraper:
            time.sleep(0.2)
    assert scraper.served() is None
    assert scraper.means()["engine_requests_running_mean"] == 1
    assert scraper.notes() == []


def test_what_an_engine_timed_comes_before_what_numbers_suggest() -> None:
    server = {"engine_queue_mean_s": 0.25, "engine_prefill_mean_s": 0.25, "engine_decode_mean_s": 1.5}
    parts = split(replace(POINT, ttft_mean_s=0.6, e2e_mean_s=2.1), server | {"engine_requests_waiting_mean": 40})
    assert (parts.queue_s, parts.prefill_s, parts.decode_s) == (0.25, 0.25, 1.5)


def test_sglang_tells_its_passes_and_prompts_found() -> None:
    """A page of SGLang 0.5.23, and the same after 10 requests of 640 prompt tokens, 160 of them found, and 30 passes of
    decode and 5 of prefill."""
    text = (Path(__file__).parents[1] / "load" / "sglang" / "metrics.txt").read_text()
    later = text
    for family, before, after in (
        ("num_requests_total", "343.0", "353.0"),
        ("prompt_tokens_total", "21821.0", "22461.0"),
        ("cached_tokens_total", "4365.0", "4525.0"),
        ("cuda_graph_passes_total", "4943.0", "4973.0"),
        ("cuda_graph_passes_total", "341.0", "346.0"),
        ("num_running_reqs", "0.0", "4.0"),
        ("num_queue_reqs", "0.0", "3.0"),
        ("token_usage", "0.02", "0.16"),
    ):
        later, replaced = re.subn(rf"^(sglang:{family}{{.*}}) {before}$", rf"\1 {after}", later, flags=re.MULTILINE)
        assert replaced == 1
    first, last = parse_page(text, "test", 0.0), parse_page(later, "test", 10.0)
    found = counter_means(first, last, "tiny") | gauge_means([last], "tiny")
    assert (found["prefix_tokens_found_mean"], found["prefix_tokens_found_share"]) == (16, 0.25)
    assert (found["finished_per_s"], found["engine_iterations_per_s"]) == (1, 3.5)
    assert (found["engine_requests_running_mean"], found["engine_requests_waiting_mean"]) == (4, 3)
    assert (found["kv_cache_used_share_mean"], found["kv_cache_tokens"]) == (0.16, 2048)


def test_llama_cpp_tells_its_slots_passes_and_prompts_found() -> None:
    """A page of llama-server b10434, and the same after 30 passes and 3,000 prompt tokens, 1,000 of them found."""
    text = (Path(__file__).parents[1] / "load" / "llama_cpp" / "metrics.txt").read_text()
    later = text
    for before, after in (
        ("prompt_tokens_total 40801", "prompt_tokens_total 42801"),
        ("cached_total 8951", "cached_total 9951"),
        ("n_decode_total 13649", "n_decode_total 13679"),
        ("requests_processing 0", "requests_processing 4"),
        ("requests_deferred 0", "requests_deferred 3"),
    ):
        assert f":{before}\n" in later or f"_{before}\n" in later
        later = later.replace(before, after)
    first, last = parse_page(text, "test", 0.0), parse_page(later, "test", 10.0)
    found = counter_means(first, last, "tiny") | gauge_means([last], "tiny")
    assert found["prefix_tokens_found_share"] == pytest.approx(1 / 3)
    assert found["engine_iterations_per_s"] == pytest.approx(3)
    assert (found["engine_requests_running_mean"], found["engine_requests_waiting_mean"]) == (4, 3)
    assert "prefix_tokens_found_share" not in counter_means(first, first, "tiny")
