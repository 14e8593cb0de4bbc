"""Laws and moments of the noise families, and the grid they live on."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import stream_svt
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Law, Noise
from stream_svt.mechanisms.grid import grid_floor, grid_sensitivity
from stream_svt.mechanisms.noise import (
    MONITORED,
    expectation,
    head,
    mean,
    quantiles,
    tail,
    tails,
    variance,
)
from tests.exact.enumeration import Kind, law
from tests.support.noise import pmf

NARROW, WIDE = Fraction(1, 3), Fraction(1, 1_000_003)
RATES = [Fraction(1, 20), Fraction(1, 3), Fraction(2)]
REACH = range(-1500, 1500)


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("rate", RATES, ids=str)
def test_moments_and_tails_are_those_of_the_law(noise, rate):
    masses = {k: pmf(noise, rate, k) for k in REACH}
    assert sum(masses.values()) == pytest.approx(1)
    average = sum(k * p for k, p in masses.items())
    assert average == pytest.approx(mean(noise, rate), abs=1e-9)
    assert sum((k - average) ** 2 * p for k, p in masses.items()) == pytest.approx(variance(noise, rate))
    for k in (-30, -1, 0, 1, 30):
        assert sum(p for j, p in masses.items() if j >= k) == pytest.approx(tail(noise, rate, k))
        assert sum(p for j, p in masses.items() if j <= k) == pytest.approx(head(noise, rate, k))


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("rate", [*RATES, WIDE], ids=str)
def test_a_quantile_is_the_last_step_that_is_reached_as_often(noise, rate):
    chances = np.array([1e-9, 0.01, 0.3, 0.5, 0.9, 0.999])
    steps = quantiles(noise, rate, chances)
    assert (tails(noise, rate, steps) >= chances * (1 - 1e-12)).all()
    assert (tails(noise, rate, steps + 1) < chances).all()


@pytest.mark.parametrize("noise", MONITORED)
def test_monitored_families_have_the_exact_laws_and_are_one_sided_lipschitz(noise):
    """P(k) <= e^(rate s) P(k + s) for s >= 0, on which the sparse-vector proof relies, in rationals."""
    ratio, rate = Fraction(3, 5), -math.log(3 / 5)
    for k in range(-20, 20):
        mass = law(Kind.EQUAL, noise, ratio, k)
        assert float(mass) == pytest.approx(pmf(noise, rate, k))
        assert float(law(Kind.AT_LEAST, noise, ratio, k)) == pytest.approx(tail(noise, rate, k))
        assert all(mass * ratio**s <= law(Kind.EQUAL, noise, ratio, k + s) for s in range(10))


@pytest.mark.parametrize("rate", RATES, ids=str)
def test_gumbel_noise_is_one_sided_lipschitz_upwards_and_not_downwards(rate):
    for k in range(-40, 80):
        for s in range(10):
            assert pmf(Noise.GUMBEL, rate, k) <= math.exp(rate * s) * pmf(Noise.GUMBEL, rate, k + s) * (
                1 + 1e-12
            )
    far = -math.ceil(3 / rate)  # where the tail has begun to fall doubly exponentially
    assert pmf(Noise.GUMBEL, rate, far) > math.exp(3 * rate) * pmf(Noise.GUMBEL, rate, far - 1)
    assert not Noise.GUMBEL.may_move_down


def test_gumbel_moments_agree_where_the_sum_gives_way_to_the_closed_form(monkeypatch):
    rate = Fraction(1, 7)
    closed = mean(Noise.GUMBEL, rate), variance(Noise.GUMBEL, rate)
    monkeypatch.setattr("stream_svt.mechanisms.noise._WIDE_RATE", 0.0)
    assert (mean(Noise.GUMBEL, rate), variance(Noise.GUMBEL, rate)) == pytest.approx(closed, rel=1e-12)


def test_moments_do_not_overflow_or_lose_digits_at_the_ends():
    assert mean(Noise.EXPONENTIAL, Fraction(5000)) == 0
    assert mean(Noise.EXPONENTIAL, Fraction(1, 2**40)) == pytest.approx(2**40)
    assert variance(Noise.LAPLACE, Fraction(1, 2**40)) == pytest.approx(2 * 2**80)
    assert (mean(Noise.GUMBEL, Fraction(5000)), variance(Noise.GUMBEL, Fraction(5000))) == pytest.approx(
        (-math.exp(-1), math.exp(-1) * (1 - math.exp(-1)))
    )
    assert pmf(Noise.GUMBEL, Fraction(5000), -3) == 0
    assert tail(Noise.GUMBEL, Fraction(5000), -3) == 1


def test_values_go_down_to_the_grid_and_sensitivities_up():
    tenth = Fraction(1, 10)
    assert [grid_floor(Fraction(value), tenth) for value in ("0.19", "0.2", "-0.01", "-7")] == [1, 2, -1, -70]
    assert grid_sensitivity(Fraction("0.11"), tenth) == 2
    assert grid_sensitivity(1, Fraction(1)) == 1
    for numbers in ((Fraction(0), tenth), (Fraction(1), Fraction(0))):
        with pytest.raises(MisuseError):
            grid_sensitivity(*numbers)


def test_floor_moves_neighbours_no_farther_than_the_grid_sensitivity():
    granularity, distance = Fraction(3, 10), Fraction(1)
    steps = grid_sensitivity(distance, granularity)
    for i in range(200):
        value = Fraction(i, 37)
        moved = grid_floor(value + distance, granularity) - grid_floor(value, granularity)
        assert 0 <= moved <= steps


@pytest.mark.parametrize("noise", Noise)
@pytest.mark.parametrize("rate", [Fraction(3), NARROW, Fraction(1, 700), WIDE, Fraction(1, 10**10)])
def test_the_expectations_of_powers_are_the_moments(noise, rate):
    of = Law(noise, rate)
    assert expectation(np.ones_like, of) == pytest.approx(1, rel=1e-12)
    average = expectation(lambda steps: steps, of)
    spread = expectation(lambda steps: (steps - mean(noise, rate)) ** 2, of)
    assert average == pytest.approx(mean(noise, rate), rel=1e-6, abs=1e-6 / float(rate))
    assert spread == pytest.approx(variance(noise, rate), rel=1e-5)


def test_no_other_module_distinguishes_families():
    """`CONTRIBUTING.md` lists these modules as those to change for a new family."""
    package = Path(stream_svt.__file__).parent
    named = re.compile(r"(?:\b(?:is|in|not|case)\b|==)[^\n\"=]*\bNoise\.[A-Z]+|\.draw(?: ==|:\n)")
    distinguishing = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if named.search(path.read_text())
    }
    assert distinguishing == {
        "mechanisms/noise.py",
        "mechanisms/sampler.py",
        "mechanisms/estimates.py",
        "proving/neighbours.py",
    }
    assert all(name in Path("CONTRIBUTING.md").read_text() for name in distinguishing)
