"""What a budget buys, against sums done by hand and by simulation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.planning import explain, purchase
from stream_svt.settings.application_document import load_spec


def spec(monitor: str = "", limit: str = "{epsilon: 4}"):
    return load_spec(
        f"""
application: shop
datasets: [{{name: today, limit: {limit}, unit: one basket}}]
monitors:
  - {{name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, bounds: [0, 100000],
      threshold: 500{monitor}}}
"""
    )


def bought(monitor: str = "", limit: str = "{epsilon: 4}"):
    application = spec(monitor, limit)
    return purchase(application.monitors[0], application.datasets[0])


STREAM = ", expected_queries: 1000000"


def test_runs_and_alerts_are_what_the_limit_divides_into():
    plan = bought(STREAM)
    assert (plan.runs, plan.alerts_per_run, plan.last_run_alerts, plan.alerts) == (4, 10, 0, 40)


def test_what_is_left_after_whole_runs_buys_a_shorter_one():
    # split 5: the threshold costs 1/6, each of ten alerts 1/12; 0.51 left pays threshold and four alerts.
    plan = bought(STREAM, limit="{epsilon: 3.51}")
    assert (plan.runs, plan.last_run_alerts, plan.alerts) == (3, 4, 34)


def test_a_reserve_is_not_spent():
    assert bought(STREAM + ", reserve: 2").runs == 2


def test_scales_are_in_real_units():
    plan = bought(STREAM + ", granularity: 1/4")
    assert plan.query_scale == pytest.approx(12, rel=1e-3)
    assert plan.threshold_scale == pytest.approx(6, rel=1e-3)


def test_zcdp_counts_whole_runs_only():
    plan = bought(STREAM, limit="{rho: 1}")
    assert plan.runs * plan.run_price <= plan.limit < (plan.runs + 1) * plan.run_price
    assert plan.last_run_alerts == 0


@pytest.mark.parametrize("form", ["svt", "adaptive"])
@pytest.mark.parametrize("law", ["exponential", "laplace"])
def test_margins_are_the_distances_at_which_a_test_reports_that_often(form, law):
    application = spec(f"{STREAM}, mechanism: {form}, query_noise: {law}")
    mechanism = application.monitors[0].mechanism()
    plan = bought(f"{STREAM}, mechanism: {form}, query_noise: {law}")
    generator = np.random.default_rng(4)
    count = 200_000

    def draw(rate):
        return generator.geometric(-np.expm1(-float(rate)), count) - 1

    for margin, chance in ((plan.even_margin, 0.5), (plan.sure_margin, 0.95)):
        here, below = [], []
        for branch in mechanism.branches:
            query = draw(branch.rate) - (draw(branch.rate) if law == "laplace" else 0)
            bar = branch.corrections[0] + draw(mechanism.threshold_rate)
            here.append(np.mean(int(margin) + query >= bar))
            below.append(np.mean(int(margin) - 1 + query >= bar))
        assert max(below) - 0.005 < chance < max(here) + 0.005


def test_the_bound_on_false_alerts_is_the_one_tolerated():
    plan = bought(STREAM)
    assert 0.9 < plan.false_alerts <= 1
    assert bought(STREAM + ", correction: {exposure: {false_alerts: 3}}").false_alerts == pytest.approx(
        3, rel=0.1
    )
    assert bought(STREAM + ", append: {retry: {attempts: 5}}").false_alerts <= 1
    assert bought(STREAM + ", mechanism: adaptive").false_alerts <= 1


def test_the_bound_holds_for_values_on_the_threshold():
    """Simulated runs of queries that all lie exactly on the threshold report no more than the bound."""
    text = ", expected_queries: 20000, correction: {exposure: {false_alerts: 2}}"
    mechanism = spec(text).monitors[0].mechanism()
    branch = mechanism.branches[0]
    generator = np.random.default_rng(5)
    reports = [
        np.count_nonzero(
            generator.geometric(-np.expm1(-float(branch.rate)), 20_000) - 1
            >= branch.corrections[0] + generator.geometric(-np.expm1(-float(mechanism.threshold_rate))) - 1
        )
        for _ in range(300)
    ]
    assert np.mean(reports) <= bought(text).false_alerts


def test_no_bound_is_claimed_where_none_holds():
    assert bought(", correction: none").false_alerts is None
    assert bought(STREAM + ", threshold_noise: laplace").false_alerts is None
    assert bought(", append: sweep, correction: annealed").false_alerts is None


def test_a_finer_grid_leaves_margins_about_where_they_were():
    coarse, fine = bought(STREAM), bought(STREAM + ", granularity: 1/8")
    assert abs(coarse.sure_margin - fine.sure_margin) <= 3
    assert fine.sure_margin % Fraction(1, 8) == 0


def test_the_words_say_what_is_protected_detected_wasted_and_when_it_ends():
    text = "\n".join(explain(spec(STREAM)))
    assert "Monitor hot on today:" in text
    assert "Protects one basket: whatever is published about it costs at most epsilon 4." in text
    assert "19 times in 20" in text
    assert "if a run lasts for 1,000,000 queries" in text
    assert "10 alerts a run" in text
    assert "4 whole runs: 40 alerts in all" in text
    assert "raises the budget" in text


def test_a_monitor_that_stops_says_so():
    assert "then it stops until an operator resamples it" in "\n".join(
        explain(spec(STREAM + ", on_halt: stop"))
    )


def test_datasets_alike_are_described_once_and_sharing_is_mentioned():
    application = load_spec(
        """
application: shop
datasets: [{names: [a, b, c], limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 9, sensitivity: 1,
     bounds: [0, 9], threshold: 5, expected_queries: 9}
  - {name: cold, topic: t, epsilon: 1, cutoff: 9, sensitivity: 1,
     bounds: [0, 9], threshold: 5, expected_queries: 9}
"""
    )
    text = explain(application)
    assert sum(line.startswith("Monitor") for line in text) == 2
    assert any("each of 3 datasets (a, ..)" in line for line in text)
    assert any("Shares   the budget with cold" in line for line in text)


def test_of_what_was_carried_over_only_the_rest_lasts():
    spent = 5 * 10**8
    whole = spec(STREAM)
    datasets = tuple(
        replace(whole.datasets[0], name=name, spent_before=spent * number)
        for number, name in enumerate("abc")
    )
    text = "\n".join(explain(replace(whole, datasets=datasets)))
    assert "each of 3 datasets (a, ..)" in text
    assert (
        "Carried  over: epsilon 1 of the limit was spent before, the most of any, of c; it lasts for the rest."
        in text
    )
    assert "for 3 whole runs: 30 alerts in all" in text
    assert "costs at most epsilon 4" in text
