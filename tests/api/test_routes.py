"""The API over HTTP: answers, problems in one line, who may ask, and a description that machines can read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as some

from api import routes as api
from api.questions import COMMANDS, JsonQuestion, Refused
from api.workers import Workers
from calibration.records import Measurement
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store.bundle import import_measurements
from tests.api.conftest import QUESTION
from ui import login

Post = Callable[..., requests.Response]


def problem(response: requests.Response) -> tuple[int, str, str]:
    """Status, kind and line of a problem."""
    told = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert told["status"] == response.status_code and told["title"]
    assert "\n" not in told["detail"] and len(told["detail"]) < 300
    return told["status"], told["type"].removeprefix("urn:sizing:"), told["detail"]


def test_a_plan_is_answered(post: Post) -> None:
    answer = post("plan", QUESTION)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json()["gpus"] == answer.json()["replicas"] * answer.json()["tp"]


def test_no_fleet_is_an_answer_without_a_count(post: Post) -> None:
    answer = post("plan", QUESTION | {"itl": "p95:1ms"}).json()
    assert answer["feasible"] is False and answer["rejected"] and "gpus" not in answer


def test_plans_are_compared_by_name(post: Post) -> None:
    alone = post("plan", QUESTION).json()
    found = post("compare", {"cases": {"now": QUESTION, "wrong": QUESTION | {"rate": -1}}}).json()["cases"]
    assert found["now"] == alone and found["wrong"]["status"] == 400


def test_a_computation_that_fails_is_a_problem() -> None:
    """Which a comparison has beside its other answers."""

    class Failing(Workers):
        async def answer(self, question: JsonQuestion) -> bytes | Refused:
            raise MemoryError

    with pytest.raises(api.Problem) as failed:
        asyncio.run(api.answer(JsonQuestion.of("plan", QUESTION), Failing(1, 30.0)))
    told = failed.value.response()
    assert (told.status_code, failed.value.kind, told.media_type) == (500, "lost", "application/problem+json")


@pytest.mark.parametrize("cases", [{}, [], {"a": 1}, {str(number): QUESTION for number in range(17)}])
def test_what_is_no_comparison_is_refused(post: Post, cases: object) -> None:
    assert problem(post("compare", {"cases": cases}))[:2] == (400, "form")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"data": b"{"}, (400, "json")),
        ({"data": b""}, (400, "json")),
        ({"data": b'{"rate": NaN}'}, (400, "json")),
        ({"data": b'{"rate": Infinity}'}, (400, "json")),
        ({"data": b'{"model": "Qwen/Qwen3-32B", "rate": 20, "rate": 2}'}, (400, "duplicate-key")),
        ({"data": b"\xff\xfe"}, (400, "json")),
        ({"data": b"[" * 100_000 + b"]" * 100_000}, (400, "json")),
        ({"data": b"[" * 80 + b"]" * 80}, (400, "json")),
        ({"data": b"1" * 5000}, (400, "json")),
        ({"data": b" " * (api.LARGEST_BODY_BYTES + 1)}, (413, "size")),
        ({"data": iter([b" " * api.LARGEST_BODY_BYTES, b" "])}, (413, "size")),
        ({"data": b"{}", "headers": {"content-type": "text/plain"}}, (415, "media-type")),
        ({"json": {}}, (422, "question")),
        ({"json": {"model": 1}}, (400, "form")),
    ],
)
def test_what_is_no_question_has_its_problem(address: str, sent: dict[str, object], expected: tuple[int, str]) -> None:
    headers = {"content-type": "application/json"}
    given = {"headers": headers, **sent}
    assert problem(requests.post(f"{address}/plan", **given, timeout=60))[:2] == expected  # type: ignore[arg-type]


def test_what_is_not_a_filter_of_points_has_a_problem_of_its_own(address: str) -> None:
    answer = requests.get(f"{address}/points", params={"rate": "2"}, timeout=60)
    assert problem(answer)[:2] == (400, "filter")
    assert answer.json()["title"] == "Not a filter"


def test_lists_name_what_can_be_asked_about(address: str) -> None:
    lists = {name: requests.get(f"{address}/{name}", timeout=60).json() for name in api.LISTS}
    assert all(found["count"] == len(found["items"]) > 0 for found in lists.values())
    assert QUESTION["model"] in [model["id"] for model in lists["models"]["items"]]
    assert QUESTION["gpu"] in [gpu["id"] for gpu in lists["gpus"]["items"]]
    one = lists["deployments"]["items"][0]
    chosen = requests.get(f"{address}/points", {"model": one["model"].upper(), "tp": one["tp"]}, timeout=60).json()
    assert 0 < chosen["count"] <= lists["points"]["count"]
    assert requests.get(f"{address}/points", {"model": "none"}, timeout=60).json() == {"count": 0, "items": []}


def test_a_shipped_table_that_is_imported_too_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'calibration.db'}")
    shipped = api.measured()
    import_measurements(Store(), "again", [Measurement(point) for point in shipped])
    assert len(shipped) > 10 and api.measured() == shipped


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("points?tp=abc", "tp: give a whole number, not 'abc'"),
        ("points?max_batch_size=1.5", "max_batch_size: give a whole number, not '1.5'"),
        ("points?tp=1&tp=2", "tp: is there twice: give one"),
        ("deployments?model=none", "model: this list has no filters"),
        ("gpus?name=h200_sxm", "name: this list has no filters"),
        ("models?x", "x: this list has no filters"),
    ],
)
def test_a_filter_of_which_nothing_can_be_true_is_refused(address: str, query: str, line: str) -> None:
    """It would be a whole list, or an empty one, to somebody who asked for something else."""
    assert problem(requests.get(f"{address}/{query}", timeout=60)) == (400, "filter", line)


def test_a_whole_number_is_itself_however_it_is_written(address: str) -> None:
    one, also = (requests.get(f"{address}/points", {"tp": text}, timeout=60).json() for text in ("1", "01"))
    assert one == also and {each["tp"] for each in one["items"]} == {1}


@pytest.mark.parametrize(("path", "status"), [("points?colour=red", 400), ("nothing", 404), ("", 404), ("plan", 405)])
def test_other_paths_are_no_answers(address: str, path: str, status: int) -> None:
    assert requests.get(f"{address}/{path}", timeout=60).status_code == status


def test_a_wrong_path_is_told_all_that_there_are(address: str) -> None:
    described = requests.get(f"{address}/openapi.json", timeout=60).json()["paths"]
    told = problem(requests.get(f"{address}/nothing", timeout=60))[2]
    for method in ("post", "get"):
        listed = re.findall(rf"{method.upper()} /api/v1/{{(.*?)}}", told)[0].split(",")
        wanted = {path.removeprefix("/") for path, ways in described.items() if method in ways}
        assert wanted == set(listed) - {"openapi.json"}


def test_many_at_once_get_the_same_answer(post: Post) -> None:
    asked = QUESTION | {"rate": 21}
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda _: post("plan", asked).content, range(24)))
    assert len(set(answers)) == 1


def test_keys_are_asked_for_where_there_are_any(post: Post, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(api.KEYS_VARIABLE, "first-key, second-key")
    for wrong in ({}, {"authorization": "Bearer first"}, {"authorization": "Basic first-key"}, {"authorization": ""}):
        refused = requests.get(f"{address}/gpus", headers=wrong, timeout=60)
        assert problem(refused)[:2] == (401, "key") and refused.headers["www-authenticate"] == "Bearer"
        assert "first-key" not in refused.text
    for key in ("first-key", "second-key"):
        assert requests.get(f"{address}/gpus", headers={"authorization": f"bearer {key}"}, timeout=60).ok
    assert problem(post("plan", QUESTION))[0] == 401


@pytest.mark.parametrize("setting", [",", " ", " , ,"])
def test_a_setting_without_a_key_does_not_open_the_api(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(api.KEYS_VARIABLE, setting)
    with pytest.raises(ValueError, match=f"{api.KEYS_VARIABLE} is '{setting}'"):
        api.keys_as_set_up()


def test_with_a_login_a_request_needs_its_cookie_or_a_key(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "why_kept_out", lambda cookies: "" if cookies.get("who") == "ann" else "Log in first.")
    monkeypatch.setattr(login, "is_set_up", lambda: True)
    assert requests.get(f"{address}/gpus", timeout=60).status_code == 401
    assert requests.get(f"{address}/gpus", cookies={"who": "ann"}, timeout=60).ok
    monkeypatch.setenv(api.KEYS_VARIABLE, "key")
    assert requests.get(f"{address}/gpus", cookies={"who": "ann"}, timeout=60).ok
    assert requests.get(f"{address}/gpus", headers={"authorization": "Bearer key"}, timeout=60).ok


@given(some.text(), some.lists(some.text(min_size=1)))
def test_only_a_key_itself_is_a_key(given_key: str, keys: list[str]) -> None:
    keys = [key for key in keys if key.isascii()]
    assert not given_key.isascii() or api.is_among(given_key, keys) == (given_key in keys)


@given(
    some.recursive(
        some.none() | some.integers(), lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner)
    )
)
def test_depth_is_that_of_the_text(value: object) -> None:
    api.check_depth(value)
    deep = value
    for _ in range(api.DEEPEST):
        deep = [deep]
    with pytest.raises(ValueError, match="levels deep"):
        api.check_depth(deep)


def test_the_description_has_every_path(address: str) -> None:
    told = requests.get(f"{address}/openapi.json", timeout=60).json()
    assert told["openapi"].startswith("3.1")
    assert set(told["paths"]) == {f"/{name}" for name in (*COMMANDS, "compare", *api.LISTS)}
    for name in COMMANDS:
        body = told["paths"][f"/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["$ref"].rpartition("/")[2] in told["components"]["schemas"]
    json.dumps(told, allow_nan=False)


@pytest.mark.long
def test_no_request_that_schemathesis_finds_breaks_the_server_or_its_description(address: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--max-examples", "15"),
            *("--phases", "fuzzing", "--exclude-checks", "positive_data_acceptance", "--seed", "1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-6000:]


def test_workers_are_as_many_as_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine of 64 cores this process may use a few."""
    monkeypatch.delenv(api.WORKERS_VARIABLE, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64 + len(os.sched_getaffinity(0)))
    assert api.processes() == max(2, len(os.sched_getaffinity(0)))
