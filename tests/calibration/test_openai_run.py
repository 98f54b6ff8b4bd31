"""`calibration run` against OpenAI servers: points, verdicts, resume, and a key that is nowhere to be found."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from calibration.load import loops
from calibration.plan import ServerPlan, level_key, parse_plan
from calibration.records import RequestLog
from calibration.run import Listener, resume, run
from calibration.store import Store
from calibration.store.records_file import read_log
from calibration.target import access
from sizing.errors import FitError
from sizing.fitting import fit
from sizing.points import Scheduling
from tests.calibration.called import call, failed
from tests.calibration.load.test_openai import tokenizer_file
from tests.calibration.openai_server import MODEL, Manners, OpenAiServer, openai_server
from validation.evidence import measured_arrivals
from validation.measure_servers import drawn_of

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("unhurried", "database")]
KEY = "sk-do-not-tell-anybody"


RATE_PER_S = 100.0


def plan(server: OpenAiServer, more: str = "", extra: str = "", users: str = "[2]") -> str:
    return (
        f"server: {{protocol: openai, url: '{server.url}', model: {MODEL}{more}}}\n"
        f"lengths: [{{isl: 30, osl: 8, isl_cv: 0, osl_cv: 0}}]\nconcurrency: {users}\n"
        "deployment: {precision: fp32, gpu: cpu, tp: 1}\n"
        f"check_load: 0\nrequests_per_level: 30\nclient: {{self_check: false}}\n{extra}"
    )


def ran(tmp_path: Path, text: str) -> Result:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return call("run", path)


def test_a_run_stores_its_points_with_what_the_server_says_of_itself(tmp_path: Path) -> None:
    info = {"chunked_prefill_size": 512, "enable_mixed_chunk": False, "disable_overlap_schedule": False}
    info |= {"scheduler_recv_interval": 10}
    pages = {"/get_server_info": {"version": "0.5.9", "tp_size": 2, "max_running_requests": 32, **info}}
    with openai_server(Manners(owned_by="sglang", pages=pages, tokens_per_event=2)) as server:
        text = plan(server).replace(", tp: 1", "").replace("check_load: 0", "rates: [20]")
        result = ran(tmp_path, text)
    assert result.exit_code == 0, result.output
    closed, opened = Store().points(1)
    assert (closed.model, closed.engine, closed.engine_version, closed.tp) == (MODEL, "sglang", "0.5.9", 2)
    assert (closed.max_batch_size, closed.isl, closed.osl, closed.errors) == (32, 30, 8, 0)
    assert opened.load_kind == "poisson_rate"
    assert closed.scheduling == opened.scheduling == Scheduling("prefill_first", 512, 1.0, 10)
    for point in (closed, opened):
        assert point.ttft_mean_s and point.ttft_mean_s >= 0.002
        assert point.itl_mean_s and point.itl_mean_s >= 0.001
        assert "2.00 tokens per response" in point.notes


def test_answers_of_other_lengths_void_the_point() -> None:
    """A server that takes ignore_eos, and after some answers ends them early all the same."""
    with openai_server(Manners(tires_after=12)) as server:
        store = Store()
        run(parse_plan(plan(server)), store)
    (point,) = store.points(1)
    assert point.verdict == "wrong_lengths" and point.void
    assert "5 tokens in the answer where 8 were asked for" in point.notes


@pytest.mark.parametrize("tires_after", [12, 0])
def test_early_ends_are_noticed_where_the_tokenizer_counts(tmp_path: Path, tires_after: int) -> None:
    """The server tells no counts: a single answer may have any length, their mean may not."""
    with openai_server(Manners(usage="none", tires_after=tires_after)) as server:
        store = Store()
        run(parse_plan(plan(server, extra=f"tokenizer: {tokenizer_file(tmp_path)}\n")), store)
    (point,) = store.points(1)
    assert (point.verdict == "wrong_lengths") == bool(tires_after)
    assert ("tokens on average, 8 were asked for" in point.notes) == bool(tires_after)


def test_a_server_that_is_busy_at_the_first_request_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the trials that found out how it counts: while it is loading an adapter, say."""
    monkeypatch.setattr("calibration.run.BUSY_WAIT_S", 0.01)
    busy, asked = list[str](), loops.ask

    async def busy_at_first(*given: Any) -> RequestLog:
        log = await asked(*given)
        if len(busy) < 2:
            busy.append("HTTP 503: the model is loading")
            log = replace(log, error=(busy[-1], *log.error[1:]))
        return log

    monkeypatch.setattr("calibration.run.ask", busy_at_first)
    with openai_server() as server:
        store = Store()
        run(parse_plan(plan(server)), store)
    (point,) = store.points(1)
    assert len(busy) == 2 and not point.void


def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    with openai_server() as server:
        store, text = Store(), plan(server, users="[1, 3]")
        run_id = run(parse_plan(text.replace("[1, 3]", "[1]")), store)
        assert len(store.points(run_id)) == 1
        whole = store.create_run(text, folder=tmp_path, label="half", levels=2, target="elsewhere:1")
        store.finish_run(whole, "interrupted")
        resume(whole, store)
    assert [point.load_value for point in store.points(whole)] == [1, 3]


def test_a_wrong_key_is_one_line_and_a_right_one_is_stored_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    with openai_server(Manners(key=KEY, echoes_key=True)) as server:
        result = ran(tmp_path, plan(server, more=", api_key_env: SERVER_KEY"))
        assert result.exit_code == 0, result.output
        shown = call("show", 1, "--details")
        monkeypatch.setenv("SERVER_KEY", f"{KEY}-not")
        line = failed(ran(tmp_path, plan(server, more=", api_key_env: SERVER_KEY")))
        exported = call("export", 1, "--out", tmp_path / "run.zip")
    assert "HTTP 401" in line and server.url in line
    assert exported.exit_code == 0
    for text in (result.output, line, shown.output):
        assert KEY not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("manners", "says"),
    [
        (Manners(dribbles=True), "no complete answer within 0.5 s"),
        (Manners(raw=b"\x00garbage\r\n\r\n"), "does not speak HTTP"),
        (Manners(usage="none"), "no token counts"),
        (Manners(fails_first=1000), "HTTP 503"),
    ],
    ids=["slow-loris", "garbage", "no usage", "503"],
)
def test_a_server_that_cannot_be_measured(
    manners: Manners, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibration.load.openai.BUSY_WAIT_S", 0.01)
    with openai_server(manners) as server:
        assert says in failed(ran(tmp_path, plan(server, more=", timeout_s: 0.5")))
    assert Store().runs() == []


def test_a_server_that_cuts_its_answers_off_leaves_a_void_point_or_a_line(tmp_path: Path) -> None:
    with openai_server(Manners(cuts_after=4)) as server:
        line = failed(ran(tmp_path, plan(server)))
    assert "the server closed the connection" in line


VLLM = """vllm:request_success_total{{finished_reason="length",model_name="toy"}} {served}
vllm:num_requests_running{{model_name="toy"}} 2
vllm:num_requests_waiting{{model_name="toy"}} 1
vllm:kv_cache_usage_perc{{model_name="toy"}} 0.25
vllm:prefix_cache_queries_total{{model_name="toy"}} {looked_up}
vllm:prefix_cache_hits_total{{model_name="toy"}} {hits}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000"}} 1
"""


def test_the_servers_own_metrics_tell_the_prefix_found_and_who_else_was_served(tmp_path: Path) -> None:
    """Of 30 tokens 16 are shared and found in three requests of four; nobody else sends."""

    with openai_server(Manners(metrics=VLLM)) as server:
        text = plan(server, more=f", metrics_url: '{server.url}/metrics'").replace(
            "osl_cv: 0", "osl_cv: 0, shared_prefix: 16"
        )
        assert ran(tmp_path, text).exit_code == 0
    store = Store()
    (point,) = store.points(1)
    assert (point.prefix_tokens, point.prefix_hit) == (16, pytest.approx(12 / 16))
    assert point.verdict != "shared"


class Disturber(Listener):
    """Another client of the server, counted and not answered, until it is told to have been noticed."""

    def __init__(self, server: OpenAiServer) -> None:
        self.said: list[str] = []
        self._noticed = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(server,), daemon=True)
        self._thread.start()

    def _send(self, server: OpenAiServer) -> None:
        while not self._noticed.wait(0.02):
            server.bodies.append({})

    def says(self, text: str) -> None:
        self.said.append(text)
        if "measured once more" in text:
            self._noticed.set()
            self._thread.join()


def test_an_adaptive_sweep_measures_a_disturbed_level_once_more() -> None:
    """The metrics page is that of the server, which the plan need not name."""
    adaptive = "adaptive: {gpu_minutes: 1, rate: 20, ttft: 'p95:2s'}\n"
    with openai_server(Manners(metrics=VLLM, ttft_s=0.02, itl_s=0.01)) as server:
        disturber, store = Disturber(server), Store()
        run(parse_plan(plan(server, users="[1]", extra=adaptive)), store, disturber)
    (point,) = store.points(1)
    (told,) = [line for line in disturber.said if "measured once more" in line]
    assert "other clients sent" in told and "other clients sent" not in point.notes


def test_requests_that_are_too_long_for_the_model_are_told_before_they_are_sent(tmp_path: Path) -> None:
    card = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 37}
    with openai_server(Manners(pages={"/v1/models": {"object": "list", "data": [card]}})) as server:
        fixed, varied = plan(server), plan(server).replace("isl_cv: 0", "isl_cv: 0.3")
        lines = [ran(tmp_path, text).stderr for text in (fixed, varied, fixed.replace("osl: 8", "osl: 7"))]
    assert "ISL 30, OSL 8: 100.0 % of the requests are longer than the 37 tokens that the server accepts" in lines[0]
    assert "% of the requests are longer than the 37 tokens" in lines[1] and "100.0 %" not in lines[1]
    assert "longer than" not in lines[2]


def test_the_key_goes_to_metrics_of_the_same_server_and_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    with openai_server(Manners(key=KEY, metrics=VLLM)) as server, openai_server(Manners(metrics=VLLM)) as other:
        for where in (server, other):
            text = plan(server, more=f", api_key_env: SERVER_KEY, metrics_url: '{where.url}/metrics'")
            assert ran(tmp_path, text).exit_code == 0
        asked = [head for head in other.heads if head.startswith("GET /metrics")]
    assert asked and not any(KEY in head for head in asked)


@pytest.mark.parametrize(
    ("url", "metrics_url", "own"),
    [
        ("https://gpu-7", "https://gpu-7/metrics", True),
        ("https://gpu-7:443", "https://gpu-7/metrics", True),
        ("https://gpu-7", "https://gpu-7:443/metrics", True),
        ("http://gpu-7:80/v1", "http://GPU-7/metrics", True),
        ("gpu-7", "http://gpu-7:080/metrics", True),
        ("http://[::1]", "http://[::1]:80/metrics", True),
        ("https://gpu-7/team/v1", "https://gpu-7:443/team/metrics", True),
        ("https://gpu-7/team/v1", "https://gpu-7/teams/metrics", False),
        ("https://gpu-7", "http://gpu-7/metrics", False),
        ("https://gpu-7", "http://gpu-7:443/metrics", False),
        ("http://gpu-7", "https://gpu-7:80/metrics", False),
        ("https://gpu-7", "https://gpu-7:8443/metrics", False),
        ("https://gpu-7", "https://gpu-7:0/metrics", False),
        ("https://gpu-7", "https://gpu-70/metrics", False),
        ("https://gpu-7", "https://gpu-7.evil.example/metrics", False),
        ("https://gpu-7", "https://evil.example?gpu-7:443/metrics", False),
        ("https://gpu-7", "https://evil.example#gpu-7/metrics", False),
        ("https://gpu-7", "https://gpu-7:443x/metrics", False),
    ],
)
def test_a_server_is_the_same_with_and_without_its_default_port(
    url: str, metrics_url: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    server = ServerPlan(protocol="openai", url=url, model=MODEL, metrics_url=metrics_url, api_key_env="SERVER_KEY")
    assert access(server).headers == ({"Authorization": f"Bearer {KEY}"} if own else {})


TALK = "{turns: 4, turn_law: fixed, first_tokens: 40, user_tokens: 12, output_tokens: 8, output_cv: 0.4, think: 20ms}"


def sessions(server: OpenAiServer, load: str, talk: str = TALK) -> str:
    text = plan(server, extra=load + "\n").replace("concurrency: [2]\n", "").replace("requests_per_level: 30\n", "")
    return text.replace("{isl: 30, osl: 8, isl_cv: 0, osl_cv: 0}", f"{{sessions: {talk}}}")


def said_before(server: OpenAiServer) -> list[int]:
    """How many earlier turns each request of a run repeats, token by token; the first three are the client's probes."""
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    turns = {tuple(talk): sum(prompt[: len(talk)] == tuple(talk) for prompt in prompts) for talk in server.talk if talk}
    assert max(turns.values()) <= 3, "no turn is repeated but by those that follow it"
    return [sum(prompt[: len(talk)] == talk and len(talk) < len(prompt) for talk in turns) for prompt in prompts]


def test_users_have_one_session_after_another_and_repeat_the_answers_they_got() -> None:
    with openai_server(Manners(tells_ids=True)) as server:
        store = Store()
        run(parse_plan(sessions(server, "concurrency: [3]\nbudget_s: 1\nwarm_up: 1")), store)
        repeated = said_before(server)
    (found,) = store.measurements(1)
    log = store.log(1, level_key(found.point))
    assert log is not None and set(log.turn.tolist()) == {0, 1, 2, 3}
    assert (found.point.load_kind, found.point.load_value, found.point.errors) == ("sessions", 3, 0)
    assert found.point.mean_in_flight < 3, "they think in between"
    shown = call("show", 1, "--details").output
    assert "TTFT of first turns mean" in shown and ", of later turns mean" in shown
    assert sorted(repeated)[-len(log) :] == sorted(log.turn.tolist())
    assert log.isl.tolist() == [40 if turn == 0 else isl for turn, isl in zip(log.turn, log.isl, strict=True)]
    order = np.argsort(log.intended_s)
    in_flight = np.searchsorted(np.sort(log.end_s), log.intended_s[order])
    assert np.all(np.arange(len(order)) - in_flight < 3), "nobody sends before the answer"
    with pytest.raises(FitError, match="no points to fit a law to"):
        fit([found.point])


def test_sessions_begin_at_random_and_turns_follow_the_answers() -> None:
    with openai_server(Manners(tells_ids=True)) as server:
        store = Store()
        run(parse_plan(sessions(server, "rates: [15]\nbudget_s: 3\nwarm_up: 2")), store)
        repeated = said_before(server)
    (found,) = store.measurements(1)
    point, log = found.point, store.log(1, level_key(found.point))
    assert log is not None
    assert (point.load_kind, point.load_value, point.load_label) == ("session_rate", 15, "15 sessions/s")
    assert point.requests_per_s == pytest.approx(4 * 15, rel=0.25)
    assert sorted(repeated)[-len(log) :] == sorted(log.turn.tolist())
    assert np.all(log.intended_s <= found.facts["window_stop_s"] + 0.1), "no turn is sent after the last session began"
    assert np.all(log.sent_s >= log.intended_s - 1e-4)


@pytest.mark.parametrize(
    ("manners", "edit", "says"),
    [
        (Manners(), ("", ""), "does not return those of its answers (return_token_ids"),
        (Manners(refuses=("return_token_ids",)), ("", ""), "does not return those of its answers (return_token_ids"),
        (Manners(takes_ids=False, tells_ids=True), ("", ""), "accepts no token ids"),
        (Manners(tells_ids=True), ("protocol: openai", "protocol: grpc"), "protocol"),
        (Manners(tells_ids=True), (f"model: {MODEL}", f"model: {MODEL}, endpoint: chat"), "endpoint: completions"),
        (Manners(tells_ids=True), ("rates: [5]", "rates: [5]\narrivals: constant"), "sessions begin at random"),
        (Manners(tells_ids=True), ("rates: [5]", "schedule: [{for_s: 5, rate: 4}]"), "schedule does not go with"),
        (Manners(tells_ids=True), ("turns: 4,", "turns: 0,"), "turns must be a number above 0"),
        (Manners(tells_ids=True), ("{sessions", "{isl: 30, sessions"), "isl does not go with sessions"),
    ],
)
def test_sessions_that_cannot_be_measured(manners: Manners, edit: tuple[str, str], says: str, tmp_path: Path) -> None:
    with openai_server(manners) as server:
        line = failed(ran(tmp_path, sessions(server, "rates: [5]").replace(*edit)))
    assert says in line, line


@pytest.mark.parametrize(("shared", "budget_s"), [(0, 0.8), (12, 2.0)])
def test_random_arrivals_are_drawn_again_as_they_were_sent(
    shared: int, budget_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the evidence keeps of a level: its times and, request by request, its lengths. A level has a hundred
    requests at least: within 0.8 s only a part of them is sent."""
    lengths = f"{{isl: 30, osl: 8, isl_cv: 0.4, osl_cv: 0.5, shared_prefix: {shared}}}"
    with openai_server(Manners()) as server:
        text = plan(server, extra=f"budget_s: {budget_s:g}\nuntil: {{half_width: 0.001}}\n").replace(
            "concurrency: [2]", f"rates: [{RATE_PER_S:g}]"
        )
        text = text.replace("self_check: false", "self_check: false, processes: 1")
        text = text.replace("{isl: 30, osl: 8, isl_cv: 0, osl_cv: 0}", lengths).replace("requests_per_level: 30\n", "")
        file = parse_plan(text)
        run(file, Store())
    (found,), (records,) = Store().measurements(1), Store().records(1).values()
    monkeypatch.setattr(measured_arrivals, "DRAWN", tmp_path / "arrivals.csv")
    drawn = {measured_arrivals.identity(found.point): drawn_of(records, found.facts, file.plan, RATE_PER_S)}
    measured_arrivals.write_drawn(measured_arrivals.DRAWN, drawn)
    again, log = measured_arrivals.sent(replace(found.point, prefix_tokens=shared)), read_log(records)
    assert again is not None and again.isl is not None and again.osl is not None
    order = np.argsort(log.intended_s)[: len(again.isl)]
    both = len(order)  # fewer where the level ended as the last were due
    assert both >= 0.5 * RATE_PER_S * budget_s and len(again.isl) - both <= 0.1 * both
    assert np.array_equal(again.isl[:both], log.isl[order]) and np.array_equal(again.osl[:both], log.osl[order])
    assert np.allclose(np.diff(again.arrival_s[:both]), np.diff(log.intended_s[order]), atol=1e-6)
