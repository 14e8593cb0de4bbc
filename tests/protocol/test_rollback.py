"""The rollback check, case by case; every comparison that it makes decides at least one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stream_svt.protocol.history.rollback import AlertScan, contradiction
from stream_svt.protocol.state_records import Meta
from tests.simulation.log import Entry
from tests.support.alerts import encoded, lifecycle

OURS, OTHER, WAITING = "7-aa", "7-bb", "9-cc"
SECRETS = {"noise_key": b"", "digest_key": b"", "state_id": b""}
HOMES = {"partitions": 1, "partitioner": "murmur2"}
KNOWN = Meta(
    published=3,
    published_origin=OURS,
    origin=WAITING,
    last_event=5,
    alert_offset=6,
    alert_end=10,
    **HOMES,
    **SECRETS,
)
"""Events up to 3 are published, 4 and 5 wait."""
NOTHING = Meta(**HOMES, **SECRETS)
BEGUN = Meta(origin=WAITING, last_event=1, alert_end=2, **HOMES, **SECRETS)
"""Nothing is published yet, event 1 waits; an aborted transaction left two offsets."""


def event(number: int, origin: str) -> bytes:
    return encoded(number, lifecycle("r"), origin=origin)


def found(
    meta: Meta,
    events: Sequence[tuple[int, str]],
    committed: Sequence[tuple[int, str]] | None = None,
    first: int = 0,
    end: int = 10,
) -> str | None:
    """Check a partition that shows these events; unless told, those are committed that do not wait."""
    waiting = range(meta.published + 1, meta.last_event + 1)
    if committed is None:
        committed = [one for one in events if one[0] not in waiting]
    seen, later = AlertScan(meta, waiting), AlertScan(meta, waiting)
    for each, records in ((seen, events), (later, committed)):
        for number, origin in records:
            each.take(Entry("alerts", 0, 0, None, event(number, origin)))
    return contradiction(None if meta is NOTHING else meta, seen, later, first, end)


OLDER, LAST, FOUR, FIVE = (2, "5-ee"), (3, OURS), (4, WAITING), (5, WAITING)
COPIED = [LAST, OLDER, LAST]


@pytest.mark.parametrize(
    ("meta", "events", "more"),
    [
        (KNOWN, [LAST], {}),
        (KNOWN, [OLDER, LAST], {}),
        # Copies of aborted transactions come before what was committed.
        (KNOWN, [OLDER, *COPIED], {}),
        (KNOWN, COPIED, {"committed": [OLDER, LAST]}),
        # What waits was sent, and aborted.
        (KNOWN, [LAST, FOUR], {}),
        (KNOWN, [LAST, FOUR, FIVE, FOUR, FIVE], {}),
        # Retention took what came before, or the last event, too: the end is explained.
        (KNOWN, [LAST], {"first": 9, "end": 12}),
        (KNOWN, [LAST, FOUR], {"first": 9, "end": 12}),
        (KNOWN, [], {"first": 7, "end": 20}),
        (KNOWN, [], {"first": 10}),
        (KNOWN, [FOUR], {"first": 10, "end": 12}),
        (KNOWN, [(1, OTHER), LAST], {}),
        # Nothing was published; made anew, nothing was in it.
        (BEGUN, [], {"end": 2}),
        (BEGUN, [(1, WAITING)], {"end": 4}),
        (BEGUN, [], {"end": 0}),
        # Marks of aborted transactions only.
        (NOTHING, [], {"end": 0}),
        (NOTHING, [], {"end": 5}),
    ],
)
def test_what_the_state_explains_is_accepted(meta: Meta, events: Any, more: dict[str, Any]) -> None:
    assert found(meta, events, **more) is None


@pytest.mark.parametrize(
    ("meta", "events", "more", "said"),
    [
        # Another history: newer; of another origin; not charged yet; this number, and again; behind it; before it.
        (KNOWN, [LAST, (6, OURS)], {}, "shows event 6, "),
        (KNOWN, [LAST, (4, OTHER)], {}, "shows event 4, "),
        (KNOWN, [LAST, (4, OURS)], {}, "shows event 4, "),
        (KNOWN, [(3, OTHER)], {}, "shows event 3, "),
        (KNOWN, [LAST, (3, OTHER)], {}, "shows event 3, "),
        (KNOWN, [LAST, OLDER], {}, "shows event 2, "),
        (KNOWN, [(6, OTHER), LAST], {}, "shows event 6, "),
        # Whatever was aborted behind it.
        (KNOWN, COPIED, {"committed": [LAST, OLDER]}, "shows event 2, "),
        # What waits and is committed belongs to a newer state.
        (KNOWN, [LAST, FOUR], {"committed": [LAST, FOUR]}, "shows event 4 as published"),
        # The last publication was aborted, and its records were put back.
        (KNOWN, [OLDER, LAST], {"committed": [OLDER]}, "does not show event 3"),
        (KNOWN, [], {}, "does not show event 3"),
        (KNOWN, [OLDER], {"end": 20}, "does not show event 3"),
        # It stood at offset 6 or behind it.
        (KNOWN, [], {"first": 6, "end": 20}, "does not show event 3"),
        # Retention took more than the state explains; a copy of the event proves nothing: its origin is public.
        (KNOWN, [], {"first": 11, "end": 11}, "begins at offset 11"),
        (KNOWN, [LAST], {"first": 11, "end": 12}, "begins at offset 11"),
        (KNOWN, [], {"first": 9, "end": 9}, "ends at offset 9"),
        # Who gave the state up: number 1 where retention took all others, before the end that the state expected.
        (KNOWN, [(1, "0-ee")], {"first": 9}, "shows event 1"),
        (KNOWN, [(1, "0-ee"), LAST], {}, "shows event 1"),
        (BEGUN, [(1, OTHER)], {"end": 4}, "shows event 1, "),
        (BEGUN, [], {"first": 3, "end": 3}, "begins at offset 3"),
        (NOTHING, [(1, OTHER)], {}, "shows event 1, "),
        (NOTHING, [], {"first": 5, "end": 5}, "begins at offset 5"),
    ],
)
def test_what_it_does_not_explain_is_found(meta: Meta, events: Any, more: dict[str, Any], said: str) -> None:
    assert said in (found(meta, events, **more) or "")


def test_what_is_no_event_is_passed_over() -> None:
    seen = AlertScan(KNOWN, {4, 5})
    for value in (None, b"", b"{}", b"\xff", event(0, OTHER), event(1 << 63, OTHER)):
        seen.take(Entry("alerts", 0, 0, None, value))
    assert (seen.foreign, seen.waiting, seen.last) == (0, 0, False)
