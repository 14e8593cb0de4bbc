"""Numbers that the explanations say in their sentences, computed again."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from docs.generator import example, pictures
from docs.generator.epsilon_figures import ALERTS, DISTANCES, QUERIES, most_certain, price
from stream_svt.errors import ConfigError
from stream_svt.mechanisms import Explicit, noise, sparse_vector
from stream_svt.mechanisms.accuracy import report_probability
from stream_svt.mechanisms.noise import Noise
from stream_svt.monitor.released import EventType
from stream_svt.planning.budget import SURE, reported_margin
from stream_svt.privacy.loss import Kind, best_guess
from stream_svt.settings.application import load_spec
from stream_svt.settings.detection import RunProblem, solve
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


@pytest.mark.parametrize("alerts", ALERTS)
def test_half_the_distance_takes_twice_the_epsilon(alerts):
    for distance in DISTANCES[1:]:
        assert price(distance // 2, alerts) / price(distance, alerts) == pytest.approx(2, rel=0.05)


def test_ten_times_the_alerts_take_five_to_eight_times_the_epsilon():
    ratios = {
        float(price(distance, many) / price(distance, few))
        for distance in DISTANCES
        for few, many in ((1, 10), (10, 100))
    }
    assert 5 <= min(ratios) <= max(ratios) < 8


def test_ten_times_the_queries_take_a_fifth_more_epsilon_at_most():
    more = [
        price(distance, alerts, 10 * QUERIES) / price(distance, alerts)
        for distance, alerts in product(DISTANCES, ALERTS)
    ]
    assert 1.05 < min(more) < max(more) < 1.21


def test_what_is_found_of_ten_alerts_at_a_distance_of_200():
    run = RunProblem(200, 1, 10, QUERIES)
    assert [round(100 * found_at(run, margin)) for margin in (200, 150, 100)] == [95, 6, 0]
    assert "With 500, 700 and ten alerts, 650 is found 6 times in 100" in _page("what-epsilon-buys.md")


def found_at(run: RunProblem, margin: int) -> float:
    """Return how often the run that is solved finds a margin at its first test."""
    epsilon, split = solve(run) or (0, 0)
    mechanism = run.mechanism(epsilon, split)
    bars, [law] = [mechanism.branches[0].correction(0)], mechanism.branch_laws
    return report_probability(margin, corrections=bars, query=law, threshold=mechanism.threshold_law)


def test_the_tutorial_says_what_its_own_alert_costs():
    page = _page("tutorial.md")
    [text] = [block.text for block in blocks(Path("docs/tutorial.md")) if block.name == "monitors.yaml"]
    [monitor] = load_spec(text).monitors
    mechanism = monitor.mechanism()
    assert f"threshold cost {float(mechanism.threshold_charge):.3f}, once" in page
    assert f"this alert {float(mechanism.branches[0].charge):.3f}." in page


def test_the_page_about_raw_events_says_from_where_on_its_first_monitor_is_sure():
    [text] = [block.text for block in blocks(Path("docs/raw-events.md")) if block.name == "monitors.yaml"]
    users, errors = load_spec(text).monitors
    assert reported_margin(users, SURE) == reported_margin(errors, SURE) == 100
    assert users.epsilon == errors.epsilon  # "a lower threshold is no cheaper"
    assert "A page with 600 visitors in an hour" in _page("raw-events.md")
    assert len(text.splitlines()) == 21  # twenty, and the name of the file
    minutes = text.replace("window: 1h", "window: 1m")
    load_spec(minutes.replace("epsilon: 4, per", "epsilon: 6, per"))
    with pytest.raises(ConfigError, match=r"cannot pay: .*raise surely_from"):
        load_spec(minutes.replace("epsilon: 4, per", "epsilon: 5, per"))


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
