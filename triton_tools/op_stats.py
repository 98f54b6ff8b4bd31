"""The `--op_stats_csv` of the TensorRT-LLM backend's benchmark clients: one row per run, with E2E as the only latency.

Output tokens are counted by the shape of the output, padding included. P90 and P99 are nearest-rank percentiles. The
average number in flight is 0 in most releases and slightly too high in the first, so it is computed by Little's law,
which is exact over a whole run: the sum of latencies over the total time.
"""

from __future__ import annotations

from calibration.errors import FileError
from calibration.importers.points import ImportedSummary, Times, measurement_of_summary
from calibration.importers.reading import CsvFile, KnownFacts, Row, number, unique
from calibration.records import Measurement

MS = 1e-3
NEEDED = (
    "Requests/Sec",
    "OP tokens/sec",
    "Avg. latency (ms)",
    "P99 latency (ms)",
    "P90 latency (ms)",
    "Avg. Input tokens per request",
    "Avg. Output tokens per request",
    "Total latency (ms)",
    "Total requests",
)
PADDED = "output tokens are counted from the output's shape: padding counts"
NO_TTFT = "the client waits for whole answers: TTFT and ITL are empty"
BURST = "all requests were sent at once: in flight are fewer and fewer"


def recognises(file: CsvFile) -> bool:
    """Whether a CSV is such a file."""
    return file.rows[0][0] == NEEDED[0] and NEEDED[2] in file.rows[0]


def read(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """One measurement per row. The caller gives the load; for an offline run, `concurrency` is the number of requests.

    Raises FileError naming line and column, or the flags to give.
    """
    header = file.rows[0]
    unique(header, f"{file.name}, line 1")
    for column in NEEDED:
        if column not in header:
            raise FileError(f"{file.name}: column {column!r} is missing")
    if len(file.rows) < 2:
        raise FileError(f"{file.name}: no row below the header")
    return [
        _measurement(header, row, known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[1:], file.rows[1:], strict=True)
    ]


def _measurement(header: Row, row: Row, known: KnownFacts, where: str) -> Measurement:
    if len(row) != len(header):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(header)}; cut short?")
    cells = dict(zip(header, row, strict=True))
    value = {column: number(cells[column], f"{where}, column {column!r}") for column in NEEDED}
    for column in ("Requests/Sec", "Total requests", "Total latency (ms)"):
        if not value[column]:
            raise FileError(f"{where}, column {column!r}: 0 is not a measurement")
    requests = round(value["Total requests"])
    burst = known.concurrency is not None and known.concurrency >= requests
    mean_s = value["Avg. latency (ms)"] * MS
    summary = ImportedSummary(
        source="TensorRT-LLM backend client",
        isl=value["Avg. Input tokens per request"] or None,
        osl=value["Avg. Output tokens per request"] or None,
        requests=requests,
        duration_s=value["Total latency (ms)"] * MS,
        requests_per_s=value["Requests/Sec"],
        output_tokens_per_s=value["OP tokens/sec"] or None,
        mean_in_flight=value["Requests/Sec"] * mean_s,
        e2e=Times(mean_s, p90_s=value["P90 latency (ms)"] * MS, p99_s=value["P99 latency (ms)"] * MS),
        verdict="unsteady" if burst else "",
        notes=(PADDED, NO_TTFT, *([BURST] if burst else [])),
    )
    return measurement_of_summary(summary, known, where)
