"""Method: why trust the answer? Words, law, queue, simulator and plan in short; accuracy, sources, limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd
import streamlit as st

from sizing.numbers import count_of
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
    st.caption(plain(f"{count_of(count, 'paragraph')} with “{query}”"))
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
        _claims(found.rows)
    else:
        st.info("docs/accuracy.md holds no table. Write it: python -m sizing validate --markdown docs/accuracy.md")
    _paragraphs(found.about.paragraphs)


def _claims(rows: Sequence[Mapping[str, str]]) -> None:
    """A row for each claim, all columns within a desk's page, those that count within a phone's; notes, which are long,
    one at a time below."""
    table = pd.DataFrame(rows).drop(columns="note", errors="ignore")
    order = [*COLUMNS, *(str(name) for name in table if name not in COLUMNS)]
    picked = st.dataframe(
        table,
        hide_index=True,
        row_height=60,  # from here on cells wrap
        height=480,
        column_order=[name for name in order if name in table],
        column_config=COLUMNS,
        key="accuracy",
        on_select="rerun",
        selection_mode="single-cell",
        alt=ACCURACY_ALT,
    )
    of = next((rows[row] for row, _ in picked.selection.cells if row < len(rows)), None)
    if of is None:
        st.caption("Pick a cell for the note on its row.")
    else:
        note = of.get("note") or "no note"
        st.markdown(f"**{plain(of.get('claim', ''))}, {plain(of.get('metric', ''))}:** {plain(note)}.")


COLUMNS = {
    "claim": st.column_config.TextColumn("Claim", pinned=True, width=160),
    "metric": st.column_config.TextColumn("Metric", width=85),
    "median": st.column_config.TextColumn("Median", width=62, help="Error in the median."),
    "holds": st.column_config.TextColumn(
        "Holds", width=52, help="Whether the goal is reached; empty where none was set."
    ),
    "p90": st.column_config.TextColumn("p90", width=72, help="90th percentile of the errors."),
    "worst": st.column_config.TextColumn("Worst", width=80, help="The largest error."),
    "goal": st.column_config.TextColumn("Goal", width=175),
    "against": st.column_config.TextColumn("Against", width=165),
    "n": st.column_config.TextColumn("Cases", width=58),
}
ACCURACY_ALT = "Claims of accuracy: metric, median, p90 and worst error, the goal, whether it holds, against what"


def _sources() -> None:
    st.markdown("**Before anything is measured**, answers rest on these sources. They have versions, not dates.")
    _list(method.sources())
    have = answers.measured_points()
    for problem in have.problems:
        st.warning(plain(problem), title="Measured points could not be read")
    rows = method.measurements(have.points)
    if not rows:
        st.markdown("**Nothing has been measured yet.** The Calibrate page says how to measure your own server.")
        return
    st.markdown("**Measured**, from the store and the files shipped with the program; void points are never fitted.")
    _list(rows)


def _list(items: Iterable[tuple[str, str]]) -> None:
    """What each is in bold, and what is said of it: a phone has no room for columns."""
    _paragraphs(["\n".join(f"- **{plain(what)}:** {plain(said)}" for what, said in items)])


def _changes() -> None:
    found = method.changes()
    if found is None:
        st.info("CHANGELOG.md is missing from this installation: what changed between versions cannot be shown.")
        return
    st.subheader(plain(found.title), anchor=False)
    _paragraphs(found.paragraphs)


TABLE: dict[str, Callable[[], None]] = {"accuracy": _accuracy, "sources": _sources, "changes": _changes}

page(visit().scenario)
