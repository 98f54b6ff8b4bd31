"""perf_analyzer's `--profile-export-file`: single requests with the time of each response; Triton and OpenAI servers.

Triton's empty responses, at the start or as the final one, are no tokens and are stripped here. The file has texts, not
token counts: each response with text counts as one token, unless the caller says the output length that was forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from calibration.errors import FileError
from calibration.importers.content import JsonFile, Object
from calibration.importers.edge import Edge, Nanoseconds, Positive, checked, clean, iso_time
from calibration.importers.known import Known, Offered
from calibration.importers.openai_stream import Payload, events_of, payload_of
from calibration.importers.rebuild import Run, Seen, measurement
from calibration.records import Measurement

NS = 1e-9
ONE_EACH = "tokens are not counted in the file: one a response with text; give --osl N if the output length was forced"
FORCED = "output tokens as the caller says, shared evenly between a request's responses"
EMPTY_OUTPUTS = ("", "[DONE]")


class Level(Edge):
    """What was held: `mode` is concurrency or request_rate."""

    mode: str
    value: Positive


class Request(Edge):
    """When it was sent and answered, nanoseconds of a wall clock, and what it held."""

    timestamp: Nanoseconds
    request_inputs: dict[str, Any] = Field(default_factory=dict)
    response_timestamps: Sequence[Nanoseconds] = ()
    response_outputs: Sequence[dict[str, Any]] = ()


class Experiment(Edge):
    """One load level."""

    experiment: Level
    requests: Sequence[Request]


class Export(Edge):
    """The whole file."""

    experiments: Sequence[Experiment]
    version: str = ""
    service_kind: str = "triton"


def recognises(value: Object) -> bool:
    """Whether a JSON object is such an export."""
    return "experiments" in value


def read(file: JsonFile, known: Known) -> list[Measurement]:
    """One measurement an experiment. Raises FileError naming request and key at fault."""
    export = checked(Export, file.value, file.name)
    if not export.experiments:
        raise FileError(f"{file.name}, key 'experiments': the list is empty")
    return [
        _measurement(export, experiment, known, f"{file.name}, experiment {place}")
        for place, experiment in enumerate(export.experiments, start=1)
    ]


def _measurement(export: Export, experiment: Experiment, known: Known, where: str) -> Measurement:
    if not experiment.requests:
        raise FileError(f"{where}: key 'requests': the list is empty")
    openai = export.service_kind == "openai"
    earliest_ns = min(request.timestamp for request in experiment.requests)
    seen, model = [], None
    for place, request in enumerate(experiment.requests, start=1):
        payload = payload_of(request.request_inputs) if openai else Payload()
        model = model or payload.model
        seen.append(_seen(request, payload, openai, earliest_ns, known, f"{where}, request {place}"))
    run = Run(
        source=f"perf_analyzer {clean(export.version, 20)}".strip(),
        requests=seen,
        model=clean(model or "") or None,
        load=None if known.concurrency or known.rate else _load(experiment.experiment, where),
        measured_at=iso_time(earliest_ns * NS),
        notes=(FORCED if known.osl else ONE_EACH,),
    )
    return measurement(run, known, where)


def _load(level: Level, where: str) -> Offered:
    if level.mode == "concurrency":
        return Offered("concurrency", level.value)
    if level.mode == "request_rate":
        return Offered("constant_rate", level.value)
    raise FileError(
        f"{where}: key 'experiment.mode': {clean(level.mode, 40)!r} is not a load; give --concurrency or --rate"
    )


def _seen(request: Request, payload: Payload, openai: bool, earliest_ns: int, known: Known, where: str) -> Seen:
    if len(request.response_timestamps) != len(request.response_outputs):
        raise FileError(f"{where}: key 'response_outputs': not as many as 'response_timestamps'; cut short?")
    asked = payload.osl if openai else _asked(request.request_inputs)
    isl = round(known.isl or 0)
    at_s = [(at_ns - earliest_ns) * NS for at_ns in request.response_timestamps]
    sent_s = (request.timestamp - earliest_ns) * NS
    if at_s != sorted(at_s) or (at_s and at_s[0] < sent_s):
        raise FileError(f"{where}: key 'response_timestamps': before the request, or not in order")
    usage = None
    if openai:
        with_text, usage = events_of(request.response_outputs)
        chunk_s = tuple(at_s[place] for place in with_text)
    else:
        chunk_s = tuple(at for at, output in zip(at_s, request.response_outputs, strict=True) if _has_tokens(output))
    tokens = round(known.osl) if known.osl else (usage.completion_tokens if usage else None) or len(chunk_s)
    if usage and usage.prompt_tokens and not known.isl:
        isl = usage.prompt_tokens
    if not chunk_s:
        return Seen(sent_s, sent_s, max([sent_s, *at_s]), (), 0, isl, error="no tokens")
    return Seen(sent_s, sent_s, chunk_s[-1], chunk_s, tokens, isl, osl=asked)


def _asked(inputs: dict[str, Any]) -> int | None:
    """The output length that the request asked for, by any of its names."""
    for name in ("max_tokens", "request_output_len"):
        value = inputs.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(value, int) and 0 < value <= 10**7:
            return value
    return None


def _has_tokens(output: dict[str, Any]) -> bool:
    """Whether any output is more than an empty text or an empty list of ids."""
    texts = [value for name, value in output.items() if name in ("text_output", "output_ids", "response")]
    values = texts or list(output.values())
    return any(value not in EMPTY_OUTPUTS if isinstance(value, str) else bool(value) for value in values)
