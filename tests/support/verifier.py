"""Re-reads what a run left on the brokers and says what breaks the rules; shares no code with the journal.

It knows the record formats of the state topic and of the alerts, and the broker's log segments with their commit
markers. State must be plain (no sealing key), and its topic must keep every version of a record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.log_reader import LogRecord, committed, endings, read_ended, read_partition
from tests.support.state_records import dataset, outbox


@dataclass
class Findings:
    """What the topics show. ``violations`` is empty where all rules hold."""

    violations: list[str] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    aborted: int = 0
    queries: int = 0
    secrets: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    exhausted: set[tuple[str, str]] = field(default_factory=set)
    """Datasets and monitors that said that the budget has ended."""


@dataclass(frozen=True)
class Certain:
    """Queries whose outcome no noise decides, for one monitor that mutes nothing.

    Attributes:
        topic: The JSON queries.
        high, low: From ``high`` on a query has exactly one alert, up to ``low`` it has none.
        scarce: Datasets whose budget may end: after the last alert nothing is due any more, if an event says
            that it has.
    """

    topic: str
    monitor: str
    high: int
    low: int
    scarce: frozenset[str] = frozenset()


async def verify(data_dir: Path, application: str, partitions: int, certain: Certain) -> Findings:
    """Check every partition; the service must have stopped. The audit checks numbers, sums, prices and ledgers."""
    found = Findings()
    for partition in range(partitions):
        alerts = await read_ended(data_dir, f"{application}.alerts", partition)
        state = await read_ended(data_dir, f"{application}.state", partition)
        found.aborted += sum(record.marker == "abort" for record in (*alerts, *state))
        _check_partition(found, alerts, state)
        queries = read_partition(data_dir, certain.topic, partition)
        check_queries(found, partition, certain, [query for query in queries if query.marker is None])
    return found


def _check_partition(found: Findings, alerts: list[LogRecord], state: list[LogRecord]) -> None:
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
    for event_id in charged.keys() - {event["id"] for event in events}:
        found.violations.append(f"{event_id} was charged and never published")
    found.alerts += [event["data"] for event in events if "gap" in event["data"]]
    _check_secrets(found, state)
    _check_outcomes(found, state)


def _check_secrets(found: Findings, state: list[LogRecord]) -> None:
    for record in committed(state):
        if not (record.key or b"").startswith(b"d/") or not record.value:
            continue
        for run, secrets in dataset(record.value).items():
            if found.secrets.setdefault(run, secrets) != secrets:
                found.violations.append(f"the noise of run {run} changed")


def _check_outcomes(found: Findings, state: list[LogRecord]) -> None:
    """A top that was computed again, after a transaction that failed, is the same top."""
    outcomes: dict[tuple[str, str, int, int], Any] = {}
    for record in state:
        if record.marker is not None or not (record.key or b"").startswith(b"ob/"):
            continue
        for event, _ in outbox(record.value or b""):
            data = event["data"]
            if "gap" in data:
                top = (data["dataset"], data["monitor"], data["run"], data["top"])
                # The books may have moved between: another monitor of the dataset was faster this time.
                outcome = {**data, "account": None}
                if outcomes.setdefault(top, outcome) != outcome:
                    found.violations.append(f"top {top} was computed twice, with different outcomes")


def check_queries(found: Findings, partition: int, certain: Certain, queries: Iterable[Any]) -> None:
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
        for event, _ in outbox(record.value or b""):
            event_id = event["id"]
            when[event_id] = min(when.get(event_id, marker.timestamp), marker.timestamp)
    return when
