"""Raw events of 60 bytes, an application that counts them, and its counter as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import io
import json
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.application import PATIENCE, Worker, wait_until
from benchmarks.peers import Reading
from stream_svt.application.config import parse_config
from stream_svt.settings.sources import LOG_PARTITIONS
from stream_svt.worker.config_versions import propose, publish

Integers = NDArray[np.int64]
Message: TypeAlias = Callable[[int, int], bytes]
"""Makes an event of a user and a page."""

PARTITIONS = 4
SOURCE = "events"
CLOCK = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
COUNTS = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": str(2**63 - 1)}
BATCH = 4000
SCHEMA = {
    "type": "record",
    "name": "Request",
    "fields": [
        *({"name": name, "type": "string"} for name in ("user", "page")),
        *({"name": name, "type": "int"} for name in ("status", "ms")),
    ],
}
_SCHEMA = fastavro.parse_schema(SCHEMA)
_FRAME = b"\0\0\0\0\1"
_COUNT = (
    "import sys; from stream_svt.cli import main; main(['count', '-c', sys.argv[1], '--port', sys.argv[2]])"
)
_COUNTED = re.compile(rb'^stream_svt_counter_events_total\{[^}]*fate="counted"[^}]*\} (\S+)$', re.MULTILINE)


def json_message(user: int, page: int) -> bytes:
    """Return an event of 60 bytes."""
    return b'{"user":"u%06d","page":"/page/%05d","status":200,"ms":%d}' % (user, page, 10 + user % 90)


def avro_message(user: int, page: int) -> bytes:
    """Return the same event in Avro, framed as Confluent's serializers do."""
    content = io.BytesIO(_FRAME)
    content.seek(len(_FRAME))
    event = {"user": f"u{user:06}", "page": page_name(page), "status": 200, "ms": 10 + user % 90}
    fastavro.schemaless_writer(content, _SCHEMA, event)
    return content.getvalue()


@contextlib.contextmanager
def registry() -> Iterator[str]:
    """Serve the schema of `avro_message`; yields the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@dataclass(frozen=True)
class Events:
    """Which user each event is of, and which page it names: shape (events,)."""

    user: Integers
    page: Integers
    pages: int

    @classmethod
    def drawn(cls, count: int, users: int, pages: int, seed: int) -> Events:
        """Return events of random users and pages."""
        generator = np.random.default_rng(seed)
        return cls(generator.integers(0, users, count), generator.integers(0, pages, count), pages)

    def counts(self) -> Integers:
        """Return the number of different users of each page."""
        pairs = np.unique(self.user * self.pages + self.page)
        return np.bincount(pairs % self.pages, minlength=self.pages)

    def encoded(self, producer: AIOKafkaProducer, message: Message = json_message) -> list[BatchBuilder]:
        """Return them as batches, ready to be sent."""
        batches = []
        for first in range(0, len(self.user), BATCH):
            batch, some = producer.create_batch(), slice(first, first + BATCH)
            for user, page in zip(self.user[some].tolist(), self.page[some].tolist(), strict=True):
                assert batch.append(key=None, value=message(user, page), timestamp=None) is not None
            batch.close()
            batches.append(batch)
        return batches

    async def write(self, servers: str, topic: str, message: Message = json_message) -> None:
        """Write them to the partitions in turn."""
        async with producing(servers) as producer:
            await send(producer, topic, self.encoded(producer, message))


@contextlib.asynccontextmanager
async def producing(servers: str) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer of large batches."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks=1, max_batch_size=1 << 20)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer: AIOKafkaProducer, topic: str, batches: Sequence[BatchBuilder]) -> None:
    """Send batches to the partitions in turn."""
    pending: list[asyncio.Future[object]] = []
    for number, batch in enumerate(batches):
        pending.append(await producer.send_batch(batch, topic, partition=number % PARTITIONS))
        if len(pending) > PARTITIONS:
            await pending.pop(0)
    await asyncio.gather(*pending)


def new_topic(servers: str) -> str:
    """Create a topic of raw events, and return its name."""
    topic = f"raw-{secrets.token_hex(4)}"
    asyncio.run(peers.create_topics(servers, [topic], PARTITIONS, CLOCK))
    return topic


def page_name(number: int) -> str:
    """Return the name of a page as events have it."""
    return f"/page/{number:05}"


@dataclass(kw_only=True)
class Application:
    """A new application with one source of `Events`; ``source`` adds keys to it or replaces them."""

    servers: str
    directory: Path
    topic: str
    pages: int
    source: Mapping[str, Any]
    monitors: Sequence[Mapping[str, Any]] = ({},)
    registry: str = ""
    name: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")

    def create(self) -> None:
        """Create its topics, and apply its configuration."""
        key = self.directory / "master.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_text(secrets.token_hex(32))
            (self.directory / "pages.txt").write_text("\n".join(map(page_name, range(self.pages))))
        created = {
            ("alerts", "rejects", "control"): (PARTITIONS, {}),
            ("state", "config"): (PARTITIONS, {"cleanup.policy": "compact"}),
            ("sources",): (LOG_PARTITIONS, CLOCK),
            (f"{SOURCE}.counts",): (PARTITIONS, COUNTS),
        }
        for names, (partitions, settings) in created.items():
            topics = [f"{self.name}.{name}" for name in names]
            asyncio.run(peers.create_topics(self.servers, topics, partitions, settings))
        asyncio.run(self._apply())

    async def _apply(self) -> None:
        config = parse_config(self.config(0), directory=self.directory)
        proposal = await propose(config, config.cluster())
        await publish(config, config.cluster(), proposal.bundle, before=proposal.before)

    def config(self, port: int) -> str:
        """Return the configuration of a worker whose pages are on this port."""
        source = {"name": SOURCE, "topic": self.topic, "unit": "user", "dataset": "web"}
        usual = {"name": "many", "source": SOURCE, "epsilon": 1, "cutoff": 30, "threshold": 10_000_000}
        content = {
            "application": self.name,
            "kafka": {"bootstrap_servers": self.servers},
            "topics": {"partitions": PARTITIONS},
            "sealing": {"keys": ["master.key"]},
            "web": {"port": port or 1},
            "sources": [source | {"series": {"field": "page", "file": "pages.txt"}} | dict(self.source)],
            "datasets": [{"names": ["web"], "limit": {"epsilon": 1000}}],
            "monitors": [usual | dict(monitor) for monitor in self.monitors],
        }
        if self.registry:
            content["schema_registry"] = {"url": self.registry}
        return json.dumps(content)

    def counter(self) -> contextlib.AbstractContextManager[Worker]:
        """Run a counter; it ends with the context."""
        return self._running("count", "--port")

    def worker(self) -> contextlib.AbstractContextManager[Worker]:
        """Run a worker; it ends with the context."""
        return self._running("run")

    @contextlib.contextmanager
    def _running(self, command: str, *port_option: str) -> Iterator[Worker]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config, log = (self.directory / f"{command}-{kind}-{port}" for kind in ("config", "log"))
        config.write_text(self.config(port))
        options = ["-c", str(config), *(text for option in port_option for text in (option, str(port)))]
        with log.open("wb") as output:
            program = [sys.executable, "-m", "stream_svt", command, *options]
            process = subprocess.Popen(program, stdout=output, stderr=output)
        running = Worker(process, port, config, log)
        try:
            yield running
        finally:
            running.end()


def begin(counter: Worker) -> None:
    """Wait until the source of a new application has begun."""
    wait_until(lambda: not counter.ended and "source_begins" in counter.log.read_text(), "the source begins")


def counted(counter: Worker) -> int:
    """Return how many events a counter has counted."""
    found = _COUNTED.search(counter.get("/metrics"))
    return int(float(found[1])) if found else 0


def reading_of(counter: Worker, events: int, look_every: int) -> Reading:
    """Return what a counter reads a second, of so many events; ``look_every`` is in milliseconds."""
    looks: list[tuple[float, float, int]] = []
    end = time.monotonic() + PATIENCE
    while not looks or looks[-1][2] < 0.98 * events:
        assert time.monotonic() < end, "the counter did not get through the topic in time"
        seen = counted(counter)
        if seen and (not looks or seen > looks[-1][2]):
            looks.append((time.monotonic(), counter.cpu(), seen))
        time.sleep(look_every / 1000)
    assert len(looks) > 1, "the counter was faster than it could be looked at: take more events"
    (began, used, first), (ended, all_used, last) = looks[0], looks[-1]
    return Reading(rate=(last - first) / (ended - began), cpu_ns=1e9 * (all_used - used) / (last - first))
