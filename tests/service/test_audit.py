"""The audit accepts what an engine releases, and finds every kind of doctored book."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from stream_svt.monitor.accounts import DatasetAccount
from stream_svt.monitor.released import Account, EventType, encode
from stream_svt.monitor.snapshot import from_bytes
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.audit import MAX_FINDINGS, Audit, DatasetTally, StoredShard
from stream_svt.settings.application import load_spec
from tests.support import alerts
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream


def account_of(charge: float, spent: float, *, reserved: float = 0.0, limit: float = 1.0) -> Account:
    return alerts.account_of(charge=charge, spent=spent, reserved=reserved, limit=limit)


def told(kind: EventType, reason: str = "later", charge: float = 0, spent: float = 0.5, **more):
    """Return an event of the dataset alone; ``limit`` is its new one, ``detail`` what it says besides."""
    account = account_of(charge, spent, limit=more.pop("limit", 1.0))
    return lifecycle(reason, run=0, monitor="", account=account, **more), kind


def started(reason: str, run: int, charge: float, spent: float, reserved: float = 0.0):
    return lifecycle(
        reason, run=run, account=account_of(charge, spent, reserved=reserved)
    ), EventType.RUN_STARTED


def top(number: int, charge: float, spent: float, *, run: int = 1, reserved: float = 0.0):
    return alert(top=number, run=run, account=account_of(charge, spent, reserved=reserved)), None


DECLARED = told(EventType.DECLARED, "declared", spent=0)
STARTED = started("first", 1, 0.1, 0.1, reserved=0.4)
FIRST, SECOND = top(1, 0.2, 0.3, reserved=0.2), top(2, 0.2, 0.5)
HALTED = (lifecycle("cutoff", account=account_of(0, 0.5)), EventType.RUN_HALTED)
MUTED = told(EventType.MUTED, spent=0)
GOOD = [DECLARED, STARTED, FIRST, SECOND, HALTED]


def audited(events, *, first: int = 1) -> Audit:
    audit = Audit()
    for number, (data, kind) in enumerate(events, first):
        audit.add(0, number, encoded(number, data, kind=kind))
    return audit


def only_finding(events, **options) -> str:
    audit = audited(events, **options)
    assert audit.found == 1, audit.findings
    assert not audit.balances
    return audit.findings[0]


def test_books_that_balance_are_summed_per_dataset():
    audit = audited(GOOD)
    assert audit.balances
    shop = audit.datasets["shop"]
    assert (shop.charged, shop.spent, shop.alerts, shop.events) == (500_000_000, 500_000_000, 2, 5)
    assert shop.text() == "epsilon 0.5 of 1"
    assert (audit.events, audit.alerts, audit.last_sequence) == (5, 2, {0: 5})


def test_a_raised_limit_is_accepted_and_a_silent_one_is_not():
    raised = told(EventType.BUDGET_RAISED, "raised", limit=2)
    assert audited([*GOOD, raised]).datasets["shop"].limit == 2 * 10**9
    silent = told(EventType.MUTED, limit=2)
    assert "its limit changed without being raised" in only_finding([*GOOD, silent])


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [DECLARED, STARTED, top(1, 0.1, 0.3, reserved=0.2), SECOND, HALTED],
            "partition 0 offset 3: dataset shop: charges add up to epsilon 0.2, the event says epsilon 0.3",
        ),
        ([DECLARED, STARTED, FIRST, top(2, 0, 0.3)], "an alert that was not charged"),
        ([DECLARED, STARTED, FIRST, top(2, 0.8, 1.1)], "epsilon 1.1 spent and reserved of epsilon 1"),
        ([DECLARED, STARTED, FIRST, top(3, 0.2, 0.5)], "top 3, expected 2"),
        ([*GOOD, top(3, 0.2, 0.7)], "a top after run 1 had ended"),
        ([*GOOD, top(1, 0.2, 0.7, run=2)], "a top of run 2 while run 1 is open"),
        ([*GOOD, started("resampled", 3, 0.1, 0.6)], "run 3 started, expected run 2"),
        ([*GOOD, started("resampled", 2, 0, 0.5)], "run 2 started without a charge"),
        ([told(EventType.DECLARED, "declared", spent=0.3)], "begins with epsilon 0.3 spent"),
        ([*GOOD, DECLARED], "charges add up to epsilon 0.5, the event says epsilon 0"),
    ],
)
def test_what_no_engine_would_write_is_found_once(events, said):
    assert said in only_finding(events)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([(0, 1, {}), (0, 2, {}), (0, 4, {})], "partition 0 offset 4: event number 4, expected 3"),
        ([(0, number, {"event_id": "same"}) for number in (1, 2)], "event same comes twice"),
        ([(3, 1, {"shard": 2})], "event of shard 2"),
        ([(0, 1, {}), (1, 1, {"shard": 1, "event_id": "b"})], "has events on partition 0 too"),
    ],
)
def test_a_record_that_does_not_follow_the_others_or_belong_there_is_found(records, said):
    audit = Audit()
    for partition, number, options in records:
        audit.add(partition, number, encoded(number, MUTED[0], kind=MUTED[1], **options))
    assert said in audit.findings[0]


def test_history_taken_by_retention_is_said_and_not_held_against_the_books():
    audit = audited(GOOD[3:], first=40)
    assert audit.balances
    assert audit.truncated == {0}
    assert (audit.datasets["shop"].before, audit.datasets["shop"].spent) == (300_000_000, 500_000_000)


def test_only_so_many_findings_are_kept():
    audit = Audit()
    for offset in range(MAX_FINDINGS + 7):
        audit.add(0, offset, b"?")
    assert (len(audit.findings), audit.found) == (MAX_FINDINGS, MAX_FINDINGS + 7)


ENGINE = """
application: shop
datasets: [{name: today, limit: 2.5, unit: one basket}, {name: zcdp, limit: {rho: 0.5}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none}
  - {name: far, topic: counts, mechanism: adaptive, epsilon: 1, cutoff: 2, sensitivity: 1, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none, datasets: [today]}
"""


def played(doctor: Callable[[dict], object] = lambda _: True) -> Audit:
    """Audit what an engine releases, with each event doctored, or left out, against the monitors as configured."""
    spec = load_spec(ENGINE)
    play = Play(spec)
    queries = [Query(index % 2, 10 if index % 5 else 900, f"s{index}") for index in range(300)]
    play.play("counts", queries)
    audit = Audit(spec.monitors)
    sender = {
        "application": "shop",
        "shard": 0,
        "time": "2026-01-05T00:00:00Z",
        "origin": "1-00000000000000aa",
    }
    for event in play.events:
        content = json.loads(encode(event, **sender))
        if doctor(content) is not None:
            audit.add(0, event.sequence, json.dumps(content).encode())
    return audit


def test_everything_an_engine_releases_balances():
    audit = played()
    assert audit.findings == []
    assert audit.alerts >= 3
    assert set(audit.datasets) == {"today", "zcdp"}


def test_any_event_that_is_left_out_and_any_charge_that_is_told_too_small_is_found():
    def less(number: int, event: dict) -> bool:
        if event["sequence"] == number and charges(event):
            event["data"]["account"]["spent"] -= 0.1
        return True

    def charges(event: dict) -> bool:
        return bool(event["data"]["account"] and event["data"]["account"]["charge"])

    events: list[dict] = []
    played(lambda event: events.append(event) or True)
    assert len(events) > 10
    for number in range(2, len(events)):  # retention takes the first ones; the last one only the state tells
        assert played(lambda event, left_out=number: event["sequence"] != left_out or None).findings, number
        if charges(events[number - 1]):
            assert played(partial(less, number)).findings, number


@pytest.mark.parametrize(
    ("kind", "said"), [(EventType.ALERT, "an alert charged"), (EventType.RUN_STARTED, "was opened for")]
)
def test_a_charge_that_is_not_the_price_of_its_monitor_is_found(kind: EventType, said: str) -> None:
    def doctor(event: dict) -> bool:
        if event["type"] == kind and event["data"]["dataset"] == "today":
            event["data"]["account"]["charge"] /= 2
        return True

    found = played(doctor).findings
    assert any(said in text and "its price is" in text for text in found), found


def test_nothing_follows_the_retirement_of_a_dataset_but_its_balance():
    retired = told(EventType.RETIRED, "period-over")
    assert audited([*GOOD, retired, told(EventType.BALANCE, "command")]).balances
    assert "after dataset shop was retired" in only_finding([*GOOD, retired, told(EventType.MUTED)])


@pytest.mark.parametrize(
    "record",
    [
        None,
        b"{}",
        b'{"id":"\xff"}',
        encoded(1, alert(top=1))[:-1] + b',"subject":' + b"[" * 60_000,
    ],
)
def test_a_forged_record_is_a_finding(record: bytes | None) -> None:
    audit = Audit()
    audit.add(0, 3, record)
    assert audit.findings == ["partition 0 offset 3: is no event of stream-svt"]


@pytest.mark.parametrize("amount", [1e300, -1e300, 1e10])
@pytest.mark.parametrize("name", ["charge", "spent", "reserved", "limit"])
def test_an_amount_that_no_ledger_holds_is_a_finding(name: str, amount: float) -> None:
    forged = account_of(**{"charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 1.0, name: amount})
    assert "an amount that no ledger holds" in only_finding(
        [(lifecycle("x", account=forged), EventType.MUTED)]
    )


def test_a_number_without_end_in_an_id_is_none() -> None:
    audit = Audit()
    event = json.loads(encoded(1, DECLARED[0], kind=DECLARED[1]))
    audit.add(0, 0, json.dumps(event | {"id": "shop/" + "9" * 5000}).encode())
    assert audit.balances
    assert audit.datasets["shop"].last == 0


# --- an application that goes on with the budgets of another


def closed(successor: str = "next", *, reason: str = "command"):
    detail = {"successor": successor, "balances": 1}
    data = lifecycle(reason, dataset="", run=0, monitor="", detail=detail)
    return data, EventType.APPLICATION_CLOSED


def begun(*, before: float, spent: float | None = None, carried_from: str = "retail-watch"):
    """Return the first events of a successor: its state, and a dataset of which something was spent before."""
    state = lifecycle("begun", dataset="", run=0, monitor="", detail={"carried_from": carried_from})
    spent = before if spent is None else spent
    declared = told(EventType.DECLARED, "declared", spent=spent, detail={"spent_before": before})
    return [(state, EventType.STATE_BEGUN), declared]


def test_what_was_spent_before_counts_and_is_no_gap():
    audit = audited([*begun(before=0.5), started("first", 1, 0.1, 0.6, reserved=0.4)])
    assert audit.balances
    assert audit.carried_from == {0: "retail-watch"}
    shop = audit.datasets["shop"]
    assert (shop.carried, shop.before, shop.spent) == (500_000_000, 500_000_000, 600_000_000)


def test_a_dataset_that_begins_with_more_or_less_than_it_says_is_found():
    assert "dataset shop begins with epsilon 0.4 spent" in only_finding(begun(before=0.5, spent=0.4))
    assert "dataset shop begins with epsilon 0.6 spent" in only_finding(begun(before=0.5, spent=0.6))
    declared = begun(before=0.5)[1]
    assert "dataset shop begins with epsilon 0.5 spent" in only_finding([declared])


def test_nothing_follows_the_end_of_an_application_but_that_its_state_is_given_up():
    audit = audited([*GOOD, closed(), closed(reason="given-up")])
    assert (audit.balances, audit.closed) == (True, {0: "next"})
    late = (lifecycle("muted", account=account_of(0, 0.5)), EventType.MUTED)
    assert "after the application was closed" in only_finding([*GOOD, closed(), late])


@pytest.mark.parametrize(
    ("reason", "number", "found"), [("given-up", 9, 0), ("command", 9, 1), ("given-up", 2, 1)]
)
def test_the_end_of_a_state_given_up_comes_behind_events_that_were_never_committed(reason, number, found):
    audit = Audit()
    for sequence, (data, kind) in [*enumerate(GOOD, 1), (number, closed(reason=reason))]:
        audit.add(0, sequence, encoded(sequence, data, kind=kind))
    assert audit.found == found


def test_an_application_that_begins_with_all_that_was_spent_follows():
    for before in (0.5, 0.75):
        audit, earlier = audited(begun(before=before)), audited([*GOOD, closed()])
        audit.follow(earlier, "retail-watch")
        assert (audit.balances, earlier.balances) == (True, True)


@pytest.mark.parametrize(
    ("events", "name", "said"),
    [
        (
            begun(before=0.4),
            "retail-watch",
            "dataset shop begins with epsilon 0.4, and 'retail-watch' had spent epsilon 0.5",
        ),
        (GOOD, "retail-watch", "it does not go on with the budgets of application 'retail-watch'"),
        (
            begun(before=0.5, carried_from="stranger"),
            "retail-watch",
            "state of shard 0: it goes on with the budgets of application 'stranger', not 'retail-watch'",
        ),
    ],
)
def test_an_application_that_begins_otherwise_does_not_follow(events, name, said):
    audit = audited(events)
    assert audit.balances
    audit.follow(audited([*GOOD, closed()]), name)
    assert said in audit.findings
    assert not audit.balances


def test_a_measure_that_changed_with_the_application_is_found_and_a_dataset_that_is_gone_is_not():
    audit = audited(begun(before=0.5))
    earlier = Audit(
        datasets={
            "shop": DatasetTally("shop", Kind.ZCDP, 10**18),
            "gone": DatasetTally("gone", Kind.PURE, 10**9, charged=10**9),
        }
    )
    audit.follow(earlier, "retail-watch")
    assert audit.findings == ["dataset shop changed its measure with the application"]


# --- the operator's audit holds ledgers to events


def _played() -> tuple[Audit, StoredShard]:
    """Return a shard's state, its last events still waiting, and an audit that has seen the others."""
    play = Play(
        spec_of(FORMS["never muted"], FORMS["retry"], datasets="{names: [a, b, c], limit: 90, unit: u}")
    )
    play.play(TOPIC, stream(5, 120)[:120])
    audit = Audit()
    events = [
        encode(event, application="app", shard=0, time="2026-01-05T00:00:00Z", origin="1-00000000000000aa")
        for event in play.events
    ]
    for number, event in enumerate(events[:-3], 1):
        audit.add(0, number, event)
    datasets = {
        key[2:].decode(): from_bytes(DatasetAccount, data, key=key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }
    waiting = [(event.sequence, b"", text) for event, text in zip(play.events[-3:], events[-3:], strict=True)]
    return audit, StoredShard(0, play.events[-1].sequence, datasets, waiting)


def _home(name: str) -> int:
    del name
    return 0


def test_ledgers_balance_with_what_waits_to_be_published() -> None:
    audit, state = _played()
    audit.compare([state], _home)
    assert audit.findings == []
    assert audit.ledgers == 3
    assert sum(account.alerts for account in audit.datasets.values()) > 5


def _ledger(record: DatasetAccount, name: str, change: int) -> None:
    setattr(record.ledger, name, getattr(record.ledger, name) + change)


def _slot(record: DatasetAccount, **fields: object) -> None:
    for name, value in fields.items():
        setattr(record.run_states["m0"], name, value)


@pytest.mark.parametrize(
    ("doctor", "said"),
    [
        (lambda record: _ledger(record, "spent", -1), "is spent, the events say"),
        (lambda record: _ledger(record, "limit", 10**9), "is the limit, the events say"),
        (lambda record: _ledger(record, "reserved", -1), "is reserved, and not by the open runs"),
        (lambda record: setattr(record, "events", record.events - 1), "events are counted"),
        (lambda record: _slot(record, run=99), "monitor m0 is at run 99"),
        (lambda record: _slot(record, tops=record.run_states["m0"].tops + 1), "tops, "),
        (lambda record: _slot(record, state="halted"), "is closed and has something left"),
    ],
)
def test_a_doctored_ledger_is_found(doctor: Callable[[DatasetAccount], None], said: str) -> None:
    audit, state = _played()
    name = next(name for name, record in state.datasets.items() if record.run_states["m0"].state == "running")
    doctor(state.datasets[name])
    found = audit.compare([state], _home).findings
    assert any(said in text and text.startswith(f"state of shard 0: dataset {name}") for text in found), found


def test_a_ledger_that_is_missing_or_elsewhere_is_found() -> None:
    audit, state = _played()
    moved = min(state.datasets)
    assert (
        f"dataset {moved} is at home at shard 1"
        in audit.compare([state], lambda name: int(name == moved)).findings[0]
    )
    audit, state = _played()
    del state.datasets[moved]
    assert f"dataset {moved} has events and no ledger" in audit.compare([state], _home).findings[0]


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
    found = audit.compare([changed], _home).findings
    assert "it knows events up to number" in found[0]
    assert any("the state is older than the alerts" in one for one in found) == older
