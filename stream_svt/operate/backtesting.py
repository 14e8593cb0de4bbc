"""Replays the retained raw events of a source, or its counts if they reach further back.

It joins no group, commits no offset and writes no record. The data read and the report are for those who may read the
raw topic, and are not logged.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from aiokafka import TopicPartition
from msgspec.structs import replace as replace_fields

from stream_svt.application.config import Config
from stream_svt.application.topology import partitions_of
from stream_svt.counting.applied import Applied
from stream_svt.counting.raw import Piece, Spans
from stream_svt.counting.source import SourceLoop
from stream_svt.errors import StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.monitor.operations import utc
from stream_svt.planning.model import Workload
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.settings.fields import duration_text
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.events import Fate
from stream_svt.sources.looks import SourceCounter
from stream_svt.sources.replay import Recounter, Replay, Track
from stream_svt.sources.ticks import TickClock
from stream_svt.sources.units import KEY_BYTES
from stream_svt.wording import aligned, counted, lasting

STALLED: Final = 60.0
"""Seconds without a record, or without a schema, after which a backtest ends."""
_HEAD: Final = (
    *("monitor", "incident from", "incidents", "found", "missed", "muted", "budget spent"),
    *("delay", "alerts", "false", "alerts used up"),
)
_LEGEND: Final = """Means of the draws of noise, with ranges in brackets.
Incidents: runs of windows at or above the threshold in which a series reaches the value in "incident from".
Found: by an alert in the same run of windows, before the last one that reaches that value is over.
Not found: muted, if it began while an earlier alert muted the series; budget spent, if it began while the monitor had
no run; otherwise missed.
Delay: from the incident's first window to the alert, in windows; negative if the alert came earlier.
False: alerts on values below the threshold. Alerts used up: periods in which the monitor stopped, or its budget was
spent."""

Take: TypeAlias = Callable[[list[CountsRecord]], None]


@dataclass
class Retained:
    """What a topic retains of a source: the first whole window, the offsets to read, and what became of events."""

    topic: str
    first_ms: int
    spans: Spans
    fates: Mapping[Fate, int] = field(default_factory=dict)


async def backtest(
    config: Config,
    source: SourceSpec,
    asked_ms: int,
    surely_from: Mapping[str, Fraction],
    draws: int,
    note: Callable[[int], None],
) -> tuple[Replay, list[str]]:
    """Replay the last ``asked_ms`` of a source; return also lines of text on what was read. For ``note`` see `Replay`.

    Raises:
        StreamSvtError: Its topics retain no closed window of that time.
    """
    look_ms = TickClock.of(source).look_by(int(time.time() * 1000) - source.settle)
    held = await _retained(config, source, look_ms - asked_ms)
    until_ms = look_ms + source.window + source.ahead
    replay = Replay(config.spec, source, surely_from, held.first_ms, until_ms, draws, os.urandom, note)
    if held.topic == source.topic:
        await _Recounting(source, config, replay.play).run_once(held, look_ms)
    else:
        await _read_counts(config, held, replay.play)
    if not replay.windows:
        raise _nothing(source, "no window of this time has closed")
    return replay, [*_covered(source, held, asked_ms, replay.windows)]


def synthesize(
    config: Config,
    source: SourceSpec,
    asked_ms: int,
    level: Mapping[str, Fraction],
    draws: int,
    belief: Workload,
    note: Callable[[int], None],
) -> Replay:
    """Play one monitor on values that a belief says, for so long from now on; nothing is read."""
    first_ms = TickClock.of(source).window_at(int(time.time() * 1000))
    replay = Replay(config.spec, source, level, first_ms, first_ms + asked_ms, draws, os.urandom, note)
    replay.play_belief(belief, max(asked_ms // source.window, 1), np.random.default_rng())
    return replay


def _nothing(source: SourceSpec, why: str) -> StreamSvtError:
    return StreamSvtError(f"nothing of source {source.name!r} to replay, {why}: let it count for a while")


async def _retained(config: Config, source: SourceSpec, since_ms: int) -> Retained:
    """Return the topic that reaches further back; the raw one, if it reaches as far."""
    clock, topics = TickClock.of(source), (source.topic, source.counts_topic(config.spec.application))
    doing, found = f"reading the topics of source {source.name!r}", list[Retained]()
    numbers = await kafka.partition_counts(config.cluster(), doing)
    known = [one for one in topics if one in numbers] or topics
    async with kafka.started(config.cluster().reader(), doing) as reader:
        for topic in known:
            places = [TopicPartition(topic, one) for one in range(partitions_of(numbers, topic))]
            spans = await kafka.edges(reader, places, doing)
            # A record of counts has the time of its window's close; an event may be of a window ahead.
            is_raw = topic == source.topic
            ahead = source.ahead if is_raw else -clock.closes_after_ms
            async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                oldest = await reader.offsets_for_times(dict.fromkeys(places, 0))
                held = {one: at.timestamp + ahead for one, at in oldest.items() if at is not None}
                if not held:
                    continue
                # Where records were deleted, more of that window may be.
                cut = [ms + source.window for place, ms in held.items() if spans[place][0]]
                whole = max(cut, default=min(held.values()))
                first_ms = clock.window_at(max(whole, since_ms + source.window - 1))
                starts = await reader.offsets_for_times(dict.fromkeys(places, first_ms - ahead))
            read = {one.partition: (at.offset, spans[one][1]) for one, at in starts.items() if at is not None}
            found.append(Retained(topic, first_ms, read))
    if not found:
        raise _nothing(source, f"as topics {' and '.join(topics)} are empty")
    return min(found, key=lambda one: one.first_ms)


class _Recounting(SourceLoop):
    """Counts the retained events of a raw topic, as of one look, with record timestamps as append times."""

    def __init__(self, source: SourceSpec, config: Config, take: Take) -> None:
        super().__init__(source, config, Applied(config))
        self._take, self._entries = take, 0

    async def run_once(self, held: Retained, look_ms: int) -> None:
        """Pass on the records of counts of each tick, and note what became of events."""
        schemas = SchemaRegistry(self._config.schema_registry, takes_absence=True)
        whole = self._config.spec.window_list(self.spec)
        listed = replace_fields(whole, questions=tuple(one for one in whole.questions if one.visits))
        counter = Recounter(self.spec, partial(os.urandom, KEY_BYTES), schemas)
        counter.begin(held.spans, held.first_ms, by_broker=True, topic_id="")
        await self._write(counter)
        # The piece of the last tick ends before a look, too.
        counter.look(look_ms + 1, held.spans, "", by_broker=True)
        held.fates, moved = counter.fates, time.monotonic()
        try:
            while counter.state.next_tick <= look_ms:
                counter.open_next(listed)
                if await self._write(counter) or await self._read(counter):
                    moved = time.monotonic()
                elif time.monotonic() - moved > STALLED:
                    why = self.waits or "no record comes"
                    raise StreamSvtError(f"reading raw topic {self.spec.topic!r}: {why}")
        finally:
            await self._raw.close()
            await schemas.close()

    async def _write(self, counter: SourceCounter) -> bool:
        wrote = False
        while (step := counter.step()) is not None:
            wrote, counts = True, [*step.counts]
            if counts:
                await asyncio.to_thread(self._take, counts)
            if step.entries:
                self._entries += len(step.entries)
                counter.stepped(range(self._entries - len(step.entries), self._entries))
        return wrote

    async def _fold(self, counter: SourceCounter, piece: Piece, deadline: float = 0) -> bool:
        stamped = replace(piece.records, by_broker=True)
        return await super()._fold(counter, piece._replace(records=stamped), deadline)

    def _is_news(self, subject: object, said: object = None) -> bool:  # noqa: ARG002  nothing is logged
        return False


async def _read_counts(config: Config, held: Retained, take: Take) -> None:
    """Pass on the records of a topic of counts, tick by tick: one record of each partition waits."""
    doing = f"reading topic {held.topic!r}"
    async with AsyncExitStack() as readers:
        streams, heads, tick = dict[int, Any](), dict[int, Any](), list[CountsRecord]()
        for number, (begin, _) in held.spans.items():
            reader = await readers.enter_async_context(kafka.started(config.cluster().reader(), doing))
            place = TopicPartition(held.topic, number)
            streams[number] = kafka.read_partition(reader, place, begin, doing)
            heads[number] = await anext(streams[number], None)
        while left := {number: one for number, one in heads.items() if one is not None}:
            number = min(left, key=lambda each: left[each].timestamp)
            one, heads[number] = left[number], await anext(streams[number], None)
            if tick and one.timestamp != tick[0].timestamp_ms:
                await asyncio.to_thread(take, tick)
                tick = []
            name, content = (one.key or b"").decode(errors="replace"), one.value or b""
            tick.append(CountsRecord(name, tuple(one.headers), content, one.timestamp))
        await asyncio.to_thread(take, tick)


def _covered(source: SourceSpec, held: Retained, asked_ms: int, windows: int) -> Iterator[str]:
    """Yield lines of text on what was read."""
    span = windows * source.window
    what = "raw events" if held.fates else "counts"
    yield (
        f"Source {source.name}, {what} of topic {held.topic}: {utc(held.first_ms)} to {utc(held.first_ms + span)}, "
        f"{counted(windows, 'window')} of {duration_text(source.window)}: {lasting(span)} of the "
        f"{lasting(asked_ms)} asked for."
    )
    for fate, number in sorted(held.fates.items(), key=lambda one: (one[0] != Fate.COUNTED, -one[1])):
        if number:
            yield f"  {number:,} events {'' if fate is Fate.COUNTED else 'not counted: the event '}{fate.text}"


def table(replay: Replay, names: Sequence[str]) -> list[str]:
    """Return the scores of monitors as lines of a table."""
    return [*aligned([_HEAD, *(_row(replay, replay.tracks[one]) for one in names)]), *_LEGEND.split("\n")]


def _row(replay: Replay, track: Track) -> tuple[str, ...]:
    score, lives = track.score(replay.windows), [ms for draw in track.draws for ms in draw.spent]
    share, ledgers = fmean(score.found) / (score.incidents or 1), map(track.monitor.covers, replay.datasets)
    return (
        track.monitor.name,
        f"{float(track.levels[0]):,.12g}",
        str(score.incidents),
        f"{_ranged(score.found)}, {share:.0%}" if score.incidents else "-",
        *map(_ranged, (score.missed, score.muted, score.unbudgeted)),
        f"{fmean(score.delays):.2g}" if score.delays else "-",
        _ranged(score.alerts),
        _ranged(score.false),
        f"{_ranged([len(draw.spent) for draw in track.draws])} of {sum(ledgers)}"
        + (f", after {lasting(fmean(lives))}" if lives else ""),
    )


def _ranged(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{fmean(numbers):.3g} ({low}-{high})"


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file for its owner alone, and remove it after an error; OSError if there is one of the name."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        try:
            yield output
        except BaseException:
            path.unlink(missing_ok=True)
            raise
