"""Events of a dataset stay in order, others do not wait, and nothing undelivered is ever passed over."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.forward.event import receive
from stream_svt.forward.keyed_queue import KeyedQueue, Progress
from tests.support.alerts import alert, encoded
from tests.support.forwarding import record


def event(offset: int, dataset: str = "shop", partition: int = 0):
    return receive(record(encoded(offset, alert(dataset=dataset)), offset=offset, partition=partition))


class Desk:
    """Delivers when told to."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.delivered: list[int] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.queue = KeyedQueue(self._deliver, lambda one: self.delivered.append(one.offset))

    async def _deliver(self, one) -> None:
        self.under_way.append(one.offset)
        try:
            await self.gates[one.offset].wait()
        finally:
            self.under_way.remove(one.offset)

    async def let(self, *offsets: int) -> None:
        for offset in offsets:
            self.gates[offset].set()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_events_of_one_dataset_wait_for_each_other_and_others_do_not():
    desk = Desk()
    for one in (event(0, "a"), event(1, "a"), event(2, "b"), event(3, "a"), event(0, "a", partition=1)):
        desk.queue.put(one)
    await desk.let()
    assert sorted(desk.under_way) == [0, 0, 2]
    await desk.let(2, 1, 3)
    assert desk.delivered == [2]
    await desk.let(0)
    assert sorted(desk.delivered) == [0, 0, 1, 2, 3]
    assert [offset for offset in desk.delivered if offset in {1, 3}] == [1, 3]
    assert desk.queue.oldest is None


async def test_what_delivery_raises_is_kept_and_what_waits_behind_it_stays():
    async def deliver(one) -> None:
        raise ValueError(one.offset)

    delivered: list = []
    queue = KeyedQueue(deliver, delivered.append)
    for offset in (0, 1):
        queue.put(event(offset))
        await asyncio.sleep(0.01)
        assert str(queue.error) == "0"
    assert delivered == []
    assert queue.oldest.offset == 0


async def test_draining_waits_for_what_ends_in_time_and_lets_go_of_the_rest():
    desk = Desk()
    for one in (event(0, "a"), event(1, "b"), event(2, "b")):
        desk.queue.put(one)
    await desk.let()
    draining = asyncio.create_task(desk.queue.drain(0.2))
    await desk.let(0)
    await draining
    assert (desk.delivered, desk.under_way, desk.queue.error) == ([0], [], None)
    desk.queue.put(event(1, "b"))
    await desk.let(1)
    assert desk.delivered == [0, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_what_may_be_committed_never_passes_an_event_that_is_not_delivered(steps, data):
    progress = Progress(10)
    waiting: set[int] = set()
    offset = 10
    for step in steps:
        offset += step
        progress.begin(offset)
        waiting.add(offset)
        while waiting and data.draw(st.booleans()):
            one = data.draw(st.sampled_from(sorted(waiting)))
            progress.done(one)
            waiting.remove(one)
        assert progress.next == min(waiting, default=offset + 1)
        assert progress.waiting == len(waiting)
        assert progress.span == offset + 1 - progress.next
    progress.reached(offset + 50)
    assert progress.next == min(waiting, default=offset + 50)
    with pytest.raises(KeyError):
        progress.done(offset + 1)  # never seen
