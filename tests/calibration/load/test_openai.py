"""OpenAI servers: what is asked of them, how their tokens are counted, and how they are told apart."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from calibration.errors import CalibrationError, PlanError, ServerError
from calibration.load.exchange import Exchange, log_of
from calibration.load.http import reason
from calibration.load.loops import ask
from calibration.load.openai import HIDDEN, Met, known_name, meet
from calibration.load.openai_contract import KINDS, OpenAiContract, tells_so_far, text_of
from calibration.load.pool import Workers
from calibration.load.self_check import MOST_ADDED_TTFT_S, MOST_ITL_ERROR, job, until
from calibration.plan import ServerPlan
from calibration.records import RequestLog
from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import PromptRequest, RequestSource
from lab.mock.process import running
from lab.mock.service import Script
from sizing.points import Scheduling
from tests.calibration.openai_server import MODEL, Manners, OpenAiServer, openai_server

pytestmark = pytest.mark.timeout(120)
OSL = 12


def plan(server: OpenAiServer, **more: Any) -> ServerPlan:
    return ServerPlan(protocol="openai", url=server.url, model=MODEL, **{"timeout_s": 10.0} | more)


def met(server: OpenAiServer, tokenizer: Path | None = None, texts: bool = False, **more: Any) -> Met:
    return asyncio.run(meet(plan(server, **more), tokenizer, texts=texts))


def answers(server: OpenAiServer, found: Met, n: int = 1, isl: float = 20, **more: Any) -> RequestLog:
    source = RequestSource(LengthsPlan(isl=isl, osl=float(OSL)), None, False, (0,), found.seen)
    requests = source.requests()
    return asyncio.run(ask(plan(server, **more), found.contract, [next(requests) for _ in range(n)]))


def tokenizer_file(folder: Path) -> Path:
    words = [f"w{number}" for number in range(400)] + ["word"]
    made = Tokenizer(WordLevel({word: number for number, word in enumerate([*words, "?"])}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def test_prompts_are_ids_of_exactly_the_length_asked_and_lengths_are_forced() -> None:
    with openai_server() as server:
        found = met(server)
        before = len(server.bodies)
        log = answers(server, found, n=3)
        sent = server.bodies[before:]
    assert log.error == ("",) * 3
    assert log.tokens.tolist() == [OSL] * 3
    assert [len(body["prompt"]) for body in sent] == [20] * 3
    assert len({body["prompt"][0] for body in sent}) == 3
    for body in sent:
        assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["stream"]) == (OSL, OSL, True, True)


@pytest.mark.parametrize("per_event", [1, 3, 5])
@pytest.mark.parametrize("usage", ["running", "total"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tokens_are_counted_by_usage_however_many_an_event_carries(per_event: int, usage: Any, line_end: str) -> None:
    """12 tokens in events of 3 and 5: [3, 3, 3, 3] and [5, 5, 2]; where only their sum is told, [4, 4, 4]."""
    with openai_server(Manners(usage=usage, tokens_per_event=per_event, line_end=line_end)) as server:
        found = met(server)
        log = answers(server, found)
    assert log.error == ("",)
    told = {1: [1] * 12, 3: [3] * 4, 5: [5, 5, 2]}[per_event]
    assert log.chunk_tokens.tolist() == (told if usage == "running" else {1: told, 3: told, 5: [4] * 3}[per_event])
    assert bool(found.contract.notes) == (usage == "total")


@pytest.mark.parametrize("usage", ["running", "total"])
def test_an_answer_in_one_event_comes_when_the_event_does(usage: Any) -> None:
    """Not with the count, which a server that tells only the total sends 0.6 s later."""
    with openai_server(Manners(usage=usage, tokens_per_event=OSL, itl_s=0.05)) as server:
        log = answers(server, met(server))
    assert (log.error, log.chunk_tokens.tolist()) == (("",), [OSL])
    assert log.end_s[0] - log.first_token_s[0] >= 0.3, "however late a busy client stamps the first"


def test_a_total_that_comes_with_the_last_text_is_still_a_total() -> None:
    """All events in one packet, as a fast server's arrive."""
    text, usage = b'{"choices": [{"text": "a"}]}', b'{"choices": [], "usage": {"completion_tokens": 2}}'
    for packets in ([text, text, usage], [text + b"\n\ndata: " + text + b"\n\ndata: " + usage]):
        assert not tells_so_far([b"data: " + each + b"\n\n" for each in packets])
    assert tells_so_far([b'data: {"choices": [{"text": "a"}], "timings": {"predicted_n": 1}}\n\n'])


def test_tokens_of_reasoning_count_and_the_role_alone_is_no_token() -> None:
    for usage in ("running", "total"):
        manners = Manners(usage=usage, reasons=5, ttft_s=0.05)  # type: ignore[arg-type]
        with openai_server(manners) as server:
            found = met(server, endpoint="chat")
            log = answers(server, found, endpoint="chat")
        assert log.error == ("",)
        assert log.chunk_tokens.tolist() == [1] * OSL
        assert log.first_token_s[0] - log.sent_s[0] >= 0.05


@pytest.mark.parametrize("usage", ["running", "total"])
def test_tokens_of_a_tool_call_come_when_its_arguments_do(usage: Any) -> None:
    """Not all of them with the count at the end."""
    with openai_server(Manners(usage=usage, calls=True)) as server:
        found = met(server, endpoint="chat")
        log = answers(server, found, endpoint="chat")
    assert (log.error, log.chunk_tokens.tolist(), found.contract.counted_by) == (("",), [1] * OSL, usage)


def test_without_usage_the_tokenizer_counts_and_without_one_nothing_is_measured(tmp_path: Path) -> None:
    with openai_server(Manners(usage="none", tokens_per_event=4)) as server:
        with pytest.raises(ServerError, match="no token counts") as refused:
            met(server)
        found = met(server, tokenizer_file(tmp_path))
        log = answers(server, found)
    assert "\n" not in str(refused.value)
    assert log.chunk_tokens.tolist() == [4, 4, 4]
    assert not found.contract.exact
    assert any("counted by the tokenizer" in note for note in found.contract.notes)


def test_an_end_before_its_time_is_a_wrong_length() -> None:
    """A server that ignores ignore_eos."""
    with openai_server(Manners(stops_after=9)) as server:
        log = answers(server, met(server))
    assert log.error == (f"9 tokens in the answer where {OSL} were asked for",)


@pytest.mark.parametrize("per_word", [1, 2])
def test_text_is_made_to_length_by_the_servers_own_count(per_word: int) -> None:
    """7 tokens around each prompt: 27 are 20 words of one token, or 10 of two."""
    with openai_server(Manners(wraps=7, per_word=per_word, takes_ids=False)) as server:
        for endpoint in ("chat", "completions"):
            found = met(server, endpoint=endpoint)
            before = len(server.bodies)
            log = answers(server, found, isl=27, endpoint=endpoint)
            body = server.bodies[before]
            text = body["messages"][0]["content"] if endpoint == "chat" else body["prompt"]
            assert len(text.split()) == 20 // per_word
            assert (log.isl.tolist(), log.error) == ([27], ("",))
            assert (found.seen.added, found.seen.tokens_per_word) == (7, per_word)


def test_text_is_made_to_length_with_a_tokenizer_and_what_the_server_adds(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path)
    with openai_server(Manners(wraps=5)) as server:
        found = met(server, path, endpoint="chat")
        source = RequestSource(LengthsPlan(isl=30, osl=4), path, False, (0,), found.seen)
        request = next(source.requests())
        with pytest.raises(PlanError, match="the server adds 5 to each"):
            next(RequestSource(LengthsPlan(isl=5, osl=4), path, False, (0,), found.seen).requests())
    assert request.isl == 30
    assert len(Tokenizer.from_file(str(path)).encode(request.prompt).ids) == 25


def test_a_small_vocabulary_gets_small_ids_and_a_server_that_takes_none_gets_words() -> None:
    with openai_server(Manners(largest_id=600)) as server:
        found = met(server)
        answers(server, found)
        assert max(server.bodies[-1]["prompt"]) <= 600
    with openai_server(Manners(takes_ids=False)) as server:
        found = met(server)
        answers(server, found)
        assert isinstance(server.bodies[-1]["prompt"], str)
    assert not found.contract.takes_token_ids


def test_fields_that_are_refused_are_left_out() -> None:
    """As OpenAI's own service does with fields it does not know."""
    with openai_server(Manners(refuses=("ignore_eos", "min_tokens"), usage="total", owned_by="system")) as server:
        found = met(server)
        log = answers(server, found)
        assert not {"ignore_eos", "min_tokens"} & set(server.bodies[-1])
    assert log.tokens.tolist() == [OSL]
    assert "engine" not in found.said


def test_fields_and_headers_of_the_plan_are_sent_and_null_takes_one_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY", "token-of-the-gateway")
    body = {"temperature": 0.5, "chat_template_kwargs": {"enable_thinking": False}, "min_tokens": None}
    headers = {"X-Tenant": "blue", "X-Api-Key": "$GATEWAY"}
    with openai_server() as server:
        found = met(server, body=body, headers=headers)
        answers(server, found, body=body, headers=headers)
        sent, head = server.bodies[-1], server.heads[-1]
    assert (sent["temperature"], sent["chat_template_kwargs"]) == (0.5, {"enable_thinking": False})
    assert "min_tokens" not in sent
    assert "X-Tenant: blue\r\n" in head and "X-Api-Key: token-of-the-gateway\r\n" in head


INFO = {"version": "0.5.2", "tp_size": 4, "max_running_requests": 48, "api_key": "nobody's business"}


@pytest.mark.parametrize(
    ("owned_by", "pages", "said"),
    [
        ("vllm", {"/version": {"version": "0.11.0"}}, {"engine": "vllm", "engine_version": "0.11.0"}),
        ("vllm", {"/v1/version": {"release": "2.1.4", "api": "2"}}, {"engine": "nim", "engine_version": "2.1.4"}),
        ("sglang", {"/get_server_info": INFO}, {"engine": "sglang", "tp": "4", "max_batch_size": "48"}),
        ("tensorrt_llm", {"/version": {"version": "1.2.0"}}, {"engine": "trtllm", "engine_version": "1.2.0"}),
        ("llamacpp", {"/props": {"build_info": "b8681", "total_slots": 4}}, {"max_batch_size": "4"}),
        ("somebody", {"/version": b"<html>"}, {"model": MODEL}),
    ],
)
def test_servers_are_told_apart_by_what_they_answer(owned_by: str, pages: Any, said: dict[str, str]) -> None:
    with openai_server(Manners(owned_by=owned_by, pages=pages)) as server:
        found = met(server)
    assert said.items() <= found.said.items()
    assert "api_key" not in found.said


def test_a_model_that_the_catalogue_knows_only_by_its_checkpoint_has_that_name() -> None:
    """vLLM lists the checkpoint as `root`, SGLang has it among its settings."""
    card = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": "meta-llama/Llama-3.1-70B-Instruct"}
    for owned_by, pages in (
        ("vllm", {"/v1/models": {"object": "list", "data": [card]}}),
        ("sglang", {"/get_server_info": {"model_path": "/data/Llama-3.1-70B-Instruct/", "tp_size": 4}}),
    ):
        with openai_server(Manners(owned_by=owned_by, pages=pages)) as server:
            found = met(server).said["model"]
        assert found.rpartition("/")[2] == "Llama-3.1-70B-Instruct" and not found.startswith("/")


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B"),  # the server's own name is known
        ("prod", "/mnt/models"),
        ("prod", ""),
        ("prod", None),
        ("prod", {"path": "Qwen/Qwen3-32B"}),
    ],
)
def test_a_model_keeps_its_name_if_that_is_known_or_the_checkpoint_is_not(name: str, checkpoint: object) -> None:
    assert known_name(name, checkpoint) == name


# What llama-server b10434 said, byte for byte: a model of random weights, 4 slots of 2,048 tokens

LLAMA_CPP = Path(__file__).parent / "llama_cpp"


def llama_cpp(endpoint: str) -> Manners:
    pages = {
        f"/{path}": (LLAMA_CPP / file).read_bytes()
        for path, file in (("v1/models", "models.json"), ("props", "props.json"))
    }
    return Manners(pages=pages, raw=(LLAMA_CPP / f"{endpoint}.http").read_bytes(), one_each=True)


@pytest.mark.parametrize(("endpoint", "told"), [("completions", [1] * 8), ("chat", [1, 1, 2, 1, 1, 1, 1])])
def test_llama_cpp_tells_its_slots_their_length_and_its_tokens(endpoint: Any, told: list[int], tmp_path: Path) -> None:
    """A special token has no text: over chat the next event tells two. Chat: 32 words as 72 tokens."""
    tokenizer = tokenizer_file(tmp_path) if endpoint == "chat" else None
    with openai_server(llama_cpp(endpoint)) as server:
        where = ServerPlan(protocol="openai", url=server.url, model="tiny", endpoint=endpoint)
        found = asyncio.run(meet(where, tokenizer))
        source = RequestSource(LengthsPlan(isl=50, osl=8), tokenizer, False, (0,), found.seen)
        log = asyncio.run(ask(where, found.contract, [next(source.requests()) for _ in range(3)]))
    assert {"engine": "llama.cpp", "engine_version": "b1-7e4c0a9", "max_batch_size": "4"}.items() <= found.said.items()
    assert (found.longest_tokens, found.seen.added) == (2048, 40 if tokenizer else 0)
    assert (log.error, log.chunk_tokens.tolist()) == (("",) * 3, told * 3)


# What SGLang 0.5.23 said, byte for byte: random weights, a vocabulary of 2,048 ids. server_info.json is cut short.

SGLANG = Path(__file__).parent / "sglang"


def sglang(answer: str) -> Manners:
    pages = {
        f"/{path}": (SGLANG / file).read_bytes()
        for path, file in (("v1/models", "models.json"), ("get_server_info", "server_info.json"))
    }
    return Manners(pages=pages, raw=(SGLANG / f"{answer}.http").read_bytes(), one_each=True)


SERIAL = {  # what 0.5.23 said of itself with --chunked-prefill-size 256 --disable-overlap-schedule
    "chunked_prefill_size": 256,
    "max_prefill_tokens": 16384,
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": True,
    "scheduler_recv_interval": 1,
}


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (SERIAL, ("prefill_first", 256, 0.0, 1)),
        (SERIAL | {"chunked_prefill_size": -1, "disable_overlap_schedule": False}, ("prefill_first", 16384, 1.0, 1)),
        (SERIAL | {"enable_mixed_chunk": True, "max_prefill_tokens": 128}, ("chunked", 128, 0.0, 1)),
        (SERIAL | {"scheduler_recv_interval": 30}, ("prefill_first", 256, 0.0, 30)),
        (SERIAL | {"scheduler_recv_interval": 0}, ("prefill_first", 256, 0.0, 1)),
        (SERIAL | {"scheduler_recv_interval": 10**30}, ("prefill_first", 256, 0.0, None)),
        ({}, ("", None, None, None)),
        (dict.fromkeys(SERIAL, "many"), ("", None, None, None)),
        (dict.fromkeys(SERIAL, True), ("chunked", None, 0.0, None)),
        (SERIAL | {"chunked_prefill_size": 10**30, "max_prefill_tokens": -5}, ("prefill_first", None, 0.0, 1)),
    ],
)
def test_sglang_tells_how_it_schedules(info: Any, told: tuple[str, int | None, float | None, int | None]) -> None:
    with openai_server(Manners(owned_by="sglang", pages={"/get_server_info": info})) as server:
        assert met(server).scheduling == Scheduling(*told)


@pytest.mark.parametrize("usage", ["running", "total"])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_sglang_tells_its_limits_and_its_tokens(endpoint: Any, usage: str, tmp_path: Path) -> None:
    """Chat: 32 words as 34 tokens. A prompt of ids beyond its vocabulary would end the server."""
    tokenizer = tokenizer_file(tmp_path) if endpoint == "chat" else None
    with openai_server(sglang(endpoint + "_total" * (usage == "total"))) as server:
        where = ServerPlan(protocol="openai", url=server.url, model="tiny", endpoint=endpoint)
        found = asyncio.run(meet(where, tokenizer))
        source = RequestSource(LengthsPlan(isl=50, osl=8), tokenizer, False, (0,), found.seen)
        log = asyncio.run(ask(where, found.contract, [next(source.requests()) for _ in range(3)]))
        ids = [number for body in server.bodies if endpoint == "completions" for number in body["prompt"]]
    said = {"engine": "sglang", "engine_version": "0.5.23", "max_batch_size": "4", "tp": "1", "pp": "1"}
    assert said.items() <= found.said.items()
    assert (found.longest_tokens, found.seen.added) == (1024, 2 if tokenizer else 0)
    assert found.contract.counted_by == usage
    assert (log.error, log.chunk_tokens.tolist()) == (("",) * 3, [1] * 24)
    assert max(ids, default=0) < 2048


def test_sglang_says_why_a_request_is_too_long() -> None:
    with openai_server() as server:
        found = met(server)
        server.manners = sglang("too_long")
        log = answers(server, found)
    assert log.error[0].startswith("HTTP 400: Requested token count exceeds the model's maximum context length of 1024")
    assert "\n" not in log.error[0]


@pytest.mark.parametrize("one_each", [True, False])
def test_a_server_that_takes_one_request_a_connection_gets_one(one_each: bool) -> None:
    with openai_server(Manners(one_each=one_each)) as server:
        found = met(server)
        before = len(server.bodies)
        log = answers(server, found, n=3)
        heads = [head for head in server.heads if head.startswith("POST")][-3:]
    assert log.error == ("",) * 3 and len(server.bodies) == before + 3
    assert ["Connection: close\r\n" in head for head in heads] == [one_each] * 3


def test_a_server_that_is_loading_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibration.load.openai.BUSY_WAIT_S", 0.01)
    with openai_server(Manners(fails_first=2)) as server:
        log = answers(server, met(server))
    assert log.error == ("",)
    with openai_server(Manners(fails_first=99)) as server, pytest.raises(ServerError, match=r"HTTP 503.*loading the"):
        met(server)


@pytest.mark.parametrize("echoes", [True, False])
def test_a_key_comes_from_the_environment_and_is_never_shown(echoes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with openai_server(Manners(key="sk-right", echoes_key=echoes)) as server:
        monkeypatch.setenv("KEY", "sk-right")
        found = met(server, api_key_env="KEY")
        assert answers(server, found, api_key_env="KEY").error == ("",)
        monkeypatch.setenv("KEY", "sk-wrong")
        with pytest.raises(ServerError, match="HTTP 401, the key was not accepted") as refused:
            met(server, api_key_env="KEY")
        log = answers(server, found, api_key_env="KEY")
        with pytest.raises(ServerError, match=r"HTTP 401, it asks for a key: name its variable as server\.api_key_env"):
            met(server)
        monkeypatch.setenv("KEY", " ")
        with pytest.raises(PlanError, match="unset or empty: export it"):
            met(server, api_key_env="KEY")
    for text in (str(refused.value), *log.error):
        assert "sk-wrong" not in text and "\n" not in text
        assert (HIDDEN in text) == echoes
    assert log.error[0].startswith("HTTP 401")


@pytest.mark.parametrize("before", range(150, 300, 7))
def test_no_part_of_a_key_is_left_where_a_long_error_is_cut(before: int) -> None:
    key = "sk-0123456789abcdefghijklmnopqrstuvwxyz"
    said = f"{'x' * before}{key}{'y' * 600}"
    for body in (json.dumps({"error": {"message": said}}), said, json.dumps([said])):
        shown = reason(body.encode(), lambda text: text.replace(key, HIDDEN))
        assert len(shown) < len(said)
        assert key[:4] not in shown and key[-4:] not in shown


def certificate(folder: Path) -> Path:
    """A certificate of 127.0.0.1 by itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


def test_https_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with openai_server(tls=tls) as server:
        assert server.url.startswith("https://")
        log = answers(server, met(server, ca_file=str(pem)), ca_file=str(pem))
        assert log.error == ("",)
        with pytest.raises(ServerError, match=r"not trusted .*ca_file") as refused:
            met(server)
        (tmp_path / "none.pem").write_text("no certificate")
        for wrong in ("none.pem", "absent.pem"):
            with pytest.raises(PlanError, match=r"server.ca_file in the plan: .* cannot be read as certificates"):
                met(server, ca_file=str(tmp_path / wrong))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("manners", "says"),
    [
        (Manners(raw=b"\x00\x01garbage\r\n\r\n"), "does not speak HTTP"),
        (Manners(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\ndata: \xff\xfe\n\n\n\n"), "not a stream of events"),
        (
            Manners(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"choices": 1}'),
            "not a stream of events but '{\"choices\": 1}'",
        ),
        (Manners(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + b"data: [[[[[[[["), "not a stream of events"),
        (Manners(dribbles=True), "no complete answer within 0.5 s"),
        (
            Manners(raw=b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"),
            "set server.endpoint in the plan to chat",
        ),
        (Manners(refuses=("max_tokens",)), "refuses every kind of request"),
        (Manners(pages={"/v1/models": {"data": [{"id": "other"}]}}), "does not list a model 'toy', only other"),
        (Manners(pages={"/v1/models": [1, 2]}), "is not a list of models"),
        (Manners(pages={"/v1/models": b"[" * 100_000}), "is not a list of models"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_line(manners: Manners, says: str) -> None:
    with openai_server(manners) as server, pytest.raises(CalibrationError, match=says) as refused:
        met(server, timeout_s=0.5)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_connection_closed_half_way_is_an_error_of_its_request() -> None:
    with openai_server(Manners(cuts_after=3)) as server:
        found = met(server)
        server.bodies.extend([{}, {}])
        log = answers(server, found)
    assert log.error == ("UNAVAILABLE: the server closed the connection",)


def test_an_error_among_the_events_is_told_in_the_servers_words() -> None:
    with openai_server(Manners(largest_id=1)) as server:
        contract = OpenAiContract(MODEL, "completions", {}, takes_token_ids=True)
        log = asyncio.run(ask(plan(server), contract, [PromptRequest("", 2, OSL, (7, 8))]))
    assert log.error == ("out of vocabulary",)


# How answers are read, without a server

RUNNING = OpenAiContract(MODEL, "completions", {})
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@settings(max_examples=60, deadline=None)
@given(value=json_values)
@example(value=10**5000)
@example(value={"a": 1})
@pytest.mark.parametrize("counted_by", ["running", "total"])
def test_any_json_is_counted_or_passed_over(counted_by: Any, value: Any) -> None:
    try:
        content = json.dumps({"usage": {"completion_tokens": value}, "choices": value, "text": value})
    except ValueError:  # Python writes no integer of 5,000 digits
        content = '{"usage": {"completion_tokens": 1' + "0" * 5000 + "}}"
    raw = f"data: {content}\n\n".encode()
    reader = OpenAiContract(MODEL, "completions", {}, counted_by=counted_by).reader()
    exchange = Exchange(2, 4, 0, at_ns=[1], raw=[raw])
    reader.glance(exchange)
    log_of([exchange], reader)
    text_of(raw)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), tokens=st.integers(1, 10**6))
@example(text='"completion_tokens": 77', tokens=5)
@example(text='\\"completion_tokens\\": 77', tokens=5)
@example(text='{"choices": [{', tokens=5)
def test_what_an_answer_says_is_never_taken_for_a_count(text: str, tokens: int) -> None:
    content = {"choices": [{"index": 0, "text": text}], "usage": {"completion_tokens": tokens}}
    raw = f"data: {json.dumps(content)}\n\n".encode()
    assert RUNNING.reader().counts([raw]) == [tokens]
    assert text_of(raw) == text
    total = OpenAiContract(MODEL, "completions", {}, counted_by="total").reader()
    assert total.counts([raw]) == ([tokens] if text else [0])


@settings(max_examples=100, deadline=None)
@given(total=st.integers(0, 60), texts=st.lists(st.booleans(), max_size=20))
def test_a_total_is_spread_over_the_events_with_text(total: int, texts: list[bool]) -> None:
    """All of it, nowhere else, evenly; a lone event takes all, and first and last have some where two tokens came."""
    made = [json.dumps({"choices": [{"text": "a" if has_text else ""}]}) for has_text in texts]
    made.append(json.dumps({"choices": [], "usage": {"completion_tokens": total}}))
    reader = OpenAiContract(MODEL, "completions", {}, counted_by="total").reader()
    counts = reader.counts([f"data: {each}\n\n".encode() for each in made])
    shares = [count for count, has_text in zip(counts, texts, strict=False) if has_text]
    assert counts[-1] == 0 and not any(c for c, has_text in zip(counts, texts, strict=False) if not has_text)
    if shares:
        assert sum(shares) == total
        assert max(shares) - min(shares) <= 1
        assert total < 2 or (shares[0] and shares[-1])


def test_counts_that_fall_are_no_negative_tokens() -> None:
    raw = [b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": %d}}\n\n' % n for n in (3, 1, 4)]
    assert list(RUNNING.reader().counts(raw)) == [3, 0, 1]


def test_the_kinds_are_each_known_by_another_name() -> None:
    names = sorted(name for kind in KINDS for name in kind.owned_by)
    assert all(one != other for one, other in pairwise(names))


# Against known timings


@pytest.mark.parametrize(("users", "per_response"), [(8, 1), (16, 1), (16, 4)])
def test_what_is_measured_is_what_the_mock_did(users: int, per_response: int) -> None:
    """Within what the self-check allows, told from quantiles that a busy machine does not move."""
    script, osl = Script(ttft_s=0.03, itl_s=0.006, tokens_per_response=per_response), 48
    with running(script) as mock, Workers(1) as workers:
        load = workers.drive(job(mock, script.e2e_s(osl), users, osl, "openai"), until(2.0))
        truth = mock.truth().between(load.start_s, load.stop_s)
    log = load.log.where((load.log.sent_s >= load.start_s) & (load.log.sent_s < load.stop_s))
    assert not log.failed.any()
    assert set(log.tokens.tolist()) == {osl}
    assert set(log.first_chunk_tokens.tolist()) == {per_response}
    itl_s = (log.last_token_s - log.first_token_s) / (log.tokens - log.first_chunk_tokens)
    added_s = np.quantile(log.first_token_s - log.sent_s, 0.1) - np.quantile(truth.ttft_s, 0.1)
    assert 0 <= added_s <= MOST_ADDED_TTFT_S
    assert np.median(itl_s) == pytest.approx(np.median(truth.itl_s), rel=MOST_ITL_ERROR)
    assert len(truth) == pytest.approx(len(log), abs=users)
    inside = (load.log.end_s >= load.start_s) & (load.log.end_s < load.stop_s)
    late = (truth.final_sent_s >= load.stop_s).sum()
    assert inside.sum() == pytest.approx(len(truth) - late, abs=users)
