"""The contract suite: every check on every form of every public mechanism."""

from __future__ import annotations

import inspect
import pkgutil
import random
from fractions import Fraction
from importlib import import_module

import numpy as np
import pytest

import stream_svt.mechanisms
from stream_svt.mechanisms import Noise
from stream_svt.mechanisms.contract import Mechanism
from stream_svt.mechanisms.quantile import Adjacency, ClippedSum, UnboundedQuantile
from stream_svt.mechanisms.top_k import Ranking
from tests.exact.contract import QuantileForm
from tests.exact.forms import forms

FORMS = forms()


@pytest.mark.parametrize("name", FORMS)
def test_the_contract_holds(name):
    for check in FORMS[name].checks:
        check(FORMS[name])


def public_mechanisms():
    """Classes that have a price, and the functions that build one or more, wherever they live in the package."""
    classes, functions = {}, {}
    for module in pkgutil.iter_modules(stream_svt.mechanisms.__path__, "stream_svt.mechanisms."):
        for name, thing in vars(import_module(module.name)).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.name:
                continue
            if inspect.isclass(thing) and (hasattr(thing, "epsilon") or hasattr(thing, "open")):
                if thing not in {Mechanism, Ranking}:  # bases
                    classes[name] = thing
            elif inspect.isfunction(thing):
                functions[name] = thing
    builders = {
        name: function
        for name, function in functions.items()
        if any(kind in str(function.__annotations__.get("return")) for kind in classes)
    }
    return classes, builders


MADE_OF_RUNS = {"ClippedSum", "multiple_quantiles"}
"""What opens runs of `UnboundedQuantile`, which has forms; the sum of a clipped sum is aligned below."""


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
    """What it costs besides its quantile, whose form is above."""
    quantile = UnboundedQuantile(epsilon=10**9, level=Fraction(1, 2), adjacency=adjacency, base=Fraction(2))
    clipped, chance = ClippedSum(quantile=quantile, charge=10**8), random.Random(9)
    form = QuantileForm(mechanism=quantile, tests=6)
    largest = Fraction(0)
    for kind in form.neighbours * 100:
        first = form.values(chance, 6)
        second = form.neighbour(first, kind, chance)
        bound, noise = clipped.bound(chance.randrange(7)), chance.randint(-9, 9)
        before, after = np.array(first), np.array(second)
        move = clipped.shift(before, after, bound)
        assert clipped.release(before, bound, noise) == clipped.release(after, bound, noise + move)
        cost = abs(move) * clipped.law(bound).rate * 10**9
        assert cost <= clipped.charge
        largest = max(largest, cost)
    assert clipped.law(4).noise is Noise.LAPLACE  # the only family whose noise may move either way
    assert largest == clipped.charge
