"""A session that ends with an error: its shard opens again, parks until a change, or waits for the next rebalance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from stream_svt import errors
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import BrokerUnavailable, Denied, Fenced, LoginRefused, TopicMissing, deadline
from stream_svt.monitor.operations import Action, Command
from stream_svt.protocol.controls import accept_all
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.worker import failures
from stream_svt.worker import shard as module
from stream_svt.worker.ports import ShardFeed
from stream_svt.worker.shard import yield_to_loop
from tests.support.scripted_shard import COMMANDS, STATE, STUCK, Journal, hang, watched
from tests.support.worker import until

MANY = 12
LONG = 0.02
"""Seconds of a long opening: more than `STEADY` in the tests that use it."""


def fails(error: Exception, seconds: float) -> Callable[[], Awaitable[None]]:
    """Return the opening of a session that fails after ``seconds``."""

    async def opening() -> None:
        await asyncio.sleep(seconds)
        raise error

    return opening


async def test_the_records_of_query_topics_are_read_as_columns(played) -> None:
    play = played()
    play.workload.text_topics = {"counts": True}
    feeds: list[ShardFeed] = []

    async def run(feed: ShardFeed) -> None:
        feeds.append(feed)
        await feed.requests.stop.wait()

    play.run = run
    await play.until(ShardState.RUNNING)
    await until(lambda: bool(feeds))
    assert feeds[0].columns == {"counts": True}


@pytest.mark.parametrize(
    "ending",
    [
        *(BrokerUnavailable("x"), LoginRefused("x")),
        *(errors.RecordsLost("x"), errors.RecordsUnreadable("x"), errors.ConfigurationBehind("x")),
        *(KafkaConnectionError("x"), TimeoutError(), OSError()),
        *(ValueError("x"), ImportError("x"), MemoryError(), AssertionError()),
    ],
    ids=repr,
)
async def test_temporary_errors_are_retried_without_limit(played, ending: Exception) -> None:
    play = played(*[ending] * MANY)
    await play.until(ShardState.RUNNING)
    assert play.opened == MANY + 1
    assert play.shard.status.cause is Cause.NONE
    assert play.shard.status.reason == ""


PARKED = [
    (errors.UnreadableState("damaged"), Cause.STATE_UNREADABLE),
    (errors.StateRolledBack("older"), Cause.STATE_ROLLED_BACK),
    (errors.UnknownKey("sealed with another key"), Cause.SEALING_KEY),
    (errors.ConfigError([errors.Problem(0, "datasets", "removed")]), Cause.CONFIGURATION),
    (errors.TimestampAhead("too far", time.time() + 3600), Cause.TIMESTAMP_AHEAD),
    (errors.MisuseError("too large"), Cause.REFUSED_DATA),
    (errors.ApplicationClosed("closed"), Cause.CLOSED),
    (errors.BrokerError("too large"), Cause.BROKER_REFUSED),
    (TopicMissing("gone"), Cause.TOPIC_MISSING),
    (Denied("permission is missing"), Cause.PERMISSION),
]


@pytest.mark.parametrize(("ending", "cause"), PARKED, ids=repr)
async def test_permanent_errors_park_the_shard_and_report_the_cause(played, caplog, ending, cause):
    play = played(*[ending] * MANY)
    play.faults = ("counts cannot be read",)
    await play.stays(ShardState.PARKED, opened=1)
    status = play.shard.status
    assert (status.cause, status.reason) == (cause, str(ending))
    assert play.suspected == (cause in failures.MAYBE_LOCAL)
    assert f"event=shard_parked shard=0 cause={cause}" in caplog.text
    shown = play.shard._parts.metrics.rendering()().decode()
    assert f'stream_svt_shard_parked{{application="shop",cause="{cause}",shard="0"}} 1.0' in shown
    assert 'stream_svt_failures_total{application="shop",reason="parked"} 1.0' in shown


UNPROVED = (errors.UnreadableState("x"), errors.StateRolledBack("x"), errors.UnknownKey("x"))


@pytest.mark.parametrize("ending", UNPROVED, ids=repr)
async def test_an_unproved_state_is_read_again_after_a_change_and_opened_once_it_proves(played, ending):
    play = played(ending)
    await play.stays(ShardState.PARKED, opened=1)
    assert play.reads == 1
    play.brokers.write(STATE)
    await until(lambda: play.reads == 2)
    play.brokers.write(COMMANDS)
    await until(lambda: play.reads == 3)
    await play.stays(ShardState.PARKED, opened=1)
    assert (play.reads, play.consumer.commits) == (3, 1)
    play.proves = True
    play.brokers.write(STATE)
    await play.until(ShardState.RUNNING)
    assert play.opened == 2


@pytest.mark.parametrize("opening", [True, False], ids=["opening", "parked"])
async def test_a_state_repaired_while_its_shard_reads_it_is_opened(played, monkeypatch, opening):
    async def reads(*_: object, **__: object) -> None:
        if play.brokers.records[STATE] == 5:
            play.brokers.write(STATE)
            raise errors.UnreadableState("x")

    monkeypatch.setattr(Journal, "inspect", reads)
    play = played(reads if opening else errors.UnreadableState("x"))
    await play.until(ShardState.RUNNING)
    assert play.opened == 2


async def test_a_proved_state_that_cannot_be_used_is_opened_after_a_change(played, monkeypatch) -> None:
    monkeypatch.setattr(Journal, "proved", True)
    play = played(errors.UnreadableState("a run of another release"))
    play.proves = True
    await play.stays(ShardState.PARKED, opened=1)
    assert play.reads == 0
    play.brokers.write(STATE)
    await play.until(ShardState.RUNNING)


async def test_a_record_on_the_control_partition_wakes_a_parked_shard(played, monkeypatch) -> None:
    play = played(errors.MisuseError("x"))
    survey = failures.survey

    async def takes_long(*arguments: object) -> object:
        await asyncio.sleep(0.05)
        return await survey(*arguments)

    monkeypatch.setattr(module, "SURVEY_INTERVALS", (60.0,))
    monkeypatch.setattr(failures, "survey", takes_long)
    await play.until(ShardState.PARKED)
    play.brokers.write(COMMANDS)
    await play.until(ShardState.RUNNING)


@pytest.mark.parametrize("error", [None, KeyError("x")], ids=repr)
async def test_a_survey_that_hangs_or_fails_keeps_no_shard_from_parking(played, monkeypatch, error) -> None:
    async def survey(*_: object) -> object:
        await asyncio.sleep(0.05)
        raise error or BrokerUnavailable("x")

    monkeypatch.setattr(module, "FIRST_SURVEY", 0.01)
    play = played(*[errors.StateRolledBack("x")] * 9)
    monkeypatch.setattr(failures, "survey", survey)
    await play.stays(ShardState.PARKED, opened=1)


async def test_a_shard_parked_before_a_record_stamped_ahead_opens_once_the_clock_has_passed(
    played, monkeypatch
):
    now = [1e9]
    monkeypatch.setattr(module, "CLOCK", replace(module.CLOCK, epoch=lambda: now[0]))
    play = played(errors.TimestampAhead("too far", 1e9 + 5))
    await play.stays(ShardState.PARKED, opened=1)
    now[0] += 5
    await play.until(ShardState.RUNNING)


async def test_no_command_is_missed_during_the_survey_or_retry_of_an_unproved_shard(played, monkeypatch):
    handled: list[int] = []

    async def give_up(_: object, record: SimpleNamespace) -> None:
        handled.append(record.offset)

    async def command_comes() -> None:
        play.brokers.write(COMMANDS)
        play.proves = False
        raise errors.UnreadableState("x")

    monkeypatch.setattr(module.Shard, "_give_up", give_up)
    monkeypatch.setattr(module, "SURVEY_INTERVALS", (60.0,))
    play = played(errors.UnreadableState("x"), command_comes)
    await play.stays(ShardState.PARKED, opened=1)
    play.proves = True
    play.brokers.write(COMMANDS)
    await until(lambda: handled == [7, 8])
    await play.stays(ShardState.PARKED, opened=2)


@pytest.mark.parametrize(("late", "given_up"), [(599, 1), (601, 0)], ids=["within the tolerance", "expired"])
async def test_an_expired_command_gives_no_state_up(monkeypatch, caplog, late: int, given_up: int) -> None:
    """By the worker's clock, which may be ten minutes off."""
    given: list[Command] = []

    async def give_up(command: Command) -> None:
        given.append(command)

    async def close() -> None:
        """Nothing is open."""

    journal = SimpleNamespace(give_up=give_up, close=close)
    monkeypatch.setattr(module.Shard, "_journal", lambda _: journal)
    monkeypatch.setattr(module, "CLOCK", replace(module.CLOCK, epoch=lambda: 10_000.0))
    shard = object.__new__(module.Shard)
    shard.number, shard._verify = 3, accept_all
    expires = (10_000 - late) * 1000
    command = Command("c", Action.CLOSE_APPLICATION, successor="next", cluster="c", expires=expires)
    await shard._give_up(SimpleNamespace(value=msgspec.json.encode(command), headers=()))
    assert len(given) == given_up
    assert ("event=command_refused shard=3" in caplog.text) == (not given_up)


async def test_an_unexpected_error_leaves_a_parked_shard_parked_and_its_text_is_not_logged(played, caplog):
    play = played(ValueError("value 4711"), errors.UnreadableState("x"))
    play.brokers.errors[COMMANDS] = ValueError("value 4711")
    await play.stays(ShardState.PARKED, opened=2)
    assert caplog.text.count("event=shard_error shard=0 error='unexpected ValueError at ") > 4
    assert "4711" not in caplog.text


@pytest.mark.parametrize("seconds", [0, LONG], ids=["at once", "late"])
async def test_a_missing_topic_is_distinguished_from_unreachable_brokers(played, monkeypatch, seconds):
    monkeypatch.setattr(module, "STEADY", LONG / 2)
    play = played(*[fails(BrokerUnavailable("no answer"), seconds)] * 3)
    play.faults = ("topic 'counts' does not exist",)
    await play.stays(ShardState.PARKED, opened=2)
    assert play.shard.status.cause is Cause.TOPIC_MISSING
    assert "topic 'counts' does not exist" in play.shard.status.reason
    play.endings.clear()
    play.faults = ()
    await play.until(ShardState.RUNNING)


async def test_a_parked_shard_reads_a_control_topic_that_was_created_again(played, monkeypatch) -> None:
    play = played(errors.StateRolledBack("older"))
    play.brokers.records[COMMANDS] = 99
    await play.until(ShardState.PARKED)
    play.brokers.records[COMMANDS] = 7
    for error in (OffsetOutOfRangeError({COMMANDS: 99}), KafkaConnectionError("away")):
        play.brokers.errors[COMMANDS] = error
        await play.stays(ShardState.PARKED, opened=1)
    play.brokers.errors.clear()
    monkeypatch.setattr(module, "SURVEY_INTERVALS", (60.0,))
    await play.stays(ShardState.PARKED, opened=1)
    play.proves = True
    play.brokers.write(COMMANDS)
    await play.until(ShardState.RUNNING)


async def test_a_fenced_member_opens_again_and_a_non_member_does_not(played) -> None:
    play = played(Fenced("x"))
    await play.until(ShardState.RUNNING)
    assert play.consumer.commits == 1
    outsider = played(*[Fenced("x")] * 3)
    outsider.consumer.refuse = True
    await outsider.until(ShardState.NOT_MEMBER)
    await asyncio.sleep(0.1)
    assert outsider.opened == 1  # it does not fence the owner until the next rebalance


@pytest.mark.parametrize("wakes", [False, True], ids=["state", "command"])
async def test_a_parked_non_member_fences_no_worker_and_gives_no_state_up(played, monkeypatch, wakes):
    monkeypatch.setattr(module.Shard, "_give_up", lambda *_: pytest.fail("the state was given up"))
    play = played(*[errors.StateRolledBack("x")] * 3)
    await play.until(ShardState.PARKED)
    play.consumer.refuse = play.proves = True
    play.brokers.write(COMMANDS if wakes else STATE)
    await play.until(ShardState.NOT_MEMBER)
    assert play.opened == 1


@pytest.mark.parametrize("ending", [BrokerUnavailable("x"), ValueError("x")], ids=repr)
async def test_a_shard_whose_long_opening_fails_is_opened_with_increasing_backoff(
    played, monkeypatch, ending
):
    """Reading a large state takes longer than `STEADY`, which resets the count of failures."""
    waits: list[float] = []
    play = played(*[fails(ending, LONG)] * 8)
    monkeypatch.setattr(module, "STEADY", LONG / 2)
    monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001, 0.002, 0.003))
    monkeypatch.setattr(module, "UNEXPECTED_BACKOFF", (0.0, 0.001, 0.002, 0.003))
    wait = play.shard._wait

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await wait(seconds)

    play.shard._wait = noted
    await play.until(ShardState.RUNNING)
    assert waits == [0.0, 0.001, 0.002] + 5 * [0.003]


async def test_a_shard_whose_long_opening_is_refused_is_tried_at_increasing_intervals(played, monkeypatch):
    play = played(*[fails(Denied("permission is missing: WRITE on alerts"), LONG)] * MANY)
    monkeypatch.setattr(module, "STEADY", LONG / 2)
    monkeypatch.setattr(module, "SURVEY_INTERVALS", (0.01, 5.0))
    await play.until(ShardState.PARKED)
    await asyncio.sleep(0.3)
    assert play.opened == 2


async def test_failures_are_reset_once_a_session_has_run_for_a_while(played, monkeypatch) -> None:
    play = played(*[BrokerUnavailable("x")] * 3)
    monkeypatch.setattr(module, "STEADY", 0.05)
    await play.until(ShardState.RUNNING)
    assert play.shard._failures == 3
    await asyncio.sleep(0.1)
    play.fenced = [BrokerUnavailable("x")]
    await play.hold()
    play.shard.release()
    await until(lambda: play.opened >= 5)
    assert play.shard._failures == 1


@pytest.mark.parametrize("step", ["end", "reader", "journal"])
async def test_an_error_at_the_end_of_a_session_prevents_no_other_step(played, monkeypatch, step):
    monkeypatch.setattr(module, "BACKOFF", (0.0,))
    done: list[str] = []

    def fails_at(name: str) -> list[object]:
        done.append(name)
        if name == step:
            raise ValueError
        return []

    async def close(part: ShardFeed | Journal) -> None:
        fails_at("reader" if isinstance(part, ShardFeed) else "journal")

    monkeypatch.setattr(ShardFeed, "close", close)
    monkeypatch.setattr(Journal, "close", close)
    play = played()
    monkeypatch.setattr(module.ShardSession, "end", lambda session: fails_at("end"))
    await play.until(ShardState.RUNNING)
    await play.hold()
    assert not done
    play.shard._requests.paused.clear()
    play.fenced = [Fenced("x")]
    play.shard.release()
    await until(lambda: play.opened >= 2)
    assert done[:3] == ["end", "reader", "journal"]
    await play.shard.stop(2.0)
    assert play.shard._requests.paused.is_set()


async def call() -> None:
    async with deadline(1.0, "reading"):
        await asyncio.sleep(0)


@pytest.mark.parametrize("sign", [call, yield_to_loop], ids=["call", "piece of work"])
async def test_a_long_restore_with_progress_is_not_restarted(played, monkeypatch, sign) -> None:
    async def restore() -> None:
        end = time.monotonic() + 3 * STUCK
        while time.monotonic() < end:
            await sign()
            await asyncio.sleep(0.05)

    play = played(restore)
    async with watched(monkeypatch, play):
        await play.until(ShardState.RUNNING)
    assert play.opened == 1


async def test_a_shard_without_progress_is_restarted(played, monkeypatch) -> None:
    play = played(hang)
    async with watched(monkeypatch, play):
        await play.until(ShardState.RUNNING)
    assert play.opened == 2


async def test_unreachable_brokers_do_not_make_a_shard_stuck(played, monkeypatch, caplog) -> None:
    play = played(*[fails(BrokerUnavailable("x"), 0.6 * STUCK)] * 4)
    async with watched(monkeypatch, play):
        await play.until(ShardState.RUNNING)
    assert play.opened == 5
    assert "shard_stuck" not in caplog.text


async def test_no_session_begins_after_a_hand_over_during_a_restart(played) -> None:
    play = played(hang)
    # Closing a producer whose brokers are unreachable takes some seconds.
    play.make_journal = lambda: SimpleNamespace(close=lambda: asyncio.sleep(0.2))
    await asyncio.sleep(0.05)
    assert play.opened == 1
    restart = asyncio.create_task(play.shard.restart())
    await asyncio.sleep(0.05)
    await play.shard.stop(5.0)
    await restart
    await asyncio.sleep(0.3)
    assert play.opened == 1
    assert [task for task in asyncio.all_tasks() if task.get_name() == "shard-0"] == []


async def test_no_session_begins_while_a_cancelled_one_still_runs(played, monkeypatch) -> None:
    monkeypatch.setattr(kafka, "START_DEADLINE", 0.05)
    given_up = asyncio.Event()
    play = played(hang)
    play.make_journal = lambda: SimpleNamespace(close=given_up.wait)
    await asyncio.sleep(0.05)
    assert play.opened == 1
    await play.shard.restart()
    assert play.opened == 1
    async with watched(monkeypatch, play):
        play.shard.status.beat = 0.0
        given_up.set()
        await play.until(ShardState.RUNNING)
    assert play.opened == 2
