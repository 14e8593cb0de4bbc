"""Re-reads what a run left on the brokers and says what breaks the rules; shares no code with the journal.

It knows the record formats of the state topic and of the alerts, and the broker's log segments with their commit
markers. State must be plain (no sealing key), and its topic must keep every version of a record.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from tests.support.log_reader import LogRecord, committed, endings, read_ended, read_partition

FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""


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


@dataclass(frozen=True)
class Terms:
    """What was declared, in billionths of epsilon, by dataset and by monitor and branch; a run's start is "start"."""

    limits: Mapping[str, int]
    prices: Mapping[tuple[str, str], int]


async def verify(
    data_dir: Path, application: str, partitions: int, certain: Certain, terms: Terms
) -> Findings:
    """Check every partition; the service must have stopped."""
    found = Findings()
    for partition in range(partitions):
        alerts = await read_ended(data_dir, f"{application}.alerts", partition)
        state = await read_ended(data_dir, f"{application}.state", partition)
        found.aborted += sum(record.marker == "abort" for record in (*alerts, *state))
        _check_partition(found, terms, alerts, state)
        queries = read_partition(data_dir, certain.topic, partition)
        check_queries(found, partition, certain, [query for query in queries if query.marker is None])
    return found


def _check_partition(found: Findings, terms: Terms, alerts: list[LogRecord], state: list[LogRecord]) -> None:
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
    _check_state(found, _check_charges(found, terms, events), state)
    _check_outcomes(found, state)


def _check_charges(found: Findings, terms: Terms, events: list[dict[str, Any]]) -> Counter[str]:
    """Return what each dataset has spent by its charges, each of which must be the declared price."""
    spent: Counter[str] = Counter()
    tops: Counter[tuple[str, str, int]] = Counter()
    for number, event in enumerate(events, 1):
        data, wrong = event["data"], partial(_note, found, event["id"])
        wrong("events are lost, doubled or out of order", event["sequence"] != number)
        if data.get("account") is None:
            continue
        amounts = (round(data["account"][name] * 10**9) for name in ("charge", "spent", "reserved", "limit"))
        charge, told, reserved, limit = amounts
        spent[data["dataset"]] += charge
        wrong("charges do not add up to what is spent", spent[data["dataset"]] != told)
        wrong("the limit is not the one declared", limit != terms.limits[data["dataset"]])
        wrong("the limit is passed", told + reserved > terms.limits[data["dataset"]])
        if "gap" in data or event["type"].endswith("run.started.v1"):
            price = terms.prices[data["monitor"], data.get("branch", "start")]
            wrong("it was not charged its price", charge != price)
        if "gap" in data:
            tops[run := (data["dataset"], data["monitor"], data["run"])] += 1
            wrong("alerts of the run are not numbered densely", data["number"] != tops[run])
    return spent


def _note(found: Findings, name: str, message: str, is_wrong: bool) -> None:
    if is_wrong:
        found.violations.append(f"{name}: {message}")


def _check_state(found: Findings, spent: Counter[str], state: list[LogRecord]) -> None:
    """Compare the ledgers of the state with the charges, and every run's secrets with themselves."""
    ledgers: dict[str, int] = {}
    for record in committed(state):
        if not (record.key or b"").startswith(b"d/") or not record.value:
            continue
        name, ledgers[name], held = dataset(record.value)
        for run, secrets in held.items():
            if found.secrets.setdefault(run, secrets) != secrets:
                found.violations.append(f"the noise of run {run} changed")
    for name, ledger in ledgers.items():
        _note(found, name, f"its ledger has {ledger}, the charges are {spent[name]}", ledger != spent[name])


def _check_outcomes(found: Findings, state: list[LogRecord]) -> None:
    """A top that was computed again, after a transaction that failed, is the same top."""
    outcomes: dict[tuple[str, str, int, int], Any] = {}
    for record in state:
        if record.marker is not None or not (record.key or b"").startswith(b"ob/"):
            continue
        for event, _ in outbox(record.value or b""):
            data = event["data"]
            if "gap" in data:
                top = (data["dataset"], data["monitor"], data["run"], data["number"])
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


@lru_cache(256)
def outbox(value: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Return the events of an outbox record, and how they are published."""
    events, _ = msgspec.msgpack.decode(zlib.decompress(value[FRAME:]))
    return [(msgspec.json.decode(encoded), encoded) for _, _, encoded in events]


def begins(value: bytes) -> dict[tuple[str, str, int], int]:
    """Return the timestamps at which the latest runs of a dataset's monitors began."""
    _, name, *_, run_states = msgspec.msgpack.decode(value[FRAME:])
    return {(name, monitor, run_state[3]): run_state[7] for monitor, run_state in run_states.items()}


def dataset(value: bytes) -> tuple[str, int, dict[tuple[str, str, int], bytes]]:
    """Return a dataset's name, what its ledger has spent, and the secrets of each open run."""
    _, name, _, _, ledger, _, run_states = msgspec.msgpack.decode(value[FRAME:])
    runs = {(name, monitor, run_state[3]): run_state[4] for monitor, run_state in run_states.items()}
    return name, ledger[3], {run: held for run, held in runs.items() if any(held)}  # zeros once it is closed
