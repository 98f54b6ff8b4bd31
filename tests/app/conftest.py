"""The app under test: a session of its own, opened on a link, over a store of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly import io
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing.points import Point
from ui import computing, link
from ui.charts.base import Chart, Unchecked
from ui.scenario import Scenario

ROOT = Path(__file__).parents[2]
ONE = Scenario(gpus=("h200_sxm",), precisions=("fp8",), tps=(1,), engines=("trtllm",))
"""A scenario with a single candidate: quick to answer."""


@pytest.fixture(scope="package", autouse=True)
def packages_searched_once() -> Iterator[None]:
    """A server searches all installed packages for components when it starts; an AppTest would at every run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


@pytest.fixture(scope="package", autouse=True)
def charts_checked_by_plotly() -> Iterator[None]:
    """Pages draw charts unchecked: here plotly must know every part of each, and make nothing else of it."""
    unchecked = Unchecked.to_dict

    def checked(drawn: Unchecked) -> dict[str, Any]:
        whole = unchecked(drawn)
        assert json.loads(io.to_json(whole, validate=False)) == json.loads(io.to_json(go.Figure(whole)))
        return whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unchecked, "to_dict", checked)
        patch.setattr(Chart, "figure", property(lambda chart: go.Figure(chart.unchecked.to_dict())))
        yield


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the app finds an empty store and no shipped curves: of this test alone, so that whatever the app remembers
    by that name is too. The store is made by whoever opens it first."""
    url = f"sqlite:///{tmp_path / 'calibration.db'}"
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    monkeypatch.setattr(computing, "SHIPPED", tmp_path)
    return url


@pytest.fixture
def store(database: str) -> Store:
    """The store of this test, empty."""
    return Store(database)


@pytest.fixture
def opened() -> Callable[..., AppTest]:
    """Open the app on a scenario, with parameters of its link replaced or added, and on another page than Size."""

    def open_(scenario: Scenario = ONE, page: str = "", **parameters: str) -> AppTest:
        return open_query({**link.to_query(scenario), **parameters}, page)

    return open_


def open_query(query: dict[str, str], page: str = "") -> AppTest:
    """Open the app on URL parameters, exactly these, at a page ("curves", ...), as a link to it does."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    if page:
        app.switch_page(f"ui/pages/{page}.py")
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    return app


def query_of(app: AppTest) -> dict[str, str]:
    """The URL parameters as the browser would show them."""
    return {key: value if isinstance(value, str) else value[-1] for key, value in app.query_params.items()}


def text_of(markdown: str) -> str:
    """What a reader sees of markdown whose special characters are escaped, all spaces alike."""
    return markdown.replace("\\", "").replace("\N{NO-BREAK SPACE}", " ")


def point(concurrency: int, **fields: object) -> Point:
    """A measured point of a made-up engine: ITL 10 ms + 0.5 ms per request, TTFT 50 ms, 200 output tokens."""
    itl_s = 0.010 + 0.0005 * concurrency
    e2e_s = 0.05 + 199 * itl_s
    known: dict[str, object] = {
        "model": "acme/tiny",
        "precision": "fp8",
        "gpu": "h100_sxm",
        "tp": 1,
        "engine": "TensorRT-LLM",
        "engine_version": "1.2",
        "isl": 1000,
        "osl": 200,
        "load_kind": "concurrency",
        "load_value": concurrency,
        "requests_per_s": concurrency / e2e_s,
        "ttft_mean_s": 0.05,
        "itl_mean_s": itl_s,
        "e2e_mean_s": e2e_s,
        "measured_at": "2026-11-20T10:00:00+00:00",
    }
    return Point(**{**known, **fields})  # type: ignore[arg-type]


def keep(store: Store, points: list[Point]) -> None:
    """Put points into the store as one run."""
    run = store.create_run("test")
    for one in points:
        store.add_point(run, one)
