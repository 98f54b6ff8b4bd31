"""A short campaign over all readers, and that one notices what it is there for. ``make fuzz`` is a long one."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest

from sizing.errors import PointsError
from tests.fuzz.attempt import attempt
from tests.fuzz.campaign import all_readers, campaign, input_of, summary
from tests.fuzz.commands import Unfit, run
from tests.fuzz.readers import Read, prepare

INPUTS = int(os.environ.get("FUZZ_INPUTS", "1000"))
SEED = int(os.environ.get("FUZZ_SEED") or (0 if os.environ.get("CI") else random.SystemRandom().randrange(10**6)))


@pytest.mark.timeout(900)
def test_no_input_brings_a_reader_down(capsys: pytest.CaptureFixture[str]) -> None:
    """In a value or one short line each, within 512 MB and 10 s of CPU."""
    results = campaign(SEED, INPUTS, processes=1)
    said = summary(SEED, results)
    with capsys.disabled():
        print(f"\n{said.splitlines()[-1]}")
    assert [result.number for result in results] == list(range(INPUTS))
    assert not any(result.fault for result in results), (
        f"{said}\nagain: python -m tests.fuzz --seed {SEED} --only NUMBER"
    )


def test_an_input_follows_from_seed_and_number(tmp_path: Path) -> None:
    prepare(tmp_path)
    inputs = [input_of(7, number) for number in range(30)]
    assert inputs == [input_of(7, number) for number in range(30)]
    assert inputs != [input_of(8, number) for number in range(30)]
    assert len({place for place, _ in inputs}) > 10


def test_every_good_input_is_read(tmp_path: Path) -> None:
    """So that what is refused is refused for what was changed."""
    prepare(tmp_path / "made")
    for reader in all_readers()[:-1]:
        for sample in reader.samples():
            came = attempt(reader.read, sample, tmp_path / "input", most_s=120, most_mb=10_000)
            assert (came.fault, came.refused) == ("", False), reader.name


def crash(raw: bytes, folder: Path) -> None:
    raise KeyError(raw)


def refuse(raw: bytes, folder: Path) -> None:
    raise PointsError("no")


def many_lines(raw: bytes, folder: Path) -> None:
    error = PointsError("no")
    error.args = ("two\nlines",)
    raise error


def hoard(raw: bytes, folder: Path) -> None:
    """Take 64 MB from the system: the heap may still hold as much that earlier tests freed."""
    with mmap(-1, 64 << 20) as memory:
        memory[::PAGESIZE] = bytes(len(memory) // PAGESIZE)


def dawdle(raw: bytes, folder: Path) -> None:
    while True:
        with suppress(Exception):
            sum(range(10_000))


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (crash, "traceback: KeyError"),
        (many_lines, "line: "),
        (hoard, "memory: 6"),
        (dawdle, "time: over 0.2 s"),
        (refuse, ""),
    ],
)
def test_what_is_noticed(read: Read, fault: str, tmp_path: Path) -> None:
    came = attempt(read, b"x", tmp_path / "input", most_s=0.2, most_mb=50)
    assert came.fault.startswith(fault) and bool(came.fault) == bool(fault)
    assert came.refused == (read in (refuse, many_lines))
    assert not (tmp_path / "input").exists()


def test_a_command_must_end_as_the_contract_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(b'["sizing", "plan", "--fast"]', tmp_path)
    monkeypatch.setattr("tests.fuzz.commands.LONGEST_LINE", 20)
    with pytest.raises(Unfit, match=r"a line of \d+ characters: error: No such option"):
        run(b'["sizing", "plan", "--fast"]', tmp_path)
    monkeypatch.setattr("tests.fuzz.commands.sizing_main", lambda arguments: exit(1))
    with pytest.raises(Unfit, match="exit code 1"):
        run(b'["sizing", "plan"]', tmp_path)
