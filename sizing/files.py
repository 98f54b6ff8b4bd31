"""Files: locations of files shipped with the program and of those it writes, and the YAML and JSON it accepts.

In a checkout both are beside the packages. A wheel carries `data/`, `docs/accuracy.md` and the changelog inside
`sizing/shipped/`, where nothing may be written: an installed program writes to the user's own folder.

YAML is mappings, lists and plain scalars, bounded in size; nothing is constructed. Scalars are those of the core schema
of YAML 1.2: ``true``, ``12``, ``0x1f``, ``1e3``, ``.inf``, ``null``; ``yes``, ``12:30`` and ``2001-01-01`` are text.
Keys are text as written. Anchors, aliases, tags and merge keys are refused: with them a file of a few hundred bytes can
mean gigabytes.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sizing.errors import ScenarioError, YamlError, one_line, quoted

PACKAGE = Path(__file__).resolve().parent
INSIDE_WHEEL = PACKAGE / "shipped"
INSTALLED = INSIDE_WHEEL.is_dir()
"""True in an installed wheel, False in a checkout (also one that is installed as editable)."""
SHIPPED = INSIDE_WHEEL if INSTALLED else PACKAGE.parent
IMPORTED_FROM = PACKAGE.parent
"""The folder that our child processes need on their path to import the packages."""


def resource(name: str) -> Path:
    """A file or folder shipped with the program, by its name in the repository: ``data/catalog``, ``CHANGELOG.md``.

    >>> resource("data/catalog/gpus.yaml").is_file()
    True
    """
    return SHIPPED / name


def written(name: str) -> Path:
    """The default location of a file that the program writes: ``data/calibration.db`` in a checkout.

    Installed: ``calibration.db`` in ``$XDG_DATA_HOME/sizing``, by default ``~/.local/share/sizing``.
    """
    if not INSTALLED:
        return SHIPPED / name
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "sizing" / name.removeprefix("data/")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The path to write to: what is written there becomes `path` at the end, or nothing after an error, because half a
    trace looks like a trace. A pipe or a device is itself written to: nothing may take its place."""
    part = path.with_name(f".{path.name[:40]}.{os.getpid()}.part")
    if path.exists() and not path.is_file():
        yield path
        return
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)


def write(path: Path, texts: Iterable[str]) -> None:
    """Write texts to a file, `whole`, gzipped if its name ends in ``.gz``. Raises ScenarioError where it cannot be
    written."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with whole(path) as part, opened(part, "wt", encoding="utf-8", newline="\n") as file:
            file.writelines(texts)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


@cache
def version() -> str:
    """The program's version: that of the installed wheel, or in a checkout that of pyproject.toml."""
    if INSTALLED:
        from importlib import metadata  # 20 ms, which only reports pay for

        return metadata.version("sizing")
    import tomllib

    return str(tomllib.loads(resource("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


MOST_BYTES = 1_000_000
MOST_VALUES = 100_000
MOST_DEPTH = 20
MOST_DIGITS = 18
"""Most digits of a whole number: those that 64 bits hold."""
_TABLE = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), "~nN\0"),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), "tTfF"),
    ("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), "-+0123456789"),
    (
        "float",
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        "-+.0123456789",
    ),
    ("merge", re.compile(r"<<\Z"), "<"),
)
"""Kinds of plain scalars, what they look like and how they may begin; anything else is text."""
_BASES = {"0o": 8, "0x": 16}
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path | str, what: str) -> Any:
    """The contents of the YAML file at `path`; `what` says what it should have been, for the message.

    Raises YamlError, one line with file, line and column.
    """
    return parse_yaml(yaml_text(path, what), str(path))


def yaml_text(path: Path | str, what: str) -> str:
    """The text of a YAML file. Raises YamlError: it is missing, larger than `MOST_BYTES`, or not UTF-8."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        return raw.decode("utf-8-sig") if len(raw) <= MOST_BYTES else _too_large(str(path))
    except FileNotFoundError:
        raise YamlError(f"{path}: no such {what}") from None
    except UnicodeDecodeError as error:
        raise YamlError(f"{path}: cannot be read as a {what}: not UTF-8 text at byte {error.start}") from None
    except (OSError, ValueError) as error:
        raise YamlError(f"{path}: cannot be read as a {what} ({getattr(error, 'strerror', None) or error})") from None


def parse_yaml(text: str, name: str) -> Any:
    """The contents of YAML `text`: dict, list, str, int, float, bool or None. `name` is what errors call it.

    Raises YamlError, one line with the line and column.

    >>> parse_yaml("rate: [5, 1e3]\\nseed: 2001-99-99", "x")
    {'rate': [5, 1000.0], 'seed': '2001-99-99'}
    """
    try:
        if len(text.encode()) > MOST_BYTES:
            _too_large(name)
        return _built(yaml.parse(text, Loader=_Loader), name)
    except UnicodeEncodeError as error:
        raise YamlError(f"{name}: not text at character {error.start}: half of a surrogate pair") from None
    except yaml.MarkedYAMLError as error:
        where = _where(error.problem_mark or error.context_mark)
        raise YamlError(f"{name}{where}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlError(f"{name}: not YAML: {getattr(error, 'reason', None) or one_line(str(error), 80)}") from None


def json_object(content: str | bytes, most_bytes: int, what: str) -> dict[str, Any]:
    """The object in a JSON document of at most `most_bytes`; `what` says what it should have been.

    Raises ValueError, whose text is the reason for one line of an error.
    """
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes // 2**20} MiB, so no {what}")
    try:
        found = json.loads(content, object_pairs_hook=each_key_once)
    except KeyTwiceError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {quoted(found)}")
    return found


class KeyTwiceError(ValueError):
    """A JSON object has a key twice: readers differ in which of the values they take."""


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, as an `object_pairs_hook` of `json.loads`. Raises KeyTwiceError naming the key."""
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise KeyTwiceError(f"key {quoted(key)} is there twice")
        found[key] = value
    return found


def yaml_of(content: Any) -> str:
    """`content` as YAML that `parse_yaml` reads back unchanged, with keys in their order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be read as something else, by the table of this module; nothing is an alias."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own way

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, _pattern, _starts in _TABLE:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, ["" if s == "\0" else s for s in _starts])


def _too_large(name: str) -> NoReturn:
    raise YamlError(f"{name}: larger than {MOST_BYTES // 1_000_000} MB, which no file of this program is")


@dataclass(slots=True)
class _Open:
    """A list or mapping that is open; `key` is that of the next value."""

    value: list[Any] | dict[str, Any]
    key: str | None = None


def _built(events: Iterable[yaml.Event], name: str) -> Any:
    """The value that parser events describe, without recursion: depth costs nothing before it is refused."""
    documents: list[Any] = []
    stack = [_Open(documents)]
    values = 0
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            values += 1
            if values > MOST_VALUES:
                _refuse(event, name, f"more than {MOST_VALUES:,} values")
            _check(event, name)
            if len(documents) and len(stack) == 1:
                _refuse(event, name, "a second document: one is expected")
        if isinstance(event, yaml.ScalarEvent):
            _place(stack[-1], event, _scalar(event, name), name)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(stack) > MOST_DEPTH:
                _refuse(event, name, f"nested too deeply, more than {MOST_DEPTH} lists or mappings in each other")
            inner: list[Any] | dict[str, Any] = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            _place(stack[-1], event, inner, name)
            stack.append(_Open(inner))
        elif isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
    return documents[0] if documents else None


def _check(event: yaml.NodeEvent, name: str) -> None:
    if isinstance(event, yaml.AliasEvent):
        _refuse(event, name, f"alias {quoted(f'*{event.anchor}')} is not taken: write the value out")
    if event.anchor is not None:
        _refuse(
            event, name, f"anchor {quoted(f'&{event.anchor}')} is not taken: write the value out where it is needed"
        )
    if (tag := getattr(event, "tag", None)) is not None:
        tag = tag.replace("tag:yaml.org,2002:", "!!")
        _refuse(event, name, f"tag {quoted(tag)} is not taken: write the value alone")


def _place(container: _Open, event: yaml.NodeEvent, item: Any, name: str) -> None:
    """Put a value into its list, or into its mapping under the key that came before it."""
    if isinstance(container.value, list):
        container.value.append(item)
    elif container.key is not None:
        container.value[container.key] = item
        container.key = None
    elif not isinstance(event, yaml.ScalarEvent):
        _refuse(event, name, "a list or mapping cannot be a key")
    elif event.value in container.value:
        _refuse(event, name, f"key {quoted(event.value)} is there twice")
    else:
        container.key = event.value


def _scalar(event: yaml.ScalarEvent, name: str) -> str | int | float | bool | None:
    text = event.value
    if unfit := _UNFIT.search(text):
        _refuse(event, name, f"a control character or half of a surrogate pair (U+{ord(unfit[0]):04X}) in the text")
    if not event.implicit[0]:
        return str(text)
    match next((kind for kind, pattern, _ in _TABLE if pattern.match(text)), "text"):
        case "null":
            return None
        case "bool":
            return bool(text.lower() == "true")
        case "int" if (digits := len(text.lstrip("+-"))) > MOST_DIGITS:
            _refuse(event, name, f"a whole number of {digits} digits: {MOST_DIGITS} at most")
        case "int":
            return int(text, _BASES.get(text[:2], 10))
        case "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case "merge":
            _refuse(event, name, "merge key '<<' is not taken: write the keys out")
    return str(text)


def _refuse(event: yaml.Event, name: str, why: str) -> NoReturn:
    raise YamlError(f"{name}{_where(event.start_mark)}: {why}")


def _where(mark: Any) -> str:
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
