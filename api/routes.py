"""The HTTP API: `POST /api/v1/COMMAND` answers a question, `GET /api/v1/...` lists what can be asked about.

Stateless: an answer depends only on the question and on the program's version. Errors are problem details (RFC 9457)
with the one line of the command line.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from anyio import to_thread
from joblib import cpu_count
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from api.forked import Lost
from api.questions import COMMANDS, JsonQuestion, Refused, command, load, refusal, schema
from api.workers import Full, Workers
from calibration.errors import StoreError
from calibration.store import Store
from sizing import catalog
from sizing.candidates import by_deployment
from sizing.cli.shapes import finite_only
from sizing.errors import TimeLimitReached, one_line, quoted
from sizing.files import KeyTwiceError, each_key_once, resource, version
from sizing.points import COLUMNS, Deployment, Point, read_points
from ui import login
from ui.visit import limit_s

ROOT = "/api/v1"
KEYS_VARIABLE = "SIZING_API_KEYS"
WORKERS_VARIABLE = "SIZING_WORKERS"
LARGEST_BODY_BYTES = 4 << 20
"""A table of 10,000 points is half of it."""
DEEPEST = 64
"""Most levels of nested lists and objects in a body; a config.json has five."""
RETRY_AFTER_S = 5
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
"""Methods that are routed to an endpoint, which itself refuses the wrong ones."""
MOST_CASES = 16
WHOLE = ("tp", "pp", "max_batch_size")
"""Filters of points that are whole numbers."""
T = TypeVar("T")


class Problem(Exception):
    """A refusal as problem details: status, kind (the end of the problem's type), title, and one line of detail."""

    def __init__(self, status: int, kind: str, title: str, line: str) -> None:
        super().__init__(line)
        self.status, self.kind, self.title, self.line = status, kind, title, line

    def response(self) -> Response:
        """As problem details."""
        told = {"type": f"urn:sizing:{self.kind}", "title": self.title, "status": self.status, "detail": self.line}
        headers = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(told, self.status, headers, media_type="application/problem+json")


Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, method: str = "") -> Endpoint:
    """The endpoint behind the check of identity, for one method (empty: any); its errors are answered as problems."""

    async def respond(request: Request) -> Response:
        try:
            check_identity(request)
            if method and request.method != method:
                raise Problem(405, "method", "Method not allowed", f"{request.url.path} answers {method}")
            return await endpoint(request)
        except Problem as problem:
            response = problem.response()
            if method:
                response.headers["Allow"] = method
            return response
        except StoreError as error:
            return Problem(503, "store", "The points store is unavailable", one_line(str(error))).response()
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return respond


def check_identity(request: Request) -> None:
    """Raise Problem for a request without a key or a login, if the server has been given any."""
    keys = keys_as_set_up()
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() == "bearer" and is_among(given.strip(), keys):
        return
    if login.why_kept_out(request.cookies) or (keys and not login.is_set_up()):
        raise Problem(401, "key", "Not authorized", "send a key of this server: Authorization: Bearer KEY")


def keys_as_set_up() -> list[str]:
    """The keys of programs; none: no key is required.

    Raises ValueError if the setting is there but has no key in it, because that must not open the API.
    """
    text = os.environ.get(KEYS_VARIABLE, "")
    keys = text.replace(",", " ").split()
    if text and not keys:
        raise ValueError(f"{KEYS_VARIABLE} is {text!r}: give keys with commas between, or unset it")
    return keys


def is_among(given: str, keys: list[str]) -> bool:
    """True for one of the keys. Their digests are compared in constant time, so that timing reveals nothing."""
    digest = hashlib.sha256(given.encode()).digest()
    return any(hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys)


async def body_of(request: Request) -> Any:
    """The JSON of a request. Raises Problem if it is too large, too deep, or not JSON (NaN and infinities are not)."""
    announced = request.headers.get("content-length", "0")
    too_large = Problem(413, "size", "Too large", f"a question may have at most {LARGEST_BODY_BYTES >> 20} MiB")
    if announced.isascii() and announced.isdigit() and int(announced) > LARGEST_BODY_BYTES:
        raise too_large
    held = bytearray()
    async for part in request.stream():
        held += part
        if len(held) > LARGEST_BODY_BYTES:
            raise too_large
    if (sent := request.headers.get("content-type", "").partition(";")[0].strip().casefold()) != "application/json":
        raise Problem(415, "media-type", "Not JSON", f"send application/json, not {one_line(sent, 60) or 'nothing'}")
    try:
        found = json.loads(bytes(held), parse_constant=_no_number, object_pairs_hook=each_key_once)
        check_depth(found)
    except KeyTwiceError as error:
        raise Problem(400, "duplicate-key", "Duplicate key", one_line(f"the body: {error}")) from None
    except (ValueError, RecursionError) as error:
        raise Problem(400, "json", "Not JSON", one_line(f"the body is not JSON: {error}")) from None
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def check_depth(value: Any) -> None:
    """Raise ValueError for lists and objects nested more than `DEEPEST` levels deep."""
    level = [value]
    for _ in range(DEEPEST):
        nested = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [inner for each in nested for inner in each]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {DEEPEST} levels deep")


async def unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """The answer. If the client disconnects first, it is cancelled and ClientDisconnect raised."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    asked, left = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((asked, left), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ClientDisconnect
        return asked.result()
    finally:
        for task in (asked, left):
            task.cancel()


def answering(name: str, workers: Workers) -> Endpoint:
    """The endpoint of one command."""

    async def endpoint(request: Request) -> Response:
        question = question_of(name, await body_of(request))
        return Response(await unless_gone(request, answer(question, workers)), media_type="application/json")

    return endpoint


def question_of(name: str, body: Any) -> JsonQuestion:
    """The question in a body. Raises Problem for an invalid one."""
    if wrong := refusal(name, body):
        raise Problem(400, wrong.part, "Invalid question", wrong.line)
    return JsonQuestion.of(name, body)


async def answer(question: JsonQuestion, workers: Workers) -> bytes:
    """The answer as JSON. Raises Problem if there is none."""
    try:
        found = await workers.answer(question)
    except TimeLimitReached as error:
        raise Problem(422, "time-limit", "The question takes too long", one_line(str(error))) from None
    except Full as error:
        raise Problem(503, "full", "The server is full", str(error)) from None
    except Lost as error:
        raise Problem(500, "lost", "The answer was lost", str(error)) from None
    except Exception as error:
        logging.getLogger(__name__).exception("no answer to a question about %s", question.command)
        raise Problem(500, "lost", "The answer was lost", "computing it failed: the server's log says how") from error
    if isinstance(found, Refused):
        raise Problem(422, found.part, "The question cannot be answered", found.line)
    assert isinstance(found, bytes)
    return found


def comparing(workers: Workers) -> Endpoint:
    """The endpoint that answers several named plans at once, each as `plan` does or with its problem."""

    async def one(name: str, body: Any) -> tuple[str, bytes]:
        try:
            found = await answer(question_of("plan", body), workers)
        except Problem as problem:
            found = bytes(problem.response().body)
        return name, found

    async def endpoint(request: Request) -> Response:
        body = await body_of(request)
        cases = body["cases"] if isinstance(body, dict) and body.keys() == {"cases"} else None
        named = isinstance(cases, dict) and all(isinstance(case, dict) for case in cases.values())
        if cases is None or not named or not 1 <= len(cases) <= MOST_CASES:
            line = f"cases: give 1 to {MOST_CASES} questions of `plan` by name"
            raise Problem(400, "form", "Invalid question", line)
        found = await unless_gone(request, asyncio.gather(*(one(name, case) for name, case in cases.items())))
        parts = (json.dumps(name).encode() + b": " + answered for name, answered in found)
        return Response(b'{"cases": {' + b", ".join(parts) + b"}}", media_type="application/json")

    return endpoint


# --- What can be asked about


async def models(request: Request) -> Response:
    """The catalogue's models."""
    filters(request)
    kind: TypeAdapter[Any] = TypeAdapter(catalog.Model)
    return listed([kind.dump_python(model, mode="json") for model in catalog.models().values()])


async def gpus(request: Request) -> Response:
    """The catalogue's GPUs."""
    filters(request)
    kind: TypeAdapter[Any] = TypeAdapter(catalog.Gpu)
    return listed([{"name": name} | kind.dump_python(gpu, mode="json") for name, gpu in catalog.gpus().items()])


async def deployments(request: Request) -> Response:
    """Measured deployments, each with its number of points."""
    filters(request)
    found = by_deployment(await to_thread.run_sync(measured))
    return listed([key._asdict() | {"points": len(group)} for key, group in found.items()])


async def points(request: Request) -> Response:
    """Measured points of the store and of the shipped tables; query parameters filter by fields of the deployment."""
    asked = filters(request, Deployment._fields)
    found = await to_thread.run_sync(measured)
    kept = [each for each in found if all(_says(getattr(each, name), asked[name]) for name in asked)]
    return listed([{name: getattr(each, name) for name in COLUMNS} for each in kept])


def filters(request: Request, known: Sequence[str] = ()) -> dict[str, str]:
    """The query parameters of a list, by name. Raises Problem for one that is not `known`, that is there twice, or of
    which nothing can be true: that would be a whole list, or an empty one, to somebody who asked for something else."""
    asked = request.query_params
    for name, text in asked.multi_items():
        line = ""
        if name not in known:
            line = f"points are filtered by {', '.join(known)}" if known else "this list has no filters"
        elif len(asked.getlist(name)) > 1:
            line = "is there twice: give one"
        elif name in WHOLE and text and not re.fullmatch("[0-9]{1,9}", text):
            line = f"give a whole number, not {quoted(text)}"
        if line:
            raise Problem(400, "filter", "Not a filter", one_line(f"{name}: {line}"))
    return dict(asked)


def _says(value: object, text: str) -> bool:
    if isinstance(value, int) and text:
        return value == int(text)
    return ("" if value is None else str(value)).casefold() == text.casefold()


def measured() -> list[Point]:
    """The points of the store and of the shipped tables, each once, void ones left out."""
    shipped = [point for path in sorted(resource("data/curves").glob("*.csv")) for point in read_points(path)]
    return [point for point in dict.fromkeys((*shipped, *Store().points())) if not point.void]


def listed(entries: list[dict[str, Any]]) -> Response:
    """A list wrapped in an object, so that fields can be added later."""
    return JSONResponse({"count": len(entries), "items": finite_only(entries)})


# --- The description of all this: OpenAPI 3.1

LISTS: Mapping[str, Endpoint] = {"models": models, "gpus": gpus, "deployments": deployments, "points": points}
PROBLEMS = {
    "400": "The body is not JSON, or not a valid question.",
    "401": "The key is missing or is not one of this server's.",
    "405": "The method is not allowed: see Allow.",
    "413": "The body is too large.",
    "415": "The Content-Type is not application/json.",
    "422": "The question cannot be answered: out of range, unknown, or too expensive. `detail` says what to do.",
    "500": "The answer was lost.",
    "503": "Too many questions are in progress, or the store is unavailable: try again.",
}


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, Any] = {}
    for name in COMMANDS:
        about = (command(name).help or "").strip().replace("\n    ", "\n")
        paths[f"/{name}"] = {
            "post": {
                "operationId": name,
                "summary": about.partition("\n")[0],
                "description": about,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
                },
                "responses": {"200": _ok("What the command prints with --json.", {"type": "object"}), **_problems()},
            }
        }
    case = {"type": "object", "description": "A question of `plan`."}
    cases = {"type": "object", "additionalProperties": case, "minProperties": 1, "maxProperties": MOST_CASES}
    several = {"type": "object", "required": ["cases"], "properties": {"cases": cases}, "additionalProperties": False}
    paths["/compare"] = {
        "post": {
            "operationId": "compare",
            "summary": "Several plans at once, each by its name.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": several}}},
            "responses": {
                "200": _ok("By name, what `plan` answers, or its problem.", {"type": "object"}),
                **_problems(),
            },
        }
    }
    entries: dict[str, Any] = {"type": "object", "required": ["count", "items"]}
    entries["properties"] = {"count": {"type": "integer"}, "items": {"type": "array", "items": {"type": "object"}}}
    for name, endpoint in LISTS.items():
        about = (endpoint.__doc__ or "").strip()
        fields = [
            {"name": key, "in": "query", "schema": {"type": "integer" if key in WHOLE else "string"}}
            for key in Deployment._fields
        ]
        paths[f"/{name}"] = {
            "get": {
                "operationId": name,
                "summary": about.partition("\n")[0],
                "parameters": fields if name == "points" else [],
                "responses": {"200": _ok("The list.", entries), **_problems("400", "401", "503")},
            }
        }
    problem: dict[str, Any] = {"type": "object", "required": ["type", "title", "status", "detail"]}
    problem["properties"] = {key: {"type": "string"} for key in ("type", "title", "detail")}
    problem["properties"]["status"] = {"type": "integer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "LLM capacity planner", "version": version(), "license": {"name": "Apache-2.0"}},
        "servers": [{"url": ROOT}],
        "paths": paths,
        "components": {
            "schemas": {"problem": problem, **{name: dict(schema(name)) for name in COMMANDS}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _ok(about: str, form: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": dict(form)}}}


def _problems(*statuses: str) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/problem"}}}
    return {status: {"description": PROBLEMS[status], "content": content} for status in statuses or PROBLEMS}


async def openapi(_: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(description())


async def nothing_here(request: Request) -> Response:
    """Any other path."""
    posts, gets = ",".join((*COMMANDS, "compare")), ",".join((*LISTS, "openapi.json"))
    line = one_line(request.url.path, 100)
    raise Problem(404, "path", "Not found", f"{line}: there is POST {ROOT}/{{{posts}}} and GET {ROOT}/{{{gets}}}")


def processes() -> int:
    """Worker processes as the server is set up: by default one for each core that it may use (of a container fewer than
    there are), at least two.

    Raises ValueError if the setting is not a whole number above zero.
    """
    text = os.environ.get(WORKERS_VARIABLE) or str(max(2, cpu_count()))
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{WORKERS_VARIABLE} is {text!r}: give a whole number above zero, or unset it")
    return int(text)


def workers_as_set_up(*more: Callable[[], object]) -> Workers:
    """The pool of worker processes, with the time limit of a page. They start with everything loaded that questions to
    the API need, and with what the functions `more` load."""
    return Workers(processes(), limit_s(), load=(load, *more))


def routes(workers: Workers) -> list[BaseRoute]:
    """All routes of the API, below `ROOT`."""
    posts = {name: answering(name, workers) for name in COMMANDS} | {"compare": comparing(workers)}
    gets = {**LISTS, "openapi.json": openapi}
    endpoints = [
        *(Route(f"/{name}", guarded(endpoint, "POST"), methods=METHODS) for name, endpoint in posts.items()),
        *(Route(f"/{name}", guarded(endpoint, "GET"), methods=METHODS) for name, endpoint in gets.items()),
    ]
    return [Mount(ROOT, routes=[*endpoints, Route("/{path:path}", guarded(nothing_here), methods=METHODS)])]
