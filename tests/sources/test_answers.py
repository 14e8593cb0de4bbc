"""Answers that a source passes on as they are: each once, in their order, and the same records whatever the values."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources import answers, counts
from stream_svt.sources.answers import AnswersCounter
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.events import Fate
from stream_svt.sources.log import Look, Park, decode
from stream_svt.sources.sampling import remedies, sampled
from tests.support.avro import AtHand
from tests.support.avro import encode as avro
from tests.support.avro import record as avro_record
from tests.support.counter_play import Log, query_of

TICK = 10_000
BEGIN = 1_790_000_000_000
PLACES = {"value": "v.n", "series": "page", "dataset": {"field": "shop"}}
DECLARED = {"sensitivity": 1, "bounds": [-10, 1000]}
ALL = 1 << 60
LIMIT = Decimal(2**62)


def source(**changes: Any) -> SourceSpec:
    keys = {"answers": PLACES | DECLARED | changes.pop("answers", {}), "settle": "1s"} | changes
    return SourceSpec.model_validate({"name": "hits", "topic": "raw", **keys})


@dataclass
class Topic:
    """Records of each partition, with the moments at which they are there; None stands for a transaction's marker."""

    held: Mapping[int, Sequence[tuple[int, OneRecord | None]]]
    begin: int = 0

    def spans(self, now_ms: int) -> dict[int, tuple[int, int]]:
        return {n: (self.begin, sum(at <= now_ms for at, _ in held)) for n, held in self.held.items()}

    def fetch(self, partition: int, at: int, end: int, most: int) -> tuple[Records, int]:
        until = min(end, at + most, len(self.held[partition]))
        return Records.of(one for _, one in self.held[partition][at:until] if one is not None), until


class Play:
    """The counter on a modelled log, with stops, lost transactions, and as much work at a poll as chance allows."""

    def __init__(self, topic: Topic, polls: Sequence[int], seed: object, **options: Any):
        self.topic, self.rng, self.options = topic, random.Random(seed), options
        self.log = Log()
        self.looks: list[Look] = []
        self.counter: AnswersCounter | None = None
        for number, now_ms in enumerate(polls):
            self.poll(now_ms, ALL if number in (0, len(polls) - 1) else self.rng.choice((0, 2, 20, ALL)))

    @property
    def passed(self) -> list[CountsRecord]:
        return self.log.counts

    def owner(self) -> AnswersCounter:
        if self.counter is None:
            self.counter = AnswersCounter(source(), **self.options)
            for offset, entry in self.log.entries:
                self.counter.replay(offset, decode(entry))
        return self.counter

    def poll(self, now_ms: int, most: int) -> None:
        counter, spans = self.owner(), self.topic.spans(now_ms)
        if not counter.has_begun:
            counter.begin(spans, now_ms, by_broker=True, topic_id="t")
        self.write()
        if (moment := counter.look_due(now_ms)) is not None:
            counter.look(moment, spans, "t", by_broker=True)
        self.write()
        while most > 0 and self.work():
            most -= 1

    def write(self) -> None:
        """Write what the clock decided."""
        while self.owner()._queued:
            self.step(chance=1)

    def work(self) -> bool:
        """Read and write something; return whether that led further, or the process has stopped."""
        counter = self.owner()
        before = ranges, _ = counter.ranges(), len(self.log.entries)
        for partition in self.rng.sample(sorted(ranges), len(ranges)):
            at, end = ranges[partition]
            most = self.rng.choice((1, 5, 99))
            counter.fold(partition, *self.topic.fetch(partition, at, self.rng.choice((end, ALL)), most))
        if self.rng.random() < 0.7 or counter.ranges() == ranges:
            self.step(self.rng.random())
        return self.counter is None or (counter.ranges(), len(self.log.entries)) != before

    def step(self, chance: float) -> None:
        """Take a step; its transaction may be lost, or its answer, or the process stops after it."""
        if (step := self.owner().step()) is None:
            return
        if chance > 0.05:
            offsets = self.log.write(step, self.rng)
            self.looks += [one for one in step.entries if isinstance(one, Look)]
            if chance > 0.1:
                self.owner().stepped(offsets)
                self.log.trim(self.owner().needed_offset or 0)
        if chance < 0.15:
            self.counter = None


def random_topic(seed: object, tokens: Callable[[random.Random], str]) -> Topic:
    """Return a topic whose records are those of a seed, but for the tokens of their values."""
    rng, values = random.Random(seed), random.Random(f"values {seed}")

    def record(offset: int) -> OneRecord | None:
        fields, token = {"shop": rng.choice("abcd"), "page": rng.choice(("p", "p2", None, 7))}, tokens(values)
        text = f'{{"v": {{"n": {token}}}, {json.dumps(fields)[1:]}'.encode()
        content = rng.choice([text] * 12 + [None, b"[]", b'{"v": {"n": 3}}', b'{"shop": "a", "page": 1.5}'])
        return OneRecord(offset, rng.randrange(-5, 1 << 50), None, content) if rng.random() < 0.9 else None

    counts = [rng.choice((0, 40, 200)) for _ in range(rng.randrange(1, 4))]
    times = [sorted(BEGIN + rng.randrange(-TICK, 30 * TICK) for _ in range(count)) for count in counts]
    return Topic(
        {n: [(at, record(offset)) for offset, at in enumerate(some)] for n, some in enumerate(times)}
    )


def numbers(rng: random.Random) -> str:
    return rng.choice(
        ("0", "-3", "12.000000000000000001", "7e2", "99999999999999999999", str(rng.randrange(500)))
    )


def odd(rng: random.Random) -> str:
    return rng.choice(("null", '"text"', "true", "[1, 2]", "1" * rng.randrange(1, 60), "1,5", numbers(rng)))


Row = tuple[str, str, str, str | None, Decimal]
"""Dataset, tick, id, series and value."""


def rows_of(records: Sequence[CountsRecord]) -> list[Row]:
    found = []
    for record in records:
        table = pa.ipc.open_stream(record.content).read_all().to_pylist()
        found += [
            (record.dataset, str(record.timestamp_ms), row["id"], row.get("series"), row["value"])
            for row in table
        ]
    return found


def reference(topic: Topic, looks: Sequence[Look], begin: Mapping[int, int]) -> list[Row]:
    """Return what must be passed on, from the records alone, one after the other."""
    found, at = [], {n: begin.get(n, 0) for n in topic.held}
    for look in looks:
        for partition, end in sorted(look.ends.items()):
            for offset in range(at[partition], end):
                one = topic.held[partition][offset][1]
                if (
                    one is None
                    or one.value is None
                    or (event := json.loads(one.value, parse_float=Decimal)) == []
                ):
                    continue
                shop, page, value = event.get("shop"), event.get("page"), event.get("v", {}).get("n")
                if shop is None or isinstance(page, Decimal):
                    continue
                is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
                exact = max(min(Decimal(value), LIMIT), -LIMIT) if is_number else -LIMIT
                series = None if page is None else str(page)
                found.append((shop, str(look.moment_ms), f"{partition}/{offset}", series, exact))
            at[partition] = end
    return found


def by_dataset(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row[0] == name] for name in dict.fromkeys(row[0] for row in rows)}


def polls(seed: object) -> list[int]:
    rng, found = random.Random(f"polls {seed}"), [BEGIN]
    while found[-1] < BEGIN + 32 * TICK:
        found.append(found[-1] + rng.choice((900, 3_000, 9_000, 45_000)))
    return [*found, found[-1] + 2 * TICK]


@pytest.mark.parametrize("seed", range(40))
def test_each_answer_is_passed_on_once_in_the_order_of_look_partition_and_offset(seed, monkeypatch):
    monkeypatch.setattr(answers, "MAX_ROWS", 10)
    topic = random_topic(seed, numbers)
    play = Play(topic, polls(seed), seed)
    begin = {n: end for n, (_, end) in topic.spans(BEGIN).items()}
    assert [look.moment_ms % TICK for look in play.looks] == [0] * len(play.looks)
    assert by_dataset(rows_of(play.passed)) == by_dataset(reference(topic, play.looks, begin))


@pytest.mark.parametrize("seed", range(40))
def test_of_streams_that_differ_in_values_all_but_values_is_equal(seed, monkeypatch):
    monkeypatch.setattr(answers, "MAX_ROWS", 10)
    first = Play(random_topic(seed, numbers), polls(seed), f"{seed} first")
    second = Play(random_topic(seed, odd), polls(seed), f"{seed} second", declares=lambda _: False)
    assert [query_of(one).public for one in first.passed] == [query_of(one).public for one in second.passed]
    assert first.looks == second.looks


def passed(
    spec: SourceSpec, *contents: bytes | None, key: bytes | None = None, **options: Any
) -> tuple[AnswersCounter, list[CountsRecord]]:
    """Return a counter that has read these records, with what it passes on."""
    records, counter = (
        [OneRecord(n, 0, key, one) for n, one in enumerate(contents)],
        AnswersCounter(spec, **options),
    )

    def write(offset: int) -> list[CountsRecord]:
        step = counter.step()
        counts = [*step.counts]
        counter.stepped([offset + n for n in range(len(step.entries))])
        return counts

    counter.begin({5: (0, 0)}, BEGIN, by_broker=False, topic_id="t")
    write(1)
    counter.look(BEGIN + TICK, {5: (0, len(records))}, "t", by_broker=False)
    write(2)
    counter.fold(5, Records.of(records), len(records))
    return counter, write(3)


def test_values_of_any_kind_are_exact_and_what_is_no_number_is_the_lower_bound():
    tokens = [
        "1",
        "-0.5",
        "1e-18",
        "12345678901234567890",
        "3.0000000000000000019",
        "null",
        '"7"',
        "{}",
        "1,000",
    ]
    counter, found = passed(source(), *(b'{"v": {"n": %s}, "shop": "a"}' % one.encode() for one in tokens))
    exact = [row[4] for row in rows_of(found)]
    assert exact[:3] == [1, Decimal("-0.5"), Decimal("1e-18")]
    assert exact[3:] == [2**62, Decimal("3.000000000000000001"), *[-(2**62)] * 4]
    assert (counter.fates[Fate.COUNTED], counter.fates[Fate.NO_NUMBER]) == (5, 4)


def test_a_worker_reads_what_is_passed_on():
    spec = source(answers={"id": "id"})
    texts = [b'{"id": "q%d", "shop": "a", "v": {"n": %d.25}, "page": "p"}' % (n, n) for n in range(3)]
    index = DatasetIndex(["a"], partition=0, partitioning=Partitioning(1, "murmur2"))
    _, [record] = passed(spec, *texts)
    one = OneRecord(9, record.timestamp_ms, record.dataset.encode(), record.content, record.headers)
    batch = QueryDecoder(spec.counts_topic("shop"), index, ["m"], source=spec).decode([one])
    assert batch.rejects == []
    assert [*batch.query_id] == ["q0", "q1", "q2"]
    assert [*batch.series] == ["p"] * 3
    assert (batch.whole.tolist(), batch.fraction.tolist()) == ([0, 1, 2], [25 * 10**16] * 3)
    assert (batch.measure_at(0), {*batch.timestamp_ms.tolist()}) == (None, {BEGIN + TICK})
    other = source(answers={"id": "id", "value": "v.m"})
    assert QueryDecoder("t", index, ["m"], source=other).decode([one]).rejects == [(9, "not-counts")]


def test_what_is_no_answer_is_dropped_with_a_fate_and_others_stay():
    spec = source(answers={"id": "id"})
    good = b'{"id":1,"shop":"a","v":{"n":1}}'
    contents = [None, *b'{ [] {"shop":"a"} {"id":"","shop":"a"} {"id":1} {"id":1,"shop":[]}'.split(), good]
    contents.append(good.replace(b'"a"', b'"b"'))
    counter, found = passed(spec, *contents, declares={"a"}.__contains__)
    wanted = {Fate.EMPTY: 1, Fate.UNREADABLE: 2, Fate.COUNTED: 1, Fate.BAD_TEXT: 2, Fate.OTHER_DATASET: 3}
    assert {fate: count for fate, count in counter.fates.items() if count} == wanted
    # Whether a dataset is declared when it is read must not decide: workers refuse the others.
    assert [row[0] for row in rows_of(found)] == ["a", "b"]
    records = Records.of(OneRecord(n, 0, None, one) for n, one in enumerate(contents))
    assert sampled(spec, records, BEGIN).fates[Fate.COUNTED] == 2
    hint, *_ = remedies(source(answers={"value": "v.m"}), records[7:], BEGIN)
    assert "'v.m'; did you mean 'v.n'?" in hint


@pytest.mark.parametrize(
    ("key", "dataset"), [(b"north", "north"), (None, None), (b"\xff", None), (b"x" * 257, None), (b"", None)]
)
def test_the_record_s_key_may_be_the_dataset(key, dataset):
    _, found = passed(source(answers={"dataset": {"field": "key"}}), b'{"v": {"n": 1}}', key=key)
    assert [row[0] for row in rows_of(found)] == [dataset] * (dataset is not None)


def test_a_constant_dataset_is_that_of_the_tick_s_period():
    spec = source(answers={"dataset": "web-{date}"}, every="1d")
    _, found = passed(spec, b'{"v": {"n": 1}}')
    assert {row[0] for row in rows_of(found)} == {"web-2026-09-21"}


def test_long_texts_are_cut_into_records_that_brokers_take(monkeypatch):
    texts = [b'{"shop": "a", "page": "%s"}' % ("\u00e9" * 250 + f"{n}").encode() for n in range(5)]
    monkeypatch.setattr(counts, "MAX_BYTES", counts._OTHER_BYTES + 1100)
    _, found = passed(source(), *texts)
    assert [len(rows_of([one])) for one in found] == [2, 2, 1]


def test_avro_answers_wait_for_their_schema_and_have_its_numbers():
    spec, registry = source(format="avro", answers={"value": "n"}), AtHand({})
    schema = avro_record("hit", n="double", shop="string", page="string")
    record = Records.of([OneRecord(0, 0, None, avro(schema, {"n": 0.125, "shop": "a", "page": "p"}))])
    counter = AnswersCounter(spec, registry)

    def read() -> list[Any]:
        return [*counter._reader.read(0, record, TICK)]

    assert counter.lack(record) == (0, "schema 1 is missing")
    registry.schemas = {1: ""}  # the registry has none
    assert counter.lack(record) == (1, "")
    assert read() == [(Fate.UNUSABLE_SCHEMA, None)]
    registry.schemas = {1: json.dumps(schema)}
    assert read() == [(Fate.UNUSABLE_SCHEMA, None)]
    counter._reader.forget_absences()  # at the next look
    assert counter.lack(record) == (1, "")
    assert read() == [(Fate.COUNTED, ("a", ("0/0", "p", 125 * 10**15)))]


def test_a_loss_parks_the_source_which_goes_on_at_the_ends_once_it_is_accepted():
    topic = random_topic(3, numbers)
    play = Play(topic, [BEGIN, BEGIN + 3 * TICK], 0)
    before = rows_of(play.passed)
    topic.begin = max(end for _, end in topic.spans(BEGIN + 6 * TICK).values())
    play.poll(BEGIN + 9 * TICK, 1 << 30)
    assert play.owner().parked is Park.RECORDS_LOST
    accepted = BEGIN + 12 * TICK
    play.owner().accept_loss(accepted, topic.spans(accepted), "t")
    looks = len(play.looks)
    for now_ms in range(accepted, BEGIN + 40 * TICK, TICK):
        play.poll(now_ms, 1 << 30)
    assert play.owner().parked is None
    ends = {n: end for n, (_, end) in topic.spans(accepted).items()}
    expected = reference(topic, play.looks[looks:], ends)
    assert by_dataset(rows_of(play.passed)[len(before) :]) == by_dataset(expected)
    assert expected
