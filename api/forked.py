"""Processes that compute, forked from one that has loaded everything: they begin in milliseconds and share its memory.

A planner in memory, machine code included, takes 200 MB and two seconds; a process forked from it adds 11 MB, and 45 MB
once it has answered some thousand questions. This is multiprocessing's fork server in small, which cannot be used here:
it runs the program's `__main__` in every process, and under Streamlit that is the page.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol, cast

from sizing.__main__ import OBJECTS_BETWEEN_COLLECTIONS
from sizing.compiled import has_compiled
from sizing.errors import NotComputed, SizingError

PARENT_EVERY_S = 1.0
"""Seconds between two checks of a process that its parent is still alive."""
ANSWERED_BETWEEN_COLLECTIONS = 10_000
"""Objects that answers make: what they leave in cycles is garbage until it is looked for, 8 kB each."""
HEAD_BYTES = 8
"""Of a number, big-endian: a process id, or the length of the message that follows."""
MOST_AT_ONCE_BYTES = 1 << 20
PROGRAM = """import json, sys
sys.path[:] = json.loads(sys.argv[2])
from api.forked import main
main(*sys.argv[1:])"""


class Job(Hashable, Protocol):
    """A question that another process can answer; equal objects are the same question."""

    @property
    def kept_as(self) -> Hashable:
        """The key of its cached answer: equal only for equal questions, without what only the computation needs."""

    def answer(self, limit_s: float) -> Any:
        """The answer; raises TimeLimitReached if it takes more than `limit_s` seconds of CPU."""


class Lost(NotComputed):
    """The process of a question died."""

    def __init__(self) -> None:
        super().__init__("the process that computed the answer died, twice: too little memory? Ask for less at once")


class Packed(NamedTuple):
    """A compressed answer. `worn`: the process that computed it should be replaced, because it has compiled and keeps
    370 MB that a new process, which loads the compiled code, does not need."""

    answer: bytes
    worn: bool


def packed(job: Job, limit_s: float) -> Packed:
    """The answer of a job, for `unpacked`."""
    try:
        return Packed(zlib.compress(pickle.dumps(job.answer(limit_s)), level=1), has_compiled())
    finally:
        give_back_memory()


def unpacked(answer: bytes) -> Any:
    """The answer that `packed` compressed; every caller gets a copy of its own."""
    return pickle.loads(zlib.decompress(answer))


def give_back_memory() -> None:
    """Return unused memory to the system if the C library can: glibc would keep 60 MB of freed arrays in each process.
    Takes a millisecond."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


# --- The server's side


class ForkServer:
    """The process that the others are forked from. It starts when it is first needed, and again if it has died.

    `load`: functions of modules that load what questions need; they are called before the first fork.
    """

    def __init__(self, load: Sequence[Callable[[], object]]) -> None:
        self._load = [f"{each.__module__}:{each.__qualname__}" for each in load]
        self._program: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> socket.socket:
        """Our end of a channel to a new process, which sends its id first, as soon as everything is loaded."""
        if self._control is None or self._program is None or self._program.poll() is not None:
            self.end()
            self._control, theirs = socket.socketpair()
            with theirs:
                command = [
                    sys.executable,
                    "-c",
                    PROGRAM,
                    f"{theirs.fileno()}",
                    json.dumps(sys.path),
                    json.dumps(self._load),
                ]
                # A session of its own: a terminal's Ctrl-C is for the server, which then ends the others.
                self._program = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def end(self) -> None:
        """End it; processes forked from it end within `PARENT_EVERY_S`."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._program is not None:
            self._program.kill()
            self._program.wait()
            self._program = None


class Process:
    """One worker process. If it dies or is ended, only the question that it is computing is lost."""

    def __init__(self, forks: ForkServer) -> None:
        self._forks = forks
        self._channel: socket.socket | None = None
        self._id = 0

    async def answer(self, job: Job, limit_s: float) -> bytes:
        """The packed answer, computed by the process, which is started if there is none. Raises Lost if it dies.

        Cancelling the caller ends the process, because nothing else stops a computation.
        """
        try:
            found = await self._asked(pickle.dumps((job, limit_s)))
        except asyncio.CancelledError:
            self.end()
            raise
        except Lost:
            self._id = 0  # it is dead, and its id may soon be another's
            self.end()
            raise
        if isinstance(found, Exception):
            raise found
        if found.worn:
            self.end()
        return found.answer

    async def _asked(self, question: bytes) -> Packed | Exception:
        try:
            if self._channel is None:
                self._channel = self._forks.fork()
                self._id = int.from_bytes(await self._received(HEAD_BYTES))
            await asyncio.get_running_loop().sock_sendall(self._channel, framed(question))
            size = int.from_bytes(await self._received(HEAD_BYTES))
            return cast(Packed | Exception, pickle.loads(await self._received(size)))
        except OSError:
            raise Lost from None

    async def _received(self, size: int) -> bytes:
        assert self._channel is not None
        message = bytearray()
        while len(message) < size:
            most = min(size - len(message), MOST_AT_ONCE_BYTES)
            part = await asyncio.get_running_loop().sock_recv(self._channel, most)
            if not part:
                raise Lost
            message += part
        return bytes(message)

    def end(self) -> None:
        """End it, whatever it is doing."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._id:
            with suppress(ProcessLookupError):
                os.kill(self._id, signal.SIGKILL)
            self._id = 0


def framed(message: bytes) -> bytes:
    """The message, preceded by its length."""
    return len(message).to_bytes(HEAD_BYTES) + message


# --- The other side


def main(control: str, path: str, load: str, again: str = "") -> None:
    """Load everything, then fork a process for each channel that arrives on the socket `control`, until it closes.

    A program that had to compile starts over: every forked process would inherit the compiler's memory.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    for name in json.loads(load):
        resolve_name(name)()
    if has_compiled() and not again:
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, control, path, load, "again"])
    give_back_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(ANSWERED_BETWEEN_COLLECTIONS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process is waited for: none becomes a zombie
    own = os.getpid()
    with socket.socket(fileno=int(control)) as channels:
        while True:
            told, channel, _, _ = socket.recv_fds(channels, 1, 1)
            if not told:
                return
            if os.fork() == 0:
                channels.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                end_with(own)
                compute(socket.socket(fileno=channel[0]))
                os._exit(0)
            os.close(channel[0])


def end_with(parent: int) -> None:
    """End this process soon after its `parent` ends, even in the middle of a computation.

    A killed server cannot end its processes, which would otherwise go on computing for nobody.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with the server").start()


def compute(channel: socket.socket) -> None:
    """Answer one question after another until the channel closes."""
    with suppress(OSError), channel, channel.makefile("rwb") as stream:
        stream.write(os.getpid().to_bytes(HEAD_BYTES))
        stream.flush()
        while len(head := stream.read(HEAD_BYTES)) == HEAD_BYTES:
            stream.write(framed(replied(stream.read(int.from_bytes(head)))))
            stream.flush()


def replied(question: bytes) -> bytes:
    """The answer, or the exception, as a message."""
    try:
        return pickle.dumps(packed(*pickle.loads(question)))
    except BaseException as error:
        if not isinstance(error, SizingError):
            error.add_note("".join(traceback.format_exception(error)))  # its frames stay in this process
        return as_message(error)


def as_message(error: BaseException) -> bytes:
    """The error as a message; as a RuntimeError with its text if it cannot be pickled or a server must not raise it."""
    with suppress(Exception):
        message = pickle.dumps(error)
        if isinstance(pickle.loads(message), Exception):
            return message
    return pickle.dumps(RuntimeError(repr(error)))
