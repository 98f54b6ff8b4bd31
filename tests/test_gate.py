"""What is refused before Streamlit sees it, asked from outside of real servers: a team's with a login, and make app."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import psutil
import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value, generate_xsrf_token_string
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.browser.served import ROOT, Server, free_port, running, started
from ui import gate

MEGABYTE = 1 << 20
LARGE = b"x" * 950_000
SECRET = "a secret of this test, and of no one else"
SECRETS = f"""
[auth]
redirect_uri = "http://127.0.0.1:8501/oauth2callback"
cookie_secret = "{SECRET}"
client_id = "planner"
client_secret = "only for tests"
server_metadata_url = "http://127.0.0.1:9/none"
"""
MOST_SESSIONS = 8
DESCRIPTORS = 256
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
ANN = {"email": "ann@example.com", "email_verified": True}
EVIL = "evil.example"


class Outside:
    """Where a server would reach the internet: a proxy that takes connections, never answers, and counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held = ExitStack()
        self.environment = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{self.port}")
        threading.Thread(target=self._count, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.enter_context(connection)
            self.calls += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._held.close()


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    proxy = Outside()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def team(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """serve.py with a login that lets in example.com, room for few, and 1 MiB as the largest upload."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "secrets.toml").write_text(SECRETS)
    options = (f"--secrets.files={folder / 'secrets.toml'}", "--server.maxUploadSize=1")
    settings = {"SIZING_ALLOWED_DOMAINS": "example.com", "SIZING_MOST_SESSIONS": str(MOST_SESSIONS)}
    database = f"sqlite:///{folder / 'calibration.db'}"
    with (
        few_descriptors(),
        started(database, *options, **settings, **outside.environment) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def alone(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What `make app` starts: the command that its recipe ends with."""
    port, settings = free_port(), {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    told = ["make", "--dry-run", "--no-print-directory", "app", f"PORT={port}"]
    recipe = subprocess.run(told, cwd=ROOT, env=settings, capture_output=True, text=True, check=True).stdout
    database = f"sqlite:///{tmp_path_factory.mktemp('alone') / 'calibration.db'}"
    with running(
        shlex.split(recipe.splitlines()[-1]), port, SIZING_DATABASE_URL=database, **outside.environment
    ) as server:
        yield server


@pytest.fixture(params=["team", "alone"])
def either(request: pytest.FixtureRequest) -> Server:
    """Both servers, one after the other."""
    server: Server = request.getfixturevalue(request.param)
    return server


@contextmanager
def few_descriptors() -> Iterator[None]:
    """A soft limit of open files, for processes started meanwhile, that the sessions of a server would soon reach."""
    own, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (own, most))


class Response(NamedTuple):
    """What a server answered to one request."""

    status: int
    headers: http.client.HTTPMessage
    text: str


def port_of(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


def ask(server: Server, path: str, method: str = "GET", body: Any = None, **headers: str) -> Response:
    """One request; underscores in the names of headers are hyphens."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read().decode(errors="replace"))
    finally:
        connection.close()


def page_of(server: Server, host: str = "127.0.0.1", **headers: Any) -> ClientConnection:
    """A page's socket, by whatever name; to be entered. Raises InvalidStatus where the server refuses it."""
    address = f"ws://{host}:{port_of(server)}/_stcore/stream"
    there = socket.create_connection(("127.0.0.1", port_of(server)), timeout=60)
    try:
        return connect(address, sock=there, subprotocols=["streamlit"], max_size=None, **headers)  # type: ignore[list-item]
    except BaseException:
        there.close()
        raise


def session_of(page: ClientConnection) -> str:
    """The session behind a page's socket, which the page learns when it first asks to be drawn."""
    message = BackMsg()
    message.rerun_script.query_string = ""
    page.send(message.SerializeToString())
    while (said := ForwardMsg.FromString(page.recv(timeout=120))).WhichOneof("type") != "new_session":  # type: ignore[arg-type]
        pass
    return said.new_session.initialize.session_id


def cookie_of(secret: str = SECRET, **claims: object) -> str:
    """The cookie of somebody who is logged in with these claims, as a server with this secret signs it."""
    user = {"origin": "http://127.0.0.1:8501", "is_logged_in": True, **claims}
    return f"_streamlit_user={create_signed_value(secret, '_streamlit_user', json.dumps(user)).decode()}"


class Upload:
    """Uploads as the page's own, by one visitor."""

    def __init__(self, server: Server, session: str, cookie: str = "") -> None:
        token = generate_xsrf_token_string()
        self._server, self._session = server, session
        self._names: list[str] = []
        self.headers = {
            "Content-Type": "multipart/form-data; boundary=b",
            "X-Xsrftoken": token,
            "Cookie": "; ".join(filter(None, (f"_streamlit_xsrf={token}", cookie))),
        }

    def path(self, name: str) -> str:
        return f"/_stcore/upload_file/{self._session}/{name}"

    def put(self, name: str, content: bytes = b"a,b\n1,2\n") -> Response:
        self._names.append(name)
        return ask(self._server, self.path(name), "PUT", HEAD + content + b"\r\n--b--\r\n", **self.headers)

    def remove(self, name: str) -> Response:
        return ask(self._server, self.path(name), "DELETE", **self.headers)

    def remove_all(self) -> None:
        """Streamlit keeps the files of a closed page for two minutes, in case its browser comes back."""
        for name in self._names:
            self.remove(name)

    @contextmanager
    def begun(self, name: str, **headers: str) -> Iterator[http.client.HTTPConnection]:
        """An upload whose headers are sent and whose body is still to come."""
        connection = http.client.HTTPConnection("127.0.0.1", port_of(self._server), timeout=60)
        try:
            connection.putrequest("PUT", self.path(name))
            for header, value in {**self.headers, **headers}.items():
                connection.putheader(header.replace("_", "-"), value)
            connection.endheaders()
            yield connection
        finally:
            connection.close()


@contextmanager
def visitor(server: Server, cookie: str = "") -> Iterator[Upload]:
    """Somebody with a page of their own, whom the server lets in by this cookie, or by that of Ann."""
    with page_of(server) as page:
        upload = Upload(server, session_of(page), cookie or cookie_of(**ANN))
        yield upload
        upload.remove_all()


def test_a_page_of_another_server_opens_no_socket_and_makes_the_server_call_nobody(
    either: Server, outside: Outside
) -> None:
    for origin in (f"https://{EVIL}", "null", f"http://127.0.0.1:{port_of(either) + 1}", "http://[", "http://0.0.0.0"):
        with pytest.raises(InvalidStatus) as refused:
            page_of(either, origin=origin).__enter__()
        assert refused.value.response.status_code == 403
    assert outside.calls == 0


def test_a_page_of_another_server_changes_nothing(either: Server) -> None:
    answer = ask(either, "/_stcore/upload_file/a/b", "PUT", b"", Origin=f"https://{EVIL}")
    assert answer.status == 403 and "another server" in answer.text


def test_the_server_answers_to_its_own_names_only(either: Server) -> None:
    port = port_of(either)
    for own in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(either, "/", Host=f"{own}:{port}").status == 200
        with page_of(either, own, origin=f"http://{own}:{port}"):
            pass
    for other in (EVIL, f"localhost.{EVIL}", "10.1.2.3", f"localhost@{EVIL}", ""):
        refused = ask(either, "/", Host=f"{other}:{port}")
        assert refused.status == 421 and gate.HOSTS_VARIABLE in refused.text
    with pytest.raises(InvalidStatus) as closed:
        page_of(either, EVIL, origin=f"http://{EVIL}:{port}").__enter__()
    assert closed.value.response.status_code == 403


def test_probes_ask_by_whatever_name(either: Server) -> None:
    assert ask(either, "/_stcore/health", Host="10.1.2.3:8501").status == 200
    assert '"store":"ok"' in ask(either, "/healthz", Host="10.1.2.3:8501").text


@pytest.mark.parametrize(
    "path", ["/", "/_stcore/health", "/healthz", "/_stcore/metrics", "/static/none.js", "/nowhere"]
)
def test_every_response_says_how_it_may_be_used(either: Server, path: str) -> None:
    for answer in (ask(either, path), ask(either, path, Host=EVIL)):
        for name, value in gate.HEADERS.items():
            assert answer.headers.get_all(name) == [value]


@pytest.mark.parametrize(
    "path", ["metrics", "agent/openapi.json", "script-health-check", "upload_file/a/b", "a/_stcore/health"]
)
def test_before_login_streamlit_tells_nothing(team: Server, path: str) -> None:
    refused = ask(team, f"/_stcore/{path}")
    assert refused.status == 403 and refused.text == "Log in first.\n"


def test_after_login_it_tells_what_it_knows(team: Server) -> None:
    assert "active_sessions" in ask(team, "/_stcore/metrics", Cookie=cookie_of(**ANN)).text


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/_stcore/host-config"])
def test_the_page_that_asks_for_a_login_needs_none(team: Server, path: str) -> None:
    assert ask(team, path).status == 200


@pytest.mark.parametrize(
    ("cookie", "why"),
    [
        ("", "Log in first."),
        ("_streamlit_user=%7B%22is_logged_in%22%3A%20true%7D", "Log in first."),
        (cookie_of("another server's secret", **ANN), "Log in first."),
        (cookie_of(**ANN | {"is_logged_in": False}), "Log in first."),
        (cookie_of(**ANN | {"email": "eve@example.com.evil.example"}), "only accounts of example.com"),
        (cookie_of(**ANN | {"email_verified": False}), "has not verified"),
    ],
)
def test_who_is_not_let_in_uploads_nothing(team: Server, cookie: str, why: str) -> None:
    with page_of(team) as page:
        upload = Upload(team, session_of(page), cookie)
        with upload.begun("f", Content_Length=str(MEGABYTE)) as connection:  # and not a byte of it is sent
            refused = connection.getresponse()
            assert refused.status == 403 and why in refused.read().decode()
        assert upload.remove("f").status == 403


def test_a_visitor_with_a_page_uploads(either: Server) -> None:
    with visitor(either) as upload:
        assert upload.put("f").status == 204
        assert upload.remove("f").status == 204


def test_a_session_that_does_not_exist_takes_no_file(either: Server) -> None:
    upload = Upload(either, "3f0e5f0c-0000-4000-8000-000000000000", cookie_of(**ANN))
    assert upload.put("f").status == 400


def test_one_page_holds_about_three_of_the_largest_files(team: Server) -> None:
    with visitor(team) as upload:
        assert [upload.put(name, LARGE).status for name in "abcd"] == [204, 204, 204, 413]
        assert "too many uploaded files" in upload.put("d", LARGE).text
        assert upload.remove("a").status == 204
        assert upload.put("d", LARGE).status == 204


def test_empty_files_are_not_free(team: Server) -> None:
    with visitor(team) as upload:
        assert 413 in (upload.put(f"{n}", b"").status for n in range(100))


def test_a_file_on_its_way_takes_its_room(team: Server) -> None:
    with visitor(team) as upload, ExitStack() as begun:
        for name in "abc":
            begun.enter_context(upload.begun(name, Content_Length="950000"))
        wait_until(lambda: upload.put("d", LARGE).status == 413)
        begun.close()  # none of them ever comes
        wait_until(lambda: upload.put("d", LARGE).status == 204)


def test_all_pages_together_hold_about_five_of_the_largest_files(team: Server) -> None:
    with ExitStack() as pages:
        found = []
        for _ in range(2):
            upload = pages.enter_context(visitor(team))
            found += [upload.put(name, LARGE) for name in "abc"]
        assert [answer.status for answer in found] == [204] * 5 + [507]
        assert "try again" in found[-1].text


@pytest.mark.parametrize("announced", [{"Transfer_Encoding": "chunked"}, {"Content_Length": str(10 * MEGABYTE)}])
def test_a_file_that_is_too_large_is_cut_off(team: Server, announced: dict[str, str]) -> None:
    with visitor(team) as upload, upload.begun("f", **announced) as connection:
        if "Transfer_Encoding" in announced:
            for part in (HEAD, *[b"x" * 65536] * 40):  # 2.5 MiB, with no end
                connection.send(b"%x\r\n%s\r\n" % (len(part), part))
        assert connection.getresponse().status == 413


def test_a_page_says_no_more_of_its_fields_than_there_is_to_say(either: Server) -> None:
    with page_of(either) as page, pytest.raises(ConnectionClosed) as closed:
        page.send(b"x" * 3_000_000)
        page.recv(timeout=60)
    assert closed.value.rcvd and closed.value.rcvd.code == 1009


def test_a_large_message_is_refused_before_it_is_there(either: Server) -> None:
    with page_of(either) as page, pytest.raises(ConnectionClosed) as closed:
        page.socket.sendall(b"\x82\xff" + (21_000_000).to_bytes(8, "big") + b"mask")  # a frame's head, and no more
        page.recv(timeout=60)
    assert closed.value.rcvd and closed.value.rcvd.code == 1009


def test_before_login_half_of_the_places_can_be_taken_and_the_rest_is_for_the_team(team: Server) -> None:
    with ExitStack() as pages:
        for _ in range(MOST_SESSIONS // 2):
            pages.enter_context(page_of(team))
        assert refused_by(team, "")
        for _ in range(MOST_SESSIONS // 2):
            assert not refused_by(team, cookie_of(**ANN))
            pages.enter_context(page_of(team, additional_headers={"Cookie": cookie_of(**ANN)}))
        assert refused_by(team, cookie_of(**ANN))
        assert ask(team, "/_stcore/health").status == 200
    wait_until(lambda: not refused_by(team, ""))


def refused_by(server: Server, cookie: str) -> bool:
    """Whether a full server says so to a browser that comes for the page, and opens no socket for it either."""
    headers = {"Cookie": cookie} if cookie else {}
    page = ask(server, "/", Accept="text/html,*/*", **headers)
    try:
        with page_of(server, additional_headers=headers):
            socket_status = 101
    except InvalidStatus as refused:
        socket_status = refused.response.status_code
    assert (page.status, socket_status) in ((200, 101), (503, 403))
    assert ("The server is full" in page.text) == (page.status == 503)
    return page.status == 503


def wait_until(so: Callable[[], bool]) -> None:
    """Return once something is so; the server learns a moment later that a connection is closed."""
    deadline_s = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_the_server_may_open_as_many_files_as_its_sessions_take(either: Server) -> None:
    soft, hard = psutil.Process(either.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard > DESCRIPTORS


def test_a_page_takes_the_descriptors_that_are_counted_for_it(alone: Server) -> None:
    process = psutil.Process(alone.process.pid)
    with ExitStack() as pages:
        before = process.num_fds()
        for _ in range(20):
            pages.enter_context(page_of(alone))
        assert process.num_fds() - before <= 20 * gate.FILES_A_SESSION + 10  # and some for what goes on beside


@pytest.mark.parametrize(
    ("setting", "descriptors", "most"), [("", 100_000, 200), ("50", 100_000, 50), ("1000", 1024, 96), ("", 20, 1)]
)
def test_no_more_sessions_than_descriptors_last_for(
    monkeypatch: pytest.MonkeyPatch, setting: str, descriptors: int, most: int
) -> None:
    monkeypatch.setenv(gate.SESSIONS_VARIABLE, setting)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, descriptors))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert gate.most_sessions() == most


@pytest.mark.parametrize("setting", ["0", "-3", "many", "1.5", "²"])
def test_a_setting_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(gate.SESSIONS_VARIABLE, setting)
    with pytest.raises(ValueError, match=f"{gate.SESSIONS_VARIABLE} is '{re.escape(setting)}'"):
        gate.most_sessions()


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "setting"),
    [(gate.SESSIONS_VARIABLE, "many"), ("SIZING_ALLOWED_DOMAINS", ","), ("SIZING_API_KEYS", ",")],
)
def test_a_server_does_not_start_with_such_a_setting(variable: str, setting: str) -> None:
    told = [sys.executable, "-m", "streamlit", "run", "serve.py", f"--server.port={free_port()}"]
    settings = {**os.environ, variable: setting}
    ended = subprocess.run(told, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
