"""perf_analyzer's two files: the CSV of `-f` and the individual requests of `--profile-export-file`, of Triton and
OpenAI servers.

The CSV has one row per load level, with E2E and the server's parts of it in microseconds; it knows no tokens.

The export has the time of each response to a request. Triton's empty responses, at the start or as the final one,
hold no tokens and are dropped here. If the file has the tokens' ids or the server's usage, tokens are counted exactly,
and an answer of another length than requested voids the point. If it has only texts, each response with text counts as
one token, unless the caller gives the forced length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from calibration.errors import FileError
from calibration.importers.points import (
    EVEN_ARRIVALS,
    ImportedRun,
    ImportedSummary,
    SeenRequest,
    Times,
    measurement_of_run,
    measurement_of_summary,
)
from calibration.importers.reading import (
    CsvFile,
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Nanoseconds,
    Object,
    Offered,
    Positive,
    Row,
    Tokens,
    checked,
    clean,
    iso_time,
    number,
    unique,
)
from calibration.records import Measurement
from sizing.workload import PERCENTILES

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
SERVER_PARTS = {
    "queue_mean_s": "Server Queue",
    "compute_input_mean_s": "Server Compute Input",
    "compute_infer_mean_s": "Server Compute Infer",
    "compute_output_mean_s": "Server Compute Output",
}


def recognises_csv(file: CsvFile) -> bool:
    """Whether a CSV is perf_analyzer's."""
    return "Inferences/Second" in file.rows[0] and file.rows[0][0] in ("Concurrency", "Request Rate")


def read_csv(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """One measurement per row. Raises FileError naming the line and column at fault, or the missing flags."""
    header = file.rows[0]
    unique(header, f"{file.name}, line 1")
    if len(file.rows) < 2:
        raise FileError(f"{file.name}: no row below the header")
    return [
        _of_row(header, row, known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[1:], file.rows[1:], strict=True)
    ]


def _of_row(header: Row, row: Row, known: KnownFacts, where: str) -> Measurement:
    """The measurement of a row. Rows of a decoupled model end in a comma: an extra empty cell is not a fault."""
    if len(row) < len(header) or any(row[len(header) :]):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(header)}; cut short?")
    cells = dict(zip(header, row, strict=False))
    load = _row_load(header[0], _value(cells, header[0], where), where)
    mean_us, note = _mean_e2e_us(cells, where)
    summary = ImportedSummary(
        source="perf_analyzer",
        load=load,
        usual_arrivals="constant",
        requests_per_s=_value(cells, "Inferences/Second", where),
        e2e=_e2e(cells, mean_us, where),
        notes=(NO_TOKENS, *([note] if note else []), *([EVEN_ARRIVALS] if load.open_loop else [])),
        server=_server(cells, where),
    )
    return measurement_of_summary(summary, known, where)


def _row_load(kind: str, value: float, where: str) -> Offered:
    if not value:
        raise FileError(f"{where}, column {clean(kind)!r}: 0 is not a load")
    return Offered("concurrency" if kind == "Concurrency" else "constant_rate", value)


def _value(cells: dict[str, str], column: str, where: str) -> float:
    if not cells.get(column):
        raise FileError(f"{where}: column {column!r} is missing or empty")
    return number(cells[column], f"{where}, column {column!r}")


def _mean_e2e_us(cells: dict[str, str], where: str) -> tuple[float, str]:
    """The mean, if ``--verbose-csv`` wrote it, else the sum of the parts of a request's time; and the note about it."""
    if cells.get("Avg latency"):
        return _value(cells, "Avg latency", where), ""
    cached = [_value(cells, part, where) for part in CACHE_PARTS if cells.get(part)]
    return sum(_value(cells, part, where) for part in PARTS) + sum(cached), ADDED_UP


def _e2e(cells: dict[str, str], mean_us: float, where: str) -> Times:
    names = [f"p{q} latency" for q in PERCENTILES]
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
    """The values in a cell such as ``uuid:value;uuid:value;``."""
    parts = [part for part in cell.split(";") if part]
    return [number(part.rpartition(":")[2], where) for part in parts]


# --- Server-sent events of OpenAI servers as perf_analyzer stores them: which responses hold text, and the usage

MOST_PIECES = 20
"""Most responses that one event may be spread over: with each of them, all are parsed again."""
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
        """Prompt tokens found in the prefix cache; None if the server does not report them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Payload(NamedTuple):
    """What a request asked for: the model and the output length."""

    model: str | None = None
    osl: int | None = None


def payload_of(inputs: dict[str, Any]) -> Payload:
    """The model and the length in a request's JSON payload; None where they cannot be read."""
    body = _object(inputs.get("payload"))
    model, length = body.get("model"), _length(body.get("max_completion_tokens") or body.get("max_tokens"))
    return Payload(model if isinstance(model, str) else None, length)


def events_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], Usage | None]:
    """Places of the responses that hold text, and the usage if the server reported it.

    The place of a response with several events that hold text is there once for each. An event that is spread over
    several responses counts at the one that completes it; if `MOST_PIECES` responses do not, it is dropped.
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
    """The payloads of the complete events and, last, the beginning of an incomplete one.

    >>> _split('data: {"a": 1}\\n\\ndata: {"b"')
    ['{"a": 1}', 'data: {"b"']
    """
    *whole, last = text.replace("\r\n", "\n").split("\n\n")
    if last and (_object(_data(last)) or last.strip() == "data: [DONE]"):
        whole, last = [*whole, last], ""  # the blank line after an event is not always stored
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


# --- Triton's responses as perf_analyzer stores them: which hold tokens and, if the server says it, how many
#
# A tensor is written as a flat list; as a bare number if it has one element, and as "" if it has none.

EMPTY_TEXTS = ("", "[DONE]")
IDS = "output_ids"
TEXTS = ("text_output", "response")
ASKED = ("max_tokens", "request_output_len")
LONGEST = 10**7


def tokens_of(outputs: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Places of the responses that hold tokens, and how many each holds; no counts at all if one of them is unknown.

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
    """The output length that the request asked for, by any of its names; None if it asked for none."""
    for name in ASKED:
        value = inputs.get(name)
        if length := _length(value[0] if isinstance(value, list) and len(value) == 1 else value):
            return length
    return None


def _length(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= LONGEST else None


def _count(output: dict[str, Any]) -> int | None:
    """The number of token ids, without the padding after ``sequence_length``; None if the response has no ids."""
    if IDS not in output:
        return None
    ids, length = output[IDS], output.get("sequence_length")
    count = len(ids) if isinstance(ids, list) else int(type(ids) is int)
    return min(count, max(0, length)) if type(length) is int else count


def _has_content(output: dict[str, Any]) -> bool:
    """Whether a text, or any output of a model with other names, has content; a flag (BOOL) is not a token."""
    values = [output[name] for name in TEXTS if name in output] or list(output.values())
    return any(_is_content(value) for value in values)


def _is_content(value: object) -> bool:
    if isinstance(value, str):
        return value not in EMPTY_TEXTS
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True
    return bool(value) and isinstance(value, list)


# --- Individual requests

NS = 1e-9
ONE_EACH = "tokens are not counted in the file: one a response with text; give --osl N if the output length was forced"
FORCED = "output tokens as the caller says, shared evenly between a request's responses"


class ExportedLevel(Edge):
    """The load that was kept up: `mode` is concurrency or request_rate."""

    mode: str
    value: Positive


class ExportedRequest(Edge):
    """When the request was sent and answered, in nanoseconds of a wall clock, and what it and the answers held."""

    timestamp: Nanoseconds
    request_inputs: dict[str, Any] = Field(default_factory=dict)
    response_timestamps: Many[Nanoseconds] = Field(default_factory=list)
    response_outputs: Many[dict[str, Any]] = Field(default_factory=list)


class Experiment(Edge):
    experiment: ExportedLevel
    requests: Many[ExportedRequest]


class Export(Edge):
    experiments: Many[Experiment]
    version: str = ""
    service_kind: str = "triton"


def recognises(value: Object) -> bool:
    """Whether a JSON object is an export of perf_analyzer."""
    return "experiments" in value


def read(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """One measurement per experiment. Raises FileError naming the request and the key at fault."""
    export = checked(Export, file.value, file.name)
    if not export.experiments:
        raise FileError(f"{file.name}, key 'experiments': the list is empty")
    return [
        _measurement(export, experiment, known, f"{file.name}, experiment {place}")
        for place, experiment in enumerate(export.experiments, start=1)
    ]


def _measurement(export: Export, experiment: Experiment, known: KnownFacts, where: str) -> Measurement:
    if not experiment.requests:
        raise FileError(f"{where}: key 'requests': the list is empty")
    earliest_ns = min(request.timestamp for request in experiment.requests)
    openai = export.service_kind == "openai"
    answers = [
        _answer(request, openai, earliest_ns, f"{where}, request {place}")
        for place, request in enumerate(experiment.requests, start=1)
    ]
    model = next((answer.model for answer in answers if answer.model), "")
    run = ImportedRun(
        source=f"perf_analyzer {clean(export.version, 20)}".strip(),
        requests=[_seen(answer, known) for answer in answers],
        model=clean(model) or None,
        load=None if known.says_load else _load(experiment.experiment, where),
        measured_at=iso_time(earliest_ns * NS),
        notes=_notes(answers, known),
    )
    return measurement_of_run(run, known, where)


def _load(level: ExportedLevel, where: str) -> Offered:
    if level.mode == "concurrency":
        return Offered("concurrency", level.value)
    if level.mode == "request_rate":
        return Offered("constant_rate", level.value)
    raise FileError(
        f"{where}: key 'experiment.mode': {clean(level.mode, 40)!r} is not a load; give --concurrency or --rate"
    )


class Answer(NamedTuple):
    """A request and its answer, times in seconds; `tokens` is 0 if nothing counts them, `asked` 0 if unknown."""

    sent_s: float
    over_s: float
    chunk_s: tuple[float, ...]
    tokens: int
    chunk_tokens: tuple[int, ...]
    asked: int
    isl: int
    model: str | None
    cached: int | None = None


def _answer(request: ExportedRequest, openai: bool, earliest_ns: int, where: str) -> Answer:
    outputs = request.response_outputs
    if len(request.response_timestamps) != len(outputs):
        raise FileError(f"{where}: key 'response_outputs': its length is not that of 'response_timestamps'; cut short?")
    at_s = [(at_ns - earliest_ns) * NS for at_ns in request.response_timestamps]
    sent_s = (request.timestamp - earliest_ns) * NS
    if at_s != sorted(at_s) or (at_s and at_s[0] < sent_s):
        raise FileError(f"{where}: key 'response_timestamps': a time is before the request, or out of order")
    over_s = max([sent_s, *at_s])
    if not openai:
        places, counts = tokens_of(outputs)
        chunk_s, asked = tuple(at_s[place] for place in places), asked_of(request.request_inputs)
        return Answer(sent_s, over_s, chunk_s, sum(counts), tuple(counts), asked or 0, 0, None)
    places, usage = events_of(outputs)
    usage, payload = usage or Usage(), payload_of(request.request_inputs)
    chunk_s, tokens = tuple(at_s[place] for place in places), usage.completion_tokens or 0
    isl = usage.prompt_tokens or 0
    return Answer(sent_s, over_s, chunk_s, tokens, (), payload.osl or 0, isl, payload.model, usage.cached)


def _seen(answer: Answer, known: KnownFacts) -> SeenRequest:
    isl = round(known.isl or answer.isl)
    sent_s, chunk_s = answer.sent_s, answer.chunk_s
    if not chunk_s:
        return SeenRequest(sent_s, sent_s, answer.over_s, (), 0, isl, error="no tokens")
    if not answer.tokens:
        return SeenRequest(sent_s, sent_s, chunk_s[-1], chunk_s, round(known.osl or len(chunk_s)), isl)
    return SeenRequest(
        due_s=sent_s,
        sent_s=sent_s,
        end_s=chunk_s[-1],
        chunk_s=chunk_s,
        tokens=answer.tokens,
        isl=isl,
        osl=answer.asked or None,
        chunk_tokens=answer.chunk_tokens,
        cached=answer.cached,
    )


def _notes(answers: Sequence[Answer], known: KnownFacts) -> tuple[str, ...]:
    """How tokens were counted, if the server does not count them in every answer."""
    uncounted = [answer for answer in answers if answer.chunk_s and not answer.tokens]
    if not uncounted:
        return ()
    if known.osl:
        return (FORCED,)
    asked = sum(answer.asked for answer in uncounted) / len(uncounted)
    came = sum(len(answer.chunk_s) for answer in uncounted) / len(uncounted)
    if not asked or asked == came:
        return (ONE_EACH,)
    return (ONE_EACH, f"{asked:.4g} tokens were asked for and {came:.4g} responses came, on average")
