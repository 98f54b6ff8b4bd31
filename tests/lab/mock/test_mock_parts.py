"""Parts of the built-in mock: messages made by hand, the timer wheel, the truth, the process."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from calibration.errors import ServerError
from lab.mock.process import running
from lab.mock.service import TICKS_PER_S, Script, Truth, Wheel, asked, grpc_response
from sizing.files import IMPORTED_FROM as ROOT
from tests.lab.mock.asking import (
    FAST,
    HALF_A_TICK_S,
    answered,
    answers,
    message,
    seen,
)


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(0, 300), st.sampled_from([True, False, None]))
def test_responses_made_by_hand_are_what_protobuf_reads(request_id: str, tokens: int, final: bool | None) -> None:
    raw = grpc_response(request_id, tokens, final)
    assert struct.unpack(">BI", raw[:5]) == (0, len(raw) - 5)
    response = service_pb2.ModelStreamInferResponse.FromString(raw[5:])
    assert response.infer_response.id == request_id
    assert seen(response) == (tokens, final)
    words = list(response.infer_response.raw_output_contents[:1])
    assert sum(len(word[4:].split()) for word in words) == tokens


@settings(deadline=None)
@given(st.integers(1, 2**31 - 1))
def test_tokens_asked_for_are_read_from_raw_and_from_typed_contents(osl: int) -> None:
    assert asked(message(osl)) == osl
    typed = service_pb2.ModelInferRequest(model_name="ensemble")
    typed.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1]).contents.int_contents.append(osl)
    assert asked(typed) == osl


@settings(deadline=None)
@given(st.lists(st.floats(-0.01, 0.02), min_size=1, max_size=30))
def test_the_wheel_hands_over_everything_in_order_and_nothing_early(delays_s: list[float]) -> None:
    async def turn() -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        all_there = asyncio.Event()

        def on_due(due: list[float]) -> None:
            found.extend((due_s, time.perf_counter()) for due_s in due)
            if len(found) == len(delays_s):
                all_there.set()

        wheel = Wheel(on_due)
        start_s = time.perf_counter()
        for delay_s in delays_s:
            wheel.at(start_s + delay_s, start_s + delay_s)
        await all_there.wait()
        return found

    found = asyncio.run(turn())
    ticks = [round(due_s * TICKS_PER_S) for due_s, _ in found]
    assert ticks == sorted(ticks)
    assert all(came_s >= due_s - 2 * HALF_A_TICK_S for due_s, came_s in found)


def test_the_wheel_turns_for_an_earlier_item_than_it_was_waiting_for() -> None:
    async def first() -> str:
        came: asyncio.Queue[list[str]] = asyncio.Queue()
        wheel = Wheel(came.put_nowait)
        wheel.at(time.perf_counter() + 3600, "in an hour")
        wheel.at(time.perf_counter() + 0.002, "now")
        async with asyncio.timeout(30):
            return (await came.get())[0]

    assert asyncio.run(first()) == "now"


def test_truth_survives_its_file(tmp_path: Any) -> None:
    _, truth = answered(FAST)
    truth.save(tmp_path / "truth.npz")
    again = Truth.load(tmp_path / "truth.npz")
    assert (again.responses, again.cpu_s) == (truth.responses, truth.cpu_s)
    assert np.array_equal(again.ttft_s, truth.ttft_s)
    assert np.array_equal(again.tokens, truth.tokens)


def test_little_s_law_of_a_script() -> None:
    assert Script(0.02, 0.005).requests_per_s(256, osl=64) * (0.02 + 63 * 0.005) == pytest.approx(256)
    assert Script(0.02, 0.005, slots=8).requests_per_s(256, osl=64) == Script(0.02, 0.005).requests_per_s(8, osl=64)


def test_a_mock_ends_with_its_owner() -> None:
    with running(FAST) as found:
        assert not len(found.truth())
    with pytest.raises(ProcessLookupError):
        os.kill(found.pid, 0)
    with pytest.raises(ServerError, match="ended"), running(FAST) as lost:
        os.kill(lost.pid, signal.SIGKILL)
        os.waitid(os.P_PID, lost.pid, os.WEXITED | os.WNOWAIT)  # from then on a question breaks the pipe
        lost.truth()


def test_ctrl_c_in_a_terminal_is_for_the_owner_who_then_ends_the_mock() -> None:
    """The terminal sends it to every process of its group; a mock that took it would print a traceback."""
    code = (
        "import signal, time; from lab.mock.process import running; from lab.mock.service import Script\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job of a shell ignores it
        "try:\n"
        "    with running(Script()) as mock:\n"
        "        print(mock.pid, flush=True)\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.communicate() == ("interrupted\n", "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_people_start_it_from_a_shell_and_are_told_what_it_did() -> None:
    command = [sys.executable, "-m", "lab.mock", "--ttft", "2ms", "--itl", "1ms"]
    ports = ["--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "READY"
        assert len(asyncio.run(answers(words[2], message(3)))) == 3
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().startswith("1 requests, 1 answered: TTFT ")
        assert process.wait() == 0
    bad = subprocess.run([*command[:3], "--ttft", "soon"], capture_output=True, text=True, cwd=ROOT)
    assert bad.returncode == 2
    assert "'soon' is not a time" in bad.stderr
