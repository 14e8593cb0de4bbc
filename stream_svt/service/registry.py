"""Schemas of Avro records from a Schema Registry: each is fetched once, beside the work of the shards, and kept.

An id never gets another schema: what a record means must be the same at every replay. Until a schema is known, records
that need it wait, whatever the registry answers.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sections import SchemaRegistryConfig

log = logging.getLogger(__name__)

DEADLINE: Final = 5.0
"""Seconds that a request may take."""
BACKOFF: Final = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds before each retry of a request."""
MAX_ANSWER: Final = 1 << 20
"""Most bytes of an answer."""
NOT_CONFIGURED: Final = "this worker has no schema_registry.url"
_PIECE: Final = 1 << 16
_STATUS: Final = {
    401: "it refuses the login",
    403: "it refuses the login",
    404: "it does not know the schema",
}


class _Answer(msgspec.Struct):
    schema: str
    schemaType: str = "AVRO"  # noqa: N815  as the registry spells it


class _Unanswered(Exception):
    """The registry did not answer with a schema; the argument is why."""


@dataclass(slots=True)
class _Request:
    why: str
    tries: int = 0
    next_try: float = 0.0
    task: asyncio.Task[None] | None = None


class SchemaRegistry:
    """Schemas by id, for all shards of a worker."""

    def __init__(
        self, settings: SchemaRegistryConfig, password: str | None = None, directory: Path = Path()
    ) -> None:
        self._settings, self._password, self._directory = settings, password, directory
        self._known: dict[int, str] = {}
        self._requests: dict[int, _Request] = {}

    def configure(self, settings: SchemaRegistryConfig, password: str | None, directory: Path) -> None:
        """Ask another registry, or with another login, from now on."""
        self._settings, self._password, self._directory = settings, password, directory

    def lack(self, spec: ApplicationSpec) -> str | None:
        """Return what this worker lacks to read the Avro records of a specification, None if nothing."""
        if not any(one.record is not None and one.record.format == "avro" for one in spec.monitors):
            return None
        if self._settings.url is None:
            return NOT_CONFIGURED
        return (
            None if find_spec("fastavro") else "this worker has no fastavro: pip install 'stream-svt[avro]'"
        )

    def get(self, number: int) -> str | None:
        """Return a schema as JSON, empty if it is no Avro; None if it is not known yet."""
        return self._known.get(number)

    def request(self, number: int) -> str:
        """Begin to fetch a schema, unless that is in progress; return why it is not known yet."""
        if self._settings.url is None:
            return NOT_CONFIGURED
        asked = self._requests.setdefault(number, _Request(f"schema {number} is being fetched"))
        if asked.task is None and time.monotonic() >= asked.next_try:
            asked.task = asyncio.create_task(self._fetch(number, asked), name=f"schema-{number}")
        return asked.why

    async def wait(self) -> None:
        """Wait for the requests in progress."""
        tasks = [asked.task for asked in self._requests.values() if asked.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel the requests in progress."""
        for asked in self._requests.values():
            if asked.task is not None:
                asked.task.cancel()
        await self.wait()

    async def _fetch(self, number: int, asked: _Request) -> None:
        try:
            self._known[number] = await self._ask(number)
            del self._requests[number]
            log.info("event=schema_read schema=%d", number)
        except _Unanswered as error:
            why = f"schema {number} of the registry is missing: {error}"
            if why != asked.why:
                log.warning("event=schema_unread schema=%d error=%r", number, str(error))
            asked.why = why
            asked.next_try = time.monotonic() + BACKOFF[min(asked.tries, len(BACKOFF) - 1)]
            asked.tries += 1
        finally:
            asked.task = None

    async def _ask(self, number: int) -> str:
        """Return a schema; messages never repeat what the registry says."""
        import aiohttp  # slow to import; a worker has it

        settings = self._settings
        headers = {}
        if settings.username is not None:
            login = base64.b64encode(f"{settings.username}:{self._password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        try:
            context: ssl.SSLContext | bool = True
            if settings.ca_file is not None:
                context = ssl.create_default_context(cafile=self._directory / settings.ca_file)
            async with (
                aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(DEADLINE)) as session,
                session.get(
                    f"{(settings.url or '').rstrip('/')}/schemas/ids/{number}",
                    params={"format": "resolved"},
                    allow_redirects=False,
                    ssl=context,
                ) as response,
            ):
                if response.status != 200:
                    raise _Unanswered(_STATUS.get(response.status, f"it answers {response.status}"))
                body = b""
                async for piece in response.content.iter_chunked(_PIECE):
                    body += piece
                    if len(body) > MAX_ANSWER:
                        raise _Unanswered(f"its answer is longer than {MAX_ANSWER:,} bytes")
                answer = msgspec.json.decode(body, type=_Answer)
        except TimeoutError:
            raise _Unanswered(f"it does not answer within {DEADLINE:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            what = (
                type(error).__name__ if isinstance(error, aiohttp.ClientError | OSError) else "another answer"
            )
            raise _Unanswered(f"it cannot be read ({what})") from None
        return answer.schema if answer.schemaType == "AVRO" else ""
