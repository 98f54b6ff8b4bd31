"""Configurations left out, grouped by the reason."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.plan import Rejection
from ui.words import LEFT_OUT, LEFT_OUT_ONE, sentence_case


def draw(rejected: Sequence[Rejection], expanded: bool = False) -> None:
    """A fold for each reason with its configurations and, one by one, why."""
    if not rejected:
        st.caption("No configuration was left out.")
        return
    for kind in LEFT_OUT:
        group = [rejection for rejection in rejected if rejection.kind == kind]
        if group:
            words = (LEFT_OUT_ONE if len(group) == 1 else LEFT_OUT)[kind]
            with st.expander(f"Left out: {len(group)} {words}", expanded=expanded):
                _table(group, words)


def _table(group: Sequence[Rejection], words: str) -> None:
    rows = [(each.gpu, each.tp, each.precision, sentence_case(each.why)) for each in group]
    st.dataframe(
        pd.DataFrame(rows, columns=["GPU", "TP", "Precision", "Why"]),
        hide_index=True,
        column_config={"Why": st.column_config.TextColumn(width="large")},
        alt=f"Configurations that {words}, and why",
    )
