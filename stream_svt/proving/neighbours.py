"""The neighbour test: what an adversary sees of two neighbouring streams must be the same once the noise is moved.

The guarantee is proved by an alignment: move the noise of the first stream as `docs/privacy-guarantee.md` says, and the
neighbour gives the same outputs at a cost of at most the charge. Here the whole engine is run, not a mechanism: random
streams, crashes, commands and changes of the specification; first with fresh noise, then on the neighbour with the
moved one. Everything that is released or can be seen is compared: events, rejects, counts, views, positions, which
step asked for a commit, and the keys and lengths of all state records.

A failure is a counterexample: something that is seen depends on a value, or costs more than was charged. That none was
found is no proof; it is what keeps a change of the code from leaving the proof behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import zip_longest

import numpy as np

from stream_svt.mechanisms.contract import UNITS_PER_EPSILON
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import Law, Noise
from stream_svt.mechanisms.sampler import Identity, draw_threshold
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine, Step
from stream_svt.monitor.released import Alert, EventType, ReleasedEvent
from stream_svt.monitor.takeover import change_spec, close_removed, load
from stream_svt.privacy.loss import Kind
from stream_svt.proving.streams import (
    Barrier,
    Case,
    RandomSource,
    StepTo,
    Stream,
    batch_of,
    case_of,
    reduce_spec,
)
from stream_svt.settings.application import ApplicationSpec

_KEY = bytes(32)
_SHOWN = 300
_SALT_BYTES = 16
_WORD = 64
_LEAST_WORD = 1 << 46
"""Smaller words lead to threshold noise that no word of the neighbour could be found for."""

Test = tuple[int, int, int, int, int]
"""Number of the run, offset, row, attempt and branch."""

Observation = tuple[str, object]
"""Something that can be seen: what it is, and its content."""


@dataclass(slots=True)
class Summary:
    """What was tried, and how it ended.

    Attributes:
        cases, queries, alerts, runs, commits, crashes, commands: How many.
        unaligned: Cases that were left out, for no word of entropy leads to the threshold noise wanted.
        largest_cost: Largest cost of an alignment, in parts of what was charged.
        found: What the last case told apart, or how it cost more than was charged, in words.
    """

    cases: int = 0
    queries: int = 0
    alerts: int = 0
    runs: int = 0
    commits: int = 0
    crashes: int = 0
    commands: int = 0
    unaligned: int = 0
    largest_cost: Fraction = Fraction(0)
    counterexample: str | None = None


def threshold_of(words: list[int], law: Law) -> int:
    """Return the threshold noise that words lead to."""
    given = iter(words)
    return draw_threshold(law, lambda _: next(given).to_bytes(8, "big"))


def words_for(steps: int, law: Law) -> list[int] | None:
    """Return words that lead to so many steps of threshold noise, None where none are found."""
    sizes = [max(steps, 0), max(-steps, 0)] if law.noise is Noise.LAPLACE else [steps]
    words = [
        min((1 << _WORD) - 1, int(math.exp(-(size + 0.5) * float(law.rate)) * 2.0**_WORD)) for size in sizes
    ]
    try:
        found = min(words) > 0 and threshold_of(words, law) == steps
    except (StopIteration, RuntimeError):
        return None
    return words if found else None


@dataclass(slots=True)
class NoiseSource:
    """All noise of a stream, drawn when it is first asked for.

    Called, it returns entropy for runs: words of threshold noise, then a salt that is the run's number.

    Attributes:
        first: The noise of the first stream, for its neighbour; `wanted` are the words of its runs' threshold noise,
            `moved` the tests whose noise moves, with what to add to it less the test's value.
        words: What was given for the threshold noise of each run, by its number.
        opened: Runs since the last commit, in order.
        drawn, values: Noise and grid value of every test asked for.
    """

    rng: RandomSource
    first: NoiseSource | None = None
    wanted: Mapping[int, list[int]] = field(default_factory=dict)
    moved: Mapping[Test, int] = field(default_factory=dict)
    words: list[list[int]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    drawn: dict[Test, int] = field(default_factory=dict)
    values: dict[Test, int] = field(default_factory=dict)
    _current: list[int] = field(default_factory=list)

    def __call__(self, count: int) -> bytes:
        """Return so many bytes: eight for a word, sixteen for the salt that ends a run's draws."""
        number = len(self.words)
        if count == _SALT_BYTES:
            self.words.append(self._current)
            self.opened.append(number)
            self._current = []
            return number.to_bytes(8, "little") + bytes(8)
        wanted = self.wanted.get(number, [])
        place = len(self._current)
        word = wanted[place] if place < len(wanted) else max(_LEAST_WORD, self.rng.getrandbits(_WORD))
        self._current.append(word)
        return word.to_bytes(8, "big")

    def draw(self, law: Law, identity: Identity) -> Integers:
        """Return the noise of each test."""
        salt, *places, branch, value = identity
        columns = [np.broadcast_to(column, len(value)).tolist() for column in (salt[0], *places)]
        drawn = []
        for run, at, place, tried, seen in zip(*columns, value.tolist(), strict=True):
            test = (run, at, place, tried, branch)
            known = self.drawn.get(test)
            if known is None or self.values[test] != seen:
                # A test is its identity and its value: a waiting query that met a new value is another test.
                known = self._new(test, seen, law)
                self.drawn[test], self.values[test] = known, seen
            drawn.append(known)
        return np.array(drawn, dtype=np.int64)

    def _new(self, test: Test, value: int, law: Law) -> int:
        if self.first is not None and test in self.first.drawn:
            moved = self.moved.get(test)
            return self.first.drawn[test] + (0 if moved is None else moved - value)
        signs = (1, -1) if law.noise is Noise.LAPLACE else (1,)
        return sum(sign * int(-math.log1p(-self.rng.random()) / float(law.rate)) for sign in signs)


@dataclass(frozen=True, slots=True)
class _OpenedRun:
    """A run that became durable, with the place of its dataset."""

    dataset: int
    mechanism: SparseVector


@dataclass(slots=True)
class _Execution:
    """An engine on one of the streams, the store it would have on Kafka, and what is seen of it."""

    case: Case
    stream: Stream
    noise: NoiseSource
    spec: ApplicationSpec = field(init=False)
    engine: Engine = field(init=False)
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress: bytes | None = None
    seen: list[Observation] = field(default_factory=list)
    events: list[ReleasedEvent] = field(default_factory=list)
    runs: dict[int, _OpenedRun] = field(default_factory=dict)
    numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)
    tested: int = 0

    def __post_init__(self) -> None:
        self.spec = self.case.spec
        self._start()

    def play(self) -> None:
        """Go through the script."""
        for step in self.case.script:
            if isinstance(step, StepTo):
                self._feed(step)
            elif step.crash:
                self.noise.opened.clear()
                self._start()
            else:
                self._commit()
                if step.command is not None:
                    operations.apply(self.engine, step.command)
                    self._commit()
                if step.spec is not None:
                    self._change_spec(step.spec)

    def _start(self) -> None:
        """Begin with the stored state, as a new owner does."""
        self.engine = Engine(
            self.spec,
            shard=0,
            datasets=[dataset.name for dataset in self.spec.datasets],
            key=_KEY,
            entropy=self.noise,
            query_noise=self.noise.draw,
        )
        load(self.engine, self.records, self.progress)
        self._begin()

    def _begin(self) -> None:
        for topic in self.engine.topics():
            self.engine.begin(topic, self.engine.next_offset(topic) or 0)

    def _feed(self, feed: StepTo) -> None:
        first = self.engine.next_offset(feed.topic)
        if first is None or first >= feed.last:
            return
        batch = batch_of(feed.topic, self.stream[feed.topic][first : feed.last], first)
        while True:
            step: Step = self.engine.step(batch)
            self.seen.append(("a step", (step.done, step.durable_first, step.urgent)))
            if step.done:
                return
            if step.durable_first:
                self._commit()

    def _change_spec(self, spec: ApplicationSpec) -> None:
        for _ in close_removed(self.engine, spec):
            if self.engine.full:
                self._commit()
        change_spec(self.engine, spec)
        self.spec = spec
        self._begin()
        self._commit()

    def _commit(self) -> None:
        commit = self.engine.take_commit()
        lengths = [(key, None if data is None else len(data)) for key, data in commit.records.items()]
        for part in fields(commit):
            content = lengths if part.name == "records" else getattr(commit, part.name)
            self.seen.append((f"{part.name} of a commit", content))
        stored = self.records | commit.records
        self.records = {key: content for key, content in stored.items() if content is not None}
        self.progress = commit.progress
        self.engine.committed()
        self.events += commit.events
        self.tested += sum(commit.tested.values())
        started = [event.data for event in commit.events if event.type is EventType.RUN_STARTED]
        for number, run in zip(self.noise.opened, started, strict=False):
            dataset = [known.name for known in self.spec.datasets].index(run.dataset)
            monitor = next(one for one in self.spec.monitors if one.name == run.monitor)
            self.runs[number] = _OpenedRun(dataset, monitor.mechanism())
            self.numbers[run.dataset, run.monitor, run.run] = number
        self.seen.append(("how many runs drew noise", len(self.noise.opened)))
        self.noise.opened.clear()

    def tests_of_alerts(self) -> Iterator[tuple[Alert, Test]]:
        """Yield each alert with the test that it tells of."""
        for event in self.events:
            alert = event.data
            if isinstance(alert, Alert):
                number = self.numbers[alert.dataset, alert.monitor, alert.run]
                names = [branch.name for branch in self.runs[number].mechanism.branches]
                place = (alert.position.offset, alert.position.row, alert.attempt - 1)
                yield alert, (number, *place, names.index(alert.branch))


def prove(
    spec: ApplicationSpec,
    *,
    cases: int,
    rng_of: Callable[[int], RandomSource],
    later: Callable[[ApplicationSpec, RandomSource], Sequence[ApplicationSpec]] = lambda _spec, _chance: (),
    progress: Callable[[int], None] = lambda _case: None,
) -> Summary:
    """Try pairs of neighbouring streams until one is a counterexample.

    Args:
        rng_of: Returns the source of pseudo-random numbers of a case.
        later: Specifications that a case may go on with, in order.
        progress: Called with the number of each case.
    """
    summary = Summary()
    for number in range(cases):
        rng = rng_of(number)
        few = reduce_spec(spec, rng)
        summary.counterexample = check_case(case_of(few, rng, later(few, rng)), rng, summary)
        progress(number)
        if summary.counterexample is not None:
            break
    return summary


def check_case(case: Case, rng: RandomSource, summary: Summary) -> str | None:
    """Play a case and its neighbour; return what tells them apart, or costs too much."""
    first = _Execution(case, case.first, NoiseSource(rng))
    first.play()
    _count(case, first, summary)
    lifts = {n: run.mechanism.threshold_shift(case.directions[run.dataset]) for n, run in first.runs.items()}
    wanted = {}
    for number, run in first.runs.items():
        law = run.mechanism.threshold_law
        steps = threshold_of(first.noise.words[number], law)
        words = words_for(steps + lifts[number], law)
        if words is None:
            summary.unaligned += 1
            return None
        wanted[number] = words
    values = first.noise.values
    moved = {test: lifts[test[0]] + values[test] for _, test in first.tests_of_alerts() if test in values}
    second = _Execution(case, case.second, NoiseSource(rng, first.noise, wanted, moved))
    second.play()
    return _difference(first.seen, second.seen) or _costs(case, first, second, lifts, summary)


def _count(case: Case, world: _Execution, summary: Summary) -> None:
    summary.cases += 1
    summary.queries += world.tested
    summary.runs += len(world.runs)
    summary.alerts += sum(isinstance(event.data, Alert) for event in world.events)
    summary.commits += sum(what == "records of a commit" for what, _ in world.seen)
    barriers = [step for step in case.script if isinstance(step, Barrier)]
    summary.crashes += sum(barrier.crash for barrier in barriers)
    summary.commands += sum(barrier.command is not None for barrier in barriers)


def _costs(
    case: Case, first: _Execution, second: _Execution, lifts: dict[int, int], summary: Summary
) -> str | None:
    """Return where moving the noise costs more than was charged, or goes where no noise is."""
    costs = [Fraction(0)] * len(case.spec.datasets)
    for number, run in first.runs.items():
        costs[run.dataset] += lifts[number] * run.mechanism.threshold_law.rate
    for alert, test in first.tests_of_alerts():
        run, branch = first.runs[test[0]], test[-1]
        move = lifts[test[0]] + first.noise.values[test] - second.noise.values[test]
        law = run.mechanism.branch_laws[branch]
        if move < 0 and not law.noise.may_move_down:
            return (
                f"the alert of monitor {alert.monitor} on {alert.dataset} at offset {alert.position.offset} is the "
                f"same only where noise falls by {-move} steps, which one-sided noise cannot: the answer moved further "
                "than was declared"
            )
        costs[run.dataset] += abs(move) * law.rate
    for dataset, cost in zip(case.spec.datasets, costs, strict=True):
        charged = _charged(first, dataset.name, dataset.kind)
        if charged:
            summary.largest_cost = max(summary.largest_cost, cost / charged)
        if cost > charged:
            return (
                f"dataset {dataset.name}: what was released is worth {float(cost):.6f} of epsilon on neighbouring "
                f"streams, and {float(charged):.6f} was charged"
            )
    return None


def _charged(world: _Execution, dataset: str, kind: Kind) -> Fraction:
    """Return what the events of a dataset charged, as epsilon; a zCDP run is charged whole, by a price of its own."""
    if kind is Kind.PURE:
        charges = [
            event.data.account.charge
            for event in world.events
            if event.data.dataset == dataset and event.data.account is not None
        ]
        return Fraction(sum(round(charge * UNITS_PER_EPSILON) for charge in charges), UNITS_PER_EPSILON)
    runs = [run for run in world.runs.values() if world.spec.datasets[run.dataset].name == dataset]
    return Fraction(sum(run.mechanism.epsilon for run in runs), UNITS_PER_EPSILON)


def _difference(first: Sequence[Observation], second: Sequence[Observation]) -> str | None:
    """Return in words the first thing seen that is not the same."""
    for place, (one, other) in enumerate(zip_longest(first, second, fillvalue=("nothing", None))):
        if one != other:
            what = one[0] if one[0] != "nothing" else other[0]
            left, right = _apart(one[1], other[1]), _apart(other[1], one[1])
            where = f"{what} (number {place} of what is seen)"
            return f"{where} tells the streams apart: {left}, and on the neighbour {right}"
    return None


def _apart(content: object, other: object) -> str:
    """Return what is shown of a content: of a list the first entry in which it differs."""
    if isinstance(content, list) and isinstance(other, list):
        for place, (one, another) in enumerate(zip_longest(content, other)):
            if one != another:
                return f"{len(content)} entries, entry {place} {_short(one)}"
    return _short(content)


def _short(content: object) -> str:
    text = repr(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
