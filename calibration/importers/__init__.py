"""Files of other benchmark tools become points.

    kind            files
    aiperf          profile_export_aiperf.json and .csv, profile_export.jsonl
    genai-perf      profile_export_genai_perf.json and .csv
    perf-analyzer   -f CSV, --profile-export-file JSON
    guidellm        benchmarks.json (all three generations), benchmarks.csv
    vllm            bench serve --save-result, --save-detailed
    op-stats        --op_stats_csv of the TensorRT-LLM backend's clients

Where a file has its single requests, and all of them, points are computed from these by our own definitions; otherwise
they are the tool's figures, and the notes say what is different about them. Prompts, answers and keys are never kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calibration.importers.formats import KINDS, Kind, measurements
from calibration.importers.reading import known, read_content
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
    """The load levels in the file at `path`, with their request logs where it holds single requests.

    `kind`, one of KINDS, is detected from the content if None. `deployment` says what the file leaves out, by the names
    of `reading.KnownFacts` (model, precision, gpu, tp, ..., isl, osl, concurrency, rate, arrivals), and overrides it.

    Raises FileError, one line naming file and key, the flag that is missing, or that there are more than
    `most` levels in the file.
    """
    return measurements(read_content(path), kind, known(deployment or {}), most)


def read(path: Path | str, *, kind: str | None = None, deployment: Mapping[str, object] | None = None) -> list[Point]:
    """The points in the file at `path`; see `read_measurements`."""
    return [found.point for found in read_measurements(path, kind=kind, deployment=deployment)]
