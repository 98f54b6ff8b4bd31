"""The planner as a language model's tools, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from api.mcp_server import BESIDE, server, tools
from api.questions import JsonQuestion
from api.workers import Workers
from tests.api.conftest import LIMIT_S, QUESTION

ROOT = Path(__file__).parents[2]
MOST_CHARACTERS = 6000
"""Of an answer: a page or two."""


Conversation = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def talk() -> Iterator[Callable[[Conversation], None]]:
    """Holds a conversation with the server in this process; all compute in one process, which takes long to start."""

    async def started() -> Workers:
        return Workers(1, LIMIT_S)

    async def held(conversation: Conversation) -> None:
        async with Client(server(workers)) as client:
            await conversation(client)

    with asyncio.Runner() as runner:
        workers = runner.run(started())
        try:
            yield lambda conversation: runner.run(held(conversation))
        finally:
            workers.end()


async def said(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    """What a tool answers: the same as text and as an object."""
    found = await client.call_tool(tool, given)
    assert not found.is_error, found.content
    (part,) = found.content
    assert part.type == "text" and json.loads(part.text) == found.structured_content
    assert len(part.text) <= MOST_CHARACTERS
    answer: dict[str, Any] = found.structured_content
    return answer


async def refused(client: Client, tool: str, **given: Any) -> str:
    """The line with which a tool refuses."""
    found = await client.call_tool(tool, given)
    (part,) = found.content
    assert found.is_error and part.type == "text" and "\n" not in part.text
    return part.text


def test_a_plan_is_told_as_the_api_has_it(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        whole = json.loads(JsonQuestion.of("plan", QUESTION).answer(LIMIT_S))  # type: ignore[arg-type]
        told = await said(client, "plan", **QUESTION)
        for key in ("gpus", "gpus_low", "gpus_high", "basis", "binding", "sentence", "power_kw_at_most"):
            assert told[key] == whole[key]
        assert told["predicted"]["itl_ms"]["p95"] == pytest.approx(1000 * whole["predicted"]["itl"]["p95_s"], abs=0.05)
        why = await said(client, "explain", **QUESTION)
        assert f"{whole['gpus_low']} to {whole['gpus_high']} GPUs" in why["band"]
        assert why["sized_by_means"]["gpus"] == whole["mean_based"]["gpus"]

    talk(conversation)


def test_without_a_fleet_there_is_no_count(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        for tool in ("plan", "explain"):
            told = await said(client, tool, **QUESTION | {"itl": "p95:1ms"})
            assert told["feasible"] is False and told["nearest"] and "gpus" not in told
            assert told["ways_out"][0].startswith("p95 TTFT") and told["ways_out"][1].startswith("p95 ITL: ")

    talk(conversation)


def test_plans_are_compared_and_fleets_asked_what_they_carry(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        told = await said(client, "compare", cases={"now": QUESTION, "wrong": QUESTION | {"gpu": "h1000"}})
        assert told["cases"]["now"] == await said(client, "plan", **QUESTION)
        assert "h1000" in told["cases"]["wrong"]["error"]
        fleet = {key: value for key, value in QUESTION.items() if key != "rate"}
        carried = await said(client, "capacity", gpus=told["cases"]["now"]["gpus"], **fleet)
        assert carried["rate_per_s"] >= QUESTION["rate"]
        assert None not in carried.values()
        assert 0.9 <= (await said(client, "plan", **QUESTION, goodput="90%"))["goodput"] <= 1

    talk(conversation)


def test_a_fleet_that_several_workloads_share_is_told_with_what_each_of_them_sees(
    talk: Callable[[Conversation], None],
) -> None:
    kinds = ["chat:isl=2000,osl=256,rate=5,ttft=p95:1s,itl=p95:30ms", "code:isl=1000,osl=50,rate=2,ttft=p95:500ms"]
    asked = {key: QUESTION[key] for key in ("model", "gpu", "precision", "tp", "engine")} | {"workload": kinds}

    async def conversation(client: Client) -> None:
        whole = json.loads(JsonQuestion.of("plan", asked).answer(LIMIT_S))  # type: ignore[arg-type]
        told = await said(client, "plan", **asked)
        assert told["gpus"] == whole["gpus"] and told["tightest"] == whole["tightest"]
        assert "gpus_low" not in told  # such a count has no band
        for one, seen in zip(told["workloads"], whole["workloads"], strict=True):
            assert (one["name"], one["binding"]) == (seen["name"], seen["binding"])
            assert one["predicted"]["ttft_ms"]["p95"] == pytest.approx(
                1000 * seen["predicted"]["ttft"]["p95_s"], abs=0.05
            )
        why = await said(client, "explain", **asked)
        assert why["workloads"] == told["workloads"] and "band" not in why
        both = await said(client, "compare", cases={"shared": asked, "alone": QUESTION})
        assert both["cases"]["shared"] == told and both["cases"]["alone"]["feasible"]

    talk(conversation)


def test_what_is_asked_for_beside_the_count_is_told(talk: Callable[[Conversation], None]) -> None:
    of_a_day = {key: value for key, value in QUESTION.items() if key != "rate"} | {"daily": [*[5] * 12, *[20] * 12]}
    both = {"gpu": ["h200_sxm", "h100_sxm"], "mix": True, "price": "h200_sxm=3.5,h100_sxm=2"}

    async def conversation(client: Client) -> None:
        for asked, key in (
            (QUESTION | {"disaggregated": True}, "disaggregated"),
            (QUESTION | both, "mix"),
            (of_a_day, "daily"),
            (QUESTION | {"tune": True}, "tuned"),
            (QUESTION | {"goodput_price": True}, "goodput_price"),
        ):
            whole = json.loads(JsonQuestion.of("plan", asked).answer(LIMIT_S))[key]  # type: ignore[arg-type]
            told = (await said(client, "plan", **asked))[key]
            if key == "disaggregated":
                assert told["gpus"] == whole["gpus"] == told["prefill"]["gpus"] + told["decode"]["gpus"]
            elif key == "mix":
                assert told["cost_per_hour"] == whole["cost_per_hour"]
                assert [each["gpus"] for each in told["groups"]] == [each["gpus"] for each in whole["groups"]]
            elif key == "daily":
                assert told["gpus_by_hour"] == [hour["gpus"] for hour in whole["hours"]]
            elif key == "tuned":
                assert told["fleet"]["gpus"] == whole["fleet"]["gpus"] and told["token_budget"] == whole["token_budget"]
            else:
                assert told == whole
            assert (await said(client, "explain", **asked))[key] == told

    talk(conversation)


def test_sessions_are_told_with_what_each_routing_finds() -> None:
    seen = {"hit_rate": 0.8, "meets_sla": True, "turns_per_s": 3.0}
    told = BESIDE["sessions"]({**seen, "routing": "affinity", "routings": {"affinity": seen, "random": seen}})
    assert told["routings"]["random"] == {"hit_rate": 0.8, "meets_sla": True}


def test_what_was_left_out_is_told_apart(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        nearest = (await said(client, "plan", **QUESTION | {"itl": "p95:1ms", "tp": "1,2"}))["nearest"]
        assert {" ".join(each.partition(":")[0].split()[1:]) for each in nearest} == {
            "TP1 fp8 trtllm",
            "TP2 fp8 trtllm",
        }

    talk(conversation)


def test_names_are_listed(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        assert QUESTION["model"] in (await said(client, "list", what="models", containing="qwen3"))["models"]
        assert QUESTION["gpu"] in (await said(client, "list", what="gpus"))["gpus"]
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == list(tools())
        assert all(tool.description and tool.input_schema["type"] == "object" for tool in listed)

    talk(conversation)


def test_what_cannot_be_asked_is_refused_in_one_line(talk: Callable[[Conversation], None]) -> None:
    async def conversation(client: Client) -> None:
        assert "minimum" in await refused(client, "plan", **QUESTION | {"rate": -1})
        assert "did you mean h100" in await refused(client, "plan", **QUESTION | {"gpu": "h10_sxm"})
        assert "cannot name a file" in await refused(client, "plan", **QUESTION | {"model": "/etc/model"})
        assert "what" in await refused(client, "list")
        assert "cases" in await refused(client, "compare", cases={})
        assert "there are plan, " in await refused(client, "nothing")

    talk(conversation)


@pytest.mark.long
def test_the_program_answers_over_its_standard_streams() -> None:
    async def conversation() -> None:
        program = StdioServerParameters(command=sys.executable, args=["-m", "api"], cwd=ROOT)
        async with Client(program) as client:
            assert client.server_info.name == "sizing"
            assert (await said(client, "plan", **QUESTION))["gpus"] > 0

    asyncio.run(conversation())
