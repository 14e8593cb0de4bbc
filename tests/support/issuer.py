"""An issuer of access tokens on loopback: a token endpoint, and the key that verifies its tokens (JWKS)."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.support.http_server import serving

AUDIENCE: Final = "kafka"
SECRET: Final = "client secret & more"


class Issuer:
    """Gives each client with the right secret a token for "svt".

    Attributes:
        url: Address, and name in tokens.
        lifetime: Seconds of a token, of the next ones.
        answer: Status and body of the token endpoint, instead of a token.
        delay: Seconds before each of its answers.
        asked: Forms of the requests so far, with the header of the login.
    """

    def __init__(self) -> None:
        self.url = ""
        self.lifetime = 3600.0
        self.answer: tuple[int, Any] | None = None
        self.delay = 0.0
        self.asked: list[dict[str, Any]] = []
        self._key = rsa.generate_private_key(65537, 2048)

    def token(self, **claims: Any) -> str:
        """Return a signed token; ``claims`` replace its own."""
        now = time.time()
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "svt", "iat": now, "exp": now + self.lifetime}
        head = {"alg": "RS256", "typ": "JWT", "kid": "one"}
        signed = f"{_part(head)}.{_part(usual | claims)}"
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        e, n = (_text(one.to_bytes((one.bit_length() + 7) // 8, "big")) for one in (numbers.e, numbers.n))
        return {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one", "e": e, "n": n}]}

    def respond(self, form: dict[str, Any]) -> tuple[int, Any]:
        """Return the answer of the token endpoint."""
        self.asked.append(form)
        time.sleep(self.delay)
        if self.answer is not None:
            return self.answer
        pair = base64.b64encode(f"me:{SECRET.replace(' ', '+').replace('&', '%26')}".encode()).decode()
        if form["login"] != f"Basic {pair}":
            return 401, {"error": "invalid_client", "error_description": f"not {SECRET}"}
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime}

    @contextlib.contextmanager
    def serving(self, tls: ssl.SSLContext | None = None) -> Iterator[Self]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, issuer.keys())

            def do_POST(self) -> None:
                sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._send(*issuer.respond(sent | {"login": self.headers["Authorization"]}))

            def _send(self, status: int, answer: Any) -> None:
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                with contextlib.suppress(OSError):  # nobody may wait for it any more
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        with serving(Handler, tls) as port:
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
            yield self


def _part(content: dict[str, Any]) -> str:
    return _text(json.dumps(content).encode())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
