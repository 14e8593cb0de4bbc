"""Negative controls: every mutant of our own code is caught."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms import Exposure, Neighbours, Noise, Outcomes, Top, sparse_vector
from tests.exact.box import largest_loss
from tests.exact.contract import StreamForm
from tests.exact.enumeration import Factor, Kind, expectation
from tests.exact.mutants import mutants, published

MUTANTS = {mutant.rule: mutant for mutant in mutants()}


def failed_checks(form):
    """Names of the contract's checks that a form does not pass."""
    found = set()
    for check in form.checks:
        try:
            check(form)
        except AssertionError:
            found.add(check.__name__.removeprefix("check_"))
    return found


def enumerated_loss(mutant):
    form = mutant.form
    if isinstance(form, StreamForm):
        tests = len(mutant.pair[0])
        form = replace(form, queries=max(1, tests // mutant.attempts), attempts=mutant.attempts, tests=tests)
    return largest_loss(form, [mutant.pair], mutant.size, thresholds=mutant.thresholds)


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_mutant_is_caught(rule):
    mutant = MUTANTS[rule]
    checks = failed_checks(mutant.form)
    loss = enumerated_loss(mutant) if mutant.pair else 0.0
    assert mutant.caught_by <= checks
    assert loss > 1 or mutant.pair is None


@pytest.mark.parametrize("number", published())
def test_of_the_published_variants_the_contract_passes_two_and_catches_four(number):
    """Lyu, Su & Li 2017, Figure 1, played by the package's own step."""
    form, caught_by = published()[number]
    checks = failed_checks(form)
    assert caught_by <= checks
    assert caught_by or not checks


@pytest.mark.parametrize(("cutoff", "times"), [(10, Fraction(11, 6)), (1000, Fraction(1001, 501))])
def test_queries_declared_monotonic_wrongly_lose_up_to_twice_the_charge(cutoff, times):
    """One answer below rises, all tops fall: 1.83 times the charge at 10 tops; with more it tends to 2."""
    bottom, top = (
        [Factor(kind, Noise.EXPONENTIAL, 1, k) for kind, k in ((Kind.BELOW, -moved), (Kind.EQUAL, 4 + moved))]
        for moved in (0, 1)
    )
    p, q = (expectation([below, *[equal] * 10], Noise.EXPONENTIAL, 2) for below, equal in (bottom, top))
    assert p == q * 2 ** (2 + 2 * 10)  # e^(e0 + 2 c e1) for e0 = 2 u, e1 = u, c = 10, to the last digit
    correction = Exposure(expected_queries=1000, false_alerts=Fraction(1))
    declared = sparse_vector(
        epsilon=(cutoff + 2) * 10**9, cutoff=cutoff, monotonic=True, correction=correction
    )
    tops = tuple(Top(row=row, gap=0, charge=10**9) for row in range(cutoff))
    first, second = np.ones(cutoff, dtype=np.int64), np.zeros(cutoff, dtype=np.int64)
    moved = declared.shifts(Outcomes(consumed=cutoff, tops=tops), first, second, Neighbours.MIXED)
    cost = moved.threshold * declared.threshold_rate + int(moved.queries.sum()) * declared.branches[0].rate
    assert cost / Fraction(declared.epsilon, 10**9) == times
