"""Shapes are those of the catalogue."""

from __future__ import annotations

import pytest

from lab.gpu.engine.shapes import SHAPES, RealShape
from sizing import catalog

REAL = [shape for shape in SHAPES.values() if shape.name != "small"]


@pytest.mark.parametrize("shape", REAL, ids=lambda shape: shape.name)
def test_size_is_the_catalogues(shape: RealShape) -> None:
    known = catalog.models()[shape.name]
    assert shape.kv_values_per_token == known.kv_values_per_token
    own_head = 0 if shape.name.endswith(("8B", "32B", "70B")) else shape.vocab_size * shape.hidden
    assert shape.parameters - own_head == pytest.approx(known.parameters, rel=0.01)
