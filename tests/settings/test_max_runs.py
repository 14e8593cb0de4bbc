"""`max_runs` in the file: its forms, its default for each dataset, and what `check` says of it."""

from __future__ import annotations

import pytest

from stream_svt.planning import explain
from stream_svt.planning.budget import PaidRuns
from stream_svt.settings.application import load_spec
from stream_svt.settings.fields import MaxRuns
from stream_svt.settings.monitors import MonitorSpec, ends_runs

DAY, HOUR = 86_400_000, 3_600_000
TEXT = (
    "application: shop\n"
    "datasets:\n"
    "  - {name: today, unit: one basket, DATASET}\n"
    "monitors:\n"
    "  - {name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, bounds: [0, 100000],\n"
    "     threshold: 500, expected_queries: 1000MORE}\n"
)


def spec(more: str = "", dataset: str = "limit: 4"):
    return load_spec(TEXT.replace("MORE", more).replace("DATASET", dataset))


def monitor(more: str = "") -> MonitorSpec:
    return spec(more).monitors[0]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2 per 1d", MaxRuns(2, DAY)),
        ("'10 per 90m'", MaxRuns(10, 5_400_000)),
        ("off", None),
        ("auto", "auto"),
    ],
)
def test_a_maximum_is_read_and_survives_json(text, meaning):
    found = monitor(f", max_runs: {text}")
    assert found.max_runs == meaning
    assert MonitorSpec.from_json(found.to_json()) == found
    assert (meaning is None) == ('"max_runs":"off"' in found.to_json())


@pytest.mark.parametrize(
    ("dataset", "sharing", "more", "expected"),
    [
        ("limit: 4", 1, "", "2 per 6h"),
        ("limit: 100", 1, "", "50 per 6h"),
        ("limit: 3", 1, "", "1 per 6h"),
        ("limit: 1", 1, "", "1 per 6h"),
        ("limit: 4", 2, "", "1 per 6h"),
        ("limit: 40, horizon: 8d", 1, "", "20 per 6h"),
        ("limit: 40, horizon: 8d", 3, "", "6 per 6h"),
        ("limit: 40, horizon: 8d", 99, "", "1 per 6h"),
        ("limit: 40, horizon: 8h", 1, "", "20 per 2h"),
        ("limit: {rho: 4}, horizon: 8d", 1, "", "4 per 6h"),
        ("limit: 4", 1, ", resample_every: 2h", "5 per 6h"),
        ("limit: 4", 1, ", resample_every: 8h", "2 per 6h"),
        ("limit: 1000, horizon: 40d", 1, "", "100 per 72m"),
    ],
    ids=str,
)
def test_the_default_is_half_of_what_the_limit_pays_for_within_a_quarter_of_the_horizon_or_six_hours(
    dataset, sharing, more, expected
):
    application = spec(more, dataset)
    most = application.monitors[0].runs_allowed(application.datasets[0].terms, sharing)
    assert str(most) == expected


@pytest.mark.parametrize("runs", range(1, 12))
@pytest.mark.parametrize("sharing", [1, 2, 3])
def test_the_default_never_holds_up_a_budget_that_is_spent_evenly_over_its_horizon(runs, sharing):
    application = spec(dataset=f"limit: {runs * sharing}, horizon: 40d")
    most = application.monitors[0].runs_allowed(application.datasets[0].terms, sharing)
    assert most.count / most.within_ms >= runs / (40 * DAY)


@pytest.mark.parametrize(
    "horizon", ["", ", horizon: 1h", ", horizon: 1d", ", horizon: 30d", ", horizon: 3650d"]
)
@pytest.mark.parametrize("limit", [1, 2, 3, 20, 1000])
def test_a_burst_blinds_for_hours_by_default_and_not_for_days(horizon, limit):
    application = spec(dataset=f"limit: {limit}{horizon}")
    most = application.monitors[0].runs_allowed(application.datasets[0].terms, 1)
    assert most.within_ms <= 6 * HOUR


@pytest.mark.parametrize("period", ["day-{date}", "week-{iso_week}"])
def test_a_period_is_the_horizon_of_its_dataset(period):
    text = TEXT.replace("name: today, ", "").replace("MORE", "")
    periods = f"generate: '{period}', from: 2026-01-05, until: 2026-01-19, limit: 9"
    application = load_spec(text.replace("DATASET", periods))
    assert application.monitors[0].runs_allowed(application.datasets[0].terms, 1) == MaxRuns(4, 6 * HOUR)


def test_another_maximum_ends_no_run_and_is_part_of_the_digest():
    one, other = monitor(", max_runs: 2 per 1d"), monitor(", max_runs: 3 per 1d")
    assert not ends_runs(one, other)
    assert len({one.hash(), other.hash(), monitor(", max_runs: off").hash(), monitor().hash()}) == 4


def test_a_maximum_needs_no_broker_time():
    assert spec(", max_runs: 1 per 1d").topics_with_broker_time() == ()


def test_a_schedule_that_the_maximum_contradicts_is_noted():
    def notes(more: str) -> list[str]:
        return [note.message for note in spec(more).notes if note.field.endswith("max_runs")]

    assert notes(", resample_every: 1h, max_runs: 24 per 1d") == []
    assert notes(", resample_every: 1h") == []
    (note,) = notes(", resample_every: 1h, max_runs: 23 per 1d")
    assert note.startswith("runs begin 23 per 1d at most, less often than resample_every says")


def test_check_and_plan_say_how_many_runs_may_begin():
    said = "\n".join(explain(spec()))
    assert (
        "Begins   at most 2 runs within 6h (max_runs: auto). A burst of high values may use them up at once: the "
        "monitor then skips queries for up to 6h, says so, and" in said
    )
    assert "any number of runs within a moment (max_runs: off)" in "\n".join(explain(spec(", max_runs: off")))
    application = spec(", max_runs: 1 per 3h")
    paid = PaidRuns.left(application.monitors[0], application.datasets[0])
    assert (paid.runs, paid.at_once) == (4, MaxRuns(1, 3 * HOUR))


def test_datasets_with_other_horizons_are_described_apart():
    text = (
        TEXT.replace("MORE", "").replace("name: today, ", "names: [a, b], ").replace("DATASET", "limit: 40")
    )
    text = text.replace("monitors:", "  - {name: c, unit: one basket, limit: 40, horizon: 8h}\nmonitors:")
    head, *lines = explain(load_spec(text))
    assert head == "Monitor hot on each of 2 datasets (a, ..) and on c:"
    begins = [line for line in lines if line.startswith("  Begins")]
    assert [line.partition(": at most")[0][11:] for line in begins] == [
        "on each of 2 datasets (a, ..)",
        "on c",
    ]
