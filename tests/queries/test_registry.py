"""Schemas are fetched once, in the background, whatever the registry answers, and what lacks is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stream_svt.application.config import Files, parse_config
from stream_svt.errors import ConfigError
from stream_svt.queries.avro import registry
from stream_svt.queries.avro.registry import NOT_CONFIGURED, SchemaRegistry
from stream_svt.settings.sections import SchemaRegistryConfig
from tests.support.avro import NESTED, Registry

pytestmark = pytest.mark.loopback

TEXT = """
application: shop
schema_registry: {registry}
datasets: [{{name: today, limit: 4, unit: one basket}}]
monitors:
  - {{name: hot, topic: counts, record: {{format: avro, value: n}}, epsilon: 1, cutoff: 10, sensitivity: 1,
     bounds: [0, 100], threshold: 50, expected_queries: 1000}}
"""


def reader(server: Registry, password: str | None = None) -> SchemaRegistry:
    keys = {"url": f"{server.url}/"}
    if password is not None:
        keys |= {"username": "svt", "password_file": "given"}
    return SchemaRegistry(SchemaRegistryConfig.model_validate(keys, context=Files(Path(), password)))


async def test_a_schema_is_asked_for_once_and_kept():
    async with Registry({7: NESTED}, delay=0.05).started() as server:
        schemas = reader(server)
        assert [schemas.request(7) for _ in range(3)] == ["schema 7 is being fetched"] * 3
        assert schemas.get(7) is None
        await schemas.wait()
        assert '"Event"' in (schemas.get(7) or "")
        assert server.asked == [7]


async def test_it_is_asked_again_after_a_pause(monkeypatch):
    monkeypatch.setattr(registry, "BACKOFF", (0.1,))
    async with Registry({7: NESTED}, {7: 500}).started() as server:
        schemas = reader(server)
        for pause, known in ((0.0, False), (0.0, False), (0.12, True)):
            server.answers = {} if known else server.answers
            await asyncio.sleep(pause)
            schemas.request(7)
            await schemas.wait()
            assert (schemas.get(7) is not None) is known
            assert server.asked == [7] * (1 + known)


async def test_a_slow_and_an_absent_registry_are_told(monkeypatch):
    monkeypatch.setattr(registry, "DEADLINE", 0.1)
    async with Registry({7: NESTED}, delay=1).started() as server:
        schemas = reader(server)
        schemas.request(7)
        await schemas.wait()
        assert "does not answer within" in schemas.request(7)
        server.delay = 0
        monkeypatch.setattr(registry, "BACKOFF", (0.0,))
        schemas.request(8)
        await schemas.wait()
        assert "does not know the schema" in schemas.request(8)
    schemas.request(9)
    await schemas.wait()
    assert "cannot be read (ClientConnectorError)" in schemas.request(9)
    await schemas.close()


async def test_a_login_is_sent():
    async with Registry({7: NESTED}, login=("svt", "word")).started() as server:
        for password, known in (("word", True), ("other", False), (None, False)):
            schemas = reader(server, password)
            schemas.request(7)
            await schemas.wait()
            assert (schemas.get(7) is not None) is known


async def test_a_schema_of_another_kind_is_none():
    async with Registry({}, {7: b'{"schema": "message M {}", "schemaType": "PROTOBUF"}'}).started() as server:
        schemas = reader(server)
        schemas.request(7)
        await schemas.wait()
        assert schemas.get(7) == ""


def test_what_a_worker_lacks_is_found_before_it_joins():
    spec = parse_config(TEXT.format(registry='{url: "http://127.0.0.1:8081"}')).spec
    assert SchemaRegistry(SchemaRegistryConfig()).lack(spec) == NOT_CONFIGURED
    assert SchemaRegistry(SchemaRegistryConfig()).request(1) == NOT_CONFIGURED
    here = SchemaRegistry(SchemaRegistryConfig(url="http://127.0.0.1:8081"))
    assert here.lack(spec) is None


def test_avro_without_a_registry_is_refused():
    message = r"monitors\[0\]\.record\.format: avro needs the address .*: set schema_registry\.url"
    with pytest.raises(ConfigError, match=message):
        parse_config(TEXT.format(registry="{}"))
