"""vLLM on a GPU machine: what is carried loads as before, and what is brought home is what was measured."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from calibration.errors import ServerError
from calibration.metrics.measurement import measurement
from calibration.plan import Level
from calibration.store import Store
from lab.gpu.home import DATA, bring, home
from lab.gpu.kept import Kept
from lab.gpu.pack import HERE
from lab.gpu.page import page, spread
from lab.gpu.vllm import AGENDA, LLAMA_8B, REHEARSAL, SLOTS, Running, Served, measure, plan_of, write_model
from lab.gpu.vllm_pack import CUBIN, FATBIN, PTX, blanked, is_left_out
from sizing.catalog import model
from sizing.points import read_points, write_points
from sizing.workload import Lengths
from tests.calibration.loads import DEPLOYMENT, closed_loop
from validation.evidence.measured_arrivals import ON_GPU, measured, of_table


def entry(kind: int, capability: int, body: bytes) -> bytes:
    header = struct.pack("<HHIQ", kind, 0, 64, len(body))
    return header.ljust(28, b"\1") + struct.pack("<I", capability) + bytes(32) + body


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<4sHHQ", FATBIN, 1, 16, len(body)) + body


def test_only_the_code_of_other_gpus_is_blanked() -> None:
    kept, other, ptx = (bytes([value]) * 100 for value in (7, 8, 9))
    library = b"before" + container(entry(CUBIN, 90, kept), entry(CUBIN, 80, other), entry(PTX, 90, ptx))
    library += b"between" + FATBIN + b"no container" + container(entry(CUBIN, 120, other)) + b"after"
    found = blanked(library)
    assert len(found) == len(library)
    assert found == library.replace(other, bytes(100)).replace(ptx, bytes(100))
    assert blanked(found) == found


@pytest.mark.parametrize("size", [0, 1, 2**40])
def test_what_only_looks_like_a_container_stays(size: int) -> None:
    library = b"x" + struct.pack("<4sHHQ", FATBIN, 1, 16, size) + b"\7" * 8
    if size == 1:
        library = library.replace(struct.pack("<HH", 1, 16), struct.pack("<HH", 2, 16))
    assert blanked(library) == library


def test_what_vllm_reads_travels() -> None:
    assert not is_left_out("vllm/v1/engine/core.py")
    assert not is_left_out("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
    assert is_left_out("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")


@pytest.mark.parametrize("served", AGENDA, ids=lambda served: served.label)
def test_shapes_are_those_of_the_catalogue(served: Served) -> None:
    known, config = model(served.model), served.config
    assert (known.layers, known.heads, known.kv_heads, known.head_size) == (
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )


def test_every_id_of_the_vocabulary_is_a_word(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_model(tmp_path, REHEARSAL[0])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == REHEARSAL[0].config["vocab_size"]
    assert json.loads((tmp_path / "config.json").read_text()) == REHEARSAL[0].config


def test_plans_are_good_and_name_the_slots() -> None:
    served = AGENDA[0]
    for mix in served.mixes:
        plan = plan_of(served, mix, "http://127.0.0.1:8100", "h200_sxm", 1, 6, rates=[3.0], budget_s=5.0)
        assert f'"max_batch_size": {SLOTS}' in plan.text


def test_a_server_that_does_not_start_is_told_by_its_last_error(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "work", tmp_path / "out", None)
    program = ["python3", "-c", "raise RuntimeError('no CUDA here')"]
    with pytest.raises(ServerError, match=r"ended with status 1: .*no CUDA here"):
        Running(replace(AGENDA[0], config=LLAMA_8B | {"vocab_size": 100}), kept, 8100, program, 20.0)


def test_a_call_that_is_cut_keeps_none_of_the_later_ones_from_measuring(tmp_path: Path) -> None:
    """A call is killed with all its processes; what measures goes on, and once it has ended the next call measures."""
    programs, carry, started, over = (tmp_path / name for name in ("bin", "lab/gpu/carry", "started", "over"))
    for folder in (programs, carry, tmp_path / "out"):
        folder.mkdir(parents=True)
    for name in ("vllm", "site"):
        tarfile.open(carry / f"{name}.tar.xz", "w:xz").close()
    program = programs / "python3"
    program.write_text(f"#!/bin/sh\necho $$ >> {started}\nwhile [ ! -e {over} ]; do sleep 0.05; done\n")
    program.chmod(0o755)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "GPU_WORK": str(tmp_path / "work")}

    def call(wait_s: int) -> subprocess.Popen[bytes]:
        words = ["bash", str(HERE / "vllm_go.sh"), str(wait_s), "100"]
        given = os.environ | variables | {"OUT": str(tmp_path / "out")}
        return subprocess.Popen(words, cwd=tmp_path, env=given, start_new_session=True, stderr=subprocess.DEVNULL)

    def measuring() -> list[int]:
        """The numbers of the processes that measured or measure."""
        return [*map(int, started.read_text().split())] if started.exists() else []

    try:
        cut = call(60)
        until(lambda: bool(measuring()))
        os.killpg(cut.pid, signal.SIGKILL)
        cut.wait(10)
        assert call(0).wait(10) == 0 and len(measuring()) == 1
        os.kill(measuring()[0], 0)  # it still measures
        over.touch()
        until(lambda: not Path("/proc", str(measuring()[0])).exists())
        assert call(60).wait(20) == 0 and len(measuring()) == 2
    finally:
        over.touch()


def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    ends_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def test_points_come_home_as_todays_metrics_take_them_and_requests_with_them(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "work", tmp_path / "out", None)
    rng = np.random.default_rng(1)
    load = closed_loop(4, 12, lambda at_s, number: float(rng.uniform(0.5, 1.5)))
    level = Level(0, Lengths(4, 2), "concurrency", 4.0, 1)
    found = measurement(load, level, DEPLOYMENT, source="then")
    store = Store(f"sqlite:///{kept.database}")
    run = store.create_run("lengths: [{isl: 4, osl: 2}]", label="model at url")
    store.add_point(run, replace(found, point=replace(found.point, requests_per_s=999.0)))
    store.finish_run(run, "done")
    kept.learn("runs", {"m bf16 4/2, closed more": run})
    assert "1 point in" in bring(kept.work, "card", tmp_path / "data")
    [point] = read_points(tmp_path / "data" / "curves" / "card.csv")
    assert point.requests_per_s == found.point.requests_per_s
    assert point.source == "card; closed loops, first"
    with gzip.open(tmp_path / "data" / "gpu" / "card" / "requests.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(load.log)
    assert [float(row["last_token_s"]) for row in rows] == pytest.approx(load.log.last_token_s, abs=1e-4)


def test_a_rehearsal_comes_home_only_as_one(tmp_path: Path) -> None:
    """Here one that had no time for any model."""
    words = ["--rehearsal", "--budget-s", "1", "--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "lab.gpu.vllm", *words], check=True, cwd=HERE.parents[1], capture_output=True)
    kept = Kept(tmp_path / "work", tmp_path, None)
    kept.learn("runs", {})
    kept.save()
    asked = [str(kept.archive), "--name", "small", "--data", str(tmp_path / "data")]
    refused = CliRunner().invoke(home, asked)
    assert refused.exit_code == 1 and "is a rehearsal, not a measurement of a GPU" in refused.output
    assert CliRunner().invoke(home, [*asked, "--rehearsal"]).exit_code == 0


def test_the_page_has_every_part_for_what_was_measured(tmp_path: Path) -> None:
    """Of two measurements, here the same one of a single model twice."""
    name, model = "h200-vllm-qwen3", "Qwen/Qwen3-32B"
    for copy in ("one", "two"):
        shutil.copytree(DATA / "gpu" / name, tmp_path / "gpu" / copy)
        for table, kept in ((f"curves/{name}.csv", f"curves/{copy}.csv"), (f"gpu/{name}/points.csv",) * 2):
            own = [replace(point, source=f"{copy}; x") for point in read_points(DATA / table) if point.model == model]
            (tmp_path / "curves").mkdir(exist_ok=True)
            with (tmp_path / kept.replace(name, copy)).open("w", newline="") as file:
                write_points(own, file)
    done = CliRunner().invoke(page, ["one", "two", "--data", str(tmp_path), "--out", str(tmp_path / "page.md")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.md").read_text()
    heads = [line.partition(":")[0] for line in text.splitlines() if line.startswith("#")]
    own_heads = ["### The card", "### Points", "### The same level again"]
    each = [head for copy in ("one", "two") for head in (f"## {copy}", *own_heads)]
    assert heads == ["# Measured", *each, "## Fit", "## The planner's answer"]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 1000/")]
    assert {row[7] for row in rows if len(row) == 10} == {"yes", "no"}, "bands, which hold and do not"
    assert [row for row in rows if row[1] == "17 to 20"], "decode steps"
    assert "| fitted |" in text
    assert "| estimated |" in text


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"no archive inside", mtime=0)], ids=("empty", "text", "gzip")
)
def test_what_is_no_archive_of_measurements_is_refused_in_a_line(tmp_path: Path, content: bytes) -> None:
    (archive := tmp_path / "measured.tar.gz").write_bytes(content)
    done = CliRunner().invoke(home, [str(archive), "--name", "card", "--data", str(tmp_path / "data")])
    assert done.exit_code == 2 and f"Error: {archive} is not a measured.tar.gz: " in done.output
    assert not (tmp_path / "data").exists()


def test_a_page_of_nothing_is_refused_in_a_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(page, ["none", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds no measurements" in done.output


def test_levels_measured_twice_are_named_with_their_unit() -> None:
    told = spread(read_points(DATA / "gpu" / "h200-vllm" / "points.csv"))
    assert "| 1000/200 | 16 users |" in told and "| 1000/200 | 13.7 /s Poisson |" in told


def test_a_model_that_the_agenda_lacks_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(measure, ["--out", str(tmp_path / "out"), "--only", "Llama"])
    assert done.exit_code == 2 and "--only Llama: the models are meta-llama/Meta-Llama-3.1-8B, Qwen/" in done.output
    assert not (tmp_path / "out").exists()


def test_a_rate_of_one_round_counts_on_a_gpu_alone() -> None:
    points = measured(ON_GPU)
    assert {len(rounds) for case in of_table(ON_GPU, points) for rounds in case.rates} == {1, 2}
    assert {len(rounds) for case in of_table("elsewhere", points) for rounds in case.rates} == {2}
