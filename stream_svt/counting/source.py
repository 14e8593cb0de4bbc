"""Counts one source: looks by the clock, reads the records below the looks, and writes the steps of its `Counter`.

The counter makes all decisions; this module has the clocks, the clients and the waits. After an error the counter is
discarded, and the next one starts from the durable state.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
from aiokafka.errors import KafkaError

from stream_svt.application.config import Config
from stream_svt.counting.applied import Applied
from stream_svt.counting.backoff import Backoff
from stream_svt.counting.event_log import EventLog, LogBroken
from stream_svt.counting.raw import Piece, RawTopic
from stream_svt.kafka.clients import explain
from stream_svt.monitor.operations import utc
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.answers import AnswersCounter
from stream_svt.sources.counter import Counter
from stream_svt.sources.events import MOST_RECORDS, Fate
from stream_svt.sources.log import Park
from stream_svt.sources.looks import SourceCounter
from stream_svt.sources.questions import ClosedCounts
from stream_svt.sources.units import KEY_BYTES
from stream_svt.worker.shard import describe

log = logging.getLogger(__name__)

IDLE: Final = 0.1
"""Seconds between two looks at the clock of an idle counter."""
READ_WAIT: Final = 0.2
"""Seconds that a read waits for records."""
FOLDED_WITHIN: Final = 0.1
"""Seconds of work on records before the loop returns to the clock, so that looks are on time during a backlog."""
CLOCKS_APART_MS: Final = 60_000
"""Largest difference between the brokers' clock and this machine's with which looks are taken."""
SETTINGS_EVERY: Final = 60.0
"""Seconds between two reads of the raw topic's settings."""
HELD_UP_SHOWN: Final = 2.0
"""Seconds after which a partition counts as one that holds up a tick."""
HELD_UP: Final = 30.0
"""Seconds after which a partition that holds up a tick is logged."""
LOGGED_EVERY: Final = 60.0
"""Seconds between two equal log lines."""
LOOK_PAUSE: Final = 1.0
"""Seconds between two attempts at a look after a failure."""
CLOCKS_PAUSE: Final = 5.0
"""Seconds between two comparisons of clocks before a source begins or continues."""


class SourceLoop:
    """The loop of one source, on its partition of the event log.

    With ``accepts_loss`` a source that is parked at its start continues. The attributes are for the trusted zone.

    Attributes:
        spec: The source, as applied last.
        counter: Its counter; None until the log is replayed.
        fates: Number of events by fate, since the process began.
        measured: Number of events that counted, by each measure that they match, since the process began.
        late_records: Number of records stamped before a look that did not cover them.
        waits: Why nothing is read now; "" without a reason.
        clocks_apart_ms: The brokers' time minus this machine's, at the last look.
        held_up: By partition with an open transaction below a look, the monotonic time since which it holds up a tick.
    """

    def __init__(
        self, spec: SourceSpec, config: Config, applied: Applied, *, accepts_loss: bool = False
    ) -> None:
        self.spec = spec
        self.counter: SourceCounter | None = None
        self.fates, self.late_records = dict.fromkeys(Fate, 0), 0
        self.measured: dict[str, int] = {}
        self.waits = ""
        self.clocks_apart_ms = 0
        self.held_up: dict[int, float] = {}
        self._config, self._applied = config, applied
        self._accepts_loss = accepts_loss
        self._log: EventLog
        self._raw = RawTopic(config.cluster(), spec.topic, text=spec.format == "json")
        self._recalling: tuple[ClosedCounts, asyncio.Task[None]] | None = None
        self._dropped = 0
        self._pieces: dict[int, Piece] = {}
        self._waits: dict[str, str] = {}
        self._logged: dict[object, tuple[object, float]] = {}
        self._brokers_ms, self._asked_at = 0, 0.0
        self._settings_at = -SETTINGS_EVERY
        self._by_broker = False
        self._next_look = 0.0

    @property
    def behind_ms(self) -> int:
        """Milliseconds since the oldest tick that is due and not asked, or 0."""
        counter = self.counter
        if counter is None or not counter.state.has_begun or counter.parked:
            return 0
        return max(_now_ms() - self.spec.settle - counter.state.next_tick, 0)

    async def run(self, event_log: EventLog) -> None:
        """Count until the log is broken (raises `LogBroken`) or the task is cancelled; other errors are retried."""
        self._log, backoff = event_log, Backoff(0.5, 1, 2, 5, 10, 30)
        while True:
            schemas = SchemaRegistry(self._config.schema_registry, takes_absence=True)
            try:
                await self._count(self._counter_of(schemas))
            except LogBroken:
                raise
            except Exception as error:  # noqa: BLE001  a failing source must not stop others
                self._wait_for("error", describe(explained(error)))
            finally:
                if self._recalling is not None:
                    self._recalling[1].cancel()
                    await asyncio.gather(self._recalling[1], return_exceptions=True)
                self.counter = self._recalling = None
                self._pieces.clear()
                self.held_up.clear()
                await self._raw.close()
                await schemas.close()
            await asyncio.sleep(backoff.next())

    def _counter_of(self, schemas: SchemaRegistry) -> SourceCounter:
        """Return a new counter, which continues the numbers of the previous one."""
        counter = (
            Counter(self.spec, partial(os.urandom, KEY_BYTES), schemas)
            if self.spec.answers is None
            else AnswersCounter(self.spec, schemas, self._applied.declares)
        )
        counter.fates, counter.measured = self.fates, self.measured
        counter.late_records = self.late_records
        return counter

    async def _count(self, counter: SourceCounter) -> None:
        """Take over the durable state, then look, read and write without end."""
        name, topic, state = self.spec.name, self.spec.topic, counter.state
        await self._log.replay(name, counter.replay)
        self._wait_for("error", "")
        self.counter = counter
        while not (await self._clocks_agree() and await self._has_begun(counter)):  # noqa: ASYNC110
            await asyncio.sleep(CLOCKS_PAUSE)
        await self._write(counter)
        if state.has_begun:
            # No query is asked at ticks before the close of the first window.
            due = max(state.next_tick, state.first + state.clock.asked_after_ms) + self.spec.settle
            log.info("event=source_counts source=%s topic=%s answer_due=%r", name, topic, utc(due))
        while True:
            spec = self._applied.source(name)
            if spec is not None and spec != self.spec:
                counter.adopt(spec)
                self.spec = spec
            behind_ms = self.spec.settle + max(-self.clocks_apart_ms, 0)
            counter.open_windows(self._now(), self._applied.lists(name, behind_ms))
            self._recall(counter)
            await self._look(counter)
            wrote = await self._write(counter)
            read = await self._read(counter)
            self._show(counter)
            await asyncio.sleep(0 if wrote or read else IDLE)

    def _recall(self, counter: SourceCounter) -> None:
        """Read closed counts that questions need, in a task of its own: looks must be on time meanwhile."""
        if self._recalling is None and (closed := counter.to_recall) is not None:
            self._recalling = closed, asyncio.create_task(self._log.recall(self.spec, closed))
        if self._recalling is not None and self._recalling[1].done():
            (closed, task), self._recalling = self._recalling, None
            task.result()
            counter.recall(closed)

    # -- clocks

    async def _clocks_agree(self) -> bool:
        """Compare the brokers' clock with this one; return whether looks may be taken."""
        self._brokers_ms, self._asked_at = await self._log.brokers_time(), time.monotonic()
        apart = self.clocks_apart_ms = self._brokers_ms - _now_ms()
        if abs(apart) <= CLOCKS_APART_MS:
            return True
        side = "ahead of" if apart > 0 else "behind"
        self._wait_for(
            "look", f"the brokers' clock is {abs(apart) / 1000:.0f} s {side} this machine's: set it"
        )
        return False

    def _now(self) -> int:
        """Return the earlier time of both clocks: a clock that is years ahead must not close every window."""
        return min(_now_ms(), self._brokers_ms + int((time.monotonic() - self._asked_at) * 1000))

    # -- looks

    async def _has_begun(self, counter: SourceCounter) -> bool:
        """Begin a source without a log, or continue one whose loss is accepted; return whether it has begun."""
        if counter.parked and self._accepts_loss:
            spans, topic_id = await self._raw.look()
            counter.accept_loss(self._now(), spans, topic_id)
            log.warning("event=loss_accepted source=%s reason=%s", self.spec.name, counter.parked)
        self._accepts_loss = False
        if counter.has_begun:
            return True
        settings = await self._raw.settings()
        if _is_compacted(settings):
            self._wait_for(
                "look", f"{Park.COMPACTED.text}: set cleanup.policy=delete, or count another topic"
            )
            return False
        spans, topic_id = await self._raw.look()
        begins = counter.reads_back_to(self._now())
        by_broker = _keeps(settings, _now_ms() - begins)
        if by_broker:
            offsets = await self._raw.offsets_at(begins, spans)
            spans = {partition: (offsets[partition], end) for partition, (_, end) in spans.items()}
        counter.begin(spans, self._now(), by_broker=by_broker, topic_id=topic_id)
        log.info("event=source_begins source=%s by_broker=%s", self.spec.name, by_broker)
        return True

    async def _look(self, counter: SourceCounter) -> None:
        """Take the look that is due by both clocks."""
        if counter.look_due(_now_ms()) is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_PAUSE
        if not await self._clocks_agree() or (moment := counter.look_due(self._now())) is None:
            return
        if time.monotonic() - self._settings_at > SETTINGS_EVERY:
            self._settings_at = time.monotonic()
            settings = await self._raw.settings()
            self._by_broker = _is_by_broker(settings)
            if _is_compacted(settings):
                counter.park(Park.COMPACTED)
                return
        counter.look(moment, *await self._raw.look(), by_broker=self._by_broker)
        self._next_look = 0.0
        missing = ", ".join(map(str, counter.missing))
        lack = f"topic {self.spec.topic!r} does not show its partitions {missing} any more"
        self._wait_for("look", lack if missing else "")

    # -- steps

    async def _write(self, counter: SourceCounter) -> bool:
        """Write all steps of the counter; return whether there were any."""
        wrote = False
        while (step := counter.step()) is not None:
            wrote = True
            if step.entries:
                counter.stepped(await self._log.write(counter.source, step.entries, step.counts))
            await asyncio.sleep(0)
        return wrote

    async def _read(self, counter: SourceCounter) -> bool:
        """Read and fold records as far as the counter wants them; return whether there were any."""
        ranges = counter.ranges()
        # Records beyond a look are kept for the next one.
        self._pieces = {
            n: one for n, one in self._pieces.items() if n not in ranges or ranges[n][0] < one.next_offset
        }
        idle = {n: at for n, (at, _) in ranges.items() if n not in self._pieces}
        if idle:
            wait = 0 if self._pieces else READ_WAIT
            self._pieces |= {piece.partition: piece for piece in await self._raw.read(idle, wait)}
        self._note_waits({n: at for n, at in idle.items() if n not in self._pieces})
        until = time.monotonic() + FOLDED_WITHIN
        self._wait_for("schema", "")
        folded = [await self._fold(counter, self._pieces[n], until) for n in sorted(self._pieces)]
        return any(folded)

    async def _fold(self, counter: SourceCounter, piece: Piece, deadline: float = math.inf) -> bool:
        """Fold records of a piece as far as the counter takes them now; return whether it took any."""
        took, partition = False, piece.partition
        while (
            time.monotonic() < deadline
            and (span := counter.ranges().get(partition)) is not None
            and span[0] < piece.next_offset
        ):
            # A slice at a time: work on the whole rest each time would be quadratic in the size of the piece.
            first, last = np.searchsorted(piece.records.offset, span).tolist()
            left = piece.records[first:last]
            count, why = counter.lack(left[:MOST_RECORDS])
            if why:
                self._wait_for("schema", why)
                if not count:
                    counter.lack(left)  # asks also for schemas behind those that are refused
            records, until = left[:count], piece.next_offset
            if count < len(left):
                until = int(left.offset[count])
            if counter.fold(partition, records, until) == span[0]:
                break
            took = True
            await asyncio.sleep(0)
        return took

    # -- state shown and logged

    def _note_waits(self, pending: Mapping[int, int]) -> None:
        """Note since when partitions have no committed record at the offset where they are read next."""
        now, server = time.monotonic(), self._config.kafka.bootstrap_servers[0]
        self.held_up = {n: self.held_up.get(n, now) for n in pending}
        for n, since in self.held_up.items():
            if now - since > HELD_UP and self._is_news(n):
                place = f"--topic {self.spec.topic} --partition {n} --start-offset {pending[n]}"
                log.warning(
                    "event=open_transaction source=%s partition=%d offset=%d seconds=%.0f command=%r",
                    *(self.spec.name, n, pending[n], now - since),
                    f"kafka-transactions.sh --bootstrap-server {server} abort {place}",
                )

    def _wait_for(self, cause: str, text: str) -> None:
        """Show and log for one cause why the source waits; "" if it does not."""
        self._waits[cause] = text
        self.waits = "; ".join(filter(None, self._waits.values()))
        if text and self._is_news(cause, text):
            log.warning("event=source_waits source=%s error=%r", self.spec.name, text)

    def _is_news(self, subject: object, said: object = None) -> bool:
        """Return whether to log a text about a subject: equal texts at most once a minute."""
        before, at = self._logged.get(subject, (None, -LOGGED_EVERY))
        if before == said and time.monotonic() - at < LOGGED_EVERY:
            return False
        self._logged[subject] = said, time.monotonic()
        return True

    def _show(self, counter: SourceCounter) -> None:
        """Keep the numbers that the next counter continues, and log a park and unreadable batches."""
        name, self.late_records = self.spec.name, counter.late_records
        if self._raw.dropped > self._dropped and self._is_news("dropped"):
            self._dropped = self._raw.dropped
            log.warning("event=batches_unreadable source=%s batches=%d", name, self._dropped)
        if (parked := counter.parked) and self._is_news("parked", parked):
            remedy = f"stream-svt count -c FILE --accept-loss {name}"
            named = (name, parked, parked.text, remedy)
            log.critical("event=source_parked source=%s reason=%s error=%r remedy=%r", *named)


def explained(error: BaseException) -> BaseException:
    """Return a client's error in words with a remedy, any other error unchanged."""
    return explain(error, "counting") if isinstance(error, KafkaError | OSError | TimeoutError) else error


def _is_compacted(settings: Mapping[str, str]) -> bool:
    return "compact" in settings.get("cleanup.policy", "")


def _keeps(settings: Mapping[str, str], ms: int) -> bool:
    """Return whether a topic has brokers' timestamps, and by its settings keeps every record for some time."""
    kept = int(settings.get("retention.ms", "0"))
    is_kept = (kept == -1 or kept >= ms) and settings.get("retention.bytes", "-1") == "-1"
    return _is_by_broker(settings) and is_kept


def _is_by_broker(settings: Mapping[str, str]) -> bool:
    return settings.get("message.timestamp.type") == "LogAppendTime"


def _now_ms() -> int:
    return int(time.time() * 1000)
