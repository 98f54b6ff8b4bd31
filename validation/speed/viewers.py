"""Many viewers at once: real websocket sessions that open the page and change its question every few seconds.

Run: python -m validation.speed.viewers [--viewers 50] [--seconds 60] [--pause 4] [--servers 1]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Common_pb2 import StringArray
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import ClientConnection, connect

from tests.browser.served import Server, started
from ui import link
from ui.scenario import PRESETS, Scenario
from validation.speed.waits import in_a_line

LOAD = "Peak load (requests/s)"
GIVE_UP_AFTER_S = 60.0
MB = 1_000_000


@dataclass(slots=True)
class Waits:
    """Seconds that viewers waited, and what went wrong, of all viewers together; how often each changed something."""

    opening_s: list[float] = field(default_factory=list)
    change_s: list[float] = field(default_factory=list)
    changes: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


class WrongAnswer(Exception):
    """The server answered another question than the one asked, or failed to answer."""


class Viewer:
    """One browser's side of the conversation: sends changes of the load, waits for the URL that holds the answer."""

    def __init__(self, connection: ClientConnection, scenario: Scenario) -> None:
        self._connection = connection
        self._url = link.to_query(scenario)
        self._widgets: dict[str, WidgetState] = {}
        self._load_id = ""

    async def open(self) -> None:
        """Ask for the page by its link; returns once the answer is there and the run is over."""
        await self._ask(BackMsg(), self._url)

    async def change_load(self, rate_per_s: float) -> None:
        """Type another load; returns once the answer to it is there and the run is over."""
        self._widgets[self._load_id].double_value = rate_per_s
        message = BackMsg()
        message.rerun_script.widget_states.widgets.extend(self._widgets.values())
        await self._ask(message, self._url | {"rate": repr(rate_per_s)})

    async def _ask(self, message: BackMsg, expected: dict[str, str]) -> None:
        message.rerun_script.query_string = urlencode(self._url)  # as in a browser: the URL changes with the answer
        await self._connection.send(message.SerializeToString())
        said = ""
        async with asyncio.timeout(GIVE_UP_AFTER_S):
            while (got := ForwardMsg.FromString(await self._received())).WhichOneof("type") != "script_finished":
                self._note(got.delta.new_element)
                said = got.page_info_changed.query_string or said
        self._url = {key: values[-1] for key, values in parse_qs(said).items()}
        other = {key for key, value in expected.items() if key != "n" and self._url.get(key) != value}
        if "n" not in self._url or other:
            raise WrongAnswer(f"the page answers no question, or another one: {sorted(other) or 'no count of GPUs'}")

    async def _received(self) -> bytes:
        message = await self._connection.recv()
        return message if isinstance(message, bytes) else message.encode()

    def _note(self, element: Element) -> None:
        kind = element.WhichOneof("type")
        if kind in VALUE:
            widget = getattr(element, kind)
            if widget.set_value or widget.id not in self._widgets:
                self._widgets[widget.id] = WidgetState(id=widget.id, **VALUE[kind](widget))
        if element.number_input.label == LOAD:
            self._load_id = element.number_input.id


def _number(widget: Any) -> dict[str, float]:
    value = "value" if widget.set_value else "default"
    return {"double_value": getattr(widget, value)} if widget.HasField(value) else {}


VALUE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "number_input": _number,
    "checkbox": lambda widget: {"bool_value": widget.value if widget.set_value else widget.default},
    "selectbox": lambda widget: {"string_value": widget.raw_value},
    "multiselect": lambda widget: {"string_array_value": StringArray(data=widget.raw_values)},
}
"""What a browser says of a widget with every change: the server forgets the value of one that is not mentioned."""


def scenarios(viewers: int) -> Iterator[Scenario]:
    """Presets and the first screen in turn."""
    kinds = [Scenario(), *(_preset(name) for name in ("Chat", "RAG", "Code"))]
    return (kinds[n % len(kinds)] for n in range(viewers))


def _preset(name: str) -> Scenario:
    preset = PRESETS[name]
    return Scenario(**{key: getattr(preset, key) for key in ("isl", "isl_cv", "osl", "osl_cv", "ttft", "itl", "e2e")})


async def visit(
    address: str, scenario: Scenario, until_s: float, pause_s: float, seed: int, waits: Waits, most: float = math.inf
) -> None:
    """One viewer from opening to leaving at `until_s` of the monotonic clock, or after `most` changes; pauses are
    random around `pause_s`."""
    draw = random.Random(seed)
    try:
        stream = address.replace("http", "ws", 1) + "/_stcore/stream"
        async with connect(stream, subprotocols=["streamlit"], max_size=None) as connection:  # type: ignore[list-item]
            viewer = Viewer(connection, scenario)
            start = time.monotonic()
            await viewer.open()
            waits.opening_s.append(time.monotonic() - start)
            while waits.changes[seed] < most:
                await asyncio.sleep(draw.expovariate(1 / pause_s))
                if time.monotonic() > until_s:
                    return
                start = time.monotonic()
                await viewer.change_load(round(draw.uniform(5, 200), 1))
                waits.change_s.append(time.monotonic() - start)
                waits.changes[seed] += 1
    except (WrongAnswer, OSError, TimeoutError) as error:
        waits.errors.append(f"{type(error).__name__}: {error}"[:300])


async def all_visit(
    addresses: Sequence[str], viewers: int, seconds: float, pause_s: float, asked: Counter[int] | None = None
) -> Waits:
    """All viewers, in turn on each server, arrive within one pause of each other and leave after `seconds`, or when
    they have changed something as often as they `asked` before."""
    waits, draw, until_s = Waits(), random.Random(viewers), time.monotonic() + seconds

    async def arrive(number: int, scenario: Scenario) -> None:
        await asyncio.sleep(draw.uniform(0, pause_s))
        most = math.inf if asked is None else asked[number]
        await visit(addresses[number % len(addresses)], scenario, until_s, pause_s, number, waits, most)

    await asyncio.gather(*(arrive(number, scenario) for number, scenario in enumerate(scenarios(viewers))))
    return waits


@dataclass(frozen=True, slots=True)
class Needs:
    """What the servers have needed so far, all processes together, those that compute for them included.

    `memory_bytes`: proportional set sizes, in which pages that several processes share count once.
    """

    memory_bytes: int
    cpu_s: float

    @classmethod
    def of(cls, servers: Sequence[Server]) -> Needs:
        own = [psutil.Process(server.process.pid) for server in servers]
        processes = [each for one in own for each in (one, *one.children(recursive=True))]
        cpu_s = sum(sum(process.cpu_times()[:2]) for process in processes)
        return cls(sum(process.memory_full_info().pss for process in processes), cpu_s)


def main() -> None:
    """Print waits, errors and what the server needed: with loads nobody has asked for yet, then with the same again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=4.0, help="Mean seconds between a viewer's changes.")
    parser.add_argument("--servers", type=int, default=1, help="Processes that share the viewers and one store.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        database = f"sqlite:///{folder}/calibration.db"
        servers = [stack.enter_context(started(database)) for _ in range(options.servers)]
        for server in servers:  # warm: compiled, and the candidates of every scenario known
            asyncio.run(all_visit([server.address], 4, 0, 0.1))
        asked = one_round("loads never asked for", servers, options)
        one_round("loads asked for before", servers, options, asked)


def one_round(
    name: str, servers: Sequence[Server], options: argparse.Namespace, asked: Counter[int] | None = None
) -> Counter[int]:
    """All viewers come, ask and leave; returns how often each changed something.

    The draws are the same every round, so that a second one, given what was `asked` in the first, repeats its loads.
    """
    before, start = Needs.of(servers), time.monotonic()
    addresses = [server.address for server in servers]
    waits = asyncio.run(all_visit(addresses, options.viewers, options.seconds, options.pause, asked))
    passed_s, after = time.monotonic() - start, Needs.of(servers)
    runs, cpu_s = len(waits.change_s) + len(waits.opening_s), after.cpu_s - before.cpu_s
    print(f"{name}: {options.viewers} viewers for {passed_s:.0f} s, {len(waits.change_s) / passed_s:.1f} changes/s")
    print(in_a_line("  opening to answer", waits.opening_s))
    print(in_a_line("  change to answer", waits.change_s))
    print(f"  errors: {len(waits.errors)}", *dict.fromkeys(waits.errors), sep="\n  ")
    print(f"  processor: {cpu_s / passed_s:.0%} of a core, {cpu_s / max(runs, 1):.3f} s for each answer")
    print(f"  memory: {before.memory_bytes / MB:.0f} MB before, {after.memory_bytes / MB:.0f} MB after")
    return waits.changes


if __name__ == "__main__":
    main()
