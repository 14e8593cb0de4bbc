"""Drills: somebody puts an older, an empty or a foreign state in the place of a shard's own.

Each time the ledgers would say that less was spent than the published alerts show, or nothing at all. Each time the
shard parks and changes nothing, and opens by itself once what belongs together is put back.
"""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.protocol.shard_states import Cause
from stream_svt.service.config import Config, parse_config
from stream_svt.service.worker import Worker
from tests.support.closing import SEALED, SEALED_ANEW, Application, Stage, State_
from tests.support.topics import create_topics
from tests.support.worker import CLOCK, COMPACTED, HIGH, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def app(stage: Stage) -> Application:
    return await stage.old(partitions=1)


async def refuses(app: Application, words: str) -> Worker:
    """A worker waits, loudly, and processes nothing; return it."""
    published = await app.scene.alerts()
    worker = await app.scene.start(app.config(), ready=False)
    await app.parked(worker, {Cause.STATE_ROLLED_BACK})
    assert words in complaint(worker)
    assert worker.alive
    await app.scene.send("a", HIGH)
    await asyncio.sleep(0.3)
    assert await app.scene.alerts() == published
    return worker


async def cannot_be_read(app: Application, words: str, config: Config | None = None) -> None:
    """The worker takes no query, and changes nothing."""
    before, published = await app.scene.live(), await app.scene.alerts()
    ends = await app.scene.ends("state", "alerts")
    worker = await app.scene.start(config or app.config(), ready=False)
    await until(lambda: words in complaint(worker))
    assert worker.alive
    assert not is_open(worker)
    await app.scene.stop(worker)
    assert await app.scene.live() == before
    assert await app.scene.alerts() == published
    assert await app.scene.ends("state", "alerts") == ends


async def last_alert(app: Application) -> int:
    """Return where the mark behind the last alert stands."""
    return (await app.scene.read("alerts", "read_uncommitted"))[-1].offset + 2


async def refused_until_put_back(app: Application, state: State_, words: str) -> None:
    """With this state nothing is processed until the newest is back; then the shard opens, and nothing is lost."""
    newest, published = await app.scene.live(), await app.scene.alerts()
    if state:
        await app.put(state)
    else:
        await app.scene.make_anew("state")
    worker = await refuses(app, words)
    await app.put(newest)
    await until(lambda: is_open(worker), 90)
    await app.scene.settled(worker, len(await app.scene.read("counts")))
    await app.scene.stop(worker)
    # The query that came while the shard was parked.
    assert len(await app.scene.alerts()) == len(published) + 1


async def test_an_older_or_an_empty_state_is_refused_until_the_newest_is_put_back(app: Application) -> None:
    """One from just before a publication would publish again, and charge nothing for what it forgot."""
    await app.spend({"a": 2})
    yesterday = await app.scene.live()
    await app.spend({"a": 2})
    await refused_until_put_back(app, yesterday, "ends with event")
    moment = await app.before_publication()
    await refused_until_put_back(app, moment, "as published, which the state still has to publish")
    await refused_until_put_back(app, {}, "is empty")
    # Also where retention took the alerts that the older state lacks.
    yesterday = await app.scene.live()
    await app.spend({"a": 3})
    await app.scene.delete_before("alerts", await last_alert(app))
    await app.put(yesterday)
    await refuses(app, "events were deleted that the state does not know of")


async def test_retention_that_took_every_alert_is_no_rollback(app: Application) -> None:
    """However many takeovers followed the last alert: each ends with a mark on the alert partition, too.

    A start with the wrong key leaves none there, which retention would make a loss.
    """
    await app.spend({"a": 2})
    app.more = SEALED_ANEW
    await cannot_be_read(app, "key")
    app.more = SEALED
    await app.spend({})
    await app.spend({})
    await app.scene.delete_before("alerts", await last_alert(app))
    await app.spend({})
    await app.spend({})
    await app.scene.delete_before("alerts", -1)
    assert (await app.spend({"a": 2})).spent["a"] > 0


async def test_a_mirror_under_another_name_is_no_state_of_this_application(app: Application) -> None:
    await app.spend({"a": 1})
    mirror = f"{app.name}.mirror"
    await create_topics(app.scene.servers, {mirror: 1}, CLOCK | COMPACTED)
    for (shard, key), value in (await app.scene.live()).items():
        await app.scene.producer.send_and_wait(mirror, value, key=key, partition=shard)
    text = (app.scene.text() + SEALED).replace("topics: {", f"topics: {{state: {mirror}, ")
    config = parse_config(text, directory=app.directory)
    await cannot_be_read(app, "belongs to another place", config)


async def test_the_state_of_a_foreign_cluster_is_refused_and_so_is_an_empty_one_beside_its_alerts(
    app: Application, secure_broker
) -> None:
    """A whole application mirrored to another cluster: the state is bound to where it was written."""
    await app.spend({"a": 2})
    async with Scene(secure_broker.bootstrap_servers, app.name, partitions=1, limit=4).on_stage() as scene:
        scene.datasets = app.scene.datasets
        other = Application(scene, app.directory)
        await other.put(await app.scene.live())
        for record in await app.scene.read("alerts"):
            await scene.producer.send_and_wait(
                f"{app.name}.alerts", record.value, key=record.key, partition=0
            )
        await cannot_be_read(other, "belongs to another place")
        await scene.make_anew("state")
        await refuses(other, "is empty")
