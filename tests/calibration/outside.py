"""What happens to a store from outside: other processes, and statements past it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import sqlalchemy as sql

ROOT = Path(__file__).parents[2]


def altered(url: str, statement: str) -> None:
    """Change the database behind the store's back."""
    engine = sql.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sql.NullPool)
    with engine.begin() as connection:
        connection.execute(sql.text(statement))


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs `code`."""
    command, pipe = [sys.executable, "-c", code, *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def go_on(process: subprocess.Popen[str]) -> None:
    """Give a process the line of input that it waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> str:
    """The rest of what a process printed; it must end well."""
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


BEGIN_AND_WAIT = """
import sys
from calibration.store import Store
print(Store(sys.argv[1]).create_run("plan"), flush=True)
sys.stdin.readline()
"""


def begun_elsewhere(url: str) -> tuple[subprocess.Popen[str], int]:
    """A process that has begun a run and is at it until it is killed, and the number of the run."""
    process = python(BEGIN_AND_WAIT, url)
    return process, int(first_line(process))
