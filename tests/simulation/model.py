"""An application of several shards on the modelled log, one tenure at a time, and what its operator does."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from stream_svt.errors import StateRolledBack
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.spec import ApplicationSpec, load_spec
from stream_svt.protocol.journal import Journal, Topics
from stream_svt.protocol.migration import Move, MovingJournal, Report, migrate
from stream_svt.protocol.ports import Clock
from stream_svt.protocol.sealing import Place
from stream_svt.protocol.tenure import Pace, Status, Tenure
from stream_svt.service.wire import home
from stream_svt.service.workload import Workload
from tests.simulation.effects import Effect, ModelLog, finish
from tests.simulation.log import Broker, Entry
from tests.simulation.world import CONTROL, Silent

NAMES = [f"d{number}" for number in range(8)]
COMMON = (
    "topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "expected_queries: 1000"
)
PLAIN = f"{{name: m0, mute: none, {COMMON}}}"
RETRY = "append: {retry: {attempts: 3, lifetime: 60, capacity: 4, every: 5}}"


def declared(*monitors: str, names: str = "d0", limit: float = 5) -> ApplicationSpec:
    """Return an application with these monitors on these datasets."""
    listed = "".join(f"  - {monitor}\n" for monitor in monitors)
    return load_spec(
        f"application: app\ndatasets: [{{names: [{names}], limit: {limit}, unit: one basket}}]\nmonitors:\n{listed}"
    )


SPEC = declared(PLAIN, f"{{name: m1, mute: 1h, {RETRY}, {COMMON}}}", names=", ".join(NAMES))
BEFORE, AFTER = 2, 5
KEY = bytes(range(32))


async def _rest(seconds: float) -> None:
    """Go on at once: nobody else shares the worker, and nothing here has a cadence."""
    assert not seconds


class ShardLog(ModelLog):
    """A shard's part of a log with several shards: names carry the shard's number."""

    def __init__(self, broker: Broker, shard: int) -> None:
        super().__init__(_Part(broker, shard), f"app-{shard}")


class _Part:
    """A broker as one shard sees it."""

    def __init__(self, broker: Broker, shard: int) -> None:
        self._broker, self._shard = broker, shard

    def _name(self, partition: str) -> str:
        return f"{partition}-{self._shard}"

    def fence(self, producer: str) -> int:
        return self._broker.fence(producer)

    def append(
        self, producer: str, epoch: int, partition: str, key: bytes | None, value: bytes | None
    ) -> int:
        return self._broker.append(producer, epoch, self._name(partition), key, value)

    def end(self, producer: str, epoch: int) -> None:
        self._broker.end(producer, epoch)

    def read(self, partition: str, start: int = 0, *, committed: bool = True) -> Any:
        return self._broker.read(self._name(partition), start, committed=committed)

    def span(self, partition: str, *, committed: bool = True) -> tuple[int, int]:
        return self._broker.span(self._name(partition), committed=committed)


class Feed:
    """Everything a shard can read now, and then the end."""

    def __init__(self, broker: Broker, shard: int) -> None:
        self._broker, self._shard = broker, shard
        self._positions: dict[str, int] = {}
        self._reading: set[str] = set()
        self._rounds = 0

    @property
    def stopping(self) -> bool:
        return self._rounds > 6

    @property
    def held(self) -> bool:
        return False

    async def settled(self) -> None:
        raise AssertionError("there is no rebalance")

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        return {topic: self._broker.span(f"{topic}-{self._shard}") for topic in topics}

    async def fetch(
        self, topics: Any, patience: float, max_records: int | None = None
    ) -> dict[str, list[Entry]]:
        self._rounds += 1
        found = {}
        for topic in sorted(self._reading.intersection(topics)):
            entries = list(self._broker.read(f"{topic}-{self._shard}", self._positions[topic]))
            if entries:
                found[topic] = entries
                self._positions[topic] = entries[-1].offset + 1
        return found

    async def position(self, topic: str) -> int:
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        self._positions[topic] = offset

    def resume(self, topics: Any) -> None:
        self._reading |= set(topics)

    def pause(self, topics: Any) -> None:
        self._reading -= set(topics)

    def high_water(self, topic: str) -> int | None:
        return None


class Ground:
    """See `stream_svt.protocol.migration.Ground`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._epoch = 0

    async def claim(self) -> None:
        self._epoch = await Effect("claim", lambda: self._model.broker.fence("app-migrate"))

    def journal(self, shard: int, partitions: int) -> MovingJournal:
        return self._model.journal(shard, partitions, MovingJournal, target=AFTER)

    async def spans(self, shard: int, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        return {topic: self._model.broker.span(f"{topic}-{shard}") for topic in topics}

    async def unread(self, shard: int, topic: str, offset: int, done: Container[int] = ()) -> bool:
        left = self._model.broker.read(f"{topic}-{shard}", offset)
        return any(entry.offset not in done for entry in left)

    async def shards(self) -> int:
        return self._model.written

    async def grow(self, *, inputs: bool) -> None:
        self._model.written = AFTER
        if inputs:
            await Effect("grow", lambda: setattr(self._model, "partitions", AFTER))

    async def write(self, records: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        broker, epoch = self._model.broker, self._epoch
        for shard, changes in records.items():
            for key, value in changes.items():
                await Effect("append", _append(broker, epoch, f"state-{shard}", key, value))
        await Effect("end", lambda: broker.end("app-migrate", epoch))
        await self.claim()


def _append(broker: Broker, epoch: int, partition: str, key: bytes, value: bytes | None) -> Callable[[], int]:
    return lambda: broker.append("app-migrate", epoch, partition, key, value)


@dataclass
class Model:
    """An application on the modelled log."""

    spec: ApplicationSpec = SPEC
    partitions: int = BEFORE
    written: int = BEFORE
    now: float = 1_790_000_000.0
    start_at: str = "earliest"
    masters: tuple[bytes, ...] = (KEY,)
    broker: Broker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(now_ms=lambda: int(self.now * 1000))
        self.entropy = random.Random(1)

    @property
    def names(self) -> list[str]:
        """Names of all datasets, as declared."""
        return [dataset.name for dataset in self.spec.datasets]

    def journal(self, shard: int, partitions: int, kind: type[Any] = Journal, **options: Any) -> Any:
        return kind(
            ShardLog(self.broker, shard),
            Place("cluster", "app", "state", shard),
            Topics("state", "alerts", "rejects"),
            partitions=partitions,
            masters=self.masters,
            entropy=self.entropy.randbytes,
            epoch=lambda: self.now,
            **options,
        )

    def send(self, count: int, seed: int, topic: str = "t", **more: Any) -> None:
        """Send queries to the homes of their datasets; some are far above the threshold."""
        chance = random.Random(seed)
        for number in range(count):
            name = chance.choice(self.names)
            value = chance.choice((0, 480, 520, 90_000))
            body = {"id": f"q{seed}-{number}", "value": value, "series": f"i{chance.randrange(6)}"}
            shard = home(name.encode(), self.partitions)
            self.broker.write(f"{topic}-{shard}", name.encode(), msgspec.json.encode(body | more))

    def serve(self, feed: type[Feed] = Feed) -> list[Status]:
        """Let every shard read what there is, as its worker would."""
        found = []
        for shard in range(self.partitions):
            tenure, status = self.tenure(shard, feed)
            finish(tenure.open())
            finish(tenure.run())
            self.broker.mark(f"app-{shard}", everything=True)
            found.append(status)
        return found

    def tenure(self, shard: int = 0, feed: type[Feed] = Feed, interval: float = 0.1) -> tuple[Tenure, Status]:
        """Return a tenure that has not been opened, and where it reports."""
        status = Status(shard)
        tenure = Tenure(
            feed(self.broker, shard),
            self.journal(shard, self.partitions),
            Workload(self.spec, self.partitions),
            shard=shard,
            control=CONTROL,
            pace=Pace(interval=interval, start_at=self.start_at),
            clock=Clock(now=self._tick, epoch=lambda: self.now, sleep=_rest),
            observer=Silent(),
            status=status,
        )
        return tenure, status

    def _tick(self) -> float:
        self.now += 0.01
        return self.now

    def move(self, **changes: Any) -> Move:
        homes = {name: home(name.encode(), AFTER) for name in self.names}
        before, after = Workload(self.spec, BEFORE), Workload(self.spec, AFTER)
        return Move(before, after, BEFORE, AFTER, homes, CONTROL, start_at=self.start_at, **changes)

    def migrate(
        self,
        *,
        crash: int | None = None,
        after: bool = False,
        ground: type[Ground] = Ground,
        leave_unread: bool = False,
    ) -> Report | None:
        """Migrate; crash at an effect, before or after it. None where it crashed."""
        move = self.move(leave_unread=leave_unread)
        report: Report | None = finish(migrate(ground(self), move), crash=crash, after=after)
        return report

    def events(self) -> dict[int, list[dict[str, Any]]]:
        return {
            shard: [msgspec.json.decode(entry.value) for entry in self.broker.read(f"alerts-{shard}")]
            for shard in range(AFTER)
        }

    def books(self) -> dict[str, tuple[float, float]]:
        """Return spent and limit by dataset, as the events tell them."""
        found = {}
        for events in self.events().values():
            for event in events:
                if account := event["data"]["account"]:
                    name = event["data"]["dataset"]
                    spent = max(found.get(name, (0.0, 0.0))[0], account["spent"])
                    found[name] = (spent, account["limit"])
        return found

    def settle(self) -> None:
        """Let every transaction that was decided be seen."""
        for producer in self.broker.producers:
            self.broker.mark(producer, everything=True)


class Few(Feed):
    """Hands a few records over at a time."""

    rounds = 99
    most = 5
    hook: Callable[[int], None] | None = None

    @property
    def stopping(self) -> bool:
        return self._rounds >= self.rounds

    async def fetch(
        self, topics: Any, patience: float, max_records: int | None = None
    ) -> dict[str, list[Any]]:
        if self.hook is not None:
            self.hook(self._rounds)
        found = await super().fetch(topics, patience, max_records)
        for topic, entries in found.items():
            found[topic] = entries[: self.most]
            self._positions[topic] = found[topic][-1].offset + 1
        return found


class Stops(Exception):
    """What ends a tenure in the middle."""


def played_model() -> Model:
    """A model whose shards have runs open."""
    model = Model()
    model.send(60, 1)
    model.serve()
    return model


def send(
    model: Model, count: int, name: str, topic: str = "t", dataset: str = "d0", shard: int = 0, **more: Any
) -> None:
    """Send queries to a shard, far above the threshold unless told."""
    for number in range(count):
        body = {"id": f"{name}{number}", "value": 90_000} | more
        model.broker.write(f"{topic}-{shard}", dataset.encode(), msgspec.json.encode(body))


def go_on(model: Model, count: int, name: str, dataset: str = "d0", **more: Any) -> None:
    """Send queries and serve, until what they cost is published."""
    send(model, count, name, dataset=dataset, **more)
    for _ in range(2):
        model.serve()


def raise_and_go_on(model: Model, limit: str, count: int, dataset: str = "d0", shard: int = 0) -> None:
    """Raise a budget, and spend of it."""
    command(model, f"raise-{limit}", shard, action=Action.RAISE_BUDGET, dataset=dataset, limit=limit)
    model.serve()
    go_on(model, count, f"after-{limit}-", dataset, shard=shard)


def alert_place(model: Model) -> int:
    """Return up to which offset of its alert partition the stored state of shard 0 knows."""
    journal = model.journal(0, 1)
    finish(journal.look())
    place: int = journal._meta.alert_offset
    return place


GIVEN_UP = Command(id="c", action=Action.MARK_EXHAUSTED)
Stored = dict[bytes, bytes]


def command(model: Model, name: str, shard: int = 0, **fields: Any) -> None:
    """Send a command to a shard."""
    model.broker.write(f"{CONTROL}-{shard}", None, msgspec.json.encode(Command(id=name, **fields)))


def backup(model: Model, shard: int = 0) -> Stored:
    """Return the state of a shard."""
    newest = {entry.key: entry.value for entry in model.broker.read(f"state-{shard}")}
    return {key: value for key, value in newest.items() if key is not None and value is not None}


def restore(model: Model, state: Stored, shard: int = 0) -> None:
    """Put a state in the place of that of a shard."""
    gone = dict.fromkeys(backup(model, shard).keys() - state.keys())
    for key, value in (state | gone).items():
        model.broker.write(f"state-{shard}", key, value)


def give_up(model: Model, shard: int = 0) -> None:
    """Find that a shard's state is not the one behind its alerts, and give its budgets up."""
    with pytest.raises(StateRolledBack):
        finish(model.tenure(shard)[0].open())
    told = model.broker.write(f"{CONTROL}-{shard}", None, msgspec.json.encode(GIVEN_UP))
    giving, _ = model.tenure(shard)
    finish(giving.open(given_up=(told.offset, GIVEN_UP)))
    finish(giving.run())
    model.settle()


def ledgers(status: Status) -> dict[str, tuple[float, float]]:
    """Return spent and limit by dataset."""
    return {name: (view.spent, view.limit) for name, view in status.views.items()}
