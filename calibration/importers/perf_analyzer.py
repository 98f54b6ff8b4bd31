"""perf_analyzer's `-f` CSV, times in microseconds: a row a load level, E2E and the server's parts of it, no tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from calibration.errors import FileError
from calibration.importers.points import ImportedSummary, Times, measurement_of_summary
from calibration.importers.reading import CsvFile, Edge, KnownFacts, Offered, Row, Tokens, clean, number, unique
from calibration.records import Measurement

US = 1e-6
PARTS = (
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
)
CACHE_PARTS = ("Server Cache Hit", "Server Cache Miss")
ADDED_UP = "mean E2E is the sum of the mean parts of a request"
NO_TOKENS = "perf_analyzer knows no tokens: TTFT and ITL are empty, lengths are the caller's"
NO_DISTRIBUTION = "the file does not say how requests arrive: evenly, as is usual with perf_analyzer"
SERVER_PARTS = {
    "queue_mean_s": "Server Queue",
    "compute_input_mean_s": "Server Compute Input",
    "compute_infer_mean_s": "Server Compute Infer",
    "compute_output_mean_s": "Server Compute Output",
}


def recognises(file: CsvFile) -> bool:
    """Whether a CSV is perf_analyzer's."""
    return "Inferences/Second" in file.rows[0] and file.rows[0][0] in ("Concurrency", "Request Rate")


def read(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """One measurement a row. Raises FileError naming line and column, or the flags that are to be given."""
    header = file.rows[0]
    unique(header, f"{file.name}, line 1")
    if len(file.rows) < 2:
        raise FileError(f"{file.name}: no row below the header")
    return [
        _measurement(header, row, known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[1:], file.rows[1:], strict=True)
    ]


def _measurement(header: Row, row: Row, known: KnownFacts, where: str) -> Measurement:
    """Rows of a decoupled model end in a comma: one empty cell more than columns is no fault."""
    if len(row) < len(header) or any(row[len(header) :]):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(header)}; cut short?")
    cells = dict(zip(header, row, strict=False))
    load = _load(header[0], _value(cells, header[0], where), where)
    mean_us, note = _mean_e2e_us(cells, where)
    summary = ImportedSummary(
        source="perf_analyzer",
        load=load,
        usual_arrivals="constant",
        requests_per_s=_value(cells, "Inferences/Second", where),
        e2e=_e2e(cells, mean_us, where),
        notes=(NO_TOKENS, *([note] if note else []), *([NO_DISTRIBUTION] if load.open_loop else [])),
        server=_server(cells, where),
    )
    return measurement_of_summary(summary, known, where)


def _load(kind: str, value: float, where: str) -> Offered:
    if not value:
        raise FileError(f"{where}, column {clean(kind)!r}: 0 is no load")
    return Offered("concurrency" if kind == "Concurrency" else "constant_rate", value)


def _value(cells: dict[str, str], column: str, where: str) -> float:
    if not cells.get(column):
        raise FileError(f"{where}: column {column!r} is missing or empty")
    return number(cells[column], f"{where}, column {column!r}")


def _mean_e2e_us(cells: dict[str, str], where: str) -> tuple[float, str]:
    """The mean where ``--verbose-csv`` gave it, else the sum of the parts that a request's time is made of."""
    if cells.get("Avg latency"):
        return _value(cells, "Avg latency", where), ""
    cached = [_value(cells, part, where) for part in CACHE_PARTS if cells.get(part)]
    return sum(_value(cells, part, where) for part in PARTS) + sum(cached), ADDED_UP


def _e2e(cells: dict[str, str], mean_us: float, where: str) -> Times:
    names = [f"p{q} latency" for q in (50, 90, 95, 99)]
    return Times.of([mean_us, *(_value(cells, name, where) if cells.get(name) else None for name in names)], US)


def _server(cells: dict[str, str], where: str) -> dict[str, float]:
    found = {name: _value(cells, column, where) * US for name, column in SERVER_PARTS.items() if cells.get(column)}
    gpu = {
        "gpu_utilization_mean": "Avg GPU Utilization",
        "gpu_power_mean_w": "Avg GPU Power Usage",
        "gpu_memory_used_bytes": "Max GPU Memory Usage",
    }
    for name, column in gpu.items():
        values = _per_gpu(cells.get(column, ""), f"{where}, column {column!r}")
        if values:
            total = sum(values)
            found[name] = total / len(values) if name == "gpu_utilization_mean" else total
    return found


def _per_gpu(cell: str, where: str) -> list[float]:
    """Values of ``uuid:value;uuid:value;``."""
    parts = [part for part in cell.split(";") if part]
    return [number(part.rpartition(":")[2], where) for part in parts]


# --- Server-sent events of OpenAI-style servers, as perf_analyzer keeps them: which responses hold text; usage

MOST_PIECES = 20
"""Responses that an event may be spread over: all of them are looked at again with each."""
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")


class PromptDetails(Edge):
    cached_tokens: Tokens | None = None


class Usage(Edge):
    """Tokens as the server counts them."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens found in the prefix cache; None where the server does not tell them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Payload(NamedTuple):
    """Of a request: the model asked and the output length."""

    model: str | None = None
    osl: int | None = None


def payload_of(inputs: dict[str, Any]) -> Payload:
    """Model and length in a request's JSON payload; unknown where it cannot be read."""
    body = _object(inputs.get("payload"))
    length = body.get("max_completion_tokens") or body.get("max_tokens")
    model = body.get("model")
    return Payload(
        model if isinstance(model, str) else None,
        length if type(length) is int and 0 < length <= 10**7 else None,
    )


def events_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], Usage | None]:
    """Places of the responses that hold text, and the usage if the server told it.

    A response may hold several events, one place each, or end within one, which then counts where it is complete; one
    that is not after `MOST_PIECES` responses is dropped.
    """
    places, usage, rest, pieces = [], None, "", 0
    for place, output in enumerate(outputs):
        text = output.get("response")
        if not isinstance(text, str):
            continue
        *events, rest = _split(rest + text)
        pieces = 0 if events or not rest else pieces + 1
        rest = rest if pieces < MOST_PIECES else ""
        for event in events:
            body = _object(event)
            places += [place] if _has_text(body) else []
            usage = _usage(body) or usage
    return places, usage


def _split(text: str) -> list[str]:
    """The payloads of whole events and, last, what is left of an unfinished one.

    >>> _split('data: {"a": 1}\\n\\ndata: {"b"')
    ['{"a": 1}', 'data: {"b"']
    """
    *whole, last = text.replace("\r\n", "\n").split("\n\n")
    if last and (_object(_data(last)) or last.strip() == "data: [DONE]"):
        whole, last = [*whole, last], ""  # the blank line after an event is not always kept
    return [*(_data(event) for event in whole), last]


def _data(event: str) -> str:
    lines = [line.strip() for line in event.split("\n")]
    return "".join(line.removeprefix("data:").strip() for line in lines if not line.startswith((":", "event:", "id:")))


def _object(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _has_text(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta") or choice.get("message") or choice
        if isinstance(delta, dict) and any(delta.get(key) for key in TEXT_KEYS):
            return True
    return False


def _usage(body: dict[str, Any]) -> Usage | None:
    if not isinstance(body.get("usage"), dict):
        return None
    try:
        return Usage.model_validate(body["usage"])
    except ValidationError:
        return None


# --- Triton's responses as perf_analyzer keeps them: which hold tokens, how many where the server says it
#
# A tensor is written as a flat list, as a bare number where it has one element, and as "" where it has none.

EMPTY_TEXTS = ("", "[DONE]")
IDS = "output_ids"
TEXTS = ("text_output", "response")
ASKED = ("max_tokens", "request_output_len")
LONGEST = 10**7


def tokens_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Places of the responses that hold tokens, and how many each holds: none at all where any of them does not say.

    >>> tokens_of([{"output_ids": [5, 6]}, {"output_ids": 0}, {"output_ids": ""}])
    ([0, 1], [2, 1])
    >>> tokens_of([{"text_output": " the"}, {"text_output": ""}])
    ([0], [])
    """
    places, counts = [], []
    for place, output in enumerate(outputs):
        count = _count(output)
        if count or (count is None and _has_content(output)):
            places.append(place)
            counts.append(count)
    known = [count for count in counts if count is not None]
    return places, known if len(known) == len(places) else []


def asked_of(inputs: dict[str, Any]) -> int | None:
    """The output length that the request asked for, by any of its names; None where it names none."""
    for name in ASKED:
        value = inputs.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if type(value) is int and 0 < value <= LONGEST:
            return value
    return None


def _count(output: dict[str, Any]) -> int | None:
    """Tokens by their ids, of which those after ``sequence_length`` are padding; None where there are no ids."""
    if IDS not in output:
        return None
    ids, length = output[IDS], output.get("sequence_length")
    count = len(ids) if isinstance(ids, list) else int(type(ids) is int)
    return min(count, max(0, length)) if type(length) is int else count


def _has_content(output: dict[str, Any]) -> bool:
    """Whether the texts, or in a model with other names any output, hold something; a flag (BOOL) is no token."""
    values = [output[name] for name in TEXTS if name in output] or list(output.values())
    return any(_is_content(value) for value in values)


def _is_content(value: object) -> bool:
    if isinstance(value, str):
        return value not in EMPTY_TEXTS
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True
    return bool(value) and isinstance(value, list)
