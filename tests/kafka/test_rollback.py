"""Somebody puts an older state in the place of a shard's own, or retention takes what a state does not know of.

The shard parks and changes nothing, and opens by itself once what belongs together is put back. Other states that
cannot be proved are in `tests/kafka/test_closing.py`; `tests/protocol/test_rollback.py` has the rules.
"""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.operate import audit
from stream_svt.protocol.history.audit import StoredShard
from stream_svt.protocol.shard_states import Cause
from stream_svt.worker.worker import Worker
from tests.support.closing import SEALED, SEALED_ANEW, Application
from tests.support.worker import HIGH, complaint, is_open, until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def app(scenes) -> Application:
    return await scenes(Application, partitions=1)


async def refuses(app: Application, words: str) -> Worker:
    """A worker waits, loudly, and processes nothing; return it."""
    published = await app.alerts()
    worker = await app.start(ready=False)
    assert words in await app.parked(worker, Cause.STATE_ROLLED_BACK)
    assert worker.alive
    await app.send("a", HIGH)
    await asyncio.sleep(0.3)
    assert await app.alerts() == published
    return worker


async def last_alert(app: Application) -> int:
    """Return where the mark behind the last alert stands."""
    return (await app.read("alerts", "read_uncommitted"))[-1].offset + 2


async def test_an_older_state_is_refused_until_the_newest_is_put_back(app: Application) -> None:
    await app.spend({"a": 2})
    yesterday = await app.live()
    await app.spend({"a": 2})
    newest, published = await app.live(), await app.alerts()
    await app.put(yesterday)
    worker = await refuses(app, "ends with event")
    await app.put(newest)
    await until(lambda: is_open(worker), 90)
    await app.settled(worker, len(await app.read("counts")))
    await app.stop(worker)
    assert len(await app.alerts()) == len(published) + 1  # the query that came while the shard was parked
    # Also where retention took the alerts that the older state lacks.
    yesterday = await app.live()
    await app.spend({"a": 3})
    await app.delete_before("alerts", await last_alert(app))
    await app.put(yesterday)
    await refuses(app, "events were deleted that the state does not know of")


async def test_retention_that_took_every_alert_is_no_rollback(app: Application) -> None:
    """However many takeovers followed the last alert: each ends with a mark on the alert partition, too.

    A start with the wrong key leaves none there, which retention would make a loss.
    """
    await app.spend({"a": 2})
    app.more = SEALED_ANEW
    worker = await app.start(ready=False)
    await until(lambda: "key" in complaint(worker))
    await app.stop(worker)
    app.more = SEALED
    await app.spend({})
    await app.spend({})
    await app.delete_before("alerts", await last_alert(app))
    await app.spend({})
    await app.spend({})
    await app.delete_before("alerts", -1)
    assert (await app.audited()).truncated == {0}
    assert (await app.spend({"a": 2})).spent["a"] > 0


async def test_what_is_published_while_the_audit_runs_is_not_held_against_the_state(app, monkeypatch):
    await app.spend({"a": 1})
    read_state = audit._read_state

    async def read_between(*args) -> StoredShard:
        await app.spend({"a": 1})
        state = await read_state(*args)
        await app.spend({"a": 1})
        return state

    monkeypatch.setattr(audit, "_read_state", read_between)
    assert (await app.audited()).alerts == 2
