"""An application of one shard on the modelled log, one session at a time, and what its operator does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.operations import Command
from stream_svt.monitor.released import EventType
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.protocol.state_records import Meta
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sections import CommitConfig
from stream_svt.worker.workload import AppliedWorkload
from tests.simulation.applications import RETRY, STREAM, declared
from tests.simulation.log import Broker, Entry, finish, journal_of, lived
from tests.simulation.world import CONTROL, Positions, Silent

NAMES = [f"d{number}" for number in range(8)]
COMMON = f"topic: t, {STREAM}"
PLAIN = f"{{name: m0, mute: none, {COMMON}}}"
SPEC = declared(PLAIN, f"{{name: m1, mute: 1h, {RETRY}, {COMMON}}}", names=", ".join(NAMES))
MANY = [f"d{number:03}" for number in range(60)]
SPEC_OF_MANY = declared(PLAIN, names=", ".join(MANY))
KEY = bytes(range(32))
HOUR_MS = 3_600_000


async def rest(seconds: float) -> None:
    """Go on at once: nobody else shares the worker, and nothing here has a cadence."""
    assert not seconds


class Feed(Positions):
    """Everything a shard can read now, and then the end.

    Attributes:
        rounds: Fetches after which the owner is told to stop.
        most: Records that are handed over at a time.
        unread: Records that are said to come after those that are there.
        hook: Called before each fetch with its number.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        rounds: int = 7,
        most: int = 1_000_000,
        unread: int = 0,
        hook: Callable[[int], object] = lambda number: None,
    ) -> None:
        super().__init__(broker)
        self.rounds, self.most, self.unread, self.hook = rounds, most, unread, hook
        self._rounds = 0

    @property
    def stopping(self) -> bool:
        return self._rounds >= self.rounds

    @property
    def held(self) -> bool:
        return False

    async def wait_for_rebalance(self) -> None:
        raise AssertionError("there is no rebalance")

    def high_water(self, topic: str) -> int:
        return (super().high_water(topic) or 0) + self.unread

    async def fetch(
        self, topics: Any, max_wait: float, max_records: int | None = None
    ) -> dict[str, list[Entry]]:
        self.hook(self._rounds)
        self._rounds += 1
        return self._take(topics, lambda count: self.most)


@dataclass
class Model:
    spec: ApplicationSpec = SPEC
    start_at: str = "earliest"
    version: tuple[int, str] = (0, "")
    now: float = 1_790_000_000.0
    broker: Broker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(now_ms=lambda: int(self.now * 1000))
        self._entropy = random.Random(1)

    def journal(self, **options: Any) -> Journal:
        entropy, epoch = self._entropy.randbytes, lambda: self.now
        return journal_of(self.broker, masters=(KEY,), entropy=entropy, epoch=epoch, **options)

    def feed(self, **options: Any) -> Feed:
        return Feed(self.broker, **options)

    @property
    def clock(self) -> Clock:
        return Clock(now=self._tick, epoch=lambda: self.now, sleep=rest)

    def serve(self, times: int = 1, **parts: Any) -> ShardSession:
        """Let owners, one after the other, read what there is; return the session of the last."""
        for _ in range(times):
            session = self.session(**parts)
            finish(lived(session))
            self.broker.settle()
        return session

    def waits(self, hook: Callable[[int], object] = lambda number: None) -> ShardStatus:
        """Open a shard that waits for a command, until it is told to stop; return its status."""

        def waited(number: int) -> None:
            hook(number)
            if number > 4:
                raise Stopped

        session = self.session(feed=self.feed(hook=waited))
        with pytest.raises(Stopped):
            finish(session.open())
        self.broker.settle()
        return session.status

    def session(self, interval: str = "100ms", **instead: Any) -> ShardSession:
        """Return a session that has not been opened, with other parts where some are given."""
        parts: dict[str, Any] = {
            "feed": self.feed(),
            "journal": self.journal(),
            "clock": self.clock,
            "policy": CommitConfig(interval=interval),
            "workload": AppliedWorkload(self.spec, Partitioning(1, "murmur2"), version=self.version),
        }
        return ShardSession(
            shard=0,
            control=CONTROL,
            start_at=self.start_at,
            observer=Silent(),
            status=ShardStatus(0),
            **parts | instead,
        )

    def _tick(self) -> float:
        self.now += 0.01
        return self.now

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(entry.value or b"") for entry in self.broker.read("alerts")]

    @property
    def spent(self) -> dict[str, float]:
        """What was spent of each dataset, as the events tell it."""
        found: dict[str, float] = {}
        for data in (event["data"] for event in self.events if event["data"]["account"]):
            found[data["dataset"]] = max(found.get(data["dataset"], 0.0), data["account"]["spent"])
        return found

    def serve_a_while(
        self, rounds: int, hook: Callable[[int], object] = lambda number: None, interval: str = "60s"
    ) -> None:
        """Let an owner read a few records in each of so many rounds, and commit at the end unless told."""
        self.serve(feed=self.feed(rounds=rounds, most=5, hook=hook), interval=interval)

    def dies_at(
        self,
        condition: Callable[[Any], bool],
        *,
        after: bool = False,
        opened: Callable[[], None] = lambda: None,
        **parts: Any,
    ) -> None:
        """Let an owner die before or after its first commit of which something is true."""
        dying = self.session(**parts)
        journal, run = dying.journal, dying.run

        async def dies(content: Any) -> int:
            here = condition(content)
            if here and not after:
                raise Stops
            done: int = await journal.commit(content)
            if here:
                raise Stops
            return done

        def begin() -> Any:
            opened()
            return run()

        dying.journal = dying.transactions.journal = _Dying(journal, dies)  # type: ignore[assignment]
        dying.run = begin  # type: ignore[method-assign]
        try:
            with pytest.raises(Stops):
                finish(lived(dying))
        finally:
            self.broker.fence("app-0")
            self.broker.settle()

    def replies(self) -> list[tuple[str, int, str]]:
        """Return what was answered to commands: reason, number and message."""
        return [
            (event["reason"], event["detail"]["number"], event["detail"]["message"])
            for event in self.told(EventType.COMMAND_REPLY)
        ]

    def told(self, kind: EventType, monitor: str = "") -> list[dict[str, Any]]:
        """Return what the events of a type say."""
        return [
            event["data"]
            for event in self.events
            if event["type"] == kind and (not monitor or event["data"]["monitor"] == monitor)
        ]

    def send(self, count: int, name: str, topic: str = "t", dataset: str = "d0", **more: Any) -> None:
        """Send queries, far above the threshold unless told."""
        for number in range(count):
            body = {"id": f"{name}{number}", "value": 90_000} | more
            self.broker.write(topic, dataset.encode(), msgspec.json.encode(body))

    def command(self, name: str, **fields: Any) -> Command:
        """Send a command, with the number that the stored state wants next unless told."""
        state, number = self.last_command()
        named = {"id": name, "state": state, "number": number + 1, "expires": int(self.now * 1000) + HOUR_MS}
        sent = Command(**named | fields)
        self.broker.write(CONTROL, None, msgspec.json.encode(sent))
        return sent

    def last_command(self) -> tuple[str, int]:
        """Return the id of the stored state and the number of the last command that it used up."""
        self.broker.settle()
        meta = self.stored_meta()
        return meta.state_id.hex(), meta.commands.number

    def stored_meta(self) -> Meta:
        journal = self.journal()
        finish(journal.inspect())
        return journal.meta

    def backup(self) -> Stored:
        newest = {entry.key: entry.value for entry in self.broker.read("state")}
        return {key: value for key, value in newest.items() if key is not None and value is not None}

    def restore(self, state: Stored) -> None:
        gone = dict.fromkeys(self.backup().keys() - state.keys())
        for key, value in (state | gone).items():
            self.broker.write("state", key, value)


class Stops(Exception):
    """What ends a session in the middle."""


class _Dying:
    """A journal whose owner dies at a commit; what the journal writes by itself is none."""

    def __init__(self, journal: Journal, commit: Callable[[Any], Awaitable[int]]) -> None:
        self._journal, self.commit = journal, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def has(kind: EventType) -> Callable[[Any], bool]:
    return lambda content: any(event.type == kind for event in content.events)


Stored = dict[bytes, bytes]


def nth(number: int) -> Callable[[Any], bool]:
    """Return what is true of the commit with this number."""
    count = itertools.count()
    return lambda content: next(count) == number
