"""What one worker knows of the whole application's budgets, and that it says where it does not know."""

from __future__ import annotations

import pytest

from stream_svt.monitor.released import DatasetView, decode
from stream_svt.privacy.loss import Kind
from stream_svt.privacy.meaning import best_guess
from stream_svt.service.web.status_snapshot import DatasetNow, StatusSnapshot
from stream_svt.settings.application_document import load_spec
from tests.service.test_metrics import SPEC, view
from tests.support.released import account_of, alert

DAY = 86_400.0
PERIODS = """
application: shop
datasets: [{generate: "day-{date}", from: 2026-01-05, until: 2026-01-07, lateness: 1h, limit: {rho: 0.1},
  unit: one user's day}]
monitors:
  - {name: hot, topic: counts, epsilon: 0.1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


def snapshot_of(text: str, *records: bytes, complete: bool = False) -> StatusSnapshot:
    snapshot = StatusSnapshot(load_spec(text), complete=complete)
    take(snapshot, *records)
    return snapshot


@pytest.fixture
def snapshot() -> StatusSnapshot:
    return snapshot_of(SPEC)


def take(snapshot: StatusSnapshot, *records: bytes) -> None:
    for record in records:
        snapshot.status.take(*decode(record))


def of(snapshot: StatusSnapshot, dataset: str, now: float = 0.0, **views: DatasetView) -> DatasetNow:
    (spec,) = [one for one in snapshot.spec.shown if one.name == dataset]
    return snapshot.of(spec, views.get(dataset), now)


def test_committed_books_of_an_owned_shard_win_over_the_events(snapshot: StatusSnapshot) -> None:
    take(snapshot, alert("a", account=account_of(0.3)))
    assert (of(snapshot, "a").source, of(snapshot, "a").spent) == ("alerts", 0.3)
    found = of(snapshot, "a", a=view("a", tops=7, spent=0.5))
    assert (found.source, found.spent, found.monitors[0].tops, found.monitors[0].muted) == (
        "state",
        0.5,
        7,
        2,
    )
    assert of(snapshot, "a").source == "alerts"


def test_what_is_not_known_is_not_called_untouched(snapshot: StatusSnapshot) -> None:
    found = of(snapshot, "a")
    assert (found.source, found.spent, found.guess_spent, found.monitors[0].state) == (
        "unknown",
        None,
        None,
        None,
    )
    found = of(snapshot_of(SPEC, complete=True), "a")
    assert (found.source, found.spent, found.monitors[0].state) == ("declaration", 0.0, "idle")


def test_the_outlook_comes_from_the_charges_and_needs_some(snapshot: StatusSnapshot) -> None:
    events = [alert("a", at=day * DAY, account=account_of(0.1 * day + 0.1)) for day in range(8)]
    take(snapshot, *events[:3])
    assert of(snapshot, "a", 2 * DAY).outlook is None
    take(snapshot, *events[3:])
    outlook = of(snapshot, "a", 7 * DAY).outlook
    assert outlook is not None
    assert outlook.expected == pytest.approx(39 * DAY)  # 3.2 left at 0.1 a day
    later = of(snapshot, "a", 8 * DAY).outlook
    assert later is not None
    assert later.expected > outlook.expected  # a day without a charge


def test_a_guess_is_said_after_epsilon_and_only_of_the_limit_after_rho() -> None:
    pure = snapshot_of(SPEC, alert("a", account=account_of(1.0)))
    assert of(pure, "a").guess_spent == best_guess(1.0, Kind.PURE)
    assert of(pure, "a").guess_limit == best_guess(4.0, Kind.PURE)
    zcdp = snapshot_of(PERIODS, complete=True)
    found = of(zcdp, "day-2026-01-05")
    assert (found.measure, found.guess_spent) == ("rho", None)
    assert found.guess_limit == best_guess(0.1, Kind.ZCDP)


def test_a_period_says_when_it_is_over_lateness_included() -> None:
    found = of(snapshot_of(PERIODS), "day-2026-01-05")
    assert found.ends == 1_767_657_600 + 3600  # 2026-01-06, one hour past midnight
