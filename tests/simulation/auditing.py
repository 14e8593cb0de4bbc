"""The audit that is shipped, on the modelled log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream_svt.service.audit import Audit, Auditor, ShardState, compare
from stream_svt.service.wire import home
from tests.simulation.effects import finish, journal_of
from tests.simulation.log import Broker

if TYPE_CHECKING:
    from tests.simulation.model import Model


def audited(broker: Broker) -> Audit:
    """Hold the modelled state to the modelled alerts with the audit that is shipped."""
    journal = journal_of(broker)
    state = ShardState.of(0, finish(journal.look()), journal)
    auditor = Auditor()
    for entry in broker.read("alerts"):
        auditor.add(0, entry.offset, entry.value)
    return compare(auditor, [state], lambda name: 0)


def both_forms(model: Model) -> tuple[Audit, Audit]:
    """Audit an application of several shards: the operator's form, and the public one."""
    model.settle()
    states = []
    for shard in range(model.partitions):
        journal = model.journal(shard, model.partitions)
        states.append(ShardState.of(shard, finish(journal.look()), journal))
    forms = Auditor(model.spec.monitors), Auditor(model.spec.monitors)
    for auditor in forms:
        for shard in range(model.partitions):
            for entry in model.broker.read(f"alerts-{shard}"):
                auditor.add(shard, entry.offset, entry.value)
    operator, public = forms
    return compare(operator, states, lambda name: home(name.encode(), model.partitions)), public.audit


def problems(model: Model) -> list[str]:
    """Return what either form finds."""
    operator, public = both_forms(model)
    return [*operator.problems, *public.problems]
