"""Report: what to send to those who decide. Title, author, notes; a look at what goes out; four files of one report."""

import importlib.util
import time

import pandas as pd
import streamlit as st

from sizing.numbers import count_of
from sizing.report import tables
from sizing.report.model import Report, question_digest
from sizing.report.sections import Section, sections
from sizing.report.tables import Table, line
from ui import answers
from ui.scenario import Scenario
from ui.views.answer import reasons
from ui.visit import visit
from ui.words import BASIS_HELP, BASIS_LOOK, plain, sentence_case, tell_unreadable

MOST_TITLE, MOST_AUTHOR, MOST_NOTES = 20_000, 1_000, 20_000
"""Characters. A browser field silently drops a text that is longer, so these are far beyond what the writers show."""
FORMATS = {
    "pdf": ("PDF", ":material/picture_as_pdf:", "Pages to print or share; tagged for screen readers."),
    "html": ("HTML", ":material/html:", "One file for any browser, light or dark; no scripts, no network access."),
    "xlsx": ("XLSX", ":material/table_view:", "A workbook: change the load, and replicas, GPUs and cost follow."),
    "json": ("JSON", ":material/data_object:", "Every number with unit and basis; the planner reads it again."),
}


def page(scenario: Scenario) -> None:
    """The whole page for one scenario."""
    if scenario.missing:
        st.title(scenario.missing, anchor=False)
        st.markdown("Complete the form on the left; the report follows from its answer.")
        return
    started_s = time.monotonic()
    with st.spinner("Computing the number of GPUs and verifying it by simulation…"):
        outcome = answers.outcome(scenario)
    tell_unreadable(answers.measured_points().problems)
    st.title("Report", anchor=False)
    cover, preview = st.columns([2, 3], gap="large")
    with cover:
        texts = _cover()
        beside = answers.asked_beside()
        found = answers.report(scenario, outcome, **texts, address=_address(), beside=beside)
        _downloads(found, started_s)
        if found.answer:
            st.caption(BESIDE[beside])
    with preview:
        _preview(found)


def _cover() -> dict[str, str]:
    """Title, author and notes as last put on the report.

    A form, because a field that is left by a click on a download would change the page and the file at the same time:
    the file would hold the text from before, or not come at all.
    """
    with st.form("report_cover", border=False):
        texts = {
            "title": _typed("Title", "title", MOST_TITLE, "Default: model and load"),
            "author": _typed("Author", "author", MOST_AUTHOR, "Name or team"),
            "notes": st.text_area(
                "Notes",
                key="report_notes",
                max_chars=MOST_NOTES,
                height=110,
                placeholder="Notes for the reader",
                persist_state="session",
            ),
        }
        st.form_submit_button("Apply to the report", icon=":material/edit_note:")
    return texts


def _typed(label: str, key: str, most: int, placeholder: str) -> str:
    """A line of text, kept while other pages are open."""
    key = f"report_{key}"
    return st.text_input(label, key=key, max_chars=most, placeholder=placeholder, persist_state="session") or ""


def _downloads(found: Report, started_s: float) -> None:
    """A button for each format; the file is made when the button is pressed.

    A button that was pressed while this run was under way was one of the run before. What Streamlit answers to it may
    be dropped as this run starts, and the button then waits without end: another question has buttons of its own.
    """
    handed = visit().report_handed = visit().report_handed or answers.Handed()
    for suffix, (name, icon, help_) in FORMATS.items():
        missing = suffix in answers.NEEDS and importlib.util.find_spec(answers.NEEDS[suffix]) is None
        file, media, make = answers.download(found, suffix, handed)
        st.download_button(
            f"Download {name}",
            data="" if missing else make,
            file_name=file,
            mime=media,
            on_click="ignore",
            disabled=missing,
            icon=icon,
            width="stretch",
            type="primary" if suffix == "pdf" else "secondary",
            key=f"download_{file}",
            help=f"Needs the package {answers.NEEDS[suffix]} on the server." if missing else help_,
        )
    if handed.belated(found, started_s):
        st.warning(BELATED, icon=":material/history:")
    st.caption(WITH_ANSWER if found.answer else WITHOUT_ANSWER)
    st.caption(f"Question {question_digest(found)}, as in each file name.")


BELATED = "The file you just downloaded answers the question before the last change. Download it again."
WITH_ANSWER = "All four hold the same numbers, each with its unit and basis, and a link to this scenario."
WITHOUT_ANSWER = (
    "The report says why there is no answer, lists ways to meet the SLA and what was left out; it has no GPU count."
)
BESIDE: dict[answers.Beside, str] = {
    "": "To include the GPUs of each hour, choose *Over a day* on the *Size* page; for those at rising goodput, *Price "
    "of goodput*.",
    "day": "With the GPUs of each hour, as *Over a day* is chosen on the *Size* page.",
    "goodput": "With the GPUs at rising goodput, as *Price of goodput* is chosen on the *Size* page.",
}


def _preview(found: Report) -> None:
    """What goes out: the sentence, the working, the SLA, and what stands in the sections."""
    with st.container(border=True):
        st.caption(plain(line(found.title)))
        st.subheader(plain(line(found.sentence)), anchor=False)
        if found.answer is None:
            st.markdown(plain(sentence_case(line(found.reason))))
            if found.ways_out:
                _table(ways := tables.ways_out(found))
                st.caption(plain(ways.note))
            if found.together:
                _table(tables.together(found))
            left_out = tables.left_out(found)
            if not left_out.rows:
                st.caption(plain(left_out.empty))
                return
            reasons([(" ".join(map(left_out.text, names)), left_out.text(why)) for *names, _, why in left_out.rows])
            return
        st.markdown(plain(line(found.working)))
        basis = found.answer.basis
        icon, colour = BASIS_LOOK[basis]
        st.badge(basis.capitalize(), icon=icon, color=colour, help=BASIS_HELP[basis])
        _table(tables.sla(found))
        told = (line(text).rstrip(".") for text in (*found.warnings, *found.remarks))
        st.markdown("\n".join(f"- {plain(sentence_case(text))}." for text in told))
    with st.expander("All sections"):
        for section in sections(found):
            st.markdown(f"**{plain(section.title)}** · {plain(_contents(section))}")


def _contents(section: Section) -> str:
    """What a section holds, in a few words."""
    counts = [(table.title, count_of(len(table.rows), "row")) for table in section.tables]
    held = [rows if title == section.title else f"{title} ({rows})" for title, rows in counts]
    lines = len(section.bullets) + sum(len(bullets) for _, bullets in section.lists)
    held += [count_of(count, noun) for count, noun in ((len(section.charts), "chart"), (lines, "line")) if count]
    return " · ".join(held) or "text"


def _table(table: Table) -> None:
    """A table of the report as it is read."""
    if not table.rows:
        st.caption(plain(table.empty))
        return
    cells = [[plain(table.text(cell)) for cell in row] for row in table.rows]
    st.table(pd.DataFrame(cells, columns=list(table.columns)), hide_index=True, border="horizontal", alt=table.title)


def _address() -> str:
    """Where the visitor found this app: its URL without this page's path and without a query."""
    return (st.context.url or "").partition("?")[0].rstrip("/").removesuffix("/report")


page(visit().scenario)
