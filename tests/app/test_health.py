"""What probes are told: well only when a question was answered and the data can be read; never where the data is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing import catalog, planner
from sizing.budget import within
from sizing.candidates import law_of
from sizing.errors import CatalogueError, ScenarioError, TimeLimitReached
from sizing.files import resource
from ui import computing, health
from ui.health import Health
from ui.scenario import Scenario

WELL = {"planner": "ok", "catalogue": "ok", "store": "ok"}


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """GET of the endpoint of a server whose first question is answered by nobody: its turn comes in another test."""
    monkeypatch.setattr(planner, "plan", lambda *_: None)
    monkeypatch.setattr(computing, "find", lambda *_, **__: ((), ()))
    monkeypatch.setattr(health, "HOLDS_FOR_S", 0.0)
    server = Health()
    routes = [Route("/healthz", server.respond)]
    with TestClient(Starlette(routes=routes, lifespan=server.while_serving)) as client:
        yield lambda: client.get("/healthz")


def after_start(probe: Any) -> Any:
    """The first answer that is not "starting"."""
    deadline_s = time.monotonic() + 30
    while (answer := probe()).json()["planner"] == "starting" and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return answer


def test_all_is_well(probe: Any) -> None:
    answer = after_start(probe)
    assert answer.status_code == 200 and answer.json() == WELL


def test_a_store_that_cannot_be_reached_is_told_without_its_address(
    probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_start(probe)
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://who:secret@127.0.0.1:9/there")
    answer = probe()
    assert answer.status_code == 503 and answer.json() == WELL | {"store": "not reachable"}
    assert "127.0.0.1" not in answer.text and "secret" not in answer.text


def test_a_catalogue_that_cannot_be_read_is_told(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise CatalogueError("gpus.yaml: line 3")

    after_start(probe)
    monkeypatch.setattr(catalog, "gpus", broken)
    assert probe().json() == WELL | {"catalogue": "not readable"}


def test_a_store_that_hangs_does_not_hang_the_probe(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    after_start(probe)
    monkeypatch.setattr(health, "WITHIN_S", 0.05)
    monkeypatch.setattr(Store, "__init__", lambda self: time.sleep(0.5))
    answer = probe()
    assert answer.status_code == 503 and answer.json()["store"] == "too slow"


def test_many_probes_ask_the_store_once(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    after_start(probe)
    monkeypatch.setattr(health, "HOLDS_FOR_S", 3600.0)
    monkeypatch.setattr(Store, "__init__", lambda self: asked.append(1))
    assert [probe().status_code for _ in range(20)] == [200] * 20
    assert len(asked) == 1


def test_until_the_first_answer_the_server_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(Starlette(routes=[Route("/healthz", Health().respond)]))  # nothing has started
    answer = client.get("/healthz")
    assert answer.status_code == 503 and answer.json()["planner"] == "starting"


def test_the_first_question_is_really_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert computing.first_answer() == "ok"

    def refuse(*_: object) -> None:
        raise ScenarioError("no")

    monkeypatch.setattr(planner, "plan", refuse)
    assert computing.first_answer() == "no answer"


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points that are shipped, none of them fitted yet."""
    monkeypatch.setattr(computing, "SHIPPED", resource("data/curves"))
    law_of.cache_clear()


@pytest.mark.usefixtures("shipped")
def test_the_first_visitor_waits_for_no_fit() -> None:
    """The opening question rests on shipped points, to which the server has fitted the law by then."""
    assert computing.first_answer() == "ok"
    fitted = law_of.cache_info().misses
    have = computing.Available(tuple(computing.shipped_points(computing.SHIPPED)[0]), "shipped")
    found, _ = computing.found_for(Scenario().question, Scenario().choice, have)
    assert any(one.basis == "fitted" for one in found)
    assert law_of.cache_info().misses == fitted > 0


@pytest.mark.usefixtures("shipped")
def test_a_first_answer_beyond_its_time_is_asked_again_with_more() -> None:
    """The slow lane has it, for which a question without answer would be none."""
    with pytest.raises(TimeLimitReached), within(0.05):
        computing.first_answer()


def test_a_slow_first_answer_is_announced_and_its_end_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = threading.Event()
    monkeypatch.setattr(health, "SAID_AFTER_S", 0.0)
    monkeypatch.setattr(health, "first_answer_there", lambda: compiled.wait(60) and "ok")
    server = Health()
    routes = [Route("/healthz", server.respond)]
    with TestClient(Starlette(routes=routes, lifespan=server.while_serving)) as client:
        said = read_until(capsys, health.GETTING_READY)
        assert "Ready" not in said and not health.has_first_answer()
        compiled.set()
        health.wait_for_first_answer()
        read_until(capsys, "Ready after")
        assert after_start(lambda: client.get("/healthz")).status_code == 200
    assert health.has_first_answer()


def test_a_quick_first_answer_is_not_announced(probe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    after_start(probe)
    assert capsys.readouterr().err == ""


def test_a_server_that_stops_before_its_first_answer_keeps_no_page_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    monkeypatch.setattr(health, "first_answer_there", lambda: stopped.wait(60) and "ok")
    with TestClient(Starlette(lifespan=Health().while_serving)):
        assert not health.has_first_answer()
    assert health.has_first_answer()
    stopped.set()


def read_until(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What was said on stderr up to these words and a little further."""
    deadline_s, said = time.monotonic() + 30, ""
    while words not in said:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said


def test_a_page_that_has_to_wait_for_it_says_why(
    opened: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []

    @contextmanager
    def spinner(words: str = "", **_: object) -> Iterator[None]:
        story.append(words)
        yield

    monkeypatch.setattr(st, "spinner", spinner)
    monkeypatch.setattr(health, "has_first_answer", lambda: False)
    monkeypatch.setattr(health, "wait_for_first_answer", lambda: story.append("waited"))
    assert opened().title[0].value.startswith("You need")
    assert story[:2] == [health.GETTING_READY, "waited"]
