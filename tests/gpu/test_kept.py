"""What was measured survives a kill, and is found by the next call; what is to be carried is complete."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from calibration.records import Measurement
from calibration.store import Store
from lab.gpu import go
from lab.gpu.home import bring
from lab.gpu.kept import Kept
from lab.gpu.pack import HERE, add_file, contents, is_unused, pinned
from sizing.points import Point, read_points

ROOT = HERE.parent.parent
POINT = Point(
    model="m", precision="bf16", gpu="g", tp=1, isl=10, osl=5, load_kind="concurrency", load_value=2, requests_per_s=3
)


def measured(kept: Kept, label: str, users: float) -> None:
    store = Store(f"sqlite:///{kept.database}")
    run = store.create_run("", label=label)
    store.add_point(run, Measurement(Point(**{**vars_of(POINT), "load_value": users})))
    store.finish_run(run, "interrupted")


def vars_of(point: Point) -> dict[str, object]:
    return {name: getattr(point, name) for name in type(point).__dataclass_fields__}


def test_the_archive_carries_points_and_facts_to_the_next_call(tmp_path: Path) -> None:
    first = Kept(tmp_path / "a", tmp_path / "out", None)
    first.learn("ceilings", {"x": 1.0})
    measured(first, "small in_flight tensorrt_llm", 2)
    first.save()
    second = Kept(tmp_path / "b", tmp_path / "out2", first.archive)
    assert second.fact("ceilings") == {"x": 1.0}
    assert [point.load_value for point in Store(f"sqlite:///{second.database}").points()] == [2]


def test_an_archive_is_whole_although_the_next_one_was_cut(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "a", tmp_path / "out", None)
    kept.learn("x", 1)
    kept.save()
    before = kept.archive.read_bytes()
    kept.archive.with_suffix(".new").write_bytes(before[: len(before) // 2])  # as a kill in the middle leaves it
    assert Kept(tmp_path / "b", tmp_path / "out2", kept.archive).fact("x") == 1


def test_what_a_cut_call_unpacked_in_part_is_unpacked_whole_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go, "CARRY", tmp_path)
    monkeypatch.setattr(go, "WORK", tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    site = tmp_path / "environment" / "venv" / "lib" / "python3.12" / "site-packages"
    rest = [tmp_path / "python" / "lib" / "last", site / "pytriton" / "last", site / "numpy"]
    carried = {
        "python": ["bin/python3.12", "lib/last"],
        "server": ["pytriton/first", "pytriton/last"],
        "packages": ["server/numpy"],
    }
    for name, members in carried.items():
        with tarfile.open(tmp_path / f"{name}.tar.xz", "w:xz") as archive:
            for member in members:
                add_file(archive, member, b"")
    for first in (tmp_path / "python" / "bin" / "python3.12", site / "pytriton" / "first"):
        first.parent.mkdir(parents=True)
        first.touch()
    for _ in range(2):  # and not once more
        go.unpacked_python("3.12")
        go.make_environment(tmp_path / "environment", [], "3.12")
        assert all(path.exists() for path in rest)
        for archive_file in tmp_path.glob("*.tar.xz"):
            archive_file.unlink()


def test_without_what_is_carried_the_call_says_what_is_missing_and_helps(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "lab.gpu.go"]
    there = {"PYTHONPATH": str(ROOT), "GPU_WORK": str(tmp_path)}
    helped = subprocess.run([*call, "--help"], env=there, cwd=tmp_path, capture_output=True, text=True)
    assert (helped.returncode, helped.stderr) == (0, "") and "--budget-s" in helped.stdout
    if not go.CARRY.exists():
        refused = subprocess.run([*call, "--out", "x"], env=there, cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1 and "lab.gpu.pack" in refused.stderr


def test_the_app_gets_neither_the_ensemble_nor_repeats(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "a", tmp_path / "out", None)
    kept.learn("is_small", True)
    for users, label in enumerate(
        ("s in_flight tensorrt_llm", "s in_flight tensorrt_llm again", "s in_flight ensemble")
    ):
        measured(kept, label, 1 + users)
    bring(kept.work, "here", tmp_path / "data")
    assert len(read_points(tmp_path / "data" / "curves" / "here.csv")) == 1
    assert len(read_points(tmp_path / "data" / "gpu" / "here" / "points.csv")) == 3
    assert len(list((tmp_path / "data" / "gpu" / "here").glob("run-*.zip"))) == 3


def test_too_much_to_carry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    (tmp_path / "a").write_bytes(b"x" * 2000)
    monkeypatch.setattr("lab.gpu.pack.LARGEST_BYTES", 1999)
    with pytest.raises(click.ClickException, match="to carry"):
        contents(tmp_path, ["a"])


def test_what_measuring_imports_is_there_or_carried() -> None:
    """Top-level packages that the code on the GPU machine names, against wheels.txt and there.txt."""
    carried = {pin.partition("==")[0].lower().replace("-", "_") for pin in pinned(HERE / "wheels.txt")}
    carried |= {"rapidjson"}
    there = {line for line in (HERE / "there.txt").read_text().split("\n") if line and not line.startswith("#")}
    own = {"lab", "triton_tools", "calibration", "sizing"}
    named: set[str] = set()
    for path in closure(ROOT / "lab" / "gpu" / "measure.py"):
        named |= {name.split(".")[0] for name in imports(path)}
    lazily = {"pynvml", "triton_python_backend_utils", "numba"}
    assert named - own - set(sys.stdlib_module_names) - carried - there - lazily == set()


def closure(start: Path) -> set[Path]:
    """Files of the project that `start` imports when it is imported, and theirs."""
    found, left = set(), [start]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for name in imports(path):
            for candidate in (ROOT / f"{name.replace('.', '/')}.py", ROOT / name.replace(".", "/") / "__init__.py"):
                if candidate.exists():
                    left.append(candidate)
    return found


def imports(path: Path) -> set[str]:
    """Modules imported at the top of a file; those within functions or for types alone are not loaded with it."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_tests_and_headers_are_not_carried() -> None:
    assert is_unused("numpy/core/include/numpy/x.h") and is_unused("numpy/f2py/crackfortran.py")
    assert not is_unused("numpy/core/_multiarray_umath.cpython-312-x86_64-linux-gnu.so")
