"""The exponential mechanism with gap: its law exactly, and both ways to run it against that law."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np

from stream_svt.mechanisms.contract import Top
from stream_svt.mechanisms.selection.exponential_mechanism import (
    ExponentialMechanism,
    NoisyMaxGumbel,
    draw_gap,
    draw_index,
)
from tests.exact.contract import gap_probability, tail_probability

EPSILON = Fraction(4, 5)
SALT = (0, 0)
UTILITIES = (3, 5, 5, 1)


def chi_square(counts, law, draws):
    """Statistic less its mean, in standard deviations; cells below 10 expected are put together."""
    expected = {cell: draws * p for cell, p in law.items() if draws * p >= 10}
    rest = draws - sum(expected.values())
    statistic = sum((counts[cell] - e) ** 2 / e for cell, e in expected.items())
    statistic += (draws - sum(counts[cell] for cell in expected) - rest) ** 2 / rest
    return (statistic - len(expected)) / math.sqrt(2 * len(expected))


def test_the_gap_by_steps_has_the_law_of_the_closed_form():
    """Lower the winner by a step and draw again; continue after a win or with probability e^-l: the exact law."""
    ratio = Fraction(3, 5)
    for row in range(4):
        probability = tail_probability(UTILITIES, row, 0, ratio)
        for gap in range(12):
            lowered = [u - (gap + 1) * (i == row) for i, u in enumerate(UTILITIES)]
            again = tail_probability(lowered, row, 0, ratio)
            probability *= again + (1 - again) * ratio
            assert probability == tail_probability(UTILITIES, row, gap + 1, ratio)


def test_noisy_max_with_gumbel_noise_has_that_law_too():
    mechanism = NoisyMaxGumbel(epsilon=EPSILON, monotonic=False)
    rate = mechanism.branch_laws[0].rate
    assert rate == ExponentialMechanism(epsilon=EPSILON, monotonic=False).rate / mechanism.refinement
    draws = 8_000
    noise = np.floor(np.random.default_rng(2).gumbel(scale=float(1 / rate), size=(draws, 4))).astype(np.int64)
    outcomes = []
    for row in noise:
        _, selection = mechanism.step(mechanism.open(0, SALT), np.array(UTILITIES), lambda _, row=row: row)
        outcomes.append((selection.tops[0].row, selection.tops[0].gap))
    ratio = math.exp(-rate * mechanism.refinement)
    law = {outcome: gap_probability(UTILITIES, *outcome, ratio) for outcome in product(range(4), range(60))}
    assert abs(chi_square(Counter(outcomes), law, draws)) < 5


def test_the_drawn_gap_is_the_quantile_of_its_uniform_number():
    ratio = 0.5
    rate = Fraction(math.log(2)).limit_denominator(10**15)
    for bits in range(2**59, 2**64, 2**60):
        gap = draw_gap(np.array(UTILITIES), 1, rate, lambda bits=bits: bits)
        own = tail_probability(UTILITIES, 1, 0, ratio)
        tails = [tail_probability(UTILITIES, 1, m, ratio) / own for m in (gap, gap + 1)]
        assert tails[1] < bits / 2**64 <= tails[0]


def test_a_uniform_number_that_decides_nothing_is_refined():
    """Half of the total of two equal weights lies on the border between them, so further words decide."""
    for further in ([2**64 - 1], [0, 5]):
        read = iter([2**63, *further])
        assert draw_index(np.array([4, 4]), Fraction(1, 2), lambda read=read: next(read)) == 1
        assert list(read) == []
    read = iter([2**63 - 1, 5])
    assert draw_index(np.array([4, 4]), Fraction(1, 2), lambda: next(read)) == 0


def test_a_gap_is_exact_where_floats_have_no_digits_left():
    """U is slightly above 1/2 and 1/R = e^128, so ln((1 + R - U)/(U R)) lies just below 128."""
    far = np.array([2**46, -(2**46)])
    assert draw_gap(far, 0, Fraction(1, 2**40), lambda: 2**63) == 2**47 - 1


def test_a_hundred_thousand_utilities_are_drawn_from():
    values = np.zeros(100_000, dtype=np.int64)
    values[77_777] = 1000
    mechanism = ExponentialMechanism(epsilon="0.1", monotonic=True)
    chance = random.Random(4)
    _, selection = mechanism.step(mechanism.open(0, SALT), values, lambda: chance.getrandbits(64))
    assert selection.tops[0].row == 77_777
    assert abs(selection.tops[0].gap - (1000 - 10 * math.log(100_000))) < 200


def test_the_gap_may_be_kept():
    mechanism = ExponentialMechanism(epsilon=EPSILON, monotonic=True, release_gap=False)
    _, selection = mechanism.step(mechanism.open(0, SALT), np.array([1, 90]), lambda: 2**63)
    assert selection.tops == (Top(row=1, gap=None),)
