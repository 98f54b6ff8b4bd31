"""Decode steps read off the times of tokens: those of an engine that is known are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from calibration.records import RequestLog
from lab.gpu.steps import BATCHES, DecodeSteps, decode_gaps, decode_steps, read_steps, write_steps
from sizing.points import Point
from tests.calibration.loads import DEPLOYMENT

PROMPT_S = 0.05


def step_s(sequences: int) -> float:
    """Of the engine: it changes kernels after 16."""
    return 0.010 + 0.0001 * sequences + (0.004 if sequences > 16 else 0.0)


def served(users: int, tokens: list[int], late_s: float = 0.003) -> RequestLog:
    """Requests of so many tokens by users of a closed loop; a first token comes `late_s` after those of its step."""
    waiting, running, now_s = list(range(len(tokens))), list[int](), 0.0
    came: dict[int, list[float]] = {}
    while waiting or running:
        new = [waiting.pop(0) for _ in range(min(users - len(running), len(waiting), 1))]
        now_s += step_s(len(running)) + PROMPT_S * len(new)
        for request in running:
            came[request].append(now_s)
        for request in new:
            came[request] = [now_s + late_s]
        running = [each for each in (*running, *new) if len(came[each]) < tokens[each]]
    at_s = [np.array(came[number]) for number in range(len(tokens))]
    sent_s = np.array([times[0] - PROMPT_S for times in at_s])
    counts = np.array([len(times) for times in at_s])
    lasts_s = np.array([times[-1] for times in at_s])
    sizes = np.array(tokens)
    joined = np.concatenate(at_s)
    error = ("",) * len(tokens)
    return RequestLog(sent_s, sent_s, lasts_s, sizes, sizes, error, counts, joined, np.ones(len(joined), np.int64))


def point() -> Point:
    labels = {name: getattr(DEPLOYMENT, name) for name in ("model", "precision", "gpu", "tp", "engine")}
    return Point(**labels, isl=10, osl=50, load_kind="concurrency", load_value=20, requests_per_s=1.0)


@given(some.integers(1, 40), some.integers(0, 99))
def test_gaps_are_the_steps_of_so_many_sequences(users: int, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(2, 60, size=3 * users).tolist()
    sequences, gap_s = decode_gaps(served(users, tokens))
    assert gap_s == pytest.approx([step_s(int(each)) for each in sequences], abs=1e-9)


def test_steps_with_prompts_and_failed_requests_are_left_out() -> None:
    log = served(4, [30] * 12)
    assert decode_gaps(log)[1].max() < PROMPT_S
    broken = replace(log, error=("lost", *log.error[1:]))
    assert len(decode_gaps(broken)[0]) < len(decode_gaps(log)[0])


def test_a_jump_between_kernels_is_seen_and_kept(tmp_path: Path) -> None:
    logs = [served(users, [50] * (4 * users)) for users in (8, 16, 20)]
    found = decode_steps((point(), log) for log in logs)
    by_most = {step.most: step for step in found}
    assert by_most[20].median_s - by_most[16].median_s == pytest.approx(0.004, abs=0.001)
    for step in found:
        assert step.above < step.sequences <= step.most and step.most in BATCHES
        assert step.median_s == pytest.approx(step_s(round(step.sequences)), rel=0.03)
    write_steps(tmp_path / "steps.csv", found)
    again = read_steps(tmp_path / "steps.csv")
    assert [step[:-2] for step in again] == [step[:-2] for step in found]
    assert [step.median_s for step in again] == pytest.approx([step.median_s for step in found], abs=1e-6)
    assert read_steps(tmp_path / "none.csv") == []
    assert all(isinstance(step, DecodeSteps) for step in again)
