"""The commands around runs: run and resume, list and show, accept and discard, export and import."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from calibration import run as sweep
from calibration.errors import CalibrationError, ServerError, StoreError
from calibration.importers import KINDS
from calibration.incoming import POINTS_TABLE, nothing_said, read_file
from calibration.plan import read_plan
from calibration.progress import Bar
from calibration.records import Measurement
from calibration.store import LIVE, Run, Store
from calibration.store.bundle import export_bundle, import_bundle, import_measurements, is_bundle
from calibration.store.work import accept, discard
from calibration.time_split import split
from sizing.files import write
from sizing.lazy_group import INTERRUPTED
from sizing.numbers import count_of, per_second, significant, with_unit
from sizing.points import Point, doubts, write_points

_HEAD = (
    "   ISL    OSL        load   req/s   TTFT ms      p95    ITL ms      p95    E2E ms      p95  Little  errors"
    "  verdict\n"
    "                                      mean               mean               mean\n"
)


def table(points: Sequence[Point]) -> str:
    """The points as text, one line each, times in milliseconds, followed by remarks on single points."""
    lines = [_HEAD, *(_row(point) for point in points)]
    for point in points:
        remarks = [*doubts(point), *([point.notes] if point.notes else [])]
        if remarks:
            lines.append(f"ISL {point.isl:g}, OSL {point.osl:g}, {load_text(point)}: {'; '.join(remarks)}\n")
    return "".join(lines)


def _row(point: Point) -> str:
    times = "".join(
        f"{_ms(mean_s):>10}{_ms(p95_s):>9}"
        for mean_s, p95_s in (
            (point.ttft_mean_s, point.ttft_p95_s),
            (point.itl_mean_s, point.itl_p95_s),
            (point.e2e_mean_s, point.e2e_p95_s),
        )
    )
    little = "" if point.little is None else f"{point.little:.3f}"
    head = f"{point.isl:6g} {point.osl:6g} {load_text(point):>11} {point.requests_per_s:7.2f}"
    errors = "" if point.errors is None else point.errors
    return f"{head}{times}  {little:>6}  {errors:>6}  {point.verdict}".rstrip() + "\n"


def load_text(point: Point) -> str:
    """For people: ``4 users``, ``3.5 req/s``, ``0.5 sess/s``."""
    if point.load_kind in ("concurrency", "sessions"):
        return with_unit(f"{point.load_value:g}", "users")
    return f"{significant(point.load_value, 4)} {'sess' if point.load_kind == 'session_rate' else 'req'}/s"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f}" if seconds >= 1 else f"{seconds * 1000:.4g}"


def details(found: Measurement) -> str:
    """The figures behind a point, a line each: precision of its means, the client's health, the server's view."""
    point = found.point
    lines = [f"ISL {point.isl:g}, OSL {point.osl:g}, {load_text(point)}: {point.verdict or 'not judged'}"]
    for name, text in (
        ("means known to", _precision(found.facts)),
        ("from sending", _from_sending(found.facts)),
        ("of sessions", _of_sessions(found.facts)),
        ("client", _client(found.facts)),
        ("server", _server(found)),
        ("", _gauges(found.server)),
    ):
        if text:
            lines.append(f"  {name:15} {text}")
    return "\n".join(lines) + "\n"


def _precision(facts: Mapping[str, float]) -> str:
    names = {"ttft_mean": "TTFT", "itl_mean": "ITL", "e2e_mean": "E2E", "requests_per_s": "requests/s"}
    known = [
        f"{text} ±{facts[f'{name}_half_width']:.1%}" for name, text in names.items() if f"{name}_half_width" in facts
    ]
    return f"{', '.join(known)} (95 % confidence)" if known else ""


def _from_sending(facts: Mapping[str, float]) -> str:
    """The latencies of an open loop from the sending, without the client's lateness."""
    shown = []
    for metric in ("ttft", "e2e"):
        if f"{metric}_sent_mean_s" in facts:
            p95_s = facts.get(f"{metric}_sent_p95_s")
            p95 = "" if p95_s is None else f", p95 {_ms(p95_s)} ms"
            shown.append(f"{metric.upper()} mean {_ms(facts[f'{metric}_sent_mean_s'])} ms{p95}")
    return "; ".join(shown)


def _of_sessions(facts: Mapping[str, float]) -> str:
    """TTFT of first turns and of all later ones, most of which a prefix cache may have."""
    turns = {"first": "first turns", "later": "later turns"}
    shown = [
        f"{text} mean {_ms(facts[f'{name}_ttft_mean_s'])} ms, p50 {_ms(facts[f'{name}_ttft_p50_s'])} ms"
        for name, text in turns.items()
        if f"{name}_ttft_p50_s" in facts
    ]
    return f"TTFT of {', of '.join(shown)}" if shown else ""


def _client(facts: Mapping[str, float]) -> str:
    if not {"processes", "client_cores", "loop_lag_p99_s", "achieved_per_s"} <= set(facts):
        return ""  # measured by another tool
    many = "" if facts["processes"] == 1 else "es"
    parts = [
        f"{facts['processes']:.0f} process{many} on {facts['client_cores']:.2f} cores",
        f"event loop late by {_ms(facts['loop_lag_p99_s'])} ms (p99)",
    ]
    if {"offered_per_s", "sent_per_s", "late_p50_s", "late_p99_s"} <= set(facts):
        parts.append(f"offered {significant(facts['offered_per_s'], 4)}, sent {per_second(facts['sent_per_s'], 4)}")
        parts.append(f"sent late by {_ms(facts['late_p50_s'])} ms (p50), {_ms(facts['late_p99_s'])} ms (p99)")
    return f"{', '.join(parts)}; answered {per_second(facts['achieved_per_s'], 4)}"


def _server(found: Measurement) -> str:
    """Where a mean request's time went, by the server's metrics and the client's."""
    if found.point.verdict == "overloaded":
        return ""  # without a steady state the parts do not add up
    parts = split(found.point, found.server)
    seconds = {
        "queue": parts.queue_s,
        "prefill": parts.prefill_s,
        "decode": parts.decode_s,
        "network and client": parts.network_and_client_s,
        "rest": parts.other_s,
    }
    known = [f"{name} {_ms(value)}" for name, value in seconds.items() if value is not None]
    of = f"of E2E {_ms(parts.e2e_s)} ms: " if known else ""
    return f"{of}{', '.join(known)}"


SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("pending_requests_mean", "{} requests in Triton", significant),
    ("batcher_generation_requests_mean", "{} decoding", significant),
    ("engine_requests_running_mean", "{} in the engine", significant),
    ("engine_requests_waiting_mean", "{} waiting for the engine", significant),
    ("kv_cache_used_share_mean", "KV cache {} full", "{:.0%}".format),
    ("kv_cache_tokens", "of {} tokens", "{:,.0f}".format),
    ("prefix_tokens_found_share", "{} of prompt tokens found in it", "{:.1%}".format),
    ("preemptions", "{} preemptions", "{:.0f}".format),
    ("gpu_power_mean_w", "GPU {} W", "{:.0f}".format),
    ("gpu_utilization_mean", "GPU busy {}", "{:.0%}".format),
    ("gpu_energy_per_request_j", "{} J a request", significant),
)


def _gauges(server: Mapping[str, float]) -> str:
    return ", ".join(text.format(shown(server[name])) for name, text, shown in SHOWN if name in server)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
run_number = click.argument("run_id", metavar="RUN", type=int)


@click.command("run")
@click.argument("plan", type=click.Path(path_type=Path))
@as_json
def run_command(plan: Path, as_json: bool) -> None:
    """Measure the load levels of PLAN, a YAML file.

    Each point is stored as soon as it is measured; `resume` continues a run that was stopped.

    \b
    Example: python -m calibration run plan.yaml, with this plan.yaml:
      server: {url: 127.0.0.1:8001, model: ensemble, metrics_url: http://127.0.0.1:8002/metrics}
      lengths: [{isl: 2000, osl: 256, isl_cv: 0.5, osl_cv: 0.5}]
      concurrency: [1, 5, 21, 89]
      rates: [3.5]
    A server that speaks the OpenAI protocol:
      server: {protocol: openai, url: "http://gpu-7:8000", model: Qwen/Qwen3-32B}
    docs/calibration.md describes every key.
    """
    file = read_plan(plan)
    _sweep(lambda store, bar: sweep.run(file, store, bar), as_json)


@click.command("resume")
@run_number
@as_json
def resume_command(run_id: int, as_json: bool) -> None:
    """Measure the levels of RUN that have no point yet. RUN is its number in `list`.

    \b
    Example: python -m calibration resume 3
    """

    def go_on(store: Store, bar: Bar) -> int:
        try:
            return sweep.resume(run_id, store, bar)
        except ServerError as error:
            if bar.run_id is not None:
                raise
            raise error.named({error.key: f"{error.key} in its plan and start a new run"}) from None

    _sweep(go_on, as_json)


@click.command("list")
@as_json
def list_command(as_json: bool) -> None:
    """List all runs, newest first.

    \b
    Example: python -m calibration list
    """
    runs = Store().runs()
    if as_json:
        click.echo(json.dumps([_run_facts(run) for run in runs]))
        return
    if not runs:
        click.echo("no runs yet; start one with: python -m calibration run plan.yaml")
    for run in runs:
        void = f" ({run.void} void)" if run.void else ""
        void += f", {run.pending} not accepted yet" if run.pending else ""
        void += f", {run.discarded} discarded" if run.discarded else ""
        points = f"{run.points:3} of {run.levels:3} points{void}"
        click.echo(f"{run.id:4}  {run.state:11}  {points}  {run.created}  {run.label}")


@click.command("show")
@run_number
@click.option(
    "--details",
    "in_detail",
    is_flag=True,
    help="Also show the precision of the means, the load generator's health and the server's own metrics.",
)
@as_json
def show_command(run_id: int, in_detail: bool, as_json: bool) -> None:
    """Show the state and the points of RUN, by its number in `list`.

    \b
    Example: python -m calibration show 3 --details
    """
    _show(Store(), run_id, as_json, in_detail)


def _sweep(start: Callable[[Store, Bar], int], as_json: bool) -> None:
    store = Store()
    with Bar(Console(stderr=True)) as bar, _interruptible(store, bar):
        try:
            run_id = start(store, bar)
        except (CalibrationError, KeyboardInterrupt):
            if as_json and bar.run_id is not None:  # a program learns what was measured, and how it ended
                with suppress(StoreError):
                    _show(store, bar.run_id, as_json)
            raise
    _show(store, run_id, as_json)


def heed_signals() -> None:
    """From now on, raise KeyboardInterrupt on SIGINT and SIGTERM.

    A shell starts background jobs with SIGINT ignored; they too can then be interrupted and resumed.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _interruptible(store: Store, bar: Bar) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print one line that says how to continue."""
    heed_signals()
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C would cut off the line
        bar.close()
        if bar.run_id is None:
            click.echo("interrupted before anything was measured", err=True)
        else:
            click.echo(f"interrupted: {sweep.how_to_continue(store, bar.run_id)}", err=True)
        sys.exit(INTERRUPTED)


def _show(store: Store, run_id: int, as_json: bool, in_detail: bool = False) -> None:
    run, found = store.run(run_id), store.measurements(run_id)
    if as_json:
        click.echo(json.dumps(_run_facts(run) | {"points": [_facts(item) for item in found]}))
        return
    click.echo(f"run {run.id}: {run.state}, {run.points} of {run.levels} points, {run.label}, {run.created}")
    if run.state == "lost":
        click.echo(f"its process is gone; continue with: python -m calibration resume {run.id}")
    if run.error:
        click.echo(f"it stopped with: {run.error}")
    click.echo(table([item.point for item in found]), nl=False)
    if in_detail:
        click.echo("".join(details(item) for item in found), nl=False)


def _facts(found: Measurement) -> dict[str, Any]:
    return asdict(found.point) | {"facts": dict(found.facts), "server": dict(found.server)}


def _run_facts(run: Run) -> dict[str, object]:
    facts = asdict(run)
    return facts | {"run": facts.pop("id"), "points": run.points}


@click.command("accept")
@run_number
@as_json
def accept_command(run_id: int, as_json: bool) -> None:
    """Use the points of RUN in answers: of a run that was started on the page, or whose points were discarded.

    Points that the command line measures or imports are accepted at once. Look at the points first (`show RUN
    --details`) and at the law fitted to them (`export RUN --out points.csv`, then `python -m sizing fit --points
    points.csv`).

    \b
    Example: python -m calibration show 3 --details
             python -m calibration accept 3
    """
    _decide(run_id, accept, "accepted", as_json)


@click.command("discard")
@run_number
@as_json
def discard_command(run_id: int, as_json: bool) -> None:
    """Use the points of RUN in no answer. They stay in the store and can be accepted later.

    \b
    Example: python -m calibration discard 3
    """
    _decide(run_id, discard, "discarded", as_json)


def _decide(run_id: int, decide: Callable[[Store, int], int], word: str, as_json: bool) -> None:
    store = Store()
    run = _ended(store, run_id)
    changed = decide(store, run_id)
    if as_json:
        click.echo(json.dumps({"run": run_id, "standing": word, "points": run.points, "changed": changed}))
        return
    before = "" if changed == run.points else f", {run.points - changed} of them before"
    void = f" ({run.void} void: kept, never fitted)" if run.void else ""
    click.echo(f"run {run_id}: {run.points} points {word}{before}{void}")
    click.echo(table(store.points(run_id)), nl=False)


def _ended(store: Store, run_id: int) -> Run:
    """The run, which must have ended and have points. Raises StoreError."""
    run = store.run(run_id)
    if run.state in LIVE:
        raise StoreError(f"run {run_id} is {run.state}: wait until it ends or stop it, then try again")
    if not run.points:
        raise StoreError(f"run {run_id} has no points to accept or discard: see python -m calibration show {run_id}")
    return run


BUNDLE = ".zip"
DEPLOYMENT: tuple[tuple[str, Any, str], ...] = (
    ("model", str, "Served model, by its name in the catalogue."),
    ("precision", str, "Precision of the weights, such as bf16 or fp8."),
    ("gpu", str, "GPU, such as h200_sxm."),
    ("tp", int, "Tensor parallelism: GPUs over which each replica splits the model."),
    ("pp", int, "Pipeline parallelism: stages of each replica; default: 1."),
    ("engine", str, "Serving engine, such as vllm."),
    ("engine-version", str, "Version of the engine."),
    ("batching", str, "Batching of the engine: in_flight or static."),
    ("max-batch-size", int, "Largest batch of the engine, in requests."),
    ("isl", float, "Mean input tokens of a request."),
    ("osl", float, "Mean output tokens of a request."),
    ("concurrency", int, "Users of the closed loop."),
    ("rate", float, "Requests/s of the open loop."),
    ("arrivals", str, "Arrivals of the open loop: poisson, constant or gamma; default: the tool's own."),
)


@click.command("export")
@run_number
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write, .csv, .json or .zip; default: standard output.",
)
@as_json
def export_command(run_id: int, out: Path | None, as_json: bool) -> None:
    """Write the points of RUN as a CSV table, which `python -m sizing plan --points` reads, or the whole run as a .zip.

    The .zip also holds every request, with checksums; `import` reads it into another store.

    \b
    Example: python -m calibration export 3 --out points.csv
             python -m calibration export 3 --out run3.zip
    """
    store = Store()
    if out is not None and out.suffix.lower() == BUNDLE:
        if as_json:
            raise click.UsageError("--json cannot be combined with a .zip, which has its own format")
        missing = export_bundle(store, run_id, out)
        lacks = f", without the requests of {missing} points, which are on another machine" if missing else ""
        click.echo(f"run {run_id} written to {out}{lacks}", err=True)
        return
    points = store.points(run_id)
    as_json |= out is not None and out.suffix.lower() == ".json"
    text = json.dumps([asdict(point) for point in points]) + "\n" if as_json else _table_of(points)
    if out is None:
        click.echo(text, nl=False)
        return
    write(out, [text])
    click.echo(f"{count_of(len(points), 'point')} written to {out}", err=True)


def _table_of(points: list[Point]) -> str:
    text = StringIO()
    write_points(points, text)
    return text.getvalue()


def _deployment_options(command: Any) -> Any:
    for name, kind, help_ in reversed(DEPLOYMENT):
        command = click.option(f"--{name}", type=kind, help=help_)(command)
    return command


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    type=click.Choice([POINTS_TABLE, *KINDS]),
    help="Tool that wrote FILE, or points for a points table; default: detected.",
)
@_deployment_options
@as_json
def import_command(file: Path, kind: str | None, as_json: bool, **said: Any) -> None:
    """Read FILE into the store: an exported run (.zip), a points table, or the file of another benchmark tool.

    The tools are AIPerf, GenAI-Perf, Perf Analyzer, GuideLLM, vLLM's bench serve, SGLang's bench_serving (kind vllm)
    and the TensorRT-LLM backend's clients (--op_stats_csv). The options say what a tool's file leaves
    out, and override it.

    \b
    Example: python -m calibration import run3.zip
             python -m calibration import profile_export_aiperf.json --precision fp8 --gpu h200_sxm --tp 1
    """
    store = Store()
    given = {name: value for name, value in said.items() if value is not None}
    if kind is None and is_bundle(file):
        nothing_said("an exported run", given)
        stored = [import_bundle(store, file)]
    else:
        stored = import_measurements(store, f"imported from {file.name}", read_file(file, kind, given))
    numbers, new = [each.run_id for each in stored], any(each.new for each in stored)
    of_run = {number: store.points(number) for number in numbers}
    if as_json:
        every = [asdict(point) for points in of_run.values() for point in points]
        click.echo(json.dumps({"run": numbers[0], "runs": numbers, "new": new, "points": every}))
        return
    for number, is_new in stored:
        points = of_run[number]
        known = "" if is_new else ", which were in the store already"
        click.echo(f"run {number}: {with_unit(str(len(points)), 'points')}{known}")
        click.echo(table(points), nl=False)
