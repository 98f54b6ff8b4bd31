"""Runs and points in the store: what goes in comes out, at once and never twice, on SQLite and on PostgreSQL."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import StoreError
from calibration.plan import level_key
from calibration.records import Measurement
from calibration.store import Store
from calibration.store.database import clean
from calibration.store.records_file import About, decoded_about
from calibration.store.runs import Owner
from tests.calibration.kept import POINT, facts, measurement, points, same, some_log
from tests.calibration.outside import ended, python


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(point=points, said=facts, server=facts)
def test_a_measurement_comes_back_as_it_went_in(
    store: Store, point: Any, said: dict[str, float], server: dict[str, float]
) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, Measurement(point, said, server))
    assert store.points(run_id) == [point]
    assert store.measurements(run_id) == [Measurement(point, said, server)]


def test_text_that_a_database_refuses_and_unknown_facts_do_not_lose_the_point(store: Store) -> None:
    run_id = store.create_run("a\0plan")
    point = replace(POINT, notes="half \ud800, none \0", ttft_mean_s=np.float64(0.25))
    store.add_point(run_id, Measurement(point, {"a_s": float("nan"), "b_s": np.float64(0.5)}, {"c": float("inf")}))
    (kept,) = store.measurements(run_id)
    assert kept.point == replace(point, notes="half \ufffd, none \ufffd")
    assert (kept.facts, kept.server) == ({"b_s": 0.5}, {})


ORDERS = "a\x1b]52;c;cm0=\a\x9b2J\u202eb\r\nc\td"  # sets the clipboard, clears the screen, turns the text round
HARMLESS = "a\ufffd]52;c;cm0=\ufffd\ufffd2J\ufffdb  c d"


def test_texts_do_nothing_to_a_terminal_and_are_one_line(store: Store) -> None:
    run_id = store.create_run("a: plan\nof: lines\n", label=ORDERS, folder=ORDERS)
    store.add_point(run_id, Measurement(replace(POINT, model=ORDERS, notes=ORDERS), {ORDERS: 1.0}, {ORDERS: 2.0}))
    store.finish_run(run_id, "failed", ORDERS)
    run, (kept,) = store.run(run_id), store.measurements(run_id)
    assert (run.plan, run.label, run.folder, run.error) == ("a: plan\nof: lines\n", HARMLESS, HARMLESS, HARMLESS)
    assert kept == Measurement(replace(POINT, model=HARMLESS, notes=HARMLESS), {HARMLESS: 1.0}, {HARMLESS: 2.0})


@given(text=st.text(st.characters(), max_size=30))
def test_a_cleaned_text_is_printable_and_stays_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert not {unicodedata.category(char) for char in cleaned} & {"Cc", "Cs", "Zl", "Zp"}
    bidi = {unicodedata.bidirectional(char) for char in cleaned}
    assert not bidi & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert clean(cleaned) == cleaned
    assert bool(cleaned) == bool(text)


def test_other_writing_stays() -> None:
    for text in ("naïve 模型 مدل", "👩‍💻", "zero\u200bwidth"):
        assert clean(text) == text


@pytest.mark.parametrize("column", ["max_batch_size", "requests", "errors"])
@pytest.mark.parametrize("value", [2**31, 10**12])
def test_a_whole_number_that_no_database_holds(store: Store, column: str, value: int) -> None:
    run_id = store.create_run("plan")
    with pytest.raises(StoreError, match=f"{column} of a point is larger than any the store holds"):
        store.add_point(run_id, replace(POINT, **{column: value}))
    assert store.points(run_id) == []
    store.add_point(run_id, replace(POINT, **{column: 2**31 - 1}))
    assert getattr(store.points(run_id)[0], column) == 2**31 - 1


def test_a_number_that_no_run_has_however_large(store: Store) -> None:
    with pytest.raises(StoreError, match=r"(too large|out of range).*give a smaller number"):
        store.run(10**20)


def test_points_are_there_for_others_at_once(store: Store, database_url: str) -> None:
    store.add_point(store.create_run("plan"), POINT)
    assert ended(python("import sys; from calibration.store import Store; print(Store(sys.argv[1]).points()[0].model)",
                        database_url)).strip() == "toy"  # fmt: skip


def test_sqlite_lets_readers_by(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'points.db'}"
    run_id = Store(url).create_run("plan")
    with Store(url).database.writing():
        assert Store(url).run(run_id).points == 0


def test_no_level_of_a_run_twice(store: Store) -> None:
    first, second = store.create_run("plan"), store.create_run("plan")
    store.add_point(first, measurement())
    store.add_point(second, POINT)
    with pytest.raises(StoreError, match="already"):
        store.add_point(first, measurement(replace(POINT, requests_per_s=1.0), some_log(9)))
    assert store.points() == [POINT, POINT]
    log = store.log(first, level_key(POINT))
    assert log is not None
    assert same(log, some_log())


def test_void_points_are_kept_and_counted(store: Store) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, POINT)
    store.add_point(run_id, replace(POINT, load_value=8, verdict="steady"))
    store.add_point(run_id, replace(POINT, load_value=16, verdict="overloaded"))
    assert [point.void for point in store.points(run_id)] == [False, False, True]
    assert (store.run(run_id).points, store.run(run_id).void) == (3, 1)


def test_points_come_by_load_or_as_they_were_measured(store: Store) -> None:
    run_id = store.create_run("plan")
    for users in (16.0, 1.0, 4.0):
        store.add_point(run_id, replace(POINT, load_value=users))
    assert [point.load_value for point in store.points(run_id)] == [1, 4, 16]
    assert [point.load_value for point in store.points(run_id, as_measured=True)] == [16, 1, 4]
    assert [kept.point.load_value for kept in store.measurements(run_id, as_measured=True)] == [16, 1, 4]


def test_a_run_goes_through_its_states(store: Store) -> None:
    run_id = store.create_run("the plan", folder="/plans", label="ensemble at x:1", levels=3)
    begun = store.run(run_id)
    assert (begun.state, begun.ended, begun.points, begun.levels) == ("running", None, 0, 3)
    assert (begun.plan, begun.folder, begun.label) == ("the plan", "/plans", "ensemble at x:1")
    assert begun.owner == str(Owner.here())
    store.finish_run(run_id, "failed", "it broke")
    assert (store.run(run_id).state, store.run(run_id).error) == ("failed", "it broke")
    assert store.run(run_id).ended is not None
    store.restart_run(run_id)
    assert (store.run(run_id).state, store.run(run_id).error, store.run(run_id).ended) == ("running", "", None)
    assert store.run(run_id).uuid == begun.uuid


def test_runs_come_newest_first_with_their_points_counted(store: Store) -> None:
    first, second = store.create_run("a"), store.create_run("b")
    store.add_point(first, POINT)
    assert [(run.id, run.points) for run in store.runs()] == [(second, 0), (first, 1)]
    assert len({run.uuid for run in store.runs()}) == 2


@pytest.mark.parametrize(
    "act",
    [Store.run, Store.points, Store.measurements, Store.restart_run, Store.records],
    ids=lambda act: act.__name__,
)
def test_an_unknown_run_is_named(tmp_path: Path, act: Any) -> None:
    with pytest.raises(StoreError, match="no run 7"):
        act(Store(f"sqlite:///{tmp_path / 'points.db'}"), 7)


# Records of single requests


def about_log(store: Store, run_id: int) -> About:
    """What the log of POINT says of itself."""
    return decoded_about(store.records(run_id)[level_key(POINT)].read_bytes(), "log")


def test_the_log_lies_beside_the_database_and_says_whose_it_is(store: Store) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, measurement(), seed=(7, 1))
    store.add_point(run_id, replace(POINT, load_value=8))
    assert list(store.records(run_id)) == [level_key(POINT)]
    about = about_log(store, run_id)
    assert (about.run, about.level) == (store.run(run_id).uuid, level_key(POINT))
    assert (about.window_s, about.seed) == ((0.5, 2.5), (7, 1))
    assert store.log(run_id, level_key(replace(POINT, load_value=8))) is None


@pytest.mark.parametrize("facts", [{}, {"window_start_s": 1.0}, {"window_start_s": 1.0, "window_stop_s": float("nan")}])
def test_a_window_that_is_not_known_does_not_lose_the_log(tmp_path: Path, facts: dict[str, float]) -> None:
    store = Store(f"sqlite:///{tmp_path / 'points.db'}")
    run_id = store.create_run("plan")
    store.add_point(run_id, Measurement(POINT, facts, log=some_log()))
    assert about_log(store, run_id).window_s is None


def test_logs_go_where_they_are_told(store: Store, tmp_path: Path) -> None:
    """Beside a SQLite file, whatever SIZING_RECORDS says, so that the two can be moved together."""
    expected = {"sqlite": tmp_path / "points-records", "postgresql": tmp_path / "records"}
    assert store.database.records == expected[store.database.url.get_backend_name()]


def test_records_that_are_gone_or_damaged_do_not_hide_the_points(store: Store) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, measurement())
    file = store.records(run_id)[level_key(POINT)]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"level-1\.parquet"):
        store.log(run_id, level_key(POINT))
    file.unlink()
    assert store.log(run_id, level_key(POINT)) is None
    assert store.points(run_id) == [POINT]


def test_a_point_whose_log_cannot_be_written_is_not_kept(store: Store) -> None:
    run_id = store.create_run("plan")
    store.database.records.write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"level-1\.parquet: cannot be written"):
        store.add_point(run_id, measurement())
    assert store.points(run_id) == []
    store.database.records.unlink()
    store.add_point(run_id, measurement())
    assert len(store.records(run_id)) == 1


def test_listing_points_does_not_load_what_reads_records(tmp_path: Path) -> None:
    code = (
        "import sys; from calibration.store import Store; Store(sys.argv[1]).points(); print('pyarrow' in sys.modules)"
    )
    assert ended(python(code, f"sqlite:///{tmp_path / 'points.db'}")).strip() == "False"
