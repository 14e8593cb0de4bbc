"""The rollback check, case by case; every comparison that it makes decides at least one of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from stream_svt.protocol.rollback import Seen, contradiction
from stream_svt.protocol.state_records import Meta
from tests.support.alerts import encoded, lifecycle

OURS, OTHER, WAITING = "7-aa", "7-bb", "9-cc"
SECRETS = {"noise_key": b"", "digest_key": b"", "state_id": b""}
KNOWN = Meta(
    published=3,
    published_origin=OURS,
    origin=WAITING,
    last_event=5,
    alert_offset=6,
    alert_end=10,
    partitions=1,
    **SECRETS,
)
"""Events up to 3 are published, 4 and 5 wait."""
NOTHING = Meta(partitions=1, **SECRETS)
BEGUN = Meta(origin=WAITING, last_event=1, alert_end=2, partitions=1, **SECRETS)
"""Nothing is published yet, event 1 waits; an aborted transaction left two offsets."""


def event(number: int, origin: str) -> bytes:
    return encoded(number, lifecycle("r"), origin=origin)


def found(
    meta: Meta,
    *events: tuple[int, str],
    committed: Sequence[tuple[int, str]] | None = None,
    first: int = 0,
    end: int = 10,
) -> str | None:
    """Check a partition that shows these events; unless told, those are committed that do not wait."""
    waiting = range(meta.published + 1, meta.last_event + 1)
    if committed is None:
        committed = [one for one in events if one[0] not in waiting]
    seen, later = Seen(meta, waiting), Seen(meta, waiting)
    for each, records in ((seen, events), (later, committed)):
        for number, origin in records:
            record: Any = SimpleNamespace(value=event(number, origin), offset=0)
            each.take(record)
    return contradiction(None if meta is NOTHING else meta, seen, later, first, end)


@pytest.mark.parametrize(
    "events",
    [
        [(3, OURS)],
        [(2, "5-ee"), (3, OURS)],
        # Copies of aborted transactions come before what was committed.
        [(2, "5-ee"), (3, OURS), (2, "5-ee"), (3, OURS)],
        # What waits was sent, and aborted.
        [(3, OURS), (4, WAITING)],
        [(3, OURS), (4, WAITING), (5, WAITING), (4, WAITING), (5, WAITING)],
    ],
)
def test_what_the_state_explains_is_accepted(events) -> None:
    assert found(KNOWN, *events) is None
    # Also where retention took what came before.
    assert found(KNOWN, *events, first=9, end=12) is None


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([(3, OURS), (6, OURS)], 6),
        ([(3, OURS), (4, OTHER)], 4),
        ([(3, OURS), (4, OURS)], 4),
        ([(3, OTHER)], 3),
        ([(3, OURS), (3, OTHER)], 3),
        ([(3, OURS), (2, "5-ee")], 2),
        ([(6, OTHER), (3, OURS)], 6),
    ],
    ids=[
        "newer",
        "another history",
        "not yet charged",
        "this number",
        "it again",
        "older behind it",
        "before it",
    ],
)
def test_another_history_is_found(events, number) -> None:
    assert f"shows event {number}, " in (found(KNOWN, *events) or "")


def test_what_waits_and_is_committed_belongs_to_a_newer_state() -> None:
    assert "shows event 4 as published" in (
        found(KNOWN, (3, OURS), (4, WAITING), committed=[(3, OURS), (4, WAITING)]) or ""
    )


def test_a_state_whose_last_publication_was_aborted_is_found() -> None:
    """Its records were put back: they say that event 3 is published, and the brokers show a copy that is aborted."""
    assert "does not show event 3" in (found(KNOWN, (2, "5-ee"), (3, OURS), committed=[(2, "5-ee")]) or "")


def test_an_older_event_behind_the_last_one_is_found_whatever_was_aborted_behind_it() -> None:
    events = [(3, OURS), (2, "5-ee"), (3, OURS)]
    assert found(KNOWN, *events, committed=[(2, "5-ee"), (3, OURS)]) is None
    assert "shows event 2, " in (found(KNOWN, *events, committed=[(3, OURS), (2, "5-ee")]) or "")


def test_an_event_published_last_that_is_not_there_is_found() -> None:
    assert "does not show event 3" in (found(KNOWN) or "")
    assert "does not show event 3" in (found(KNOWN, (2, "5-ee"), end=20) or "")
    # It stood at offset 6 or behind it.
    assert "does not show event 3" in (found(KNOWN, first=6, end=20) or "")
    assert found(KNOWN, first=7, end=20) is None


def test_where_retention_took_it_the_end_must_be_explained() -> None:
    assert found(KNOWN, first=10, end=10) is None
    assert found(KNOWN, (4, WAITING), first=10, end=12) is None
    assert "begins at offset 11" in (found(KNOWN, first=11, end=11) or "")
    # Nor where somebody appended a copy of the event: its number and origin are public.
    assert "begins at offset 11" in (found(KNOWN, (3, OURS), first=11, end=12) or "")
    assert "ends at offset 9" in (found(KNOWN, first=9, end=9) or "")


def test_who_gave_the_state_up_is_seen_whatever_number_and_place_that_event_has() -> None:
    """It has number 1 where retention took all others, and may stand before the end that the state expected."""
    assert "shows event 1" in (found(KNOWN, (1, "0-ee"), first=9, end=10) or "")
    assert "shows event 1" in (found(KNOWN, (1, "0-ee"), (3, OURS)) or "")
    assert found(KNOWN, (1, OTHER), (3, OURS)) is None


def test_a_state_that_published_nothing_accepts_a_partition_without_events() -> None:
    assert found(BEGUN, end=2) is None
    assert found(BEGUN, (1, WAITING), end=4) is None
    assert found(BEGUN, end=0) is None  # made anew, and nothing was in it
    assert "shows event 1, " in (found(BEGUN, (1, OTHER), end=4) or "")
    assert "begins at offset 3" in (found(BEGUN, first=3, end=3) or "")


def test_an_empty_state_accepts_an_unused_partition_only() -> None:
    assert found(NOTHING, end=0) is None
    assert found(NOTHING, end=5) is None  # marks of aborted transactions
    assert "shows event 1, " in (found(NOTHING, (1, OTHER)) or "")
    assert "begins at offset 5" in (found(NOTHING, first=5, end=5) or "")


def test_what_is_no_event_is_passed_over() -> None:
    seen = Seen(KNOWN, {4, 5})
    for value in (None, b"", b"{}", b"\xff", event(0, OTHER), event(1 << 63, OTHER)):
        record: Any = SimpleNamespace(value=value, offset=0)
        seen.take(record)
    assert (seen.foreign, seen.waiting, seen.last) == (0, 0, False)
