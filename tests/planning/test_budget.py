"""The explained budget and projected end, compared with sums by hand and with simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stream_svt.mechanisms.noise import tail
from stream_svt.planning import PaidRuns, explain, reported_margin
from stream_svt.planning.budget import LEAST_PAYMENTS, SURE, exhaustion, least_end
from stream_svt.settings.application import load_spec
from stream_svt.settings.datasets import DatasetSpec
from tests.support.monitor_forms import spec_of
from tests.support.sources import WEB, changed

HOT = "topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500"


def spec(monitor: str = "", limit: str = "{epsilon: 4}"):
    return spec_of(f"{HOT}{monitor}", datasets=f"{{name: today, limit: {limit}, unit: one basket}}")


STREAM = ", expected_queries: 1000000"


@pytest.mark.parametrize(
    ("monitor", "limit", "runs", "last"),
    [
        (STREAM, "{epsilon: 4}", 4, 0),
        # Split 5: the threshold costs 1/6, each of ten alerts 1/12; 0.51 left pays threshold and four alerts.
        (STREAM, "{epsilon: 3.51}", 3, 4),
        (STREAM + ", reserve: 2", "{epsilon: 4}", 2, 0),
        (STREAM, "{rho: 1}", 2, 0),  # a run costs 0.42, and under zCDP none is shorter
    ],
)
def test_runs_and_alerts_are_what_the_limit_divides_into(monitor, limit, runs, last):
    application = spec(monitor, limit)
    assert PaidRuns.left(application.monitors[0], application.datasets[0]) == PaidRuns(runs, last)


@pytest.mark.parametrize(
    ("monitor", "left", "reserved", "begin", "least"),
    [
        (", max_runs: 1 per 1h", 4.0, 0.0, 0.0, 1000 + 3 * 3600),  # four runs, the first at once
        (", max_runs: 2 per 1h", 4.0, 0.0, 0.0, 1000 + 3600),
        (", max_runs: 2 per 1h", 4.0, 0.0, 1600.0, 1600 + 3600),  # limited until then
        (", max_runs: 1 per 1h", 4.0, 1.0, 0.0, 1000 + 2 * 3600),  # a run is open
        (", max_runs: 1 per 1h", 1.0, 0.0, 0.0, 0),
        (", max_runs: 1 per 1h", 0.5, 0.0, 1600.0, 0),
        (", max_runs: off", 4.0, 0.0, 0.0, 0),
    ],
)
def test_no_budget_ends_before_max_runs_lets_its_runs_begin(monitor, left, reserved, begin, least):
    application = spec(STREAM + monitor)
    found = least_end({application.monitors[0]: begin}, application.datasets[0].terms, left, reserved, 1000.0)
    assert found == pytest.approx(least)


@pytest.mark.parametrize("form", ["svt", "adaptive"])
@pytest.mark.parametrize("law", ["exponential", "laplace"])
def test_margins_are_the_distances_at_which_a_test_reports_that_often(form, law):
    (monitor,) = spec(f"{STREAM}, mechanism: {form}, query_noise: {law}").monitors
    mechanism = monitor.mechanism()
    generator = np.random.default_rng(4)
    count = 200_000

    def draw(rate):
        return generator.geometric(-np.expm1(-float(rate)), count) - 1

    for chance in (0.5, SURE):
        margin = reported_margin(monitor, chance)
        here, below = [], []
        for branch in mechanism.branches:
            query = draw(branch.rate) - (draw(branch.rate) if law == "laplace" else 0)
            bar = branch.corrections[0] + draw(mechanism.threshold_rate)
            here.append(np.mean(int(margin) + query >= bar))
            below.append(np.mean(int(margin) - 1 + query >= bar))
        assert max(below) - 0.005 < chance < max(here) + 0.005


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
    assert np.mean(reports) <= 2


RETRY = ", append: {retry: {attempts: 5}}"


@pytest.mark.parametrize(
    "form", ["", RETRY, ", mechanism: adaptive", ", query_noise: laplace, mechanism: ladder"]
)
def test_all_tests_of_a_run_together_pass_their_bars_by_chance_as_often_as_tolerated(form):
    monitor = spec(STREAM + form).monitors[0]
    mechanism, attempts = monitor.mechanism(), range(monitor.attempts)
    chances = [
        tail(law.noise, law.rate, branch.correction(attempt))
        for branch, law in zip(mechanism.branches, mechanism.branch_laws, strict=True)
        for attempt in attempts
    ]
    assert 0.5 < monitor.expected_queries * sum(chances) <= 1


@pytest.mark.parametrize(
    ("monitor", "sentences"),
    [
        (
            "",
            [
                "Monitor m0 on today:",
                "Protects one basket: everything published about it costs at most epsilon 4 in all.",
                "at its first test 95% of the time",
                "on average at most 1 of a run's 10 alerts on values at or below the threshold, in a run of 1,000,000",
                "10 alerts a run",
                "4 whole runs: 40 alerts in all",
                "raises the budget",
            ],
        ),
        (", correction: {exposure: {false_alerts: 3}}, append: {retry: {attempts: 5}}", ["at most 3 of"]),
        (", threshold_noise: laplace", ["an unknown share of alerts on values below the threshold"]),
        (", correction: none", ["an unknown share"]),
        (
            "",
            [
                "Mutes    a series after its alert, as long as the dataset lives; a query without a series is never"
            ],
        ),
        (
            ", mute: run",
            ["Mutes    a series after its alert, for the rest of the run; a query without a series"],
        ),
        (
            ", mute: 36h",
            ["Mutes    a series after its alert, for 36h; a query without a series is never muted."],
        ),
        (
            ", mute: none",
            ["Mutes    nothing: every later query of a reported series is tested, and may cost an alert"],
        ),
        (
            ", maintenance: [{every: Sun 02:00-03:00}, {from: 2026-12-01T22:00Z, until: 2026-12-02T02:00Z}]",
            [
                "Rests    tests nothing in maintenance: {every: Sun 02:00-03:00}, {from: 2026-12-01T22:00Z, until: 2"
            ],
        ),
        (
            ", severity: {ticket: 500, call: 900, page: 800}",
            [
                "Severity call from a bound of 900 on, page from a bound of 800 on, else ticket, also without a"
            ],
        ),
        (", severity: {page: 800}", ["Severity page."]),
        (", append: sweep, correction: annealed", ["alerts on the largest values below the threshold"]),
        (", on_halt: stop", ["Then it stops until an operator resamples it"]),
        (
            ", on_halt: stop, max_runs: off",
            ["Begins   at once, whenever an operator resamples it (max_runs: off)."],
        ),
        (
            ", granularity: 1/4",
            [
                "a value of 677.5 (177.5 above the threshold)",
                "one of 662.5 half of the time.",
                "Adds     noise of scale 12 to each test, 6 to the threshold.",
            ],
        ),
    ],
)
def test_the_words_say_what_is_protected_detected_wasted_and_when_it_ends(monitor, sentences):
    text = "\n".join(explain(spec(STREAM + monitor)))
    assert [words for words in sentences if words not in text] == []


def test_monitors_and_datasets_alike_are_described_once_and_sharing_is_mentioned():
    hot, datasets = HOT + STREAM, "{names: [a, b, c], limit: 4, unit: one basket}"
    head, *lines = explain(spec_of(hot, hot, datasets=datasets))
    assert head == "Monitors m0, m1 on each of 3 datasets (a, ..):"
    words = [line.split()[0] for line in lines]
    assert len(words) == len({*words})
    assert "  Shares   one budget for each dataset: m0, m1." in lines


def test_a_text_that_differs_names_its_monitors_and_datasets():
    other = (HOT + STREAM).replace("threshold: 500", "threshold: 900")
    lasting = [
        f"{{name: {name}, limit: {limit}, unit: one basket}}" for name, limit in {"a": 4, "b": 8}.items()
    ]
    text = spec_of(HOT + STREAM, other, HOT + STREAM, datasets="\n  - ".join(lasting))
    head, *lines = explain(text)
    assert head == "Monitors m0, m1, m2 on a and on b:"
    starts = [line.split(maxsplit=1)[1].partition(": ")[0] for line in lines if line.split()[0] == "Detects"]
    assert starts == ["m0, m2", "m1"]
    lasts = [line for line in lines if line.startswith("  Lasts")]
    assert [line[11:16] for line in lasts] == ["on a:", "on b:"]
    assert [part in line for line, part in zip(lasts, ["up to 4 whole", "up to 8 whole"], strict=True)] == [
        True,
        True,
    ]


def test_monitors_of_other_datasets_are_described_apart():
    one, other = (f"{HOT}{STREAM}, datasets: [{name}]" for name in "ab")
    text = explain(spec_of(one, other, datasets="{names: [a, b], limit: 4, unit: one basket}"))
    assert [line for line in text if line.startswith("Monitor")] == ["Monitor m0 on a:", "Monitor m1 on b:"]


NOW_MS = 1_795_910_400_000  # 29 November 2026


def quiet(threshold: str) -> str:
    text = explain(load_spec(changed(("threshold: 500", f"threshold: {threshold}"), text=WEB)).at(NOW_MS))
    return next(one for one in text if one.startswith("  Detects  many-users")).partition(" If all ")[2]


def test_how_often_quiet_counts_are_reported_is_the_sum_over_both_noises():
    monitor, _ = load_spec(changed(("threshold: 500", "threshold: 50.5"), text=WEB)).monitors
    mechanism = monitor.mechanism()
    law, query, bar = mechanism.threshold_law, mechanism.branch_laws[0], mechanism.branches[0].corrections[0]

    def chance(steps: int) -> float:
        drawn = tail(law.noise, law.rate, steps) - tail(law.noise, law.rate, steps + 1)
        return drawn * tail(query.noise, query.rate, bar + 26 + steps)

    days = 1 / (120 * sum(map(chance, range(400))))
    head, _, found = quiet("50.5").partition(" in ")
    assert head == "120 values a day were 25.25: one false alert"
    assert float(found.removesuffix(" days.")) == pytest.approx(days, rel=0.05)


def test_rare_and_frequent_false_alerts_are_told_and_none_of_a_threshold_without_quiet_values():
    assert quiet("500") == "120 values a day were 250: less than one false alert in 100 years."
    assert quiet("-1") == ""
    assert quiet("4, expected_queries: 9").endswith(" false alerts a day.")


@pytest.mark.parametrize(
    ("limit", "together", "alone"),
    [
        ("2", "1 whole run: 10 alerts", "2 whole runs"),
        ("5", "2 whole runs: 20 alerts", "5 whole runs"),
        ("{rho: 3}", "3 whole runs: 30 alerts", "7 whole runs"),
    ],
)
def test_the_runs_promised_to_the_monitors_of_a_dataset_can_all_be_paid(limit, together, alone):
    text = explain(
        spec_of(HOT + STREAM, HOT + STREAM, datasets=f"{{name: a, limit: {limit}, unit: one basket}}")
    )
    [line] = [line for line in text if line.startswith("  Lasts")]
    assert (
        f"for {together}, if the other monitor begins as many runs (up to {alone} if it begins none)" in line
    )


@pytest.mark.parametrize(
    ("datasets", "total"),
    [
        ("{names: [a, b, c], limit: 4, unit: one user}", "In all 3 datasets together: epsilon 12."),
        (
            '{generate: "{date}", from: 2026-01-01, until: 2026-03-03, limit: 4, unit: one user}',
            "In all 61 datasets together: epsilon 244.",
        ),
        (
            '{generate: "{date}", from: 2026-01-01, limit: 4, unit: one user}',
            "In several datasets: epsilon 4 for each, and every period adds datasets.",
        ),
    ],
)
def test_the_loss_of_a_unit_that_is_in_several_datasets_is_said(datasets, total):
    text = "\n".join(explain(spec_of(HOT + STREAM, datasets=datasets).at(0)))
    assert f"one user in one dataset: everything published about it costs at most epsilon 4. {total}" in text


def test_of_what_was_carried_over_only_the_rest_lasts():
    whole = spec(STREAM)
    halves = enumerate("abc")
    terms = whole.datasets[0].terms
    datasets = [DatasetSpec(name, replace(terms, spent_before=n * 5 * 10**8)) for n, name in halves]
    text = "\n".join(explain(replace(whole, datasets=tuple(datasets))))
    assert (
        "Carries  on each of 2 datasets (b, ..): epsilon 1 over, spent before (dataset c, the largest amount):"
        in text
    )
    assert "for 3 whole runs: 30 alerts in all" in text
    assert "costs at most epsilon 4" in text


DAY = 86_400.0


def test_a_steady_pace_is_continued_and_ends_in_no_past_of_a_clock_that_was_set_back() -> None:
    found = exhaustion([(day * DAY, 0.1) for day in range(11)], left=2.0, now=10 * DAY)
    assert found is not None
    assert found.expected == pytest.approx(30 * DAY)
    assert found.early < found.expected < found.late
    set_back = exhaustion([(day * DAY, 0.1) for day in range(6)], left=1.0, now=0.0)
    assert set_back is not None
    assert set_back.early > 0.0


@pytest.mark.parametrize(("seen", "to_come"), [(6, 1), (4, 3), (6, 20), (15, 5), (30, 30)])
def test_nine_times_in_ten_the_end_comes_within_the_interval(seen: int, to_come: int) -> None:
    """The observed time is fixed, so it ends between two payments."""
    random = np.random.default_rng(7)
    within = early = asked = 0
    for _ in range(2000):
        pace = float(random.uniform(0.5, 2.0)) * DAY
        times = np.cumsum(random.exponential(pace, 5 * (seen + to_come) + 50))
        now = float(seen * pace)
        past = times[times <= now]
        found = exhaustion([(float(time), 0.25) for time in past], left=0.25 * to_come, now=now)
        if found is None:
            continue
        asked += 1
        end = times[len(past) + to_come - 1]
        within += found.early <= end <= found.late
        early += end < found.early
    assert asked > 500
    assert 0.88 <= within / asked <= 0.97
    assert early / asked <= 0.07  # nobody is surprised by an end that comes too soon


def test_time_without_a_charge_moves_the_end_away() -> None:
    charges = [(day * DAY, 0.1) for day in range(6)]
    ends = [exhaustion(charges, left=1.0, now=now * DAY) for now in (5, 10, 20)]
    expected = [end.expected for end in ends if end is not None]
    assert expected == sorted(expected)
    assert len(set(expected)) == 3


def test_charges_of_one_moment_are_one_payment() -> None:
    one = exhaustion([(day * DAY, 0.2) for day in range(8)], left=1.0, now=7 * DAY)
    split = exhaustion([(day * DAY, 0.1) for day in range(8) for _ in "ab"], left=1.0, now=7 * DAY)
    assert one == split


def test_there_is_no_projection_of_too_few_charges_or_an_empty_budget() -> None:
    charges = [(day * DAY, 0.1) for day in range(LEAST_PAYMENTS + 1)]
    assert exhaustion(charges, left=1.0, now=9 * DAY) is not None
    assert exhaustion(charges[1:], left=1.0, now=9 * DAY) is None
    assert exhaustion(charges, left=0.0, now=9 * DAY) is None
    assert exhaustion([], left=1.0, now=0.0) is None
