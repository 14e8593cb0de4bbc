"""Avro in the wire format of a Schema Registry, schemas at hand, and a registry of our own on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiohttp import web
from fastavro import parse_schema, schemaless_writer

NESTED = {
    "type": "record",
    "name": "Event",
    "namespace": "shop.events",
    "fields": [
        {"name": "op", "type": "string"},
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "id", "type": "string"}]}},
        {
            "name": "payload",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Count",
                    "fields": [{"name": "count", "type": "long"}, {"name": "page", "type": ["null", "string"]}],
                },
            ],
        },
    ],
}  # fmt: skip


def record(name: str, **fields: Any) -> dict[str, Any]:
    """Return a schema."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": one} for key, one in fields.items()],
    }


def encode(schema: Any, content: Any, number: int = 1) -> bytes:
    """Return a record in the wire format."""
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), content)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def varint(number: int) -> bytes:
    """Return an Avro integer."""
    left, out = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


class AtHand:
    """Schemas that are known; others are being fetched for ever."""

    def __init__(self, schemas: Mapping[int, Any]) -> None:
        self.schemas = {
            number: one if isinstance(one, str) else json.dumps(one) for number, one in schemas.items()
        }
        self.requested: list[int] = []
        self.forgotten = 0

    def forget_absences(self) -> None:
        self.forgotten += 1

    def get(self, number: int) -> str | None:
        return self.schemas.get(number)

    def request(self, number: int) -> str:
        self.requested.append(number)
        return f"schema {number} is missing"


@dataclass
class Registry:
    """A Schema Registry; ``answers`` are by id or subject what it says instead of a schema: a status, or a body.

    It ignores ``format=resolved``, as some do: ``references`` by id, and by subject, are subjects of version 1, or of
    another one: ``page@2``, which is also how its schema is known.
    """

    schemas: dict[int | str, Any] = field(default_factory=dict)
    answers: dict[int | str, int | bytes] = field(default_factory=dict)
    references: dict[int | str, list[str]] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    delay: float = 0.0
    asked: list[int | str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        found_by = request.match_info
        number: int | str = int(found_by["number"]) if "number" in found_by else found_by["subject"]
        if (version := found_by.get("version", "1")) != "1":
            number = f"{number}@{version}"
        self.asked.append(number)
        await asyncio.sleep(self.delay)
        if self.login is not None:
            expected = base64.b64encode(":".join(self.login).encode()).decode()
            if request.headers.get("Authorization") != f"Basic {expected}":
                return web.Response(status=401)
        found = self.answers.get(number, 404 if number not in self.schemas else 200)
        if isinstance(found, bytes):
            return web.Response(body=found)
        if found != 200:
            return web.json_response({"error_code": 40403}, status=found)
        references = [
            {"name": subject, "subject": subject, "version": int(version or 1)}
            for subject, _, version in (one.partition("@") for one in self.references.get(number, []))
        ]
        also = {"references": references} if references else {}
        return web.json_response({"schema": json.dumps(self.schemas[number])} | also)

    @contextlib.asynccontextmanager
    async def started(self, port: int = 0) -> AsyncIterator[Registry]:
        application = web.Application()
        application.router.add_get("/schemas/ids/{number}", self.answer)
        application.router.add_get("/subjects/{subject}/versions/{version}", self.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
