"""The neighbour test: two neighbouring streams must look the same to an adversary once the noise is moved.

The privacy proof is an alignment: if the noise of the first stream moves as `docs/privacy-guarantee.md` states, the
neighbour gives the same outputs, and the moves cost at most the charge. This test runs the whole engine, not only a
mechanism, on random streams with crashes, commands and changes of the specification: first with fresh noise, then on
the neighbour with the moved noise. The records that follow, on both streams, depend on the events released so far. The
test compares everything that is released or visible: events, rejects, counts, views, positions, which steps request a
commit, and the keys and lengths of all state records.

A failure is a counterexample: something visible depends on a value, or an alignment costs more than the charge. A pass
is not a proof; the test detects changes of the code that break the proof.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import chain, repeat, zip_longest
from typing import NamedTuple
from zlib import crc32

import numpy as np

from stream_svt.columns.query_batch import OF_DECILES, Integers
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.noise import Law, Noise, to_decimal
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.mechanisms.sampler import Blocks, Identity, Words, decimal_context, draw_threshold, exact_draw
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor import operations
from stream_svt.monitor.deciles import law_of, most_moved
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Command
from stream_svt.monitor.released import EventType, Lifecycle, ReleasedEvent, top_in
from stream_svt.monitor.takeover import change_spec, close_removed, load
from stream_svt.privacy.loss import Kind
from stream_svt.proving.streams import (
    Case,
    Decode,
    QueryRecord,
    RandomSource,
    StepTo,
    Stream,
    batch_of_records,
    case_of,
    moves_of,
    reduce_spec,
)
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec

_SHOWN = 300
_SALT_BYTES = 16
_U = np.uint64
_WORD = 64
_MIDDLES = repeat(1 << 63)
"""Words that follow those of a uniform number."""
_LEAST_WORD = 1 << 46
"""Smaller words give large threshold noise, for which `words_for` may find no words on the neighbour."""

Test = tuple[int, ...]
"""Number of the run, offset, row, attempt and branch."""

Uniforms = tuple[list[int], list[int]]
"""The two uniforms from which the noise of a test follows, as words of 64 bits, most significant first."""

Observation = tuple[str, object]
"""A visible observation: its name and its content."""


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
    """Return words of entropy that give threshold noise of `steps` grid steps, or None."""
    sizes = [max(steps, 0), max(-steps, 0)] if law.noise.draw == "difference" else [steps]
    words = [
        min((1 << _WORD) - 1, int(math.exp(-(size + 0.5) * float(law.rate)) * 2.0**_WORD)) for size in sizes
    ]
    try:
        return words if min(words) > 0 and threshold_of(words, law) == steps else None
    except (StopIteration, RuntimeError):
        return None


def uniform_of(size: int, rate: Fraction) -> list[int]:
    """Return the words of a uniform number whose geometric draw is `size` grid steps, from the middle of this cell."""
    exponent = (size + Fraction(1, 2)) * rate
    count = 2 + int(exponent / Fraction(math.log(2))) // _WORD
    with decimal.localcontext(decimal_context(20 * count + 20)):
        number = int((-to_decimal(exponent)).exp() * 2 ** (_WORD * count))
    return [number >> _WORD * place & ((1 << _WORD) - 1) for place in reversed(range(count))]


def moved(uniforms: Uniforms, move: int, law: Law) -> Uniforms:
    """Return uniforms with which the noise of a test is larger by `move` grid steps, or 0 if there are none."""

    def size(uniform: list[int]) -> int:
        return exact_draw(Noise.EXPONENTIAL, chain(uniform, _MIDDLES).__next__, law.rate)

    up, down = uniforms
    steps = size(up) + move
    if law.noise.draw != "difference":
        return uniform_of(max(steps, 0), law.rate), down
    steps -= size(down)
    return uniform_of(max(steps, 0), law.rate), uniform_of(max(-steps, 0), law.rate)


@dataclass(slots=True)
class NoiseSource:
    """All noise of a stream, drawn at first use: of queries as words, so that the engine tests them as in service.

    Words belong to the test in the block that the service encrypts, without its salt. A call returns entropy for
    runs: words of threshold noise, then a salt that contains the number of the run.

    Attributes:
        first: On the neighbour, the noise of the first stream.
        run_words: On the neighbour, the words of threshold noise by number of the run.
        shifts: On the neighbour, for each test whose noise moves: the shift of the threshold noise, the law, and the
            largest move that the charge pays for.
        thresholds: Words given for the threshold noise of each run, by its number; last those of the next run.
        tests: Grid value and uniforms of every test so far.
        moves: Grid steps by which the noise of tests was moved.
    """

    rng: RandomSource
    first: NoiseSource | None = None
    run_words: Mapping[int, list[int]] = field(default_factory=dict)
    shifts: Mapping[Test, tuple[int, Law, int]] = field(default_factory=dict)
    thresholds: list[list[int]] = field(default_factory=lambda: [[]])
    tests: dict[Test, tuple[int, Uniforms]] = field(default_factory=dict)
    moves: dict[Test, int] = field(default_factory=dict)
    _last: list[Uniforms] = field(default_factory=list)
    _blocks: Blocks = field(default_factory=Blocks)

    @property
    def runs(self) -> int:
        """Number of runs that drew noise."""
        return len(self.thresholds) - 1

    def __call__(self, count: int) -> bytes:
        """Return `count` bytes: 8 for a word, 16 for the salt, which follows the words of a run."""
        given, drawn = self.run_words.get(self.runs, []), self.thresholds[-1]
        if count == _SALT_BYTES:
            self.thresholds.append([])
            return (self.runs - 1).to_bytes(8, "little") + bytes(8)
        fresh = self.rng.randrange(_LEAST_WORD, 1 << _WORD)
        drawn.append(given[len(drawn)] if len(drawn) < len(given) else fresh)
        return drawn[-1].to_bytes(8, "big")

    def words(self, identity: Identity, part: slice, *, other_branch: bool = False) -> Words:
        """Return the first words of each test's uniforms: see `WordSource`."""
        blocks = self._blocks.of(identity, part, other_branch=other_branch)
        number = identity.salt[0] if isinstance(identity.salt[0], int) else identity.salt[0][part]
        unpacked = _unpacked(blocks, *identity.salt) if isinstance(number, int) else _unpacked(blocks, number)
        runs, *columns = (column.tolist() for column in np.broadcast_arrays(number, *unpacked))
        tests = zip(zip(runs, *columns[:-1], strict=True), columns[-1], strict=True)
        self._last = [self._uniforms(test, value) for test, value in tests]
        return np.array([(up[0], down[0]) for up, down in self._last], dtype=np.uint64).reshape(-1, 2)

    def further(self, half: int, index: int) -> Iterator[int]:
        """Yield the following words of a uniform: see `WordSource`."""
        return chain(self._last[index][half][1:], _MIDDLES)

    def _uniforms(self, test: Test, value: int) -> Uniforms:
        if test in self.tests and self.tests[test][0] == value:
            return self.tests[test][1]
        # The noise depends on the value too: a waiting query with a new value is another test.
        if self.first is not None and test in self.first.tests:
            before, uniforms = self.first.tests[test]
            if test in self.shifts:
                shift, law, most = self.shifts[test]
                self.moves[test] = shift + before - value
                # A larger move costs more than the charge; noise that large takes minutes to draw.
                uniforms = moved(uniforms, max(-2 * most, min(self.moves[test], 2 * most)), law)
        else:
            uniforms = [self.rng.randrange(0, 1 << _WORD)], [self.rng.randrange(0, 1 << _WORD)]
        self.tests[test] = value, uniforms
        return uniforms


def _unpacked(blocks: Words, number: Words | int, rest: Words | int = 0) -> tuple[Words | Integers, ...]:
    """Return offset, row, attempt, branch and grid value of blocks, given their salt: that of a run is its number."""
    high, low = blocks[:, 0] ^ np.asarray(number, np.uint64), blocks[:, 1] ^ np.asarray(rest, np.uint64)
    offset, attempt, branch = high >> _U(16), low >> _U(52) & _U(0xFF), low >> _U(48) & _U(0xF)
    row = (high & _U(0xFFFF)) << _U(4) | low >> _U(60)
    return offset, row, attempt, branch, (low << _U(16)).view(np.int64) >> 16


@dataclass(frozen=True, slots=True)
class _DurableRun:
    """A durable run: its monitor, the index of its dataset, and the shift of its threshold noise on the neighbour."""

    monitor: MonitorSpec
    dataset: int
    mechanism: SparseVector
    shift: int


class _Deciles(NamedTuple):
    """Released deciles: monitor, index of the dataset, law of the noise, and largest move of each that is paid for."""

    monitor: MonitorSpec
    dataset: int
    law: Law
    most: int


@dataclass(slots=True)
class _Execution:
    """An engine on one of the two streams, its state as stored on Kafka, and its visible observations.

    Attributes:
        observations: Everything that is visible.
        runs, numbers: Durable runs by the number of their salt, and these numbers by monitor, dataset and run.
        seen: Number of runs that drew noise before the last commit or crash.
        alerts: Every alert and end of an incident, in words, with the test that it reports.
        deciles: Released deciles, by the number of their salt.
        written: Records of each topic so far; a restart reads the same records again.
    """

    case: Case
    streams: tuple[Stream, Stream]
    noise: NoiseSource
    decode: Decode
    spec: ApplicationSpec = field(init=False)
    engine: Engine = field(init=False)
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress: bytes | None = None
    observations: list[Observation] = field(default_factory=list)
    events: list[ReleasedEvent] = field(default_factory=list)
    alerts: list[tuple[str, Test]] = field(default_factory=list)
    deciles: dict[int, _Deciles] = field(default_factory=dict)
    runs: dict[int, _DurableRun] = field(default_factory=dict)
    numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)
    seen: int = 0
    tested: int = 0
    written: dict[str, list[QueryRecord]] = field(default_factory=dict)
    _digest: int = 0

    def __post_init__(self) -> None:
        self.spec = self.case.spec
        self._start()
        for step in self.case.script:
            if isinstance(step, StepTo):
                self._feed(step)
            elif step == "crash":
                self._start()
            else:
                self._commit()
                if isinstance(step, Command):
                    operations.apply(self.engine, step)
                    self._commit()
                elif isinstance(step, ApplicationSpec):
                    self._change_spec(step)

    def _start(self) -> None:
        """Start an engine from the stored state, as a new owner of the shard does."""
        self.seen = self.noise.runs
        self.engine = Engine(
            self.spec,
            shard=0,
            datasets=[dataset.name for dataset in self.spec.datasets],
            key=bytes(32),
            entropy=self.noise,
            bounds=self.case.bounds,
            words=self.noise,
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
        batch = self.decode(feed.topic, self._written(feed.topic, feed.last)[first : feed.last], first)
        done = False
        while not done:
            step = self.engine.step(batch)
            self.observations.append(("a step", step))
            done = step.done
            if step.durable_first:
                self._commit()

    def _written(self, topic: str, last: int) -> list[QueryRecord]:
        """Return the records of a topic, after writing missing records up to an offset."""
        records = self.written.setdefault(topic, [])
        for offset in range(len(records), last):
            records.append(self.streams[self._choice(offset)][topic][offset])
        return records

    def _choice(self, offset: int) -> int:
        """Return which of its two records the environment writes at an offset: by all events released so far."""
        return self._digest >> offset % 32 & 1

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
            entries = content if isinstance(content, list) else [content]
            self.observations += [(f"{part.name} of a commit", entry) for entry in entries]
        stored = self.records | commit.records
        self.records = {key: content for key, content in stored.items() if content is not None}
        self.progress = commit.progress
        self.engine.committed()
        self.tested += sum(commit.tested.values())
        started = range(self.seen, self.noise.runs)
        self.observations.append(("the number of runs that drew noise", len(started)))
        self.seen = self.noise.runs
        for number, (name, dataset, run) in zip(started, commit.opened, strict=False):
            monitor = next(one for one in self.spec.monitors if one.name == name)
            mechanism = monitor.mechanism()
            shift = mechanism.threshold_shift(self.case.directions[dataset])
            if monitor.asks:
                down, up = moves_of(self.spec, monitor)
                shift = up if self.case.directions[dataset] is Neighbours.UP else down
            self.runs[number] = _DurableRun(monitor, dataset, mechanism, shift)
            self.numbers[name, self.spec.datasets[dataset].name, run] = number
        if commit.events:
            self.events += commit.events
            self._digest = crc32(repr(commit.events).encode(), self._digest)
        for event in commit.events:
            data = event.data
            if event.type is EventType.DECILES and isinstance(data, Lifecycle) and data.reason == "released":
                self._note_deciles(data)
            if (top := top_in(event.type, data)) is not None:
                number = self.numbers[data.monitor, data.dataset, data.run]
                names = [branch.name for branch in self.runs[number].mechanism.branches]
                at = top.position  # of counts, the id tells the offset of a record
                offset = int(at.window.removeprefix("q")) if at.window else at.offset
                row = (offset, at.row, top.attempt - 1)
                name = f"of monitor {data.monitor} on {data.dataset} at offset {offset}, row {at.row},"
                self.alerts.append((name, (number, *row, names.index(top.branch))))

    def _note_deciles(self, data: Lifecycle) -> None:
        """Take note of released deciles, which move as far as what its monitor tests."""
        assert data.account is not None  # noqa: S101  it is about a dataset
        names = [one.name for one in self.spec.datasets]
        monitor = next(one for one in self.spec.monitors if one.name == data.monitor)
        units = round(data.account.charge * UNITS_PER_EPSILON)
        most = most_moved(monitor, self.spec.source(monitor.source or ""))
        number, _ = self.engine.deciles.salt(data.detail["request"])
        self.deciles[number] = _Deciles(monitor, names.index(data.dataset), law_of(units, most), most)


def prove(
    spec: ApplicationSpec,
    rngs: Iterable[RandomSource],
    decoder: Callable[[ApplicationSpec, RandomSource], Decode] = lambda *_: batch_of_records,
) -> Summary:
    """Test a pair of neighbouring streams for each source of pseudo-random numbers, up to a counterexample.

    ``decoder`` returns the decoding of the records of a specification's topics.
    """
    summary = Summary()
    for rng in rngs:
        small = reduce_spec(spec, rng)
        case = case_of(small, rng)
        summary.counterexample = check_case(case, rng, summary, decoder(small, rng))
        if summary.counterexample is not None:
            break
    return summary


def check_case(
    case: Case, rng: RandomSource, summary: Summary, decode: Decode = batch_of_records
) -> str | None:
    """Run both streams of a case; return the first visible difference or a cost above the charge, or None."""
    first = _Execution(case, case.first, NoiseSource(rng), decode)
    summary.cases += 1
    summary.queries += first.tested
    summary.runs += len(first.runs)
    summary.alerts += len(first.alerts)
    summary.commits += sum(what == "progress of a commit" for what, _ in first.observations)
    summary.crashes += case.script.count("crash")
    summary.commands += sum(isinstance(step, Command) for step in case.script)
    for alert, test in first.alerts:
        if test not in first.noise.tests:
            return f"the noise of the alert {alert} belongs to another test"
    for number, offset, *_ in first.noise.tests:
        run = first.deciles[number] if number in first.deciles else first.runs[number]
        monitor = run.monitor
        measure = first.written[monitor.topic][offset].measure
        if measure == OF_DECILES and number in first.deciles:
            continue
        if measure != (monitor.tested or ""):
            return f"monitor {monitor.name} tested a query of measure {measure} at offset {offset}"
    run_words = {}
    for number, run in first.runs.items():
        law = run.mechanism.threshold_law
        words = words_for(threshold_of(first.noise.thresholds[number], law) + run.shift, law)
        if words is None:
            summary.unaligned += 1
            return None
        run_words[number] = words
    shifts = {}
    for _, test in first.alerts:
        run, number = first.runs[test[0]], test[-1]
        law, branch = run.mechanism.branch_laws[number], run.mechanism.branches[number]
        shifts[test] = run.shift, law, math.ceil(branch.charge_units / (UNITS_PER_EPSILON * law.rate))
    for test in (one for one in first.noise.tests if one[0] in first.deciles):
        shifts[test] = 0, first.deciles[test[0]].law, first.deciles[test[0]].most
    second = _Execution(case, case.second, NoiseSource(rng, first.noise, run_words, shifts), decode)
    return _difference(first.observations, second.observations) or _costs(first, second, summary)


def _difference(first: Sequence[Observation], second: Sequence[Observation]) -> str | None:
    """Return a description of the first observation that differs, or None."""
    for index, (one, other) in enumerate(zip_longest(first, second, fillvalue=("the end", None))):
        if one != other:
            where = f"{one[0]} (observation {index}) differs between the streams"
            left, right = (one[1], other[1]) if one[0] == other[0] else (one, other)
            return f"{where}: {_short(left)}, and on the neighbour {_short(right)}"
    return None


def _short(content: object) -> str:
    text = repr(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


def _costs(first: _Execution, second: _Execution, summary: Summary) -> str | None:
    """Return a description if the alignment costs more than the charge, or moves one-sided noise down."""
    datasets = first.case.spec.datasets
    costs = [Fraction(0)] * len(datasets)
    for run in first.runs.values():
        costs[run.dataset] += run.shift * run.mechanism.threshold_law.rate
    for alert, test in first.alerts:
        run, branch = first.runs[test[0]], test[-1]
        move = second.noise.moves[test]
        law = run.mechanism.branch_laws[branch]
        if move < 0 and not law.noise.may_move_down:
            return (
                f"the alert {alert} is the same only if noise falls by {-move} steps, which one-sided noise "
                "must not: the answer moved further than declared"
            )
        costs[run.dataset] += abs(move) * law.rate
    for test, move in second.noise.moves.items():
        if (released := first.deciles.get(test[0])) is not None:
            costs[released.dataset] += abs(move) * released.law.rate
    for number, (dataset, cost) in enumerate(zip(datasets, costs, strict=True)):
        if dataset.terms.kind is Kind.PURE:
            accounts = [event.data.account for event in first.events if event.data.dataset == dataset.name]
            units = sum(round(one.charge * UNITS_PER_EPSILON) for one in accounts if one is not None)
        else:  # a run is charged as a whole
            units = sum(run.mechanism.epsilon_units for run in first.runs.values() if run.dataset == number)
        charged = Fraction(units, UNITS_PER_EPSILON)
        if charged:
            summary.largest_cost = max(summary.largest_cost, cost / charged)
        if cost > charged:
            return (
                f"dataset {dataset.name}: the outputs cost epsilon {float(cost):.6f} on neighbouring streams, but only "
                f"{float(charged):.6f} was charged"
            )
    return None
