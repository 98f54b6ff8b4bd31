"""Method: why trust the answer? Words, law, queue, simulator and plan in short; accuracy, sources, limits."""

from collections.abc import Callable, Iterable, Mapping

import pandas as pd
import streamlit as st

from ui import answers
from ui.scenario import Scenario
from ui.views import method
from ui.views.method import Chapter
from ui.visit import chosen, visit
from ui.words import plain

TABLES = {"accuracy": "Accuracy", "sources": "Sources", "changes": "Changes"}


def page(_: Scenario) -> None:
    """The whole page: one section at a time, or what a search finds in all of them."""
    texts = method.texts()
    st.title("How the answer is computed, and how far to trust it", anchor=False)
    query = st.text_input(
        "Search the method",
        key="method_query",
        placeholder="Search: headroom, band, KV cache…",
        label_visibility="collapsed",
        icon=":material/search:",
        max_chars=100,
    ).strip()
    if query:
        _found(texts.values(), query)
        return
    picked = chosen("Section", {key: text.title for key, text in texts.items()} | TABLES, "method")
    if picked in texts:
        _paragraphs(texts[picked].paragraphs)
    else:
        TABLE[picked]()


def _found(texts: Iterable[Chapter], query: str) -> None:
    accuracy, changes = method.accuracy(), method.changes()
    everywhere = [*texts, *([accuracy.about] if accuracy else []), *([changes] if changes else [])]
    found = method.search(everywhere, query)
    count = sum(len(section.paragraphs) for section in found)
    if not count:
        st.markdown(f"Nothing here mentions “{plain(query)}”. Try a single word, such as headroom, band or KV cache.")
        return
    st.caption(plain(f"{count} paragraph{'s' if count > 1 else ''} with “{query}”"))
    for section in found:
        st.subheader(plain(section.title), anchor=False)
        _paragraphs(section.paragraphs)


def _paragraphs(paragraphs: Iterable[str]) -> None:
    """Markdown of our own files, in a column that is read with ease."""
    with st.container(width=860):
        st.markdown("\n\n".join(paragraphs))


def _accuracy() -> None:
    found = method.accuracy()
    if found is None:
        st.info("docs/accuracy.md is missing. Write it: python -m sizing validate --markdown docs/accuracy.md")
        return
    if found.verdict:
        st.markdown(f"**{plain(found.verdict)}** Missed goals stay in the table.")
    if found.rows:
        table = pd.DataFrame(found.rows)
        order = [name for name in FIRST if name in table] + [str(name) for name in table if name not in FIRST]
        st.dataframe(
            table,
            hide_index=True,
            row_height=28,
            height=480,
            column_order=order,
            column_config=COLUMNS,
            alt=ACCURACY_ALT,
        )
    else:
        st.info("docs/accuracy.md holds no table. Write it: python -m sizing validate --markdown docs/accuracy.md")
    _paragraphs(found.about.paragraphs)


FIRST = ("claim", "metric", "holds", "median", "p90", "worst", "goal")
"""Columns that are to be seen without scrolling; the others follow."""
COLUMNS = {
    "claim": st.column_config.TextColumn("Claim", pinned=True, width=290),
    "metric": st.column_config.TextColumn("Metric"),
    "median": st.column_config.TextColumn("Median error"),
    "p90": st.column_config.TextColumn("p90 of errors"),
    "worst": st.column_config.TextColumn("Worst error"),
    "goal": st.column_config.TextColumn("Goal"),
    "against": st.column_config.TextColumn("Against"),
    "n": st.column_config.TextColumn("Cases"),
    "holds": st.column_config.TextColumn("Holds", help="Whether the goal is reached; empty where none was set."),
    "note": st.column_config.TextColumn("Note", width="large"),
}
ACCURACY_ALT = "Claims of accuracy: metric, median, p90 and worst error, the goal, whether it holds, against what"


def _sources() -> None:
    st.markdown("**Before anything is measured**, answers rest on these sources. They have versions, not dates.")
    _table(method.sources(), "Catalogue and kernel timings")
    have = answers.measured_points()
    for problem in have.problems:
        st.warning(plain(problem), title="Measured points could not be read")
    rows = method.measurements(have.points)
    if not rows:
        st.markdown("**Nothing has been measured yet.** The Calibrate page says how to measure your own server.")
        return
    st.markdown("**Measured**, from the store and the files shipped with the program; void points are never fitted.")
    _table(rows, "Measured deployments with their dates")


def _table(rows: Iterable[Mapping[str, str]], alt: str) -> None:
    """A small table whose cells wrap; cells are markdown to Streamlit, so names from outside are made plain."""
    table = pd.DataFrame([{name: plain(text) for name, text in row.items()} for row in rows])
    st.table(table, hide_index=True, border="horizontal", alt=alt)


def _changes() -> None:
    found = method.changes()
    if found is None:
        st.info("CHANGELOG.md is missing from this installation: what changed between versions cannot be shown.")
        return
    st.subheader(plain(found.title), anchor=False)
    _paragraphs(found.paragraphs)


TABLE: dict[str, Callable[[], None]] = {"accuracy": _accuracy, "sources": _sources, "changes": _changes}

page(visit().scenario)
