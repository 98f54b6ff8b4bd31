"""Files that sum a run up: every figure in its column, in seconds; what differs is said, what lacks asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.special import bdtr

from calibration.errors import FileError
from calibration.importers import read, read_measurements
from sizing.points import Point
from tests.calibration.importers.traffic import DEPLOYMENT

FILES = Path(__file__).parent / "files"
LENGTHS = {"isl": 200, "osl": 33}


def imported(name: str, **said: object) -> Point:
    (point,) = read(FILES / name, deployment={**DEPLOYMENT, "model": None, **said})
    return point


def check_common(point: Point) -> None:
    """What the fixtures of all tools say alike: 720 requests in 40 s, TTFT 100, ITL 10, E2E 420 ms on average."""
    assert point.model in ("tiny-chat", "ensemble", "told")
    assert (point.precision, point.gpu, point.tp) == ("fp16", "L4", 1)
    assert (point.isl, point.osl) == (200, 33)
    assert (point.requests, point.requests_per_s) == (720, 18)
    assert point.duration_s == pytest.approx(40)
    assert point.ttft_mean_s == pytest.approx(0.1)
    assert point.itl_mean_s == pytest.approx(0.01)
    assert (point.ttft_p50_s, point.itl_p50_s) == (pytest.approx(0.11), pytest.approx(0.0095))
    assert (point.ttft_p99_s, point.itl_p99_s) == (pytest.approx(0.18), pytest.approx(0.014))
    assert "start and drain included" in point.notes
    assert "client's health unknown" in point.notes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aiperf.json", {}),
        ("aiperf.csv", {"model": "told", "concurrency": 8}),
        ("genai_perf.json", {}),
        ("genai_perf.csv", {"model": "told", "concurrency": 8}),
        ("guidellm_v2.json", {}),
        ("guidellm_oldest.json", {}),
        ("guidellm.csv", {}),
        ("vllm.json", {}),
    ],
)
def test_every_tool_gives_the_same_row_of_the_same_run(name: str, said: dict[str, object]) -> None:
    point = imported(name, **said)
    check_common(point)
    assert (point.load_kind, point.load_value) == ("concurrency", 8)
    assert point.e2e_mean_s == pytest.approx(0.42)
    assert (point.e2e_p50_s, point.e2e_p99_s) == (pytest.approx(0.415), pytest.approx(0.48))
    assert point.output_tokens_per_s == pytest.approx(594)
    assert not point.void


def test_older_tables_of_aiperf_have_no_sums(tmp_path: Path) -> None:
    """Releases 0.2 to 0.6: ``Metric,avg,min,max,p1,...``, and below, moments since 1970."""
    rows = [line.split(",") for line in (FILES / "aiperf.csv").read_text().split("\n\n\n")[0].splitlines()]
    place = rows[0].index("sum")
    path = tmp_path / "older.csv"
    path.write_text("\n".join(",".join(row[:place] + row[place + 1 :]) for row in rows))
    assert path.read_text().startswith("Metric,avg,min,max,p1,")
    path.write_text(path.read_text() + "\nMaximum Response Timestamp (ns),1796058893655476992.00\n")
    (point,) = read(path, deployment={**DEPLOYMENT, "concurrency": 8})
    assert (point.source, point.ttft_mean_s) == ("AIPerf", pytest.approx(0.1))


def test_spread_of_lengths_becomes_their_coefficient_of_variation() -> None:
    for name in ("aiperf.json", "guidellm_v2.json", "guidellm.csv"):
        assert imported(name).isl_cv == pytest.approx(50 / 200)
        assert imported(name).osl_cv == 0


@pytest.mark.parametrize(
    ("prefix", "found", "columns"),
    [
        ({"shared_system_length": 128}, 96.0, (128, pytest.approx(0.75, rel=0.02))),  # few prompts are shorter
        ({"pool_size": 4, "length": 100}, None, (100, None)),
        (None, 64.5, (64, 1.0)),
        (None, None, (None, None)),
    ],
)
def test_the_prefix_of_aiperf_is_that_of_its_plan_found_as_often_as_the_usage_says(
    prefix: dict[str, int] | None, found: float | None, columns: tuple[float | None, Any], tmp_path: Path
) -> None:
    document = json.loads((FILES / "aiperf.json").read_text())
    document["input_config"]["datasets"] = [{"name": "main", **({"prefix_prompts": prefix} if prefix else {})}]
    if found is not None:
        document["usage_prompt_cache_read_tokens"] = {"unit": "tokens", "avg": found}
    (tmp_path / "aiperf.json").write_text(json.dumps(document))
    (measured,) = read_measurements(tmp_path / "aiperf.json", deployment=DEPLOYMENT)
    assert (measured.point.prefix_tokens, measured.point.prefix_hit) == columns


@pytest.mark.parametrize(("num", "tokens"), [(1, 80), (0, None)])
def test_the_prefix_prompt_of_genai_perf_is_shared(num: int, tokens: int | None, tmp_path: Path) -> None:
    document = json.loads((FILES / "genai_perf.json").read_text())
    document["input_config"]["input"] = {"prefix_prompt": {"num": num, "length": 80}}
    (tmp_path / "genai.json").write_text(json.dumps(document))
    (measured,) = read_measurements(tmp_path / "genai.json", deployment=DEPLOYMENT)
    assert (measured.point.prefix_tokens, measured.point.prefix_hit) == (tokens, None)


@pytest.mark.parametrize(
    ("option", "load"), [("concurrency", ("concurrency", 9)), ("request_rate", ("constant_rate", 9))]
)
def test_genai_perf_up_to_0_0_12_has_a_flat_list_of_options(
    option: str, load: tuple[str, float], tmp_path: Path
) -> None:
    document = json.loads((FILES / "genai_perf.json").read_text())
    document["input_config"] = {
        "model": ["tiny-chat"],
        "formatted_model_name": "tiny-chat",
        "endpoint": "v1/chat/completions",
        "service_kind": "openai",
        "concurrency": None,
        "request_rate": None,
        option: 9,
        "num_prefix_prompts": 2,
        "prefix_prompt_length": 80,
        "extra_inputs": {},
    }
    (tmp_path / "older.json").write_text(json.dumps(document))
    (point,) = read(tmp_path / "older.json", deployment={**DEPLOYMENT, "model": None})
    assert (point.model, (point.load_kind, point.load_value), point.prefix_tokens) == ("tiny-chat", load, 80)
    assert "Triton" not in point.notes


def test_an_open_loop_of_aiperf_counts_from_when_requests_were_due() -> None:
    """Sent 4 ms late on average: 104 ms of TTFT; E2E from then is in the file, percentiles of TTFT are not."""
    (found,) = read_measurements(FILES / "aiperf_open_loop.json", deployment=DEPLOYMENT)
    point = found.point
    assert (point.load_kind, point.load_value) == ("poisson_rate", 20)
    assert point.ttft_mean_s == pytest.approx(0.104)
    assert (point.e2e_mean_s, point.e2e_p90_s) == (pytest.approx(0.424), pytest.approx(0.446))
    assert point.ttft_p90_s is None
    assert found.facts["ttft_sent_mean_s"] == pytest.approx(0.1)
    assert found.facts["late_mean_s"] == pytest.approx(0.004)


@pytest.mark.parametrize(("told", "rate"), [({}, 18.5), ({"rate": 20.0}, 20.0)])
def test_an_open_loop_of_guidellm_counts_from_when_requests_were_due(told: dict[str, Any], rate: float) -> None:
    """Whoever says the rate says that the loop is open."""
    point = imported("guidellm_v1.json", **told)
    assert (point.load_kind, point.load_value) == ("poisson_rate", rate)
    assert point.ttft_mean_s == pytest.approx(0.104)
    assert (point.e2e_mean_s, point.e2e_p99_s) == (pytest.approx(0.424), pytest.approx(0.484))


def test_an_open_loop_in_guidellms_table_counts_from_when_requests_were_due(tmp_path: Path) -> None:
    """GuideLLM 0.8 has columns for it: on average 50 ms late, 470 ms from due to done, with a TTFT of 100 ms."""
    columns = [
        ("Dispatch Delay", "Successful Sec", "Mean", "0.05"),
        ("Scheduled Latency", "Successful Sec", "Mean", "0.47"),
    ]
    rows = (FILES / "guidellm.csv").read_text().replace("concurrent@8", "poisson@18.5").splitlines()
    path = tmp_path / "open.csv"
    path.write_text("\n".join(map(",".join, zip(rows, *columns, strict=True))))
    for told in ({}, {"rate": 20.0}):
        (point,) = read(path, deployment={**DEPLOYMENT, "model": None, **told})
        assert (point.ttft_mean_s, point.ttft_p50_s) == (pytest.approx(0.15), None)
        assert point.e2e_mean_s == pytest.approx(0.47)
        assert point.verdict == "client_limited" and "from the sending" not in point.notes


def test_the_rate_of_guidellms_table_with_a_warm_up_is_of_the_requests_that_ended_after_it(tmp_path: Path) -> None:
    """720 reach into the 40 s; the table's own rate, 17.8 a second here, has only those that ended in them."""
    rows = (FILES / "guidellm.csv").read_text().splitlines()
    path = tmp_path / "warm.csv"
    for warm_up_s, rate in ((0.0, 18), (1.5, 17.8)):
        ended = ("Server Throughput", "Successful Requests/Sec", "Mean", "17.8")
        added = zip(
            rows, map(",".join, zip(ended, ("Timings", "Warmup", "Sec", str(warm_up_s)), strict=True)), strict=True
        )
        path.write_text("\n".join(f"{row},{cell}" for row, cell in added))
        (point,) = read(path, deployment={**DEPLOYMENT, "model": None})
        assert point.requests_per_s == rate


def test_guidellms_tpot_and_vllms_itl_are_never_taken_for_itl() -> None:
    """Their files here say 12.9 and 40 ms by these words, where the gap between tokens is 10 ms."""
    assert imported("guidellm_v2.json").itl_mean_s == pytest.approx(0.01)
    vllm = imported("vllm.json")
    assert vllm.itl_mean_s == pytest.approx(0.01)
    assert "4.0 tokens a response" in vllm.notes
    assert "weighted by tokens" in imported("guidellm_v2.json").notes


def test_an_older_vllm_file_lacks_keys_and_gives_what_it_has() -> None:
    point = imported("vllm_older.json")
    check_common(point)
    assert (point.load_kind, point.load_value) == ("poisson_rate", 18.5)
    assert point.e2e_mean_s is None
    assert "how late requests were sent is not in the file" in point.notes


def test_perf_analyzers_parts_add_up_to_the_mean_e2e() -> None:
    """100 + 900 + 50 + 150 + 18700 + 50 + 50 us are 20 ms, and 50 requests/s x 20 ms the one user: Little's law."""
    first, second = read_measurements(FILES / "perf_analyzer.csv", deployment={**DEPLOYMENT, **LENGTHS})
    assert (first.point.load_kind, first.point.load_value) == ("concurrency", 1)
    assert first.point.e2e_mean_s == pytest.approx(0.02)
    assert first.point.little == pytest.approx(1)
    assert second.point.little == pytest.approx(1)
    assert first.point.e2e_p95_s == pytest.approx(0.021)
    assert first.point.ttft_mean_s is first.point.itl_mean_s is None
    assert second.server["queue_mean_s"] == pytest.approx(0.03005)
    assert second.server["compute_infer_mean_s"] == pytest.approx(0.0187)


def test_perf_analyzers_verbose_csv_adds_the_gpus() -> None:
    (found,) = read_measurements(FILES / "perf_analyzer_verbose.csv", deployment={**DEPLOYMENT, **LENGTHS})
    assert (found.point.load_kind, found.point.load_value) == ("constant_rate", 40)
    assert found.point.e2e_mean_s == pytest.approx(0.02)
    assert found.server["gpu_utilization_mean"] == pytest.approx(0.6)
    assert found.server["gpu_power_mean_w"] == pytest.approx(420)
    assert found.server["gpu_memory_used_bytes"] == 3_000_000


def test_op_stats_take_in_flight_from_littles_law() -> None:
    """The client writes 0 in flight from release 0.6 on; 20 requests/s of 750 ms are 15."""
    slow, fast = read(FILES / "op_stats.csv", deployment={**DEPLOYMENT, "rate": 12})
    assert (slow.load_kind, slow.load_value) == ("poisson_rate", 12)
    assert (slow.isl, slow.osl, slow.requests) == (120.5, 40, 120)
    assert (slow.e2e_mean_s, slow.e2e_p90_s) == (0.5, 0.8)
    assert slow.e2e_p99_s is None
    assert "120 requests are too few, p99 needs 662" in slow.notes
    assert slow.mean_in_flight == pytest.approx(5)
    assert fast.mean_in_flight == pytest.approx(15)
    assert slow.ttft_mean_s is slow.itl_mean_s is None


def test_a_burst_of_all_requests_at_once_is_void() -> None:
    points = read(FILES / "op_stats.csv", deployment={**DEPLOYMENT, "concurrency": 120})
    assert [point.verdict for point in points] == ["unsteady", "unsteady"]


@pytest.mark.parametrize("requests", [1, 63, 64, 129, 130, 661, 662])
def test_a_percentile_needs_requests_beyond_it(requests: int, tmp_path: Path) -> None:
    """As many that two or more of them lie above the true percentile in 99 % of cases, by the binomial law."""
    document = json.loads((FILES / "aiperf.json").read_text())
    document["request_count"]["avg"] = float(requests)
    (tmp_path / "few.json").write_text(json.dumps(document))
    (point,) = read(tmp_path / "few.json", deployment=DEPLOYMENT)
    for metric in ("ttft", "itl", "e2e"):
        assert getattr(point, f"{metric}_p50_s") is not None
        for q in (90, 95, 99):
            enough = bdtr(1, requests, 1 - q / 100) <= 0.01
            assert (getattr(point, f"{metric}_p{q}_s") is not None) == enough
            assert (f"p{q} needs" in point.notes) == (not enough)


def test_percentiles_of_an_unknown_number_of_requests_are_kept_and_said() -> None:
    points = read(FILES / "perf_analyzer.csv", deployment={**DEPLOYMENT, **LENGTHS})
    assert all("number of requests is not in the file" in point.notes for point in points)


def test_gpu_telemetry_and_a_title_with_two_brackets_are_no_fault(tmp_path: Path) -> None:
    """AIPerf's CSV has a row a GPU and metric at its end, and E2E from when requests were due as (CO-aware)."""
    assert "Endpoint,GPU_Index" in (FILES / "aiperf.csv").read_text()
    late = ("Request Count", "Credit-to-Start Latency (ms),4.00\nRequest Count")
    path = changed(tmp_path, "aiperf.csv", *late)
    (point,) = read(path, deployment={**DEPLOYMENT, "rate": 18.5})
    assert (point.ttft_mean_s, point.e2e_mean_s) == (pytest.approx(0.104), pytest.approx(0.424))
    assert (point.e2e_p50_s, point.e2e_p99_s) == (pytest.approx(0.418), pytest.approx(0.484))


def test_commas_between_thousands_are_no_fault(tmp_path: Path) -> None:
    path = changed(tmp_path, "genai_perf.csv", "Request Latency (ms),420.00", 'Request Latency (ms),"1,234,567.25"')
    (point,) = read(path, deployment={**DEPLOYMENT, "concurrency": 8})
    assert point.e2e_mean_s == pytest.approx(1234.56725)


@pytest.mark.parametrize(("prompts", "errors"), [(1000, 280), (720, 0), (None, None)])
def test_errors_of_older_vllm_files_are_the_prompts_that_were_not_answered(
    prompts: int | None, errors: int | None, tmp_path: Path
) -> None:
    path = changed(tmp_path, "vllm_older.json", '"num_prompts": 720', f'"num_prompts": {json.dumps(prompts)}')
    (point,) = read(path, deployment=DEPLOYMENT)
    assert point.errors == errors
    assert (point.verdict == "errors") == bool(errors)


def test_vllm_appends_a_result_a_line_and_each_is_a_level(tmp_path: Path) -> None:
    one = json.loads((FILES / "vllm.json").read_text())
    path = tmp_path / "appended.json"
    path.write_text(f"{json.dumps(one)}\n{json.dumps(one | {'max_concurrency': 9})}")
    assert [point.load_value for point in read(path, deployment=DEPLOYMENT)] == [8, 9]
    with pytest.raises(FileError, match="more than 1 points"):
        read_measurements(path, deployment=DEPLOYMENT, most=1)
    with pytest.raises(FileError, match="not a file of aiperf"):
        read(path, kind="aiperf", deployment=DEPLOYMENT)
    path.write_text(f"{json.dumps(one)}\n{json.dumps(one | {'completed': 0})}")
    with pytest.raises(FileError, match=r"appended\.json, line 2, key 'completed'"):
        read(path, deployment=DEPLOYMENT)


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (FILES / name).read_text()
    assert old in text
    path = tmp_path / f"changed_{name}"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "verdict"),
    [
        ("vllm.json", '"failed": 0', '"failed": 10', "errors"),
        ("vllm.json", '"max_concurrency": 8', '"max_concurrency": 12', "unsteady"),
        ("vllm.json", '"max_concurrency": 8', '"max_concurrency": 6', "little"),
        ("vllm.json", '"max_concurrency": 8', '"max_concurrency": null', "unsteady"),
        ("vllm_older.json", '"request_rate": 18.5', '"request_rate": 40', "overloaded"),
        ("guidellm_v1.json", '"mean": 0.004', '"mean": 0.4', "client_limited"),
    ],
)
def test_what_a_summary_can_tell_against_a_point_is_its_verdict(
    tmp_path: Path, name: str, old: str, new: str, verdict: str
) -> None:
    (point,) = read(changed(tmp_path, name, old, new), deployment=DEPLOYMENT)
    assert point.verdict == verdict


def test_a_rate_that_was_not_served_is_overload_though_nothing_says_for_how_long(tmp_path: Path) -> None:
    """perf_analyzer's CSV has neither requests nor seconds: 50 requests/s are what was served of 100."""
    text = (FILES / "perf_analyzer.csv").read_text().replace("Concurrency,", "Request Rate,")
    path = tmp_path / "rate.csv"
    for rate, verdict in ((100, "overloaded"), (51, "")):
        path.write_text("\n".join([text.splitlines()[0], text.splitlines()[1].replace("1,50,", f"{rate},50,", 1)]))
        assert read(path, deployment={**DEPLOYMENT, "isl": 64, "osl": 32})[0].verdict == verdict


def test_what_the_caller_says_goes_before_the_file() -> None:
    point = imported("aiperf.json", model="other", isl=100, osl=20, rate=3, arrivals="constant", engine="trtllm")
    assert (point.model, point.isl, point.osl, point.engine) == ("other", 100, 20, "trtllm")
    assert (point.load_kind, point.load_value) == ("constant_rate", 3)


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("aiperf.json", {"gpu": None}, "give --gpu"),
        ("aiperf.json", {"gpu": None, "precision": None, "tp": None}, "give --precision, --gpu, --tp"),
        ("aiperf.csv", {}, "give --concurrency N or --rate R"),
        ("aiperf.csv", {"concurrency": 8, "model": None}, "give --model"),
        ("perf_analyzer.csv", {}, "give --isl, --osl"),
        ("op_stats.csv", {}, "give --concurrency N or --rate R"),
        ("aiperf.json", {"concurrency": 8, "rate": 2.0}, "exclude each other"),
        ("perf_analyzer.csv", {**LENGTHS, "concurrency": 8}, "has 2 load levels of its own"),
        ("aiperf.json", {"tp": 0}, "key 'tp'"),
        ("aiperf.json", {"cluster": "x"}, "key 'cluster'"),
    ],
)
def test_what_is_in_neither_file_nor_call_is_asked_for_by_its_flag(
    name: str, said: dict[str, object], words: str
) -> None:
    with pytest.raises(FileError, match=words):
        read(FILES / name, deployment={**DEPLOYMENT, **said})


def test_a_kind_that_is_asked_for_must_be_the_files() -> None:
    assert read(FILES / "vllm.json", kind="vllm", deployment=DEPLOYMENT) == read(
        FILES / "vllm.json", deployment=DEPLOYMENT
    )
    with pytest.raises(FileError, match=r"vllm\.json: not a file of aiperf"):
        read(FILES / "vllm.json", kind="aiperf", deployment=DEPLOYMENT)
    with pytest.raises(FileError, match="the kinds are aiperf, genai-perf"):
        read(FILES / "vllm.json", kind="jmeter", deployment=DEPLOYMENT)


def vllm_result(folder: Path, **other: object) -> Point:
    """The sample of vLLM's tester without E2E, as it writes it unless asked, and with other values."""
    plain = {key: value for key, value in json.loads((FILES / "vllm.json").read_text()).items() if "e2el" not in key}
    path = folder / "result.json"
    path.write_text(json.dumps(plain | other))
    (point,) = read(path, deployment={**DEPLOYMENT, "model": None})
    return point


@pytest.mark.parametrize(("users", "verdict"), [(8, ""), (12, "unsteady"), (6, "little")])
def test_a_closed_loop_is_judged_without_its_e2e_too(tmp_path: Path, users: int, verdict: str) -> None:
    """TTFT and the tokens after it are as good: a run that is mostly start and drain is no level of its users."""
    assert vllm_result(tmp_path, max_concurrency=users).verdict == verdict


def test_answers_of_one_token_have_no_itl_though_tools_write_0(tmp_path: Path) -> None:
    none = dict.fromkeys(("mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "mean_itl_ms"), 0.0)
    points = [vllm_result(tmp_path, **none, total_output_tokens=720)]
    document = json.loads((FILES / "guidellm_v2.json").read_text())
    gaps = document["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"]
    gaps |= {"mean": 0.0, "percentiles": dict.fromkeys(gaps["percentiles"], 0.0)}
    (tmp_path / "one.json").write_text(json.dumps(document))
    points += read(tmp_path / "one.json", deployment=DEPLOYMENT)
    for point in points:
        assert (point.itl_mean_s, point.itl_p50_s, point.itl_p99_s) == (None, None, None)
        assert point.ttft_mean_s == pytest.approx(0.1)


def test_even_gaps_of_vllm_are_a_constant_rate(tmp_path: Path) -> None:
    point = vllm_result(tmp_path, request_rate=18.5, burstiness=math.inf, max_concurrency=None)
    assert point.load_kind == "constant_rate" and "random gaps" not in point.notes


def test_a_rate_with_a_limit_of_vllm_counts_from_when_requests_were_due(tmp_path: Path) -> None:
    """Without --save-detailed the waits for a place are in the file too: 0.1 and 0.3 s; a third request failed."""
    waits = {"latencies": [0.4, 0.5, 0.0], "queue_times": [0.1, 0.3, 9.0]}
    point = vllm_result(tmp_path, request_rate=18.5, max_concurrency=8, **waits)
    assert (point.ttft_mean_s, point.ttft_p50_s) == (pytest.approx(0.1 + 0.2), None)
    assert (point.e2e_mean_s, point.e2e_p50_s) == (pytest.approx(0.65), pytest.approx(0.65))
    assert point.verdict == "client_limited" and "from the sending" not in point.notes
    closed = vllm_result(tmp_path, max_concurrency=8, **waits)
    assert (closed.ttft_mean_s, closed.verdict) == (pytest.approx(0.1), "")


def test_a_summary_of_answers_that_were_not_streamed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="only streamed requests"):
        vllm_result(tmp_path, mean_ttft_ms=0.0)


def test_results_of_sglang_are_told_from_vllms(tmp_path: Path) -> None:
    """The same keys but for E2E, a rate that is infinite, and gaps that nothing stretches."""
    more = {"backend": "sglang", "mean_e2e_latency_ms": 420.0, "median_e2e_latency_ms": 400.0}
    closed = vllm_result(tmp_path, request_rate=math.inf, **more)
    assert (closed.load_kind, closed.load_value, closed.e2e_mean_s) == ("concurrency", 8, 0.42)
    opened = vllm_result(tmp_path, request_rate=18.5, max_concurrency=None, **more)
    assert opened.load_kind == "poisson_rate"
    assert closed.errors == 0
    details = {"num_prompts": None, "failed": None, "output_lens": [33] * 720 + [0] * 30}  # --output-details: 30 failed
    failed = vllm_result(tmp_path, request_rate=math.inf, **more, **details)
    assert (failed.errors, failed.verdict) == (30, "errors")
    with pytest.raises(FileError, match="does not say the load"):  # sent at the times of a trace
        vllm_result(tmp_path, request_rate="trace", **more)
    for point in (closed, opened):
        assert point.source.startswith("SGLang bench_serving") and "vLLM" not in point.source + point.notes
