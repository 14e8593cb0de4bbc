"""Standing alerts: monitors that skip the queries of a dataset, folded from released events.

An alert stands until an event ends it, or the time in its event has passed. It is posted repeatedly, each time with
a later end: without a forwarder it expires.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from stream_svt.forward.config import DestinationConfig, type_word
from stream_svt.forward.event import alert_of, is_of, matches
from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import AnyEvent, EventType, Lifecycle, MonitorStatus, event_in
from stream_svt.monitor.state.snapshot import BLIND, PAUSED, STOPPED, Signal, State
from stream_svt.wording import counted

LARGEST_NUMBER = 1000
"""Number of alerts of one name and application that are posted one by one, oldest first; the others are one
alert."""
OTHERS = "(others)"
_ALERT = f'"type":"{EventType.ALERT}"'.encode()
"""In the encoded form of alerts only: quotes inside a text are escaped."""


class Subject(NamedTuple):
    """Subject of a condition."""

    application: str
    dataset: str
    monitor: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A kind of standing alert: name, severity, meaning, and the command that ends it."""

    kind: EventType
    name: str
    severity: str
    means: str
    remedy: str


CONDITIONS: Mapping[str, Condition] = {
    State.EXHAUSTED: Condition(
        EventType.EXHAUSTED,
        "MonitorExhausted",
        "page",
        "the rest of the budget cannot pay another run",
        "stream-svt control raise-budget -c FILE {dataset} --limit LOSS (this weakens the promise permanently; a limit "
        "per time stays, and ends this with its next period)",
    ),
    State.LIMITED: Condition(
        EventType.LIMITED,
        "MonitorLimited",
        "page",
        "as many runs have begun as max_runs allows",
        "stream-svt control resample -c FILE {dataset} --monitor {monitor}",
    ),
    STOPPED: Condition(
        EventType.RUN_HALTED,
        "MonitorStopped",
        "page",
        "its run has raised its last alert (detect, on_halt: stop), or an operator closed it",
        "stream-svt control resample -c FILE {dataset} --monitor {monitor}",
    ),
    PAUSED: Condition(
        EventType.PAUSED,
        "MonitorPaused",
        "ticket",
        "an operator paused it",
        "stream-svt control resume -c FILE {dataset} --monitor {monitor}",
    ),
}
"""By the state of a monitor as shown. Names and severities are those of deploy/prometheus/rules/alerts.yml."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A condition that is over: its begin and end (Unix ms), and the cause of its end."""

    began_ms: int
    ended_ms: int
    why: str


@dataclass(slots=True)
class Conditions:
    """The conditions of one partition of the alert topic; ``ended`` has the recently ended ones, by state.

    ``complete``: every event up to the end of the partition was read.
    """

    blind: dict[Subject, MonitorStatus] = field(default_factory=dict)
    ended: dict[tuple[Subject, str], Ended] = field(default_factory=dict)
    complete: bool = False

    def take(self, body: bytes) -> bool:
        """Fold the next record; return whether any condition began or ended."""
        if _ALERT in body:
            return False  # a run was open before it: most records need not be decoded
        event = event_in(body)
        if event is None or not isinstance(event.data, Lifecycle):
            return False
        data, kind, now_ms, why = event.data, event.type, event.time_ms, _why(event, event.data)
        if kind in (EventType.APPLICATION_CLOSED, EventType.STATE_BEGUN):
            return self._end(now_ms, why, application=event.application)
        if kind == EventType.RETIRED:
            return self._end(now_ms, why, application=event.application, dataset=data.dataset)
        if kind == EventType.SPEC_CHANGED:
            removed = data.reason == "removed"
            return removed and self._end(now_ms, why, application=event.application, monitor=data.monitor)
        if kind == EventType.BUDGET_RAISED:
            concerned = [one for one in self.blind if one[:2] == (event.application, data.dataset)]
        else:
            concerned = [Subject(event.application, data.dataset, data.monitor)] if data.monitor else []
        return sum(self._fold(one, event, data, why) for one in concerned) > 0

    def _fold(self, subject: Subject, event: AnyEvent, data: Lifecycle, why: str) -> bool:
        status = self.blind.pop(subject, None) or MonitorStatus()
        before, began = status.shown, status.shown_ms
        status.take(event)
        gone = event.type == EventType.RUN_CLOSED and data.reason == "removed"
        now = status.shown
        if now in BLIND and not gone:
            self.blind[subject] = status
            self.ended.pop((subject, now), None)
        if before in BLIND and (gone or now != before):
            self.ended[subject, before] = Ended(began, event.time_ms, why)
        return (gone or now != before) and (before in BLIND or now in BLIND)

    def _end(self, now_ms: int, why: str, **wanted: str) -> bool:
        """End all conditions whose subjects have these parts."""
        found = [
            one for one in self.blind if all(getattr(one, name) == text for name, text in wanted.items())
        ]
        for subject in found:
            status = self.blind.pop(subject)
            self.ended[subject, status.shown] = Ended(status.shown_ms, now_ms, why)
        return bool(found)

    def pass_time(self, now_ms: int, kept_ms: int) -> bool:
        """End the conditions whose time has passed, drop conditions that ended ``kept_ms`` ago; return if any ended."""
        over = [one for one, status in self.blind.items() if 0 < status.until_ms <= now_ms]
        for subject in over:
            status = self.blind[subject]
            shown, ended = status.shown, status.until_ms
            self.ended[subject, shown] = Ended(
                status.shown_ms, ended, "its time is over: the next query is tested"
            )
            status.signal(Signal.RESUMED if shown == PAUSED else Signal.LIMIT_PASSED)
            status.shown_ms = ended
            if status.shown not in BLIND:
                del self.blind[subject]
        self.ended = {one: end for one, end in self.ended.items() if end.ended_ms > now_ms - kept_ms}
        return bool(over)


def _why(event: AnyEvent, data: Lifecycle) -> str:
    """Return the meaning of an event that ends a condition."""
    successor = str(data.detail.get("successor", "")) or "a successor"
    reasons: dict[str, str] = {
        EventType.RUN_STARTED: f"run {data.run} began",
        EventType.BUDGET_RAISED: "an operator raised the limit of the dataset",
        EventType.RESUMED: "it was resumed",
        EventType.PAUSED: "an operator paused it",
        EventType.RETIRED: "the dataset is retired",
        EventType.SPEC_CHANGED: "the monitor was removed from the configuration",
        EventType.APPLICATION_CLOSED: f"the application is closed: {successor} continues with the rest",
        EventType.STATE_BEGUN: "the state began anew",
        EventType.EXHAUSTED: "its budget is exhausted",
        EventType.LIMITED: "max_runs is reached",
    }
    if event.type == EventType.RUN_CLOSED:
        if data.reason == "removed":
            return "the configuration no longer covers the dataset"
        return "an operator closed it" if data.detail.get("stopped") else "its next query begins a run"
    return reasons.get(event.type, type_word(event.type))


def standing_alerts(
    destination: DestinationConfig, partitions: Iterable[Conditions], now: datetime, lasts_ms: int
) -> tuple[list[dict[str, Any]], int]:
    """Return the alerts of a destination at ``now``, in UTC, and the number of standing conditions.

    Standing alerts end in ``lasts_ms``, others at the end of their condition.
    """
    now_ms = int(now.timestamp() * 1000)
    standing: dict[tuple[str, str], list[tuple[int, Subject, MonitorStatus]]] = {}
    alerts: list[dict[str, Any]] = []
    for conditions in partitions:
        for subject, status in conditions.blind.items():
            if _wants(destination, subject, status.shown):
                group = standing.setdefault((status.shown, subject.application), [])
                group.append((status.shown_ms, subject, status))
        for (subject, shown), end in conditions.ended.items():
            if _wants(destination, subject, shown):
                ended = min(end.ended_ms, now_ms)
                alerts.append(_alert(destination, subject, shown, end.began_ms, ended, now_ms, end.why))
    for (shown, _), group in standing.items():
        group.sort(key=lambda one: one[:2])
        for began, subject, status in group[:LARGEST_NUMBER]:
            alert = _alert(destination, subject, shown, began, now_ms + lasts_ms, now_ms)
            alerts.append(alert | {"annotations": _annotations(subject, status)})
        if others := group[LARGEST_NUMBER:]:
            began, subject, _ = others[0]
            every = Subject(subject.application, OTHERS, OTHERS)
            alert = _alert(destination, every, shown, began, now_ms + lasts_ms, now_ms)
            means = CONDITIONS[shown].means
            summary = f"Queries are skipped by {counted(len(others), 'further monitor')}: {means}"
            alerts.append(alert | {"annotations": {"summary": summary, "since": utc(began)}})
    return alerts, sum(map(len, standing.values()))


def _wants(destination: DestinationConfig, subject: Subject, shown: str) -> bool:
    return (
        is_of(subject.monitor, destination)
        and matches(subject.dataset, destination.datasets)
        and matches(type_word(CONDITIONS[shown].kind), destination.types)
    )


def _alert(
    destination: DestinationConfig,
    subject: Subject,
    shown: str,
    began_ms: int,
    ends_ms: int,
    now_ms: int,
    why: str = "",
) -> dict[str, Any]:
    condition = CONDITIONS[shown]
    began_ms = min(began_ms, now_ms)  # clocks differ: an alert must not begin later than now
    about = subject._asdict()
    alert = alert_of(destination, condition.name, condition.severity, about, began_ms, ends_ms)
    if not why:
        return alert
    summary = f"{subject.monitor} on {subject.dataset}: {condition.name} is over: {why}"
    notes = {"summary": summary, "since": utc(began_ms), "ended": utc(ends_ms), "ended_by": why}
    return alert | {"annotations": notes}


def _annotations(subject: Subject, status: MonitorStatus) -> dict[str, str]:
    condition = CONDITIONS[status.shown]
    names = {"dataset": shlex.quote(subject.dataset), "monitor": shlex.quote(subject.monitor)}
    until = utc(status.until_ms) if status.until_ms else ""
    alone = "It does not continue by itself."
    if status.shown in {State.EXHAUSTED, STOPPED}:  # whether a generator has a next period is in no event
        alone = "It does not continue by itself; the dataset of a next period would have its own run."
    return {
        "summary": f"{subject.monitor} skips the queries of {subject.dataset}: {condition.means}",
        "description": (
            f"Since {utc(status.shown_ms)} monitor {subject.monitor} of {subject.application} tests no query of "
            f"{subject.dataset}, and no alert comes from them. "
            + (f"It continues by itself at {until}." if until else alone)
        ),
        "since": utc(status.shown_ms),
        "until": until or "somebody acts",
        "remedy": condition.remedy.format(**names),
        "runbook_url": f"runbook.html#{condition.name.lower()}",
    }
