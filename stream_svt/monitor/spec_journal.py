"""The specifications that a shard's state holds, and what was ever declared of its query topics.

State records: ``m/`` the monitors in use, by name; ``t/`` what holds of the answers on a query topic, by topic. What
was declared of a topic is kept for ever.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from fractions import Fraction
from functools import reduce

from stream_svt.errors import Problem, UnreadableState
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.snapshot import VERSION, SpecRecord, TopicRecord, from_bytes, to_bytes
from stream_svt.settings.changes import Declared, declaration_refused
from stream_svt.settings.monitors import MonitorSpec

Named = list[tuple[str, bytes]]
"""State records of one kind, with what follows the kind in their keys."""


class SpecJournal:
    """Keeps specifications and declarations in the state.

    Args:
        accounts: Takes the records and events.

    Attributes:
        declared: By query topic, what holds of its answers.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.declared: dict[str, Declared] = {}

    def load(self, monitors: Named, topics: Named) -> tuple[dict[str, MonitorSpec], set[str]]:
        """Take over from the state; return the specifications in use, by name, and those whose open runs can go on.

        The others have another hash in this release: their runs could not be computed again.

        Raises:
            UnreadableState: A record cannot be decoded.
        """
        current: dict[str, MonitorSpec] = {}
        same: set[str] = set()
        for name, data in monitors:
            record = from_bytes(SpecRecord, data, key=f"m/{name}")
            try:
                current[name] = MonitorSpec.from_json(record.spec)
            except ValueError:
                message = (
                    f"state record m/{name} holds a specification that this release cannot read; "
                    "use the release that wrote it"
                )
                raise UnreadableState(message) from None
            if Plan.of(current[name]).hash == record.hash:
                same.add(name)
        if current:
            self.declared = {rest: _read_topic(data, f"t/{rest}") for rest, data in topics}
        return current, same

    def keep(self, plan: Plan) -> None:
        """Keep the plan of a monitor in use."""
        record = SpecRecord(VERSION, plan.hash, plan.spec.to_json())
        self._accounts.records[f"m/{plan.spec.name}".encode()] = to_bytes(record)

    def remove(self, monitor: str) -> None:
        """Forget a monitor."""
        self._accounts.records[f"m/{monitor}".encode()] = None

    def declare(self, spec: MonitorSpec) -> None:
        """Keep, and announce, what a monitor declares of its topic."""
        known = self.declared.get(spec.topic)
        declared = Declared.by(spec) if known is None else known.and_by(spec)
        if declared != known:
            self.keep_declared(spec.topic, declared)
            events = self._accounts.events
            if events.sequence:  # else the event that begins the state comes first
                events.topic_declared(spec.topic, declared)

    def keep_declared(self, topic: str, declared: Declared) -> None:
        """Keep what holds of a topic."""
        self.declared[topic] = declared
        record = TopicRecord(VERSION, str(declared.sensitivity), declared.general)
        self._accounts.records[f"t/{topic}".encode()] = to_bytes(record)

    def refusals(self, monitors: Iterable[MonitorSpec], added: Container[str]) -> list[Problem]:
        """Return what speaks against monitors, some of which are added, by what was declared of their topics."""
        monitors = list(monitors)
        found: list[Problem] = []
        for monitor in monitors:
            if monitor.name in added and monitor.topic in self.declared:
                found += declaration_refused(self.declared[monitor.topic], monitor)
        for topic, known in self.declared.items():
            readers = [monitor for monitor in monitors if monitor.topic == topic]
            together = reduce(Declared.and_by, readers, known)
            if together != known:  # the same answers: who declared less would test them with too little noise
                found += [
                    problem for monitor in readers for problem in declaration_refused(together, monitor)
                ]
        return found


def _read_topic(data: bytes, key: str) -> Declared:
    record = from_bytes(TopicRecord, data, key=key)
    try:
        return Declared(Fraction(record.sensitivity), record.general)
    except (ValueError, ZeroDivisionError):
        message = (
            f"state record {key} holds a sensitivity that is no number; the shard stops rather than guess"
        )
        raise UnreadableState(message) from None
