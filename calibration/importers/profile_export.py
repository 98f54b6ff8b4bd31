"""perf_analyzer's `--profile-export-file`: single requests with the time of each response; Triton and OpenAI servers.

Triton's empty responses, at the start or as the final one, are no tokens and are stripped here. Tokens are counted by
the server where the file holds their ids or the usage: an answer of another length than requested voids the point.
With texts only, each response with text counts as one token, unless the caller gives the forced length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field

from calibration.errors import FileError
from calibration.importers.perf_analyzer import Usage, asked_of, events_of, payload_of, tokens_of
from calibration.importers.points import ImportedRun, SeenRequests, measurement_of_run
from calibration.importers.reading import (
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Nanoseconds,
    Object,
    Offered,
    Positive,
    checked,
    clean,
    iso_time,
)
from calibration.records import Measurement

NS = 1e-9
ONE_EACH = "tokens are not counted in the file: one a response with text; give --osl N if the output length was forced"
FORCED = "output tokens as the caller says, shared evenly between a request's responses"


class ExportedLevel(Edge):
    """What was held: `mode` is concurrency or request_rate."""

    mode: str
    value: Positive


class ExportedRequest(Edge):
    """When it was sent and answered, nanoseconds of a wall clock, and what it held."""

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
    """Whether a JSON object is such an export."""
    return "experiments" in value


def read(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """One measurement an experiment. Raises FileError naming request and key at fault."""
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
        load=None if known.concurrency or known.rate else _load(experiment.experiment, where),
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
    """A request in the file, times in seconds: `tokens` is 0 where nothing counts them, `asked` 0 if unknown."""

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
        raise FileError(f"{where}: key 'response_outputs': not as many as 'response_timestamps'; cut short?")
    at_s = [(at_ns - earliest_ns) * NS for at_ns in request.response_timestamps]
    sent_s = (request.timestamp - earliest_ns) * NS
    if at_s != sorted(at_s) or (at_s and at_s[0] < sent_s):
        raise FileError(f"{where}: key 'response_timestamps': before the request, or not in order")
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


def _seen(answer: Answer, known: KnownFacts) -> SeenRequests:
    isl = round(known.isl or answer.isl)
    sent_s, chunk_s = answer.sent_s, answer.chunk_s
    if not chunk_s:
        return SeenRequests(sent_s, sent_s, answer.over_s, (), 0, isl, error="no tokens")
    if not answer.tokens:
        return SeenRequests(sent_s, sent_s, chunk_s[-1], chunk_s, round(known.osl or len(chunk_s)), isl)
    return SeenRequests(
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
    """How tokens were counted, where the server does not count them for every answer."""
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
