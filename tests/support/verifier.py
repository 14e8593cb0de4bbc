"""Re-reads what a run left on the brokers and says what breaks the rules; shares no code with the journal.

It knows the record formats of the state topic and of the alerts, and the broker's log segments with their commit
markers. State must be plain (no sealing key), and its topic must keep every version of a record.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.support.log_reader import LogRecord, committed, endings, read_ended, read_partition

_FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""
NANO = 10**9


@dataclass
class Findings:
    """What the topics show. ``violations`` is empty where all rules hold."""

    violations: list[str] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=dict)
    aborted: int = 0
    queries: int = 0
    threshold_noises: dict[tuple[str, str, int], set[bytes]] = field(default_factory=dict)
    exhausted: set[tuple[str, str]] = field(default_factory=set)
    """Datasets and monitors that said that the budget has ended."""


@dataclass(frozen=True)
class Certain:
    """Queries whose outcome no noise decides, for one monitor that mutes nothing.

    Attributes
    ----------
    topic
        The JSON queries.
    high, low
        From ``high`` on a query has exactly one alert, up to ``low`` it has none.
    scarce
        Datasets whose budget may end: after the last alert nothing is due any more, if an event says that it has.
    """

    topic: str
    monitor: str
    high: int
    low: int
    scarce: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Terms:
    """What was declared, in billionths of epsilon: an event's own word for a limit or a price is not taken.

    Attributes
    ----------
    limits
        By dataset.
    openings, prices
        What the start of a run costs, by monitor; what a top costs, by monitor and branch.
    """

    limits: dict[str, int]
    openings: dict[str, int]
    prices: dict[tuple[str, str], int]


async def verify(
    data_dir: Path,
    application: str,
    partitions: int,
    certain: Certain | None = None,
    terms: Terms | None = None,
) -> Findings:
    """Check every partition; the service must have stopped."""
    found = Findings()
    for partition in range(partitions):
        alerts = await read_ended(data_dir, f"{application}.alerts", partition)
        state = await read_ended(data_dir, f"{application}.state", partition)
        found.aborted += sum(record.marker == "abort" for record in (*alerts, *state))
        _check_partition(found, partition, alerts, state)
        if terms is not None:
            _check_terms(found, terms, alerts)
        if certain is not None:
            _check_queries(found, partition, certain, read_partition(data_dir, certain.topic, partition))
    return found


def _check_partition(
    found: Findings, partition: int, alerts: list[LogRecord], state: list[LogRecord]
) -> None:
    charged = _charged_at(state)
    contents: dict[str, bytes] = {}
    for record in alerts:
        if record.marker is not None or record.value is None:
            continue
        event = json.loads(record.value)
        if contents.setdefault(event["id"], record.value) != record.value:
            found.violations.append(f"{event['id']} was published with two contents")
        marker = charged.get(event["id"])
        if marker is None:
            found.violations.append(f"{event['id']} was published and never charged")
        elif record.timestamp < marker:
            found.violations.append(
                f"{event['id']} was visible {marker - record.timestamp} ms before its charge"
            )
    events = [json.loads(record.value or b"") for record in committed(alerts) if record.value]
    found.events += events
    found.exhausted |= {
        (event["data"]["dataset"], event["data"]["monitor"])
        for event in events
        if event["type"].endswith("monitor.exhausted.v1")
    }
    for event_id, count in Counter(event["id"] for event in events).items():
        if count > 1:
            found.violations.append(f"{event_id} is committed {count} times")
    if [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
        found.violations.append(f"partition {partition}: events are lost, doubled or out of order")
    for event_id in charged.keys() - {event["id"] for event in events}:
        found.violations.append(f"{event_id} was charged and never published")
    _check_books(found, events, state)


def _check_books(found: Findings, events: list[dict[str, Any]], state: list[LogRecord]) -> None:
    totals: dict[str, int] = defaultdict(int)
    tops: dict[tuple[str, str, int], int] = defaultdict(int)
    for event in events:
        data = event["data"]
        account = data.get("account")
        if account is None:
            continue
        totals[data["dataset"]] += round(account["charge"] * NANO)
        if totals[data["dataset"]] != round(account["spent"] * NANO):
            found.violations.append(f"{event['id']}: charges so far do not add up to what is spent")
        if round((account["spent"] + account["reserved"] - account["limit"]) * NANO) > 0:
            found.violations.append(f"{event['id']}: the limit is passed")
        if "gap" in data:
            found.alerts.append(data)
            run = (data["dataset"], data["monitor"], data["run"])
            tops[run] += 1
            if data["top"] != tops[run]:
                found.violations.append(f"{event['id']}: tops of the run are not numbered densely")
    found.spent.update(totals)
    _check_ledgers(found, totals, state)
    _check_outcomes(found, state)


def _check_terms(found: Findings, terms: Terms, alerts: list[LogRecord]) -> None:
    """Hold each event to the limit and the price that were declared."""
    spent: dict[str, int] = defaultdict(int)
    for record in committed(alerts):
        event = json.loads(record.value or b"{}")
        data = event.get("data", {})
        account = data.get("account")
        if account is None:
            continue
        charge, name = round(account["charge"] * NANO), data["dataset"]
        spent[name] += charge
        if "gap" in data and charge != terms.prices[data["monitor"], data["branch"]]:
            found.violations.append(f"{event['id']}: a top was not charged its price")
        if event["type"].endswith("run.started.v1") and charge != terms.openings[data["monitor"]]:
            found.violations.append(f"{event['id']}: the start of a run was not charged its price")
        if round(account["limit"] * NANO) != terms.limits[name]:
            found.violations.append(f"{event['id']}: the limit is not the one declared")
        if spent[name] + round(account["reserved"] * NANO) > terms.limits[name]:
            found.violations.append(f"{event['id']}: the limit that was declared is passed")


def _check_ledgers(found: Findings, totals: dict[str, int], state: list[LogRecord]) -> None:
    """Compare the ledgers in the state with what was released, and every run's secrets with themselves."""
    stored: dict[str, int] = {}
    for record in committed(state):
        if record.key is None or not record.key.startswith(b"d/") or not record.value:
            continue
        _, name, _, _, ledger, _, slots, _ = msgspec.msgpack.decode(record.value[_FRAME:])
        stored[name] = msgspec.msgpack.decode(ledger)[3]
        for monitor, slot in slots.items():
            run, secrets = slot[3], slot[5]
            if any(secrets):  # zero once the run is closed
                noises = found.threshold_noises.setdefault((name, monitor, run), set())
                if noises and secrets not in noises:
                    found.violations.append(f"the noise of run {run} of {name}/{monitor} changed")
                noises.add(secrets)
    for name, spent in stored.items():
        if spent != totals.get(name, 0):
            found.violations.append(
                f"{name}: the ledger says {spent}, the charges released {totals.get(name, 0)}"
            )


def _check_outcomes(found: Findings, state: list[LogRecord]) -> None:
    """A top that was computed again, after a transaction that failed, is the same top."""
    outcomes: dict[tuple[str, str, int, int], Any] = {}
    for record in state:
        if record.marker is not None or not (record.key or b"").startswith(b"ob/"):
            continue
        for event in _outbox(record):
            data = event["data"]
            if "gap" in data:
                top = (data["dataset"], data["monitor"], data["run"], data["top"])
                # The books may have moved between: another monitor of the dataset was faster this time.
                outcome = {**data, "account": None}
                if outcomes.setdefault(top, outcome) != outcome:
                    found.violations.append(f"top {top} was computed twice, with different outcomes")


def _check_queries(found: Findings, partition: int, certain: Certain, queries: list[LogRecord]) -> None:
    """Every query that must have an alert has one, none twice, and no other comes from nowhere."""
    alerts: Counter[int] = Counter()
    last: dict[str, int] = {}
    for alert in found.alerts:
        if alert["position"]["partition"] == partition and alert["monitor"] == certain.monitor:
            offset = alert["position"]["offset"]
            alerts[offset] += 1
            last[alert["dataset"]] = max(last.get(alert["dataset"], 0), offset)
    ended = {name for name in certain.scarce if (name, certain.monitor) in found.exhausted}
    for query in queries:
        if query.marker is not None:
            continue
        value, count = json.loads(query.value or b"{}")["value"], alerts.pop(query.offset, 0)
        found.queries += 1
        name = (query.key or b"").decode()
        due = name not in ended or query.offset < last.get(name, 0)
        if count > 1 or (value >= certain.high and due and not count) or (value <= certain.low and count):
            found.violations.append(
                f"query {query.offset} of partition {partition}, value {value}, has {count} alerts"
            )
    for offset in alerts:
        found.violations.append(f"partition {partition}: an alert for query {offset}, which is not there")


def _charged_at(state: list[LogRecord]) -> dict[str, int]:
    """Return, for every event in a committed outbox, when the commit marker of its transaction was written."""
    when: dict[str, int] = {}
    marker_of = endings(state)
    for record in state:
        if record.key is None or not record.key.startswith(b"ob/") or record.marker is not None:
            continue
        marker = marker_of[record.offset]
        if marker is None or marker.marker != "commit":
            continue
        for event in _outbox(record):
            event_id = event["id"]
            when[event_id] = min(when.get(event_id, marker.timestamp), marker.timestamp)
    return when


def _outbox(record: LogRecord) -> list[dict[str, Any]]:
    events, _ = msgspec.msgpack.decode(zlib.decompress((record.value or b"")[_FRAME:]))
    return [json.loads(encoded) for _, _, encoded in events]
