"""The flags of `bench`: those of the clients, in either spelling, and a few of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from calibration.errors import CalibrationError

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
MOST_TOKENS = 10_000_000
MOST_REQUESTS = 1_000_000
SEVERAL_VALUES = "--time-bet-reqs"


class Finite(click.ParamType[float]):
    """A number that is neither NaN nor infinite, `least` or more, and more than `above`."""

    name = "number"

    def __init__(self, least: float = -math.inf, *, above: float = -math.inf) -> None:
        self.least = least
        self.above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number) or number < self.least or number <= self.above:
            least = f" of {self.least:g} or more" * (self.least > -math.inf)
            above = f" above {self.above:g}" * (self.above > -math.inf)
            self.fail(f"{value} is not a finite number{least}{above}", param, ctx)
        return number


class EitherSpelling(click.Command):
    """Long flags may be written with ``_`` or ``-``, and ``--time_bet_reqs`` takes all numbers that follow it. Errors
    name flags instead of the keys of a plan, because these commands have no plan."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        extra["context_settings"] = {"token_normalize_func": hyphenated}
        super().__init__(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CalibrationError as error:
            raise error.named(FLAGS) from None


FLAGS = {"server.url": "-u", "server.model": "the name of the model", "tokenizer": "--tokenizer_dir"}
"""Keys of a plan, and the flags with the same meaning."""


def hyphenated(token: str) -> str:
    """The spelling in which flags are compared."""
    return token.replace("_", "-")


def spread(args: list[str]) -> list[str]:
    """The words with ``--time_bet_reqs 0.1 0.2`` as one flag per number, which click understands.

    >>> spread(["--time_bet_reqs", "0.1", "0.2", "-v"])
    ['--time_bet_reqs', '0.1', '--time_bet_reqs', '0.2', '-v']
    """
    found: list[str] = []
    flag = ""
    for number, arg in enumerate(args):
        if flag and number and _is_number(arg):
            found += [flag, arg] if found[-1] != flag else [arg]
            continue
        flag = arg if hyphenated(arg) == SEVERAL_VALUES else ""
        found.append(arg)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def stacked(*options: Wrap) -> Wrap:
    """One decorator made of several, the first of which is on top in --help."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return wrap


FILE = click.Path(path_type=Path, dir_okay=False)
PLACE = click.Path(path_type=Path)
LENGTH = click.IntRange(1, MOST_TOKENS)

where = stacked(
    click.option(
        "-u", "--url", metavar="HOST:PORT", help="Server; default: localhost:8000 for HTTP, localhost:8001 for gRPC."
    ),
    click.option(
        "-t",
        "--stream-timeout",
        type=Finite(0.001),
        metavar="SECONDS",
        help="Longest wait for one answer, in seconds.  [default: 120]",
    ),
    click.option(
        "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes of the client."
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random lengths and gaps."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
)


def how_many(default: str) -> Wrap:
    """The option for the number of requests; `default` is the default in words, for --help."""
    return click.option(
        "--num-requests", type=click.IntRange(1, MOST_REQUESTS), help=f"Requests of each run; default: {default}."
    )


how_to_send = stacked(
    click.option("--max-input-len", type=LENGTH, help="Leave out prompts of more tokens than this."),
    click.option("--request-rate", type=Finite(), help="Requests/s; -1: all at once.  [default: -1]"),
    click.option(
        "--time-delay-dist",
        type=click.Choice(["exponential_dist", "constant"]),
        metavar="[exponential_dist|constant]",  # click would print it in the spelling with hyphens
        help="Law of the gaps between requests at --request-rate.  [default: exponential_dist]",
    ),
    click.option(
        "--time-bet-reqs",
        type=Finite(),
        multiple=True,
        metavar="SECONDS...",
        help="Gaps between requests in seconds, used in turn.",
    ),
)

dataset = stacked(
    click.option("--dataset", type=PLACE, help="Prompts: a JSON list of {input, instruction, output}."),
    click.option(
        "--tokenizer-dir", type=PLACE, help="Folder of the model's tokenizer.json; default: as the server names it."
    ),
    click.option(
        "--op-tokens-per-word",
        type=Finite(above=0),
        help="Output tokens to request for each word of a data set's output.  [default: 1.3]",
    ),
)

random_lengths = stacked(
    click.option("--input-mean", type=LENGTH, help="token_norm_dist: mean tokens of a prompt."),
    click.option("--input-stdev", type=Finite(0), help="token_norm_dist: standard deviation of prompt tokens."),
    click.option("--output-mean", type=LENGTH, help="token_norm_dist: mean tokens of an answer."),
    click.option("--output-stdev", type=Finite(0), help="token_norm_dist: standard deviation of answer tokens."),
    click.option("--vocab-size", type=click.IntRange(1, 2**31), help="token_norm_dist: draw token ids below this."),
)

results = stacked(
    click.option("--op-stats-csv", type=FILE, help="CSV file to append the figures to."),
    click.option(
        "--dump-perfetto-trace", is_flag=True, help="Write a trace, prfetto_dump.json, into the current folder."
    ),
)

connections = click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1),
    help="Over HTTP: most requests in flight if all are sent at once.  [default: 128]",
)

settled = stacked(
    click.option("-v", "--verbose", is_flag=True, hidden=True),
    click.option("--exclude-input-in-output", is_flag=True, hidden=True),
    click.option("--decoupled", is_flag=True, hidden=True),
    click.option("--tokenizer-type", type=click.Choice(["auto", "t5", "llama"]), hidden=True),
    click.option("--check-perf-json", hidden=True),
    click.option("--check-perf-key", hidden=True),
    click.option("--check-perf-atol", hidden=True),
    click.option("--check-perf-rtol", hidden=True),
    click.option("--test-llmapi", is_flag=True, hidden=True),
    click.option("--histogram-key", hidden=True),
)
