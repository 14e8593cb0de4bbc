"""Which length of periods is proposed for a limit that renews, and what the present one costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream_svt.errors import ConfigError
from stream_svt.planning.lengths import proposal
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.periods import DAY_MS, Renewal

DETECT = "detect: {above: 500, surely_from: 700, alerts: 100, per: 30d}"
BY_HAND = "epsilon: 1, cutoff: 10, threshold: 500"
CHOOSE = "Choose before you apply: `every` never changes."


def spec(
    *monitors: str, every: str = "15d", epsilon: str = "8", looks_back: str = "0", window: str = "1h"
) -> ApplicationSpec:
    declared = "\n".join(f"  - {{name: m{n}, source: s, {one}}}" for n, one in enumerate(monitors))
    length = f"every: {every}, " if every else ""
    day = "07" if window == "4d" else "05"
    slot = "{date}" if every else "{iso_week}"
    return load_spec(
        f"""
application: web
sources: [{{name: s, topic: raw, unit: user, window: {window}, dataset: "web-{slot}",
           series: {{field: page, names: [a, b, c, d, e]}}}}]
datasets: [{{generate: "web-{slot}", from: 2026-01-{day}, {length}lateness: 6h, looks_back: {looks_back},
            limit: {{epsilon: {epsilon}, per: 30d}}}}]
monitors:
{declared}
"""
    )


def said(found: ApplicationSpec) -> str:
    [generator] = found.generators
    return proposal(found, next(generator.named(generator.from_ms)))


def cost(found: ApplicationSpec) -> float:
    [renewal] = [one.each.renewal for one in found.generators]
    assert renewal is not None
    return renewal.periods * float(sum(one.epsilon for one in found.monitors))


def test_of_many_alerts_shorter_periods_cost_less_as_a_configuration_with_them_does():
    now, then = spec(DETECT), spec(DETECT, every="6d")
    assert said(now) == (
        f"Each pays for 50 alerts, for epsilon {cost(now):.3g} in any 30 days; with every: 6d for 20, for epsilon "
        f"{cost(then):.3g}. {CHOOSE}"
    )
    assert said(then).endswith(
        f"for epsilon {cost(then):.3g} in any 30 days; no other length costs much less."
    )
    for days in (1, 2, 3, 5, 8, 10, 30):
        assert cost(spec(DETECT, every=f"{days}d", epsilon="99")) > cost(then) / 1.05, days


def test_of_few_alerts_halves_of_the_time_cost_least():
    few = DETECT.replace("100", "10")
    assert said(spec(few)).endswith("no other length costs much less.")
    assert "with every: 15d for 5, for epsilon" in said(spec(few, every="14d")), "4 periods instead of 3"
    assert "with {date} and every: 15d for 5" in said(spec(few, every=""))


def test_a_look_back_belongs_to_what_is_divided():
    few = DETECT.replace("100", "10")
    assert "with every: 20d for 7, for epsilon" in said(spec(few, every="19d", looks_back="28d"))
    found = [one.length_ms // DAY_MS for one in Renewal(1, 30 * DAY_MS, 28 * DAY_MS, 29 * DAY_MS).others]
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 58]


@pytest.mark.parametrize(
    ("second", "every"),
    [
        (DETECT, "6d"),
        (f"{DETECT}, end: {{below: 300, longest: 1d}}", "6d"),
        (f"{DETECT}, end: {{below: 300, longest: 1d, epsilon: 0.2, cutoff: 1}}", "10d"),
    ],
    ids=["another monitor", "ends at the price of alerts", "ends at a price of their own"],
)
def test_several_monitors_and_their_ends_cost_their_sum(second: str, every: str) -> None:
    now, then = (spec(DETECT, second, every=one, epsilon="40") for one in ("15d", every))
    alerts = 2 * {"6d": 20, "10d": 34}[every]
    assert said(now) == (
        f"Each pays for 100 alerts, for epsilon {cost(now):.3g} in any 30 days; with every: {every} for {alerts}, for "
        f"epsilon {cost(then):.3g}. {CHOOSE}"
    )


def test_without_detect_the_length_that_finds_most_incidents_at_random_is_named():
    assert said(spec(BY_HAND, epsilon="4")) == (
        "Each pays for 11 alerts, about 22 in 30 days; with every: 10d for 10, about 30 in 30 days. " + CHOOSE
    )
    assert said(spec(BY_HAND, epsilon="4", every="10d")).endswith("no other length finds many more.")
    # A day would pay for one alert, 30 in 30 days; but many incidents come on a day that has had one.
    assert "with every: 6d for 5, about 25 in" in said(
        spec("epsilon: 0.13, cutoff: 1, threshold: 500", epsilon="4.1")
    )


def test_monitors_share_whole_rounds_and_one_that_stops_has_one_run():
    both = said(spec(BY_HAND, BY_HAND, epsilon="8"))
    assert both.startswith(
        "Each pays for 20 alerts, about 40 in 30 days; with every: 10d for 20, about 60"
    ), both
    stops = said(spec(f"{BY_HAND}, on_halt: stop", epsilon="8"))
    assert stops.startswith("Each pays for 10 alerts, about 20 in 30 days; with every: "), stops


def test_what_detect_leaves_pays_for_the_others():
    alone, beside = said(spec(BY_HAND)), said(spec(BY_HAND, DETECT.replace("100", "10")))
    assert alone.startswith("Each pays for 2")
    assert beside.startswith("Each pays for 2")
    assert int(beside.split()[3]) < int(alone.split()[3])


def test_a_window_of_days_divides_the_length_proposed():
    some = DETECT.replace("100", "20")
    assert "with every: 15d" in said(spec(some, every="28d"))
    assert "with every: 8d" in said(spec(some, every="28d", window="4d"))


def test_a_dataset_without_monitors_or_without_a_limit_that_renews_has_no_proposal():
    found = spec(DETECT)
    [generator] = found.generators
    assert proposal(found, DatasetSpec("other", generator.each)) == ""
    assert proposal(found, DatasetSpec("web-2026-01-05", replace(generator.each, renewal=None))) == ""


def test_a_configuration_that_is_too_expensive_names_the_length_that_would_pay():
    with pytest.raises(
        ConfigError, match=r"It would pay with every: 6d \(6 periods\). For 50 alerts a run it buys"
    ):
        spec(DETECT, epsilon="4.8")
    assert spec(DETECT, epsilon="4.8", every="6d").monitors
    with pytest.raises(ConfigError) as error:
        spec(DETECT, epsilon="2")
    assert "It would pay" not in str(error.value)
