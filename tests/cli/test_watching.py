"""How events look to people and to programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from click import unstyle

from stream_svt.cli.watching import as_line, in_words, refused_in_words
from stream_svt.monitor.released import Alert, Envelope, EventType
from stream_svt.subscribe import Event
from tests.support.alerts import account_of, alert, encoded, lifecycle


def event(data, kind: EventType = EventType.ALERT) -> Event:
    return Event(
        id="shop-1",
        type=kind,
        source="/stream-svt/retail-watch",
        subject="shop/milk",
        time=datetime(2026, 1, 5, 10, tzinfo=UTC),
        shard=0,
        sequence=1,
        origin="1-00ff",
        stateid="5e" * 16,
        proof="",
        command=0,
        partition=0,
        offset=3,
        data=data,
    )


def test_an_alert_in_words_shows_gap_estimate_bound_and_budget():
    line = unstyle(in_words(event(alert(top=2))))
    for part in (
        "ALERT",
        "shop/milk  hot",
        "gap 12  estimate 562  not certified",
        "run 1 top 2",
        "epsilon 0.1 of 4",
    ):
        assert part in line
    assert "attempt" not in line


def test_a_lifecycle_event_in_words_shows_what_happened_and_why():
    data = lifecycle("resampled", run=2, account=account_of(), detail={"tops_charge_left": 0.9})
    line = unstyle(in_words(event(data, EventType.RUN_STARTED)))
    assert "run.started  shop/milk  hot  resampled  tops_charge_left=0.9  epsilon 0.1 of 4 spent" in line


def test_a_json_line_holds_every_field_of_the_event_and_where_it_stands():
    written = json.loads(encoded(1, alert(top=2)))
    document = json.loads(as_line(event(alert(top=2))))
    assert document["id"] == "shop-1"
    assert document["data"] == written["data"]
    assert set(document["data"]) == set(Alert.__struct_fields__)
    assert set(document) == {*written, *Envelope.__struct_fields__, "partition", "offset"}


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ({}, ""),
        ({"no-key": 1}, "1 record refused (no-key 1): see topic town-watch.rejects"),
        (
            {"not-json": 1, "undeclared": 2},
            "3 records refused (not-json 1, undeclared 2): see topic town-watch.rejects",
        ),
    ],
)
def test_refused_records_are_told_by_reason_with_the_topic_of_their_places(
    reasons: dict[str, int], said: str
) -> None:
    assert refused_in_words({"topic": "town-watch.rejects", "reasons": reasons}) == said
