"""What `check` says about a monitor with `detect`, once: odds, waste and price."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.mechanisms.noise import quantiles
from stream_svt.planning import explain
from stream_svt.privacy.loss import Kind, to_units
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.monitors import MonitorSpec

ROLLING = "generate: 'web-{date}', from: 2026-01-05, every: 15d, lateness: 1h, limit: {epsilon: 4, per: 30d}"
DETECT = "above: 500, surely_from: 700, alerts: 10, per: 30d"


def spec(detect: str = DETECT, dataset: str = ROLLING, name: str = "web-{date}") -> ApplicationSpec:
    return load_spec(
        f"""
application: web
sources: [{{name: requests, topic: raw, unit: user, window: 1h, dataset: "{name}",
           series: {{field: page, names: [a, b, c, d, e]}}}}]
datasets: [{{{dataset}}}]
monitors: [{{name: many, source: requests, detect: {{{detect}}}}}]
"""
    ).at(1_800_000_000_000)


def parts(found: ApplicationSpec) -> dict[str, str]:
    lines = [line.strip().partition(" ") for line in explain(found)[1:]]
    return {word: text.strip() for word, _, text in lines}


def test_odds_waste_and_price_are_said_once():
    said = parts(spec())
    assert said == {
        "Detects": "700 is found at its first test 95 times in 100, 650 20 times, 600 1.6 times. If all 120 values a "
        "day were 250: less than one false alert in 100 years.",
        "Adds": "noise of scale 19.8 to each test, 13.5 to the threshold.",
        "Wastes": "1 alert in 10 at most, on average, on values at or below the threshold.",
        "Reports": "5 alerts in one run; then it stops until the next period begins or an operator resamples it. "
        "With one run in each period of 15 days: epsilon 0.978 in any 30 days for one `user`. Runs that an operator "
        "resamples cost more, within the limit. With 100 alerts: epsilon 5.43.",
        "Mutes": "a series after its alert, as long as the dataset lives.",
    }


def test_the_odds_are_those_of_simulated_tests():
    [monitor], random, size = spec().monitors, np.random.default_rng(1), 200_000
    run = monitor.mechanism()
    noise = quantiles(run.query_noise, run.branches[0].rate, 1 - random.random(size))
    noise -= quantiles(run.threshold_noise, run.threshold_rate, 1 - random.random(size))
    [bar] = run.branches[0].corrections
    for margin, percent in re.findall(
        r"(\d+) (?:is found at its first test )?([\d.]+) times", parts(spec())["Detects"]
    ):
        assert np.mean(noise >= bar + 500 - int(margin)) == pytest.approx(float(percent) / 100, abs=0.003)


def test_ten_times_the_alerts_cost_what_is_said():
    [found] = spec(
        DETECT.replace("alerts: 10", "alerts: 100"), ROLLING.replace("epsilon: 4", "epsilon: 40")
    ).monitors
    assert 3 * found.epsilon == Fraction("5.43")


def test_a_dataset_whose_limit_does_not_renew_has_a_price():
    once = DETECT.removesuffix(", per: 30d")
    said = parts(spec(once, "name: web, limit: 4", "web"))["Reports"]
    assert said.startswith(
        "10 alerts in one run; then it stops until an operator resamples it. Its alerts about one "
    )
    assert "cost at most epsilon 0.575. With 100 alerts: epsilon 3.46." in said
    rho = parts(spec(once, "name: web, limit: {rho: 4}", "web"))["Reports"]
    [monitor] = spec(once, "name: web, limit: {rho: 4}", "web").monitors
    assert isinstance(monitor, MonitorSpec)
    assert monitor.run_price(Kind.ZCDP) < to_units(monitor.epsilon**2 / 2, Kind.ZCDP)
    assert re.search(r"dataset cost at most rho 0\.\d+\. With 100 alerts: rho", rho)
