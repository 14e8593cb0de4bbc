"""The audit that is shipped, on the modelled log."""

from __future__ import annotations

import random

from stream_svt.protocol.journal import Journal, Topics
from stream_svt.protocol.sealing import Place
from stream_svt.service.audit import Audit, Auditor, ShardState, compare
from tests.simulation.effects import ModelLog, finish
from tests.simulation.log import Broker


def audited(broker: Broker) -> Audit:
    """Hold the modelled state to the modelled alerts with the audit that is shipped."""
    journal = Journal(
        ModelLog(broker),
        Place("cluster", "app", "state", 0),
        Topics("state", "alerts", "rejects"),
        partitions=1,
        entropy=random.Random(0).randbytes,
        epoch=lambda: 0.0,
    )
    state = ShardState.of(0, finish(journal.look()), journal)
    auditor = Auditor()
    for entry in broker.read("alerts"):
        auditor.add(0, entry.offset, entry.value)
    return compare(auditor, [state], lambda name: 0)
