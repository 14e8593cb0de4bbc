"""What nobody may do: wake up a closed application, carry over one that runs, or let two go on with its budgets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.released import EventType, decode
from stream_svt.protocol.carry_over import CarryOverRefused
from stream_svt.protocol.ports import Transaction
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.config import parse_config
from stream_svt.service.shard_log import ShardLog
from tests.support.closing import CARRIED, SEALED, TOPS, Application, Stage, balances, goes_on
from tests.support.worker import HIGH

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("given_up", [False, True], ids=["closed in order", "given up"])
async def test_a_closed_application_that_is_started_again_stays_closed_and_writes_nothing(
    stage: Stage, given_up: bool
) -> None:
    """And it has one successor, of more partitions here; a planned move to it loses nothing."""
    old = await stage.old()
    real = await old.spend(TOPS)
    newest = await old.scene.live()
    if given_up:
        await old.scene.make_anew("state")
        await old.give_up(stage.successor, (0, 1), Cause.STATE_ROLLED_BACK, "is empty")
    else:
        await old.close_in_order(stage.successor)
        newest = await old.scene.live()
    await old.scene.send("a", HIGH)
    await _stays_closed(old, stage.successor)
    for (shard, key), value in newest.items():  # the newest state is found again, in a backup
        await old.scene.producer.send_and_wait(f"{old.name}.state", value, key=key, partition=shard)
    await _stays_closed(old, stage.successor)
    assert (await old.told()).spent == real.spent
    carried = await old.carry_over(stage.successor)
    assert balances(carried) == (real.held if given_up else real.spent)
    assert given_up or (old.notes, carried.complete) == ([], True)
    with pytest.raises(CarryOverRefused, match=f"closed for successor '{stage.successor}': a second one"):
        await old.carry_over("second")
    text = old.scene.text().replace(f"application: {old.name}", "application: second") + SEALED + CARRIED
    with pytest.raises(ConfigError, match="another one would spend it twice"):
        parse_config(text, directory=old.directory)
    await goes_on(old, await stage.new(), carried, real)


async def _stays_closed(old: Application, successor: str) -> None:
    """A worker parks every shard, is ready, and writes nothing; commands are answered all the same."""
    before = await old.scene.ends("state", "alerts")
    worker = await old.scene.start(old.config(), ready=False)
    await old.parked(worker, {Cause.CLOSED})
    assert all("is closed for ever" in status.reason for status in worker.statuses())
    for name, accepted in ((successor, True), ("another", False)):
        for give_up in (False, True):
            for reply in await old.close(name, give_up=give_up, patience=3):
                # A state that its owner closed could be given up only where its key is lost: nobody answers.
                expected = None if give_up and accepted and "no answer" in reply.message else accepted
                assert reply.accepted is expected, reply
                assert expected is None or f"closed for ever, for successor '{successor}'" in reply.message
    (paused,) = await old.command("a")
    assert (paused.accepted, "closed for ever" in paused.message) == (False, True)
    await old.parked(worker, {Cause.CLOSED})
    assert worker.ready
    await old.scene.stop(worker)
    assert await old.scene.ends("state", "alerts") == before


async def test_what_still_runs_is_not_carried_over_nor_given_up(stage: Stage) -> None:
    old = await stage.old()
    real = await old.spend(TOPS)
    worker = await old.scene.start(old.config())
    (reply,) = await old.close(stage.successor, shard=0, give_up=True, patience=2)
    assert (reply.accepted, "no worker holds the shard parked" in reply.message) == (None, True)
    await old.scene.stop(worker)
    assert await old.spend({}) == real
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0, 1"):
        await old.carry_over(stage.successor)
    worker = await old.scene.start(old.config())
    (reply,) = await old.close(stage.successor, shard=1)
    assert reply.accepted
    with pytest.raises(CarryOverRefused, match=r"not closed yet: shard 0\. "):
        await old.carry_over(stage.successor)
    assert not (old.directory / "carried.jsonl").exists()
    await old.scene.stop(worker)


async def test_a_forged_end_on_the_alert_topic_closes_nothing(stage: Stage) -> None:
    """The worker that runs goes on; the next one finds that events are not its own, and parks the shard."""
    old = await stage.old()
    real = await old.spend(TOPS)
    worker = await old.scene.start(old.config())
    newest = [record.value for record in await old.scene.read("alerts") if record.partition == 0][-1]
    await old.scene.producer.send_and_wait(
        f"{old.name}.alerts", _forged_end(newest, stage.successor), partition=0
    )
    with pytest.raises(CarryOverRefused, match="not closed yet: shard 0, 1"):
        await old.carry_over(stage.successor)
    await old.scene.send("a", HIGH)
    await old.scene.settled(worker, sum(TOPS.values()) + 1)
    assert (await old.told()).spent["a"] > real.spent["a"]
    await old.scene.stop(worker)
    assert not any(record.key == b"closed" for record in await old.scene.read("state"))
    await old.give_up(stage.successor, [0], Cause.STATE_ROLLED_BACK, "shows event")
    worker = await old.scene.start(old.config(), ready=False)
    await old.parked(worker, {Cause.CLOSED}, [0])
    (reply,) = await old.close(stage.successor, shard=1)
    assert reply.accepted
    await old.parked(worker, {Cause.CLOSED})
    await old.scene.stop(worker)
    carried = await old.carry_over(stage.successor)
    assert "different histories" in old.notes[0]
    for name, balance in carried.datasets.items():  # all of them but one have their home in shard 0
        assert balance.spent == (real.spent[name] if name in {"d", "f"} else balance.limit), name


def _forged_end(newest: bytes, successor: str) -> bytes:
    """Return the event that would close a shard behind its newest one, of somebody who has no key."""
    known = msgspec.json.decode(newest)
    number = known["sequence"] + 1
    data = {"dataset": "", "monitor": "", "run": 0, "reason": "command", "account": None}
    forged = known | {
        "type": EventType.APPLICATION_CLOSED,
        "id": f"{known['source']}/closed/{number}",
        "sequence": number,
        "data": data | {"detail": {"successor": successor, "balances": 0}},
    }
    value = msgspec.json.encode(forged)
    assert decode(value)[0].type == EventType.APPLICATION_CLOSED
    return value


async def test_an_alert_that_a_worker_sent_and_never_committed_counts_as_spent(
    stage: Stage, secure_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads uncommitted events saw it; a mirror does not hold it, and counts its run in full."""
    old = await stage.old()
    real = await old.spend(TOPS)
    await _dies_while_it_publishes(old, monkeypatch)
    assert (await old.told()) == real
    charged = await old.charged()
    assert charged["a"] > real.spent["a"]
    mirror = await old.mirrored_to(secure_broker.bootstrap_servers)
    expected = real.held
    assert balances(await mirror.carry_over(stage.successor, source_ended=True)) == expected
    await old.scene.make_anew("state")
    await old.give_up(stage.successor, (0, 1), Cause.STATE_ROLLED_BACK, "is empty")
    carried = await old.carry_over(stage.successor)
    assert balances(carried) == expected
    assert all(charged[name] <= amount for name, amount in balances(carried).items())
    await goes_on(old, await stage.new(), carried, real)


async def _dies_while_it_publishes(old: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker send one more alert of dataset a, but not the end of the transaction, nor anything after it."""
    transact, dead = ShardLog.transact, asyncio.Event()

    async def die() -> None:
        dead.set()
        raise ConnectionError("the process died")

    async def until_death(log: ShardLog, transaction: Transaction) -> int | None:
        if dead.is_set():
            await die()
        if transaction.alerts:
            log._producer.commit_transaction = die
        return await transact(log, transaction)

    async def never(log: ShardLog) -> None:
        await die()

    worker = await old.scene.start(old.config())
    with monkeypatch.context() as patched:
        patched.setattr(ShardLog, "transact", until_death)
        patched.setattr(ShardLog, "fence", never)
        await old.scene.send("a", HIGH)
        async with asyncio.timeout(20):
            await dead.wait()
        await old.scene.stop(worker)
