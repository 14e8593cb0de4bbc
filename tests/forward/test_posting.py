"""Requests over real sockets, with well-behaved and hostile receivers, and the outcome of each HTTP status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time

import pytest
from aiohttp import web

from stream_svt.forward.delivery import LONGEST_REQUESTED_S, answer_of, posting
from stream_svt.forward.event import Request
from stream_svt.forward.metrics import Result
from tests.support.forwarding import Receiver, configured
from tests.support.process import COMMAND, free_port
from tests.support.tls import Authority

pytestmark = pytest.mark.loopback
REQUEST = Request({"Content-Type": "application/json"}, b'{"data": 1}')


async def post(directory, receiver: Receiver, settings: str = "timeout: 1s", times: int = 1, url: str = ""):
    hook = f"{{name: h, webhook: {{url: '{url or receiver.url}'}}, {settings}}}"
    (one,) = configured(directory, f"[{hook}]").destinations
    async with posting(one) as post_once:
        return [await post_once(one.urls[0], REQUEST) for _ in range(times)][-1]


async def test_a_body_arrives_unchanged_with_authorization_and_user_agent(tmp_path):
    (tmp_path / "token").write_text("Bearer abc")
    async with Receiver().listening() as receiver:
        answer = await post(tmp_path, receiver, "authorization_file: token")
    assert answer.result is Result.ACCEPTED
    assert receiver.bodies == [REQUEST.body]
    headers = receiver.headers[0]
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer abc"
    assert headers["User-Agent"].startswith("stream-svt/")


async def test_redirects_are_not_followed_cookies_not_kept_and_proxies_not_used(tmp_path, monkeypatch):
    def answer(request, event):
        found = web.Response(status=307, headers={"Location": "/elsewhere"})
        found.set_cookie("session", "1")
        return found

    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    async with Receiver(answer).listening() as receiver:
        assert (await post(tmp_path, receiver, times=2)).reason == "status 307"
    assert len(receiver.headers) == 2
    assert "Cookie" not in receiver.headers[1]


async def test_a_request_to_a_slow_receiver_ends_at_the_timeout(tmp_path):
    async with Receiver(pause=5).listening() as receiver:
        began = time.monotonic()
        answer = await post(tmp_path, receiver, "timeout: 200ms")
    assert answer.result is Result.TIMEOUT
    assert time.monotonic() - began < 3


async def endless(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
    writer.close()


async def rude(reader, writer):
    writer.write(b"\xff" * 100_000)
    writer.close()


@pytest.mark.parametrize(("server", "result"), [(endless, Result.ACCEPTED), (rude, Result.UNREACHABLE)])
async def test_an_endless_response_is_not_read_and_a_response_that_is_not_http_is_a_failure(
    tmp_path, server, result
):
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with listening:
        assert (await post(tmp_path, Receiver(), url=url)).result is result


async def test_an_unreachable_receiver_is_reported_without_its_address(tmp_path):
    url = f"http://127.0.0.1:{free_port()}/T0KEN"
    answer = await post(tmp_path, Receiver(), url=url)
    assert (answer.result, answer.reason) == (Result.UNREACHABLE, "ClientConnectorError")


async def test_a_receiver_with_tls_needs_a_certificate_of_a_trusted_authority(tmp_path):
    """In a process of its own: the file in SSL_CERT_FILE is read when a process starts."""
    contexts = []
    for name in ("known", "unknown"):
        authority = Authority.new()
        (tmp_path / f"{name}.pem").write_bytes(authority.pem)
        (tmp_path / "server.pem").write_bytes(authority.broker_store())
        contexts.append(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        contexts[-1].load_cert_chain(tmp_path / "server.pem")
    config = tmp_path / "forward.yaml"
    async with Receiver().listening(contexts[0]) as known, Receiver().listening(contexts[1]) as unknown:
        hooks = (f"{{name: h{at}, webhook: {{url: '{one.url}'}}}}" for at, one in enumerate((known, unknown)))
        config.write_text(f"topic: a\ndestinations: [{', '.join(hooks)}]\n")
        command = (*COMMAND, "forward", "-c", str(config), "--test")
        environ = os.environ | {"SSL_CERT_FILE": str(tmp_path / "known.pem")}
        process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=asyncio.subprocess.PIPE)
        printed = (await process.communicate())[0].decode()
    assert printed == "h0: accepted (status 204)\nh1: unreachable (its certificate is not trusted)\n"


# HTTP statuses


@pytest.mark.parametrize(
    ("statuses", "result"),
    [
        ((200, 201, 202, 204, 409), Result.ACCEPTED),
        ((400, 413, 414, 415, 422, 431), Result.REFUSED),
        ((429,), Result.THROTTLED),
        (
            (100, 301, 302, 307, 401, 403, 404, 405, 408, 410, 425, 500, 501, 502, 503, 504, 599),
            Result.FAILED,
        ),
    ],
)
def test_only_statuses_about_the_request_itself_are_final(statuses, result):
    assert {answer_of(status, None).result for status in statuses} == {result}


def test_retry_after_counts_in_seconds_up_to_a_limit():
    waits = {"7": 7, " 7 ": 7, "999999": LONGEST_REQUESTED_S, "9" * 500: LONGEST_REQUESTED_S}
    for header in (None, "Fri, 31 Dec 2100 00:00:00 GMT", "-5", "", "\u0663", "1e3", *waits):
        assert answer_of(429, header).wait == waits.get(header, 0), header
    # Status 503 with Retry-After pauses all requests, as 429 does.
    assert [answer_of(503, header).result for header in ("5", None)] == [Result.THROTTLED, Result.FAILED]
