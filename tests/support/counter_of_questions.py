"""A counter with questions on a modelled log, which may be taken over between windows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from stream_svt.protocol.records import OneRecord, Records
from stream_svt.settings.application import ApplicationSpec
from stream_svt.sources.counter import Counter
from stream_svt.sources.counts import CountsRecord, closed_record
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import decode, encode

MINUTE = 60_000
T = 1_790_000_000_000 // 86_400_000 * 86_400_000
SOURCE = (
    "name: s, topic: raw, unit: user, window: 1m, lateness: 10s, ahead: 30s, settle: 5s, dataset: web, "
    "series: {field: page, names: [/, /a]}, time: {field: ts, in: ms}, "
    "measures: [{name: all}, {name: errors, where: {status: [500]}}]"
)


class Play:
    """A counter on events of every window, which may be taken over between windows."""

    def __init__(self, spec: ApplicationSpec, begin: int = T) -> None:
        self.spec, self.source, self.begin = spec, spec.sources[0], begin
        self.keys = random.Random(8)
        self.lists = [(0, spec.window_list(self.source))]
        self.log: list[tuple[int, bytes]] = []
        self.counts: list[CountsRecord] = []
        self.recalls = self.offset = 0
        self.counter = self.made()
        self.counter.begin({0: (0, 0)}, begin, by_broker=True, topic_id="t")
        self.write()

    def made(self) -> Counter:
        counter = Counter(self.source, lambda: self.keys.randbytes(16))
        for offset, entry in self.log:
            counter.replay(offset, decode(entry))
        return counter

    def take_over(self) -> None:
        needed = self.counter.needed_offset
        self.log = [one for one in self.log if one[0] >= needed]
        self.counter = self.made()

    def write(self) -> None:
        while True:
            if (closed := self.counter.to_recall) is not None:
                for one in self.counts:
                    content = closed_record(self.source, one.dataset.encode(), one.content, dict(one.headers))
                    if content is not None:
                        closed.add(*content)
                self.counter.recall(closed)
                self.recalls += 1
            if (step := self.counter.step()) is None:
                return
            self.counts += step.counts
            if step.entries:
                first = self.log[-1][0] + 1 if self.log else 0
                self.log += [(first + number, encode(one)) for number, one in enumerate(step.entries)]
                self.counter.stepped(range(first, first + len(step.entries)))

    def window(self, number: int, events: Sequence[tuple[str, str, int]]) -> None:
        """Count a window's events: users, pages and states."""
        begin = self.begin + number * MINUTE
        records = [
            OneRecord(
                self.offset + row,
                begin + 1000,
                None,
                json.dumps({"user": user, "page": page, "status": status, "ts": begin + 1}).encode(),
            )
            for row, (user, page, status) in enumerate(events)
        ]
        self.offset += len(records)
        now = begin + MINUTE + 16_000
        self.counter.open_windows(now, Lists(self.lists, now))
        self.write()
        moment = self.counter.look_due(now)
        assert moment is not None
        self.counter.look(moment, {0: (0, self.offset)}, "t", by_broker=True)
        self.write()
        if records:
            columns = Records.of(records)
            stamped = Records(*(getattr(columns, name) for name in columns.__slots__[:7]), by_broker=True)
            self.counter.fold(0, stamped, self.offset)
        self.write()
