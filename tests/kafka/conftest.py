"""What several suites on the session's broker share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.books import Books
from tests.support.tls import PASSWORD, USERS, Authority, SecureKafka


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory) -> Iterator[SecureKafka]:
    """A second cluster: "svt" and others may log in over TLS, and without TLS it takes everything."""
    with SecureKafka(
        Authority.new(),
        tmp_path_factory.mktemp("broker"),
        dict.fromkeys(("svt", *USERS), PASSWORD),
        **{"group.min.session.timeout.ms": "500"},
    ) as kafka:
        yield kafka


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
