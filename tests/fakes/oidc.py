"""An OpenID provider on loopback, whose every answer a test can bend.

`groups` and `claims` are of the next token; `signer`, `algorithm` and `header` say how it is signed; `pages` replaces
an answer by path. Codes are good once. Used in place of a browser: `returned` follows a redirect of gpuplane's and
gives the query that the provider would send the browser back with.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlsplit

from joserfc import jws
from joserfc.jwk import RSAKey

CLIENT = "gpuplane"
SECRET = "a client's secret"
_KEYS = {name: RSAKey.generate_key(2048, {"kid": name, "use": "sig"}) for name in ("first", "second", "foreign")}


class FakeProvider:
    """The provider's state, and its server."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.groups: Any = []
        self.userinfo: dict[str, Any] = {}
        self.signer = "first"
        self.published = ["first"]
        self.algorithm = "RS256"
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.dripping = False
        """Whether answers are sent a byte at a time."""
        self.metadata: dict[str, Any] = {}
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[FakeProvider]:
        """While the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)

    def returned(self, location: str, **claims: Any) -> dict[str, str]:
        """The query of the way back, for somebody of these claims."""
        query = dict(parse_qsl(urlsplit(location).query))
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = token_urlsafe(16)
        self._codes[code] = query
        self.claims = {"preferred_username": "ada", "sub": "s-ada", "groups": self.groups} | claims
        return {"code": code, "state": query["state"]}

    def answer(self, method: str, path: str, body: Mapping[str, str], headers: Any) -> tuple[int, bytes]:
        """Status and body."""
        self.asked.append(path)
        if path in self.pages:
            return self.pages[path]
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps(self._metadata() | self.metadata).encode()
        if path == "/keys":
            return 200, json.dumps({"keys": [_KEYS[name].as_dict(private=False) for name in self.published]}).encode()
        if path == "/userinfo":
            return 200, json.dumps({"sub": self.claims["sub"]} | self.userinfo).encode()
        if (method, path) == ("POST", "/token"):
            return self._token(body, headers)
        return 404, b"{}"

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "end_session_endpoint": f"{self.issuer}/end",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }

    def _token(self, body: Mapping[str, str], headers: Any) -> tuple[int, bytes]:
        basic = base64.b64encode(f"{quote_plus(CLIENT)}:{quote_plus(SECRET)}".encode()).decode()
        query = self._codes.pop(body.get("code", ""), None)
        challenge = hashlib.sha256(body.get("code_verifier", "").encode()).digest()
        if query is None or headers["Authorization"] != f"Basic {basic}":
            return 400, b'{"error": "invalid_grant"}'
        if base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != query["code_challenge"]:
            return 400, b'{"error": "invalid_grant", "error_description": "PKCE"}'
        if body.get("redirect_uri") != query["redirect_uri"]:
            return 400, b'{"error": "invalid_grant", "error_description": "redirect_uri"}'
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": query["nonce"]}
        claims = {name: value for name, value in (claims | self.claims).items() if value is not None}
        token = {"access_token": token_urlsafe(16), "token_type": "Bearer", "id_token": self._signed(claims)}
        return 200, json.dumps(token).encode()

    def _signed(self, claims: Mapping[str, Any]) -> str:
        payload = json.dumps(claims).encode()
        if self.algorithm == "none":
            return ".".join([_text(b'{"alg":"none"}'), _text(payload), ""])
        key = _KEYS[self.signer]
        if self.algorithm == "HS256":  # signed by the public key, as if it were a shared secret
            signed = f"{_text(json.dumps({'alg': 'HS256', 'kid': self.signer}).encode())}.{_text(payload)}"
            return f"{signed}.{_text(hmac.digest(key.as_pem(private=False), signed.encode(), 'sha256'))}"
        return jws.serialize_compact({"alg": self.algorithm, "kid": self.signer}, payload, key)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _handler(provider: FakeProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = dict(parse_qsl(self.rfile.read(length).decode()))
            status, content = provider.answer(self.command, self.path.partition("?")[0], body, self.headers)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            pieces = [content[at : at + 1] for at in range(len(content))] if provider.dripping else [content]
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    self.wfile.write(piece)
                    if provider.dripping:
                        time.sleep(0.005)

        def log_message(self, *_args: Any) -> None:
            """Nothing: pytest shows what matters."""

    return Handler
