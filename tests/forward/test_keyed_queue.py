"""Events of a dataset stay in order, others do not wait, and nothing undelivered is ever passed over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stream_svt.forward.event import receive
from stream_svt.forward.route import KeyedQueue, Progress
from tests.support.alerts import alert, encoded


class Desk:
    """Delivers when told to."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.delivered: list[int] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.progress: dict[int, Progress] = defaultdict(lambda: Progress(0))
        self.queue = KeyedQueue(self._deliver)

    def put(self, offset: int, dataset: str, partition: int = 0) -> None:
        body = encoded(offset, alert(dataset=dataset))
        self.queue.put(receive(body, b"shop", partition, offset), self.progress[partition])

    async def _deliver(self, one) -> None:
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


async def test_events_of_one_dataset_wait_for_each_other_and_others_do_not():
    desk = Desk()
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


async def test_what_delivery_raises_is_kept_and_what_waits_behind_it_stays():
    desk = Desk()
    desk.put(7, "a")
    desk.put(8, "a")
    await desk.let(8, 7)
    desk.put(9, "b")
    await desk.let(9)
    assert (str(desk.queue.error), desk.delivered, desk.progress[0].next) == ("7", [], 7)


async def test_draining_waits_for_what_ends_in_time_and_lets_go_of_the_rest():
    desk = Desk()
    for one in ((0, "a"), (1, "b"), (2, "b")):
        desk.put(*one)
    await desk.let()
    draining = asyncio.create_task(desk.queue.drain(0.2))
    await desk.let(0)
    await draining
    assert (desk.delivered, desk.under_way, desk.queue.error) == ([0], [], None)
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
        progress.reached(offset + 1)
        while progress.waiting and data.draw(st.booleans()):
            del progress.waiting[data.draw(st.sampled_from(sorted(progress.waiting)))]
        assert progress.next == min(progress.waiting, default=offset + 1)
        assert progress.span == offset + 1 - progress.next
    progress.reached(offset + 50)
    assert progress.next == min(progress.waiting, default=offset + 50)
