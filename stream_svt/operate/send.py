"""Sends queries from JSON lines to a query topic, after the checks that a worker and `lint` make.

Lines are sent in windows: all records of a window are acknowledged before the next window is sent. So after an error
one can tell which lines are on the topic.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer

from stream_svt.application.config import Config
from stream_svt.application.topology import another_count, read_partitions_of
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.transactions import all_sent
from stream_svt.operate.control import SHOWN_NAMES
from stream_svt.operate.lint import NO_SERIES, RecordLinter
from stream_svt.protocol.records import OneRecord
from stream_svt.queries.json_lines import bad_size
from stream_svt.queries.json_records import FIELDS
from stream_svt.queries.reasons import MAX_BYTES, Reason, refused
from stream_svt.settings.document import did_you_mean, quote
from stream_svt.wording import more

ACK_DEADLINE: Final = 30.0
"""Seconds in which the brokers must acknowledge a window."""
WINDOW: Final = 2_000
"""Largest number of lines in a window."""
DATASET: Final = "dataset"
"""Field of a line that names its dataset; it is not part of the query."""

MAX_NOTES: Final = 20
"""Largest number of notes about lines that are sent."""

_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()


class InvalidLine(StreamSvtError):
    """A line is not a query that a monitor would test unchanged; neither it nor a later line was sent."""


@dataclass(slots=True)
class SendProgress:
    """Acknowledged queries, skipped lines, and the line to continue from.

    Lines from ``next_line`` to ``last_sent`` were sent and not acknowledged: some may be on the topic.
    """

    acknowledged: int = 0
    skipped: int = 0
    next_line: int = 1
    last_sent: int = 0


@dataclass(slots=True)
class _Window:
    """The lines of one window: records to send, with their numbers as offsets, and why others are invalid.

    ``notes`` are about lines that are sent; a reader gives each note once.
    """

    queries: list[OneRecord] = field(default_factory=list)
    invalid: dict[int, str] = field(default_factory=dict)
    notes: list[tuple[int, str]] = field(default_factory=list)


class LineReader:
    """Makes queries of lines: JSON objects with their dataset in a field, unless ``dataset`` names one for all."""

    def __init__(self, config: Config, topic: str, dataset: str | None = None) -> None:
        self._linter = RecordLinter(config.spec, topic, config.partitioning)
        if self._linter.layout is not None and self._linter.layout.format != "json":
            raise StreamSvtError(f"topic {topic!r} has Avro records: 'send' sends JSON only")
        self._partitioning, self._spec = config.partitioning, config.current
        self._dataset = dataset
        self._noted: set[str] = set()

    def window(self, lines: list[tuple[int, bytes]], now_ms: int) -> _Window:
        """Return the queries in numbered lines, and every invalid line."""
        found = _Window()
        for number, text in lines:
            query = self._query(number, text, now_ms)
            if isinstance(query, str):
                found.invalid[number] = query
            else:
                found.queries.append(query)
        by_home: dict[int, list[OneRecord]] = defaultdict(list)
        for query in found.queries:
            by_home[self._partitioning.of(query.key or b"")].append(query)
        for home, queries in by_home.items():
            names = {query.offset: (query.key or b"").decode() for query in queries}
            for number, kind in self._linter.findings(home, queries):
                if kind == NO_SERIES:  # which a query may lack
                    found.notes += self._note(number, kind, self._linter.advice(kind))
                else:
                    found.invalid.setdefault(number, self._problem(kind, names[number]))
        found.queries = [query for query in found.queries if query.offset not in found.invalid]
        if self._linter.layout is None:
            for query in found.queries:
                found.notes += self._unknown_fields(query)
        return found

    def _problem(self, kind: str, dataset: str) -> str:
        if kind != Reason.UNDECLARED:
            return self._linter.advice(kind)
        declared = self._spec.datasets
        first = ", ".join(one.name for one in declared[:SHOWN_NAMES]) + more(len(declared) - SHOWN_NAMES)
        return f"refused, {kind}: no dataset {quote(dataset)} is declared; declared: {first}"

    def _unknown_fields(self, query: OneRecord) -> Iterator[tuple[int, str]]:
        for name in _LINE.decode(query.value or b"").keys() - set(FIELDS):
            message = f"the service ignores the field {quote(name)}{did_you_mean(name, FIELDS)}"
            yield from self._note(query.offset, name, message)

    def _note(self, number: int, kind: str, message: str) -> Iterator[tuple[int, str]]:
        """Yield a note unless it was yielded before, or too many others were."""
        if kind not in self._noted and len(self._noted) < MAX_NOTES:
            self._noted.add(kind)
            yield number, message

    def _query(self, number: int, text: bytes, now_ms: int) -> OneRecord | str:
        if (reason := bad_size(text)) is not None:
            return refused(reason)
        try:
            text.decode()
        except UnicodeDecodeError:
            return refused(Reason.NOT_JSON)
        if self._dataset is not None:
            return OneRecord(number, now_ms, self._dataset.encode(), text)
        try:
            fields = _LINE.decode(text)
        except msgspec.ValidationError:
            return refused(Reason.NOT_AN_OBJECT)
        except (msgspec.DecodeError, RecursionError):
            return refused(Reason.NOT_JSON)
        try:
            name = msgspec.json.decode(fields.pop(DATASET, b"null"), type=str)
        except msgspec.ValidationError:
            return (
                "the field 'dataset' is missing or is not a string; --dataset names the dataset of all lines"
            )
        return OneRecord(number, now_ms, name.encode(), _ENCODER.encode(fields))


async def windows(chunks: AsyncIterator[bytes], first: int) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Yield numbered lines from line ``first`` on, the lines of a chunk at once; blank lines are left out."""
    rest, number, is_begun = b"", 0, False
    async for chunk in chunks:
        text = rest + chunk
        if not is_begun and not number and len(text) >= len(codecs.BOM_UTF8):
            text, is_begun = text.removeprefix(codecs.BOM_UTF8), True  # an editor's mark
        *lines, rest = text.split(b"\n")
        rest = rest[: MAX_BYTES + 1]  # too large, whatever follows
        numbered = list(enumerate(lines, number + 1))
        number += len(lines)
        for start in range(0, len(numbered), WINDOW):
            yield [
                (at, line) for at, line in numbered[start : start + WINDOW] if at >= first and line.strip()
            ]
    if rest.strip() and number + 1 >= first:
        yield [(number + 1, rest)]


async def send_lines(
    config: Config,
    cluster: Cluster,
    topic: str,
    chunks: AsyncIterator[bytes],
    progress: SendProgress,
    *,
    dataset: str | None = None,
    skip: bool = False,
    report: Callable[[int, str], None] = lambda *_: None,
    note: Callable[[int, str], None] = lambda *_: None,
) -> None:
    """Send the queries in JSON lines to the partitions of their datasets, and wait until all are acknowledged.

    ``progress`` has the line to begin with, and is kept up to date. ``report`` gets number and problem of every
    skipped invalid line, ``note`` each possible mistake in the sent lines once.

    Raises:
        InvalidLine: Without ``skip``: a line is invalid. All lines before it were sent and acknowledged.
        BrokerError: The brokers refused or did not answer; ``progress`` counts the acknowledged queries.
        ConfigError: The topic has another number of partitions than the configuration.
    """
    doing = f"sending to query topic {topic!r}"
    count = await read_partitions_of(cluster, topic, doing, "WRITE")
    wanted = config.topics.partitions
    if count != wanted:
        raise ConfigError(
            [Problem(0, "topics.partitions", another_count(topic, count, wanted))], config.source
        )
    reader = LineReader(config, topic, dataset)
    client = AIOKafkaProducer(
        **cluster.arguments,
        acks="all",
        enable_idempotence=True,
        max_batch_size=1 << 18,
        client_id="stream-svt-send",
    )
    async with kafka.started(client, doing, "WRITE") as producer:
        async for lines in windows(chunks, progress.next_line):
            window = reader.window(lines, int(time.time() * 1000))
            stop = min(window.invalid, default=None) if not skip else None
            queries = [one for one in window.queries if stop is None or one.offset < stop]
            for number, message in window.notes:
                note(number, message)
            await _send(_acknowledged(producer, config, topic, queries, progress))
            if stop is not None:
                progress.next_line = stop
                raise InvalidLine(f"line {stop} was not sent: {window.invalid[stop]}")
            for number, problem in sorted(window.invalid.items()):
                progress.skipped += 1
                report(number, problem)
            progress.next_line = max([progress.next_line, *(at + 1 for at, _ in lines)])


async def _send(sending: Coroutine[Any, Any, None]) -> None:
    """Wait for the acknowledgements of a window, even if the task is cancelled meanwhile."""
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _acknowledged(
    producer: AIOKafkaProducer, config: Config, topic: str, queries: list[OneRecord], progress: SendProgress
) -> None:
    """Send the queries and wait for all acknowledgements within a deadline; count those that arrived."""
    sent: list[asyncio.Future[Any]] = []
    try:
        async with kafka.deadline(ACK_DEADLINE, f"sending to query topic {topic!r}", "WRITE"):
            for query in queries:
                home = config.partitioning.of(query.key or b"")
                sent.append(await producer.send(topic, query.value, key=query.key, partition=home))
                progress.last_sent = query.offset
            await all_sent(sent)
    finally:
        progress.acknowledged += sum(map(_arrived, sent))
        missing = [query.offset for query, one in zip(queries, sent, strict=False) if not _arrived(one)]
        unsent = [query.offset for query in queries[len(sent) :]]
        left = [*missing, *unsent]
        progress.next_line = (
            left[0] if left else max([progress.next_line, *(one.offset + 1 for one in queries)])
        )


def _arrived(sent: asyncio.Future[Any]) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is None
