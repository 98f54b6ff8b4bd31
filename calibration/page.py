"""One complete answer to a GET, within limits of time and size, however the server sends it."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

MOST_BYTES = 4 * 2**20
LONGEST_REASON = 100
DEFAULT_PORTS = {"http": 80, "https": 443}


def get(
    url: str, within_s: float, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of the page at `url`, connected to and read within `within_s` seconds in all.

    `tls` holds the certificates that HTTPS trusts, by default the system's. Proxies are not used and redirections not
    followed, because the page must come from the server under load: the body then says where to. Raises OSError, with a
    short reason, if there is no answer, or if it is incomplete, larger than 4 MiB or not HTTP.
    """
    deadline_s = time.monotonic() + within_s
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        opened = (
            HTTPSConnection(host, parts.port, timeout=within_s, context=tls)
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=within_s)
        )
        with closing(opened) as connection:
            connection.connect()
            with _Cut(connection.sock, deadline_s) as cut:
                try:
                    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
                    connection.request("GET", path, headers=dict(headers or {}))
                    return _read(connection.getresponse())
                except (OSError, HTTPException, ValueError):
                    if cut.is_done:
                        raise TimeoutError(f"timed out: no whole answer within {within_s:g} s") from None
                    raise
    except (HTTPException, ValueError) as error:
        if isinstance(error, OSError):  # an untrusted certificate raises an error that is both
            raise
        raise OSError(f"no HTTP: {type(error).__name__}: {error}"[:LONGEST_REASON]) from None


def is_below(url: str, root: str) -> bool:
    """Whether `get` would ask the server at `root` for `url`, on a path below that of `root`.

    Scheme, host and port must be equal, where a missing port is the scheme's default.

    >>> is_below("https://gpu-7/metrics", "https://gpu-7:443"), is_below("http://gpu-7:443/metrics", "https://gpu-7:443")
    (True, False)
    """
    try:
        (origin, path), (own, below) = _origin_and_path(url), _origin_and_path(root)
    except ValueError:  # a port that is no number: nothing answers there
        return False
    return origin == own and path.startswith(f"{below.rstrip('/')}/")


def _origin_and_path(url: str) -> tuple[tuple[str, str | None, int | None], str]:
    parts = urlsplit(url)
    port = DEFAULT_PORTS.get(parts.scheme) if parts.port is None else parts.port
    return (parts.scheme, parts.hostname, port), parts.path


def _read(answer: HTTPResponse) -> tuple[int, bytes]:
    with answer:
        body = answer.read(MOST_BYTES + 1)  # no more, whatever length the server claims
        if len(body) > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES >> 20} MiB")
        if answer.length:
            raise OSError("the answer is incomplete")
        if 300 <= answer.status < 400 and (elsewhere := answer.getheader("Location")):
            body = f"it redirects to {elsewhere}".encode("utf-8", "replace")
        return answer.status, body


class _Cut:
    """Shuts a socket down at `deadline_s` of time.monotonic; the socket's own time-out starts again with every byte."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._done = threading.Event()
        self._timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), self._shut)
        self._timer.daemon = True

    def __enter__(self) -> _Cut:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()  # a closed socket's descriptor may soon belong to another socket

    @property
    def is_done(self) -> bool:
        """Whether the deadline passed first."""
        return self._done.is_set()

    def _shut(self) -> None:
        self._done.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
