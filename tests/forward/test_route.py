"""Events of a dataset stay in order, others do not wait, nothing undelivered is passed over; gauges show it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.forward.delivery import Progress, Route
from stream_svt.forward.event import receive
from stream_svt.forward.metrics import ForwardMetrics
from tests.support.alerts import alert, encoded
from tests.support.forwarding import configured, received, scraped

PLACE = TopicPartition("retail-watch.alerts", 0)


class Desk:
    """A route whose events are delivered when the test says so; offset 7 never is."""

    def __init__(self, directory) -> None:
        self.under_way: list[int] = []
        self.delivered: list[int] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.progress: dict[int, Progress] = defaultdict(lambda: Progress(0))
        config = configured(directory, "[{name: pager, webhook: {url: 'http://127.0.0.1:1/'}}]")
        self.route = Route(config, SimpleNamespace(destination=config.destinations[0], deliver=self.deliver))

    def put(self, offset: int, dataset: str, partition: int = 0) -> None:
        body = encoded(offset, alert(dataset=dataset))
        self.route.put(receive(body, b"shop", partition, offset), self.progress[partition])

    async def deliver(self, one) -> None:
        self.under_way.append(one.offset)
        try:
            await self.gates[one.offset].wait()
        finally:
            self.under_way.remove(one.offset)
        if one.offset == 7:
            raise ValueError(7)
        self.delivered.append(one.offset)

    async def let(self, *offsets: int) -> None:
        for offset in offsets:
            self.gates[offset].set()
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def route(desk) -> Route:
    return desk.route


async def test_events_of_one_dataset_wait_for_each_other_and_others_do_not(desk):
    for one in ((0, "a"), (1, "a"), (2, "b"), (3, "a"), (0, "a", 1)):
        desk.put(*one)
    await desk.let()
    assert sorted(desk.under_way) == [0, 0, 2]
    await desk.let(2, 1, 3)
    assert desk.delivered == [2]
    assert desk.progress[0].next == 0
    await desk.let(0)
    assert sorted(desk.delivered) == [0, 0, 1, 2, 3]
    assert [offset for offset in desk.delivered if offset in {1, 3}] == [1, 3]
    assert desk.progress[0].next == 4


async def test_what_delivery_raises_is_kept_and_what_waits_behind_it_stays(desk):
    desk.put(7, "a")
    desk.put(8, "a")
    await desk.let(8, 7)
    desk.put(9, "b")
    await desk.let(9)
    assert (str(desk.route._failure), desk.delivered, desk.progress[0].next) == ("7", [], 7)


async def test_draining_waits_for_what_ends_in_time_and_lets_go_of_the_rest(desk):
    for one in ((0, "a"), (1, "b"), (2, "b")):
        desk.put(*one)
    await desk.let()
    draining = asyncio.create_task(desk.route.drain(0.2))
    await desk.let(0)
    await draining
    assert (desk.delivered, desk.under_way, desk.route._failure) == ([0], [], None)
    assert desk.progress[0].next == 1
    desk.put(1, "b")
    await desk.let(1)
    assert desk.delivered == [0, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_what_may_be_committed_never_passes_an_event_that_is_not_delivered(steps, data):
    progress, offset = Progress(10), 10
    for step in steps:
        offset += step
        progress.waiting[offset] = datetime.now(UTC)
        progress.advance(offset + 1)
        while progress.waiting and data.draw(st.booleans()):
            del progress.waiting[data.draw(st.sampled_from(sorted(progress.waiting)))]
        assert progress.next == min(progress.waiting, default=offset + 1)
    progress.advance(offset + 50)
    assert progress.next == min(progress.waiting, default=offset + 50)


# What is read, and what the gauges show


def consumer(records=(), polled=lambda place: 0, places=frozenset({PLACE}), **more) -> SimpleNamespace:
    async def getmany(**options):
        return {PLACE: list(records)}

    async def position(place) -> int:
        return 5

    return SimpleNamespace(
        getmany=getmany,
        position=position,
        assignment=lambda: set(places),
        last_poll_timestamp=polled,
        last_stable_offset=lambda place: 8,
    )


@pytest.mark.parametrize("joined", [True, False])
async def test_what_is_read_while_partitions_are_given_away_is_left_to_whoever_gets_them(route, joined):
    """Negative control: a member takes it."""
    route._consumer = consumer([SimpleNamespace(value=encoded(1, alert()), key=b"shop", offset=4)])
    route.joined = joined
    await route._read()
    assert [list(progress.waiting) for progress in route._progress.values()] == [[4]] * joined
    await route.drain(0)


async def test_gauges_show_what_waits_and_the_lag_of_one_s_own_partitions(route):
    made = ForwardMetrics("retail.alerts", ["pager"])
    route._consumer, route.joined = consumer(), True
    route._progress[PLACE] = Progress(1)
    route.put(received(), route._progress[PLACE])
    found = scraped(made, route.gauges())
    assert found["stream_svt_forward_oldest_waiting_seconds", "pager"] > 3600
    for name, value in {"waiting_events": 1, "partitions": 1, "stopped": 0}.items():
        assert found[f"stream_svt_forward_{name}", "pager"] == value
    assert found["stream_svt_forward_lag_records", "pager", "0"] == 7
    route.joined = False
    assert ("stream_svt_forward_lag_records", "pager", "0") not in scraped(made, route.gauges())
    await route.drain(0)


async def test_the_partition_that_waits_longest_tells_when_the_brokers_last_answered(route):
    def noted(answered: dict[str, int | None]) -> float:
        route._consumer = consumer(polled=answered.get, places=answered)
        route._note_poll()
        return route._polled

    assert noted({}) == 0  # in no group
    assert noted({"p": None, "q": 5_000}) == 0
    assert noted({"p": 7_000, "q": 5_000}) == 5
    # A partition that was just given to it does not turn the time back.
    assert noted({"p": None, "q": 9_000}) == 5
    route.joined = True
    assert noted({}) >= time.time() - 5  # a member without partitions is fine
