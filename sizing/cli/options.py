"""What several commands share: options on workload, SLA, margins and purchase, what they mean, and how an answer or
its absence is reported."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.core import ParameterSource

from sizing.budget import told, within
from sizing.candidates import Choice, Found
from sizing.catalog import Layout
from sizing.cli.shapes import finite_only
from sizing.engine import MOST_INTERVAL, MOST_LOOKAHEAD, Batching
from sizing.errors import ScenarioError
from sizing.fitting import STARTS, Protocol
from sizing.plans import Candidate, NoFeasiblePlan
from sizing.points import Point, read_points
from sizing.question import ADMISSION, FIELDS, with_laws
from sizing.text import SCHEDULING
from sizing.workload import LIMITED, MOST_TOKENS, Sessions, TurnLaw, parse_seconds

if TYPE_CHECKING:
    from rich.status import Status

MOST_GPUS = 10_000_000
"""GPUs of one type owned or available: more is almost certainly a typo."""
F = TypeVar("F", bound=Callable[..., Any])


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several click options as one decorator, in the order given."""

    def apply(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def field_option(name: str, required: bool | None = None) -> Callable[[F], F]:
    """The option of a field of the question; `required`: whether click itself asks for it."""
    field = FIELDS[name]
    kind: Any = click.Choice(field.choices) if field.choices else str
    if field.range is not None and name != "price":
        kind = int if field.whole else float
    must = field.default is None and not field.optional if required is None else required
    default: Any = {} if field.default is None else {"default": field.default, "show_default": True}
    if name in LAWS:
        default = {"callback": _law_given, "is_eager": True}
    if name in LIMITED:
        default = {"cls": LastCounts}
    return click.option(
        f"--{name.replace('_', '-')}",
        type=kind,
        required=must,
        help=field.help or None,
        **default,
    )


class LastCounts(click.Option):
    """An option with one value. If it is given several times, the last one counts, as usual, and a line says so."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Collect all values that are given, not only the last."""
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=1)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """The last value; a line on stderr, below the answer, names those that it replaces."""
        if isinstance(value, list):
            *replaced, value = value
            if replaced:
                said = f"--{self.name}: {value} counts, not {' and '.join(replaced)}: give one limit"
                ctx.with_resource(_said_below(said))
        return super().process_value(ctx, value)


@contextmanager
def _said_below(line: str) -> Iterator[None]:
    """Print `line` on stderr when the command has finished; after an error, the error stays the only line."""
    yield
    click.echo(line, err=True)


LAWS = ("isl_law", "osl_law")


def _law_given(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """The law with its file read; the mean that it implies becomes the default of ``--isl`` or ``--osl``."""
    if text is None:
        return None
    given = with_laws({str(parameter.name): text})
    text = given.pop(str(parameter.name))
    context.default_map = {**(context.default_map or {}), **given}
    return text


def field_options(*names: str, required: bool | None = None) -> Callable[[F], F]:
    """The options of several fields, in this order."""
    return options(*(field_option(name, required) for name in names))


LENGTHS = (
    *("isl", "osl", "isl_cv", "osl_cv", *LAWS, "correlation"),
    *("prefix_tokens", "prefix_hit", "arrivals", "routing"),
)


def _model_given(context: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """The id of the model: of ``--config`` under the name that ``--model`` gives it, or of the folder that it names."""
    from sizing.estimate.checkpoints import is_config, known, own  # only a model of one's own is read from a file

    path = context.meta.get(CONFIG)
    if path is not None:
        return own(path, name if name and not is_config(name) else "").id
    return known(name).id if name and is_config(name) else name


def _config_given(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.meta[CONFIG] = path
        context.default_map = {**(context.default_map or {}), "model": ""}


CONFIG = "sizing.config"
config_option = click.option(
    "--config",
    type=click.Path(),
    is_eager=True,
    expose_value=False,
    callback=_config_given,
    help="config.json of a model that is not in the catalogue, or the folder that holds it; --model then names it.",
)


shape_option = click.option(
    "--config",
    type=click.Path(),
    help="config.json of the measured model, if it is not in the catalogue: the estimate for it then helps the fit.",
)


def take_shape(given: Mapping[str, Any], model: str) -> None:
    """Let the measured `model` have the shape that --config tells, if it does."""
    if given["config"]:
        from sizing.estimate.checkpoints import own

        own(given["config"], model)


def model_options(required: bool) -> Callable[[F], F]:
    """``--model`` and ``--config``; `required`: one of them must be there."""
    model = FIELDS["model"]
    return options(click.option("--model", required=required, callback=_model_given, help=model.help), config_option)


def length_options(required: bool) -> Callable[[F], F]:
    """Lengths, arrivals, prefix and routing; `required`: click itself asks for ISL and OSL."""
    return options(field_options("isl", "osl", required=required), field_options(*LENGTHS[2:]))


def start_clock(context: click.Context, _: click.Parameter, limit_s: float) -> None:
    """Let the command compute for `limit_s` seconds of CPU from here on."""
    context.with_resource(within(limit_s))


time_limit = click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    expose_value=False,
    callback=start_clock,
    help="CPU seconds after which the command gives up; 0: no limit.",
)
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON instead of text.")


def tokens_options(name: str, mean: str, required: bool) -> Callable[[F], F]:
    """The options of one kind of tokens of a session: mean, and coefficient of variation."""
    return options(
        click.option(f"--{name}-tokens", type=float, required=required, help=mean),
        click.option(
            f"--{name}-cv",
            type=float,
            default=0.0,
            show_default=True,
            help=f"Coefficient of variation of --{name}-tokens.",
        ),
    )


def session_options(required: bool) -> Callable[[F], F]:
    """What sessions are like; `required`: click itself asks for turns and tokens."""
    return options(
        click.option("--sessions-per-s", type=float, required=required, help="Sessions that start per second."),
        click.option("--turns", type=float, required=required, help="Mean number of turns in a session."),
        click.option(
            "--turn-law",
            type=click.Choice(get_args(TurnLaw)),
            default="geometric",
            show_default=True,
            help="Distribution of the number of turns.",
        ),
        tokens_options("first", "Mean prompt tokens of the first turn, without the system prompt.", required),
        tokens_options("user", "Mean tokens that a later turn adds to the conversation so far.", required),
        tokens_options("output", "Mean tokens of an answer.", required),
        click.option(
            "--think",
            default="0s",
            show_default=True,
            help="Mean time from an answer to the next turn (exponential), for instance 30s.",
        ),
        click.option(
            "--system-tokens",
            type=int,
            default=0,
            show_default=True,
            help="Tokens of the system prompt, with which all sessions begin.",
        ),
        click.option(
            "--context-tokens",
            type=int,
            default=0,
            show_default=True,
            help="Longest context: a turn that would exceed it ends its session. 0: no limit, or the model's.",
        ),
    )


SESSION_TOKENS = ("first", "user", "output")
SESSION_SHAPE = (
    *("turns", "turn_law", "think", "system_tokens", "context_tokens"),
    *(f"{kind}_{figure}" for kind in SESSION_TOKENS for figure in ("tokens", "cv")),
)
"""Parameters of `session_options` beside the rate."""


def sessions_of(given: Mapping[str, Any], rate_per_s: float) -> Sessions:
    """The sessions that `session_options` describe."""
    shape = {name: given[name] for name in SESSION_SHAPE if name != "think"}
    return Sessions(rate_per_s, think_s=parse_seconds("--think", given["think"]), **shape)


replicas_option = click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Equal replicas among which the load is divided.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random numbers."
)


def session_routing_option(name: str) -> Callable[[F], F]:
    """Which replica gets the turns of a session."""
    from sizing.simulator.sessions import SESSION_ROUTINGS  # costs numba, which most commands here load later

    return click.option(
        name,
        type=click.Choice(SESSION_ROUTINGS),
        default="affinity",
        show_default=True,
        help="Which replica gets a turn. affinity: that of its session. random: any. least_outstanding: the one with "
        "the fewest requests. prefix_aware: the one with most of the session cached.",
    )


workload_options = options(length_options(required=True), field_option("rate"))
sla_options = field_options(*LIMITED, *ADMISSION)
margin_options = field_options("headroom", "spare")


def measurement_options(*replicas: str) -> Callable[[F], F]:
    """How the points were measured; `replicas`: names of the option that counts those behind the endpoint."""
    return options(protocol_option, click.option(*replicas, "points_replicas", **REPLICAS))


protocol_option = click.option(
    "--protocol",
    type=click.Choice(list(STARTS)),
    help="How the users of the measured closed loops began: all at once, one after the other, or within a millisecond. "
    "Default: what the points say (column protocol), otherwise what explains them best.",
)
REPLICAS: dict[str, Any] = {
    "type": click.IntRange(1, MOST_GPUS),
    "default": 1,
    "show_default": True,
    "help": "Equal replicas behind the endpoint that was measured, if the points do not say (column replicas): their "
    "users and requests/s are divided by it.",
}
which_options = options(
    click.option(
        "--gpu",
        default="",
        help="GPUs to compare, comma-separated, for instance h100_sxm,h200_sxm. Default: those in --points.",
    ),
    click.option(
        "--precision",
        default="any",
        show_default=True,
        help="Precisions to compare, comma-separated, for instance fp8,bf16; or any.",
    ),
    click.option(
        "--tp",
        default="any",
        show_default=True,
        help="Tensor parallel sizes to compare, comma-separated, for instance 1,2,4; or any.",
    ),
    click.option(
        "--layout",
        default="any",
        show_default=True,
        help="Layouts of a replica's GPUs to compare, in addition to --tp, comma-separated, for instance "
        "tp4pp2,tp8ep8,dp8ep8. any: the usual combinations of TP, PP, EP and DP, or with --tp those sizes alone.",
    ),
    click.option(
        "--engine",
        default="any",
        show_default=True,
        help="Engines to compare, comma-separated: trtllm, vllm, sglang, or one that was measured. any: the measured "
        "one, otherwise every engine with kernel timings.",
    ),
    click.option(
        "--points", type=click.Path(), help="CSV file of measured points. Default: none, the answer is an estimate."
    ),
    measurement_options("--points-replicas"),
    click.option(
        "--basis",
        type=click.Choice(["measured", "any"]),
        default="any",
        show_default=True,
        help="measured: only configurations with a law fitted to measured points. any: estimated ones too.",
    ),
)


def scheduling_options(*, always_given: bool) -> Callable[[F], F]:
    """What keeps a request that has arrived from the next iteration: ``--lookahead-steps``,
    ``--receive-interval-steps``, ``--batch-wait-steps`` and ``--batch-wait-ratio``. Where they need not be given, what
    the points tell counts, else the engine's default."""
    usual, unless = Batching(), "" if always_given else " Default: what the points tell, else the engine's default."

    def option(name: str, kind: click.IntRange | click.FloatRange, words: str) -> Callable[[F], F]:
        default = getattr(usual, name.strip("-").replace("-", "_")) if always_given else None
        return click.option(name, type=kind, default=default, show_default=always_given, help=f"{words}{unless}")

    return options(
        option(
            "--lookahead-steps",
            click.FloatRange(0, MOST_LOOKAHEAD),
            "Iterations that the engine schedules ahead: 1 with asynchronous (overlap) scheduling.",
        ),
        option(
            "--receive-interval-steps",
            click.IntRange(1, MOST_INTERVAL),
            "Decode steps from one look at new requests to the next: SGLang's --scheduler-recv-interval.",
        ),
        option(
            "--batch-wait-steps",
            click.IntRange(0, MOST_INTERVAL),
            "Decode steps that prompts wait for others at most: TensorRT-LLM's batch_wait_timeout_iters.",
        ),
        option(
            "--batch-wait-ratio",
            click.FloatRange(0, 1, min_open=True),
            "Share of the token budget that waits no longer: TensorRT-LLM's batch_wait_max_tokens_ratio.",
        ),
    )


def scheduling_of(given: dict[str, Any], told: Iterable[int | None] = ()) -> dict[str, Any]:
    """The fields of Batching that `scheduling_options` give; `told`: the steps that prompts wait without them.

    Raises ScenarioError for a share of the token budget on which no prompt waits.
    """
    waits = given["batch_wait_steps"] or (given["batch_wait_steps"] is None and any(told))
    if not waits and given["batch_wait_ratio"] not in (None, Batching().batch_wait_ratio):
        raise ScenarioError("--batch-wait-ratio goes with --batch-wait-steps")
    return {name: given[name] for name in SCHEDULING if given[name] is not None}


choice_options = options(
    which_options,
    click.option(
        "--max-tokens",
        type=click.IntRange(0, int(MOST_TOKENS)),
        default=0,
        show_default=True,
        help="Output tokens for which the engine reserves KV cache per request; 0: the actual output.",
    ),
    scheduling_options(always_given=False),
)


def choice_of(given: dict[str, Any]) -> Choice:
    """What may be bought."""
    which = words(given["gpu"]), words(given["precision"]), tensor_parallel(given["tp"])
    return Choice(*which, given["basis"], words(given["engine"]), layouts_named(given["layout"]))


def points_of(given: dict[str, Any]) -> list[Point]:
    """The measured points of the file that --points names, as one replica saw them; none without it.

    Raises ScenarioError for --points-replicas and --protocol without the file that they speak of.
    """
    if given["points"] is None:
        said = {"--points-replicas": given["points_replicas"] != REPLICAS["default"], "--protocol": given["protocol"]}
        for option in (name for name, is_given in said.items() if is_given):
            raise ScenarioError(f"{option} goes with --points")
        return []
    return read_points(given["points"], replicas=given["points_replicas"])


def protocol_of(given: dict[str, Any]) -> Protocol:
    """How the points were measured, as far as --protocol tells."""
    return Protocol.named(given["protocol"] or "")


def configured(candidates: Sequence[Candidate], given: dict[str, Any], osl: float) -> list[Candidate]:
    """The candidates with engines that are set as `choice_options` say: they reserve memory for so many output tokens
    a request, look so many iterations ahead and for new requests so often, and let prompts wait for others so long.

    ScenarioError where the tokens are fewer than `osl`, the mean request's, and as `scheduling_of`.
    """
    most = given["max_tokens"]
    if most < 0 or 0 < most < osl:
        raise ScenarioError(f"--max-tokens must be 0, or at least OSL ({osl:g} tokens), got {most}")
    waits = (candidate.replica.batching.batch_wait_steps for candidate in candidates)
    settings = ({"max_tokens": most} if most else {}) | scheduling_of(given, waits)
    if not settings:
        return list(candidates)
    return [
        replace(
            candidate,
            replica=replace(candidate.replica, batching=replace(candidate.replica.batching, **settings)),
            open_loops=(),  # of the engine as it was measured
        )
        for candidate in candidates
    ]


def words(text: str) -> tuple[str, ...]:
    """A comma-separated list; empty for "any"."""
    return () if text == "any" else tuple(word.strip() for word in text.split(",") if word.strip())


def tensor_parallel(text: str) -> tuple[int, ...]:
    """TPs of a comma-separated list; empty for "any"."""
    if not all(re.fullmatch("0*[1-9][0-9]{0,5}", word) for word in words(text)):
        raise ScenarioError(f"--tp {text!r}: give whole numbers such as 1,2,4, or any")
    return tuple(int(word) for word in words(text))


def layouts_named(text: str) -> tuple[Layout, ...]:
    """Layouts of a comma-separated list; empty for "any"."""
    return tuple(map(Layout.parse, words(text)))


def per_gpu(option: str, text: str | None) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    """A number for every GPU, and numbers by GPU: out of ``2.5``, ``h100_sxm=2.5,h200_sxm=3.8``, or both.

    >>> per_gpu("--price", "2,h200_sxm=3.8")
    (2.0, (('h200_sxm', 3.8),))
    """
    general, by_name = None, []
    for word in words(text or ""):
        name, equals, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise ScenarioError(
                f"{option} {word!r}: write a number, or GPU=number, for instance h200_sxm=3.8"
            ) from None
        if equals:
            by_name.append((name.strip(), value))
        else:
            general = value
    return general, tuple(by_name)


def gpus_of(found: Found) -> list[str]:
    """Names of the GPUs compared, those left out included."""
    candidates, rejected = found
    return sorted({candidate.gpu for candidate in candidates} | {miss.gpu for miss in rejected})


def prices_of(text: str | None, gpus: Sequence[str]) -> dict[str, Any]:
    """The prices of ``--price`` as a Question's fields; ScenarioError for a GPU that is not among those compared."""
    general, by_name = per_gpu("--price", text)
    prices = tuple((known_gpu("--price", name, gpus), price) for name, price in by_name)
    return {"price_per_gpu_hour": general, "prices": prices}


def counts_of(option: str, text: str | None, gpus: Sequence[str]) -> dict[str, int]:
    """Whole numbers of GPUs by name, out of ``h100_sxm=8``; ScenarioError for any other."""
    general, by_name = per_gpu(option, text)
    if general is not None:
        raise ScenarioError(f"{option} {general:g}: name the GPU, for instance {gpus[0] if gpus else 'h200_sxm'}=8")
    for name, count in by_name:
        if not (0 <= count <= MOST_GPUS and count.is_integer()):
            raise ScenarioError(f"{option} {name}={count:g}: give a whole number from 0 to {MOST_GPUS:,}")
    return {known_gpu(option, name, gpus): int(count) for name, count in by_name}


def known_gpu(option: str, name: str, gpus: Sequence[str]) -> str:
    """The compared GPU of this name, in any letter case. Raises ScenarioError if there is none."""
    for gpu in gpus:
        if gpu.casefold() == name.casefold():
            return gpu
    raise ScenarioError(f"{option} names {name}, which is not among the GPUs compared: {', '.join(gpus)}")


def options_as_typed(context: click.Context) -> dict[str, str]:
    """The options of a command, as they are typed, by the names of their parameters."""
    return {str(parameter.name): max(parameter.opts, key=len) for parameter in context.command.params}


def set_by_hand(context: click.Context) -> dict[str, str]:
    """The options that the command line gave, as they are typed, by the names of their parameters."""
    typed = options_as_typed(context).items()
    return {name: option for name, option in typed if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def refuse(context: click.Context, names: Iterable[str], why: str) -> None:
    """Raise UsageError if the command line gave one of these parameters: its option, followed by `why`."""
    by_hand = set_by_hand(context)
    for name in names:
        if name in by_hand:
            raise click.UsageError(f"{by_hand[name]} {why}")


def check_companions(context: click.Context, companions: Mapping[tuple[str, ...], Sequence[str]]) -> None:
    """Raise UsageError for an option that means nothing without another one. `companions`: parameters of which one must
    be given -> those that mean nothing without."""
    typed, by_hand = options_as_typed(context), set_by_hand(context)
    for needed, names in companions.items():
        if not by_hand.keys() & {*needed}:
            refuse(context, names, f"goes with {' or '.join(typed[name] for name in needed)}")


SHOWN_AFTER_S = 2.0
"""Seconds of work before a terminal shows what is computed."""


@contextmanager
def shown_late() -> Iterator[None]:
    """Say on a terminal what is computed inside, once that has taken longer than `SHOWN_AFTER_S`."""
    began_s, shown = time.monotonic(), ExitStack()
    status: list[Status] = []

    def tell(doing: str) -> None:
        if not status and time.monotonic() - began_s >= SHOWN_AFTER_S and sys.stderr.isatty():
            from rich.console import Console  # what takes less long does without

            status.append(shown.enter_context(Console(stderr=True).status(doing)))
        elif status:
            status[0].update(doing)

    with shown, told(tell):
        yield


def write_json(value: dict[str, Any]) -> None:
    """JSON on standard output; infinite and unknown numbers become null."""
    click.echo(json.dumps(finite_only(value), indent=2))


class Reported(NoFeasiblePlan):
    """No configuration meets the SLA; with sentences on ways to meet it, and with what the JSON says beside: the
    report, or the plan without the changes that made it fail."""

    def __init__(self, error: NoFeasiblePlan, beside: Mapping[str, Any], ways_out: Sequence[str] = ()) -> None:
        super().__init__(str(error), error.rejected)
        self.beside, self.ways_out = beside, ways_out
