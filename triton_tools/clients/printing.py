"""How the clients show a run: the table, the line of `--op_stats_csv`, and the trace for Perfetto."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibration.errors import FileError
from calibration.metrics import window
from calibration.records import RequestLog
from triton_tools.clients.stats import Stats

LONGEST_HEAD = 10_000
PERFETTO_FILE = "prfetto_dump.json"  # spelt as by the clients: whoever looks for the file looks for this name
DEFINITIONS = (
    "these are the clients' definitions: all requests count, ramp-up and drain included, latency is counted from the"
    " actual sending to the end of the answer, P90 and P99 are nearest-rank; points of `python -m calibration run`"
    " leave out ramp-up and drain, and count latencies of open loops from when requests were due"
)


def summary_rows(stats: Stats) -> list[tuple[str, float]]:
    """Name and value of each row of the table, in the clients' order and units (latencies in milliseconds)."""
    return [
        ("Requests/Sec", stats.requests_per_s),
        ("OP tokens/sec", stats.output_tokens_per_s),
        ("Avg. latency (ms)", stats.latency_mean_s * 1000),
        ("P99 latency (ms)", stats.latency_p99_s * 1000),
        ("P90 latency (ms)", stats.latency_p90_s * 1000),
        ("Avg. IP tokens per request", stats.isl_mean),
        ("Avg. OP tokens per request", stats.osl_mean),
        ("Avg. InFlight requests", stats.in_flight_mean),
        ("Total latency (ms)", stats.duration_s * 1000),
        ("Total requests", float(stats.requests)),
    ]


def summary_table(stats: Stats) -> str:
    """The clients' table of `stats`."""
    return boxed(("Stat", "Value"), [(name, f"{value:.2f}") for name, value in summary_rows(stats)])


def boxed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in a frame of ``+-|``, every cell centred; ends without a newline.

    >>> print(boxed(("Stat", "Value"), [("Total requests", "98.00")]))
    +----------------+-------+
    |      Stat      | Value |
    +----------------+-------+
    | Total requests | 98.00 |
    +----------------+-------+
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "|" + "|".join(f" {cell:^{width}} " for cell, width in zip(row, widths, strict=True)) + "|" for row in rows
    ]
    title = "|" + "|".join(f" {cell:^{width}} " for cell, width in zip(head, widths, strict=True)) + "|"
    return "\n".join([rule, title, rule, *lines, rule])


def csv_row(stats: Stats) -> dict[str, float]:
    """The row of `--op_stats_csv`, with the clients' names, order and units, unrounded."""
    row = {_CSV_NAMES.get(name, name): value for name, value in summary_rows(stats)}
    return row | {"Total requests": stats.requests}


def append_csv(path: Path, stats: Stats) -> None:
    """Add one row to the `--op_stats_csv` file, after its header if the file is empty.

    Raises FileError if it cannot be written.
    """
    row = csv_row(stats)
    try:
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from None


def check_csv(path: Path) -> None:
    """Raises FileError before anything is run, if no row can be added to `path` or it is a file of another kind."""
    check_writable(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head = next(csv.reader([file.readline(LONGEST_HEAD)]), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: cannot be read as CSV ({error})") from None
    if head and head != _CSV_HEAD:
        raise FileError(f"{path}: has other columns than --op_stats_csv writes; name another file")


def check_writable(path: Path) -> None:
    """Raises FileError if `path` cannot be written."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from None


_CSV_NAMES = {
    "Avg. IP tokens per request": "Avg. Input tokens per request",
    "Avg. OP tokens per request": "Avg. Output tokens per request",
}
_CSV_HEAD = list(csv_row(Stats(*(0.0,) * 9, requests=0)))


def write_perfetto(path: Path, log: RequestLog) -> None:
    """Write each answered request as a bar on a time line, in the JSON trace format that ui.perfetto.dev opens.

    Raises FileError if it cannot be written.
    """
    answered = log.where(window.answered(log))
    order = np.argsort(answered.sent_s, kind="stable")
    start_s = float(answered.sent_s[order[0]])
    tokens = answered.tokens
    bars = [
        {
            "name": f"req_{number}",
            "cat": "batch",
            "ph": "X",
            "ts": (float(answered.sent_s[row]) - start_s) * 1e6,
            "dur": float(answered.end_s[row] - answered.sent_s[row]) * 1e6,
            "pid": "1",
            "args": {"isl": int(answered.isl[row]), "osl": int(tokens[row])},
        }
        for number, row in enumerate(order)
    ]
    try:
        path.write_text(json.dumps(bars), encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: the trace cannot be written ({error.strerror})") from None
