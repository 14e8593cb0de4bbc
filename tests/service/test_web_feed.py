"""The feed of the status page: what viewers are told, what they are not, and that nobody can make it grow."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service.config import parse_config
from stream_svt.service.kafka import BrokerUnavailable
from stream_svt.service.reading import read
from stream_svt.service.web import feed as module
from stream_svt.service.web.feed import KEPT, VIEWERS, WAITING, Feed, TooManyViewers, Viewer, message
from tests.service.test_metrics import SPEC, owned, view
from tests.support.released import account, alert, lifecycle
from tests.support.status_page import Stub, Topic
from tests.support.worker import until


class Show:
    """A feed over a topic in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.topic = Topic(partitions)
        self.worker = Stub(parse_config(SPEC))
        self.feed = Feed(
            self.topic.open,
            partitions,
            lambda: self.worker.workload.spec,
            self.worker.views,
            clock=lambda: 1000.0,
        )

    def look(self, place: str = "") -> Look:
        return Look(self.feed, place)


class Look:
    """A viewer that writes down what it is told."""

    def __init__(self, feed: Feed, place: str) -> None:
        self.viewer = feed.join(place)
        self.told: list[tuple[str, str, Any]] = []
        self.raw: list[bytes] = []
        self._feed = feed
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for text in self.viewer.messages():
            self.raw.append(text)
            fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if ": " in line)
            if "data" in fields:
                self.told.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))

    def of(self, kind: str) -> list[Any]:
        return [data for event, _, data in self.told if event == kind]

    @property
    def series(self) -> list[str]:
        return [event["data"]["series"] for event in self.of("released") if "series" in event["data"]]

    @property
    def place(self) -> str:
        return [place for _, place, _ in self.told if place][-1]

    async def gone(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._feed.leave(self.viewer)

    @property
    def ended(self) -> bool:
        return self._task.done()


@pytest.fixture
async def show() -> AsyncIterator[Show]:
    show = Show()
    yield show
    await show.feed.close()


@pytest.fixture
async def shards() -> AsyncIterator[Show]:
    show = Show(partitions=3)
    yield show
    await show.feed.close()


async def test_nothing_is_read_before_somebody_looks(show: Show) -> None:
    show.topic.put(alert("a", "one"))
    await asyncio.sleep(0.05)
    assert show.topic.opened == 0
    looking = show.look()
    await until(lambda: looking.series == ["one"])
    assert show.topic.opened == 1


async def test_a_viewer_gets_the_whole_picture_then_what_was_released_then_the_news(show: Show) -> None:
    show.topic.put(lifecycle(EventType.RUN_STARTED, "a", books=account(0.2)), alert("a", "one"))
    looking = show.look()
    await until(lambda: looking.series == ["one"])
    assert looking.told[0][0] == "overview"
    [overview] = looking.of("overview")
    assert (overview["application"], overview["datasets_declared"], overview["complete"]) == ("shop", 3, True)
    assert [one["spent"] for one in overview["datasets"]] == [0.5, 0.0, 0.0]
    show.topic.put(alert("b", "two", books=account(0.9)))
    await until(lambda: looking.series == ["one", "two"])
    await until(
        lambda: any(one["spent"] == 0.9 for some in looking.of("datasets") for one in some["datasets"])
    )


async def test_what_was_before_and_what_is_new_can_be_told_apart(show: Show) -> None:
    show.topic.put(alert("a", "one"))
    looking = show.look()
    await until(lambda: looking.of("present") == [{"now": 1000.0}])
    assert looking.series == ["one"]
    show.topic.put(alert("a", "two"))
    await until(lambda: looking.series == ["one", "two"])
    assert len(looking.of("present")) == 1


async def test_books_of_owned_shards_are_told_when_they_change(show: Show) -> None:
    looking = show.look()
    await until(lambda: looking.of("overview") != [])
    show.worker.shards = (owned(view("c", spent=0.7)),)
    await until(lambda: looking.of("datasets") != [])
    [one] = looking.of("datasets")[0]["datasets"]
    assert (one["dataset"], one["spent"], one["source"]) == ("c", 0.7, "state")


async def test_who_comes_back_gets_what_was_missed_once_and_in_order(shards: Show) -> None:
    shards.topic.put(alert("a", "one"), alert("a", "two"))
    first = shards.look()
    await until(lambda: first.series == ["one", "two"])
    await first.gone()
    shards.topic.put(alert("b", "three"), partition=1)
    shards.topic.put(alert("a", "four"))
    again = shards.look(first.place)
    await until(lambda: again.series == ["three", "four"])
    assert [overview["missed"] for overview in again.of("overview")] == [False]


async def test_a_place_means_the_same_at_every_worker(shards: Show) -> None:
    """Another worker reads the partitions in another order, and has kept other events."""
    shards.topic.put(alert("a", "one"))
    shards.topic.put(alert("b", "two"), partition=2)
    first = shards.look()
    await until(lambda: len(first.series) == 2)
    other = Show(partitions=3)
    other.topic.put(alert("b", "two"), alert("b", "new"), partition=2)
    other.topic.put(alert("a", "one"))
    there = other.look(first.place)
    await until(lambda: there.series == ["new"])
    await asyncio.sleep(0.1)
    assert there.series == ["new"]
    await other.feed.close()


@pytest.mark.parametrize("place", ["", "7", "1.2", "1.2.3.4", "x.y.z", "-1.0.0", "1.1.²", "9" * 30 + ".0.0"])
async def test_a_place_that_is_none_gets_everything(shards: Show, place: str) -> None:
    shards.topic.put(alert("a", "one"))
    looking = shards.look(place)
    await until(lambda: looking.series == ["one"])


async def test_a_place_the_topic_has_not_reached_is_of_another_topic_and_gets_everything(
    shards: Show,
) -> None:
    shards.topic.put(alert("a", "one"))
    looking = shards.look("900.0.0")
    await until(lambda: looking.series == ["one"])


async def test_who_missed_more_than_is_kept_is_told_so(show: Show) -> None:
    show.topic.put(*[alert("a", f"s{number}") for number in range(KEPT + 50)])
    looking = show.look("10")
    await until(lambda: len(looking.series) == KEPT)
    assert looking.of("overview")[0]["missed"] is True
    assert looking.series[0] == "s50"
    assert looking.series[-1] == f"s{KEPT + 49}"


async def test_what_is_no_event_is_skipped_and_reaches_nobody(show: Show) -> None:
    forged = alert("a", "two").replace(b'"data":', b'\n\nevent: forged\ndata: {}\n\n "data":')
    deep, huge = (
        b'{"data":' + b"[" * 60_000,
        alert("a", "two").replace(b'"charge":0', b'"charge":1e300,"x":0'),
    )
    show.topic.put(b"", b"{}", b"\xff\xfe", b'{"id":"\xff"}', b"[" * 70_000, deep, huge)
    show.topic.put(alert("a", "one"), forged, alert("a", "three"))
    looking = show.look()
    await until(lambda: "three" in looking.series)
    await asyncio.sleep(0.1)
    assert {kind for kind, _, _ in looking.told} <= {"overview", "released", "present", "datasets"}
    assert b"\nevent: forged" not in b"".join(looking.raw)


async def test_no_name_can_begin_a_message_of_its_own(show: Show) -> None:
    name = "x\n\nevent: forged\ndata: {}\n\n\r\u2028<script>"
    show.topic.put(alert("a", name))
    looking = show.look()
    await until(lambda: looking.series == [name])
    assert all(text.count(b"\n\n") == 1 and text.endswith(b"\n\n") for text in looking.raw if text)


async def test_a_viewer_that_takes_nothing_is_cut_off_and_the_others_go_on(show: Show) -> None:
    slow, looking = show.feed.join(), show.look()
    await until(lambda: looking.of("overview") != [])
    for number in range(WAITING + 10):
        show.topic.put(alert("a", f"s{number}"))
        if number % 50 == 49:
            await until(lambda number=number: len(looking.series) == number + 1)
    await until(lambda: len(looking.series) == WAITING + 10)
    assert slow._queue.qsize() <= WAITING
    heard = [text async for text in slow.messages()]
    assert heard == [b"retry: 3000\n\n"]  # cut off: it comes back with the id it has
    assert not looking.ended


async def test_only_so_many_may_look_at_once(show: Show) -> None:
    viewers = [show.feed.join() for _ in range(VIEWERS)]
    with pytest.raises(TooManyViewers):
        show.feed.join()
    show.feed.leave(viewers[0])
    show.feed.join()


async def test_reading_ends_a_while_after_the_last_viewer_left_and_all_is_forgotten(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.05)
    show.topic.put(alert("a", "one"))
    looking = show.look()
    await until(lambda: looking.series == ["one"])
    task = show.feed._task
    assert task is not None
    await looking.gone()
    await until(task.done)
    assert (len(show.feed._kept), show.feed._task) == (0, None)
    again = show.look()
    await until(lambda: again.series == ["one"])
    assert show.topic.opened == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokerUnavailable("away"), "unreachable"),
        (BrokerError("READ"), "refused"),
        (OSError(), "unreachable"),
    ],
)
async def test_who_looks_is_told_of_trouble_and_of_its_end_and_misses_nothing(
    show: Show, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(module, "PATIENCE", (0.05, 0.1))
    looking = show.look()
    show.topic.put(alert("a", "one"))
    await until(lambda: looking.series == ["one"])
    show.topic.error = error
    await until(lambda: {"reason": reason} in looking.of("trouble"))
    late = show.look()
    await until(lambda: late.of("trouble") == [{"reason": reason}])
    await asyncio.sleep(0.3)  # it is tried again and again, and said once
    assert looking.of("trouble") == [{"reason": reason}]
    show.topic.error = None
    show.topic.put(alert("a", "two"))
    await until(lambda: looking.of("trouble")[-1] == {"reason": ""})
    await until(lambda: looking.series == ["one", "two"] and late.series == ["one", "two"])


async def test_another_specification_is_another_picture(show: Show) -> None:
    looking = show.look()
    await until(lambda: looking.of("overview") != [])
    await show.worker.adopt(
        await read(Version(1, Bundle(SPEC.replace("names: [a, b, c]", "names: [a, b, c, d]"))))
    )
    await until(lambda: len(looking.of("overview")) == 2)
    assert looking.of("overview")[1]["datasets_declared"] == 4


async def test_silence_is_broken_by_a_comment(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE", 0.05)
    looking = show.look()
    await until(lambda: b": still here\n\n" in looking.raw)


async def test_closing_ends_every_viewer_and_lets_nobody_in(show: Show) -> None:
    looking = show.look()
    await until(lambda: looking.of("overview") != [])
    await show.feed.close()
    await until(lambda: looking.ended)
    with pytest.raises(TooManyViewers):
        show.feed.join()


async def test_the_shards_get_their_turn_between_two_reads(show: Show) -> None:
    """However much history there is, the loop is never held for more than one read of it."""
    show.topic.put(*[alert("a", f"s{number}") for number in range(1000)])
    turns = 0
    looking = show.look()
    while not looking.of("overview"):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10  # a read returns at most a hundred here


def test_a_message_is_one_event_of_one_line() -> None:
    text = message("kind", {"name": "a\nb\r\n\u2028"}, "1.2")
    assert text.startswith(b"id: 1.2\nevent: kind\ndata: {")
    assert text.count(b"\n") == 4


async def test_ending_a_viewer_twice_is_ending_it_once() -> None:
    viewer = Viewer("")
    viewer.end()
    viewer.end()
    assert [text async for text in viewer.messages()] == [b"retry: 3000\n\n"]
