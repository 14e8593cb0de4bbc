"""A counter on a real broker: raw events in, exact counts and private alerts out."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.counting import service, source
from stream_svt.counting.event_log import HOMES, EventLog
from stream_svt.counting.pages import health_of, metrics_of
from stream_svt.counting.service import CounterService
from stream_svt.counting.source import SourceLoop
from stream_svt.kafka.clients import Fenced
from stream_svt.sources import ticks
from stream_svt.sources.events import Fate
from stream_svt.sources.log import Park
from stream_svt.sources.state import CounterState
from tests.support import records
from tests.support.avro import Registry, encode, record
from tests.support.counting import Counting, ms_of, text_of, window_of
from tests.support.topics import create_topics
from tests.support.worker import until

pytestmark = pytest.mark.kafka


def now_ms() -> int:
    return int(time.time() * 1000)


def loop_of(counter: CounterService) -> SourceLoop:
    [loop] = counter.loops
    return loop


def state_of(counter: CounterService) -> CounterState:
    return loop_of(counter).counter.state


def metric(counter: CounterService, name: str, **labels: str) -> float | None:
    """Return a metric of the source, None if it is not there."""
    for line in metrics_of(counter).decode().splitlines():
        if line.startswith(f"stream_svt_counter_{name}{{") and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            return float(line.rpartition(" ")[2])
    return None


async def counting_is(scene: Counting, *accepts: str) -> CounterService:
    """Start a counter, and wait until its source has begun."""
    counter = await scene.count(*accepts)
    await until(lambda: any(one.counter and one.counter.state.oldest is not None for one in counter.loops))
    return counter


# --- answers


async def test_raw_events_become_counts_and_counts_become_alerts(scene):
    await scene.publish()
    worker = await scene.start()
    counter = await counting_is(scene)
    await scene.visit(600)
    for _ in range(2):
        await scene.visit(50, "b")
    await scene.event("someone", "elsewhere")
    await scene.producer.send(scene.topic, b"no json")
    await scene.producer.flush()
    found = await scene.agrees()
    assert sum(one.value for one in found if (one.series, one.measure) == ("a", "users")) >= 600
    [alert, *_] = await scene.alerted()
    assert (alert.monitor, alert.dataset, alert.series) == ("many", "shop", "a")
    fates = loop_of(counter).fates
    assert {fate: count for fate, count in fates.items() if count} == {
        Fate.COUNTED: 700,
        Fate.OTHER_SERIES: 1,
        Fate.UNREADABLE: 1,
    }
    assert metric(counter, "events_total", fate="counted") == 700
    assert metric(counter, "measured_events_total", measure="users") == 700
    assert metric(counter, "events_total", fate="late") == metric(counter, "late_records_total") == 0
    assert metric(counter, "behind_seconds") < 5
    assert metric(counter, "parked") is None
    assert health_of(counter).text == "ready\n"
    await scene.stop(worker)


async def test_a_question_is_answered_also_by_the_counter_that_takes_over(scene):
    scene.more = (
        "  - {name: lasting, source: web, measure: users, epsilon: 1, cutoff: 1, threshold: 20, for: 3, "
        "expected_queries: 10000}\n"
    )
    await scene.publish()
    worker = await scene.start()
    first = await counting_is(scene)

    async def visits() -> None:
        while True:
            await scene.visit(150)
            await asyncio.sleep(0.2)

    visiting = asyncio.create_task(visits())

    async def asked(more: int) -> None:
        count = len(await scene.answers("lasting")) + more
        await until(lambda: _reaches(scene, count), 40)

    await asked(6)
    await scene.end(first)
    await counting_is(scene)
    await asked(12)
    [alert, *_] = await scene.alerted()
    visiting.cancel()
    assert alert.monitor == "lasting"
    users = {(one.window, one.series): one.value for one in await scene.answers() if one.measure == "users"}
    found = await scene.answers("lasting")
    windows = sorted({ms_of(window) for window, _ in users})
    assert {ms_of(one.window) for one in found} == {*windows[2 : 2 + len(found) // 3]}, "each window once"
    for one in found:
        last = [users[text_of(ms_of(one.window) - 1000 * number), one.series] for number in range(3)]
        assert one.value == min(last)
    await scene.stop(worker)


async def _reaches(scene: Counting, count: int) -> bool:
    return len(await scene.answers("lasting")) >= count


async def test_a_new_source_reads_the_window_that_is_open_and_asks_windows_without_events(scene):
    await scene.publish()
    sending = asyncio.create_task(steadily(scene))
    await counting_is(scene)
    sending.cancel()
    await asyncio.sleep(1)
    found = await scene.agrees()
    windows = sorted({ms_of(one.window) for one in found})
    assert windows == [*range(windows[0], windows[-1] + 1, 1000)]
    totals = {one.window: one.value for one in found if (one.measure, one.series) == ("users", "a")}
    assert min(totals.values()) == 0 < totals[text_of(windows[0])]


async def steadily(scene: Counting) -> None:
    for number in range(10_000):
        await scene.event(f"u{number}")
        await asyncio.sleep(0.02)


async def test_a_topic_with_producers_timestamps_is_counted_from_its_end_by_the_looks(counting):
    scene = await counting(raw={}, lateness=4, ahead="5s")
    await scene.publish()
    await scene.visit(7)
    counter = await counting_is(scene)
    await asyncio.sleep(1)
    sent = now_ms()
    for number in range(30):
        await scene.event(f"u{number}", at=sent)
        await scene.event(f"u{number}", at=sent - 60_000)
        await scene.event(f"u{number}", at=sent + 60_000)
    await scene.producer.flush()
    found = await scene.closed(window_of(sent))
    counts = {one.window: one.value for one in found if (one.measure, one.series) == ("users", "a")}
    assert {window: count for window, count in counts.items() if count} == {text_of(window_of(sent)): 30}
    fates = loop_of(counter).fates
    assert (fates[Fate.NOT_ASKED] + fates[Fate.LATE], fates[Fate.EARLY]) == (30, 30)


async def test_avro_events_wait_for_their_schema(counting):
    async with Registry({1: record("visit", user="string", page="string")}, {1: 500}).started() as registry:
        more = f"schema_registry: {{url: {registry.url}}}\n"
        scene = await counting(source="    format: avro\n", more=more)
        await scene.publish()
        counter = await counting_is(scene)
        for number in range(9):
            value = encode(registry.schemas[1], {"user": f"u{number}", "page": "a"})
            await scene.producer.send(scene.topic, value, partition=0)
        await scene.producer.flush()
        await until(lambda: "schema 1" in loop_of(counter).waits)
        asked = await scene.answers()
        await asyncio.sleep(1.5)
        assert await scene.answers() == asked
        registry.answers.clear()
        found = await scene.closed(window_of(now_ms()))
        assert sum(one.value for one in found if one.measure == "users") == 9


async def test_a_list_that_is_applied_holds_for_the_windows_that_open_later(scene, monkeypatch):
    monkeypatch.setattr(ticks, "OPENING_MS", 500)
    await scene.publish()
    await counting_is(scene)
    await scene.visit(3, "d")
    before = await scene.closed(window_of(now_ms()))
    await scene.publish(pages="a, d")
    applied = now_ms()
    await asyncio.sleep(1.6)
    await scene.visit(4, "d")
    found = await scene.closed(window_of(now_ms()))
    lists = {ms_of(one.window): {each.series for each in found if each.window == one.window} for one in found}
    assert {*map(frozenset, lists.values())} == {frozenset("abc"), frozenset("ad")}
    assert all(names == {*"abc"} for window, names in lists.items() if window < applied - 1000)
    assert all(names == {*"ad"} for window, names in lists.items() if window > applied + 1000)
    assert sum(one.value for one in found if (one.measure, one.series) == ("users", "d")) == 4
    assert found[: len(before)] == before


# --- transactions


async def test_an_open_transaction_holds_its_tick_up_and_then_counts_by_its_append_time(scene, monkeypatch):
    monkeypatch.setattr(source, "HELD_UP_SHOWN", 0.5)
    await scene.publish()
    counter = await counting_is(scene)
    await records.publish(scene.servers, scene.topic, (0, None, event("aborted")), commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=scene.servers, transactional_id=scene.topic)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(scene.topic, event("slow"), partition=1)
    await scene.visit(9)
    await until(lambda: metric(counter, "open_transaction_seconds", partition="1"))
    waiting = state_of(counter).next_tick
    await asyncio.sleep(2)
    assert state_of(counter).next_tick == waiting
    assert state_of(counter).looked_ms > waiting + 1000
    await producer.commit_transaction()
    await producer.stop()
    found = await scene.agrees()
    assert sum(one.value for one in found if one.measure == "users") == 10
    assert metric(counter, "open_transaction_seconds") is None


def event(user: str, page: str = "a") -> bytes:
    return json.dumps({"user": user, "page": page}).encode()


# --- owners


async def test_a_fenced_counter_goes_on_while_it_is_a_member(scene):
    await scene.publish()
    await counting_is(scene)
    for _ in range(2):
        await scene.visit(40)
        while not await _fences(scene):  # the counter may be starting its own producer
            pass
        await scene.visit(40, "b")
        await asyncio.sleep(1)
    await scene.agrees()


async def _fences(scene: Counting) -> bool:
    """Start another producer of the source's partition of the log; return whether it was not fenced meanwhile."""
    config = scene.config()
    other = EventLog(config.cluster(), scene.application, HOMES.of(b"web"), config.partitioning)
    try:
        await other.fence()
    except Fenced:
        return False
    finally:
        await other.close()
    return True


async def test_of_two_counters_the_other_goes_on_where_one_ends_and_old_entries_are_gone(scene, monkeypatch):
    monkeypatch.setattr(service, "DELETED_EVERY", 0.5)
    await scene.publish()
    first = await counting_is(scene)
    second = await scene.count()
    await until(lambda: len(first.owners) == len(second.owners) == 4)
    await scene.visit(30)
    await scene.agrees()
    owner, other = (first, second) if first.loops else (second, first)
    await scene.visit(30, "b")
    await scene.end(owner)
    await until(lambda: len(other.owners) == 8 and other.loops)
    await scene.visit(30, "c")
    await scene.agrees()
    log = await records.read(scene.servers, f"{scene.application}.sources", [HOMES.of(b"web")])
    assert log[0].offset > 0


async def test_a_source_that_fails_does_not_stop_another(scene, monkeypatch):
    other = (
        "  - {name: other, topic: APP.raw, unit: user, window: 1s, every: 1s, lateness: 1s, settle: 0, "
        "dataset: depot}\n"
    )
    scene.source = other.replace("APP", scene.application)
    scene.more = (
        "  - {name: few, source: other, epsilon: 1, cutoff: 1, threshold: 100, expected_queries: 10}\n"
    )
    scene.stock = "  - {names: [depot], limit: {epsilon: 1}}\n"
    await create_topics(scene.servers, {f"{scene.application}.other.counts": scene.partitions})
    await scene.publish()
    await scene.delete("other.counts")
    monkeypatch.setattr(service, "require", nothing)  # the topic of counts of the other one is missing
    counter = await scene.count(ready=False)
    await until(lambda: any("does not exist" in one.waits for one in counter.loops), 60)
    await scene.visit(20)
    await scene.agrees()


async def nothing(*_: object, **__: object) -> None:
    pass


# --- losses and clocks


async def test_lost_records_park_a_source_until_an_operator_accepts_the_loss(scene):
    await scene.publish()
    counter = await counting_is(scene)
    await scene.visit(20)
    before = await scene.agrees()
    await scene.end(counter)
    await scene.visit(90)
    for place in range(scene.places):
        await scene.delete_before("raw", -1, place)
    parked = await scene.count()
    await until(lambda: parked.loops and metric(parked, "parked", reason=Park.RECORDS_LOST))
    assert parked.lacks == []
    assert health_of(parked).text == f"ready\nsource web: {Park.RECORDS_LOST.text}\n"
    await scene.end(parked)
    known = await scene.answers()
    parked = await counting_is(scene)
    await asyncio.sleep(1)
    assert metric(parked, "parked", reason=Park.RECORDS_LOST)
    assert await scene.answers() == known
    await scene.end(parked)
    accepted = now_ms()
    going = await counting_is(scene, "web")
    await until(lambda: metric(going, "parked") is None and (state_of(going).asked or 0) > accepted)
    await scene.visit(30)
    found = await scene.closed(window_of(now_ms()))
    assert found[: len(known)] == known
    asked = [ms_of(one.window) for one in found[len(known) :]]
    assert min(asked) >= accepted
    assert sum(one.value for one in found[len(known) :] if one.measure == "users") == 30
    assert before == known[: len(before)]


async def test_looks_follow_the_brokers_clock_where_it_is_a_little_behind(scene, monkeypatch):
    probe = EventLog.brokers_time
    monkeypatch.setattr(EventLog, "brokers_time", lambda log: shifted(probe(log), -3000))
    await scene.publish()
    counter = await counting_is(scene)
    await scene.visit(20)
    ending = time.monotonic() + 4
    while time.monotonic() < ending:
        await asyncio.sleep(0.01)
        looked = state_of(counter).looked_ms
        assert looked <= now_ms() - 3200 or looked % 1000  # of its begin
    assert looked > now_ms() - 5500
    await scene.agrees()


@pytest.mark.parametrize("apart", [-70_000, 400_000_000_000])
async def test_no_look_is_taken_while_clocks_are_apart(scene, monkeypatch, apart):
    await scene.publish()
    counter = await counting_is(scene)
    await scene.visit(20)
    asked = await scene.agrees()
    probe, monkeyed = EventLog.brokers_time, monkeypatch.context()
    with monkeyed as patch:
        patch.setattr(EventLog, "brokers_time", lambda log: shifted(probe(log), apart))
        await until(lambda: "clock" in loop_of(counter).waits)
        looked = state_of(counter).looked_ms
        await asyncio.sleep(1.5)
        assert state_of(counter).looked_ms == looked
        assert abs(metric(counter, "clocks_apart_seconds") - apart / 1000) < 5
    await scene.visit(20, "b")
    found = await scene.agrees()
    assert found[: len(asked)] == asked
    assert loop_of(counter).waits == ""


async def shifted(probe, apart: int) -> int:
    return await probe + apart


async def test_a_compacted_topic_is_not_counted(counting, monkeypatch):
    scene = await counting(raw={"cleanup.policy": "compact"})
    await scene.publish()
    monkeypatch.setattr(service, "require", nothing)  # which would end it
    counter = await scene.count(ready=False)
    await until(lambda: counter.loops and "compacted" in loop_of(counter).waits)
    assert await scene.answers() == []


async def compact(scene: Counting) -> None:
    await scene.configure("raw", {"cleanup.policy": "compact"})


async def create_again(scene: Counting) -> None:
    await scene.delete("raw")
    await scene.create("raw")


@pytest.mark.parametrize(
    ("change", "reason"), [(compact, Park.COMPACTED), (create_again, Park.TOPIC_CREATED_AGAIN)]
)
async def test_a_topic_that_is_compacted_or_created_again_parks_its_source(
    scene, monkeypatch, change, reason
):
    monkeypatch.setattr(source, "SETTINGS_EVERY", 0.3)
    await scene.publish()
    counter = await counting_is(scene)
    await change(scene)
    await until(lambda: metric(counter, "parked", reason=reason))
