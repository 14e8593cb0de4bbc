"""Workers over TLS with every kind of login; what is wrong with certificate or password is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stream_svt.errors import BrokerError
from stream_svt.service.audit import audit_state, audit_topic
from stream_svt.service.config import parse_config
from stream_svt.service.worker import Worker, cluster_of
from tests.support.keys import write_secrets
from tests.support.permissions import WORKER, allow_all
from tests.support.tls import MECHANISMS, PASSWORD, Authority, SecureKafka, connections_closed, secured
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka


class Secured:
    """One application behind a SASL_SSL listener."""

    def __init__(self, kafka: SecureKafka, scene: Scene, directory: Path) -> None:
        self.kafka = kafka
        self.scene = scene
        self.directory = directory

    def worker(self, mechanism: str, *, password: str = PASSWORD, ca: str = "ca.pem") -> Worker:
        """Return a worker that logs in, not started."""
        write_secrets(self.directory, {"password": password})
        text = secured(self.scene.text(), self.kafka, f"username: svt, sasl_mechanism: {mechanism}", ca)
        return Worker(parse_config(text, directory=self.directory))

    async def says(self, mechanism: str, **differently: str) -> str:
        """Start a worker and stop it once it is ready; return what kept it from that, else nothing."""
        worker = self.worker(mechanism, **differently)
        try:
            await worker.start()
            await until(lambda: worker.ready or not worker.alive)
            if not worker.alive:
                return str(worker.failed.exception())
            await self.scene.send("a", HIGH)
            await self.scene.settled(worker, len(await self.scene.read("counts")))
            return ""
        except BrokerError as error:
            return str(error)
        finally:
            await worker.stop()


async def test_tls_with_plain_and_scram_and_what_is_wrong_is_named(tmp_path, secure_broker) -> None:
    kafka = secure_broker
    (tmp_path / "ca.pem").write_bytes(kafka.authority.pem)
    (tmp_path / "stranger.pem").write_bytes(Authority.new().pem)
    async with Scene(kafka.bootstrap_servers, "shop", partitions=1).on_stage() as scene:
        await allow_all(kafka.bootstrap_servers, "svt", "shop", WORKER)
        secured = Secured(kafka, scene, tmp_path)
        for count, mechanism in enumerate(MECHANISMS, 1):
            assert await secured.says(mechanism) == ""
            assert len(await scene.alerts()) == count
            said = await secured.says(mechanism, password="wrong")
            assert "refused the login" in said
            assert "wrong" not in said
        said = await secured.says("PLAIN", ca="stranger.pem")
        assert "the broker's certificate is not trusted" in said
        assert "kafka.ca_file" in said
        assert len(await scene.alerts()) == len(MECHANISMS)
    await connections_closed()


@pytest.mark.soak
async def test_a_broker_with_a_certificate_of_the_next_authority_is_met_without_a_restart(tmp_path) -> None:
    """While two authorities are valid, both are in the file: workers restart before the broker's certificate does."""
    old, new = Authority.new(), Authority.new()
    for name, content in (("old.pem", old.pem), ("both.pem", old.pem + new.pem), ("new.pem", new.pem)):
        (tmp_path / name).write_bytes(content)
    with SecureKafka(old, tmp_path, {"svt": PASSWORD}, **{"group.min.session.timeout.ms": "500"}) as kafka:
        async with Scene(kafka.bootstrap_servers, "shop", partitions=1).on_stage() as scene:
            await allow_all(kafka.bootstrap_servers, "svt", "shop", WORKER)
            secured = Secured(kafka, scene, tmp_path)
            worker = secured.worker("SCRAM-SHA-256", ca="both.pem")
            try:
                await worker.start()
                await until(lambda: worker.ready)
                await scene.send("a", HIGH)
                await scene.settled(worker, 1)
                (tmp_path / "broker.pem").write_bytes(new.broker_store())
                await asyncio.to_thread(kafka.restart)
                await until(lambda: worker.ready, 60)
                await scene.send("a", HIGH)
                await scene.settled(worker, 2)
                assert worker.alive
            finally:
                await worker.stop()
            assert "the broker's certificate is not trusted" in await secured.says("PLAIN", ca="old.pem")
            assert await secured.says("PLAIN", ca="new.pem") == ""
            assert [alert.top for alert in await scene.alerts()] == [1, 2, 3]
            config = scene.config()
            public = await audit_topic(cluster_of(config), config.topics.alerts, config.spec.monitors)
            whole = await audit_state(config, cluster_of(config))
            assert (public.balances, public.alerts) == (True, 3)
            assert (whole.balances, whole.alerts, whole.ledgers) == (True, 3, 1)
        await connections_closed()
