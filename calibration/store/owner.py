"""Which process measures a run, and whether it lives: on this machine by its trace in /proc, elsewhere by heartbeat."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

HEARTBEAT_S = 2.0
LOST_AFTER_S = 30.0
"""A process on another machine that was silent for longer is taken for dead."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from all others: host name, process number and `born`.

    `born` is the boot of the machine, the space that process numbers count in and the start time, with a colon between
    them: machines and containers may share a host name, and a number comes back for another process. It is empty where
    the system has no /proc.
    """

    host: str
    pid: int
    born: str

    @classmethod
    def here(cls) -> Owner:
        """The process that asks."""
        return cls.child(os.getpid())

    @classmethod
    def child(cls, pid: int) -> Owner:
        """The process of that number on this machine."""
        return cls(socket.gethostname(), pid, _born(pid))

    def lives(self, silent_s: float) -> bool:
        """Whether the process still runs; `silent_s` is how long ago its last heartbeat was."""
        return _born(self.pid) == self.born if self.is_near else silent_s < LOST_AFTER_S

    @property
    def is_near(self) -> bool:
        """Whether the process is, or was, one of this machine and container: then its number means it and no other."""
        here = Owner.here()
        space = self.born.rpartition(":")[0]
        return bool(space) and (self.host, space) == (here.host, here.born.rpartition(":")[0])

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _born(pid: int) -> str:
    """Boot, number space and start time of a process; empty if it is dead, or if there is no /proc to ask."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    started = rest[18]  # field 22 of proc(5), in clock ticks since boot
    return "" if state in "ZX" else f"{boot}:{space}:{started}"  # a zombie has ended, only nobody has asked how
