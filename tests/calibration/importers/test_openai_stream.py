"""Server-sent events, however the network cut them into responses."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from calibration.importers.perf_analyzer import Usage, events_of, payload_of


def stream(words: int) -> str:
    """A role, `words` words with a trap in them, the token usage, and the end."""
    word = {"choices": [{"delta": {"content": "a }\n\n{ b"}}]}
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": words}}
    events = [role, *[word] * words, usage]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


@given(words=st.integers(0, 6), data=st.data())
def test_text_and_usage_are_found_wherever_the_stream_is_cut(words: int, data: st.DataObject) -> None:
    text = stream(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    places, usage = events_of([{"response": part} for part in parts])
    assert len(places) == words
    assert places == sorted(places)
    assert usage == Usage(prompt_tokens=7, completion_tokens=words)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["choices", "delta", "usage", "content"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_events_of_any_shape_are_no_text_or_text_but_no_crash(event: object) -> None:
    places, _ = events_of([{"response": f"data: {json.dumps(event)}\n\n"}, {"other": event}])
    assert set(places) <= {0}


def test_a_payload_says_model_and_length() -> None:
    payload = payload_of({"payload": json.dumps({"model": "m", "max_completion_tokens": 9})})
    assert (payload.model, payload.osl) == ("m", 9)
    assert payload_of({"payload": "{broken"}) == payload_of({}) == (None, None)
