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


ANSWERS = {
    "unknown": (404, "does not know the schema"),
    "refused": (403, "refuses the login"),
    "broken": (500, "answers 500"),
    "redirected": (302, "answers 302"),
    "garbage": (b"<html>secret", "cannot be read"),
    "not a schema": (b'{"schema": 7}', "cannot be read"),
    "not utf-8": (b'{"schema": "\xff"}', "cannot be read"),
    "huge": (b'{"schema": "%b"}' % (b"x" * (2 << 20)), "longer than 1,048,576 bytes"),
    "deep": (b'{"metadata": ' + b"[" * 100_000, "cannot be read"),
}


@pytest.mark.parametrize(("answer", "why"), ANSWERS.values(), ids=ANSWERS)
async def test_whatever_it_answers_instead_is_told_and_asked_again_after_a_pause(
    answer, why, monkeypatch, caplog
):
    monkeypatch.setattr(registry, "BACKOFF", (0.1,))
    async with Registry({7: NESTED}, {7: answer}).started() as server:
        schemas = reader(server)
        schemas.request(7)
        await schemas.wait()
        assert why in schemas.request(7)
        assert "secret" not in caplog.text + schemas.request(7)
        assert server.asked == [7]
        del server.answers[7]
        await asyncio.sleep(0.12)
        schemas.request(7)
        await schemas.wait()
        assert schemas.get(7)


async def test_a_slow_and_an_absent_registry_are_told(monkeypatch):
    monkeypatch.setattr(registry, "DEADLINE", 0.1)
    async with Registry({7: NESTED}, delay=1).started() as server:
        schemas = reader(server)
        schemas.request(7)
        await schemas.wait()
        assert "does not answer within" in schemas.request(7)
        schemas.request(8)
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
