"""A model of one's own on the page: its config.json is read, planned for, and kept out of the link."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from sizing.estimate.checkpoints import MOST_BYTES
from tests.app.conftest import open_query, query_of, text_of
from tests.sizing.test_checkpoints import LLAMA_8B

OPEN = Callable[..., AppTest]
DEEPER = LLAMA_8B | {"num_hidden_layers": 36}


def uploaded(app: AppTest, content: bytes) -> AppTest:
    """The app after this file was given as config.json."""
    app.sidebar.get("file_uploader")[0].set_value(("mine.json", content, "application/json")).run()
    assert not app.exception
    return app


def shown(app: AppTest) -> str:
    """Everything that the page says in text."""
    kinds = ("title", "markdown", "caption", "error", "info", "warning")
    return text_of(" ".join(str(each.value) for kind in kinds for each in app.get(kind)))


def test_an_uploaded_configuration_is_planned_for(opened: OPEN) -> None:
    app = uploaded(opened(), json.dumps(DEEPER).encode())
    model = app.session_state.model
    assert model.startswith("llama 8.9")
    said = shown(app)
    assert "the link cannot carry it" in said
    assert "scaled from the law of" in said
    assert app.sidebar.selectbox(key="model").value == model


def test_a_link_names_it_and_says_what_is_missing(opened: OPEN) -> None:
    query = query_of(uploaded(opened(), json.dumps(LLAMA_8B | {"num_hidden_layers": 35}).encode()))
    query["model"] = (
        query["model"].replace("(config.json ", "(config.json 0")[:-2] + ")"
    )  # of a server that has not seen it
    assert "give its config.json again" in shown(open_query(query))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"not json", "not JSON"),
        (b"{}", "'hidden_size'"),
        (json.dumps(LLAMA_8B | {"model_type": "<img src=x>"}).encode(), "'model_type'"),
        (json.dumps(LLAMA_8B | {"num_hidden_layers": 10**9}).encode(), "'num_hidden_layers'"),
        (b" " * (MOST_BYTES + 1), "larger than 4 MiB"),
        (b'{"a": ' * 10_000, "not JSON"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line_and_changes_nothing(opened: OPEN, content: bytes, part: str) -> None:
    app = opened()
    before = app.session_state.model
    uploaded(app, content)
    (said,) = [text_of(error.value) for error in app.sidebar.error]
    assert said.startswith("mine.json was not accepted: config.json") and part in said
    assert "\n" not in app.sidebar.error[0].value
    assert "<img" not in app.sidebar.error[0].value.replace("\\<", "")
    assert app.session_state.model == before
