"""Counters of raw events that are killed, stopped and cut off; every count is held to one made from the raw topics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import subprocess
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from stream_svt.settings.sources import LOG_PARTITIONS
from stream_svt.sources.log import Began, Done, Look, Parked, decode
from tests.soak.blows import replicated, strikes
from tests.soak.report import Progress
from tests.soak.stage import Outcome, Processes
from tests.support import records
from tests.support.avro import Registry, encode, record
from tests.support.cluster import REPLICAS, ThreeBrokers
from tests.support.counting import HEAD, Answer, Counting, decoded, text_of
from tests.support.process import Process
from tests.support.proxy import Api, ProxiedKafka, Proxy
from tests.support.topics import CLOCK, create_application, create_topics

SPEC = """schema_registry: {{url: "{registry}"}}
sources:
  - {{name: web, topic: {application}.raw, unit: user, dataset: shop, series: {{field: page, names: [a, b, c]}},
     window: 1s, every: 1s, lateness: 1s, ahead: 0, settle: {settle},
     measures: [{{name: users}}, {{name: events, of: {{events: {{at_most: 3}}}}}}]}}
  - {{name: pulse, topic: {application}.raw, unit: user, time: {{field: at, in: ms}}, ask: tick,
     window: 4s, every: 1s, lateness: 2s, ahead: 2s, settle: {settle},
     dataset: {{pattern: "store-{{name}}", field: store, names: [n, s]}},
     measures: [{{name: slow, where: {{ms: {{at_least: 500}}}}, of: {{events: {{at_most: 2}}}}}}]}}
  - {{name: app, topic: {application}.app, format: avro, unit: user, dataset: app,
     series: {{field: page, names: [a, b, c]}}, measures: [{{name: users}}],
     window: 2s, every: 1s, lateness: 1s, ahead: 10s, settle: {settle}}}
datasets:
  - {{names: [shop], limit: {{epsilon: 100}}}}
  - {{names: [app], limit: {{epsilon: 100}}}}
  - {{names: [store-n, store-s], limit: {{epsilon: 100}}}}
monitors:
  - {{name: many, source: web, measure: users, {common}}}
  - {{name: slow, source: pulse, measure: slow, {common}}}
  - {{name: taps, source: app, measure: users, {common}}}
"""
COMMON = "epsilon: 1, cutoff: 3, threshold: 100, expected_queries: 10000"
VISIT = record("visit", user="string", page="string")
SHORT = {"counter": 20, "counter-cluster": 8}
FULL = {"counter": 500, "counter-cluster": 100}
TICK_MS = 1000
PLACES = {"raw": 5, "app": 3}
"""Partitions of the raw topics."""
ABANDONED = 4.0
"""Seconds after which brokers end a transaction that nobody ends."""
AT_START = (Api.INIT_PRODUCER_ID, Api.JOIN_GROUP)
"""Requests of a counter that starts, or takes over."""
BRIEFLY, LONG = (0.5, 5.0), (10.0, 14.0)
"""Seconds that a counter stands still: longer than a session, or also than a transaction may last."""


# --- what counts should be


class Visit(NamedTuple):
    """An event as the judge reads it: its unit, own time, dataset, series, and the measures it matches."""

    unit: str
    at: int | None
    dataset: str
    series: str | None
    measures: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What decides the counts of a source, written down once more; ``by_broker``: so are records' timestamps."""

    topic: str
    window: int
    closes: int
    ahead: int
    by_broker: bool
    asks_ticks: bool
    datasets: tuple[str, ...]
    measures: Mapping[str, int]
    series: tuple[str | None, ...]
    read: Callable[[bytes], Visit | None]


def of_web(value: bytes) -> Visit | None:
    found = _of_json(value)
    return found and Visit(found["user"], None, "shop", found["page"], ("users", "events"))


def of_pulse(value: bytes) -> Visit | None:
    found = _of_json(value)
    slow = ("slow",) if found and found["ms"] >= 500 else ()
    return found and Visit(found["user"], found["at"], f"store-{found['store']}", None, slow)


def _of_json(value: bytes) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(value)


def of_app(value: bytes) -> Visit | None:
    """Read two texts behind five bytes of Avro's wire format; both are short."""
    user, page = value[6 : 6 + value[5] // 2], value[7 + value[5] // 2 :]
    return Visit(user.decode(), None, "app", page.decode(), ("users",))


PAGES = ("a", "b", "c")
RULES = {
    "web": Rules("raw", 1000, 2000, 0, True, False, ("shop",), {"users": 1, "events": 3}, PAGES, of_web),
    "pulse": Rules(
        "raw", 4000, 6000, 2000, True, True, ("store-n", "store-s"), {"slow": 2}, (None,), of_pulse
    ),
    "app": Rules("app", 2000, 3000, 10_000, False, False, ("app",), {"users": 1}, PAGES, of_app),
}


@dataclass
class History:
    """What the event log says of a source: its first window, its looks in order, the ticks asked."""

    first: int = 0
    floors: Mapping[int, int] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    began: int = 0
    ticks: list[int] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)

    def take(self, value: bytes) -> None:
        entry = decode(value)
        if isinstance(entry, Began):
            self.first, self.floors = entry.standing.first, entry.standing.floors
            self.began = entry.standing.looked_ms
        elif isinstance(entry, Look):
            self.looks.append(entry)
        elif isinstance(entry, Done):
            self.ticks.append(entry.tick)
        elif isinstance(entry, Parked):
            self.parked.append(entry.reason)


def expected(rules: Rules, history: History, raw: Iterable[Any], last_tick: int) -> dict[str, list[Answer]]:
    """Return for each dataset all queries up to a tick, in order, with their counts."""
    counted: dict[tuple[int, str, str, str | None], list[tuple[int, str]]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for look in history.looks:
        for partition, end in look.ends.items():
            ends[partition].append(end)
    moments = [history.began, *(look.moment_ms for look in history.looks)]
    for one in raw:
        if (visit := rules.read(one.value)) is None:
            continue
        at = one.timestamp if visit.at is None else visit.at
        window = at // rules.window * rules.window
        if rules.by_broker:
            appended = one.timestamp
            tick = _tick_after(appended)
        else:
            covering = bisect_right(ends[one.partition], one.offset)
            if one.offset < history.floors[one.partition] or covering == len(history.looks):
                continue
            # Ticks without a look of their own share the next one: the record belongs to the first of them.
            tick, appended = _tick_after(moments[covering]), moments[covering + 1] - 1
        if tick <= window + rules.closes and history.first <= window <= appended + rules.ahead:
            for measure in visit.measures:
                counted[window, visit.dataset, measure, visit.series].append((tick, visit.unit))
    answers: dict[str, list[Answer]] = {dataset: [] for dataset in rules.datasets}
    for tick in range(history.first + TICK_MS, last_tick + 1, TICK_MS):
        begin = max((tick - rules.closes) // rules.window * rules.window, history.first)
        for window in range(begin, tick, rules.window):
            due = (
                window < tick <= window + rules.closes if rules.asks_ticks else tick == window + rules.closes
            )
            for dataset, (measure, most), series in itertools.product(
                rules.datasets if due else (), rules.measures.items(), rules.series
            ):
                units = Counter(
                    unit for at, unit in counted.get((window, dataset, measure, series), ()) if at <= tick
                )
                value = sum(min(count, most) for count in units.values())
                answers[dataset].append(
                    Answer(text_of(window), text_of(tick), dataset, measure, series, value)
                )
    return answers


def _tick_after(ms: int) -> int:
    return ms // TICK_MS * TICK_MS + TICK_MS


def difference(found: list[Answer], wanted: list[Answer]) -> str | None:
    """Return where two lists of answers differ first, None if they do not."""
    for number, (one, other) in enumerate(itertools.zip_longest(found, wanted)):
        if one != other:
            return f"answer {number} of {len(wanted)} is {one}, not {other}"
    return None


# --- the stage


@dataclass(eq=False)
class Counters(Processes, Counting):
    """Two counters that share three sources, and the producers of their raw topics.

    ``through`` is how counters reach the brokers, where that differs.
    """

    _: KW_ONLY
    through: str = ""
    replicas: int = 1
    registry: str = ""
    settle: str = "1s"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance = random.Random(self.seed)
        self.running: list[Process] = []
        self.outcome, self.blows, self.waits = Outcome(0), Counter[str](), list[float]()
        self.histories = {name: History() for name in RULES}
        self._reader: AIOKafkaConsumer

    def text(self, **changes: object) -> str:
        del changes
        keys = ("application", "partitions", "settle", "registry")
        usual = {name: getattr(self, name) for name in keys}
        return (HEAD + SPEC).format(common=COMMON, servers=self.through or self.servers, **usual)

    @contextlib.asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """Have counters on a stream of events; at the end let them finish, judge, and leave no process behind."""
        async with Registry({1: VISIT}).started() as registry, contextlib.AsyncExitStack() as stack:
            self.registry = registry.url
            await stack.enter_async_context(Counting.on_stage(self, create=False))
            await self.publish()
            self._reader = AIOKafkaConsumer(
                bootstrap_servers=self.servers, isolation_level="read_committed", auto_offset_reset="earliest"
            )
            await stack.enter_async_context(self._reader)
            self._reader.assign(
                [TopicPartition(f"{self.application}.sources", n) for n in range(LOG_PARTITIONS)]
            )
            ending = asyncio.Event()
            sending = (self._send(ending), *(self._transactions(to, ending) for to in PLACES))
            tasks = [asyncio.create_task(one) for one in (self._follow(), *sending)]
            try:
                for _ in range(2):
                    self.join()
                await self.caught_up()
                yield
                ending.set()
                await asyncio.gather(*tasks[1:])
                await self.caught_up(4_000)
                for counter in [*self.running]:
                    await self.leave(counter)
                await self.until(self._is_followed, "the end of the event log")
            except (AssertionError, TimeoutError, KafkaError, subprocess.TimeoutExpired) as error:
                self.outcome.violations.append(f"it got stuck: {type(error).__name__}: {error}")
                self.outcome.notes += [counter.log for counter in self.running]
                return
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for counter in self.running:
                    await counter.end(signal.SIGKILL)
            await self._judge()

    async def _create_topics(self) -> None:
        name, more = self.application, {"replicas": self.replicas}
        await create_application(self.servers, name, self.partitions, **more)
        await create_topics(self.servers, {f"{name}.raw": PLACES["raw"]}, CLOCK, **more)
        await create_topics(self.servers, {f"{name}.app": PLACES["app"]}, **more)
        await create_topics(
            self.servers, {f"{name}.sources": LOG_PARTITIONS}, CLOCK | {"retention.ms": "-1"}, **more
        )
        counts = {f"{name}.{source}.counts": self.partitions for source in RULES}
        await create_topics(self.servers, counts, **more)

    # The stream

    def _event(self, to: str) -> bytes:
        """Return an event of one of few users, so that many are counted more than once."""
        chance = self.chance
        user, page = f"user-{chance.randrange(60)}", chance.choice("abcx")
        if to == "app":
            return encode(VISIT, {"user": user, "page": page})
        if not chance.randrange(50):
            return b"no json"
        at = int(time.time() * 1000) - chance.choice((0, 0, 100, 1500, 5000, -1500, -3000))
        more = {"store": chance.choice("nsx"), "ms": chance.randrange(1000)}
        return json.dumps({"user": user, "page": page, "at": at, **more}).encode()

    async def _send(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            for to, places in PLACES.items():
                for _ in range(self.chance.randrange(8)):
                    # A broker that is away costs some events; what counts is what the log holds.
                    with contextlib.suppress(KafkaError):
                        topic, place = f"{self.application}.{to}", self.chance.randrange(places)
                        await self.producer.send(topic, self._event(to), partition=place)
            await asyncio.sleep(0.04)
        await self.producer.flush()

    async def _transactions(self, to: str, ending: asyncio.Event) -> None:
        """Write transactions that stay open for a while; some are aborted, some abandoned."""
        chance, topic, number = self.chance, f"{self.application}.{to}", 0
        while not ending.is_set():
            number += 1
            producer = AIOKafkaProducer(
                bootstrap_servers=self.servers,
                transactional_id=f"{topic}-{number}",
                transaction_timeout_ms=int(ABANDONED * 1000),
            )
            with contextlib.suppress(KafkaError):
                await producer.start()
                while not ending.is_set():
                    await producer.begin_transaction()
                    for _ in range(chance.randrange(1, 30)):
                        await producer.send(topic, self._event(to), partition=chance.randrange(PLACES[to]))
                    await asyncio.sleep(chance.choice([0, 0.1, 0.1, 1.5]))
                    await producer.flush()
                    if (fate := chance.random()) < 0.03:
                        break
                    await (producer.commit_transaction if fate < 0.7 else producer.abort_transaction)()
            await producer.stop()

    # Counters

    def join(self) -> None:
        self.running.append(self.process())

    async def caught_up(self, beyond: int = 0) -> None:
        """Wait until each source has asked a tick that ends after now, and so many ms."""
        began, wanted = time.monotonic(), int(time.time() * 1000) + beyond

        async def done() -> bool:
            return all(one.ticks and one.ticks[-1] > wanted for one in self.histories.values())

        try:
            await self.until(done, "a later tick of every source")
        except TimeoutError:
            asked = {name: one.ticks and text_of(one.ticks[-1]) for name, one in self.histories.items()}
            raise TimeoutError(f"newest ticks: {asked}, awaited: {text_of(wanted)}") from None
        self.waits.append(time.monotonic() - began)

    # The end

    async def _follow(self) -> None:
        """Read the event log as it grows: old entries are deleted."""
        async for one in self._reader:
            if one.key and one.value:
                self.histories[one.key.decode()].take(one.value)

    async def _is_followed(self) -> bool:
        ends = await self._reader.end_offsets(self._reader.assignment())
        return all([await self._reader.position(place) >= end for place, end in ends.items()])

    async def _judge(self) -> None:
        violations, sums = self.outcome.violations, Counter[str]()
        for name, rules in RULES.items():
            history = self.histories[name]
            violations += [f"{name} was parked: {reason}" for reason in history.parked]
            topics = f"{self.application}.{rules.topic}", f"{self.application}.{name}.counts"
            raw = await records.read(self.servers, topics[0], range(PLACES[rules.topic]))
            written = await records.read(self.servers, topics[1], range(self.partitions))
            found = [answer for one in written for answer in decoded(one)]
            for dataset, wanted in expected(rules, history, raw, history.ticks[-1]).items():
                sums[name] += sum(one.value for one in wanted)
                if different := difference([one for one in found if one.dataset == dataset], wanted):
                    violations.append(f"{name}, {dataset}: {different}")
            self.outcome.notes.append(
                f"{name}: {len(raw)} events, {len(found)} counts, {sums[name]} in sum, {len(history.ticks)} ticks"
            )
            if not sums[name]:
                violations.append(f"{name} has counted nothing")
        said = "".join(one.output for one in self.processes)
        violations += [f"a log has {text!r}" for text in ("Traceback", "user-") if text in said]
        waits = f"asked a later tick after {median(self.waits):.1f} s, at most {max(self.waits):.1f} s"
        self.outcome.notes.append(f"{dict(self.blows)}; {len(self.processes)} counters in all; {waits}")


# --- blows


async def kill(stage: Counters) -> None:
    await stage.kill(stage.chance.choice(stage.running))
    stage.join()


async def leave(stage: Counters) -> None:
    """Let one more join, and another leave in order."""
    stage.join()
    await asyncio.sleep(stage.chance.uniform(0, 3))
    await stage.leave(stage.running[0])


async def stand_still(stage: Counters) -> None:
    """Stop a counter until another one has taken over."""
    span = BRIEFLY if stage.chance.random() < 0.85 else LONG
    await _stopped(stage.chance.choice(stage.running).process, stage.chance.uniform(*span))


async def _stopped(process: subprocess.Popen[Any], seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)


async def _play(stage: Counters, count: int, blows: Mapping[Any, int]) -> Outcome:
    """Give each blow once, then by chance and weight."""
    chance, progress = stage.chance, Progress()
    async with stage.on():
        for number in range(count):
            await asyncio.sleep(1.5 * chance.random())
            [blow] = [*blows][number : number + 1] or chance.choices([*blows], [*blows.values()])
            await blow(stage)
            stage.blows[blow.__name__] += 1
            stage.outcome.count += 1
            progress(stage.outcome.count, f" {dict(stage.blows)}")
            if chance.random() < 0.75:
                await stage.caught_up()
            else:  # the next one comes in the middle of the takeover
                await asyncio.sleep(3 * chance.random())
    return stage.outcome


async def counters(kafka: ProxiedKafka, application: str, directory: Path, count: int, seed: int) -> Outcome:
    """Counters killed, stopped and cut off from a broker; their requests and replies lost or late."""
    proxy, striking = Proxy(kafka.front_port, kafka.behind_port), contextlib.AsyncExitStack()
    stage = Counters(
        kafka.bootstrap_servers, application, directory=directory, through=proxy.address, seed=seed
    )
    faults = strikes(stage.chance, [*Api])

    async def strike(stage: Counters) -> None:
        """Lose a request or its reply, or let it come late."""
        fault = next(faults)
        proxy.arm(fault)
        if fault.api in AT_START:
            await kill(stage)
        elif stage.chance.random() < 0.3:  # of those that wait for it, one may be gone before it comes
            await asyncio.sleep(stage.chance.uniform(0.5, 1.5))
            await kill(stage)
        async with asyncio.timeout(90):
            await fault.done.wait()
        stage.blows[f"{fault.api.name} {fault.fault}"] += 1

    async def cut(stage: Counters) -> None:
        """Cut all connections, and let none be made for a while."""
        await striking.aclose()
        await asyncio.sleep(stage.chance.uniform(0, 4))
        await striking.enter_async_context(proxy.running())

    async with striking:
        await striking.enter_async_context(proxy.running())
        return await _play(stage, count, {kill: 3, strike: 5, stand_still: 3, cut: 1, leave: 1})


async def on_cluster(
    brokers: ThreeBrokers, application: str, directory: Path, count: int, seed: int
) -> Outcome:
    """Three brokers that are lost and stopped one after the other, while counters are killed and stopped."""
    more: dict[str, Any] = {"replicas": REPLICAS, "settle": "6s", "seed": seed}
    stage = Counters(brokers.bootstrap_servers, application, directory=directory, **more)

    async def lose(stage: Counters) -> None:
        lost = stage.chance.choice(brokers.members)
        lost.process.send_signal(stage.chance.choice((signal.SIGTERM, signal.SIGKILL)))
        await asyncio.to_thread(lost.process.wait)
        await stage.caught_up()
        await asyncio.to_thread(lost.restart)
        await replicated(brokers)

    async def halt(stage: Counters) -> None:
        """Stop a broker until others lead its partitions: for a moment it takes itself for their leader."""
        await _stopped(stage.chance.choice(brokers.members).process, stage.chance.uniform(2, 8))
        await replicated(brokers)

    return await _play(stage, count, {lose: 3, kill: 2, halt: 2, stand_still: 1})
