"""The six variants of Lyu, Su & Li (2017, Figure 1): 1 and 2 are private, 3 to 6 are not.

Restated for D = 1 with discrete Laplace noise at the published scales; rates in units of u. Witness streams
are long enough to reach the figures of the paper's own analysis. What the contract says of them is in
`test_mutants.py`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from stream_svt.mechanisms import Noise
from tests.exact.enumeration import (
    Factor,
    Kind,
    Model,
    Rung,
    expectation,
    log_ratio,
    neighbours,
    transcripts,
    worst,
)

LAP = Noise.LAPLACE


@pytest.fixture
def caught(report):
    """Note an exact loss beside what is claimed."""

    def note(number, loss, claim):
        report.catch(f"Lyu, Su & Li, Algorithm {number}", [f"exact loss {loss:.2f} u of {claim} u claimed"])

    return note


def witness(threshold_rate, query_rate, bottoms, tops):
    """Loss of an output with bottoms on answers that rise by one and tops on answers that fall by one."""

    def probability(shift):
        return expectation(
            [Factor(Kind.BELOW, LAP, query_rate, -shift)] * bottoms
            + [Factor(Kind.AT_LEAST, LAP, query_rate, 6 + shift)] * tops,
            LAP,
            threshold_rate,
        )

    return log_ratio(probability(0), probability(1))


def bits_only(*, threshold_charge, threshold_rate, charge, rate, resample=False):
    """Two queries, cutoff 2, outputs without gaps."""
    return Model(
        queries=2,
        rungs=(Rung(charge=charge, rate=rate),),
        tops_charge=2 * charge,
        threshold_charge=threshold_charge,
        threshold_rate=threshold_rate,
        threshold_noise=LAP,
        query_noise=LAP,
        resample=resample,
        largest_gap=-1,
    )


@pytest.mark.parametrize(
    ("model", "segments"),
    [
        # epsilon 8 u, c = 2: threshold 4 u, queries at 4 u / (2 c)
        (bits_only(threshold_charge=4, threshold_rate=4, charge=2, rate=1), (4, 2)),
        # threshold noise of scale c/epsilon1, drawn again after each top: two segments of 4 u each
        (bits_only(threshold_charge=2, threshold_rate=2, charge=2, rate=1, resample=True), (2, 1)),
    ],
    ids=["algorithm 1", "algorithm 2"],
)
def test_algorithms_1_and_2_never_lose_more_than_their_epsilon_and_reach_it(model, segments):
    assert worst(list(transcripts(model)), neighbours(2, 1, monotonic=False)).violations == 0
    threshold_rate, tops = segments
    losses = [2 / tops * witness(threshold_rate, 1, bottoms, tops) for bottoms in (1, 4, 16, 64, 128)]
    assert max(losses) <= 8 + 1e-9
    assert losses[3] == pytest.approx(8)


def test_algorithm_3_loses_one_unit_for_every_bottom(caught):
    """The noisy answer itself is released (claim 2 u): it bounds the threshold from above for all bottoms."""

    def probability(answer):
        bottoms = [Factor(Kind.BELOW, LAP, 1, -answer)] * 64
        released = Factor(Kind.RELEASED, LAP, 1, 0)  # the noisy answer 0 reached the threshold: rho <= 0
        return expectation([*bottoms, released], LAP, 1)

    assert log_ratio(probability(0), probability(1)) == pytest.approx(64)


def test_algorithm_4_loses_one_and_six_c_quarters_of_its_epsilon(caught):
    """Query noise without c: epsilon 4 u, threshold 1 u, queries at 3 u."""
    loss = witness(1, 3, 64, 2)
    caught(4, loss, 4)
    assert loss == pytest.approx(13)


def test_algorithm_5_loses_without_bound(caught):
    """No query noise: a bottom and a top of equal answers are impossible, of neighbours not."""

    def possible(bottom, top):
        return any(bottom < rho <= top for rho in range(-5, 6))

    assert possible(0, 1)
    assert not possible(0, 0)
    loss = log_ratio(Fraction(1, 2), Fraction(0))
    caught(5, loss, 2)
    assert loss == math.inf


@pytest.mark.parametrize(("tops", "least"), [(4, 8), (16, 31.9)])
def test_algorithm_6_loses_more_with_every_top(caught, tops, least):
    """No cutoff: claim 2 u."""
    loss = witness(1, 1, 64, tops)
    caught(6, loss, 2)
    assert loss >= least
