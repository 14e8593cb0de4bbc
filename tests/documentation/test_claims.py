"""Numbers that the explanations say in their sentences, computed again."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from docs.generator import example, pictures
from docs.generator.epsilon_figures import (
    CUTOFFS,
    EPSILONS,
    QUERIES,
    monitor_of,
    most_certain,
    sure_margin,
)
from stream_svt.mechanisms import Explicit, noise, sparse_vector
from stream_svt.mechanisms.noise import Noise
from stream_svt.monitor.released import EventType
from stream_svt.planning.budget import SURE, reported_margin
from stream_svt.privacy.loss import Kind, best_guess
from stream_svt.settings.application import load_spec
from tests.documentation.pages import ROOT, blocks


def _page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def test_a_report_speaks_at_most_its_price_and_no_report_at_most_that_of_the_threshold():
    mechanism = pictures.shown_mechanism()
    of_report, of_none = pictures.evidence(*pictures.odds(mechanism, range(-100, 61)))
    assert max(of_report) == pytest.approx(float(mechanism.branches[0].charge))
    assert max(of_none) == pytest.approx(float(mechanism.threshold_charge))


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


@pytest.mark.parametrize("page", ["how-sparse-vector-works.md", "privacy-guarantee.md"])
@pytest.mark.parametrize("monotonic", [True, False])
def test_the_formulas_of_a_test_are_those_of_the_mechanism(page, monotonic):
    [text] = [block.text for block in blocks(Path("docs", page)) if block.kind == "text"]
    correction = Explicit((60,))
    svt = sparse_vector(epsilon=1, cutoff=2, monotonic=monotonic, sensitivity=3, correction=correction)
    given = {
        "D": 3,
        "U": 3 if monotonic else 6,
        "e0": svt.threshold_charge,
        "e1": svt.branches[0].charge,
        "value": 700,
        "threshold": 500,
        "correction": 60,
        "z": 35,
        "threshold_noise": 35,
    }
    for name, rate in (("l0", svt.threshold_rate), ("l1", svt.branches[0].rate)):
        for formula in re.findall(rf"^{name} = (\w+ / \w+)", text, re.MULTILINE):
            assert eval(formula, given) == rate  # noqa: S307 - a formula of this repository
    [formula] = re.findall(r"gap = (.+)", text)
    formula = re.sub(r"(threshold|query) noise", r"\1_noise", formula)
    for drawn in (-106, -105, -104, 0, 7):
        gap = eval(formula, given | {"nu": drawn, "query_noise": drawn})  # noqa: S307
        run = svt.open(35, (0, 0))
        _, outcomes = svt.step(run, np.array([700]), 500, 0, lambda _, drawn=drawn: np.array([drawn]))
        assert [top.gap for top in outcomes.tops] == [gap] * (gap >= 0)
    assert re.search(r"gap >= +0: a top", text)
    assert re.search(r"gap < +0: a bottom", text)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_twice_the_epsilon_halves_the_distance(cutoff):
    for epsilon in EPSILONS:
        once, twice = sure_margin(epsilon, cutoff), sure_margin(2 * epsilon, cutoff)
        assert abs(once - 2 * twice) <= max(2, once / 50)


def test_a_limit_of_4_buys_what_the_page_says():
    page = _page("what-epsilon-buys.md")
    assert f"(80 alerts, at a distance of {sure_margin(Fraction(1, 2), 10)})" in page
    assert f"(20 alerts, at {sure_margin(Fraction(2), 10)})" in page


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
    (branch,) = monitor_of(Fraction(1), 10).mechanism().branches
    assert 2 < further * Fraction(branch.rate) < 2.5


def test_what_is_certain_and_what_hardly_happens_at_epsilon_1_with_ten_alerts():
    assert reported_margin(monitor_of(Fraction(1), 10), 0.97) < 200
    assert reported_margin(monitor_of(Fraction(1), 10), 0.001) > 50


def test_the_tutorial_says_from_where_on_its_own_monitor_is_sure():
    page = _page("tutorial.md")
    [text] = [block.text for block in blocks(Path("docs/tutorial.md")) if block.name == "monitors.yaml"]
    spec = load_spec(text)
    [monitor] = spec.monitors
    sure = monitor.threshold + reported_margin(monitor, SURE)
    assert f"A page with {sure} users or more is almost certain" in page
    assert reported_margin(monitor, 0.1) > 10  # "one with 510 is unlikely to be"
    mechanism = monitor.mechanism()
    assert f"threshold cost {float(mechanism.threshold_charge):.3f}, once" in page
    assert f"this alert {float(mechanism.branches[0].charge):.3f}." in page


def test_the_page_about_raw_events_says_from_where_on_its_first_monitor_is_sure():
    [text] = [block.text for block in blocks(Path("docs/raw-events.md")) if block.name == "monitors.yaml"]
    first, *_ = load_spec(text).monitors
    sure = int(first.threshold + reported_margin(first, SURE))
    page = _page("raw-events.md")
    assert f"A page with more than about {round(sure, -1)} visitors" in page
    assert len(text.splitlines()) == 21  # twenty, and the name of the file


def test_asking_at_each_tick_costs_the_noise_scales_that_the_page_of_limits_says():
    page = _page("known-limitations.md")
    [often, seldom] = re.search(
        r"by (\d\.\d) noise scales at `every: 10s`, by (\d\.\d) at `1m`", page
    ).groups()
    assert [often, seldom] == [f"{math.log(3600 / every):.1f}" for every in (10, 60)]


def test_the_alert_on_the_messages_page_is_told_in_its_own_numbers():
    alert = example.events()[EventType.ALERT]["data"]
    page = _page("messages.md")
    assert f"about {alert['threshold']:g} + {alert['correction']:g}, by {alert['gap']:g}." in page
    assert f"The true count is at least {alert['bound']:g};" in page
    assert f"cost epsilon {alert['account']['charge']:.3f}, and {alert['account']['spent']:.2f} of" in page
    assert alert["bound"] <= example.QUERY["value"]
