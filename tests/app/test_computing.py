"""Questions of the pages in the server's processes: the same answers, nothing lost, nothing computed for nobody."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from api.forked import Lost
from api.workers import Full, Workers
from sizing import catalog, planner
from sizing.budget import within
from sizing.candidates import Choice, find
from sizing.errors import NotComputed
from sizing.estimate.checkpoints import known
from sizing.question import Question
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.app.conftest import ONE
from ui import answers, computing
from ui.computing import Available, computed
from ui.words import sentence_case

QUESTION = Question("Qwen/Qwen3-32B", Workload(Lengths(1000, 100), 5.0), Sla(Limit("ttft", 95, 2.0)))
CHOICE = Choice(("h200_sxm",), tps=(2,), engines=("trtllm",))
NOTHING = Available((), "nothing")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own, as a server's does."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture(autouse=True)
def _own_process_again() -> Iterator[None]:
    yield
    computing.stop_using()


@pytest.fixture(scope="module")
def one_process() -> Iterator[Workers]:
    """A process takes longer to start than to answer."""
    made = Workers(1, limit_s=60.0)
    yield made
    made.end()


@pytest.fixture
def workers(one_process: Workers, loop: asyncio.AbstractEventLoop) -> None:
    computing.use(one_process, loop)


class Large(list[int]):
    """What only computing needs; unlike a list it can be watched."""


def test_an_answer_is_kept_without_what_it_was_computed_of(workers: None) -> None:
    """The fleet whose curve was asked for is as large as the curve."""
    needed = Large([1, 2])
    assert computed(sum, needed, key=("three",), model="") == 3
    watched = weakref.ref(needed)
    del needed
    assert watched() is None
    assert computed(sum, Large([5]), key=("three",), model="") == 3, "kept under its key"
    assert computed(max, Large([1, 7]), key=("three",), model="") == 7, "of another function"


class Refusing:
    """Workers that compute nothing: they raise, or wait for ever and note who has left."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.left = error, threading.Event()

    async def answer(self, job: computing.Computation) -> Any:
        if self.error:
            raise self.error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


def process(_: object = None) -> int:
    return os.getpid()


def uses_own(name: str) -> float:
    return catalog.model(name).parameters


def test_without_a_server_a_page_computes_in_its_own_process() -> None:
    assert computed(process, None, key=(), model="") == os.getpid()


@pytest.mark.usefixtures("workers")
def test_another_process_computes_the_same_plan() -> None:
    assert computed(process, None, key=(), model="") != os.getpid()
    arguments = QUESTION, CHOICE, NOTHING
    there = computed(computing.outcome, *arguments, key=arguments, model=QUESTION.model)
    here = planner.plan(QUESTION, *find(QUESTION.model, QUESTION.workload.lengths, CHOICE))
    assert repr(there.plan) == repr(here)  # to the last digit; what is not known is NaN, which equals nothing
    assert computing.first_answer_there() == "ok"


@pytest.mark.usefixtures("workers")
def test_the_other_process_knows_a_model_that_the_visitor_brought(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    own = catalog.keep(known(str(tmp_path / "config.json")))
    assert computed(uses_own, own.id, key=(own.id,), model=own.id) == own.parameters


def test_a_visitor_who_leaves_takes_the_question_along(loop: asyncio.AbstractEventLoop) -> None:
    class Gone(Exception):
        pass

    def look_up() -> None:
        raise Gone

    waiting = Refusing()
    computing.use(waiting, loop)
    with pytest.raises(Gone), within(look_up=look_up):
        computed(process, None, key=(), model="")
    assert waiting.left.wait(10)


@pytest.mark.parametrize(("error", "unasked_per_s"), [(Full(), 3.25), (Lost(), 3.75)], ids=["full", "lost"])
def test_what_no_process_computed_is_one_line_on_the_page_and_asked_again(
    error: NotComputed, unasked_per_s: float, loop: asyncio.AbstractEventLoop, opened: Callable[..., AppTest]
) -> None:
    computing.use(Refusing(error), loop)
    page = opened(replace(ONE, rate_per_s=unasked_per_s))
    assert not page.exception
    assert page.title[0].value == "This question was not computed"
    assert page.markdown[-1].value.replace("\\", "") == sentence_case(str(error))
    computing.stop_using()
    page.run()
    assert page.title[0].value.startswith("You need")


def test_keys_of_kept_answers_hold_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server keeps thousands of them: the digest of the points stands for these."""
    seen: list[tuple[Any, ...]] = []

    def noted(*_: Any, key: tuple[Any, ...], model: str) -> None:
        seen.append(key)

    monkeypatch.setattr(answers, "computed", noted)
    scenario = replace(ONE, rate_per_s=21.37, isl=1237)
    for ask in (answers.outcome, answers.pools, answers.carried, answers.ways_out):
        ask(scenario)  # type: ignore[operator]
    answers.speeds(scenario, None)
    assert len(seen) == 5
    assert all(isinstance(key[-1], str) and not any(isinstance(part, Available) for part in key) for key in seen)
