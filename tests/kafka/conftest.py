"""What several suites on the session's broker share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.books import Books


@pytest.fixture
async def books(broker, topics) -> AsyncIterator[Books]:
    state = await topics("state", partitions=2, configs={"cleanup.policy": "compact"})
    books = Books(
        broker.bootstrap_servers,
        state,
        await topics("alerts", partitions=2),
        await topics("rejects", partitions=2),
    )
    yield books
    for journal in books.journals:
        await journal.close()
