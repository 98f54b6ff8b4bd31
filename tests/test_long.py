"""The list of long tests is of tests that are there, and is read off a report of a run."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.long import file_of, listed, measured, parts, seconds_by_file

ROOT = Path(__file__).parent.parent
SUITES = st.dictionaries(st.from_regex(r"[a-e]\.py::test_[a-z]", fullmatch=True), st.floats(0.1, 500.0))


def test_every_test_listed_is_there() -> None:
    for test in listed():
        file, name, *_ = test.split("::")
        assert re.search(rf"^(def |class )?{name}\b", (ROOT / file).read_text(), re.MULTILINE), f"{test} has gone"


@given(SUITES, st.integers(1, 6))
def test_each_file_has_one_part_and_none_holds_more_than_its_share_and_one_file(
    seconds: dict[str, float], number: int
) -> None:
    found = parts(seconds, number)
    assert set(found) == {file_of(test) for test in seconds}
    by_file = seconds_by_file(seconds)
    for part in range(number):
        held_s = [by_file[file] for file, its_part in found.items() if its_part == part]
        if held_s:
            assert sum(held_s) - min(held_s) <= sum(by_file.values()) / number + 1e-9


def test_cases_of_a_function_count_together_and_quick_ones_are_left_out() -> None:
    report = """<testsuites><testsuite>
    <testcase classname="tests.a.test_x" name="test_y[1]" time="2.0"/>
    <testcase classname="tests.a.test_x" name="test_y[a.b::c]" time="1.5"/>
    <testcase classname="tests.a.test_x" name="test_z" time="1.9"/>
    <testcase classname="tests.a.test_x.TestB" name="runTest" time="4.0"/>
    </testsuite></testsuites>"""
    assert measured(report) == {"tests/a/test_x.py::TestB::runTest": 4.0, "tests/a/test_x.py::test_y": 3.5}
