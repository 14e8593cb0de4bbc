"""The audit accepts what an engine releases, and finds every kind of doctored book."""

from __future__ import annotations

import json

import pytest

from stream_svt.monitor.released import Account, EventType
from stream_svt.service.audit import MAX_FINDINGS, Audit, Auditor
from tests.support.alerts import account, alert, encoded, lifecycle


def books(charge: float, spent: float, *, reserved: float = 0.0, limit: float = 1.0) -> Account:
    return account(charge=charge, spent=spent, reserved=reserved, limit=limit)


DECLARED = (lifecycle("declared", run=0, monitor="", books=books(0, 0)), EventType.DECLARED)
STARTED = (lifecycle("first", books=books(0.1, 0.1, reserved=0.4)), EventType.RUN_STARTED)
FIRST = (alert(top=1, books=books(0.2, 0.3, reserved=0.2)), None)
SECOND = (alert(top=2, books=books(0.2, 0.5)), None)
HALTED = (lifecycle("cutoff", books=books(0, 0.5)), EventType.RUN_HALTED)
GOOD = [DECLARED, STARTED, FIRST, SECOND, HALTED]


def audited(events, *, first: int = 1) -> Audit:
    auditor = Auditor()
    for number, (data, kind) in enumerate(events, first):
        auditor.add(0, number, encoded(number, data, kind=kind))
    return auditor.audit


def only_finding(events, **options) -> str:
    audit = audited(events, **options)
    assert audit.found == 1, audit.findings
    assert not audit.balances
    return str(audit.findings[0])


def test_books_that_balance_are_summed_per_dataset():
    audit = audited(GOOD)
    assert audit.balances
    shop = audit.datasets["shop"]
    assert (shop.charged, shop.spent, shop.alerts, shop.events) == (500_000_000, 500_000_000, 2, 5)
    assert shop.text() == "epsilon 0.5 of 1"
    assert (audit.events, audit.alerts, audit.last_sequence) == (5, 2, {0: 5})


def test_a_raised_limit_is_accepted_and_a_silent_one_is_not():
    raised = (lifecycle("raised", run=0, monitor="", books=books(0, 0.5, limit=2)), EventType.BUDGET_RAISED)
    assert audited([*GOOD, raised]).datasets["shop"].limit == 2 * 10**9
    silent = (lifecycle("later", run=0, monitor="", books=books(0, 0.5, limit=2)), EventType.MUTED)
    assert "its limit changed without being raised" in only_finding([*GOOD, silent])


CLOSED = (lifecycle("marked-exhausted", books=books(0, 0.5)), EventType.RUN_CLOSED)


@pytest.mark.parametrize(
    ("between", "after", "found"),
    [
        ([], 7, 0),
        ([CLOSED], 7, 0),
        ([(lifecycle("incompatible", books=books(0, 0.5)), EventType.RUN_CLOSED)], 7, 0),
        ([(lifecycle("command", books=books(0, 0.5)), EventType.PAUSED)], 7, 1),
        # A command to a running shard, and one that explains fewer numbers than are missing.
        ([CLOSED], None, 1),
        ([CLOSED], 6, 1),
    ],
)
def test_numbers_are_skipped_only_where_the_budgets_are_given_up(between, after, found):
    """What an aborted transaction sent is shown to nobody, and its numbers are not given again."""
    given_up = lifecycle("command", run=0, monitor="", books=books(0.5, 1.0), detail={"after": after})
    auditor = Auditor()
    for number, (data, kind) in enumerate(GOOD, 1):
        auditor.add(0, number, encoded(number, data, kind=kind))
    for number, (data, kind) in enumerate([*between, (given_up, EventType.MARKED_EXHAUSTED)], len(GOOD) + 3):
        auditor.add(0, number, encoded(number, data, kind=kind))
    assert auditor.audit.found == found
    if found:
        assert "event number 8, expected 6" in str(auditor.audit.findings[0])


@pytest.mark.parametrize(("after", "found"), [(2, 0), (None, 1)])
def test_a_charge_that_nobody_was_shown_goes_with_a_budget_given_up_for_an_older_state_only(after, found):
    closed = (lifecycle("marked-exhausted", books=books(0, 0.6)), EventType.RUN_CLOSED)
    given_up = lifecycle("command", run=0, monitor="", books=books(0.4, 1.0), detail={"after": after})
    audit = audited([DECLARED, STARTED, closed, (given_up, EventType.MARKED_EXHAUSTED)])
    assert len(audit.findings) == found, audit.findings


@pytest.mark.parametrize(
    ("late", "after", "found"),
    [(False, 1, 0), (True, 1, 1), (False, None, 1)],
    ids=["first", "late", "ordinary"],
)
def test_books_of_which_nobody_was_shown_the_beginning_may_be_given_up_for_an_older_state(late, after, found):
    """Before anything else was shown of them: it was sent, and aborted."""
    closed = (lifecycle("marked-exhausted", books=books(0.4, 0.5)), EventType.RUN_CLOSED)
    started = (lifecycle("first", books=books(0.1, 0.2, reserved=0.4)), EventType.RUN_STARTED)
    given_up = lifecycle("command", run=0, monitor="", books=books(0.5, 1.0), detail={"after": after})
    begun = [started, closed] if late else [closed]
    audit = audited([*begun, (given_up, EventType.MARKED_EXHAUSTED)])
    assert len(audit.findings) == found, audit.findings
    assert all("shop begins with epsilon 0.1 spent" in finding.message for finding in audit.findings)


def test_numbers_that_are_skipped_at_the_end_are_found():
    auditor = Auditor()
    for number, (data, kind) in zip((1, 2, 4), GOOD[:3], strict=True):
        auditor.add(0, number, encoded(number, data, kind=kind))
    assert auditor.audit.found == 1


def test_a_charge_left_out_is_found_once():
    cheaper = (alert(top=1, books=books(0.1, 0.3, reserved=0.2)), None)
    message = only_finding([DECLARED, STARTED, cheaper, SECOND, HALTED])
    assert "charges add up to epsilon 0.2, the event says epsilon 0.3" in message
    assert message.startswith("partition 0 offset 3: dataset shop")


def test_an_alert_that_was_not_charged_is_found():
    free = (alert(top=2, books=books(0, 0.3)), None)
    assert "an alert that was not charged" in only_finding([DECLARED, STARTED, FIRST, free])


def test_a_passed_limit_is_found():
    over = (alert(top=2, books=books(0.8, 1.1)), None)
    assert "epsilon 1.1 spent and reserved of epsilon 1" in only_finding([DECLARED, STARTED, FIRST, over])


def test_a_missing_event_is_found():
    auditor = Auditor()
    for number in (1, 2, 4):
        auditor.add(0, number, encoded(number, lifecycle("later", run=0, monitor=""), kind=EventType.MUTED))
    assert [str(finding) for finding in auditor.audit.findings] == [
        "partition 0 offset 4: event number 4, expected 3"
    ]


def test_an_event_that_comes_twice_is_found():
    auditor = Auditor()
    for number in (1, 2):
        note = lifecycle("later", run=0, monitor="")
        auditor.add(0, number, encoded(number, note, kind=EventType.MUTED, event_id="same"))
    assert "event same comes twice" in str(auditor.audit.findings[0])


def test_tops_out_of_number_are_found():
    third = (alert(top=3, books=books(0.2, 0.5)), None)
    assert "top 3, expected 2" in only_finding([DECLARED, STARTED, FIRST, third])


def test_a_top_after_the_end_of_its_run_is_found():
    late = (alert(top=3, books=books(0.2, 0.7)), None)
    assert "a top after run 1 had ended" in only_finding([*GOOD, late])


def test_a_top_of_a_run_that_was_not_started_is_found():
    stray = (alert(top=1, run=2, books=books(0.2, 0.7)), None)
    assert "a top of run 2 while run 1 is open" in only_finding([*GOOD, stray])


def test_a_run_out_of_number_or_without_a_charge_is_found():
    third = (lifecycle("resampled", run=3, books=books(0.1, 0.6)), EventType.RUN_STARTED)
    assert "run 3 started, expected run 2" in only_finding([*GOOD, third])
    free = (lifecycle("resampled", run=2, books=books(0, 0.5)), EventType.RUN_STARTED)
    assert "run 2 started without a charge" in only_finding([*GOOD, free])


def test_books_that_begin_with_something_spent_are_found():
    begun = (lifecycle("declared", run=0, monitor="", books=books(0, 0.3)), EventType.DECLARED)
    assert "begins with epsilon 0.3 spent" in only_finding([begun])


def test_history_taken_by_retention_is_said_and_not_held_against_the_books():
    audit = audited(GOOD[3:], first=40)
    assert audit.balances
    assert audit.truncated == {0}
    assert (audit.datasets["shop"].before, audit.datasets["shop"].spent) == (300_000_000, 500_000_000)


@pytest.mark.parametrize("record", [b"", None, b"{}", b"\xff", b'{"id":1}'])
def test_a_foreign_record_is_found(record):
    auditor = Auditor()
    auditor.add(0, 1, record)
    assert "is no event of stream-svt" in str(auditor.audit.findings[0])


def test_a_shard_on_anothers_partition_is_found():
    auditor = Auditor()
    auditor.add(3, 1, encoded(1, lifecycle("later", run=0, monitor=""), kind=EventType.MUTED, shard=2))
    assert "event of shard 2" in str(auditor.audit.findings[0])


def test_a_dataset_on_two_partitions_is_found():
    auditor = Auditor()
    data, kind = DECLARED
    auditor.add(0, 1, encoded(1, data, kind=kind, event_id="a"))
    auditor.add(1, 1, encoded(1, data, kind=kind, event_id="b", shard=1))
    assert "has events on partition 0 too" in str(auditor.audit.findings[0])


def test_only_so_many_findings_are_kept():
    auditor = Auditor()
    for offset in range(MAX_FINDINGS + 7):
        auditor.add(0, offset, b"?")
    assert (len(auditor.audit.findings), auditor.audit.found) == (MAX_FINDINGS, MAX_FINDINGS + 7)


ENGINE = """
application: shop
datasets: [{name: today, limit: 2.5, unit: one basket}, {name: zcdp, limit: {rho: 0.5}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none}
  - {name: far, topic: counts, mechanism: adaptive, epsilon: 1, cutoff: 2, sensitivity: 1, bounds: [0, 1000],
     threshold: 100, expected_queries: 1000, mute: none, datasets: [today]}
"""


def test_everything_an_engine_releases_balances():
    from stream_svt.monitor.released import encode
    from stream_svt.monitor.spec import load_spec
    from tests.support.engine_play import Play, Query

    play = Play(load_spec(ENGINE))
    queries = [Query(index % 2, 10 if index % 5 else 900, f"s{index}") for index in range(300)]
    play.play("counts", queries)
    auditor = Auditor()
    for event in play.events:
        auditor.add(
            0, event.sequence, encode(event, application="shop", shard=0, time="2026-01-05T00:00:00Z")
        )
    assert auditor.audit.findings == []
    assert auditor.audit.alerts >= 3
    assert set(auditor.audit.datasets) == {"today", "zcdp"}


@pytest.mark.parametrize(
    "record",
    [
        None,
        b'{"id":"\xff"}',
        b"[" * 60_000,
        b'{"data":' + b"[" * 60_000,
        encoded(1, alert(top=1))[:-1] + b',"subject":' + b"[" * 60_000,
    ],
)
def test_a_forged_record_is_a_finding(record: bytes | None) -> None:
    auditor = Auditor()
    auditor.add(0, 3, record)
    assert [str(finding) for finding in auditor.audit.findings] == [
        "partition 0 offset 3: is no event of stream-svt"
    ]


@pytest.mark.parametrize("amount", [1e300, -1e300, 1e10])
@pytest.mark.parametrize("name", ["charge", "spent", "reserved", "limit"])
def test_an_amount_that_no_ledger_holds_is_a_finding(name: str, amount: float) -> None:
    forged = account(**{"charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 1.0, name: amount})
    assert "an amount that no ledger holds" in only_finding([(lifecycle("x", books=forged), EventType.MUTED)])


def test_a_number_without_end_in_an_id_is_none() -> None:
    auditor = Auditor()
    told = json.loads(
        encoded(1, lifecycle("declared", run=0, monitor="", books=books(0, 0)), kind=EventType.DECLARED)
    )
    auditor.add(0, 0, json.dumps(told | {"id": "shop/" + "9" * 5000}).encode())
    assert auditor.audit.balances
    assert auditor.stays("shop")[0].number == 0
