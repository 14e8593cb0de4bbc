"""Accounts and states as a reader of released events knows them, event by event."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stream_svt.monitor.released import EventType, decode
from stream_svt.monitor.released_status import CHARGES_KEPT, Budget, ReleasedStatus
from tests.support.released import account_of, alert, lifecycle

WEEK, OTHER = "week-1", "week-2"


@pytest.fixture
def status() -> ReleasedStatus:
    return ReleasedStatus({WEEK: Budget(4.0), OTHER: Budget(2.0)}, {"hot": [WEEK, OTHER], "rare": [WEEK]})


def take(status: ReleasedStatus, *records: bytes) -> None:
    for record in records:
        status.take(*decode(record))


def test_a_dataset_nobody_spoke_of_is_untouched_and_its_monitors_wait(status: ReleasedStatus) -> None:
    assert (status.budgets[WEEK].left, status.budgets[WEEK].told) == (4.0, False)
    assert {name: status.shown for name, status in status.of_dataset(WEEK).items()} == {
        "hot": "idle",
        "rare": "idle",
    }


def test_charges_are_kept_with_their_time_and_the_oldest_are_forgotten(status: ReleasedStatus) -> None:
    take(
        status, *[alert(WEEK, at=float(second), account=account_of(0.01 * second)) for second in range(1, 81)]
    )
    take(status, lifecycle(EventType.MUTED, WEEK, at=99.0, account=account_of(0.8, charge=0.0)))
    charges = status.budgets[WEEK].charges
    assert len(charges) == CHARGES_KEPT
    assert charges[-1] == (80.0, 0.1)


def test_what_is_not_declared_is_not_kept(status: ReleasedStatus) -> None:
    take(status, alert("unheard-of"), lifecycle(EventType.SPEC_CHANGED, "", monitor="hot"))
    assert set(status.budgets) == {WEEK, OTHER}
    assert set(status.of_dataset(WEEK)) == {"hot", "rare"}


def test_an_event_of_a_kind_yet_unknown_keeps_the_books_and_changes_no_state(status: ReleasedStatus) -> None:
    envelope, data = decode(lifecycle(EventType.RUN_STARTED, WEEK, account=account_of(0.7)))
    status.take(replace(envelope, type="io.stream-svt.something.new.v1"), data)
    assert status.budgets[WEEK].spent == 0.7
    assert status.of_dataset(WEEK)["hot"].shown == "idle"
