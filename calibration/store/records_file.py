"""The request log of a level as a Parquet file: written as a whole or not at all, and checked page by page when read.

One row per request: the columns of `RequestLog`, with the responses that carried tokens as two lists, ``chunk_at_s``
and ``chunk_tokens``; with sessions, also the number of each ``turn``. What is needed to interpret the times is in the
schema's metadata, under ``calibration``. pyarrow is loaded on first use only: listing points does not need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from calibration.errors import StoreError
from calibration.plan import LevelKey
from calibration.records import MOST_REQUESTS, RequestLog
from calibration.store.database import clean
from sizing.errors import first_fault

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as parquet

METADATA = b"calibration"
MOST_VALUES = 300_000_000
"""Most values of all columns together, 2.4 GB: a file that claims more is damaged or malicious."""
MOST_TEXT_BYTES = 1 << 29
"""Most bytes of a file's error texts before compression; repeated texts count once."""
LONGEST_ERROR = 2000
"""Characters of an error that are stored: a file with a longer one was not written here."""
_FLOATS = ("intended_s", "sent_s", "end_s")
_INTS = ("isl", "osl")
_TURN = "turn"
_CHUNKS = ("chunk_at_s", "chunk_tokens")


class About(BaseModel):
    """The metadata of a file of records.

    `run` is the run's UUID, `level` the level's key. `window_s` is the interval of full load on the log's clock, None
    if unknown; `seed` is that of prompts and arrivals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    version: Literal[1] = 1
    run: str
    level: LevelKey
    window_s: tuple[float, float] | None = None
    clock: str = "monotonic"
    seed: tuple[int, ...] = ()


def write_log(path: Path, log: RequestLog, about: About) -> None:
    """Write `log` to `path`, safe on disk on return. Raises StoreError, with nothing left behind, if that fails.

    Errors are stored as one line of at most `LONGEST_ERROR` characters. Only one process at a time may write to `path`:
    drafts that a killed process left there are deleted.
    """
    content = encoded(log, about)
    for draft in path.parent.glob(f".{path.name}.*.draft"):
        with suppress(OSError):
            draft.unlink()
    with replacing(path) as file:
        file.write(content)


def read_log(path: Path) -> RequestLog:
    """The log in a file. Raises StoreError if it is missing, damaged or not a file of records."""
    return decoded(_bytes(path), str(path))


def encoded(log: RequestLog, about: About) -> bytes:
    """The file's content; with one version of pyarrow, the same log gives the same bytes.

    Raises StoreError if the log is larger than `decoded` reads.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    starts = pa.array(np.concatenate([[0], np.cumsum(log.chunks)]), pa.int32())
    turns = bool(log.turn.any())
    numbers = (*_FLOATS, *_INTS, *([_TURN] if turns else []))
    columns: dict[str, Any] = {name: pa.array(getattr(log, name)) for name in numbers}
    short = {error: clean(error)[:LONGEST_ERROR] for error in set(log.error)}
    columns["error"] = pa.array([short[error] for error in log.error], pa.string())
    for name in _CHUNKS:
        columns[name] = pa.ListArray.from_arrays(starts, pa.array(getattr(log, name)))
    table = pa.table(columns, schema=_schema(turns).with_metadata({METADATA: about.model_dump_json()}))
    sink = pa.BufferOutputStream()
    parquet.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        use_dictionary=["error", "isl", "osl", "chunk_tokens.list.element"],
        use_byte_stream_split=[*_FLOATS, "chunk_at_s.list.element"],  # halves the size of rising times
    )
    content = sink.getvalue()
    if excess := _excess(parquet.read_metadata(pa.BufferReader(content))):
        raise StoreError(f"the log of this level holds {excess}: measure it for a shorter time")
    return cast(bytes, content.to_pybytes())


def decoded(content: bytes, name: str, most_values: int | None = None) -> RequestLog:
    """The log in a file's `content`, which errors call `name`. Raises StoreError, also for more than `most_values`
    (MOST_VALUES) numbers."""
    decoded_about(content, name, most_values)
    with _understood(name):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        # as a dictionary, each distinct text is decoded once, however many requests failed with it
        options: dict[str, Any] = {"page_checksum_verification": True, "use_threads": False}
        table = parquet.read_table(pa.BufferReader(content), read_dictionary=["error"], **options)
        table.validate(full=True)
        columns = {column: table[column].combine_chunks() for column in table.column_names}
        return _log(columns)


def decoded_about(content: bytes, name: str, most_values: int | None = None) -> About:
    """The metadata in a file's `content`. Raises StoreError."""
    with _understood(name):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        file = parquet.ParquetFile(pa.BufferReader(content))
        said = (file.schema_arrow.metadata or {}).get(METADATA)
        found = file.schema_arrow.remove_metadata()
        if said is None or not any(found.equals(_schema(turns)) for turns in (False, True)):
            raise ValueError("its columns are not those of a request log")
        if excess := _excess(file.metadata, most_values):
            raise ValueError(f"it claims to hold {excess}")
        return About.model_validate_json(said)


def _excess(metadata: parquet.FileMetaData, most_values: int | None = None) -> str:
    """What a file holds too much of to be read, according to its footer; empty if nothing."""
    most_values = MOST_VALUES if most_values is None else most_values
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = [group.column(column) for group in groups for column in range(metadata.num_columns)]
    if max(metadata.num_rows, sum(max(0, group.num_rows) for group in groups)) > MOST_REQUESTS:
        return f"more than {MOST_REQUESTS} requests"
    if sum(max(0, column.num_values) for column in columns) > most_values:
        return f"more than {most_values} values"
    texts = [column for column in columns if column.path_in_schema == "error"]
    if sum(max(0, text.total_uncompressed_size) for text in texts) > MOST_TEXT_BYTES:
        return f"more than {MOST_TEXT_BYTES} bytes of error texts"
    return ""


def _log(columns: dict[str, pa.ListArray]) -> RequestLog:
    if any(column.null_count for column in columns.values()):
        raise ValueError("values are missing")
    at_s, tokens = (columns[name] for name in _CHUNKS)
    if not at_s.offsets.equals(tokens.offsets) or at_s.flatten().null_count or tokens.flatten().null_count:
        raise ValueError("times and tokens of the responses do not fit together")
    numbers = [name for name in (*_FLOATS, *_INTS, _TURN) if name in columns]
    return RequestLog(
        **{name: columns[name].to_numpy(zero_copy_only=False) for name in numbers},
        error=_errors(columns["error"]),
        chunks=at_s.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64),
        chunk_at_s=at_s.flatten().to_numpy(zero_copy_only=False),
        chunk_tokens=tokens.flatten().to_numpy(zero_copy_only=False),
    )


def _errors(column: pa.DictionaryArray) -> tuple[str, ...]:
    texts = column.dictionary.to_pylist()
    if any(len(text) > LONGEST_ERROR for text in texts):
        raise ValueError(f"an error text is longer than {LONGEST_ERROR} characters")
    shown = np.array([clean(text) for text in texts], object)  # the file may come from elsewhere
    return tuple(shown[column.indices.to_numpy()].tolist())


def _schema(turns: bool = False) -> pa.Schema:
    import pyarrow as pa

    times = [(name, pa.float64()) for name in _FLOATS]
    lengths = [(name, pa.int64()) for name in _INTS]
    chunks = [("chunk_at_s", pa.list_(pa.float64())), ("chunk_tokens", pa.list_(pa.int64()))]
    last = [(_TURN, pa.int64())] if turns else []
    return pa.schema([*times, *lengths, ("error", pa.string()), *chunks, *last])


@contextmanager
def _understood(name: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except ValidationError as error:
        raise StoreError(f"{name}: not a file of request records: {first_fault(error)}") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        reason = clean(" ".join(str(error).split()))[:200] or type(error).__name__
        raise StoreError(f"{name}: not a file of request records, or damaged: {reason}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` once it is complete and safe on disk.

    Raises StoreError if the system refuses; `path` is then unchanged, with nothing left beside it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _settle(path.parent)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror or error}): free some space or choose another folder"
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _settle(folder: Path) -> None:
    """Make the names in a folder as durable as the files."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
