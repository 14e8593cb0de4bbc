"""Receive alerts that `stream-svt forward` posts: verify the signature, skip copies, print each alert once.

KEYS=hook.key python examples/webhook_receiver.py

It uses Python's standard library only. The signature follows Standard Webhooks, so a Standard Webhooks library for
your language can replace `verified`.
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

TOLERANCE_S = 300
LARGEST = 1 << 20  # bytes of a request; an event has a few thousand
ALERT = "io.stream-svt.alert.v1"


def verified(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Return whether a request was signed with one of the keys, at most `TOLERANCE_S` ago.

    ``headers`` must ignore the case of names, as those of `http.server` do.
    """
    identity, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()) or abs(now - int(timestamp)) > TOLERANCE_S:
        return False  # otherwise a copied request could be sent again at any time
    covered = f"{identity}.{timestamp}.".encode() + body  # the body as received, not parsed and encoded again
    expected = [b"v1," + base64.b64encode(hmac.digest(key, covered, hashlib.sha256)) for key in keys]
    given = headers.get("webhook-signature", "").encode().split()
    return any(hmac.compare_digest(one, other) for one in given for other in expected)


class Desk(BaseHTTPRequestHandler):
    """Answers 204 after it has handled an alert; after any other answer the forwarder sends it again."""

    timeout = 10  # seconds without a byte, so that an idle connection does not keep its thread
    keys: ClassVar[Sequence[bytes]] = ()
    lock: ClassVar[threading.Lock] = threading.Lock()  # two copies may arrive at the same time
    seen: ClassVar[OrderedDict[str, None]] = OrderedDict()  # a real receiver stores these with its results

    def do_POST(self) -> None:
        """Receive one event."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LARGEST):
            self.close_connection = True  # the body is not read
            self.send_error(413 if length.isdigit() else 411)
            return
        body = self.rfile.read(int(length))
        if not verified(self.keys, self.headers, body, time.time()):
            self.send_error(401)
            return
        identity = self.headers["webhook-id"]
        with self.lock:
            if identity not in self.seen:
                self.handle_event(json.loads(body))
                self.seen[identity] = None  # not before: a failed event has to be sent again
                if len(self.seen) > 10_000:
                    self.seen.popitem(last=False)
        self.send_response(204)
        self.end_headers()

    def handle_event(self, event: dict[str, object]) -> None:
        """Print an alert; ignore other events."""
        alert = event["data"]
        if event["type"] != ALERT or not isinstance(alert, dict):
            return
        sure = "not certified" if alert["bound"] is None else f"at least {alert['bound']:g}"
        print(f"{alert['dataset']!r} {alert['series']!r}: gap {alert['gap']:g}, {sure}", flush=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Do not log requests."""


def main() -> None:
    """Listen on the loopback address."""
    files = os.environ["KEYS"].split(os.pathsep)  # two while a key is replaced
    Desk.keys = [bytes.fromhex(Path(name).read_text("utf-8-sig").strip()) for name in files]
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8088"))), Desk).serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
