"""Makes the journal of a shard from the configuration."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.state_reader import JournalSettings, Topics, keep_going
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster
from stream_svt.service.shard_log import ShardLog


def masters(config: Config) -> tuple[bytes, ...]:
    """Return the master keys, the one that seals first."""
    return () if config.master_key is None else (config.master_key, *config.previous_keys)


def place_of(config: Config, cluster_id: str, shard: int) -> RecordContext:
    """Return what the records of a shard's state are bound to."""
    return RecordContext(cluster_id, config.spec.application, config.topics.state, shard)


def sealing_of(config: Config, cluster_id: str, shard: int) -> Sealing:
    """Return what seals and opens the records of a shard."""
    return Sealing(place_of(config, cluster_id, shard), masters(config), os.urandom)


def written_topics(config: Config) -> Topics:
    """Return the topics that a journal writes."""
    return Topics(config.topics.state, config.topics.alerts, config.topics.rejects)


def journal_of(
    config: Config,
    cluster: Cluster,
    cluster_id: str,
    shard: int,
    *,
    tell_time: Callable[[float], None] | None = None,
    give_way: Callable[[], Awaitable[None]] = keep_going,
) -> Journal:
    """Return a shard's journal, not opened: to hold the shard with, or only to `look` at its state."""
    written, place = written_topics(config), place_of(config, cluster_id, shard)
    settings = JournalSettings(
        place=place,
        topics=written,
        partitions=config.topics.partitions,
        masters=masters(config),
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
        give_way=give_way,
    )
    return Journal(ShardLog(cluster, place.application, shard, written, tell_time), settings)
