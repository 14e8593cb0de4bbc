"""Takes the counts of two raw streams that differ by one unit through the engine, with moved noise."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import TextList
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.protocol.records import Headers
from stream_svt.proving.neighbours import Summary, check_case
from stream_svt.proving.streams import Case, ScriptStep, StepTo
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.sources.counts import CountsRecord
from tests.support.counter_play import played
from tests.support.raw_streams import LOSSES, Making

TOPIC = "web.s.counts"


@dataclass(frozen=True)
class Written:
    """A record of counts on its topic."""

    record: CountsRecord
    offset: int = 0

    @property
    def measure(self) -> str:
        return dict(self.record.headers)["measure"].decode()

    @property
    def key(self) -> bytes:
        return self.record.dataset.encode()

    @property
    def value(self) -> bytes:
        return self.record.content

    @property
    def timestamp(self) -> int:
        return self.record.timestamp_ms

    @property
    def headers(self) -> Headers:
        return self.record.headers


MONITORS = (
    "cutoff: 4, mute: none",
    "cutoff: 2, mute: 1m, mechanism: adaptive",
    "cutoff: 3, mute: run",
    "cutoff: 3, append: {retry: {attempts: 3, lifetime: 5m, capacity: 6}}",
    "cutoff: 3, correction: {annealed: {start: 6, end: 1}}, append: sweep",
)


def application_of(making: Making, rng: random.Random) -> ApplicationSpec:
    """Return an application with some monitors of each measure of a source."""
    source = making.fields | {"series": {"field": "page", "names": ["/", "/a"]}}
    source["measures"] = [*source["measures"], {"name": "late"}]
    names = ["web-a", "web-b"] if "names" in source["dataset"] else ["web"]
    monitors = [
        f"{{name: {measure['name']}-{number}, source: s, measure: {measure['name']}, epsilon: 12, max_runs: off, "
        f"threshold: {rng.choice((1, 2, 3))}, {form}}}"
        for measure in source["measures"]
        for number, form in enumerate(rng.sample(MONITORS, 2))
        if source["ask"] == "close" or "sweep" not in form
    ]
    parts = {"sources": [{key: one for key, one in source.items() if one}]}
    text = json.dumps({"datasets": [{"names": names, "limit": 900}]} | parts)[1:-1]
    return load_spec(f"{{application: web, {text}, monitors: [{', '.join(monitors)}]}}")


def script_of(records: int, rng: random.Random) -> tuple[ScriptStep, ...]:
    script: list[ScriptStep] = []
    last, most = 0, rng.choice((12, 60))
    while last < records:
        last = min(records, last + rng.randrange(1, most))
        script += [StepTo(TOPIC, last), *rng.choice(((), ("commit",), ("crash", StepTo(TOPIC, last))))]
    return (*script, "commit")


class CountedAlerts:
    """A random history whose counts go through the engine, with some monitors of each measure.

    Attributes:
        history: It.
        plays: The counter on both of its streams.
        case: What the counters wrote, as a case for the neighbour test of the engine.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        datasets = {"pattern": "web-{name}", "field": "ward", "names": ["a", "b"]}
        wants = {"series": {"field": "page"}, "dataset": rng.choice(({"pattern": "web"}, datasets))}
        making = Making(seed, loss=rng.choice(LOSSES), others=(150, 300), wants=wants)
        self.history = making.history()
        self.plays = played(self.history)
        first, second = ({TOPIC: [Written(one) for one in play.counts]} for play in self.plays)
        spec = application_of(making, rng)
        script = script_of(len(first[TOPIC]), rng)
        directions = (Neighbours.UP,) * len(spec.datasets)
        self.case = Case(spec, script, (first, first), (second, second), directions)

    def problem(self, summary: Summary) -> str:
        """Return how the alerts differ once noise is moved, or what the case costs too much; "" if nothing is wrong."""
        return check_case(self.case, self.rng, summary, decoder_of(self.case.spec)) or ""

    def turned(self) -> CountedAlerts:
        """Exchange both streams: their counts differ in the other direction."""
        self.case = replace(self.case, first=self.case.second, second=self.case.first)
        return self


def decoder_of(spec: ApplicationSpec):
    index = DatasetIndex(
        (one.name for one in spec.datasets), partition=0, partitioning=Partitioning(1, "murmur2")
    )
    decoder = QueryDecoder(TOPIC, index, [one.name for one in spec.monitors], source=spec.sources[0])

    def decode(_: str, records: Sequence[Written], first: int) -> QueryBatch:
        batch = decoder.decode([Written(one.record, offset) for offset, one in enumerate(records, first)])
        assert batch.end == first + len(records)
        assert not batch.rejects
        # The test finds a query by its offset in the place of its id; the ids are compared as they are written.
        batch.query_id = TextList([f"q{offset}" for offset in batch.offset.tolist()])
        return batch

    return decode
