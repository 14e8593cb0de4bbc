"""Re-reads what a run left on the brokers and says what breaks the rules; shares no code with the journal.

It knows the record formats of the state topic and of the alerts, and the broker's log segments with their commit
markers. State must be plain (no sealing key).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.support.log_reader import LogRecord, committed, endings, read_ended

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
    threshold_noises: dict[tuple[str, str, int], set[bytes]] = field(default_factory=dict)


async def verify(data_dir: Path, application: str, partitions: int) -> Findings:
    """Check every partition; the service must have stopped."""
    found = Findings()
    for partition in range(partitions):
        alerts = await read_ended(data_dir, f"{application}.alerts", partition)
        state = await read_ended(data_dir, f"{application}.state", partition)
        found.aborted += sum(record.marker == "abort" for record in (*alerts, *state))
        _check_partition(found, partition, alerts, state)
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
        if account["spent"] + account["reserved"] > account["limit"] + 1e-12:
            found.violations.append(f"{event['id']}: the limit is passed")
        if "gap" in data:
            found.alerts.append(data)
            run = (data["dataset"], data["monitor"], data["run"])
            tops[run] += 1
            if data["top"] != tops[run]:
                found.violations.append(f"{event['id']}: tops of the run are not numbered densely")
    found.spent.update(totals)
    for record in committed(state):
        if record.key is None or not record.key.startswith(b"d/") or not record.value:
            continue
        _, name, _, _, _, _, slots = msgspec.msgpack.decode(record.value[_FRAME:])
        for monitor, slot in slots.items():
            run, secrets = slot[3], slot[5]
            if any(secrets):  # zero once the run is closed
                found.threshold_noises.setdefault((name, monitor, run), set()).add(secrets)


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
        (events,) = msgspec.msgpack.decode((record.value or b"")[_FRAME:])
        for _, _, encoded in events:
            event_id = json.loads(encoded)["id"]
            when[event_id] = min(when.get(event_id, marker.timestamp), marker.timestamp)
    return when
