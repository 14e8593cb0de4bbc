"""Runs the service's own protocol on the modelled log, one effect at a time, with the faults of a script.

Every await of the protocol ends in a port below, which hands an effect to the scheduler. The scheduler carries it
out, or kills the process before or after it, loses it, delays it, lets another process go first. The same script
gives the same history, byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from stream_svt.errors import (
    ApplicationClosed,
    ConfigurationBehind,
    RecordsLost,
    StateRolledBack,
    TimestampAhead,
    UnreadableState,
)
from stream_svt.forward.conditions import Conditions
from stream_svt.kafka.clients import BrokerUnavailable, Fenced
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import TO_MONITORS, Action, Command
from stream_svt.monitor.released import Totals
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.state.snapshot import BLIND
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import Cause, ShardSignal, ShardStatus
from stream_svt.protocol.state_records import META, Meta
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sections import CommitConfig
from stream_svt.worker.workload import AppliedWorkload
from tests.simulation.applications import DATASETS, OTHER, TOPIC, Application, application
from tests.simulation.log import Broker, Effect, Entry, Fate, ModelLog, Txn, finish, journal_of, lived
from tests.simulation.rules import Known, Rules
from tests.simulation.script import Fault, Script
from tests.support.verifier import FRAME

CONTROL = "control"
SUCCESSOR = "app"
"""Name of who goes on with a closed application, on a log of its own."""
_WANTED = re.compile(r"--topic ([\w.-]+)(?: --offset (\d+))?")
"""The offset of a topic of counts is shown nowhere."""
_ACTIONS = (
    *(2 * (Action.PAUSE, Action.RESUME, Action.CLOSE, Action.RESAMPLE, Action.RAISE_BUDGET, Action.MUTE)),
    Action.UNMUTE,
    Action.ACCEPT_LOSS,
)
_BOUNDS = (
    *(5 * (BOUNDS,)),
    Bounds(published=2),
    Bounds(runs=1, published=1),
    Bounds(records=2, rejects=1, cost=30),
    Bounds(size=2_000, cost=5, published_size=1_500),
)
COUNTS_APART = 0.25
"""Seconds between two records of counts: a window of both datasets has four."""
_IDLE = 3
"""Fetches that found nothing, after which an owner counts as idle; one that is parked does at once."""
_PATIENCE = 60
"""Effects for which a pause waits."""
MOST_EFFECTS = 20_000
"""Effects after which a history counts as hanging."""


@dataclass(eq=False)
class Process:
    number: int
    life: Coroutine[Effect, Any, None]
    entropy: random.Random
    outcome: Any = None
    error: Exception | None = None
    observer: Any = None
    status: ShardStatus = field(default_factory=lambda: ShardStatus(0))
    stop: bool = False
    held: bool = False
    asleep_until: int = 0
    idle: int = 0


class Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


ONE_SHARD = Partitioning(1, "murmur2")


@dataclass(frozen=True)
class ModelWorkload(AppliedWorkload):
    """The application, with noise from the process's own entropy; ``watch`` is shown each engine."""

    partitioning: Partitioning = ONE_SHARD
    entropy: Callable[[int], bytes] = os.urandom
    decoder: type[QueryDecoder] = QueryDecoder
    bounds: Bounds = BOUNDS
    kind: type[Engine] = Engine
    watch: Callable[[Engine], None] = lambda engine: None
    without_totals: bool = False

    def engine(self, shard: int, key: bytes) -> Engine:
        datasets = self._parts[shard].datasets
        engine = self.kind(
            self.spec, shard=shard, datasets=datasets, key=key, entropy=self.entropy, bounds=self.bounds
        )
        if self.without_totals:  # what operators are shown of all datasets together is tested elsewhere
            engine.projection.add = engine.projection.count_queue = lambda *changed: None
            engine.projection.take = Totals
        self.watch(engine)
        return engine

    def decoders(self, engine: Engine) -> dict[str, QueryDecoder]:
        found = super().decoders(engine)
        for made in found.values():
            made.__class__ = self.decoder  # a broken one has what the right one has
        return found


class Positions:
    """Where a reader is on each topic."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions: dict[str, int] = {}

    def position(self, topic: str) -> int | None:
        return self._positions.get(topic)

    def seek(self, topic: str, offset: int) -> None:
        self._positions[topic] = offset

    async def spans_and_ids(self, topics: Sequence[str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        return await Effect(
            "spans", lambda: ({topic: self._broker.span(topic) for topic in topics}, self._broker.ids(topics))
        )

    async def scan(self, topic: str, start: int, take: Callable[[Any], None]) -> None:
        for entry in await Effect("scan", lambda: list(self._broker.read(topic, start))):
            take(entry)

    def high_water(self, topic: str) -> int | None:
        return self._broker.span(topic, committed=False)[1]

    def _take(self, topics: Iterable[str], most: Callable[[int], int]) -> dict[str, list[Entry]]:
        """Return what comes next: of so many records so many."""
        found: dict[str, list[Entry]] = {}
        for topic in sorted(topics):
            first, end = self._broker.span(topic)
            if not first <= self._positions[topic] <= end:
                raise RecordsLost(f"offsets are out of range on {topic}")
            entries = list(self._broker.read(topic, self._positions[topic]))
            taken = entries[: most(len(entries))] if entries else []
            # A consumer also passes what is no record, once all records before it are taken.
            self._positions[topic] = end if len(taken) == len(entries) else taken[-1].offset + 1
            if taken:
                found[topic] = taken
        return found


class ModelFeed(Positions):
    """A process's reader of queries and commands; see `stream_svt.protocol.ports.Feed`."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world.broker)
        self._world = world
        self._process = process
        self._unread = 1000 if world.behind else world.chance.choice((0, 1000))

    def high_water(self, topic: str) -> int:
        return self._broker.span(topic)[1] + self._unread

    @property
    def stopping(self) -> bool:
        return self._process.stop

    @property
    def held(self) -> bool:
        return self._process.held

    async def wait_for_rebalance(self) -> None:
        self._process.held = await Effect("settle", lambda: False)
        if self.stopping:
            raise Stopped

    async def fetch(
        self, topics: Iterable[str], max_wait: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Entry]]:
        def fetch() -> dict[str, list[Entry]]:
            found = self._take(topics, lambda count: self._world.chance.randint(1, count))
            self._world.fetched(self._process, empty=not found, max_wait=max_wait)
            return found

        records: dict[str, list[Entry]] = await Effect("fetch", fetch)
        if self._process.stop and not records:
            raise Stopped
        return records


@dataclass(frozen=True, slots=True)
class Backup:
    records: dict[bytes, bytes]
    known: Known


@dataclass
class Variant:
    """What a world runs; the broken ones differ from the service in one part.

    ``watch`` is shown what may be said about the shard, after every effect of its owner.
    """

    journal: Callable[..., Journal] = Journal
    log: Callable[[Broker, int], Any] = field(default=lambda broker, number: ModelLog(broker))
    workload: Callable[..., Any] = ModelWorkload
    session: Callable[..., ShardSession] = ShardSession
    observer: Callable[[], Any] = Silent
    watch: Callable[[World, ShardStatus], None] = lambda world, status: None


class World:
    """A broker, the processes that own its only shard, and the schedule.

    Shards that are ``behind`` publish later; else some are, and others are not.
    """

    def __init__(
        self,
        script: Script,
        variant: Variant | None = None,
        stage: Application | None = None,
        *,
        behind: bool = False,
    ) -> None:
        self.script = script
        self.behind = behind
        self.chance = random.Random(script.seed)
        self.now = 1_790_000_000.0
        self.broker = Broker(now_ms=self._now_ms)
        self.effects = 0
        self.trace: list[str] = []
        self._variant = variant or Variant()
        self._faults = list(script.faults)
        self._processes: list[Process] = []
        self._born = 0
        self._delayed: list[tuple[int, Callable[[], Any]]] = []
        self._application = stage or application(script.form)
        self._applied = [self._application.spec]
        specs = (self._application.spec, *self._application.others)
        self._topics = sorted({topic for spec in specs for topic in spec.topics()})
        self.rules = Rules(self.broker, *specs)
        self._writer = random.Random(script.seed + 1)
        self._producer = random.Random(f"{script.seed}/producer")
        self.unwritten = script.queries
        self._commands = 0
        self._paused = False
        self._calm = False
        self._backups: list[Backup] = [Backup({}, Known({}))]
        self.damaged: bytes | None = None
        self._beside: list[Backup] = []
        self._newest: Backup | None = None
        self._alerts: tuple[list[Entry], int | None, str] | None = None
        self._was_damaged = False
        self.closes = False
        self._judge = self.broker.decided
        self.broker.decided = self._decided

    def _now_ms(self) -> int:
        return int(self.now * 1000)

    # Processes

    def _spawn(self) -> Process:
        self._born += 1
        entropy = random.Random(f"{self.script.seed}/{self._born}")
        process = Process(self._born, None, entropy, observer=self._variant.observer())
        process.life = self._live(process)
        self._processes.append(process)
        return process

    async def _live(self, process: Process) -> None:
        """ShardSession after session, as `stream_svt.worker.shard.Shard` does."""
        version = 0
        while not process.stop:
            newest = len(self._applied)
            if version < newest:  # a worker reads what was applied sooner or later
                version = newest if newest == 1 or self.chance.random() < 0.5 else max(version, newest - 1)
            spec = self._applied[version - 1]
            # Owners differ in how much they do at once, as batches and other work make them differ.
            bounds = self.chance.choice(_BOUNDS)
            journal = journal_of(
                self.broker,
                self._variant.journal,
                log=self._variant.log(self.broker, process.number),
                entropy=process.entropy.randbytes,
                epoch=lambda: self.now,
                bounds=bounds,
            )
            session = self._variant.session(
                feed=ModelFeed(self, process),
                journal=journal,
                workload=self._variant.workload(
                    spec,
                    entropy=process.entropy.randbytes,
                    bounds=bounds,
                    version=(version, f"{version}"),
                    now_ms=int(self.now * 1000),
                    watch=self.rules.computed.watch,
                    without_totals=isinstance(process.observer, Silent) and self.script.seed % 8 > 0,
                ),
                shard=0,
                control=CONTROL,
                policy=CommitConfig(interval="500ms", max_records=12, cadence=self._application.cadence),
                start_at="earliest",
                clock=Clock(now=lambda: self.now, epoch=lambda: self.now, sleep=self._sleep),
                observer=process.observer,
                status=process.status,
            )
            try:
                await lived(session)
            except (Stopped, BrokerUnavailable, RecordsLost):
                pass
            except ApplicationClosed:
                self.rules.require(self.rules.closed, "an application was taken for closed, and it is not")
                if self._calm:
                    return
                await self._parked(process)
            except StateRolledBack:
                self.rules.require(self.rules.was_contradicted, "the newest state was refused")
                process.status.signal(ShardSignal.PARKED, Cause.STATE_ROLLED_BACK)
                await self._parked(process)
            except UnreadableState as error:
                self.rules.require(self._was_damaged, f"a sound state was refused: {error}")
                await self._parked(process)
            except TimestampAhead as error:  # until the clock has caught up
                await self._parked(process, max(error.passes_at - self.now, 1.0))
            except Fenced:
                # Only a member of the group opens again; whether this one still is, chance decides.
                if not self._calm and self.chance.random() < 0.5:
                    return
            except ConfigurationBehind:
                behind = version < len(self._applied)
                self.rules.require(behind, "an owner waits for a version that nobody applied")
                await self._parked(process, 0.2)
            finally:
                finish(journal.close())

    async def _parked(self, process: Process, seconds: float = 1.0) -> None:
        if not self._calm:
            process.idle = _IDLE + 1
        with contextlib.suppress(BrokerUnavailable):
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        end = self.now + seconds
        if seconds > 0:  # nobody else shares the worker
            await Effect("sleep", lambda: setattr(self, "now", max(self.now, end)))

    def fetched(self, process: Process, *, empty: bool, max_wait: float) -> None:
        """Note what a fetch found; an empty one takes as long as it may."""
        process.idle = process.idle + 1 if empty else 0
        if empty:
            self.now += max_wait

    # The schedule

    def run(self, *, settles: bool = True) -> list[str]:
        """Play the history to its end, or break it off as it is; return what broke the rules."""
        for topic in (TOPIC, OTHER, CONTROL, *self._topics):
            self.broker.partitions[topic] = []
        self._write(self._writer.randint(0, self.unwritten))
        last = self.script.faults[-1][0] if self.script.faults else 0
        try:
            while self._faults or self.unwritten or self.effects < last:
                if not self._turn():
                    break
            if settles:
                self.settle()
        except Exception as error:  # noqa: BLE001  with it the history would be lost
            self.rules.add_violation(f"a process gave up: {type(error).__name__}: {error}")
        return self.rules.violations

    def _turn(self) -> bool:
        """Let one process take one step; say whether the script still has something to do."""
        if self.effects > MOST_EFFECTS:
            self.rules.violations.append("the history does not end")
            return False
        if not self._processes:
            self._spawn()
        if self.unwritten and self.chance.random() < 0.08:
            self._write(self.chance.randint(1, 6))
        awake = [process for process in self._processes if process.asleep_until <= self.effects]
        if not awake:
            self.effects += 1
            return True
        process = awake[0] if len(awake) == 1 else self.chance.choice(awake)
        if all(p.idle > _IDLE for p in awake) and not self._delayed:
            # Nothing more will happen by itself: bring the next queries and the next fault forward.
            self._write(self.unwritten)
            if not self._faults:
                return False
            self._faults[0] = self.effects - _PATIENCE, self._faults[0][1]
        self._step(process)
        return True

    def _step(self, process: Process) -> None:
        """Resume a process with the outcome of its last effect, then carry out or disturb the next one."""
        try:
            if process.error is not None:
                error, process.error = process.error, None
                effect = process.life.throw(error)
            else:
                effect = process.life.send(process.outcome)
        except StopIteration:
            self._processes.remove(process)
            return
        process.outcome = None
        self._answer(process)
        self._variant.watch(self, process.status)
        self.effects += 1
        self._pass_time(effect)
        if self._faults and self._faults[0][0] <= self.effects and not self._waits(effect, *self._faults[0]):
            fault = self._faults.pop(0)[1]
            self.trace.append(f"{self.effects}: process {process.number}, {effect.kind}: {fault.value}")
            self._disturb(process, effect, fault)
        else:
            self._let_happen(process, effect)

    def _waits(self, effect: Effect, at: int, fault: Fault) -> bool:
        """Whether an operator's pause waits, for a while, until a process is about to commit what it tested."""
        loses = effect.kind == "end" and self.rules.computed.unsettled
        return fault is Fault.PAUSE and not loses and self.effects < at + _PATIENCE

    def _pass_time(self, effect: Effect) -> None:
        """Let time pass with an effect; subclasses let some effects take longer."""
        del effect
        self.now += self.chance.random() * 0.02
        self._background()

    def _let_happen(self, process: Process, effect: Effect) -> None:
        try:
            process.outcome = effect.act()
        except (Fenced, RecordsLost) as error:
            process.error = error

    def _disturb(self, process: Process, effect: Effect, fault: Fault) -> None:
        match fault:
            case Fault.KILL_BEFORE:
                self._kill(process)
            case Fault.KILL_AFTER:
                self._attempt(effect)
                self._kill(process)
            case Fault.PAUSE:
                self._commands += 1
                self.rules.plain, self._paused = False, True
                dataset = "" if self._commands % 2 else self.chance.choice(DATASETS)
                self._send(Action.PAUSE, dataset=dataset, now=self.chance.random() < 0.2)
                self._kill(process)
            case Fault.LOST:
                process.error = BrokerUnavailable("the request was lost")
            case Fault.UNKNOWN:
                self._attempt(effect)
                process.error = BrokerUnavailable("the reply was lost")
            case Fault.DELAYED if effect.kind in {"append", "end"}:
                self._delayed.append((self.effects + self.chance.randint(1, 40), effect.act))
                process.error = BrokerUnavailable("no answer in time")
            case Fault.SPLIT:
                self._spawn()
            case Fault.FREEZE:
                process.asleep_until = self.effects + self.chance.randint(20, 200)
                self._spawn()
            case Fault.TIMEOUT:
                self.broker.time_out("app-0")
            case Fault.DUPLICATE:
                self._duplicate(effect)
            case _:
                self._operate(process, fault)
        if process.error is None and process in self._processes:
            self._let_happen(process, effect)

    def _duplicate(self, effect: Effect) -> None:
        """Let a request to commit arrive twice; or have the last query and the last command written once more."""
        if effect.kind == "end":
            self._attempt(effect)
            return
        for topic in (*self._topics, CONTROL):
            for last in [entry for entry in self.broker.partitions[topic] if entry.visible][-1:]:
                self.broker.write(topic, last.key, last.value, last.headers, last.timestamp)

    def _operate(self, process: Process, fault: Fault) -> None:
        match fault:
            case Fault.STOP:
                process.stop = True
            case Fault.REBALANCE:
                process.held = True
            case Fault.COMMAND:
                self._command()
            case Fault.CLOSE:
                self.close_application()
            case Fault.RECONFIGURE:
                # No version declares a dataset again that one before has retired.
                left = {dataset.name for dataset in self.spec.datasets}
                specs = (self._application.spec, *self._application.others)
                may = [spec for spec in specs if left.issuperset(dataset.name for dataset in spec.datasets)]
                self._applied.append(self.chance.choice(may))
                self.rules.plain, self.rules.reconfigured = False, True
            case Fault.RETENTION:
                topic = self.chance.choice(self._topics)
                self.broker.first[topic] = self.chance.randint(*self.broker.span(topic))
                self.rules.plain = False
            case Fault.DAMAGE:
                self._damage()
            case Fault.ROLLBACK:
                self._stop_all()
                self._roll_back()
            case Fault.BESIDE:
                self._stop_all()
                if self._beside and not self.rules.contradicted:
                    self._go_back(self._beside[-1])
            case Fault.ANEW:
                self._stop_all()
                topic = self.chance.choice(("alerts", "alerts", CONTROL, self._topics[0]))
                if topic == "alerts" and self.rules.contradicted:
                    return  # one accident at a time: each is mended by taking it back
                was, first = self.broker.partitions.get(topic, []), self.broker.first.get(topic)
                was_id = self.broker.topic_ids.get(topic, "")
                self.rules.make_anew(topic)
                if topic == "alerts" and self.rules.contradicted:
                    self._alerts = was, first, was_id

    def _damage(self) -> None:
        """Change a byte of a state record; mend what was damaged before."""
        self._mend()
        records = self._backups[-1].records
        # What waits to be published is read by the rules as it is written.
        keys = sorted(key for key in records if not key.startswith(b"ob/"))
        if self.damaged is not None or not keys:
            return
        key = self.chance.choice(keys)
        self.damaged, self._was_damaged = key, True
        self.broker.write("state", key, records[key][:-1] + bytes([records[key][-1] ^ 1]))

    def _mend(self) -> None:
        """Put the record back as its owner knows it; later where a transaction under way may hold a newer one."""
        if self.damaged is not None and not self.broker.writing:
            self.broker.write("state", self.damaged, self._backups[-1].records.get(self.damaged))
            self.damaged = None

    def _attempt(self, effect: Effect) -> None:
        try:
            effect.act()
        except (Fenced, RecordsLost):
            self.trace.append("  it was refused")

    def _kill(self, process: Process) -> None:
        process.life.close()
        self._processes.remove(process)

    def _kill_all(self) -> None:
        for process in list(self._processes):
            self._kill(process)

    def _background(self) -> None:
        """Write markers, and let delayed requests arrive."""
        for name in self.broker.producers:
            if self.chance.random() < 0.7:
                self.broker.mark(name)
        if self.damaged is not None and self.chance.random() < 0.02:
            self._mend()
        if self.rules.contradicted and self.chance.random() < 0.02:
            self._belong_together()
        for item in [item for item in self._delayed if item[0] <= self.effects]:
            self._delayed.remove(item)
            self._attempt(Effect("delayed", item[1]))

    def _write(self, count: int) -> None:
        usual = self._application.spec.topics()
        for _ in range(min(count, self.unwritten)):
            topics = usual if self._writer.random() < 0.8 else self._topics
            number, counts = self.script.queries - self.unwritten, self._application.counts
            if counts is None:
                record: tuple[Any, ...] = self._application.query(self._writer, number)
            else:
                self.now += COUNTS_APART
                found = counts(self._writer, number, self._now_ms())
                record = found.dataset.encode(), found.content, found.headers, found.timestamp_ms
            self._produce(self._writer.choice(topics), record)
            self.unwritten -= 1

    def _produce(self, topic: str, record: tuple[Any, ...]) -> None:
        """Write a query: in a transaction of its own, before or after offsets without a record, or as it is."""
        producer, produced = self._producer, self.broker.produce
        if not self.script.jumps or producer.random() < 0.5:
            self.broker.write(topic, *record)
            return
        if producer.random() < 0.3:  # more than a takeover replays
            produced("shop", topic, [record] * producer.choice((1, 5, 60)), Fate.ABORTED)
        name = producer.choice(("shop", "other"))
        produced(name, topic, [record], producer.choice((Fate.OPEN, Fate.ABORTED, Fate.COMMITTED)))
        # The producer begins its next transaction later: one that is open ends then, aborted.
        if producer.random() < 0.5:
            produced(name, topic, [record, record], Fate.COMMITTED)
            self.broker.compact(topic, len(self.broker.partitions[topic]) - producer.choice((2, 3)))
        else:
            self.broker.write(topic, *record)

    def _command(self, action: Action | None = None) -> None:
        """Have an operator send a command, or somebody send what is none of his."""
        self._commands += 1
        self.rules.plain = False
        if action is None and self._interfere():
            return
        if action is None:
            again = self._paused and self.chance.random() < 0.5
            action = Action.RESUME if again else self.chance.choice(_ACTIONS)
        self._paused = action is Action.PAUSE
        to_all = action is not Action.RAISE_BUDGET and self.chance.random() < 0.2
        dataset = "" if to_all else self.chance.choice(DATASETS)
        limit = str(5 + self._commands) if action is Action.RAISE_BUDGET else ""
        now = action is Action.PAUSE and self.chance.random() < 0.3
        by_name = random.Random(f"{self.script.seed}/{self._commands}").random() < 0.5
        several = DATASETS if to_all and by_name and action in TO_MONITORS else ()
        lasts = action is Action.PAUSE and self.chance.random() < 0.5
        until = self._now_ms() + self.chance.choice((0, 500, 20_000)) if lasts else 0
        series = f"i{self.chance.randrange(6)}" if action in (Action.MUTE, Action.UNMUTE) else ""
        word = self.chance.choice(("run", "period")) if action is Action.MUTE else ""
        ends = {"until": until, "until_word": word}
        self._send(action, dataset=dataset, datasets=several, limit=limit, now=now, series=series, **ends)

    def _send(self, action: Action, ahead: int = 1, state: str = "", name: str = "", **fields: Any) -> None:
        """Send a command with the number that its shard's state, as it is durable now, wants next."""
        known, number = self._standing()
        named = {
            "id": name or f"c{self._commands}",
            "state": state or known,
            "number": max(number + ahead, 0),
            "expires": self._expiry(),
        }
        command = Command(action=action, **named, **fields)
        self.broker.write(CONTROL, command.dataset.encode(), msgspec.json.encode(command))

    def _expiry(self) -> int:
        """Return when a command expires: in an hour, and before a worker reads it, at times."""
        chance = random.Random(f"{self.script.seed}/{self.effects}/{self._commands}")
        return self._now_ms() + (3_600_000 if self._calm else chance.choice((500, 2_000, *[3_600_000] * 4)))

    def _standing(self) -> tuple[str, int]:
        """Return the id of the durable state, and the number of the last command that it used up."""
        meta = self._meta
        return (meta.state_id.hex(), meta.commands.number) if meta else ("none", 0)

    @property
    def _meta(self) -> Meta | None:
        meta = self._backups[-1].records.get(META)
        return None if meta is None else msgspec.msgpack.decode(meta[FRAME:], type=Meta)

    def close_application(self) -> None:
        self._commands += 1
        self.rules.plain = False
        self._send(Action.CLOSE_APPLICATION, successor=SUCCESSOR)

    def _interfere(self) -> bool:
        """Copy, replay, reorder, mirror, forge or flood, at times; say whether."""
        chance, sent = self.chance, self.broker.partitions[CONTROL]
        action, name = chance.choice((Action.RESAMPLE, Action.CLOSE)), f"x{self._commands}"
        send = partial(self._send, action, dataset=DATASETS[0])
        match chance.randrange(12):
            case 0 | 1 if sent:  # copies, and the last ones in another order
                for entry in chance.sample(sent[-4:], min(len(sent), 2)):
                    self.broker.write(CONTROL, entry.key, entry.value)
            case 2:  # of another shard
                send(name=name, state="00" * 16)
            case 3:  # a number that nobody has reached
                send(chance.randint(2, 4), name=name)
            case 4:  # two at once: the second before the first, too
                for ahead in chance.sample((1, 2), 2):
                    send(ahead, name=f"{name}-{ahead}")
            case 6:  # taken back, wherever it lies
                send(name=name)
                self._send(Action.WITHDRAW, name=f"{name}-w")
            case 5:
                for count in range(150):
                    send(chance.choice((-1, 0, 2)), name=f"f{count}")
                    self.broker.write(CONTROL, None, b"{")
            case _:
                return False
        return True

    def _answer(self, process: Process) -> None:
        """Send the command that a process waits for, at times."""
        if process.status.cause is Cause.RECORDS_LOST and self.chance.random() < 0.15:
            self._commands += 1
            [(topic, offset), *_] = _WANTED.findall(process.status.reason)
            self._send(Action.ACCEPT_LOSS, topic=topic, offset=int(offset or 0))

    def _decided(self, txn: Txn) -> None:
        self._judge(txn)
        written = {entry.key: entry.value for entry in txn.entries if entry.partition == "state"}
        if b"meta" not in written:
            return
        live: dict[Any, Any] = self._backups[-1].records | written
        records = {key: value for key, value in live.items() if value is not None}
        if txn.fate is Fate.COMMITTED:
            self._backups.append(Backup(records, self.rules.known))
        else:  # its records are on the log, sealed and complete, and whoever may write can put them back
            self._beside.append(Backup(records, self.rules.known_beside(records)))

    def _stop_all(self) -> None:
        self._kill_all()
        self._delayed.clear()
        self.broker.fence("app-0")

    def _roll_back(self) -> None:
        if self.rules.contradicted:
            return  # one accident at a time: each is mended by taking it back
        # Mostly one of the last, now and then the newest; each may be put back as well, and the empty one.
        back = min(int(self.chance.expovariate(0.3)), len(self._backups) - 1)
        backup = self._backups[0 if self.chance.random() < 0.1 else -1 - back]
        self._go_back(backup)

    def _go_back(self, backup: Backup) -> None:
        newest = self._backups[-1]
        self._put_back(backup)
        self.rules.put_back(backup.records, backup.known)
        if self.rules.contradicted:
            self._newest = newest

    def _put_back(self, backup: Backup) -> None:
        self.damaged = None
        self.broker.partitions["state"] = []
        for key, value in backup.records.items():
            self.broker.write("state", key, value)
        self._backups.append(backup)

    def _belong_together(self) -> None:
        """Put back the newest state, or the alerts that were there."""
        if self._newest is not None:
            self._put_back(self._newest)
        elif self._alerts is not None:
            self.broker.partitions["alerts"], first, self.broker.topic_ids["alerts"] = self._alerts
            if first is not None:
                self.broker.first["alerts"] = first
        self._newest = self._alerts = None
        self.rules.contradicted = False

    # What an operator does with an application that ends (see `tests.simulation.chains`)

    @property
    def spec(self) -> ApplicationSpec:
        return self._applied[-1]

    @property
    def closed(self) -> bool:
        return bool(self._meta and self._meta.commands.closed)

    def asleep(self, effects: int) -> Process:
        """Return an owner that stands still in the middle of its work."""
        self._calm, self._faults = True, []
        process = self._spawn()
        for _ in range(effects):
            if process in self._processes:
                self._step(process)
        return process

    def finish(self, process: Process) -> None:
        """Let an owner go on to its end, or for a while."""
        for _ in range(200):
            if process in self._processes:
                self._step(process)
        if process in self._processes:
            self._kill(process)

    def fork(self, seed: int) -> World:
        """Return what goes on from here by itself; no process lives, and nobody has a transaction under way."""
        self.rules.computed.newest = None
        entries = chain(*self.broker.partitions.values())
        shared = self._application, self._variant, *self.rules.specs, *self._backups, *self._beside, *entries
        other = deepcopy(self, {id(one): one for one in shared})
        other.script = replace(self.script, seed=seed, faults=())
        other.chance, other._writer = random.Random(seed), random.Random(seed + 1)
        other.rules.violations, other.trace, other._faults = [], [], []
        return other

    def lose_state(self) -> dict[bytes, bytes]:
        """Put back an older state, or an empty or damaged one; return the newest."""
        self._mend()
        self._belong_together()
        newest = dict(self._backups[-1].records)
        self._go_back(self.chance.choice((self._backups[0], *self._backups[-4:])))
        if self.chance.random() < 0.4:
            self._damage()
        return newest

    def abandon(self) -> None:
        """Let every process die where it is, and the coordinator end what they left open."""
        self._kill_all()
        self._delayed.clear()
        self.broker.settle(abandoned=True)

    def settle(self) -> None:
        """Let one healthy owner finish in a calm world, then judge."""
        self._calm = True
        self._faults = []
        self._kill_all()
        self._write(self.unwritten)
        self.broker.settle(abandoned=True)  # of owners that are gone: whoever comes fences its own name only
        self._mend()
        self._belong_together()
        process = self._spawn()
        resumed = -1
        while process in self._processes and self.effects <= 2 * MOST_EFFECTS:
            self._step(process)
            if process.idle > 2 and process.status.cause is not Cause.RECORDS_LOST:
                self._require_conditions(process)
                # What waits comes first: the number is known once it is used up.
                process.idle, number = 0, self._standing()[1]
                if self.closes and not self.closed:
                    self.close_application()
                elif number == resumed + 1 or not self._commands:
                    process.stop = True
                else:
                    self._send(Action.RESUME, name=f"end-{number}")
                    resumed = number
        if process in self._processes:
            self.rules.violations.append("a healthy owner does not come to an end")
        self.broker.settle()
        self._require_all_read(process)
        self.rules.finish()

    def _require_conditions(self, process: Process) -> None:
        """Demand that the conditions that the events show are the states in which an idle owner skips queries."""
        if self.closed or not self.rules.is_whole:
            return
        conditions = Conditions()
        # Open transactions of others may hide some from readers.
        for entry in self.broker.partitions["alerts"]:
            if entry.visible and entry.value is not None:
                conditions.take(entry.value)
        standing = {(one.dataset, one.monitor): status.shown for one, status in conditions.blind.items()}
        skipped = {
            (view.dataset, one.monitor): one.state
            for view in process.status.views.values()
            for one in view.monitors
            if one.state in BLIND
        }
        self.rules.require(standing == skipped, f"conditions {standing} stand, and {skipped} skip queries")

    def _require_all_read(self, process: Process) -> None:
        """Demand that the positions that an owner has stored are the ends of its topics."""
        status = process.status
        if self.closed or process in self._processes:
            return
        ends = {topic: self.broker.span(topic)[1] for topic in status.offsets}
        self.rules.require(status.offsets == ends, f"positions {status.offsets} are not the ends {ends}")


def play(script: Script, variant: Variant | None = None, stage: Application | None = None) -> World:
    world = World(script, variant, stage)
    world.run()
    return world
