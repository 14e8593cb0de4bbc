"""Responses of a broker, however they arrive."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from stream_svt.kafka.frames import SCRATCH, Frames


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


def receive(frames: Frames, stream: bytes, most: Any) -> None:
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
    frames = Frames(connection, None)
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
    receive(Frames(connection, None), framed(b"first") + stream + framed(b"later"), lambda: 100)
    assert type(connection.error) is error
    assert connection.responses == [b"first"]
