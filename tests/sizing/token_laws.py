"""Laws of lengths for tests: by their text, and any at all."""

from __future__ import annotations

from hypothesis import strategies as st

from sizing.token_law import Cell, TokenLaw

LAWS = {"isl_law": "uniform:100-1900", "osl_law": "points:100@0.8,900@0.2"}


def law_of(text: str) -> TokenLaw:
    """The law that the text says, which is not the lognormal."""
    law = TokenLaw.parse(text)
    assert law is not None
    return law


def _law(parts: list[tuple[int, int, float]]) -> TokenLaw:
    """Cells one after the other: so many tokens after the last one's end, so wide, with such a weight."""
    cells: list[Cell] = []
    end = 0
    for after, width, weight in parts:
        cells.append((end + after, end + after + width - 1, weight))
        end += after + width - 1
    return TokenLaw(tuple(cells))


_width = st.just(1) | st.integers(1, 3000)
laws = st.lists(st.tuples(st.integers(1, 2000), _width, st.floats(0.01, 100)), min_size=1, max_size=12).map(_law)
"""Laws of lengths from 1 to 60,000 tokens."""
