"""Drills: somebody puts an older, an empty or a foreign state in the place of a shard's own.

Each time the books would say that less was spent than the published alerts show, or nothing at all. Each time the
shard must refuse, change nothing, and say the way out; and the way out counts every budget of the shard as spent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition

from stream_svt.monitor.commands import Action
from stream_svt.protocol.journal import META, Meta
from stream_svt.protocol.sealing import Place, Sealing
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service.config import parse_config
from stream_svt.service.control import Reply, for_shards, send
from stream_svt.service.kafka import spans
from stream_svt.service.signatures import SigningKey, signing_key
from stream_svt.service.topology import require
from stream_svt.service.worker import Worker, cluster_of
from tests.support.keys import ed25519_pair
from tests.support.topics import create_topics
from tests.support.worker import HIGH, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka
KEY = bytes(range(32))
Backup = Mapping[tuple[int, bytes], bytes]
COPY = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class Drill:
    """An application with one shard under a sealing key, its disasters and its operator."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self.scene = scene
        self.directory = directory
        self.more = ""
        (directory / "key").write_text(KEY.hex())
        (directory / "key").chmod(0o600)

    def config(self, more: str = ""):
        text = self.scene.text() + "sealing: {key_file: key}\n" + self.more
        if more:
            text = text.replace("topics: {", f"topics: {{{more}, ")
        return parse_config(text, directory=self.directory)

    async def day(self, tops: int) -> float:
        """Let a worker spend a part of the budget; return how much of it is spent."""
        worker = await self.scene.start(self.config())
        before = len(await self.scene.alerts())
        await self.scene.send("a", *[HIGH] * tops)
        await self.all_read(worker)
        (spent,) = [view["spent"] for view in worker.status()["datasets"]]
        await self.scene.stop(worker)
        assert len(await self.scene.alerts()) == before + tops
        return spent

    async def all_read(self, worker: Worker) -> None:
        await self.scene.settled(worker, len(await self.scene.read("counts")))

    # What goes wrong

    async def backup(self) -> Backup:
        records = await self.scene.read("state")
        latest = {(record.partition, record.key): record.value for record in records}
        return {place: value for place, value in latest.items() if value is not None}

    async def just_charged(self) -> Backup:
        """The state as the last transaction left it that charged an event and did not yet publish it."""
        application, config = self.scene.application, self.config()
        cluster_id = (await require(config, cluster_of(config))).cluster_id
        place = Place(cluster_id, application, f"{application}.state", 0)
        sealing, latest, found = Sealing(place, (KEY,), os.urandom), {}, {}
        for record in await self.scene.read("state"):
            latest[record.partition, record.key] = record.value
            if record.key == META:
                # A transaction writes this record last.
                meta = msgspec.msgpack.decode(sealing.open(META, record.value).content, type=Meta)
                found = dict(latest) if meta.chunks else found
        return {place: value for place, value in found.items() if value is not None}

    async def restore(self, backup: Backup, topic: str = "") -> None:
        """Write a copy of the state over whatever is there, as a restore or a mirror would."""
        for (partition, key), value in backup.items():
            await self.scene.producer.send(
                topic or f"{self.scene.application}.state", value, key=key, partition=partition
            )
        await self.scene.producer.flush()

    async def empty(self) -> None:
        """Delete the state topic and make it anew."""
        await self.scene.make_anew("state")

    # What must follow

    async def refuses(self, words: str) -> Worker:
        """A worker waits, loudly, and processes nothing; return it."""
        published = await self.scene.alerts()
        worker = await self.scene.start(self.config(), ready=False)
        await until(lambda: any(s.cause is Cause.STATE_ROLLED_BACK for s in worker.statuses()))
        (status,) = worker.statuses()
        assert words in status.reason
        assert "mark-exhausted" in status.reason
        assert status.state is State.PARKED
        assert worker.alive
        await self.scene.send("a", HIGH)
        await asyncio.sleep(0.3)
        assert await self.scene.alerts() == published
        return worker

    async def refuses_until_given_up(self, words: str) -> None:
        """Nothing is processed until the budgets are given up, and nothing is paid afterwards."""
        published = await self.scene.alerts()
        worker = await self.refuses(words)
        reply = await self.gives_up()
        assert reply.accepted, reply
        await until(lambda: is_open(worker))
        self.nothing_is_left(worker)
        await self.scene.stop(worker)
        # And it stays so, whoever comes next.
        worker = await self.scene.start(self.config())
        await self.scene.send("a", HIGH)
        await self.all_read(worker)
        self.nothing_is_left(worker)
        await self.scene.stop(worker)
        # Nothing new comes, and nothing a second time.
        assert await self.scene.alerts() == published

    async def gives_up(self, key: SigningKey | None = None, patience: float = 10) -> Reply:
        config = self.config()
        (reply,) = await send(
            cluster_of(config),
            control=config.topics.control,
            alerts=config.topics.alerts,
            commands=for_shards(config, Action.MARK_EXHAUSTED, [0]),
            patience=patience,
            application=config.spec.application,
            signing_key=key,
        )
        return reply

    @staticmethod
    def nothing_is_left(worker: Worker) -> None:
        for view in worker.status()["datasets"]:
            assert view["spent"] == view["limit"]
            assert [monitor["state"] for monitor in view["monitors"]] == ["exhausted"]

    async def cannot_be_read(self, words: str, more: str = "") -> None:
        """The worker takes no query, and changes nothing."""
        before, published, end = await self.backup(), await self.scene.alerts(), await self.alerts_end()
        worker = await self.scene.start(self.config(more), ready=False)
        await until(lambda: words in complaint(worker))
        assert worker.alive
        assert not is_open(worker)
        await self.scene.stop(worker)
        assert await self.backup() == before
        assert await self.scene.alerts() == published
        assert await self.alerts_end() == end

    async def alerts_end(self) -> int:
        """Return where the alert partition ends, marks of transactions included."""
        place = TopicPartition(f"{self.scene.application}.alerts", 0)
        return (await spans(cluster_of(self.config()), [place], "looking"))[place][1]


def stage(servers: str, application: str) -> Scene:
    return Scene(servers, application, partitions=1, datasets="a", limit=10)


@pytest.fixture
async def drill(broker, topics, tmp_path) -> AsyncIterator[Drill]:
    async with stage(broker.bootstrap_servers, topics.name("shop")).on_stage() as scene:
        yield Drill(scene, tmp_path)


async def test_a_day_old_state_is_refused_and_giving_up_exhausts_every_budget(drill: Drill) -> None:
    spent = await drill.day(tops=2)
    yesterday = await drill.backup()
    assert await drill.day(tops=3) > spent
    await drill.restore(yesterday)
    await drill.refuses_until_given_up("ends with event")


async def test_a_state_from_just_before_a_publication_is_refused(drill: Drill) -> None:
    """One transaction old: it would publish again what was published, and charge nothing for what it forgot."""
    await drill.day(tops=1)
    moment = await drill.just_charged()
    await drill.empty()
    await drill.restore(moment)
    await drill.refuses_until_given_up("as published, which the state still has to publish")


async def test_a_day_old_state_is_refused_although_retention_took_the_younger_alerts(drill: Drill) -> None:
    await drill.day(tops=2)
    yesterday = await drill.backup()
    await drill.day(tops=3)
    end = (await drill.scene.read("alerts", "read_uncommitted"))[-1].offset + 2
    await drill.scene.delete_before("alerts", end)
    await drill.restore(yesterday)
    await drill.refuses("events were deleted which the state does not know of")


async def test_an_older_state_is_refused_beside_an_alert_topic_made_anew(drill: Drill) -> None:
    """The new events lie before the place where the older state says that the next ones come."""
    await drill.day(tops=5)
    yesterday = await drill.backup()
    await drill.scene.make_anew("alerts")
    await drill.scene.stop(await drill.scene.start(drill.config()))
    await drill.day(tops=1)
    await drill.restore(yesterday)
    await drill.refuses("ends with event")


async def test_starts_with_the_wrong_key_are_no_rollback_later(drill: Drill) -> None:
    """Each of them proves ownership; where that left a mark beside the alerts, retention would make it a loss."""
    await drill.day(tops=2)
    key = drill.directory / "key"
    key.write_text(bytes(32).hex())
    for _ in range(3):
        await drill.cannot_be_read("key")
    key.write_text(KEY.hex())
    await drill.scene.delete_before("alerts", -1)  # up to the end
    assert (await drill.day(tops=2)) > 0


async def test_retention_that_took_every_alert_is_no_rollback(drill: Drill) -> None:
    """However many takeovers followed the last alert: each ends with a mark on the alert partition, too."""
    await drill.day(tops=2)
    for _ in range(2):
        await drill.scene.stop(await drill.scene.start(drill.config()))
    end = (await drill.scene.read("alerts", "read_uncommitted"))[-1].offset + 2
    await drill.scene.delete_before("alerts", end)
    for _ in range(2):
        await drill.scene.stop(await drill.scene.start(drill.config()))
    await drill.scene.delete_before("alerts", -1)  # up to the end
    assert (await drill.day(tops=2)) > 0


async def test_a_mirror_that_lags_behind_is_refused_as_the_past_it_is(drill: Drill) -> None:
    """A copy job that is some transactions late: every record of it is genuine, and so is its digest."""
    await drill.day(tops=1)
    late = await drill.backup()
    await drill.day(tops=1)
    await drill.empty()
    await drill.restore(late)
    await drill.refuses("ends with event")


async def test_an_emptied_state_topic_is_refused_and_giving_up_exhausts_every_budget(drill: Drill) -> None:
    await drill.day(tops=2)
    await drill.empty()
    await drill.refuses_until_given_up("is empty")


async def test_a_mirror_under_another_name_is_no_state_of_this_application(drill: Drill) -> None:
    await drill.day(tops=1)
    mirror = f"{drill.scene.application}.mirror"
    await create_topics(drill.scene.servers, {mirror: 1}, COPY)
    await drill.restore(await drill.backup(), mirror)
    await drill.cannot_be_read("belongs to another place", f"state: {mirror}")


async def test_only_a_signed_command_gives_budgets_up_where_signatures_are_required(drill: Drill) -> None:
    """Also while the state cannot be trusted, and the command itself is not remembered in it."""
    private, public = ed25519_pair()
    (drill.directory / "alice.pub").write_text(public)
    drill.more = "control: {public_key_files: [alice.pub]}\n"
    await drill.day(tops=1)
    await drill.empty()
    worker = await drill.refuses("is empty")
    assert (await drill.gives_up(patience=1.5)).accepted is None
    assert [status.cause for status in worker.statuses()] == [Cause.STATE_ROLLED_BACK]
    assert (await drill.gives_up(signing_key(private))).accepted
    await until(lambda: is_open(worker))
    drill.nothing_is_left(worker)


async def test_the_state_of_a_foreign_cluster_is_refused_and_so_is_an_empty_one_beside_its_alerts(
    drill: Drill, secure_broker
) -> None:
    """A whole application mirrored to another cluster: the state is bound to where it was written."""
    await drill.day(tops=2)
    state, alerts = await drill.backup(), await drill.scene.read("alerts")
    async with stage(secure_broker.bootstrap_servers, drill.scene.application).on_stage() as scene:
        other = Drill(scene, drill.directory)
        await other.restore(state)
        for record in alerts:
            await scene.producer.send_and_wait(
                f"{scene.application}.alerts", record.value, key=record.key, partition=record.partition
            )
        await other.cannot_be_read("belongs to another place")
        await other.empty()
        await other.refuses_until_given_up("is empty")


async def test_a_state_cut_off_anywhere_in_its_history_is_never_accepted_as_a_younger_one(
    drill: Drill,
) -> None:
    """Every point in time of the state topic, not only those where a backup would be taken."""
    await drill.day(tops=2)
    records = await drill.scene.read("state")
    genuine = await drill.backup()
    moments: list[dict[tuple[int, bytes], bytes]] = []
    live: dict[tuple[int, bytes], bytes] = {}
    for _, group in itertools.groupby(records, key=lambda record: record.timestamp):
        live |= {(record.partition, record.key): record.value for record in group}
        moments.append(dict(live))
    refused, running = 0, False
    for moment in [*moments[: -1 : max(1, len(moments) // 6)], moments[-1]]:
        await drill.empty()
        await drill.restore(moment)
        worker = await drill.scene.start(drill.config(), ready=False)
        await until(
            lambda worker=worker: (
                worker.statuses() != []
                and all(s.state in {State.PARKED, State.RUNNING} for s in worker.statuses())
            )
        )
        (status,) = worker.statuses()
        assert status.cause in {Cause.NONE, Cause.STATE_ROLLED_BACK, Cause.STATE_UNREADABLE}
        running = status.state is State.RUNNING
        refused += status.cause is Cause.STATE_ROLLED_BACK
        await drill.scene.stop(worker)
        assert not running or _charged(moment) == _charged(genuine)
    assert refused
    assert running, "the newest moment, which came last, is the state itself"


def _charged(state: Backup) -> list[bytes]:
    """Return the records of datasets: sealed, so equal ones are the same writes."""
    return sorted(value for (_, key), value in state.items() if key.startswith(b"d/"))
