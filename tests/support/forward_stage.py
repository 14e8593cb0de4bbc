"""A topic of alerts, a configuration for it, and forwarders that run with that."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from stream_svt.monitor.released import Alert, EventType, Lifecycle
from tests.support import records
from tests.support.alerts import alert, encoded
from tests.support.forwarding import Forwarder, write_keys
from tests.support.process import free_port

FAST = "retry: {first: 20ms, most: 200ms}, timeout: 500ms"
"""Settings of a destination whose receiver is a test's."""


class Stage:
    """One alert topic and who forwards it; keys stand in files beside the configuration.

    Attributes
    ----------
    sent
        The bodies of all events made, by dataset, in order.
    running
        Every forwarder that was started.
    """

    def __init__(self, servers: str, topic: str, directory: Path) -> None:
        self.servers = servers
        self.topic = topic
        self.directory = directory
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.sequence = 0
        self.running: list[Forwarder] = []
        write_keys(directory)

    def configure(self, *destinations: str, **keys: str) -> None:
        """Write the configuration; each destination is YAML without its braces."""
        text = (
            f'kafka: {{bootstrap_servers: "{self.servers}", session_timeout: 2s, heartbeat_interval: 300ms}}\n'
            f"topic: {self.topic}\ngroup: {self.topic}\npark_topic: {self.topic}-parked\n"
        )
        text += "".join(f"{name}: {value}\n" for name, value in keys.items())
        text += "destinations:\n" + "".join(f"  - {{{one}}}\n" for one in destinations)
        (self.directory / "forward.yaml").write_text(text)

    def start(self, *options: str) -> Forwarder:
        """Start a forwarder."""
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
            data or alert(dataset=dataset, series=f"s{self.sequence}", top=self.sequence),
            kind=kind,
        )
        self.sent[dataset].append(body)
        return ord(dataset) % 2, dataset.encode(), body

    async def publish(self, *written: tuple[int, bytes, bytes], commit: bool = True) -> None:
        """Write records in one transaction."""
        await records.publish(self.servers, self.topic, *written, commit=commit)
