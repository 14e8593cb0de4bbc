"""A small fleet that is watched: workers, queries, a Prometheus with the deployment's rules, an Alertmanager.

The run takes a fraction of a minute, so time is compressed: rules are evaluated each second, alerts need not last,
and what looks back does so less far. What they ask is as deployed.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from stream_svt.operate.check import create_missing
from tests.support.forwarding import Forwarder
from tests.support.process import COMMAND, Process, free_port
from tests.support.prometheus import DEPLOY
from tests.support.topics import CLOCK, create_topics
from tests.support.worker import Scene

PARTITIONS = 2
SCRAPE = 1
"""Seconds between scrapes, and between evaluations of rules."""
COMPRESSION = 24
"""How many times shorter the ranges of rules are here."""
WORKERS = 2
HIGH, LOW = 50_000, 100
SMALL, RHO, COUNTED = "shop-small", "shop-south", "visits"
"""Datasets: one that is soon exhausted, one that counts rho, and one that a source fills."""
VISITS = 10
"""Events in a tenth of a second, each of another user."""

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topics: {{partitions: {partitions}}}
commit: {{interval: 200ms}}
datasets:
  - {{name: shop-small, limit: {{epsilon: 9/4}}, unit: one basket, horizon: 11h}}
  - {{name: shop-north, limit: {{epsilon: 30}}, unit: one basket, horizon: 1d}}
  - {{name: shop-south, limit: {{rho: 9}}, unit: one basket, horizon: 7d}}
  - {{name: shop-east, limit: {{epsilon: 30}}, unit: one basket, horizon: 30d}}
  - {{name: shop-west, limit: {{epsilon: 30}}, unit: one basket, horizon: 90d}}
  - {{name: shop-centre, limit: {{epsilon: 30}}, unit: one basket, horizon: 365d}}
  - {{name: shop-airport, limit: {{epsilon: 30}}, unit: one basket}}
  - {{generate: "shop-{{iso_week}}", from: {monday}, until: {next_monday}, limit: {{epsilon: 30}}, unit: one basket}}
  - {{name: visits, limit: {{epsilon: 30}}, horizon: 30d}}
sources:
  - {{name: clicks, topic: {application}.clicks, unit: user, window: 2s, every: 1s, lateness: 1s, ahead: 0,
     settle: 300ms, dataset: visits}}
monitors:
  - {{name: busy, source: clicks, measure: units, epsilon: 1, cutoff: 3, threshold: 50, mute: none, max_runs: off,
     expected_queries: 1000}}
  - {{name: hot-items, epsilon: 1, cutoff: 3, {common},
     append: {{retry: {{attempts: 6, lifetime: 100000, capacity: 200, every: 400}}}}}}
  - {{name: far-items, mechanism: adaptive, epsilon: 1, cutoff: 4, mute: none, {common}}}
  - {{name: first-item, epsilon: 1/4, cutoff: 1, on_halt: stop, {common}}}
"""
COMMON = (
    'topic: {application}.counts, datasets: ["shop-*"], sensitivity: 1, monotonic: true, bounds: [0, 100000], '
    "threshold: 5000, expected_queries: 100000, max_runs: off"
)
FORWARD = """
kafka: {{bootstrap_servers: "{servers}", session_timeout: 2s, heartbeat_interval: 300ms}}
topic: {topic}
web: {{port: {port}}}
destinations:
  - {{name: pager, {filters} alertmanager: {{urls: ["{alertmanager}"], renew: 1s}}}}
"""


def alertmanager_config(directory: Path) -> Path:
    """Return the deployment's file with receivers that post nowhere."""
    config = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text())
    config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
    path = directory / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def prometheus_config(directory: Path, ports: list[int], alertmanager: str) -> Path:
    """Return the deployment's file for processes on these ports, each second, with its rules."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    often = f"{SCRAPE}s"
    config["global"] |= {"scrape_interval": often, "scrape_timeout": often, "evaluation_interval": often}
    for job in config["scrape_configs"]:
        for name in [name for name in job if name.endswith("_sd_configs")]:
            del job[name]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
        job.pop("scrape_interval", None)
        job.pop("scrape_timeout", None)
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    config["rule_files"] = [
        str(_quick(path, directory)) for path in sorted((DEPLOY / "rules").glob("*.y*ml"))
    ]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def _quick(rules: Path, directory: Path) -> Path:
    """Return a copy of a file of rules in which nothing waits, and every range is shorter."""
    document = yaml.load(rules.read_text(), yaml.CSafeLoader)
    for group in document["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule.pop("for", None)
            rule.pop("keep_firing_for", None)
            rule["expr"] = _RANGE.sub(_compressed, rule["expr"])
    path = directory / rules.name
    path.write_text(yaml.safe_dump(document))
    return path


_RANGE = re.compile(r"\[(\d+)([smhd])(:\w+)?\]")


def _compressed(match: re.Match[str]) -> str:
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]] / COMPRESSION
    # A subquery takes a step a second; hours of them would take longer than the run.
    return f"[{min(seconds, 300):.0f}s:1s]" if match[3] else f"[{seconds:.0f}s]"


@dataclass(eq=False)
class Watched(Scene):
    """An application with a forwarder, and the ports that Prometheus looks at."""

    filters: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forward_port = free_port()

    @property
    def all_ports(self) -> list[int]:
        return [*self.ports.values(), self.forward_port]

    def forward(self, alertmanager: str) -> None:
        path, topic = self.directory / "forward.yaml", f"{self.application}.alerts"
        own = {"topic": topic, "port": self.forward_port, "filters": self.filters}
        path.write_text(FORWARD.format(servers=self.servers, alertmanager=alertmanager, **own))
        self.services.append(Forwarder(path, self.forward_port, path.with_suffix(".log")))


@dataclass(eq=False)
class Fleet(Watched):
    """The application's topics, workers and queries."""

    partitions: int = PARTITIONS
    filters: str = "types: [alert],"

    def __post_init__(self) -> None:
        super().__post_init__()
        today = dt.datetime.now(dt.UTC).date()
        self._monday = today - dt.timedelta(days=today.weekday())
        self.week = "shop-{}-w{:02}".format(*self._monday.isocalendar()[:2])
        places = ("airport", "north", "east", "west", "centre")
        self.names = [SMALL, RHO, *(f"shop-{place}" for place in places), self.week]
        self.files = [self.write() for _ in range(WORKERS)]
        self.counter_port = free_port()
        self.newsworthy: set[str] = set()
        """Datasets with high counts."""

    def text(self, **changes: object) -> str:
        return SPEC.format(
            application=self.application,
            servers=self.servers,
            partitions=self.partitions,
            monday=self._monday,
            next_monday=self._monday + dt.timedelta(days=7),
            common=COMMON.format(application=self.application),
        )

    @property
    def all_ports(self) -> list[int]:
        return [*super().all_ports, self.counter_port]

    def count(self) -> None:
        """Start a counter."""
        command = [*COMMAND, "count", "-c", str(self.files[0]), "--port", str(self.counter_port)]
        self.services.append(Process(command, self.counter_port, self.directory / "counter.log"))

    @contextlib.asynccontextmanager
    async def feeding(self) -> AsyncIterator[asyncio.Task[None]]:
        """Create the topics and start queries and events, which end with the task returned; leave no process behind."""
        await create_topics(self.servers, {f"{self.application}.clicks": 1}, CLOCK)
        async with self.on_stage():
            await create_missing(self.config(), self.config().cluster())
            feed = asyncio.create_task(self._feed())
            try:
                yield feed
            finally:
                feed.cancel()
                await asyncio.gather(feed, return_exceptions=True)

    async def _feed(self) -> None:
        """Send low counts of the same items again and again, records that are none, and now and then high counts."""
        for tick in itertools.count(1):
            for place, dataset in enumerate(self.names):
                for text in self._burst(dataset, place, tick):
                    await self.producer.send(self.queries, text, key=dataset.encode())
            for number in range(VISITS):
                event = json.dumps({"user": f"{tick}-{number}"}).encode()
                await self.producer.send(f"{self.application}.clicks", event)
            await asyncio.sleep(0.1)

    def _burst(self, dataset: str, place: int, tick: int) -> Iterator[bytes]:
        for item in range(8):
            yield _query(f"{tick}-{item}", LOW, f"item-{item}")
        # Two scrapes see each charge of the small budget, also where some are late.
        if dataset in self.newsworthy and (tick + place) % (18 if dataset == SMALL else 15) == 0:
            # One item that is news, and one that was news before: it is muted.
            yield _query(f"{tick}-high", HIGH, f"news-{tick}")
            yield _query(f"{tick}-again", HIGH, "hit")
        if tick % 20 == 0:
            yield b"{"


def _query(name: str, value: int, series: str) -> bytes:
    return json.dumps({"id": name, "value": value, "series": series}).encode()
