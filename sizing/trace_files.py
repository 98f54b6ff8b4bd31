"""Files of request traces: the kinds that are read, and how each becomes a `sizing.trace.Trace`.

A kind is told by its columns, in CSV or Parquet, or by its keys where every line is a JSON object or ``key=value``
pairs; each may be packed by gzip, Parquet excepted. `FORMATS` lists them. Only numbers are kept: sessions become
numbers in the order in which they appear, and no prompt, model or user is looked at. The names of classes are kept.

Files are read in parts, so that memory is that of the requests kept, 16 to 21 bytes each, whatever the file's size.
pyarrow, of the extra `measure`, is loaded on first use.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from io import BufferedReader
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.errors import quoted
from sizing.numbers import significant
from sizing.trace import DAY_S, MOST_CLASSES, UNNAMED, Counts, Trace, TraceError, class_name, merged
from sizing.workload import Seconds

Text = Any
"""A pyarrow array of strings, null where nothing is written: pyarrow has no types."""
Rows = NDArray[np.int64]
LONGEST_HEADER = 1 << 16
LONGEST_LINE = 1 << 24
LONGEST_TEXT = 1 << 16
"""Bytes of a value of a Parquet file: one that is there many times takes a few bytes of it, and memory for each."""
MOST_LOOKED_AT = 100_000
"""Lines in which a request with all its keys is looked for."""
BLOCK_BYTES, BATCH_ROWS = 1 << 19, 1 << 13
"""How much is read at once: bytes of CSV, rows of anything else. A row of CSV must fit into a block."""
MOST_TOKENS = 2**31 - 1
EARLIEST_S, LATEST_S = 1e8, 7_258_118_400.0
"""Numbers of `EARLIEST_S` (March 1973) or more count from 1970, smaller ones from the start of a trace. Times from
`LATEST_S` on (2200) are refused."""
NO_TOKENS = f"is no whole number of tokens from 0 to {MOST_TOKENS:,}: correct it or leave the row out"
NO_TIME = "is no time: write 2024-05-10T14:00:00Z or a number"
OUT_OF_RANGE = "is not between 1973 and 2200: correct the time"
MIXED = "is not written as the times before it: write all as dates, all since 1970 or all from the start"
Way = Literal["date", "since 1970", "from the start"]
DATE = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
PAIR = re.compile(r'(?<![\w.-])([A-Za-z_][\w.-]*)=("(?:[^"\\]|\\.)*"|\S*)')
MODEL_CALLS = (None, "chat", "generate_content", "text_completion")
"""Values of `gen_ai.operation.name` for one call of a model; agents and workflows repeat the usage of their calls."""
BY_SESSIONS = "what prompts share is told by sessions alone"
UNUSED = {"hash_ids": BY_SESSIONS, "prefix_hash": BY_SESSIONS}
BLOCK_TOKENS = 512
"""Prompt tokens behind each number of a Mooncake trace's `hash_ids`; the number stands for them and all before them, so
that equal numbers are equal beginnings. The last block may have fewer."""
NO_BLOCKS = f"it needs a number for each {BLOCK_TOKENS} tokens of every prompt, the last begun ones included"

CLASS = "class"
"""Column or key, in files of every kind, of the class that a request belongs to."""


class Format(NamedTuple):
    """Where files of one kind have what is read. Of several names the first that a file has is meant.

    Attributes:
        label: the kind in words.
        times: names of the time of arrival -> unit of the numbers there in seconds; None where their size tells
            whether they are s, ms, us or ns since 1970. Dates (ISO 8601) may stand wherever times do.
        isl, osl: names of prompt and output tokens.
        session: names of the conversation that a request belongs to; a file may lack it.
    """

    label: str
    times: dict[str, float | None]
    isl: tuple[str, ...]
    osl: tuple[str, ...]
    session: tuple[str, ...] = ()

    def lacks(self, names: Collection[str]) -> list[str]:
        """What of time, prompt and output tokens is not among `names`."""
        needs = (tuple(self.times), self.isl, self.osl)
        return [" or ".join(need) for need in needs if not any(name in names for name in need)]


FORMATS = {
    "own": Format("a trace of this program", {"arrival_s": 1.0}, ("isl",), ("osl",), ("session",)),
    # AzureLLMInferenceDataset2023.md and 2024.md of github.com/Azure/AzurePublicDataset: dates, in 2024 with a zone
    "azure": Format("an Azure LLM inference trace", {"TIMESTAMP": 1.0}, ("ContextTokens",), ("GeneratedTokens",)),
    # README of github.com/HPMLL/BurstGPT: seconds from midnight of the first day; no response tokens: a failure
    "burstgpt": Format(
        "a BurstGPT trace", {"Timestamp": 1.0}, ("Request tokens",), ("Response tokens",), ("Session ID",)
    ),
    # FAST25-release of github.com/kvcache-ai/Mooncake: milliseconds from the start; sessions are those of NVIDIA AIPerf
    "mooncake": Format(
        "a Mooncake trace, whose timestamps are milliseconds",
        {"timestamp": 1e-3},
        ("input_length",),
        ("output_length",),
        ("session_id",),
    ),
    # opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans, and .../otel/protocol/file-exporter for OTLP in JSON; the
    # second names of the tokens are those of older conventions, which vLLM keeps
    "otel": Format(
        "spans of OpenTelemetry's GenAI conventions",
        {"startTimeUnixNano": 1e-9, "start_time_unix_nano": 1e-9, "start_time": None, "startTime": None},
        ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        ("gen_ai.conversation.id",),
    ),
    # `usage` and `created` of platform.openai.com/docs/api-reference/chat/object, `startTime` of
    # docs.litellm.ai/docs/proxy/logging_spec; the time of arrival goes before that of the log's entry
    "log": Format(
        "a gateway's log",
        dict.fromkeys(("startTime", "start_time", "time", "timestamp", "ts", "created")),
        ("prompt_tokens", "input_tokens"),
        ("completion_tokens", "output_tokens"),
        ("session", "session_id"),
    ),
}
"""Kind -> where its files have what is read; a file with the names of several is of the first."""


class Reading(NamedTuple):
    """A trace, the kind of its file, and what a reader should know of how it was read, a short line each."""

    trace: Trace
    kind: str
    notes: tuple[str, ...]


def read_trace_noted(path: Path | str) -> Reading:
    """The requests of a file in order of arrival, and notes on what was left out, sorted or taken for granted.

    Times with a date, or since 1970, become `began_s` and seconds since the first arrival; seconds of a trace without a
    date stay as they are, but for whole days in front of the first.

    Raises TraceError, one line naming file, row and column, for a file that is missing, damaged or of no known kind, a
    value that cannot be, and where over half of the rows have no tokens. A row is the number of its line, header
    included, in Parquet that of the request.
    """
    path = Path(path)
    shape = ""
    try:
        shape, header = _shape(path)
        if shape == "csv":
            columns = _among(header, path)
            batches = _of_csv(path, header, columns)
        elif shape == "parquet":
            columns, batches = _of_parquet(path)
        else:
            columns = _among_keys(path, shape)
            batches = _of_lines(path, shape, columns)
        requests = _Requests(columns)
        with closing(batches):
            for batch in batches:
                requests.add(batch)
        return requests.reading(path)
    except _Fault as fault:
        row = _line(path, fault.row) if shape == "csv" else fault.row
        column = f", column {fault.column!r}" if fault.column else ""
        raise TraceError(f"{path}, row {row}{column}: {fault}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TraceError(f"{path}: the gzip file is cut off or damaged: copy it again") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_traces(given: Sequence[str]) -> Reading:
    """The requests of several files as one trace, each file a class of its own: ``chat=chat.csv``, or ``chat.csv``.

    Without a name in front, the classes of a file are those that its column names, and of a file without such a column
    that file, by its name; a single one of these has no classes. Notes name the file where there are several.
    """
    if len(given) == 1 and Path(given[0]).exists():
        return read_trace_noted(given[0])
    traces, notes, kinds = list[tuple[str, Trace]](), list[str](), dict[str, None]()
    for text in given:
        name, equals, path = ("", "", text) if Path(text).exists() else text.partition("=")
        reading = read_trace_noted(path if equals else text)
        trace = reading.trace
        if equals and name.strip():
            trace = trace.as_class(name.strip())
        elif not trace.classes:
            trace = trace.as_class(Path(text).name.partition(".")[0])
        traces.append((Path(path or text).name, trace))
        notes += [f"in {Path(path or text).name}: {note}" for note in reading.notes]
        kinds[reading.kind] = None
    return Reading(merged([trace for _, trace in traces]), " and ".join(kinds), tuple(notes))


class _Fault(Exception):
    """What is wrong in a row, counted as its source counts; of which column, or of the row itself ("")."""

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(reason)
        self.row, self.column = row, column


class _Columns(NamedTuple):
    """The names under which one file has what is read. `session` may be several keys, or none; `label`: of the class,
    `blocks`: of what prompts begin with, "" for none."""

    kind: str
    time: str
    unit_s: float | None
    isl: str
    osl: str
    session: tuple[str, ...]
    label: str
    unused: tuple[str, ...]
    blocks: str = ""

    @property
    def of_table(self) -> dict[str, str]:
        """Field of a `_Batch` -> its column, as far as a table has it."""
        some = {"time": self.time, "isl": self.isl, "osl": self.osl, "session": "".join(self.session[:1])}
        return {field: name for field, name in (*some.items(), ("label", self.label)) if name}


class _Batch(NamedTuple):
    """Some rows as they are written, and their numbers."""

    row: Rows
    time: Text
    isl: Text
    osl: Text
    session: Sequence[str | None]
    label: Sequence[str | None]
    blocks: Sequence[str | None]


Batches = Generator[_Batch, None, None]


def _columns(kind: str, names: Collection[str]) -> _Columns:
    """Where a file with these names, which lack nothing, has what is read."""
    form = FORMATS[kind]
    time, isl, osl = (next(name for name in any_of if name in names) for any_of in (form.times, form.isl, form.osl))
    session = tuple(name for name in form.session if name in names)
    label, unused = CLASS if CLASS in names else "", tuple(name for name in UNUSED if name in names)
    return _Columns(kind, time, form.times[time], isl, osl, session, label, unused)


def _among(names: Sequence[str], path: Path) -> _Columns:
    """Where a table has what is read. Raises TraceError naming what the nearest kind lacks."""
    for kind, form in FORMATS.items():
        if not form.lacks(names):
            columns = _columns(kind, names)
            for name in columns.of_table.values():
                if names.count(name) > 1:
                    raise TraceError(f"{path}: column {name!r} is there twice: keep one of them")
            return columns
    raise TraceError(f"{path}: {_lacking(names)}")


def _lacking(names: Collection[str]) -> str:
    """Why a file with these columns or keys is of no kind."""
    nearest = min(FORMATS, key=lambda each: len(FORMATS[each].lacks(names)))
    lacks = FORMATS[nearest].lacks(names)
    if len(lacks) == 3:
        found = quoted(", ".join(islice(names, 8)))
        return f"no trace that is known has {found}: write arrival_s (seconds), isl and osl"
    are = "is" if len(lacks) == 1 else "are"
    why = f"{', '.join(lacks)} {are} missing for {FORMATS[nearest].label} (kind {nearest}): add or rename"
    return why if nearest == "own" else f"{why}, or write arrival_s (seconds), isl and osl"


def _opened(path: Path) -> BinaryIO:
    """The file's content, unpacked."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return BufferedReader(gzip.open(path)) if packed else path.open("rb")


def _shape(path: Path) -> tuple[str, list[str]]:
    """How a file is written: csv, parquet, json (lines) or pairs (lines); and the header of a CSV."""
    if path.is_dir():
        raise TraceError(f"{path}: is a folder: name the file in it")
    if not path.is_file():
        raise TraceError(f"{path}: no such trace file")
    with _opened(path) as file:
        first = file.readline(LONGEST_HEADER + 1)
    if not first:
        raise TraceError(f"{path}: the file is empty")
    if first.startswith(b"PAR1"):
        return "parquet", []
    try:
        line = getincrementaldecoder("utf-8-sig")().decode(first)  # a character cut off at the end is none yet
    except UnicodeDecodeError:
        line = "\0"
    if "\0" in line:
        raise TraceError(f"{path}: neither text in UTF-8 nor Parquet: save it as CSV in UTF-8")
    if line.lstrip().startswith("{"):
        return "json", []
    if line.lstrip().startswith("["):
        raise TraceError(f"{path}: a JSON list: write each request on a line of its own (jq -c '.[]')")
    if len(PAIR.findall(line)) > 1:
        return "pairs", []
    if len(first) > LONGEST_HEADER:
        raise TraceError(f"{path}: the first line, which names the columns, is longer than {LONGEST_HEADER:,} bytes")
    if not line.strip():
        raise TraceError(f"{path}: the first line is empty, where the columns are named: remove it")
    if not first.endswith(b"\n"):
        raise TraceError(f"{path}: one line only, where a header and a line for each request are needed")
    try:
        header = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise TraceError(f"{path}, row 1: no header of a CSV table ({error})") from None
    for sign, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and sign in line:
            raise TraceError(f"{path}: columns are separated by {called}: write it with commas, decimals with points")
    return "csv", [name.strip() for name in header]


def _line(path: Path, row: int) -> int:
    """The line on which a row of a CSV file begins; rows are counted without empty lines, the header is the first."""
    try:
        with _opened(path) as file:
            rows = csv.reader(line.decode("utf-8", "replace") for line in file)
            begins, left = 1, row
            for cells in rows:
                left -= bool(cells)
                if not left:
                    return begins
                begins = rows.line_num + 1
    except (csv.Error, OSError, EOFError, zlib.error):
        pass
    return row


def _of_csv(path: Path, header: list[str], columns: _Columns) -> Batches:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    wanted = {field: str(header.index(name)) for field, name in columns.of_table.items()}
    with _opened(path) as file:
        try:
            reader = arrow_csv.open_csv(
                file,
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=BLOCK_BYTES,
                    skip_rows=1,
                    column_names=[str(place) for place in range(len(header))],
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=list(wanted.values()), column_types=dict.fromkeys(wanted.values(), pa.string())
                ),
            )
            first = 2
            for batch in reader:
                yield _batch(np.arange(first, first + len(batch)), dict(zip(wanted, batch.columns, strict=True)))
                first += len(batch)
        except pa.ArrowInvalid as error:
            said = str(error)
            if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", said):
                reason = f"{found[3]} cells where the header names {found[2]} columns: give each row as many"
                raise _Fault(int(found[1]), "", reason) from None
            if found := re.search(r"column #(\d+): Row #(\d+): .*invalid UTF8", said):
                raise _Fault(
                    int(found[2]), header[int(found[1])], "is not written in UTF-8: save the file in it"
                ) from None
            if "straddl" in said:
                reason = f"a row is longer than {BLOCK_BYTES:,} bytes, or a quote is not closed"
                raise TraceError(f"{path}: {reason}") from None
            raise TraceError(f"{path}: cannot be read as CSV ({said})") from None


def _of_parquet(path: Path) -> tuple[_Columns, Batches]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    def batches() -> Batches:
        wanted = columns.of_table
        first = 1
        try:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted.values())):
                texts = {field: text(batch.column(name), name) for field, name in wanted.items()}
                yield _batch(np.arange(first, first + len(batch)), texts)
                first += len(batch)
        except faults as error:
            raise TraceError(f"{path}: no Parquet table of times and numbers, or damaged ({error})") from None

    def text(column: Any, name: str) -> Text:
        if pa.types.is_dictionary(column.type):
            longest = pc.max(pc.binary_length(column.dictionary.cast(pa.string()))).as_py() or 0
            if longest > LONGEST_TEXT:
                raise TraceError(f"{path}, column {name!r}: a value of {longest:,} bytes, of at most {LONGEST_TEXT:,}")
        return column.cast(pa.string())

    faults = (pa.ArrowException, OSError, ValueError, KeyError)  # the last two where a damaged file names its columns
    try:
        schema = parquet.read_schema(path)
        flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
        file = parquet.ParquetFile(path, read_dictionary=flat)  # each text is read once, however often it is there
    except faults:
        raise TraceError(f"{path}: the Parquet file is cut off or damaged: copy it again") from None
    columns = _among(schema.names, path)
    return columns, batches()


def _batch(row: Rows, columns: Mapping[str, Text]) -> _Batch:
    """Columns of text, as they are written, by field; sessions, classes and blocks may be missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def written(column: Text) -> Text:
        text = pc.ascii_trim_whitespace(column)
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)

    texts = {field: written(column) for field, column in columns.items()}
    names = {field: texts[field].to_pylist() if field in texts else [] for field in ("session", "label", "blocks")}
    return _Batch(row, texts["time"], texts["isl"], texts["osl"], **names)


def _of_lines(path: Path, shape: str, columns: _Columns) -> Batches:
    import pyarrow as pa

    cells = _cells(path, shape, columns)
    while some := list(islice(cells, BATCH_ROWS)):
        row, *texts = zip(*some, strict=True)
        fields = _Batch._fields[1:]
        yield _batch(
            np.array(row), {name: pa.array(text, pa.string()) for name, text in zip(fields, texts, strict=True)}
        )


def _cells(path: Path, shape: str, columns: _Columns) -> Iterator[tuple[int | str | None, ...]]:
    """Row, time, ISL, OSL, session, class and blocks of each request as they are written, None where a key is missing;
    blocks with a space between them."""
    names = (columns.time, columns.isl, columns.osl)
    for row, record in _records(path, shape):
        if columns.kind == "otel" and record.get("gen_ai.operation.name") not in MODEL_CALLS:
            yield row, *(None,) * len(_Batch._fields[1:])
            continue
        session = next((name for name in columns.session if record.get(name) is not None), "")
        label, blocks = record.get(CLASS), record.get(columns.blocks)
        texts = (_written(record.get(name), name, row) for name in (*names, session))
        written = _written(str(label), CLASS, row) if isinstance(label, str | int | float) else None
        yield row, *texts, written, _written(" ".join(map(str, blocks)), "", row) if isinstance(blocks, list) else None


def _written(value: object, name: str, row: int) -> str | None:
    """A number or text as text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair, which JSON can hold, is no text
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Fault(row, name, f"{quoted(value)} is no number: correct it or leave the row out")
    return repr(value)


def _among_keys(path: Path, shape: str) -> _Columns:
    """The names of the first request with time and tokens. Raises TraceError naming what the nearest row lacks."""
    fewest, nearest = math.inf, set[str]()
    for _, record in islice(_records(path, shape), MOST_LOOKED_AT):
        lacks = {kind: len(form.lacks(record)) for kind, form in FORMATS.items()}
        best = min(FORMATS, key=lacks.__getitem__)
        if not lacks[best]:
            found = _columns(best, record)
            blocks = "hash_ids" if best == "mooncake" and "hash_ids" in record else ""
            unused = tuple(name for name in found.unused if name != blocks)
            return found._replace(session=FORMATS[best].session, blocks=blocks, unused=unused)
        if lacks[best] < fewest:
            fewest, nearest = lacks[best], set(record)
    raise TraceError(f"{path}: {_lacking(nearest)}")


def _records(path: Path, shape: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and keys of each request or span, those of its `attributes` and `usage` among them."""
    with _opened(path) as file:
        for row in count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > LONGEST_LINE:
                raise _Fault(row, "", f"a line of more than {LONGEST_LINE:,} bytes: give each request one")
            if not line.strip():
                continue
            if shape == "pairs":
                yield row, {name: value.strip('",') for name, value in PAIR.findall(line.decode("utf-8", "replace"))}
                continue
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
            if not isinstance(document, dict):
                raise _Fault(row, "", "no JSON object on one line, as a file of JSON lines has for each request")
            for record in _spans(document, row) if "resourceSpans" in document else [document]:
                yield row, _flat(record)


def _spans(export: dict[str, Any], row: int) -> Iterator[dict[str, Any]]:
    """The spans of an OTLP export."""
    found = [export]
    for key in ("resourceSpans", "scopeSpans", "spans"):
        lists = [each.get(key, []) for each in found]
        found = [inner for each in lists if isinstance(each, list) for inner in each]
        if not all(isinstance(each, list) for each in lists) or not all(isinstance(each, dict) for each in found):
            raise _Fault(row, key, "is no list of objects, as OTLP in JSON has it")
    yield from found


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with what is in its `attributes` and `usage` beside its own keys, which go first."""
    for name in ("attributes", "usage"):
        inner = record.get(name)
        if isinstance(inner, list):  # of OTLP: {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}}
            pairs = [(each.get("key"), each.get("value")) for each in inner if isinstance(each, dict)]
            inner = {
                key: next(iter(value.values()), None)
                for key, value in pairs
                if isinstance(key, str) and isinstance(value, dict)
            }
        if isinstance(inner, dict):
            record = inner | record
    return record


def _cast(text: Text, kind: Any, column: str, row: Rows, why: Callable[[str], str]) -> Text:
    """Text as another type. Raises _Fault for the first cell that is none, with what `why` says of it."""
    import pyarrow as pa

    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        for place, cell in enumerate(text):
            try:
                cell.cast(kind)
            except pa.ArrowInvalid:
                raise _Fault(int(row[place]), column, why(cell.as_py())) from None
        raise


def _refuse(bad: NDArray[np.bool_], text: Text, column: str, row: Rows, reason: str) -> None:
    """Raises _Fault for the first bad cell, quoted in front of the reason where something is written there."""
    if bad.any():
        place = int(bad.argmax())
        cell = text[place].as_py()
        raise _Fault(int(row[place]), column, reason if cell is None else f"{quoted(cell)} {reason}")


def _tokens(text: Text, column: str, row: Rows) -> Counts:
    """Tokens of each row, 0 where nothing is written."""
    import pyarrow as pa

    cells = _cast(text, pa.float64(), column, row, lambda cell: f"{quoted(cell)} {NO_TOKENS}")
    numbers: Seconds = cells.fill_null(0).to_numpy(zero_copy_only=False)
    _refuse(~((numbers >= 0) & (numbers <= MOST_TOKENS) & (numbers == np.floor(numbers))), text, column, row, NO_TOKENS)
    return numbers.astype(np.int32)


def _seconds(text: Text, unit_s: float | None, column: str, row: Rows) -> Seconds:
    """Times that are written as numbers, from the start of the trace or, from `EARLIEST_S` on, since 1970."""
    import pyarrow as pa

    cells = _cast(text, pa.float64(), column, row, lambda cell: f"{quoted(cell)} {NO_TIME}")
    numbers: Seconds = cells.to_numpy()
    _refuse(~np.isfinite(numbers), text, column, row, NO_TIME)
    _refuse(numbers < 0, text, column, row, "is before the start of the trace: let times begin at 0")
    if unit_s is not None:
        return numbers * unit_s
    seconds: Seconds = numbers * np.select([numbers >= 1e17, numbers >= 1e14, numbers >= 1e11], [1e-9, 1e-6, 1e-3], 1)
    _refuse(seconds < EARLIEST_S, text, column, row, "is no time since 1970 in s, ms, us or ns, as a log has")
    return seconds


def _dates_ns(text: Text, column: str, row: Rows) -> tuple[NDArray[np.int64], bool]:
    """Nanoseconds since 1970 of dates, and whether some of them name no zone, which counts as UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def no_date(cell: str) -> str:
        """Beyond 1677 and 2262 nanoseconds do not fit."""
        return f"{quoted(cell)} {NO_TIME if 1700 < int(cell[:4]) < 2250 else OUT_OF_RANGE}"

    zoned = pc.match_substring_regex(text, ZONE).to_numpy(zero_copy_only=False)
    since_ns = np.empty(len(text), np.int64)
    for those, zone in ((zoned, "UTC"), (~zoned, None)):
        if those.any():
            dates = _cast(text.filter(pa.array(those)), pa.timestamp("ns", zone), column, row[those], no_date)
            since_ns[those] = dates.cast(pa.int64()).to_numpy()
    return since_ns, not zoned.all()


class _Requests:
    """The requests of a file, gathered batch by batch. `way`: how all times are written; `first_ns`: the first of them
    that has a date, from which `arrival_s` counts."""

    def __init__(self, columns: _Columns) -> None:
        self.columns = columns
        self.arrival_s, self.isl, self.osl, self.session = array("d"), array("i"), array("i"), array("i")
        self.of_class = array("B")
        self.rows = self.no_output = self.no_prompt = 0
        self.way: Way | None = None
        self.first_ns = 0
        self.zoneless = False
        self.sessions: dict[str, int] = {}
        self.classes: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.next_session = count()
        self.blocks, self.blocks_of = array("q"), array("i")  # of all requests, and how many each has
        self.block_numbers: dict[str, int] = {}

    def add(self, batch: _Batch) -> None:
        """Take the requests of a batch. Raises _Fault for a value that cannot be."""
        isl = _tokens(batch.isl, self.columns.isl, batch.row)
        osl = _tokens(batch.osl, self.columns.osl, batch.row)
        self.rows += len(isl)
        self.no_output += int((osl == 0).sum())
        self.no_prompt += int(((isl == 0) & (osl > 0)).sum())
        kept = np.flatnonzero((isl > 0) & (osl > 0))
        if not len(kept):
            return
        self.arrival_s.frombytes(self._arrivals(batch.time.take(kept), batch.row[kept]).tobytes())
        self.isl.frombytes(isl[kept].tobytes())
        self.osl.frombytes(osl[kept].tobytes())
        if batch.session:
            self.session.extend(self._session(batch.session[place]) for place in kept.tolist())
        if batch.label:
            self.of_class.extend(self._class(batch.label[place] or UNNAMED) for place in kept.tolist())
        if self.columns.blocks:
            for place in kept.tolist():
                names = (batch.blocks[place] or "").split()
                self.blocks_of.append(len(names))
                self.blocks.extend(self.block_numbers.setdefault(name, len(self.block_numbers)) for name in names)

    def _class(self, name: str) -> int:
        """The number of a class; of those beyond `MOST_CLASSES` all have one number, and the trace then has none."""
        if len(self.classes) > MOST_CLASSES:
            return MOST_CLASSES
        if name not in self.labels:
            self.labels[name] = self.classes.setdefault(class_name(name), len(self.classes))
        return self.labels[name]

    def _session(self, name: str | None) -> int:
        """The number of a session; a request that names none is one of its own."""
        if name is None:
            return next(self.next_session)
        if name not in self.sessions:
            self.sessions[name] = next(self.next_session)
        return self.sessions[name]

    def _arrivals(self, text: Text, row: Rows) -> Seconds:
        """Seconds from the start of the trace, or since `first_ns`."""
        import pyarrow.compute as pc

        column = self.columns.time
        _refuse(
            pc.is_null(text).to_numpy(zero_copy_only=False),
            text,
            column,
            row,
            "no time is written: add it or leave the row out",
        )
        way: Way = "date"
        dated = pc.match_substring_regex(text, DATE).to_numpy(zero_copy_only=False)
        _refuse(dated != (self.way == way if self.way else dated[0]), text, column, row, MIXED)
        if dated[0]:
            since_ns, zoneless = _dates_ns(text, column, row)
            self.zoneless |= zoneless
        else:
            seconds = _seconds(text, self.columns.unit_s, column, row)
            since_1970 = seconds >= EARLIEST_S
            way = "since 1970" if since_1970[0] else "from the start"
            _refuse(since_1970 != ((self.way or way) == "since 1970"), text, column, row, MIXED)
            if way == "from the start":
                self.way = way
                return seconds
            _refuse(seconds >= LATEST_S, text, column, row, OUT_OF_RANGE)
            since_ns = np.rint(seconds * 1e9).astype(np.int64)
        _refuse((since_ns < EARLIEST_S * 1e9) | (since_ns >= LATEST_S * 1e9), text, column, row, OUT_OF_RANGE)
        if not self.way:
            self.way, self.first_ns = way, int(since_ns[0])
        return (since_ns - self.first_ns) / 1e9

    def reading(self, path: Path) -> Reading:
        """The trace of all requests. Raises TraceError where less than two are left, or less than half of the rows."""
        kept, columns = len(self.isl), self.columns
        if columns.kind != "otel" and 2 * kept < self.rows:
            number, missing, column = max(
                (self.no_output, "output", columns.osl), (self.no_prompt, "prompt", columns.isl)
            )
            where = f"{number:,} of {self.rows:,} rows have no {missing} tokens (column {column!r} is empty or 0)"
            raise TraceError(f"{path}: {where}: a trace has them in most rows")
        if kept < 2:
            raise TraceError(f"{path}: a trace needs 2 requests or more with tokens, this has {kept}")
        notes = list(self._left_out())
        arrival_s: Seconds = np.frombuffer(self.arrival_s)
        isl, osl = np.frombuffer(self.isl, np.int32), np.frombuffer(self.osl, np.int32)
        session = np.frombuffer(self.session, np.int32) if self.sessions else np.empty(0, np.int32)
        classes = tuple(self.classes) if set(self.classes) != {UNNAMED} else ()
        if len(classes) > MOST_CLASSES:
            notes.append(f"{CLASS} is not used: it has more than {MOST_CLASSES} values")
            classes = ()
        of_class = np.frombuffer(self.of_class, np.uint8) if classes else np.empty(0, np.uint8)
        order = np.arange(kept)
        back_s = np.maximum.accumulate(arrival_s) - arrival_s
        if late := np.count_nonzero(back_s):
            step = f"largest step back {significant(back_s.max())} s"
            notes.append(f"times out of order were sorted: {late:,} of {kept:,} rows, {step}")
            order = np.argsort(arrival_s, kind="stable")
            arrival_s, isl, osl = arrival_s[order], isl[order], osl[order]
            session = session[order] if len(session) else session
            of_class = of_class[order] if len(of_class) else of_class
        if columns.blocks:
            session, said = self._by_blocks(session, isl, osl, order)
            notes.append(said)
        start_s, began_s = float(arrival_s[0]), math.nan
        if self.way == "from the start":
            start_s -= start_s % DAY_S
            if start_s:
                notes.append(f"times begin on day {significant(start_s / DAY_S, 9)}: the days before it were cut")
        else:
            began_s = self.first_ns / 1e9 + start_s
        arrival_s = arrival_s - start_s
        if not (arrival_s % 1).any() and 0 < np.count_nonzero(np.diff(arrival_s)) < kept - 1:
            notes.append("times are whole seconds: requests of one second arrive at once")
        if self.zoneless:
            notes.append("times without a zone were taken as UTC")
        notes.extend(f"{name} is not used: {UNUSED[name]}" for name in columns.unused)
        return Reading(Trace(arrival_s, isl, osl, began_s, session, classes, of_class), columns.kind, tuple(notes))

    def _by_blocks(self, session: Counts, isl: Counts, osl: Counts, order: Rows) -> tuple[Counts, str]:
        """Sessions of the requests, told by what their prompts begin with where the file names none, and a note."""
        name = self.columns.blocks
        if len(session):
            return session, f"{name} is not used: {BY_SESSIONS}"
        many = np.frombuffer(self.blocks_of, np.int32)
        begins, many = (np.cumsum(many) - many)[order], many[order]
        if (many != -(-isl // BLOCK_TOKENS)).any():
            return session, f"{name} is not used: {NO_BLOCKS}"
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        number = np.frombuffer(self.blocks, np.int64)[np.repeat(begins, many) + within]
        session = sessions_by_blocks(number, many, isl, osl)
        turns, share = len(session) - 1 - int(session.max()), repeated_share(number, many, isl)
        return (
            session,
            f"{name}: {share:.0%} of prompt tokens were in earlier prompts; {turns:,} requests go on a session",
        )

    def _left_out(self) -> Iterator[str]:
        if self.columns.kind == "otel":
            if spans := self.no_output + self.no_prompt:
                yield f"{spans:,} of {self.rows:,} spans left out: no call of a model with its tokens"
            return
        for number, missing in ((self.no_output, "output"), (self.no_prompt, "prompt")):
            if number:
                yield f"{number:,} of {self.rows:,} rows left out: no {missing} tokens"


# --- What prompts begin with


def sessions_by_blocks(number: Rows, many: Counts, isl: Counts, osl: Counts) -> Counts:
    """The session of each request, in order of arrival, from the blocks (`BLOCK_TOKENS`) that its prompt begins with:
    `many` of each request, their numbers one request after the other.

    A request goes on the session of the latest one of which it has all full blocks and at least one more, if its prompt
    is long enough for that one's prompt and answer. A beginning that prompts go on from in several ways is one that
    conversations share, as a system prompt, and joins none of them.
    """
    ends = np.cumsum(many)
    begins, full = ends - many, isl // BLOCK_TOKENS
    within = np.arange(len(number)) - np.repeat(begins, many) < np.repeat(full, many) - 1  # another full one follows
    ways = np.unique(np.stack([number[within], number[1:][within[:-1]]]), axis=1)[0]
    shared = set(ways[1:][ways[1:] == ways[:-1]].tolist())
    session = np.empty(len(isl), np.int32)
    latest: dict[int, int] = {}
    begun = count()
    for request, (begin, blocks) in enumerate(zip(begins.tolist(), full.tolist(), strict=True)):
        numbers = number[begin : begin + blocks].tolist()
        end = next((each for each in reversed(numbers[:-1]) if each in latest), -1)
        before = latest.get(end, -1)
        if before >= 0 and isl[request] >= int(isl[before]) + int(osl[before]):
            session[request] = session[before]
            del latest[end]
        else:
            session[request] = next(begun)
        if numbers and numbers[-1] not in shared:
            latest[numbers[-1]] = request
    return session


def repeated_share(number: Rows, many: Counts, isl: Counts) -> float:
    """Share of the prompt tokens that a cache of all earlier prompts, which never forgets, would hold; arrays as in
    `sessions_by_blocks`."""
    tokens = np.full(len(number), BLOCK_TOKENS)
    tokens[np.cumsum(many) - 1] -= many * BLOCK_TOKENS - isl
    new = np.zeros(len(number), bool)
    new[np.unique(number, return_index=True)[1]] = True
    return float(tokens[~new].sum() / tokens.sum())
