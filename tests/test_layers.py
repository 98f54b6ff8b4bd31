"""The rooms of the design: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ("sizing", "calibration", "ui", "api")
TENANTS = {"triton_tools", "learn", "lab", "validation"}
SCREEN = {"streamlit", "plotly", "altair"}
NETWORK = {"tritonclient", "grpc", "requests", "httpx", "aiohttp", "urllib", "socket", "http", "sqlalchemy"}
VALUES = {
    f"sizing.{name}"
    for name in ("points token_law workload question errors numbers stats files lazy_group trace trace_files").split()
}
ASKS_SIZING = {
    "calibration.adapt": {"sizing.analyses.next_level"},
    "calibration.check": {"sizing.engine", "sizing.fitting.levels"},
    "calibration.load.openai": {"sizing.catalog"},
    "calibration.size": {f"sizing.{name}" for name in "text plans analyses.next_level analyses.verification".split()}
    | {f"sizing.cli.{name}" for name in "options plan shapes tables".split()},
    "calibration.prometheus": {"sizing.cli.options"},
    "calibration.demand": {"sizing.demand_model", "sizing.cli.demand", "sizing.cli.options"},
    "calibration.watch": {f"sizing.report.{name}" for name in "model tables write".split()}
    | {f"sizing.cli.{name}" for name in "demand options tables".split()},
}
"""An adaptive sweep asks sizing which level to measure next, a check how far two runs may differ by chance, an OpenAI
client whether the catalogue knows a server's own name for its model; `size` is a measurement with the planner's answer;
`demand` makes a model of what was served, `watch` sets it beside a plan."""
OFFERED_TO_UI = {
    f"calibration.{name}" for name in ("store", "store.work", "errors", "plan", "jobs", "incoming", "importers")
}


def module_of(path: Path) -> str:
    """The dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Every module of the core and of its tenants."""
    return {module_of(path): path for room in (*CORE, *sorted(TENANTS)) for path in sorted((ROOT / room).rglob("*.py"))}


@cache
def imports(path: Path) -> frozenset[str]:
    """Full names of what a file imports, wherever in the file; of our own modules, the modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            found |= inside or {node.module or ""}
    return frozenset(found)


def tops(names: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def rooms(*wanted: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Module and imports of every file in these rooms."""
    found = [(name, imports(path)) for name, path in modules().items() if name.split(".")[0] in wanted]
    assert found
    yield from found


def test_sizing_is_pure() -> None:
    refused = SCREEN | NETWORK | {"calibration", "ui", "api", "app"}
    assert not {name: bad for name, names in rooms("sizing") if (bad := tops(names) & refused)}


def test_calibration_takes_only_values_from_sizing() -> None:
    for name, names in rooms("calibration"):
        assert not tops(names) & (SCREEN | {"ui", "app"}), name
        assert {each for each in names if each in modules() and each.startswith("sizing.")} <= VALUES | ASKS_SIZING.get(
            name, set()
        ), name


def test_the_page_reaches_calibration_only_through_its_store_plans_and_jobs() -> None:
    for name, names in rooms("ui"):
        assert not tops(names) & {"tritonclient", "grpc", "sqlalchemy", "numba"}, name
        assert {each for each in names if each.startswith("calibration.")} <= OFFERED_TO_UI, name
    assert tops(imports(ROOT / "app.py")) <= {"__future__", "streamlit", "ui"}


def test_the_api_passes_questions_on_and_is_known_only_to_the_door() -> None:
    for name, names in rooms("api"):
        offered = {"calibration.store", "calibration.errors", "ui.login", "ui.visit"}
        assert {each for each in names if each.startswith(("calibration.", "ui."))} <= offered, name
    assert not {name for name, names in rooms("sizing", "calibration", "ui") if "api" in tops(names)}


def test_nothing_of_the_core_imports_a_tenant() -> None:
    assert not {name: bad for name, names in rooms(*CORE) if (bad := tops(names) & TENANTS)}


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports for types alone count too; a package stands for what it offers."""
    graph = {name: {each for each in names if each in modules() and each != name} for name, names in rooms(*CORE)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


FIRST = """
import os
from importlib import import_module
import numba, scipy.special  # not ours, and most of the work
from sizing.cli import COMMANDS
for module in sorted({where.partition(":")[0] for where, _ in COMMANDS.values()}):
    if not (child := os.fork()):
        import_module(module)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
print("all")
"""


@pytest.mark.long
def test_every_command_may_be_the_first_thing_that_a_process_loads() -> None:
    """Whatever tests and other commands have loaded before hides an import that only works after another one."""
    done = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr
