"""Workers over TLS with every kind of login; what is wrong with certificate or password is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_svt.errors import BrokerError
from stream_svt.service.config import parse_config
from stream_svt.service.worker import Worker
from tests.support.permissions import allow
from tests.support.tls import MECHANISMS, PASSWORD, Authority, SecureKafka
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
LEAST = [
    ("read", "group", "shop"),
    ("write", "transactional_id", "shop-"),
    *(("read", "topic", f"shop.{name}") for name in ("state", "alerts", "control", "counts")),
    *(("write", "topic", f"shop.{name}") for name in ("state", "alerts", "rejects")),
]


class Secured:
    """One application behind a SASL_SSL listener."""

    def __init__(self, kafka: SecureKafka, scene: Scene, directory: Path) -> None:
        self.kafka = kafka
        self.scene = scene
        self.directory = directory

    async def says(self, mechanism: str, *, password: str = PASSWORD, ca: str = "ca.pem") -> str:
        """Start a worker and stop it once it is ready; return what kept it from that, else nothing."""
        (self.directory / "password").write_text(password)
        (self.directory / "password").chmod(0o600)
        text = self.scene.text().replace(
            f'"{self.scene.servers}"',
            f'"{self.kafka.sasl_bootstrap_servers}", security_protocol: SASL_SSL, username: svt, '
            f"sasl_mechanism: {mechanism}, password_file: password, ca_file: {ca}",
        )
        worker = Worker(parse_config(text, directory=self.directory))
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
        for operation, resource, name in LEAST:
            prefixed = resource == "transactional_id"
            await allow(kafka.bootstrap_servers, "svt", operation, resource, name, prefixed=prefixed)
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
