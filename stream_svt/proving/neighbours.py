"""The neighbour test: two neighbouring streams must look the same to an adversary once the noise is moved.

The privacy proof is an alignment: if the noise of the first stream moves as `docs/privacy-guarantee.md` states, the
neighbour gives the same outputs, and the moves cost at most the charge. This test runs the whole engine, not only a
mechanism, on random streams with crashes, commands and changes of the specification: first with fresh noise, then on
the neighbour with the moved noise. It compares everything that is released or visible: events, rejects, counts, views,
positions, which steps request a commit, and the keys and lengths of all state records.

A failure is a counterexample: something visible depends on a value, or an alignment costs more than the charge. A pass
is not a proof; the test detects changes of the code that break the proof.
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
"""Smaller words give large threshold noise, for which `words_for` may find no words on the neighbour."""

Test = tuple[int, int, int, int, int]
"""Number of the run, offset, row, attempt and branch."""

Observation = tuple[str, object]
"""Something visible: its name and its content."""


@dataclass(slots=True)
class Summary:
    """Totals and result of a neighbour test.

    Attributes:
        cases, queries, alerts, runs, commits, crashes, commands: Totals over all cases.
        unaligned: Cases left out because no words of entropy gave the moved threshold noise.
        largest_cost: Largest cost of an alignment divided by the charge.
        counterexample: Description of the first difference, or of a cost above the charge; None if there is none.
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
    """Return the threshold noise that these words of entropy give."""
    given = iter(words)
    return draw_threshold(law, lambda _: next(given).to_bytes(8, "big"))


def words_for(steps: int, law: Law) -> list[int] | None:
    """Return words of entropy that give threshold noise of `steps` grid steps, or None if there are none."""
    sizes = [max(steps, 0), max(-steps, 0)] if law.noise is Noise.LAPLACE else [steps]
    words = [
        min((1 << _WORD) - 1, int(math.exp(-(size + 0.5) * float(law.rate)) * 2.0**_WORD)) for size in sizes
    ]
    try:
        matches = min(words) > 0 and threshold_of(words, law) == steps
    except (StopIteration, RuntimeError):
        return None
    return words if matches else None


@dataclass(slots=True)
class NoiseSource:
    """All noise of a stream, drawn at first use.

    A call returns entropy for runs: words of threshold noise, then a salt that holds the number of the run.

    Attributes:
        first: On the neighbour, the noise of the first stream.
        run_words: On the neighbour, the words of threshold noise by number of the run.
        moved: On the neighbour, the tests whose noise moves, with the shift plus the value of the test on it.
        words: Words given for the threshold noise of each run, by its number.
        opened: Numbers of the runs opened since the last commit, in order.
        drawn, values: Noise and grid value of every test so far.
    """

    rng: RandomSource
    first: NoiseSource | None = None
    run_words: Mapping[int, list[int]] = field(default_factory=dict)
    moved: Mapping[Test, int] = field(default_factory=dict)
    words: list[list[int]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    drawn: dict[Test, int] = field(default_factory=dict)
    values: dict[Test, int] = field(default_factory=dict)
    _current: list[int] = field(default_factory=list)

    def __call__(self, count: int) -> bytes:
        """Return `count` bytes: 8 for a word, 16 for the salt, which follows the words of a run."""
        number = len(self.words)
        if count == _SALT_BYTES:
            self.words.append(self._current)
            self.opened.append(number)
            self._current = []
            return number.to_bytes(8, "little") + bytes(8)
        words = self.run_words.get(number, [])
        index = len(self._current)
        word = words[index] if index < len(words) else max(_LEAST_WORD, self.rng.getrandbits(_WORD))
        self._current.append(word)
        return word.to_bytes(8, "big")

    def draw(self, law: Law, identity: Identity) -> Integers:
        """Return the noise of each test."""
        salt, *position, branch, value = identity
        columns = [np.broadcast_to(column, len(value)).tolist() for column in (salt[0], *position)]
        drawn = []
        for run, offset, row, attempt, grid_value in zip(*columns, value.tolist(), strict=True):
            test = (run, offset, row, attempt, branch)
            noise = self.drawn.get(test)
            if noise is None or self.values[test] != grid_value:
                # The noise depends on the value too: a waiting query with a new value is another test.
                noise = self._new(test, grid_value, law)
                self.drawn[test], self.values[test] = noise, grid_value
            drawn.append(noise)
        return np.array(drawn, dtype=np.int64)

    def _new(self, test: Test, value: int, law: Law) -> int:
        if self.first is not None and test in self.first.drawn:
            moved = self.moved.get(test)
            return self.first.drawn[test] + (0 if moved is None else moved - value)
        signs = (1, -1) if law.noise is Noise.LAPLACE else (1,)
        return sum(sign * int(-math.log1p(-self.rng.random()) / float(law.rate)) for sign in signs)


@dataclass(frozen=True, slots=True)
class _OpenedRun:
    """A run that became durable, with the index of its dataset."""

    dataset: int
    mechanism: SparseVector


@dataclass(slots=True)
class _Execution:
    """An engine on one of the two streams, its state as stored on Kafka, and all that is visible of it."""

    case: Case
    stream: Stream
    noise: NoiseSource
    spec: ApplicationSpec = field(init=False)
    engine: Engine = field(init=False)
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress: bytes | None = None
    observations: list[Observation] = field(default_factory=list)
    events: list[ReleasedEvent] = field(default_factory=list)
    runs: dict[int, _OpenedRun] = field(default_factory=dict)
    numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)
    tested: int = 0

    def __post_init__(self) -> None:
        self.spec = self.case.spec
        self._start()

    def play(self) -> None:
        """Run all steps of the script."""
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
        """Start an engine from the stored state, as a new owner of the shard does."""
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
            self.observations.append(("a step", (step.done, step.durable_first, step.urgent)))
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
            self.observations.append((f"{part.name} of a commit", content))
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
        self.observations.append(("the number of runs that drew noise", len(self.noise.opened)))
        self.noise.opened.clear()

    def tests_of_alerts(self) -> Iterator[tuple[Alert, Test]]:
        """Yield each alert with the test that it reports."""
        for event in self.events:
            alert = event.data
            if isinstance(alert, Alert):
                number = self.numbers[alert.dataset, alert.monitor, alert.run]
                names = [branch.name for branch in self.runs[number].mechanism.branches]
                test = (alert.position.offset, alert.position.row, alert.attempt - 1)
                yield alert, (number, *test, names.index(alert.branch))


def prove(
    spec: ApplicationSpec,
    *,
    cases: int,
    rng_of: Callable[[int], RandomSource],
    later: Callable[[ApplicationSpec, RandomSource], Sequence[ApplicationSpec]] = lambda _spec, _chance: (),
    progress: Callable[[int], None] = lambda _case: None,
) -> Summary:
    """Test pairs of neighbouring streams until one is a counterexample, `cases` at most.

    Args:
        rng_of: Returns the source of pseudo-random numbers for the case of this number.
        later: Returns specifications that a case may apply in this order.
        progress: Called with the number of each case after it.
    """
    summary = Summary()
    for number in range(cases):
        rng = rng_of(number)
        small = reduce_spec(spec, rng)
        summary.counterexample = check_case(case_of(small, rng, later(small, rng)), rng, summary)
        progress(number)
        if summary.counterexample is not None:
            break
    return summary


def check_case(case: Case, rng: RandomSource, summary: Summary) -> str | None:
    """Run both streams of a case; return the first visible difference or a cost above the charge, or None."""
    first = _Execution(case, case.first, NoiseSource(rng))
    first.play()
    _count(case, first, summary)
    shifts = {n: run.mechanism.threshold_shift(case.directions[run.dataset]) for n, run in first.runs.items()}
    run_words = {}
    for number, run in first.runs.items():
        law = run.mechanism.threshold_law
        steps = threshold_of(first.noise.words[number], law)
        words = words_for(steps + shifts[number], law)
        if words is None:
            summary.unaligned += 1
            return None
        run_words[number] = words
    values = first.noise.values
    moved = {test: shifts[test[0]] + values[test] for _, test in first.tests_of_alerts() if test in values}
    second = _Execution(case, case.second, NoiseSource(rng, first.noise, run_words, moved))
    second.play()
    return _difference(first.observations, second.observations) or _costs(
        case, first, second, shifts, summary
    )


def _count(case: Case, execution: _Execution, summary: Summary) -> None:
    summary.cases += 1
    summary.queries += execution.tested
    summary.runs += len(execution.runs)
    summary.alerts += sum(isinstance(event.data, Alert) for event in execution.events)
    summary.commits += sum(what == "records of a commit" for what, _ in execution.observations)
    barriers = [step for step in case.script if isinstance(step, Barrier)]
    summary.crashes += sum(barrier.crash for barrier in barriers)
    summary.commands += sum(barrier.command is not None for barrier in barriers)


def _costs(
    case: Case, first: _Execution, second: _Execution, shifts: dict[int, int], summary: Summary
) -> str | None:
    """Return a description if the alignment costs more than the charge, or moves one-sided noise down."""
    costs = [Fraction(0)] * len(case.spec.datasets)
    for number, run in first.runs.items():
        costs[run.dataset] += shifts[number] * run.mechanism.threshold_law.rate
    for alert, test in first.tests_of_alerts():
        run, branch = first.runs[test[0]], test[-1]
        move = shifts[test[0]] + first.noise.values[test] - second.noise.values[test]
        law = run.mechanism.branch_laws[branch]
        if move < 0 and not law.noise.may_move_down:
            return (
                f"the alert of monitor {alert.monitor} on {alert.dataset} at offset {alert.position.offset} is the "
                f"same only if noise falls by {-move} steps, which one-sided noise must not: the answer moved further "
                "than declared"
            )
        costs[run.dataset] += abs(move) * law.rate
    for dataset, cost in zip(case.spec.datasets, costs, strict=True):
        charged = _charged(first, dataset.name, dataset.kind)
        if charged:
            summary.largest_cost = max(summary.largest_cost, cost / charged)
        if cost > charged:
            return (
                f"dataset {dataset.name}: the outputs cost epsilon {float(cost):.6f} on neighbouring streams, but only "
                f"{float(charged):.6f} was charged"
            )
    return None


def _charged(execution: _Execution, dataset: str, kind: Kind) -> Fraction:
    """Return the epsilon charged to a dataset by its events; under zCDP, the epsilon of all its runs."""
    if kind is Kind.PURE:
        charges = [
            event.data.account.charge
            for event in execution.events
            if event.data.dataset == dataset and event.data.account is not None
        ]
        return Fraction(sum(round(charge * UNITS_PER_EPSILON) for charge in charges), UNITS_PER_EPSILON)
    runs = [run for run in execution.runs.values() if execution.spec.datasets[run.dataset].name == dataset]
    return Fraction(sum(run.mechanism.epsilon for run in runs), UNITS_PER_EPSILON)


def _difference(first: Sequence[Observation], second: Sequence[Observation]) -> str | None:
    """Return a description of the first observation that differs, or None."""
    for index, (one, other) in enumerate(zip_longest(first, second, fillvalue=("nothing", None))):
        if one != other:
            what = one[0] if one[0] != "nothing" else other[0]
            left, right = _excerpt(one[1], other[1]), _excerpt(other[1], one[1])
            where = f"{what} (observation {index})"
            return f"{where} differs between the streams: {left}, and on the neighbour {right}"
    return None


def _excerpt(content: object, other: object) -> str:
    """Return a short text of a content; for lists, the first entry that differs."""
    if isinstance(content, list) and isinstance(other, list):
        for index, (one, another) in enumerate(zip_longest(content, other)):
            if one != another:
                return f"{len(content)} entries, entry {index} {_short(one)}"
    return _short(content)


def _short(content: object) -> str:
    text = repr(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
