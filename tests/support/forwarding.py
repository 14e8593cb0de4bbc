"""What the forwarder's tests share: events, a configuration, receivers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import ssl
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from stream_svt.forward.config import Destination, ForwardConfig, parse_forward_config
from stream_svt.forward.event import Received, receive
from stream_svt.forward.parcel import Parcel
from stream_svt.forward.retry import Answer, Result
from stream_svt.monitor.released import Alert, EventType, Lifecycle
from tests.support.alerts import alert, encoded
from tests.support.process import COMMAND, Service

KEY, OLD_KEY = bytes(range(32)), bytes(range(100, 132))


def record(body: bytes, offset: int = 0, partition: int = 0) -> SimpleNamespace:
    """Return what a consumer would hand over."""
    return SimpleNamespace(
        value=body, key=b"shop", partition=partition, offset=offset, timestamp=1_767_600_000_000
    )


def received(
    data: Alert | Lifecycle | None = None, *, kind: EventType | None = None, sequence: int = 1
) -> Received:
    """Return an event as the forwarder reads it; an alert by default."""
    event = receive(record(encoded(sequence, data or alert(), kind=kind), offset=sequence))
    assert isinstance(event, Received)
    return event


def configured(
    directory: Path, destinations: str, *, servers: str = "127.0.0.1:1", **keys: str
) -> ForwardConfig:
    """Return a configuration whose destinations are given as YAML in one line; both keys stand in files."""
    for name, key in (("hook.key", KEY), ("old.key", OLD_KEY)):
        (directory / name).write_text(key.hex())
        (directory / name).chmod(0o600)
    text = f'kafka: {{bootstrap_servers: "{servers}"}}\ntopic: retail-watch.alerts\ndestinations: {destinations}\n'
    text += "".join(f"{name}: {value}\n" for name, value in keys.items())
    return parse_forward_config(text, directory=directory)


def destination(directory: Path, text: str) -> Destination:
    """Return one destination."""
    return configured(directory, f"[{text}]").destinations[0]


class Scripted:
    """Answers in place of HTTP: each request takes the next answer, the last one for ever."""

    def __init__(self, *answers: Answer | Result) -> None:
        self.answers = [one if isinstance(one, Answer) else Answer(one, one.value) for one in answers]
        self.posted: list[tuple[str, Parcel]] = []

    async def post(self, url: str, parcel: Parcel) -> Answer:
        self.posted.append((url, parcel))
        await asyncio.sleep(0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Receiver:
    """An HTTP server on the loopback address that notes what it gets and answers as it is told.

    Attributes
    ----------
    answer
        Returns the response to a request; the body was read.
    bodies, headers
        Of all requests, in order of arrival.
    """

    answer: Callable[[web.Request, dict], web.StreamResponse | None] = lambda request, event: None
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    taken: list[dict] = field(default_factory=list)
    pause: float = 0.0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        event = msgspec.json.decode(body)
        answer = self.answer(request, event)
        await asyncio.sleep(self.pause)
        if answer is None:
            self.taken.append(event)
            return web.Response(status=204)
        return answer

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        """Serve while the body runs."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
            await site.start()
            port = runner.addresses[0][1]
            self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hook"
            yield self
        finally:
            await runner.cleanup()


def moment(text: str) -> datetime:
    """Return a moment from RFC 3339 text."""
    return datetime.fromisoformat(text)


class Forwarder(Service):
    """`stream-svt forward -c FILE OPTION..`, with its pages at a port of its own."""

    def __init__(self, config: Path, port: int, log: Path, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "forward", "-c", str(config), *options],
                env=os.environ | {"STREAM_SVT_WEB_PORT": str(port)},
                stdout=output,
                stderr=output,
            )

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample of the metrics page, NaN where there is none."""
        for family in text_string_to_metric_families(self.fetch("/metrics") or ""):
            for sample in family.samples:
                if sample.name == f"stream_svt_forward_{name}" and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return math.nan


async def publish(servers: str, topic: str, *records: tuple[int, bytes, bytes], commit: bool = True) -> None:
    """Write records (partition, key, value) in one transaction, as a shard does."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-{uuid.uuid4().hex}")
    await producer.start()
    try:
        await producer.begin_transaction()
        for partition, key, value in records:
            await producer.send(topic, value, key=key, partition=partition)
        await producer.flush()
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()


async def everything_on(servers: str, topic: str) -> list[Any]:
    """Return all committed records of a topic."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        await consumer._client.force_metadata_update()
        places = [
            TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        found: list[Any] = []
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
        return found
    finally:
        await consumer.stop()


async def committed(servers: str, group: str) -> dict[int, int]:
    """Return the positions of a group by partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
        return {place.partition: one.offset for place, one in offsets.items()}
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Serve POST requests on the loopback address while the body runs; yields the address."""
    application = web.Application()
    application.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
