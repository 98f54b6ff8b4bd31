"""Which tests take long, and the part of them that one run of CI takes.

The suite takes half an hour on two cores, and three quarters of it go to one test function in ten. `long.csv` lists
those with their seconds; every other test runs each time. Each run of CI takes one of `N` parts of the list, chosen by
its commit, so that all of them run every few commits, and `make test-all` runs them together.

The list is written from a report of a whole run: `make test-all`, then `python -m tests.long .cache/tests.xml`.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

LISTED = Path(__file__).with_name("long.csv")
LEAST_S = 2.0
"""Seconds from which a test function, all its cases together, is long: four workers on two cores."""


@cache
def listed() -> Mapping[str, float]:
    """Seconds of each long test function, named as pytest does, without the case: ``tests/test_x.py::test_y``."""
    with LISTED.open(newline="") as file:
        return {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}


def file_of(test: str) -> str:
    """
    >>> file_of("tests/test_x.py::test_y")
    'tests/test_x.py'
    """
    return test.partition("::")[0]


def function_of(test: str) -> str:
    """
    >>> function_of("tests/test_x.py::test_y[a::b]")
    'tests/test_x.py::test_y'
    """
    return test.partition("[")[0]


def seconds_by_file(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the long tests of each file."""
    files = Counter[str]()
    for test, took_s in seconds.items():
        files[file_of(test)] += took_s
    return dict(files)


def parts(seconds: Mapping[str, float], number: int) -> dict[str, int]:
    """The part, 0 to ``number - 1``, of each file with long tests: the longest first, each to the part with least so
    far. A file stays whole, since its tests share servers.

    >>> parts({"a.py::test": 5.0, "b.py::test": 3.0, "c.py::test": 2.0, "c.py::other": 0.5}, 2)
    {'a.py': 0, 'b.py': 1, 'c.py': 1}
    """
    filled = [0.0] * number
    found = {}
    for file, took_s in sorted(seconds_by_file(seconds).items(), key=lambda item: (-item[1], item[0])):
        found[file] = filled.index(min(filled))
        filled[found[file]] += took_s
    return found


def measured(report: str) -> dict[str, float]:
    """Long test functions of a report of pytest (JUnit XML), with their seconds."""
    seconds = Counter[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        names = case.attrib["classname"].split(".")
        modules = [name for name in names if not name.startswith("Test")]
        test = "::".join(["/".join(modules) + ".py", *names[len(modules) :], case.attrib["name"]])
        seconds[function_of(test)] += float(case.attrib["time"])
    return {test: took_s for test, took_s in sorted(seconds.items()) if took_s >= LEAST_S}


def main(report: Path) -> None:
    """Write the list anew."""
    lines = [f"{round(took_s)},{test}" for test, took_s in measured(report.read_text()).items()]
    LISTED.write_text("\n".join(["seconds,test", *lines, ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
