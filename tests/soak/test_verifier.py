"""Each rule of the judge is broken once, in logs made up for it; `tests/kafka/test_exactly_once.py` has real ones."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stream_svt.monitor.released import Alert, EventType, Lifecycle
from tests.support import verifier
from tests.support.alerts import account_of, alert, encoded, lifecycle
from tests.support.log_reader import LogRecord
from tests.support.verifier import Certain, Findings, Terms, verify

HIGH, LOW = 50_000, 0
TERMS = Terms({"shop": 4 * 10**9}, {("hot", "start"): 200_000_000, ("hot", "top"): 100_000_000})
PUBLISHED = 2000
"""When alerts are appended, in milliseconds; what charges them was committed a second before."""
BREAD = encoded(2, alert(number=1, series="bread", account=account_of(0.1, 0.3, reserved=0.9)))
"""The second event, of another outcome."""


class Logs:
    """The partitions of one shard: a run of one dataset with two tops, charged, then published."""

    def __init__(self) -> None:
        self.events = [
            encoded(1, lifecycle("first", account=account_of(0.2, 0.2, reserved=1.0))),
            encoded(2, alert(number=1, account=account_of(0.1, 0.3, reserved=0.9))),
            encoded(3, alert(number=2, account=account_of(0.1, 0.4, reserved=0.8))),
        ]
        self.charged = list(self.events)
        self.charged_at = PUBLISHED - 1000
        self.spent = 400_000_000
        self.secrets = [b"789"]
        self.values = dict.fromkeys(range(41), LOW) | {41: HIGH, 42: HIGH}
        self.also: list[bytes] = []
        """Events of a transaction that was aborted."""
        self.uncharged: list[bytes] = []
        """Contents of an outbox whose transaction was aborted."""

    def read(self, _: Path, topic: str, partition: int = 0) -> list[LogRecord]:
        assert partition == 0
        match topic:
            case "app.alerts":
                return [*ended(self.events, PUBLISHED), *ended(self.also, PUBLISHED, "abort", 1000)]
            case "app.state":
                account = [
                    (b"ob/1", outbox(self.charged)),
                    *((b"d/shop", self.record_of(one)) for one in self.secrets),
                ]
                return [
                    *ended(account, self.charged_at),
                    *ended([(b"ob/1", outbox(self.uncharged))], self.charged_at, "abort", 1000),
                ]
            case _:
                values = {
                    place: json.dumps({"value": value}).encode() for place, value in self.values.items()
                }
                plain = partial(entry, timestamp=0, key=b"shop", transactional=False)
                return [plain(offset=offset, value=value) for offset, value in values.items()]

    def record_of(self, secrets: bytes) -> bytes:
        """Return a dataset's record: its name, its ledger, its slots."""
        run_states = {"hot": [0, 0, 0, 1, secrets]}
        return framed([0, "shop", 0, 0, [0, 0, 0, self.spent], 0, run_states])


def framed(content: object) -> bytes:
    return bytes(26) + msgspec.msgpack.encode(content)


def outbox(events: list[bytes]) -> bytes:
    content = [[[number, b"shop", event] for number, event in enumerate(events, 1)], []]
    return bytes(26) + zlib.compress(msgspec.msgpack.encode(content))


entry = partial(LogRecord, transactional=True, marker=None, producer_id=1)


def ended(
    contents: list[Any], timestamp: int, marker: Literal["commit", "abort"] = "commit", first: int = 0
) -> list[LogRecord]:
    pairs = [content if isinstance(content, tuple) else (b"shop", content) for content in contents]
    records = [
        entry(offset=offset, timestamp=timestamp, key=key, value=value)
        for offset, (key, value) in enumerate(pairs, first)
    ]
    end = entry(offset=first + len(pairs), timestamp=timestamp, key=None, value=None, marker=marker)
    return [*records, end]


@pytest.fixture
def judged(monkeypatch) -> Callable[[Logs], Findings]:
    def judge(logs: Logs, scarce: frozenset[str] = frozenset()) -> Findings:
        async def read_ended(*place: Any) -> list[LogRecord]:
            return logs.read(*place)

        monkeypatch.setattr(verifier, "read_ended", read_ended)
        monkeypatch.setattr(verifier, "read_partition", logs.read)
        return asyncio.run(verify(Path(), "app", 1, Certain("counts", "hot", HIGH, LOW, scarce), TERMS))

    return judge


def replaced(number: int, data: Alert | Lifecycle) -> Callable[[Logs], None]:
    """Charge and publish another event in the place of one."""

    def change(logs: Logs) -> None:
        logs.events[number - 1] = logs.charged[number - 1] = encoded(number, data)

    return change


def test_logs_that_keep_the_rules_pass(judged) -> None:
    found = judged(Logs())
    assert found.violations == []
    assert (found.queries, len(found.alerts), len(found.events), found.aborted) == (43, 2, 3, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda logs: logs.events.append(logs.events[2]), "shop-3 is committed 2 times"),
        (lambda logs: logs.events.append(logs.events[2]), "query 42 of partition 0, value 50000, has 2 alerts"),
        (lambda logs: logs.events.pop(1), "lost, doubled or out of order"),
        (lambda logs: logs.events.pop(1), "shop-2 was charged and never published"),
        (lambda logs: logs.charged.pop(), "shop-3 was published and never charged"),
        (lambda logs: logs.uncharged.append(logs.charged.pop()), "shop-3 was published and never charged"),
        (lambda logs: vars(logs).update(charged_at=PUBLISHED + 1), "shop-1 was visible 1 ms before its charge"),
        (lambda logs: logs.also.append(BREAD), "shop-2 was published with two contents"),
        (lambda logs: logs.uncharged.append(BREAD), "top ('shop', 'hot', 1, 1) was computed twice, with different"),
        (lambda logs: vars(logs).update(spent=400_000_001), "its ledger has 400000001, the charges are 400000000"),
        (lambda logs: logs.secrets.append(b"780"), "the noise of run ('shop', 'hot', 1) changed"),
        (lambda logs: logs.values.pop(42), "an alert for query 42, which is not there"),
        (lambda logs: logs.values.update({42: LOW}), "query 42 of partition 0, value 0, has 1 alerts"),
        (lambda logs: logs.values.update({43: HIGH}), "query 43 of partition 0, value 50000, has 0 alerts"),
        (replaced(3, alert(number=2, account=account_of(0.1, 0.5))), "shop-3: charges do not add up"),
        (replaced(3, alert(number=2, account=account_of(0.1, 0.4, 3.61))), "shop-3: the limit is passed"),
        (replaced(3, alert(number=2, account=account_of(0.1, 0.4, 0.0, 5.0))), "the limit is not the one declared"),
        (
            replaced(3, alert(number=3, account=account_of(0.1, 0.4))),
            "shop-3: alerts of the run are not numbered densely",
        ),
        (replaced(3, alert(number=2, account=account_of(0.05, 0.35))), "shop-3: it was not charged its price"),
        (replaced(1, lifecycle("first", account=account_of(0.1, 0.1))), "shop-1: it was not charged its price"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_seen(judged, change: Callable[[Logs], object], said: str) -> None:
    logs = Logs()
    change(logs)
    found = judged(logs).violations
    assert any(said in text for text in found), found


# A budget that ends


def used_up(logs: Logs) -> None:
    """Publish that the monitor is exhausted."""
    for log in (logs.events, logs.charged):
        data = lifecycle("budget", account=account_of(0.0, 0.4, reserved=0.8))
        log.append(encoded(4, data, kind=EventType.EXHAUSTED))


def test_alerts_end_with_the_budget_and_an_event_says_so(judged) -> None:
    logs = Logs()
    logs.values |= dict.fromkeys(range(43, 100), HIGH)
    scarce = frozenset({"shop"})
    assert len(judged(logs, scarce).violations) == 57
    used_up(logs)
    found = judged(logs, scarce)
    assert found.violations == []
    assert found.exhausted == {("shop", "hot")}
    # Said of a dataset whose budget is not to end, it excuses nothing.
    assert len(judged(logs).violations) == 57


def test_a_budget_that_ends_later_excuses_no_lost_alert(judged) -> None:
    logs = Logs()
    used_up(logs)
    logs.values[40] = HIGH
    (violation,) = judged(logs, frozenset({"shop"})).violations
    assert "query 40 of partition 0, value 50000, has 0 alerts" in violation
