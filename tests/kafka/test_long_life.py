"""What happens to an application over months: idle weeks, clocks, a large state, commands to many datasets."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.clients import cluster_id_of
from stream_svt.kafka.frames import ResponseProtocol
from stream_svt.kafka.transactions import TransactionalProducer
from stream_svt.monitor.operations import Action
from stream_svt.monitor.state.accounts import Commit
from stream_svt.settings.periods import DAY_MS
from stream_svt.worker.ports import journal_of, open_meta, stored_metas
from tests.support.worker import HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka
SCENE = {"partitions": 1, "limit": 6}


async def test_a_worker_whose_producer_the_broker_forgot_goes_on_without_a_loss(scenes, lax_broker) -> None:
    """The broker forgets a transactional id after days without a transaction; here after a second."""
    scene = await scenes(on=lax_broker, **SCENE)
    worker = await scene.begun(HIGH, LOW)
    await asyncio.sleep(3)
    assert worker.ready
    await scene.send("b", HIGH)
    await scene.send("a", HIGH)
    await scene.settled(worker, 4)
    alerts = [(alert.dataset, alert.run, alert.number) for alert in await scene.alerts()]
    assert alerts == [("a", 1, 1), ("b", 1, 1), ("a", 1, 2)]
    assert (await scene.audited()).alerts == 3


async def test_a_record_that_the_brokers_refuse_for_its_time_names_the_workers_clock(
    scene, monkeypatch, caplog
):
    for name, policy in (("state", "compact"), ("alerts", "delete")):
        await scene.configure(name, {"message.timestamp.type": "CreateTime", "cleanup.policy": policy})
    worker = await scene.start()
    append = TransactionalProducer.append

    async def ahead(self: TransactionalProducer, appends: Any, timestamp_ms: int) -> object:
        return await append(self, appends, timestamp_ms + 2 * DAY_MS)

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "append", ahead)
        await scene.send("b", HIGH)
        await until(lambda: "set this machine's clock" in caplog.text)
    assert worker.alive
    await scene.settled(worker, 1)
    assert (await scene.audited()).alerts == 1


async def test_a_self_test_reads_little_of_a_large_state(scene: Scene, monkeypatch) -> None:
    """A worker repeats it under load, and its process keeps the memory of what it receives."""
    apply_fixes()
    config = scene.config()
    cluster_id = await cluster_id_of(config.cluster())
    journal = journal_of(config, config.cluster(), cluster_id, 0)
    await journal.open()
    for number in range(100):
        await journal.commit(Commit({b"k/%d" % (number % 3): os.urandom(100_000)}))
    received = []
    update = ResponseProtocol.buffer_updated
    monkeypatch.setattr(
        ResponseProtocol, "buffer_updated", lambda self, count: (received.append(count), update(self, count))
    )
    [(shard, newest)] = [found async for found in stored_metas(config, config.cluster())]
    assert open_meta(config, cluster_id, shard, newest).sequence == journal.meta.sequence
    assert sum(received) < 1_000_000
    await journal.close()


async def test_a_command_to_several_datasets_takes_as_many_transactions_as_one_to_one(scene: Scene) -> None:
    worker = await scene.begun(LOW)
    used = []
    for pattern in ("a", "[a-c]"):
        before = worker.statuses()[0].sequence
        reply = await scene.operate(Action.CLOSE, pattern)
        await until(lambda: not worker.statuses()[0].outbox)
        used.append(worker.statuses()[0].sequence - before)
        assert reply.complete, reply
    assert "close carried out on 3 datasets, refused on 0" in reply.message
    assert used[1] <= used[0] + 1
