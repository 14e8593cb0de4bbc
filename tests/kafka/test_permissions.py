"""Whatever permission is missing, for workers, operators and auditors: the error names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stream_svt.errors import BrokerError, ConfigError
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service.audit import audit_state, audit_topic
from stream_svt.service.check import check_brokers
from stream_svt.service.config import Config, parse_config
from stream_svt.service.control import for_datasets
from stream_svt.service.signatures import SigningKey, signing_key
from stream_svt.service.worker import Worker, cluster_of
from stream_svt.subscribe import subscribe
from tests.support.permissions import WORKER, Grant, allow_all
from tests.support.tls import USERS, SecureKafka, connections_closed, secured
from tests.support.worker import HIGH, Scene, complaint, give, is_open, until

pytestmark = pytest.mark.kafka
OPERATOR: list[Grant] = [("write", "topic", ".control"), ("read", "topic", ".alerts")]
AUDITOR: list[Grant] = [("read", "topic", ".alerts")]
STATE_AUDITOR: list[Grant] = [
    *(("read", "topic", f".{name}") for name in ("state", "alerts", "control", "counts")),
    *(("describe", "topic", f".{name}") for name in ("rejects", "config")),
]


@dataclass
class Guarded:
    """One application behind a TLS listener, and users that may do what they are given."""

    kafka: SecureKafka
    scene: Scene
    directory: Path
    used: int = 0

    async def users(self, *kinds: list[Grant]) -> list[Config]:
        """Return the configurations of new users who may do this each."""
        configs = []
        for name, grants in zip(USERS[self.used :], kinds, strict=False):
            await allow_all(self.kafka.bootstrap_servers, name, self.scene.application, grants)
            text = secured(self.scene.text(), self.kafka, f"username: {name}, sasl_mechanism: SCRAM-SHA-256")
            configs.append(parse_config(text, directory=self.directory))
        self.used += len(kinds)
        assert len(configs) == len(kinds), "too few users"
        # The broker's authorizer takes in the last grant a moment later.
        await asyncio.sleep(1)
        return configs

    def assert_named(self, said: str, missing: Grant) -> None:
        """The text names operation and resource."""
        operation, resource, rest = missing
        name = "" if resource == "transactional_id" else f" '{self.scene.application}{rest}'"
        assert f"operation {operation.upper()} on resource {resource.upper()}{name}" in said, missing

    async def alert(self, *, stop: bool = True) -> Worker:
        """Have a worker raise one alert, and stop it unless told not to."""
        worker = await self.scene.start()
        await self.scene.send("a", HIGH)
        await self.scene.settled(worker, 1)
        if stop:
            await self.scene.stop(worker)
        return worker


@pytest.fixture
async def guarded(secure_broker, topics, tmp_path) -> AsyncIterator[Guarded]:
    secure_broker.write_secrets(tmp_path)
    async with Scene(secure_broker.bootstrap_servers, topics.name("shop"), partitions=1).on_stage() as scene:
        yield Guarded(secure_broker, scene, tmp_path)
    await connections_closed()


def _without(grants: list[Grant], missing: Grant) -> list[Grant]:
    return [grant for grant in grants if grant != missing]


async def _works(config: Config) -> str:
    """Return what a worker says that cannot, nothing of one that can."""
    worker = Worker(config)
    try:
        await worker.start()
        await until(lambda: is_open(worker) or complaint(worker) != "")
        await asyncio.sleep(0.3)  # it looks open before it has written for the first time
        return complaint(worker)
    except (BrokerError, ConfigError) as error:
        return str(error)
    finally:
        await worker.stop()


async def test_each_permission_that_a_worker_lacks_is_named(guarded) -> None:
    everything, *lacking = await guarded.users(WORKER, *(_without(WORKER, missing) for missing in WORKER))
    assert await _works(everything) == ""
    await guarded.scene.send("a", HIGH)
    for missing, config in zip(WORKER, lacking, strict=True):
        guarded.assert_named(await _works(config), missing)
    assert await _works(everything) == ""
    assert len(await guarded.scene.alerts()) == 1
    other = replace(everything, topics=everything.topics.model_copy(update={"state": "new.state"}))
    report = await check_brokers(other, cluster_of(other), create_topics=True)
    told = "operation CREATE on resource TOPIC 'new.state'"
    assert any(told in finding.message for finding in report if finding.is_problem)


async def _pauses(config: Config, key: SigningKey) -> str:
    """Give a command; return what came of it."""
    try:
        [reply] = await give(config, for_datasets(config, Action.PAUSE, ["a"]), signing_key=key)
    except BrokerError as error:
        return str(error)
    return "" if reply.accepted else reply.message


async def test_each_permission_that_an_operator_lacks_is_named_before_a_command_is_sent(guarded) -> None:
    key = signing_key("00" * 32)
    write, read = OPERATOR
    seeing = [("describe", "topic", ".control"), ("describe", "topic", ".alerts")]
    worker = await guarded.alert(stop=False)
    everything, reader, writer, seeing_reader, seeing_writer = await guarded.users(
        OPERATOR, [read], [write], [*seeing, read], [*seeing, write]
    )
    guarded.assert_named(await _pauses(reader, key), write)
    guarded.assert_named(await _pauses(writer, key), read)
    # Who may see a topic, and no more, is told so, too.
    guarded.assert_named(await _pauses(seeing_reader, key), write)
    guarded.assert_named(await _pauses(seeing_writer, key), read)
    assert await guarded.scene.read("control") == []
    assert await _pauses(everything, key) == ""
    await guarded.scene.stop(worker)


async def test_each_permission_that_an_auditor_or_a_subscriber_lacks_is_named(guarded) -> None:
    await guarded.alert()
    [read] = AUDITOR
    everything, nothing, seeing, member = await guarded.users(
        AUDITOR, [], [("describe", "topic", ".alerts")], [*AUDITOR, ("read", "group", "-readers")]
    )
    for config in (nothing, seeing):
        with pytest.raises(BrokerError) as refused:
            await audit_topic(cluster_of(config), config.topics.alerts)
        guarded.assert_named(str(refused.value), read)
    assert (await audit_topic(cluster_of(everything), everything.topics.alerts)).balances
    await _subscribers_are_told(guarded.scene.application, seeing, everything, member)
    everything, *lacking = await guarded.users(
        STATE_AUDITOR, *(_without(STATE_AUDITOR, missing) for missing in STATE_AUDITOR)
    )
    for missing, config in zip(STATE_AUDITOR, lacking, strict=True):
        with pytest.raises((BrokerError, ConfigError)) as failed:
            await audit_state(config, cluster_of(config))
        # Of a topic that is only looked for, what a worker needs on it is named; less is enough.
        operation, resource, rest = missing
        said = operation if operation != "describe" else "write" if rest == ".rejects" else "read"
        guarded.assert_named(str(failed.value), (said, resource, rest))
    assert (await audit_state(everything, cluster_of(everything))).balances


async def _subscribers_are_told(application: str, seeing: Config, alone: Config, member: Config) -> None:
    """What `watch` says, too: it is such a subscription."""
    topic, group = f"{application}.alerts", f"{application}-readers"

    async def first(config: Config, group_id: str | None = None) -> str:
        reading = subscribe(
            **config.kafka_arguments(), topic=topic, group_id=group_id, from_beginning=True, lifecycle=True
        )
        try:
            async with asyncio.timeout(30), reading:
                return (await anext(aiter(reading))).type
        except BrokerError as error:
            return str(error)

    lacks = f"subscribing to topic '{topic}': permission is missing: operation READ on resource "
    assert (await first(seeing)).startswith(f"{lacks}TOPIC '{topic}'; add an ACL")
    assert (await first(alone, group)).startswith(f"{lacks}GROUP '{group}'; add an ACL")
    assert (await first(alone)) == (await first(member, group)) == EventType.STATE_BEGUN
