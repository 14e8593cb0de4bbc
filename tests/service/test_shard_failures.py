"""What follows when a tenure ends in an error: open again, wait, step back, or give up loudly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaConnectionError

from stream_svt.errors import RecordsLost, StateRolledBack, UnreadableState
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.spec import load_spec
from stream_svt.protocol.tenure import Pace, State, Stopped
from stream_svt.service import shard as module
from stream_svt.service.kafka import BrokerUnavailable, Cluster, Fenced
from stream_svt.service.metrics import Metrics
from stream_svt.service.query_consumer import QueryConsumer
from stream_svt.service.shard import UNEXPECTED_LIMIT, Shard
from tests.service.test_metrics import SPEC

COMMAND = Command(id="c", action=Action.MARK_EXHAUSTED)


class Consumer:
    """A group consumer whose commits succeed or not."""

    def __init__(self) -> None:
        self.commits = 0
        self.refuse = False

    def assignment(self) -> set[TopicPartition]:
        return set()

    def pause(self, *places: TopicPartition) -> None:
        """Nothing to pause."""

    async def commit(self, offsets: object) -> None:
        self.commits += 1
        if self.refuse:
            raise CommitFailedError


class Journal:
    async def close(self) -> None:
        """Nothing is open."""


class Play:
    """Tenures that open or end as scripted; one that is not scripted runs until stopped."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *endings: Exception | Callable[[], Awaitable[None]]
    ) -> None:
        self.endings = list(endings)
        self.opened: list[tuple[int, Command] | None] = []
        self.fatal: list[BaseException] = []
        self.consumer = Consumer()
        self.unassigned = False
        self.waits: list[Exception] = []
        self.kept = 0
        self.fenced: list[Exception] = []
        play = self

        class Tenure:
            def __init__(
                self, feed: module.ShardFeed, *args: object, status: module.Status, **options: object
            ) -> None:
                self.status, self.feed, self.stop = status, feed, feed._stop

            async def open(self, *, given_up: tuple[int, Command] | None) -> None:
                play.opened.append(given_up)
                self.status.state = State.OPENING
                if play.endings:
                    ending = play.endings.pop(0)
                    if isinstance(ending, Exception):
                        raise ending
                    await ending()

            async def run(self) -> None:
                self.status.state = State.RUNNING
                await play.run(self.feed)

            def end(self) -> list[object]:
                return []

            async def await_command(self, action: Action, controls: object) -> tuple[int, Command]:
                if play.unassigned:
                    raise IllegalStateError
                if play.waits:
                    raise play.waits.pop()
                if not play.answer.is_set():
                    done = {asyncio.ensure_future(event.wait()) for event in (play.answer, self.stop)}
                    await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
                if self.stop.is_set():
                    raise Stopped
                return 7, COMMAND

        async def spans(cluster, places, doing):
            return dict.fromkeys(places, (0, 7))

        self.answer = asyncio.Event()
        monkeypatch.setattr(module, "Tenure", Tenure)
        monkeypatch.setattr(module, "spans", spans)
        monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001))
        self.shard = Shard(
            0,
            cluster=Cluster({}),
            consumer=self.consumer,
            queries=QueryConsumer(lambda: None, 1),
            make_journal=lambda number: Journal(),
            workload=lambda: None,
            control="control",
            pace=Pace,
            metrics=Metrics(load_spec(SPEC), "hash"),
            fatal=self.fatal.append,
        )
        self.shard.start()

    async def run(self, feed: module.ShardFeed) -> None:
        while not feed.stopping:
            done = {asyncio.ensure_future(event.wait()) for event in (feed._stop, feed._hold.held)}
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            if feed.held:
                await self.hand_over()
                await feed.settled()
                self.kept += 1
                if self.fenced:
                    raise self.fenced.pop()

    async def hand_over(self) -> None:
        """Publish what is charged."""
        await asyncio.sleep(0)

    async def until(self, state: State) -> None:
        async with asyncio.timeout(5):
            while self.shard.status.state is not state:
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        await self.shard.stop(2.0)
        assert self.shard.status.state in {State.STOPPED, State.PARKED, State.FAILED}


@pytest.mark.parametrize(
    "ending",
    [BrokerUnavailable("x"), RecordsLost("x"), KafkaConnectionError("x"), TimeoutError(), OSError()],
    ids=repr,
)
async def test_what_may_succeed_later_is_tried_again_for_ever(monkeypatch, ending: Exception) -> None:
    play = Play(monkeypatch, *[ending] * (2 * UNEXPECTED_LIMIT))
    await play.until(State.RUNNING)
    assert len(play.opened) == 2 * UNEXPECTED_LIMIT + 1
    assert play.fatal == []
    await play.end()


async def test_a_control_topic_made_anew_under_a_shard_that_waits_ends_no_worker(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("older"), StateRolledBack("older"))
    monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001))
    play.waits = [RecordsLost("out of range")]
    play.answer.set()
    await play.until(State.RUNNING)
    assert (play.fatal, play.waits) == ([], [])
    await play.end()


async def test_the_unexpected_is_tried_a_few_times_and_its_text_never_logged(monkeypatch, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    play = Play(monkeypatch, *[ValueError("value 4711")] * UNEXPECTED_LIMIT)
    await play.until(State.FAILED)
    assert len(play.opened) == UNEXPECTED_LIMIT
    assert [type(error) for error in play.fatal] == [ValueError]
    assert "4711" not in caplog.text
    assert "4711" not in play.shard.status.reason
    await play.end()


async def test_a_state_that_cannot_be_read_is_fatal_at_once(monkeypatch) -> None:
    play = Play(monkeypatch, UnreadableState("x"))
    await play.until(State.FAILED)
    assert len(play.opened) == 1
    assert [type(error) for error in play.fatal] == [UnreadableState]
    await play.end()


@pytest.mark.parametrize("ending", [Fenced("x"), IllegalStateError("x")], ids=repr)
async def test_a_member_opens_again_where_it_was_fenced_or_its_partition_was_gone(
    monkeypatch, ending: Exception
) -> None:
    play = Play(monkeypatch, ending)
    await play.until(State.RUNNING)
    assert play.consumer.commits == 1
    await play.end()


@pytest.mark.parametrize("ending", [Fenced("x"), IllegalStateError("x")], ids=repr)
async def test_a_stranger_steps_back_until_the_next_rebalance_and_fences_nobody(
    monkeypatch, ending: Exception
) -> None:
    play = Play(monkeypatch, *[ending] * 3)
    play.consumer.refuse = True
    await play.until(State.PARKED)
    await asyncio.sleep(0.1)
    assert len(play.opened) == 1
    assert play.fatal == []
    assert "IllegalStateError" not in play.shard.status.reason
    await play.end()


async def test_a_stranger_does_not_wait_for_an_operator_either(monkeypatch) -> None:
    play = Play(monkeypatch, *[StateRolledBack("x")] * 3)
    play.consumer.refuse = play.unassigned = True
    await play.until(State.PARKED)
    assert len(play.opened) == 1
    await play.end()


async def test_a_rolled_back_state_waits_for_the_operator(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("x"))
    await play.until(State.ROLLED_BACK)
    assert play.opened == [None]
    play.answer.set()
    await play.until(State.RUNNING)
    assert play.opened == [None, (7, COMMAND)]
    await play.end()


async def test_a_waiting_shard_can_be_stopped(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("x"))
    await play.until(State.ROLLED_BACK)
    await play.end()
    assert play.opened == [None]


async def test_a_reload_begins_another_tenure(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    play.shard.reload()
    async with asyncio.timeout(5):
        while len(play.opened) < 2:
            await asyncio.sleep(0.01)
    await play.until(State.RUNNING)
    await play.end()
