"""What can be known of the looks without eyes: contrast, one palette for page and charts, no foreign requests."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from tests.app.conftest import ROOT
from ui.charts.base import CONFIG, DARK, LIGHT, SYMBOLS, Ink
from ui.look import STYLE
from ui.words import plain

THEMES = {"light": LIGHT, "dark": DARK}
CONFIGURED = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
SOURCES = [ROOT / "app.py", ROOT / "serve.py", *sorted((ROOT / "ui").rglob("*.py"))]


def luminance(colour: str) -> float:
    """Relative luminance of #RRGGBB, WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def over(colour: str, ground: str) -> str:
    """#RRGGBBAA as it looks on an opaque ground."""
    alpha = int(colour[7:9], 16) / 255
    mixed = [round(alpha * int(colour[i : i + 2], 16) + (1 - alpha) * int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def test_contrast_is_the_one_of_the_standard() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("name", "ink"), THEMES.items())
def test_text_is_readable_and_series_are_seen(name: str, ink: Ink) -> None:
    theme = CONFIGURED["theme"][name]
    grounds = (theme["backgroundColor"], theme["secondaryBackgroundColor"])
    for text, ground in product((theme["textColor"], ink.text, ink.quiet, ink.limit), grounds):
        assert contrast(text, ground) >= 4.5
    for colour, ground in product(ink.series, grounds):
        assert contrast(colour, ground) >= 3
    assert contrast("#FFFFFF", theme["primaryColor"]) >= 4.5  # the chosen GPUs: white on the accent
    assert contrast(theme["primaryColor"], theme["backgroundColor"]) >= 3  # switches, and the frame of what has focus


@pytest.mark.parametrize(("name", "ink"), THEMES.items())
def test_coloured_words_are_readable(name: str, ink: Ink) -> None:
    theme = CONFIGURED["theme"][name]
    words = [colour for key, colour in theme.items() if key.endswith("TextColor")]
    for colour, ground in product(words, (theme["backgroundColor"], theme["secondaryBackgroundColor"])):
        assert contrast(colour, ground) >= 4.5


@pytest.mark.parametrize("ink", THEMES.values(), ids=THEMES)
def test_series_differ_by_more_than_their_hue(ink: Ink) -> None:
    assert len(set(ink.series)) == len(ink.series) <= len(set(SYMBOLS)) == len(SYMBOLS)


@pytest.mark.parametrize(("name", "ink"), THEMES.items())
def test_what_lies_on_the_shaded_band_is_readable(name: str, ink: Ink) -> None:
    ground = over(ink.band, CONFIGURED["theme"][name]["backgroundColor"])
    assert contrast(ink.text, ground) >= 4.5 and contrast(ink.limit, ground) >= 4.5
    assert contrast(ink.series[0], ground) >= 3


@pytest.mark.parametrize(("name", "ink"), THEMES.items())
def test_the_charts_have_the_colours_of_the_theme(name: str, ink: Ink) -> None:
    assert tuple(CONFIGURED["theme"][name]["chartCategoricalColors"]) == ink.series


def test_charts_send_nothing_anywhere() -> None:
    assert CONFIG["showSendToCloud"] is False and CONFIG["displaylogo"] is False
    assert CONFIG["displayModeBar"] is False and CONFIGURED["client"]["toolbarMode"] == "minimal"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_page_injects_html_or_shows_emoji(path: Path) -> None:
    source = path.read_text().replace("st.html(STYLE)", "")
    assert "unsafe_allow_html" not in source and "st.html" not in source
    assert not re.search("[\U0001f300-\U0001faff\u2600-\u27bf]", source)


def test_the_one_style_that_is_put_in_is_ours_alone() -> None:
    assert re.fullmatch(r"<style>[^<>]*</style>", STYLE) and "url(" not in STYLE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("so 45 % saved, 1,000 ms", "so 45_% saved, 1,000_ms"),
        ("in 20 s, not 2 servers", "in 20_s, not 2 servers"),
        ("p95 ITL ≤ 30 ms", "p95 ITL_≤_30_ms"),
        ("misses p95 ITL <= 30 ms", "misses p95 ITL_<=_30_ms"),
        ("fitted to 1 point", "fitted to 1_point"),
    ],
)
def test_a_number_is_never_parted_from_its_unit(text: str, shown: str) -> None:
    assert plain(text).replace("\\", "").replace("\N{NO-BREAK SPACE}", "_") == shown


def test_serving_is_private_until_someone_decides_otherwise() -> None:
    assert CONFIGURED["server"]["address"] == "127.0.0.1"
    assert CONFIGURED["browser"]["gatherUsageStats"] is False
