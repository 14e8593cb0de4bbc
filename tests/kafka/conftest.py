"""What several suites on the session's broker share."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.support.closing import Stage
from tests.support.command_line import CommandLine, Ended
from tests.support.issuer import Issuer
from tests.support.tls import USERS, Authority, SecureKafka
from tests.support.topics import BROKER
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
        overrides={
            "auto.create.topics.enable": "true",
            "group.min.session.timeout.ms": "500",
            "transactional.id.expiration.ms": "1000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
            "producer.id.expiration.ms": "1000",
            "producer.id.expiration.check.interval.ms": "500",
        }
    ) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def retaining_broker() -> Iterator[EmbeddedKafka]:
    """One that deletes at once what the retention of a topic says."""
    often = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "100"}
    with EmbeddedKafka(overrides=BROKER | often) as kafka:
        yield kafka


@pytest.fixture
async def scene(request, broker, topics, tmp_path) -> AsyncIterator[Scene]:
    """The topics of an application; ``SCENE`` of a module says what is special about it."""
    options = getattr(request.module, "SCENE", {})
    name = topics.name("shop")
    async with Scene(broker.bootstrap_servers, name, directory=tmp_path, **options).on_stage() as scene:
        yield scene


@pytest.fixture
async def stage(broker, topics, tmp_path) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        yield Stage(tmp_path, topics.name("shop"), broker.bootstrap_servers, stack)


@pytest.fixture
def stream_svt(capfd, monkeypatch) -> Callable[..., Awaitable[Ended]]:
    """Run one command to its end; nobody answers what it asks."""
    line = CommandLine(capfd)

    async def run(*arguments: object) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        return await asyncio.to_thread(line, *arguments)

    return run
