"""A link opened before login is opened after it: Streamlit by itself comes back from the provider to the bare page."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "sizing_after_login"
KEPT_FOR_S = 600
"""A login that takes longer ends on the bare page."""
LONGEST = 3500
"""Characters of a link that still fit a cookie."""


class ReturnToLink:
    """ASGI middleware: /auth/login notes in a cookie which page asked for it, /oauth2callback leads back there.

    Only a path of this server is taken, on the way in and on the way out, so that no cookie can lead elsewhere.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.endswith("/auth/login"):
            send = _noting(asked_from(Headers(scope=scope)), send)
        elif scope["type"] == "http" and path.endswith("/oauth2callback"):
            send = _leading(unquote(cookie_parser(Headers(scope=scope).get("cookie", "")).get(COOKIE, "")), send)
        await self.app(scope, receive, send)


def asked_from(headers: Headers) -> str:
    """Path and query of the page that asked for the login; empty when it is not of this server, or too long."""
    page = urlsplit(headers.get("referer", ""))
    link = f"{page.path}?{page.query}"
    same_server = page.netloc == headers.get("host") and bool(page.query)
    return link if same_server and is_local(link) and len(quote(link)) <= LONGEST else ""


def is_local(link: str) -> bool:
    """True for a path of this server: a browser takes //host and /\\host for another."""
    return link.startswith("/") and link[1:2] not in ("/", "\\") and link.isascii() and link.isprintable()


def _noting(link: str, send: Send) -> Send:
    async def with_note(message: Message) -> None:
        if message["type"] == "http.response.start" and link:
            cookie = f"{COOKIE}={quote(link, safe='')}; Path=/; Max-Age={KEPT_FOR_S}; HttpOnly; SameSite=Lax"
            MutableHeaders(scope=message).append("set-cookie", cookie)
        await send(message)

    return with_note


def _leading(link: str, send: Send) -> Send:
    async def elsewhere(message: Message) -> None:
        if message["type"] == "http.response.start" and link:
            headers = MutableHeaders(scope=message)
            headers.append("set-cookie", f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax")
            if message["status"] == 302 and is_local(link):
                headers["location"] = link
        await send(message)

    return elsewhere
