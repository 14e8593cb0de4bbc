"""What one worker knows of the whole application's budgets, and that it says where it does not know."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from stream_svt.monitor.released import DatasetView, EventType, decode
from stream_svt.privacy.loss import Kind
from stream_svt.privacy.meaning import best_guess
from stream_svt.service.web.status_snapshot import DatasetNow, StatusSnapshot
from stream_svt.settings.application_document import load_spec
from tests.service.test_metrics import SPEC, view
from tests.support.released import account_of, alert, lifecycle

DAY = 86_400.0
PERIODS = """
application: shop
datasets: [{generate: "day-{date}", from: 2026-01-05, until: 2026-01-07, lateness: 1h, limit: {rho: 0.1},
  unit: one user's day}]
monitors:
  - {name: hot, topic: counts, epsilon: 0.1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


@pytest.fixture
def snapshot() -> StatusSnapshot:
    return StatusSnapshot(load_spec(SPEC))


def take(snapshot: StatusSnapshot, *records: bytes) -> None:
    for record in records:
        snapshot.take(*decode(record))


def of(snapshot: StatusSnapshot, dataset: str, now: float = 0.0, **views: DatasetView) -> DatasetNow:
    found = (msgspec.json.decode(one, type=DatasetNow) for one in snapshot.all(views, now))
    return next(one for one in found if one.dataset == dataset)


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
    snapshot.complete = True
    snapshot.age()
    found = of(snapshot, "a")
    assert (found.source, found.spent, found.monitors[0].state) == ("declaration", 0.0, "idle")


def test_the_outlook_comes_from_the_charges_and_needs_some(snapshot: StatusSnapshot) -> None:
    events = [alert("a", at=day * DAY, account=account_of(0.1 * day + 0.1)) for day in range(8)]
    take(snapshot, *events[:3])
    assert of(snapshot, "a", 2 * DAY).outlook is None
    take(snapshot, *events[3:])
    outlook = of(snapshot, "a", 7 * DAY).outlook
    assert outlook is not None
    assert outlook.expected == pytest.approx(39 * DAY)  # 3.2 left at 0.1 a day
    snapshot.age()
    later = of(snapshot, "a", 8 * DAY).outlook
    assert later is not None
    assert later.expected > outlook.expected  # a day without a charge


def test_a_guess_is_said_after_epsilon_and_only_of_the_limit_after_rho() -> None:
    pure = StatusSnapshot(load_spec(SPEC))
    take(pure, alert("a", account=account_of(1.0)))
    assert of(pure, "a").guess_spent == best_guess(1.0, Kind.PURE)
    assert of(pure, "a").guess_limit == best_guess(4.0, Kind.PURE)
    zcdp = StatusSnapshot(load_spec(PERIODS))
    zcdp.complete = True
    found = of(zcdp, "day-2026-01-05")
    assert (found.measure, found.guess_spent) == ("rho", None)
    assert found.guess_limit == best_guess(0.1, Kind.ZCDP)


def test_a_period_says_when_it_is_over_lateness_included() -> None:
    found = of(StatusSnapshot(load_spec(PERIODS)), "day-2026-01-05")
    assert found.ends == 1_767_657_600 + 3600  # 2026-01-06, one hour past midnight


def test_only_what_changed_is_computed_again(snapshot: StatusSnapshot) -> None:
    committed = view("c")
    first = snapshot.all({"c": committed}, 0.0)
    take(snapshot, alert("b"))
    second = snapshot.all({"c": committed}, 0.0)
    assert [one is before for one, before in zip(second, first, strict=True)] == [True, False, True]
    third = snapshot.all({"c": replace(committed, spent=0.6)}, 0.0)
    assert [one is before for one, before in zip(third, second, strict=True)] == [True, True, False]
    fourth = snapshot.all({}, 0.0)  # the shard went to another worker
    assert [one is before for one, before in zip(fourth, third, strict=True)] == [True, True, False]


def test_datasets_that_are_not_shown_one_by_one_are_neither_kept_nor_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stream_svt.settings.application.DATASETS_SHOWN", 1)
    snapshot = StatusSnapshot(load_spec(SPEC))
    take(snapshot, alert("b"), lifecycle(EventType.RUN_STARTED, "c"))
    (only,) = snapshot.all({"a": view("a"), "b": view("b")}, 0.0)
    assert msgspec.json.decode(only)["dataset"] == "a"
