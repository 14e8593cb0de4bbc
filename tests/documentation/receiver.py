"""Takes whatever is posted to it, as the receivers that pages name would."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SOMEBODYS = re.compile(r"https?://(?:[\w-]+\.)*[\w-]+\.example\b|http://(?:127\.0\.0\.1|localhost):9093\b")


@dataclass(frozen=True, slots=True)
class Post:
    """One request: where to, and the names of its headers in small letters."""

    path: str
    headers: frozenset[str]


@dataclass
class Receiver:
    """Stands for every address of a page that is somebody else's: hosts under ``.example``, and Alertmanager."""

    posts: list[Post] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.posts))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def own(self, text: str) -> str:
        """Return a text with this receiver in place of somebody's."""
        return _SOMEBODYS.sub(self.url, text)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(posts: list[Post]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            posts.append(Post(self.path, frozenset(name.lower() for name in self.headers)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
