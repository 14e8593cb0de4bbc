"""A proxy between clients and one broker that lets chosen requests or their replies get lost, or come late.

Of Kafka's protocol it knows the frames' lengths and the first fields: what a request wants (its API key) and the
number (correlation id) that its reply repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from stream_svt.kafka.embedded import EmbeddedKafka, free_ports


class Api(IntEnum):
    """What a request wants."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    JOIN_GROUP = 11
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Fault(StrEnum):
    """What happens to a request."""

    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    REPLY_LATE = "reply late"
    REQUEST_LATE = "request late"
    REQUEST_ASTRAY = "connection lost, request late"


NO_REPLY = 20.0
"""Seconds after which a request that came late has no reply."""
_LATE = {Fault.REQUEST_LATE, Fault.REQUEST_ASTRAY}


@dataclass(frozen=True, eq=False)
class Strike:
    """One fault, waiting for the next request of its kind.

    ``seconds`` is how late something comes.
    ``done`` is set once the fault has struck and the connection goes on or is gone.
    """

    api: Api
    fault: Fault
    seconds: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self) -> str:
        lost = self.fault in {Fault.REQUEST_LOST, Fault.REPLY_LOST}
        detail = "" if lost else f" by {self.seconds:.1f} s"
        return f"{self.api.name}: {self.fault}{detail}"


class ProxiedKafka(EmbeddedKafka):
    """An embedded broker with one more listener that names the proxy's port as its own address."""

    def __init__(self, overrides: dict[str, str] | None = None) -> None:
        client, controller, self.behind_port, self.front_port = free_ports(4)
        listeners = {"PLAINTEXT": client, "CONTROLLER": controller, "PROXIED": self.behind_port}
        super().__init__(
            ports=(client, controller),
            overrides={
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
                "advertised.listeners": (
                    f"PLAINTEXT://127.0.0.1:{client},PROXIED://127.0.0.1:{self.front_port}"
                ),
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
                **(overrides or {}),
            },
        )


class Proxy:
    """Passes frames on between the clients and a port, and carries out what is armed."""

    def __init__(self, port: int, behind: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._port, self._behind = port, behind
        self._armed: list[Strike] = []
        self._links: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        try:
            yield self
        finally:
            server.close()
            for link in list(self._links):
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    def arm(self, strike: Strike) -> None:
        self._armed.append(strike)

    def strike(self, api: int) -> Strike | None:
        """Return the fault that strikes a request, and disarm it."""
        strike = next((strike for strike in self._armed if strike.api == api), None)
        if strike is not None:
            self._armed.remove(strike)
        return strike

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            broker = await asyncio.open_connection("127.0.0.1", self._behind)
            await _Link(self, (reader, writer), broker).carry()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.close()
        finally:
            self._links.discard(task)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the proxy's own to the broker."""

    def __init__(self, proxy: Proxy, client: Ends, broker: Ends) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self._struck: dict[int, Strike] = {}
        self._replying: asyncio.Task[None]

    async def carry(self) -> None:
        self._replying = asyncio.create_task(self._replies())
        try:
            # Not ended by the client's going: a request that is late still reaches the broker.
            await self._requests()
        finally:
            self._replying.cancel()
            await asyncio.gather(self._replying, return_exceptions=True)
            for strike in self._struck.values():
                strike.done.set()
            self._client[1].close()
            self._broker[1].close()

    async def _requests(self) -> None:
        reader, writer = self._client[0], self._broker[1]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                api, _, number = struct.unpack_from(">hhi", frame, 4)
                strike = self._proxy.strike(api)
                if strike is not None:
                    if strike.fault is Fault.REQUEST_LOST:
                        strike.done.set()
                        return
                    self._struck[number] = strike
                    if strike.fault is Fault.REQUEST_ASTRAY:
                        self._client[1].close()
                    if strike.fault in _LATE:
                        await asyncio.sleep(strike.seconds)
                writer.write(frame)
                await writer.drain()
                if strike is not None and strike.fault in _LATE:
                    replied = asyncio.ensure_future(strike.done.wait())
                    waited = {replied, self._replying}
                    # A member that joined again meanwhile gets no reply to what it sent before.
                    await asyncio.wait(waited, timeout=NO_REPLY, return_when=asyncio.FIRST_COMPLETED)
                    replied.cancel()
                    strike.done.set()

    async def _replies(self) -> None:
        reader, writer = self._broker[0], self._client[1]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                (number,) = struct.unpack_from(">i", frame, 4)
                strike = self._struck.get(number)
                if strike is not None:
                    if strike.fault is Fault.REPLY_LATE:
                        await asyncio.sleep(strike.seconds)
                    del self._struck[number]
                    strike.done.set()
                    if strike.fault is Fault.REPLY_LOST:
                        writer.close()
                # What the client does not take is read all the same: the broker goes on.
                if not writer.is_closing():
                    writer.write(frame)
                    await writer.drain()
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length, "big"))
