"""The planner's model, compared with exact sums, simple laws and the real mechanism."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.planner import Noises
from stream_svt.errors import MisuseError
from stream_svt.mechanisms import Annealed, Exposure, Noise, adaptive, estimates, noise, sparse_vector
from stream_svt.mechanisms.noise import Law
from stream_svt.planning import Belief, Drift, Workload, forecast, from_percentiles
from stream_svt.planning.model import (
    THRESHOLDS,
    report_chances,
    thinned,
    threshold_quantiles,
    trajectory,
    weibull,
)
from tests.support.monitor_forms import spec_of

EPSILON = 1
STREAM = "expected_queries: 10000, correction: {exposure: {false_alerts: 10}}"


def stream_mechanism(*, cutoff=20, queries=10_000, tolerated=1, **options):
    correction = Exposure(expected_queries=queries, false_alerts=Fraction(tolerated))
    return sparse_vector(epsilon=EPSILON, cutoff=cutoff, monotonic=True, correction=correction, **options)


def workload(above, below, *, queries=10_000, positives=0.001, **options):
    return Workload(
        queries=queries,
        positives=positives,
        above=np.atleast_1d(np.array(above, float)),
        below=np.atleast_1d(np.array(below, float)),
        **options,
    )


def monitor(extra, granularity="1"):
    form = "topic: counts, epsilon: 1, cutoff: 20, sensitivity: 1, monotonic: true, bounds: [-100000, 100000]"
    return spec_of(f"{form}, threshold: 0, granularity: {granularity}, {extra}").monitors[0]


def retrying(attempts, every, lifetime, capacity=10**6, stream=STREAM):
    queue = f"attempts: {attempts}, every: {every}, lifetime: {lifetime}, capacity: {capacity}"
    return monitor(f"{stream}, append: {{retry: {{{queue}}}}}")


@pytest.mark.parametrize("family", list(Noise))
def test_threshold_noise_is_cut_into_equal_shares(family):
    law = Law(family, Fraction(1, 1000))
    middles = threshold_quantiles(law)
    below = [1 - noise.tail(family, law.rate, int(k) + 1) for k in middles]
    assert below == pytest.approx((np.arange(THRESHOLDS) + 0.5) / THRESHOLDS, abs=0.001)


@pytest.mark.parametrize("family", [Noise.EXPONENTIAL, Noise.LAPLACE])
def test_the_recall_of_one_margin_is_the_chance_that_one_test_reports_it(family):
    # The cutoff is out of reach, so that nothing but the noise decides.
    mechanism = stream_mechanism(cutoff=1000, tolerated=100, query_noise=family, threshold_noise=family)
    branch = mechanism.branches[0]
    for margin in (1000, 5000, 8000):
        laws = mechanism.branch_laws[0], mechanism.threshold_law
        exact = estimates.survival(*laws, branch.corrections[0] - margin)
        plan = forecast(mechanism, workload(margin, 10**7))
        assert plan.recall == pytest.approx(exact, abs=0.01)
        assert plan.false_alerts < 1e-6


def test_margins_that_are_certain_use_the_budget_up():
    mechanism = stream_mechanism(cutoff=20)
    plan = forecast(mechanism, workload(10**6, 10**6, positives=0.01))
    assert plan.alerts == pytest.approx(20, abs=0.01)
    assert plan.recall == pytest.approx(0.2, abs=0.001)
    assert plan.precision == pytest.approx(1)
    assert plan.ends == pytest.approx(1)
    assert plan.life == pytest.approx(2000, rel=1e-6)


@pytest.mark.parametrize("expected", [6, 14])
def test_the_end_of_the_budget_is_close_to_that_of_a_poisson_law(expected):
    mechanism = stream_mechanism(cutoff=10, queries=100_000)
    plan = forecast(mechanism, workload(10**6, 10**6, queries=100_000, positives=expected / 100_000))
    law = [math.exp(-expected) * expected**k / math.factorial(k) for k in range(60)]
    assert plan.alerts == pytest.approx(sum(min(10, k) * p for k, p in enumerate(law)), abs=0.1)


def test_the_model_agrees_with_the_real_mechanism_where_many_values_are_near_the_threshold():
    rng = np.random.default_rng(3)
    below, above = rng.gamma(2, 60, 300), rng.gamma(1.5, 150, 300)
    mechanism = adaptive(
        epsilon=EPSILON * 3, cutoff=30, monotonic=True,
        correction=Exposure(expected_queries=3000, false_alerts=Fraction(60)),
    )  # fmt: skip
    noises, true, alerts, positives = Noises(mechanism, rng), 0, 0, 0
    for rho in noises.thresholds(150):
        positive = rng.random(3000) < 0.02
        values = np.where(positive, rng.choice(above, 3000), -rng.choice(below, 3000))
        run = mechanism.open(int(rho), (0, 0))
        _, outcomes = mechanism.step(run, np.floor(values).astype(np.int64), 0, 0, noises.of(3000))
        tops = [top.row for top in outcomes.tops]
        true, alerts, positives = true + positive[tops].sum(), alerts + len(tops), positives + positive.sum()
    plan = forecast(mechanism, workload(above, below, queries=3000, positives=0.02))
    assert plan.precision == pytest.approx(true / alerts, abs=0.03)
    assert plan.recall == pytest.approx(true / positives, abs=0.03)
    assert plan.alerts == pytest.approx(alerts / 150, rel=0.05)


def test_drifting_series_are_found_only_by_retries_that_live_long_enough():
    load = workload(1500, 4000, drift=Drift(queries=1000, start=1000))
    once = forecast(monitor(STREAM), load)
    short, long, ended = (
        forecast(retrying(4, every, lifetime), load)
        for every, lifetime in ((100, 300), (600, 1800), (600, 250))
    )
    assert max(once.recall, short.recall, ended.recall) < 0.01
    assert long.recall > 0.8
    assert 600 < long.delay < 1800


def test_queries_of_the_last_round_are_not_retried():
    # One round after 900 of 1000 queries, in which every positive that came before is found.
    load = workload(5000, 4000, queries=1000, drift=Drift(queries=1, start=1000))
    found = forecast(retrying(2, 900, 900, stream=STREAM.replace("10000", "1000")), load)
    assert found.recall == pytest.approx(0.9, abs=0.01)


def test_a_falling_bar_fills_the_cutoff_and_a_higher_end_does_not():
    # 10 positives for 20 alerts.
    load = workload(1000, 80, queries=1000, positives=0.01, finite=True)

    def plan(end):
        correction = Annealed(end=Fraction(end))
        return forecast(
            sparse_vector(epsilon=EPSILON, cutoff=20, monotonic=True, correction=correction), load
        )

    assert plan(-3).alerts == pytest.approx(20, abs=0.5)
    assert plan(-3).precision == pytest.approx(0.5, abs=0.02)
    assert plan(6).precision > 0.98
    assert plan(6).recall > 0.98
    assert plan(6).delay == 0
    assert plan(6).life == pytest.approx(2, abs=0.05)


def test_a_monitors_grid_retries_and_sweeps_are_those_of_its_specification():
    load = workload(400, 500)
    coarse, fine = forecast(monitor(STREAM), load), forecast(monitor(STREAM, "1/4"), load)
    assert fine.recall == pytest.approx(coarse.recall, abs=0.01)
    drifting = replace(load, drift=Drift(queries=1000, start=100), rate=10.0)
    kept, full, timed = (
        forecast(retrying(4, 600, *queue), drifting) for queue in ((1000,), (3000, 1000), ("100s", 9000))
    )
    assert kept == full == timed
    sweep = "correction: annealed, append: {sweep: {alerts_per_set: 5}}"
    capped = forecast(monitor(sweep), workload(4000, 500, positives=0.01, queries=1000, finite=True))
    assert capped.alerts == pytest.approx(5, abs=0.05)
    assert capped.life == pytest.approx(4, abs=0.1)


def test_the_course_ends_at_the_forecast_and_never_goes_back():
    mechanism, load = stream_mechanism(tolerated=100), workload(700, 600, positives=0.004)
    plan, run = forecast(mechanism, load), trajectory(mechanism, load)
    assert run.true_alerts[:, -1].mean() == plan.true_alerts
    assert (np.diff(run.true_alerts, axis=1) >= 0).all()
    assert (np.diff(run.over, axis=1) >= -1e-12).all()
    assert run.over[:, 0].max() == 0


def test_report_chances_rise_with_the_distance_and_with_attempts():
    distances = np.array([-100.0, 0.0, 300.0, 900.0])
    once = report_chances(monitor(STREAM), distances)
    assert (np.diff(once, axis=1) >= 0).all()
    assert once.shape == (THRESHOLDS, 4)
    swept = report_chances(monitor("correction: annealed, append: sweep"), distances)
    assert swept[:, 1].mean() > 0.9 > once[:, 1].mean()


def test_contradictions_are_refused():
    load = workload(100, 100)
    stream = monitor("expected_queries: 10, append: {retry: {lifetime: 1h}}")
    for finite, why in ((False, "rate"), (True, "append: sweep")):
        with pytest.raises(MisuseError, match=why):
            forecast(stream, replace(load, finite=finite))


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
