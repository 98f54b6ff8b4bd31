"""`calibration size`: from a URL to a GPU count, broken off and gone on with, and refused in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from calibration.errors import ServerError
from calibration.plan import Answering, ServerPlan, parse_plan, users_of
from calibration.run import run
from calibration.size import sent_requests
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store.work import discard
from calibration.target import answering
from lab.mock.process import running
from lab.mock.service import Script
from sizing import planner
from sizing.analyses.verification import LEAST, MOST
from sizing.candidates import from_fit
from sizing.cli import cli
from sizing.fitting import fit
from sizing.points import write_points
from sizing.question import Question
from sizing.workload import Lengths
from tests.calibration.called import call, failed
from tests.calibration.mock_server import ROOT, subprocess_server
from tests.calibration.mock_server import Script as GrpcScript
from tests.calibration.openai_server import MODEL, Manners, openai_server

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unhurried")]
KEY = "sk-do-not-tell-anybody"
SLOW = Script(ttft_s=0.4, itl_s=0.04, slots=8)
"""Times so long that the lateness of a busy machine is no matter."""
SHORTEST_S = 2.5
"""Of a level; in use it is longer."""
ISL, OSL = 30.0, 8.0
ASKED = {"isl": ISL, "osl": OSL, "rate": 40, "ttft": "p95:1s", "itl": "p95:75ms"}


@pytest.fixture(autouse=True)
def _short_levels(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibration.plan.SHORTEST_S", SHORTEST_S)


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with running(SLOW) as server:
        yield server.http_url


def words(url: str, model: str = "ensemble", **more: Any) -> list[str]:
    given = {"model": model, "gpu": "toy", "minutes": 0.4, "most_users": 16} | ASKED | more
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    return ["size", url, "--no-self-check", *options]


def size(url: str, *flags: str, **more: Any) -> Result:
    return call(*words(url, **more), *flags)


def test_the_count_after_a_few_levels_is_that_of_the_whole_grid(mock: str, tmp_path: Path) -> None:
    result = size(f"http://{mock}", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (
        found["basis"] in ("fitted", "extrapolated") and found["gpu"] == "toy" and found["verified_by"] == "simulation"
    )
    measured = found["measured"]
    assert (measured["run"], measured["ended"], measured["error"], measured["protocol"]) == (1, "done", None, "openai")
    assert measured["assumed"] == {"precision": "bf16", "tp": "1"}
    points = Store().points(1)
    assert measured["points"] == len(points) and 0 < measured["minutes"] <= 0.8
    assert "left" in result.stderr and "assumed: tp 1" in result.stderr
    (tmp_path / "plan.json").write_text(result.stdout)
    report = ["report", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "plan.html")]
    assert CliRunner().invoke(cli, report).exit_code == 0
    assert "to serve 40 requests/s of ensemble" in (tmp_path / "plan.html").read_text()

    whole = parse_plan(Store().run(1).plan).plan.model_copy(update={"adaptive": None, "check_load": 0.0})
    grid_run = run(parse_plan(whole.model_dump_json(exclude_unset=True)), Store())
    question = Question.of({**ASKED, "model": "ensemble", "isl_cv": 0.3, "osl_cv": 0.5})
    grid = planner.plan(question, [from_fit(fit(Store().points(grid_run)), Lengths(ISL, OSL, 0.3, 0.5))]).answer
    assert len(Store().points(grid_run)) == len(users_of(16)) == 7
    # levels of 30 requests: bands of 90 % miss each other now and then, but not by more than a replica
    assert found["gpus_low"] <= (grid.gpus_high or grid.gpus) + 1
    assert grid.gpus_low <= (found["gpus_high"] or found["gpus"]) + 1
    assert found["verification"] is None


def test_the_planned_load_is_verified_on_the_server_and_found_again_later(mock: str, tmp_path: Path) -> None:
    """How near the figures come is a matter of the machine; what is told of them is not."""
    few = {"minutes": 0.8, "most_users": 4}
    result = size(f"http://{mock}", "--verify", "--json", verify_minutes=0.3, **few)
    assert result.exit_code == 0, result.output
    found, points = json.loads(result.stdout), Store().points(1)
    about, (point,) = found["verification"], [each for each in points if not each.closed]
    assert point.load_kind == "poisson_rate" and point.load_value == about["requests_per_s"]
    assert about["requests_per_s"] == pytest.approx(ASKED["rate"] / (found["replicas"] - found["spare"]), rel=0.01)
    assert "verifying: " in result.stderr and about["requests"] == point.requests
    for each in about["figures"]:
        assert each["measured_s"] == getattr(point, f"{each['metric']}_p{each['percentile']}_s")
        assert each["low_s"] < each["predicted_s"] < each["high_s"]
    (measured,) = [each for each in Store().measurements(1) if each.point == point]
    sent = sent_requests(Store(), 1, measured)
    assert sent is not None and sent.isl is not None and sent.osl is not None and sent.arrival_s[0] == 0
    assert len(sent.isl) == len(sent.osl) == len(sent.arrival_s) and (np.diff(sent.arrival_s) > 0).all()
    counted = int(((sent.arrival_s >= sent.start_s) & (sent.arrival_s < sent.stop_s)).sum())
    assert counted == pytest.approx(point.load_value * (point.duration_s or 0.0), rel=0.2)
    if not about["figures"]:
        assert not about["verified"] and (point.verdict or "not judged") in about["why"]
    slow = replace(point, verdict="steady", requests=500, **dict.fromkeys(("ttft_p95_s", "itl_p95_s"), 1.0))
    with (tmp_path / "points.csv").open("w") as file:
        write_points([slow if each == point else each for each in points], file)
    asked = [f"--{name}={value}" for name, value in (ASKED | {"isl-cv": 0.3, "osl-cv": 0.5}).items()]
    told = CliRunner().invoke(
        cli, ["plan", "--model=ensemble", f"--points={tmp_path / 'points.csv'}", *asked, "--json"]
    )
    later = json.loads(told.stdout)
    share = point.load_value / (ASKED["rate"] / (later["replicas"] - later["spare"]))
    if LEAST <= share <= MOST:
        why = later["verification"]["why"]
        assert why.startswith("Not verified on the server at ") and "p95 ITL was 1,000 ms" in why
    else:  # the level was fitted, and the plan leans on another load
        assert later["verification"] is None
    again = size(f"http://{mock}", **few | {"minutes": 0.01})
    assert "continuing run 1" in again.stderr and again.exit_code == 0


def reads(process: subprocess.Popen[str], word: str) -> str:
    """The next line of its standard error with this word."""
    assert process.stderr is not None
    while word not in (line := process.stderr.readline()):
        assert line, "it ended before"
    return line


def test_a_run_that_was_discarded_is_not_gone_on_with(mock: str) -> None:
    """No answer rests on its points: the same command measures anew, where it goes on with a run that counts."""
    few: dict[str, Any] = {"minutes": 0.25, "most_users": 4}
    assert size(f"http://{mock}", **few).exit_code == 0
    discard(Store(), 1)
    assert "going on with" not in size(f"http://{mock}", **few).stderr
    assert [run.id for run in Store().runs()] == [2, 1]
    assert all(point.source.startswith("calibration run 2,") for point in Store().points())


def test_ctrl_c_tells_the_answer_so_far_and_a_killed_call_is_gone_on_with(mock: str, database: str) -> None:
    command = [sys.executable, "-m", "tests.calibration.unhurried", *words(f"http://{mock}")]
    pipes: dict[str, Any] = {"cwd": ROOT, "env": os.environ | {DATABASE_VARIABLE: database}, "text": True}
    pipes |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as killed:
        reads(killed, " requests/s")
        reads(killed, "of measuring left")
        killed.kill()
    (first,) = Store().points(1)
    assert Store().run(1).state == "lost"

    with subprocess.Popen(command, **pipes) as stopped:
        reads(stopped, "continuing run 1")
        reads(stopped, " requests/s")
        reads(stopped, "of measuring left")
        stopped.send_signal(signal.SIGINT)
        told, said = stopped.communicate()
    assert stopped.returncode == 130
    assert "You need " in told and " × toy to serve 40 requests/s of ensemble" in told and "2 levels" in told
    assert "interrupted: the answer so far follows" in said and "Traceback" not in said
    assert (Store().run(1).state, len(Store().points(1))) == ("interrupted", 2)

    done = size(f"http://{mock}", minutes=0.1)
    assert done.exit_code == 0, done.output
    assert [run.id for run in Store().runs()] == [1] and Store().run(1).state == "done"
    assert first in Store().points(1)
    assert f"Measured: {len(Store().points(1))} levels" in done.stdout

    verifying = [*command, "--minutes=0.01", "--verify", "--verify-minutes=5"]
    with subprocess.Popen(verifying, **pipes) as stopped:
        reads(stopped, "verifying: ")
        reads(stopped, "of measuring left")
        stopped.send_signal(signal.SIGINT)
        told, said = stopped.communicate()
    assert stopped.returncode == 130 and "Traceback" not in said
    assert "You need " in told and "requests/s per replica: interrupted." in told and "Not verified" in told
    assert {point.load_kind for point in Store().points(1)} == {"concurrency"}

    hopeless = size(f"http://{mock}", "--json", minutes=0.01, itl="p95:5ms")
    assert hopeless.exit_code == 3, hopeless.output
    refusal = json.loads(hopeless.stdout)
    assert refusal["feasible"] is False and "gpus" not in refusal and refusal["measured"]["run"] == 1
    assert "misses ITL even at 1 % of the load" in (why := refusal["rejected"][0]["why"]) and "the limit is 5 ms" in why


def test_a_server_that_dies_while_it_is_verified_leaves_the_answer(database: str) -> None:
    pipes: dict[str, Any] = {"cwd": ROOT, "env": os.environ | {DATABASE_VARIABLE: database}, "text": True}
    pipes |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with openai_server(Manners(ttft_s=0.4, itl_s=0.05)) as server:
        more = words(server.url, MODEL, minutes=0.8, most_users=4, itl="p95:1s", verify_minutes=5)
        dying = subprocess.Popen([sys.executable, "-m", "tests.calibration.unhurried", *more, "--verify"], **pipes)
        reads(dying, "verifying: ")
        reads(dying, "of measuring left")
    with dying:
        told, said = dying.communicate()
    assert dying.returncode == 2 and "Traceback" not in said
    assert "You need " in told and "Not verified on the server at " in told
    assert said.splitlines()[-1].startswith("error: ") and "continue with: " in said.splitlines()[-1]


def test_a_server_that_dies_leaves_its_points_and_one_line() -> None:
    script = GrpcScript(ttft_s=0.5, itl_s=0.2, die_after=24)
    with subprocess_server(script) as url:
        result = size(url, osl=4, minutes=0.8)  # enough for a busy machine to get so far
    line = failed(result)
    assert "stopped answering" in line
    assert Store().run(1).state == "failed" and len(Store().points(1)) >= 1
    assert Store().points(1)[0].gpu == "toy"


def test_a_wrong_key_is_one_line_without_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with openai_server(Manners(key=KEY, echoes_key=True)) as server:
        assert "it asks for a key" in failed(size(server.url, model=MODEL))
        assert "--api-key-env names an environment variable that is unset" in failed(
            size(server.url, model=MODEL, api_key_env="NO_SUCH_KEY")
        )
        monkeypatch.setenv("SERVER_KEY", f"{KEY}-not")
        result = size(server.url, model=MODEL, api_key_env="SERVER_KEY")
    line = failed(result)
    assert "HTTP 401" in line and KEY not in result.output
    assert Store().runs() == []


def test_a_variable_without_a_name_and_certificates_that_are_not_there_are_named_by_their_options() -> None:
    assert "error: --api-key-env must be the name of" in failed(size("127.0.0.1:9", api_key_env=""))
    assert "error: --ca-file: " in failed(size("https://127.0.0.1:9", ca_file="absent.pem"))


@pytest.mark.parametrize(
    ("option", "value"),
    [("minutes", 1e9), ("most_users", 1_000_000), ("osl_cv", 50), ("tokenizer", "absent"), ("metrics_url", "foo")],
)
def test_what_no_plan_may_have_is_named_by_its_option(mock: str, option: str, value: object) -> None:
    line, name = failed(size(f"http://{mock}", **{option: value})), option.replace("_", "-")
    assert re.search(rf"error: --{name}: |correct --{name}", line) and "plan" not in line


def test_minutes_are_not_to_blame_where_measuring_was_broken_off(mock: str) -> None:
    result = size(f"http://{mock}", "--json", osl=64, timeout=1.5)
    assert "the first request failed" in failed(result)
    assert json.loads(result.stdout)["why"].endswith("run 1 has 0; run the same command again")


def test_a_server_that_ends_answers_early_is_told_at_once() -> None:
    with openai_server(Manners(tires_after=7, ttft_s=0.2, itl_s=0.02)) as server:
        line = failed(size(server.url, model=MODEL))
    assert "other lengths than requested" in line and "5 tokens in the answer" in line
    *_, point = Store().points(1, as_measured=True)
    assert point.void and "wrong_lengths: " in point.notes


@pytest.mark.parametrize(
    ("manners", "says"),
    [
        (Manners(dribbles=True), "no complete answer within 0.5 s"),
        (Manners(raw=b"\x00garbage\r\n\r\n"), "does not speak HTTP"),
        (Manners(raw=b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"), "set --endpoint to chat"),
        (Manners(usage="none"), "as --tokenizer"),
        (Manners(loads=True), "answers /v1/models with 503: if it is still loading its model, try again"),
        (Manners(pages={"/v1/models": {"what": "no list"}}), "neither an OpenAI server (/v1/models) nor Triton"),
    ],
    ids=["slow-loris", "garbage", "other endpoint", "no usage", "loading", "another server"],
)
def test_a_server_that_cannot_be_measured(manners: Manners, says: str) -> None:
    with openai_server(manners) as server:
        assert says in failed(size(server.url, model=MODEL, timeout=0.5))
    assert Store().runs() == []


@pytest.mark.parametrize(
    ("url", "more", "says"),
    [
        ("http://127.0.0.1:9", {}, "no OpenAI server answers there"),
        ("127.0.0.1:9", {}, "127.0.0.1:9"),
        ("gpu 7", {}, "the URL: http://host:port"),
        ("http://127.0.0.1:9", {"rate": -1}, "must be a number above 0"),
        ("http://127.0.0.1:9", {"ttft": None, "itl": None}, "at least one limit"),
        ("http://127.0.0.1:9", {"minutes": 0}, "--minutes"),
        ("http://127.0.0.1:9", {"timeout": 0}, "--timeout"),
    ],
)
def test_what_cannot_be_asked(url: str, more: dict[str, Any], says: str) -> None:
    assert says in failed(size(url, **more))


@pytest.mark.parametrize(
    ("manners", "speaks"),
    [
        (Manners(), Answering("openai", (MODEL,))),
        (Manners(key=KEY), Answering("openai")),
        (Manners(pages={"/v1/models": {"no": "list"}, "/v2/health/live": {}}), Answering("http")),
        (Manners(raw=b"no page", pages={"/v1/models": {}, "/v2/health/live": {}}), Answering("http")),
    ],
    ids=["models", "wants a key", "Triton", "Triton with an empty page"],
)
def test_the_protocol_is_what_the_server_answers(manners: Manners, speaks: Answering) -> None:
    with openai_server(manners) as server:
        assert answering(ServerPlan(protocol="openai", url=server.url, model="m")) == speaks
        bare = server.url.removeprefix("http://")
        assert answering(ServerPlan(protocol="openai", url=bare, model="m")) == speaks
    with pytest.raises(
        ServerError, match=r"neither an OpenAI server nor Triton.* \(Connection refused\); start"
    ) as none:
        answering(ServerPlan(protocol="openai", url=bare, model="m"))
    assert "\n" not in str(none.value)


def test_a_grpc_port_is_known_by_its_answer() -> None:
    with subprocess_server(GrpcScript()) as url:
        assert answering(ServerPlan(protocol="openai", url=url, model="no such model")) == Answering("grpc")


def test_the_only_model_of_a_server_need_not_be_named() -> None:
    two = {"object": "list", "data": [{"id": "one"}, {"id": "two"}]}
    with openai_server(Manners(pages={"/v1/models": two})) as server:
        assert "the server lists one, two" in failed(size(server.url, model=None))
    with openai_server() as server:  # the next thing that is missing
        result = size(server.url, model=None, gpu=None)
        assert "give --gpu" in failed(result) and f"model {MODEL}, the only one" in result.stderr


def test_a_server_s_name_for_its_model_cannot_paint_the_terminal() -> None:
    name = "m\x1b[31m\nred"
    with openai_server(Manners(pages={"/v1/models": {"object": "list", "data": [{"id": name}]}})) as server:
        result = size(server.url, model=None, gpu=None)
        assert "\x1b" not in result.output and "model m [31m red, the only one" in result.output


def test_names_may_have_any_characters() -> None:
    """Beyond U+FFFF too, which JSON writes as two halves that YAML does not join."""
    name = "m😀 'x': #漢"
    with openai_server(Manners(pages={"/v1/models": {"object": "list", "data": [{"id": name}]}})) as server:
        result = size(server.url, model=name, gpu=None)
        assert "give --gpu" in failed(result)


def test_what_a_server_does_not_say_of_itself_is_asked_for() -> None:
    with openai_server() as server:
        assert "give --gpu" in failed(size(server.url, model=MODEL, gpu=None))
        assert "not a multiple of TP 4" in failed(size(server.url, model=MODEL, tp=4, gpus_per_replica=6))
