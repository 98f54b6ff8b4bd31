"""perf_analyzer's `-f` CSV, times in microseconds: a row a load level, E2E and the server's parts of it, no tokens."""

from __future__ import annotations

from calibration.errors import FileError
from calibration.importers.content import CsvFile, Row
from calibration.importers.edge import clean, number, unique
from calibration.importers.known import Known, Offered
from calibration.importers.summary import Summary, Times, measurement
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


def read(file: CsvFile, known: Known) -> list[Measurement]:
    """One measurement a row. Raises FileError naming line and column, or the flags that are to be given."""
    header = file.rows[0]
    unique(header, f"{file.name}, line 1")
    if len(file.rows) < 2:
        raise FileError(f"{file.name}: no row below the header")
    return [
        _measurement(header, row, known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[1:], file.rows[1:], strict=True)
    ]


def _measurement(header: Row, row: Row, known: Known, where: str) -> Measurement:
    """Rows of a decoupled model end in a comma: one empty cell more than columns is no fault."""
    if len(row) < len(header) or any(row[len(header) :]):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(header)}; cut short?")
    cells = dict(zip(header, row, strict=False))
    load = _load(header[0], _value(cells, header[0], where), where)
    mean_us, note = _mean_e2e_us(cells, where)
    summary = Summary(
        source="perf_analyzer",
        load=load,
        usual_arrivals="constant",
        requests_per_s=_value(cells, "Inferences/Second", where),
        e2e=_e2e(cells, mean_us, where),
        notes=(NO_TOKENS, *([note] if note else []), *([NO_DISTRIBUTION] if load.open_loop else [])),
        server=_server(cells, where),
    )
    return measurement(summary, known, where)


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
    tail = [
        _value(cells, f"p{q} latency", where) * US if cells.get(f"p{q} latency") else None for q in (50, 90, 95, 99)
    ]
    return Times(mean_us * US, *tail)


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
