"""AboveThreshold, Sparse and NumericSparse: charges, released answers, composition."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from stream_svt.errors import RunExhausted
from stream_svt.mechanisms import Noise, Run, Top, above_threshold
from stream_svt.mechanisms.baselines.sparse import (
    Composition,
    advanced_epsilon,
    numeric_sparse,
    sparse,
    zcdp_epsilon,
)
from tests.support.gaussian import gaussian_delta

ONE = Fraction(1)
SALT = (1, 2)


def flat(*noises, tests=4):
    """Scripted noise by branch, the same at every test."""
    return lambda branch: np.full(tests, noises[branch])


def test_above_threshold_has_the_rates_of_the_lecture():
    mechanism = above_threshold(
        epsilon=ONE, monotonic=False, query_noise=Noise.LAPLACE, threshold_noise=Noise.LAPLACE
    )
    assert (mechanism.threshold_rate, mechanism.branches[0].rate) == (Fraction(1, 2), Fraction(1, 4))
    assert mechanism.branches[0].corrections == (0,)
    assert mechanism.cutoff == 1


def test_sparse_reports_a_top_per_threshold_and_charges_each_threshold_when_it_is_drawn():
    mechanism = sparse(epsilon=4 * ONE, cutoff=2, monotonic=True)
    run = mechanism.open(3, SALT)
    values = np.array([5, 12, 30, 1])
    assert (run.left, mechanism.needs_threshold(run), mechanism.is_over(run)) == (3 * ONE, False, False)
    run, outcomes = mechanism.step(run, values, 10, 0, flat(2))
    (top,) = outcomes.tops
    assert (outcomes.consumed, top.row, top.gap, top.left) == (2, 1, 1, 2 * ONE)
    assert mechanism.needs_threshold(run)
    with pytest.raises(RunExhausted, match="fresh one with `resample`"):
        mechanism.step(run, values, 10, 0, flat(2))
    run = mechanism.resample(Run.from_bytes(run.to_bytes()), 0, (5, 6))
    assert (run.left, run.tops, run.salt) == (ONE, 1, (5, 6))
    run, outcomes = mechanism.step(run, values[2:], 10, 0, flat(0, tests=2))
    assert (run.left, run.tops, outcomes.charge, mechanism.is_over(run)) == (0, 2, ONE, True)
    assert not mechanism.needs_threshold(run)


def test_numeric_sparse_gives_the_answer_with_fresh_noise_and_charges_for_it():
    mechanism = numeric_sparse(epsilon=9 * ONE, cutoff=1, monotonic=False)
    assert mechanism.answer_law.rate == 1
    assert mechanism.threshold_charge == 4 * ONE
    run, outcomes = mechanism.step(mechanism.open(0, SALT), np.array([1, 9, 0, 0]), 8, 0, flat(1, -4))
    assert outcomes.tops == (Top(row=1, branch=0, gap=2, charge_units=5 * 10**9, left_units=0, answer=5),)
    assert mechanism.is_over(run)


@pytest.mark.parametrize("composition", [Composition.ADVANCED, Composition.ZCDP])
@pytest.mark.parametrize("build", [sparse, numeric_sparse])
def test_an_approximate_budget_is_used_up_and_not_passed(build, composition):
    make = partial(build, epsilon=ONE, cutoff=200, monotonic=True)
    mechanism = make(delta=1e-6, composition=composition)
    assert 0.99999 < mechanism.loss(composition, 1e-6) <= 1
    assert mechanism.epsilon > 1.5 * make().epsilon
    assert mechanism.epsilon_units == 200 * (mechanism.threshold_units + mechanism.smallest_units)


@pytest.mark.parametrize(
    ("build", "monotonic", "rho"),
    [
        (sparse, True, 1.5**2 / 8),  # (e0 + 2 e1)^2 / 8 against e^2 / 2 at equal halves
        (sparse, False, 1 / 2),
        (numeric_sparse, True, (12**2 / 8 + 1 / 2) / 81),  # of 9 parts 1 is the number's: e2^2 / 2
        (numeric_sparse, False, (8**2 / 2 + 1 / 2) / 81),
    ],
)
def test_monotonic_answers_pay_less_under_zcdp_and_numbers_are_paid_for(build, monotonic, rho):
    mechanism = build(epsilon=3 * ONE, cutoff=3, monotonic=monotonic)
    assert mechanism.rho == pytest.approx(3 * rho)
    assert mechanism.loss(Composition.ZCDP, 1e-6) == pytest.approx(zcdp_epsilon(mechanism.rho, 1e-6))


def test_composition_is_that_of_its_theorems():
    assert advanced_epsilon(0.1, 30, 1e-5) == pytest.approx(
        math.sqrt(60 * math.log(1e5)) * 0.1 + 3 * (math.exp(0.1) - 1)
    )
    for rho, delta in product((0.001, 0.1, 2.0), (1e-3, 1e-9)):
        simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        epsilon = zcdp_epsilon(rho, delta)
        assert 0.5 * simple < epsilon < simple
        gaussian = gaussian_delta(1 / math.sqrt(2 * rho), epsilon)  # rho-zCDP exactly: delta may not be less
        a = 1 + np.geomspace(1e-3, 1000, 10_000)
        least = math.exp(((a - 1) * (a * rho - epsilon) + a * np.log1p(-1 / a) - np.log(a - 1)).min())
        assert gaussian <= delta == pytest.approx(least, rel=1e-4)
    assert zcdp_epsilon(0.0, 0.1) == 0
