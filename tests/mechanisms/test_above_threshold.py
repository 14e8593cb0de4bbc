"""The lecture's mechanisms: charges, numbers, accuracy that holds and says something."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from stream_svt.errors import MisuseError, RunExhausted
from stream_svt.mechanisms import Noise, Run, adaptive
from stream_svt.mechanisms.above_threshold import above_threshold, above_threshold_rho
from stream_svt.mechanisms.composition import Composition, advanced_epsilon, zcdp_delta, zcdp_epsilon
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.correction import Explicit
from stream_svt.mechanisms.lecture_accuracy import alpha_accuracy, dwork_roth_alpha
from stream_svt.mechanisms.sparse import NumericTop, Sparse, numeric_sparse, sparse

ONE = 10**9
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
    assert (outcomes.consumed, outcomes.tops[0].row, outcomes.tops[0].gap, outcomes.tops[0].left) == (
        2,
        1,
        1,
        2 * ONE,
    )
    assert mechanism.needs_threshold(run)
    with pytest.raises(RunExhausted, match="fresh one with `resample`"):
        mechanism.step(run, values, 10, 0, flat(2))
    run = mechanism.resample(Run.from_bytes(run.to_bytes()), 0, (5, 6))
    assert (run.left, run.tops, run.salt) == (ONE, 1, (5, 6))
    with pytest.raises(MisuseError, match="after a top"):
        mechanism.resample(run, 0, SALT)
    run, outcomes = mechanism.step(run, values[2:], 10, 0, flat(0, tests=2))
    assert (run.left, run.tops, outcomes.charge, mechanism.is_over(run)) == (0, 2, ONE, True)
    assert not mechanism.needs_threshold(run)


def test_numeric_sparse_gives_the_answer_with_fresh_noise_and_charges_for_it():
    mechanism = numeric_sparse(epsilon=9 * ONE, cutoff=1, monotonic=False)
    assert mechanism.answer_law.rate == 1
    assert mechanism.threshold_charge == 4 * ONE
    run, outcomes = mechanism.step(mechanism.open(0, SALT), np.array([1, 9, 0, 0]), 8, 0, flat(1, -4))
    assert outcomes.tops == (NumericTop(row=1, branch=0, gap=2, charge=5 * ONE, left=0, answer=5),)
    assert mechanism.is_over(run)


@pytest.mark.parametrize("direction", Neighbours)
def test_the_noise_of_a_number_makes_up_for_the_change_of_its_answer(direction):
    mechanism = numeric_sparse(epsilon=9 * ONE, cutoff=1, monotonic=direction is not Neighbours.MIXED)
    first = np.array([1, 9, 0, 0])
    change = {"up": [1, 1, 0, 1], "down": [0, -1, -1, 0], "mixed": [1, -1, 0, 1]}[direction]
    second = first + change
    noises = np.array([[0, 1, 0, 0], [0, -4, 0, 0]])
    _, outcomes = mechanism.step(mechanism.open(1, SALT), first, 8, 0, lambda b: noises[b])
    shifts = mechanism.shifts(outcomes, first, second, direction)
    _, again = mechanism.step(
        mechanism.open(1 + shifts.threshold, SALT), second, 8, 0, lambda b: (noises + shifts.queries)[b]
    )
    assert again == outcomes
    assert not shifts.moves_down(mechanism.threshold_law, mechanism.branch_laws)
    assert shifts.cost(mechanism.threshold_law, mechanism.branch_laws) * ONE <= mechanism.epsilon


@pytest.mark.parametrize("noise", [Noise.EXPONENTIAL, Noise.GUMBEL])
def test_numbers_refuse_noise_that_may_only_move_up(noise):
    with pytest.raises(MisuseError, match="may be moved up only"):
        numeric_sparse(epsilon=ONE, cutoff=2, monotonic=True, answer_noise=noise)


@pytest.mark.parametrize("composition", [Composition.ADVANCED, Composition.ZCDP])
@pytest.mark.parametrize("build", [sparse, numeric_sparse])
def test_an_approximate_budget_is_used_up_and_not_passed(build, composition):
    make = partial(build, epsilon=ONE, cutoff=200, monotonic=True)
    mechanism = make(delta=1e-6, composition=composition)
    assert 0.99999 < mechanism.loss(composition, 1e-6) <= 1
    assert mechanism.epsilon > 1.5 * make().epsilon
    assert mechanism.epsilon == mechanism.cutoff * (
        mechanism.threshold_charge + mechanism.per_top.smallest_charge + mechanism.answer_charge
    )


def test_monotonic_answers_pay_less_under_zcdp():
    """(e0 + 2 e1)^2 / 8 = 0.28 e^2 against e^2 / 2 at equal halves."""
    monotonic, general = (above_threshold(epsilon=ONE, monotonic=kind) for kind in (True, False))
    assert above_threshold_rho(monotonic) == pytest.approx(1.5**2 / 8)
    assert above_threshold_rho(general) == pytest.approx(1 / 2)
    assert sparse(epsilon=3 * ONE, cutoff=3, monotonic=True).rho == pytest.approx(3 * 1.5**2 / 8)
    with pytest.raises(MisuseError, match="one top"):
        above_threshold_rho(adaptive(epsilon=ONE, cutoff=2, monotonic=True, correction=Explicit((0,))))


def test_the_numbers_of_numeric_sparse_are_paid_under_zcdp_too():
    """Of 9 a round 1 is the number's: (4 + 2 * 4)^2 / 8 + 1^2 / 2, or (4 + 4)^2 / 2 + 1^2 / 2, three times."""
    for monotonic, comparison in ((True, 18), (False, 32)):
        mechanism = numeric_sparse(epsilon=27 * ONE, cutoff=3, monotonic=monotonic)
        assert mechanism.rho == pytest.approx(3 * (comparison + 1 / 2))
        assert mechanism.loss(Composition.ZCDP, 1e-6) == pytest.approx(zcdp_epsilon(mechanism.rho, 1e-6))


def test_numbers_whose_noise_is_wider_than_the_grid_are_refused():
    make = partial(numeric_sparse, epsilon=9 * ONE, cutoff=1, monotonic=True, sensitivity=2**10)
    assert make(answer_share=Fraction(1, 9 * 2**29)).answer_law.rate >= Fraction(1, 2**40)
    with pytest.raises(MisuseError, match="noise of the answers would be wider"):
        make(answer_share=Fraction(1, 9 * 2**29), sensitivity=2**11)


def test_composition_is_that_of_its_theorems():
    assert advanced_epsilon(0.1, 30, 1e-5) == pytest.approx(
        math.sqrt(60 * math.log(1e5)) * 0.1 + 3 * (math.exp(0.1) - 1)
    )
    for rho, delta in product((0.001, 0.1, 2.0), (1e-3, 1e-9)):
        simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        epsilon = zcdp_epsilon(rho, delta)
        assert 0.5 * simple < epsilon < simple
        gaussian = gaussian_delta(1 / math.sqrt(2 * rho), epsilon)  # rho-zCDP exactly: delta may not be less
        assert gaussian <= zcdp_delta(rho, epsilon) <= delta * (1 + 1e-6)
        least = min(
            math.exp((a - 1) * (a * rho - epsilon)) * (1 - 1 / a) ** a / (a - 1)
            for a in 1 + np.geomspace(1e-3, 15, 1000)
        )
        assert zcdp_delta(rho, epsilon) <= least * (1 + 1e-6)


def gaussian_delta(scale, epsilon):
    """Exact delta of the Gaussian mechanism (Balle & Wang 2018, Theorem 8)."""

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(0.5 / scale - epsilon * scale) - math.exp(epsilon) * phi(-0.5 / scale - epsilon * scale)


def test_budgets_without_a_meaning_are_refused():
    with pytest.raises(MisuseError, match="no use for a delta"):
        sparse(epsilon=ONE, cutoff=2, monotonic=True, delta=1e-6)
    with pytest.raises(MisuseError, match="delta lies strictly"):
        sparse(epsilon=ONE, cutoff=2, monotonic=True, composition=Composition.ZCDP)
    with pytest.raises(MisuseError, match="cutoff"):
        sparse(epsilon=ONE, cutoff=0, monotonic=True)
    with pytest.raises(MisuseError, match="too small"):
        numeric_sparse(epsilon=5, cutoff=2, monotonic=True)
    with pytest.raises(MisuseError, match="one branch and one top"):
        Sparse(per_top=adaptive(epsilon=ONE, cutoff=2, monotonic=True, correction=Explicit((0,))), cutoff=2)


def sample(chance, law, shape):
    """Float draws of a law, floored: good enough to count failures."""
    uniform = chance.random(shape)
    rate = float(law.rate)
    if law.noise is Noise.GUMBEL:
        return np.floor(-np.log(-np.log(uniform)) / rate)
    up = np.floor(-np.log(uniform) / rate)
    return up - np.floor(-np.log(chance.random(shape)) / rate) if law.noise is Noise.LAPLACE else up


def failures(mechanism, bound, *, queries, correction=0, trials=20_000):
    """Share of runs where some answer just outside the bounds, on either side, is told wrongly."""
    chance = np.random.default_rng(8)
    rho = sample(chance, mechanism.threshold_law, (trials, 1))
    nu = sample(chance, mechanism.branch_laws[0], (trials, queries))
    excess = nu - rho - correction
    below, above = -bound.false_top - 1, bound.missed + 1
    return float(((below + excess >= 0).any(1) | (above + excess < 0).any(1)).mean())


@pytest.mark.parametrize("noises", list(product(Noise, Noise)), ids="-".join)
def test_the_accuracy_holds_with_every_noise_and_is_not_vacuous(noises):
    threshold_noise, query_noise = noises
    mechanism = above_threshold(
        epsilon=ONE // 10,
        monotonic=False,
        query_noise=query_noise,
        threshold_noise=threshold_noise,
        correction=Explicit((40,)),
    )
    bound = alpha_accuracy(mechanism, queries=30, beta=0.2)
    assert 0.02 < failures(mechanism, bound, queries=30, correction=40) <= 0.2
    closer = type(bound)(false_top=bound.false_top * 2 // 3, missed=bound.missed * 2 // 3)
    assert failures(mechanism, closer, queries=30, correction=40) > 0.2


def test_the_accuracy_is_never_worse_than_the_lectures_and_its_formulas_are_the_lectures():
    laplace = {"query_noise": Noise.LAPLACE, "threshold_noise": Noise.LAPLACE}
    for cutoff, queries, beta in product((1, 10), (1, 1000), (0.05, 1e-6)):
        ours = alpha_accuracy(
            sparse(epsilon=ONE // 10, cutoff=cutoff, monotonic=False, **laplace), queries=queries, beta=beta
        )
        theirs = dwork_roth_alpha(epsilon=0.1, queries=queries, beta=beta, cutoff=cutoff)
        assert ours.alpha <= theirs + 2
        numeric = alpha_accuracy(
            numeric_sparse(epsilon=ONE // 10, cutoff=cutoff, monotonic=False, **laplace),
            queries=queries,
            beta=beta,
        )
        assert (
            numeric.alpha
            <= dwork_roth_alpha(epsilon=0.1, queries=queries, beta=beta, cutoff=cutoff, numeric=True) + 2
        )
    assert dwork_roth_alpha(epsilon=1, queries=100, beta=0.1) == pytest.approx(
        8 * (math.log(100) + math.log(20))
    )
    assert dwork_roth_alpha(epsilon=1, queries=100, beta=0.1, cutoff=3, delta=1e-6) == pytest.approx(
        (math.log(100) + math.log(60)) * math.sqrt(512 * 3 * math.log(1e6))
    )
    assert dwork_roth_alpha(
        epsilon=1, queries=9, beta=0.1, cutoff=3, delta=1e-6, numeric=True
    ) == pytest.approx((math.log(9) + math.log(120)) * math.sqrt(3 * math.log(2e6)) * (math.sqrt(512) + 1))


def test_numbers_are_within_their_accuracy_as_often_as_stated():
    mechanism = numeric_sparse(epsilon=ONE, cutoff=5, monotonic=True)
    bound = alpha_accuracy(mechanism, queries=50, beta=0.1)
    noise = sample(np.random.default_rng(4), mechanism.answer_law, (20_000, 5))
    assert 0.01 < (np.abs(noise) > bound.answer).any(1).mean() <= 0.05


def test_accuracy_of_several_branches_or_of_no_probability_is_refused():
    with pytest.raises(MisuseError, match="branches"):
        alpha_accuracy(
            adaptive(epsilon=ONE, cutoff=2, monotonic=True, correction=Explicit((0,))), queries=3, beta=0.1
        )
    for queries, beta in ((0, 0.1), (3, 0.0), (3, 1.0)):
        with pytest.raises(MisuseError, match="strictly between"):
            alpha_accuracy(above_threshold(epsilon=ONE, monotonic=True), queries=queries, beta=beta)
