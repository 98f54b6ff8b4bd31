"""The form keeps what was chosen while pages are turned."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ui.form import CHOICES, kept
from ui.scenario import Scenario

BEFORE = Scenario(gpus=("h200_sxm",), precisions=("fp8",), tps=(1,))
CHOSEN = [name for name in CHOICES if getattr(BEFORE, name)]


def emptied(*names: str) -> Scenario:
    empty = {name: () if name in ("gpus", "precisions", "tps") else None for name in names}
    return replace(BEFORE, rate_per_s=50.0, **empty)


def test_where_choices_vanish_together_the_form_comes_back() -> None:
    for one, other in itertools.pairwise(CHOSEN):
        assert kept(BEFORE, emptied(one, other)) == BEFORE


@pytest.mark.parametrize("name", CHOSEN)
def test_one_choice_may_be_emptied(name: str) -> None:
    assert kept(BEFORE, emptied(name)) == emptied(name)
