"""Before login there is no page and no question to the store; who is let in; where a login leads back to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from hypothesis import given
from hypothesis import strategies as some
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from calibration.store import Store
from tests.app.conftest import ONE, ROOT, text_of
from ui import link, login
from ui.login import COOKIE, ReturnToLink

AUTH = {"redirect_uri": "http://x/oauth2callback", "cookie_secret": "s" * 32}
PROVIDER = {"client_id": "i", "client_secret": "s", "server_metadata_url": "http://127.0.0.1:9/none"}
ANN: dict[str, Any] = {"is_logged_in": True, "email": "ann@example.com", "email_verified": True}
HERE = "http://testserver"
VISITOR = {"is_logged_in": False}


def visit(user: dict[str, Any], secrets: dict[str, Any] | None = None) -> AppTest:
    """The app as `user` sees it on opening a link with one candidate."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.user = user
    app.secrets = secrets or {"auth": AUTH | PROVIDER}
    for key, value in link.to_query(ONE).items():
        app.query_params[key] = value
    return app.run()


def test_without_a_login_set_up_the_app_is_open(opened: Any) -> None:
    assert opened().title[0].value.startswith("You need")


def test_before_login_there_is_no_page_and_no_question_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(Store, "__init__", refuse)
    app = visit(VISITOR)
    assert not app.exception
    assert app.title[0].value == "How many GPUs?"
    assert [button.label for button in app.button] == ["Log in"]
    assert not app.metric and not app.number_input and not app.dataframe and "n" not in app.query_params


def test_each_named_provider_has_its_button() -> None:
    app = visit(VISITOR, {"auth": AUTH | {"microsoft": PROVIDER, "okta": PROVIDER}})
    assert [button.label for button in app.button] == ["Log in with Microsoft", "Log in with Okta"]


def test_an_incomplete_section_says_so_instead_of_failing() -> None:
    app = visit(VISITOR)
    app.button[0].click().run()  # the secrets that Streamlit itself reads are empty here
    assert not app.exception
    assert "incomplete" in app.error[0].value


def test_after_login_the_page_says_who_is_logged_in() -> None:
    app = visit(ANN)
    assert app.title[0].value.startswith("You need")
    assert "ann@example.com" in text_of("\n".join(caption.value for caption in app.sidebar.caption))
    assert "Log out" in [button.label for button in app.sidebar.button]


def test_logging_out_closes_the_page() -> None:
    app = visit(ANN)
    next(button for button in app.sidebar.button if button.label == "Log out").click().run()
    assert app.title[0].value == "How many GPUs?" and not app.metric


def test_an_account_of_another_domain_sees_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login.DOMAINS_VARIABLE, "example.org")
    app = visit(ANN)
    assert app.title[0].value == "This account has no access"
    assert "example.org" in app.markdown[0].value.replace("\\", "")
    assert not app.metric and not app.number_input
    monkeypatch.setenv(login.DOMAINS_VARIABLE, "example.org, EXAMPLE.com")
    assert visit(ANN).title[0].value.startswith("You need")


def test_domains_without_a_login_keep_everybody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login.DOMAINS_VARIABLE, "example.com")
    app = visit({}, {"other": {}})
    assert app.title[0].value == "The login is not set up" and not app.metric


def test_secrets_that_cannot_be_read_keep_everybody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "secrets.toml"
    broken.write_text("[auth\nclient_id = 1")
    monkeypatch.setattr(st, "get_option", lambda name: [str(broken)] if name == "secrets.files" else None)
    monkeypatch.setattr(type(st.secrets), "load_if_toml_exists", lambda self: False)
    app = visit({}, {"other": {}})
    assert app.title[0].value == "The login is not set up" and not app.metric


@pytest.mark.parametrize(
    "user",
    [
        ANN | {"email_verified": False},
        ANN | {"email_verified": "true"},
        {key: value for key, value in ANN.items() if key != "email_verified"},
        ANN | {"email": "ann@sub.example.com"},
        ANN | {"email": "ann@notexample.com"},
        ANN | {"email": "ann@example.com.evil.net"},
        ANN | {"email": "ann@evil.net@example.com"},
        ANN | {"email": "example.com"},
        ANN | {"email": None},
        {"is_logged_in": True, "sub": "42"},
    ],
)
def test_only_a_verified_address_of_the_very_domain_is_let_in(user: dict[str, Any]) -> None:
    assert login.why_refused(user, ("example.com",))
    assert not login.why_refused(user, ())  # no list: whom the provider lets in


@given(some.emails(), some.emails())
def test_an_address_is_let_in_by_its_own_domain_and_by_no_other(one: str, other: str) -> None:
    user = {"email": one, "email_verified": True}
    mine, theirs = (email.rpartition("@")[2].lower() for email in (one, other))
    assert not login.why_refused(user, (mine,))
    assert bool(login.why_refused(user, (theirs,))) == (mine != theirs)


def test_requests_past_the_page_are_kept_out_by_the_same_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert login.why_kept_out({}) == ""  # no login is set up
    monkeypatch.setenv(login.DOMAINS_VARIABLE, "example.com")
    assert login.DOMAINS_VARIABLE in login.why_kept_out({})  # half of one
    monkeypatch.setattr(login, "get_secrets_auth_section", lambda: AUTH | PROVIDER)
    assert login.why_kept_out({}) == "Log in first."
    monkeypatch.delenv(login.DOMAINS_VARIABLE)
    monkeypatch.setattr(login, "get_secrets_auth_section", dict)
    broken = tmp_path / "secrets.toml"
    broken.write_text("[auth\nclient_id = 1")
    monkeypatch.setattr(st, "get_option", lambda name: [str(broken)] if name == "secrets.files" else None)
    monkeypatch.setattr(type(st.secrets), "load_if_toml_exists", lambda self: False)
    assert "cannot be read" in login.why_kept_out({})


def test_an_empty_section_keeps_everybody_out() -> None:
    """A login that was begun, as a template without its values writes it, is no server without a login."""
    app = visit({}, {"auth": {}})
    assert app.title[0].value == "The login is not set up" and not app.metric


@pytest.mark.parametrize("setting", [",", " ", "@example.com", "*.example.com", "example.com;example.org", "ann@a.com"])
def test_domains_that_name_none_are_named(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(login.DOMAINS_VARIABLE, setting)
    with pytest.raises(ValueError, match=f"{login.DOMAINS_VARIABLE} is '{re.escape(setting)}'"):
        login.check_domains()


@pytest.mark.parametrize("setting", ["", "example.com", "Example.com, b\u00fccher.example , localhost,"])
def test_domains_that_addresses_have_are_taken(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(login.DOMAINS_VARIABLE, setting)
    login.check_domains()


def test_secrets_of_another_user_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As user 10001 of the image finds a file that only root may read; files that are not there are not."""
    secrets, me = tmp_path / "secrets.toml", os.geteuid()
    secrets.write_text("[auth]\n")
    files = [str(tmp_path / "none.toml"), str(tmp_path), str(secrets)]
    monkeypatch.setattr(st, "get_option", lambda _: files)
    login.check_secrets()
    secrets.chmod(0)
    del files[:2]
    if me == 0:
        os.seteuid(10001)
    try:
        with pytest.raises(ValueError, match=f"secrets.toml: user {me or 10001}, as whom the server runs, may not"):
            login.check_secrets()
    finally:
        os.seteuid(me)


def answered(cookie: str = "", **headers: str) -> tuple[Any, Any]:
    """What /auth/login and /oauth2callback answer behind the middleware, in front of a server that redirects."""

    async def redirect(request: Any) -> RedirectResponse:
        return RedirectResponse("/", status_code=302)

    routes = [Route("/auth/login", redirect), Route("/oauth2callback", redirect), Route("/other", redirect)]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(ReturnToLink)]), follow_redirects=False)
    given_cookie = {"cookie": f"{COOKIE}={cookie}"} if cookie else {}
    return client.get("/auth/login", headers=headers), client.get("/oauth2callback", headers=given_cookie)


def test_a_login_leads_back_to_the_link_that_asked_for_it() -> None:
    asked, _ = answered(referer=f"{HERE}/curves?model=a%2Fb&rate=20.0")
    noted = asked.headers["set-cookie"].partition(";")[0].partition("=")[2]
    _, back = answered(cookie=noted)
    assert back.headers["location"] == "/curves?model=a%2Fb&rate=20.0"
    assert f"{COOKIE}=;" in back.headers["set-cookie"]


@pytest.mark.parametrize("elsewhere", ["//evil.net/?a=1", "/\\evil.net", "https://evil.net/", "/a\r\nset-cookie: b=1"])
def test_no_cookie_leads_to_another_server(elsewhere: str) -> None:
    _, back = answered(cookie=login.quote(elsewhere, safe=""))
    assert back.headers["location"] == "/"


@pytest.mark.parametrize(
    "referer",
    [
        "",
        "http://[",
        "https://evil.net/?model=a",
        "http://testserver//evil.net?a=1",
        "http://testserver/?m=" + "a" * 5000,
    ],
)
def test_a_page_of_another_server_is_not_noted(referer: str) -> None:
    asked, back = answered(referer=referer)
    assert "set-cookie" not in asked.headers and back.headers["location"] == "/"
    assert login.asked_from(Headers({"referer": referer, "host": "testserver"})) == ""
