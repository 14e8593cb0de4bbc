"""Noisy top-k and the hybrids: what they report, what it costs, and the proof executed on them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms.contract import Neighbours, Shifts
from stream_svt.mechanisms.grid import GAP_LIMIT, NOISE_LIMIT, VALUE_LIMIT
from stream_svt.mechanisms.hybrids import HybridEstimates, HybridIdentity, hybrid_estimates
from stream_svt.mechanisms.noise import Noise, exact_pmf
from stream_svt.mechanisms.run import UNITS_PER_EPSILON, Run
from stream_svt.mechanisms.selection import Chosen, Drawn, Selection
from stream_svt.mechanisms.top_k import LastGap, TopK

EPSILON = 1_234_567_890
SALT = (0, 0)


def integers(*numbers):
    return np.array(numbers, dtype=np.int64)


def released(mechanism, values, drawn):
    """Step of a fresh run with all its noise given."""
    run = mechanism.open(drawn.threshold, SALT)
    return mechanism.step(run, np.asarray(values), lambda branch: drawn.queries[branch])


def moved(drawn: Drawn, shifts: Shifts) -> Drawn:
    return Drawn(threshold=drawn.threshold + shifts.threshold, queries=drawn.queries + shifts.queries)


def mechanisms(monotonic, noise):
    """Every form, with sensitivity 2."""
    common = {"epsilon": EPSILON, "monotonic": monotonic, "sensitivity": 2}
    for count, last_gap in product((1, 2, 3), LastGap):
        yield f"top-{count}-{last_gap}", TopK(**common, count=count, noise=noise, last_gap=last_gap)
    for count, gap in product((1, 2, 3), (False, True)):
        yield (
            f"identity-{count}-{gap}",
            HybridIdentity(**common, count=count, threshold=3, noise=noise, threshold_gap=gap),
        )
    for threshold_noise in Noise:
        yield (
            f"estimates-{threshold_noise}",
            hybrid_estimates(
                **common, count=3, threshold=3, threshold_noise=threshold_noise, query_noise=noise
            ),
        )


def drawn_at_random(mechanism, size, chance):
    def draw(law):
        size = min(int(chance.expovariate(0.6)), 20)
        return -size if law.noise is not Noise.EXPONENTIAL and chance.random() < 0.5 else size

    law = mechanism.threshold_law
    return Drawn(
        threshold=draw(law) if law else 0,
        queries=np.array([[draw(mechanism.branch_laws[0]) for _ in range(size)]]),
    )


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("neighbours", Neighbours)
def test_aligned_noise_reproduces_every_output_at_no_more_than_its_charge(noise, neighbours):
    chance = random.Random(f"{noise}{neighbours}")
    low, high = {"up": (0, 2), "down": (-2, 0), "mixed": (-2, 2)}[neighbours]
    attained = set()
    for name, mechanism in mechanisms(neighbours is not Neighbours.MIXED, noise):
        for _ in range(240):
            size = chance.randint(4, 6)
            first = np.array([chance.randint(0, 6) for _ in range(size)])
            ends = chance.random() < 0.8
            second = first + [
                chance.choice((low, high)) if ends else chance.randint(low, high) for _ in first
            ]
            drawn = drawn_at_random(mechanism, size, chance)
            run, selection = released(mechanism, first, drawn)
            shifts = mechanism.shifts(selection, first, second, neighbours, drawn)
            assert released(mechanism, second, moved(drawn, shifts)) == (
                replace(run, threshold_noise=drawn.threshold + shifts.threshold),
                selection,
            ), name
            assert not shifts.moves_down(mechanism.threshold_law, mechanism.branch_laws), name
            charge = Fraction(selection.charge + mechanism.threshold_charge, UNITS_PER_EPSILON)
            cost = shifts.cost(mechanism.threshold_law, mechanism.branch_laws)
            assert cost <= charge, name
            assert run.left == mechanism.epsilon - selection.charge - mechanism.threshold_charge
            if charge - cost < Fraction(1, UNITS_PER_EPSILON):  # a charge by output is rounded up
                attained.add(name)
    if neighbours is not Neighbours.DOWN:
        assert attained == {name for name, _ in mechanisms(True, noise)}


@pytest.mark.parametrize(("noise", "monotonic"), list(product(Noise, (True, False))))
def test_the_alignments_are_one_to_one(noise, monotonic):
    """Over a whole box of noise no two noises of one output share an image, the runner-up's case included."""
    box = range(5) if noise is Noise.EXPONENTIAL else range(-2, 3)
    pairs = [((0, 0, 0), (2, 0, 2)), ((1, 0, 2), (1, 2, 2)), ((2, 1, 2), (0, 1, 0))]
    raised = 0
    for mechanism in (
        TopK(epsilon=EPSILON, count=1, monotonic=monotonic, sensitivity=2, noise=noise),
        TopK(epsilon=EPSILON, count=2, monotonic=monotonic, sensitivity=2, noise=noise),
        TopK(
            epsilon=EPSILON,
            count=1,
            monotonic=monotonic,
            sensitivity=2,
            noise=noise,
            last_gap=LastGap.PLAIN,
        ),
    ):
        for first, second in pairs:
            fall = integers(*first) - integers(*second)
            neighbours = (
                Neighbours.UP if fall.max() <= 0 else Neighbours.DOWN if fall.min() >= 0 else Neighbours.MIXED
            )
            images = {}
            for etas in product(box, repeat=3):
                drawn = Drawn(queries=np.array([etas]))
                _, selection = released(mechanism, first, drawn)
                shifts = mechanism.shifts(selection, integers(*first), integers(*second), neighbours, drawn)
                chosen = {top.row for top in selection.tops}
                raised += any(shifts.queries[0][row] for row in range(3) if row not in chosen)
                image = (selection, tuple(moved(drawn, shifts).queries[0]))
                assert images.setdefault(image, etas) == etas
    assert raised > 0


def test_the_published_alignment_sends_two_noises_to_one():
    """Ding et al. 2023, eq. (5) raises the best loser of the second dataset: it collides; ours does not.

    Counting queries (0,0,0) and (6,0,6), D = 6, no ties: noises (0,2,3) and (1,2,3) both go to (2,2,3).
    """
    first, second = integers(0, 0, 0), integers(6, 0, 6)

    def published(noise):
        v1, v2 = first + noise, second + noise
        order = np.argsort(-v1, kind="stable")
        winner, losers = order[0], np.delete(np.arange(3), order[0])
        rise = v2[losers].max() - v1[losers].max()
        fall, shifts = first - second, np.zeros(3, dtype=np.int64)
        if fall[winner] + rise >= 0:
            shifts[winner] = fall[winner] + rise
        else:
            best = losers[np.argmax(v2[losers])]
            # eq. (5): the best loser of the second dataset is brought to where the output is repeated
            shifts[best] = v1[losers].max() - fall[winner] - v2[best]
        return tuple((noise + shifts).tolist())

    assert published(integers(0, 2, 3)) == published(integers(1, 2, 3)) == (2, 2, 3)
    top = TopK(epsilon=EPSILON, count=1, monotonic=True, sensitivity=6)
    ours = set()
    for noise in (integers(0, 2, 3), integers(1, 2, 3)):
        drawn = Drawn(queries=noise[np.newaxis])
        _, selection = released(top, first, drawn)
        ours.add(tuple(moved(drawn, top.shifts(selection, first, second, Neighbours.UP, drawn)).queries[0]))
    assert len(ours) == 2


def top_one_law(values, noise, ratio, last_gap, gap):
    """P(index, gap) of the top one, by index, with the geometric sum over the runner-up's value in closed form.

    For exponential noise and gaps up to `gap` everything is a polynomial in ratio^v beyond the largest value.
    """
    start, law = max(values) + gap + 2, {}

    def below(value, bound):  # P(value + noise <= bound)
        return 1 - ratio ** max(0, bound - value + 1)

    def both(value, bound, row, other):
        """P(runner-up's noisy value is `bound` and it is `other`) given nothing of `row`."""
        result = exact_pmf(noise, ratio, bound - value)
        for index, rest in enumerate(values):
            if index not in {row, other}:
                result *= below(rest, bound - (index < other))
        return result

    for row, g in product(range(len(values)), range(gap + 1)):
        total = Fraction(0)
        for other in range(len(values)):
            if other == row:
                continue
            distance = g + (last_gap is LastGap.LEXICOGRAPHIC and other < row)
            if distance == 0 and other < row:
                continue  # with an equal noisy value the smaller index would have won
            for bound in range(min(values), start):
                total += both(values[other], bound, row, other) * exact_pmf(
                    noise, ratio, bound + distance - values[row]
                )
            # Beyond `start` each factor is a sum of powers of z = ratio^bound.
            terms = {2: (1 - ratio) ** 2 * ratio ** (distance - values[row] - values[other])}
            for index, rest in enumerate(values):
                if index not in {row, other}:
                    step = ratio ** (1 - rest - (index < other))
                    following = {}
                    for power, weight in terms.items():
                        following[power] = following.get(power, 0) + weight
                        following[power + 1] = following.get(power + 1, 0) - weight * step
                    terms = following
            total += sum(w * ratio ** (p * start) / (1 - ratio**p) for p, w in terms.items())
        law[row, g] = total
    return law


@pytest.mark.parametrize(
    ("last_gap", "worst"), [(LastGap.LEXICOGRAPHIC, 1), (LastGap.PLAIN, 2)], ids=["lexicographic", "plain"]
)
def test_the_plain_last_gap_costs_k_plus_1_over_k_times_epsilon_and_the_lexicographic_one_epsilon(
    last_gap, worst
):
    """Exact enumeration of the top one of three counting queries with exponential noise at rate epsilon."""
    ratio = Fraction(1, 2)  # e^-epsilon
    least, most = math.inf, 0
    for first in product(range(2), repeat=3):
        laws = [
            top_one_law(values, Noise.EXPONENTIAL, ratio, last_gap, 4)
            for values in (
                first,
                *(tuple(a + b for a, b in zip(first, up, strict=True)) for up in product((0, 1), repeat=3)),
            )
        ]
        for second in laws[1:]:
            for output, probability in laws[0].items():
                assert (probability == 0) == (second[output] == 0)
                if probability:
                    least = min(least, probability / second[output])
                    most = max(most, probability / second[output])
    assert max(most, 1 / least) == (1 / ratio) ** worst
    charged = TopK(epsilon=EPSILON, count=1, monotonic=True, last_gap=last_gap)
    assert worst * charged.rate == Fraction(EPSILON, UNITS_PER_EPSILON)


def test_the_enumerated_law_is_that_of_the_step():
    """What the package reports over a box of noise adds up to the closed form, up to the mass outside the box."""
    ratio, reach, values = Fraction(1, 3), 12, (1, 0, 1)
    for last_gap in (LastGap.LEXICOGRAPHIC, LastGap.PLAIN):
        top = TopK(epsilon=EPSILON, count=1, monotonic=True, last_gap=last_gap)
        listed = {}
        for etas in product(range(reach), repeat=3):
            _, selection = released(top, values, Drawn(queries=np.array([etas])))
            weight = math.prod(exact_pmf(Noise.EXPONENTIAL, ratio, eta) for eta in etas)
            key = (selection.tops[0].row, selection.tops[0].gap)
            listed[key] = listed.get(key, 0) + weight
        law = top_one_law(values, Noise.EXPONENTIAL, ratio, last_gap, 4)
        outside = 3 * ratio**reach
        for key, probability in law.items():
            assert 0 <= probability - listed.get(key, 0) <= outside


@pytest.mark.parametrize("last_gap", LastGap)
def test_a_hundred_thousand_answers_are_ranked_as_a_plain_sort_ranks_them(last_gap):
    chance = np.random.default_rng(5)
    values, noise = chance.integers(0, 3000, 100_000), chance.geometric(0.01, 100_000) - 1
    top = TopK(epsilon=EPSILON, count=40, monotonic=True, last_gap=last_gap)
    _, selection = released(top, values, Drawn(queries=noise[np.newaxis]))
    noisy = values + noise
    ranked = sorted(range(len(values)), key=lambda i: (-noisy[i], i))
    assert [one.row for one in selection.tops] == ranked[:40]
    gaps = [int(noisy[ranked[i]] - noisy[ranked[i + 1]]) for i in range(40)]
    if last_gap is LastGap.LEXICOGRAPHIC:
        gaps[-1] -= ranked[40] < ranked[39]
    assert [one.gap for one in selection.tops] == [*gaps[:-1], None if last_gap is LastGap.NONE else gaps[-1]]


def test_the_lexicographic_gap_is_what_the_last_answer_can_lose_and_stay():
    chance = random.Random(8)
    for _ in range(200):
        top = TopK(epsilon=EPSILON, count=2, monotonic=True)
        values = np.array([chance.randint(0, 5) for _ in range(5)])
        none = Drawn(queries=np.zeros((1, 5), dtype=np.int64))
        _, selection = released(top, values, none)
        last = selection.tops[-1]
        rows = {one.row for one in selection.tops}
        for loss, stays in ((last.gap, True), (last.gap + 1, False)):
            values[last.row] -= loss
            _, again = released(top, values, none)
            assert ({one.row for one in again.tops} == rows) is stays
            values[last.row] += loss


@pytest.mark.parametrize(("monotonic", "half"), [(True, 1), (False, Fraction(1, 2))])
def test_identity_is_charged_for_what_it_released(monotonic, half):
    hybrid = HybridIdentity(epsilon=EPSILON, count=4, threshold=10, monotonic=monotonic)
    quiet = Drawn(queries=np.zeros((1, 6), dtype=np.int64))
    for answers in range(5):
        values = np.where(np.arange(6) < answers, 20, 0)
        run, selection = released(hybrid, values, quiet)
        assert len(selection.tops) == answers
        exact = EPSILON if answers == 4 else Fraction(EPSILON, 4) * (answers + half)
        assert selection.charge == math.ceil(exact) == EPSILON - run.left
        assert hybrid.is_over(run)
    with_gap = replace(hybrid, threshold_gap=True)
    _, selection = released(with_gap, [30, 20, 7, 1, 0, 0], quiet)
    assert [one.gap for one in selection.tops] == [10, 10]
    assert (selection.threshold_gap, selection.charge) == (3, math.ceil(Fraction(3 * EPSILON, 4)))
    _, selection = released(with_gap, [30], Drawn(queries=integers(0)[np.newaxis]))
    assert selection.threshold_gap is None  # nothing comes after the threshold


def test_the_threshold_of_identity_wins_ties():
    hybrid = HybridIdentity(epsilon=EPSILON, count=3, threshold=10, monotonic=True)
    _, selection = released(hybrid, [10, 11, 9], Drawn(queries=np.zeros((1, 3), dtype=np.int64)))
    assert selection.tops == (Chosen(row=1, gap=1),)


def test_estimates_lists_the_largest_above_the_noisy_threshold_with_gaps_to_it():
    hybrid = hybrid_estimates(epsilon=EPSILON, count=2, threshold=10, monotonic=True)
    run = hybrid.open(2, SALT)
    run, selection = hybrid.step(run, integers(12, 30, 11, 30), lambda branch: integers(0, 0, 0, 5))
    assert selection.tops == (Chosen(row=3, gap=23), Chosen(row=1, gap=18))
    assert selection.charge == 2 * hybrid.query_charge
    assert hybrid.is_over(run)
    assert run.left == 0
    with pytest.raises(RunExhausted):
        hybrid.step(run, integers(12), lambda branch: integers(0))


def test_estimates_goes_on_under_its_threshold_until_it_has_listed_all_it_can_pay():
    hybrid = hybrid_estimates(epsilon=EPSILON, count=2, threshold=10, monotonic=True)
    run, first = hybrid.step(hybrid.open(0, SALT), integers(12, 3), lambda branch: integers(0, 0))
    assert (len(first.tops), hybrid.is_over(run)) == (1, False)
    run, second = hybrid.step(run, integers(13, 14, 15), lambda branch: integers(0, 0, 0))
    assert second.tops == (Chosen(row=2, gap=5),)
    assert hybrid.is_over(run)
    assert first.charge + second.charge + hybrid.threshold_charge == EPSILON


@pytest.mark.parametrize(("threshold_noise", "query_noise"), list(product(Noise, Noise)))
def test_the_default_split_of_estimates_has_the_least_variance(threshold_noise, query_noise):
    from stream_svt.mechanisms.noise import variance

    def spread(hybrid):
        laws = (hybrid.threshold_law, hybrid.branch_laws[0])
        return sum(variance(law.noise, law.rate) for law in laws)

    common = {
        "epsilon": 10**6,
        "count": 9,
        "threshold": 0,
        "monotonic": False,
        "threshold_noise": threshold_noise,
        "query_noise": query_noise,
    }
    chosen = hybrid_estimates(**common)
    split = Fraction(9 * chosen.query_charge, chosen.threshold_charge)
    assert all(
        spread(chosen) < spread(hybrid_estimates(**common, split=split * factor))
        for factor in (Fraction(9, 10), Fraction(11, 10))
    )


@pytest.mark.parametrize("noise", Noise)
def test_saturated_noise_neither_wraps_nor_leaves_the_gaps_of_the_grid(noise):
    values = integers(VALUE_LIMIT - 1, 0, 1 - VALUE_LIMIT)
    extreme = integers(NOISE_LIMIT, 0, -NOISE_LIMIT if noise is not Noise.EXPONENTIAL else 0)
    top = TopK(epsilon=EPSILON, count=2, monotonic=True, noise=noise)
    _, selection = released(top, values, Drawn(queries=extreme[np.newaxis]))
    assert [one.row for one in selection.tops] == [0, 1]
    assert selection.tops[0].gap == GAP_LIMIT
    assert 0 < selection.tops[1].gap <= GAP_LIMIT


@pytest.mark.parametrize("name", [name for name, _ in mechanisms(True, Noise.EXPONENTIAL)])
def test_a_run_survives_encoding_before_and_after_its_step(name):
    mechanism = dict(mechanisms(True, Noise.EXPONENTIAL))[name]
    run = mechanism.open(7 if mechanism.threshold_law else 0, (3, 4))
    after, _ = mechanism.step(
        Run.from_bytes(run.to_bytes()), integers(30, 30, 30, 30, 30), lambda _: integers(0, 1, 2, 3, 4)
    )
    assert Run.from_bytes(after.to_bytes()) == after
    assert mechanism.is_over(after)
    with pytest.raises(RunExhausted):
        mechanism.step(after, integers(1, 2, 3, 4), lambda _: pytest.fail("noise was drawn"))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: TopK(epsilon=EPSILON, count=0, monotonic=True), "count"),
        (lambda: TopK(epsilon=EPSILON, count=1, monotonic=True, sensitivity=0), "sensitivity"),
        (lambda: TopK(epsilon=0, count=1, monotonic=True), "epsilon"),
        (lambda: TopK(epsilon=1, count=10**6, monotonic=True), "wider than the grid"),
        (lambda: TopK(epsilon=EPSILON, count=1, monotonic=True).open(1, SALT), "no threshold"),
        (
            lambda: released(
                TopK(epsilon=EPSILON, count=2, monotonic=True),
                [1, 2],
                Drawn(queries=integers(0, 0)[np.newaxis]),
            ),
            "lower the count",
        ),
        (lambda: HybridIdentity(epsilon=EPSILON, count=1, threshold=2**47, monotonic=True), "threshold"),
        (
            lambda: HybridIdentity(epsilon=EPSILON, count=1, threshold=0, monotonic=True).open(2**61, SALT),
            "threshold noise",
        ),
        (
            lambda: released(
                HybridIdentity(epsilon=EPSILON, count=1, threshold=0, monotonic=True),
                integers(),
                Drawn(queries=np.zeros((1, 0), dtype=np.int64)),
            ),
            "at least one answer",
        ),
        (
            lambda: HybridEstimates(
                epsilon=EPSILON, count=2, threshold=0, monotonic=True, threshold_charge=5, query_charge=5
            ),
            "charge",
        ),
        (lambda: hybrid_estimates(epsilon=EPSILON, count=2, threshold=0, monotonic=True, split=0), "split"),
        (lambda: hybrid_estimates(epsilon=EPSILON, count=0, threshold=0, monotonic=True), "count"),
        (lambda: LastGap.parse("random"), "has no proof"),
        (lambda: LastGap.parse("delta"), "coarse grid"),
        (lambda: LastGap.parse("wide"), "no such option"),
        (lambda: hybrid_estimates(epsilon=2, count=9, threshold=0, monotonic=True), "wider than the grid"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(call, reason):
    with pytest.raises(MisuseError, match=reason):
        call()


def test_a_last_gap_is_found_by_its_name():
    assert [LastGap.parse(name.upper()) for name in LastGap] == list(LastGap)


def test_a_selection_tells_nothing_but_its_answers():
    top = TopK(epsilon=EPSILON, count=1, monotonic=True)
    _, selection = released(top, [3, 9], Drawn(queries=integers(1, 1)[np.newaxis]))
    assert selection == Selection(consumed=2, tops=(Chosen(row=1, gap=5),), charge=EPSILON)
