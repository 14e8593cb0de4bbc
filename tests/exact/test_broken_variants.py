"""What the rules are worth: the exact loss of mechanisms with one of them broken, in parts of what they claim.

The other rules are broken in the package's own code, in `mutants.py`; here sums without an end are in closed form.
"""

from __future__ import annotations

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


@pytest.fixture
def exact(report):
    """Note the exact loss of a broken rule, in parts of what the broken mechanism claims."""

    def note(rule, loss):
        report.catch(rule, [f"exact loss {loss:.2f} of the charge"])
        return loss

    return note


def test_the_monotonic_rate_on_general_queries_loses_five_thirds_of_the_charge(exact):
    found = worst(
        list(transcripts(shared((EXP, EXP), monotonic=True, queries=3))), neighbours(3, 1, monotonic=False)
    )
    assert found.violations > 0
    assert exact("monotonic rate on general queries", found.largest) == pytest.approx(5 / 3)


@pytest.mark.parametrize("cutoff", [1, 10, 100])
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
    moved = shifts.threshold * declared.threshold_rate + int(shifts.queries.sum()) * declared.branches[0].rate
    assert moved / Fraction(declared.epsilon, 10**9) == times


def test_replace_one_declared_monotonic_is_caught(exact):
    """Replacing a record lowers one count and raises another: bottoms on the one, tops on the other."""
    model = shared((LAP, LAP), monotonic=True, queries=10)
    p, q = (
        expectation(
            [Factor(Kind.BELOW, LAP, 1, -low)] * 8 + [Factor(Kind.EQUAL, LAP, 1, 4 - high)] * 2, LAP, 1
        )
        for low, high in ((0, 0), (1, -1))
    )
    charge = model.threshold_charge + 2 * model.rungs[0].charge
    assert exact("replace-one declared monotonic", log_ratio(p, q) / charge) > 1.64


def test_a_correction_that_reads_the_value_loses_three_times_the_charge(exact):
    """With r = -2 q the test compares 3 q: neighbours one apart behave as if three apart."""
    pairs = [
        (tuple(3 * a for a in first), tuple(3 * b for b in second))
        for first, second in neighbours(2, 1, monotonic=True)
    ]
    found = worst(list(transcripts(shared((EXP, EXP), monotonic=True))), pairs)
    assert exact("a correction that reads the value", found.largest) == pytest.approx(3)


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


def bottoms(number, answer):
    return [Factor(Kind.BELOW, EXP, 1, -answer)] * number


def gaps(number, answer):
    return [Factor(Kind.EQUAL, EXP, 1, 4 - answer)] * number


@pytest.mark.parametrize(
    ("rule", "first", "second", "claimed", "loss"),
    [
        # bottoms under one durable threshold are charged 1, however many restarts there are
        ("threshold redrawn at one of three restarts", bottoms(1, 0), bottoms(1, 1), Fraction(1, 3), 3),
        ("gaps of bottoms told", gaps(5, 1), gaps(5, 0), 1, 5),
        ("lost charge of a visible top", bottoms(64, 0) + gaps(4, 0), bottoms(64, 1) + gaps(4, 0), 3, 5 / 3),
    ],
)
def test_a_rule_that_is_broken_loses_this_much(exact, rule, first, second, claimed, loss):
    """Two tops charged and four shown, where the charge of a visible top is lost: 5 where 3 was claimed."""
    found = log_ratio(expectation(first, EXP, 1), expectation(second, EXP, 1)) / claimed
    assert exact(rule, float(found)) == pytest.approx(loss)


@pytest.mark.parametrize("pair", list(product([EXP, LAP], repeat=2)), ids="-".join)
def test_too_little_query_noise_for_the_sensitivity_is_caught(pair):
    """Sensitivity 2 where 1 was declared: twice the charge, or nearly."""
    found = worst(list(transcripts(shared(pair, monotonic=True))), neighbours(2, 2, monotonic=True))
    assert found.violations > 0
    assert found.largest > 1.9
