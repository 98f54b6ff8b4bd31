"""Which formats can be imported, and how a file's format is told from what is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from calibration.errors import FileError
from calibration.importers import (
    aiperf,
    genai_perf,
    guidellm,
    guidellm_csv,
    op_stats,
    perf_analyzer,
    profile_export,
    vllm,
)
from calibration.importers import aiperf as aiperf_records
from calibration.importers.reading import Content, CsvFile, JsonFile, JsonLines, KnownFacts, Object
from calibration.records import Measurement

Kind = Literal["aiperf", "genai-perf", "perf-analyzer", "guidellm", "vllm", "op-stats"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A format of one JSON object."""

    kind: Kind
    recognises: Callable[[Object], bool]
    read: Callable[[JsonFile, KnownFacts], list[Measurement]]


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """A format of rows."""

    kind: Kind
    recognises: Callable[[CsvFile], bool]
    read: Callable[[CsvFile, KnownFacts], list[Measurement]]


JSON_FORMATS = (
    JsonFormat("aiperf", aiperf.recognises, aiperf.read_json),
    JsonFormat("genai-perf", genai_perf.recognises, genai_perf.read_json),
    JsonFormat("perf-analyzer", profile_export.recognises, profile_export.read),
    JsonFormat("guidellm", guidellm.recognises, guidellm.read),
    JsonFormat("vllm", vllm.recognises, vllm.read),
)
CSV_FORMATS = (
    CsvFormat("aiperf", aiperf.recognises_csv, aiperf.read_csv),
    CsvFormat("genai-perf", genai_perf.recognises_csv, genai_perf.read_csv),
    CsvFormat("perf-analyzer", perf_analyzer.recognises, perf_analyzer.read),
    CsvFormat("guidellm", guidellm_csv.recognises, guidellm_csv.read),
    CsvFormat("op-stats", op_stats.recognises, op_stats.read),
)


def measurements(content: Content, kind: str | None, known: KnownFacts, most: int) -> list[Measurement]:
    """What the content measures, at most `most` levels; `kind`, if given, is what it must be.

    Raises FileError if it is of no known kind, of another kind than `kind`, or faulty.
    """
    if kind is not None and kind not in KINDS:
        raise FileError(f"{kind!r} is no kind of file to import; there are {', '.join(KINDS)}")
    if _levels(content) > most:
        raise FileError(f"{content.name}: more than {most:,} points: split it")
    found = _read(content, kind, known)
    levels_in_file = not (isinstance(content, CsvFile) and op_stats.recognises(content))
    if len(found) > 1 and levels_in_file and (known.concurrency or known.rate):
        raise FileError(f"{content.name}: has {len(found)} load levels of its own; leave out --concurrency and --rate")
    return found


def _levels(content: Content) -> int:
    """How many load levels the content may hold, at most: rows of a table, entries of the lists of levels."""
    if isinstance(content, CsvFile):
        return len(content.rows) - 1
    if isinstance(content, JsonLines):
        return 1
    listed = (content.value.get(key) for key in ("benchmarks", "experiments"))
    return max((len(levels) for levels in listed if isinstance(levels, list)), default=1)


def _read(content: Content, kind: str | None, known: KnownFacts) -> list[Measurement]:
    if isinstance(content, JsonFile) and aiperf_records.recognises_records(content.value):
        content = JsonLines(content.name, content.value, ((1, ""),))
    if isinstance(content, JsonLines):
        return _read_lines(content, kind, known)
    if isinstance(content, JsonFile):
        for json_format in JSON_FORMATS:
            if kind in (None, json_format.kind) and json_format.recognises(content.value):
                return json_format.read(content, known)
        raise _unknown(content, kind)
    for csv_format in CSV_FORMATS:
        if kind in (None, csv_format.kind) and csv_format.recognises(content):
            return csv_format.read(content, known)
    raise _unknown(content, kind)


def _read_lines(content: JsonLines, kind: str | None, known: KnownFacts) -> list[Measurement]:
    if kind not in (None, "aiperf") or not aiperf_records.recognises_records(content.first):
        raise _unknown(content, kind)
    return aiperf_records.read(content, known)


def _unknown(content: Content, kind: str | None) -> FileError:
    """Quotes nothing: a file that was given by mistake may hold anything."""
    wanted = f"a file of {kind}" if kind else f"a file of any known kind ({', '.join(KINDS)})"
    found = "rows of a table" if isinstance(content, CsvFile) else "JSON with other keys"
    return FileError(f"{content.name}: not {wanted}; it holds {found}")
