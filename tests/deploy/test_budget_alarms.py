"""A budget spent as planned raises no alarm, one that burns does; and the end of a budget is what the status page says.

The rules are too many for a thousand histories of a budget, so a model of them plays those, and promtool holds the
model to the rules on some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from deploy.prometheus.budget_rules import (
    CLASSES,
    FAST,
    LEAST_PAYMENTS,
    MEDIUM,
    NINETY_PERCENT,
    RULES,
    SHORT,
    SLOW,
    WINDOWS,
)
from stream_svt.planning.budget import exhaustion
from tests.support.prometheus import tool

WEEK = next(one for one in CLASSES if one.name == "week")


@dataclass
class Model:
    """The alarm over one history; ``share`` is the share spent at the end of each occasion.

    The horizon and the windows are counted in occasions; the shortest window has four.
    """

    share: np.ndarray
    horizon: int

    def payments(self, numbers: np.ndarray, window: int) -> np.ndarray:
        """Count the occasions on which something was charged."""
        paid = np.concatenate([[0], np.cumsum(np.diff(self.share) > 0)])
        return paid[numbers] - paid[np.maximum(numbers - window, 0)]

    def burn(self, numbers: np.ndarray, window: int) -> np.ndarray:
        return (self.share[numbers] - self.share[np.maximum(numbers - window, 0)]) * self.horizon / window

    def alarm(self, numbers: np.ndarray) -> np.ndarray:
        """Return the greatest sure burn rate of a window that is alarming, 0 where none is."""
        lengths = {window: 4 * window.shorts for window in WINDOWS}
        burn = {window: self.burn(numbers, lengths[window]) for window in WINDOWS}
        found = np.zeros(len(numbers))
        for shorter, window in ((SHORT, FAST), (FAST, MEDIUM), (MEDIUM, SLOW)):
            count = np.maximum(self.payments(numbers, lengths[window]), 1e-9)
            share = np.maximum(1 - 1 / (9 * count) - NINETY_PERCENT / (3 * np.sqrt(count)), 0) ** 3
            most = (window.shorts // shorter.shorts + 1) / 2
            going_on = (burn[shorter] > 0) & (burn[shorter] < most * burn[window])
            sure = burn[window] * share
            found = np.maximum(found, np.where(going_on & (sure >= (window.alarm or 0)), sure, 0))
        return found


def history(
    random: np.random.Generator, *, runs: int, pace: float, change: float = 0.3, cluster: float = 1
) -> np.ndarray:
    """Play a budget of so many runs of ten tops, spent as planned until ``change`` of the horizon, then at ``pace``.

    Tops come as a Poisson process of clusters with a mean of ``cluster`` tops. A run costs twelve: two for its
    threshold, and one for each top.
    """
    size = 4 * SLOW.shorts * 12
    rate = np.where(np.arange(size) < change * size, 1.0, pace) * runs * 10 / cluster / size
    incidents = random.poisson(rate)
    tops = incidents + random.negative_binomial(np.maximum(incidents, 1), 1 / cluster) * (incidents > 0)
    total = np.minimum(np.cumsum(tops), runs * 10)
    thresholds = np.minimum(total // 10 + 1, runs)
    return (total + 2 * thresholds) / (12 * runs)


def alarms(random: np.random.Generator, count: int = 200, **history_options: float) -> list[float]:
    """Return for each of many histories the share spent at the first alarm, infinite without any."""
    found = []
    for _ in range(count):
        share = history(random, **history_options)  # type: ignore[arg-type]
        alarm = Model(share, len(share)).alarm(np.arange(len(share)))
        found.append(float(share[np.argmax(alarm > 0)]) if alarm.any() else np.inf)
    return found


@pytest.mark.parametrize(
    ("runs", "cluster", "most"), [(4, 1, 0.02), (20, 1, 0.02), (4, 4, 0.2), (20, 4, 0.1)]
)
def test_a_budget_spent_as_planned_raises_no_alarm_and_incidents_that_many_series_show_seldom_one(
    runs, cluster, most
):
    found = alarms(np.random.default_rng(1), runs=runs, pace=1, cluster=cluster, count=400)
    assert np.mean(np.isfinite(found)) <= most


@pytest.mark.parametrize(
    ("runs", "pace", "by"), [(4, 10, 0.75), (20, 10, 0.55), (4, 40, 0.75), (20, 40, 0.55)]
)
def test_a_budget_that_burns_raises_one_while_much_is_left(runs: int, pace: float, by: float) -> None:
    """Three tenths of the budget were spent as planned before."""
    found = np.array(alarms(np.random.default_rng(3), runs=runs, pace=pace))
    assert np.mean(found < by) >= 0.95


def held_to_the_rules(program: str, directory: Path, scene: dict) -> None:
    """Play a scene of a dataset meant for a week, without the rules that concern other horizons, for time's sake."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    chosen = [rule for rule in group["rules"] if rule.get("labels", {}).get("horizon", "week") == "week"]
    (directory / "rules.yml").write_text(yaml.safe_dump({"groups": [group | {"rules": chosen}]}))
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": scene["interval"], "tests": [scene]}
    (directory / "scene.yml").write_text(yaml.safe_dump(tests))
    tool(program, "test", "rules", directory / "scene.yml")


def scene_of(interval: str, share: np.ndarray, looks: list[dict]) -> dict:
    """Return a budget of epsilon 4 for a week of which these shares were spent, and what is asked of the rules."""
    size = len(share)
    histories = {
        "spent_epsilon": 4 * share,
        "limit_epsilon": np.full(size, 4.0),
        "horizon_seconds": np.full(size, 7 * 86_400.0),
    }
    inputs = [
        {
            "series": f'stream_svt_budget_{name}{{application="shop", dataset="a", instance="w"}}',
            "values": " ".join(f"{number:.12g}" for number in numbers),
        }
        for name, numbers in histories.items()
    ]
    return {"interval": interval, "input_series": inputs, "promql_expr_test": looks}


@pytest.mark.debian
def test_the_model_raises_the_alarms_that_the_rules_raise(debian_program, tmp_path) -> None:
    """A fifth of a week at a pace that passes all thresholds and leaves them again."""
    random, size, horizon = np.random.default_rng(5), 400, 7 * 86_400 // WEEK.occasion
    charges = np.zeros(size)
    for start, stop, pace in ((0, 100, 0.1), (100, 160, 1.5), (240, 246, 7.5)):
        charges[start:stop] = random.poisson(pace, stop - start)
    share = np.minimum(np.cumsum(charges), 300) / 300
    looks = np.arange(0, size, 7)
    alarm = Model(share, horizon).alarm(looks)
    assert 5 <= (alarm > 0).sum() <= len(looks) - 5
    asked = [
        {
            "expr": f"abs(stream_svt:budget_alarm:ratio / {value:.12g} - 1) < bool 1e-6"
            if value
            else "stream_svt:budget_alarm:ratio",
            "eval_time": f"{step * WEEK.occasion}s",
            "exp_samples": [{"labels": '{application="shop", dataset="a"}', "value": 1}] if value else [],
        }
        for step, value in zip(looks.tolist(), alarm.tolist(), strict=True)
    ]
    scene = scene_of(f"{WEEK.occasion}s", share, asked)
    held_to_the_rules(debian_program("promtool"), tmp_path, scene)


@pytest.mark.debian
@pytest.mark.parametrize("payments", [LEAST_PAYMENTS, 8, 40])
def test_the_end_of_a_budget_is_that_of_the_status_page(payments, debian_program, tmp_path) -> None:
    """One payment every ten minutes, each of the same amount, seen by both for the same time.

    The rules approximate the quantiles of F by those of the normal law (Paulson 1942): within 0.9 % at three payments.
    """
    looks = 2 * payments
    share = np.repeat(np.arange(payments + 1), 2)[: looks + 1] / (3 * payments)
    charges = [(600.0 * number, 1.0) for number in range(payments + 1)]
    ours = exhaustion(charges, left=2.0 * payments, now=600.0 * payments)
    assert ours is not None
    ends = {bound: getattr(ours, bound) - 600 * payments for bound in ("early", "expected", "late")}
    asked = [
        {
            "expr": f'abs(stream_svt:budget_exhaustion:seconds{{bound="{bound}"}} / {end} - 1) < bool 1e-2',
            "eval_time": f"{10 * payments}m",
            "exp_samples": [
                {
                    "labels": f'{{application="shop", dataset="a", horizon="week", bound="{bound}"}}',
                    "value": 1,
                }
            ],
        }
        for bound, end in ends.items()
    ]
    scene = scene_of("5m", share, asked)
    held_to_the_rules(debian_program("promtool"), tmp_path, scene)


@pytest.mark.debian
def test_of_fewer_payments_no_end_is_said(debian_program, tmp_path) -> None:
    share = np.repeat(np.arange(LEAST_PAYMENTS), 10) / 100
    asked = {"expr": "stream_svt:budget_exhaustion:seconds", "eval_time": f"{len(share) - 1}m"}
    scene = scene_of("1m", share, [asked | {"exp_samples": []}])
    held_to_the_rules(debian_program("promtool"), tmp_path, scene)


def test_every_horizon_falls_into_one_class_whose_windows_are_shares_of_it() -> None:
    for one, following in pairwise(CLASSES):
        assert one.most == following.least
    for one in CLASSES:
        for horizon in (one.least, one.most):
            if horizon is not None:
                assert 1 / 36 <= one.seconds(SLOW) / horizon <= 1 / 4
    assert CLASSES[0].least is None
    assert CLASSES[-1].most is None
