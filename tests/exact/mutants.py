"""Mutants of the package's own code: each breaks one rule and is played and aligned like a sound form.

A mutant is a form whose mechanism, or way of playing, breaks one rule. The contract's checks run on it. So does the
exact enumeration of its outputs over a box of noise (see `box`), on a pair of neighbours with a large loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from stream_svt.mechanisms import Branch, Noise, SparseVector
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.baselines.gaussian import gaussian
from stream_svt.mechanisms.contract import Neighbours, Noises, Outcomes, Top, mechanism_id
from stream_svt.mechanisms.noise import Law
from stream_svt.mechanisms.numbers import loss_of
from stream_svt.mechanisms.selection.exponential_mechanism import ExponentialMechanism, draw_gap, draw_index
from stream_svt.mechanisms.selection.top_k import LastGap, TopK
from tests.exact.box import GAUSSIAN, UNIT
from tests.exact.contract import (
    BitsForm,
    Form,
    LawForm,
    SelectionForm,
    StreamForm,
    gap_probability,
    tail_probability,
)

EXP, LAP = Noise.EXPONENTIAL, Noise.LAPLACE
ONE_WAY = (Neighbours.UP, Neighbours.DOWN)
RATE = 3
"""Units of u per grid step: narrow noise, so that little of it lies outside a box."""

OUTPUT, COST, DOWN, INJECTIVE = (
    "aligned_noise_gives_the_same_output",
    "the_alignment_costs_at_most_the_charge",
    "one_sided_noise_only_moves_up",
    "the_alignment_is_one_to_one",
)
LAW, DRAWS = "the_law_loses_at_most_the_charge", "the_draws_follow_the_law"
DELTA = "each_release_uses_up_its_delta"
STORAGE, BATCHES, EPSILON = (
    "state_survives_storage_at_every_step",
    "batches_release_what_single_tests_release",
    "no_run_is_charged_more_than_its_epsilon",
)


@dataclass(frozen=True)
class Mutant:
    """A broken form, the checks that must detect it, and neighbours on which its loss is enumerated.

    Attributes:
        rule: The rule that is broken.
        form: The broken form.
        caught_by: Names of the checks that must fail.
        pair: Values on two neighbours; None where nothing is released that would differ from a sound
            mechanism.
        size: Size of the box, in units of u.
        attempts: Number of rounds enumerated; `thresholds` is the number of threshold noises in them.
    """

    rule: str
    form: Form
    caught_by: set[str]
    pair: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    size: int = 7 * RATE
    attempts: int = 1
    thresholds: int = 1


def base(
    *,
    monotonic: bool = True,
    cutoff: int = 2,
    noises: tuple[Noise, Noise] = (EXP, EXP),
    of: type = SparseVector,
) -> Any:
    """Return a plain sparse vector whose rates are integer multiples of the unit."""
    reach = 1 if monotonic else 2
    charge = RATE * reach * UNIT
    rate = Fraction(RATE * UNIT, 10**9)
    return of(
        epsilon_units=RATE * UNIT + cutoff * charge,
        sensitivity=1,
        monotonic=monotonic,
        threshold_noise=noises[0],
        query_noise=noises[1],
        threshold_units=RATE * UNIT,
        threshold_rate=rate,
        branches=(Branch(name="top", charge_units=charge, rate=rate, corrections=(0,)),),
    )


def stream(
    mechanism: Any,
    *,
    of: type[StreamForm] = StreamForm,
    neighbours: Sequence[Neighbours] = ONE_WAY,
    **options: Any,
) -> StreamForm:
    """Return a form of a sparse vector."""
    return of(mechanism=mechanism, tests=13, neighbours=tuple(neighbours), **options)


def broken(kind: type, **members: Any) -> Any:
    """Return a mechanism or a form with some of its members replaced."""
    return type(f"Broken{kind.__name__}", (kind,), members)


def query_noise(law_of: Callable[[Any, Law], Any]) -> Any:
    """Return a sparse vector whose query noise has other laws than its charges require."""
    laws = SparseVector.branch_laws.fget
    return broken(
        SparseVector, branch_laws=property(lambda self: tuple(law_of(self, law) for law in laws(self)))
    )


@dataclass(frozen=True)
class GaussianLaw:
    """A Gaussian law with the variance of Laplace noise, which the package does not have."""

    rate: Fraction
    noise: Any = GAUSSIAN


HalfTheNoise = query_noise(lambda _, law: Law(law.noise, 2 * law.rate))
FullRateForEveryTop = query_noise(lambda self, law: Law(law.noise, self.cutoff * law.rate))
"""Noise that ignores the cutoff: each of c tops has the noise for a single top."""
GaussianNoise = query_noise(lambda _, law: GaussianLaw(law.rate))
HalfTheThresholdNoise = broken(
    SparseVector, threshold_law=property(lambda self: Law(self.threshold_noise, 2 * self.threshold_rate))
)
OneThresholdCharged = broken(StreamForm, resample_charge=0)
"""RESAMPLE that charges the first threshold only."""
RedrawnThreshold = broken(
    StreamForm,
    next_round=lambda _, run, number, tape: (
        replace(run, threshold_noise=tape.thresholds[number + 1]),
        number + 1,
    ),
)
"""A new threshold noise at every restart, without a charge."""
CachedNoise = broken(StreamForm, columns=lambda _self, _test, queries: list(queries))
"""A retry gets the noise of the first attempt."""
OrderByValue = broken(
    StreamForm,
    order=lambda self, values: sorted(range(min(self.queries, len(values))), key=lambda q: -values[q]),
)
"""The largest answer is tested first, and its name is played."""
ForgetfulStorage = broken(
    StreamForm, restored=lambda _, run: replace(run, threshold_noise=run.threshold_noise + 1)
)
ReadsTheValue = broken(
    SparseVector,
    reached=lambda self, values, thresholds, *rest: SparseVector.reached(
        self, values, thresholds - 2 * values, *rest
    ),
)
"""A correction that falls with the answer: r = -2 q."""
NoQueryNoise = broken(
    SparseVector,
    reached=lambda self, values, thresholds, rho, left, attempt, _noise: SparseVector.reached(
        self, values, thresholds, rho, left, attempt, reaching(lambda _: np.zeros_like(values))
    ),
)
"""Answers are compared without query noise."""
BareGap = broken(TopK, rate=property(lambda self: TopK.rate.fget(self) * (self.k + 1) / self.k))
"""Top-k with the plain last gap, at the noise of the lexicographic one."""


class FreeThreshold(StreamForm):
    """Charges the tops only."""

    def play(self, *arguments: Any, **options: Any) -> Any:
        played = super().play(*arguments, **options)
        runs = len({batch.run for batch in played.batches})
        return replace(played, charge=played.charge - runs * self.mechanism.threshold_units)


class GapsOfBottoms(StreamForm):
    """Bottoms release their distance to the noisy threshold."""

    def extra_output(self, run, values, thresholds, attempt, noise):
        last = len(self.mechanism.branches) - 1
        bars = thresholds + run.threshold_noise + self.mechanism.branches[last].correction(attempt)
        return {row: (int(gap),) for row, gap in enumerate(values + noise(last) - bars)}


class NoisyValue(StreamForm):
    """Tops release the noisy answer, not only its gap to the noisy threshold."""

    def extra_output(self, run, values, thresholds, attempt, noise):
        given = values, thresholds, run.threshold_noise, run.left_units, attempt
        tests, gaps = self.mechanism.reached(*given, reaching(noise))
        noisy = values + noise(0)
        return {row: (int(noisy[row]),) for row in tests[gaps[-1] >= 0].tolist()}


class LostCharge(SparseVector):
    """The first top is published before its charge is durable, and the charge is lost."""

    def step(self, run, values, thresholds, attempts, noise):
        after, outcomes = super().step(run, values[:1], thresholds[:1], attempts, lambda b: noise(b)[:1])
        if run.tops or not outcomes.tops:
            return after, outcomes
        free = replace(outcomes.tops[0], charge_units=0, left_units=run.left_units)
        return replace(after, left_units=run.left_units), replace(outcomes, tops=(free,), charge_units=0)


class CheapMiddle(SparseVector):
    """A top of the middle branch is charged like one of the top branch."""

    def step(self, run, values, thresholds, attempts, noise):
        after, outcomes = super().step(run, values[:1], thresholds[:1], attempts, lambda b: noise(b)[:1])
        cheapest = self.smallest_units
        tops = tuple(
            replace(top, charge_units=cheapest, left_units=run.left_units - cheapest) for top in outcomes.tops
        )
        charge = cheapest * len(tops)
        return replace(after, left_units=run.left_units - charge), replace(
            outcomes, tops=tops, charge_units=charge
        )


def stepped_without_end(mechanism, run, values, thresholds, attempts, noise):
    """Make a step of a run that is never over."""
    more = 100 * mechanism.smallest_units
    endless = replace(mechanism, epsilon_units=mechanism.epsilon_units + more)
    longer = replace(run, mechanism=mechanism_id(endless), left_units=run.left_units + more)
    after, outcomes = SparseVector.step(endless, longer, values, thresholds, attempts, noise)
    return replace(after, mechanism=run.mechanism), outcomes


class NoCutoffInABatch(SparseVector):
    """The end of the run is checked between batches only."""

    def step(self, run, *arguments):
        after, outcomes = stepped_without_end(self, run, *arguments)
        return replace(after, left_units=max(0, run.left_units - outcomes.charge_units)), outcomes


class NoCutoff(SparseVector):
    """Tops are released without end; the first one is charged."""

    def step(self, run, *arguments):
        after, outcomes = stepped_without_end(self, run, *arguments)
        free = run.tops > 0
        tops = tuple(
            replace(top, left_units=run.left_units, charge_units=0 if free or number else top.charge_units)
            for number, top in enumerate(outcomes.tops)
        )
        charge = sum(top.charge_units for top in tops)
        return replace(after, left_units=run.left_units), replace(outcomes, tops=tops, charge_units=charge)


class Downward(SparseVector):
    """Answers that fall are aligned by lowering the threshold, below the support of its noise."""

    def shifts(self, outcomes, first, second, neighbours):
        moved = super().shifts(outcomes, first, second, neighbours)
        lowered = moved.queries.copy()
        for top in outcomes.tops:
            lowered[top.branch, top.row] -= self.sensitivity
        return Noises(moved.threshold - self.sensitivity, lowered)


class RaisesTheOtherLoser(TopK):
    """Ding et al. 2023, eq. (5): raises the best loser of the second dataset instead of the first one's."""

    def shifts(self, outcomes, first, second, neighbours, noise_on_first):
        noise = noise_on_first.queries[0]
        rows = np.array([top.row for top in outcomes.tops])
        losers = np.array([row for row in range(len(first)) if row not in rows])
        ahead = (losers < rows[-1]).astype(int)
        need = (first[losers] + noise[losers] + ahead).max()
        after = second[losers] + noise[losers] + ahead
        fall = first - second
        lift = max(0, -(int(fall[rows].min()) + int(after.max() - need)))
        moved = np.zeros(len(first), dtype=np.int64)
        moved[rows] = fall[rows] + after.max() - need + lift
        if lift:
            moved[losers[after.argmax()]] = lift
        return Noises(0, moved[np.newaxis])


class FarApart(StreamForm):
    """Neighbours twice as far apart as was declared."""

    def neighbour(self, values, neighbours, rng):
        once = super().neighbour(values, neighbours, rng)
        return super().neighbour(once, neighbours, rng)


class ReplaceOne(StreamForm):
    """Replacing a record lowers one count and raises another."""

    def neighbour(self, values, neighbours, rng):
        moved = list(values)
        down, up = rng.sample(range(len(values)), 2)
        moved[down] -= 1
        moved[up] += 1
        return tuple(moved)


def tail_as_printed(utilities: Sequence[int], row: int, gap: int, ratio: Any) -> Any:
    """Ding et al. 2023, Algorithm 8: the location of the gap's logistic lacks the factor epsilon, here 1/10."""

    def tail(wide: Any, m: int) -> Any:
        own = ratio**m
        return own / (own + sum(wide ** (utilities[row] - u) for i, u in enumerate(utilities) if i != row))

    return tail(ratio, 0) * tail(ratio**10, gap) / tail(ratio**10, 0)


class GapDrawnAsPrinted(ExponentialMechanism):
    """Draws the gap of Algorithm 8 as printed, by the package's own sampler."""

    def step(self, run, values, word):
        values = self.checked_values(run, values)
        row = draw_index(values, self.rate, word)
        gap = draw_gap(10 * values, row, self.rate, word)
        outcomes = Outcomes(
            consumed=len(values), tops=(Top(row=row, gap=gap),), charge_units=self.epsilon_units
        )
        return replace(run, left_units=0, tops=1), outcomes


def two_branches(of: type) -> Any:
    """Return the adaptive form of `base`: a top branch at half the price."""
    plain = base(monotonic=True, cutoff=4)
    branch = plain.branches[0]
    dear = replace(branch, name="middle", charge_units=2 * branch.charge_units, rate=2 * branch.rate)
    parameters = {part.name: getattr(plain, part.name) for part in fields(plain) if part.init}
    return of(**(parameters | {"branches": (replace(branch, corrections=(2,)), dear)}))


def top_k(of: type, noise: Noise = EXP, **options: Any) -> SelectionForm:
    """Return a form of a top-1 of three answers."""
    mechanism = of(epsilon=loss_of(RATE * UNIT), k=1, monotonic=True, noise=noise, **options)
    return SelectionForm(mechanism=mechanism, tests=3, at_once=3, least_tests=3)


def published() -> dict[int, tuple[StreamForm, set[str]]]:
    """Return Algorithms 1 to 6 of Lyu, Su & Li by number, each with the checks that must fail."""
    mixed = (Neighbours.MIXED,)
    laplace = {"monotonic": False, "noises": (LAP, LAP)}
    return {
        1: (stream(base(**laplace), neighbours=mixed), set()),
        2: (stream(base(**laplace, cutoff=1), neighbours=mixed, resample=True), set()),
        3: (stream(base(**laplace), of=NoisyValue, neighbours=mixed), {OUTPUT}),
        4: (stream(base(**laplace, of=FullRateForEveryTop), neighbours=mixed), {COST}),
        5: (stream(base(**laplace, of=NoQueryNoise), neighbours=mixed), {OUTPUT}),
        6: (stream(base(**laplace, cutoff=1, of=NoCutoff), neighbours=mixed), {COST}),
    }


def mutants() -> Iterator[Mutant]:
    """Yield all mutants."""
    mixed = {"neighbours": (Neighbours.MIXED,)}
    general, one_top = {"monotonic": False}, {"cutoff": 1}
    three = ((-1, 1, 2), (0, 0, 1))

    yield Mutant("monotonic rate on general queries", stream(base(), **mixed), {COST}, three)
    yield Mutant(
        "replace-one declared monotonic",
        stream(base(), of=ReplaceOne, **mixed),
        {COST},
        ((-1, 1, 2), (0, 0, 2)),
    )
    yield Mutant(
        "cached noise at a retry",
        stream(base(**one_top, **general), of=CachedNoise, **mixed),
        {OUTPUT},
        ((0, 2), (0, 1)),
        attempts=2,
    )
    reads = stream(base(**one_top, of=ReadsTheValue))
    yield Mutant("a correction that reads the value", reads, {OUTPUT}, ((0, 1), (1, 1)))
    yield Mutant(
        "RESAMPLE charged once",
        stream(base(**one_top), of=OneThresholdCharged, resample=True),
        {COST},
        ((-1, 1, 1, 0), (0, 1, 2, 0)),
        size=6 * RATE,
        thresholds=4,
    )
    yield Mutant(
        "threshold redrawn at every restart",
        stream(base(**one_top), of=RedrawnThreshold),
        {COST},
        ((-1, -1, -1), (0, 0, 0)),
        attempts=3,
        thresholds=3,
    )
    yield Mutant("threshold not charged", stream(base(), of=FreeThreshold), {COST}, ((-1, 1), (0, 2)))
    yield Mutant("gaps of bottoms released", stream(base(), of=GapsOfBottoms), {OUTPUT}, ((-2, -1), (-3, -2)))
    yield Mutant("downward shift of one-sided noise", stream(base(of=Downward)), {DOWN})
    yield Mutant("noisy value released", stream(base(), of=NoisyValue), {OUTPUT}, ((0, 1), (1, 2)))
    yield Mutant("order by value", stream(base(), of=OrderByValue), {OUTPUT}, ((1, 0), (1, 2)))
    lost = stream(base(of=LostCharge, **general), **mixed)
    yield Mutant("lost charge of a visible top", lost, {COST}, three)
    yield Mutant("query noise half as wide", stream(base(of=HalfTheNoise)), {COST}, ((0, 1), (-1, 0)))
    gaussian_noise = stream(base(**one_top, of=GaussianNoise))
    yield Mutant("gap with Gaussian noise", gaussian_noise, set(), ((0,), (-1,)), size=9 * RATE)
    half = stream(base(of=HalfTheThresholdNoise))
    yield Mutant("threshold noise half as wide", half, {COST}, ((-1, 1), (0, 2)))
    far = stream(base(), of=FarApart)
    yield Mutant("sensitivity declared too small", far, {OUTPUT}, ((-2, 1), (0, 3)))
    cheap = stream(two_branches(CheapMiddle))
    yield Mutant("middle branch charged like the top one", cheap, {COST}, ((0, 1), (-1, 0)))
    endless = stream(base(**one_top, of=NoCutoffInABatch))
    yield Mutant("cutoff checked between batches only", endless, {BATCHES, EPSILON})
    yield Mutant("threshold noise changed by storage", stream(base(), of=ForgetfulStorage), {STORAGE})
    bare = top_k(BareGap, last_gap=LastGap.PLAIN)
    yield Mutant(
        "plain last gap of top-k at the price of the lexicographic one", bare, {COST}, ((-1, 0, 0), (0, 0, 0))
    )
    wide = RaisesTheOtherLoser(epsilon=loss_of(6 * RATE * UNIT), k=1, monotonic=True, sensitivity=6)
    other = replace(top_k(RaisesTheOtherLoser), mechanism=wide)
    yield Mutant("alignment of Ding et al. 2023, eq. (5)", other, {INJECTIVE})
    for what, check, of, tail in (
        ("law", LAW, ExponentialMechanism, tail_as_printed),
        ("draws", DRAWS, GapDrawnAsPrinted, tail_probability),
    ):
        form = LawForm(
            mechanism=of(epsilon="0.1", monotonic=True),
            tests=3,
            probability=partial(gap_probability, tail=tail),
        )
        yield Mutant(f"Ding et al. 2023, Algorithm 8 as printed: its {what}", form, {check})
    for rule, neighbours, narrower in (
        ("Gaussian query noise a quarter as wide", ONE_WAY, {"query_variance": 16}),
        ("Gaussian threshold noise an eighth as wide", ONE_WAY, {"threshold_variance": 64}),
        ("Gaussian query noise for half the shift", (Neighbours.MIXED,), {}),
    ):
        sound = gaussian(epsilon=2.0, delta=0.02, cutoff=2, sensitivity=2, tests=4, monotonic=True)
        narrow = {name: getattr(sound, name) / divisor for name, divisor in narrower.items()}
        form = BitsForm(mechanism=replace(sound, **narrow), tests=4, neighbours=neighbours, distance=2)
        yield Mutant(rule, form, {DELTA})
