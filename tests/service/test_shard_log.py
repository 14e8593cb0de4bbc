"""What a transaction that fails says of its cause; the transactions themselves are tested on a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.errors import IllegalOperation, InvalidTxnState, TopicAuthorizationFailedError

from stream_svt.errors import BrokerError
from stream_svt.protocol.state_reader import Topics
from stream_svt.service.kafka import BrokerUnavailable, Cluster
from stream_svt.service.shard_log import ShardLog


def _log(cause: Exception | None) -> ShardLog:
    log = ShardLog(Cluster({}), "shop", 0, Topics("state", "alerts", "rejects"))
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if cause is not None:
        ended.set_exception(cause)
    log._producer = SimpleNamespace(_txn_manager=SimpleNamespace(wait_for_transaction_end=lambda: ended))  # type: ignore[assignment]
    return log


@pytest.mark.parametrize("met", [IllegalOperation(), InvalidTxnState()])
async def test_a_record_on_its_way_does_not_hide_the_permission_that_is_missing(met: Exception) -> None:
    async def fails() -> None:
        raise met

    with pytest.raises(BrokerError, match="operation WRITE on resource TOPIC 'alerts'"):
        await _log(TopicAuthorizationFailedError("alerts"))._bounded(fails())
    with pytest.raises(BrokerUnavailable, match=type(met).__name__):
        await _log(None)._bounded(fails())
