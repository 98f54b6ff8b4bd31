"""The lesson on batching: a guided step, its run as a picture, and what comes of changing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from learn import lesson_form
from learn.lesson import Figures, Outcome, Setting, figures, run
from learn.lesson.guide import Guide, guides
from learn.lesson.words import known, sentence
from learn.lesson_chart import STAGES, slots_and_queue
from sizing.errors import CatalogueError
from sizing.numbers import significant
from ui.link import PREFIX
from ui.look import ink, rows_of_cards, show
from ui.visit import chosen
from ui.words import plain

DRAWN_TICKS = 200
"""A longer run is drawn up to here; its figures are of all of it."""


@st.cache_resource(max_entries=64, show_spinner=False)
def ran(setting: Setting) -> Outcome:
    """The run of a setting."""
    return run(setting)


def page(_: object = None) -> None:
    """The whole view."""
    try:
        steps = guides()
    except CatalogueError as error:
        st.title("The lesson cannot be read", anchor=False)
        st.markdown(plain(str(error)))
        return
    if not steps:
        st.title("The lesson is missing", anchor=False)
        st.markdown("This installation has no folder data/lesson. Take it from the program's repository.")
        return
    names = list(steps)
    picked = chosen("Step", {name: f"{number}. {steps[name].title}" for number, name in enumerate(names, 1)}, "lesson")
    _step(picked, steps[picked])
    _next(picked, names, steps)
    _side_by_side(steps)


def _step(name: str, guide: Guide) -> None:
    st.title(plain(guide.title), anchor=False)
    with st.container(width=860):
        st.markdown(guide.text)
    setting = lesson_form.setting_of(name, guide.setting)
    lesson_form.draw(name, guide.setting, setting)
    outcome = ran(setting)
    found = figures(outcome)
    show(slots_and_queue(outcome, ink(), DRAWN_TICKS), "lesson")
    letters = ", ".join(f"{letter} {stage}" for letter, stage in STAGES.items())
    cut = f" Only the first {DRAWN_TICKS} of {found.end:,g} ticks are drawn." if found.end > DRAWN_TICKS else ""
    st.caption(plain(f"{letters}; each column is one step. {sentence(found)}{cut}"))
    _cards(found)
    _data(outcome)


def _cards(found: Figures) -> None:
    cards = (
        ("Requests/1,000 ticks", significant(found.requests_per_1k, 4), f"{found.completed:,} completed"),
        ("Tokens/1,000 ticks", significant(found.tokens_per_1k, 4), "unfinished requests too"),
        ("Mean TTFT (ticks)", known(found.ttft_mean), f"p50 {known(found.ttft_p50)}"),
        ("Mean ITL (ticks)", known(found.itl_mean), f"p50 {known(found.itl_p50)}"),
        ("Mean E2E (ticks)", known(found.e2e_mean), f"p50 {known(found.e2e_p50)}"),
        ("Waiting at the end", f"{found.queue:,}", f"{significant(100 * found.empty)} % of slots unused"),
    )
    with rows_of_cards(len(cards)):
        for label, value, note in cards:
            st.metric(label, value, note, delta_color="off", delta_arrow="off", border=True, help=HELP.get(label))


HELP = {
    "Mean ITL (ticks)": "Of requests with two tokens or more; the gap after the first token is not counted.",
    "Mean TTFT (ticks)": "Over all first tokens, of requests in progress too; p50 is the median.",
    "Mean E2E (ticks)": "Over completed requests; p50 is the median.",
}


def _data(outcome: Outcome) -> None:
    with st.expander("Data behind the picture"):
        steps = outcome.steps
        table = pd.DataFrame(
            {
                "Begins (tick)": [step.start for step in steps],
                "Takes (ticks)": [step.ticks for step in steps],
                "Slots, the first one first": [step.letters for step in steps],
                "Waiting": [step.queue for step in steps],
            }
        )
        st.dataframe(
            table, hide_index=True, alt="Steps of the run: begin, length, stages of the slots, waiting requests"
        )
        marks = [("TTFT", mark) for mark in outcome.first] + [("E2E", mark) for mark in outcome.last]
        rows = [(mark.at, name, mark.latency_ticks, mark.request + 1, mark.tokens) for name, mark in marks]
        columns = ["At (tick)", "Latency", "Ticks", "Request", "Tokens by then"]
        st.dataframe(
            pd.DataFrame(sorted(rows), columns=columns), hide_index=True, alt="First and last tokens of the run"
        )


def _next(picked: str, names: Sequence[str], steps: Mapping[str, Guide]) -> None:
    place = names.index(picked) + 1
    if place < len(names):
        following = names[place]
        label = f"Next: {steps[following].title}"
        st.button(label, icon=":material/arrow_forward:", on_click=_go, args=(following,), key="lesson_next")


def _go(name: str) -> None:
    st.session_state[PREFIX + "lesson"] = name


def _side_by_side(steps: Mapping[str, Guide]) -> None:
    """The figures of all guided steps, in one table."""
    with st.expander("All steps side by side"):
        rows = [{"Step": guide.title, **_row(figures(ran(guide.setting)))} for guide in steps.values()]
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Figures of all guided steps, latencies in ticks")
        st.caption("Latencies in ticks, rates per 1,000 ticks. The same hardware and the same model in all of them.")


def _row(found: Figures) -> dict[str, object]:
    return {
        "Completed": found.completed,
        "Requests per 1,000": round(found.requests_per_1k, 1),
        "Tokens per 1,000": round(found.tokens_per_1k),
        "TTFT mean": known(found.ttft_mean),
        "E2E mean": known(found.e2e_mean),
        "E2E p50": known(found.e2e_p50),
        "ITL mean": known(found.itl_mean),
        "Waiting at the end": found.queue,
        "Unused slot time (%)": round(100 * found.empty, 1),
    }
