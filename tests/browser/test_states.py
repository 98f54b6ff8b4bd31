"""Every page in every state: a clear sentence, and no GPU count for an SLA that cannot be met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from sizing.workload import Limit
from tests.browser.conftest import Visitor
from tests.browser.served import served
from tests.browser.visit import ANSWERING, ONE, PAGES, opened, rested, text_of, title_of, url_of, visitor
from ui.scenario import Scenario

pytestmark = pytest.mark.browser

COUNT = re.compile(r"You need|\b\d[\d,]*\s(?:×|GPUs?\b)")
"""A number of GPUs, as every page words it."""
TINY = replace(ONE, model="acme/tiny", gpus=(), precisions=(), isl=1000, osl=200)
NOTHING = replace(ONE, gpus=())
OLD_LINKS = Path(__file__).parents[1] / "app" / "old_links.txt"
SOONER_FIRST = {"": "needs|You need", "compare": "meet", "curves": "carries", "simulate": "SLA", "report": "Report"}


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


@pytest.mark.parametrize("path", ANSWERING)
def test_feasible(desk: Page, planner: str, path: str) -> None:
    main = opened(desk, url_of(planner, path))
    assert re.search(SOONER_FIRST[path], title_of(desk)), title_of(desk)
    expect(main.get_by_text("Estimated").first.or_(main.get_by_text("estimated").first)).to_be_visible()
    assert main.get_by_role("alert").count() == 0


@pytest.mark.parametrize("path", ANSWERING)
def test_feasible_only_by_extrapolation(desk: Page, planner: str, path: str) -> None:
    main = opened(desk, url_of(planner, path, TINY))
    assert re.search(SOONER_FIRST[path], title_of(desk))
    if path == "report":
        main.get_by_text("All sections").click()
    assert "extrapolated" in text_of(main).lower() or "measure before buying" in text_of(main).lower()
    if path == "":
        expect(main.get_by_role("alert").filter(has_text="up to 4 requests at once")).to_be_visible()


@pytest.mark.parametrize("path", ANSWERING)
@pytest.mark.parametrize("state", NO_ANSWERS)
def test_without_an_answer_no_page_holds_a_count(desk: Page, planner: str, path: str, state: str) -> None:
    none = NO_ANSWERS[state]
    main = opened(desk, url_of(planner, path, none.scenario))
    said = text_of(main)
    assert none.title in said and none.everywhere in said
    assert not COUNT.search(said), COUNT.search(said)
    assert not COUNT.search(main.text_content() or "")
    assert "n" not in parse_qs(urlsplit(desk.url).query)
    assert title_of(desk) == (none.title if path != "report" or state == "no limit" else "Report")
    if path == "":
        assert re.search(none.on_size, said), said


def test_the_relaxation_that_is_offered_is_taken(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, "", INFEASIBLE))
    main.get_by_role("button", name=re.compile(r"Use .* ms")).first.click()
    expect(main.get_by_role("heading", level=1)).to_contain_text("You need")
    rested(desk)
    assert COUNT.search(text_of(main))


@pytest.mark.parametrize("path", PAGES)
def test_a_broken_link_is_told_on_every_page_and_its_good_parts_are_used(desk: Page, planner: str, path: str) -> None:
    opened(desk, url_of(planner, path, rate="fast", spare="3", nonsense="1"))
    told = desk.get_by_role("alert").filter(has_text="This link was not taken as it stands")
    expect(told).to_contain_text("rate=fast: must be a number")
    expect(told).to_contain_text("nonsense")
    expect(desk.get_by_label("Spare replicas", exact=True)).to_have_value("3")
    assert parse_qs(urlsplit(desk.url).query)["rate"] == [repr(Scenario().rate_per_s)]


@pytest.mark.parametrize("path", PAGES)
def test_an_old_link_opens_without_a_word(desk: Page, planner: str, path: str) -> None:
    first = next(line for line in OLD_LINKS.read_text().splitlines() if line.startswith("v=1&"))
    opened(desk, f"{planner}/{path}?{first}")
    assert desk.get_by_role("alert").filter(has_text="This link").count() == 0
    assert parse_qs(urlsplit(desk.url).query)["v"] == ["2"]


def test_a_link_that_brought_another_answer_tells_both(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, "", n="77", data="2026-01-31.00000000"))
    expect(main.get_by_role("alert")).to_contain_text("the answer was 77 GPUs (measured up to 2026-01-31)")
    found = parse_qs(urlsplit(desk.url).query)["n"][0]
    expect(main.get_by_role("alert")).to_contain_text(f"it is {found}")


@pytest.fixture(scope="module")
def cut_off(browser: Browser) -> Iterator[str]:
    """The address of the app whose store does not answer."""
    with served("postgresql://me:topsecret@127.0.0.1:1/points") as url:
        yield url


@pytest.mark.parametrize("path", [path for path in PAGES if path != "calibrate"])
def test_a_store_out_of_reach_is_told_and_estimates_go_on(browser: Browser, cut_off: str, path: str) -> None:
    with visitor(browser, cut_off) as page:
        main = opened(page, url_of(cut_off, path, show_method="sources"))
        expect(main.get_by_role("alert").filter(has_text="Measured points could not be read")).to_be_visible()
        assert "topsecret" not in page.content()
        if path in SOONER_FIRST:
            assert re.search(SOONER_FIRST[path], title_of(page))


def test_typed_by_hand_and_opened_from_the_link_elsewhere_the_answer_is_the_same(visit: Visitor, planner: str) -> None:
    with visit() as page:
        opened(page, url_of(planner))
        for label, value in TYPED.items():
            page.get_by_label(label, exact=True).fill(value)
            page.get_by_label(label, exact=True).press("Enter")
            expect(page).to_have_url(re.compile(PARAMETER[label]))
            rested(page)
        main = page.get_by_test_id("stMain")
        expect(main.get_by_role("heading", level=1)).to_contain_text("47 requests/s")
        typed, link = text_of(main), page.url
    with visit() as page:
        assert text_of(opened(page, link)) == typed
        for path in ("compare", "report"):
            assert "47 requests/s" in typed and title_of(page)
            other = opened(page, link.replace("/?", f"/{path}?"))
            assert COUNT.search(typed) and gpus_of(typed) in text_of(other)


def gpus_of(sentence: str) -> str:
    """The count in the answer's sentence."""
    found = re.search(r"You need (\d+)", sentence)
    assert found
    return found[1]


TYPED = {
    "Peak load (requests/s)": "47",
    "Input (tokens)": "1500",
    "Output (tokens)": "300",
    "ITL limit (ms)": "40",
    "Headroom (%)": "15",
    "Spare replicas": "2",
}
PARAMETER = {
    "Peak load (requests/s)": r"rate=47\.0&",
    "Input (tokens)": r"isl=1500&",
    "Output (tokens)": r"osl=300&",
    "ITL limit (ms)": r"itl=p95%3A0\.04s",
    "Headroom (%)": r"headroom=0\.15&",
    "Spare replicas": r"spare=2&",
}
