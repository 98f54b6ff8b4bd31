"""A process of the load generator as its parent holds it: started, spoken to over a pipe, ended.

It is a program of its own: gRPC does not survive a fork, and what `multiprocessing` spawns runs the caller's main
module again, which in a web app is the app.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self

from calibration.errors import WorkerError

PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from calibration.load import worker; worker.main()"


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A process that runs `calibration.load.worker`, and this end of its pipe."""

    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]

    @classmethod
    def start(cls) -> Self:
        """A new process; it is up in about a second, and takes orders at once."""
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the parent, which then ends the workers
        )
        theirs.close()  # so that the pipe ends when the process does
        return cls(process, ours)

    def send(self, order: Any) -> None:
        """Raises WorkerError if the process is dead."""
        try:
            self.pipe.send(order)
        except OSError:
            raise self._death() from None

    def receive(self) -> Any:
        """The next report, waited for. Raises WorkerError if the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None

    def kill(self) -> None:
        """End the process at once; its connections close, which tells the server to cancel what is in flight."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def _death(self) -> WorkerError:
        self.process.kill()
        return WorkerError(
            f"a process of the load generator died (exit code {self.process.wait()}) in the middle of a level: "
            "measure it again; with -9, look for a lack of memory"
        )
