"""What `audit` says of books, one or several."""

from __future__ import annotations

import pytest

from stream_svt.service.audit import Audit


@pytest.mark.parametrize(
    ("ledgers", "events", "said"),
    [
        (1, 1, "The books balance: 1 event on shop.alerts, 1 of them alerts, 1 ledger in the state."),
        (2, 3, "The books balance: 3 events on shop.alerts, 1 of them alerts, 2 ledgers in the state."),
    ],
)
def test_one_is_not_counted_in_the_plural(stream_svt, monkeypatch, ledgers, events, said):
    async def audited(*_arguments, **_options) -> Audit:
        return Audit(events=events, alerts=1, ledgers=ledgers)

    monkeypatch.setattr("stream_svt.service.audit.audit_topic", audited)
    assert said in stream_svt("audit", "--topic", "shop.alerts").out


def test_one_finding_is_one(stream_svt, monkeypatch):
    async def audited(*_arguments, **_options) -> Audit:
        found = Audit(events=2)
        found.find(0, 1, "is missing")
        return found

    monkeypatch.setattr("stream_svt.service.audit.audit_topic", audited)
    ended = stream_svt("audit", "--topic", "shop.alerts")
    assert (ended.code, "do NOT balance: 1 finding in 2 events" in ended.err) == (1, True)


@pytest.mark.parametrize(
    ("findings", "code", "said"), [(0, 4, "of 1 shard could not be read"), (1, 1, "NOT balance")]
)
def test_a_state_that_cannot_be_read_is_no_finding(stream_svt, monkeypatch, findings, code, said):
    async def audited(*_arguments, **_options) -> Audit:
        found = Audit(
            events=2, ledgers=1, unreadable=["the state of shard 0 cannot be used: its key is another"]
        )
        for number in range(findings):
            found.find(0, number, "is missing")
        return found

    monkeypatch.setattr("stream_svt.service.audit.audit_topic", audited)
    ended = stream_svt("audit", "--topic", "shop.alerts")
    assert (ended.code, said in ended.err, "its key is another" in ended.err) == (code, True, True)
    assert "books balance" not in ended.out
    as_json = stream_svt("audit", "--topic", "shop.alerts", "--json")
    assert (as_json.code, '"balances": false' in as_json.out) == (code, True)
