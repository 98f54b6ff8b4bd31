"""Files of single requests: every tool's file of the same traffic makes the point that theory says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import FileError
from calibration.importers import read_measurements
from calibration.records import Measurement
from tests.calibration.importers.traffic import (
    DEPLOYMENT,
    Law,
    Sent,
    aiperf_jsonl,
    closed_loop,
    guidellm,
    openai_export,
    profile_export,
    vllm_detailed,
)

Writer = Callable[[Sequence[Sent]], str]
WRITERS: dict[str, tuple[Writer, dict[str, object]]] = {
    "aiperf": (aiperf_jsonl, {}),
    "triton": (profile_export, {"isl": 50}),
    "openai": (openai_export, {}),
    "guidellm": (guidellm, {}),
    "vllm": (vllm_detailed, {}),
}


def measured(text: str, folder: Path, **said: object) -> Measurement:
    path = folder / "file"
    path.write_text(text)
    (found,) = read_measurements(path, deployment={**DEPLOYMENT, **said})
    return found


@pytest.mark.parametrize("tool", WRITERS)
def test_the_same_traffic_makes_the_same_point_whatever_tool_wrote_it(tool: str, tmp_path: Path) -> None:
    """Two users of 210 ms a request: 2/0.21 requests/s by Little's law, without the run's start and drain."""
    law = Law(ttft_s=0.1, itl_s=0.01, osl=12)
    write, said = WRITERS[tool]
    found = measured(write(closed_loop(law)), tmp_path, **said)
    point = found.point
    assert (point.load_kind, point.load_value, point.isl, point.osl) == ("concurrency", 2, 50, 12)
    assert point.ttft_mean_s == pytest.approx(law.ttft_s, abs=2e-6)
    assert point.itl_mean_s == pytest.approx(law.itl_s, abs=2e-6)
    assert point.e2e_mean_s == pytest.approx(law.e2e_s, abs=2e-6)
    assert point.requests_per_s == pytest.approx(2 / law.e2e_s, rel=1e-3)
    assert not point.void
    assert found.log is not None and len(found.log) == 24
    assert point.measured_at.startswith("2026-03-01T10:")
    assert ("left out" in point.notes) == (tool == "guidellm")  # its files have first and last token only
    assert (point.gap_p50_s is None) == (tool == "guidellm")


@pytest.mark.parametrize("write", [aiperf_jsonl, openai_export, guidellm])
def test_prompt_tokens_found_in_the_cache_become_a_shared_prefix(write: Callable[..., str], tmp_path: Path) -> None:
    """32 of 50 tokens in every other request: as many as if all of them had shared 16. Untold, nothing is known."""
    traffic = closed_loop(Law())
    point = measured(write(traffic, cached=32), tmp_path, concurrency=2).point
    assert (point.prefix_tokens, point.prefix_hit) == (16, 1.0)
    for cached in (0, None):
        point = measured(write(traffic, cached=cached), tmp_path, concurrency=2).point
        assert (point.prefix_tokens, point.prefix_hit) == (None, None)


@pytest.mark.parametrize("generation", ["info", "scheduler_info", "flat"])
def test_every_generation_of_guidellm_names_its_times_otherwise(generation: str, tmp_path: Path) -> None:
    law = Law()
    point = measured(guidellm(closed_loop(law), generation=generation), tmp_path).point
    assert point.ttft_mean_s == pytest.approx(law.ttft_s, abs=2e-6)
    assert point.itl_mean_s == pytest.approx(law.itl_s, abs=2e-6)
    assert point.e2e_mean_s == pytest.approx(law.e2e_s, abs=2e-6)


@pytest.mark.parametrize("tool", ["aiperf", "openai", "guidellm", "vllm"])
@pytest.mark.parametrize("chunk", [2, 4])
def test_several_tokens_in_a_response_leave_itl_right(tool: str, chunk: int, tmp_path: Path) -> None:
    """(E2E - TTFT)/(OSL - 1), which the tools use, would say 9/11 or less of it."""
    law = Law(osl=12, chunk=chunk)
    write, said = WRITERS[tool]
    found = measured(write(closed_loop(law)), tmp_path, **said)
    assert found.point.itl_mean_s == pytest.approx(law.itl_s, rel=1e-4)
    assert found.point.osl == 12


def test_lists_without_start_times_tell_how_lengths_vary_and_e2e(tmp_path: Path) -> None:
    """As vLLM before 0.10 and SGLang write them: answers of 4 and 12 tokens, 8 ± 4, one request failed."""
    traffic = [Law(osl=osl).request(float(k)) for k, osl in enumerate([4, 12] * 10)]
    older = json.loads(vllm_detailed(traffic))
    for name in ("start_times", "latencies", "queue_times", "failed"):
        del older[name]
    for name, of_failed in {"input_lens": 999, "output_lens": 0, "ttfts": 0.0, "itls": []}.items():
        older[name].append(of_failed)
    point = measured(json.dumps(older | {"errors": [*older["errors"], "Error"]}), tmp_path).point
    assert (point.isl_cv, point.osl_cv) == (0, 0.5)
    assert point.e2e_mean_s == pytest.approx(0.1 + 0.01 * (8 - 1))


def test_a_forced_output_length_tells_the_tokens_of_tritons_responses(tmp_path: Path) -> None:
    law = Law(osl=12, chunk=4)
    text = profile_export(closed_loop(law))
    told = measured(text, tmp_path, isl=50, osl=12).point
    assert told.itl_mean_s == pytest.approx(law.itl_s, rel=1e-4)
    assert "as the caller says" in told.notes
    assert "give --osl N" in measured(text, tmp_path, isl=50).point.notes


@pytest.mark.parametrize("chunk", [1, 4])
def test_token_ids_are_counted_and_0_is_a_token(chunk: int, tmp_path: Path) -> None:
    """One id in a response is a bare number in the file, none an empty text."""
    law = Law(osl=12, chunk=chunk)
    text = profile_export(closed_loop(law), ids=True, empty_first_s=0.001, empty_final_s=0.03)
    point = measured(text, tmp_path, isl=50).point
    assert point.osl == 12
    assert point.itl_mean_s == pytest.approx(law.itl_s, rel=1e-6)
    assert point.e2e_mean_s == pytest.approx(law.e2e_s, rel=1e-6)
    assert not point.void
    assert "tokens are not counted" not in point.notes


def test_padding_after_the_sequence_length_is_no_token(tmp_path: Path) -> None:
    document = json.loads(profile_export(closed_loop(Law(osl=12, chunk=4)), ids=True))
    for request in document["experiments"][0]["requests"]:
        request["response_outputs"] = [{"output_ids": [7] * 16, "sequence_length": 4} for _ in range(3)]
    point = measured(json.dumps(document), tmp_path, isl=50).point
    assert (point.osl, point.void) == (12, False)


def test_itl_is_over_the_tokens_after_the_first_response_however_many_each_holds(tmp_path: Path) -> None:
    """Responses of 1, 5 and 6 tokens, 40 ms apart: 80 ms for 11 tokens."""
    document = json.loads(profile_export(closed_loop(Law(osl=12, chunk=4)), ids=True))
    for request in document["experiments"][0]["requests"]:
        request["response_outputs"] = [{"output_ids": ids} for ids in (9, [9] * 5, [9] * 6)]
    assert measured(json.dumps(document), tmp_path, isl=50).point.itl_mean_s == pytest.approx(0.08 / 11, rel=0.005)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("tool", ["triton", "openai"])
def test_counted_answers_of_another_length_than_was_asked_for_void_the_point(
    tool: str, chunk: int, tmp_path: Path
) -> None:
    traffic = closed_loop(Law(osl=12, chunk=chunk))
    text = profile_export(traffic, ids=True, asked=16) if tool == "triton" else openai_export(traffic, asked=16)
    point = measured(text, tmp_path, isl=50).point
    assert point.verdict == "wrong_lengths"
    assert "12 tokens in the answer where 16 were asked for" in point.notes
    assert (point.osl, point.osl_cv) == (12, 0)


@pytest.mark.parametrize("tool", ["triton", "openai"])
def test_without_a_count_the_responses_are_the_tokens_not_what_was_asked_for(tool: str, tmp_path: Path) -> None:
    traffic = closed_loop(Law(osl=12, chunk=4))
    text = profile_export(traffic, asked=64) if tool == "triton" else openai_export(traffic, usage=False, asked=64)
    point = measured(text, tmp_path, isl=50).point
    assert (point.osl, point.void) == (3, False)
    assert "64 tokens were asked for and 3 responses came" in point.notes


def test_an_output_length_of_the_callers_that_the_answers_do_not_have_is_said(tmp_path: Path) -> None:
    text = openai_export(closed_loop(Law(osl=12)))
    assert "the answers have 12 tokens" in measured(text, tmp_path, osl=20).point.notes
    assert "the answers have" not in measured(text, tmp_path, osl=12).point.notes


@pytest.mark.parametrize("tool", WRITERS)
def test_nothing_is_said_of_a_client_that_no_file_tells_of(tool: str, tmp_path: Path) -> None:
    write, said = WRITERS[tool]
    found = measured(write(closed_loop(Law())), tmp_path, **said)
    assert not {"client_cores", "busiest_core", "processes", "loop_lag_p99_s"} & set(found.facts)
    assert "client's health unknown" in found.point.notes


@pytest.mark.parametrize("generation", ["info", "flat"])
def test_lateness_is_a_fact_only_where_the_file_tells_when_requests_were_due(generation: str, tmp_path: Path) -> None:
    for late_s in (0.0, 0.02):
        traffic = [Law().request(k / 10, late_s=late_s) for k in range(60)]
        found = measured(guidellm(traffic, {"type_": "constant", "rate": 10.0}, generation=generation), tmp_path)
        late = {name: value for name, value in found.facts.items() if name.startswith("late_")}
        assert late == (dict.fromkeys(late, pytest.approx(late_s, abs=1e-6)) if late_s else {})
        assert bool(late) == bool(late_s)


@pytest.mark.parametrize("target_s", [-0.87, 0.02, 1.48])
def test_a_target_of_guidellm_that_is_no_moment_makes_nothing_late(target_s: float, tmp_path: Path) -> None:
    """As in a run of 0.5.4, whose first random arrivals had targets from -0.87 to 1.48 s since 1970."""
    traffic = [Law().request(k / 10) for k in range(60)]
    document = json.loads(guidellm(traffic, {"type_": "poisson", "rate": 10.0}))
    document["benchmarks"][0]["requests"]["successful"][3]["info"]["timings"]["targeted_start"] = target_s
    found = measured(json.dumps(document), tmp_path)
    assert found.log is not None and len(found.log) == 60
    assert found.point.ttft_mean_s == pytest.approx(Law().ttft_s, abs=2e-6)
    assert (
        found.point.duration_s
        == measured(guidellm(traffic, {"type_": "poisson", "rate": 10.0}), tmp_path).point.duration_s
    )


@pytest.mark.parametrize(
    ("empty_first_s", "empty_final_s"), [(0.001, None), (None, 0.03), (0.001, 0.03)], ids=["first", "final", "both"]
)
def test_tritons_empty_responses_change_nothing(
    empty_first_s: float | None, empty_final_s: float | None, tmp_path: Path
) -> None:
    law = Law()
    text = profile_export(closed_loop(law), empty_first_s=empty_first_s, empty_final_s=empty_final_s)
    point = measured(text, tmp_path, isl=50).point
    assert point.ttft_mean_s == pytest.approx(law.ttft_s)
    assert point.itl_mean_s == pytest.approx(law.itl_s)
    assert point.e2e_mean_s == pytest.approx(law.e2e_s)
    assert point.osl == law.osl


def test_an_open_loop_counts_from_when_requests_were_due(tmp_path: Path) -> None:
    """Ten requests/s, every one sent 20 ms late: so much longer is its TTFT."""
    law = Law()
    traffic = [law.request(k / 10, late_s=0.02) for k in range(60)]
    strategy: dict[str, object] = {"type_": "constant", "rate": 10.0}
    for text, said in (
        (aiperf_jsonl(traffic), {"rate": 10, "arrivals": "constant"}),
        (guidellm(traffic, strategy), {}),
        (vllm_detailed(traffic, request_rate=10.0, max_concurrency=None), {"arrivals": "constant"}),
    ):
        point = measured(text, tmp_path, **said).point
        assert (point.load_kind, point.load_value) == ("constant_rate", 10)
        assert point.ttft_mean_s == pytest.approx(0.12, abs=2e-6)
        assert point.itl_mean_s == pytest.approx(law.itl_s, abs=2e-6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    users=st.integers(1, 6),
    ttft_s=st.floats(0.01, 1.0),
    itl_s=st.floats(0.001, 0.1),
    osl=st.integers(2, 20),
    tool=st.sampled_from(sorted(WRITERS)),
)
def test_little_holds_and_users_are_found_in_any_closed_loop(
    users: int, ttft_s: float, itl_s: float, osl: int, tool: str, tmp_path: Path
) -> None:
    law = Law(ttft_s, itl_s, osl)
    write, said = WRITERS[tool]
    level = {} if tool == "aiperf" else {"concurrency": users}  # AIPerf's lines do not say it: it is read off
    found = measured(write(closed_loop(law, users, each=6)), tmp_path, **said, **level).point
    assert found.load_value == users
    assert found.requests_per_s * law.e2e_s == pytest.approx(users, rel=1e-2)


def test_a_gap_that_no_load_fills_asks_for_the_load(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    law = Law()
    traffic = [law.request(float(at_s)) for at_s in np.cumsum(rng.exponential(0.1, 40))]
    with pytest.raises(FileError, match="give --concurrency N or --rate R"):
        measured(aiperf_jsonl(traffic), tmp_path)


@pytest.mark.parametrize("in_flight", [0.7, 1.0, 1.4, 2.0])
def test_a_few_random_arrivals_are_no_closed_loop(in_flight: float, tmp_path: Path) -> None:
    """Most of the time there is about one request: so there is at any light load."""
    rng, law = np.random.default_rng(1), Law()
    gaps_s = rng.exponential(law.e2e_s / in_flight, 400)
    with pytest.raises(FileError, match="give --concurrency N or --rate R"):
        measured(aiperf_jsonl([law.request(float(at_s)) for at_s in np.cumsum(gaps_s)]), tmp_path)


def test_answers_that_were_not_streamed_tell_no_ttft(tmp_path: Path) -> None:
    whole = closed_loop(Law(osl=32, chunk=32))
    with pytest.raises(FileError, match="every answer came in one response; only streamed requests can be used"):
        measured(openai_export(whole), tmp_path)
    few = measured(openai_export(closed_loop(Law(osl=8, chunk=8))), tmp_path)  # as a stream of large chunks may be
    assert few.point.osl == 8
    found = json.loads(guidellm(whole))
    for request in found["benchmarks"][0]["requests"]["successful"]:
        request["info"]["timings"] |= {"first_token_iteration": None, "last_token_iteration": None}
    with pytest.raises(FileError, match=r"none of its 24 requests .* no time of a token; only streamed requests"):
        measured(json.dumps(found), tmp_path)


def test_failed_and_warm_up_requests_are_told_apart(tmp_path: Path) -> None:
    """The error's kind is kept, its words, which may quote a prompt, are not."""
    records = [json.loads(line) for line in aiperf_jsonl(closed_loop(Law())).splitlines()]
    records[0]["metadata"]["benchmark_phase"] = "warmup"
    records[12] |= {"metrics": {}, "error": {"code": 500, "type": "ServerError", "message": "the secret prompt"}}
    found = measured("\n".join(map(json.dumps, records)), tmp_path, concurrency=2)
    assert found.log is not None
    assert len(found.log) == 23
    assert set(found.log.error) == {"", "500 ServerError"}


@pytest.mark.parametrize("strategy", [{"type_": "concurrent", "streams": 2}, {"type_": "constant", "rate": 10.0}])
def test_requests_that_guidellm_cuts_off_at_its_time_limit_are_no_failures(
    strategy: dict[str, object], tmp_path: Path
) -> None:
    """The last two of 60 requests are under way when the time is up: the window ends before them."""
    law = Law()
    opened = strategy["type_"] == "constant"
    requests = [law.request(i / 10) for i in range(60)] if opened else closed_loop(law, each=30)
    document = json.loads(guidellm(requests, strategy))
    (benchmark,) = document["benchmarks"]
    lists = benchmark["requests"]
    lists["successful"], lists["incomplete"] = lists["successful"][:-2], lists["successful"][-2:]
    for request in lists["incomplete"]:
        request["info"]["timings"] |= {"last_token_iteration": None, "request_end": None}
    benchmark["metrics"]["request_totals"] = {"successful": 58, "errored": 0, "incomplete": 2}
    point = measured(json.dumps(document), tmp_path).point
    assert (point.errors, point.void) == (0, False)
    assert point.requests_per_s == pytest.approx(10 if opened else 2 / law.e2e_s, rel=0.02)


def test_too_few_requests_make_a_void_point(tmp_path: Path) -> None:
    found = measured(aiperf_jsonl(closed_loop(Law(), each=1)), tmp_path, concurrency=2)
    assert found.point.void
    assert "too few requests" in found.point.notes


def test_a_file_without_all_its_requests_is_taken_from_its_summary(tmp_path: Path) -> None:
    """25 completed, 24 in the lists: mean TTFT is then the summary's 1 ms."""
    text = vllm_detailed(closed_loop(Law()), completed=25)
    found = measured(text, tmp_path, osl=12, isl=50)
    assert found.log is None
    assert found.point.ttft_mean_s == pytest.approx(0.001)
    assert "does not hold all of them" in found.point.notes


@pytest.mark.parametrize("listed", ["all", "a sample"])
def test_guidellms_warm_up_and_cool_down_are_cut_off(listed: str, tmp_path: Path) -> None:
    """Of 8.4 s, four are measured: GuideLLM counts the requests that reach into them, its rate those that end there."""
    law = Law()
    requests = closed_loop(law, each=40)
    document = json.loads(guidellm(requests))
    (benchmark,) = document["benchmarks"]
    under_way = [request for request in requests if request.chunk_s[-1] > 2 and request.sent_s < 6]
    benchmark |= {"start_time": benchmark["start_time"] + 2, "duration": 4.0, "warmup_duration": 2.0}
    benchmark["metrics"] |= {
        "request_totals": {"successful": len(under_way), "errored": 0},
        "requests_per_second": {"successful": {"mean": 2 / law.e2e_s}},
    }
    if listed == "a sample":
        benchmark["requests"]["successful"] = benchmark["requests"]["successful"][:30]
    found = measured(json.dumps(document), tmp_path, isl=50, osl=12)
    assert found.point.requests_per_s == pytest.approx(2 / law.e2e_s, rel=1e-3)
    assert (len(found.log) if found.log else 0) == (len(under_way) if listed == "all" else 0)
    assert ("holds a sample" in found.point.notes) == (listed == "a sample")


def test_requests_without_times_between_first_and_last_keep_itl_and_no_gaps(tmp_path: Path) -> None:
    law = Law()
    point = measured(aiperf_jsonl(closed_loop(law), gaps=False), tmp_path, concurrency=2).point
    assert point.itl_mean_s == pytest.approx(law.itl_s, abs=2e-6)
    assert point.gap_p50_s is None


@pytest.mark.parametrize("tool", WRITERS)
def test_prompts_answers_and_keys_are_not_kept(tool: str, tmp_path: Path) -> None:
    write, said = WRITERS[tool]
    assert "secret" not in repr(measured(write(closed_loop(Law())), tmp_path, **said))
