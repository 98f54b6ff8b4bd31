"""The examples run, and say what they promise."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest

import sizing
from lab.mock.process import running
from lab.mock.service import Script

EXAMPLES = Path(__file__).parents[1] / "examples"


LEFT_OUT = [
    path
    for room in ("api", "lab", "ui")
    for path in sorted((EXAMPLES.parent / room).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
"""Of the rooms that pytest does not search for examples (`testpaths`): parts of them load only elsewhere."""


@pytest.mark.parametrize("path", LEFT_OUT, ids=lambda path: str(path.relative_to(EXAMPLES.parent)))
def test_the_examples_of_docstrings_hold(path: Path) -> None:
    if "\nimport torch\n" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    module = import_module(".".join(path.relative_to(EXAMPLES.parent).with_suffix("").parts))
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def run(*arguments: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES.parent, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "calibrate.yaml",
        "library.py",
        "mcp_client.py",
        "measured.ipynb",
    }


def test_the_library_example_plans_and_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    """More replicas, lower latency; its SLA holds from the planned number on, as the plan said."""
    run_path(str(EXAMPLES / "library.py"), run_name="__main__")
    printed = capsys.readouterr().out
    working = re.findall(r"(\d+) working replicas: p95 TTFT (\d+) ms, p95 ITL ([\d.]+) ms", printed)
    assert len(working) == 3
    counts, ttft_ms, itl_ms = ([float(row[place]) for row in working] for place in range(3))
    assert counts == sorted(counts) and ttft_ms == sorted(ttft_ms)[::-1] and itl_ms == sorted(itl_ms)[::-1]
    gpus, replicas = map(int, re.findall(r"^(\d+) GPUs: (\d+) replicas", printed)[0])
    assert counts[1] == replicas - 1 and gpus % replicas == 0  # one is spare
    assert ttft_ms[1] <= 1000 and itl_ms[1] <= 30
    assert "no configuration meets p95 ITL <= 2 ms" in printed


def test_the_conversation_tells_the_same_fleet_each_time() -> None:
    """The plan and the first of the compared cases are one question; half the bits take no more GPUs."""
    printed = run("-m", "examples.mcp_client")
    fleets = re.findall(r"(\d+)(?: GPUs| ×).*\(band (\d+) to (\d+), estimated\)", printed)
    planned, eight, sixteen = fleets
    assert planned == eight and int(eight[0]) <= int(sixteen[0])
    assert printed.count("\n> ") == 3 and "p95 ITL <= 30 ms binds" in printed


def test_the_calibration_example_measures(tmp_path: Path) -> None:
    """Against the mock, whose true latencies are known; a busy machine can only add to them."""
    ttft_s, itl_s, osl = 0.02, 0.005, 16
    store = {"SIZING_DATABASE_URL": f"sqlite:///{tmp_path / 'store.db'}"}
    with running(Script(ttft_s, itl_s, slots=8)) as mock:
        plan = (EXAMPLES / "calibrate.yaml").read_text()
        assert plan.count("127.0.0.1:8001") == 1
        (tmp_path / "plan.yaml").write_text(plan.replace("127.0.0.1:8001", mock.grpc_url))
        run("-m", "calibration", "run", tmp_path / "plan.yaml", **store)
    run("-m", "calibration", "export", "1", "--out", tmp_path / "points.csv", **store)
    points = sizing.read_points(tmp_path / "points.csv")
    assert [(point.load_kind, point.load_value) for point in points] == [
        ("concurrency", 1),
        ("concurrency", 4),
        ("concurrency", 8),
        ("poisson_rate", 20),
    ]
    for point in points:
        assert point.errors == 0 and point.osl == osl
        assert point.ttft_mean_s is not None and point.ttft_mean_s >= 0.99 * ttft_s
        assert point.e2e_mean_s is not None and point.e2e_mean_s >= 0.99 * (ttft_s + (osl - 1) * itl_s)
    for point in points[:3]:  # no user can be quicker than the server
        assert point.requests_per_s <= 1.05 * point.load_value / (ttft_s + (osl - 1) * itl_s)


def apart(text: str) -> tuple[str, list[float]]:
    """A text without its figures and what they align, and the figures."""
    figure = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
    return re.sub(r" +", " ", figure.sub("N", text)), [float(each.replace(",", "")) for each in figure.findall(text)]


def test_the_notebook_runs_and_shows_what_it_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells one after the other; each that shows a figure has drawn one, and what was printed is printed again:
    figures within a fifth, as a fit takes another path where another processor rounds otherwise, and of two
    coefficients one may take from the other what their sum does not show."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    from matplotlib import pyplot

    drawn: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: (drawn.extend(pyplot.get_fignums()), pyplot.close("all")))
    cells = json.loads((EXAMPLES / "measured.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        drawn.clear()
        exec("".join(cell["source"]), names)
        kept = ["".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"]
        printed = [text for text in [capsys.readouterr().out] if text]
        (told, figures), (shown, before) = apart("".join(printed)), apart("".join(kept))
        assert len(printed) == len(kept) and told == shown
        assert figures == pytest.approx(before, rel=0.2)
        assert len(drawn) == "".join(cell["source"]).count("plt.show()")
