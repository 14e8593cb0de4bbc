"""The contract holds for every form of every public mechanism, and every mutant of our own code is caught."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import stream_svt.mechanisms
from stream_svt.mechanisms import Exposure, Neighbours, Noise, Outcomes, Top, sparse_vector
from stream_svt.mechanisms.selection.quantile import Adjacency, ClippedSum, UnboundedQuantile
from tests.exact import soak
from tests.exact.box import largest_loss
from tests.exact.contract import QuantileForm, StreamForm
from tests.exact.enumeration import Factor, Kind, expectation
from tests.exact.forms import forms, public_mechanisms
from tests.exact.mutants import HalfTheNoise, base, mutants, published, stream

FORMS = forms()
MUTANTS = {mutant.rule: mutant for mutant in mutants()}


@pytest.mark.parametrize("name", FORMS)
def test_the_contract_holds(name):
    for check in FORMS[name].checks:
        check(FORMS[name])


MADE_OF_RUNS = {"ClippedSum", "multiple_quantiles"}
"""These open runs of `UnboundedQuantile`, which has forms; the alignment of a clipped sum is checked below."""


def test_every_public_mechanism_and_constructor_has_a_form():
    classes, builders = public_mechanisms()
    played = {type(form.mechanism).__name__ for form in FORMS.values()}
    built = {getattr(form.built_by, "__name__", "") for form in FORMS.values()}
    assert {"SparseVector", "TopK", "Sparse"} <= set(classes)
    assert set(classes) <= played | MADE_OF_RUNS
    assert set(builders) <= built | MADE_OF_RUNS
    assert MADE_OF_RUNS <= set(classes) | set(builders) <= set(vars(stream_svt.mechanisms))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_clipped_sum_moves_its_noise_by_the_change_of_the_sum(adjacency):
    """The charge of the sum itself; the quantile has a form."""
    quantile = UnboundedQuantile(epsilon=1, level=Fraction(1, 2), adjacency=adjacency, base=Fraction(2))
    clipped, rng = ClippedSum(quantile=quantile, charge="0.1"), random.Random(9)
    form = QuantileForm(mechanism=quantile, tests=6)
    largest = Fraction(0)
    for kind in form.neighbours * 100:
        first = form.values(rng, 6)
        second = form.neighbour(first, kind, rng)
        bound, noise = clipped.bound(rng.randrange(7)), rng.randint(-9, 9)
        before, after = np.array(first), np.array(second)
        move = clipped.shift(before, after, bound)
        assert clipped.release(before, bound, noise) == clipped.release(after, bound, noise + move)
        cost = abs(move) * clipped.law(bound).rate
        assert cost <= clipped.charge
        largest = max(largest, cost)
    assert clipped.law(4).noise is Noise.LAPLACE  # the only family whose noise may move either way
    assert largest == clipped.charge


def failed_checks(form):
    """Return the names of the contract's checks that a form fails."""
    failed = set()
    for check in form.checks:
        try:
            check(form)
        except AssertionError:
            failed.add(check.__name__.removeprefix("check_"))
    return failed


def enumerated_loss(mutant):
    form = mutant.form
    if isinstance(form, StreamForm):
        tests = len(mutant.pair[0])
        form = replace(form, queries=max(1, tests // mutant.attempts), attempts=mutant.attempts, tests=tests)
    return largest_loss(form, [mutant.pair], mutant.size, thresholds=mutant.thresholds)


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_mutant_is_detected(rule):
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
    """One bottom rises and all tops fall: 1.83 times the charge at 10 tops, with more tops almost 2."""
    bottom, top = (
        [Factor(kind, Noise.EXPONENTIAL, 1, k) for kind, k in ((Kind.BELOW, -moved), (Kind.EQUAL, 4 + moved))]
        for moved in (0, 1)
    )
    p, q = (expectation([below, *[equal] * 10], Noise.EXPONENTIAL, 2) for below, equal in (bottom, top))
    assert p == q * 2 ** (2 + 2 * 10)  # e^(e0 + 2 c e1) for e0 = 2 u, e1 = u, c = 10, to the last digit
    correction = Exposure(expected_queries=1000, false_alerts=Fraction(1))
    declared = sparse_vector(epsilon=cutoff + 2, cutoff=cutoff, monotonic=True, correction=correction)
    tops = tuple(Top(row=row, gap=0, charge_units=10**9) for row in range(cutoff))
    first, second = np.ones(cutoff, dtype=np.int64), np.zeros(cutoff, dtype=np.int64)
    moved = declared.shifts(Outcomes(consumed=cutoff, tops=tops), first, second, Neighbours.MIXED)
    cost = moved.threshold * declared.threshold_rate + int(moved.queries.sum()) * declared.branches[0].rate
    assert cost / declared.epsilon == times


def test_a_soak_prints_the_number_of_cases(monkeypatch, capsys):
    monkeypatch.setattr(soak, "forms", lambda: {"sound": stream(base()), "also": stream(base(cutoff=1))})
    assert soak.main(["--count", "7"]) == 0
    assert capsys.readouterr().out == "soak.alignment count 14 violations 0\n"


def test_a_soak_prints_a_form_that_violates_the_proof_and_fails(monkeypatch, capsys):
    broken = stream(base(of=HalfTheNoise))
    monkeypatch.setattr(soak, "forms", lambda: {"sound": stream(base()), "half the noise": broken})
    assert soak.main(["--count", "50"]) == 1
    named, totals = capsys.readouterr().out.splitlines()
    assert named.startswith("half the noise: of 50 cases 0 released something else, 0 moved noise down, ")
    assert totals.startswith("soak.alignment count 100 violations ")
    assert not totals.endswith(" 0")


def test_a_soak_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        soak.main(["--count", "0"])
    assert "at least one case" in capsys.readouterr().err
