"""The whole way of a login in a real browser: page, provider, back to the link that was opened, and out again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect

from tests.browser.provider import CLIENT_ID, CLIENT_SECRET, Provider, provider
from tests.browser.served import served
from tests.browser.visit import unhurried

pytestmark = pytest.mark.browser

WAIT_MS = 120_000
LINK = "/curves?gpu=h200_sxm&precision=fp8&tp=1&rate=42.0"
SECRETS = """
[auth]
redirect_uri = "http://127.0.0.1:{{port}}/oauth2callback"
cookie_secret = "a secret of this test, and of no one else"
client_id = "{CLIENT_ID}"
client_secret = "{CLIENT_SECRET}"
server_metadata_url = "{address}/.well-known/openid-configuration"
"""


@pytest.fixture(scope="module")
def openid() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def address(openid: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The team's server over an empty store: a login through `openid`, and example.com let in."""
    folder = tmp_path_factory.mktemp("team")
    secrets = folder / "secrets.toml"
    secrets.write_text(SECRETS.format(CLIENT_ID=CLIENT_ID, CLIENT_SECRET=CLIENT_SECRET, address=openid.address))
    options = (f"--secrets.files={secrets}",)
    domains = {"SIZING_ALLOWED_DOMAINS": "example.com"}
    with served(f"sqlite:///{folder / 'calibration.db'}", *options, **domains) as url:
        yield url


@pytest.fixture(scope="module")
def context(browser: Browser) -> BrowserContext:
    """Keeps the app's scripts from test to test."""
    return unhurried(browser)


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A visitor without cookies."""
    context.clear_cookies()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


def log_in(page: Page) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text("How many GPUs?", timeout=WAIT_MS)
    page.get_by_role("button", name="Log in").click()


def test_a_link_opened_before_login_is_opened_after_it_and_logout_closes_it(
    page: Page, address: str, openid: Provider
) -> None:
    sessions_ended = openid.logged_out
    page.goto(address + LINK)
    expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("not found")).to_have_count(0)
    expect(page.get_by_role("link", name="Curves")).to_have_count(0)
    log_in(page)
    load = page.get_by_label("Peak load (requests/s)", exact=True)
    expect(load).to_have_value("42", timeout=WAIT_MS)
    assert re.match(f"{re.escape(address)}/curves[?]", page.url)
    expect(page.get_by_text("ann@example.com")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=WAIT_MS)
    expect(load).to_have_count(0)
    assert openid.logged_out == sessions_ended + 1
    page.goto(address)
    expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=WAIT_MS)


def test_a_visitor_who_is_logged_in_uploads_a_file_and_nobody_else_does(page: Page, address: str) -> None:
    sent: list[Response] = []
    page.on("response", lambda response: response.request.method == "PUT" and sent.append(response))
    page.goto(address)
    log_in(page)
    page.get_by_role("link", name="Calibrate").click()
    page.get_by_text("Import", exact=True).click()
    chooser = page.get_by_test_id("stFileUploaderDropzoneInput")
    chooser.wait_for(state="attached")
    chooser.set_input_files({"name": "x.json", "mimeType": "text/plain", "buffer": b"{}"})
    expect(page.get_by_text(re.compile(r"^x\.json: not a file of any known kind"))).to_be_visible(timeout=WAIT_MS)
    assert [response.status for response in sent] == [204]
    headers = {name: value for name, value in sent[0].request.all_headers().items() if not name.startswith(":")}
    page.context.clear_cookies(name="_streamlit_user")
    kept = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in page.context.cookies())  # type: ignore[typeddict-item]
    again = page.request.put(
        sent[0].url, headers=headers | {"cookie": kept}, data=sent[0].request.post_data_buffer or b""
    )
    assert again.status == 403 and again.text() == "Log in first.\n"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"email": "eve@example.com.evil.net"}, "only accounts of example.com have access"),
        ({"email_verified": False}, "has not verified"),
    ],
)
def test_other_accounts_stay_outside(
    page: Page, address: str, openid: Provider, changed: dict[str, object], words: str
) -> None:
    usual, openid.claims = openid.claims, openid.claims | changed
    try:
        page.goto(address)
        log_in(page)
        title = page.get_by_role("heading", level=1).filter(has_text="has no access")
        expect(title).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text(words)).to_be_visible()
        expect(page.get_by_label("Peak load (requests/s)", exact=True)).to_have_count(0)
    finally:
        openid.claims = usual


def test_a_cookie_that_was_not_signed_by_this_server_opens_nothing(page: Page, address: str) -> None:
    forged = '{"is_logged_in": true, "email": "ann@example.com", "email_verified": true}'
    page.context.add_cookies([{"name": "_streamlit_user", "value": forged.replace('"', "%22"), "url": address}])
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_have_text("How many GPUs?", timeout=WAIT_MS)
