"""What follows when a tenure ends in an error: open again, park until something has changed, or step back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaConnectionError

from stream_svt.errors import (
    ConfigError,
    MisuseError,
    Problem,
    RecordsLost,
    StateRolledBack,
    UnknownKey,
    UnreadableState,
)
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.spec import load_spec
from stream_svt.protocol.journal import Topics
from stream_svt.protocol.shard_states import Cause, Signal, State
from stream_svt.protocol.tenure import Pace, Stopped
from stream_svt.service import parked
from stream_svt.service import shard as module
from stream_svt.service.kafka import BrokerUnavailable, Cluster, Denied, Fenced, TopicMissing
from stream_svt.service.metrics import Metrics
from stream_svt.service.parked import Surroundings
from stream_svt.service.query_consumer import QueryConsumer
from stream_svt.service.shard import Shard
from stream_svt.service.shard_feed import ShardFeed
from tests.service.test_metrics import SPEC

COMMAND = b'{"id":"c","action":"mark-exhausted"}'
MANY = 12
AROUND = Surroundings(spans=(("state", 0, 5),), control_end=7)


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
    """Books that prove, or do not, when they are looked at."""

    def __init__(self, play: Play) -> None:
        self._play = play

    async def look(self, *, beside_alerts: bool) -> None:
        assert beside_alerts
        self._play.looks += 1
        if self._play.unproved is not None:
            raise self._play.unproved

    async def close(self) -> None:
        """Nothing is open."""


class Feed(ShardFeed):
    """A feed whose control partition is scripted."""

    def __init__(self, play: Play, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.play, self.next = play, 0

    def seek(self, topic: str, offset: int) -> None:
        self.next = offset

    def resume(self, topics: object) -> None:
        """Everything is read."""

    def pause(self, topics: object) -> None:
        """Nothing is read."""

    async def fetch(self, topics: list[str], patience: float) -> dict[str, list[SimpleNamespace]]:
        if self.play.unassigned:
            raise IllegalStateError
        if self.play.interruptions:
            raise self.play.interruptions.pop()
        await asyncio.sleep(0.01)
        if self.stopping:
            raise Stopped
        first = self.play.around.control_end or 0
        records = [
            SimpleNamespace(offset=first + at, value=value, key=None, timestamp=0, headers=())
            for at, value in enumerate(self.play.control)
        ]
        return {"control": [record for record in records if record.offset >= self.next]}


class Play:
    """Tenures that open or end as scripted; one that is not scripted runs until stopped.

    Attributes
    ----------
    around
        What a parked shard sees around it.
    unproved
        What looking at the books raises.
    control
        Records that come on the control partition.
    unassigned, interruptions
        What listening there raises: for ever, or one after the other.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *endings: Exception | Callable[[], Awaitable[None]]
    ) -> None:
        self.endings = list(endings)
        self.opened: list[tuple[int, Command] | None] = []
        self.suspected = 0
        self.consumer = Consumer()
        self.around = AROUND
        self.unproved: Exception | None = None
        self.looks = 0
        self.control: list[bytes] = []
        self.unassigned = False
        self.interruptions: list[Exception] = []
        self.workload = SimpleNamespace(topics=("counts",))
        self.kept = 0
        self.fenced: list[Exception] = []
        play = self

        class Tenure:
            def __init__(self, feed: Feed, *args: object, status: module.Status, **options: object) -> None:
                self.status, self.feed = status, feed

            async def open(self, *, given_up: tuple[int, Command] | None) -> None:
                play.opened.append(given_up)
                self.status.signal(Signal.OPENED)
                if play.endings:
                    ending = play.endings.pop(0)
                    if isinstance(ending, Exception):
                        raise ending
                    await ending()

            async def run(self) -> None:
                self.status.signal(Signal.TAKEN_OVER, Cause.NONE)
                self.status.signal(Signal.REPLAYED)
                await play.run(self.feed)

            def end(self) -> list[object]:
                return []

        async def look_around(cluster: Cluster, shard: int, **topics: object) -> Surroundings:
            if isinstance(play.around, Exception):
                raise play.around
            return play.around

        monkeypatch.setattr(module, "Tenure", Tenure)
        monkeypatch.setattr(module, "ShardFeed", partial(Feed, play))
        monkeypatch.setattr(module, "look_around", look_around)
        monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001))
        monkeypatch.setattr(module, "UNEXPECTED_BACKOFF", (0.0, 0.001))
        monkeypatch.setattr(parked, "LOOK_AGAIN", (0.02,))
        self.shard = Shard(
            0,
            cluster=Cluster({}),
            consumer=self.consumer,
            queries=QueryConsumer(lambda: None, 1),
            make_journal=lambda number: Journal(self),
            workload=lambda: self.workload,
            control="control",
            pace=Pace,
            metrics=Metrics(load_spec(SPEC), "hash", lambda: [self.shard.status]),
            written=Topics("state", "alerts", "rejects"),
            suspect=self.suspect,
        )
        self.shard.start()

    def suspect(self) -> None:
        self.suspected += 1

    async def run(self, feed: ShardFeed) -> None:
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

    async def stays(self, state: State, *, opened: int) -> None:
        """Nothing happens for as long as ten looks take."""
        await self.until(state)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert self.shard.status.state is state
        assert len(self.opened) == opened

    async def end(self) -> None:
        await self.shard.stop(2.0)
        assert self.shard.status.state in {State.STOPPED, State.NOT_MEMBER}


@pytest.mark.parametrize(
    "ending",
    [
        BrokerUnavailable("x"),
        RecordsLost("x"),
        KafkaConnectionError("x"),
        TimeoutError(),
        OSError(),
        ValueError("x"),
        ImportError("x"),
    ],
    ids=repr,
)
async def test_what_may_pass_is_tried_again_for_ever(monkeypatch, ending: Exception) -> None:
    play = Play(monkeypatch, *[ending] * MANY)
    await play.until(State.RUNNING)
    assert len(play.opened) == MANY + 1
    assert play.shard.status.cause is Cause.NONE
    assert play.shard.status.reason == ""
    await play.end()


async def test_the_text_of_an_unexpected_error_is_never_shown(monkeypatch, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    reasons: list[str] = []

    async def shown() -> None:
        reasons.append(play.shard.status.reason)

    play = Play(monkeypatch, ValueError("value 4711"), shown)
    await play.until(State.RUNNING)
    assert "ValueError" in caplog.text
    assert "ValueError" in reasons[0]
    assert "4711" not in caplog.text + reasons[0]
    await play.end()


PARKED = [
    (UnreadableState("damaged"), Cause.STATE_UNREADABLE),
    (StateRolledBack("older"), Cause.STATE_ROLLED_BACK),
    (UnknownKey("sealed with another key"), Cause.SEALING_KEY),
    (ConfigError([Problem(0, "datasets", "removed")]), Cause.CONFIGURATION),
    (MisuseError("too large"), Cause.REFUSED_DATA),
    (TopicMissing("gone"), Cause.TOPIC_MISSING),
    (Denied("permission is missing"), Cause.PERMISSION),
]


@pytest.mark.parametrize(("ending", "cause"), PARKED, ids=repr)
async def test_what_cannot_mend_itself_parks_the_shard_and_says_why(
    monkeypatch, caplog, ending: Exception, cause: Cause
) -> None:
    play = Play(monkeypatch, *[ending] * MANY)
    play.unproved = ending
    play.around = Surroundings(faults=("counts cannot be read",), control_end=7)
    await play.stays(State.PARKED, opened=1)
    status = play.shard.status
    assert (status.cause, status.reason) == (cause, str(ending))
    assert f"event=shard_parked shard=0 cause={cause}" in caplog.text
    shown = play.shard._metrics.text().decode()
    assert f'stream_svt_shard_parked{{application="shop",cause="{cause}",shard="0"}} 1.0' in shown
    assert 'stream_svt_failures_total{application="shop",reason="parked"} 1.0' in shown
    await play.end()


async def test_a_state_that_proves_again_is_opened_and_only_then(monkeypatch) -> None:
    play = Play(monkeypatch, UnreadableState("x"))
    play.unproved = UnreadableState("x")
    await play.stays(State.PARKED, opened=1)
    assert play.looks == 1  # nothing changed around it, so nothing is read again
    play.around = Surroundings(spans=(("state", 0, 6),), control_end=7)
    async with asyncio.timeout(5):
        while play.looks < 2:
            await asyncio.sleep(0.01)
    await play.stays(State.PARKED, opened=1)
    play.unproved = None
    play.around = Surroundings(spans=(("state", 0, 7),), control_end=7)
    await play.until(State.RUNNING)
    assert len(play.opened) == 2
    await play.end()


async def test_a_state_mended_between_failing_and_the_first_look_is_opened(monkeypatch) -> None:
    play = Play(monkeypatch, UnreadableState("x"))
    await play.until(State.RUNNING)
    assert (play.looks, len(play.opened)) == (1, 2)
    await play.end()


async def test_books_that_could_not_be_looked_at_are_looked_at_again(monkeypatch) -> None:
    play = Play(monkeypatch, UnreadableState("x"))
    play.unproved = BrokerUnavailable("x")
    async with asyncio.timeout(5):
        while play.looks < 3:
            await asyncio.sleep(0.01)
    play.unproved = None
    await play.until(State.RUNNING)
    await play.end()


async def test_a_record_on_the_control_partition_wakes_a_parked_shard_up(monkeypatch) -> None:
    play = Play(monkeypatch, MisuseError("x"))
    monkeypatch.setattr(parked, "LOOK_AGAIN", (60.0,))
    await play.stays(State.PARKED, opened=1)
    play.control.append(b"wake up")

    async def look_around(cluster: Cluster, shard: int, **topics: object) -> Surroundings:
        return Surroundings(AROUND.spans, control_end=8)

    monkeypatch.setattr(module, "look_around", look_around)
    await play.until(State.RUNNING)
    await play.end()


async def test_what_brokers_refused_is_tried_once_nothing_speaks_against_it(monkeypatch) -> None:
    play = Play(monkeypatch, Denied("x"), Denied("x"))
    play.around = Surroundings(faults=("counts cannot be read",), control_end=7)
    await play.stays(State.PARKED, opened=1)
    play.around = AROUND  # what may be written shows only when it is tried
    await play.until(State.RUNNING)
    assert len(play.opened) == 3
    await play.end()


async def test_another_configuration_opens_a_parked_shard_at_once(monkeypatch) -> None:
    play = Play(monkeypatch, ConfigError([Problem(0, "datasets", "removed")]))
    monkeypatch.setattr(parked, "LOOK_AGAIN", (60.0,))
    await play.stays(State.PARKED, opened=1)
    play.workload = SimpleNamespace(topics=("counts",))
    play.shard.reload()
    await play.until(State.RUNNING)
    await play.end()


async def test_a_topic_that_is_gone_is_told_from_brokers_that_do_not_answer(monkeypatch) -> None:
    play = Play(monkeypatch, *[BrokerUnavailable("no answer")] * 3)
    play.around = Surroundings(faults=("topic 'counts' does not exist",), missing=True, control_end=7)
    await play.stays(State.PARKED, opened=2)
    assert play.shard.status.cause is Cause.TOPIC_MISSING
    assert "topic 'counts' does not exist" in play.shard.status.reason
    play.endings.clear()
    play.around = AROUND
    await play.until(State.RUNNING)
    await play.end()


@pytest.mark.parametrize(("ending", "suspected"), [(UnknownKey("x"), 1), (UnreadableState("x"), 0)], ids=repr)
async def test_a_key_that_may_be_missing_here_alone_makes_the_worker_test_itself(
    monkeypatch, ending: Exception, suspected: int
) -> None:
    play = Play(monkeypatch, ending)
    play.unproved = ending
    await play.until(State.PARKED)
    assert play.suspected == suspected
    await play.end()


async def test_a_control_topic_made_anew_under_a_parked_shard_is_heard_again(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("older"))
    play.unproved = StateRolledBack("older")
    play.interruptions = [RecordsLost("out of range"), KafkaConnectionError("away")]
    await play.until(State.PARKED)
    async with asyncio.timeout(5):
        while play.interruptions:
            await asyncio.sleep(0.01)
    play.control.append(COMMAND)
    await play.until(State.RUNNING)
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
    await play.until(State.NOT_MEMBER)
    await asyncio.sleep(0.1)
    assert len(play.opened) == 1
    assert "IllegalStateError" not in play.shard.status.reason
    await play.end()


async def test_a_stranger_does_not_stay_parked_either(monkeypatch) -> None:
    play = Play(monkeypatch, *[StateRolledBack("x")] * 3)
    play.unproved = StateRolledBack("x")
    play.consumer.refuse = play.unassigned = True
    await play.until(State.NOT_MEMBER)
    assert len(play.opened) == 1
    await play.end()


async def test_a_rolled_back_state_waits_for_the_operator_and_passes_over_other_commands(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("x"))
    play.unproved = StateRolledBack("x")
    await play.stays(State.PARKED, opened=1)
    play.control.append(b'{"id":"p","action":"pause","dataset":"a"}')
    await play.stays(State.PARKED, opened=1)
    play.control.append(COMMAND)
    await play.until(State.RUNNING)
    command = Command(id="c", action=Action.MARK_EXHAUSTED)
    assert play.opened == [None, (8, command)]
    await play.end()


async def test_a_parked_shard_can_be_stopped(monkeypatch) -> None:
    play = Play(monkeypatch, StateRolledBack("x"))
    play.unproved = StateRolledBack("x")
    await play.until(State.PARKED)
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


@pytest.mark.parametrize("ending", [BrokerUnavailable("x"), ValueError("x")], ids=repr)
async def test_a_shard_whose_opening_takes_long_and_fails_is_opened_later_and_later(
    monkeypatch, ending: Exception
) -> None:
    """A large state takes longer to read than a tenure has to run before its predecessor's failures are forgotten."""

    async def slow() -> None:
        await asyncio.sleep(0.02)
        raise ending

    waits: list[float] = []
    play = Play(monkeypatch, *[slow] * 8)
    monkeypatch.setattr(module, "STEADY", 0.01)
    monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001, 0.002, 0.003))
    monkeypatch.setattr(module, "UNEXPECTED_BACKOFF", (0.0, 0.001, 0.002, 0.003))
    wait = play.shard._wait

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await wait(seconds)

    play.shard._wait = noted
    await play.until(State.RUNNING)
    assert waits == [0.0, 0.001, 0.002] + 5 * [0.003]
    await play.end()


async def test_a_shard_whose_opening_takes_long_parks_where_its_topics_are_gone(monkeypatch) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)
        raise BrokerUnavailable("no answer")

    play = Play(monkeypatch, *[slow] * MANY)
    monkeypatch.setattr(module, "STEADY", 0.01)
    play.around = Surroundings(faults=("topic 'counts' does not exist",), missing=True, control_end=7)
    await play.stays(State.PARKED, opened=2)
    assert play.shard.status.cause is Cause.TOPIC_MISSING
    await play.end()


async def test_a_shard_whose_opening_takes_long_and_is_refused_is_tried_later_and_later(monkeypatch) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)
        raise Denied("permission is missing: WRITE on alerts")

    play = Play(monkeypatch, *[slow] * MANY)
    monkeypatch.setattr(module, "STEADY", 0.01)
    monkeypatch.setattr(parked, "LOOK_AGAIN", (0.01, 5.0))
    await play.until(State.PARKED)
    await asyncio.sleep(0.3)
    assert len(play.opened) == 2
    await play.end()


async def test_failures_are_forgotten_once_a_tenure_has_run_for_a_while(monkeypatch) -> None:
    play = Play(monkeypatch, *[BrokerUnavailable("x")] * 3)
    monkeypatch.setattr(module, "STEADY", 0.05)
    await play.until(State.RUNNING)
    assert play.shard._failures == 3
    await asyncio.sleep(0.1)
    play.fenced = [BrokerUnavailable("x")]
    play.shard.hold()
    assert await play.shard.settle(2.0)
    play.shard.release()
    async with asyncio.timeout(5):
        while len(play.opened) < 5:
            await asyncio.sleep(0.01)
    assert play.shard._failures == 1
    await play.end()


@pytest.mark.parametrize("step", ["end", "reader", "journal"])
async def test_an_error_at_a_tenures_end_keeps_no_other_step_from_being_done(monkeypatch, step: str) -> None:
    play = Play(monkeypatch)
    monkeypatch.setattr(module, "BACKOFF", (0.0,))
    done: list[str] = []

    def fails(name: str) -> list[object]:
        done.append(name)
        if name == step:
            raise ValueError
        return []

    async def close(journal: Journal) -> None:
        fails("journal")

    monkeypatch.setattr(module.Tenure, "end", lambda tenure: fails("end"))
    monkeypatch.setattr(Feed, "close", lambda feed: fails("reader"))
    monkeypatch.setattr(Journal, "close", close)
    await play.until(State.RUNNING)
    play.shard.hold()
    assert await play.shard.settle(2.0)
    assert not done
    play.shard._rebalance.quiet.clear()
    play.fenced = [Fenced("x")]
    play.shard.release()
    async with asyncio.timeout(5):
        while len(play.opened) < 2:
            await asyncio.sleep(0.01)
    assert done[:3] == ["end", "reader", "journal"]
    await play.shard.stop(2.0)
    assert play.shard._rebalance.quiet.is_set()
