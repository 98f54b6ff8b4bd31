"""Studies: the same results wherever they run, nothing lost when a worker dies or the study is interrupted."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import scipy
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

from lab.cluster import on_cluster
from sizing.analyses import study as answers_of
from sizing.analyses.parallel import Machines, WorkersLost, code, run_all
from sizing.analyses.replicated import replicated
from sizing.analyses.study import COLUMNS, ResultsFile, read_study
from sizing.cli.plan import plan_command
from sizing.cli.study import study_command
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.points import write_points
from sizing.question import Question
from sizing.simulator import simulate
from sizing.workload import Lengths, Workload
from tests.sizing import study_work
from validation.evidence.server import LAW, Design, calibrate

ALONE, CORES = Machines(processes=1), Machines(processes=2)
STUDY = """
base: {model: synthetic, points: points.csv, isl: 500, osl: 100, itl: "p95:20ms"}
axes:
  rate: [5, 200]
  ttft: ["p95:300ms", "p95:1ms"]
"""


@pytest.fixture(scope="module")
def dask() -> Iterator[Any]:
    """Two workers, each a process of its own."""
    from distributed import LocalCluster

    workers = LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    with workers:
        yield workers


@pytest.fixture
def cluster(dask: Any) -> Machines:
    return Machines(cluster=dask.scheduler_address)


def test_results_are_the_same_bit_for_bit_wherever_they_run(cluster: Machines) -> None:
    steps = [100 + place for place in range(12)]
    here = run_all(study_work.walk, steps, seed=3, machines=ALONE)
    assert here == run_all(study_work.walk, steps, seed=3, machines=CORES)
    assert here == run_all(study_work.walk, steps, seed=3, machines=cluster)
    assert here != run_all(study_work.walk, steps, seed=4, machines=ALONE)
    assert len({found[-1] for found in here}) == len(steps)  # every item has a seed of its own


def test_seeds_are_those_of_spawn() -> None:
    drawn = run_all(lambda _, seed: seed.generate_state(4).tolist(), range(3), seed=7, machines=ALONE)
    assert drawn == [child.generate_state(4).tolist() for child in SeedSequence(7).spawn(3)]


def test_a_killed_worker_loses_nothing(cluster: Machines, tmp_path: Path) -> None:
    for name, machines in (("cores", CORES), ("cluster", cluster)):
        items = [(number, str(tmp_path / name)) for number in range(20)]
        found = run_all(study_work.dies_once, items, seed=1, machines=machines)
        assert Path(items[0][1]).exists()
        expected = [(n, np.random.default_rng(child).random()) for n, child in enumerate(SeedSequence(1).spawn(20))]
        assert found == expected


def test_an_error_of_the_work_is_raised() -> None:
    for machines in (ALONE, CORES):
        with pytest.raises(ScenarioError, match="no such thing"):
            run_all(study_work.fails, [1, 2, 3], machines=machines)


@pytest.mark.parametrize("cluster", ["localhost", "tcp://localhost", "http://localhost:80"])
def test_an_address_that_is_none(cluster: str) -> None:
    with pytest.raises(ScenarioError, match="tcp://HOST:PORT"):
        Machines(cluster=cluster)


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.cluster.WAIT_S", 0.3)
    with pytest.raises(ScenarioError, match="no Dask scheduler answers"):
        run_all(study_work.walk, [1], machines=Machines(cluster="tcp://127.0.0.1:9"))


def test_a_cluster_that_goes_away_is_one_error() -> None:
    from distributed import LocalCluster

    workers = LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    with workers:
        results = on_cluster(study_work.nap, dict(enumerate([0.0] + [0.5] * 9)), workers.scheduler_address)
        next(results)
        workers.close()
        with pytest.raises(WorkersLost):
            list(results)


@pytest.mark.parametrize("by_scheduler", (False, True))
def test_a_cluster_without_workers_for_some_time_is_one_error(
    monkeypatch: pytest.MonkeyPatch, by_scheduler: bool
) -> None:
    """The scheduler stays, so that Dask itself would wait for a worker for ever, unless it was given a limit."""
    from distributed import LocalCluster

    if not by_scheduler:
        monkeypatch.setattr("lab.cluster.DESERTED_AFTER_S", 1.0)
    monkeypatch.setattr("lab.cluster.LOOK_EVERY_S", 0.1)
    workers = LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    with workers:
        address = workers.scheduler_address
        results = on_cluster(study_work.nap, dict(enumerate([0.0] + [0.5] * 9)), address)
        assert next(results) == (0, 0.0)
        if by_scheduler:
            workers.scheduler.no_workers_timeout = 1.0
        workers.scale(0)
        told = (
            rf"has had no workers for 1 s, with \d items left; start `dask worker {address}`, and repeat the command$"
        )
        with pytest.raises(WorkersLost, match=told):
            list(results)


def test_a_worker_with_other_code_that_joins_later_does_no_work(
    cluster: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are asked when a study begins; here that is left out, and this process has other code than they."""
    monkeypatch.setattr("lab.cluster._check_workers", lambda client, address: None)
    monkeypatch.setattr("lab.cluster.code", lambda: ("another",))
    with pytest.raises(ScenarioError, match="has other versions"):
        run_all(study_work.walk, [1], machines=cluster)


def test_the_code_is_told_by_its_packages_sources_and_data() -> None:
    python, *packages, sources = code()
    assert packages[:3] == [np.__version__, scipy.__version__, numba.__version__]
    assert python in sys.version and len(sources) == 64


@pytest.mark.parametrize("changed", ["sizing/a.py", "data/catalog/gpus.yaml", "data/laws/day_zero.csv"])
def test_another_file_is_other_code(tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sizing/analyses/study.py", "sizing/a.py", "data/catalog/gpus.yaml", "data/laws/day_zero.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    for place, folder in {"PACKAGE": "sizing", "IMPORTED_FROM": "", "SHIPPED": ""}.items():
        monkeypatch.setattr(f"sizing.files.{place}", tmp_path / folder)
    before = code.__wrapped__()
    (tmp_path / changed).write_text("2")
    assert code.__wrapped__() != before


def test_replications_agree_with_one_long_run() -> None:
    """The mean of independent runs lies within three half-widths of another run as long as all of them."""
    replica, load = Replica(LAW), Workload(Lengths(500, 100, 0.5, 0.8), 30.0)
    merged = replicated(replica, load, runs=8, requests=32_000, machines=ALONE)
    again = replicated(replica, load, runs=8, requests=32_000, machines=ALONE)
    assert np.array_equal(merged.values_s, again.values_s)
    long = simulate(replica, load, requests=32_000, seed=99).prediction()
    for metric in ("ttft", "itl", "e2e"):
        half = merged.half_width_s(metric, "p95_s")
        assert 0 < half < 0.1 * long.of(metric).p95_s
        assert abs(merged.prediction.of(metric).p95_s - long.of(metric).p95_s) < 3 * half
        assert merged.half_widths_s[metric]["p95_s"] == half
    alone = replicated(replica, load, runs=1, requests=1000, machines=ALONE)
    assert alone.half_widths_s["e2e"] == dict.fromkeys(("mean_s", "p50_s", "p90_s", "p95_s", "p99_s"), math.inf)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, and the points it names."""
    found = tmp_path_factory.mktemp("study")
    points = calibrate(Replica(LAW), Design(((500, 100),), (1, 64)), False, np.random.default_rng(0))
    with (found / "points.csv").open("w", newline="") as file:
        write_points(points, file)
    (found / "study.yaml").write_text(STUDY)
    return found


def study(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(study_command, [str(folder / "study.yaml"), "--processes", "1", *options])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_an_interrupted_study_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study(folder)
    whole = (folder / "study.csv").read_text()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 5
    rows = [dict(zip(COLUMNS, line.split(","), strict=False)) for line in lines[1:]]
    assert [row["gpus"] != "" for row in rows] == [True, False, True, False]  # no engine answers in 1 ms
    assert int(rows[2]["gpus"]) > int(rows[0]["gpus"])
    (folder / "study.csv").write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    assert '"done_before": 1' in study(folder, "--json")
    assert (folder / "study.csv").read_text() == whole
    monkeypatch.setattr("sizing.analyses.study.planner", None)  # nothing is left to plan
    study(folder)
    assert (folder / "study.csv").read_text() == whole


def test_how_the_points_were_measured_is_said_as_in_plan(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text((folder / "points.csv").read_text())
    measured = {"protocol": ["together", "staggered"], "points_replicas": [1, 2]}
    base = "{model: synthetic, points: points.csv, isl: 500, osl: 100, rate: 200, ttft: 'p95:300ms'}"
    (tmp_path / "study.yaml").write_text(f"base: {base}\naxes: {json.dumps(measured)}\n")
    study(tmp_path)
    with (tmp_path / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    asked_for = list(itertools.product(*measured.values()))
    assert len(rows) == len(asked_for)
    for row, (protocol, replicas) in list(zip(rows, asked_for, strict=True))[1:3]:  # each value of either axis once
        words = f"--model synthetic --points {tmp_path / 'points.csv'} --isl 500 --osl 100 --rate 200 --ttft p95:300ms"
        words += f" --protocol {protocol} --points-replicas {replicas} --json"
        asked = CliRunner().invoke(plan_command, words.split())
        assert int(row["gpus"]) == json.loads(asked.stdout)["gpus"]
    assert int(rows[1]["gpus"]) > int(rows[0]["gpus"])  # the same figures of two replicas


def test_what_binds_is_said_as_in_plan(tmp_path: Path) -> None:
    asked = "--model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 --tp 2 --engine vllm --isl 2000 --osl 256 --rate 40"
    words = asked.replace("--", "").split()
    keys = {name: int(value) if value.isdigit() else value for name, value in zip(words[::2], words[1::2], strict=True)}
    (tmp_path / "study.yaml").write_text(json.dumps({"base": keys, "axes": {"ttft": ["p95:20s"]}}))
    study(tmp_path)
    with (tmp_path / "study.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    plan = json.loads(CliRunner().invoke(plan_command, [*asked.split(), "--ttft", "p95:20s", "--json"]).stdout)
    assert row["binding"] == plan["binding"] == "stable rate"


def test_prefix_and_correlation_are_asked_as_in_plan(tmp_path: Path) -> None:
    keys = {"prefix_tokens": 1000, "prefix_hit": 0.9, "correlation": 0.8, "isl_cv": 1.0, "osl_cv": 1.0}
    asked = {"model": "Qwen/Qwen3-32B", "isl": 2000, "osl": 256, "rate": 20, "ttft": "p95:1s"}
    (tmp_path / "study.yaml").write_text(json.dumps({"base": asked | keys, "axes": {"gpu": ["h200_sxm"]}}))
    (scenario,) = read_study(tmp_path / "study.yaml")
    assert scenario.question == Question.of(asked | keys)
    assert scenario.question != Question.of(asked)


def test_what_a_row_says_of_its_replicas_counts_for_it(folder: Path, tmp_path: Path) -> None:
    """A column of the points divides once, whatever the study says of rows without it."""
    header, *rows = (folder / "points.csv").read_text().splitlines()
    lines = [f"{header},replicas", *(f"{row},2" for row in rows)]
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n")
    base = "{model: synthetic, points: points.csv, isl: 500, osl: 100, rate: 200, ttft: 'p95:300ms'}"
    (tmp_path / "study.yaml").write_text(f"base: {base}\naxes: {{points_replicas: [1, 2]}}\n")
    study(tmp_path)
    with (tmp_path / "study.csv").open(newline="") as file:
        found = [row["gpus"] for row in csv.DictReader(file)]
    words = f"--model synthetic --points {folder / 'points.csv'} --isl 500 --osl 100 --rate 200 --ttft p95:300ms"
    asked = CliRunner().invoke(plan_command, [*words.split(), "--points-replicas", "2", "--json"])
    assert [*map(int, found)] == 2 * [json.loads(asked.stdout)["gpus"]]


def test_results_of_another_study_are_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text((folder / "points.csv").read_text())
    (tmp_path / "study.yaml").write_text(STUDY)
    with ResultsFile(tmp_path / "study.csv", read_study(tmp_path / "study.yaml"), "inputs") as table:
        table.add(0, dict.fromkeys(answers_of.ANSWER_COLUMNS, 1))
    before = (tmp_path / "study.csv").read_text()
    (tmp_path / "study.yaml").write_text(STUDY.replace("isl: 500", "isl: 600"))
    with pytest.raises(ScenarioError, match="another study"):
        study(tmp_path)
    assert (tmp_path / "study.csv").read_text() == before


def test_other_points_under_the_same_name_are_another_study(folder: Path, tmp_path: Path) -> None:
    points = (folder / "points.csv").read_text()
    (tmp_path / "points.csv").write_text(points)
    (tmp_path / "study.yaml").write_text(STUDY)
    study(tmp_path)
    assert '"done_before": 4' in study(tmp_path, "--json")
    (tmp_path / "points.csv").write_text(points.rstrip("\n") + "\n" * 2)
    with pytest.raises(ScenarioError, match="another study"):
        study(tmp_path)


def test_results_in_a_folder_that_is_not_there_are_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be written"):
        study(folder, "--out", str(tmp_path / "missing" / "study.csv"))


@pytest.mark.parametrize("out", ["/dev/full", "/dev/null"])
def test_results_go_into_a_file_and_nothing_else(folder: Path, out: str) -> None:
    """A device would be read without end, and be replaced by a file at the end of the study."""
    with pytest.raises(ScenarioError, match=f"--out {out}: not a file"):
        study(folder, "--out", out)
    assert not Path("/dev/full").is_file()


def test_a_disk_that_is_full_in_the_middle_is_one_line(folder: Path, tmp_path: Path) -> None:
    scenarios = read_study(folder / "study.yaml")
    with pytest.raises(ScenarioError, match=r"cannot be written \(No space left on device\)"):  # noqa: SIM117
        with ResultsFile(tmp_path / "study.csv", scenarios, "inputs") as table:
            table._file.close()
            table._file = open("/dev/full", "w")  # noqa: SIM115
            table.add(0, dict.fromkeys(answers_of.ANSWER_COLUMNS, 1))


@pytest.mark.parametrize("row", ["9" * 5000, "²", "", "x,y", '"' + 200_000 * "x" + '"'])
def test_rows_that_no_study_wrote(folder: Path, tmp_path: Path, row: str) -> None:
    (tmp_path / "out.csv").write_text(",".join(COLUMNS) + f"\n{row}\nx\n")
    with pytest.raises(ScenarioError, match=r"another study|not a table of results") as caught:
        study(folder, "--out", str(tmp_path / "out.csv"))
    assert len(str(caught.value)) <= 290


def test_every_column_has_one_meaning() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)


CELLS = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.permutations(range(4)), cut=st.floats(0, 1), cells=st.lists(CELLS, min_size=4, max_size=4))
def test_a_table_cut_anywhere_ends_as_it_would_have(folder: Path, places: list[int], cut: float, cells: Any) -> None:
    """Whatever the order of answers, what they hold, and where the file broke off."""
    scenarios = read_study(folder / "study.yaml")
    whole, broken = folder / "whole.csv", folder / "broken.csv"
    for path in (whole, broken):
        path.unlink(missing_ok=True)

    def answer(path: Path, chosen: Iterable[int]) -> bytes:
        with ResultsFile(path, scenarios, "inputs") as table:
            for place in chosen:
                if place not in table.done:
                    table.add(place, dict.fromkeys(answers_of.ANSWER_COLUMNS, cells[place]))
        return path.read_bytes()

    broken.write_bytes((text := answer(broken, places[:3]))[: round(cut * len(text))])
    assert answer(broken, places) == answer(whole, range(4))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("base: {", "line 2, column 1: not YAML"),
        ("base: {model: synthetic}\naxes: {}", "axes"),
        ("base: {}\naxes: {rate: [1]}", "scenario 1, model: is missing"),
        (STUDY.replace("[5, 200]", "{low: 1, high: 9}"), "is a range"),
        (STUDY.replace("[5, 200]", "{low: 10, high: 9}"), r"axes\.rate: high \(9\) is below low"),
        (STUDY.replace("[5, 200]", "[5, -200]"), "scenario 3: rate"),
        (STUDY.replace("isl:", "islands:"), "islands"),
        (STUDY.replace("p95:1ms", "1ms"), "percentile:time"),
        (STUDY.replace("rate: [5, 200]", "rate: []") + "sample: 5", "axis 'rate' has no values"),
        ("axes: " + 3000 * "[", "nested too deeply"),
        (STUDY + "seed: 2001-99-99", "seed: Input should be a valid integer"),
        (STUDY.replace("synthetic", '"\\ud800"'), "line 2, column "),
        (STUDY.replace("isl: 500", "tp: '²', isl: 500"), "give whole numbers"),
        (STUDY.replace("rate: [5, 200]", "rate: []"), "axis 'rate' has no values"),
    ],
)
def test_a_study_file_that_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=why) as found:
        read_study(tmp_path / "study.yaml")
    assert "\n" not in str(found.value)


def test_a_sample_is_drawn_from_its_ranges_and_repeats(tmp_path: Path) -> None:
    text = STUDY.replace("[5, 200]", "{low: 1, high: 100}") + "sample: 200\nseed: 4\n"
    (tmp_path / "study.yaml").write_text(text)
    drawn = read_study(tmp_path / "study.yaml")
    rates = np.array([scenario.given["rate"] for scenario in drawn])
    assert drawn == read_study(tmp_path / "study.yaml")
    assert rates.min() >= 1 and rates.max() <= 100
    assert 0.4 < np.mean(rates < 10) < 0.6  # log-uniform: half below the geometric mean
    assert {scenario.given["ttft"] for scenario in drawn} == {"p95:300ms", "p95:1ms"}


def test_limits_on_gaps_can_be_an_axis(tmp_path: Path) -> None:
    text = STUDY.replace('itl: "p95:20ms"', 'gap: "p99:50ms"')
    (tmp_path / "study.yaml").write_text(text)
    drawn = read_study(tmp_path / "study.yaml")
    assert {str(scenario.question.sla.gap) for scenario in drawn} == {"p99 gap <= 50 ms"}


def test_an_item_that_kills_every_worker_is_one_error(dask: Any, cluster: Machines, tmp_path: Path) -> None:
    """The last test of this cluster: on a busy machine it may be left without a worker."""
    dask.scheduler.allowed_failures, before = 0, dask.scheduler.allowed_failures
    try:
        with pytest.raises(WorkersLost, match="item 2 was lost") as found:
            run_all(study_work.dies_once, [(0, ""), (5, str(tmp_path / "dead"))], machines=cluster)
    finally:
        dask.scheduler.allowed_failures = before
    assert "\n" not in str(found.value)
