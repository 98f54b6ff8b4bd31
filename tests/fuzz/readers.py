"""Every reader of what comes from outside: good inputs to begin with, and the call that reads one."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np

from calibration.errors import CalibrationError
from calibration.importers import read_measurements
from calibration.incoming import Upload, preview, take_in
from calibration.plan import level_key, read_plan
from calibration.requests.lengths import read_dataset, read_histogram, read_trace
from calibration.server_metrics import parse_page
from calibration.store import Store
from calibration.store.bundle import MANIFEST, MANIFEST_SUM, PointPart, RunPart, write_bundle
from calibration.store.records_file import About, decoded, encoded
from learn import course_form
from learn.lesson import Setting
from sizing import catalog
from sizing.analyses.sharing import read_scenario, share_of
from sizing.analyses.study import ANSWER_COLUMNS, ResultsFile, read_study
from sizing.errors import SizingError
from sizing.points import curves, doubts, read_points, write_points
from sizing.report import write
from sizing.report.model import as_json
from sizing.report.write import render
from sizing.token_law import TokenLaw, read_law
from sizing.trace_files import read_trace_noted
from tests.calibration.importers.samples import ALL_SAID, SAMPLES
from tests.calibration.kept import measurement, some_log
from tests.fuzz.mutations import mutated
from tests.sizing import report_cases, trace_samples
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.pbtxt import read_config
from triton_tools.batcher.requests import Requests
from triton_tools.batcher.service import parse_service_times, read_service_times
from ui import link
from ui.views import inside

ROOT = Path(__file__).parents[2]
RECORDS = "records/level-1.parquet"
TYPED = (SizingError, CalibrationError)
"""What a reader may raise, in one line."""
Read = Callable[[bytes, Path], object]


@dataclass(frozen=True, slots=True)
class Reader:
    """`read` gets an input and a folder of its own. `share` of the campaign, relative to the others.

    `samples` are good inputs, made when asked for; `change` makes a bad one of a good one.
    """

    name: str
    samples: Callable[[], list[bytes]]
    read: Read
    share: int = 2
    change: Callable[[bytes, random.Random], bytes] = mutated


def in_file(name: str, read: Callable[[Path], object]) -> Read:
    """A reader of files, for a file of this name."""

    def lay_down_and_read(raw: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(raw)
        return read(path)

    return lay_down_and_read


PLAN = b"""\
server: {url: 127.0.0.1:8001, model: ensemble, metrics_url: "http://127.0.0.1:8002/metrics", timeout_s: 60}
deployment: {model: m, precision: bf16, gpu: h200_sxm, tp: 2, engine: vllm, batching: in_flight}
lengths:
  - {isl: 2000, osl: 256, isl_cv: 0.5, osl_cv: 0.5}
  - {isl: [100, 300], osl: [10, 20]}
concurrency: [1, 4, 16, 64]
rates: [3.5]
arrivals: gamma:cv=2
schedule: [{for_s: 10, rate: 2}, {for_s: 30, rate: 6}]
until: {half_width: 0.05}
budget_s: 60
seed: 3
adaptive: {gpu_minutes: 30, rate: 20, ttft: "p95:1s", itl: "p95:30ms"}
"""
SCENARIO = b"""\
model: Qwen/Qwen3-32B
gpu: [h200_sxm]
tp: [2]
headroom: 0.2
workloads:
  - {name: chat, isl: 1000, osl: 200, rate: 5, ttft: p95:1s, itl: p95:30ms, arrivals: "gamma:cv=2"}
  - {name: batch, isl: 4000, osl: 500, rate: 1, e2e: p95:60s, priority: 1, prefix_tokens: 100, prefix_hit: 0.5}
"""
STUDY = b"""\
base: {model: Qwen/Qwen3-32B, gpu: h200_sxm, precision: fp8, isl: 2000, osl: 256, itl: p95:30ms}
axes:
  rate: [5, 20, 80]
  tp: [1, "2"]
  ttft: [p95:500ms, p95:2s]
"""
SAMPLED = STUDY.replace(b"rate: [5, 20, 80]", b"rate: {low: 5, high: 80}") + b"sample: 20\nseed: 4\n"
PBTXT = b"""\
name: "m" max_batch_size: 16
instance_group [ { count: 2 kind: KIND_GPU gpus: [0, 1] }, { kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 priority_levels: 3 default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 allow_timeout_override: true }
  priority_queue_policy { key: 3 value { max_queue_size: 5 } }
}
parameters { key: "x" value { string_value: "/s.py" } }
"""
SEQUENCES = b"""\
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 4 preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100 }
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] } ]
}
"""
SERVICE_TIMES = b"instances,batch_size,service_time_ms\n1,1,5\n1,8,9\n2,1,8\n2,8,14.5\n"
LAWS = [b"uniform:100-300", b"points:200@0.8,4000@0.2", b"histogram:1-500@10,501-2000@3"]
LAW_FILES = [b"tokens\n300\n100\n", b"tokens,count\n300,2\n100,1\n", b"low,high,count\n101,300,2\n1,100,1\n"]
HISTOGRAM = b"isl,osl,weight\n100,20,3\n2000,256,1\n64,32,0.5\n"
TRACES = (
    b"arrival_s,isl,osl\n0,5,5\n0.5,7,5\n1.25,5,9\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50,396,109\n",
)
MOONCAKE = b"""\
{"timestamp": 0, "input_length": 6755, "output_length": 500}
{"timestamp": 3000, "input_length": 7, "output_length": 9}
"""
DATASET = b'[{"input": "How many?", "instruction": "Be brief.", "output": "Three."}, {"input": "Why?"}]'
METRICS = b"""\
# HELP nv_inference_count x
nv_inference_count{model="ensemble",version="1"} 12
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 3e2
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.93
"""
GPUS = (ROOT / "data" / "catalog" / "gpus.yaml").read_bytes()


def points_table() -> bytes:
    text = io.StringIO()
    write_points([measurement().point], text)
    shipped = (ROOT / "data" / "curves" / "reference-cpu.csv").read_bytes().splitlines(keepends=True)
    return text.getvalue().encode() + b"".join(shipped[1:3])


def read_table(path: Path) -> None:
    found = read_points(path)
    curves(found)
    for point in found:
        doubts(point)


def read_scenario_and_shares(path: Path) -> None:
    asked = read_scenario(path)
    _ = [share_of(stream) for stream in asked.workloads], asked.terms


def read_and_simulate(path: Path) -> None:
    model = read_config(path)
    if model.sequence is None:
        simulate(model, lambda rows: 0.005 + 0.001 * rows, Requests.poisson(300, 100, np.random.default_rng(0)))


def read_times(path: Path) -> None:
    for _, service in read_service_times(path).curves:
        service(1)


def read_any_trace(raw: bytes, folder: Path) -> None:
    path = folder / ("trace.jsonl" if raw.lstrip()[:1] == b"{" else "trace.csv")
    path.write_bytes(raw)
    read_trace(path).summary()


def read_results(raw: bytes, folder: Path) -> None:
    (folder / "study.csv").write_bytes(raw)
    (folder / "study.yaml").write_bytes(STUDY)
    with ResultsFile(folder / "study.csv", read_study(folder / "study.yaml"), "inputs") as table:
        table.add(0, dict.fromkeys(ANSWER_COLUMNS, 1))


@cache
def results() -> bytes:
    """The results of the study, as a study leaves them."""
    folder = _made()
    (folder / "study.yaml").write_bytes(STUDY)
    with ResultsFile(folder / "study.csv", read_study(folder / "study.yaml"), "inputs") as table:
        for place in range(5):
            table.add(place, dict.fromkeys(ANSWER_COLUMNS, 1))
    return (folder / "study.csv").read_bytes()


def read_report(path: Path) -> None:
    report = write.read(path)
    as_json(report)
    render(report, "html")


@cache
def bundle() -> bytes:
    """The same bytes each time, as no exported run of a store is."""
    made_at, kept = "2026-11-20T10:00:00+00:00", measurement()
    run = RunPart(
        uuid="00000000-0000-4000-8000-000000000000", plan=PLAN.decode(), folder="/f", label="toy", levels=1, 
        state="done", created=made_at, ended=made_at, error="",
    )  # fmt: skip
    records = _made() / "level-1.parquet"
    records.write_bytes(encoded(some_log(), About(run=run.uuid, level=level_key(kept.point))))
    part = PointPart(point=kept.point, facts=dict(kept.facts), server=dict(kept.server), records=RECORDS)
    sink = io.BytesIO()
    write_bundle(sink, run, [part], {RECORDS: records})
    return sink.getvalue()


def repacked(raw: bytes, rng: random.Random) -> bytes:
    """A bundle with one member changed, half the time under a manifest that fits the change; or any other mutation."""
    if rng.random() < 0.3:
        return mutated(raw, rng)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    members[name] = mutated(members[name], rng)
    if rng.random() < 0.8 and name not in (MANIFEST, MANIFEST_SUM):
        sums = {
            each: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for each, data in members.items()
            if each not in (MANIFEST, MANIFEST_SUM)
        }
        members[MANIFEST] = json.dumps(json.loads(members[MANIFEST]) | {"members": sums}).encode()
    if name != MANIFEST_SUM:
        members[MANIFEST_SUM] = hashlib.sha256(members[MANIFEST]).hexdigest().encode()
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for each, data in members.items():
            archive.writestr(zipfile.ZipInfo(each), data)  # with a date of its own, not the day's
    return sink.getvalue()


@cache
def log() -> bytes:
    return encoded(some_log(), About(run="r", level=(64, 32, 0, 0, "concurrency", 4)))


def query() -> list[bytes]:
    plain = urlencode(link.to_query(link.Scenario(), 4, link.Stamp("2026-11-20", "0123abcd")))
    return [plain.encode()]


def read_link(raw: bytes, folder: Path) -> None:
    pairs: Mapping[str, str] = dict(parse_qsl(raw.decode("utf-8", "surrogateescape"), keep_blank_values=True))
    scenario, problems = link.from_query(pairs)
    link.to_query(scenario, link.answer_of(pairs), link.data_of(pairs))
    short(problems)


PLANNED = inside.RunSetup(20, 1000, 0, "poisson", "chunked", 256, 8192, 100_000, "reserve", 0, 0.0)
SETTINGS = b"batching=static;slots=4;load=batch:100;ticks=300;seed=3"


def read_settings(raw: bytes, folder: Path) -> None:
    """What the pages of lesson, course and simulation keep in one parameter of the link."""
    text = raw.decode("utf-8", "surrogateescape")
    short(course_form.from_text(text)[1])
    short(inside.from_text(text, PLANNED)[1])
    Setting.of(text)


class TooLong(Exception):
    """A line that the page would show is longer than a line."""


def short(problems: list[str]) -> None:
    for line in problems:
        if "\n" in line or len(line) > 1200:
            raise TooLong(f"{len(line)} characters: {line[:80]!r}")


SAID = ({}, ALL_SAID, {**ALL_SAID, "concurrency": 2})
"""Of an import: what a file says itself may not be said again, and what it leaves out must be."""


def read_upload(raw: bytes, folder: Path) -> None:
    store = Store(f"sqlite:///{folder / 'points.db'}")
    with_any(lambda said: preview(store, Upload("mine.csv", raw, said=tuple(said.items()))))
    with_any(lambda said: take_in(store, Upload("mine.csv", raw, said=tuple(said.items()))))


def with_any(read: Callable[[Mapping[str, object]], object]) -> None:
    """Read with the first of `SAID` that the file goes with; raises what the last one raises where there is none."""
    for said in SAID[:-1]:
        with suppress(*TYPED):
            read(said)
            return
    read(SAID[-1])


def uploads() -> list[bytes]:
    several_at_one_level = "op_stats.csv"  # where the lengths are said and not read
    return [points_table(), bundle(), *(raw for name, raw in SAMPLES.items() if name != several_at_one_level)]


def read_import(path: Path) -> None:
    with_any(lambda said: read_measurements(path, deployment=said))


_folders: list[Path] = []


def _made() -> Path:
    """A folder for samples that take one to be made."""
    return _folders[0]


def prepare(folder: Path) -> None:
    """Where samples are made; to be called once before any is asked for."""
    folder.mkdir(exist_ok=True)
    _folders[:] = [folder]


FILES: tuple[Reader, ...] = (
    Reader("plan", lambda: [PLAN], in_file("plan.yaml", lambda path: read_plan(path).plan.levels()), 4),
    Reader("share scenario", lambda: [SCENARIO], in_file("fleet.yaml", read_scenario_and_shares), 4),
    Reader("study", lambda: [STUDY, SAMPLED], in_file("study.yaml", read_study), 4),
    Reader("study results", lambda: [results()], read_results, 1),
    Reader("catalogue", lambda: [GPUS], in_file("gpus.yaml", lambda path: catalog.read(path, catalog.Gpu)), 1),
    Reader("points table", lambda: [points_table()], in_file("points.csv", read_table), 4),
    *(
        Reader(f"import {name}", lambda raw=raw: [raw], in_file("file", read_import), 1)  # type: ignore[misc]
        for name, raw in SAMPLES.items()
    ),
    Reader("upload", uploads, read_upload, 3, lambda raw, rng: (repacked if raw[:2] == b"PK" else mutated)(raw, rng)),
    Reader("bundle", lambda: [bundle()], read_upload, 3, repacked),
    Reader("request log", lambda: [log()], lambda raw, folder: decoded(raw, "log.parquet"), 2),
    Reader("config.pbtxt", lambda: [PBTXT, SEQUENCES], in_file("config.pbtxt", read_and_simulate), 4),
    Reader("service times", lambda: [SERVICE_TIMES], in_file("times.csv", read_times), 1),
    Reader(
        "service law",
        lambda: [b"8ms+1.5ms*n"],
        lambda raw, folder: parse_service_times(raw.decode("utf-8", "replace")),
        1,
    ),
    Reader("histogram", lambda: [HISTOGRAM], in_file("lengths.csv", lambda path: read_histogram(path).summary()), 1),
    Reader("file of a law", lambda: LAW_FILES, in_file("lengths.csv", read_law), 1),
    Reader("law of lengths", lambda: LAWS, lambda raw, folder: TokenLaw.parse(raw.decode("utf-8", "replace")), 1),
    Reader("trace", lambda: [*TRACES, MOONCAKE], read_any_trace, 2),
    Reader("trace to plan on", lambda: trace_samples.ALL, in_file("trace", read_trace_noted), 4),
    Reader("dataset", lambda: [DATASET], in_file("texts.json", read_dataset), 1),
    Reader(
        "metrics page", lambda: [METRICS], lambda raw, folder: parse_page(raw.decode("utf-8", "replace"), "u", 0.0), 1
    ),
    Reader("saved report", lambda: [as_json(report_cases.report()).encode()], in_file("plan.json", read_report), 2),
    Reader("link", query, read_link, 3),
    Reader("settings in a link", lambda: [SETTINGS], read_settings, 2),
)
