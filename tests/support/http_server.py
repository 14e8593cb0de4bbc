"""A small HTTP server on loopback, in a thread of the test."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["code"] if self.path == path else 404)
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with serving(Handler) as port:
        yield port


@contextlib.contextmanager
def receiving(path: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Take alerts posted to a path, a list of them or a webhook's; yields the server and all alerts so far."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == path:
                posted.extend(body if isinstance(body, list) else body["alerts"])
            self.send_response(200 if self.path == path else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}", posted
