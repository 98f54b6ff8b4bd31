"""Servers of the OpenAI protocol: how one is probed before a run, and the connections that load it.

A few short requests find out what a server accepts: the richest first, plainer ones if it refuses. Each process reads
the key from the environment; nothing that contains it is written, sent between processes or shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.errors import KEY, PlanError, ServerError
from calibration.load.exchange import Exchange, Prepared, Reader, one_line
from calibration.load.http import Connection, HttpClient, events, reason
from calibration.load.openai_contract import (
    NIM,
    PATHS,
    PLAIN,
    RETURN_IDS,
    Kind,
    OpenAiContract,
    answer_ids,
    kind_of,
    tells_so_far,
    text_of,
)
from calibration.plan import ServerPlan
from calibration.requests.source import PromptRequest
from calibration.requests.tokens import AnyIds, CommonWords, ServerCount, encoder_of
from sizing import catalog
from sizing.points import UNSAID, Scheduling

HIDDEN = "[hidden]"
_ERRORS = (b'data: {"error"', b'data:{"error"', b'data: {"object":"error"', b'data: {"object": "error"')


class OpenAiClient(HttpClient):
    """Keep-alive connections, with TLS for https, that send the plan's headers and key.

    Raises PlanError if an environment variable is not set or the certificates cannot be read.
    """

    alive_page = "/v1/models"

    def __init__(self, server: ServerPlan) -> None:
        super().__init__(server)
        self.root = server.root
        self.secrets: tuple[str, ...] = ()
        self.headers = dict(self._headers(server))
        self.tls = _trusting(server.ca_file) if server.root.startswith("https:") else None
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        path = server.root.partition("://")[2].partition("/")[2]
        host = server.address.removesuffix(":443" if self.tls else ":80")
        self._head = (
            f"POST {'/' if path else ''}{path}{PATHS[server.endpoint]} HTTP/1.1\r\nHost: {host}\r\n{lines}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        )

    def _headers(self, server: ServerPlan) -> Iterator[tuple[str, str]]:
        for name, value in server.headers.items():
            yield name, self._secret(value[1:], f"server.headers.{name}") if value.startswith("$") else value
        if server.api_key_env is not None:
            yield "Authorization", f"Bearer {self._secret(server.api_key_env, 'server.api_key_env')}"

    def _secret(self, variable: str, key: str) -> str:
        """The value of a variable. Errors show neither, in case the key was written in place of the variable's name."""
        value = os.environ.get(variable, "").strip()
        if not value:
            raise PlanError(
                f"{KEY} names an environment variable that is unset or empty: export it, and run again", key
            )
        if not (value.isascii() and value.isprintable()):
            raise PlanError(f"{KEY}: the variable's value is not one line of ASCII text", key)
        self.secrets += (value,)
        return value

    def hide(self, text: str) -> str:
        """`text` without any key: a server may echo what it was sent."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def error_in(self, raw: Sequence[bytes]) -> str:
        """The error among the last events of an answer, "" if there is none."""
        for line in b"".join(raw[-3:]).splitlines():
            if line.startswith(_ERRORS):
                return reason(line.partition(b":")[2], self.hide)
        return ""

    def prepare(self, contract: Any, request: PromptRequest) -> Prepared:
        """`request` as the bytes of a POST."""
        body = json.dumps(contract.values(request)).encode()
        closing = "" if contract.keeps_alive else "Connection: close\r\n"
        head = f"{self._head}{closing}Content-Length: {len(body)}\r\n\r\n"
        follow = request.then

        def then(exchange: Exchange) -> tuple[float, Prepared] | None:
            if exchange.error or follow is None:
                return None
            ids = answer_ids(exchange.raw)
            if not ids:
                exchange.error = "the token ids of the answer are missing"
            if len(ids) != request.osl:
                return None
            think_s, following = follow(ids)
            return think_s, self.prepare(contract, following)

        sent = head.encode() + body
        return Prepared(b"", sent, request.isl, request.osl, request.turn, None if follow is None else then)

    def reader(self, contract: Any) -> Reader:
        """How the answers on these connections are read."""
        found: Reader = contract.reader()
        return found

    async def page(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a page, None if it is not JSON. Raises ServerError if the server does not answer."""
        status, body = await self._get(path)
        try:
            return status, json.loads(self.hide(body.decode()))
        except (ValueError, RecursionError):
            return status, None

    async def check_ready(self) -> None:
        """Raises ServerError if the server does not list the model."""
        await self.listed()

    async def listed(self) -> Mapping[str, Any]:
        """The model's entry in /v1/models. Raises ServerError if there is none, or if the key is refused."""
        url, model = self.server.url, self.server.model
        status, body = await self._get("/v1/models")
        if status != 200:
            raise self.refused(status, reason(body, self.hide))
        try:
            cards = json.loads(self.hide(body.decode()))["data"]
            known = {str(card["id"]): card for card in cards}
        except (ValueError, RecursionError, KeyError, TypeError):
            raise ServerError(f"{url}: not an OpenAI server: its /v1/models is not a list of models") from None
        if model not in known:
            others = f", only {', '.join(list(known)[:5])}; correct {KEY}" if known else ": it lists none yet"
            raise ServerError(f"{url} does not list a model {model!r}{others}", "server.model")
        found: Mapping[str, Any] = known[model]
        return found

    def refused(self, status: int, words: str) -> ServerError:
        """The error for an answer whose status is not 200."""
        if status in (401, 403):
            given = "the key was not accepted" if self.secrets else f"it asks for a key: name its variable as {KEY}"
            return ServerError(f"{self.server.url}: HTTP {status}, {given} ({words})", "server.api_key_env")
        return ServerError(f"{self.server.url}: HTTP {status}: {words}")

    def absent(self, error: OSError) -> ServerError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerError(
                f"{self.server.url}: its certificate is not trusted ({error.verify_message}); name the certificate of "
                f"its authority as {KEY}",
                "server.ca_file",
            )
        said = one_line(error.strerror or str(error) or "timed out")
        return ServerError(
            f"{self.server.url}: no OpenAI server answers there ({said}); start one, or correct {KEY}", "server.url"
        )


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    found = ssl.create_default_context()
    found.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        try:
            found.load_verify_locations(ca_file)
        except (OSError, ValueError) as error:  # of which ssl.SSLError is one
            said = getattr(error, "strerror", None) or str(error)
            raise PlanError(f"{KEY}: {ca_file} cannot be read as certificates ({said})", "server.ca_file") from None
    return found


# --- Probing a server: which program it is, and what its requests and answers may contain

TRIAL_OSL = 8
TRIAL_ISL = (32, 96)
"""Two lengths: their difference gives the tokens per word, the remainder the tokens around a prompt."""
IDS = ((1_000, 16_000), (100, 500))
"""Ids that every model with a usual vocabulary has, beyond special ones; and ids of a very small vocabulary."""
BUSY_TRIES = 5
BUSY_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Met:
    """A server that answers: its contract, and how it counts prompts. `said` is what it reports, by column of a point;
    `scheduling`, what it reports of its engine's scheduler.

    `longest_tokens`: prompt and answer together of the longest request that it accepts, if it reports that.
    """

    contract: OpenAiContract
    seen: ServerCount
    said: Mapping[str, str]
    longest_tokens: int | None = None
    scheduling: Scheduling = UNSAID


async def meet(server: ServerPlan, tokenizer: Path | None, *, texts: bool = False, sessions: bool = False) -> Met:
    """Find out what the server is and what it accepts. `texts`: prompts come from a data set, so they must be text.
    `sessions`: prompts repeat answers, so the server must accept token ids and return those of its answers.

    Raises ServerError, one line, if it cannot be measured, PlanError if the plan lacks a setting for it.
    """
    async with OpenAiClient(server) as client:
        card = await client.listed()
        kind, said, scheduling = await _introduced(client, card)
        if sessions:
            kind = replace(kind, fields={**kind.fields, **RETURN_IDS})
        trial = await _first_accepted(client, kind, tokenizer, texts)
        if sessions and not (trial.contract.takes_token_ids and len(answer_ids(trial.exchange.raw)) == TRIAL_OSL):
            raise ServerError(
                f"{server.url}: sessions repeat its answers token by token, but it accepts no token ids or does not "
                f"return those of its answers (return_token_ids, vLLM from 0.10.2 on): measure other lengths"
            )
        contract = replace(_counted(client, trial, tokenizer), keeps_alive=await _keeps_alive(client, trial, tokenizer))
        seen = trial.seen
        if not contract.takes_token_ids:
            contract, seen = await _measured(client, contract, trial, tokenizer)
    return Met(contract, seen, said, _longest(card), scheduling)


def _longest(card: Mapping[str, Any]) -> int | None:
    """Tokens of prompt and answer together: vLLM's key, or llama.cpp's, which is per slot."""
    meta = card.get("meta")
    found = card.get("max_model_len", meta.get("n_ctx") if isinstance(meta, dict) else None)
    return found if isinstance(found, int) and found > 0 else None


async def _introduced(client: OpenAiClient, card: Mapping[str, Any]) -> tuple[Kind, dict[str, str], Scheduling]:
    kind = kind_of(str(card.get("owned_by", "")))
    status, found = await client.page(NIM.version[0])
    if status == 200 and isinstance(found, dict) and NIM.version[1] in found:
        kind = replace(kind, name=NIM.name, version=NIM.version, limits=None, scheduling=None)
    said = {"model": known_name(client.server.model, card.get("root"))}
    said |= {"engine": kind.name, "batching": "in_flight"} if kind.name else {}
    said |= _values(await _page(client, kind.version[0]), {"engine_version": kind.version[1]})
    if kind.limits is None:
        return kind, said, UNSAID
    path, keys = kind.limits
    settings = await _page(client, path)
    said |= _values(settings, keys) | {"model": known_name(said["model"], settings.get("model_path"))}
    return kind, said, kind.scheduling(settings) if kind.scheduling else UNSAID


def known_name(name: str, checkpoint: object) -> str:
    """The model's name for its points: `name`, the server's own, unless the catalogue knows only the `checkpoint` that
    it serves under it (``--served-model-name``). Of a path to one its last part.

    >>> [known_name("prod", each) for each in ("Qwen/Qwen3-32B", "/models/Qwen3-32B/", "/models/ours")]
    ['Qwen/Qwen3-32B', 'Qwen3-32B', 'prod']
    """
    if not isinstance(checkpoint, str) or catalog.of_shape(name):
        return name
    organisation, _, last = checkpoint.rstrip("/").rpartition("/")
    found = last if "/" in organisation or checkpoint.startswith(("/", ".")) else checkpoint
    return found if catalog.of_shape(found) else name


async def _page(client: OpenAiClient, path: str) -> dict[str, Any]:
    """The JSON object at `path`; empty where there is none."""
    status, found = await client.page(path)
    return found if status == 200 and isinstance(found, dict) else {}


def _values(page: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, str]:
    given = {column: page.get(key) for column, key in keys.items()}
    return {column: str(value) for column, value in given.items() if isinstance(value, str | int) and value}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A request that the server answered, with its contract, and the connection that it left open."""

    contract: OpenAiContract
    seen: ServerCount
    exchange: Exchange
    connection: Connection


async def _first_accepted(client: OpenAiClient, kind: Kind, tokenizer: Path | None, texts: bool) -> _Trial:
    """The richest request that the server answers. Raises ServerError with the last refusal if it answers none."""
    server = client.server
    ranges = IDS if kind.checks_ids else IDS[-1:]
    ids = [ServerCount()] if tokenizer is not None else [ServerCount(ids=each) for each in ranges]
    prompts = [] if texts or server.endpoint == "chat" else [(True, seen) for seen in ids]
    prompts.append((False, ServerCount()))
    refusal = ""
    for fields, minimum in ((kind.fields, kind.minimum), (PLAIN, "")):
        for as_ids, seen in prompts:
            contract = OpenAiContract(server.model, server.endpoint, fields, minimum, server.body, as_ids)
            exchange, connection = await _asked(client, contract, _prompt(tokenizer, seen, TRIAL_ISL[0]))
            if not exchange.error:
                return _Trial(contract, seen, exchange, connection)
            status = connection.status
            if status in (401, 403, 404) or status >= 500 or not status:
                raise _unusable(client, status, exchange.error)
            refusal = exchange.error
    raise ServerError(f"{server.url}: it refuses every kind of request, the simplest with: {refusal}")


def _unusable(client: OpenAiClient, status: int, error: str) -> ServerError:
    words = error.partition(": ")[2] if error.startswith("HTTP") else error
    if status in (401, 403):
        return client.refused(status, words)
    if status == 404:
        other = "chat" if client.server.endpoint == "completions" else "completions"
        words = f"nothing at {PATHS[client.server.endpoint]} ({words}); set {KEY} to {other}"
        return ServerError(f"{client.server.url}: {words}", "server.endpoint")
    return ServerError(f"{client.server.url}: a first request failed: {error}")


async def _asked(client: OpenAiClient, contract: OpenAiContract, request: PromptRequest) -> tuple[Exchange, Connection]:
    """The answer, and the new connection on which it came. The request is repeated while the server reports that it is
    busy or loading."""
    for attempt in range(BUSY_TRIES):
        connection = client.stream(contract)
        exchange = await connection.exchange(client.prepare(contract, request))
        if connection.status not in (429, 503) or attempt == BUSY_TRIES - 1:
            break
        await asyncio.sleep(BUSY_WAIT_S)
    return exchange, connection


async def _keeps_alive(client: OpenAiClient, trial: _Trial, tokenizer: Path | None) -> bool:
    """Whether a second request on the connection of the first is answered.

    llama.cpp promises it (``Keep-Alive: timeout=5, max=100``), but accepts no more requests after a stream.
    """
    request = _prompt(tokenizer, trial.seen, TRIAL_ISL[0])
    exchange = await trial.connection.exchange(client.prepare(trial.contract, request))
    return bool(exchange.raw) or not exchange.error


def _prompt(tokenizer: Path | None, seen: ServerCount, tokens: int) -> PromptRequest:
    """A prompt of `tokens` tokens, or of common words if tokens are unknown; the same each time."""
    encoder = AnyIds(*seen.ids) if seen.ids else CommonWords() if tokenizer is None else encoder_of(tokenizer, False)
    stride = max(1, len(encoder.words) // tokens)
    text, ids = encoder.prompt([number * stride % len(encoder.words) for number in range(tokens)])
    return PromptRequest(text, tokens, TRIAL_OSL, ids)


def _counted(client: OpenAiClient, trial: _Trial, tokenizer: Path | None) -> OpenAiContract:
    """The contract with the best count that the trial's answer allows. Raises ServerError if it allows none."""
    url, contract, raw = client.server.url, trial.contract, trial.exchange.raw
    if not any(events(response) for response in raw):
        start = one_line(client.hide(b"".join(raw).decode("utf-8", "replace")))[:80]
        raise ServerError(f"{url}: its answer is not a stream of events but {start!r}")
    if tells_so_far(raw):
        return replace(contract, counted_by="running")
    if any(replace(contract, counted_by="running").reader().counts(raw)):
        has_text = any(map(text_of, raw))  # special tokens alone have no text, over which tokens could be spread
        return replace(contract, counted_by="total" if has_text else "running")
    if tokenizer is None:
        raise ServerError(f"{url}: its answers have no token counts (usage): name its tokenizer as {KEY}", "tokenizer")
    return replace(contract, counted_by="tokenizer", tokenizer=tokenizer)


async def _measured(
    client: OpenAiClient, contract: OpenAiContract, trial: _Trial, tokenizer: Path | None
) -> tuple[OpenAiContract, ServerCount]:
    """The tokens that the server adds to a text prompt and, without a tokenizer, how many tokens it counts per word."""
    short = _prompt_tokens(trial.exchange)
    if short is None:
        note = "" if tokenizer is not None else "ISL is words: the server does not report tokens of prompts"
        return replace(contract, prompts=note), ServerCount()
    if tokenizer is not None:
        added = max(0, short - TRIAL_ISL[0])
        note = f"ISL includes {added} tokens that the server adds to each prompt" if added else ""
        return replace(contract, prompts=note), ServerCount(added=added)
    exchange, _ = await _asked(client, contract, _prompt(None, trial.seen, TRIAL_ISL[1]))
    long = _prompt_tokens(exchange)
    if exchange.error or long is None or long <= short:
        said = exchange.error or "a longer prompt has no more tokens"
        raise ServerError(f"{client.server.url}: its tokens cannot be counted ({said}): name {KEY}", "tokenizer")
    per_word = (long - short) / (TRIAL_ISL[1] - TRIAL_ISL[0])
    added = max(0, round(short - per_word * TRIAL_ISL[0]))
    note = f"ISL is words by the server's own count: {per_word:.3g} tokens per word, {added} around each prompt"
    return replace(contract, prompts=note), ServerCount(added=added, tokens_per_word=per_word)


def _prompt_tokens(exchange: Exchange) -> int | None:
    for event in events(b"".join(exchange.raw)):
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
            return int(usage["prompt_tokens"])
    return None
