"""The command line: one line and exit 2 for every mistake, JSON for machines, points that the sizing half reads."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calibration.store import DATABASE_VARIABLE, Store
from sizing.points import read_points
from tests.calibration.called import call, refused
from tests.calibration.mock_server import ROOT, Script, subprocess_server

pytestmark = pytest.mark.usefixtures("database")
COMMANDS = (
    "size",
    "check",
    "run",
    "resume",
    "list",
    "show",
    "accept",
    "discard",
    "export",
    "import",
    "bench",
    "compare",
    "mock",
    "serve",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001)) as url:
        yield url


@pytest.fixture
def plan(tmp_path: Path, url: str) -> Path:
    return plan_in(tmp_path, url)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, url: str) -> Path:
    """A folder with that plan and a store of its run."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABASE_VARIABLE, f"sqlite:///{folder / 'points.db'}")
        assert call("run", plan_in(folder, url)).exit_code == 0
    return folder


@pytest.fixture
def measured(kept: Path, tmp_path: Path) -> None:
    """The store of this test holds that run: its own copy."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)


def plan_in(folder: Path, url: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(
        f"server: {{url: '{url}'}}\nlengths: [{{isl: 6, osl: 4, isl_cv: 0}}]\nconcurrency: [1, 2]\n"
        "requests_per_level: 8\ncheck_load: 0\n"
        "client: {self_check: false}\n"
    )
    return path


def test_run_list_show_export(plan: Path, tmp_path: Path) -> None:
    ran = call("run", plan)
    assert ran.exit_code == 0
    assert "run 1: done, 2 of 2 points" in ran.stdout
    assert "2 users" in ran.stdout
    assert call("show", 1).stdout == ran.stdout
    assert "done" in call("list").stdout
    out = tmp_path / "points.csv"
    assert call("export", 1, "--out", out).exit_code == 0
    assert read_points(out) == Store().points(1)
    assert call("export", 1).stdout == out.read_text()


def test_json_for_machines(plan: Path) -> None:
    ran = json.loads(call("run", plan, "--json").stdout)
    assert (ran["run"], ran["state"], len(ran["points"])) == (1, "done", 2)
    assert json.loads(call("show", 1, "--json").stdout) == ran
    (listed,) = json.loads(call("list", "--json").stdout)
    assert (listed["run"], listed["points"], listed["levels"]) == (1, 2, 2)
    exported = json.loads(call("export", 1, "--json").stdout)
    assert [
        point | {"facts": told["facts"], "server": {}} for point, told in zip(exported, ran["points"], strict=True)
    ] == ran["points"]
    assert all(point["facts"]["processes"] == 1 for point in ran["points"])
    assert json.loads(call("resume", 1, "--json").stdout)["points"] == ran["points"]


def test_no_runs_yet() -> None:
    assert "no runs yet" in call("list").stdout
    assert json.loads(call("list", "--json").stdout) == []


@pytest.mark.usefixtures("measured")
def test_a_file_called_json_holds_json(tmp_path: Path) -> None:
    out = tmp_path / "points.json"
    assert call("export", 1, "--out", out).exit_code == 0
    assert out.read_text() == call("export", 1, "--json").stdout


@pytest.mark.usefixtures("measured")
def test_details_tell_how_well_means_are_known_and_how_the_client_fared() -> None:
    shown = call("show", 1, "--details").stdout
    assert shown.startswith(call("show", 1).stdout)
    assert shown.count("1 process on") == 2


@pytest.mark.usefixtures("measured")
def test_a_run_travels_as_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, points = tmp_path / "run.zip", Store().points(1)
    assert call("export", 1, "--out", file).exit_code == 0
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'other.db'}")
    assert "run 1: 2 points\n" in call("import", file).stdout
    assert "run 1: 2 points, which were in the store already" in call("import", file).stdout
    assert Store().points(1) == points


def test_points_of_other_tools_come_in_once(tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    facts = {"backend": "vllm", "model_id": "m", "max_concurrency": 4, "request_rate": "inf", "duration": 10.0}
    sums = {"completed": 100, "failed": 0, "total_input_tokens": 12800, "total_output_tokens": 6400}
    rates = {"request_throughput": 10.0, "output_throughput": 640.0}
    means = {"mean_ttft_ms": 85.0, "mean_tpot_ms": 5.0, "mean_e2el_ms": 400.0, "p99_e2el_ms": 420.0}
    file.write_text(json.dumps(facts | sums | rates | means | {"mean_itl_ms": 5.0, "num_prompts": 100}))
    assert "--precision" in refused(call("import", file))
    said = ("--precision", "fp8", "--gpu", "h200_sxm", "--tp", 1)
    first = json.loads(call("import", file, *said, "--json").stdout)
    assert (first["run"], first["new"]) == (1, True)
    assert first["points"][0]["ttft_mean_s"] == pytest.approx(0.085)
    assert json.loads(call("import", file, *said, "--json").stdout)["new"] is False
    assert len(Store().runs()) == 1


@pytest.mark.usefixtures("measured")
def test_a_points_table_comes_in_as_a_run_whole_or_not_at_all(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    call("export", 1, "--out", table)
    assert "run 2: 2 points" in call("import", table).stdout
    assert Store().points(2) == Store().points(1)
    rows = table.read_text().splitlines()
    table.write_text("\n".join([*rows, rows[-1]]))
    assert "again: keep one of them" in refused(call("import", table))
    assert len(Store().runs()) == 2


def test_levels_measured_again_come_in_as_further_runs(tmp_path: Path) -> None:
    """The first run of the second import is known already."""
    table = tmp_path / "points.csv"
    head = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s\n"
    first, again = (f"m,bf16,g,1,64,32,concurrency,4,{rate}\n" for rate in (2, 3))
    table.write_text(head + first)
    assert "run 1: 1 point\n" in call("import", table).stdout
    table.write_text(head + first + again)
    told = json.loads(call("import", table, "--json").stdout)
    assert (told["run"], told["runs"], told["new"]) == (1, [1, 2], True)
    assert [point["requests_per_s"] for point in told["points"]] == [2, 3]
    said = call("import", table).stdout
    assert all(f"run {run}: 1 point, which were in the store already" in said for run in (1, 2))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"python -m calibration {command}" in result.stdout


def test_help_lists_every_command() -> None:
    listing = call("--help").stdout
    assert all(command in listing for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Missing command"),
        (("fly",), "No such command 'fly'"),
        (("run",), "Missing argument"),
        (("run", "absent.yaml"), "absent.yaml: no such plan file"),
        (("run", "a.yaml", "--fast"), "No such option"),
        (("show", "seven"), "'seven' is not a valid integer"),
        (("show", 7), "no run 7"),
        (("resume", 7), "no run 7"),
        (("export", 7), "no run 7"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[object, ...], says: str) -> None:
    assert says in refused(call(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        (10_000 * "x",),
        ("run", f"--{10_000 * 'x'}"),
        ("import", 10_000 * "x"),
        ("import", "x.csv", "--tp", 10_000 * "1"),
        ("show", "\x1b[2J" + 10_000 * "x"),
    ],
    ids=lambda arguments: str(arguments)[:20],
)
def test_a_line_of_error_is_short_whatever_it_quotes(arguments: tuple[str, ...]) -> None:
    line = refused(call(*arguments))
    assert len(line.rstrip("\n")) <= 300 and line.rstrip("\n").isprintable()


def test_a_plan_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("lengths: [{isl: 64")
    assert "plan.yaml, line 2, column 1: not YAML" in refused(call("run", path))


@pytest.mark.timeout(30)
def test_a_url_that_nobody_answers(plan: Path) -> None:
    """A closed port, and a test network address (RFC 5737) from which no answer ever comes."""
    for address in ("127.0.0.1:1", "192.0.2.1:8001"):
        plan.write_text(f"server: {{url: '{address}'}}\nlengths: [{{isl: 6, osl: 4}}]\nconcurrency: [1]\n")
        assert f"{address}: no Triton server answers" in refused(call("run", plan))


def test_resume_has_no_plan_in_which_a_server_that_is_gone_could_be_corrected(plan: Path) -> None:
    plan.write_text("server: {url: '127.0.0.1:1'}\nlengths: [{isl: 6, osl: 4}]\nconcurrency: [1]\n")
    store = Store()
    store.finish_run(store.create_run(plan.read_text()), "interrupted")
    said = "127.0.0.1:1: no Triton server answers over gRPC there; start one, or correct server.url in its plan"
    assert f"{said} and start a new run" in refused(call("resume", 1))


def test_an_unreachable_database(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "sqlite:////proc/nowhere/points.db")
    for arguments in (("list",), ("run", plan)):
        assert DATABASE_VARIABLE in refused(call(*arguments))


@pytest.mark.usefixtures("measured")
def test_a_file_that_is_there_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    """Another name of the old file still has what it held: nothing was written into it."""
    out, other = tmp_path / "points.csv", tmp_path / "other.csv"
    out.write_text("old")
    other.hardlink_to(out)
    assert call("export", 1, "--out", out).exit_code == 0
    assert (len(read_points(out)), other.read_text()) == (2, "old")


@pytest.mark.usefixtures("measured")
def test_an_output_file_that_cannot_be_written(tmp_path: Path) -> None:
    assert "cannot be written" in refused(call("export", 1, "--out", tmp_path / "absent" / "points.csv"))


@contextmanager
def at_a_level_without_end(plan: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has measured the levels of `plan`, and is at another one that it would never finish."""
    plan.write_text(plan.read_text().replace("concurrency: [1, 2]", "concurrency: [1, 2]\nrates: [0.001]"))
    command = [sys.executable, "-m", "calibration", "run", str(plan)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "concurrency 2" not in process.stderr.readline():
            assert process.poll() is None
        yield process


@pytest.mark.long
def test_ctrl_c_keeps_the_points_and_says_how_to_go_on(plan: Path) -> None:
    with at_a_level_without_end(plan) as process:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
    assert process.returncode == 130
    assert rest.strip().endswith("continue with: python -m calibration resume 1")
    assert (Store().run(1).state, Store().run(1).points) == ("interrupted", 2)


IMPATIENT = """
import os, signal
from rich.console import Console
from calibration.commands import _interruptible
from calibration.progress import Bar
from calibration.store import Store

class Again(Bar):
    def close(self):
        os.kill(os.getpid(), signal.SIGINT)
        super().close()

with _interruptible(Store(), Again(Console(stderr=True))):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_ctrl_c_does_not_cut_off_what_the_first_one_says() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPATIENT], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "interrupted before anything was measured\n")


@pytest.mark.long
def test_a_second_run_at_the_same_server_is_refused_in_one_line_until_the_first_has_ended(plan: Path) -> None:
    with at_a_level_without_end(plan) as first:
        begun = Store().run(1).created
        told = refused(call("run", plan))
        assert f"is being measured by run 1 (process {first.pid} on" in told and f"started {begun}" in told
        assert "wait until it ends or stop it" in told and [run.id for run in Store().runs()] == [1]
        assert "run 1 is being measured by" in refused(call("resume", 1))
        first.send_signal(signal.SIGINT)
        first.communicate()
    plan.write_text(plan.read_text().replace("rates: [0.001]", ""))
    assert call("run", plan).exit_code == 0
    assert [(run.id, run.state) for run in Store().runs()] == [(2, "done"), (1, "interrupted")]


@pytest.mark.long
def test_kill_9_in_a_sweep_loses_nothing_and_resume_measures_nothing_twice(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("concurrency: [1, 2]", "concurrency: [1, 2, 3, 4]"))
    started = [sys.executable, "-m", "calibration", "run", str(plan)]
    with subprocess.Popen(started, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "concurrency 2" not in process.stderr.readline():
            assert process.poll() is None
        process.kill()
    before = Store().points(1)
    assert (Store().run(1).state, len(before) >= 2) == ("lost", True)
    assert "its process is gone; continue with: python -m calibration resume 1" in call("show", 1).stdout
    assert call("resume", 1).exit_code == 0
    after = Store().points(1)
    assert [point.load_value for point in after] == [1, 2, 3, 4]
    assert after[: len(before)] == before
    assert Store().run(1).state == "done"


@pytest.mark.long
def test_a_lost_server_ends_the_run_and_resume_goes_on_when_it_is_back(plan: Path) -> None:
    """The server dies within the second level; started anew on the same port, it gives the two levels that lack."""
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001, die_after=150)) as url:
        text = plan.read_text().replace("requests_per_level: 8", "requests_per_level: 100")
        plan.write_text(re.sub(r"url: '[^']*'", f"url: '{url}'", text).replace("[1, 2]", "[1, 2, 3]"))
        lost = call("run", plan, "--json")
    assert lost.exit_code == 2 and "python -m calibration resume 1" in lost.stderr
    before, told = Store().points(1), json.loads(lost.stdout)
    assert (Store().run(1).state, len(before)) == ("failed", 1)
    assert (told["run"], told["state"], len(told["points"])) == (1, "failed", 1) and told["error"] in lost.stderr
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001), port=int(url.rpartition(":")[2])):
        assert call("resume", 1).exit_code == 0
    after = Store().points(1)
    assert [point.load_value for point in after] == [1, 2, 3]
    assert after[0] == before[0]
