"""An OpenAI server with chosen manners, on a thread of its own: a word is a token, and so is an id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

MODEL = "toy"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Manners:
    """How the server answers; times in seconds.

    `usage`: the tokens so far with each event, once at the end, or never. `stops_after`: tokens after which an answer
    ends, whatever was asked; 0: as asked. `wraps`: tokens that it puts around a text, `per_word` tokens of a word.
    `refuses` names fields of a body that are answered with 400. `fails_first`: so many answers are a 503. `loads`: the
    list of models is, too, as of llama.cpp while it loads one. `reasons`: a chat's first tokens are reasoning. `calls`:
    its others are the arguments of a tool call. `raw`: sent as the whole answer, in place of one. `dribbles`: the
    answer never ends. `tires_after`: later answers end after 5 tokens. `metrics`: the page /metrics, with places for
    requests `served`, and 30 prompt tokens `looked_up` and 12 `hits` for each. `cuts_after`: the connection is closed
    after so many events, from the third request on. `one_each`: a connection carries one request, and is closed at the
    next, whatever its head promised. `tells_ids`: it knows `return_token_ids`.
    """

    owned_by: str = "vllm"
    usage: Literal["running", "total", "none"] = "running"
    tokens_per_event: int = 1
    ttft_s: float = 0.002
    itl_s: float = 0.001
    stops_after: int = 0
    takes_ids: bool = True
    largest_id: int = 50_000
    refuses: tuple[str, ...] = ()
    fails_first: int = 0
    loads: bool = False
    key: str = ""
    echoes_key: bool = False
    reasons: int = 0
    calls: bool = False
    wraps: int = 0
    per_word: int = 1
    raw: bytes = b""
    dribbles: bool = False
    cuts_after: int = 0
    one_each: bool = False
    tires_after: int = 0
    tells_ids: bool = False
    metrics: str = ""
    line_end: str = "\n"
    pages: dict[str, Any] = field(default_factory=dict)


class OpenAiServer:
    """`url` is http(s)://host:port; `bodies` are those of the requests, `heads` their head lines. `talk` is what was
    said so far, prompt and answer, of each answer with token ids."""

    def __init__(self, manners: Manners, port: int, scheme: str) -> None:
        self.manners = manners
        self.url = f"{scheme}://localhost:{port}"
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.talk: list[list[int]] = []
        self._failed = 0

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    if self.manners.one_each:
                        await reader.readuntil(b"\r\n\r\n")
                        break
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(lines.get("Content-Length", 0)))
        method, path, _ = head.split(" ", 2)
        manners = self.manners
        if manners.key and lines.get("Authorization") != f"Bearer {manners.key}":
            said = (
                f"Incorrect API key provided: {lines.get('Authorization', '')}" if manners.echoes_key else "no access"
            )
            return await self._page(writer, 401, {"error": {"message": said}})
        if method == "GET":
            return await self._get(writer, path)
        self.bodies.append(json.loads(body))
        head_line = b"Connection: close\r\n" if lines.get("Connection") == "close" else b""
        return await self._post(writer, path, self.bodies[-1], head_line) and not head_line

    async def _get(self, writer: asyncio.StreamWriter, path: str) -> bool:
        card = {"id": MODEL, "object": "model", "owned_by": self.manners.owned_by}
        pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": [card]}} | self.manners.pages
        if self.manners.loads:
            return await self._page(writer, 503, {"error": {"message": "Loading model"}})
        if path == "/metrics":
            served = len(self.bodies)
            pages[path] = self.manners.metrics.format(served=served, looked_up=30 * served, hits=12 * served).encode()
        return await self._page(writer, 200 if path in pages else 404, pages.get(path, {"detail": "Not Found"}))

    async def _page(self, writer: asyncio.StreamWriter, status: int, content: Any) -> bool:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True

    async def _post(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any], head_line: bytes) -> bool:
        manners, chat = self.manners, path.endswith("chat/completions")
        if self._failed < manners.fails_first:
            self._failed += 1
            return await self._page(writer, 503, {"error": {"message": "loading the model"}})
        if manners.raw:
            writer.write(manners.raw.replace(b"\r\n", b"\r\n" + head_line, 1))
            await writer.drain()
            return manners.one_each
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        wrong = next((name for name in manners.refuses if name in body), None)
        if isinstance(prompt, list):
            if not manners.takes_ids:
                wrong = "a prompt that is no string"
            elif max(prompt) > manners.largest_id:
                writer.write(HEAD + _chunk(b'data: {"error": {"message": "out of vocabulary"}}\n\ndata: [DONE]\n\n'))
                writer.write(b"0\r\n\r\n")
                return True
        if wrong is not None:
            return await self._page(writer, 400, {"object": "error", "message": f"{wrong} is not supported"})
        writer.write(HEAD.replace(b"\r\n", b"\r\n" + head_line, 1))
        sent = 0
        async for event in self._events(body, prompt, chat):
            if manners.cuts_after and len(self.bodies) > 2 and sent == manners.cuts_after:
                return False
            writer.write(_chunk(event))
            await writer.drain()
            sent += 1
        while manners.dribbles:
            writer.write(_chunk(b": still there\n"))
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _events(self, body: dict[str, Any], prompt: Any, chat: bool) -> AsyncIterator[bytes]:
        manners = self.manners
        words = len(prompt) if isinstance(prompt, list) else manners.per_word * len(prompt.split()) + manners.wraps
        tired = manners.tires_after and len(self.bodies) > manners.tires_after
        wanted = min(body["max_tokens"], 5 if tired else manners.stops_after or body["max_tokens"])
        told, said = 0, list[int]()

        def event(choices: list[Any], usage: bool) -> bytes:
            content: dict[str, Any] = {"id": "x", "model": MODEL, "choices": choices}
            if usage:
                content["usage"] = {"prompt_tokens": words, "completion_tokens": told, "total_tokens": words + told}
            return f"data: {json.dumps(content)}{manners.line_end * 2}".encode()

        running = manners.usage == "running"
        if chat:
            yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}}], running)
        await asyncio.sleep(manners.ttft_s)
        while told < wanted:
            new = min(manners.tokens_per_event, wanted - told)
            name = "reasoning_content" if told < manners.reasons else "content"
            told += new
            text = " word" * new
            choice: dict[str, Any] = {"delta": {name: text}} if chat else {"text": text}
            if chat and manners.calls and name == "content":
                choice = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
            if manners.tells_ids and body.get("return_token_ids"):
                choice |= {"prompt_token_ids": prompt} if told == new else {}
                choice["token_ids"] = [(7 * len(self.bodies) + place) % 997 for place in range(new)]
                said += choice["token_ids"]
            yield event([{"index": 0} | choice], running)
            await asyncio.sleep(manners.itl_s * new)
        self.talk.append([*prompt, *said] if said else [])
        yield event([{"index": 0, "delta": {}, "finish_reason": "length"}] if chat else [], manners.usage != "none")
        yield f"data: [DONE]{manners.line_end * 2}".encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@contextlib.contextmanager
def openai_server(manners: Manners | None = None, tls: ssl.SSLContext | None = None) -> Iterator[OpenAiServer]:
    """A server of these manners until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    found = OpenAiServer(manners or Manners(), 0, "https" if tls else "http")
    opened = asyncio.run_coroutine_threadsafe(_listening(found, tls), loop)
    listening = opened.result(10)
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(_closed(listening), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _listening(server: OpenAiServer, tls: ssl.SSLContext | None) -> asyncio.Server:
    found = await asyncio.start_server(server.speak, "127.0.0.1", 0, ssl=tls)
    server.url = server.url.replace(":0", f":{found.sockets[0].getsockname()[1]}").replace("localhost", "127.0.0.1")
    return found


async def _closed(listening: asyncio.Server) -> None:
    listening.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)  # the loop closes their sockets
