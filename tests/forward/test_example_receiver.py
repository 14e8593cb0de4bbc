"""The example receiver limits lengths and waits, and handles each event once."""

from __future__ import annotations

import runpy
import socket
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stream_svt.forward.event import signatures
from tests.support.alerts import alert, encoded
from tests.support.forwarding import KEY
from tests.support.http_server import serving

pytestmark = pytest.mark.loopback
EXAMPLE = Path(__file__).parents[2] / "examples" / "webhook_receiver.py"


@pytest.fixture
def desk():
    desk = type("Desk", (runpy.run_path(str(EXAMPLE))["Desk"],), {"keys": [KEY], "seen": OrderedDict()})
    assert desk.timeout == 10
    desk.timeout = 0.5
    with serving(desk) as desk.port:
        yield desk


def exchange(desk, request: bytes) -> bytes:
    """Send a request, keep the connection open and return the answer."""
    with socket.create_connection(("127.0.0.1", desk.port), timeout=10) as connection:
        connection.sendall(request)
        return connection.recv(1 << 16)


def signed(body: bytes) -> bytes:
    now = datetime.now(UTC)
    signature = signatures([KEY], "evt_1", now, body)
    head = (
        f"POST / HTTP/1.0\r\nwebhook-id: evt_1\r\nwebhook-timestamp: {int(now.timestamp())}\r\n"
        f"webhook-signature: {signature}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize(
    ("length", "status"),
    [("-1", 411), ("", 411), ("1e3", 411), ("1048577", 413), ("9" * 5000, 413), ("0", 401)],
)
def test_a_length_is_refused_before_anything_is_read(desk, length, status):
    answer = exchange(desk, f"POST / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode())
    assert answer.split()[1] == str(status).encode()


def test_a_silent_sender_is_disconnected(desk):
    began = time.monotonic()
    assert exchange(desk, b"POST / HTTP/1.0\r\nContent-Length: 9\r\n\r\n") == b""
    assert time.monotonic() - began < 9


def test_simultaneous_copies_are_handled_once(desk, monkeypatch):
    handled = []

    def slowly(self, event) -> None:
        time.sleep(0.2)
        handled.append(event["id"])

    monkeypatch.setattr(desk, "handle_event", slowly)
    request = signed(encoded(1, alert()))
    with ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(exchange, [desk] * 4, [request] * 4)]
    assert [answer.split()[1] for answer in answers] == [b"204"] * 4
    assert len(handled) == 1
