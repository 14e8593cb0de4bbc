"""Receives the responses of a broker, a large one straight into memory of its size.

aiokafka's own reader appends received bytes to a buffer and copies each response out of it. For megabytes that takes
longer than the network. It also wakes up a separate task for each part of a response.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from struct import Struct
from typing import Any, Final

import numpy as np
from aiokafka.conn import CloseReason

log = logging.getLogger(__name__)

SCRATCH: Final = 1 << 14
"""Bytes of a connection for small responses, several of which can arrive together."""
_SIZE: Final = Struct(">i")


class ResponseProtocol(asyncio.BufferedProtocol):
    """Passes each response to a connection of aiokafka; replaces its ``protocol``, which gets all other events."""

    def __init__(self, connection: Any, protocol: Any) -> None:  # noqa: ANN401  aiokafka has no types
        self._connection, self._protocol = weakref.ref(connection), protocol
        self._scratch = bytearray(SCRATCH)
        self._filled = 0
        self._large: memoryview | None = None
        self._received = 0

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if self._large is not None:
            return self._large[self._received :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Process so many received bytes."""
        if self._large is None:
            self._filled += count
            self._take_small()
            return
        self._received += count
        if self._received == len(self._large):
            content, self._large = bytes(self._large), None
            self._handle(content)

    def _take_small(self) -> None:
        """Pass on complete responses; allocate memory for a response that is larger than the scratch memory."""
        at, content = 0, memoryview(self._scratch)[: self._filled]
        while at + 4 <= self._filled:
            [size] = _SIZE.unpack_from(content, at)
            if size < 0:
                self._fail(ValueError(f"a broker sent a response of {size} bytes"))
                break
            part = content[at + 4 : at + 4 + size]
            if len(part) < size:
                if 4 + size > SCRATCH:
                    self._large, self._received = np.empty(size, np.uint8).data, len(part)
                    self._large[: len(part)] = part
                    at = self._filled
                break
            self._handle(bytes(part))
            at += 4 + size
        self._filled -= at
        self._scratch[: self._filled] = content[at:].tobytes()

    def _handle(self, content: bytes) -> None:
        connection = self._connection()
        if connection is None or not connection.connected():
            return
        try:
            connection._handle_frame(content)  # noqa: SLF001
        except Exception as error:  # of any kind: as aiokafka's reader does
            log.exception("event=response_unreadable host=%s port=%s", connection.host, connection.port)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if (connection := self._connection()) is not None:
            connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)

    def eof_received(self) -> bool | None:
        """Pass the end on: the connection's reader ends, and closes the connection."""
        ended: bool | None = self._protocol.eof_received()
        return ended

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the loss on."""
        self._protocol.connection_lost(error)
