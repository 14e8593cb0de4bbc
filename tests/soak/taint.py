"""Pairs of histories that an outsider must not tell apart: ``tests/run soak taint [--count N] [--first SEED]``.

Two neighbouring datasets, every value different, are run through the protocol on the modelled log. The noise of the
second run is scripted by the mechanism's own alignment (`SparseVector.shifts`), so that the same outcomes are released;
everything else is the same. Then all that leaves the trusted zone has to be the same bytes at the same time: alerts,
uncommitted ones too, rejected records, metrics, status, logs, the number and the moment of all effects. A pair counts
when it saw three tops or more, both branches, a run resampled, a halt and a crash.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.contract import Neighbours, Outcomes, Top
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import Law
from stream_svt.mechanisms.sampler import Identity, Sampler, draw_threshold
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state import runs as opening
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.settings.application import load_spec
from stream_svt.worker.metrics import Metrics
from tests.simulation.applications import DATASETS, Application
from tests.simulation.script import Fault, Script
from tests.simulation.world import ModelWorkload, Variant, World
from tests.simulation.world import play as played
from tests.soak.stage import Outcome

DEFAULT_COUNT = 20
QUERIES = 60
SENSITIVITY = 1_000_000
THRESHOLD = 10**11

SPEC = load_spec(f"""
application: app
datasets:
  - {{names: [a, b], limit: 30, unit: one basket}}
monitors:
  - {{name: two, topic: t, mechanism: adaptive, epsilon: 2, cutoff: 2, sensitivity: {SENSITIVITY}, monotonic: true,
     bounds: [0, 10000000000000], threshold: {THRESHOLD}, max_runs: off, expected_queries: 1000, mute: none}}
  - {{name: again, topic: t, epsilon: 2, cutoff: 3, sensitivity: {SENSITIVITY}, monotonic: true, mute: 1s,
     bounds: [0, 10000000000000], threshold: {THRESHOLD}, max_runs: off, expected_queries: 1000,
     append: {{retry: {{attempts: 3, lifetime: 60, capacity: 4, every: 5}}}}}}
  - {{name: general, topic: u, epsilon: 2, cutoff: 2, sensitivity: {SENSITIVITY}, monotonic: false, mute: run,
     bounds: [0, 10000000000000], threshold: {THRESHOLD}, max_runs: off, expected_queries: 1000, query_noise: laplace,
     threshold_noise: laplace}}
""")
"""Two of its monitors are monotonic, one is not."""


@dataclass(frozen=True)
class Values:
    """The values of both datasets, by the number of the query; grid values are their floors."""

    neighbours: Neighbours
    first: tuple[Fraction, ...]
    second: tuple[Fraction, ...]

    @classmethod
    def random(cls, seed: int) -> Values:
        """Return two streams of marked values, at most the sensitivity apart, all in one direction."""
        chance = random.Random(f"values {seed}")
        neighbours = chance.choice((Neighbours.UP, Neighbours.DOWN))
        first, second = [], []
        for _ in range(QUERIES):
            scales = chance.choice((-90, -4, 0, 6, 9, 14, 25, 60))
            value = THRESHOLD + scales * SENSITIVITY * 2 + chance.randrange(SENSITIVITY)
            moved = chance.choice((SENSITIVITY, chance.randrange(1, SENSITIVITY)))
            part = Fraction(chance.choice((0, 0, 25)), 100)
            first.append(value + part)
            second.append(value + part + (moved if neighbours is Neighbours.UP else -moved))
        return cls(neighbours, tuple(first), tuple(second))

    def application(self, *, second: bool) -> Application:
        """Return the application that is fed one of the streams, with malformed records between."""
        values = self.second if second else self.first

        def query(chance: random.Random, number: int) -> tuple[bytes, bytes]:
            dataset = chance.choice(DATASETS).encode()
            text = _text(values[number])
            if chance.random() < 0.06:
                bad = chance.choice(
                    (b'{"id": 7, "value": %b}', b'{"value": %b}', b'{"id": "q", "value": %b', b"[%b]")
                )
                return dataset, bad % text
            series = chance.randrange(6)
            return dataset, b'{"id":"q%d","series":"i%d","value":%b}' % (number, series, text)

        return Application(SPEC, query)


def _text(value: Fraction) -> bytes:
    whole, part = divmod(value, 1)
    return str(whole).encode() if not part else f"{whole}.{round(part * 100):02d}".encode()


Place = tuple[str, int, int, int, int]
"""Monitor, offset, row, attempt and branch of a top."""


class _Moved(Sampler):
    """Noise of an `AlignedEngine`."""

    def __init__(self, engine: AlignedEngine, runner: Runner, sampler: Sampler) -> None:
        self.engine, self.runner, self.sampler = engine, runner, sampler

    def draw(self, law: Law, given: Identity) -> Integers:
        return self.engine.draw(self.runner, self.sampler, law, given)

    def reaching(
        self, laws: Sequence[Law], given: Identity, leasts: Sequence[Integers], among: Any = None
    ) -> list[tuple[Integers, Integers]]:
        noise = reaching(lambda branch: self.draw(laws[branch], given._replace(branch=branch)))
        counts = np.ones(len(given.value), dtype=np.bool_) if among is None else among
        return [(tests[counts[tests]], noises[counts[tests]]) for tests, noises in noise(leasts)]


class AlignedEngine(Engine):
    """An engine whose noise is that of the first run, moved as the alignment of that run's outcomes says.

    ``values_at`` has the grid values on both datasets of the query at an offset of a topic, ``tops`` what the first
    run released.
    """

    neighbours: Neighbours
    values_at: dict[tuple[str, int], tuple[int, int]]
    tops: set[Place]

    def add(self, *args: Any, **options: Any) -> Runner:
        runner = super().add(*args, **options)
        runs, tester = runner.runs, runner.tester
        open_run = runs.open_run
        tester.sampler = _Moved(self, runner, tester.sampler)
        runs.open_run = lambda *run: self.open_run(runner, open_run, *run)  # type: ignore[method-assign]
        return runner

    def kind(self, runner: Runner) -> Neighbours:
        """Return the direction that a monotonic mechanism knows; a general one promises its charge for any."""
        return self.neighbours if runner.runs.plan.mechanism.monotonic else Neighbours.MIXED

    def draw(self, runner: Runner, sampler: Sampler, law: Law, tests: Identity) -> Any:
        """Return the noise of the first run's values, and for its tops the shift on top of it."""
        branch = tests.branch
        offsets = np.broadcast_to(tests.offset, tests.value.shape).tolist()
        pairs = [self.values_at[runner.spec.topic, offset] for offset in offsets]
        first = np.array([pair[0] for pair in pairs], dtype=np.int64)
        assert [pair[1] for pair in pairs] == tests.value.tolist(), "the second run reads the second dataset"
        noise = sampler.draw(law, tests._replace(value=first))
        columns = (np.broadcast_to(column, first.shape).tolist() for column in tests[1:4])
        places = zip(*columns, strict=True)
        tops = tuple(
            Top(row=test, branch=branch, gap=0, charge_units=0, left_units=0)
            for test, place in enumerate(places)
            if (runner.name, *place, branch) in self.tops
        )
        outcomes = Outcomes(consumed=len(first), tops=tops)
        shifts = runner.runs.plan.mechanism.shifts(outcomes, first, tests.value, self.kind(runner))
        return noise + shifts.queries[branch]

    def open_run(self, runner: Runner, open_run: Callable[..., None], dataset: int, clock_ms: int) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        none = Outcomes(consumed=0, tops=())
        lift = runner.runs.plan.mechanism.shifts(none, nothing, nothing, self.kind(runner)).threshold
        moved: Callable[..., int] = lambda *args: draw_threshold(*args) + lift  # noqa: E731
        with mock.patch.object(opening, "draw_threshold", moved):
            open_run(dataset, clock_ms)


@dataclass
class Seen:
    """What an outsider sees of one history, in order, with the time at which it can be seen."""

    lines: list[tuple[int, float, str]] = field(default_factory=list)
    last: dict[str, str] = field(default_factory=dict)

    def note(self, world: World, what: str, text: str) -> None:
        if self.last.get(what) != text:
            self.last[what] = text
            self.lines.append((world.effects, world.now, f"{what}: {text}"))


class _Page:
    """Metrics that know whether they may have changed since they were last looked at."""

    def __init__(self, epoch: Callable[[], float]) -> None:
        self.metrics = Metrics(SPEC, "hash")
        self.metrics._started = epoch()
        self.changed = True

    def __getattr__(self, name: str) -> Any:
        self.changed = True
        return getattr(self.metrics, name)


Engines = tuple[type[Engine], type[AlignedEngine]]
"""What the first and the second run of a pair are played with; leaks are variants of both."""


def history(script: Script, values: Values, kind: type[Engine], **alignment: Any) -> tuple[World, Seen]:
    """Play one of the two, the second with an alignment, and return what was seen."""
    seen, log, messages = Seen(), logging.Handler(), list[str]()
    log.emit = lambda record: messages.append(f"{record.levelname} {record.name} {record.getMessage()}")  # type: ignore[method-assign]
    pages: list[_Page] = []
    now = [0.0]

    def engine(*arguments: Any, **options: Any) -> Engine:
        made = kind(*arguments, **options)
        vars(made).update(alignment)
        return made

    def observer() -> _Page:
        pages.append(_Page(lambda: now[0]))
        return pages[-1]

    def watch(world: World, status: ShardStatus) -> None:
        now[0] = world.now
        released = {f.name: getattr(status, f.name) for f in dataclasses.fields(status)}
        seen.note(world, "status", msgspec.json.encode(released).decode())
        for number, page in enumerate(pages):
            if page.changed:
                seen.note(world, f"metrics {number}", page.metrics.rendering()().decode())
                page.changed = False
        for message in messages:
            seen.lines.append((world.effects, world.now, f"log: {message}"))
        messages.clear()

    package = logging.getLogger("stream_svt")
    before = package.level
    package.addHandler(log)
    package.setLevel(logging.DEBUG)
    try:
        variant = Variant(workload=partial(ModelWorkload, kind=engine), observer=observer, watch=watch)
        world = played(script, variant, values.application(second=bool(alignment)))
    finally:
        package.removeHandler(log)
        package.setLevel(before)
    for partition in ("alerts", "rejects", "control"):
        for entry in world.broker.partitions.get(partition, []):
            what = (entry.offset, entry.timestamp, entry.key, entry.value, entry.marker, entry.visible)
            seen.lines.append((0, 0.0, f"{partition}: {what}"))
    # The lengths of what is sealed are assumed to be public.
    for entry in world.broker.partitions["state"]:
        seen.lines.append((0, 0.0, f"state: {entry.offset} {entry.key!r} {len(entry.value or b'')}"))
    return world, seen


def pair(seed: int, engines: Engines = (Engine, AlignedEngine)) -> tuple[bool, list[str]]:
    """Play a pair and compare; return whether it counts, and what was found."""
    chance = random.Random(f"pair {seed}")
    kinds = (Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.UNKNOWN, Fault.SPLIT)
    faults = sorted((chance.randint(30, 260), chance.choice(kinds)) for _ in range(chance.randint(1, 5)))
    script = Script(seed, 0, QUERIES, tuple(faults))
    values = Values.random(seed)
    world, seen = history(script, values, engines[0])
    events = [msgspec.json.decode(entry.value or b"") for entry in world.broker.read("alerts")]
    told: dict[str, int] = defaultdict(int)
    tops: set[Place] = set()
    branches = {
        monitor.name: [branch.name for branch in monitor.mechanism().branches] for monitor in SPEC.monitors
    }
    for event in events:
        data = event["data"]
        told[event["type"]] += 1
        if "gap" in data:
            place = data["position"]
            branch = branches[data["monitor"]].index(data["branch"])
            told[f"{data['monitor']}/{data['branch']}"] += 1
            tops.add((data["monitor"], place["offset"], place["row"], data["attempt"] - 1, branch))
        elif data["run"] > 1 and event["type"].endswith("run.started.v1"):
            told["resampled"] += 1
    alignment = {"neighbours": values.neighbours, "values_at": _values_at(world, values), "tops": tops}
    other, also = history(script, values, engines[1], **alignment)
    seen_all = all(
        told[name] for name in ("two/top", "two/middle", "resampled", "io.stream-svt.run.halted.v1")
    )
    counts = len(tops) >= 3 and seen_all and any("dies" in line for line in world.trace)
    violations = world.rules.violations + other.rules.violations
    if seen.lines != also.lines:
        differing = next(
            (f"{a} / {b}" for a, b in zip(seen.lines, also.lines, strict=False) if a != b), "one is longer"
        )
        violations.append(f"seed {seed}: an outsider tells the two apart: {differing[:2000]}")
    violations += _marks(seed, values.first, seen) + _marks(seed, values.second, also)
    return counts, violations


def _values_at(world: World, values: Values) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the grid values on both datasets at every place of the query topics."""
    places = {}
    for topic in SPEC.topics():
        for entry in world.broker.partitions[topic]:
            found = re.match(rb'\{"id":"q(\d+)"', entry.value or b"")
            if found:
                both = values.first[int(found[1])], values.second[int(found[1])]
                places[topic, entry.offset] = (int(both[0] // 1), int(both[1] // 1))
    return places


def _marks(seed: int, values: tuple[Fraction, ...], seen: Seen) -> list[str]:
    """Return where a value shows in what an outsider sees."""
    numbers = {number for *_, line in seen.lines for number in re.findall(r"\d{9,}", line)}
    found = numbers & {str(int(value // 1)) for value in values}
    return [f"seed {seed}: {len(found)} values are in what an outsider sees"] if found else []


def play(count: int, first: int = 0) -> Outcome:
    """Play pairs until so many count."""
    found, seed = Outcome(0), first
    while found.count < count and len(found.violations) < 5:
        counts, violations = pair(seed)
        found.count += counts
        found.violations += violations
        seed += 1
    return found
