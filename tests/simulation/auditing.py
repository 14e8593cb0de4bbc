"""The audit that is shipped, on the modelled log."""

from __future__ import annotations

from stream_svt.service.audit import Audit, Auditor, ShardState, compare
from tests.simulation.effects import finish, journal_of
from tests.simulation.log import Broker


def audited(broker: Broker) -> Audit:
    """Hold the modelled state to the modelled alerts with the audit that is shipped."""
    journal = journal_of(broker)
    state = ShardState.of(0, finish(journal.look()), journal)
    auditor = Auditor()
    for entry in broker.read("alerts"):
        auditor.add(0, entry.offset, entry.value)
    return compare(auditor, [state], lambda name: 0)
