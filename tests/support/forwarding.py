"""Shared by the forwarder's tests: events and a topic of them, configurations, receivers, running forwarders."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
from aiohttp import web
from aiokafka import ConsumerRecord
from prometheus_client.parser import text_string_to_metric_families

from stream_svt.forward.config import DestinationConfig, ForwardConfig, load_forward_config
from stream_svt.forward.delivery import Answer
from stream_svt.forward.event import Request
from stream_svt.forward.metrics import ForwardMetrics, Result, Samples
from stream_svt.monitor.released import Alert, AnyEvent, EventType, Lifecycle, received
from tests.support import records
from tests.support.alerts import alert, encoded
from tests.support.keys import write_secrets
from tests.support.process import Process, Service, free_port

KEY, OLD_KEY = bytes(range(32)), bytes(range(100, 132))
FAST = "retry: {first: 20ms, most: 200ms}, timeout: 500ms"
"""Short waits, for a destination with a receiver of a test."""


def record_of(body: bytes, partition: int = 0, offset: int = 1) -> tuple[ConsumerRecord, AnyEvent | None]:
    """Return a record of the alert topic, and the event in it."""
    record = SimpleNamespace(value=body, key=b"shop", partition=partition, offset=offset)
    return record, received(body, partition, offset)


def write_keys(directory: Path) -> None:
    write_secrets(directory, {"hook.key": KEY.hex(), "old.key": OLD_KEY.hex()})


def configured(directory: Path, destinations: str, **keys: str) -> ForwardConfig:
    """Return a configuration with destinations given as YAML in one line, and write both key files."""
    write_keys(directory)
    text = (
        'kafka: {bootstrap_servers: "127.0.0.1:1"}\n'
        f"topic: retail-watch.alerts\ndestinations: {destinations}\n"
    )
    return loaded(directory, text + "".join(f"{name}: {value}\n" for name, value in keys.items()))


def loaded(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> ForwardConfig:
    """Return the configuration of a text; its secrets are files of the directory."""
    path = directory / "forward.yaml"
    path.write_text(text)
    return load_forward_config(path, environ)


def destination(directory: Path, text: str) -> DestinationConfig:
    return configured(directory, f"[{text}]").destinations[0]


class Scripted:
    """Scripted answers instead of HTTP: each request gets the next one, and the last one repeats."""

    def __init__(self, *answers: Answer | Result) -> None:
        self.answers = [one if isinstance(one, Answer) else Answer(one, one.value) for one in answers]
        self.posted: list[tuple[str, Request]] = []
        self.open = self.peak = 0

    async def post(self, url: str, request: Request) -> Answer:
        self.posted.append((url, request))
        self.open += 1
        self.peak = max(self.peak, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Receiver:
    """An HTTP server on the loopback address that records requests and gives scripted answers.

    Attributes:
        answer: Returns the response to a request; the body was read.
        bodies, headers: Of all requests, in order of arrival.
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
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        async with serving(self._handle, tls) as address:
            self.url = f"{address}/hook"
            yield self


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    """Return all samples by their name and the values of their labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(metrics: ForwardMetrics, gauges: Samples | None = None) -> dict[tuple[str, ...], float]:
    return samples_of(metrics.text(gauges or {}).decode())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Forwarder(Service):
    """`stream-svt forward -c FILE OPTION..`, with its pages at a port of its own."""

    command = "forward"

    def __init__(self, config: Path, port: int, log: Path, *options: str) -> None:
        super().__init__(config, port, log, *options, env={"STREAM_SVT_WEB_PORT": str(port)}, applies=False)

    def metric(self, name: str, *labels: str) -> float:
        """Return a sample of the metrics page, NaN where there is none."""
        return samples_of(self.fetch("/metrics") or "").get((f"stream_svt_forward_{name}", *labels), math.nan)


class Stage:
    """One alert topic and its forwarders; the key files are beside the configuration.

    Attributes:
        sent: The bodies of all events made, by dataset, in order.
        running: Every forwarder that was started.
    """

    def __init__(self, servers: str, topic: str, directory: Path) -> None:
        self.servers = servers
        self.topic = topic
        self.directory = directory
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.sequence = 0
        self.running: list[Process] = []
        write_keys(directory)

    def configure(self, *destinations: str, **keys: str) -> None:
        """Write the configuration; each destination is YAML without its braces, and begins with the oldest event."""
        text = (
            f'kafka: {{bootstrap_servers: "{self.servers}", session_timeout: 2s, heartbeat_interval: 300ms}}\n'
            f"topic: {self.topic}\ngroup: {self.topic}\npark_topic: {self.topic}-parked\n"
        )
        text += "".join(f"{name}: {value}\n" for name, value in keys.items())
        text += "destinations:\n" + "".join(f"  - {{start_at: earliest, {one}}}\n" for one in destinations)
        (self.directory / "forward.yaml").write_text(text)

    def start(self, *options: str) -> Forwarder:
        port = free_port()
        log = self.directory / f"log-{port}"
        forwarder = Forwarder(self.directory / "forward.yaml", port, log, *options)
        self.running.append(forwarder)
        return forwarder

    async def begin(self, *options: str) -> Forwarder:
        """Start a forwarder and wait until it is in its groups."""
        forwarder = self.start(*options)
        await forwarder.until(lambda: forwarder.fetch("/health/ready") == "ready\n", 40)
        return forwarder

    def event(
        self, dataset: str, data: Alert | Lifecycle | None = None, *, kind: EventType | None = None
    ) -> tuple[int, bytes, bytes]:
        """Return the next record; dataset decides its partition."""
        self.sequence += 1
        body = encoded(
            self.sequence,
            data or alert(dataset=dataset, series=f"s{self.sequence}", number=self.sequence),
            kind=kind,
        )
        self.sent[dataset].append(body)
        return ord(dataset) % 2, dataset.encode(), body

    async def publish(self, *written: tuple[int, bytes, bytes], commit: bool = True) -> None:
        await records.publish(self.servers, self.topic, *written, commit=commit)


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
