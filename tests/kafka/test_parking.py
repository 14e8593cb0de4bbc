"""A fault stays in its shard, or in its worker: on a real broker, with two workers and a failover in the middle.

Each scenario breaks what belongs to one shard of four while nobody runs it. Two workers start, one of them stops in
order, and all the time the other shards commit new queries, no worker ends, and status, metrics and log name shard and
cause. Then what is broken is mended, and the shard opens without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.monitor.engine import Engine
from stream_svt.protocol.shard_states import OPEN, Cause, State
from stream_svt.service import worker as workers
from stream_svt.service.config import Config, parse_config
from stream_svt.service.embedded import EmbeddedKafka
from stream_svt.service.wire import home
from stream_svt.service.worker import Worker
from tests.support.permissions import allow, revoke
from tests.support.worker import HIGH, LOW, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka

SHARDS = 4
BROKEN = 0
"""The shard that every scenario breaks."""


def _one_for_each(stem: str, count: int) -> list[str]:
    """Return dataset names of which each has its home at another shard, in the shards' order."""
    names = (f"{stem}{number}" for number in itertools.count())
    found: dict[int, str] = {}
    while len(found) < count:
        name = next(names)
        found.setdefault(home(name.encode(), count), name)
    return [found[shard] for shard in range(count)]


DATASETS = _one_for_each("d", SHARDS)
Live = Mapping[bytes, bytes]


class Application:
    """One application of four shards, with a dataset in each, and its workers."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.workers = scene.workers
        self.more = ""

    def text(self, limit: int | None = None, datasets: list[str] | None = None) -> str:
        return self.scene.text(limit=limit, datasets=", ".join(datasets or DATASETS)) + self.more

    def config(self, directory: Path = Path(), **changes) -> Config:
        return parse_config(self.text(**changes), directory=directory)

    async def past(self, tops: int = 1) -> None:
        """Let a worker spend something in every shard, and end."""
        worker = await self.scene.start(self.config())
        before = self.committed()
        for dataset in DATASETS:
            await self.scene.send(dataset, *[HIGH] * tops)
        await until(lambda: all(self.committed()[n] == before[n] + tops for n in range(SHARDS)))
        await asyncio.sleep(0.5)
        await self.scene.stop(worker)

    # What is stored

    async def live(self, shard: int = BROKEN) -> Live:
        """Return the live records of one shard's state."""
        latest = {r.key: r.value for r in await self.scene.read("state") if r.partition == shard}
        return {key: value for key, value in latest.items() if value is not None}

    async def write(self, records: Mapping[bytes, bytes | None], shard: int = BROKEN) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.scene.servers, max_request_size=8 << 20)
        await producer.start()
        try:
            for key, value in records.items():
                await producer.send_and_wait(
                    f"{self.scene.application}.state", value, key=key, partition=shard
                )
        finally:
            await producer.stop()

    async def wake(self, shard: int = BROKEN) -> None:
        """Write what is no command: any record on its control partition wakes a shard up."""
        await self.scene.producer.send_and_wait(
            f"{self.scene.application}.control", b"wake up", partition=shard
        )

    # What the workers say

    def open_shards(self) -> set[int]:
        return {s.shard for w in self.workers for s in w.statuses() if s.state in OPEN}

    def committed(self) -> dict[int, int]:
        """Return the committed position of every shard, whoever owns it."""
        found = dict.fromkeys(range(SHARDS), 0)
        for worker in self.workers:
            for status in worker.statuses():
                if status.state in OPEN:
                    found[status.shard] = status.offsets.get(self.scene.queries, 0)
        return found

    async def go_on(self, shards: set[int]) -> None:
        """New queries of these shards are committed."""
        await until(lambda: shards <= self.open_shards())
        before = self.committed()
        for shard in shards:
            await self.scene.send(DATASETS[shard], LOW)
        await until(lambda: all(self.committed()[shard] > before[shard] for shard in shards))

    def owner(self, shard: int = BROKEN) -> Worker:
        return next(w for w in self.workers if any(s.shard == shard for s in w.statuses()))

    def status(self, shard: int = BROKEN):
        return next((s for w in self.workers for s in w.statuses() if s.shard == shard), None)

    async def parks(self, cause: Cause, words: str) -> None:
        """The broken shard is parked at whoever owns it, and that is said everywhere."""

        def parked() -> bool:
            status = self.status()
            return status is not None and status.state is State.PARKED

        await until(parked)
        status, owner = self.status(), self.owner()
        assert (status.cause, words in status.reason) == (cause, True), (status.cause, status.reason)
        (shown,) = [shard for shard in owner.about()["shards"] if shard["shard"] == BROKEN]
        assert (shown["state"], shown["cause"]) == ("parked", cause)
        labels = f'application="{self.scene.application}",cause="{cause}",shard="{BROKEN}"'
        assert f"stream_svt_shard_parked{{{labels}}} 1.0" in owner.metrics.text().decode()
        await until(lambda: owner.ready)

    def assert_no_worker_ended(self) -> None:
        for worker in self.workers:
            assert worker.alive
            assert worker.failed is not None
            assert not worker.failed.done()


@dataclass(frozen=True)
class Scenario:
    """What breaks a shard, what mends it, and what is said meanwhile.

    ``breaks`` returns what mends; where it returns a configuration, the workers start with that one and are mended by
    reading the right one again.
    """

    cause: Cause
    words: str
    breaks: Callable[[Application], Awaitable[Callable[[], Awaitable[None]] | Config]]


async def _damaged(app: Application) -> Callable[[], Awaitable[None]]:
    live = await app.live()
    key = f"d/{DATASETS[BROKEN]}".encode()
    await app.write({key: live[key][:-1] + bytes([live[key][-1] ^ 1])})
    return lambda: app.write({key: live[key]})


async def _oversized(app: Application) -> Callable[[], Awaitable[None]]:
    await app.scene.configure("state", {"max.message.bytes": str(8 << 20), "cleanup.policy": "compact"})
    await app.write({b"d/huge": bytes(6 << 20)})
    return lambda: app.write({b"d/huge": None})


async def _from_another_shard(app: Application) -> Callable[[], Awaitable[None]]:
    other = await app.live(BROKEN + 1)
    key = f"d/{DATASETS[BROKEN + 1]}".encode()
    await app.write({key: other[key]})
    return lambda: app.write({key: None})


async def _from_another_application(app: Application) -> Callable[[], Awaitable[None]]:
    live, other = await app.live(), Scene(app.scene.servers, f"{app.scene.application}-2", partitions=SHARDS)
    async with other.on_stage():
        stranger = Application(other)
        await stranger.past()
        foreign = await stranger.live()
    await app.write({b"meta": foreign[b"meta"]})
    return lambda: app.write({b"meta": live[b"meta"]})


async def _undecodable(app: Application) -> Callable[[], Awaitable[None]]:
    live = await app.live()
    await app.write({b"meta": b"\xff\x00{"})
    return lambda: app.write({b"meta": live[b"meta"]})


async def _rolled_back(app: Application) -> Callable[[], Awaitable[None]]:
    yesterday = await app.live()
    await app.past()
    today = await app.live()
    await app.write({**dict.fromkeys(today, None), **yesterday})
    return lambda: app.write({**dict.fromkeys(yesterday, None), **today})


async def _records_lost(app: Application) -> Callable[[], Awaitable[None]]:
    for _ in range(3):
        await app.scene.send(DATASETS[BROKEN], LOW)
    held = [record for record in await app.scene.read("counts") if record.partition == BROKEN]
    await app.scene.delete_before("counts", len(held) - 1)  # on partition 0
    return lambda: app.scene.command("accept-loss", partition=BROKEN)


async def _contradicted_limit(app: Application) -> Config:
    others = [name for name in DATASETS if name != DATASETS[BROKEN]]
    other = f"  - {{names: [{DATASETS[BROKEN]}], limit: {{epsilon: 9}}, unit: one basket}}\n"
    return parse_config(app.text(datasets=others).replace("monitors:\n", f"{other}monitors:\n"))


async def _dataset_removed(app: Application) -> Config:
    return app.config(datasets=[name for name in DATASETS if name != DATASETS[BROKEN]])


SCENARIOS = {
    "damaged": Scenario(Cause.STATE_UNREADABLE, "it was changed or cut", _damaged),
    "oversized": Scenario(Cause.STATE_UNREADABLE, "state record 'd/huge'", _oversized),
    "from another shard": Scenario(Cause.STATE_UNREADABLE, "another place", _from_another_shard),
    "from another application": Scenario(Cause.STATE_UNREADABLE, "another place", _from_another_application),
    "undecodable": Scenario(Cause.STATE_UNREADABLE, "it is cut off after", _undecodable),
    "rolled back": Scenario(Cause.STATE_ROLLED_BACK, "ends with event", _rolled_back),
    "records lost": Scenario(Cause.RECORDS_LOST, "accept-loss", _records_lost),
    "limit": Scenario(Cause.CONFIGURATION, "raise-budget", _contradicted_limit),
    "dataset removed": Scenario(Cause.CONFIGURATION, "does not declare", _dataset_removed),
}


@pytest.fixture
async def app(broker, topics) -> AsyncIterator[Application]:
    scene = Scene(broker.bootstrap_servers, topics.name("shop"), partitions=SHARDS, limit=8)
    async with scene.on_stage():
        yield Application(scene)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_what_breaks_one_shard_parks_it_and_the_others_go_on(
    app: Application, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scenario, healthy = SCENARIOS[name], set(range(SHARDS)) - {BROKEN}
    await app.past()
    mend = await scenario.breaks(app)
    config = mend if isinstance(mend, Config) else app.config()
    await asyncio.gather(*(app.scene.start(config, ready=False) for _ in range(2)))
    await app.parks(scenario.cause, scenario.words)
    await app.go_on(healthy)
    await app.scene.stop(app.owner())
    await app.go_on(healthy)
    await app.parks(scenario.cause, scenario.words)
    await app.go_on(healthy)
    app.assert_no_worker_ended()
    assert f"event=shard_parked shard={BROKEN} cause={scenario.cause}" in caplog.text
    assert not any(f"event=shard_parked shard={shard}" in caplog.text for shard in healthy)
    (worker,) = app.workers
    if isinstance(mend, Config):
        await worker.reload(app.config())
    else:
        await asyncio.sleep(0.3)  # what the operator gives counts from when the shard waits
        await mend()
        await app.wake()
    await until(lambda: is_open(worker))
    await app.go_on({*healthy, BROKEN})
    assert complaint(worker) == ""


@pytest.mark.parametrize("smaller", ["sensitivity: 0.5", "sensitivity: 1\n    monotonic: true"])
async def test_less_than_a_topic_was_declared_to_hold_parks_its_shards_until_it_is_declared_again(
    app: Application, smaller: str
) -> None:
    """By a start with another file: answers made under the old declaration may still lie in the topic."""
    text = app.text().replace("    monotonic: true\n", "")
    assert "sensitivity: 1\n" in text
    first = await app.scene.start(parse_config(text))
    await app.go_on(set(range(SHARDS)))
    await app.scene.stop(first)
    worker = await app.scene.start(parse_config(text.replace("sensitivity: 1", smaller)), ready=False)
    await app.parks(Cause.CONFIGURATION, "or let the monitor read another query topic")
    await until(lambda: not app.open_shards())
    await worker.reload(parse_config(text))
    await app.go_on(set(range(SHARDS)))


async def test_a_shard_mended_without_a_word_is_found_open_after_a_while(app: Application) -> None:
    await app.past()
    mend = await _damaged(app)
    worker = await app.scene.start(app.config(), ready=False)
    await app.parks(Cause.STATE_UNREADABLE, "it was changed or cut")
    await mend()
    await until(lambda: is_open(worker))


async def test_a_parked_shard_that_nobody_mends_fences_nobody(app: Application) -> None:
    """It looks again when woken, and as nothing has changed that it reads, it writes nothing."""
    await app.past()
    await _damaged(app)
    await app.scene.start(app.config(), ready=False)
    await app.parks(Cause.STATE_UNREADABLE, "it was changed or cut")

    async def written() -> int:
        """Return how many records the parked shard's state has; those of the others grow as they open."""
        return sum(r.partition == BROKEN for r in await app.scene.read("state", "read_uncommitted"))

    before = await written()
    for _ in range(3):
        await app.wake()
        await asyncio.sleep(0.7)
    assert app.status().state is State.PARKED
    assert await written() == before > 0


async def test_control_records_made_to_hurt_park_no_shard(app: Application) -> None:
    await app.past()
    control = f"{app.scene.application}.control"
    for value in (b"[" * 200_000, b"\xff" * 1000, b'{"id":"' + b"x" * 900_000, b"", b'{"action":{}}'):
        await app.scene.producer.send_and_wait(control, value, partition=BROKEN)
    await asyncio.gather(*(app.scene.start(app.config(), ready=False) for _ in range(2)))
    await app.go_on(set(range(SHARDS)))
    for value in (b"{" * 200_000, b"\x00", b'{"id":1e400}'):
        await app.scene.producer.send_and_wait(control, value, partition=BROKEN)
    await app.scene.stop(app.owner())
    await app.go_on(set(range(SHARDS)))
    app.assert_no_worker_ended()
    async with asyncio.timeout(20):
        while len([r for r in await app.scene.read("rejects") if r.partition == BROKEN]) < 3:
            await asyncio.sleep(0.1)


async def test_an_exception_in_one_shards_code_is_retried_and_the_others_go_on(
    app: Application, monkeypatch, caplog
) -> None:
    step, broken = Engine.step, True

    def stepped(self: Engine, batch):
        if broken and self.shard == BROKEN:
            raise ZeroDivisionError(f"value {HIGH}")
        return step(self, batch)

    monkeypatch.setattr(Engine, "step", stepped)
    healthy = set(range(SHARDS)) - {BROKEN}
    await asyncio.gather(*(app.scene.start(app.config(), ready=False) for _ in range(2)))
    await until(lambda: app.status() is not None)
    await app.scene.send(DATASETS[BROKEN], HIGH)
    await until(lambda: app.status().state is State.RETRYING)
    await app.go_on(healthy)
    await app.scene.stop(app.owner())
    await app.go_on(healthy)
    await until(lambda: app.status().state is State.RETRYING)
    assert app.status().cause is Cause.ERROR
    assert "ZeroDivisionError at test_parking.py" in app.status().reason
    assert f"event=shard_error shard={BROKEN}" in caplog.text
    assert str(HIGH) not in caplog.text
    app.assert_no_worker_ended()
    broken = False
    await until(lambda: is_open(app.workers[0]), 60)
    await app.go_on({*healthy, BROKEN})


# One worker alone


@contextlib.asynccontextmanager
async def _beside_a_sound_one(app: Application, config: Config) -> AsyncIterator[tuple[Worker, Worker]]:
    """Start a worker, and one beside it that cannot take part; the first goes on with every shard."""
    sound = await app.scene.start(config)
    other = Worker(config)
    app.workers.append(other)
    yield sound, other
    await until(lambda: is_open(other) and other.statuses() != [], 40)
    await until(lambda: is_open(sound))
    await app.go_on(set(range(SHARDS)))
    app.assert_no_worker_ended()


async def _stays_out(app: Application, worker: Worker, cause: Cause) -> None:
    assert worker.fault is not None
    assert worker.fault.cause is cause
    assert not worker.ready
    assert worker.statuses() == []
    assert worker.about()["fault"]["cause"] == cause
    labels = f'application="{app.scene.application}",cause="{cause}"'
    assert f"stream_svt_worker_outside_group{{{labels}}} 1.0" in worker.metrics.text().decode()
    await app.go_on(set(range(SHARDS)))


async def test_a_worker_without_pyarrow_takes_no_shard_until_it_has_it(app: Application, monkeypatch) -> None:
    async with _beside_a_sound_one(app, app.config()) as (sound, other):
        with monkeypatch.context() as blocked:
            blocked.setitem(sys.modules, "pyarrow", None)
            await other.start()
            await _stays_out(app, other, Cause.PYARROW)
            assert len(sound.statuses()) == SHARDS


async def test_a_worker_without_the_key_takes_no_shard_until_it_has_it(app: Application, tmp_path) -> None:
    for name, byte in (("right", 1), ("wrong", 2)):
        (tmp_path / name).write_text(bytes([byte] * 32).hex())
        (tmp_path / name).chmod(0o600)
    app.more = "sealing: {key_file: right}\n"
    right = app.config(tmp_path)
    app.more = "sealing: {key_file: wrong}\n"
    wrong = app.config(tmp_path)
    app.more = ""
    await app.scene.stop(await app.scene.start(right))
    async with _beside_a_sound_one(app, right) as (_, other):
        other.config = wrong
        await other.start()
        await _stays_out(app, other, Cause.SEALING_KEY)
        await other.reload(app.config())
        await until(lambda: other.fault is not None and "configured: none" in other.fault.reason)
        await _stays_out(app, other, Cause.SEALING_KEY)
        await other.reload(right)


async def test_a_key_lost_by_a_reload_makes_one_worker_leave_and_come_back(
    app: Application, tmp_path
) -> None:
    for name, byte in (("right", 1), ("wrong", 2)):
        (tmp_path / name).write_text(bytes([byte] * 32).hex())
        (tmp_path / name).chmod(0o600)
    app.more = "sealing: {key_file: right}\n"
    right = app.config(tmp_path)
    app.more = "sealing: {key_file: wrong}\n"
    wrong = app.config(tmp_path)
    async with _beside_a_sound_one(app, right) as (sound, other):
        await other.start()
        await until(lambda: is_open(other) and other.statuses() != [])
        await other.reload(wrong)
        await until(lambda: other.fault is not None and other.statuses() == [])
        await _stays_out(app, other, Cause.SEALING_KEY)
        assert len(sound.statuses()) == SHARDS
        await other.reload(right)


async def test_a_worker_whose_clock_is_far_off_leaves_and_comes_back(app: Application) -> None:
    async with _beside_a_sound_one(app, app.config()) as (_, other):
        other.epoch = lambda: time.time() + 1200
        await other.start()
        await _stays_out(app, other, Cause.CLOCK)
        assert "ahead of the brokers'" in other.fault.reason
        other.epoch = time.time
        await until(lambda: is_open(other) and other.statuses() != [], 40)
        other.epoch = lambda: time.time() - 1200
        await app.go_on(set(range(SHARDS)))
        await until(lambda: other.fault is not None and other.statuses() == [])
        await _stays_out(app, other, Cause.CLOCK)
        other.epoch = time.time


async def test_a_clock_that_is_a_little_off_is_no_fault(app: Application) -> None:
    worker = Worker(app.config())
    worker.epoch = lambda: time.time() + 500
    app.workers.append(worker)
    await worker.start()
    await app.go_on(set(range(SHARDS)))
    assert worker.fault is None


async def test_brokers_that_are_away_at_the_start_are_waited_for(monkeypatch, topics) -> None:
    monkeypatch.setattr(workers, "JOIN_BACKOFF", (0.2,))
    with EmbeddedKafka(overrides={"group.min.session.timeout.ms": "500"}) as kafka:
        scene = Scene(kafka.bootstrap_servers, topics.name("shop"), partitions=1)
        async with scene.on_stage():
            away = asyncio.create_task(asyncio.to_thread(kafka.restart, pause=5.0))
            await asyncio.sleep(3.0)
            worker = Worker(scene.config())
            starting = asyncio.create_task(worker.start())
            await until(lambda: worker.fault is not None)
            assert worker.fault.cause is Cause.UNAVAILABLE
            assert worker.alive
            await away
            await until(lambda: is_open(worker), 60)
            await starting
            await worker.stop()


GRANTS = (
    ("read", "group", "{app}"),
    *(("read", "topic", f"{{app}}.{name}") for name in ("counts", "control", "state", "alerts")),
    *(("write", "topic", f"{{app}}.{name}") for name in ("state", "alerts", "rejects")),
)


@pytest.mark.parametrize(("operation", "topic"), [("read", "counts"), ("write", "alerts")])
async def test_a_permission_taken_and_given_back_parks_shards_and_opens_them(
    tmp_path, topics, operation: str, topic: str
) -> None:
    """A topic has its permissions as a whole, so all its shards park; no worker ends."""
    async with _guarded(tmp_path, topics.name("shop")) as (kafka, scene, config):
        grant = (operation, "topic", f"{scene.application}.{topic}")
        worker = await scene.start(config)
        await revoke(kafka.bootstrap_servers, "svt", *grant)
        await scene.send("a", HIGH)
        await until(lambda: [s.state for s in worker.statuses()] == [State.PARKED], 60)
        (status,) = worker.statuses()
        assert status.cause is Cause.PERMISSION or "does not exist" in status.reason
        assert f"operation {operation.upper()} on resource TOPIC" in status.reason
        assert worker.alive
        await asyncio.sleep(1.0)
        await allow(kafka.bootstrap_servers, "svt", *grant)
        await until(lambda: is_open(worker), 60)
        await scene.settled(worker, 1)
        assert len(await scene.alerts()) == 1


async def test_a_permission_taken_from_one_shard_parks_it_and_the_others_go_on(tmp_path, topics) -> None:
    """What a shard may do by itself is to write under its own transactional id."""
    healthy = set(range(SHARDS)) - {BROKEN}
    async with _guarded(tmp_path, topics.name("shop"), partitions=SHARDS) as (kafka, scene, config):
        app = Application(scene)
        grant = ("write", "transactional_id", f"{scene.application}-{BROKEN}")
        await asyncio.gather(*(scene.start(config, ready=False) for _ in range(2)))
        await app.go_on({*healthy, BROKEN})
        await revoke(kafka.bootstrap_servers, "svt", *grant)
        await scene.send(DATASETS[BROKEN], HIGH)
        await app.parks(Cause.PERMISSION, "operation WRITE on resource TRANSACTIONAL_ID")
        await app.go_on(healthy)
        await scene.stop(app.owner())
        await app.go_on(healthy)
        await app.parks(Cause.PERMISSION, "operation WRITE on resource TRANSACTIONAL_ID")
        app.assert_no_worker_ended()
        await allow(kafka.bootstrap_servers, "svt", *grant)
        await app.wake()
        await until(lambda: is_open(app.workers[0]), 60)
        await app.go_on({*healthy, BROKEN})
        assert len(await scene.alerts()) == 1


async def test_a_query_topic_that_is_deleted_ends_no_worker_and_its_loss_is_accepted_by_a_command(
    app: Application,
) -> None:
    """All shards read it, so all wait; the one that a topic of this name opens again asks about what is lost."""
    await app.past()
    await asyncio.gather(*(app.scene.start(app.config(), ready=False) for _ in range(2)))
    await app.go_on(set(range(SHARDS)))
    await app.scene.delete("counts")
    await until(lambda: not app.open_shards(), 60)
    await app.scene.stop(app.workers[0])

    def causes() -> list[Cause]:
        return [status.cause for status in app.workers[0].statuses()]

    await until(lambda: causes() == [Cause.TOPIC_MISSING] * SHARDS, 90)
    app.assert_no_worker_ended()
    assert not app.open_shards()
    await app.scene.create("counts")
    for shard in range(SHARDS):
        await app.wake(shard)
        await until(lambda shard=shard: app.status(shard).cause is Cause.RECORDS_LOST, 90)
        await app.scene.command("accept-loss", partition=shard)
    await app.go_on(set(range(SHARDS)))
    assert complaint(app.workers[0]) == ""


@contextlib.asynccontextmanager
async def _guarded(
    tmp_path: Path, name: str, partitions: int = 1
) -> AsyncIterator[tuple[EmbeddedKafka, Scene, Config]]:
    short = {"group.min.session.timeout.ms": "500"}
    with EmbeddedKafka(users={"svt": "secret"}, overrides=short) as kafka:
        async with Scene(kafka.bootstrap_servers, name, partitions=partitions, limit=8).on_stage() as scene:
            ids = ("check", *range(partitions))
            writers = [("write", "transactional_id", f"{{app}}-{name}") for name in ids]
            for operation, resource, target in (*GRANTS, *writers):
                wanted = target.format(app=scene.application)
                await allow(kafka.bootstrap_servers, "svt", operation, resource, wanted)
            (tmp_path / "password").write_text("secret")
            text = (Application(scene).text() if partitions == SHARDS else scene.text()).replace(
                f'"{scene.servers}"',
                f'"{kafka.sasl_bootstrap_servers}", security_protocol: SASL_PLAINTEXT, sasl_mechanism: PLAIN, '
                "username: svt, password_file: password",
            )
            yield kafka, scene, parse_config(text, directory=tmp_path)
