"""A fault stays in its shard, or in its worker: on a real broker, with two workers and a failover in the middle.

What belongs to single shards is broken while nobody runs them. Two workers start, one of them stops in order, and all
the time the other shards commit new queries, no worker ends, and status, metrics and log name shard and cause. Then
what is broken is mended, and the shards open without a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.protocol.shard_states import OPEN, Cause, ShardState
from stream_svt.web import about
from stream_svt.worker import worker as workers
from stream_svt.worker.worker import Worker
from tests.support import records
from tests.support.keys import write_secrets
from tests.support.partitioning import partition_of
from tests.support.permissions import WORKER, allow, allow_all, revoke
from tests.support.process import free_port
from tests.support.proxy import Proxy
from tests.support.tls import PASSWORD
from tests.support.worker import HIGH, LOW, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka

SHARDS = 4
BROKEN = 0
"""The shard that a test breaks that breaks one."""


Mend = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class Application(Scene):
    """One application with a dataset in each of its shards."""

    partitions: int = SHARDS
    limit: int = 8
    session: str = "6s"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shards = set(range(self.partitions))
        names = [f"d{number}" for number in range(50 * self.partitions)]
        by_partition = {partition_of(name.encode(), self.partitions): name for name in names}
        self.names = [by_partition[shard] for shard in sorted(self.shards)]
        self.datasets = ", ".join(self.names)

    async def past(self) -> None:
        """Let a worker spend something in every shard, and end."""
        worker = await self.start()
        await self.go_on(self.shards, HIGH)
        await self.publishes()
        await self.stop(worker)

    async def two(self, config: Config | None = None) -> None:
        """Start two workers."""
        await asyncio.gather(*(self.start(config, ready=False) for _ in range(2)))

    async def put(self, contents: Mapping[bytes, bytes | None], shard: int = BROKEN) -> None:
        written = [(shard, key, value) for key, value in contents.items()]
        state = f"{self.application}.state"
        await records.send(self.servers, state, *written, max_request_size=8 << 20)

    async def control(self, *values: bytes, shard: int = BROKEN) -> None:
        """Write records to a control partition: any, no command either, wakes a parked shard up."""
        for value in values:
            control = f"{self.application}.control"
            await self.producer.send_and_wait(control, value, partition=shard)

    def committed(self) -> dict[int, int]:
        """Return the committed position of every open shard, whoever owns it."""
        owned = [status for worker in self.workers for status in worker.statuses() if status.state in OPEN]
        return {status.shard: status.offsets.get(self.queries, 0) for status in owned}

    async def go_on(self, shards: set[int], value: int = LOW) -> None:
        """New queries of these shards are committed."""
        await until(lambda: shards <= self.committed().keys())
        before = self.committed()
        for shard in shards:
            await self.send(self.names[shard], value)
        await until(lambda: all(self.committed().get(shard, 0) > before[shard] for shard in shards))

    async def publishes(self) -> None:
        """Everything charged is published."""
        await until(lambda: not any(s.outbox for w in self.workers for s in w.statuses()))

    def owner(self, shard: int = BROKEN) -> Worker:
        return next(w for w in self.workers if any(s.shard == shard for s in w.statuses()))

    def status(self, shard: int = BROKEN):
        return next((s for w in self.workers for s in w.statuses() if s.shard == shard), None)

    async def parks(self, cause: Cause, words: str, shard: int = BROKEN) -> None:
        """A broken shard is parked at whoever owns it, and that is said everywhere."""
        await until(lambda: (found := self.status(shard)) is not None and found.state is ShardState.PARKED)
        status, owner = self.status(shard), self.owner(shard)
        assert (status.cause, words in status.reason) == (cause, True), (status.cause, status.reason)
        (shown,) = [one for one in about(owner).shards if one.shard == shard]
        assert (shown.state, shown.cause) == ("parked", cause)
        labels = f'application="{self.application}",cause="{cause}",shard="{shard}"'
        assert f"stream_svt_shard_parked{{{labels}}} 1.0" in owner.metrics.rendering()().decode()
        await until(lambda: owner.ready)


async def _damaged(app: Application, shard: int) -> Mend:
    key = f"d/{app.names[shard]}".encode()
    value = (await app.live())[shard, key]
    await app.put({key: value[:-1] + bytes([value[-1] ^ 1])}, shard)
    return lambda: app.put({key: value}, shard)


async def _oversized(app: Application, shard: int) -> Mend:
    await app.configure("state", {"max.message.bytes": str(8 << 20), "cleanup.policy": "compact"})
    await app.put({b"d/huge": bytes(6 << 20)}, shard)
    return lambda: app.put({b"d/huge": None}, shard)


async def _records_lost(app: Application, shard: int) -> Mend:
    for _ in range(3):
        await app.send(app.names[shard], LOW)
    held = [record for record in await app.read("counts") if record.partition == shard]
    await app.delete_before("counts", len(held) - 1, shard)
    return lambda: app.accept_losses(shard)


SCENARIOS: list[tuple[Cause, str, Callable[[Application, int], Awaitable[Mend]] | None]] = [
    (Cause.RECORDS_LOST, "accept-loss", _records_lost),
    (Cause.STATE_UNREADABLE, "it was changed or cut", _damaged),
    (Cause.STATE_UNREADABLE, "state record 'd/huge'", _oversized),
    (Cause.CONFIGURATION, "raise-budget", None),  # the limit of its dataset
    (Cause.CONFIGURATION, "does not declare", None),  # its dataset is removed
]
"""Why a shard parks, what is said of it, and what breaks it and returns what mends it: nothing where the file does."""


async def test_what_breaks_a_shard_parks_it_and_the_others_go_on(scenes, caplog):
    """Each shard is broken in another way, but two that go on; two are contradicted by the file.

    A parked shard that nobody mends writes nothing, whatever wakes it, and opens by itself once somebody has.
    """
    broken, count = list(enumerate(SCENARIOS)), len(SCENARIOS) + 2
    app = await scenes(Application, partitions=count)
    healthy = app.shards - {shard for shard, _ in broken}
    damaged = [breaks for *_, breaks in SCENARIOS].index(_damaged)
    await app.past()
    mends = {shard: await breaks(app, shard) for shard, (*_, breaks) in broken if breaks}
    *kept, other, _, first, second = app.names
    raised = f"  - {{names: [{other}], limit: {{epsilon: 9}}, unit: one basket}}\n"
    text = app.text(datasets=", ".join([*kept, first, second])).replace("monitors:\n", f"{raised}monitors:\n")
    await app.two(parse_config(text))

    async def parked() -> None:
        for shard, (cause, words, _) in broken:
            await app.parks(cause, words, shard)
        await app.go_on(healthy)

    async def written() -> int:
        """Return how many records the damaged state has."""
        return sum(r.partition == damaged for r in await app.read("state", "read_uncommitted"))

    await parked()
    await app.stop(app.owner())
    await parked()
    assert all(worker.alive for worker in app.workers)
    for shard, (cause, *_) in broken:
        assert f"event=shard_parked shard={shard} cause={cause}" in caplog.text
    assert not any(f"event=shard_parked shard={shard} " in caplog.text for shard in healthy)
    before = await written()
    for _ in range(3):
        await app.control(b"wake up", shard=damaged)
        await asyncio.sleep(0.7)
    assert app.status(damaged).state is ShardState.PARKED
    assert await written() == before > 0
    await mends.pop(damaged)()  # and says nothing
    await until(lambda: app.status(damaged).state in OPEN)
    (worker,) = app.workers
    for mend in mends.values():
        await mend()
    for shard, _ in broken:
        await app.control(b"wake up", shard=shard)
    await app.apply(worker, app.config())
    await until(lambda: is_open(worker))
    await app.go_on(app.shards)
    assert complaint(worker) == ""


async def test_a_worker_that_cannot_take_part_stays_out_until_it_can_and_another_serves_all_shards(
    scenes, monkeypatch, tmp_path
):
    """Its brokers are away, it has another key, no key, and a clock that is far off, as a member, too."""
    app = await scenes(Application)
    monkeypatch.setattr(workers, "JOIN_BACKOFF", (0.2,) * 3)
    write_secrets(tmp_path, {"right": "01" * 32, "wrong": "02" * 32})
    right = app.config(more="sealing: {keys: [right]}\n")
    await app.start(right)
    await app.go_on(app.shards)
    away = Proxy(free_port(), int(app.servers.split(":")[1]))  # nobody listens there yet
    known = app.config(servers=away.address, more="sealing: {keys: [wrong]}\n")
    other = Worker(known, lambda: known)
    app.workers.append(other)

    async def stays_out(cause: Cause, words: str) -> None:
        other._wake.set()
        await until(lambda: other.fault is not None and words in other.fault.reason and not other.statuses())
        assert not other.ready
        assert about(other).fault.cause == cause
        labels = f'application="{app.application}",cause="{cause}"'
        assert f"stream_svt_worker_outside_group{{{labels}}} 1.0" in other.metrics.rendering()().decode()
        await app.go_on(app.shards)

    async def takes_part() -> None:
        other._wake.set()
        await until(lambda: is_open(other) and other.statuses() != [], 40)

    other.start()
    await stays_out(Cause.UNAVAILABLE, "no broker can be reached")
    assert other.alive
    async with away.running():
        await stays_out(Cause.SEALING_KEY, "it is sealed with key")
    known = app.config()
    await stays_out(Cause.SEALING_KEY, "configured: none")
    known = right
    other.epoch = lambda: time.time() + 1200
    await stays_out(Cause.CLOCK, "ahead of the brokers'")
    other.epoch = time.time
    await takes_part()
    other.epoch = lambda: time.time() - 1200
    await app.go_on(app.shards)
    await stays_out(Cause.CLOCK, "behind the brokers'")
    other.epoch = time.time
    await takes_part()
    await until(lambda: all(map(is_open, app.workers)))
    await app.go_on(app.shards)
    assert all(worker.alive for worker in app.workers)


async def test_a_permission_taken_and_given_back_parks_shards_and_opens_them(scenes, secure_broker, tmp_path):
    """What a shard may do by itself is to write under its own id; a topic has its permissions as a whole."""
    servers = secure_broker.bootstrap_servers
    app = await scenes(Application, on=secure_broker)
    shared = [grant for grant in WORKER if grant[1] != "transactional_id"]
    await allow_all(servers, "svt", app.application, shared)
    for part in ("check", "clock", *range(SHARDS)):
        await allow(servers, "svt", "write", "transactional_id", f"{app.application}-{part}")
    healthy = app.shards - {BROKEN}
    write_secrets(tmp_path, {"password": PASSWORD})
    text = secure_broker.with_login(app.text())
    await app.two(parse_config(text, directory=tmp_path))
    await app.go_on(app.shards)
    own = ("write", "transactional_id", f"{app.application}-{BROKEN}")
    await revoke(servers, "svt", *own)
    await app.send(app.names[BROKEN], HIGH)
    for _ in range(2):
        await app.parks(Cause.PERMISSION, "operation WRITE on resource TRANSACTIONAL_ID")
        await app.go_on(healthy)
        if len(app.workers) == 2:
            await app.stop(app.owner())
    assert all(worker.alive for worker in app.workers)
    await allow(servers, "svt", *own)
    await app.control(b"wake up")
    (worker,) = app.workers
    await until(lambda: is_open(worker), 60)
    await app.go_on(app.shards)
    for operation, topic in (("read", "counts"), ("write", "alerts")):
        grant = (operation, "topic", f"{app.application}.{topic}")
        await revoke(servers, "svt", *grant)
        await app.send(app.names[BROKEN], HIGH)
        await until(lambda: app.status().state is ShardState.PARKED, 60)
        status = app.status()
        assert status.cause is Cause.PERMISSION or "does not exist" in status.reason
        assert f"operation {operation.upper()} on resource TOPIC" in status.reason
        assert worker.alive
        await asyncio.sleep(1.0)  # the authorizer takes a grant in a moment later than its topics
        await allow(servers, "svt", *grant)
        await until(lambda: is_open(worker), 60)
    await app.go_on(app.shards)
    await app.publishes()
    assert len(await app.alerts()) == 3
