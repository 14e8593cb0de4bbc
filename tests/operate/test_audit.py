"""The audit accepts what an engine releases, and finds every kind of doctored book."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from stream_svt.monitor.released import EventType, encode
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.snapshot import from_bytes
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import MAX_FINDINGS, Audit, DatasetTally, StoredShard
from stream_svt.settings.application import load_spec
from tests.support import alerts
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream

account_of = partial(alerts.account_of, limit=1.0)


def lifecycle_event(kind: EventType, reason: str = "later", charge: float = 0, spent: float = 0.5, **more):
    """Return an event of the dataset alone; ``limit`` is its new one, ``detail`` what it says besides."""
    account = account_of(charge, spent, limit=more.pop("limit", 1.0))
    return lifecycle(reason, run=0, monitor="", account=account, **more), kind


def started(reason: str, run: int, charge: float, spent: float, reserved: float = 0.0):
    return lifecycle(
        reason, run=run, account=account_of(charge, spent, reserved=reserved)
    ), EventType.RUN_STARTED


def top(number: int, charge: float, spent: float, *, run: int = 1, reserved: float = 0.0):
    return alert(number=number, run=run, account=account_of(charge, spent, reserved=reserved)), None


DECLARED = lifecycle_event(EventType.DECLARED, "declared", spent=0)
STARTED = started("first", 1, 0.1, 0.1, reserved=0.4)
FIRST, SECOND = top(1, 0.2, 0.3, reserved=0.2), top(2, 0.2, 0.5)
HALTED = (lifecycle("cutoff", account=account_of(0, 0.5)), EventType.RUN_HALTED)
RESUMED = lifecycle_event(EventType.RESUMED, spent=0)
RETIRED = lifecycle_event(EventType.RETIRED, "period-over")
GOOD = [DECLARED, STARTED, FIRST, SECOND, HALTED]


def closed(successor: str = "next", *, reason: str = "command"):
    detail = {"successor": successor, "balances": 1}
    data = lifecycle(reason, dataset="", run=0, monitor="", detail=detail)
    return data, EventType.APPLICATION_CLOSED


def begun(*, before: float, spent: float | None = None, carried_from: str = "retail-watch"):
    """Return the first events of a successor: its state, and a dataset of which something was spent before."""
    state = lifecycle("begun", dataset="", run=0, monitor="", detail={"carried_from": carried_from})
    spent = before if spent is None else spent
    declared = lifecycle_event(EventType.DECLARED, "declared", spent=spent, detail={"spent_before": before})
    return [(state, EventType.STATE_BEGUN), declared]


def audited(events, *, first: int = 1) -> Audit:
    audit = Audit()
    for number, (data, kind) in enumerate(events, first):
        audit.add(0, number, encoded(number, data, kind=kind))
    return audit


def test_books_that_balance_are_summed_per_dataset():
    audit = audited([*GOOD, lifecycle_event(EventType.BUDGET_RAISED, "raised", limit=2)])
    assert audit.balances
    shop = audit.datasets["shop"]
    assert (shop.charged, shop.spent, shop.alerts, shop.events) == (500_000_000, 500_000_000, 2, 6)
    assert (audit.events, audit.alerts, audit.last_sequence) == (6, 2, {0: 6})


def test_after_a_retirement_comes_a_balance_and_after_an_end_that_the_state_is_given_up():
    assert audited([*GOOD, RETIRED, lifecycle_event(EventType.BALANCE, "command")]).balances
    audit = audited([*GOOD, closed(), closed(reason="given-up")])
    assert (audit.balances, audit.closed) == (True, {0: "next"})


def test_shards_that_began_with_different_partitioners_are_found():
    def began(partitioner: str):
        detail = {"partitions": 2, "partitioner": partitioner}
        return lifecycle("first-start", dataset="", run=0, monitor="", detail=detail)

    audit = Audit()
    for shard, partitioner in enumerate(("crc32", "crc32", "murmur2")):
        event = encoded(1, began(partitioner), kind=EventType.STATE_BEGUN, event_id=f"e{shard}", shard=shard)
        audit.add(shard, 0, event)
        assert audit.balances is (partitioner == "crc32")
    assert audit.partitioning == (2, "crc32")
    assert "began with 2 partitions with murmur2" in audit.findings[0]


def test_what_was_spent_before_counts_and_is_no_gap():
    audit = audited([*begun(before=0.5), started("first", 1, 0.1, 0.6, reserved=0.4)])
    assert audit.balances
    assert audit.carried_from == {0: "retail-watch"}
    shop = audit.datasets["shop"]
    assert (shop.carried, shop.before, shop.spent) == (500_000_000, 500_000_000, 600_000_000)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            [DECLARED, STARTED, top(1, 0.1, 0.3, reserved=0.2), SECOND, HALTED],
            "partition 0 offset 3: dataset shop: charges add up to epsilon 0.2, the event says epsilon 0.3",
        ),
        ([DECLARED, STARTED, FIRST, top(2, 0, 0.3)], "an alert that was not charged"),
        ([DECLARED, STARTED, FIRST, top(2, 0.8, 1.1)], "epsilon 1.1 spent and reserved of epsilon 1"),
        ([DECLARED, STARTED, FIRST, top(3, 0.2, 0.5)], "alert 3, expected 2"),
        ([*GOOD, top(3, 0.2, 0.7)], "a top after run 1 had ended"),
        ([*GOOD, top(1, 0.2, 0.7, run=2)], "a top of run 2 while run 1 is open"),
        ([*GOOD, started("resampled", 3, 0.1, 0.6)], "run 3 started, expected run 2"),
        ([*GOOD, started("resampled", 2, 0, 0.5)], "run 2 started without a charge"),
        ([lifecycle_event(EventType.DECLARED, "declared", spent=0.3)], "begins with epsilon 0.3 spent"),
        ([*GOOD, DECLARED], "charges add up to epsilon 0.5, the event says epsilon 0"),
        ([*GOOD, lifecycle_event(EventType.RESUMED, limit=2)], "its limit changed without being raised"),
        ([*GOOD, RETIRED, lifecycle_event(EventType.RESUMED)], "after dataset shop was retired"),
        ([*GOOD, closed(), lifecycle_event(EventType.RESUMED)], "after the application was closed"),
        (begun(before=0.5, spent=0.4), "dataset shop begins with epsilon 0.4 spent"),
        (begun(before=0.5, spent=0.6), "dataset shop begins with epsilon 0.6 spent"),
        (begun(before=0.5)[1:], "dataset shop begins with epsilon 0.5 spent"),
    ],
)
def test_what_no_engine_would_write_is_found_once(events, words):
    audit = audited(events)
    assert (audit.found, audit.balances) == (1, False), audit.findings
    assert words in audit.findings[0]


def test_every_top_after_the_end_of_its_run_is_found():
    audit = audited([*GOOD, top(3, 0.2, 0.7), top(4, 0.2, 0.9)])
    assert (audit.found, audit.balances) == (2, False), audit.findings


@pytest.mark.parametrize("amount", [1e300, -1e300, 1e10])
@pytest.mark.parametrize("name", ["charge", "spent", "reserved", "limit"])
def test_an_amount_that_no_ledger_holds_is_a_finding(name: str, amount: float) -> None:
    forged = account_of(**{"charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 1.0, name: amount})
    (found,) = audited([(lifecycle("x", account=forged), EventType.RESUMED)]).findings
    assert "an amount that no ledger holds" in found


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([(0, 1, {}), (0, 2, {}), (0, 4, {})], "partition 0 offset 4: event number 4, expected 3"),
        ([(0, number, {"event_id": "same"}) for number in (1, 2)], "event same comes twice"),
        ([(3, 1, {"shard": 2})], "event of shard 2"),
        ([(0, 1, {}), (1, 1, {"shard": 1, "event_id": "b"})], "has events on partition 0 too"),
    ],
)
def test_a_record_that_does_not_follow_the_others_or_belong_there_is_found(records, words):
    audit = Audit()
    for partition, number, options in records:
        audit.add(partition, number, encoded(number, RESUMED[0], kind=RESUMED[1], **options))
    assert words in audit.findings[0]


def test_history_taken_by_retention_is_said_and_not_held_against_the_books():
    audit = audited(GOOD[3:], first=40)
    assert audit.balances
    assert audit.truncated == {0}
    assert (audit.datasets["shop"].before, audit.datasets["shop"].spent) == (300_000_000, 500_000_000)


@pytest.mark.parametrize(
    "record",
    [None, b"{}", b'{"id":"\xff"}', encoded(1, alert(number=1))[:-1] + b',"subject":' + b"[" * 60_000],
)
def test_a_forged_record_is_a_finding_and_only_so_many_are_kept(record: bytes | None) -> None:
    audit = Audit()
    for offset in range(MAX_FINDINGS + 7):
        audit.add(0, offset, record)
    assert audit.findings[3] == "partition 0 offset 3: is no event of stream-svt"
    assert (len(audit.findings), audit.found) == (MAX_FINDINGS, MAX_FINDINGS + 7)


def test_a_number_without_end_in_an_id_is_none() -> None:
    audit = Audit()
    event = json.loads(encoded(1, DECLARED[0], kind=DECLARED[1]))
    audit.add(0, 0, json.dumps(event | {"id": "shop/" + "9" * 5000}).encode())
    assert audit.balances
    assert audit.datasets["shop"].last == 0


@pytest.mark.parametrize(
    ("reason", "number", "found"), [("given-up", 9, 0), ("command", 9, 1), ("given-up", 2, 1)]
)
def test_the_end_of_a_state_given_up_comes_behind_events_that_were_never_committed(reason, number, found):
    audit = Audit()
    for sequence, (data, kind) in [*enumerate(GOOD, 1), (number, closed(reason=reason))]:
        audit.add(0, sequence, encoded(sequence, data, kind=kind))
    assert audit.found == found


# --- an application that goes on with the budgets of another


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (begun(before=0.5), ""),
        (begun(before=0.75), ""),
        (begun(before=0.4), "dataset shop begins with epsilon 0.4, and 'retail-watch' had spent epsilon 0.5"),
        (GOOD, "it does not continue the budgets of application 'retail-watch'"),
        (
            begun(before=0.5, carried_from="stranger"),
            "state of shard 0: it continues the budgets of application 'stranger', not 'retail-watch'",
        ),
    ],
)
def test_an_application_follows_another_that_begins_with_all_that_was_spent(events, words):
    audit, earlier = audited(events), audited([*GOOD, closed()])
    assert (audit.balances, earlier.balances) == (True, True)
    audit.follow(earlier, "retail-watch")
    assert (audit.balances, words in "".join(audit.findings)) == (not words, True)


def test_a_measure_that_changed_with_the_application_is_found_and_a_dataset_that_is_gone_is_not():
    audit = audited(begun(before=0.5))
    tallies = [("shop", Kind.ZCDP, 10**18, 0), ("gone", Kind.PURE, 10**9, 10**9)]
    earlier = Audit(
        datasets={
            name: DatasetTally(name, kind, limit, charged=spent) for name, kind, limit, spent in tallies
        }
    )
    audit.follow(earlier, "retail-watch")
    assert audit.findings == ["dataset shop changed its measure with the application"]


ENGINE = """
application: shop
datasets: [{name: today, limit: 2.5, unit: one basket}, {name: zcdp, limit: {rho: 0.5}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none}
  - {name: far, topic: other, mechanism: adaptive, epsilon: 1, cutoff: 2, sensitivity: 1, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none, datasets: [today]}
"""
SENDER = {"application": "shop", "shard": 0, "time": "2026-01-05T00:00:00Z", "origin": "1-00000000000000aa"}


def played(doctor: Callable[[dict], object] = lambda _: True) -> Audit:
    """Audit what an engine releases, with each event doctored, or left out, against the monitors as configured."""
    spec = load_spec(ENGINE)
    play = Play(spec)
    queries = [Query(index % 2, 10 if index % 5 else 900, f"s{index}") for index in range(300)]
    for topic in ("counts", "other"):
        play.play(topic, queries)
    assert {alert.monitor for alert in play.alerts()} == {"hot", "far"}
    audit = Audit(spec.monitors)
    for event in play.events:
        content = json.loads(encode(event, **SENDER))
        if doctor(content) is not None:
            audit.add(0, event.sequence, json.dumps(content).encode())
    return audit


def test_all_that_an_engine_releases_balances_and_nothing_else_left_out_or_with_a_smaller_charge():
    def less(number: int, event: dict) -> bool:
        if event["sequence"] == number and charges(event):
            event["data"]["account"]["spent"] -= 0.1
        return True

    def charges(event: dict) -> bool:
        return bool(event["data"]["account"] and event["data"]["account"]["charge"])

    events: list[dict] = []
    audit = played(lambda event: events.append(event) or True)
    assert (audit.findings, set(audit.datasets), len(events) > 10) == ([], {"today", "zcdp"}, True)
    assert audit.alerts >= 3
    for number in range(2, len(events)):  # retention takes the first ones; the last one only the state tells
        assert played(lambda event, left_out=number: event["sequence"] != left_out or None).findings, number
        if charges(events[number - 1]):
            assert played(partial(less, number)).findings, number


@pytest.mark.parametrize(
    ("kind", "words"), [(EventType.ALERT, "an alert charged"), (EventType.RUN_STARTED, "was opened for")]
)
def test_a_charge_that_is_not_the_price_of_its_monitor_is_found(kind: EventType, words: str) -> None:
    def doctor(event: dict) -> bool:
        if event["type"] == kind and event["data"]["dataset"] == "today":
            event["data"]["account"]["charge"] /= 2
        return True

    found = played(doctor).findings
    assert any(words in text and "its price is" in text for text in found), found


# --- the operator's audit holds ledgers to events


def _played() -> tuple[Audit, StoredShard]:
    """Return a shard's state, its last events still waiting, and an audit that has seen the others."""
    play = Play(
        spec_of(FORMS["never muted"], FORMS["retry"], datasets="{names: [a, b, c], limit: 90, unit: u}")
    )
    play.play(TOPIC, stream(5, 120)[:120])
    audit = Audit()
    events = [encode(event, **SENDER) for event in play.events]
    for number, event in enumerate(events[:-3], 1):
        audit.add(0, number, event)
    datasets = {
        key[2:].decode(): from_bytes(DatasetAccount, data, key=key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }
    waiting = [(event.sequence, b"", text) for event, text in zip(play.events[-3:], events[-3:], strict=True)]
    return audit, StoredShard(0, play.events[-1].sequence, datasets, waiting)


def _compared(audit: Audit, state: StoredShard, elsewhere: str = "") -> Audit:
    return audit.compare([state], lambda name: int(name == elsewhere))


def test_ledgers_balance_with_what_waits_to_be_published() -> None:
    audit = _compared(*_played())
    assert audit.findings == []
    assert audit.ledgers == 3
    assert sum(account.alerts for account in audit.datasets.values()) > 5


@pytest.mark.parametrize(
    ("part", "name", "changed", "words"),
    [
        ("ledger", "spent", lambda spent: spent - 1, "is spent, the events say"),
        ("ledger", "limit", lambda limit: limit + 10**9, "is the limit, the events say"),
        ("ledger", "reserved", lambda reserved: reserved - 1, "is reserved, and not by the open runs"),
        ("", "events", lambda events: events - 1, "events are counted"),
        ("m0", "run", lambda _: 99, "monitor m0 is at run 99"),
        ("m0", "tops", lambda tops: tops + 1, "alerts, "),
        ("m0", "state", lambda _: "halted", "is closed and has something left"),
        ("m0", "state", lambda _: "halted", "is closed, the events say otherwise"),
    ],
)
def test_a_doctored_ledger_is_found(part, name, changed, words):
    audit, state = _played()
    dataset = next(
        one for one, record in state.datasets.items() if record.run_states["m0"].state == "running"
    )
    record = state.datasets[dataset]
    doctored = {"": record, "ledger": record.ledger, "m0": record.run_states["m0"]}[part]
    setattr(doctored, name, changed(getattr(doctored, name)))
    found = _compared(audit, state).findings
    assert any(words in text and text.startswith(f"state of shard 0: dataset {dataset}") for text in found), (
        found
    )


def test_a_ledger_that_is_missing_or_elsewhere_is_found() -> None:
    audit, state = _played()
    moved = min(state.datasets)
    assert f"dataset {moved} is at home at shard 1" in _compared(audit, state, moved).findings[0]
    audit, state = _played()
    del state.datasets[moved]
    assert f"dataset {moved} has events and no ledger" in _compared(audit, state).findings[0]


@pytest.mark.parametrize("older", [True, False])
def test_a_state_older_than_its_events_is_found_and_alerts_that_are_missing_make_none(older: bool) -> None:
    audit, state = _played()
    for number, _, event in state.waiting if older else ():
        audit.add(0, number, event)
    changed = (
        replace(state, last_event=state.last_event - 3, waiting=[])
        if older
        else replace(state, last_event=state.last_event + 1)
    )
    found = _compared(audit, changed).findings
    assert "it knows events up to number" in found[0]
    assert any("the state is older than the alerts" in one for one in found) == older
