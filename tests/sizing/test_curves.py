"""The points table: round trips, what is refused and how, and the doubts a point raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.errors import PointsError
from sizing.points import COLUMNS, NEEDED, Point, curves, doubts, read_points, write_points

HEADER = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s"
ROW = "m,bf16,h200_sxm,1,64,32,concurrency,4,2.5"

seconds = st.one_of(st.none(), st.floats(1e-6, 1e3))
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).map(
    lambda text: f"m{text}".strip()  # a table is read without the spaces around its cells
)


@st.composite
def points(draw: st.DrawFn) -> Point:
    return Point(
        model=draw(texts),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        gpu=draw(st.sampled_from(["h200_sxm", "=HYPERLINK(1)", "-1", "@x"])),
        tp=draw(st.integers(1, 16)),
        isl=draw(st.floats(1, 1e5)),
        osl=draw(st.floats(1, 1e5)),
        load_kind=draw(st.sampled_from(["concurrency", "constant_rate", "poisson_rate"])),
        load_value=draw(st.floats(0.01, 1e4)),
        requests_per_s=draw(st.floats(0.01, 1e4)),
        ttft_mean_s=draw(seconds),
        e2e_p95_s=draw(seconds),
        max_batch_size=draw(st.one_of(st.none(), st.integers(1, 1024))),
    )


@given(given_points=st.lists(points(), min_size=1, max_size=5, unique=True))
def test_a_table_reads_back_what_was_written(
    given_points: list[Point], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("points") / "points.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write_points(given_points, file)
    assert read_points(path) == given_points


def test_no_cell_starts_a_formula(tmp_path: Path) -> None:
    point = read_points(write(tmp_path, f"{HEADER}\n{ROW.replace('m,', '=1+1,', 1)}\n"))[0]
    path = tmp_path / "out.csv"
    with path.open("w", newline="") as file:
        write_points([point], file)
    cells = path.read_text().splitlines()[1].split(",")
    assert cells[0] == "'=1+1"
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


def write(folder: Path, text: str) -> Path:
    path = folder / "points.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("column", NEEDED)
def test_a_missing_column_is_named(column: str, tmp_path: Path) -> None:
    names = HEADER.split(",")
    keep = [i for i, name in enumerate(names) if name != column]
    lines = (",".join(line.split(",")[i] for i in keep) for line in (HEADER, ROW))
    with pytest.raises(PointsError, match=f"'{column}' is missing"):
        read_points(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    "column,value",
    [
        ("tp", "0"),
        ("tp", "x"),
        ("osl", "0"),
        ("isl", "-4"),
        ("requests_per_s", "nan"),
        ("load_value", "inf"),
        ("load_kind", "x"),
        ("tp", "9" * 400),
        ("isl", "0.5"),
        ("isl", "2e9"),
        ("load_value", "1e308"),
        ("requests_per_s", "1e308"),
        ("requests_per_s", "1e-300"),
    ],
)
def test_an_impossible_value_is_named_with_its_row_and_column(column: str, value: str, tmp_path: Path) -> None:
    row = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | {column: value}
    path = write(tmp_path, f"{HEADER}\n{ROW}\n{','.join(row.values())}\n")
    with pytest.raises(PointsError, match=f"row 3, column '{column}'"):
        read_points(path)


@pytest.mark.parametrize("text", ["", HEADER, f"{HEADER},surprise\n{ROW},1", f"{HEADER}\n{ROW},1,2", "\x00\x01"])
def test_a_file_that_is_no_points_table_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(PointsError):
        read_points(write(tmp_path, text))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("pp", "10000000"),
        ("max_batch_size", "-1"),
        ("isl_cv", "1e200"),
        ("duration_s", "1e10"),
        ("requests", "-1"),
        ("errors", "9" * 20),
        ("output_tokens_per_s", "1e13"),
        ("mean_in_flight", "1e10"),
        ("ttft_mean_s", "1e7"),
        ("itl_p99_s", "-1"),
        ("e2e_p50_s", "1e308"),
        ("gap_p95_s", "inf"),
    ],
)
def test_every_number_has_bounds(column: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(PointsError, match=f"row 2, column '{column}': ") as caught:
        read_points(write(tmp_path, f"{HEADER},{column}\n{ROW},{value}\n"))
    assert len(str(caught.value)) < 290


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PointsError, match=r"points\.csv: column 'isl' is there twice"):
        read_points(write(tmp_path, f"{HEADER},isl\n{ROW},9999\n"))


def test_an_unknown_column_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PointsError, match="unknown column 'engine_verson': did you mean engine_version"):
        read_points(write(tmp_path, f"{HEADER},engine_verson\n{ROW},1\n"))


def test_a_table_of_too_many_points_is_not_read_to_its_end(tmp_path: Path) -> None:
    """The row after the last that is taken holds no point, and nobody looks at it."""
    rows = "\n".join(ROW.replace(",4,", f",{users},") for users in (4, 8, 16))
    path = write(tmp_path, f"{HEADER}\n{rows}\nno point\n")
    with pytest.raises(PointsError, match="more than 2 points: split it"):
        read_points(path, most=2)


def test_a_file_without_end_and_a_line_without_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PointsError, match="larger than 50 MB"):
        read_points("/dev/zero")
    with pytest.raises(PointsError, match="a line of 100,"):
        read_points(write(tmp_path, f"{HEADER}\n{100_000 * ','}\n"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PointsError, match="no such"):
        read_points(tmp_path / "none.csv")


def test_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "bytes.csv"):
        with pytest.raises(PointsError):
            read_points(path)


def sample(**values: object) -> Point:
    given_values: dict[str, object] = {
        "model": "m",
        "precision": "bf16",
        "gpu": "g",
        "tp": 1,
        "isl": 10,
        "osl": 10,
        "load_kind": "concurrency",
        "load_value": 4,
        "requests_per_s": 2,
    }
    return Point(**(given_values | values))  # type: ignore[arg-type]


def test_curves_hold_closed_loop_points_by_rising_concurrency() -> None:
    levels = [8, 1, 4]
    found = curves([sample(load_value=level) for level in levels] + [sample(load_kind="poisson_rate")])
    assert len(found) == 1
    assert [point.load_value for point in found[0].points] == [1, 4, 8]


VOID = ("overloaded", "unsteady", "client_limited", "shared", "errors", "wrong_lengths", "little")


@pytest.mark.parametrize("verdict", VOID)
def test_void_points_are_in_no_curve_and_survive_the_table(verdict: str, tmp_path: Path) -> None:
    points = [sample(), sample(load_value=8, verdict=verdict), sample(load_value=16, verdict="steady")]
    assert [point.load_value for point in curves(points)[0].points] == [4, 16]
    path = tmp_path / "points.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write_points(points, file)
    assert [point.void for point in read_points(path)] == [False, True, False]


def test_a_verdict_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEADER},verdict\n{ROW},splendid\n")
    with pytest.raises(PointsError, match="row 2, column 'verdict'"):
        read_points(path)


@pytest.mark.parametrize(
    "values,word",
    [
        ({"e2e_mean_s": 3.0}, "Little"),
        ({"ttft_p50_s": 2.0, "ttft_p95_s": 1.0}, "percentiles"),
        ({"ttft_mean_s": 3.0, "e2e_mean_s": 2.0}, "longer"),
        ({"itl_mean_s": 25.0}, "milliseconds"),
    ],
)
def test_doubts_are_named(values: dict[str, float], word: str) -> None:
    assert any(word in doubt for doubt in doubts(sample(**values)))


def test_a_sound_point_raises_no_doubt() -> None:
    assert doubts(sample(e2e_mean_s=2.0, ttft_mean_s=0.1, ttft_p50_s=0.1, ttft_p95_s=0.2, itl_mean_s=0.01)) == []


def test_columns_are_those_of_the_contract() -> None:
    for metric in ("ttft", "itl", "e2e"):
        assert all(f"{metric}_{part}_s" in COLUMNS for part in ("mean", "p50", "p90", "p95", "p99"))
