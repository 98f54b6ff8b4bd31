"""A connection of the mock: bytes are gathered and written once per tick, and the moment of writing is noted."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from calibration.mock.truth import Record


class Wire(asyncio.Protocol):
    """Base of the mock's connections."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._moments: list[tuple[Record, tuple[str, ...]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by name

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._out.clear()

    def close(self) -> None:
        """End the connection once what was gathered is written."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self.flush()
        if self.transport is not None:
            self.transport.abort()

    def put(self, data: bytes, record: Record | None = None, moments: tuple[str, ...] = ()) -> None:
        """Gather `data`; `moments` of `record` are set when it is written."""
        self._out.append(data)
        if record is not None:
            self._moments.append((record, moments))

    def flush(self) -> None:
        """Write what was gathered."""
        if self.transport is None or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        now_s = time.perf_counter()
        self.transport.write(data)
        for record, moments in self._moments:
            for moment in moments:
                setattr(record, moment, now_s)
        self._moments.clear()
