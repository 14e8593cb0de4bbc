"""The operator's audit holds ledgers to events; moves and given-up budgets balance, and what was doctored is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from stream_svt.monitor.books import read_dataset
from stream_svt.monitor.released import Account, EventType, encode
from stream_svt.monitor.snapshot import DatasetRecord
from stream_svt.service.audit import Audit, Auditor, ShardState, compare
from tests.support.alerts import account, alert, encoded, lifecycle
from tests.support.engine_play import Play
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream


def _played() -> tuple[Auditor, ShardState]:
    """Return a shard's state, its last events still waiting, and an auditor that has seen the others."""
    play = Play(
        spec_of(FORMS["never muted"], FORMS["retry"], datasets="{names: [a, b, c], limit: 90, unit: u}")
    )
    play.play(TOPIC, stream(5, 120)[:120])
    auditor = Auditor()
    events = [encode(event, application="app", shard=0, time="2026-01-05T00:00:00Z") for event in play.events]
    for number, event in enumerate(events[:-3], 1):
        auditor.add(0, number, event)
    datasets = {
        key[2:].decode(): read_dataset(data, key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }
    waiting = [(event.sequence, b"", text) for event, text in zip(play.events[-3:], events[-3:], strict=True)]
    return auditor, ShardState(0, play.events[-1].sequence, datasets, waiting)


def _home(name: str) -> int:
    del name
    return 0


def _found(audit: Audit) -> list[str]:
    return [str(finding) for finding in audit.findings]


def test_ledgers_balance_with_what_waits_to_be_published() -> None:
    auditor, state = _played()
    audit = compare(auditor, [state], _home)
    assert _found(audit) == []
    assert audit.ledgers == 3
    assert sum(books.alerts for books in audit.datasets.values()) > 5


def _ledger(record: DatasetRecord, place: int, change: int) -> None:
    content = msgspec.msgpack.decode(record.ledger)
    content[place] += change
    record.ledger = msgspec.msgpack.encode(content)


def _slot(record: DatasetRecord, **fields: object) -> None:
    for name, value in fields.items():
        setattr(record.slots["m0"], name, value)


@pytest.mark.parametrize(
    ("doctor", "said"),
    [
        (lambda record: _ledger(record, 3, -1), "is spent, the events say"),
        (lambda record: _ledger(record, 2, 10**9), "is the limit, the events say"),
        (lambda record: _ledger(record, 4, -1), "is reserved, and not by the open runs"),
        (lambda record: setattr(record, "events", record.events - 1), "events are counted"),
        (lambda record: _slot(record, run=99), "monitor m0 is at run 99"),
        (lambda record: _slot(record, tops=record.slots["m0"].tops + 1), "tops, "),
        (lambda record: _slot(record, state="halted"), "is closed and has something left"),
    ],
)
def test_a_doctored_ledger_is_found(doctor: Callable[[DatasetRecord], None], said: str) -> None:
    auditor, state = _played()
    name = next(name for name, record in state.datasets.items() if record.slots["m0"].state == "running")
    doctor(state.datasets[name])
    found = _found(compare(auditor, [state], _home))
    assert any(said in text and text.startswith(f"state of shard 0: dataset {name}") for text in found), found


def test_a_ledger_that_is_missing_or_elsewhere_is_found() -> None:
    auditor, state = _played()
    moved = min(state.datasets)
    assert (
        f"dataset {moved} is at home at shard 1"
        in _found(compare(auditor, [state], lambda name: int(name == moved)))[0]
    )
    auditor, state = _played()
    del state.datasets[moved]
    assert f"dataset {moved} has events and no ledger" in _found(compare(auditor, [state], _home))[0]


def test_a_state_older_than_its_events_is_found() -> None:
    auditor, state = _played()
    older = replace(state, last_event=state.last_event - 3, waiting=[])
    for number, _, event in state.waiting:
        auditor.add(0, number, event)
    found = _found(compare(auditor, [older], _home))
    assert "it knows events up to number" in found[0]
    assert "the state is older than the alerts" in found[0]
    assert "mark-exhausted" in found[0]


def test_alerts_that_are_missing_make_no_state_an_older_one() -> None:
    auditor, state = _played()
    found = _found(compare(auditor, [replace(state, last_event=state.last_event + 1)], _home))
    assert "it knows events up to number" in found[0]
    assert not any("older" in text for text in found)


def _books(charge: float, spent: float, reserved: float = 0.0, limit: float = 1.0) -> Account:
    return account(charge=charge, spent=spent, reserved=reserved, limit=limit)


FIRST_STAY = (
    (lifecycle("first-start", run=0, monitor="", books=_books(0, 0)), EventType.DECLARED),
    (lifecycle("first", books=_books(0.1, 0.1, 0.4)), EventType.RUN_STARTED),
    (alert(top=1, books=_books(0.2, 0.3, 0.2)), None),
    (lifecycle("moved", books=_books(0, 0.3)), EventType.RUN_CLOSED),
    (lifecycle("migrated", run=0, monitor="", books=_books(0, 0.3)), EventType.MOVED),
)
SECOND_STAY = (
    (lifecycle("resampled", run=2, books=_books(0.1, 0.4, 0.4)), EventType.RUN_STARTED),
    (alert(top=1, run=2, books=_books(0.2, 0.6, 0.2)), None),
)


def _stays(*stays: tuple, first: int = 0) -> Audit:
    """Add stays to partitions 1, 0, 2, .. : the later one may be read first."""
    auditor = Auditor()
    number = first
    places = []
    for place, stay in enumerate(stays):
        for sequence, (data, kind) in enumerate(stay, 1):
            number += 1
            places.append((1 - place if place < 2 else place, sequence, data, kind, number))
    for partition, sequence, data, kind, event in sorted(places, key=lambda item: item[:2]):
        text = encoded(
            sequence, data, kind=kind, shard=partition, event_id=f"retail-watch/shop/hot/1/{event}"
        )
        auditor.add(partition, sequence, text)
    return auditor.audit


def test_a_dataset_that_moved_is_followed_whichever_partition_is_read_first() -> None:
    audit = _stays(FIRST_STAY, SECOND_STAY)
    assert _found(audit) == []
    shop = audit.datasets["shop"]
    assert (shop.spent, shop.charged, shop.alerts, shop.events) == (6 * 10**8, 6 * 10**8, 2, 7)


def test_a_dataset_that_goes_on_elsewhere_without_leaving_is_found() -> None:
    assert "has events on partition 1 too" in _found(_stays(FIRST_STAY[:-1], SECOND_STAY))[0]


def test_books_that_change_on_the_way_are_found() -> None:
    cheaper = ((lifecycle("resampled", run=2, books=_books(0.1, 0.2, 0.4)), EventType.RUN_STARTED),)
    assert "with epsilon 0.3 spent and goes on with epsilon 0.1" in _found(_stays(FIRST_STAY, cheaper))[0]
    again = ((lifecycle("resampled", run=1, books=_books(0.1, 0.4, 0.4)), EventType.RUN_STARTED),)
    assert "run 1 started, expected run 2" in _found(_stays(FIRST_STAY, again))[0]


def test_a_move_with_an_open_run_is_found() -> None:
    still_open = (*FIRST_STAY[:3], FIRST_STAY[4])
    assert "moved while run 1 of monitor hot was open" in _found(_stays(still_open))[0]


def test_a_budget_given_up_after_a_rollback_balances_and_one_that_is_not_does_not() -> None:
    rolled_back = (lifecycle("first-start", run=0, monitor="", books=_books(0, 0)), EventType.DECLARED)
    given_up = _given_up(1)
    raised = (lifecycle("command", run=0, monitor="", books=_books(0, 1, limit=2)), EventType.BUDGET_RAISED)
    anew = (lifecycle("first", run=1, books=_books(0.1, 1.1, 0.4, limit=2)), EventType.RUN_STARTED)
    assert _found(_stays((*FIRST_STAY[:3], rolled_back, given_up, raised, anew))) == []
    # An ordinary command to the shard makes nothing good.
    found = _found(_stays((*FIRST_STAY[:3], rolled_back, _given_up(1, after=None))))
    assert "charges add up to epsilon 0.3, the event says epsilon 0" in found[0]
    found = _found(_stays((*FIRST_STAY[:3], rolled_back)))
    assert "charges add up to epsilon 0.3, the event says epsilon 0" in found[0]


RAISED = (
    *FIRST_STAY[:3],
    (lifecycle("command", run=0, monitor="", books=_books(0, 0.3, 0.2, limit=2)), EventType.BUDGET_RAISED),
    (alert(top=2, books=_books(0.2, 0.5, limit=2)), None),
    (lifecycle("first", run=2, books=_books(1.2, 1.7, limit=2)), EventType.RUN_STARTED),
)
"""A dataset whose limit of 1 was raised to 2, and then used."""


def _given_up(limit: float, *, after: int | None = 9, charge: float | None = None) -> tuple:
    books = _books(limit if charge is None else charge, limit, limit=limit)
    detail = {"after": after}
    return lifecycle("command", run=0, monitor="", books=books, detail=detail), EventType.MARKED_EXHAUSTED


def test_a_budget_given_up_at_less_than_its_events_had_shown_does_not_balance() -> None:
    again = (lifecycle("command", run=0, monitor="", books=_books(0, 1, limit=2)), EventType.BUDGET_RAISED)
    anew = (lifecycle("first", run=1, books=_books(0.9, 1.9, limit=2)), EventType.RUN_STARTED)
    found = _found(_stays((*RAISED, _given_up(1), again, anew)))
    given_up = [text for text in found if "given up" in text]
    assert len(given_up) == 1
    assert given_up[0].startswith("partition 1 offset 7: dataset shop: given up at epsilon 1 of 1 spent")
    assert "after events had shown epsilon 1.7 of 2" in given_up[0]
    # Nor does it clear what shows that the books went back.
    assert any("charges add up to epsilon 2.7, the event says epsilon 1" in text for text in found)


@pytest.mark.parametrize("declared", [(), (FIRST_STAY[0],)], ids=["older books", "empty books"])
def test_a_budget_given_up_at_the_most_its_events_had_shown_balances(declared: tuple) -> None:
    raised = (lifecycle("command", run=0, monitor="", books=_books(0, 2, limit=3)), EventType.BUDGET_RAISED)
    anew = (lifecycle("first", run=1, books=_books(0.9, 2.9, limit=3)), EventType.RUN_STARTED)
    assert _found(_stays((*RAISED, *declared, _given_up(2), raised, anew))) == []


def test_books_that_went_back_and_forth_without_being_given_up_do_not_balance() -> None:
    back = (lifecycle("later", run=0, monitor="", books=_books(0, 1.7, limit=2)), EventType.MUTED)
    found = _found(_stays((*RAISED, FIRST_STAY[0], back)))
    assert sum("its limit changed without being raised" in text for text in found) == 2


ARRIVED = (lifecycle("arrived", run=0, monitor="", books=_books(0, 1)), EventType.DECLARED)


def _marked_and_moved(number: int) -> Audit:
    """Mark a dataset exhausted with an ordinary command, move and raise it; its next run has this number."""
    marked = (
        *FIRST_STAY[:3],
        (lifecycle("marked-exhausted", books=_books(0.2, 0.5)), EventType.RUN_CLOSED),
        _given_up(1, after=None, charge=0.5),
        (lifecycle("migrated", run=0, monitor="", books=_books(0, 1)), EventType.MOVED),
    )
    raised = (lifecycle("command", run=0, monitor="", books=_books(0, 1, limit=2)), EventType.BUDGET_RAISED)
    again = (lifecycle("resampled", run=number, books=_books(0.1, 1.1, 0.4, limit=2)), EventType.RUN_STARTED)
    return _stays(marked, (ARRIVED, raised, again))


def test_runs_go_on_as_they_are_numbered_after_an_ordinary_mark_and_a_move() -> None:
    assert _found(_marked_and_moved(2)) == []
    for number in (1, 3):
        assert f"run {number} started, expected run 2" in _found(_marked_and_moved(number))[0]


def test_runs_are_numbered_anew_after_a_move_where_older_books_were_given_up() -> None:
    moved = (lifecycle("migrated", run=0, monitor="", books=_books(0, 1)), EventType.MOVED)
    raised = (lifecycle("command", run=0, monitor="", books=_books(0, 1, limit=2)), EventType.BUDGET_RAISED)
    again = (lifecycle("first", run=1, books=_books(0.1, 1.1, 0.4, limit=2)), EventType.RUN_STARTED)
    given_up = (*FIRST_STAY[:3], FIRST_STAY[0], _given_up(1), moved)
    assert _found(_stays(given_up, (ARRIVED, raised, again))) == []


LEFT = (
    *RAISED[:4],
    (lifecycle("moved", books=_books(0, 0.3, limit=2)), EventType.RUN_CLOSED),
    (lifecycle("migrated", run=0, monitor="", books=_books(0, 0.3, limit=2)), EventType.MOVED),
)
"""A dataset whose limit was raised to 2, and which then moved."""
OLDER_CLOSED = (lifecycle("marked-exhausted", books=_books(0.3, 0.4)), EventType.RUN_CLOSED)


@pytest.mark.parametrize(
    ("anew", "found"),
    [
        ((FIRST_STAY[0], _given_up(2)), 0),
        # Older books with a run that closes first.
        ((OLDER_CLOSED, _given_up(2, charge=1.6)), 0),
        # A raise that was shown is left to be granted again.
        ((FIRST_STAY[0], _given_up(1)), 1),
        # An ordinary command, and none at all.
        ((FIRST_STAY[0], _given_up(2, after=None)), 1),
        ((FIRST_STAY[0],), 1),
        # What was charged before was charged twice.
        ((FIRST_STAY[0], FIRST_STAY[1], FIRST_STAY[2], _given_up(2, charge=1.7)), 1),
    ],
)
def test_books_that_begin_anew_where_they_were_left_balance_only_if_they_are_given_up_at_once(
    anew: tuple, found: int
) -> None:
    moved = (lifecycle("migrated", run=0, monitor="", books=_books(0, 2, limit=2)), EventType.MOVED)
    audit = _stays(LEFT, anew)
    messages = [text for text in _found(audit) if "left partition 1 with epsilon 0.3 spent" in text]
    assert len(messages) == found, _found(audit)
    if not found:
        assert _found(audit) == []
        assert audit.datasets["shop"].spent == 2 * 10**9
        assert _found(_stays(LEFT, (*anew, moved), (OLDER_CLOSED,)))
