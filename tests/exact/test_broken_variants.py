"""What the rules are worth: the exact loss of mechanisms with one of them broken, in parts of what they claim.

The same rules broken in the package's own code are in `mutants.py`; here sums without an end are in closed form.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.mechanisms import Exposure, Neighbours, Noise, Outcomes, Top, sparse_vector
from tests.exact.enumeration import (
    Factor,
    Kind,
    expectation,
    log_ratio,
    neighbours,
    shared,
    transcripts,
    worst,
)

EXP, LAP = Noise.EXPONENTIAL, Noise.LAPLACE
HALF = Fraction(1, 2)


@pytest.fixture
def exact(report):
    """Note the exact loss of a broken rule, in parts of what the broken mechanism claims."""

    def note(rule, loss):
        report.catch(rule, [f"exact loss {loss:.2f} of the charge"])
        return loss

    return note


def loss(first, second, noise=EXP, rate=1):
    """Log-ratio of two lists of factors in units of u."""
    return log_ratio(expectation(first, noise, rate), expectation(second, noise, rate))


def test_the_monotonic_rate_on_general_queries_loses_five_thirds_of_the_charge(exact):
    found = worst(
        list(transcripts(shared((EXP, EXP), monotonic=True, queries=3))), neighbours(3, 1, monotonic=False)
    )
    assert found.violations > 0
    assert exact("monotonic rate on general queries", found.largest) == pytest.approx(5 / 3)


@pytest.mark.parametrize("cutoff", [1, 2, 10, 100])
def test_queries_declared_monotonic_wrongly_lose_up_to_twice_the_charge(exact, cutoff):
    """One answer below rises, all tops fall: a split of c/2, the default of streams, has e0 = 2 u and e1 = u."""
    p, q = (
        expectation(
            [Factor(Kind.BELOW, EXP, 1, -up), *[Factor(Kind.EQUAL, EXP, 1, 4 + down)] * cutoff], EXP, 2
        )
        for up, down in ((0, 0), (1, 1))
    )
    charge = 2 + cutoff
    assert p == q * 2 ** (2 + 2 * cutoff)  # e^(e0 + 2 c e1), to the last digit
    assert log_ratio(p, q) / charge == pytest.approx(2 - 1 / (1 + cutoff / 2))
    exact(f"monotonic declared wrongly, cutoff {cutoff}", log_ratio(p, q) / charge)


@pytest.mark.parametrize(("cutoff", "times"), [(10, Fraction(11, 6)), (1000, Fraction(1001, 501))])
def test_what_a_wrong_declaration_costs_with_the_package_own_split(cutoff, times):
    """1.83 times the charge at 10 tops; with more it tends to 2."""
    correction = Exposure(expected_queries=1000, false_alerts=Fraction(1))
    declared = sparse_vector(
        epsilon=cutoff * 10**9 + 2 * 10**9, cutoff=cutoff, monotonic=True, correction=correction
    )
    tops = tuple(Top(row=row, branch=0, gap=0, charge=10**9, left=0) for row in range(cutoff))
    first, second = np.ones(cutoff, dtype=np.int64), np.zeros(cutoff, dtype=np.int64)
    shifts = declared.shifts(Outcomes(consumed=cutoff, tops=tops), first, second, Neighbours.MIXED)
    cost = shifts.cost(declared.threshold_law, declared.branch_laws)
    assert cost / Fraction(declared.epsilon, 10**9) == times


def test_replace_one_declared_monotonic_is_caught(exact):
    """Replacing a record lowers one count and raises another: bottoms on the one, tops on the other."""
    model = shared((LAP, LAP), monotonic=True, queries=10)
    bottoms = [(Kind.BELOW, 1, 0, i) for i in range(8)]
    tops = [(Kind.EQUAL, 1, 4, i) for i in (8, 9)]
    p, q = (
        expectation(
            [
                Factor(kind, LAP, rate, k - (low if test < 8 else high))
                for kind, rate, k, test in bottoms + tops
            ],
            LAP,
            1,
        )
        for low, high in ((0, 0), (1, -1))
    )
    charge = model.threshold_charge + 2 * model.rungs[0].charge
    assert exact("replace-one declared monotonic", log_ratio(p, q) / charge) > 1.64


def test_cached_noise_at_a_retry_loses_without_bound(exact):
    """First attempt below, second above with the same nu: only a value that rose by more than the gap can."""

    def probability(first, second, gap):
        return sum(
            (1 - HALF) * HALF**rho * (1 - HALF) * HALF ** (gap + rho - second)
            for rho in range(40)
            if gap + rho - second >= 0 and first + (gap + rho - second) < rho
        )

    assert probability(0, 2, gap=1) > 0
    assert probability(0, 1, gap=1) == 0
    exact("cached noise at a retry", math.inf)


def test_a_correction_that_reads_the_value_loses_three_times_the_charge(exact):
    """With r = -2 q the test compares 3 q: neighbours one apart behave as if three apart."""
    model = shared((EXP, EXP), monotonic=True)
    pairs = [
        (tuple(3 * a for a in first), tuple(3 * b for b in second))
        for first, second in neighbours(2, 1, monotonic=True)
    ]
    loss = worst(list(transcripts(model)), pairs).largest
    assert exact("a correction that reads the value", loss) == pytest.approx(3)


def test_resampling_charged_once_loses_four_thirds_of_the_charge(exact):
    """Twice a bottom and a top; each top draws a new threshold and only the first one is charged."""
    model = shared((EXP, EXP), monotonic=True, resample=True, queries=4)
    claimed = model.threshold_charge + model.tops_charge
    largest = max(
        log_ratio(t.probability(first), t.probability(second)) / claimed
        for t in transcripts(model)
        for first, second in neighbours(4, 1, monotonic=True, values=(-1,))
    )
    assert exact("RESAMPLE charged once", largest) == pytest.approx(4 / 3)


def test_a_threshold_redrawn_at_each_of_three_starts_costs_three_thresholds(exact):
    per_start = loss([Factor(Kind.BELOW, EXP, 1, 3)], [Factor(Kind.BELOW, EXP, 1, 2)])
    attained = loss([Factor(Kind.BELOW, EXP, 1, 0)], [Factor(Kind.BELOW, EXP, 1, -1)])
    assert per_start < attained == pytest.approx(1)
    assert exact("threshold redrawn at every restart", 3 * attained) == pytest.approx(
        3
    )  # bottoms under one durable threshold are charged 1


def test_gaps_of_bottoms_are_not_free(exact):
    """Five bottoms that tell their gap, under a charge of 1: each moves its own noise."""

    def gaps(k):
        return [Factor(Kind.EQUAL, EXP, 1, k)] * 5

    assert exact("gaps of bottoms told", loss(gaps(3), gaps(4))) == pytest.approx(5)


def test_a_lost_charge_shows_tops_beyond_the_cutoff(exact):
    """Two tops charged, four shown: threshold + 4 tops = 5 where 3 were claimed."""
    bottoms = [Factor(Kind.BELOW, EXP, 1, 0)] * 64
    raised = [Factor(Kind.BELOW, EXP, 1, -1)] * 64
    tops = [Factor(Kind.EQUAL, EXP, 1, 4)] * 4
    found = loss(bottoms + tops, raised + tops) / 3
    assert exact("lost charge of a visible top", found) == pytest.approx(5 / 3)


def test_releasing_the_noisy_value_loses_without_bound(exact):
    """With exponential noise a value below the answer is impossible."""
    value = 2
    released = [Factor(Kind.RELEASED, EXP, 1, -value)]
    impossible = [Factor(Kind.EQUAL, EXP, 1, -1)]
    assert expectation(released, EXP, 1) > 0
    assert _noisy_value(value, answer=2) > 0
    assert _noisy_value(value, answer=3) == 0
    exact("noisy value told", math.inf)
    assert impossible[0].at(0) == 0


def _noisy_value(value, answer):
    """P(answer + nu = value and value >= rho), thresholds at 0."""
    mass = Factor(Kind.EQUAL, EXP, 1, value - answer).at(0)
    return mass * expectation([Factor(Kind.RELEASED, EXP, 1, -value)], EXP, 1)


def test_an_order_that_follows_values_loses_without_bound(exact):
    """The larger answer is tested first and its name is told: neighbours in another order share no output."""

    def order(values):
        return tuple(sorted(range(2), key=lambda i: -values[i]))

    model = shared((EXP, EXP), monotonic=True)
    told = {}
    for values in ((1, 0), (1, 2)):
        for t in transcripts(model):
            output = (order(values), t.outcome)
            told.setdefault(output, {})[values] = t.probability(tuple(sorted(values, reverse=True)))
    losses = [log_ratio(by.get((1, 0), Fraction(0)), by.get((1, 2), Fraction(0))) for by in told.values()]
    assert exact("order by value", max(losses)) == math.inf


@pytest.mark.parametrize("pair", list(product([EXP, LAP], repeat=2)), ids="-".join)
def test_too_little_query_noise_for_the_sensitivity_is_caught(pair):
    """Sensitivity 2 where 1 was declared: twice the charge, or nearly."""
    found = worst(list(transcripts(shared(pair, monotonic=True))), neighbours(2, 2, monotonic=True))
    assert found.violations > 0
    assert found.largest > 1.9
