"""The applied configuration, as a counter follows it: sources, and the lists that they had at each moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from contextlib import aclosing
from typing import Final

from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.topology import other_partitioner
from stream_svt.errors import BrokerError, StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.protocol.configuration import History, Version
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.lists import Lists
from stream_svt.worker.config_versions import PARTITION, RETRY_INTERVAL, follow, read
from stream_svt.worker.shard import describe

log = logging.getLogger(__name__)

ASK_EVERY: Final = 0.3
"""Seconds between two questions for the end of the configuration topic."""


class Applied:
    """The version applied last, None before one is read.

    ``read_ms`` is a moment of this machine's clock: every version is read that was stored, or being stored, then.
    """

    def __init__(self, config: Config) -> None:
        self.spec: ApplicationSpec | None = None
        self.number = self.read_ms = self._position = 0
        self._config, self._cluster = config, config.cluster()
        self._histories: dict[str, History] = {}
        self._ends: deque[tuple[int, int]] = deque(maxlen=10)

    async def follow(self) -> None:
        """Follow the configuration topic without end; a version that cannot be used is logged and left out."""
        asking = asyncio.create_task(self._ask_ends(), name="configuration's end")
        try:
            async with aclosing(follow(self._config, self._cluster, self._note)) as versions:
                async for version in versions:
                    try:
                        await self._adopt(version)
                    except StreamSvtError as error:
                        log.critical(
                            "event=configuration_refused version=%d error=%r", version.number, describe(error)
                        )
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask_ends(self) -> None:
        """Ask for the end of the topic, below which are also the records of open transactions."""
        place = TopicPartition(self._config.topics.config, PARTITION)
        doing = f"asking for the end of configuration topic {place.topic!r}"
        while True:
            with contextlib.suppress(BrokerError):  # which the reader of versions reports
                async with kafka.started(self._cluster.reader("read_uncommitted"), doing) as reader:
                    while True:
                        asked_ms = int(time.time() * 1000)
                        async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                            self._ends.append((asked_ms, (await reader.end_offsets([place]))[place]))
                        self._note(self._position)
                        await asyncio.sleep(ASK_EVERY)
            await asyncio.sleep(RETRY_INTERVAL)

    def _note(self, position: int) -> None:
        """Take note that all versions below an offset are read."""
        self._position = position
        self.read_ms = max([ms for ms, end in self._ends if end <= position], default=self.read_ms)

    async def _adopt(self, version: Version) -> None:
        if version.bundle.partitioner != self._config.topics.partitioner:
            raise other_partitioner(version.bundle.partitioner, self._config)
        self.spec = (await read(version, self._config.topics.partitions)).declared
        self._histories = {
            one.name: version.history(one.name, self.spec.window_list(one)) for one in self.spec.sources
        }
        self.number = version.number
        log.info("event=configuration_read version=%d sources=%d", version.number, len(self.spec.sources))

    async def read_since(self, ms: int) -> None:
        """Wait until all versions are read that were stored before a moment."""
        while self.read_ms < ms:  # noqa: ASYNC110  `_ask_ends` moves it
            await asyncio.sleep(0.05)

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """The sources applied last."""
        return () if self.spec is None else self.spec.sources

    def declares(self, dataset: str) -> bool:
        """Return whether a dataset is declared."""
        return self.spec is not None and self.spec.find(dataset) is not None

    def source(self, name: str) -> SourceSpec | None:
        """Return a source by name, None if it is not declared."""
        return next((one for one in self.sources if one.name == name), None)

    def lists(self, name: str, behind_ms: int) -> Lists:
        """Return the lists of a source, where a broker's clock may be behind this one by so much."""
        return Lists(self._histories.get(name, ()), self.read_ms - behind_ms)
