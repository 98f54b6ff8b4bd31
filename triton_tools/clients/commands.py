"""The commands `bench` and `compare` of ``python -m calibration``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

import click
from click.core import ParameterSource
from rich.console import Console

from calibration.errors import PlanError
from calibration.progress import drawn_bar
from calibration.requests.lengths import LengthsPlan
from triton_tools.clients import clients, comparison, options, printing
from triton_tools.clients.dataset import TOKENS_PER_WORD
from triton_tools.clients.flags import IDLE_SEED, Asked, Protocol, asked, server_plan
from triton_tools.clients.pacing import Pacing

DEFAULT_USERS = 8
PATIENCE_S = 2.0


class LateBar:
    """A bar on `console` that appears after two seconds. A context manager; call it with the fraction done, 0 to 1."""

    def __init__(self, console: Console, description: str) -> None:
        self._progress = drawn_bar(console)
        self._task = self._progress.add_task(description, total=1.0)
        self._since_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, share: float) -> None:
        self._progress.update(self._task, completed=share)
        if time.monotonic() - self._since_s > PATIENCE_S:
            self._progress.start()


@click.command(cls=options.EitherSpelling)
@click.argument("words", nargs=-1, metavar="[CLIENT] [dataset | token_norm_dist]")
@click.option(
    "-i",
    "--protocol",
    type=click.Choice(["grpc", "http"]),
    default="http",
    show_default=True,
    help="Triton's protocol.",
)
@click.option(
    "--model-name",
    "--tensorrt-llm-model-name",
    multiple=True,
    help="Model to measure; default: the client's own (tensorrt_llm or ensemble).",
)
@options.where
@options.dataset
@options.random_lengths
@options.how_many("all of the data set, or 30000 random prompts")
@options.how_to_send
@options.connections
@options.results
@options.settled
@click.pass_context
def bench(ctx: click.Context, /, words: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Run one of the TensorRT-LLM backend's benchmark clients, with its flags, figures and table.

    Use it in place of `python3 benchmark_core_model.py` or `identity_test.py`; the client's name may come first or be
    left out. Flags may be written with _ or -, before or after the workload. A flag that has no effect here is named
    in a note.

    \b
    Examples:
      python -m calibration bench -i grpc --request_rate 10 token_norm_dist --input_mean 128 --input_stdev 5 \\
          --output_mean 20 --output_stdev 2 --num_requests 500
      python -m calibration bench identity_test -i grpc -u localhost:8001 --max_input_len 2048 \\
          --dataset mini_cnn_eval.json --tokenizer_dir llama/ --op_stats_csv v1.csv
    """
    given = {name for name in values if _is_given(ctx, name)}
    wanted = asked(words, values, given)
    _check_files(wanted)

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    with LateBar(Console(stderr=True), f"{wanted.script} on {wanted.server.model}, {wanted.pacing}") as bar:
        outcome = clients.run(wanted, say, bar)
    for line in clients.report(outcome, wanted):
        say(line)
    say(f"note: {printing.DEFINITIONS}")
    _keep(outcome, wanted)
    if as_json:
        click.echo(json.dumps({"client": wanted.script, "model": wanted.server.model} | outcome.as_json()))
    for note in outcome.notes:
        click.echo(f"note: {note}", err=True)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check_files(wanted: Asked) -> None:
    """Fail before the run if the file cannot be written."""
    if wanted.op_stats_csv is not None:
        printing.check_csv(wanted.op_stats_csv)
    if wanted.perfetto:
        printing.check_writable(Path(printing.PERFETTO_FILE))


def _keep(outcome: clients.Outcome, wanted: Asked) -> None:
    if wanted.op_stats_csv is not None:
        printing.append_csv(wanted.op_stats_csv, outcome.stats)
    if wanted.perfetto:
        printing.write_perfetto(Path(printing.PERFETTO_FILE), outcome.load.log)


@click.command(cls=options.EitherSpelling)
@click.argument("model_a")
@click.argument("model_b")
@click.option(
    "-i",
    "--protocol",
    type=click.Choice(["grpc", "http"]),
    default="grpc",
    show_default=True,
    help="Triton's protocol.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1, 4096), help="Requests kept in flight.  [default: 8]")
@click.option("--isl", type=options.LENGTH, help="Input tokens of each request, instead of --dataset.")
@click.option("--osl", type=options.LENGTH, help="Output tokens of each request, instead of --dataset.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    help="Pairs of runs; an odd number gets one more.",
)
@options.dataset
@options.how_many("all of the data set, or 50 random prompts")
@options.where
@options.how_to_send
def compare(
    model_a: str,
    model_b: str,
    protocol: Protocol,
    as_json: bool,
    url: str | None,
    stream_timeout: float | None,
    **values: Any,
) -> None:
    """Measure how much faster MODEL_B is than MODEL_A, on the same server and prompts.

    Both are run in pairs (A B, B A, ...), so that each comes first equally often, and each run sends --num_requests
    requests. The speed-up is the mean over the pairs, with its 95 % confidence interval.

    \b
    Examples:
      python -m calibration compare llama-python ensemble --dataset mini_cnn_eval.json --max_input_len 100
      python -m calibration compare ensemble tensorrt_llm --isl 128 --osl 32 -c 16 --repeats 6
    """
    load = _load(values)
    wanted = comparison.Wanted(
        servers=(
            server_plan(url, protocol, model_a, stream_timeout),
            server_plan(url, protocol, model_b, stream_timeout),
        ),
        data=_data(values),
        load=load,
        requests=values["num_requests"],
        repeats=values["repeats"],
        tokenizer_dir=values["tokenizer_dir"],
        max_input_len=values["max_input_len"],
        op_tokens_per_word=TOKENS_PER_WORD if values["op_tokens_per_word"] is None else values["op_tokens_per_word"],
        seed=values["seed"],
        processes=values["processes"],
        notes=_idle(click.get_current_context(), values, load),
    )
    with LateBar(Console(stderr=True), f"{model_a} and {model_b}") as bar:
        found = comparison.compare(wanted, bar)
    click.echo(json.dumps(found.as_json()) if as_json else comparison.table(found))
    for note in (*found.notes, *([] if as_json else [printing.DEFINITIONS])):
        click.echo(f"note: {note}", err=True)


def _data(values: dict[str, Any]) -> Path | LengthsPlan:
    dataset, isl, osl = values["dataset"], values["isl"], values["osl"]
    if dataset is not None:
        if isl is not None or osl is not None:
            raise PlanError("--dataset has lengths of its own: give it, or --isl and --osl")
        return Path(dataset)
    if isl is None or osl is None:
        raise PlanError("no prompts: give --dataset FILE, or --isl and --osl")
    for name in ("max_input_len", "op_tokens_per_word"):
        if values[name] is not None:
            raise PlanError(f"--{name} goes with --dataset, not with --isl and --osl")
    return LengthsPlan(isl=isl, osl=osl)


def _load(values: dict[str, Any]) -> int | Pacing:
    """The users of a closed loop, or, if a flag gives it, when to send."""
    users, gaps_s = values["concurrency"], tuple(values["time_bet_reqs"])
    pacing = Pacing.of(values["request_rate"], values["time_delay_dist"], gaps_s)
    if values["request_rate"] is None and not gaps_s:
        return DEFAULT_USERS if users is None else int(users)
    if users is not None:
        raise PlanError("-c keeps requests in flight, --request_rate and --time_bet_reqs send them when due: give one")
    return pacing


def _idle(ctx: click.Context, values: dict[str, Any], load: int | Pacing) -> tuple[str, ...]:
    """Notes on flags that have no effect here."""
    drawn = values["dataset"] is None or (isinstance(load, Pacing) and load.random)
    return () if drawn or not _is_given(ctx, "seed") else (IDLE_SEED,)
