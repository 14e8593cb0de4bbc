"""A worker whose sealing key changes: the state is read with the key before, and sealed with the new one."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.protocol.sealing import key_id
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.check import check_brokers
from stream_svt.service.config import Config
from stream_svt.service.web.documents import status
from stream_svt.service.worker import Worker, cluster_of
from tests.support.keys import write_secrets
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


async def test_the_old_key_may_go_once_status_shows_it_for_no_shard(scene: Scene) -> None:
    """And `check` says before a worker starts whether it could open what is stored."""
    write_secrets(scene.directory, {"old": OLD.hex(), "new": NEW.hex()})
    old, new = key_id(OLD).hex(), key_id(NEW).hex()

    def config(sealing: str) -> Config:
        return scene.config(more=f"sealing: {{{sealing}}}\n")

    def shown(worker: Worker) -> set[str]:
        return {shard.key_id for shard in status(worker).shards}

    def spent(worker: Worker) -> dict[str, float]:
        return {view.dataset: view.spent for view in status(worker).datasets}

    async def started(sealing: str) -> Worker:
        worker = await scene.start(config(sealing))
        await until(lambda: all(shown(worker)))
        return worker

    async def checked(sealing: str) -> list[tuple[str, str]]:
        """Return what `check` says of the state."""
        said: list[tuple[str, str]] = []
        async with asyncio.timeout(20):
            while not said:  # topics that were made a moment ago may not be known yet
                found = await check_brokers(config(sealing), cluster_of(config(sealing)))
                said = [
                    (one.level, one.message) for one in found if one.subject in {"state", "sealing.key_file"}
                ]
        return said

    async def fails(sealing: str) -> str:
        """Return why a worker stays out of the group: it has no key that opens the state."""
        worker = await scene.start(config(sealing), ready=False)
        assert worker.fault is not None
        assert worker.fault.cause is Cause.SEALING_KEY
        assert worker.statuses() == []
        assert worker.alive
        await scene.stop(worker)
        return worker.fault.reason

    assert await checked("key_file: old") == [("ok", "nothing is stored yet")]
    opens = [("ok", "what 2 of 2 shards have stored opens with the configured keys")]
    worker = await started("key_file: old")
    assert await checked("key_file: old") == opens
    assert shown(worker) == {old}
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    before = spent(worker)
    await scene.stop(worker)
    # Too early: nothing was rewritten yet, and nothing is touched.
    reason = await fails("key_file: new")
    assert f"sealed with key {old}" in reason
    assert "previous_key_files" in reason
    ((level, problem),) = await checked("key_file: new")
    assert level == "problem"
    assert f"shards 0, 1 on topic '{scene.application}.state': it is sealed with key {old}" in problem
    both = "key_file: new, previous_key_files: [old]"
    assert await checked(both) == opens
    # One worker after the other is restarted: the first one's shards are read with the key before.
    first = await started("key_file: old")
    second = await scene.start(config(both), ready=False)
    await until(lambda: second.ready and len(first.statuses()) == len(second.statuses()) == 1)
    await scene.stop(first)
    await until(lambda: second.ready and len(second.statuses()) == 2 and shown(second) == {new})
    await scene.stop(second)
    # Outbox records that no longer count are left as they are.
    live = {place: value for place, value in (await scene.live()).items() if place[1][:3] != b"ob/"}
    assert {value[10:18].hex() for value in live.values()} == {new}
    worker = await started("key_file: new")
    assert spent(worker) == before
    await scene.stop(worker)
    assert f"sealed with key {new}" in await fails("key_file: old")
