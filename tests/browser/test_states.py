"""Every page in every state: a clear sentence, and no GPU count for an SLA that cannot be met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sizing.workload import Limit
from tests.browser.served import served
from tests.browser.visit import (
    ANSWERING,
    ONE,
    PAGES,
    TITLES,
    opened,
    text_of,
    title_of,
    turned,
    typed,
    url_of,
    visitor,
    walk,
)
from ui import link
from ui.scenario import Scenario

pytestmark = pytest.mark.browser

COUNT = re.compile(r"You need|\b\d[\d,]*\s(?:×|GPUs?\b)")
"""A number of GPUs, as every page words it."""
TINY = replace(ONE, model="acme/tiny", gpus=(), precisions=(), isl=1000, osl=200)
NOTHING = replace(ONE, model="Qwen/Qwen3-8B", gpus=())
OLD_LINKS = Path(__file__).parents[1] / "app" / "old_links.txt"


@dataclass(frozen=True)
class NoAnswer:
    """A scenario without an answer: the words that every page says, and what only Size says."""

    scenario: Scenario
    title: str
    everywhere: str
    on_size: str


INFEASIBLE = replace(ONE, itl=Limit("itl", 99, 0.0001))
TOO_LARGE = replace(ONE, gpus=("l40s",), precisions=("bf16",))
NO_ANSWERS = {
    "infeasible": NoAnswer(INFEASIBLE, "No configuration meets this SLA", "0.1 ms", r"Nearest miss:.* Use "),
    "does not fit": NoAnswer(TOO_LARGE, "The model does not fit on these GPUs", "GB", r"lacks [\d.]+ GB .* TP2 bf16"),
    "no measurements": NoAnswer(NOTHING, "Choose a GPU or measure one", NOTHING.model, "Measure this model"),
    "no limit": NoAnswer(replace(ONE, ttft=None, itl=None), "Set at least one limit", "form on the left", "at once"),
}


def test_feasible_only_by_extrapolation(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, scenario=TINY))
    banner = main.get_by_test_id("stAlert").filter(has_text="Measure before buying")
    expect(banner).to_contain_text("up to 4 requests at once")
    for name, main in walk(desk, ANSWERING):
        assert TITLES[name] in title_of(desk), name
        assert "extrapolated" in text_of(main).lower(), name


@pytest.mark.parametrize("state", NO_ANSWERS)
def test_without_an_answer_no_page_holds_a_count(desk: Page, planner: str, state: str) -> None:
    none = NO_ANSWERS[state]
    assert re.search(none.on_size, text_of(opened(desk, url_of(planner, scenario=none.scenario))))
    for name, main in walk(desk, ANSWERING):
        for said in (text_of(main), main.text_content() or ""):  # as seen, and what is folded away or in a canvas
            assert not COUNT.search(said), (name, COUNT.search(said))
        said = text_of(main)
        assert none.title in said and none.everywhere in said, name
        assert "n" not in parse_qs(urlsplit(desk.url).query), name


def test_the_relaxation_that_is_offered_is_taken(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, scenario=INFEASIBLE))
    main.get_by_role("button", name=re.compile(r"Use .* ms")).first.click()
    expect(main.get_by_role("heading", level=1)).to_contain_text("You need")


def test_a_broken_link_is_told_on_every_page_and_its_good_parts_are_used(desk: Page, planner: str) -> None:
    opened(desk, url_of(planner, "report", rate="fast", spare="3", nonsense="1"))
    for name in PAGES:
        turned(desk, name)
        told = desk.get_by_test_id("stAlert").filter(has_text="This link was not taken as it stands")
        expect(told).to_contain_text("rate=fast: must be a number")
        expect(told).to_contain_text("nonsense")
        expect(desk.get_by_label("Spare replicas", exact=True)).to_have_value("3")
        assert parse_qs(urlsplit(desk.url).query)["rate"] == [repr(Scenario().rate_per_s)], name


def test_an_old_link_opens_without_a_word(desk: Page, planner: str) -> None:
    old = next(line for line in OLD_LINKS.read_text().splitlines() if line.startswith("v=1&") and "l40s" in line)
    opened(desk, f"{planner}/?{old}")
    expect(desk.get_by_label("Peak load (requests/s)", exact=True)).to_have_value("3.5")
    for name in PAGES:
        turned(desk, name)
        warnings = desk.get_by_test_id("stAlert").filter(has_text=re.compile("as it stands|could not be used"))
        assert warnings.count() == 0, name
        assert parse_qs(urlsplit(desk.url).query)["v"] == [link.VERSION], name


def test_a_link_that_brought_another_answer_tells_both(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, n="77", data="2026-01-31.00000000"))
    told = main.get_by_test_id("stAlert")
    expect(told).to_contain_text("the answer was 77 GPUs (measured up to 2026-01-31)")
    expect(told).to_contain_text(f"it is {parse_qs(urlsplit(desk.url).query)['n'][0]}")


@pytest.fixture
def cut_off() -> Iterator[str]:
    """The address of the app whose store does not answer."""
    with served("postgresql://me:topsecret@127.0.0.1:1/points") as url:
        yield url


def test_a_store_out_of_reach_is_told_and_estimates_go_on(desk_context: BrowserContext, cut_off: str) -> None:
    with visitor(desk_context, cut_off) as page:
        opened(page, url_of(cut_off, show_method="sources"))
        titles = TITLES | {"Calibrate": "The points store is unreachable"}
        for name, main in walk(page, PAGES):
            told = "check SIZING_DATABASE_URL" if name == "Calibrate" else "Measured points could not be read"
            expect(main.get_by_test_id("stAlert").filter(has_text=told)).to_be_visible()
            assert titles.get(name, "") in title_of(page), name
            assert "topsecret" not in page.content(), name


def test_typed_by_hand_and_opened_from_the_link_elsewhere_the_answer_is_the_same(
    desk: Page, browser: Browser, planner: str
) -> None:
    opened(desk, url_of(planner))
    for label, value, parameter in TYPED:
        typed(desk, label, value, parameter)
    by_hand = {name: text_of(main) for name, main in walk(desk, ("Size", "Compare", "Simulate", "Report"))}
    assert "47 requests/s" in by_hand["Size"] and COUNT.search(by_hand["Size"])
    turned(desk, "Size")
    with visitor(browser, planner) as other:
        opened(other, desk.url)
        assert {name: text_of(main) for name, main in walk(other, by_hand)} == by_hand


TYPED = (
    ("Peak load (requests/s)", "47", r"rate=47\.0&"),
    ("Input (tokens)", "1500", "isl=1500&"),
    ("Output (tokens)", "300", "osl=300&"),
    ("ITL limit (ms)", "40", r"itl=p95%3A0\.04s&"),
    ("Headroom (%)", "15", r"headroom=0\.15&"),
    ("Spare replicas", "2", "spare=2&"),
)
"""Label of a field, what is typed, and the pattern that the link then holds."""
