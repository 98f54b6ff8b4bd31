"""An OpenID provider on loopback, small but strict: code flow with PKCE, RS256, and whoever asks is `claims`."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "planner", "only for tests"


class Provider(ThreadingHTTPServer):
    """Who logs in is said by `claims`, of which a test sets what it needs; `logged_out` counts ended sessions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.claims: dict[str, Any] = {"sub": "1", "email": "ann@example.com", "email_verified": True}
        self.asked: dict[str, dict[str, str]] = {}
        self.key = RSAKey.generate_key(2048, parameters={"kid": "1"})
        self.logged_out = 0

    def metadata(self) -> dict[str, Any]:
        """The discovery document."""
        names = {"authorization": "authorize", "token": "token", "end_session": "logout"}
        return {
            "issuer": self.address,
            "jwks_uri": f"{self.address}/keys",
            **{f"{name}_endpoint": f"{self.address}/{path}" for name, path in names.items()},
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def code_for(self, query: dict[str, str]) -> str:
        """A code for one use, given to whoever asks for the right client with PKCE."""
        if query["client_id"] != CLIENT_ID or query.get("code_challenge_method") != "S256":
            raise PermissionError(f"not our client, or without PKCE: {query}")
        code = secrets.token_urlsafe()
        self.asked[code] = query
        return code

    def token_for(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        """The identity token for a code; the client must know its secret and what it hashed for PKCE."""
        query = self.asked.pop(form["code"])
        known = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        hashed = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if authorization != f"Basic {known}" or hashed != query["code_challenge"]:
            raise PermissionError("wrong secret or verifier")
        now = int(time.time())
        about = {"iss": self.address, "aud": CLIENT_ID, "iat": now, "exp": now + 600, "nonce": query["nonce"]}
        token = jwt.encode({"alg": "RS256", "kid": "1"}, about | self.claims, self.key)
        return {"access_token": "a", "token_type": "Bearer", "expires_in": 600, "id_token": token}


class _Answer(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        match address.path:
            case "/.well-known/openid-configuration":
                self._json(self.server.metadata())
            case "/keys":
                self._json({"keys": [self.server.key.as_dict(private=False)]})
            case "/authorize":
                back = {"code": self.server.code_for(query), "state": query["state"]}
                self._redirect(f"{query['redirect_uri']}?{urlencode(back)}")
            case "/logout":
                self.server.logged_out += 1
                self._redirect(query["post_logout_redirect_uri"])
            case _:
                self.send_error(404)

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self._json(self.server.token_for(form, self.headers["Authorization"]))

    def _json(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, address: str) -> None:
        self.send_response(302)
        self.send_header("Location", address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is its own."""


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers until the end."""
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
