"""The privacy loss of tiny instances, computed exactly: never above the charge, and attained."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream_svt.mechanisms import Branch, Noise, SparseVector
from tests.exact.enumeration import (
    Kind,
    Model,
    Rung,
    Transcript,
    exceeds,
    neighbours,
    shared,
    transcripts,
    worst,
)

EXP, LAP = Noise.EXPONENTIAL, Noise.LAPLACE
PAIRS = [(EXP, EXP), (EXP, LAP), (LAP, EXP), (LAP, LAP)]


@pytest.mark.parametrize("monotonic", [True, False], ids=["monotonic", "general"])
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_probabilities_of_all_outputs_sum_to_exactly_one(noises, monotonic):
    for model in [
        shared(noises, monotonic, queries=3),
        shared(noises, monotonic, retries=1, corrections=(1, 0)),
        shared(noises, monotonic, resample=True),
        two_branches(noises, monotonic),
    ]:
        values = (1, -1, 0, 2, -2, 0)
        assert sum(transcript.probability(model, values) for transcript in transcripts(model)) == 1


@pytest.mark.parametrize("distance", [1, 2])
@pytest.mark.parametrize("monotonic", [True, False], ids=["monotonic", "general"])
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_a_run_with_one_threshold_loses_at_most_its_charge_and_attains_it(noises, monotonic, distance):
    model = shared(noises, monotonic, distance=distance)
    found = worst(model, neighbours(2, distance, monotonic))
    assert found.violations == 0
    assert found.attained if noises[1] is EXP else found.largest > 0.94


@pytest.mark.slow
@pytest.mark.parametrize("monotonic", [True, False], ids=["monotonic", "general"])
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_three_queries_and_a_cutoff_of_three_lose_at_most_their_charge(noises, monotonic):
    model = shared(noises, monotonic, queries=3, cutoff=3)
    found = worst(model, neighbours(3, 1, monotonic))
    assert found.violations == 0
    assert found.largest > 0.94


@pytest.mark.parametrize("resample", [False, True], ids=["shared", "resample"])
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_retries_with_fresh_noise_and_a_falling_correction_are_free(noises, resample):
    model = shared(noises, True, retries=1, corrections=(1, 0), resample=resample)
    found = worst(model, neighbours(4, 1, True, values=(-1, 0)))
    assert found.violations == 0
    assert found.attained if noises[1] is EXP else found.largest > 0.94


def two_branches(noises, monotonic, *, retries=0):
    """Adaptive sparse vector: charges U and 2 U; after a middle top only the top branch can be paid."""
    reach = 1 if monotonic else 2
    return Model(
        queries=2,
        rungs=(
            Rung(charge=reach, rate=1, corrections=(2, 1)),
            Rung(charge=2 * reach, rate=2, corrections=(1, 0)),
        ),
        tops_charge=3 * reach,
        threshold_charge=1,
        threshold_rate=1,
        threshold_noise=noises[0],
        query_noise=noises[1],
        retries=retries,
    )


@pytest.mark.parametrize("monotonic", [True, False], ids=["monotonic", "general"])
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_two_branches_lose_at_most_their_charge_also_in_top_only_mode(noises, monotonic):
    model = two_branches(noises, monotonic)
    top_only = [t for t in transcripts(model) if t.charge == 1 + model.tops_charge]
    assert top_only
    found = worst(model, neighbours(2, 1, monotonic))
    assert found.violations == 0
    assert found.attained if noises[1] is EXP else found.largest > 0.94


@pytest.mark.slow
@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_two_branches_with_retries_lose_at_most_their_charge(noises):
    model = two_branches(noises, True, retries=1)
    found = worst(model, neighbours(4, 1, True, values=(0,)))
    assert found.violations == 0
    assert found.largest > 0.94


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_a_deep_stream_of_bottoms_costs_only_the_threshold(noises):
    """Sixty-four bottoms: with few, a mechanism almost without threshold noise would pass as well."""
    model = shared(noises, True, queries=65, cutoff=1)
    tests = [(Kind.BELOW, 1, 0, i) for i in range(64)] + [(Kind.EQUAL, 1, 0, 64)]
    below = Transcript((), (tuple(tests),), model.threshold_charge + model.rungs[0].charge)
    p, q = (below.probability(model, (value,) * 65) for value in (-1, 0))
    assert 0 < q < p
    assert not exceeds(p, q, below.charge, model.x)


@pytest.mark.parametrize("noises", PAIRS, ids="-".join)
def test_the_package_decides_as_the_enumerated_model_does(noises):
    """Run the real `step` over a box of noise: outputs have the model's probabilities within the rest."""
    model = two_branches(noises, True)
    unit = 10**6
    mechanism = SparseVector(
        epsilon=4 * unit,
        sensitivity=1,
        monotonic=True,
        threshold_noise=noises[0],
        query_noise=noises[1],
        threshold_charge=unit,
        threshold_rate=Fraction(unit, 10**9),
        branches=tuple(
            Branch(
                name=name,
                charge=rung.charge * unit,
                rate=Fraction(rung.charge * unit, 10**9),
                corrections=rung.corrections,
            )
            for name, rung in zip(("top", "middle"), model.rungs, strict=True)
        ),
    )
    values = np.array([1, 0])
    reach = range(6) if noises[1] is EXP else range(-5, 6)
    starts = range(6) if noises[0] is EXP else range(-5, 6)
    law = {noise: {k: _mass(noise, k) for k in range(-5, 6)} for noise in Noise}
    found = {}
    for rho, first, second, third, fourth in product(starts, reach, reach, reach, reach):
        if abs(rho) + abs(first) + abs(second) + abs(third) + abs(fourth) > 6:
            continue
        noise = np.array([[first, second], [third, fourth]])
        run = mechanism.open(rho, (0, 0))
        run, outcomes = mechanism.step(run, values, 0, 0, lambda branch, noise=noise: noise[branch])
        told = {top.row: (top.branch, min(top.gap, model.largest_gap + 1)) for top in outcomes.tops}
        output = tuple((row, 0, *told.get(row, (-1, 0))) for row in range(outcomes.consumed))
        weight = law[noises[0]][rho](1)
        for index, number in enumerate((first, second, third, fourth)):
            weight *= law[noises[1]][number](1 + index // 2)
        found[output] = found.get(output, 0) + weight
    missing = 1 - sum(found.values())
    exact = {transcript.outcome: transcript.probability(model, (1, 0)) for transcript in transcripts(model)}
    assert set(found) <= set(exact)
    assert all(found.get(output, 0) <= p <= found.get(output, 0) + missing for output, p in exact.items())
    assert missing < Fraction(1, 3)


def _mass(noise, k):
    """P(noise = k) as a function of the rate in units."""

    def at(rate):
        b = Fraction(1, 2) ** rate
        if noise is LAP:
            return (1 - b) / (1 + b) * b ** abs(k)
        return (1 - b) * b**k if k >= 0 else Fraction(0)

    return at
