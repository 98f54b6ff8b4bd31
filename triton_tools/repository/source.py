"""A config.pbtxt as Triton's message, with the line of every field."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

OPENERS = {"{": "}", "<": ">"}


@dataclass(slots=True)
class Place:
    """Where a field, or an entry of a repeated field, is. `value` is empty for a message."""

    name: str
    line: int
    value: str = ""
    inside: list[Place] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read. `config` is what was parsed; `problem` and `problem_line` say why it could not be."""

    path: Path
    config: pb.ModelConfig
    top: Place
    problem: str = ""
    problem_line: int = 0

    def line(self, *steps: str | int) -> int:
        """The line of the field that `steps` lead to: names and, for a repeated field, the number of the entry.

        If the file lacks a step, it is the line of the field before it.
        """
        place = self.top
        names = iter(range(len(steps)))
        for at in names:
            entries = [entry for entry in place.inside if entry.name == steps[at]]
            number = 0
            if at + 1 < len(steps) and isinstance(steps[at + 1], int):
                number = int(steps[next(names)])
            if number >= len(entries):
                break
            place = entries[number]
        return place.line

    def line_of_key(self, key: str, *steps: str) -> int:
        """The line of the entry `key` of the map that `steps` lead to: "parameters", or "...", "input_map"."""
        place = self.top
        for step in steps[:-1]:
            place = next((entry for entry in place.inside if entry.name == step), place)
        return _line_of_key(place, steps[-1], key)

    def line_in_step(self, number: int, mapping: str, key: str) -> int:
        """The line of the entry `key` of `mapping` (input_map or output_map) in the ensemble's step `number`."""
        found = [entry for entry in self.top.inside if entry.name == "ensemble_scheduling"]
        steps = [step for entry in found for step in entry.inside if step.name == "step"]
        return _line_of_key(steps[number], mapping, key) if number < len(steps) else 1


def _line_of_key(place: Place, name: str, key: str) -> int:
    for entry in place.inside:
        if entry.name == name:
            for part in entry.inside:
                if part.name == "key" and part.value == key:
                    values = [other.line for other in entry.inside if other.name == "value"]
                    return values[0] if values else part.line
    return place.line


def named(enum: Any, number: int) -> str:
    """The name of an enum's value, or its number: proto3 accepts numbers without a name."""
    return str(enum.Name(number)) if number in enum.values() else str(number)


def read_source(path: Path) -> Source:
    """Read a config.pbtxt with Triton's schema; for a text that does not fit it, the Source has a `problem`.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read as text.
    """
    text = path.read_text(encoding="utf-8")
    config = pb.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        at = error.GetLine() or 1
        problem = str(error).partition(" : ")[2] or str(error)
        return Source(path, config, Place("", 1), problem, at)
    except (ValueError, RecursionError) as error:  # an enum's number of more than 32 bits, braces without end
        return Source(path, config, Place("", 1), str(error), 1)
    return Source(path, config, places(text))


def places(text: str) -> Place:
    """The lines of all fields of a valid text.

    >>> [(place.name, place.line) for place in places("name: 'a'\\ninput [\\n { dims: 1 },\\n {} ]").inside]
    [('name', 1), ('input', 3), ('input', 4)]
    """
    tokens = text_format.Tokenizer(text.splitlines())
    top = Place("", 1)
    while not tokens.AtEnd():
        _field(tokens, top)
    return top


def _line(tokens: text_format.Tokenizer) -> int:
    line: int = tokens.ParseError("").GetLine()  # the only public statement of the tokenizer on where it is
    return line


def _field(tokens: text_format.Tokenizer, around: Place) -> None:
    line, name = _line(tokens), str(tokens.token)
    tokens.NextToken()
    tokens.TryConsume(":")
    if tokens.TryConsume("["):
        while not tokens.TryConsume("]"):
            _value(tokens, around, name, _line(tokens))
            tokens.TryConsume(",")
    else:
        _value(tokens, around, name, line)
    if not tokens.TryConsume(","):
        tokens.TryConsume(";")


def _value(tokens: text_format.Tokenizer, around: Place, name: str, line: int) -> None:
    place = Place(name, line)
    around.inside.append(place)
    closer = OPENERS.get(tokens.token)
    if closer:
        tokens.NextToken()
        while not tokens.TryConsume(closer):
            _field(tokens, place)
    elif tokens.token[:1] in ("'", '"'):
        place.value = tokens.ConsumeString()  # several strings in a row are one
    else:
        place.value = tokens.token
        tokens.NextToken()
        if place.value == "-":
            place.value += tokens.token
            tokens.NextToken()
