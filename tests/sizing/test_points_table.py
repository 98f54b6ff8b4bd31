"""What the points table says of the measurement itself: how users began, and how many replicas stood behind."""

from __future__ import annotations

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from sizing.cli import main
from sizing.engine import Replica
from sizing.errors import PointsError
from sizing.fitting import Protocol, fit
from sizing.points import LoadKind, Point, read_points, write_points
from tests.sizing.test_fitting import GPU, SHORT, measure

POINTS = measure(Replica(GPU), (SHORT,))


def table(points: list[Point], folder: Path, **columns: str) -> Path:
    """The file, with further columns of one value each."""
    file = StringIO()
    write_points(points, file)
    header, *rows = file.getvalue().splitlines()
    lines = [",".join([header, *columns]), *(",".join([row, *columns.values()]) for row in rows)]
    path = folder / "points.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_start_that_all_points_tell_is_the_protocol() -> None:
    staggered = [replace(point, protocol="staggered") for point in POINTS]
    told = fit(POINTS, protocol=Protocol("ramp"))
    assert fit(staggered).law == told.law
    assert fit(staggered).protocol == told.protocol
    assert fit(staggered, protocol=Protocol("together")).protocol.start == "together"  # what a person says counts


def test_points_that_disagree_tell_nothing_and_one_user_says_nothing() -> None:
    first, *rest = (replace(point, protocol="staggered") for point in POINTS)
    assert first.load_value == 1
    assert fit([replace(first, protocol=""), *rest]).protocol == Protocol("ramp")
    mixed = fit([*rest[:-1], replace(rest[-1], protocol="burst")]).protocol
    assert mixed.inferred or mixed.start == "unknown"


def test_replicas_behind_one_endpoint_are_divided(tmp_path: Path) -> None:
    """A row says how many there are; where it does not, the caller does."""
    [point] = read_points(table([POINTS[3]], tmp_path, replicas="4"))
    assert point == POINTS[3].of_one(4)
    assert (point.load_value, point.requests_per_s) == (16, pytest.approx(POINTS[3].requests_per_s / 4))
    assert read_points(tmp_path / "points.csv", replicas=2) == [point]
    assert read_points(table([POINTS[3]], tmp_path, replicas=""), replicas=4) == [point]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("replicas", "0"),
        ("replicas", "two"),
        ("protocol", "sometimes"),
        ("policy", "in_flight"),
        ("token_budget", "many"),
        ("lookahead_steps", "5"),
        ("lookahead_steps", "nan"),
        *[("receive_interval_steps", value) for value in ("0", "-1", "1.5", "100000", "often")],
        *[("batch_wait_steps", value) for value in ("-1", "1.5", "100000", "long")],
        *[("batch_wait_ratio", value) for value in ("0", "-1", "1.1", "most")],
    ],
)
def test_values_that_say_nothing_name_their_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: str
) -> None:
    file = StringIO()
    write_points([POINTS[0]], file)
    header, row = csv.reader(file.getvalue().splitlines())
    path = tmp_path / "points.csv"
    path.write_text("".join(",".join(line) + "\n" for line in ([*header[:40], column], [*row[:40], value])))
    with pytest.raises(PointsError, match=f"row 2, column '{column}'"):
        read_points(path)
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--points", str(path)])
    assert capsys.readouterr().err.count("\n") == 1


def test_a_point_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """It would count twice in a fit."""
    path = tmp_path / "points.csv"
    with path.open("w") as file:
        write_points([POINTS[0], POINTS[1], POINTS[0]], file)
    with pytest.raises(PointsError, match="row 4: the point of row 2 again: keep one of them"):
        read_points(path)


def test_a_table_of_semicolons_is_told_from_one_without_columns(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    with path.open("w") as file:
        write_points(POINTS[:2], file)
    path.write_text(path.read_text().replace(",", ";"))
    with pytest.raises(PointsError, match="columns are separated by semicolons"):
        read_points(path)


def test_spaces_around_cells_and_empty_rows_change_nothing(tmp_path: Path) -> None:
    """Of tables written by hand and by spreadsheets; a fault is told by the row that an editor shows."""
    path = tmp_path / "points.csv"
    header, *rows = ["model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s"] + [
        f"m,bf16,g,1,100,{osl},concurrency,4,2" for osl in (10, 20)
    ]
    for text in ("\n".join([header, *rows]), "\n,,,,,,,,\n\n".join([header, *rows])):
        path.write_text(text.replace(",", " , "))
        assert [(point.model, point.load_kind, point.osl) for point in read_points(path)] == [
            ("m", "concurrency", 10),
            ("m", "concurrency", 20),
        ]
    path.write_text(path.read_text().replace("20", "-20"))
    with pytest.raises(PointsError, match=r"row 7, column 'osl'"):
        read_points(path)


@pytest.mark.parametrize(
    ("kind", "value", "label"),
    [
        ("concurrency", 1.0, "1 user"),
        ("concurrency", 16.0, "16 users"),
        ("sessions", 1.0, "1 user with sessions"),
        ("poisson_rate", 1.0, "1 request/s"),
    ],
)
def test_the_load_of_a_point_reads_as_a_person_would_say_it(kind: LoadKind, value: float, label: str) -> None:
    assert replace(POINTS[0], load_kind=kind, load_value=value).load_label == label
