"""The rooms of the design: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCREEN = {"streamlit", "plotly", "altair"}
NETWORK = {"tritonclient", "grpc", "requests", "httpx", "aiohttp", "urllib", "socket", "http", "sqlalchemy"}
VALUES = {"sizing.curves", "sizing.workload", "sizing.errors", "sizing.faults", "sizing.numbers", "sizing.yaml_file"}
# an adaptive sweep asks sizing which level to measure next
CHOOSES = {"calibration/adapt.py": {"sizing.design", "sizing.plan"}}


def imports(path: Path) -> set[str]:
    """Full names of the modules a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names if (ROOT / module).is_dir()}
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def files(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"no Python files in {room}/"
    return found


@pytest.mark.parametrize("path", files("sizing"), ids=lambda path: path.name)
def test_sizing_is_pure(path: Path) -> None:
    assert not tops(imports(path)) & (SCREEN | NETWORK | {"calibration", "ui", "app"})


@pytest.mark.parametrize("path", files("calibration"), ids=lambda path: path.name)
def test_calibration_takes_only_values_from_sizing(path: Path) -> None:
    names = imports(path)
    assert not tops(names) & (SCREEN | {"ui", "app"})
    modules = {name for name in names if name.startswith("sizing.") and is_module(name)}
    assert modules <= VALUES | CHOOSES.get(str(path.relative_to(ROOT)), set())


@pytest.mark.parametrize("path", files("ui"), ids=lambda path: path.name)
def test_ui_reaches_calibration_only_through_its_store_plans_and_jobs(path: Path) -> None:
    names = imports(path)
    assert not tops(names) & {"tritonclient", "grpc", "sqlalchemy", "numba"}
    assert {name for name in names if name.startswith("calibration.")} <= {
        "calibration.store",
        "calibration.store.work",
        "calibration.errors",
        "calibration.plan",
        "calibration.new_run",
        "calibration.jobs",
        "calibration.incoming",
        "calibration.importers",
    }


def test_the_door_only_opens() -> None:
    assert tops(imports(ROOT / "app.py")) <= {"__future__", "streamlit", "ui"}
