"""The contract of all mechanisms, as checks that run on any registered form of a mechanism.

A form defines how its mechanism is played on values and on a tape of noise. The checks play a random case, move the
noise by the mechanism's own `shifts`, play the neighbour on the moved tape, and compare. Together they are the privacy
proof: same output, a cost of at most the charge, one-sided noise moved up only, and a one-to-one map.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, cycle, product
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from stream_svt.errors import RunExhausted
from stream_svt.mechanisms import UNITS_PER_EPSILON, Noise
from stream_svt.mechanisms.contract import Neighbours, Noises, Run
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import Law
from stream_svt.mechanisms.selection.quantile import Adjacency

Check = Callable[["Form"], None]
Values = tuple[int, ...]
Masses = np.ndarray[Any, np.dtype[np.float64]]

CASES = 120
BOX = 160
UPWARD_ONLY = frozenset({Noise.EXPONENTIAL, Noise.GUMBEL})
"""Families whose alignment may only move up: P(k) <= e^(rate s) P(k + s) fails for s < 0."""


@dataclass(frozen=True)
class Tape:
    """All noise of a case: one threshold noise a run, and query noise of shape (branches, tests)."""

    thresholds: tuple[int, ...]
    queries: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Batch:
    """Outcomes of consecutive tests under one threshold noise, and the columns of the tape that they use.

    ``cell`` is what the environment chose by the outputs before these tests (`ReactingForm`).
    """

    run: int
    start: int
    stop: int
    outcomes: Any
    columns: list[int]
    cell: int


@dataclass(frozen=True)
class PlayedCase:
    """A played case: all outputs in order, its charge, its batches, and the number of runs opened."""

    released: tuple[object, ...]
    charge: int
    batches: tuple[Batch, ...]
    opened: int = 1


@dataclass(frozen=True, kw_only=True)
class Form:
    """A mechanism and how it is played: in rounds, under a schedule that depends on past outputs only.

    Bottoms are tested again in the next round (APPEND), in an order and against thresholds that depend on earlier
    outputs. With `resample` a new run follows a run that is over.

    Attributes:
        mechanism: Has open, step, is_over, shifts, threshold_law and branch_laws.
        built_by: The public class or constructor that this form covers.
        tests: Largest number of tests in a case.
        queries: Queries of the first round; None for one query per test.
        neighbours: Kinds of neighbours for which the charge holds.
        side: Side length of the noise box on which the map must be one-to-one.
        least_tests: Smallest number of tests on the box, regardless of its size.
        boxed_pairs: Pairs of each kind of neighbours that are played on the box.
        batched: Whether tests may be split into batches anywhere.
        at_once: Largest number of tests in a step.
        distance: Largest difference of an answer between neighbours, if the mechanism has no sensitivity.
    """

    mechanism: Any
    tests: int
    queries: int | None = None
    attempts: int = 1
    resample: bool = False
    neighbours: tuple[Neighbours, ...] = (Neighbours.UP, Neighbours.DOWN)
    name: str = ""
    built_by: Any = None
    side: int = 3
    least_tests: int = 1
    boxed_pairs: int = 1
    batched: bool = True
    at_once: int = 10**6
    distance: int | None = None

    def play(self, values: Values, tape: Tape, *, cut: int = 10**6, store: bool = False) -> PlayedCase:
        """Make the tests, in batches of `cut`, until they or the runs end."""
        mechanism = self.mechanism
        released: list[object] = []
        batches: list[Batch] = []
        number, test, charge = 0, 0, getattr(mechanism, "threshold_units", 0)
        run = mechanism.open(tape.thresholds[0], (0, 0))
        queue, tests = self.order(values), self.test_count(values, tape)
        batch_size = min(cut, self.at_once) if self.batched else self.at_once
        for attempt in range(self.attempts):
            again: list[int] = []
            shift, done = run.tops + number, 0
            if attempt:
                run, number = self.next_round(run, number, tape)
            while done < len(queue) and test < tests:
                if self.needs_threshold(run):
                    number, charge = number + 1, charge + self.resample_charge
                    run = self.renewed(run, tape.thresholds[number])
                elif mechanism.is_over(run):
                    return PlayedCase(tuple(released), charge, tuple(batches), self.opened(number))
                if store:
                    run = self.restored(run)
                asked = queue[done : done + min(batch_size, tests - test)]
                bars = np.array([(query + shift) % 3 for query in asked])
                columns, cell = self.columns(test, asked), self.cell(released)
                step = (
                    self.answers(values, test, test + len(asked), cell),
                    bars,
                    attempt,
                    self.noise(tape, columns),
                )
                before = run
                run, outcomes = self.step(run, *step)
                consumed = asked[: outcomes.consumed]
                end = test + len(consumed)
                batches.append(Batch(number, test, end, outcomes, columns[: len(consumed)], cell))
                charge += outcomes.charge_units
                heads = [
                    (number, query, attempt, int(bar)) for query, bar in zip(consumed, bars, strict=False)
                ]
                released += self.output(outcomes, heads, self.extra_output(before, *step))
                reported = {top.row for top in outcomes.tops}
                again += [query for row, query in enumerate(consumed) if row not in reported]
                done, test = done + len(consumed), end
            queue = again[::-1] if shift % 2 else again
        return PlayedCase(tuple(released), charge, tuple(batches), self.opened(number))

    def order(self, values: Values) -> list[int]:
        return list(range(self.tests if self.queries is None else self.queries))

    def test_count(self, values: Values, tape: Tape) -> int:
        return len(values)

    def cell(self, released: Sequence[object]) -> int:
        """Return the choice of the environment after these outputs: there is one, so it does not react."""
        return 0

    def answers(self, values: Values, start: int, stop: int, cell: int = 0) -> Integers:
        return np.array(values[start:stop])

    def columns(self, test: int, queries: Sequence[int]) -> list[int]:
        return list(range(test, test + len(queries)))

    def noise(self, tape: Tape, columns: Sequence[int]) -> Any:
        return lambda branch: np.array([tape.queries[branch][column] for column in columns], dtype=np.int64)

    def step(self, run: Run, answers: Integers, bars: Integers, attempt: int, noise: Any) -> tuple[Run, Any]:
        after: tuple[Run, Any] = self.mechanism.step(run, answers, noise)
        return after

    def output(self, outcomes: Any, heads: Sequence[Values], also: Mapping[int, Values]) -> list[object]:
        """Return a record of each test: its position and, for a top, all that is released."""
        tops = {top.row: astuple(top)[1:] for top in outcomes.tops}
        return [(*head, *tops.get(row, ()), *also.get(row, ())) for row, head in enumerate(heads)]

    def extra_output(
        self, run: Run, values: Integers, thresholds: Integers, attempt: int, noise: Any
    ) -> Mapping[int, Values]:
        return {}

    def needs_threshold(self, run: Run) -> bool:
        return self.resample and self.mechanism.is_over(run)

    @property
    def resample_charge(self) -> int:
        return self.mechanism.threshold_units

    def renewed(self, run: Run, threshold_noise: int) -> Run:
        return self.mechanism.open(threshold_noise, (0, 0))

    def opened(self, number: int) -> int:
        return number + 1

    def next_round(self, run: Run, number: int, tape: Tape) -> tuple[Run, int]:
        return run, number

    @property
    def checks(self) -> tuple[Check, ...]:
        return (*PROOF, *FORMALITIES)

    def restored(self, run: Run) -> Run:
        return Run.from_bytes(run.to_bytes())

    def values(self, rng: random.Random, tests: int) -> Values:
        return tuple(rng.randint(-4, 8) for _ in range(tests))

    def neighbour(self, values: Values, neighbours: Neighbours, rng: random.Random) -> Values:
        reach = self.distance or self.mechanism.sensitivity
        low = 0 if neighbours is Neighbours.UP else -reach
        high = 0 if neighbours is Neighbours.DOWN else reach
        if rng.random() < 0.5:
            return tuple(v + rng.choice((low, high)) for v in values)
        return tuple(v + rng.randint(low, high) for v in values)

    def shifts(
        self, batch: Batch, first: Values, second: Values, neighbours: Neighbours, *drawn: Noises
    ) -> Noises:
        before, after = (
            self.answers(values, batch.start, batch.stop, batch.cell) for values in (first, second)
        )
        return self.mechanism.shifts(batch.outcomes, before, after, neighbours, *drawn)

    def drawn(self, batch: Batch, tape: Tape) -> tuple[Noises, ...]:
        """Return further arguments of `shifts`: none here."""
        return ()

    def align(
        self, played: PlayedCase, tape: Tape, first: Values, second: Values, neighbours: Neighbours
    ) -> Tape:
        thresholds: dict[int, int] = {}
        queries = np.array(tape.queries, dtype=np.int64).reshape(len(tape.queries), -1)
        for batch in played.batches:
            moved = self.shifts(batch, first, second, neighbours, *self.drawn(batch, tape))
            assert thresholds.setdefault(batch.run, moved.threshold) == moved.threshold, (
                "a run has one threshold noise: it cannot move by two distances"
            )
            queries[:, batch.columns] += moved.queries
        return Tape(
            tuple(rho + thresholds.get(number, 0) for number, rho in enumerate(tape.thresholds)),
            tuple(tuple(row) for row in queries.tolist()),
        )

    @property
    def laws(self) -> tuple[Law | None, tuple[Law, ...]]:
        return self.mechanism.threshold_law, self.mechanism.branch_laws

    def moves(self, before: Tape, after: Tape) -> list[tuple[Law, int]]:
        """Return the law and the distance of each noise that moves."""
        threshold, branches = self.laws
        pairs = [(threshold, a, b) for a, b in zip(before.thresholds, after.thresholds, strict=True)]
        for law, old, new in zip(branches, before.queries, after.queries, strict=True):
            pairs += [(law, a, b) for a, b in zip(old, new, strict=True)]
        return [(law, b - a) for law, a, b in pairs if a != b]

    def tape(self, rng: random.Random) -> Tape:
        def draw(law: Law) -> int:
            size = min(int(rng.expovariate(0.5)), 30)
            return -size if law.noise is not Noise.EXPONENTIAL and rng.random() < 0.5 else size

        threshold, branches = self.laws
        return Tape(
            tuple(draw(threshold) if threshold else 0 for _ in range(self.tests)),
            tuple(tuple(draw(law) for _ in range(self.tests)) for law in branches),
        )

    def boxes(self) -> Iterator[Tape]:
        threshold, branches = self.laws
        free = 1 if threshold else 0
        fits = (n for n in range(1, self.tests + 1) if self.side ** (n * len(branches) + free) <= BOX)
        tests = max(max(fits, default=1), self.least_tests)

        def reach(law: Law) -> range:
            low = 0 if law.noise is Noise.EXPONENTIAL else -(self.side // 2)
            return range(low, low + self.side)

        axes = [reach(law) for law in branches for _ in range(tests)]
        for rho in reach(threshold) if threshold else range(1):
            for drawn in product(*axes):
                rows = tuple(drawn[number * tests : (number + 1) * tests] for number in range(len(branches)))
                yield Tape((rho,) + (1,) * (tests - 1), rows)


@dataclass(frozen=True, kw_only=True)
class StreamForm(Form):
    """A mechanism that tests a stream."""

    queries: int | None = 5
    attempts: int = 3

    def step(self, run: Run, answers: Integers, bars: Integers, attempt: int, noise: Any) -> tuple[Run, Any]:
        after: tuple[Run, Any] = self.mechanism.step(run, answers, bars, attempt, noise)
        return after


CELLS = 3
"""Answers among which a reacting environment chooses for each test."""


@dataclass(frozen=True, kw_only=True)
class ReactingForm(StreamForm):
    """A stream of an environment that reads every output and chooses the next answer, on both datasets, by it.

    `values` has `CELLS` answers for each test. The next answer is read after the previous test.
    """

    batched: bool = False
    at_once: int = 1

    def cell(self, released: Sequence[object]) -> int:
        """Return a choice that depends on every output so far: queries, bottoms, gaps, branches and charges."""
        return crc32(repr(released).encode()) % CELLS

    def values(self, rng: random.Random, tests: int) -> Values:
        return super().values(rng, tests * CELLS)

    def test_count(self, values: Values, tape: Tape) -> int:
        return len(values) // CELLS

    def answers(self, values: Values, start: int, stop: int, cell: int = 0) -> Integers:
        return np.array(values[start * CELLS + cell : stop * CELLS : CELLS])

    @property
    def checks(self) -> tuple[Check, ...]:
        return PROOF


@dataclass(frozen=True, kw_only=True)
class RenewedForm(StreamForm):
    """A mechanism whose run continues with a fresh threshold after every top."""

    def needs_threshold(self, run: Run) -> bool:
        return self.mechanism.needs_threshold(run)

    def renewed(self, run: Run, threshold_noise: int) -> Run:
        return self.mechanism.resample(run, threshold_noise, (0, 0))

    def opened(self, number: int) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class SelectionForm(Form):
    """A mechanism whose step takes all answers at once and reports the largest.

    If a run can pay for more than one step, the next step takes the next `at_once` answers, with fresh noise.
    """

    at_once: int = 4
    side: int = 4
    boxed_pairs: int = 2
    batched: bool = False

    def values(self, rng: random.Random, tests: int) -> Values:
        return tuple(rng.randint(-1, 2) for _ in range(tests))

    def output(self, outcomes: Any, heads: Sequence[Values], also: Mapping[int, Values]) -> list[object]:
        return [(outcomes.tops, outcomes.threshold_gap, outcomes.charge_units)]

    def drawn(self, batch: Batch, tape: Tape) -> tuple[Noises, ...]:
        return (Noises(tape.thresholds[0], np.array(tape.queries)[:, batch.columns]),)


@dataclass(frozen=True, kw_only=True)
class QuantileForm(Form):
    """A quantile, played on data: values are records, tests are candidates, one per column of the tape."""

    records: int = 6

    def values(self, rng: random.Random, tests: int) -> Values:
        return tuple(rng.randint(0, 2**tests) for _ in range(self.records))

    def neighbour(self, values: Values, neighbours: Neighbours, rng: random.Random) -> Values:
        among = list(values)
        if self.mechanism.adjacency is Adjacency.SWAP:
            index = rng.randrange(len(among))
            moved = among[index] + rng.choice((1, 4, 100)) * (-1 if neighbours is Neighbours.UP else 1)
            among[index] = max(0, moved)
        elif neighbours is Neighbours.UP:
            among.pop(rng.randrange(len(among)))
        else:
            among.append(rng.choice((0, rng.randint(0, 40), 2**20)))
        return tuple(among)

    def test_count(self, values: Values, tape: Tape) -> int:
        return len(tape.queries[0])

    def answers(self, values: Values, start: int, stop: int, cell: int = 0) -> Integers:
        return self.mechanism.answers(np.sort(np.array(values)), start, stop - start)


@dataclass(frozen=True, kw_only=True)
class BitsForm(Form):
    """A baseline without gaps and without alignment: its (epsilon, delta) is checked by its law."""

    def tape(self, rng: random.Random) -> Tape:
        return Tape((round(rng.gauss(0, 3)),), (tuple(round(rng.gauss(0, 3)) for _ in range(self.tests)),))

    def step(self, run: Run, answers: Integers, bars: Integers, attempt: int, noise: Any) -> tuple[Run, Any]:
        after: tuple[Run, Any] = self.mechanism.step(run, answers, 0, noise(0))
        return after

    def tops_by_answer(self, masses: Masses, change: int, rho: int | None = None) -> Masses:
        """Return the probability of a top for each answer in the range of the masses, plus a change.

        The masses are those of the query noise for a known threshold noise `rho`, else of the threshold noise alone.
        """
        answers = np.arange(len(masses)) - len(masses) // 2
        endless = replace(self.mechanism, cutoff=len(answers) + 1)
        probabilities = np.zeros(len(answers))
        for drawn, mass in zip(answers.tolist(), masses, strict=True):
            threshold, query = (drawn, 0) if rho is None else (rho, drawn)
            run = endless.open(threshold, (0, 0))
            _, reports = endless.step(run, answers + change, 0, np.full(len(answers), query))
            probabilities[reports.rows] += mass
        return probabilities

    @property
    def checks(self) -> tuple[Check, ...]:
        return (check_each_release_uses_up_its_delta, *FORMALITIES[:2])


def _gaussian(variance: float) -> Masses:
    """Return the masses of the discrete Gaussian around 0."""
    reach = math.ceil(12 * math.sqrt(variance))
    masses = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return masses / masses.sum()


def tail_probability(utilities: Sequence[int], row: int, gap: int, ratio: Any) -> Any:
    """Return P(index = row and gap >= `gap`) for `ratio` = e^-rate and `gap` >= 0; exact for a Fraction."""
    top = max(utilities)
    own = ratio ** (top - utilities[row] + gap)
    return own / (own + sum(ratio ** (top - u) for i, u in enumerate(utilities) if i != row))


def gap_probability(
    utilities: Sequence[int], row: int, gap: int, ratio: Any, tail: Any = tail_probability
) -> Any:
    """P(index = row and gap = `gap`)."""
    return tail(utilities, row, gap, ratio) - tail(utilities, row, gap + 1, ratio)


@dataclass(frozen=True, kw_only=True)
class LawForm(SelectionForm):
    """A mechanism that samples a law in closed form: the checks bound the law's loss, without an alignment.

    Its noise is a sequence of 64-bit words, of which the first are random.
    """

    probability: Callable[[Sequence[int], int, int, Any], Any] = gap_probability

    def noise(self, tape: Tape, columns: Sequence[int]) -> Any:
        return chain(tape.queries[0], cycle((2**63, 2**62))).__next__

    def tape(self, rng: random.Random) -> Tape:
        return Tape((0,), (tuple(rng.getrandbits(64) for _ in range(4)),))

    @property
    def checks(self) -> tuple[Check, ...]:
        return (check_the_law_loses_at_most_the_charge, check_the_draws_follow_the_law, *FORMALITIES)


@dataclass
class Findings:
    """Totals over cases; `largest` is the largest cost of an alignment divided by the charge."""

    cases: int = 0
    outputs_differ: int = 0
    noise_moved_down: int = 0
    over_charge: int = 0
    largest: Fraction = Fraction(0)


@cache
def aligned_cases(form: Form, cases: int = CASES, seed: int = 1) -> Findings:
    """Execute the proof on random cases of all kinds of neighbours."""
    rng, findings = random.Random(seed), Findings()
    for number in range(cases):
        kind = form.neighbours[number % len(form.neighbours)]
        first = form.values(rng, form.tests)
        second = form.neighbour(first, kind, rng)
        tape = form.tape(rng)
        played = form.play(first, tape)
        moved = form.align(played, tape, first, second, kind)
        findings.cases += 1
        findings.outputs_differ += played.released != form.play(second, moved).released
        moves = form.moves(tape, moved)
        findings.noise_moved_down += any(move < 0 and law.noise in UPWARD_ONLY for law, move in moves)
        cost = UNITS_PER_EPSILON * sum((law.rate * abs(move) for law, move in moves), Fraction(0))
        ratio = (
            cost / played.charge if played.charge else 10**6 * cost
        )  # moves that cost something must be charged
        findings.over_charge += ratio > 1
        findings.largest = max(findings.largest, ratio)
    return findings


def check_aligned_noise_gives_the_same_output(form: Form) -> None:
    """The neighbour gives, on the moved noise, the output of the first dataset."""
    assert aligned_cases(form).outputs_differ == 0


def check_the_alignment_costs_at_most_the_charge(form: Form) -> None:
    """The sum of rate times distance is at most the charge of the output."""
    findings = aligned_cases(form)
    assert findings.over_charge == 0, f"cost up to {float(findings.largest):.3f} of the charge"
    assert findings.largest > Fraction(9, 20), (
        "the costs of all cases are far below the charge: they would not detect a mistake"
    )


def check_one_sided_noise_only_moves_up(form: Form) -> None:
    """Exponential noise has no probability below 0, and that of Gumbel noise falls too fast."""
    assert aligned_cases(form).noise_moved_down == 0


def check_the_alignment_is_one_to_one(form: Form) -> None:
    """On all noise of a small box, no two tapes with the same output have the same image."""
    rng = random.Random(3)
    tapes = list(form.boxes())
    for kind in form.neighbours * form.boxed_pairs:
        first = form.values(rng, len(tapes[0].queries[0]))
        second = form.neighbour(first, kind, rng)
        images: dict[tuple[object, ...], Tape] = {}
        for tape in tapes:
            played = form.play(first, tape)
            moved = form.align(played, tape, first, second, kind)
            assert images.setdefault((played.released, moved), tape) == tape, "two tapes move to the same one"


def check_state_survives_storage_at_every_step(form: Form) -> None:
    """Storing and reading a run before every test does not change the output."""
    rng = random.Random(4)
    for _ in range(12):
        values, tape = form.values(rng, form.tests), form.tape(rng)
        assert form.play(values, tape, cut=1, store=True).released == form.play(values, tape).released


def check_batches_release_what_single_tests_release(form: Form) -> None:
    """With the same noise, outputs and charge do not depend on how tests are split into batches.

    A selection has no batches, since it ranks all answers at once; a run that is over refuses another step.
    """
    rng = random.Random(5)
    if not form.batched:
        spent = replace(form.mechanism.open(0, (0, 0)), left_units=0)
        with pytest.raises(RunExhausted):
            form.mechanism.step(
                spent, np.array(form.values(rng, form.tests)), lambda *_: pytest.fail("noise was drawn")
            )
        return
    for _ in range(16):
        values, tape = form.values(rng, form.tests), form.tape(rng)
        unsplit = form.play(values, tape)
        for cut in (1, 2, 3):
            part = form.play(values, tape, cut=cut)
            assert (part.released, part.charge) == (unsplit.released, unsplit.charge)


def check_no_run_is_charged_more_than_its_epsilon(form: Form) -> None:
    """The outputs of the runs cost at most the epsilon of the runs opened."""
    rng = random.Random(6)
    for _ in range(40):
        played = form.play(form.values(rng, form.tests), form.tape(rng))
        assert played.charge <= played.opened * form.mechanism.epsilon_units


def check_each_release_uses_up_its_delta(form: Form) -> None:
    """The excess of one threshold and of one top over their epsilon is 98 to 100 % of their delta.

    Each is tested over all of its noise while the other noise is fixed, as in the proof. The output is then the side
    of a bar on which the noise lies, the event with the largest excess. The excess of the threshold shows on bottoms
    whose answer rises by D, that of a query on tops whose answer falls by D while the threshold may have moved up by D.
    """
    assert isinstance(form, BitsForm)
    mechanism, reach = form.mechanism, form.distance
    lift = reach if Neighbours.MIXED in form.neighbours else 0

    masses = _gaussian(float(mechanism.threshold_variance))
    first, second = (1 - form.tops_by_answer(masses, change) for change in (0, reach))
    threshold = (first - math.exp(mechanism.threshold_epsilon) * second).max()

    masses = _gaussian(float(mechanism.query_variance))
    first, second = (form.tops_by_answer(masses, *moved) for moved in ((0, 0), (-reach, lift)))
    query = (first - math.exp(mechanism.query_epsilon) * second).max()

    for excess in (threshold, query):
        assert 0.98 * mechanism.delta < excess <= mechanism.delta * (1 + 1e-9)


def check_the_law_loses_at_most_the_charge(form: Form) -> None:
    """For neighbours, every probability is at most e^charge times the other, exactly, with e^-rate = 1/2."""
    assert isinstance(form, LawForm)
    rng, ratio, attained = random.Random(7), Fraction(1, 2), 0.0
    charge = form.mechanism.epsilon / form.mechanism.rate
    assert charge.denominator == 1
    for kind in form.neighbours * 40:
        first = form.values(rng, form.tests)
        second = form.neighbour(first, kind, rng)
        for row, gap in product(range(form.tests), range(8)):
            p, q = (form.probability(values, row, gap, ratio) for values in (first, second))
            assert p * ratio**charge.numerator <= q
            attained = max(attained, (math.log(p / q) / math.log(2)) / charge)
    assert attained > 0.45


def check_the_draws_follow_the_law(form: Form) -> None:
    """Among evenly spaced words, the number that gives each answer matches its probability, within two."""
    assert isinstance(form, LawForm)
    rng, count, ratio = random.Random(8), 256, math.exp(-float(form.mechanism.rate))
    words = [(2 * i + 1) << 55 for i in range(count)]
    for _ in range(2):
        values = form.values(rng, form.tests)

        def top(*words: int, values: Values = values) -> Any:
            return form.play(values, Tape((0,), (words,))).batches[0].outcomes.tops[0]

        rows = [top(word).row for word in words]
        for row in range(form.tests):
            share = sum(form.probability(values, row, gap, ratio) for gap in range(400))
            assert abs(rows.count(row) - share * count) <= 2
            if row not in rows:
                continue
            word = words[rows.index(row)]
            drawn = [top(word, other).gap for other in words]
            for gap in range(5):
                expected = form.probability(values, row, gap, ratio) / share
                assert abs(drawn.count(gap) - expected * count) <= 2


PROOF: tuple[Check, ...] = (
    check_aligned_noise_gives_the_same_output,
    check_the_alignment_costs_at_most_the_charge,
    check_one_sided_noise_only_moves_up,
    check_the_alignment_is_one_to_one,
)
"""The privacy proof proper."""

FORMALITIES: tuple[Check, ...] = (
    check_state_survives_storage_at_every_step,
    check_batches_release_what_single_tests_release,
    check_no_run_is_charged_more_than_its_epsilon,
)
"""Further checks of every mechanism."""
