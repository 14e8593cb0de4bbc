"""The best guess that a loss allows, against mechanisms whose best guess is known."""

from __future__ import annotations

from math import erf, exp, sqrt

import pytest

from stream_svt.privacy.loss import Kind
from stream_svt.privacy.meaning import best_guess


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response_reaches_the_best_guess_of_its_epsilon(epsilon: float) -> None:
    """It tells the truth with probability e / (1 + e), and no mechanism of that epsilon says more."""
    assert best_guess(epsilon, Kind.PURE) == pytest.approx(exp(epsilon) / (1 + exp(epsilon)))


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.5, 2.0, 10.0])
def test_the_gaussian_mechanism_stays_below_the_best_guess_of_its_rho(rho: float) -> None:
    """A shift of one against noise of deviation 1 / sqrt(2 rho): the best test is right Phi(shift / 2 deviations)."""
    right = (1 + erf(sqrt(2 * rho) / 2 / sqrt(2))) / 2
    assert right < best_guess(rho, Kind.ZCDP) <= 1.0


@pytest.mark.parametrize("kind", list(Kind))
def test_no_loss_is_a_coin_and_more_loss_is_a_better_guess(kind: Kind) -> None:
    guesses = [best_guess(loss, kind) for loss in (0.0, 0.05, 0.5, 1.0, 5.0)]
    assert guesses[0] == 0.5
    assert guesses == sorted(set(guesses))


def test_a_negative_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        best_guess(-0.1, Kind.PURE)
