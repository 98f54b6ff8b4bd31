"""Refusals before Streamlit: foreign hosts and origins, visitors who are not logged in, and excessive load.

Streamlit itself accepts files from anyone with a socket, opens sockets until file descriptors run out,
and for a socket with a foreign origin queries the internet for its own address while all others wait.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.runtime import Runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

from ui import login

HOSTS_VARIABLE = "STREAMLIT_SERVER_ALLOWED_HOSTS"
"""Streamlit's own, for its option `server.allowedHosts`."""
SESSIONS_VARIABLE = "SIZING_MOST_SESSIONS"
MOST_SESSIONS = 200
"""Open pages of one process; one core answers about 50 people (docs/deploy.md)."""
FILES_A_SESSION = 4
"""Descriptors of an open page: one is its socket, three are the event loop that Streamlit makes for its script."""
FILES_BESIDE = 640
"""Descriptors of all else: the loops of up to 128 sessions kept for a browser to come back to, the store, requests."""
UPLOADS_A_SESSION, UPLOADS_IN_ALL = 3, 5
"""Bounds on uploaded files in memory, in files of the largest size allowed (`server.maxUploadSize`)."""
BESIDE_A_FILE_BYTES = 1 << 20
"""What Streamlit lets a request be larger than the file in it; at more it stops reading."""
BOOKKEEPING_BYTES = 1 << 16
"""Upper bound on a stored file's overhead: names come from outside, and empty files are not free."""

PROBES = ("/healthz", "/_stcore/health")
"""A Kubernetes probe uses the pod's address as its host, which cannot be listed beforehand."""
BEFORE_LOGIN = ("health", "host-config", "stream")
"""Paths under /_stcore/ that the login page needs; all others are for visitors who are logged in."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
    # not no-referrer: ui.login reads there which link asked for the login
    "Referrer-Policy": "same-origin",
}
"""Set on every response, whatever proxy is in front."""


class Refusal(NamedTuple):
    """The status of an HTTP response, and one line that says what to do."""

    status: int
    words: str


class Gate:
    """ASGI middleware that answers what is refused itself, and passes the rest on with `HEADERS` on the response.

    The body of a refused upload is not read. A refused websocket gets 403 for its handshake, without the words: a
    browser would not show them, and uvicorn logs an error of its own for a handshake answered in another way.
    `most_sessions` bounds the websockets that are open at a time. Where there is a login, half of them are left to
    those who are logged in.
    """

    def __init__(self, app: ASGIApp, most_sessions: int) -> None:
        self._app = app
        self._most_sessions = most_sessions
        self._known = self._unknown = 0
        self._arriving_bytes: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        visit, send = HTTPConnection(scope), _with_headers(send)
        refusal = self._refusal(visit)
        if refusal and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if refusal:
            await PlainTextResponse(refusal.words + "\n", refusal.status)(scope, receive, send)
            return
        with self._counted(visit):  # nothing is awaited since the bounds were looked at
            await self._app(scope, receive, send)

    def _refusal(self, visit: HTTPConnection) -> Refusal | None:
        headers, path = visit.headers, visit.scope["path"]
        if path not in PROBES and not is_host_allowed(headers.get("host")):
            return Refusal(421, f"This server does not answer to that host name: {HOSTS_VARIABLE} lists its names.")
        if _changes_something(visit) and _is_foreign(headers):
            return Refusal(403, "This request comes from a page of another server.")
        within = _within_streamlit(path)
        if within and within not in BEFORE_LOGIN and (why := login.why_kept_out(visit.cookies)):
            return Refusal(403, why)
        if _opens_a_page(visit) and self._is_full_for(visit):
            return Refusal(503, "The server is full: close pages you do not need, or try again in a few minutes.")
        return self._no_room_for_upload(visit) if _is_upload(visit) else None

    def _is_full_for(self, visit: HTTPConnection) -> bool:
        if self._known + self._unknown >= self._most_sessions:
            return True
        return self._unknown >= self._most_sessions // 2 and bool(login.why_kept_out(visit.cookies))

    def _no_room_for_upload(self, visit: HTTPConnection) -> Refusal | None:
        largest, session = _largest_upload_bytes(), _session_of(visit)
        held = stored_bytes() + self._arriving_bytes
        more = _upload_bytes(visit.headers)
        if held[session] + more > UPLOADS_A_SESSION * largest:
            return Refusal(413, "This page holds too many uploaded files: remove some, or reload the page.")
        if held.total() + more > UPLOADS_IN_ALL * largest:
            return Refusal(507, "The server currently holds too many uploaded files: try again in a few minutes.")
        return None

    @contextmanager
    def _counted(self, visit: HTTPConnection) -> Iterator[None]:
        if visit.scope["type"] == "websocket":
            known = not login.why_kept_out(visit.cookies)
            self._known, self._unknown = self._known + known, self._unknown + (not known)
            try:
                yield
            finally:
                self._known, self._unknown = self._known - known, self._unknown - (not known)
        elif _is_upload(visit):
            session, more = _session_of(visit), _upload_bytes(visit.headers)
            self._arriving_bytes[session] += more
            try:
                yield
            finally:
                self._arriving_bytes[session] -= more
                self._arriving_bytes += Counter()  # forgets sessions at zero
        else:
            yield


def stored_bytes() -> Counter[str]:
    """What Streamlit holds of uploaded files, by session."""
    if not Runtime.exists():
        return Counter()
    storage = cast(MemoryUploadedFileManager, Runtime.instance().uploaded_file_mgr).file_storage
    return Counter(
        {
            session: sum(len(file.data) + BOOKKEEPING_BYTES for file in list(files.values()))
            for session, files in list(storage.items())  # lists: other threads change both meanwhile
        }
    )


def most_sessions() -> int:
    """How many pages may be open at a time: the operator's setting, or fewer if descriptors would run out.

    Raises ValueError where the setting is not a whole number above zero.
    """
    text = os.environ.get(SESSIONS_VARIABLE) or str(MOST_SESSIONS)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{SESSIONS_VARIABLE} is {text!r}: give a whole number above zero, or unset it")
    return max(1, min(int(text), (_most_descriptors() - FILES_BESIDE) // FILES_A_SESSION))


def _most_descriptors() -> int:
    """The process's limit of open files, once it is as high as the process may raise it by itself."""
    if sys.platform == "win32":
        return 8192
    import resource

    own, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):  # macOS has a lower limit than it says
        most = own
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def _within_streamlit(path: str) -> str:
    """What follows /_stcore/ in a path, under whatever base path the server answers; empty elsewhere."""
    return path.partition("/_stcore/")[2]


def _is_upload(visit: HTTPConnection) -> bool:
    return _within_streamlit(visit.scope["path"]).startswith("upload_file/") and visit.scope.get("method") == "PUT"


def _session_of(upload: HTTPConnection) -> str:
    return _within_streamlit(upload.scope["path"]).split("/")[1]


def _changes_something(visit: HTTPConnection) -> bool:
    return visit.scope["type"] == "websocket" or visit.scope["method"] not in SAFE_METHODS


def _opens_a_page(visit: HTTPConnection) -> bool:
    """True for a page's socket, and for the document that is about to open one: a browser shows words only there."""
    return visit.scope["type"] == "websocket" or "text/html" in visit.headers.get("accept", "")


def _is_foreign(headers: Headers) -> bool:
    """True if a browser reports that a page of another server sent the request; other clients report nothing."""
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


def _largest_upload_bytes() -> int:
    return int(st.get_option("server.maxUploadSize")) * 1024 * 1024


def _upload_bytes(headers: Headers) -> int:
    """The most that an upload can bring: what it announces, and no more than Streamlit reads before it cuts it off."""
    most, announced = _largest_upload_bytes() + BESIDE_A_FILE_BYTES, headers.get("content-length", "")
    return min(int(announced), most) if announced.isascii() and announced.isdigit() else most


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return with_headers
