"""Replays the counts of a source through its monitors, with throw-away keys and ledgers: what they would have found.

Each draw of noise is an engine with fresh keys and whole budgets. Ticks are played one by one. In memory are the
engines, the counts that questions read, and 16 bytes for each value at or above its threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from math import ceil
from typing import Final, NamedTuple, TypeVar

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask, QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import Alert, EventType, Lifecycle, ReleasedEvent
from stream_svt.planning.model import Workload
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.counts import DECILES_HEADER, MEASURE_HEADER, MONITOR_HEADER, window_of
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.carried import NOTHING
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.fields import Mute
from stream_svt.settings.monitors import MonitorSpec, rows_asked
from stream_svt.settings.questions import BOUND, Question, rows_of
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.counter import PIECE_MS, Counter
from stream_svt.sources.counts import CountsRecord, closed_record, records_of, records_of_question
from stream_svt.sources.lists import Lists
from stream_svt.sources.questions import Asked, ClosedCounts, Values
from stream_svt.sources.ticks import TickClock

_NUMBER: Final = 32
"""Bits of a window's number; the bits above it are a cell's."""
_WINDOW: Final = (1 << _NUMBER) - 1
_LAST: Final = np.iinfo(np.int64).max
_Places = TypeVar("_Places", int, Integers)


class Recounter(Counter):
    """A counter of all that a raw topic retains, under one look: windows open shortly before they are read.

    Else weeks of windows were open at once, and each tick takes as long as all of them.
    """

    def open_next(self, listed: WindowList) -> None:
        """Open the windows that the next piece may need; nothing before the first one is known."""
        now_ms = self.state.clock.opens_ms(self._piece_end + self.source.window)
        self.open_windows(now_ms, Lists([(0, listed)], now_ms))
        if (closed := self.to_recall) is not None:
            self.recall(closed)

    def _are_open(self, until_ms: int) -> bool:  # noqa: ARG002  of the look
        return self.state.next_window > self._piece_end

    @property
    def _piece_end(self) -> int:
        """No event of the next piece is of a window that begins later."""
        return self.state.next_tick + max(PIECE_MS, 2 * self.source.settle) + self.source.ahead


class Score(NamedTuple):
    """Incidents; and by draw alerts, incidents found, muted and without a run, and alerts below the threshold.

    ``delays`` are the windows from the begin of each found incident to the first alert about it, of all draws:
    negative if the alert came first. ``muted`` and ``unbudgeted`` incidents were not found, and began in a mute, or
    when the monitor had no run left; all others that were not found were missed.
    """

    incidents: int
    alerts: list[int]
    found: list[int]
    muted: list[int]
    unbudgeted: list[int]
    false: list[int]
    delays: list[int]

    @property
    def missed(self) -> list[int]:
        """Incidents that were tested and not found, by draw."""
        explained = zip(self.found, self.muted, self.unbudgeted, strict=True)
        return [self.incidents - sum(one) for one in explained]


class Outcome(NamedTuple):
    """What became of incidents in a draw: cell and window of their begins, and which were found, muted and idle.

    ``delays`` are those of the incidents found; ``false`` says which of the ``alerts``, cell and window, are false.
    """

    begins: Integers
    found: Mask
    muted: Mask
    idle: Mask
    delays: Integers
    alerts: Integers
    false: Mask


@dataclass
class Draw:
    """What one draw of noise reported. A cell is a series of a dataset.

    Attributes:
        alerts: Cell and window of each alert.
        spent: How long (ms) each ledger had lasted when the monitor found it spent, or stopped.
        mutes: Cell and window from which a mute holds, and until which.
        idle: From when, and until when, the monitor had no run of a dataset: as `by_dataset` orders.
        charges: Windows, and the parts of a dataset's limit that were charged then.
    """

    alerts: list[int] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)
    mutes: list[tuple[int, int]] = field(default_factory=list)
    idle: list[tuple[int, int]] = field(default_factory=list)
    charges: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Track:
    """What a monitor was asked, and what each draw reported.

    Attributes:
        levels: Value from which a window belongs to an incident, and threshold, which is at most that.
        series: Number of series of a dataset.
    """

    monitor: MonitorSpec
    question: Question | None
    levels: tuple[Fraction, Fraction]
    draws: list[Draw]
    series: int
    _reached: tuple[list[Integers], list[Integers]] = field(default_factory=lambda: ([], []))

    @property
    def parts(self) -> int:
        """Steps of one unit of a value."""
        return self.question.parts if self.question else 1

    def add(self, number: int, values: Values) -> None:
        """Add the values of a closed window."""
        for level, reached in zip(self.levels, self._reached, strict=True):
            least = ceil(level * self.parts)
            reached.append(np.flatnonzero(values.known & (values.steps >= least)) << _NUMBER | number)

    def score(self, windows: int) -> Score:
        """Return the scores of the first ``windows``."""
        score = Score(0, [], [], [], [], [], [])
        for one in self.outcomes(windows):
            score = score._replace(incidents=len(one.begins))
            score.alerts.append(len(one.alerts))
            score.found.append(int(one.found.sum()))
            score.muted.append(int(one.muted.sum()))
            score.unbudgeted.append(int(one.idle.sum()))
            score.false.append(int(one.false.sum()))
            score.delays.extend(one.delays.tolist())
        return score

    def outcomes(self, windows: int) -> Iterator[Outcome]:
        """Yield the outcomes of each draw in the first ``windows``.

        An incident is a maximal run of windows of a cell at the threshold, from its first to its last one at the level.
        An alert is about it if it is in that run, and no later.
        """
        high, low = (np.sort(np.concatenate([*reached, _NO_CELLS])) for reached in self._reached)
        rises = low[np.diff(low, prepend=-2) != 1]
        run = rises.searchsorted(high, side="right") - 1
        begins, ends = high[np.diff(run, prepend=-1) != 0], high[np.diff(run, append=-1) != 0]
        rises = rises[np.unique(run)]
        for draw in self.draws:
            alerts = np.sort(np.array(draw.alerts, np.int64))
            alerts = alerts[alerts & _WINDOW < windows]
            first = np.append(alerts, _LAST)[alerts.searchsorted(rises)]
            found = first <= ends
            muted = ~found & _within(begins, draw.mutes)
            idle = ~found & ~muted & _within(by_dataset(begins, self.series), draw.idle)
            delays = (first - begins)[found]
            yield Outcome(begins, found, muted, idle, delays, alerts, ~np.isin(alerts, low))


def window_numbers(places: Integers) -> Integers:
    """Return the windows of cells and windows."""
    return places & _WINDOW


def by_dataset(place: _Places, series: int) -> _Places:
    """Return cells and windows in the order in which each dataset's are tested."""
    cell, number = place >> _NUMBER, place & _WINDOW
    return (cell // series << _NUMBER | number) * series + cell % series


def _within(places: Integers, spans: Sequence[tuple[int, int]]) -> Mask:
    """Return which places lie in a span."""
    begins, ends = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    furthest = np.append(np.maximum.accumulate(ends)[::-1], -1)[::-1]
    return furthest[begins.searchsorted(places, side="right")] > places


_NO_CELLS: Final = np.zeros(0, np.int64)
_RUN_ENDS: Final = frozenset({EventType.RUN_HALTED, EventType.RUN_CLOSED})


class Replay:
    """The monitors of a source, in several draws of noise, on counts from the past.

    Args:
        surely_from: Value from which a window belongs to an incident, for each monitor that is played.
        first_ms, last_ms: Begin of the first window, and a moment after the begin of the last one.
        entropy: Returns as many random bytes as its argument says.
        note: Gets the begin (ms) of each window that was played.

    Attributes:
        tracks: What was asked and reported, by monitor.
        datasets: Those that may have such windows, by name; nothing of their budgets is spent at the begin.
        windows: Number of windows from the first to the last that was closed.
        periods: Numbers of the windows with which datasets begin.
    """

    def __init__(
        self,
        spec: ApplicationSpec,
        source: SourceSpec,
        surely_from: Mapping[str, Fraction],
        first_ms: int,
        last_ms: int,
        draws: int,
        entropy: Callable[[int], bytes],
        note: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._note_window = note
        self.source, self.first_ms, self.windows, self._offset = source, first_ms, 0, 0
        self._listed, self._clock = source.window_list(), TickClock.of(source)
        self._series = {name: number for number, name in enumerate(self._listed.series)}
        monitors = tuple(one for one in spec.monitors if one.name in surely_from)
        self.tracks = {
            one.name: Track(
                one,
                one.question(source) if one.asks else None,
                (surely_from[one.name], one.threshold),
                [Draw() for _ in range(draws)],
                len(self._series),
            )
            for one in monitors
        }
        self._places = dict[str, tuple[int, int, int]]()
        begins = range(first_ms, last_ms + 1, source.window)
        for _, period in groupby(enumerate(begins), lambda one: source.dataset_at(one[1], "")):
            numbers = [*period]
            for place, name in enumerate(self._names(numbers[0][1])):
                self._places[name] = (place, numbers[0][0], numbers[-1][0] + 1)
        self.periods = sorted({begin for _, begin, _ in self._places.values()})
        self._back_ms = source.window * max(
            (one.question.look_back for one in self.tracks.values() if one.question), default=0
        )
        self._rows = [
            one.question.rows for one in self.tracks.values() if one.question and one.question.visits
        ]
        measures = (*source.measure_names, *map(rows_of, self._rows))
        self._closed = ClosedCounts(first_ms - self._back_ms, measures)
        self.datasets = {one.name: one for one in _unspent(spec, source, first_ms, last_ms)}
        declared, names = tuple(self.datasets.values()), [*self.datasets]
        spec = replace(spec, datasets=declared, monitors=monitors, generators=(), carried=NOTHING)
        self._engines = [
            Engine(spec, shard=0, datasets=names, key=entropy(32), entropy=entropy) for _ in range(draws)
        ]
        topic = source.counts_topic(spec.application)
        for engine in self._engines:
            engine.begin(topic, 0)
        index = DatasetIndex(names, partition=0, partitioning=Partitioning(1, "murmur2"))
        asked = rows_asked(monitors)
        self._decoder = QueryDecoder(topic, index, [*self.tracks], source=source, asked=asked)

    def play(self, records: Sequence[CountsRecord]) -> None:
        """Play the counts of a tick; at a window's close questions are asked anew, but for those with visits."""
        counts = [
            one
            for one in records
            if (given := dict(one.headers)).get(MONITOR_HEADER, b"").decode() in ("", *self._rows)
            and DECILES_HEADER not in given
        ]
        windows = set[int]()
        for one in counts:
            record = (one.dataset.encode(), one.content, dict(one.headers))
            closed = closed_record(self.source, *record, self._rows)
            if closed is not None:
                self._closed.add(*closed)
                windows.add(closed.window)
        values = {
            window: self._values(window) for window in windows if window >= self.first_ms
        }  # one at most
        for window, each in values.items():
            self.play_close(window, each, counts)
            self._closed.forget_before(window + self.source.window - self._back_ms)
        if counts and not values:
            self._test(counts, counts[0].timestamp_ms)

    def play_close(self, window: int, values: Mapping[str, Values], counts: Sequence[CountsRecord]) -> None:
        """Play a window's close: its counts, and the values of all monitors."""
        tick, number = self._clock.close_of(window), (window - self.first_ms) // self.source.window
        records, self.windows = [*counts], number + 1
        for name, one in self.tracks.items():
            one.add(number, values[name])
            if one.question is not None and not (one.question.visits and counts):  # which have its answers
                asked = (self.source, self._listed, one.question, window, tick, values[name])
                records += records_of_question(*asked)
        self._test(records, tick)
        self._note_window(window)

    def play_belief(self, belief: Workload, windows: int, rng: np.random.Generator) -> None:
        """Play so many windows of one monitor, in which each value by itself is as a belief says."""
        [(name, one)], listed = self.tracks.items(), self._listed
        asks = one.question is not None
        cells = len(listed.datasets), len(listed.measures), len(listed.series)
        column = 0 if asks else self.source.measure_names.index(one.monitor.measure or "")
        for window in range(self.first_ms, self.first_ms + windows * self.source.window, self.source.window):
            above, below = (rng.choice(margins, cells) for margins in (belief.above, belief.below))
            margins = np.where(rng.random(cells) < belief.positives, above, -below)
            real = (float(one.monitor.threshold) + margins) * one.parts
            steps = np.maximum(np.floor(real).astype(np.int64), -BOUND if asks else 0)
            counts = (self.source, listed, window, self._clock.close_of(window), steps.ravel())
            values = Values(steps[:, column], np.ones_like(steps[:, column], np.bool_))
            tested = (MEASURE_HEADER, (one.monitor.measure or "").encode())
            records = [] if asks else [each for each in records_of(*counts) if tested in each.headers]
            self.play_close(window, {name: values}, records)

    def _values(self, window: int) -> dict[str, Values]:
        """Return the values of all monitors about a closed window."""
        series, length, closed = self._listed.series, self.source.window, self._closed
        return {
            name: Asked(one.question, closed, self._names, series, length).about(window)
            if one.question is not None and one.question.visits is None
            else closed.of(window, self._names(window), one.monitor.tested or "", series)
            for name, one in self.tracks.items()
        }

    def _names(self, window: int) -> list[str]:
        return [self.source.dataset_at(window, name) for name in self._listed.datasets]

    def _test(self, records: Sequence[CountsRecord], tick: int) -> None:
        """Test the records of a tick in all draws."""
        columns = Records.of(
            OneRecord(offset, tick, one.dataset.encode(), one.content, one.headers)
            for offset, one in enumerate(records, self._offset)
        )
        end = self._offset + len(records)
        while self._offset < end:
            batch = self._decoder.decode(columns[self._offset - end :])
            self._offset = batch.end
            for draw, engine in enumerate(self._engines):
                self._step(draw, engine, batch, tick)

    def _step(self, draw: int, engine: Engine, batch: QueryBatch, tick: int) -> None:
        is_done = False
        while not is_done:
            is_done = engine.step(batch).done
            events = engine.take_commit().events
            engine.committed()
            for event in events:
                self._note(draw, event, tick)

    def _note(self, draw: int, event: ReleasedEvent, tick: int) -> None:
        """Take note of what an event says of a dataset's windows from the first on."""
        data = event.data
        if data.monitor not in self.tracks or data.dataset not in self._places:
            return
        track, place = self.tracks[data.monitor], self._places[data.dataset]
        if data.account is not None and data.account.charge:
            number = min(self._number(tick, self._clock.closes_after_ms), place[2] - 1)
            track.draws[draw].charges.append((number, data.account.charge / data.account.limit))
        if isinstance(data, Alert):
            self._note_alert(track.draws[draw], data, place)
        elif event.type is EventType.ALERT_ENDED:
            muted = self._series.get(data.detail["series"])
            self._end_mutes(self.tracks[track.monitor.ends], draw, place, tick, muted)
        else:
            self._note_state(track, draw, event.type, data, tick)

    def _note_alert(self, draw: Draw, alert: Alert, place: tuple[int, int, int]) -> None:
        """Take note of an alert about a declared series, and of its mute."""
        series, begin = self._series.get(alert.series or ""), window_of(alert.position.window)
        if series is None or begin is None or begin < self.first_ms:
            return
        dataset, _, end = place
        at = dataset * len(self._series) + series << _NUMBER
        number = (begin - self.first_ms) // self.source.window
        draw.alerts.append(at | number)
        if (until := alert.muted_until) is not None:
            last = (
                min(self._number(until, self._clock.closes_after_ms), end) if isinstance(until, int) else end
            )
            draw.mutes.append((at | number + 1, at | last))

    def _end_mutes(
        self, track: Track, draw: int, place: tuple[int, int, int], tick: int, series: int | None = None
    ) -> None:
        """End the mutes of a dataset, or of one of its series, behind the windows of a tick."""
        mutes, number = track.draws[draw].mutes, self._number(tick + 1, self._clock.closes_after_ms)
        for index, (begin, end) in enumerate(mutes):
            dataset, of_series = divmod(begin >> _NUMBER, track.series)
            if dataset == place[0] and series in (None, of_series):
                mutes[index] = (begin, min(end, begin & ~_WINDOW | number))

    def _note_state(self, track: Track, draw: int, kind: EventType, data: Lifecycle, tick: int) -> None:
        """Take note of the end of a run, with its mutes, and of a time without one."""
        noted, place = track.draws[draw], self._places[data.dataset]
        dataset, begin, end = place
        if kind in _RUN_ENDS and track.monitor.mute is Mute.RUN:
            self._end_mutes(track, draw, place, tick)
        is_over = kind is EventType.EXHAUSTED or data.detail.get("stopped") is True
        if is_over:
            since = max(self.datasets[data.dataset].terms.from_ms or 0, self.first_ms)
            noted.spent.append(tick - since)
        elif kind is EventType.LIMITED:
            end = min(end, self._number(data.detail["until"], self._clock.asked_after_ms))
        else:
            return
        cell, first = dataset * track.series, max(begin, self._number(tick, self._clock.asked_after_ms))
        span = [by_dataset(cell << _NUMBER | one, track.series) for one in (first, end)]
        if noted.alerts and noted.alerts[-1] >> _NUMBER in range(cell, cell + track.series):
            span[0] = max(span[0], by_dataset(noted.alerts[-1], track.series) + 1)  # those before were tested
        noted.idle.append((span[0], span[1]))

    def _number(self, ms: int, after_ms: int) -> int:
        """Return the number of the first window that is asked, so long after its begin, at a moment or later."""
        return max(-((self.first_ms + after_ms - ms) // self.source.window), 0)


def _unspent(spec: ApplicationSpec, source: SourceSpec, first_ms: int, last_ms: int) -> Iterator[DatasetSpec]:
    """Yield the datasets of a source, of generated ones those between two moments, with nothing spent."""
    generated = (replace(one, from_ms=0, begun_ms=0, balances={}) for one in spec.generators)
    found = [*spec.datasets, *(each for one in generated for each in one.periods(first_ms, last_ms))]
    for one in filter(lambda each: source.covers(each.name), found):
        yield DatasetSpec(one.name, replace(one.terms, spent_before=0))
