"""A worker joins and leaves its group: after each fault it leaves, logs the reason and tries again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import ConfigError
from stream_svt.kafka.clients import BrokerUnavailable, Denied, Fenced
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import META, SECRET_BYTES, STATE_ID_BYTES, Meta
from stream_svt.worker import worker as module
from stream_svt.worker.worker import Worker, WorkerFault, WorkerSignal
from stream_svt.worker.workload import AppliedWorkload
from tests.support.shop import SPEC
from tests.support.worker import until

DENIED = Denied("permission is missing: operation READ on resource GROUP 'shop'")
CLOCK = WorkerFault(Cause.CLOCK, "this machine's clock is off")


class Group:
    """A membership that ends in order, or with the error ``ending``."""

    def __init__(self, _: object, fatal: Callable[[BaseException], None]) -> None:
        self.fatal = fatal
        self.shards: dict[int, Any] = {}
        self.joined = self.has_joined = self.left = self.unreachable = False
        self.ending: Exception | None = None

    async def start(self) -> None:
        """The assignment comes later."""

    async def stop(self) -> None:
        self.left = True
        if self.ending is not None:
            raise self.ending


class ScriptedWorker:
    """A worker whose groups are scripted, and its self-tests too.

    Attributes:
        tests: Fault or error of each self-test, in order; later ones pass.
        groups: The memberships so far.
        refusal: Error of the brokers at each try to join, None if they are reached.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tests: list[WorkerFault | Exception | None] = []
        self.groups: list[Group] = []
        self.refusal: Exception | None = None

        def made(*arguments: Any) -> Group:
            self.groups.append(Group(*arguments))
            return self.groups[-1]

        async def found(*_: object) -> SimpleNamespace:
            if self.refusal is not None:
                raise self.refusal
            return SimpleNamespace(cluster_id="c")

        async def self_test(_: Worker) -> WorkerFault | None:
            result = self.tests.pop(0) if self.tests else None
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(module, "Group", made)
        monkeypatch.setattr(module, "require", found)
        monkeypatch.setattr(Worker, "_self_test", self_test)
        monkeypatch.setattr(module, "JOIN_BACKOFF", (0.01, 0.01, 0.01))
        monkeypatch.setattr(module, "VERSION_WITHIN", 0.01)
        self.worker = Worker(parse_config(SPEC))

    async def start(self) -> None:
        self.worker.start()
        await self.joins(1)
        self.assigned()

    def assigned(self) -> None:
        self.groups[-1].joined = self.groups[-1].has_joined = True

    async def request_self_test(self) -> None:
        """Request a self-test, as a shard does."""
        self.worker._wake.set()
        await asyncio.sleep(0.05)

    async def joins(self, times: int) -> Group:
        async with asyncio.timeout(5):
            while len(self.groups) < times:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        assert len(self.groups) == times
        return self.groups[-1]

    def ended(self) -> bool:
        assert self.worker.running is not None
        return self.worker.running.done()


@pytest.fixture
async def play(monkeypatch) -> AsyncIterator[ScriptedWorker]:
    play = ScriptedWorker(monkeypatch)
    yield play
    await play.worker.stop()


@pytest.mark.parametrize("error", [ValueError("value 4711"), BrokerUnavailable("away")], ids=repr)
async def test_a_self_test_that_cannot_run_is_repeated_and_ends_nothing(play, caplog, error):
    await play.start()
    play.tests = [error, CLOCK]
    await play.request_self_test()  # the worker repeats it
    await play.joins(2)
    assert play.groups[0].left
    assert "event=self_test_failed" in caplog.text
    assert "4711" not in caplog.text
    play.assigned()
    assert play.worker.ready
    assert not play.ended()


async def test_a_membership_ends_even_where_leaving_fails(play: ScriptedWorker, caplog) -> None:
    await play.start()
    play.groups[0].ending = ValueError("value 4711")
    play.groups[0].fatal(DENIED)
    await play.joins(2)
    play.assigned()
    assert "event=leaving_failed" in caplog.text
    assert "4711" not in caplog.text
    assert play.worker.ready
    assert not play.ended()


async def test_a_worker_whose_membership_task_fails_ends(play: ScriptedWorker, monkeypatch) -> None:
    await play.start()

    async def advance_periods() -> None:
        raise ValueError

    monkeypatch.setattr(play.worker, "advance_periods", advance_periods)
    await play.request_self_test()
    assert play.ended()
    assert isinstance(play.worker.running.exception(), ValueError)
    assert not play.worker.alive


async def test_a_former_member_does_not_end_where_joining_again_fails(play: ScriptedWorker) -> None:
    await play.start()
    play.tests = [CLOCK]
    await play.request_self_test()
    (await play.joins(2)).fatal(DENIED)
    await play.joins(3)
    assert not play.ended()


async def test_a_permanent_error_of_the_first_try_to_join_ends_the_worker(play: ScriptedWorker) -> None:
    assert play.worker.alive
    assert not play.worker.ready
    play.refusal = DENIED
    with pytest.raises(Denied):
        await play.worker.start()
    assert not play.worker.alive
    assert not play.worker.ready


async def test_a_permanent_error_does_not_end_a_worker_that_was_outside_its_group(
    play: ScriptedWorker,
) -> None:
    """A restart would not mend what changed since the start, and would end every worker of the group in turn."""
    play.tests = [CLOCK]
    play.worker.start()
    await asyncio.sleep(0.005)
    assert play.worker.fault == CLOCK
    play.refusal = DENIED
    await asyncio.sleep(0.05)
    assert play.worker.fault == WorkerFault(Cause.PERMISSION, str(DENIED))
    assert not play.ended()
    play.refusal = None
    await play.joins(1)
    play.assigned()
    assert play.worker.ready


async def test_a_worker_that_stops_is_alive_and_never_ready_again(play: ScriptedWorker) -> None:
    await play.start()
    assert play.worker.ready
    await play.worker.stop()
    play.assigned()
    play.worker._signal(WorkerSignal.JOINED)  # a task in progress at the end
    assert play.worker.alive
    assert not play.worker.ready


async def test_requests_for_self_tests_are_limited_in_rate_and_the_last_one_is_kept(play, monkeypatch):
    """A shard that parks requests a self-test only once."""
    monkeypatch.setattr(module, "TEST_EVERY", 0.2)
    play.worker.epoch = lambda: 1_000_000.0
    await play.start()
    tests: list[float] = []

    async def self_test(_: Worker) -> None:
        tests.append(time.monotonic())

    monkeypatch.setattr(Worker, "_self_test", self_test)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        play.worker._compare_clocks(2_000_000.0)  # with every commit
        await asyncio.sleep(0.005)
    assert tests[0] - began < 0.1  # the first one at once
    count = len(tests)
    assert 2 <= count <= 4
    await asyncio.sleep(0.5)
    assert len(tests) == count + 1


async def test_a_request_is_not_lost_where_the_clock_of_timers_went_back(play, monkeypatch):
    await play.start()
    play.worker._tested_at = asyncio.get_running_loop().time() + 30 * 86_400  # scheduled before that
    play.worker.epoch = lambda: time.time() - 30 * 86_400
    play.tests = [CLOCK]
    play.worker._compare_clocks(time.time())
    await play.joins(2)
    assert play.groups[0].left


async def test_a_member_without_commits_tests_itself_once_its_clock_is_set(play, monkeypatch):
    monkeypatch.setattr(module, "PERIODS_CHECK_INTERVAL", 0.02)
    await play.start()
    await asyncio.sleep(0.1)
    play.tests = [CLOCK]
    await asyncio.sleep(0.1)
    assert not play.groups[0].left
    play.worker.epoch = lambda: time.time() + 30 * 86_400
    await play.joins(2)
    assert play.groups[0].left


@pytest.mark.parametrize(("fenced", "raises"), [(0, False), (4, False), (5, True)])
async def test_a_self_test_that_another_one_ends_is_repeated_and_never_counts_as_passed(
    monkeypatch, fenced, raises
):
    monkeypatch.setattr(module, "FENCED_WITHIN_MS", 2)
    tries = []

    async def asked(_: object) -> float:
        tries.append(1)
        if len(tries) <= fenced:
            raise Fenced("another worker")
        return 5.0

    monkeypatch.setattr(module, "_try_broker_time", asked)
    if raises:
        with pytest.raises(BrokerUnavailable, match="other workers ask"):
            await module._broker_time(cast("Any", None))
    else:
        assert await module._broker_time(cast("Any", None)) == 5.0


@pytest.mark.parametrize(
    ("began", "stays_out"),
    [
        ([], False),
        ([(4, "crc32")], True),
        ([(2, "murmur2")], True),
        ([(2, "murmur2"), (4, "murmur2")], False),
    ],
)
async def test_a_worker_with_other_homes_than_every_state_begins_no_further_shard(
    monkeypatch, began, stays_out
):
    """A shard that never started has no state that could refuse them: its datasets would get second ledgers."""

    async def stored(*_: object) -> AsyncIterator[tuple[int, bytes]]:
        for shard, (partitions, partitioner) in enumerate(began):
            meta = Meta(
                partitions=partitions,
                partitioner=partitioner,
                state_id=bytes(STATE_ID_BYTES),
                noise_key=bytes(SECRET_BYTES),
                digest_key=bytes(SECRET_BYTES),
            )
            sealing = Sealing(RecordContext("c", "shop", "shop.state", shard), (), os.urandom)
            yield shard, sealing.seal(META, 1, msgspec.msgpack.encode(meta))

    monkeypatch.setattr(module, "stored_metas", stored)
    worker = Worker(parse_config(SPEC + "topics: {partitions: 4}\n"))
    lost = worker.config.sealing.model_copy(update={"key_lost": True})
    for config in (worker.config, replace(worker.config, sealing=lost)):
        worker._parts = cast(Any, SimpleNamespace(config=config, cluster=None, cluster_id="c"))
        fault = await worker._key_fault()
        assert (fault is not None) is stays_out
    if fault is not None:
        assert fault.cause is Cause.CONFIGURATION
        assert f"began with topics.partitions: {began[0][0]} and" in fault.reason


async def test_a_worker_whose_version_is_read_soon_does_not_say_that_it_waits_for_one(
    play, monkeypatch, caplog
):
    monkeypatch.setattr(module, "VERSION_WITHIN", 5.0)
    play.worker = Worker(parse_config(SPEC, is_whole=False))
    play.worker.start()
    await asyncio.sleep(0.02)
    await play.worker.adopt(
        AppliedWorkload(parse_config(SPEC).spec, Partitioning(4, "murmur2"), (3, "digest"))
    )
    await play.joins(1)
    assert "worker_outside_group" not in caplog.text


async def test_a_worker_stays_out_of_its_group_until_a_configuration_is_applied(play: ScriptedWorker) -> None:
    play.worker = Worker(parse_config(SPEC, is_whole=False))
    play.worker.start()
    await asyncio.sleep(0.05)
    assert not play.worker.ready
    assert play.worker.fault == WorkerFault(Cause.CONFIGURATION, module.NOTHING_APPLIED)
    assert play.groups == []
    spec = parse_config(SPEC).spec
    with pytest.raises(ConfigError, match=r"partitioner: is murmur2, and the application began with crc32"):
        await play.worker.adopt(AppliedWorkload(spec, Partitioning(4, "crc32"), (3, "digest")))
    await until(lambda: "began with crc32" in play.worker.fault.reason)
    await play.worker.adopt(AppliedWorkload(spec, Partitioning(4, "murmur2"), (3, "digest")))
    await play.joins(1)
    assert play.worker.workload.version == (3, "digest")
    assert play.worker.config.spec == parse_config(SPEC).spec
