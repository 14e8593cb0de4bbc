"""Responses of a broker, however they arrive."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import CorrelationIdError, KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from stream_svt.kafka.aiokafka_fixes import ClientMarker, create_conn
from stream_svt.kafka.frames import SCRATCH, ResponseProtocol
from tests.support.tls import Authority


class Connection:
    """Keeps what it is handed, as a connection of aiokafka would."""

    host, port = "here", 1

    def __init__(self) -> None:
        self.responses: list[bytes] = []
        self.error: Exception | None = None

    def connected(self) -> bool:
        return self.error is None

    def close(self, *, reason: int, exc: Exception) -> None:
        self.error = exc

    def _handle_frame(self, response: bytes) -> None:
        if response == b"strange":
            raise LookupError(response)
        self.responses.append(response)


def receive(frames: ResponseProtocol, stream: bytes, most: Any) -> None:
    while stream:
        into = frames.get_buffer(-1)
        count = min(len(into), len(stream), most())
        into[:count] = stream[:count]
        frames.buffer_updated(count)
        stream = stream[count:]


def framed(*responses: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(response)) + response for response in responses)


@pytest.mark.parametrize("most", [1, 3, SCRATCH - 1, SCRATCH, 10 * SCRATCH, 0], ids=str)
def test_responses_arrive_whole_and_in_order_however_they_are_cut(most: int) -> None:
    chance, connection = random.Random(1), Connection()
    sizes = [0, 5, SCRATCH - 4, SCRATCH - 3, 7, 3 * SCRATCH, SCRATCH, 1, 1, 2 * SCRATCH + 1, 0]
    responses = [chance.randbytes(size) for size in sizes]
    frames = ResponseProtocol(connection, None)
    receive(frames, framed(*responses), lambda: most or chance.randint(1, 2 * SCRATCH))
    assert connection.responses == responses
    assert all(type(response) is bytes for response in connection.responses)
    assert connection.error is None


@pytest.mark.parametrize(
    ("stream", "error"),
    [(b"\xff" * 4, ValueError), (framed(b"strange"), LookupError)],
    ids=["size", "content"],
)
def test_a_response_that_cannot_be_read_closes_the_connection(stream: bytes, error: type[Exception]) -> None:
    connection = Connection()
    receive(ResponseProtocol(connection, None), framed(b"first") + stream + framed(b"later"), lambda: 100)
    assert type(connection.error) is error
    assert connection.responses == [b"first"]


def versions(correlation: int, count: int) -> bytes:
    """Return the response to a request for versions, with so many of them."""
    return framed(struct.pack(">ihi", correlation, 0, count) + struct.pack(">hhh", 18, 0, 0) * count)


@pytest.fixture(params=["plain", "tls"])
def contexts(request, tmp_path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    if request.param == "plain":
        return None, None
    authority, file = Authority.new(), tmp_path / "broker.pem"
    file.write_bytes(authority.broker_store())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=authority.pem.decode())


@asynccontextmanager
async def connected(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None],
    answer: Callable[[int, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Any]:
    """Connect to a broker whose answers after the first, given the correlation id, are those of the test."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                [size] = struct.unpack(">i", await reader.readexactly(4))
                [correlation] = struct.unpack_from(">i", await reader.readexactly(size), 4)
                if correlation == 1:
                    writer.write(versions(correlation, 1))
                else:
                    await answer(correlation, writer)
        except (EOFError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=contexts[0])
    protocol = ClientMarker("SSL" if contexts[0] else "PLAINTEXT")
    port = server.sockets[0].getsockname()[1]
    connection = await create_conn(
        "127.0.0.1", port, ssl_context=contexts[1], security_protocol=protocol, request_timeout_ms=20_000
    )
    closed = connection._closed_fut
    try:
        yield connection
    finally:
        connection.close()
        await closed
        server.close()
        await server.wait_closed()


@pytest.mark.loopback
async def test_requests_are_answered_in_order_over_a_socket_and_those_given_up_are_passed_over(contexts):
    counts = [1, 3000, 2, 2729, 2728, 100_000, 0, 50_000, 1]
    rest = bytearray()

    async def answer(correlation: int, writer: asyncio.StreamWriter) -> None:
        rest.extend(versions(correlation, counts[correlation - 2]))
        if correlation < 1 + len(counts):
            return
        while rest:  # several responses at once, and parts of one
            writer.write(rest[:70_001])
            del rest[:70_001]
            await writer.drain()

    async with connected(contexts, answer) as connection:
        assert type(connection._writer.transport.get_protocol()) is ResponseProtocol
        requests = [asyncio.ensure_future(connection.send(ApiVersionRequest())) for _ in counts]
        await asyncio.sleep(0)
        for given_up in (0, 5):
            requests[given_up].cancel()
        found = await asyncio.gather(*requests, return_exceptions=True)
        received = [None if isinstance(one, BaseException) else len(one.api_versions) for one in found]
        assert received == [None, *counts[1:5], None, *counts[6:]]
        assert connection.connected()


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("count", "cut", "wrong", "error"),
    [
        (1, 3, 0, KafkaConnectionError),
        (1, 9, 0, KafkaConnectionError),
        (50_000, 200_000, 0, KafkaConnectionError),
        (1, None, 7, CorrelationIdError),
        (50_000, None, 7, CorrelationIdError),
    ],
    ids=["size", "small", "large", "number-small", "number-large"],
)
async def test_a_connection_that_ends_in_a_response_or_has_anothers_fails_its_requests_at_once(
    contexts, count, cut, wrong, error
):
    async def answer(correlation: int, writer: asyncio.StreamWriter) -> None:
        writer.write(versions(correlation + wrong, count)[:cut])
        await writer.drain()
        if cut:
            writer.close()

    async with connected(contexts, answer) as connection, asyncio.timeout(15):
        requests = [connection.send(ApiVersionRequest()) for _ in range(2)]
        first, second = await asyncio.gather(*requests, return_exceptions=True)
        assert (type(first), type(second)) == (error, KafkaConnectionError)
        assert not connection.connected()
