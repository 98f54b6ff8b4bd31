"""How prompts are divided over processes, and how the drivers are asked to send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.load.pool import Workers
from calibration.plan import ServerPlan
from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import PromptRequest, RequestSource
from tests.calibration.bench.conftest import CONTRACTS, FakeServer
from triton_tools.clients import replay
from triton_tools.clients.dataset import Given
from triton_tools.clients.replay import Again, First, Prompts, Target
from triton_tools.clients.synthetic import NormalLengths, random_prompts

ASKED = tuple(PromptRequest(f"prompt {number}", 2, 3) for number in range(7))
GRPC, HTTP = ServerPlan(), ServerPlan(protocol="http")
SOURCES: dict[str, Prompts] = {
    "given": Given(ASKED),
    "repeated": Given(ASKED).repeated(17),
    "again": Again(ASKED[0], 5),
    "first": First(RequestSource(LengthsPlan(isl=4, osl=2), None, False, (3,)), 9),
    "random": random_prompts(NormalLengths(5, 2, 4, 1), 11, vocabulary=30, seed=2),
}


@pytest.mark.parametrize("name", SOURCES)
@given(shards=st.integers(1, 5))
def test_shards_together_send_each_request_once(name: str, shards: int) -> None:
    whole = list(SOURCES[name].requests())
    parts = [list(SOURCES[name].requests(shard, shards)) for shard in range(shards)]
    together = [part[place] for place in range(len(parts[0])) for part in parts if place < len(part)]
    assert together == whole


def test_how_many_there_are() -> None:
    counts = {name: len(list(source.requests())) for name, source in SOURCES.items()}
    assert counts == {"given": 7, "repeated": 17, "again": 5, "first": 9, "random": 11}


def _target(server: FakeServer, plan: ServerPlan = GRPC) -> Target:
    return Target(plan, CONTRACTS["ensemble"], cast(Workers, server))


@pytest.mark.parametrize(("due_s", "users"), [([0.0, 0.0, 0.0], 3), ([0.5], 1), ([0.0, 0.1, 0.3], None)])
def test_what_is_due_at_once_is_a_burst_of_users_the_rest_an_open_loop(due_s: Sequence[float], users: Any) -> None:
    server = FakeServer()
    load = replay.send_when_due(_target(server), Given(ASKED), np.array(due_s))
    [(job, sent)] = server.jobs
    assert job.users == users
    assert (job.arrivals_s is None) == (users is not None)
    assert sent == list(ASKED[: len(due_s)])
    assert len(load.log) == len(due_s)


def test_in_a_burst_all_are_due_when_the_first_is_sent() -> None:
    load = replay.send_when_due(_target(FakeServer()), Given(ASKED), np.zeros(7))
    assert set(load.log.intended_s) == {load.log.sent_s.min()}
    assert replay.lateness_s(load) == pytest.approx(np.percentile(load.log.sent_s - load.log.sent_s.min(), 99))


def test_over_http_a_burst_goes_over_so_many_connections_as_the_clients_have() -> None:
    server = FakeServer()
    prompts = Given(ASKED).repeated(300)
    for plan, connections in ((HTTP, 128), (HTTP, 500), (GRPC, 128)):
        replay.send_when_due(_target(server, plan), prompts, np.zeros(300), connections=connections)
    assert [job.users for job, _ in server.jobs] == [128, 300, 300]
    [said] = replay.burst_notes(HTTP, np.zeros(300), 128)
    assert "at most 128 of 300" in said
    assert not replay.burst_notes(HTTP, np.zeros(300), 300)
    assert not replay.burst_notes(GRPC, np.zeros(300), 128)
    assert not replay.burst_notes(HTTP, np.arange(300.0), 128)


def test_requests_that_wait_for_a_connection_are_not_late() -> None:
    """Seven requests of 0.13 s over 3 connections: three are due at the start, the rest when they could be sent."""
    load = replay.send_when_due(_target(FakeServer(), HTTP), Given(ASKED), np.zeros(7), connections=3)
    assert load.log.intended_s.tolist() == load.log.sent_s.tolist()
    assert np.unique(load.log.sent_s, return_counts=True)[1].tolist() == [3, 3, 1]
    assert replay.lateness_s(load) == 0


def test_failures_of_the_warm_up_are_told() -> None:
    assert replay.warm_up(_target(FakeServer()), Given(ASKED)) == []
    [said] = replay.warm_up(_target(FakeServer(fail_every=5)), Given(ASKED))
    assert "2 of 10 warm-up requests failed" in said and "out of blocks" in said
    [said] = replay.warm_up(_target(FakeServer(fail_every=4)), Given(ASKED))
    assert said.endswith("the last with: out of blocks")  # the last to fail, not the last of all


def test_a_warm_up_answered_with_fewer_tokens_has_not_failed() -> None:
    assert replay.warm_up(_target(FakeServer(short_every=1)), Given(ASKED)) == []


def test_no_more_users_than_requests() -> None:
    server = FakeServer()
    replay.keep_in_flight(_target(server), Given(ASKED), 64, 5)
    assert server.jobs[0][0].users == 5
