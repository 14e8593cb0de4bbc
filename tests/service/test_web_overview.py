"""What the status page is answered: what it holds, what it does not, and that nobody can make it grow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import EventType
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service.config import parse_config
from stream_svt.service.kafka import BrokerUnavailable
from stream_svt.service.reading import read
from stream_svt.service.web import overview as module
from stream_svt.service.web.overview import KEPT, Overview
from tests.service.test_metrics import SPEC, owned, view
from tests.support.released import account_of, alert, lifecycle
from tests.support.status_page import Stub, Topic


async def eventually(probe: Callable[[], Awaitable[Any]], wanted: object) -> None:
    """Wait until something becomes what is wanted."""
    async with asyncio.timeout(10):
        while await probe() != wanted:
            await asyncio.sleep(0.02)


class Show:
    """An overview over a topic in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.topic = Topic(partitions)
        self.worker = Stub(parse_config(SPEC))
        self.overview = Overview(self.worker, self.topic.read)

    async def ask(self) -> Any:
        return json.loads(await self.overview.answer())

    async def series(self) -> list[str]:
        found = await self.ask()
        return [event["data"]["series"] for event in found["events"] if "series" in event["data"]]


@pytest.fixture
async def show() -> AsyncIterator[Show]:
    show = Show()
    yield show
    await show.overview.close()


async def test_nothing_is_read_before_somebody_asks(show: Show) -> None:
    show.topic.put(alert("a", "one"))
    await asyncio.sleep(0.05)
    assert show.topic.opened == 0
    assert await show.series() == ["one"]
    assert show.topic.opened == 1


async def test_an_answer_has_every_budget_and_the_newest_events(show: Show) -> None:
    show.topic.put(lifecycle(EventType.RUN_STARTED, "a", account=account_of(0.2)), alert("a", "one"))
    first = await show.ask()
    assert (first["application"], first["datasets_declared"], first["complete"]) == ("shop", 3, True)
    assert [one["spent"] for one in first["datasets"]] == [0.5, 0.0, 0.0]
    show.topic.put(alert("b", "two", account=account_of(0.9)))
    await eventually(show.series, ["one", "two"])
    assert [one["spent"] for one in (await show.ask())["datasets"]] == [0.5, 0.9, 0.0]
    show.worker.shards = (owned(view("c", spent=0.7)),)
    one = (await show.ask())["datasets"][2]
    assert (one["dataset"], one["spent"], one["source"]) == ("c", 0.7, "state")


async def test_only_the_newest_events_are_kept(show: Show) -> None:
    show.topic.put(*[alert("a", f"s{number}") for number in range(KEPT + 50)])
    assert await show.series() == [f"s{number}" for number in range(50, KEPT + 50)]


async def test_a_history_that_is_read_partition_by_partition_shows_the_newest_of_all() -> None:
    show = Show(partitions=2)
    for partition in (0, 1):  # the second one is older, and read last
        old, new = (1000 + at - 500 * partition for at in (0, 100))
        events = [alert("a", f"p{partition}-{n}", at=old + n / 10) for n in range(KEPT)]
        show.topic.put(*events, alert("a", f"last-{partition}", at=new), partition=partition)
    found = await show.series()
    assert (len(found), found[-1]) == (KEPT, "last-0")
    assert not any("1" in name.partition("-")[0] for name in found)
    await show.overview.close()


async def test_what_is_no_event_is_skipped_and_reaches_nobody(show: Show) -> None:
    foreign = alert("a", "two").replace(b'"data":', b'"forged":1,"data":')
    deep, huge = (
        b'{"data":' + b"[" * 60_000,
        alert("a", "two").replace(b'"charge":0', b'"charge":1e300,"x":0'),
    )
    show.topic.put(b"", b"{}", b"\xff\xfe", b'{"id":"\xff"}', b"[" * 70_000, deep, huge)
    show.topic.put(alert("a", "one"), foreign, alert("a", "three"))
    found = await show.series()
    assert {"one", "three"} <= set(found)
    assert b"forged" not in await show.overview.answer()


async def test_reading_ends_a_while_after_the_last_request_and_all_is_forgotten(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.05)
    show.topic.put(alert("a", "one"))
    assert await show.series() == ["one"]
    task = show.overview._task
    assert task is not None
    async with asyncio.timeout(5):
        await task
    assert (len(show.overview._newest), show.overview._task) == (0, None)
    assert await show.series() == ["one"]
    assert show.topic.opened == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokerUnavailable("away"), "unreachable"),
        (BrokerError("READ"), "refused"),
        (OSError(), "unreachable"),
    ],
)
async def test_trouble_is_told_and_its_end_too_and_nothing_is_missed(
    show: Show, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(module, "PATIENCE", (0.05, 0.1))

    async def trouble() -> str:
        return (await show.ask())["trouble"]

    show.topic.put(alert("a", "one"))
    assert await trouble() == ""
    show.topic.error = error
    await eventually(trouble, reason)
    show.topic.error = None
    show.topic.put(alert("a", "two"))
    await eventually(trouble, "")
    assert await show.series() == ["one", "two"]


async def test_a_history_that_takes_long_is_said_to(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ANSWER", 0.01)
    show.topic.endless = True
    assert (await show.ask())["trouble"] == "slow"


async def test_another_specification_is_read_anew(show: Show) -> None:
    assert (await show.ask())["datasets_declared"] == 3
    await show.worker.adopt(
        await read(Version(1, Bundle(SPEC.replace("names: [a, b, c]", "names: [a, b, c, d]"))))
    )

    async def declared() -> int:
        return (await show.ask())["datasets_declared"]

    await eventually(declared, 4)


@pytest.mark.parametrize(
    ("records", "asked_before", "least"),
    [
        (1000, False, 10),  # a read returns at most a hundred here
        (0, True, 4),  # one for each dataset
    ],
    ids=["reads", "an answer"],
)
async def test_the_shards_get_their_turn_while_history_is_read_and_an_answer_is_made(
    show: Show, monkeypatch: pytest.MonkeyPatch, records: int, asked_before: bool, least: int
) -> None:
    if asked_before:
        await show.ask()
        monkeypatch.setattr(module, "AT_ONCE", 1)
    show.topic.put(*[alert("a", f"s{number}") for number in range(records)])
    turns = 0
    asking = asyncio.create_task(show.ask())
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= least
