"""What is said of bad input: one short line, whatever it quotes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from calibration.errors import CalibrationError, PlanError, ServerError
from sizing.errors import LONGEST, LONGEST_QUOTE, PointsError, ScenarioError, SizingError, first_fault, one_line, quoted
from sizing.plans import NoFeasiblePlan


@given(st.text(), st.integers(20, 400))
def test_any_text_becomes_one_printable_line(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest and line.isprintable()
    if text.isprintable() and len(text) <= longest and text == " ".join(text.split()):
        assert line == text


def test_both_ends_of_a_long_text_are_kept() -> None:
    line = one_line("begin " + 10**7 * "x" + " end")
    assert line.startswith("begin xxx") and line.endswith("xxx end") and "…" in line and len(line) == LONGEST


@pytest.mark.parametrize("kind", [SizingError, ScenarioError, PointsError, CalibrationError, PlanError, ServerError])
def test_an_error_is_a_short_line_whatever_a_server_said(kind: type[Exception]) -> None:
    error = kind("127.0.0.1:8001: " + "\x1b[2J\n" + 100_000 * "x")
    assert len(str(error)) == LONGEST and str(error).isprintable() and str(error).startswith("127.0.0.1:8001: [2J x")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(kind("as it is: 5 ≤ 7")) == "as it is: 5 ≤ 7"


def test_an_error_that_carries_more_is_cut_too() -> None:
    assert len(str(NoFeasiblePlan(1000 * "x ", ()))) == LONGEST


NESTED: Any = "x"
for _ in range(40):
    NESTED = [NESTED, NESTED]


@pytest.mark.parametrize("value", ["x" * 10**6, 10**4000, 1e308, None, True, NESTED, {"a": NESTED}, (1, 2), object()])
def test_a_value_is_quoted_short_and_a_structure_not_at_all(value: Any) -> None:
    """`NESTED` would be 2^40 texts long."""
    assert len(quoted(value)) <= LONGEST_QUOTE + 2


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    size: int = 0


@pytest.mark.parametrize(
    ("given_values", "says"),
    [
        ({"name": "a", "size": "big"}, "size: Input should be a valid integer (got 'big')"),
        ({"name": NESTED}, "name: Input should be a valid string (got a list)"),
        ({"nmae": "a"}, "nmae: unknown key"),
        ({}, "name: is missing"),
        ([1], "the whole: Input should be a valid dictionary or instance of Part (got a list)"),
    ],
)
def test_the_first_fault_of_a_model(given_values: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate(given_values)
    assert str(first_fault(caught.value)) == says


def test_a_key_of_any_length_is_named_short() -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate({"name": "a", 10**5 * "k": 1})
    assert len(str(first_fault(caught.value))) < 110
