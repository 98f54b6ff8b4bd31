"""What a program may ask: the commands of the planner as JSON questions, each with a schema, and how one is answered.

The keys of a question are the command's options (`isl_cv` for ``--isl-cv``), and its answer is exactly what the command
prints with ``--json``. So that a question cannot read files on the server, it has their contents instead: measured
points as CSV text or as rows, a model's config.json as an object.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import click
from click.types import FloatParamType, FloatRange, IntParamType, IntRange
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from sizing.budget import within
from sizing.candidates import law_of
from sizing.catalog import forgotten_after
from sizing.cli import cli
from sizing.cli.plan import show
from sizing.errors import ScenarioError, SizingError, TimeLimitReached, one_line
from sizing.estimate.checkpoints import is_config
from sizing.plans import NoFeasiblePlan
from sizing.points import COLUMNS
from sizing.question import FIELDS, Range

COMMANDS = ("plan", "capacity", "predict", "whatif", "simulate", "share", "sessions", "fit")
"""The commands that are offered, in the order of the documentation."""
LISTS = ("gpu", "precision", "tp", "layout", "engine", "daily")
"""Options whose text is a comma-separated list: a question may have them as a list."""
TEXT_OR_NUMBER = [{"type": "string"}, {"type": "number"}]
NOT_OFFERED = ("json_", "time_limit", "scenario", "help")
"""Options for the terminal, options that the server sets, and files whose contents have no JSON form."""
OF_TRACES = ("trace", "trace_window", "trace_scale", "class", "prefix_cache")
"""Not offered either by a command that reads a trace: that file, and options that say how."""
INLINE = ("points", "config")
"""Options that name a file: a question has the contents of the file instead."""
IMPLIED = ("model", "isl", "osl")
"""Required keys that another one may imply (`config`, a law of lengths): the command reports one that is missing."""
FIRST = {"model": "Qwen/Qwen3-32B", "gpu": "h200_sxm", "isl": 2000, "osl": 256, "rate": 20, "ttft": "p95:1s"}
"""A typical first question to a new server."""
READ_FROM_FILE = "a question cannot name a file on the server"


class Refused(NamedTuple):
    """Why there is no answer: whether the form of the question or its content is wrong, and one line that says what to
    do."""

    part: Literal["form", "question"]
    line: str


def properties(name: str) -> dict[str, dict[str, Any]]:
    """JSON schemas of the keys of one question, from the options of its command."""
    return {key: _schema(key, option) for key, option in _offered(name).items()} | _inline(name)


def _offered(name: str) -> dict[str, click.Option]:
    """The options that a question may have, by key."""
    options = {key_of(each): each for each in command(name).params if isinstance(each, click.Option)}
    left_out = (*NOT_OFFERED, *INLINE, *(OF_TRACES if "trace" in options else ()))
    return {key: option for key, option in options.items() if key not in left_out}


def key_of(option: click.Option) -> str:
    """The key of an option in a question: its name as it is typed, with underscores; `json_` for ``--json``."""
    if option.name == "json_":
        return "json_"
    return max(option.opts, key=len).removeprefix("--").replace("-", "_")


@cache
def command(name: str) -> click.Command:
    """A command of the planner."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def _inline(name: str) -> dict[str, dict[str, Any]]:
    """Schemas of the keys that take the contents of a file."""
    asked = {key_of(each) for each in command(name).params if isinstance(each, click.Option)}
    cell = {"type": ["string", "number", "boolean", "null"]}
    row = {"type": "object", "propertyNames": {"enum": list(COLUMNS)}, "additionalProperties": cell}
    rows = {"type": "array", "items": row, "minItems": 1}
    forms: dict[str, dict[str, Any]] = {
        "points": {
            "description": "Measured points: a points table as CSV text, or its rows as objects.",
            "anyOf": [{"type": "string", "minLength": 1}, rows],
        },
        "config": {"description": "The public config.json of a model that the catalogue lacks.", "type": "object"},
    }
    return {key: form for key, form in forms.items() if key in asked}


def _schema(key: str, option: click.Option) -> dict[str, Any]:
    kind, about = option.type, {"description": option.help} if option.help else {}
    if option.is_flag:
        return about | {"type": "boolean", "default": bool(option.default)}
    if isinstance(kind, click.Choice):
        form: dict[str, Any] = {"type": "string", "enum": list(kind.choices)}
    elif isinstance(kind, IntParamType | FloatParamType):
        form = {"type": "integer" if isinstance(kind, IntParamType) else "number", **_bounds(kind, FIELDS.get(key))}
    elif key in LISTS:
        entry = {"type": ["string", "number"]}
        form = {"anyOf": [*TEXT_OR_NUMBER, {"type": "array", "items": entry, "minItems": 1}]}
    elif key == "price":  # one for all GPUs, or of each
        form = {"anyOf": TEXT_OR_NUMBER}
    else:
        form = {"type": "string"}
    if option.multiple:
        return about | {"type": "array", "items": form}
    default = option.default
    return about | form | ({"default": default} if isinstance(default, str | float | int) else {})


def _bounds(kind: IntParamType | FloatParamType, field: Any) -> dict[str, float]:
    """The smallest and the largest value, from the field of the question or else from the option."""
    if field is not None and isinstance(field.range, Range):
        return {"minimum": field.range.low, "maximum": field.range.high}
    if not isinstance(kind, IntRange | FloatRange):
        return {}
    low, high = ("exclusiveMinimum" if kind.min_open else "minimum"), "maximum"
    return {name: bound for name, bound in ((low, kind.min), (high, kind.max)) if bound is not None}


@cache
def schema(name: str) -> Mapping[str, Any]:
    """The JSON schema (2020-12) of a question's body; other keys are not allowed."""
    options = [each for each in command(name).params if isinstance(each, click.Option)]
    needed = sorted(key_of(each) for each in options if each.required and key_of(each) not in IMPLIED)
    return MappingProxyType(
        {"type": "object", "properties": properties(name), "required": needed, "additionalProperties": False}
    )


def misfit(form: Mapping[str, Any], value: object) -> str:
    """Where and how a value violates a JSON schema, in one line; empty if it does not.

    >>> misfit({"properties": {"rate": {"minimum": 0}}}, {"rate": -1})
    'rate: -1 is less than the minimum of 0'
    """
    wrong = best_match(Draft202012Validator(dict(form)).iter_errors(value))
    if wrong is None:
        return ""
    where = ".".join(str(part) for part in wrong.absolute_path)
    return one_line(f"{where}: {wrong.message}" if where else wrong.message)


def refusal(name: str, body: object) -> Refused | None:
    """What is wrong with the form of a question, before anything is computed; None if nothing is."""
    if wrong := misfit(schema(name), body):
        return Refused("form", wrong)
    assert isinstance(body, Mapping)
    for key, value in _texts(body):
        if "histogram:" in value.casefold() and ".csv" in value.casefold():
            return Refused("form", f"{key}: {READ_FROM_FILE}: write the law as histogram:LOW-HIGH@COUNT,...")
        if key == "model" and (is_path(value) or is_config(value)):
            return Refused("form", f"model: {READ_FROM_FILE}: give its config.json as `config`")
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            return Refused("form", f"{key}: contains a lone surrogate, which is half a character")
    return None


def is_path(name: str) -> bool:
    """True for a name that looks like a path and not like a model (`owner/name`), whether or not the file exists.

    >>> is_path("Qwen/Qwen3-32B"), is_path("/etc"), is_path("../data/model"), is_path("model.json")
    (False, True, True, True)
    """
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name or name.casefold().endswith(".json")


def _texts(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text of a question with its key, except those in `points` and `config`."""
    for key, value in body.items():
        if key in INLINE:
            continue
        values = value if isinstance(value, list) else [value]
        yield from ((key, each) for each in values if isinstance(each, str))


@dataclass(frozen=True, slots=True)
class JsonQuestion:
    """A command and the body of a question that `refusal` accepted: what a worker process receives, and the key under
    which its answer is cached."""

    command: str
    body: str

    @classmethod
    def of(cls, name: str, body: Mapping[str, Any]) -> JsonQuestion:
        """The question with its keys sorted, so that their order does not matter."""
        return cls(name, json.dumps(body, sort_keys=True))

    @property
    def kept_as(self) -> JsonQuestion:
        """The whole question."""
        return self

    def answer(self, limit_s: float) -> bytes | Refused:
        """What the command prints as JSON, computed here; raises TimeLimitReached beyond `limit_s` seconds of CPU."""
        try:
            with _written(json.loads(self.body)) as given, within(limit_s), _models_apart("config" in given):
                return _asked(self.command, given, limit_s)
        except NoFeasiblePlan as error:
            return _printed(partial(show, error, json_=True))
        except TimeLimitReached:
            raise
        except SizingError as error:
            return Refused("question", one_line(str(error)))
        except click.ClickException as error:
            return Refused("question", one_line(error.format_message()))
        except (OverflowError, UnicodeError):
            return Refused("question", "it contains a number that is too large, or a text that is not Unicode")


def load() -> None:
    """Answer one question, which loads everything that questions need."""
    JsonQuestion("plan", json.dumps(FIRST)).answer(0)


def _asked(name: str, given: Mapping[str, Any], limit_s: float) -> bytes:
    arguments = [*_arguments(name, given), "--json"]
    if "time_limit" in {parameter.name for parameter in command(name).params}:
        arguments.append(f"--time-limit={limit_s}")  # its own would replace the caller's
    return _printed(partial(cli.main, [name, *arguments], prog_name="sizing", standalone_mode=False))


def _printed(run: Callable[[], object]) -> bytes:
    """The JSON that a command prints; its output for a terminal is dropped."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        run()
    return out.getvalue().encode()


def _arguments(name: str, given: Mapping[str, Any]) -> Iterator[str]:
    """The options of a command line, each as one word, so that no value can be mistaken for an option."""
    options = {key_of(each): each for each in command(name).params if isinstance(each, click.Option)}
    for key, value in given.items():
        option = max(options[key].opts, key=len)
        if options[key].is_flag:
            if value:
                yield option
            elif options[key].secondary_opts:
                yield options[key].secondary_opts[0]
        elif options[key].multiple:
            yield from (f"{option}={_word(each)}" for each in value)
        else:
            yield f"{option}={','.join(map(_word, value)) if isinstance(value, list) else _word(value)}"


def _word(value: object) -> str:
    """A value as one would type it; whole numbers without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


@contextmanager
def _models_apart(own: bool) -> Iterator[None]:
    """A question with a model of its `own`, under whatever name, and all others do not see each other's: neither the
    model nor fits, which are kept by the names of models."""
    if not own:
        yield
        return
    law_of.cache_clear()
    try:
        with forgotten_after():
            yield
    finally:
        law_of.cache_clear()


@contextmanager
def _written(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The question with its inline contents written to files, which are deleted once it is answered."""
    given = {key: value for key, value in body.items() if key not in INLINE}
    if len(given) == len(body):
        yield given
        return
    with TemporaryDirectory(prefix="sizing-") as folder:
        if "points" in body:
            points = Path(folder) / "points.csv"
            held = body["points"]
            points.write_text(held if isinstance(held, str) else table(held), encoding="utf-8")
            given["points"] = str(points)
        if "config" in body:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(body["config"]), encoding="utf-8")
            given["config"] = str(config)
        try:
            yield given
        except (NoFeasiblePlan, TimeLimitReached):  # these are no refusals: an answer, and a reason to go on
            raise
        except SizingError as error:  # the reader of the message knows no folder
            raise ScenarioError(str(error).replace(f"{folder}/", "")) from None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Points as a CSV table with the columns that occur in any of them."""
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return out.getvalue()
