"""The Method page tells what its files say, finds what is asked for, and copes without them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing.catalog import Layout
from tests.app.conftest import ONE, keep, point, query_of, text_of
from ui.views import method as methods
from validation.evidence.page import as_page
from validation.evidence.table import EvidenceRow, cells

Open = Callable[..., AppTest]
WRITTEN = ("words", "law", "queue", "simulator", "plan", "limits")


@pytest.fixture
def method(opened: Open) -> Open:
    """Open the Method page on one of its sections, with a question that has no SLA."""

    def open_(section: str = "words") -> AppTest:
        idle = replace(ONE, ttft=None, itl=None)
        return opened(idle, page="method", **{"show.method": section})

    return open_


def shown(app: AppTest) -> str:
    parts = (*app.title, *app.subheader, *app.markdown, *app.caption, *app.info, *app.warning)
    return "\n".join(str(part.value) for part in parts)


@pytest.mark.parametrize("section", WRITTEN)
def test_each_section_opens_from_its_link_and_is_shown_whole(method: Open, section: str) -> None:
    app = method(section)
    assert query_of(app)["show.method"] == section
    text = shown(app)
    assert all(paragraph in text for paragraph in methods.texts()[section].paragraphs)


def test_every_formula_is_followed_by_its_words() -> None:
    formulas = [text for section in methods.texts().values() for text in section.paragraphs if "$$" in text]
    assert formulas
    for text in formulas:
        assert text.count("$$") == 2 and re.search(r"\$\$\nIn words: ", text), text


def test_the_formula_counts_the_gpus_of_a_replica_as_its_layout_does() -> None:
    formula = next(text for text in methods.texts()["plan"].paragraphs if "$$" in text)
    sizes = {"TP": 2, "PP": 3, "DP": 5}
    factors = re.findall(r"mathrm\{([TPD]P)\}", formula)
    assert math.prod(sizes[name] for name in factors) == Layout(2, 3, 5).gpus


@pytest.mark.parametrize("word", ["TTFT", "ITL", "E2E", "ISL, OSL", "TP", "Replica", "Headroom", "Band", "Basis"])
def test_the_words_of_the_trade_are_defined(word: str) -> None:
    assert any(text.startswith(f"**{word}**") for text in methods.texts()["words"].paragraphs)


def test_a_search_shows_every_paragraph_with_all_its_words_and_no_other(method: Open) -> None:
    app = method()
    app.text_input(key="method_query").set_value("HEADROOM replica").run()
    assert not app.exception
    text = shown(app)
    for section in methods.texts().values():
        for paragraph in section.paragraphs:
            wanted = "headroom" in paragraph.casefold() and "replica" in paragraph.casefold()
            assert (paragraph in text) == wanted
    app.text_input(key="method_query").set_value("*zebra*").run()
    assert "mentions “*zebra*”" in text_of(shown(app)) and "*zebra*" not in shown(app)


def test_the_accuracy_table_is_the_one_that_was_written(
    method: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        EvidenceRow("a claim | with a bar", "theory", 30, "rate", 0.01, 0.05, 0.2, "median ≤ 2 %", True, "a note"),
        EvidenceRow("another", "servers", 9, "TTFT", 0.5, 0.7, float("inf"), "median ≤ 10 %", False),
    ]
    monkeypatch.setattr(methods, "ACCURACY", tmp_path / "accuracy.md")
    (tmp_path / "accuracy.md").write_text(as_page(rows, quick=False), encoding="utf-8")
    app = method("accuracy")
    assert app.dataframe[0].value.values.tolist() == [list(cells(row))[:-1] for row in rows]  # the note stands below
    headers = json.loads(app.dataframe[0].proto.columns)
    assert {*app.dataframe[0].value} == {name for name, header in headers.items() if header.get("label")}
    widths = [headers[name]["width"] for name in app.dataframe[0].proto.column_order]
    assert "holds" in app.dataframe[0].proto.column_order[:4] and sum(widths[:4]) <= 360  # a phone's
    assert "a note" not in shown(app)
    app.session_state["accuracy"] = {"selection": {"cells": [[0, "goal"]]}}
    assert "**a claim | with a bar, rate:** a note." in text_of(shown(app.run()))
    text = text_of(shown(app))
    assert "Goals: 1 of 2 hold, 1 missed." in text and "What is not shown" in text and "| --- |" not in text


@pytest.mark.parametrize("content", [None, "", "# Accuracy\n\nNo table yet.\n"])
def test_without_an_accuracy_table_the_page_says_how_to_write_it(
    method: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(methods, "ACCURACY", tmp_path / "accuracy.md")
    if content is not None:
        (tmp_path / "accuracy.md").write_text(content)
    app = method("accuracy")
    assert "python -m sizing validate --markdown" in shown(app) and not app.dataframe


def test_sources_name_versions_and_measured_points_their_dates(method: Open, store: Store) -> None:
    keep(store, [point(n, model="*acme*", source="run of a *test*") for n in (1, 2, 4)])
    keep(store, [point(8, model="*acme*", measured_at="2026-11-25T00:00:00+00:00", verdict="unsteady")])
    app = method("sources")
    text = text_of(shown(app))
    assert (
        text.count("aisimulate 0.13") + text.count("aiconfigurator-core 0.12") == 3 and "data/catalog/gpus.yaml" in text
    )
    assert "4 points (1 void), measured from 2026-11-20 to 2026-11-25; source: run of a *test*" in text
    assert "*acme*" in text and "*acme*" not in shown(app)


def test_without_measurements_and_without_a_store_the_page_says_so(
    method: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing has been measured yet" in shown(method("sources"))
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    assert DATABASE_VARIABLE in text_of(shown(method("sources")))


def test_the_newest_changes_are_shown_and_only_these(
    method: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = "# Changelog\n\n## 1.1\n\n### Added\n\n- A thing, see [the docs](docs/x.md).\n\n## 1.0\n\n- Old.\n"
    monkeypatch.setattr(methods, "CHANGES", tmp_path / "CHANGELOG.md")
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    text = text_of(shown(method("changes")))
    assert "1.1" in text and "see the docs." in text and "Old" not in text
    (tmp_path / "CHANGELOG.md").unlink()
    assert "CHANGELOG.md is missing" in shown(method("changes"))


def test_a_section_that_does_not_exist_falls_back_to_the_first(method: Open) -> None:
    assert query_of(method("no-such"))["show.method"] == "words"
