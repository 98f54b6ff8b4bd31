"""Points from the files of other benchmark tools.

    kind            files
    aiperf          profile_export_aiperf.json and .csv, profile_export.jsonl
    genai-perf      profile_export_genai_perf.json and .csv
    perf-analyzer   -f CSV, --profile-export-file JSON
    guidellm        benchmarks.json (all three generations), benchmarks.csv
    vllm            bench serve --save-result, --save-detailed, --append-result
    op-stats        --op_stats_csv of the TensorRT-LLM backend's clients

If a file has all of its individual requests, points are computed from them by our own definitions; otherwise they are
the tool's figures, and the notes say how they differ. Prompts, answers and keys are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from calibration.errors import FileError
from calibration.importers import aiperf, genai_perf, guidellm, perf_analyzer, vllm
from calibration.importers.reading import Content, CsvFile, JsonFile, JsonLines, KnownFacts, Object, known, read_content
from calibration.records import Measurement
from sizing.points import MOST_POINTS, Point

__all__ = ["KINDS", "Kind", "read", "read_measurements"]


def read_measurements(
    path: Path | str,
    *,
    kind: str | None = None,
    deployment: Mapping[str, object] | None = None,
    most: int = MOST_POINTS,
) -> list[Measurement]:
    """The load levels in the file at `path`, with their request logs if it has individual requests.

    `kind`, one of KINDS, is detected from the content if None. `deployment` has what the file leaves out, by the names
    of `reading.KnownFacts` (model, precision, gpu, tp, ..., isl, osl, concurrency, rate, arrivals), and overrides it.

    Raises FileError, one line that names the file and the key or the missing flag; also if the file has more than
    `most` levels.
    """
    return measurements(read_content(path), kind, known(deployment or {}), most)


def read(path: Path | str, *, kind: str | None = None, deployment: Mapping[str, object] | None = None) -> list[Point]:
    """The points in the file at `path`; see `read_measurements`."""
    return [found.point for found in read_measurements(path, kind=kind, deployment=deployment)]


Kind = Literal["aiperf", "genai-perf", "perf-analyzer", "guidellm", "vllm", "op-stats"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Looked = TypeVar("Looked")
Read = TypeVar("Read")


class ImportFormat(NamedTuple, Generic[Looked, Read]):
    """A format: how to recognise a file's content and how to read it."""

    kind: Kind
    recognises: Callable[[Looked], bool]
    read: Callable[[Read, KnownFacts], list[Measurement]]


def _op_stats() -> Any:
    """The reader for the backend's clients, which are not part of this package, imported by name."""
    return import_module("triton_tools.op_stats")


def _is_op_stats(file: CsvFile) -> bool:
    return file.rows[0][0] == "Requests/Sec" and bool(_op_stats().recognises(file))


JSON_FORMATS: tuple[ImportFormat[Object, JsonFile], ...] = (
    ImportFormat("aiperf", aiperf.recognises, aiperf.read_json),
    ImportFormat("genai-perf", genai_perf.recognises, genai_perf.read_json),
    ImportFormat("perf-analyzer", perf_analyzer.recognises, perf_analyzer.read),
    ImportFormat("guidellm", guidellm.recognises, guidellm.read),
    ImportFormat("vllm", vllm.recognises, vllm.read),
)
CSV_FORMATS: tuple[ImportFormat[CsvFile, CsvFile], ...] = (
    ImportFormat("aiperf", aiperf.recognises_csv, aiperf.read_csv),
    ImportFormat("genai-perf", genai_perf.recognises_csv, genai_perf.read_csv),
    ImportFormat("perf-analyzer", perf_analyzer.recognises_csv, perf_analyzer.read_csv),
    ImportFormat("guidellm", guidellm.recognises_csv, guidellm.read_csv),
    ImportFormat("op-stats", _is_op_stats, lambda file, known: list(_op_stats().read(file, known))),
)


def measurements(content: Content, kind: str | None, known: KnownFacts, most: int) -> list[Measurement]:
    """The measurements in the content, at most `most` levels; `kind`, if given, is the format it must have.

    Raises FileError if its format is unknown, not `kind`, or faulty.
    """
    if kind is not None and kind not in KINDS:
        raise FileError(f"{kind!r} is not a kind of file to import: the kinds are {', '.join(KINDS)}")
    if _levels(content) > most:
        raise FileError(f"{content.name}: more than {most:,} points: split it")
    found = _read(content, kind, known)
    levels_in_file = not (isinstance(content, CsvFile) and _is_op_stats(content))
    if len(found) > 1 and levels_in_file and known.says_load:
        raise FileError(
            f"{content.name}: it has {len(found)} load levels of its own; leave out --concurrency and --rate"
        )
    return found


def _levels(content: Content) -> int:
    """An upper bound on the number of load levels: rows of a table, entries of the lists of levels."""
    if isinstance(content, CsvFile):
        return len(content.rows) - 1
    if isinstance(content, JsonLines):
        return len(content.lines) if vllm.recognises(content.first) else 1
    listed = (content.value.get(key) for key in ("benchmarks", "experiments"))
    return max((len(levels) for levels in listed if isinstance(levels, list)), default=1)


def _read(content: Content, kind: str | None, known: KnownFacts) -> list[Measurement]:
    if isinstance(content, JsonFile) and aiperf.recognises_records(content.value):
        content = JsonLines(content.name, content.value, ((1, ""),))
    if isinstance(content, JsonLines):
        return _read_lines(content, kind, known)
    if isinstance(content, JsonFile):
        for json_format in JSON_FORMATS:
            if kind in (None, json_format.kind) and json_format.recognises(content.value):
                return json_format.read(content, known)
    else:
        for csv_format in CSV_FORMATS:
            if kind in (None, csv_format.kind) and csv_format.recognises(content):
                return csv_format.read(content, known)
    raise _unknown(content, kind)


def _read_lines(content: JsonLines, kind: str | None, known: KnownFacts) -> list[Measurement]:
    if kind in (None, "aiperf") and aiperf.recognises_records(content.first):
        return aiperf.read(content, known)
    if kind in (None, "vllm") and vllm.recognises(content.first):
        numbered = zip(content.lines, content.values(), strict=True)
        files = [JsonFile(f"{content.name}, line {number}", value) for (number, _), value in numbered]
        return [level for file in files for level in vllm.read(file, known)]
    raise _unknown(content, kind)


def _unknown(content: Content, kind: str | None) -> FileError:
    """The error quotes nothing, because a file given by mistake may contain anything."""
    wanted = f"a file of {kind}" if kind else f"a file of any known kind ({', '.join(KINDS)})"
    found = "rows of a table" if isinstance(content, CsvFile) else "JSON with other keys"
    return FileError(f"{content.name}: not {wanted}; it has {found}")
