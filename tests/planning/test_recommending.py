"""Recommendations: which settings are chosen, that they can be pasted, and their text and picture."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.noise import Noise
from stream_svt.planning import Belief, Drift, forecast, monitor_for, recommend
from stream_svt.planning.advice import expectations, settings, table, warnings
from stream_svt.planning.budget import PaidRuns
from stream_svt.planning.recommending import EVEN
from stream_svt.settings.fields import MaxRuns, Retry, Sweep
from tests.support.monitor_forms import spec_of

BELIEF = Belief(positives=0.001, above=1000, below=800)
NONE = Belief(positives=1e-9, above=np.array([1e6]), below=np.array([1e6]), factor=1)


def recommended(*, monotonic=True, form="svt", belief=BELIEF, cutoff=20, present=False, **load):
    monitor = monitor_for(epsilon=1, cutoff=cutoff, monotonic=monotonic, form=form)
    queries = load.pop("queries", 20_000)
    central = belief.central(queries, **load)
    return recommend(monitor, central, belief.spread(central)[:3], present=present)


@cache
def static():
    return recommended()


@cache
def drifting():
    return recommended(drift=Drift(queries=500, start=300))


@cache
def closed_set():
    return recommended(finite=True, queries=5000)


def test_only_series_that_rise_get_a_queue_and_it_outlives_the_rise():
    assert static().best.monitor.append is None
    best = drifting().best
    assert isinstance(best.monitor.append, Retry)
    assert best.lifetime >= 500
    assert best.monitor.append.capacity == best.lifetime
    assert best.forecast.recall > 0.5


def test_a_recommendation_shows_its_best_candidate_and_no_array():
    assert re.fullmatch(r"Recommendation\(best=Candidate\(settings=.*\), tried=\d+\)", repr(static()))
    assert len(repr(static())) < 1000


def test_a_bound_on_waste_is_promised_for_exponential_threshold_noise_only():
    """Laplace threshold noise may put the noisy threshold below the threshold."""
    assert any(text.startswith("At most") for text in warnings(static()))
    monitor = static().best.monitor.model_copy(update={"threshold_noise": Noise.LAPLACE})
    laplace = replace(static(), candidates=(replace(static().best, monitor=monitor),))
    assert not any(text.startswith("At most") for text in warnings(laplace))
    assert any("Laplace noise may put that below" in text for text in warnings(laplace))


def test_a_finite_set_gets_a_sweep_for_the_whole_cutoff_and_with_few_positives_a_fall_that_ends_early():
    sweep = closed_set().best.monitor.append
    assert isinstance(sweep, Sweep)
    assert sweep.alerts_per_set == 20
    assert sweep.max_set_size >= 5000
    assert recommended(finite=True, queries=5000, cutoff=60).best.monitor.correction.end >= 3


def test_the_best_candidate_comes_first_or_is_as_good_and_simpler():
    found = drifting()
    assert found.best.score >= max(candidate.score for candidate in found.candidates) - EVEN
    assert found.tried > len(found.candidates) > 1
    assert found.best not in found.candidates[1:]
    recall = found.best.range("recall")
    assert recall.low <= recall.middle == found.best.forecast.recall <= recall.high


def test_settings_can_be_pasted_and_then_mean_what_was_forecast():
    found = drifting()
    form = "topic: counts, epsilon: 1, cutoff: 20, sensitivity: 1, monotonic: true, bounds: [-100000, 100000]"
    (pasted,) = spec_of(f"{form}, threshold: 0, {', '.join(settings(found.best))}").monitors
    assert pasted.mechanism() == found.best.monitor.mechanism()
    assert forecast(pasted, found.workload) == found.best.forecast


@pytest.mark.parametrize(
    ("form", "monotonic", "splits"),
    [
        ("svt", True, {5, 10, 20}),
        ("ladder", False, {10, 20, 40}),
        ("adaptive", True, {None}),
    ],
)
def test_splits_suit_the_form(form, monotonic, splits):
    found = recommended(form=form, monotonic=monotonic)
    assert {candidate.monitor.split for candidate in found.candidates} <= splits
    assert all(candidate.monitor.form == form for candidate in found.candidates)


def test_the_given_figures_of_a_monitor_stay():
    monitor = monitor_for(epsilon=1, cutoff=20, monotonic=True, sensitivity=2, granularity="1/2")
    monitor = monitor.model_copy(update={"on_halt": "stop"})
    best = recommend(monitor, BELIEF.central(20_000)).best.monitor
    kept = ("epsilon", "cutoff", "sensitivity", "monotonic", "granularity", "on_halt", "threshold", "name")
    assert [getattr(best, name) for name in kept] == [getattr(monitor, name) for name in kept]


def test_the_present_settings_are_shown_where_they_can_be_planned():
    assert recommended(present=True).present is not None
    assert recommended(present=True, finite=True).present is None
    assert "now" in table(recommended(present=True))[-1]


def test_an_epsilon_that_pays_for_nothing_is_refused():
    monitor = monitor_for(epsilon="1e-7", cutoff=2, monotonic=True).model_copy(update={"cutoff": 10_000})
    with pytest.raises(MisuseError, match="raise epsilon"):
        recommend(monitor, BELIEF.central(100))


def text_of(found, budget=None):
    return " ".join([*expectations(found, budget), *warnings(found)])


RETRIES = ("Retries raise the bar", "cannot prefer near misses", "partition", "tests of a drifting series")


@pytest.mark.parametrize(
    ("plan", "words"),
    [(static, ()), (closed_set, ()), (drifting, RETRIES)],
    ids=["static", "set", "drifting"],
)
def test_a_plan_says_that_margins_are_prior_knowledge_and_what_retries_cannot_do(plan, words):
    text = text_of(plan())
    assert all(part in text for part in ("prior knowledge", *words))
    assert not re.search(r"\d[kMGT]\b", text)  # such numbers are for the table


def test_a_plan_of_a_stream_says_when_its_budget_is_used():
    found = recommended(rate=0.01)
    text = text_of(found, PaidRuns(runs=3, last_run_alerts=4))
    assert "3 such runs and 4 further alerts" in text
    assert "max_runs" not in text
    paced = PaidRuns(runs=3, last_run_alerts=4, at_once=MaxRuns(1, 86_400_000))
    assert "; of these, 1 per 1d may begin (max_runs)." in text_of(found, paced)
    assert "days" in text
    assert "false_alerts to 2" in text or found.best.tolerated <= 2


def test_a_run_that_will_not_last_is_announced_and_without_alerts_it_lasts_for_ever():
    many = Belief(positives=0.05, above=np.array([1000.0]), below=np.array([1000.0]), factor=1)
    assert "likely to end" in text_of(recommended(belief=many))
    assert "likely to end" not in text_of(static())
    found = recommended(belief=NONE)
    assert "hardly ever" in text_of(found, PaidRuns(runs=1, last_run_alerts=0))
    assert "unlimited" in " ".join(table(found))


def test_a_plan_of_a_set_says_what_a_fall_below_the_threshold_does():
    few = Belief(positives=0.001, above=np.array([10.0]), below=np.array([10.0]), factor=1)
    found = recommended(belief=few, finite=True, queries=5000)
    assert "top-k" in text_of(found)
    assert ("uses up the cutoff" in text_of(found)) == (found.best.monitor.correction.end < Fraction(3))
