"""Hostile values for the options of both command lines, on commands that end before they compute or measure."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

import click

from calibration.__main__ import main as calibration_main
from sizing.cli import cli
from sizing.cli import main as sizing_main
from tests.fuzz.mutations import TOKENS

LONGEST_LINE = 300
WORKLOAD = ["--isl", "2000", "--osl", "256", "--rate", "20"]
ASKED = ["--model", "Qwen/Qwen3-32B", "--gpu", "h200_sxm", "--tp", "2", "--ttft", "p95:1s"]
SHARE = ["--model", "m", "--gpu", "h200_sxm", "--workload", "chat:isl=1000,osl=200,rate=5,ttft=p95:1s"]
SIZING: dict[str, list[str]] = {
    "plan": [*ASKED, *WORKLOAD],
    "capacity": ["--gpus", "8", *ASKED, "--isl", "2000", "--osl", "256"],
    "predict": WORKLOAD,
    "fit": [],
    "share": SHARE,
    "whatif": [*ASKED, *WORKLOAD, "--change", "precision=fp8"],
    "course": ["--peak", "5", "--ttft", "300ms"],
}
"""Commands that read measured points after their options, and the options of a good question."""
ALONE: dict[str, list[str]] = {
    "lesson": ["--slots", "4", "--load", "batch:100", "--ticks", "100"],
    "report": ["--plan", "absent.json", "--out", "x.html"],
    "study": ["absent.yaml"],
    "demand": ["draw", "absent.json", "--days", "1", "--out", "x.csv"],
    "watch": ["--plan", "absent.json", "--dashboard", "x.json"],
    "batcher": ["absent.pbtxt", "--service-times", "8ms+1ms*n", "--rate", "300", "--requests", "100"],
}
NO_POINTS = ("absent.csv", "x" * 5000, "/", "/dev/zero", "\udcff.csv", "\x1b[2J", "-")
CALIBRATION: tuple[list[str], ...] = (
    ["run", "absent.yaml"],
    ["resume", "3"],
    ["show", "3"],
    ["accept", "3"],
    ["discard", "3"],
    ["export", "3", "--out", "x.csv"],
    ["list"],
    ["import", "absent.csv", "--gpu", "h200_sxm", "--tp", "2", "--isl", "100", "--rate", "5"],
    ["compare", "one.csv", "two.csv"],
    ["repository", "check", "absent"],
    [
        "repository",
        "build",
        "models",
        "--engine",
        "/e",
        "--tokenizer",
        "/t",
        "--max-batch-size",
        "8",
        "--decoupled",
        "--max-queue-size",
        "64",
        "--max-delay-us",
        "100",
        "--preferred-batch-sizes",
        "4,8",
        "--gpu-device-ids",
        "0,1",
    ],
)
HOSTILE = (
    *(token for token in TOKENS if "\0" not in token),  # no argument of a process holds a NUL
    *("x" * 10_000, "9" * 20_000, "a=" * 3000, "," * 5000, "p95:" + "9" * 500 + "s", "\udcff", "-"),
)


def sample(rng: random.Random) -> bytes:
    """A command line with one or two arguments changed or added."""
    if rng.random() < 0.35:
        arguments = ["calibration", *rng.choice(CALIBRATION)]
        fixed = 3 if arguments[1] == "repository" else 2
        return json.dumps(_changed(arguments, fixed, [], rng)).encode()
    name = rng.choice([*SIZING, *SIZING, *ALONE])
    arguments = ["sizing", name, *(SIZING | ALONE)[name]]
    found = _changed(arguments, 2, _options(name), rng)
    if name in SIZING:
        found += ["--points", rng.choice(NO_POINTS)]
    return json.dumps(found).encode()


def _options(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return [
        option.opts[0] for option in options if not option.is_flag and option.opts[0] not in ("--points", "--cluster")
    ]


def _changed(arguments: list[str], fixed: int, options: list[str], rng: random.Random) -> list[str]:
    found = list(arguments)
    for _ in range(rng.choice((1, 1, 2))):
        places = [at for at in range(fixed, len(found)) if not found[at].startswith("--")]
        if options and (rng.random() < 0.5 or not places):
            found += [rng.choice(options), rng.choice(HOSTILE)]
        elif places and rng.random() < 0.9:
            found[rng.choice(places)] = rng.choice(HOSTILE)
        else:
            found.insert(rng.randint(fixed, len(found)), rng.choice(HOSTILE))
    return found


class Unfit(Exception):
    """What a command wrote or how it ended is not what the contract says."""


def run(raw: bytes, folder: Path) -> None:
    """The command in a folder and a store of its own: exit 0, 2 or 3, and one short line of error at most."""
    program, *arguments = json.loads(raw)
    main: Callable[[list[str]], NoReturn] = sizing_main if program == "sizing" else calibration_main  # type: ignore[assignment]
    before, environment = Path.cwd(), dict(os.environ)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    os.chdir(folder)
    os.environ["SIZING_DATABASE_URL"] = f"sqlite:///{folder / 'points.db'}"
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as ended:
        code = ended.code
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
    err.flush()
    written = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if code not in (0, 2, 3):
        raise Unfit(f"exit code {code}: {written[-200:]}")
    lines = written.splitlines()
    if code == 2 and len(lines) != 1:
        raise Unfit(f"{len(lines)} lines of error: {written[:200]}")
    if any(len(line) > LONGEST_LINE for line in lines):
        raise Unfit(f"a line of {max(map(len, lines))} characters: {written[:200]}")
