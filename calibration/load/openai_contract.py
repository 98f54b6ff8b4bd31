"""The contract of an OpenAI server: request bodies, and how tokens are counted in its streams.

Tokens are counted from what the server reports (`usage`), never from the number of responses: one response may carry
several tokens, none, or part of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from calibration.load.exchange import Reader
from calibration.load.http import events
from calibration.plan import Endpoint
from calibration.requests.source import PromptRequest
from calibration.requests.tokens import encoder_of
from sizing.points import MOST_INTERVAL, Scheduling
from sizing.workload import MOST_TOKENS

CountedBy = Literal["running", "total", "tokenizer"]
"""How tokens are counted: by the running count in each response, by the total at the end of an answer, or by the
tokenizer, from the text, if the server reports nothing."""
PATHS: Mapping[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

# --- The servers, distinguished by their answers, and their peculiarities
#
# vLLM, SGLang and TensorRT-LLM accept `ignore_eos` and `min_tokens` in addition to OpenAI's fields, and
# `stream_options` that put a running count of tokens into every response. llama.cpp has that in `timings`, and accepts
# no minimum. NIM is one of the engines behind a front end of its own. Any other server gets vLLM's fields or, if it
# refuses them, those of OpenAI's own service.

_VLLM_LIKE: Mapping[str, Any] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
PLAIN: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
RETURN_IDS: Mapping[str, Any] = {"return_token_ids": True}
"""vLLM's field for the token ids of an answer: tokenizing its text again may give other tokens."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A server program: its `name` in points, and its names in model listings (``owned_by``).

    `fields` are sent with every request; `minimum` names the field for the fewest tokens of an answer, "" for none.
    `version` is the page and key of its version; `limits` a page with settings, and its keys by column of the points
    table, of which `scheduling` reads how the engine schedules. `checks_ids`: it refuses token ids beyond its
    vocabulary, so they can be tried.
    """

    name: str
    owned_by: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=lambda: _VLLM_LIKE)
    minimum: str = "min_tokens"
    version: tuple[str, str] = ("/version", "version")
    limits: tuple[str, Mapping[str, str]] | None = None
    scheduling: Callable[[Mapping[str, Any]], Scheduling] | None = None
    checks_ids: bool = True


def scheduling_of_sglang(info: Mapping[str, Any]) -> Scheduling:
    """What SGLang's own settings say of its scheduler; of a setting that is not there, nothing.

    Prompts run apart, together at most `max_prefill_tokens`, one of them at most `chunked_prefill_size` unless that is
    below 1; with `enable_mixed_chunk` their chunks run beside the decodes. Unless `disable_overlap_schedule` each
    iteration is fixed while the one before runs. New requests are looked for every `scheduler_recv_interval` steps.

    >>> info = {"chunked_prefill_size": 8192, "enable_mixed_chunk": False, "max_prefill_tokens": 16384}
    >>> scheduling_of_sglang(info)[:2]
    ('prefill_first', 8192)
    """
    mixed, serial = info.get("enable_mixed_chunk"), info.get("disable_overlap_schedule")
    chunk, most = info.get("chunked_prefill_size"), info.get("max_prefill_tokens")
    interval = info.get("scheduler_recv_interval")
    sizes = [size for size in (chunk, most) if type(size) is int and 0 < size <= MOST_TOKENS]
    return Scheduling(
        policy=("prefill_first", "chunked")[mixed] if isinstance(mixed, bool) else "",
        token_budget=min(sizes) if sizes and type(chunk) is int else None,
        lookahead_steps=float(not serial) if isinstance(serial, bool) else None,
        receive_interval_steps=max(interval, 1) if type(interval) is int and interval <= MOST_INTERVAL else None,
    )


NIM = Kind("nim", (), version=("/v1/version", "release"))
"""Its model listing is that of the engine behind it, so it is recognised by its version page."""
UNKNOWN = Kind("", ())
KINDS = (
    Kind("vllm", ("vllm",)),
    Kind(
        "sglang",
        ("sglang",),
        version=("/get_server_info", "version"),
        limits=("/get_server_info", {"tp": "tp_size", "pp": "pp_size", "max_batch_size": "max_running_requests"}),
        scheduling=scheduling_of_sglang,
        checks_ids=False,  # 0.5.23 looks them up in the embedding, which ends its scheduler, and so the server
    ),
    Kind("trtllm", ("tensorrt_llm",)),
    Kind(
        "llama.cpp",
        ("llamacpp",),
        fields={"ignore_eos": True, "timings_per_token": True, "stream_options": {"include_usage": True}},
        minimum="",
        version=("/props", "build_info"),
        limits=("/props", {"max_batch_size": "total_slots"}),
    ),
)


def kind_of(owned_by: str) -> Kind:
    """The program whose model listing has this `owned_by`."""
    return next((kind for kind in KINDS if owned_by in kind.owned_by), UNKNOWN)


# --- One model of one server


@dataclass(frozen=True, slots=True)
class OpenAiContract:
    """The requests to `model` at `endpoint`, and how its answers are read.

    `fields` are sent with every request, under those of the plan's `body`; `minimum` names the field for the fewest
    tokens of an answer. `takes_token_ids`: prompts are sent as ids. `tokenizer`, a tokenizer.json, counts if
    `counted_by` says so. `prompts` is a remark on the ISL of the points. `keeps_alive`: a connection carries more than
    one request; otherwise each request has its own.
    """

    model: str
    endpoint: Endpoint
    fields: Mapping[str, Any]
    minimum: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    takes_token_ids: bool = False
    counted_by: CountedBy = "running"
    tokenizer: Path | None = None
    prompts: str = ""
    keeps_alive: bool = True

    @property
    def is_ensemble(self) -> bool:
        """False: there are no steps."""
        return False

    @property
    def exact(self) -> bool:
        """True if an answer of another length than requested is an error: unless the count is not the server's."""
        return self.counted_by != "tokenizer"

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the lengths and times of a point of this model."""
        found = [self.prompts] if self.prompts else []
        if self.counted_by == "total":
            found.append("tokens are reported per answer, not per response: they are spread evenly over its responses")
        if self.counted_by == "tokenizer":
            found.append("OSL is counted by the tokenizer: the server reports no token counts")
        return tuple(found)

    def values(self, request: PromptRequest) -> dict[str, Any]:
        """The JSON body of `request`."""
        chat = self.endpoint == "chat"
        ids = request.token_ids if self.takes_token_ids else None
        prompt: dict[str, Any] = (
            {"messages": [{"role": "user", "content": request.prompt}]}
            if chat
            else {"prompt": request.prompt if ids is None else list(ids)}
        )
        ours = {"model": self.model, **prompt, "max_tokens": request.osl, "stream": True}
        minimum = {self.minimum: request.osl} if self.minimum else {}
        sent = ours | dict(self.fields) | minimum | dict(self.body)
        return {name: value for name, value in sent.items() if value is not None}

    def reader(self) -> StreamReader:
        """How the answers are read."""
        return StreamReader(_GLANCES[self.counted_by], self.exact, self)


# --- Counting: by patterns instead of JSON, because answers beyond a bound are read while the load runs. In JSON, a
# quoted name with a colon is always a key: inside a string its quotes would be escaped.

_TOLD = re.compile(rb'"(?:completion_tokens|predicted_n)"\s*:\s*(\d{1,9})(?!\d)')
_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning|arguments)"\s*:\s*"(?!")')
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')


@dataclass(frozen=True, slots=True)
class StreamReader(Reader):
    """Reads the answers of one model. `count` alone is right for the first response, and positive for the last."""

    contract: OpenAiContract

    def counts(self, raw: Sequence[bytes]) -> Sequence[int]:
        if self.contract.counted_by == "running":
            return _increases([_told(response) for response in raw])
        texts = [bool(_TEXT.search(response)) for response in raw]
        if self.contract.counted_by == "total":
            total = max(map(_told, raw), default=0)
        else:
            total = encoder_of(self.contract.tokenizer, False).count("".join(map(text_of, raw)))
        return _spread(total, texts)


def _told(response: bytes) -> int:
    """Tokens of the answer up to this response, as the server reports them; 0 if it does not."""
    found = _TOLD.findall(response)
    return max(map(int, found), default=0)


def _running_glance(response: bytes) -> int:
    return _told(response) if _CHOICE.search(response) else 0


def _text_glance(response: bytes) -> int:
    return int(bool(_TEXT.search(response)))


_GLANCES = {"running": _running_glance, "total": _text_glance, "tokenizer": _text_glance}


def _increases(told: Sequence[int]) -> list[int]:
    found, before = [], 0
    for number in told:
        found.append(max(0, number - before))
        before = max(before, number)
    return found


def _spread(total: int, texts: Sequence[bool]) -> list[int]:
    """`total` tokens spread evenly over the responses with text. If there are more tokens than responses, the first
    responses get the odd ones; if there are fewer, the first and the last response get one.

    >>> _spread(5, [False, True, True]), _spread(2, [True, True, True])
    ([0, 3, 2], [1, 0, 1])
    """
    responses = sum(texts)
    if total >= responses:
        ends = [math.ceil(total * number / responses) for number in range(responses + 1)] if responses else []
        shares = [later - earlier for earlier, later in pairwise(ends)]
    else:
        places = {round(number * (responses - 1) / max(1, total - 1)) for number in range(total)}
        shares = [int(number in places) for number in range(responses)]
    left = iter(shares)
    return [next(left) if has_text else 0 for has_text in texts]


def tells_so_far(raw: Sequence[bytes]) -> bool:
    """Whether the events of an answer have a running count of tokens: the first one with text already has a count."""
    found = [(_said(event), _told(json.dumps(event).encode())) for event in events(b"".join(raw))]
    return next((told > 0 for text, told in found if text), False)


_IDS = re.compile(rb'"token_ids"\s*:\s*\[([\d\s,]*)\]')


def answer_ids(raw: Sequence[bytes]) -> tuple[int, ...]:
    """The token ids of an answer, from all its responses; () if they have none. By a pattern, as in counting.

    >>> answer_ids([b'data: {"choices": [{"prompt_token_ids": [7, 8], "token_ids": [5]}]}', b'{"token_ids": [6, 9]}'])
    (5, 6, 9)
    """
    return tuple(int(number) for ids in _IDS.findall(b"".join(raw)) for number in ids.split(b",") if number.strip())


def text_of(response: bytes) -> str:
    """The text in the events of a response, including reasoning and the arguments of tool calls."""
    return "".join(map(_said, events(response)))


def _said(event: Mapping[str, Any]) -> str:
    found: list[Any] = []
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            said = delta if isinstance(delta, dict) else choice
            found += [said.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
            calls = said.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                function = call.get("function") if isinstance(call, dict) else None
                found += [function.get("arguments")] if isinstance(function, dict) else []
    return "".join(part for part in found if isinstance(part, str))
