"""The operator's audit on a real broker: it balances beside a worker, and finds a state put back to an older time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stream_svt.service import audit
from stream_svt.service.audit import Audit, ShardState
from stream_svt.service.worker import cluster_of
from tests.kafka.test_rollback import Drill, stage
from tests.support.worker import HIGH, until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def drill(broker, topics, tmp_path) -> AsyncIterator[Drill]:
    async with stage(broker.bootstrap_servers, topics.name("audited")).on_stage() as scene:
        yield Drill(scene, tmp_path)


async def audited(drill: Drill) -> Audit:
    config = drill.config()
    return await audit.audit_state(config, cluster_of(config))


async def test_a_state_that_was_put_back_is_found_to_be_older_than_the_alerts(drill: Drill) -> None:
    await drill.day(tops=2)
    yesterday = await drill.backup()
    known = (await drill.scene.events())[-1][0].sequence
    await drill.day(tops=3)
    assert (await audited(drill)).balances
    published = await drill.scene.events()
    await drill.restore(yesterday)
    found = await audited(drill)
    messages = [finding.message for finding in found.findings]
    newest = published[-1][0].sequence
    assert messages[0].startswith(
        f"it knows events up to number {known}, the alert topic holds them up to {newest}: the state is older"
    )
    assert any("dataset a: in the ledger" in message for message in messages)
    assert (found.events, found.alerts) == (len(published), 5)


async def test_what_is_published_while_the_audit_runs_is_not_held_against_the_state(
    drill: Drill, monkeypatch
) -> None:
    await drill.day(tops=1)
    read_state = audit._read_state

    async def read_between(*args) -> ShardState:
        await drill.day(tops=1)
        state = await read_state(*args)
        await drill.day(tops=1)
        return state

    monkeypatch.setattr(audit, "_read_state", read_between)
    found = await audited(drill)
    assert found.problems == []
    assert found.alerts == 2


async def test_beside_a_worker_that_charges_every_audit_balances(drill: Drill) -> None:
    worker = await drill.scene.start(drill.config())

    async def spend() -> None:
        for _ in range(8):
            await drill.scene.send("a", HIGH)
            await asyncio.sleep(0.1)

    spending = asyncio.create_task(spend())
    audits = 0
    while not spending.done() or not audits:
        found = await audited(drill)
        assert found.problems == []
        audits += 1
    await spending
    await drill.all_read(worker)
    assert (await audited(drill)).alerts == 8


async def test_alerts_that_retention_took_to_the_last_are_not_held_against_the_state(drill: Drill) -> None:
    await drill.day(tops=2)
    await drill.scene.delete_before("alerts", -1)
    found = await audited(drill)
    assert found.problems == []
    assert found.truncated == {0}
    await drill.day(tops=1)
    assert (await audited(drill)).problems == []


async def test_a_budget_given_up_after_a_state_was_put_back_balances(drill: Drill) -> None:
    await drill.day(tops=2)
    yesterday = await drill.backup()
    await drill.day(tops=3)
    await drill.restore(yesterday)
    worker = await drill.refuses("ends with event")
    assert not (await audited(drill)).balances
    assert (await drill.gives_up()).accepted
    await until(lambda: worker.ready)
    await drill.scene.stop(worker)
    assert (await audited(drill)).problems == []


async def test_a_state_under_another_key_is_unreadable_and_no_finding(drill: Drill) -> None:
    await drill.day(tops=2)
    (drill.directory / "key").write_text(bytes(32).hex())
    found = await audited(drill)
    assert (found.findings, found.balances, len(found.unreadable)) == ([], False, 1)
    assert "key" in found.unreadable[0]
