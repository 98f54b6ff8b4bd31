"""The planner as tools of a language model: ``sizing-mcp``, over standard input and output (Model Context Protocol).

A model reads every word it is given, so answers are the few figures that a person would quote, with unit, basis and
band; what lies behind them is a tool of its own (`explain`). Questions and refusals are those of the HTTP API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from api.forked import Lost
from api.questions import JsonQuestion, Refused, load, misfit, refusal, schema
from api.workers import Full, Workers
from sizing import catalog
from sizing.catalog import Layout
from sizing.errors import TimeLimitReached, one_line
from sizing.files import version
from sizing.numbers import with_unit
from sizing.plans import label_of
from sizing.text import counts

LIMIT_S = 120.0
"""CPU seconds for an answer: someone is waiting for it in a conversation."""
LISTED = 8
"""Most alternatives and rejections in an answer."""
ABOUT = (
    "Sizes GPU fleets for serving language models. `plan` answers how many GPUs N requests/s need under latency limits "
    "on percentiles, `capacity` what a given number of GPUs carries, `compare` several plans, `explain` what decides a "
    "plan, `list` the models and GPUs known. Quote counts with their band (gpus_low to gpus_high, 90 %) and basis: "
    "measured, fitted, extrapolated or estimated. Without a feasible fleet there is no count: say so."
)
Answer = dict[str, Any]


class NotAnswered(Exception):
    """A tool has no answer; one line says why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model can call: its description, the schema of its arguments, and the function that answers."""

    about: str
    form: Mapping[str, Any]
    answer: Callable[[Workers, Mapping[str, Any]], Awaitable[Answer]]


async def asked(workers: Workers, command: str, given: Mapping[str, Any]) -> Answer:
    """What the command answers."""
    if wrong := refusal(command, given):
        raise NotAnswered(wrong.line)
    try:
        found = await workers.answer(JsonQuestion.of(command, given))
    except TimeLimitReached as error:
        raise NotAnswered(one_line(str(error))) from None
    except (Full, Lost):
        raise NotAnswered("the server is busy or lost the answer: ask again, fewer questions at once") from None
    if isinstance(found, Refused):
        raise NotAnswered(found.line)
    answer: Answer = json.loads(found)
    return answer


FLEET = ("gpus", "gpus_low", "gpus_high", "replicas", "spare", "gpu", "tp", "pp", "dp", "ep", "precision", "engine")
"""Keys that describe a fleet in one line; parallel sizes of 1 are left out."""
SIZES = ("tp", "pp", "dp", "ep")
OF_ALL = ("goodput", "rejected_share")
"""Shares of all requests, if asked for or above zero."""
BAND = ("gpus_low", "gpus_high")
COST = (
    *("cost_per_hour", "cost_per_million_output_tokens"),
    *("power_kw_at_most", "kwh_per_million_output_tokens_at_most"),
)


def line_of(fleet: Mapping[str, Any]) -> Answer:
    """A fleet in one line, with the figures that are known; a shared fleet has no band."""
    figures = {key: fleet[key] for key in (*FLEET, "requests_per_s_per_gpu", "basis") if key in fleet}
    banded = figures.get("gpus_low") is not None
    return {
        key: value
        for key, value in figures.items()
        if not (key in SIZES and value == 1) and (banded or key not in BAND)
    }


def milliseconds(predicted: Mapping[str, Mapping[str, float | None]]) -> Answer:
    """Percentiles by metric in milliseconds."""
    return {
        f"{metric}_ms": {
            name.removesuffix("_s"): None if seconds is None else round(1000 * seconds, 1)
            for name, seconds in quantiles.items()
        }
        for metric, quantiles in predicted.items()
    }


def refused(answer: Mapping[str, Any]) -> Answer:
    """Why no fleet meets the SLA, the nearest misses first, and ways to meet it."""
    return {
        "feasible": False,
        "why": answer["why"],
        "nearest": left_out(answer),
        **picked(answer, "ways_out"),
    }


def left_out(answer: Mapping[str, Any]) -> list[str]:
    """The first configurations that were left out, and why."""

    def label(rejection: Mapping[str, Any]) -> str:
        layout = Layout(*(rejection[size] for size in SIZES))
        return label_of(rejection["gpu"], layout, rejection["precision"], rejection["engine"])

    return [f"{label(each)}: {each['why']}" for each in answer["rejected"][:LISTED]]


def picked(found: Mapping[str, Any], *keys: str) -> Answer:
    """Those of the keys that are there."""
    return {key: found[key] for key in keys if key in found}


def served(workload: Mapping[str, Any]) -> Answer:
    """What one of several workloads sees on the fleet that they share."""
    told = picked(workload, "name", "rate_per_s", "priority", "binding", "warnings")
    return told | {"predicted": milliseconds(workload["predicted"])}


def pools(found: Mapping[str, Any]) -> Answer:
    """Prefill and decode in pools of their own, or why there are none."""
    if "prefill" not in found:
        return {"feasible": False, "why": found["why"]}
    return {
        **picked(found, "gpus", "gpus_low", "gpus_high", "verified_by", "assumptions"),
        **{pool: line_of(found[pool]) for pool in ("prefill", "decode")},
        "predicted": milliseconds(found.get("predicted", {})),
    }


def tuned(found: Mapping[str, Any]) -> Answer:
    """The engine settings found, and the fleet with them."""
    told = picked(found, "policy", "max_batch_size", "token_budget", "gain")
    return told | {"fleet": found["fleet"] and line_of(found["fleet"])}


BESIDE: Mapping[str, Callable[[Any], Any]] = {
    "workloads": lambda found: [served(each) for each in found],
    "sessions": lambda found: {
        **picked(found, "sessions_in_flight", "sessions_per_s", "turns_per_s", "hit_rate", "gpus_per_100_in_flight"),
        "routings": {name: picked(seen, "hit_rate", "meets_sla") for name, seen in found["routings"].items()},
    },
    "disaggregated": pools,
    "mix": lambda found: found | {"groups": [line_of(each) | picked(each, "load_per_s") for each in found["groups"]]},
    "daily": lambda found: {
        **picked(found, "gpu_hours", "constant_gpu_hours", "saved"),
        "gpus_by_hour": [hour["gpus"] for hour in found["hours"]],
    },
    "tuned": tuned,
    "goodput_price": lambda found: found,
    "verification": lambda found: found["why"],
}
"""Parts of a plan beside its count, by their JSON keys, each reduced to the figures that one would quote."""


def beside(answer: Mapping[str, Any]) -> Answer:
    """What was asked for beside the count."""
    return {key: brief(answer[key]) for key, brief in BESIDE.items() if answer.get(key)}


def briefly(answer: Mapping[str, Any]) -> Answer:
    """A plan in the figures that one would quote."""
    if answer.get("feasible") is False:
        return refused(answer)
    told = ("sentence", "working", "binding", "tightest", "source", "verified_by", *COST, *OF_ALL)
    return {
        "feasible": True,
        **picked(answer, *told),
        **line_of(answer),
        **({"predicted": milliseconds(answer["predicted"])} if "predicted" in answer else {}),
        **beside(answer),
        "warnings": answer["warnings"],
        "alternatives": [line_of(fleet) for fleet in answer.get("alternatives", ())[:LISTED]],
    }


async def plan(workers: Workers, given: Mapping[str, Any]) -> Answer:
    """A plan."""
    return briefly(await asked(workers, "plan", given))


async def explain(workers: Workers, given: Mapping[str, Any]) -> Answer:
    """What decides a plan."""
    answer = await asked(workers, "plan", given)
    if answer.get("feasible") is False:
        return refused(answer)
    means = answer.get("mean_based")
    low, high = answer["gpus_low"], answer["gpus_high"]
    return {
        **picked(answer, "sentence", "working", "binding", "tightest", "basis", "source"),
        **({} if low is None else {"band": f"{with_unit(counts(low, high), 'GPUs')} (90 %)"}),
        **beside(answer),
        "sized_by_means": means and {"gpus": means["gpus"], "why": means["why"]},
        "gpus_if_changed": [
            {"what": row["name"], "changes": {f"{each['change']:+.0%}": each["gpus"] for each in row["effects"]}}
            for row in answer.get("sensitivity", ())
        ],
        "left_out": left_out(answer),
        "warnings": answer["warnings"],
    }


async def capacity(workers: Workers, given: Mapping[str, Any]) -> Answer:
    """What a fleet carries."""
    answer = await asked(workers, "capacity", given)
    if answer.get("feasible") is False:
        return refused(answer)
    told = ("rate_per_s", "rate_low_per_s", "rate_high_per_s", "unused_gpus", "binding", "source", "warnings", *OF_ALL)
    return {**line_of(answer), **picked(answer, *told), "predicted": milliseconds(answer["predicted"])}


async def compare(workers: Workers, given: Mapping[str, Any]) -> Answer:
    """Several plans."""

    async def one(case: Mapping[str, Any]) -> Answer:
        try:
            return await plan(workers, case)
        except NotAnswered as why:
            return {"error": str(why)}

    cases = given["cases"]
    found = await asyncio.gather(*map(one, cases.values()))
    return {"cases": dict(zip(cases, found, strict=True))}


async def listed(_: Workers, given: Mapping[str, Any]) -> Answer:
    """Names that can be asked about."""
    part = str(given.get("containing", "")).casefold()
    if given["what"] == "gpus":
        return {"gpus": [name for name in catalog.gpus() if part in name.casefold()]}
    return {"models": [name for name in catalog.models() if part in name.casefold()]}


CASES = {
    "type": "object",
    "properties": {"cases": {"type": "object", "additionalProperties": {"type": "object"}, "minProperties": 1}},
    "required": ["cases"],
    "additionalProperties": False,
}
WHAT = {
    "type": "object",
    "properties": {
        "what": {"enum": ["models", "gpus"]},
        "containing": {"type": "string", "description": "Part of the name."},
    },
    "required": ["what"],
    "additionalProperties": False,
}


def tools() -> dict[str, Tool]:
    """All tools by name."""
    limits = "Limits are written p95:1s (ttft), p95:30ms (itl), p99:20s (e2e)."
    return {
        "plan": Tool(f"The fewest GPUs that serve `rate` requests/s under the limits. {limits}", schema("plan"), plan),
        "explain": Tool(
            "What decides a plan: band, what binds, sizing by means beside it, GPUs if the load or a limit changes, "
            "what was left out and why. Takes what `plan` takes.",
            schema("plan"),
            explain,
        ),
        "capacity": Tool(f"Requests/s that `gpus` GPUs carry under the limits. {limits}", schema("capacity"), capacity),
        "compare": Tool("Several plans at once: `cases` are arguments of `plan` by name.", CASES, compare),
        "list": Tool("Models or GPUs known by name.", WHAT, listed),
    }


def server(workers: Workers) -> Server[Any]:
    """The server with all tools."""
    known = tools()

    async def list_tools(_: ServerRequestContext[Any], __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=tool.about, input_schema=dict(tool.form))
                for name, tool in known.items()
            ]
        )

    async def call_tool(_: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        try:
            if params.name not in known:
                raise NotAnswered(f"no tool {params.name!r}: there are {', '.join(known)}")
            tool = known[params.name]
            if wrong := misfit(tool.form, given):
                raise NotAnswered(wrong)
            found = await tool.answer(workers, given)
        except NotAnswered as why:
            text = types.TextContent(type="text", text=f"error: {why}")
            return types.CallToolResult(content=[text], is_error=True)
        text = types.TextContent(type="text", text=json.dumps(found, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=found)

    return Server(
        "sizing",
        version=version(),
        title="LLM capacity planner",
        instructions=ABOUT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve(workers: Workers) -> None:
    """Answer on standard input and output until the client closes it."""
    made = server(workers)
    try:
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())
    finally:
        workers.end()


def run() -> None:
    """The server, in this process."""
    asyncio.run(serve(Workers(2, LIMIT_S, load=(load,))))
