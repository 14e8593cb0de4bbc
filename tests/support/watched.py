"""Histories of a source's counts with operators, losses and maintenance, and which silences must be released of them.

`Oracle` computes that from the other released events and from what is public: which windows were asked when, what
operators did between which records, and the monitor's keys. It knows no value, no noise, no state, and no engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.operations import Action, Command, apply
from stream_svt.monitor.released import Alert, EventType, Lifecycle, ReleasedEvent
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec
from tests.support.counts import HOUR_MS, SOURCE, TOPIC, WINDOW_MS, Counts, counting
from tests.support.engine_play import Play

WATCHES = (EventType.NOT_RENEWED, EventType.UNTESTED)
LOSS = "an operator accepts that the next record is lost"
_ACTIONS = [Action.PAUSE, Action.PAUSE, *[Action.RESUME] * 3, Action.RESAMPLE, Action.MUTE, Action.UNMUTE]
_NEAR, _WEIGHTS = [0, 300, 450, 470, 490, 499, 501, 900], [27, 9, 3, 3, 1, 1, 1, 1]
_BEGINS = (EventType.RUN_STARTED, EventType.RUN_CLOSED, EventType.LIMITED, EventType.EXHAUSTED)


def batches(play: Play, records: Sequence[Counts], last: int) -> Iterator[QueryBatch]:
    """Yield the records up to an offset as batches, from where the engine is."""
    first = play.engine.next_offset(TOPIC) or 0
    names = [dataset.name for dataset in play.spec.datasets]
    index = DatasetIndex(names, partition=0, partitioning=Partitioning(1, "murmur2"))
    monitors = [one.name for one in play.spec.monitors]
    decoder = QueryDecoder(TOPIC, index, monitors, source=play.spec.sources[0])
    left = [one for one in records if first <= one.offset < last]
    while left:
        yield (batch := decoder.decode(left))
        left = [one for one in left if one.offset >= batch.end]


@dataclass
class History:
    """Records in order, and what an operator does before the record of an offset."""

    spec: ApplicationSpec
    records: list[Counts]
    acts: dict[int, list[Command | str]] = field(default_factory=dict)

    @classmethod
    def random(cls, spec: ApplicationSpec, seed: int, hours: int) -> History:
        """Return windows of which some are not asked, while an operator acts and some records are lost."""
        rng, (source,) = random.Random(seed), spec.sources
        ends = range(WINDOW_MS, WINDOW_MS + hours * HOUR_MS, HOUR_MS)
        each = (
            (one + ms, one, name)
            for one in ends
            for ms in source.asked_after_ms()
            for name in source.dataset_names
        )
        asked = [one for one in sorted(each) if rng.random() > 0.02]
        found = cls(spec, [])
        for offset, (tick, begin, name) in enumerate(asked):
            values = rng.choices(_NEAR, _WEIGHTS, k=len(source.series_names))
            found.records.append(Counts(source, "visitors", name, values, begin, tick, offset))
            if rng.random() < 0.08:
                found.acts[offset] = _acts(rng, found.records[-1])
        return found


def _acts(rng: random.Random, record: Counts) -> list[Command | str]:
    match rng.randrange(9):
        case 0:
            return [LOSS]
        case 1:  # a pause that skips nothing
            return [Command("x", action, dataset=record.dataset) for action in (Action.PAUSE, Action.RESUME)]
    action, more = rng.choice(_ACTIONS), dict[str, Any](dataset=rng.choice(record.source.dataset_names))
    if action in (Action.MUTE, Action.UNMUTE):
        more["series"] = rng.choice(record.source.series_names)
    if action is Action.MUTE or (action is Action.PAUSE and rng.random() < 0.5):
        more["until"] = record.tick + rng.randrange(1, 4) * HOUR_MS
    return [Command("x", action, **more)]


Step = tuple[list[ReleasedEvent], list[ReleasedEvent]]
"""The events of what an operator does before a record, and those of the record."""


def played(history: History, seed: int | None = None, bounds: Bounds = BOUNDS) -> tuple[Play, list[Step]]:
    """Play a history record by record; with a seed in any batches instead, with commits and crashes between steps."""
    rng, play, steps = random.Random(seed), Play(history.spec, bounds=bounds), list[Step]()
    acted = list[ReleasedEvent]()
    stops = sorted(history.acts) if seed is not None else range(len(history.records))
    for first, stop in zip([0, *stops], [*stops, len(history.records)], strict=True):
        events = len(play.events)
        if stop != first:
            _read(play, history, stop, rng if seed is not None else None)
            steps += [(acted, play.events[events:])] if seed is None else []
        events = len(play.events)
        for act in history.acts.get(stop, ()):
            if isinstance(act, Command):
                apply(play.engine, act)
            else:
                play.accept_loss(TOPIC, stop + 1)
            play.commit()
        acted = play.events[events:]
    return play, steps


def _read(play: Play, history: History, stop: int, rng: random.Random | None) -> None:
    """Read the records before an offset."""
    while (at := play.engine.next_offset(TOPIC) or 0) < stop:
        last = stop if rng is None else min(stop, at + 1 + rng.randrange(30))
        for batch in batches(play, history.records, last):
            while not (step := play.engine.step(batch)).done or step.durable_first:
                play.commit()
            if rng is not None and not rng.randrange(3):
                play.commit()
            if rng is not None and not rng.randrange(5):
                play.crash()
                break
    play.commit()


@dataclass
class Silence:
    """An alert, the queries that are to be tested behind its mute, by tick and window, and the runs of tested ones."""

    alert: ReleasedEvent
    queries: list[tuple[int, int]]
    by: int
    runs: set[int] = field(default_factory=set)
    why: str = ""


class Oracle:
    """Judges which silences of the only monitor on a dataset must be released, and after which record.

    ``told`` has the number of the record, the alert's id and the series of each; ``over`` why another alert has none.
    """

    def __init__(self, history: History, steps: Sequence[Step], dataset: str) -> None:
        (self._monitor,), (self._source,) = history.spec.monitors, history.spec.sources
        self._run, self._is_paused, self._muted = 0, False, dict[str, int]()
        self._events = list[ReleasedEvent]()
        self.open = dict[str, Silence]()
        self.told = list[tuple[int, str, str]]()
        self.over = dict[str, str]()
        for number, (record, step) in enumerate(zip(history.records, steps, strict=True)):
            acted, events = (
                [
                    one
                    for one in part
                    if one.data.monitor and one.data.dataset == dataset and one.type not in WATCHES
                ]
                for part in step
            )
            for event in acted:
                self._act(event)
            self._events = events
            if record.dataset == dataset and LOSS not in history.acts.get(record.offset, ()):
                self._read(number, record)
            assert not self._events

    def _act(self, event: ReleasedEvent) -> None:
        assert isinstance(event.data, Lifecycle)
        detail = event.data.detail
        if event.type == EventType.PAUSED:
            self._is_paused = True
            for silence in self.open.values():
                silence.runs |= {-1} if silence.runs else set()
        elif event.type == EventType.RESUMED:
            self._is_paused = False
        elif event.type == EventType.RUN_CLOSED:
            self._run = 0
        elif event.type in (EventType.MUTED, EventType.UNMUTED):
            self._end(detail["series"], "command")
            self._muted[detail["series"]] = detail.get("muted_until", 0)

    def _read(self, number: int, record: Counts) -> None:
        """Follow which of a record's rows are tested."""
        end = record.window + self._source.window
        rests = any(one.from_ms < end and record.window < one.until_ms for one in self._monitor.maintenance)
        for series, silence in [] if rests else [*self.open.items()]:
            if silence.by < record.tick:
                self._end(series, silence.why or "not asked")
        for row, series in enumerate(record.source.series_names):
            why = "maintenance" if rests else self._begin()
            if self._is_top(record) and self._events[0].data.position.row == row:  # type: ignore[union-attr]
                assert not why
                assert self._muted.get(series, 0) <= record.tick
                self._top()
            else:
                self._test(number, record, series, why)

    def _begin(self) -> str:
        """Take the events of a run that begins or ends before a query; return why the query is not tested, if so."""
        while self._events and isinstance(self._events[0].data, Lifecycle):
            event = self._events.pop(0)
            if event.type == EventType.RESUMED:
                self._is_paused = False
            else:
                assert event.type in _BEGINS
                self._run = event.data.run if event.type == EventType.RUN_STARTED else 0
        return "paused" if self._is_paused else "" if self._run else "no run"

    def _is_top(self, record: Counts) -> bool:
        """Return whether the next event is a top of a record."""
        if not self._events or not isinstance(alert := self._events[0].data, Alert):
            return False
        texts = alert.query_id.split("/")
        assert [round(1000 * datetime.fromisoformat(one).timestamp()) for one in texts] == [
            record.window,
            record.tick,
        ]
        return True

    def _top(self) -> None:
        event = self._events.pop(0)
        alert = event.data
        assert isinstance(alert, Alert)
        assert isinstance(alert.muted_until, int)
        assert alert.series is not None
        self._end(alert.series, "renewed")
        self._muted[alert.series] = alert.muted_until
        after, begin = self._source.asked_after_ms(), WINDOW_MS
        while begin + after[0] < alert.muted_until:
            begin += HOUR_MS
        begins = [begin + number * HOUR_MS for number in range(self._monitor.not_renewed or 0)]
        queries = sorted((one + ms, one) for one in begins for ms in after)
        assert alert.watched_until == queries[-1][0]
        self.open[alert.series] = Silence(event, queries, alert.watched_until)
        if self._events and self._events[0].type == EventType.RUN_HALTED:
            self._events.pop(0)
            self._run = 0

    def _test(self, number: int, record: Counts, series: str, why: str) -> None:
        silence, query = self.open.get(series), (record.tick, record.window)
        if silence is None or query not in silence.queries:
            return
        silence.queries.remove(query)
        if why == "maintenance":
            silence.why = why
            return
        silence.runs.add(self._run)
        if why or silence.why or len(silence.runs) > 1:
            self._end(series, silence.why or why or "another run")
        elif not silence.queries:
            self._finish(number, series, silence.runs)

    def _finish(self, number: int, series: str, runs: set[int]) -> None:
        silence = self.open[series]
        if silence.runs == runs:
            self.told.append((number, silence.alert.id, series))
        self._end(series, "told" if silence.runs == runs else "another run")

    def _end(self, series: str, why: str) -> None:
        if (silence := self.open.pop(series, None)) is not None:
            self.over[silence.alert.id] = why


def released(steps: Sequence[Step], kind: EventType, dataset: str) -> list[tuple[int, str, str]]:
    """Return the silences on a dataset that were released, as `Oracle.told` has them."""
    return [
        (number, event.data.detail["alert"], event.data.detail["series"])
        for number, step in enumerate(steps)
        for event in (*step[0], *step[1])
        if event.type == kind and event.data.dataset == dataset and isinstance(event.data, Lifecycle)
    ]


def counts_of(spec: ApplicationSpec, dataset: str, *hours: int) -> list[Counts]:
    """Return records of the windows of some hours, with many visitors of one page at the first, then none."""
    (source,) = spec.sources
    begins = [WINDOW_MS + hour * HOUR_MS for hour in hours]
    return [
        Counts(source, "visitors", dataset, [0 if offset else 10**6], begin, begin + HOUR_MS + 60_000, offset)
        for offset, begin in enumerate(begins)
    ]


TWO = "epsilon: 20, cutoff: 20, mute: 2h, not_renewed: 2"
_ONE = TWO.replace("cutoff: 20", "cutoff: 1")
_REST = "maintenance: [{from: 2026-09-21T02:30Z, until: 2026-09-21T02:40Z}]"
ENDS: dict[str, tuple[str, tuple[int, ...], Action | None]] = {
    "tested": (TWO, (0, 1, 2, 3), None),
    "not-asked": (TWO, (0, 1, 3, 4), None),
    "other-run": (TWO, (0, 2, 3), Action.RESAMPLE),
    "paused": (TWO, (0, 2, 3), Action.PAUSE),
    "stopped": (TWO, (0, 2, 3), Action.CLOSE),
    "exhausted": (f"{_ONE}, reserve: 3980", (0, 2), None),
    "limited": (f"{_ONE}, max_runs: 1 per 1d", (0, 2), None),
    "maintenance": (f"{TWO}, {_REST}", (0, 2, 3), None),
    "max-mutes": (f"{TWO}, max_mutes: 1", (0, 1), Action.MUTE),
    "command": (TWO, (0, 1), Action.UNMUTE),
}
"""Of each reason of the end of a watch a monitor, the hours of windows, and a command before the last one."""


def watching(
    form: str, datasets: str = "{names: [a, b, c], limit: 4000}", source: str = SOURCE
) -> ApplicationSpec:
    """Return an application with one monitor of counts."""
    return counting(
        f"source: requests, measure: visitors, threshold: 500, {form}", source=source, datasets=datasets
    )


def ended(reason: str) -> Play:
    """Return a play whose only watch ends for a reason."""
    form, hours, action = ENDS[reason]
    spec = watching(form)
    history = History(spec, counts_of(spec, "a", *hours))
    if action is not None:
        series = {Action.MUTE: "s5", Action.UNMUTE: "s0"}.get(action, "")
        until = WINDOW_MS + 99 * HOUR_MS if action is Action.MUTE else 0
        history.acts[len(hours) - 1] = [Command("x", action, "a", series=series, until=until, number=1)]
    return played(history)[0]
