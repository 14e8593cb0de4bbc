"""The neighbour test of counters: streams with and without one unit give records of counts that differ by 0 to k.

Pairs of raw streams that differ by the records of one unit go through the real counter on a modelled log: with stops,
takeovers, outages, changed lists, added partitions and losses. On brokers' timestamps the two have different processes,
on producers' the same moments of looks. What the counter writes must have the same keys, ids, headers, timestamps and
lengths, and without a loss it must be what a slow count of the records says. Then both go through the engine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

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
from tests.support.counter_mutants import MUTANTS, Mutant
from tests.support.counter_play import played, problem_of, query_of
from tests.support.raw_streams import Making, history_of

pytestmark = pytest.mark.slow

TOPIC = "web.s.counts"
PAIRS = 200
MOST_PAIRS = 60
"""Pairs in which a mistake must show itself."""


@pytest.mark.parametrize("first", range(0, PAIRS, 20))
def test_one_unit_moves_counts_by_0_to_k_and_nothing_else(first):
    for seed in range(first, first + 20):
        assert not problem_of(history_of(seed)), f"seed {seed}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_counter_with_one_mistake_is_caught(mutant: Mutant):
    for seed in range(MOST_PAIRS):
        history = Making(seed, **{"longer_ms": 0} | mutant.histories).history()
        with mutant.made():
            found = problem_of(history)
        if found and (mutant.is_inexact or found.startswith("neighbours")):
            return
    pytest.fail(f"not caught in {MOST_PAIRS} pairs")


# Through the engine


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
    last = 0
    while last < records:
        last = min(records, last + rng.randrange(1, 12))
        script += [StepTo(TOPIC, last), *rng.choice(((), ("commit",), ("crash", StepTo(TOPIC, last))))]
    return (*script, "commit")


def case_of(seed: int) -> tuple[Case, random.Random]:
    """Return what the counter makes of two raw streams, as a case for the neighbour test of the engine."""
    rng = random.Random(seed)
    datasets = {"pattern": "web-{name}", "field": "ward", "names": ["a", "b"]}
    wants = {"series": {"field": "page"}, "dataset": rng.choice(({"pattern": "web"}, datasets))}
    making = Making(seed, others=(150, 300), wants=wants)
    history = making.history()
    streams = [{TOPIC: [Written(one) for one in play.counts]} for play in played(history)]
    spec = application_of(making, rng)
    script = script_of(len(streams[0][TOPIC]), rng)
    first, second = ((one, one) for one in streams)
    return Case(spec, script, first, second, (Neighbours.UP,) * len(spec.datasets)), rng


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


def test_alerts_about_raw_events_are_the_same_with_and_without_a_unit_once_noise_is_moved():
    summary = Summary()
    for seed in range(25):
        case, rng = case_of(seed)
        assert check_case(case, rng, summary, decoder_of(case.spec)) is None, f"seed {seed}"
    assert summary.alerts > 50
    assert summary.largest_cost > 0.1
    assert summary.unaligned < 10


def test_the_engine_would_show_counts_that_move_in_the_other_direction():
    for seed in range(40):
        case, rng = case_of(seed)
        values = [
            [query_of(one.record).values for one in side[0][TOPIC]] for side in (case.first, case.second)
        ]
        turned = Case(case.spec, case.script, case.second, case.first, case.directions)
        if values[0] != values[1] and check_case(turned, rng, Summary(), decoder_of(case.spec)) is not None:
            return
    pytest.fail("nothing was shown")
