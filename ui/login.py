"""Login by OpenID Connect where the operator has set it up: before it no page is drawn, no store asked.

It is on when Streamlit's secrets have an `[auth]` section (docs/deploy.md). Whatever is half set up stays closed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.auth_util import get_cookie_with_chunks, get_secrets_auth_section
from streamlit.errors import StreamlitAuthError
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from ui.words import plain

DOMAINS_VARIABLE = "SIZING_ALLOWED_DOMAINS"
DOMAIN = re.compile(r"[\w-]+(\.[\w-]+)*")
DEFAULT_PROVIDER = "default"


def require() -> None:
    """Go on only for a visitor who may see the pages; for any other, draw what to do and end the run."""
    user, fault = st.user.to_dict(), _fault(is_on())
    if not fault and (not is_on() or (user["is_logged_in"] and not why_refused(user, allowed_domains()))):
        return
    with st.columns([1, 2, 1])[1]:
        if fault:
            st.title("The login is not set up", anchor=False)
            st.error(plain(fault))
        elif user["is_logged_in"]:
            st.title("This account has no access", anchor=False)
            st.markdown(plain(why_refused(user, allowed_domains())))
            st.button("Use another account", icon=":material/logout:", on_click=st.logout)
        else:
            _ask()
    st.stop()


def why_kept_out(cookies: Mapping[str, str]) -> str:
    """Why a request with these cookies is refused where no page asks for a login; empty if it is allowed.

    The same rule as `require`, for what goes past the page, such as an upload.
    """
    on = is_set_up()
    fault = _fault(on)
    if fault or not on:
        return fault
    user = _claims(cookies)
    return why_refused(user, allowed_domains()) if user.get("is_logged_in") is True else "Log in first."


def is_set_up() -> bool:
    """True where the secrets have a login, whoever asks."""
    return bool(get_secrets_auth_section())


def account() -> None:
    """Who is logged in, and the way out, at the end of the sidebar; nothing where there is no login."""
    if is_on():
        with st.sidebar.container(horizontal=True, vertical_alignment="center"):
            st.caption(plain(name_of(st.user.to_dict())))
            st.button("Log out", icon=":material/logout:", on_click=st.logout, type="tertiary")


def is_on() -> bool:
    """True where a login is set up: only then does Streamlit know whether a visitor is logged in."""
    return "is_logged_in" in st.user


def allowed_domains() -> tuple[str, ...]:
    """E-mail domains with access, from SIZING_ALLOWED_DOMAINS, comma-separated; empty: every account."""
    names = os.environ.get(DOMAINS_VARIABLE, "").split(",")
    return tuple(name.strip().lower() for name in names if name.strip())


def check_domains() -> None:
    """Raises ValueError where SIZING_ALLOWED_DOMAINS is set and names no domain, which must not admit every account, or
    names one that no address can have."""
    text = os.environ.get(DOMAINS_VARIABLE, "")
    domains = allowed_domains()
    if (text and not domains) or not all(map(DOMAIN.fullmatch, domains)):
        raise ValueError(
            f"{DOMAINS_VARIABLE} is {text!r}: give domains with commas between, as example.com, or unset it"
        )


def check_secrets() -> None:
    """Raises ValueError where a file of secrets is there that this user may not read: Streamlit would answer every
    request, probes too, with an error."""
    for file in st.get_option("secrets.files"):
        try:
            Path(file).open("rb").close()
        except PermissionError:
            raise ValueError(
                f"{file}: user {os.geteuid()}, as whom the server runs, may not read the secrets: make them that user's"
            ) from None
        except OSError:
            continue  # none here, or a folder, which Streamlit and `_fault` see to


def why_refused(user: Mapping[str, Any], domains: tuple[str, ...]) -> str:
    """Why an account has no access; empty if it has.

    `user` holds the claims of the provider's identity token. The domain must be one of `domains` to the letter:
    neither sub-domains nor look-alikes pass. An address that the provider has not verified proves nothing.
    """
    if not domains:
        return ""
    email = user.get("email")
    if not isinstance(email, str) or email.count("@") != 1:
        return f"{name_of(user)} has no e-mail address, and only addresses of {', '.join(domains)} have access."
    if user.get("email_verified") is not True:
        return f"The login provider has not verified that {email} is yours."
    if email.rpartition("@")[2].lower() not in domains:
        return f"You are logged in as {email}; only accounts of {', '.join(domains)} have access."
    return ""


def name_of(user: Mapping[str, Any]) -> str:
    """The account as its owner knows it: e-mail address, else name, else the provider's own identifier."""
    return str(user.get("email") or user.get("name") or user.get("sub") or "an account without a name")


def _claims(cookies: Mapping[str, str]) -> dict[str, Any]:
    """What Streamlit's cookie says of who is logged in; nothing where this server did not sign it lately."""

    def part(name: str) -> bytes | None:
        value = cookies.get(name, "").encode("latin-1", "replace")
        return decode_signed_value(get_cookie_secret(), name, value)

    signed = get_cookie_with_chunks(part, USER_COOKIE_NAME)
    return dict(json.loads(signed)) if signed else {}


def _fault(on: bool) -> str:
    """What of the login is half set up; empty when nothing is. A file that cannot be read must not open the doors."""
    files = st.get_option("secrets.files")
    if not on and any(Path(file).exists() for file in files) and not st.secrets.load_if_toml_exists():
        return "The secrets file cannot be read, so nobody has access: the operator finds the error in the log."
    if not on and st.secrets.load_if_toml_exists() and "auth" in st.secrets:
        return "The section [auth] of the secrets is empty, so nobody has access: see docs/deploy.md."
    if not on and allowed_domains():
        return f"{DOMAINS_VARIABLE} is set, but there is no section [auth] in the secrets: see docs/deploy.md."
    return ""


def _ask() -> None:
    st.title("How many GPUs?", anchor=False)
    st.markdown("This planner is for members of the team: log in to open it.")
    for provider in _providers():
        words = "Log in" if provider == DEFAULT_PROVIDER else f"Log in with {plain(provider.capitalize())}"
        if st.button(words, key=f"login_{provider}", icon=":material/login:", type="primary"):
            _go_to(provider)


def _providers() -> list[str]:
    """Names of the sections [auth.NAME] of the secrets, or the one without a name."""
    auth = st.secrets.get("auth", {})
    named = [name for name, value in auth.items() if isinstance(value, Mapping) and "client_id" in value]
    return named or [DEFAULT_PROVIDER]


def _go_to(provider: str) -> None:
    try:
        st.login(None if provider == DEFAULT_PROVIDER else provider)
    except StreamlitAuthError:
        st.error("The section auth of the secrets is incomplete: docs/deploy.md tells the operator what it needs.")


# --- A link opened before login is opened after it: Streamlit's own OIDC redirect drops the deep link

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
    """Path and query of the page that asked for the login; empty when it is not of this server, too long or no URL."""
    try:
        page = urlsplit(headers.get("referer", ""))
    except ValueError:
        return ""
    link = f"{page.path}?{page.query}"
    same_server = page.netloc == headers.get("host") and bool(page.query)
    return link if same_server and is_local(link) and len(quote(link)) <= LONGEST else ""


def is_local(link: str) -> bool:
    """True for a path of this server: browsers treat //host and /\\host as another server."""
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
