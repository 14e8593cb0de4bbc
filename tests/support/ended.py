"""An application whose incidents end by tests of their own, and an engine that reads its counts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import Alert, EventType, Lifecycle
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.protocol.records import OneRecord
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.monitors import rows_asked
from stream_svt.sources.counts import CountsRecord, records_of, records_of_question
from stream_svt.sources.questions import Asked, ClosedCounts
from stream_svt.sources.ticks import TickClock
from tests.support.counter_of_questions import SOURCE, T
from tests.support.engine_play import Play

TOPIC = "web.s.counts"
WHOLE = {EventType.ALERT, EventType.ALERT_ENDED}


def application(
    end: str = "below: 400", more: str = "", datasets: str = "name: web", limit: int = 60
) -> ApplicationSpec:
    dataset = '"web-{date}"' if "generate" in datasets else "web"
    if datasets.startswith("names: "):
        dataset = f'{{pattern: "{{name}}", field: shop, {datasets}}}'
    source = SOURCE.replace("window: 1m", "window: 1h").replace("dataset: web", f"dataset: {dataset}")
    source = source.replace("ahead: 30s", "ahead: 30m")
    monitor = (
        f"name: m, source: s, measure: all, epsilon: 10, cutoff: 5, max_runs: off, threshold: 500, {more}"
    )
    return load_spec(
        f"{{application: web, sources: [{{{source}}}], datasets: [{{{datasets}, limit: {limit}}}], "
        f"monitors: [{{{monitor} end: {{{end}}}}}]}}"
    ).at(T)


def written(spec: ApplicationSpec, counts: Sequence[Sequence[int]]) -> list[CountsRecord]:
    """Return what a counter writes about windows with these counts of both series, on each dataset."""
    source = spec.sources[0]
    listed, closed, found = (
        spec.window_list(source),
        ClosedCounts(measures=("all", "errors")),
        list[CountsRecord](),
    )

    def names(begin: int) -> list[str]:
        return [source.dataset_at(begin, name) for name in listed.datasets]

    for number, row in enumerate(counts):
        window = T + number * source.window
        for name in names(window):
            closed.add(window, name, "all", listed.series, np.array(row))
        tick = TickClock.of(source).close_of(window)
        found += records_of(source, listed, window, tick, np.array([*row, 0, 0] * len(listed.datasets)))
        for question in listed.questions:
            values = Asked(question, closed, names, listed.series, source.window).about(window)
            found += records_of_question(source, listed, question, window, tick, values)
    return found


class Feed:
    """An engine that reads records of counts."""

    def __init__(self, spec: ApplicationSpec, bounds: Bounds = BOUNDS) -> None:
        self.play = Play(spec, bounds=bounds)
        self.decoder = decoder_of(spec)

    def read(self, records: Sequence[CountsRecord], rng: random.Random | None = None) -> Feed:
        """Read the records that are new, with a generator in pieces, with commits and restarts."""
        while (at := self.play.engine.next_offset(TOPIC) or 0) < len(records):
            last = min(len(records), at + rng.randrange(1, 9)) if rng else len(records)
            self.play.step(self.decoder.decode([record(records[n], n) for n in range(at, last)]))
            if rng is not None:
                rng.choice((self.play.commit, self.play.crash, lambda: None))()
        self.play.commit()
        return self

    @property
    def ends(self) -> list[Lifecycle]:
        return [event.data for event in self.play.events if event.type == EventType.ALERT_ENDED]

    @property
    def tops(self) -> list[tuple[str, str, int]]:
        """What was reported: its kind, series and window."""
        found = []
        for event in self.play.events:
            if event.type in WHOLE:
                window = (
                    event.data.query_id if isinstance(event.data, Alert) else event.data.detail["query_id"]
                )
                hour = int(window[11:13]) + 24 * (int(window[8:10]) - FIRST_DAY)
                found.append((event.type.split(".")[-2], event.subject.partition("/")[2], hour))
        return found

    def command(self, action: Action, **options: object) -> None:
        assert operations.apply(self.play.engine, Command("c", action, "web", **options))
        self.play.commit()


FIRST_DAY = int(np.datetime64(T, "ms").astype(str)[8:10])


def record(one: CountsRecord, offset: int) -> OneRecord:
    return OneRecord(offset, one.timestamp_ms, one.dataset.encode(), one.content, one.headers)


def decoder_of(spec: ApplicationSpec) -> QueryDecoder:
    index = DatasetIndex(
        [one.name for one in spec.datasets], partition=0, partitioning=Partitioning(1, "murmur2")
    )
    return QueryDecoder(TOPIC, index, [], source=spec.sources[0], asked=rows_asked(spec.monitors))


QUIET, HIGH = (100, 90), (900, 90)
LONG = [QUIET, *[HIGH] * 40, QUIET, QUIET]
