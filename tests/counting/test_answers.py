"""A source of answers on a real broker: a topic with any keys, partitions and timestamps, to private alerts."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from stream_svt.counting.pages import metrics_of
from stream_svt.counting.service import CounterService
from stream_svt.sources.events import Fate
from tests.support import records
from tests.support.counting import Counting
from tests.support.topics import create_topics
from tests.support.worker import until

pytestmark = pytest.mark.kafka

SOURCE = """\
  - name: hits
    topic: {raw}
    every: 1s
    settle: 200ms
    answers:
      {{value: payload.hits, id: payload.id, series: page, dataset: {{field: store}}, sensitivity: 1, bounds: [0, 1e6]}}
"""
STOCK = "  - {names: [north, south], limit: {epsilon: 100}, unit: one user}\n"
MONITOR = (
    "  - {name: busy, source: hits, datasets: [north, south], epsilon: 1, cutoff: 3, threshold: 500, "
    "expected_queries: 1000}\n"
)


async def begun(scene: Counting) -> CounterService:
    counter = await scene.count()
    await until(lambda: any(one.spec.name == "hits" for one in counter.loops))
    await until(lambda: all(one.counter and one.counter.state.looked_ms for one in counter.loops))
    return counter


async def test_answers_of_a_topic_with_any_keys_and_partitions_are_passed_on_once_and_become_alerts(counting):
    scene = await counting(stock=STOCK, more=MONITOR)
    raw, passed = f"{scene.application}.answers", f"{scene.application}.hits.counts"
    scene.source = SOURCE.format(raw=raw)
    takes_all = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    await create_topics(scene.servers, {raw: 3}, takes_all)
    await create_topics(scene.servers, {passed: scene.partitions})
    await scene.publish()
    worker, counter, sent = await scene.start(), await begun(scene), 0

    async def send(count: int, store: str = "north", **changes: object) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            payload = {"hits": number % 7 / 4, "id": f"q{number}"} | changes
            content = json.dumps({"payload": payload, "store": store, "page": f"p{number % 5}"}).encode()
            key, at = f"{number % 11}".encode(), [None, 5, 1 << 42][number % 3]
            await scene.producer.send(raw, content, key=key, partition=number % 3, timestamp_ms=at)
        sent += count
        await scene.producer.flush()

    async def rows(count: int) -> dict[str, list[dict]]:
        """Wait until so many answers are passed on; return them by dataset."""
        found: dict[str, list[dict]] = {}

        async def are_there() -> bool:
            found.clear()
            for record in await records.read(scene.servers, passed, range(scene.partitions)):
                table = pa.ipc.open_stream(record.value).read_all()
                found.setdefault(record.key.decode(), []).extend(table.to_pylist())
            return sum(map(len, found.values())) >= count

        await until(are_there)
        return found

    await send(200)
    await send(90, "south", hits=None)
    await rows(290)
    fates = next(one for one in counter.loops if one.spec.name == "hits").fates
    assert (fates[Fate.COUNTED], fates[Fate.NO_NUMBER]) == (200, 90)
    assert b'fate="no-number",source="hits"} 90' in metrics_of(counter).replace(b'", ', b'",')
    await send(100)
    await scene.end(counter)
    await send(10, "nowhere")
    await begun(scene)
    await send(1, "south", hits=10_000)
    found = await rows(401)
    assert {name: len(some) for name, some in found.items()} == {"north": 300, "south": 91, "nowhere": 10}
    ids = [row["id"] for some in found.values() for row in some]
    assert sorted(ids) == sorted(f"q{number}" for number in range(401))
    [alert, *_] = await scene.alerted()
    assert (alert.monitor, alert.dataset, alert.series, alert.query_id) == ("busy", "south", "p0", "q400")
    assert alert.position.offset == -1
    await scene.stop(worker)
