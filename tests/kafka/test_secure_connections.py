"""Clients over TLS with every kind of login: what is wrong with certificate, password or permissions is named."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace

import pytest
from aiokafka import AIOKafkaProducer

import stream_svt
from stream_svt.application.config import Config, parse_config
from stream_svt.application.signatures import SigningKey, signing_key
from stream_svt.errors import BrokerError, ConfigError
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.operate import strimzi
from stream_svt.operate.audit import audit_state, audit_topic
from stream_svt.operate.check import check_brokers
from stream_svt.operate.control import for_datasets, send
from stream_svt.subscription import Subscription, subscribe
from stream_svt.worker.worker import Worker
from tests.support.keys import write_secrets
from tests.support.permissions import AUDITOR, OPERATOR, WORKER, Grant, allow, allow_all
from tests.support.tls import MECHANISMS, PASSWORD, USERS, Authority, SecureKafka, connections_closed
from tests.support.worker import HIGH, Scene, complaint, is_open, until

pytestmark = pytest.mark.kafka
STATE_AUDITOR: list[Grant] = [
    *(("read", "topic", f".{name}") for name in ("state", "alerts", "control", "counts")),
    *(("describe", "topic", f".{name}") for name in ("rejects", "config")),
]


@dataclass
class Guarded:
    """One application on a broker with a TLS listener, and users that may do what they are given."""

    kafka: SecureKafka
    scene: Scene
    used: int = 0

    def config(self, user: str = "svt", mechanism: str = "SCRAM-SHA-256", ca: str = "ca.pem") -> Config:
        directory = self.scene.directory
        text = self.kafka.secured(self.scene.text(), directory, user, mechanism, ca)
        return parse_config(text, directory=directory)

    async def users(self, *kinds: list[Grant]) -> list[Config]:
        """Return the configurations of new users who may do this each."""
        names = USERS[self.used : self.used + len(kinds)]
        self.used += len(kinds)
        for name, grants in zip(names, kinds, strict=True):
            await allow_all(self.kafka.bootstrap_servers, name, self.scene.application, grants)
        await asyncio.sleep(1)  # the broker's authorizer takes in the last grant a moment later
        return [self.config(name) for name in names]

    def assert_named(self, said: str, missing: Grant) -> None:
        """The text names operation and resource."""
        operation, resource, rest = missing
        name = "" if resource == "transactional_id" else f" '{self.scene.application}{rest}'"
        assert f"operation {operation.upper()} on resource {resource.upper()}{name}" in said, missing


@pytest.fixture
async def guarded(scenes, secure_broker) -> Guarded:
    return Guarded(secure_broker, await scenes(on=secure_broker, partitions=1))


async def _works(config: Config) -> str:
    """Return what a worker says that cannot, nothing of one that can."""
    worker = Worker(config)
    worker.start()
    try:
        await until(lambda: is_open(worker) or complaint(worker) != "")
        await asyncio.sleep(0.3)  # it looks open before it has written for the first time
        return complaint(worker)
    finally:
        await worker.stop()


async def test_tls_with_plain_and_scram_and_what_is_wrong_is_named(guarded: Guarded) -> None:
    scene = guarded.scene
    await allow_all(scene.servers, "svt", scene.application, WORKER)
    for mechanism in MECHANISMS:
        write_secrets(scene.directory, {"password": PASSWORD})
        await scene.send("a", HIGH)
        assert await _works(guarded.config(mechanism=mechanism)) == ""
        write_secrets(scene.directory, {"password": "wrong"})
        said = await _works(guarded.config(mechanism=mechanism))
        assert "refused the login" in said
        assert "wrong" not in said
    (scene.directory / "stranger.pem").write_bytes(Authority.new().pem)
    said = await _works(guarded.config(ca="stranger.pem"))
    assert "the broker's certificate is not trusted" in said
    assert "kafka.ca_file" in said
    write_secrets(scene.directory, {"password": PASSWORD})
    worker = await scene.start(guarded.config())
    await scene.settled(worker, len(MECHANISMS))
    assert len(await scene.alerts()) == len(MECHANISMS)


async def test_a_client_certificate_is_a_login_and_a_missing_one_is_named(guarded: Guarded) -> None:
    scene, kafka = guarded.scene, guarded.kafka
    subject = kafka.authority.certificate.subject.rfc4514_string()
    await allow_all(scene.servers, subject, scene.application, WORKER)
    await scene.send("a", HIGH)

    def config(names: str) -> Config:
        text = kafka.with_certificate(scene.text(), scene.directory, names)
        return parse_config(text, directory=scene.directory)

    said = await _works(config(""))
    assert "certificate_file" in said
    assert await _works(config(", certificate_file: ca.pem, private_key_file: client.key")) == ""


@pytest.mark.soak
async def test_a_broker_with_a_certificate_of_the_next_authority_is_met_without_a_restart(tmp_path) -> None:
    """While two authorities are valid, both are in the file: workers restart before the broker's certificate does."""
    old, new = Authority.new(), Authority.new()
    for name, content in (("old.pem", old.pem), ("both.pem", old.pem + new.pem), ("new.pem", new.pem)):
        (tmp_path / name).write_bytes(content)
    with SecureKafka(old, tmp_path) as kafka:
        async with Scene(kafka.bootstrap_servers, "shop", directory=tmp_path).on_stage() as scene:
            guarded = Guarded(kafka, scene)
            await allow_all(kafka.bootstrap_servers, "svt", "shop", WORKER)
            worker = await scene.start(guarded.config(ca="both.pem"))
            await scene.send("a", HIGH)
            await scene.settled(worker, 1)
            (tmp_path / "broker.pem").write_bytes(new.broker_store())
            await asyncio.to_thread(kafka.restart)
            await until(lambda: worker.ready, 60)
            await scene.send("a", HIGH)
            await scene.settled(worker, 2)
            assert worker.alive
            await scene.stop(worker)
            assert "the broker's certificate is not trusted" in await _works(guarded.config(ca="old.pem"))
            assert await _works(guarded.config(ca="new.pem")) == ""
            assert [alert.number for alert in await scene.alerts()] == [1, 2]
        await connections_closed()


def _without(grants: list[Grant]) -> list[list[Grant]]:
    """Return lists that lack one each."""
    return [[grant for grant in grants if grant != missing] for missing in grants]


async def test_each_permission_that_a_worker_lacks_is_named(guarded: Guarded) -> None:
    everything, *lacking = await guarded.users(WORKER, *_without(WORKER))
    assert await _works(everything) == ""
    await guarded.scene.send("a", HIGH)
    for missing, config in zip(WORKER, lacking, strict=True):
        guarded.assert_named(await _works(config), missing)
    assert await _works(everything) == ""
    assert len(await guarded.scene.alerts()) == 1
    other = replace(everything, topics=everything.topics.model_copy(update={"state": "new.state"}))
    report = await check_brokers(other, other.cluster(), create_topics=True)
    told = "operation CREATE on resource TOPIC 'new.state'"
    assert any(told in finding.message for finding in report if finding.level == "problem")


async def _pauses(config: Config, key: SigningKey) -> str:
    """Give a command; return what came of it."""
    try:
        commands = for_datasets(config, ["a"], Command("", Action.PAUSE))
        [reply] = await send(config, config.cluster(), commands, timeout=20, signing_key=key)
    except BrokerError as error:
        return str(error)
    return "" if reply.accepted else reply.message


async def test_each_permission_that_an_operator_lacks_is_named_before_a_command_is_sent(
    guarded: Guarded,
) -> None:
    """Who may see a topic, and no more, is told so, too."""
    key, (write, read) = signing_key("00" * 32), OPERATOR
    seeing = [("describe", "topic", ".control"), ("describe", "topic", ".alerts")]
    await guarded.scene.begun(HIGH)
    lacking = {write: [[read], [*seeing, read]], read: [[write], [*seeing, write]]}
    for missing, kinds in lacking.items():
        for config in await guarded.users(*kinds):
            guarded.assert_named(await _pauses(config, key), missing)
    assert await guarded.scene.read("control") == []
    [everything] = await guarded.users(OPERATOR)
    assert await _pauses(everything, key) == ""


async def test_each_permission_that_an_auditor_or_a_subscriber_lacks_is_named(guarded: Guarded) -> None:
    await guarded.scene.stop(await guarded.scene.begun(HIGH))
    [read] = AUDITOR
    everything, nothing, seeing, member = await guarded.users(
        AUDITOR, [], [("describe", "topic", ".alerts")], [*AUDITOR, ("read", "group", "-readers")]
    )
    for config in (nothing, seeing):
        with pytest.raises(BrokerError) as refused:
            await audit_topic(config.cluster(), config.topics.alerts)
        guarded.assert_named(str(refused.value), read)
    assert (await audit_topic(everything.cluster(), everything.topics.alerts)).balances
    await _subscribers_are_told(guarded.scene, seeing, everything, member)
    everything, *lacking = await guarded.users(STATE_AUDITOR, *_without(STATE_AUDITOR))
    for (operation, resource, rest), config in zip(STATE_AUDITOR, lacking, strict=True):
        with pytest.raises((BrokerError, ConfigError)) as failed:
            await audit_state(config, config.cluster())
        # Of a topic that is only looked for, what a worker needs on it is named; less is enough.
        said = operation if operation != "describe" else "write" if rest == ".rejects" else "read"
        guarded.assert_named(str(failed.value), (said, resource, rest))
    assert (await audit_state(everything, everything.cluster())).balances


def _subscription(scene: Scene, config: Config, group_id: str | None) -> Subscription:
    keys = ("bootstrap_servers", "security_protocol", "sasl_mechanism", "username")
    connection = {key: getattr(config.kafka, key) for key in keys} | {"ca_file": scene.directory / "ca.pem"}
    return subscribe(
        **connection,
        password=PASSWORD,
        topic=f"{scene.application}.alerts",
        group_id=group_id,
        from_beginning=True,
        lifecycle=True,
    )


async def _subscribers_are_told(scene: Scene, seeing: Config, alone: Config, member: Config) -> None:
    """What `watch` says, too: it is such a subscription."""
    topic, group = f"{scene.application}.alerts", f"{scene.application}-readers"

    async def first(config: Config, group_id: str | None = None) -> str:
        reading = _subscription(scene, config, group_id)
        try:
            async with asyncio.timeout(30), reading:
                return (await anext(aiter(reading))).type
        except BrokerError as error:
            return str(error)

    lacks = f"subscribing to topic '{topic}': permission is missing: operation READ on resource "
    assert (await first(seeing)).startswith(f"{lacks}TOPIC '{topic}'; add an ACL")
    assert (await first(alone, group)).startswith(f"{lacks}GROUP '{group}'; add an ACL")
    assert (await first(alone)) == (await first(member, group)) == EventType.STATE_BEGUN


async def test_users_with_the_permissions_printed_for_strimzi_can_do_their_work(
    guarded, stream_svt, monkeypatch
):
    """Each role as another user: apply, work, send, give a command, subscribe."""
    scene = guarded.scene
    printed = strimzi.grants(guarded.config())
    roles = ("worker", "producer", "subscriber", "operator")
    users = dict(zip(roles, await guarded.users(*([],) * len(roles)), strict=True))
    for role, config in users.items():
        for acl in printed[role]:
            kind = {"transactionalId": "transactional_id"}.get(acl.kind, acl.kind)
            for operation in acl.operations:
                user, name = config.kafka.username or "", acl.name
                await allow(scene.servers, user, operation.lower(), kind, name, prefixed=acl.prefixed)
    file = scene.directory / "operator.yaml"
    user = users["operator"].kafka.username or ""
    file.write_text(guarded.kafka.secured(scene.text(), scene.directory, user, "SCRAM-SHA-256", "ca.pem"))
    arguments = ("apply", "-c", file, "--create-topics", "--yes", "--wait", "0")  # as the Helm chart's Job
    worker_name = users["worker"].kafka.username or ""
    monkeypatch.setenv("STREAM_SVT_KAFKA_USERNAME", worker_name)
    refused = await stream_svt(*arguments)
    assert refused.code != 0, refused
    assert "WRITE" in f"{refused}"
    monkeypatch.delenv("STREAM_SVT_KAFKA_USERNAME")
    ended = await stream_svt(*arguments)
    assert ended.code == 0, ended
    worker = await scene.start(users["worker"])
    async with AIOKafkaProducer(**users["producer"].cluster().arguments, enable_idempotence=True) as producer:
        query = json.dumps({"id": "q", "value": HIGH, "series": "s"}).encode()
        await producer.send_and_wait(scene.queries, query, key=b"a")
    await scene.settled(worker, 1)
    assert await _pauses(users["operator"], signing_key("00" * 32)) == ""
    reading = _subscription(scene, users["subscriber"], f"{scene.application}-readers")
    async with asyncio.timeout(30), reading:
        assert (await anext(aiter(reading))).type == EventType.STATE_BEGUN
    await scene.stop(worker)


async def test_a_refused_login_ends_a_worker_before_anything_is_applied_as_a_process_and_in_a_program(
    scenes, secure_broker
):
    scene = await scenes(on=secure_broker, create=False)
    file = scene.write()
    file.write_text(secure_broker.secured(file.read_text(), scene.directory, user="nobody"))
    service = scene.serve(file=file, applies=False)
    async with asyncio.timeout(30):
        with pytest.raises(BrokerError, match="refused the login") as refused:
            async with stream_svt.Worker(file):
                pytest.fail("entered")
    assert await service.ended() == BrokerError.exit_code
    assert service.log.splitlines()[-1] == f"stream-svt: {refused.value}"
