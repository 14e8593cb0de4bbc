"""Sends operators' commands to the shards, signed if a key is given, and waits for the replies.

A command names the state of its shard and the next number after the last command's; every event of the shard has
both. So a shard gets one command at a time, and of two commands with the same number only the first is carried out.

A command expires by the brokers' clock, and so is the time at which a shard reads it: the clocks of operators and
workers do not matter. Where the control topic or the state topic has the timestamps of producers, the clock of this
machine, or of the worker, takes the place of the brokers'.
"""

from __future__ import annotations

import asyncio
import fnmatch
import getpass
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, compress, repeat
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from stream_svt import plain_text
from stream_svt.application.config import Config
from stream_svt.application.facts import ShardFacts
from stream_svt.application.keys import SEARCHED_NAMES
from stream_svt.application.signatures import SigningKey
from stream_svt.application.topology import partitions_of
from stream_svt.errors import StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.monitor.operations import TO_MONITORS, Action, Command, utc
from stream_svt.monitor.released import AnyEvent, EventType, Lifecycle, event_in
from stream_svt.protocol.controls import CLOCK_KEY
from stream_svt.protocol.records import Record
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.document import did_you_mean, quote
from stream_svt.wording import listed
from stream_svt.worker.ports import context_of

MOST_NAMED = 48_000
"""Bytes of the names in one command, which must stay below `COMMAND_LIMIT`."""
SHOWN_NAMES = 10
_PATTERN = frozenset("*?[")
MAX_LOOKBACK = 160_000
"""Offsets before the end of an alert partition among which the newest event of a shard is searched."""


class Addressed(NamedTuple):
    """A command and its shard; its effect ends ``lasts_ms`` after it is sent, 0 for no end."""

    shard: int
    command: Command
    lasts_ms: int = 0


class Reply(NamedTuple):
    """Reply of a shard; without a reply, ``accepted`` is None and ``message`` explains this.

    ``refused`` counts the datasets on which a command to many was not carried out.
    """

    addressed: Addressed
    accepted: bool | None
    message: str
    refused: int = 0

    @property
    def complete(self) -> bool:
        """Whether the command was carried out, on every dataset that it names."""
        return bool(self.accepted) and not (self.refused and self.addressed.command.datasets)


class NotDeclared(StreamSvtError):
    """A command names a dataset, monitor or shard that is not in the configuration."""

    exit_code = 2


def _require_declared(config: Config, names: Iterable[str], monitor: str) -> None:
    spec, wrong = config.current, []
    datasets, monitors = ([one.name for one in some] for some in (spec.datasets, spec.monitors))
    missing = [("dataset", name, datasets) for name in dict.fromkeys(names) if spec.find(name) is None]
    missing += [("monitor", monitor, monitors)] if monitor and monitor not in monitors else []
    for number, (kind, name, declared) in enumerate(missing):
        # The search for similar names is slow for many names.
        hint = did_you_mean(name, declared[:SEARCHED_NAMES]) if number < SHOWN_NAMES else None
        shown = listed(declared, SHOWN_NAMES)
        if flaw := plain_text.flaw(name):
            hint = f"; it {flaw}{hint or '.'}"
        wrong.append(f"no {kind} {quote(name)} is declared in {config.source}{hint or '.'} Declared: {shown}")
    if wrong:
        raise NotDeclared("\n".join(wrong))


def for_datasets(config: Config, datasets: Sequence[str], command: Command) -> list[Addressed]:
    """Return one command for the datasets of each shard, or for each dataset if need be, or raise NotDeclared.

    A name that is not declared is a pattern like a shell's: ``web-*`` means every declared dataset whose name begins
    with ``web-``.
    """
    spec = config.current
    names = list(chain.from_iterable(_matched(spec, name) for name in dict.fromkeys(datasets)))
    _require_declared(config, names, command.monitor)
    if command.action not in TO_MONITORS:
        return [_addressed(config.home(name), command, name) for name in dict.fromkeys(names)]
    of_shards: dict[int, list[str]] = {}
    for name, shard in zip(names, config.partitioning.of_names(names).tolist(), strict=True):
        of_shards.setdefault(shard, []).append(name)
    return [_addressed(shard, command, *part) for shard, own in of_shards.items() for part in _in_parts(own)]


def _matched(spec: ApplicationSpec, name: str) -> list[str]:
    """Return the names that a pattern matches; the name itself if it is no pattern, is declared, or has no match."""
    if not _PATTERN.intersection(name) or spec.find(name) is not None:
        return [name]
    return fnmatch.filter((one.name for one in spec.datasets), name) or [name]


def _in_parts(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names in parts, each for one command."""
    part, size = list[str](), 0
    for name in dict.fromkeys(names):
        length = len(msgspec.json.encode(name)) + 1
        if part and size + length > MOST_NAMED:
            yield part
            part, size = [], 0
        part.append(name)
        size += length
    yield part


def for_all(config: Config, command: Command) -> list[Addressed]:
    """Return the command for each shard with a dataset, or with one that the monitor covers."""
    _require_declared(config, (), command.monitor)
    spec = config.current
    if spec.generators:  # datasets of past periods may be open on any shard
        return for_shards(config, None, command)
    covered = [spec.covered(one).tolist() for one in spec.monitors if one.name == command.monitor]
    names = list(compress((one.name for one in spec.datasets), *covered or [repeat(True)]))
    return [_addressed(shard, command) for shard in sorted(set(config.partitioning.of_names(names).tolist()))]


def for_shards(config: Config, shards: Sequence[int] | None, command: Command) -> list[Addressed]:
    """Return the command for each of the shards, or for all with None."""
    count = config.topics.partitions
    shown = "the only shard is 0" if count == 1 else f"shards are 0 to {count - 1}"
    if wrong := [shard for shard in shards or () if not 0 <= shard < count]:
        raise NotDeclared(
            "\n".join(f"there is no shard {shard} in {config.source}: {shown}" for shard in wrong)
        )
    return [_addressed(shard, command) for shard in (range(count) if shards is None else shards)]


def _addressed(shard: int, command: Command, *names: str) -> Addressed:
    own: dict[str, Any] = {"dataset": names[0]} if len(names) == 1 else {"datasets": names}
    own |= {"id": uuid.uuid4().hex, "issued_by": _operator()}
    return Addressed(shard, msgspec.structs.replace(command, **own))


@cache
def _operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def send(
    config: Config,
    cluster: Cluster,
    commands: Sequence[Addressed],
    *,
    timeout: float,
    lifetime: float | None = None,
    signing_key: SigningKey | None = None,
) -> list[Reply]:
    """Send commands, one at a time to each shard, and return a reply for each, in order.

    Wait until there was no progress for ``timeout`` seconds. Each command expires ``lifetime`` seconds after it is
    sent, by default ``timeout``. Without a signing key, commands are not signed.
    """
    control, alerts, doing = config.topics.control, config.topics.alerts, "waiting for replies"
    counts = await kafka.partition_counts(cluster, "looking for the control topic and the alert topic")
    for topic, operation in ((control, "WRITE"), (alerts, "READ")):
        partitions_of(counts, topic, operation)
    cluster_id = "" if signing_key is None else await kafka.cluster_id_of(cluster)

    async def write(producer: AIOKafkaProducer, shard: int, command: Command) -> Any:  # noqa: ANN401
        key, value = command.dataset.encode() or None, msgspec.json.encode(command)
        context = context_of(config, cluster_id, control, shard)
        headers = [] if signing_key is None else [signing_key.header(context, value)]
        return await producer.send(control, value, key=key, partition=shard, headers=headers)

    # Before a state is given up, its last events may not have been committed.
    gives_up = any(addressed.command.gives_up for addressed in commands)
    reader = cluster.reader("read_uncommitted" if gives_up else "read_committed")
    async with kafka.started(reader, doing):
        shards = sorted({addressed.shard for addressed in commands})
        events = await newest_events(reader, [TopicPartition(alerts, shard) for shard in shards])
        dialogs = {shard: _Dialog(shard, alerts, events.get(shard)) for shard in shards}
        for addressed in commands:
            dialogs[addressed.shard].queue.append(addressed)
        sending = f"sending to control topic {control!r}"
        # If a request is repeated because its response was lost, its command is still carried out only once.
        client = AIOKafkaProducer(**cluster.arguments, acks="all", client_id="stream-svt-control")
        async with kafka.started(client, sending, "WRITE") as producer:
            now = asyncio.get_running_loop().time
            ahead_ms: int | None = None
            end_time = now() + timeout
            while (left := end_time - now()) > 0:
                async with kafka.deadline(kafka.CALL_DEADLINE, sending, "WRITE"):
                    if ahead_ms is None and any(dialog.wants_time for dialog in dialogs.values()):
                        ahead_ms = await _brokers_ahead_ms(producer, control, shards[0])
                    time_ms, lifetime_ms = _now_ms() + (ahead_ms or 0), int(1000 * (lifetime or timeout))
                    found = ((shard, dialog.next(time_ms, lifetime_ms)) for shard, dialog in dialogs.items())
                    due = [(shard, one) for shard, one in found if one is not None]
                    await asyncio.gather(*[await write(producer, *one) for one in due])
                if not any(dialog.sent for dialog in dialogs.values()):
                    break
                for record in await kafka.poll(reader, min(left, 1), doing):
                    if dialogs[record.partition].take(record):
                        end_time = now() + timeout
    replies = {reply.addressed.command.id: reply for one in dialogs.values() for reply in one.all_replies()}
    return [replies[addressed.command.id] for addressed in commands]


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _brokers_ahead_ms(producer: AIOKafkaProducer, control: str, shard: int) -> int:
    """Return by how many ms the brokers' clock is ahead of this machine's; 0 without log append time.

    Brokers return their time with a record; shards skip this one.
    """
    sent = await producer.send_and_wait(control, b"", key=CLOCK_KEY, partition=shard)
    return int(sent.timestamp) - _now_ms() if sent.timestamp_type == 1 else 0


_OVERTAKEN = "not carried out: another command came before it; give it again"


class _Dialog:
    """Commands and replies of one shard; ``sent`` is the first command of ``queue`` while it waits for a reply."""

    def __init__(self, shard: int, alerts: str, newest: ShardFacts | None) -> None:
        self.queue: deque[Addressed] = deque()
        self.sent: Command | None = None
        self._begun = False
        self._shard = shard
        self._alerts = alerts
        self._known = newest
        self._replies: list[Reply] = []

    @property
    def wants_time(self) -> bool:
        """Whether the next command needs the brokers' time.

        A parked shard reads its state again for every record; it judges a command to give up by its worker's clock.
        """
        return self._known is not None and any(not one.command.gives_up for one in self.queue)

    def next(self, now_ms: int, lifetime_ms: int) -> Command | None:
        """Return the next command to send, with state, number, expiry and end of its effect.

        ``now_ms`` is the brokers' time. None without a next command, or while one waits for a reply.
        """
        while self.queue and self.sent is None:
            command = self.queue[0].command
            known = self._known or (ShardFacts() if command.gives_up else None)
            if known is None:
                break
            # A closed shard whose key is lost may still be given up for the same successor.
            same = command.successor == known.successor
            if known.successor and not (same and command.gives_up and not known.given_up):
                message = f"the shard is closed permanently, for successor {known.successor!r}"
                self._answer(message, accepted=same and command.action is Action.CLOSE_APPLICATION)
                continue
            fields: dict[str, Any] = {"number": known.command + 1}
            if command.gives_up:
                fields = {"event": known.events, "origin": known.origin}
            if command.action is not Action.WITHDRAW:
                fields["expires"] = now_ms + lifetime_ms
            if lasts_ms := self.queue[0].lasts_ms:
                fields["until"] = now_ms + lasts_ms
            self.sent, self._begun = msgspec.structs.replace(command, state=known.state, **fields), False
            return self.sent
        return None

    def take(self, record: Record) -> bool:
        """Process the next event of the shard; return whether it shows progress of the commands."""
        if (event := _event(record)) is None:
            return False
        known = ShardFacts().take(event)
        if self._known is None or known.state != self._known.state or known.command >= self._known.command:
            self._known = known
        if self.sent is None:
            return False
        # A shard whose state is given up writes only the event that closes it.
        is_reply = event.type in (EventType.COMMAND_REPLY, EventType.APPLICATION_CLOSED)
        reply = event.data if is_reply and isinstance(event.data, Lifecycle) else None
        if reply is not None and reply.detail.get("command") == self.sent.id:
            message = str(reply.detail.get("message", "the state was given up, and the shard is closed"))
            refused = int(reply.detail.get("refused", 0))
            self._answer(message, accepted=reply.reason in ("accepted", "given-up"), refused=refused)
            return True
        if reply is not None and reply.detail.get("number", 0) == self.sent.number:
            self._answer_of_other(self.sent, reply)
            return True
        if known.state != self.sent.state:
            self._answer(_OVERTAKEN, accepted=False)
            return True
        self._begun = known.command >= self.sent.number  # a command to all datasets reports progress
        return self._begun

    def _answer_of_other(self, sent: Command, reply: Lifecycle) -> None:
        """Return the meaning of another command's answer for the sent command, whose number it used."""
        is_withdrawal = reply.detail.get("action") == Action.WITHDRAW
        if sent.action is Action.WITHDRAW and is_withdrawal:
            self._answer(str(reply.detail.get("message", "")), accepted=reply.reason == "accepted")
        elif sent.action is Action.WITHDRAW:
            happened = {"accepted": "carried out", "expired": "expired"}.get(reply.reason, "refused")
            message = f"already {happened}: {reply.detail.get('message', '')}"
            self._answer(message, accepted=reply.reason != "accepted")
        elif is_withdrawal:
            self._answer("withdrawn before a shard carried it out", accepted=False)
        else:
            self._answer(_OVERTAKEN, accepted=False)

    def all_replies(self) -> list[Reply]:
        """Return a reply for each command, also for missing replies."""
        late, unsent = [], "not sent: the command before it was not answered"
        if self.sent is not None:
            late = [self._late(self.sent)]
        elif self._known is None:
            unsent = (
                f"not sent: shard {self._shard} has not started yet, or its events are gone: partition {self._shard} "
                f"of {self._alerts!r} shows none. Start a worker"
            )
        messages = zip(self.queue, chain(late, repeat(unsent)), strict=False)
        return self._replies + [Reply(one, None, message) for one, message in messages]

    def _late(self, sent: Command) -> str:
        """Return the possible effects of a command without an answer, in words."""
        if self._begun:
            which = "the command before it" if sent.action is Action.WITHDRAW else "it"
            return (
                f"no answer in time; the shard has begun {which} and goes on with it, after a takeover, too"
            )
        if sent.action is Action.WITHDRAW:
            return (
                "no answer in time; the withdrawal stays on the control topic: no worker carries the command before "
                "it out, unless its shard has come to that already"
            )
        when = utc(sent.expires)
        later = f"it expires at {when} by the brokers' clock; a shard that comes to it later changes nothing"
        if sent.gives_up:
            return (
                "no answer in time: no worker holds the shard parked with a state that it cannot prove, or it refused; "
                f"its log says why; {later}"
            )
        before = "" if _now_ms() > sent.expires else ". 'stream-svt control withdraw' takes it back before"
        return f"no answer in time: 'stream-svt status -c FILE' shows whether a worker runs; {later}{before}"

    def _answer(self, message: str, *, accepted: bool, refused: int = 0) -> None:
        self._replies.append(Reply(self.queue.popleft(), accepted, message, refused))
        self.sent = None


async def newest_events(
    reader: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[int, ShardFacts]:
    """Return the newest event of each shard; the reader then stands at the end of the partitions.

    Partitions are read from the end backwards, at most `MAX_LOOKBACK` offsets.
    """
    doing = "looking for the newest events"
    found: dict[int, ShardFacts] = {}
    spans = await kafka.edges(reader, partitions, doing)
    for tp in partitions:
        if (event := await kafka.newest(reader, tp, _event, doing, max_lookback=MAX_LOOKBACK)) is not None:
            found[tp.partition] = ShardFacts().take(event)
    kafka.seek_all(reader, {tp: end for tp, (_, end) in spans.items()})
    return found


def _event(record: Record) -> AnyEvent | None:
    """Return an event of a shard that has a state id or closes the shard; None for any other record."""
    event = event_in(record.value)
    # The closing event of a shard that had no events has no state id.
    return event if event and (event.stateid or event.type == EventType.APPLICATION_CLOSED) else None
