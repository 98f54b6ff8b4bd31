"""Provenance: where each configuration's numbers come from, with engine versions, dates and digests of the data."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sizing.catalog import CATALOG
from sizing.curves import Point
from sizing.plan import Candidate, Fleet
from sizing.report.json import DIGEST
from sizing.report.model import Source
from sizing.report.quantity import Quantity

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def source_of(fleet: Fleet, points: Sequence[Point]) -> Source:
    """The provenance of one fleet; `points` are all measured points that were to hand."""
    candidate = fleet.candidate
    used = points_of(candidate, points)
    dates = sorted(point.measured_at for point in used if point.measured_at)
    return Source(
        configuration=candidate.label,
        basis=fleet.basis,
        source=candidate.source,
        points=len(used),
        engine=engine_of(used[0]) if used else "",
        measured_from=dates[0] if dates else "",
        measured_to=dates[-1] if dates else "",
        digest=digest_of("\n".join(map(repr, used)).encode()) if used else catalogue_digest(),
        error=Quantity(candidate.relative_sigma, "share", fleet.basis),
    )


def points_of(candidate: Candidate, points: Sequence[Point]) -> list[Point]:
    """The points that the candidate's law was fitted to: of its deployment, closed loop, not void."""
    if candidate.basis not in ("fitted", "extrapolated", "measured"):
        return []
    name = (candidate.model.lower(), candidate.gpu, candidate.tp, candidate.pp, candidate.precision)
    return [
        point
        for point in points
        if (point.model.lower(), point.gpu, point.tp, point.pp, point.precision) == name
        and not point.void
        and point.load_kind == "concurrency"
        and candidate.source.endswith(engine_of(point))
    ]


def engine_of(point: Point) -> str:
    """Engine and version, as in a fitted candidate's source."""
    return f"{point.engine} {point.engine_version}".strip()


def digest_of(data: bytes) -> str:
    """First characters of the SHA-256 of some data."""
    return hashlib.sha256(data).hexdigest()[:DIGEST]


@cache
def catalogue_digest() -> str:
    """Digest of the catalogue files of GPUs and models, which estimates read."""
    return digest_of(b"".join(path.read_bytes() for path in sorted(CATALOG.glob("*.yaml"))))


@cache
def program() -> str:
    """Name and version of this program, from the project's own description."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return f"{project['name']} {project['version']}"
