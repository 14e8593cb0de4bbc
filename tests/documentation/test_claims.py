"""Numbers that the explanations say in their sentences, computed again."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from docs.generator import example, run_pictures
from docs.generator.epsilon_figures import (
    CUTOFFS,
    EPSILONS,
    QUERIES,
    bought,
    monitor_of,
    most_certain,
    sure_margin,
)
from stream_svt.mechanisms import noise
from stream_svt.mechanisms.noise import Noise
from stream_svt.monitor.released import EventType
from stream_svt.planning import purchase
from stream_svt.planning.budget import reported_margin
from stream_svt.privacy.loss import Kind
from stream_svt.privacy.meaning import best_guess
from stream_svt.settings.application_document import load_spec
from tests.documentation.pages import ROOT, blocks


def _page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def test_a_report_speaks_at_most_its_price_and_no_report_at_most_that_of_the_threshold():
    mechanism = run_pictures.shown_mechanism()
    of_report, of_none = run_pictures.evidence(*run_pictures.odds(mechanism, range(-100, 61)))
    assert max(of_report) == pytest.approx(mechanism.branches[0].charge / 10**9)
    assert max(of_none) == pytest.approx(mechanism.threshold_charge / 10**9)


def test_one_sided_noise_has_half_the_variance():
    for rate in (Fraction(1, 100), Fraction(1, 6), Fraction(1)):
        assert noise.variance(Noise.LAPLACE, rate) == pytest.approx(
            2 * noise.variance(Noise.EXPONENTIAL, rate)
        )


def test_beliefs_move_as_far_as_the_page_says():
    page = _page("what-epsilon-buys.md")
    told = re.findall(r"(\d+) % sure after epsilon (\d)", page)
    assert len(told) == 2
    for percent, epsilon in told:
        assert round(100 * most_certain(0.5, float(epsilon))) == int(percent)


def test_rho_is_converted_as_the_page_says():
    rho, delta = 0.1, 1e-6
    epsilon = rho + 2 * (rho * math.log(1 / delta)) ** 0.5
    page = _page("what-epsilon-buys.md")
    assert f"give {epsilon:.2f}." in page
    assert (
        f"guesses right at most {100 * best_guess(rho, Kind.ZCDP):.0f} times in 100 after a rho of {rho}."
        in page
    )
    assert most_certain(0.5, 1) == pytest.approx(best_guess(1, Kind.PURE))


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_twice_the_epsilon_halves_the_distance(cutoff):
    for epsilon in EPSILONS:
        once, twice = sure_margin(epsilon, cutoff), sure_margin(2 * epsilon, cutoff)
        assert abs(once - 2 * twice) <= max(2, once / 50)


def test_ten_times_the_alerts_take_three_to_seven_times_the_distance():
    ratios = {
        float(sure_margin(epsilon, many) / sure_margin(epsilon, few))
        for epsilon in EPSILONS
        for few, many in ((1, 10), (10, 100))
    }
    assert 3 <= min(ratios) <= max(ratios) < 7.5


def test_ten_times_the_queries_take_a_little_more_than_two_noise_scales():
    monitor = monitor_of(Fraction(1), 10)
    more = monitor.model_copy(update={"expected_queries": 10 * QUERIES})
    further = reported_margin(more, 0.95) - reported_margin(monitor, 0.95)
    assert 2 < further / Fraction(bought(Fraction(1), 10).query_scale) < 2.5


def test_what_is_certain_and_what_hardly_happens_at_epsilon_1_with_ten_alerts():
    assert reported_margin(monitor_of(Fraction(1), 10), 0.97) < 200
    assert reported_margin(monitor_of(Fraction(1), 10), 0.001) > 50


def test_the_tutorial_says_from_where_on_its_own_monitor_is_sure():
    page = _page("tutorial.md")
    [text] = [block.text for block in blocks(Path("docs/tutorial.md")) if block.name == "monitors.yaml"]
    spec = load_spec(text)
    [monitor], [dataset] = spec.monitors, spec.datasets
    sure = monitor.threshold + purchase(monitor, dataset).sure_margin
    assert f"A town with {sure} visits or more is as good as certain" in page
    assert reported_margin(monitor, 0.1) > 10  # "One with 110 is not"
    mechanism = monitor.mechanism()
    assert f"threshold cost {mechanism.threshold_charge / 10**9:.3f}, once" in page
    assert f"this alert {mechanism.branches[0].charge / 10**9:.3f}." in page
    assert yaml.safe_load(text)["topics"]["partitions"] == 2


def test_the_alert_on_the_messages_page_is_told_in_its_own_numbers():
    alert = example.events()[EventType.ALERT]["data"]
    page = _page("messages.md")
    assert f"around {alert['threshold']:g} + {alert['correction']:g}, by {alert['gap']:g}." in page
    assert f"The true count is at least {alert['bound']:g};" in page
    assert f"cost epsilon {alert['account']['charge']:.3f}, and {alert['account']['spent']:.2f} of" in page
    assert alert["bound"] <= example.QUERY["value"]
