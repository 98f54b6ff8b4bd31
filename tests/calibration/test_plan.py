"""Plans: defaults, the levels they mean, and one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.errors import PlanError
from calibration.plan import parse_plan, read_plan

ROOT = Path(__file__).parents[2]
MINIMAL = "lengths: [{isl: 64, osl: 32}]\nconcurrency: [1, 16]\n"
OPENAI = MINIMAL.replace("{", "{{").replace("}", "}}") + "server: {{protocol: openai, model: m, url: '{}'}}"


def test_levels_are_every_lengths_at_every_load_in_the_order_written() -> None:
    text = "lengths: [{isl: 64, osl: 32}, {isl: 9, osl: 8, osl_cv: 0.5}]\nconcurrency: [16, 1]\nrates: [2.5]\n"
    levels = parse_plan(text).plan.levels()
    assert [(level.lengths.isl, level.kind, level.value) for level in levels] == [
        (isl, *load) for isl in (64, 9) for load in (("concurrency", 16), ("concurrency", 1), ("poisson_rate", 2.5))
    ]
    assert [level.index for level in levels] == list(range(6))
    assert len({level.key for level in levels}) == 6


@pytest.mark.parametrize(("users", "requests"), [(1, 50), (5, 50), (6, 60), (64, 640)])
def test_ten_requests_a_user_but_at_least_fifty(users: int, requests: int) -> None:
    (level,) = parse_plan(f"lengths: [{{isl: 1, osl: 1}}]\nconcurrency: [{users}]").plan.levels()
    assert level.requests == requests


def test_requests_per_level_is_taken_where_given() -> None:
    assert {level.requests for level in parse_plan(MINIMAL + "requests_per_level: 7").plan.levels()} == {7}


def test_a_relative_tokenizer_lies_beside_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(MINIMAL + "tokenizer: tok/tokenizer.json\n")
    assert read_plan(path).tokenizer_file == tmp_path / "tok" / "tokenizer.json"
    assert parse_plan(MINIMAL + "tokenizer: none").tokenizer_file is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("[1, 2]", "mapping"),
        ("lengths: [{isl: 64", "line 2, column 1: not YAML"),
        ("concurrency: [1]", "lengths: is missing"),
        ("lengths: [{isl: 64, osl: 32}]", "no load levels"),
        ("lengths: []\nconcurrency: [1]", "lengths: List should have at least 1 item"),
        (MINIMAL + "speed: 9", "speed: unknown key"),
        ("lengths: [{isl: 64, osl: 32}]\nrates: [1.0e+11]", "rates"),
        ("lengths: [{isl: 64, osl: 32}]\nschedule: [{for_s: 1, rate: 1.0e+300}]", "schedule"),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [100000000]", "concurrency"),
        (MINIMAL + "server: {uri: x}", "server.uri: unknown key"),
        (MINIMAL + "server: {url: 'http://127.0.0.1:8000'}", "server.url: "),
        (MINIMAL + "deployment: {tp: two}", "deployment.tp: "),
        (MINIMAL + "deployment: {tp: 2, assumed: [pt]}", "deployment.assumed"),
        (MINIMAL + "budget_s: .nan", "budget_s: "),
        (MINIMAL + "budget_s: -1", "budget_s: "),
        (MINIMAL + "budget_s: .inf", "budget_s: "),
        (MINIMAL + "seed: true", "seed: "),
        (MINIMAL + "warm_up: -1", "warm_up: "),
        (MINIMAL + "warm_up: 1000000000", "warm_up: "),
        (MINIMAL + "budget_s: 1e+300", "budget_s: "),
        (MINIMAL + "requests_per_level: 1000000000", "requests_per_level: "),
        (MINIMAL + "client: {processes: 1000000}", "client.processes: "),
        (MINIMAL + "until: {half_width: 1e-300}", "until.half_width: "),
        (MINIMAL + "schedule: [{for_s: 1e+6, rate: 1e+6}]", "its stages come to 1e+12 requests"),
        (MINIMAL + "server: {timeout_s: 1e+300}", "server.timeout_s: "),
        (MINIMAL + "server: {url: '::1:8001'}", "host:port is needed, [::1]:8001 in IPv6"),
        (MINIMAL + "server: {url: 'h:99999'}", "a port is a number from 1 to 65535"),
        (MINIMAL + "server: {metrics_url: 'ftp://h'}", "metrics_url: http://host:port/metrics is needed"),
        (OPENAI.format("http://h:0"), "a port is a number from 1 to 65535"),
        (OPENAI.format("http://h', headers: {X-Auth-Token: abc}, ca_file: 'c"), "X-Auth-Token would be stored"),
        ("lengths: [{isl: .nan, osl: 32}]\nconcurrency: [1]", "lengths.0.isl: "),
        ("lengths: [{isl: 64, osl: 0}]\nconcurrency: [1]", "lengths.0.osl: "),
        ("lengths: [{isl: 64, osl: 32, osl_cv: -0.1}]\nconcurrency: [1]", "lengths.0.osl_cv: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [0]", "concurrency.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [1.5]", "concurrency.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nrates: [0]", "rates.0: "),
        ("lengths: [{isl: 64, osl: 32}]\nconcurrency: [4, 1, 4]", "concurrency: 4 is repeated"),
        (f"lengths: [{{isl: 64, osl: 32}}]\nconcurrency: {list(range(1, 10_002))}", "more than 10,000 levels"),
        (f"lengths: {[{'isl': n, 'osl': 1} for n in range(1, 202)]}\nrates: {list(range(1, 51))}", "201 lengths at 50"),
        (MINIMAL + "arrivals: weekly", "arrivals: arrivals 'weekly': use poisson, constant or gamma"),
        (MINIMAL + "schedule: [{for_s: 1, rate: 0}]", "its stages come to 0 requests, 2 to 5,000,000 are needed"),
        (MINIMAL + "schedule: [{for_s: 0, rate: 1}]", "schedule.0.for_s: "),
        (MINIMAL + "replay: [1]", "replay: none of the lengths is a trace"),
        (MINIMAL + "until: {half_width: 2}", "until.half_width: "),
        (MINIMAL + "until: {of: [speed]}", "until.of.0: "),
        (MINIMAL + "client: {processes: 0}", "client.processes: "),
        (MINIMAL + "server: {protocol: carrier pigeon}", "server.protocol: "),
        (MINIMAL + "server: {protocol: openai}", "server: url is missing, which protocol: openai needs"),
        (OPENAI.format("ftp://h"), "server.url: http://host:port or https://host is needed"),
        (OPENAI.format("http://me:word@h:1"), "server: url: a user or password would be stored"),
        (OPENAI.format("http://h:1', api_key_env: 'sk-1"), "server: api_key_env must be the name of"),
        (OPENAI.format("http://h:1', endpoint: 'embeddings"), "server.endpoint: "),
        (OPENAI.format("http://h:1', tensors: {}, ca_file: 'c"), "server: tensors goes with Triton's protocols"),
        (OPENAI.format("http://h:1', headers: {Authorization: s3}, ca_file: 'c"), "headers: Authorization would be"),
        (OPENAI.format("http://h:1', headers: {Host: x}, ca_file: 'c"), "headers: Host is set by the client"),
        (OPENAI.format("http://h:1', headers: {'a b': x}, ca_file: 'c"), "headers: a name of letters"),
        (
            OPENAI.format("http://h:1', headers: {A: é}, ca_file: 'c"),
            "headers: the value of A is not one line",
        ),
        (OPENAI.format("http://h:1', headers: {A: '$b c'}, ca_file: 'c"), "headers: the value of A is $"),
        (OPENAI.format("http://h:1', body: {max_tokens: 3}, ca_file: 'c"), "body: max_tokens is set for each request"),
        (MINIMAL + "server: {api_key_env: KEY}", "server: api_key_env goes with protocol: openai only"),
        (MINIMAL + "adaptive: {gpu_minutes: 5, rate: 2}", "adaptive: "),
        (MINIMAL + "adaptive: {rate: 2, ttft: 'p95:1s'}", "needs gpu_minutes or minutes"),
        (MINIMAL + "adaptive: {gpu_minutes: 5, minutes: 5, rate: 2, ttft: 'p95:1s'}", "needs gpu_minutes or minutes"),
        (
            "lengths: [{isl: 6, osl: 4}]\nrates: [3]\nadaptive: {gpu_minutes: 5, rate: 2, ttft: 'p95:1s'}",
            "adaptive: it chooses among closed-loop levels",
        ),
        (MINIMAL + "adaptive: {gpu_minutes: 5, rate: 2, ttft: fast}", "adaptive: "),
        (MINIMAL + "adaptive: {gpu_minutes: 5, rate: 2, ttft: 'p95:1s', verify_minutes: -1}", "verify_minutes"),
        (
            MINIMAL + "arrivals: constant\nadaptive: {gpu_minutes: 5, rate: 2, ttft: 'p95:1s', verify_minutes: 3}",
            "leave out arrivals, or give poisson",
        ),
    ],
)
def test_a_faulty_plan_is_one_line_naming_file_and_key(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL + "server: {url: 'me:secret@h:8001'}",
        MINIMAL + "server: {metrics_url: 'http://me:secret@h:8002/metrics'}",
        MINIMAL + "server: {metrics_url: 'ftp://me:secret@h/metrics'}",
        OPENAI.format("http://me:secret@h:1"),
        OPENAI.format("http://h:1/v1?key=secret"),
        OPENAI.format("ftp://me:secret@h:1"),
        OPENAI.format("h', headers: {X-Api-Key: 1234secret}, ca_file: 'c"),
        OPENAI.format("h', headers: {X-Api-Key: 537237}, ca_file: 'c"),
    ],
)
def test_a_refused_password_is_not_shown(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert "secret" not in str(caught.value) and "537237" not in str(caught.value)


def test_a_missing_or_unreadable_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such plan file"):
        read_plan(tmp_path / "absent.yaml")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(binary)


def test_rates_follow_the_arrivals_and_a_schedule_is_a_level_at_its_mean_rate() -> None:
    text = MINIMAL + "rates: [3]\narrivals: gamma:cv=2\nschedule: [{for_s: 10, rate: 2}, {for_s: 30, rate: 6}]"
    levels = parse_plan(text).plan.levels()
    assert [(level.kind, level.value) for level in levels[2:]] == [("gamma_rate", 3), ("schedule", 5)]


def test_a_trace_is_replayed_at_each_speed(tmp_path: Path) -> None:
    """Five requests within two seconds are two a second; at triple speed, six."""
    (tmp_path / "t.csv").write_text("arrival_s,isl,osl\n10,5,5\n10.5,7,5\n11,5,5\n11.5,7,5\n12,6,5\n")
    plan = parse_plan("lengths: [{trace: t.csv}]\nreplay: [1, 3]", folder=tmp_path).plan
    assert [(level.kind, level.value) for level in plan.levels()] == [("trace", 2), ("trace", 6)]


def test_a_number_of_requests_takes_the_place_of_precision() -> None:
    plan = parse_plan(MINIMAL + "requests_per_level: 7").plan
    until = plan.until_of(plan.levels()[0])
    assert (until.requests_min, until.requests_max, until.budget_s) == (7, 7, None)


def test_a_schedule_is_sent_whole_unless_a_budget_is_named() -> None:
    text = MINIMAL + "schedule: [{for_s: 300, rate: 2}, {for_s: 300, rate: 6}]\nrequests_per_level: 9\n"
    for more, budget_s in (("", None), ("budget_s: 500", 500)):
        plan = parse_plan(text + more).plan
        until = plan.until_of(plan.levels()[-1])
        assert until.budget_s == budget_s
        assert (until.requests_min or 0) > 2400, "no interval ends it before its last request"


@pytest.mark.parametrize(("more", "budget_s"), [("", 120), ("budget_s: 9", 9), ("until: {budget_s: 7}", 7)])
def test_every_level_that_goes_for_precision_has_a_budget(more: str, budget_s: float) -> None:
    plan = parse_plan(MINIMAL + more).plan
    assert plan.until_of(plan.levels()[0]).budget_s == budget_s


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "plans").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_plans_are_plans(path: Path) -> None:
    assert read_plan(path).plan.levels()


def test_lengths_vary_unless_the_plan_says_how() -> None:
    said = (
        "lengths: [{isl: 64, osl: 32}, {isl: 60, osl: 30, isl_cv: 0, osl_cv: 0}, {isl: [5, 9], osl: 30, osl_cv: 0}]\n"
    )
    usual, equal, window = parse_plan(said + "concurrency: [1]").plan.lengths
    assert usual.summary().isl_cv > 0.2 and usual.summary().osl_cv > 0.2
    assert equal.summary().fixed
    assert window.summary().osl_cv == 0


def test_an_openai_server_is_named_by_its_url(tmp_path: Path) -> None:
    for url, address, root in (
        ("http://gpu-7:8000", "gpu-7:8000", "http://gpu-7:8000"),
        ("gpu-7:8000", "gpu-7:8000", "http://gpu-7:8000"),
        ("https://llm.example/team/v1/", "llm.example:443", "https://llm.example:443/team"),
        ("http://[::1]:80/v1", "[::1]:80", "http://[::1]:80"),
    ):
        server = parse_plan(OPENAI.format(url)).plan.server
        assert (server.address, server.root) == (address, root)
    placed = parse_plan(OPENAI.format("https://h', ca_file: 'ca.pem"), folder=tmp_path).plan.server
    assert placed.ca_file == str(tmp_path / "ca.pem")


def test_a_tokenizer_may_be_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    file = parse_plan(MINIMAL + "tokenizer: tok", folder=tmp_path)
    assert file.tokenizer_file == tmp_path / "tok" / "tokenizer.json"


def test_a_high_rate_is_written_without_an_exponent() -> None:
    (level,) = parse_plan("lengths: [{isl: 64, osl: 32}]\nrates: [1384]").plan.levels()
    assert level.label == "ISL 64, OSL 32, 1,384 requests/s"
