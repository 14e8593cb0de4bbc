"""The operator's audit on a real broker: it balances beside a worker, and finds a state put back to an older time."""

from __future__ import annotations

import pytest

from stream_svt.protocol.audit import Audit, ShardState
from stream_svt.service import audit
from stream_svt.service.worker import cluster_of
from tests.support.closing import SEALED_ANEW, Application, Stage

pytestmark = pytest.mark.kafka


@pytest.fixture
async def app(stage: Stage) -> Application:
    return await stage.old(partitions=1)


async def audited(app: Application) -> Audit:
    config = app.config()
    return await audit.audit_state(config, cluster_of(config))


async def test_a_state_that_was_put_back_is_found_to_be_older_than_the_alerts(app: Application) -> None:
    await app.spend({"a": 2})
    yesterday = await app.live()
    known = (await app.events())[-1][0].sequence
    await app.spend({"a": 3})
    assert (await audited(app)).balances
    published = await app.events()
    await app.put(yesterday)
    found = await audited(app)
    newest = published[-1][0].sequence
    older = (
        f"it knows events up to number {known}, the alert topic holds them up to {newest}: the state is older"
    )
    assert f"state of shard 0: {older}" in found.findings[0]
    assert any("dataset a: in the ledger" in message for message in found.findings)
    assert (found.events, found.alerts) == (len(published), 5)


async def test_what_is_published_while_the_audit_runs_is_not_held_against_the_state(
    app: Application, monkeypatch
) -> None:
    await app.spend({"a": 1})
    read_state = audit._read_state

    async def read_between(*args) -> ShardState:
        await app.spend({"a": 1})
        state = await read_state(*args)
        await app.spend({"a": 1})
        return state

    monkeypatch.setattr(audit, "_read_state", read_between)
    found = await audited(app)
    assert found.problems == []
    assert found.alerts == 2


async def test_alerts_that_retention_took_to_the_last_are_not_held_against_the_state(
    app: Application,
) -> None:
    await app.spend({"a": 2})
    await app.delete_before("alerts", -1)
    found = await audited(app)
    assert found.problems == []
    assert found.truncated == {0}
    await app.spend({"a": 1})
    assert (await audited(app)).problems == []
    app.more = SEALED_ANEW  # with another key the state is unreadable, which is no finding
    found = await audited(app)
    assert (found.findings, found.balances, len(found.unreadable)) == ([], False, 1)
    assert "key" in found.unreadable[0]
