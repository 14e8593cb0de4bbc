"""What a limit in rho is said to buy, and for which monitors none is offered."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import pytest
import yaml

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.baselines.sparse import zcdp_epsilon
from stream_svt.planning import monitor_for, reported_margin
from stream_svt.planning.budget import PaidRuns
from stream_svt.planning.rho import rho_offer
from stream_svt.privacy.loss import Kind, zcdp_monotone
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.detection import RunProblem
from stream_svt.settings.fields import ExposureOptions, Retry
from stream_svt.settings.monitors import MonitorSpec

DELTA = 1e-6


def monitor(cutoff: int, **changed: Any) -> MonitorSpec:
    split = RunProblem(1, 1, cutoff, 10**6).margin(Fraction(1))[1]
    rule = ExposureOptions(false_alerts=Fraction(cutoff, 10))
    keys = {"split": split, "expected_queries": 10**6, "correction": rule, "append": None, **changed}
    return monitor_for(epsilon=1, cutoff=cutoff, monotonic=True).model_copy(update=keys)


def spec(offered: list[str] | None = None, **changed: Any) -> ApplicationSpec:
    """Return a configuration, with a limit and the keys that were offered."""
    limit: Any = {"epsilon": 1}
    keys: dict[str, Any] = {"name": "m", "topic": "t", "epsilon": 1, "cutoff": 100, "sensitivity": 1}
    keys |= {"monotonic": True, "threshold": 500, "bounds": [0, 10**6], "expected_queries": 10**6}
    if offered is not None:
        found = re.fullmatch(
            r"Write limit: (\{.*?\}) for a new dataset, and for the monitor (.*)\.", offered[1]
        )
        assert found
        limit = yaml.safe_load(found[1])
        keys |= yaml.safe_load(f"{{{found[2]}}}")
    dataset = {"limit": limit, "unit": "one user"} | changed.pop("dataset", {"name": "d"})
    beside = [{**keys, "name": name} for name in changed.pop("beside", [])]
    monitors = [keys | changed, *beside]
    return load_spec(yaml.safe_dump({"application": "a", "datasets": [dataset], "monitors": monitors}))


def distance(said: list[str]) -> float:
    found = re.search(r"report a value ([\d,]+) above", said[0])
    assert found
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize(("cutoff", "now"), [(10, 175), (100, 1234), (1000, 9357), (10_000, 69_086)])
def test_rho_is_offered_for_many_alerts_only(cutoff: int, now: int) -> None:
    run = monitor(cutoff)
    said = rho_offer(run, None, None, None, DELTA)
    assert float(reported_margin(run, 0.95)) == pytest.approx(now, rel=0.02)
    assert said[0].startswith(f"Epsilon 1 and delta 1e-06, in rho, pay for {cutoff:,} runs of one alert")
    assert said[0].endswith("Keep the limit in epsilon.") is (cutoff == 10)
    assert len(said) == (1 if cutoff == 10 else 3)
    # By rho + 2 sqrt(rho ln(1/delta)), which allows a seventh less rho.
    rough = {10: 396, 100: 1087, 1000: 2898, 10_000: 7392}[cutoff]
    assert 0.82 * rough < distance(said) < 0.87 * rough


@pytest.mark.parametrize("monotonic", [True, False])
def test_the_keys_offered_cost_at_most_that_epsilon_and_delta_and_find_what_is_said(monotonic: bool) -> None:
    said = rho_offer(monitor(100, monotonic=monotonic), None, None, None, DELTA)
    found = spec(said, monotonic=monotonic)
    [run], [dataset] = found.monitors, found.datasets
    assert dataset.terms.kind is Kind.ZCDP
    rho = dataset.terms.limit / Kind.ZCDP.units
    assert 0.999 < zcdp_epsilon(rho, DELTA) <= 1
    assert rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) == pytest.approx(1.18, abs=0.01), (
        "a looser conversion"
    )
    assert PaidRuns.left(run, dataset).runs in {100, 101}
    mechanism = run.mechanism()
    if monotonic:
        assert run.run_price(Kind.ZCDP) == zcdp_monotone(mechanism.epsilon_units, mechanism.threshold_units)
    assert run.run_price(Kind.ZCDP) > 0.99 * dataset.terms.limit / 100
    assert float(reported_margin(run, 0.95)) == distance(said)
    assert float(getattr(run.correction, "false_alerts", 0)) * 100 == 10, "as many are wasted in all"


def test_queries_that_move_both_ways_pay_their_own_price() -> None:
    both = (
        distance(rho_offer(monitor(100, monotonic=one), None, None, None, DELTA)) for one in (True, False)
    )
    monotone, general = both
    assert general > 1.3 * monotone


def test_a_limit_is_compared_with_all_the_alerts_for_which_it_pays() -> None:
    run = monitor(10)
    said = rho_offer(run, None, Fraction("20.5"), PaidRuns.paid(run.mechanism(), 20_500_000_000), DELTA)
    assert said[0].startswith("Epsilon 20.5 and delta 1e-06, in rho, pay for 204 runs")
    found = spec(dataset={"name": "d", "limit": 2, "unit": "one user"})
    of_file = rho_offer(
        found.monitors[0], found, None, PaidRuns.left(found.monitors[0], found.datasets[0]), DELTA
    )
    assert of_file[0].startswith("Epsilon 2 and delta 1e-06, in rho, pay for 200 runs")


def test_a_budget_too_small_for_any_grid_pays_for_nothing() -> None:
    said = rho_offer(monitor(100, epsilon=Fraction("1e-5")), None, None, None, DELTA)
    assert said[0].endswith("pay for no 100 alerts. Keep the limit in epsilon."), said


GENERATED = {"generate": "d-{date}", "from": "2026-01-05", "every": "15d"}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (spec(dataset={"name": "d", "limit": {"rho": 1}}), "the limit of dataset d is in rho already"),
        (
            spec(dataset={**GENERATED, "limit": {"epsilon": 9, "per": "30d"}}).at(1_767_571_200_000),
            "rho is impossible with a limit per",
        ),
        (spec(dataset={"name": "d", "limit": 9}, beside=["n"]), "take turns: m, n"),
    ],
)
def test_a_dataset_that_cannot_have_a_limit_in_rho_is_refused(found: ApplicationSpec, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        rho_offer(found.monitors[0], found, None, PaidRuns(1, 0), DELTA)


def test_retries_are_not_compared() -> None:
    with pytest.raises(MisuseError, match="streams without retries"):
        rho_offer(monitor(100, append=Retry(lifetime=1000)), None, None, None, DELTA)
