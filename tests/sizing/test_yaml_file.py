"""The one reader of YAML: what scalars mean, what is refused with its place, and that no small file is large inside."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.errors import YamlError
from sizing.files import MOST_BYTES, MOST_DEPTH, MOST_VALUES, parse_yaml, read_yaml, yaml_of

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Three hundred bytes that mean 9^9 texts."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("12", 12),
        ("-0", 0),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1.", 1.0),
        ("-.5e1", -5.0),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
        ("yes", "yes"),
        ("off", "off"),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2001-01-01", "2001-01-01"),
        ("2001-99-99", "2001-99-99"),
        ("0x", "0x"),
        ("p95:1s", "p95:1s"),
        ("'12'", "12"),
        ('"~"', "~"),
        ("|\n 12", "12"),
        ("{yes: 1, 12: 2, ~: [3, {a: }]}", {"yes": 1, "12": 2, "~": [3, {"a": None}]}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    found = parse_yaml(text, "x")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x 1", "x.yaml, line 1, column 4: anchor '&x' is not taken"),
        ("a: 1\nb: *x", "line 2, column 4: "),
        ("a: 1\n<<: {b: 2}", "line 2, column 1: merge key"),
        ("a: !!int abc", "line 1, column 4: tag '!!int' is not taken"),
        ("a: !!float", "tag '!!float'"),
        ("a: !!bool x", "tag '!!bool'"),
        ("a: !!timestamp x", "tag '!!timestamp'"),
        ("a: !!python/object/apply:os.system [ls]", "tag '!!python/object/apply:os.system'"),
        ("a: !mine 1", "tag '!mine'"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4, column 3: key 'c' is there twice"),
        ("? [a]\n: 1", "a list or mapping cannot be a key"),
        ("a: 1\n---\nb: 1", "line 3, column 1: a second document"),
        ("a: " + 5000 * "9", "a whole number of 5000 digits"),
        ("a: -" + 19 * "9", "a whole number of 19 digits"),
        ("a: " + 3000 * "[", f"column {3 + MOST_DEPTH}: nested too deeply"),
        (500_000 * "[", "nested too deeply"),
        ("\n".join(f"{'  ' * depth}a:" for depth in range(100)), "nested too deeply"),
        ('a: "\\ud800"', "line 1, column "),
        ("a: \ud800", "half of a surrogate pair"),
        ('a: "\\0"', "line 1, column 4: a control character"),
        ('a: "\\e[31m"', "U+001B"),
        ("a: \x00", "control characters are not allowed"),
        ("a: {", "not YAML"),
        ("\t- a", "not YAML"),
        (f"[{MOST_VALUES * 'a,'}]", "more than 100,000 values"),
        ("#" * MOST_BYTES + "\na: 1", "larger than 1 MB"),
        (BOMB, "line 1, column 4: anchor '&a' is not taken"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_refused_is_one_short_line_with_its_place(text: str, says: str) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text, "x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml") and says in message
    assert "\n" not in message and len(message) <= 290


def test_a_file_is_read_only_as_far_as_it_may_be_long(tmp_path: Path) -> None:
    """/dev/zero has no end."""
    for path, says in (
        (Path("/dev/zero"), "larger than 1 MB"),
        (tmp_path / "absent.yaml", "absent.yaml: no such plan file"),
        (tmp_path, "cannot be read as a plan file"),
        (tmp_path / ("x" * 5000), "cannot be read as a plan file"),
        (Path("a\0b"), "cannot be read as a plan file"),
    ):
        with pytest.raises(YamlError, match=says):
            read_yaml(path, "plan file")
    (tmp_path / "latin.yaml").write_bytes("größe: 1".encode("latin-1"))
    with pytest.raises(YamlError, match="not UTF-8 text at byte 2"):
        read_yaml(tmp_path / "latin.yaml", "plan file")


scalars = (
    st.none()
    | st.booleans()
    | st.integers(1 - 10**18, 10**18 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
    | st.sampled_from(
        ["1e3", "0o17", "yes", "<<", "~", "2001-01-01", "a: b", "- x", "*a", "!t", "12:30", ".5", "+1", "=", ""]
    )
)
keys = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8).filter(lambda key: key != "<<")
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@given(values)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert parse_yaml(yaml_of(value), "x") == value


def test_a_value_that_stands_twice_is_written_twice() -> None:
    twice = [1, 2]
    assert parse_yaml(yaml_of([twice, twice]), "x") == [[1, 2], [1, 2]]


@given(st.text(st.sampled_from("ab:-[]{},'\"\n \t#&*!|>%@?<~\\01eux.\ud800\0é\u2028"), max_size=60))
def test_any_text_is_a_value_or_one_line(text: str) -> None:
    try:
        parse_yaml(text, "x")
    except YamlError as error:
        assert "\n" not in str(error)
