"""Built repositories, served locally as a user does it: two of the eight kinds, by choice all."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.environment import PROJECT
from tests.calibration.clients.wire import V05, V08, WITHIN_S, Client, Dialect
from triton_tools.repository.builder import build_repository
from triton_tools.repository.options import Batching, Options

SERVE = [sys.executable, "-m", "calibration", "serve", "--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]
PROMPT = list(range(5, 15))
TEXT = "baba gito bila bebo hemi"
LONG = 450  # tokens: they take the local model a second, so that a stop comes in time
STOP_AFTER_S = 0.2


@dataclass(frozen=True)
class Kind:
    dialect: Dialect
    batching: Batching
    decoupled: bool

    def __str__(self) -> str:
        return f"{self.dialect.contract}-{self.batching}{'-decoupled' * self.decoupled}"


@dataclass(frozen=True)
class Served:
    url: str
    dialect: Dialect

    def client(self) -> Client:
        return Client(self.url, self.dialect)

    def other_client(self) -> Client:
        """One of the other release."""
        return Client(self.url, V08 if self.dialect is V05 else V05)


def kinds(decoupled: bool) -> list[Kind]:
    """A v0.8 that streams, or a static v0.5 of one answer per call; with SIZING_EVERY_REPOSITORY all of that sort."""
    if "SIZING_EVERY_REPOSITORY" in os.environ:
        return [Kind(*both, decoupled) for both in itertools.product((V05, V08), ("in_flight", "static"))]
    return [Kind(V08, "in_flight", True) if decoupled else Kind(V05, "static", False)]


@contextmanager
def served_as(kind: Kind, folder: Path) -> Iterator[Served]:
    """`repository build` into `folder`, then `serve --repository`; engine and tokenizer are not to be found here."""
    contract, batching, decoupled = kind.dialect.contract, kind.batching, kind.decoupled
    options = Options("/engines/e", "/tokenizers/t", contract=contract, batching=batching, decoupled=decoupled)
    command = [*SERVE, "--repository", str(build_repository(folder, options))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
    assert process.stdout is not None and process.stderr is not None
    try:
        ready = process.stdout.readline()
        found = re.match(r"READY grpc=(\S+) ", ready)
        assert found, ready + process.stderr.read()
        yield Served(found[1], kind.dialect)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
