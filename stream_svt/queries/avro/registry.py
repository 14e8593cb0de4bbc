"""Schemas of Avro records from a Schema Registry: each is fetched once, beside the work of the shards, and kept.

An id never gets another schema: what a record means must be the same at every replay. Until a schema is known, with all
schemas that it refers to, records that need it wait, whatever the registry answers: time or an operator may mend that.
Raw events do not wait for an id that the registry says it does not have, or whose schema cannot be used: anybody who
writes them can make one up, or write the id of another topic. Such an answer holds for the events that are there when
it is asked for, not for later ones: schemas are registered first.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from stream_svt.queries.avro.references import inlined
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sections import SchemaRegistryConfig

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

DEADLINE: Final = 5.0
"""Seconds that a request may take."""
BACKOFF: Final = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds before each retry of a request."""
MAX_ANSWER: Final = 1 << 20
"""Most bytes of an answer, and of a schema with those that it refers to."""
MAX_REFERENCES: Final = 200
"""Most schemas that a schema refers to, indirectly included."""
MOST_TASKS: Final = 32
"""Most schemas that are asked for at the same time."""
NOT_CONFIGURED: Final = "this worker has no schema_registry.url"
_PIECE: Final = 1 << 16
_STATUS: Final = {
    401: "it refuses the login: check schema_registry.username and password_file",
    403: "it refuses the login: grant its user READ on the subject",
    404: "it does not know the schema: register it again under this id",
}


_ABSENCES: Final = frozenset({40401, 40402, 40403})
"""Codes of errors: the registry has no such subject, version, or id of a schema. A proxy's 404 has no such code."""


class _Error(msgspec.Struct):
    error_code: int = 0


class _Reference(msgspec.Struct):
    subject: str
    version: int
    name: str = ""


class _Answer(msgspec.Struct):
    schema: str
    schemaType: str | None = None  # noqa: N815  as the registry spells it
    references: list[_Reference] | None = None


class _Unanswered(Exception):
    """The registry did not answer with a schema; the argument is why."""


class _Absent(_Unanswered):
    """The registry says that it has no such schema, or has one that cannot be used."""


class _Refused(_Unanswered):
    """The login may not read this schema, or none at all."""


@dataclass(slots=True)
class _Request:
    why: str
    tries: int = 0
    referenced: dict[tuple[str, int], _Answer] = field(default_factory=dict)
    next_try: float = 0.0
    is_old: bool = False
    task: asyncio.Task[None] | None = None


class SchemaRegistry:
    """Schemas by id, for all shards of a worker, or all sources of a counter.

    With ``takes_absence`` an id has an empty schema, until `forget_absences`, if the registry answers that it has none,
    or with one that cannot be used, or refuses it to a login that has read another schema.
    """

    def __init__(self, settings: SchemaRegistryConfig, *, takes_absence: bool = False) -> None:
        self._settings, self._takes_absence = settings, takes_absence
        self._known: dict[int, str] = {}
        self._has_read = False
        self._absent: set[int] = set()
        self._requests: dict[int, _Request] = {}

    def configure(self, settings: SchemaRegistryConfig) -> None:
        """Ask another registry, or with another login, from now on."""
        self._settings, self._has_read = settings, False

    def lack(self, spec: ApplicationSpec) -> str | None:
        """Return what this worker lacks to read the Avro records of a specification, None if nothing."""
        if not any(one.record is not None and one.record.format == "avro" for one in spec.monitors):
            return None
        return NOT_CONFIGURED if self._settings.url is None else None

    def get(self, number: int) -> str | None:
        """Return a schema as JSON, empty if it is no Avro, or taken as absent; None if it is not known yet."""
        return "" if number in self._absent else self._known.get(number)

    def forget_absences(self) -> None:
        """Ask again for schemas that the registry did not have, and take no such answer to requests in progress."""
        self._absent.clear()
        for asked in self._requests.values():
            asked.is_old = True

    def request(self, number: int) -> str:
        """Begin to fetch a schema, unless that is in progress; return why it is not known yet."""
        if self._settings.url is None:
            return NOT_CONFIGURED
        asked = self._requests.setdefault(number, _Request(f"schema {number} is being fetched"))
        is_due = asked.task is None and time.monotonic() >= asked.next_try
        if is_due and sum(one.task is not None for one in self._requests.values()) < MOST_TASKS:
            asked.is_old = False
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
            self._known[number] = await self._ask(number, asked)
            del self._requests[number]
            if not self._has_read:
                self._has_read = True
                for refused in self._requests.values():
                    refused.next_try = 0.0
            log.info("event=schema_read schema=%d", number)
        except _Unanswered as error:
            is_final = isinstance(error, _Absent) or (self._has_read and isinstance(error, _Refused))
            if is_final and self._takes_absence:
                if not asked.is_old:
                    self._absent.add(number)
                    log.warning("event=schema_absent schema=%d error=%r", number, str(error))
                del self._requests[number]
                return
            why = f"schema {number} of the registry is missing: {error}"
            if why != asked.why:
                log.warning("event=schema_unread schema=%d error=%r", number, str(error))
            asked.why = why
            asked.next_try = time.monotonic() + BACKOFF[min(asked.tries, len(BACKOFF) - 1)]
            asked.tries += 1
        finally:
            asked.task = None

    async def _ask(self, number: int, asked: _Request) -> str:
        """Return a schema in which no type is open; messages never repeat what the registry says."""
        import aiohttp  # slow to import; a worker has it

        settings = self._settings
        headers = {}
        if settings.username is not None and (password := settings.password_file) is not None:
            login = base64.b64encode(f"{settings.username}:{password.held}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        try:
            context: ssl.SSLContext | bool = True
            if settings.ca_file is not None:
                context = ssl.create_default_context(cafile=settings.ca_file.held)
        except (OSError, ValueError) as error:
            raise _Unanswered(f"schema_registry.ca_file cannot be used ({type(error).__name__})") from None
        timeout = aiohttp.ClientTimeout(DEADLINE)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:

            async def get(path: str, query: str) -> _Answer:
                return await self._get(session, f"{path}?{query}", context)

            answer = await get(f"/schemas/ids/{number}", "format=resolved")
            if (answer.schemaType or "AVRO") != "AVRO":
                return ""
            return await _resolved(answer, get, asked.referenced)

    async def _get(
        self, session: aiohttp.ClientSession, path: str, context: ssl.SSLContext | bool
    ) -> _Answer:
        """Return one answer; raises _Unanswered."""
        import aiohttp
        from yarl import URL

        url = URL(f"{(self._settings.url or '').rstrip('/')}{path}", encoded=True)
        try:
            async with session.get(url, allow_redirects=False, ssl=context) as response:
                if response.status not in {200, 404}:
                    kind = _Refused if response.status == 403 else _Unanswered
                    raise kind(_STATUS.get(response.status, f"it answers {response.status}"))
                body = b""
                async for piece in response.content.iter_chunked(_PIECE):
                    body += piece
                    if len(body) > MAX_ANSWER:
                        kind = _Absent if response.status == 200 else _Unanswered
                        raise kind(f"its answer is longer than {MAX_ANSWER:,} bytes")
            if response.status == 404:
                raise (_Absent if _is_absence(body) else _Unanswered)(_STATUS[404])
            return msgspec.json.decode(body, type=_Answer)
        except TimeoutError:
            raise _Unanswered(f"it does not answer within {DEADLINE:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            known = isinstance(error, aiohttp.ClientError | OSError)
            what = (
                type(error).__name__ if known else "no answer of a Schema Registry: check schema_registry.url"
            )
            raise _Unanswered(f"it cannot be read ({what})") from None


def _is_absence(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Error).error_code in _ABSENCES
    except (ValueError, RecursionError):
        return False


async def _resolved(
    answer: _Answer, get: Callable[[str, str], Awaitable[_Answer]], referenced: dict[tuple[str, int], _Answer]
) -> str:
    """Return the schema of an answer, with the types of the schemas that it refers to.

    Some registries ignore ``format=resolved``. ``referenced`` keeps what was fetched, for the next try after a failure.
    """
    try:
        whole = msgspec.json.decode(answer.schema)
        # In a thread: a schema of a megabyte takes a second.
        missing = (await asyncio.to_thread(inlined, whole))[1]
    except RecursionError:  # which the reader of the schema refuses
        return answer.schema
    except msgspec.DecodeError:
        raise _Absent("its schema is not JSON") from None
    if not missing:
        return answer.schema

    def wrong(why: str) -> _Unanswered:
        referenced.clear()
        return _Absent(why)

    texts: list[str] = []
    # As Confluent's serializer does: depth first, and of several references with one name the first.
    size, left, names = len(answer.schema), _references(answer), set[str]()
    while left:
        one = left.pop()
        if (name := one.name or f"{one.subject} {one.version}") in names:
            continue
        names.add(name)
        if len(names) > MAX_REFERENCES:
            raise wrong(f"it refers to more than {MAX_REFERENCES} schemas")
        if (key := (one.subject, one.version)) not in referenced:
            path = f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}"
            try:
                referenced[key] = await get(path, "deleted=true")
            except _Unanswered as error:
                raise type(error)(f"of a schema that it refers to, {error}") from None
        texts.insert(0, referenced[key].schema)
        if (size := size + len(texts[0])) > MAX_ANSWER:
            raise wrong(f"it is longer than {MAX_ANSWER:,} bytes with the schemas that it refers to")
        left += _references(referenced[key])
    why = "it uses types that neither it nor the schemas it refers to define: the registry must return its references"
    try:
        others = [msgspec.json.decode(text) for text in texts]
        whole, missing = await asyncio.to_thread(inlined, whole, others)
    except (msgspec.DecodeError, RecursionError):
        why, missing = "a schema that it refers to is not JSON, or nested too deep", [""]
    if missing:
        raise wrong(why)
    return msgspec.json.encode(whole).decode()


def _references(answer: _Answer) -> list[_Reference]:
    """Return what an answer refers to, the first one last."""
    return [*reversed(answer.references or ())]
