"""Sends operators' commands to the shards, signed where a key is given, and waits for the replies."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError

from stream_svt import lenient
from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.quantities import did_you_mean, found
from stream_svt.monitor.released import EventType, Lifecycle, decode
from stream_svt.protocol.sealing import Place
from stream_svt.service.config import Config
from stream_svt.service.kafka import CALL_DEADLINE, START_DEADLINE, Cluster, deadline, started, stop_quietly
from stream_svt.service.signatures import SigningKey
from stream_svt.service.topology import unseen
from stream_svt.service.wire import home

SHOWN_NAMES = 10
"""Declared names that a message lists."""

SEARCHED_NAMES = 1_000
"""Declared names among which one is looked for that is nearly the one given."""

AT_ONCE = 500
"""Commands that are on their way to a shard together."""

FIRST_LOOK_MS = 300
"""Milliseconds for the broker to say that the alert topic may not be read."""

SIGNING_TRIES = 5
"""How often a command is signed again because another record took its place."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """A command and the shard it goes to."""

    shard: int
    command: Command


@dataclass(frozen=True, slots=True)
class Reply:
    """What a shard answered: ``accepted`` is None where it did not answer in time."""

    addressed: Addressed
    accepted: bool | None
    message: str


class NotDeclared(ConfigError):
    """A command speaks of what the configuration does not know; the file itself is sound."""

    def __init__(self, wrong: Sequence[str], source: str) -> None:
        super().__init__([Problem(0, "", one) for one in wrong], source)
        self.args = ("\n".join(wrong),)


def _undeclared(kind: str, names: Iterable[str], declared: Sequence[str], config: Config) -> list[str]:
    """Return what to say of each name that is not declared."""
    known = frozenset(declared)
    wrong = [name for name in dict.fromkeys(names) if name not in known]
    shown = ", ".join(declared[:SHOWN_NAMES])
    more = f" and {len(declared) - SHOWN_NAMES} more" if len(declared) > SHOWN_NAMES else ""
    # Looking for a name that is near takes long, among many names and for many.
    hints = {name: did_you_mean(name, list(declared[:SEARCHED_NAMES])) for name in wrong[:SHOWN_NAMES]}
    return [
        f"no {kind} {found(name)} is declared in {config.source}{hints.get(name) or '.'} Declared: {shown}{more}"
        for name in wrong
    ]


def for_datasets(
    config: Config,
    action: Action,
    datasets: Iterable[str],
    *,
    monitor: str = "",
    limit: str = "",
    now: bool = False,
) -> list[Addressed]:
    """Return one command for each dataset, addressed to its home.

    Raises
    ------
    NotDeclared
        A dataset or the monitor is not declared.
    """
    names = list(datasets)
    wrong = _undeclared("dataset", names, [dataset.name for dataset in config.spec.datasets], config)
    if monitor:
        wrong += _undeclared("monitor", [monitor], [one.name for one in config.spec.monitors], config)
    if wrong:
        raise NotDeclared(wrong, config.source)
    who = _operator()
    return [
        Addressed(
            home(name.encode(), config.topics.partitions),
            Command(_new_id(), action, dataset=name, monitor=monitor, limit=limit, now=now, issued_by=who),
        )
        for name in names
    ]


def for_shards(config: Config, action: Action, shards: Sequence[int] | None) -> list[Addressed]:
    """Return one command for each of some shards, or with None for all of them.

    Raises
    ------
    NotDeclared
        There is no such shard.
    """
    count = config.topics.partitions
    shown = "the only shard is 0" if count == 1 else f"shards are 0 to {count - 1}"
    wrong = [
        f"there is no shard {shard} in {config.source}: {shown}"
        for shard in shards or ()
        if not 0 <= shard < count
    ]
    if wrong:
        raise NotDeclared(wrong, config.source)
    who = _operator()
    return [
        Addressed(shard, Command(_new_id(), action, issued_by=who))
        for shard in (range(count) if shards is None else shards)
    ]


async def send(
    cluster: Cluster,
    *,
    control: str,
    alerts: str,
    commands: Sequence[Addressed],
    patience: float,
    application: str = "",
    signing_key: SigningKey | None = None,
) -> list[Reply]:
    """Send commands and return a reply for each, in their order.

    Waits until no reply has come for ``patience`` seconds: many commands take as long as they take.

    A command that was not answered in time is still carried out once its shard is owned and reads it.

    Parameters
    ----------
    control, alerts
        Names of the topics.
    application
        Part of what is signed.
    signing_key
        Signs the commands; None sends them unsigned.

    Raises
    ------
    BrokerError
        The commands could not be sent or the replies not be read.
    """
    doing = "waiting for replies"
    shards = sorted({addressed.shard for addressed in commands})
    places = [TopicPartition(alerts, shard) for shard in shards]
    await _require_seen(cluster, {control: "WRITE", alerts: "READ"})
    async with started(cluster.reader(), doing) as reader:
        async with deadline(CALL_DEADLINE, doing):
            reader.assign(places)
            ends = await reader.end_offsets(places)
            for place, end in ends.items():
                reader.seek(place, end)
            # Without the right to READ the commands would be sent, and nothing be known of them.
            await lenient.getmany(reader, timeout_ms=FIRST_LOOK_MS)
        if signing_key is None:
            await _produce(cluster, control, commands)
        else:
            await _produce_signed(cluster, control, commands, application, signing_key)
        waiting = {addressed.command.id: Reply(addressed, None, "no answer yet") for addressed in commands}
        open_ids = set(waiting)
        now = asyncio.get_running_loop().time
        end_time = now() + patience
        while open_ids and (left := end_time - now()) > 0:
            async with deadline(left + CALL_DEADLINE, doing):
                batches = await lenient.getmany(reader, timeout_ms=int(1000 * min(left, 1)))
            for record in (record for records in batches.values() for record in records):
                reply = _reply_in(record.value)
                if reply is not None and reply[0] in open_ids:
                    command_id, accepted, message = reply
                    open_ids.discard(command_id)
                    end_time = now() + patience
                    waiting[command_id] = replace(waiting[command_id], accepted=accepted, message=message)
    return list(waiting.values())


async def _require_seen(cluster: Cluster, topics: Mapping[str, str]) -> None:
    """Refuse where a topic is not there for this user, naming the operation that it needs on it.

    Clients wait for such topics without a word.
    """
    doing = "looking for the control topic and the alert topic"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        # Asked for by name, a lenient broker would create them.
        seen = {described["topic"] for described in await admin.describe_topics()}
    for topic, operation in topics.items():
        if topic not in seen:
            raise BrokerError(unseen(topic, operation))


async def _produce(cluster: Cluster, control: str, commands: Sequence[Addressed]) -> None:
    doing = f"sending to control topic {control!r}"
    async with _producer(cluster, control, doing) as producer:
        for at in range(0, len(commands), AT_ONCE):
            async with _writing(control, doing):
                await _send_together(producer, control, [(one, ()) for one in commands[at : at + AT_ONCE]])


async def _send_together(
    producer: AIOKafkaProducer,
    control: str,
    commands: Sequence[tuple[Addressed, Sequence[tuple[str, bytes]]]],
) -> list[int]:
    """Send commands with their headers, and wait for all of them together; return where they stand."""
    sent = []
    for addressed, headers in commands:
        key, value = _record(addressed.command)
        sent.append(
            await producer.send(control, value, key=key, partition=addressed.shard, headers=list(headers))
        )
    return [stored.offset for stored in await asyncio.gather(*sent)]


async def _produce_signed(
    cluster: Cluster,
    control: str,
    commands: Sequence[Addressed],
    application: str,
    signing_key: SigningKey,
) -> None:
    """Send each command to the offset it is signed for; what missed its offset is refused by the shard."""
    doing = f"sending to control topic {control!r}"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        cluster_id = str((await admin.describe_cluster())["cluster_id"])
    by_shard: dict[int, list[Addressed]] = {}
    for addressed in commands:
        by_shard.setdefault(addressed.shard, []).append(addressed)
    async with (
        started(cluster.reader("read_uncommitted"), doing, "DESCRIBE") as reader,
        _producer(cluster, control, doing) as producer,
    ):
        for shard, addressed_here in by_shard.items():
            waiting = addressed_here
            place, partition = Place(cluster_id, application, control, shard), TopicPartition(control, shard)
            tries = 0
            while waiting:
                part = waiting[:AT_ONCE]
                async with _writing(control, doing):
                    end = (await reader.end_offsets([partition]))[partition]
                    signed = [
                        (one, [_header(signing_key, place, offset, one.command)])
                        for offset, one in enumerate(part, end)
                    ]
                    stored = await _send_together(producer, control, signed)
                # A negative offset: the broker had stored an earlier try and did not say where.
                missed = [one for number, one in enumerate(part) if 0 <= stored[number] != end + number]
                tries = tries + 1 if len(missed) == len(part) else 0
                if tries == SIGNING_TRIES:
                    raise BrokerError(
                        f"{doing}: other records took the place of the signed command {SIGNING_TRIES} times; it "
                        "was not carried out. Find out who writes to the topic, then try again"
                    )
                waiting = missed + waiting[AT_ONCE:]


def _header(key: SigningKey, place: Place, offset: int, command: Command) -> tuple[str, bytes]:
    return key.header(place, offset, int(time.time() * 1000), _record(command)[1])


@contextlib.asynccontextmanager
async def _producer(cluster: Cluster, control: str, doing: str) -> AsyncIterator[AIOKafkaProducer]:
    # Idempotent: a request that is repeated because its answer was lost must not give a command twice.
    producer = AIOKafkaProducer(
        **cluster.arguments, acks="all", enable_idempotence=True, client_id="stream-svt-control"
    )
    try:
        async with _writing(control, doing, START_DEADLINE):
            await producer.start()
        yield producer
    finally:
        await stop_quietly(producer)


@contextlib.asynccontextmanager
async def _writing(control: str, doing: str, seconds: float = CALL_DEADLINE) -> AsyncIterator[None]:
    async with deadline(seconds, doing, "WRITE"):
        try:
            yield
        except ClusterAuthorizationFailedError as error:
            # To whoever may write to no topic at all the broker gives no producer id.
            raise TopicAuthorizationFailedError(control) from error


def _record(command: Command) -> tuple[bytes | None, bytes]:
    return command.dataset.encode() or None, msgspec.json.encode(command)


def _reply_in(record: bytes | None) -> tuple[str, bool, str] | None:
    """Return command id, whether it was accepted, and the words; None for any other event."""
    try:
        envelope, data = decode(record or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if envelope.type != EventType.COMMAND_REPLY or not isinstance(data, Lifecycle):
        return None
    detail = data.detail
    return str(detail.get("command", "")), data.reason == "accepted", str(detail.get("message", ""))


def _new_id() -> str:
    return uuid.uuid4().hex


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
