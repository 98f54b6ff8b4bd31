"""The form keeps the question whatever the browser had drawn of it when the next click came.

A browser sends the values of the widgets that it has drawn, and draws one that it has no value for with the value that
the server sends, or, where it sends none, with the widget's own default. Each kind of widget is drawn once its own
script has come, so a click or a page turned early is sent with some of the form's values, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.testing.v1 import AppTest

from sizing.catalog import Layout
from sizing.workload import Arrivals, Limit
from tests.app.conftest import query_of, text_of
from tests.sizing.token_laws import law_of
from ui import link
from ui.scenario import Scenario

UNLIKE = Scenario(
    model="Qwen/Qwen3-32B",
    gpus=("h200_sxm",),
    precisions=("fp8",),
    tps=(1,),
    engines=("vllm",),
    layouts=(Layout(2, 2),),
    rate_per_s=30.0,
    isl_law=law_of("uniform:100-1900"),
    osl_law=law_of("points:100@0.8,900@0.2"),
    ttft=Limit("ttft", 95, 3.0),
    itl=Limit("itl", 95, 0.1),
    gap=Limit("gap", 95, 0.2),
    e2e=Limit("e2e", 95, 60.0),
    routing="round_robin",
    arrivals=Arrivals("gamma", 1.5),
    price_per_gpu_hour=3.0,
    prefix_share=0.25,
    prefix_hit=0.5,
    peak_factor=2.0,
    gpus_per_server=4,
    goodput=Limit.goodput(95),
    rejected=Limit.rejected(2),
    queue_limit=8,
    queue_timeout_s=2.0,
)
"""A question that differs from its widget's own default in every field of the form."""
QUESTION = link.to_query(UNLIKE)
FORM_ALONE = "method"
"""A page that answers no question, beside the form that is on all of them."""
KINDS = ("selectbox", "multiselect", "checkbox", "toggle", "number_input", "text_input")


class Browser:
    """What a browser remembers of the form, and what it sends."""

    def __init__(self, app: AppTest) -> None:
        self.app = app
        self.values: dict[str, Any] = {}

    def draw(self, kinds: Collection[str] = KINDS) -> None:
        """Draw what the last run sent, of these kinds of widgets."""
        for kind in kinds:
            for widget in self.app.sidebar.get(kind):
                if widget.proto.set_value or widget.proto.id not in self.values:
                    self.values[widget.proto.id] = _drawn(widget.proto)

    def send(self, **typed: float) -> None:
        """Send every value that was drawn, those just typed in the fields of these keys among them."""
        for key, value in typed.items():
            self.values[next(name for name in self.values if name.endswith(f"-{key}"))] = value
        states = WidgetStates()
        for name, value in self.values.items():
            state = states.widgets.add(id=name)
            if isinstance(value, list):
                state.string_array_value.data[:] = value
            elif value is not None:
                setattr(state, FIELDS[type(value)], value)
        self.app._run(states)
        assert not self.app.exception


FIELDS = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}


def _drawn(proto: Any) -> Any:
    return _sent(proto) if proto.set_value else _default(proto)


def _sent(proto: Any) -> Any:
    """The value that the server sends with a widget."""
    if hasattr(proto, "raw_values"):
        return list(proto.raw_values)
    if hasattr(proto, "raw_value"):
        return proto.raw_value
    return _number(proto, "value") if hasattr(proto, "data_type") else proto.value


def _default(proto: Any) -> Any:
    """A widget's own default."""
    if hasattr(proto, "raw_values"):
        return [proto.options[index] for index in proto.default]
    if hasattr(proto, "raw_value"):
        return proto.options[proto.default]
    return _number(proto, "default") if hasattr(proto, "data_type") else proto.default


def _number(proto: Any, name: str) -> float | None:
    if not proto.HasField(name):
        return None
    value = getattr(proto, name)
    return int(value) if proto.data_type == proto.INT else float(value)


def of_question(app: AppTest) -> Mapping[str, str]:
    """The fields of the question in the link."""
    return {key: value for key, value in query_of(app).items() if key in QUESTION}


def test_the_question_differs_from_every_default(opened: Callable[..., AppTest]) -> None:
    app = opened(UNLIKE, FORM_ALONE)
    drawn = {widget.key: widget.proto for kind in KINDS for widget in app.sidebar.get(kind)}
    assert len(drawn) > 25
    assert [key for key, proto in drawn.items() if _drawn(proto) == _default(proto)] == ["users", "per_user"]


@pytest.mark.parametrize("kinds", [(), ("number_input",), ("selectbox", "checkbox", "toggle"), ("multiselect",)])
@pytest.mark.parametrize("page", [None, "ui/pages/method.py"], ids=["same page", "page turned"])
def test_a_form_half_drawn_when_the_next_run_starts_is_drawn_whole(
    opened: Callable[..., AppTest], kinds: tuple[str, ...], page: str | None
) -> None:
    app = opened(UNLIKE)
    browser = Browser(app)
    browser.draw(kinds)
    if page:
        app.switch_page(page)
    browser.send()
    assert of_question(app) == QUESTION
    browser.draw()
    browser.send(rate_per_s=31.0)
    assert of_question(app) == {**QUESTION, "rate": "31.0"}


def test_a_page_turned_twice_before_anything_is_drawn_loses_nothing(opened: Callable[..., AppTest]) -> None:
    app = opened(UNLIKE)
    browser = Browser(app)
    for page in ("ui/pages/method.py", "ui/pages/calibrate.py", "ui/pages/method.py"):
        app.switch_page(page)
        browser.send()
    browser.draw()
    browser.send()
    assert of_question(app) == QUESTION


def test_lengths_of_another_law(opened: Callable[..., AppTest]) -> None:
    """A kind chosen brings a law of about the same mean, its text another; the mean follows, and presets end it."""
    app = opened(page=FORM_ALONE)
    assert "isl_law_text" not in {widget.key for widget in app.sidebar.text_input}
    app.sidebar.selectbox(key="isl_law").set_value("uniform").run()
    assert not app.exception
    assert query_of(app)["isl_law"] == "uniform:1000-3000"
    assert app.sidebar.number_input(key="isl").disabled and not app.sidebar.number_input(key="osl").disabled
    app.sidebar.text_input(key="isl_law_text").set_value("100-300").run()
    assert (query_of(app)["isl_law"], query_of(app)["isl"]) == ("uniform:100-300", "200")
    assert app.sidebar.number_input(key="isl").value == 200
    app.sidebar.selectbox(key="osl_law").set_value("histogram").run()
    assert query_of(app)["osl_law"].startswith("histogram:")
    app.sidebar.selectbox(key="osl_law").set_value("points").run()
    assert query_of(app)["osl_law"].startswith("points:")
    assert not app.exception and not app.sidebar.error
    app.sidebar.pills(key="preset").set_value("Chat").run()
    assert not {"isl_law", "osl_law"} & set(query_of(app))
    assert query_of(app)["isl"] == "1190" and not app.sidebar.number_input(key="isl").disabled


def test_a_text_that_is_no_law_is_told_in_one_line(opened: Callable[..., AppTest]) -> None:
    app = opened(page=FORM_ALONE, isl_law="uniform:100-300", isl="200")
    assert not app.sidebar.error
    app.sidebar.text_input(key="isl_law_text").set_value("300-100").run()
    (told,) = app.sidebar.error
    assert not app.exception and "300-100" in text_of(told.value) and "\n" not in told.value
    assert "isl_law" not in query_of(app)
    app.sidebar.text_input(key="isl_law_text").set_value("100-500").run()
    assert not app.sidebar.error and query_of(app)["isl_law"] == "uniform:100-500"


def test_an_emptied_field_holds_what_it_held_or_nothing_where_it_may(opened: Callable[..., AppTest]) -> None:
    """Streamlit's own choice would be the least number allowed: a queue of no request, a price of nothing."""
    app = opened(page="method")
    kept = {"isl": 700, "rate_per_s": 12.5, "ttft_limit": 900.0, "headroom": 30.0, "spare": 3}
    optional = {"queue_limit": 5, "queue_timeout_s": 2.5, "price": 2.5, "gpus_per_server": 4}
    for key, typed in (kept | optional).items():
        app.sidebar.number_input(key=key).set_value(typed)
    app.run()
    for key in kept | optional:
        app.sidebar.number_input(key=key).set_value(None)
    app.run()
    assert not app.exception
    held = {key: app.sidebar.number_input(key=key).value for key in kept | optional}
    assert held == kept | dict.fromkeys(optional)
