"""Requests over real sockets: what receivers may do to us, and what they may not; what their answers mean."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import aclosing

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from stream_svt.forward.event import Request
from stream_svt.forward.posting import LONGEST_REQUESTED_S, HttpPosting, Result, meaning
from tests.support.forwarding import Receiver, configured, moment
from tests.support.process import free_port
from tests.support.tls import Authority

pytestmark = pytest.mark.loopback
REQUEST = Request({"Content-Type": "application/json"}, b'{"data": 1}')
NOW = moment("2026-01-05T10:00:00+00:00")


async def post(directory, receiver: Receiver, settings: str = "timeout: 1s", times: int = 1, url: str = ""):
    hook = f"{{name: h, webhook: {{url: '{url or receiver.url}'}}, {settings}}}"
    (one,) = configured(directory, f"[{hook}]").destinations
    async with aclosing(HttpPosting(one)) as posting:
        return [await posting.post(url or receiver.url, REQUEST) for _ in range(times)][-1]


async def posted_to(server, directory) -> Result:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with listening:
        return (await post(directory, Receiver(), url=url)).result


async def test_what_is_posted_arrives_as_it_is_and_says_who_sent_it(tmp_path):
    (tmp_path / "token").write_text("Bearer abc")
    async with Receiver().listening() as receiver:
        answer = await post(tmp_path, receiver, "authorization_file: token")
    assert answer.result is Result.ACCEPTED
    assert receiver.bodies == [REQUEST.body]
    headers = receiver.headers[0]
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer abc"
    assert headers["User-Agent"].startswith("stream-svt/")


async def test_redirects_are_not_followed_and_cookies_not_kept(tmp_path):
    def answer(request, event):
        found = web.Response(status=307, headers={"Location": "/elsewhere"})
        found.set_cookie("session", "1")
        return found

    async with Receiver(answer).listening() as receiver:
        assert (await post(tmp_path, receiver, times=2)).reason == "status 307"
    assert len(receiver.headers) == 2
    assert "Cookie" not in receiver.headers[1]


async def test_a_proxy_of_the_environment_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    async with Receiver().listening() as receiver:
        assert (await post(tmp_path, receiver)).result is Result.ACCEPTED


async def test_a_receiver_that_is_slow_ends_at_the_deadline(tmp_path):
    async with Receiver(pause=5).listening() as receiver:
        began = time.monotonic()
        answer = await post(tmp_path, receiver, "timeout: 200ms")
    assert answer.result is Result.TIMEOUT
    assert time.monotonic() - began < 3


async def test_an_endless_answer_is_not_read(tmp_path):
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    assert await posted_to(endless, tmp_path) is Result.ACCEPTED


async def test_an_answer_that_is_no_http_is_a_failure_to_reach_it(tmp_path):
    async def rude(reader, writer):
        writer.write(b"\xff" * 100_000)
        writer.close()

    assert await posted_to(rude, tmp_path) is Result.UNREACHABLE


async def test_nobody_there_is_said_without_the_address(tmp_path):
    url = f"http://127.0.0.1:{free_port()}/T0KEN"
    answer = await post(tmp_path, Receiver(), url=url)
    assert (answer.result, answer.reason) == (Result.UNREACHABLE, "ClientConnectorError")


async def test_tls_needs_a_receiver_that_is_trusted_and_may_show_a_certificate(tmp_path):
    """Negative controls: another authority, and no certificate of our own where one is asked for."""
    authority = Authority.new()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "stranger.pem").write_bytes(Authority.new().pem)
    for name in ("server.pem", "client.pem"):
        (tmp_path / name).write_bytes(authority.broker_store())
        (tmp_path / name).chmod(0o600)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "server.pem")
    own = ", certificate_file: client.pem, key_file: client.pem"
    async with Receiver().listening(tls=context) as receiver:
        assert (await post(tmp_path, receiver, "tls: {ca_file: ca.pem}")).result is Result.ACCEPTED
        stranger = await post(tmp_path, receiver, "tls: {ca_file: stranger.pem}")
        assert (stranger.result, stranger.reason) == (Result.UNREACHABLE, "its certificate is not trusted")
        assert (await post(tmp_path, receiver, "timeout: 1s")).reason == "its certificate is not trusted"
    context.verify_mode = ssl.CERT_REQUIRED
    async with Receiver().listening(tls=context) as receiver:
        assert (await post(tmp_path, receiver, f"tls: {{ca_file: ca.pem{own}}}")).result is Result.ACCEPTED
        assert (await post(tmp_path, receiver, "tls: {ca_file: ca.pem}")).result is Result.UNREACHABLE
        assert len(receiver.bodies) == 1


# What answers mean


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
def test_only_what_is_about_the_event_itself_is_final(statuses, result):
    assert {meaning(status, None, NOW).result for status in statuses} == {result}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("7", 7),
        (" 7 ", 7),
        ("Mon, 05 Jan 2026 10:01:00 GMT", 60),
        ("Mon, 05 Jan 2026 09:00:00 GMT", 0),
        ("999999", LONGEST_REQUESTED_S),
        ("9" * 500, LONGEST_REQUESTED_S),
        ("Fri, 31 Dec 2100 00:00:00 GMT", LONGEST_REQUESTED_S),
        ("-5", 0),
        ("soon", 0),
        ("", 0),
        ("\u0663", 0),
        ("1e3", 0),
    ],
)
def test_retry_after_is_heard_as_far_as_it_makes_sense(header, seconds):
    assert meaning(429, header, NOW).wait == seconds


DATES = [
    "Mon, 01 Jan 99999999999 00:00:00 GMT",
    "Mon, 01 Jan 2026 00:00:00 +99999999999",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    "Mon, 31 Dec 9999 23:59:59 -2359",
    "Thu, 01 Jan 2026 99999999999999999999:00:00 GMT",
    "Mon, 01 Jan " + "9" * 5000 + " 00:00:00 GMT",
    "Mon, 05 Jan 2026 10:01:00 GMT",
    "1 Jan",
]


@given(
    st.text(max_size=60)
    | st.text("0123456789 :,+-()JanMonGT", max_size=60)
    | st.builds(
        lambda text, at, end, middle: text[:at] + middle + text[end:],
        st.sampled_from(DATES),
        st.integers(0, 40),
        st.integers(0, 40),
        st.text('0123456789 :,+-.;()\\"\x00Z', max_size=12),
    )
)
@example(DATES[0]).via("found by attack")
@example(DATES[1]).via("found by attack")
@example(DATES[5])
def test_nothing_that_a_receiver_writes_there_raises(header):
    assert 0 <= meaning(503, header, NOW).wait <= LONGEST_REQUESTED_S


def test_a_service_unavailable_that_names_a_time_is_meant_for_all_requests():
    assert meaning(503, "5", NOW).result is Result.THROTTLED
    assert meaning(503, None, NOW).result is Result.FAILED
