"""What the newest released events show of an application: its shards, and the accounts of its datasets.

Alert partitions are read from their end backwards, a bounded number of records, until every dataset was found. So the
time is bounded however long the history is, and what was not found is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.topology import read_partitions_of
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.monitor.released import Account, AnyEvent, EventType, Lifecycle, event_in, lifecycle_in
from stream_svt.settings.monitors import Declared

READ_MOST = 400_000
"""Records of the alert topic that are looked through: 300,000 datasets took half a minute on two busy cores."""


@dataclass(slots=True)
class ShardFacts:
    """What events of a shard show.

    ``events``, ``time``, ``state``, ``command`` and ``origin`` are of its newest event: number, RFC 3339 text, id of
    the state, number of the last command used up, origin. ``version`` is number and digest of the newest one adopted,
    (0, "") if no event read says so. A closed shard has a ``successor``, and is ``given_up`` if it was closed without
    its state.
    """

    events: int = 0
    time: str = ""
    state: str = ""
    command: int = 0
    origin: str = ""
    version: tuple[int, str] = (0, "")
    successor: str = ""
    given_up: bool = False

    def take(self, event: AnyEvent) -> ShardFacts:
        """Take the next event in; return self."""
        self.events, self.time, self.origin = event.sequence, event.time.isoformat(), event.origin
        self.state, self.command, data = event.stateid, event.command, event.data
        if not isinstance(data, Lifecycle):
            return self
        if event.type == EventType.CONFIGURATION_ADOPTED:
            self.version = version_adopted(data)
        if event.type == EventType.APPLICATION_CLOSED:
            self.successor = str(data.detail.get("successor", "")) or "nobody"
            self.given_up = data.reason == "given-up"
        return self


def version_adopted(data: Lifecycle) -> tuple[int, str]:
    """Return number and digest of the version that an event of its adoption names."""
    return int(data.detail.get("number", 0)), str(data.detail.get("digest", ""))


@dataclass(slots=True)
class ApplicationFacts:
    """What the events read show.

    ``accounts`` and ``units`` are by dataset, ``topics`` the most cautious declarations by query topic,
    ``partitioning`` the partitions and partitioners in genesis events.
    """

    shards: dict[int, ShardFacts] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    topics: dict[str, Declared] = field(default_factory=dict)
    partitioning: set[tuple[int, str]] = field(default_factory=set)

    def take(self, event: AnyEvent, wanted: Collection[str]) -> None:
        """Take an event in, after the earlier ones of its shard; ``wanted`` are the datasets whose accounts count."""
        data = event.data
        self.shards[event.shard].take(event)
        if data.account is not None and data.dataset in wanted:
            self.accounts[data.dataset] = data.account
        if not isinstance(data, Lifecycle):
            return
        detail = data.detail
        match event.type:
            case EventType.STATE_BEGUN:
                self.partitioning.add((int(detail.get("partitions", 0)), str(detail.get("partitioner", ""))))
            case EventType.TOPIC_DECLARED:
                Declared.add_event(self.topics, detail)
            case EventType.DECLARED if data.dataset in wanted:
                self.units[data.dataset] = str(detail.get("unit", ""))

    def parser(self, shard: int, wanted: Collection[str]) -> Callable[[Any], bool | None]:
        """Return a function that takes the records of a shard in, and returns True once all datasets were found."""
        self.shards[shard] = ShardFacts()
        left = set(wanted)

        def parse(record: Any) -> bool | None:  # noqa: ANN401
            if (event := event_in(record.value)) is None or event.shard != shard:
                return None
            self.take(event, wanted)
            left.difference_update({event.data.dataset} & self.accounts.keys())
            return None if left else True

        return parse


async def read_facts(
    config: Config, cluster: Cluster, datasets: Collection[str] | None = None, most: int = READ_MOST
) -> ApplicationFacts:
    """Return what the newest events show of these datasets and their shards; None means all that are declared.

    At most about ``most`` records are read, spread evenly over the shards.
    """
    topic, doing = config.topics.alerts, f"reading the newest events of alert topic {config.topics.alerts!r}"
    await read_partitions_of(cluster, topic, doing)
    wanted: dict[int, set[str]] = {}
    if datasets is None:
        wanted = {shard: set() for shard in range(config.topics.partitions)}
        datasets = [one.name for one in config.current.datasets]
    datasets = list(datasets)
    for name, shard in zip(datasets, config.partitioning.of_names(datasets).tolist(), strict=True):
        wanted.setdefault(shard, set()).add(name)
    shown = ApplicationFacts()
    async with kafka.started(cluster.reader(), doing) as reader:
        for shard, names in sorted(wanted.items()):
            place, parse = TopicPartition(topic, shard), shown.parser(shard, names)
            await kafka.newest(reader, place, parse, doing, max_lookback=max(most // len(wanted), 1000))
    return shown


async def read_adopted(
    config: Config, cluster: Cluster, most: int, shards: Iterable[int] | None = None
) -> dict[int, tuple[int, str]]:
    """Return number and digest of the version that each shard adopted last, as far as its newest events show it.

    None means all shards. At most about ``most`` records are looked through, spread evenly over the shards.
    """

    def parse(record: Any) -> tuple[int, str] | None:  # noqa: ANN401
        event = lifecycle_in(record.value, EventType.CONFIGURATION_ADOPTED)
        return None if event is None else version_adopted(event)

    own, doing = config.topics, f"reading the newest events of alert topic {config.topics.alerts!r}"
    adopted = {}
    async with kafka.started(cluster.reader(), doing) as reader:
        for shard in range(own.partitions) if shards is None else shards:
            place, bound = TopicPartition(own.alerts, shard), max(most // own.partitions, 1000)
            if (version := await kafka.newest(reader, place, parse, doing, max_lookback=bound)) is not None:
                adopted[shard] = version
    return adopted
