"""Margins from deciles: what is known is met, and the tail between goes through the known points."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.planning.looked import margins_after_look

DECILES = [-499, -499, -498, -497, -495, -490, -480, -450, -400]
"""Of counts with a heavy tail, less a threshold of 500."""


def test_shares_of_margins_are_those_of_the_deciles_and_the_positives():
    above, below = margins_after_look(DECILES, 0.01, 300, 500)
    assert len(above) == len(below)
    # One in a hundred values is positive: of the others, these shares lie below.
    for tenth, margin in enumerate(DECILES[4:], 5):
        share = 1 - (1 - tenth / 10 - 0.01) / 0.99
        assert np.quantile(-below, share) == pytest.approx(margin, abs=5)
    assert 0 <= below.min() < 10
    assert np.median(above) == pytest.approx(300, rel=0.01)
    assert above.min() == pytest.approx(0, abs=2)


def test_a_tail_of_power_law_is_found_again():
    """Of values with P(X > x) = x^-1.5 the deciles and the positives tell the rest."""
    chances = (np.arange(100_000) + 0.5) / 100_000
    values = chances**-1.5
    threshold, deciles = 1_000.0, [float(np.quantile(values, tenth / 10) - 1_000) for tenth in range(1, 10)]
    positives = float((values >= threshold).mean())
    real = np.median(values[values >= threshold]) - threshold
    above, below = margins_after_look(deciles, positives, float(real), threshold)
    for margin in (100, 300, 600, 900):
        share = ((values < threshold) & (values > threshold - margin)).sum() / (values < threshold).sum()
        assert (below < margin).mean() == pytest.approx(share, rel=0.15, abs=0.0008)
    assert np.quantile(above, 0.9) == pytest.approx(
        np.quantile(values[values >= threshold], 0.9) - threshold, rel=0.1
    )


def test_values_of_an_unknown_origin_begin_with_the_lowest_decile():
    deciles = [-300, -200, -100, -50, -20, -10, -5, -3, -2]
    _, below = margins_after_look(deciles, 0.01, 30, 0)
    assert np.median(below) == pytest.approx(20, abs=3)
    assert below.max() <= 301


@pytest.mark.parametrize(
    ("deciles", "positives", "says"),
    [
        (DECILES[:8], 0.01, "nine deciles that rise"),
        (DECILES[::-1], 0.01, "nine deciles that rise"),
        ([*DECILES[:6], 1, 2, 3], 0.01, "more than 30% of the values lie above"),
    ],
)
def test_deciles_that_contradict_what_is_said_are_refused(deciles, positives, says):
    with pytest.raises(MisuseError, match=says):
        margins_after_look(deciles, positives, 300, 500)


def test_as_many_positives_as_deciles_say_are_no_contradiction():
    above, _ = margins_after_look([*DECILES[:6], 1, 2, 3], 0.35, 2, 500)
    assert np.median(above) == pytest.approx(2, abs=0.1)
