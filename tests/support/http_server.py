"""A small HTTP server on loopback, in a thread of the test."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Serve until the block ends; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def answering(path: str, answer: dict[str, Any]) -> Iterator[int]:
    """Answer who asks for a path with the ``code`` and ``body`` that stand there then; yields the port."""

    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.send_response(answer["code"] if self.path == path else 404)
            self.end_headers()
            self.wfile.write(answer["body"])

    with serving(Handler) as port:
        yield port


class Posted(NamedTuple):
    """A request, and the JSON in it."""

    path: str
    headers: dict[str, str]
    body: Any


@contextlib.contextmanager
def receiving(code: int = 200) -> Iterator[tuple[str, list[Posted]]]:
    """Answer whatever is posted with ``code``; yields the server's address, and all that was posted so far."""
    posted: list[Posted] = []

    class Handler(_Quiet):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.append(Posted(self.path, dict(self.headers), body))
            self.send_response(code)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}", posted
