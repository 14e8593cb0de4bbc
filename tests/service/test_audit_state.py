"""The operator's audit holds ledgers to events, and what was doctored is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stream_svt.monitor.accounts import DatasetAccount
from stream_svt.monitor.released import encode
from stream_svt.monitor.snapshot import from_bytes
from stream_svt.protocol.audit import Audit, Auditor, ShardState, compare
from tests.support.engine_play import Play
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream


def _played() -> tuple[Auditor, ShardState]:
    """Return a shard's state, its last events still waiting, and an auditor that has seen the others."""
    play = Play(
        spec_of(FORMS["never muted"], FORMS["retry"], datasets="{names: [a, b, c], limit: 90, unit: u}")
    )
    play.play(TOPIC, stream(5, 120)[:120])
    auditor = Auditor()
    events = [
        encode(event, application="app", shard=0, time="2026-01-05T00:00:00Z", origin="1-00000000000000aa")
        for event in play.events
    ]
    for number, event in enumerate(events[:-3], 1):
        auditor.add(0, number, event)
    datasets = {
        key[2:].decode(): from_bytes(DatasetAccount, data, key=key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }
    waiting = [(event.sequence, b"", text) for event, text in zip(play.events[-3:], events[-3:], strict=True)]
    return auditor, ShardState(0, play.events[-1].sequence, datasets, waiting)


def _home(name: str) -> int:
    del name
    return 0


def _found(audit: Audit) -> list[str]:
    return audit.findings


def test_ledgers_balance_with_what_waits_to_be_published() -> None:
    auditor, state = _played()
    audit = compare(auditor, [state], _home)
    assert _found(audit) == []
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
    auditor, state = _played()
    name = next(name for name, record in state.datasets.items() if record.run_states["m0"].state == "running")
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


@pytest.mark.parametrize("older", [True, False])
def test_a_state_older_than_its_events_is_found_and_alerts_that_are_missing_make_none(older: bool) -> None:
    auditor, state = _played()
    for number, _, event in state.waiting if older else ():
        auditor.add(0, number, event)
    changed = (
        replace(state, last_event=state.last_event - 3, waiting=[])
        if older
        else replace(state, last_event=state.last_event + 1)
    )
    found = _found(compare(auditor, [changed], _home))
    assert "it knows events up to number" in found[0]
    assert any("the state is older than the alerts" in one for one in found) == older
