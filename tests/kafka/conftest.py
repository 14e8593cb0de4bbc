"""What several suites on the session's broker share."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.support.command_line import CommandLine, Ended
from tests.support.issuer import Issuer
from tests.support.tls import USERS, Authority, SecureKafka, connections_closed
from tests.support.topics import STEADY
from tests.support.worker import Scene


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    """What gives out access tokens, and publishes the key that verifies them."""
    with Issuer().serving() as issuer:
        yield issuer


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory, issuer) -> Iterator[SecureKafka]:
    """A second cluster: "svt" and others may log in over TLS, and do what they were allowed to."""
    with SecureKafka(Authority.new(), tmp_path_factory.mktemp("broker"), ("svt", *USERS), issuer) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def lax_broker() -> Iterator[EmbeddedKafka]:
    """One that creates whatever topic it is asked for, and forgets producers that are idle for a second."""
    with EmbeddedKafka(
        overrides=STEADY
        | {
            "auto.create.topics.enable": "true",
            "group.min.session.timeout.ms": "500",
            "transactional.id.expiration.ms": "1000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
            "producer.id.expiration.ms": "1000",
            "producer.id.expiration.check.interval.ms": "500",
        }
    ) as kafka:
        yield kafka


@pytest.fixture
async def scenes(broker, topics, tmp_path) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Put applications on a broker, that of the session unless told; all that they started ends with the test."""
    secure = False
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            kind: type[Scene] = Scene, *, on: EmbeddedKafka = broker, create: bool = True, **options: Any
        ) -> Scene:
            nonlocal secure
            secure = secure or isinstance(on, SecureKafka)
            usual = {
                "servers": on.bootstrap_servers,
                "application": topics.name("shop"),
                "directory": tmp_path,
            }
            return await stack.enter_async_context(kind(**usual | options).on_stage(create=create))

        yield make
    if secure:
        await connections_closed()


@pytest.fixture
async def scene(request, scenes) -> Scene:
    """An application; ``SCENE`` of a module says what is special about it."""
    return await scenes(**getattr(request.module, "SCENE", {}))


@pytest.fixture
def stream_svt(capfd, monkeypatch) -> Callable[..., Awaitable[Ended]]:
    """Run one command to its end; nobody answers what it asks."""
    line = CommandLine(capfd)

    async def run(*arguments: object) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        return await asyncio.to_thread(line, *arguments)

    return run
