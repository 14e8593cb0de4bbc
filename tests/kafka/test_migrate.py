"""The partition count of a stopped application changes on a real broker, and the books stay what they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from stream_svt.errors import ConfigError, MigrationRefused
from stream_svt.monitor.engine import Commit
from stream_svt.monitor.released import Alert, EventType
from stream_svt.protocol.migration import MovingJournal, Report
from stream_svt.service import migrate as service
from stream_svt.service.audit import audit_state, audit_topic
from stream_svt.service.wire import home
from stream_svt.service.worker import cluster_of
from tests.support.command_line import CommandLine
from tests.support.worker import HIGH, LOW, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka
BEFORE, AFTER = 2, 5
NAMES = [f"d{number}" for number in range(9)]


@pytest.fixture
async def scene(broker, topics) -> AsyncIterator[Scene]:
    async with Scene(
        broker.bootstrap_servers, topics.name("shop"), partitions=BEFORE, datasets=", ".join(NAMES), limit=6
    ).on_stage() as scene:
        yield scene


async def _played(scene: Scene) -> dict[str, float]:
    """Let a worker see a few queries of every dataset; return what each has spent."""
    worker = await scene.start()
    for number, name in enumerate(NAMES):
        await scene.send(name, *[HIGH] * (number % 5), LOW)
    await scene.settled(worker, sum(number % 5 + 1 for number in range(len(NAMES))))
    await scene.stop(worker)
    return await _spent(scene)


async def _spent(scene: Scene) -> dict[str, float]:
    spent: dict[str, float] = {}
    for _, data in await scene.events():
        if data.account is not None:
            spent[data.dataset] = max(spent.get(data.dataset, 0.0), data.account.spent)
    return spent


async def _migrate(scene: Scene, target: int = AFTER, **options: Any) -> Report:
    config = scene.config()
    return await service.migrate(config, cluster_of(config), target, **options)


async def _assert_balanced(scene: Scene) -> None:
    """Both forms of the audit, and numbering without gaps."""
    config = scene.config()
    public = await audit_topic(cluster_of(config), config.topics.alerts)
    operator = await audit_state(config, cluster_of(config))
    assert public.problems + operator.problems == []
    assert operator.ledgers == len(NAMES)
    for shard in range(scene.partitions):
        found = [envelope.sequence for envelope, _ in await scene.events() if envelope.shard == shard]
        assert found == list(range(1, len(found) + 1))


async def test_two_partitions_become_five_and_every_budget_is_what_it_was(scene: Scene) -> None:
    before = await _played(scene)
    told = await service.rehearse(scene.config(), cluster_of(scene.config()), AFTER)
    report = await _migrate(scene)
    assert {name: spent for name, (spent, _) in report.books.items()} == before
    assert {limit for _, limit in report.books.values()} == {6.0}
    assert (told.books, sorted(told.moved), told.runs_closed) == (
        report.books,
        sorted(report.moved),
        report.runs_closed,
    )
    with pytest.raises(ConfigError, match=r"has 5 partitions, topics\.partitions says 2"):
        await scene.start()
    await scene.stop(scene.workers[-1])
    scene.partitions = AFTER
    assert await _spent(scene) == before
    await _assert_balanced(scene)

    # Sent before the first worker starts again: to the new homes, and all of it is read.
    await (
        scene.producer.client.force_metadata_update()
    )  # a producer of the old count would send to the old homes
    for name in NAMES:
        await scene.send(name, HIGH)
    old = len(await scene.alerts())
    worker = await scene.start(ready=False)
    await until(lambda: worker.ready and len(worker.statuses()) == AFTER)
    await scene.settled(worker, len(await scene.read("counts")))
    alerts = await scene.alerts()
    assert len(alerts) == old + len(NAMES)
    events = await scene.events()
    for envelope, data in events:
        if isinstance(data, Alert) and envelope.shard >= BEFORE:
            assert home(data.dataset.encode(), AFTER) == envelope.shard
    assert sum(envelope.type == EventType.MOVED for envelope, _ in events) == len(report.moved)
    assert {envelope.shard for envelope, _ in events} > set(range(BEFORE))
    await scene.stop(worker)
    await _assert_balanced(scene)


class _Killed(Exception):
    """Stands for a process that dies."""


class _DyingGround(service.KafkaGround):
    """Dies at one of its acts, before or after it, or in the middle of the last transaction."""

    at = ""

    def journal(self, shard: int, partitions: int) -> MovingJournal:
        journal = super().journal(shard, partitions)
        if self.at == "between two shards" and shard == 1:
            journal.leave = self._dies  # type: ignore[method-assign]
        return journal

    async def _dies(self, commit: Commit) -> None:
        raise _Killed

    async def grow(self, *, inputs: bool) -> None:
        if self.at == f"before growing {inputs}":
            raise _Killed
        await super().grow(inputs=inputs)

    async def write(self, records: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        if self.at == "in the last transaction":
            topic, producer = self._config.topics.state, self._producer
            await producer.client.force_metadata_update()
            while len(await producer.partitions_for(topic)) < self._target:
                await producer.client.force_metadata_update()
            await producer.begin_transaction()
            for shard, changes in list(records.items())[:3]:
                for key, content in changes.items():
                    await (await producer.send(topic, content, key=key, partition=shard))
            raise _Killed
        await super().write(records)
        if self.at == "after the last transaction":
            raise _Killed


async def test_a_migration_killed_anywhere_is_finished_by_the_next(scene: Scene, monkeypatch) -> None:
    """In one application, one after the other: each finds what the one before left."""
    before = await _played(scene)
    monkeypatch.setattr(service, "KafkaGround", _DyingGround)
    for at in (
        "between two shards",
        "before growing False",
        "before growing True",
        "in the last transaction",
        "after the last transaction",
    ):
        monkeypatch.setattr(_DyingGround, "at", at)
        with pytest.raises(_Killed):
            await _migrate(scene)
        if at in ("between two shards", "before growing False"):
            await _assert_no_worker_starts(scene)
        if at == "in the last transaction":
            scene.partitions = AFTER
            await _assert_no_worker_starts(scene)
            scene.partitions = BEFORE
    monkeypatch.setattr(_DyingGround, "at", "")
    report = await _migrate(scene)
    assert report.finished_before
    assert {name: spent for name, (spent, _) in report.books.items()} == before
    scene.partitions = AFTER
    await _assert_balanced(scene)
    worker = await scene.start(ready=False)
    await until(lambda: worker.ready and len(worker.statuses()) == AFTER)
    await scene.producer.client.force_metadata_update()
    await scene.send(NAMES[0], HIGH)
    await scene.settled(worker, len(await scene.read("counts")))
    await scene.stop(worker)
    await _assert_balanced(scene)


async def _assert_no_worker_starts(scene: Scene) -> None:
    worker = await scene.start(ready=False)
    await until(lambda: "migration to 5 partitions was begun and is not finished" in complaint(worker))
    assert not is_open(worker)
    await scene.stop(worker)


async def test_what_forbids_a_migration_is_named_and_nothing_changes(scene: Scene) -> None:
    before = await _played(scene)
    with pytest.raises(ConfigError, match="Kafka cannot take partitions away"):
        await _migrate(scene, 1)
    with pytest.raises(ConfigError, match="says 2 already"):
        await _migrate(scene, 2)
    await scene.send(NAMES[1], HIGH)
    with pytest.raises(MigrationRefused, match="queries that were not read yet"):
        await _migrate(scene)
    worker = await scene.start()
    with pytest.raises(MigrationRefused, match="has 1 member: stop every worker first"):
        await _migrate(scene)
    await scene.settled(worker, sum(number % 5 + 1 for number in range(len(NAMES))) + 1)
    await scene.stop(worker)
    await scene.command("pause", NAMES[2])
    with pytest.raises(MigrationRefused, match="commands that were not carried out"):
        await _migrate(scene)
    spent = await _spent(scene)
    assert {name: spent[name] for name in NAMES if name != NAMES[1]} == {
        name: before[name] for name in NAMES if name != NAMES[1]
    }
    await _assert_balanced(scene)


async def test_the_command_line_migrates_and_audits(scene: Scene, tmp_path, capfd) -> None:
    await _played(scene)
    path = tmp_path / "shop.yaml"
    path.write_text(scene.text())
    run = CommandLine(capfd)

    async def says(*arguments: object) -> str:
        ended = await asyncio.to_thread(run, *arguments)
        assert ended.code == 0, ended.err
        return ended.out

    move = ("migrate", "-c", path, "--partitions", AFTER)
    told = await says(*move, "--dry-run")
    assert re.search(r"^\d of \d datasets would move, \d open runs? would end\.$", told, re.MULTILINE), told
    told = await says(*move)
    assert re.search(r"^\d of \d datasets moved, \d open runs? ended\.$", told, re.MULTILINE), told
    assert "What is spent and the limits are what they were" in told
    path.write_text(path.read_text().replace("partitions: 2", "partitions: 5"))
    assert "9 ledgers in the state" in await says("audit", "-c", path, "--state")
