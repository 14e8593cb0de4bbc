"""Beliefs about queries: percentiles, ranges, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.planning import Belief, Drift, Workload, from_percentiles
from stream_svt.planning.workload import thinned, weibull


@pytest.mark.parametrize(
    ("points", "met"),
    [
        # They are joined by straight lines; beyond the last one margins go on like an exponential law.
        ([(20, 10), (50, 40), (100, 90)], [(5, 0.1), (10, 0.2), (25, 0.35), (40, 0.5), (65, 0.75)]),
        ([(50, 10)], [(20, 3 / 4), (40, 15 / 16)]),
    ],
)
def test_percentiles_are_met_joined_and_continued(points, met):
    margins = from_percentiles(points)
    for margin, share in met:
        assert np.mean(margins <= margin) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    "points", [[], [(50, 10), (40, 20)], [(50, 10), (60, 5)], [(0, 10)], [(101, 10)], [(-5, 1)]]
)
def test_percentiles_that_do_not_rise_are_refused(points):
    with pytest.raises(MisuseError, match="rise"):
        from_percentiles(points)


@pytest.mark.parametrize("shape", [0.5, 1, 4])
def test_a_weibull_law_keeps_its_median_whatever_its_shape(shape):
    assert np.median(weibull(30, shape)) == pytest.approx(30, rel=0.01)


def around(belief):
    return belief.spread(belief.central(100))


def test_a_belief_in_medians_spreads_over_scales_and_shapes():
    loads = around(Belief(positives=0.1, above=10, below=20, factor=3))
    assert len(loads) == 8
    medians = sorted(float(np.median(load.above)) for load in loads)
    assert medians[0] == pytest.approx(10 / 3, rel=0.01)
    assert medians[-1] == pytest.approx(30, rel=0.01)
    near = [np.mean(load.below < 2) for load in loads]
    assert max(near) > 0.2
    assert min(near) == 0


@pytest.mark.parametrize(
    ("factor", "spread"), [({}, [[2.5, 5, 7.5], [10, 20, 30]]), ({"factor": 1}, [])], ids=["doubt", "none"]
)
def test_a_belief_in_quantiles_spreads_over_scales_alone_as_far_as_it_doubts(factor, spread):
    known = np.array([5.0, 10.0, 15.0])
    loads = around(Belief(positives=0.1, above=known, below=known, **factor))
    assert [load.above.tolist() for load in loads] == spread


def test_thinning_keeps_the_distribution():
    margins = np.random.default_rng(1).lognormal(0, 1, 10_000)
    few = thinned(margins, 50)
    assert len(few) == 50
    assert np.mean(few) == pytest.approx(np.mean(margins), rel=0.05)
    assert np.median(few) == pytest.approx(np.median(margins), rel=0.05)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queries": 0}, "at least one query"),
        ({"positives": 0}, "strictly between"),
        ({"positives": 1}, "strictly between"),
        ({"rate": 0}, "rate"),
        ({"above": np.array([])}, "margins above"),
        ({"below": np.array([-1.0])}, "margins below"),
        ({"below": np.array([np.nan])}, "margins below"),
        ({"finite": True, "drift": Drift(queries=10, start=1)}, "do not drift"),
    ],
)
def test_a_workload_without_a_meaning_is_refused(change, reason):
    good = {"queries": 10, "positives": 0.5, "above": np.array([1.0]), "below": np.array([1.0])}
    with pytest.raises(MisuseError, match=reason):
        Workload(**{**good, **change})
    with pytest.raises(MisuseError, match="drift"):
        Drift(queries=0, start=1)


@pytest.mark.parametrize(
    "wrong", [{"above": 0, "below": 1}, {"above": 1, "below": 1, "factor": 0.5}], ids=str
)
def test_a_belief_without_a_meaning_is_refused(wrong):
    with pytest.raises(MisuseError, match=r"median margins are greater than 0, and the factor .* at least 1"):
        Belief(positives=0.1, **wrong)
