"""Compares the stored state with the released events: the operator's form of the audit.

Each ledger is the sum of the charges released (those that wait to be published included), reservations are those of the
open runs, closed runs have no secrets left, and no state is older than the alerts beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stream_svt.monitor.accounts import DatasetAccount
from stream_svt.monitor.released import PERIOD_OVER
from stream_svt.monitor.snapshot import ProgressRecord, from_bytes
from stream_svt.monitor.snapshot import State as LifeCycle
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.audit import Audit, Auditor, DatasetTally, RunTally, amount_text
from stream_svt.protocol.journal import Journal
from stream_svt.settings.datasets import Watermarks, is_over

_OLDER = (
    "the state is older than the alerts, which is what a restored backup looks like (or the last event is forged). A "
    "worker that takes the shard over parks it, for it would spend budgets twice: put the newest state back, or close "
    "the shard with 'stream-svt control close-application --give-up-state'"
)


@dataclass(frozen=True, slots=True)
class ShardState:
    """What the state topic holds for one shard, verified.

    ``waiting`` are the events charged and not yet published; ``watermarks`` say which periods are over.
    """

    shard: int
    last_event: int
    datasets: dict[str, DatasetAccount] = field(repr=False)
    waiting: list[tuple[int, bytes, bytes]] = field(repr=False)
    watermarks: Watermarks = field(default_factory=dict)

    @classmethod
    def of(cls, shard: int, records: Mapping[bytes, bytes], journal: Journal) -> ShardState:
        """Return what a journal found that was looked at."""
        datasets = {
            key[2:].decode(): from_bytes(DatasetAccount, content, key=key.decode())
            for key, content in records.items()
            if key.startswith((b"d/", b"r/"))
        }
        progress = journal.meta.progress
        watermarks = {} if progress is None else from_bytes(ProgressRecord, progress, key="meta").watermarks
        return cls(shard, journal.meta.last_event, datasets, journal.waiting, watermarks)


def compare(auditor: Auditor, states: Sequence[ShardState], homes: Callable[[str], int]) -> Audit:
    """Hold ledgers to what was added to the auditor, up to the last event that each state knows.

    Args:
        homes: Returns the shard at which a dataset is at home.
    """
    for state in states:
        for number, _, event in state.waiting:
            if number > auditor.last(state.shard):
                auditor.add(state.shard, number, event)
        if state.last_event and not auditor.last(state.shard):
            auditor.lost(state.shard)  # the partition was made anew, and nothing was published since
    audit = auditor.audit
    audit.ledgers = 0
    for state in states:
        last = auditor.last(state.shard)
        if last != state.last_event and (last or state.shard not in audit.truncated):
            message = (
                f"it knows events up to number {state.last_event}, the alert topic holds them up to {last}"
            )
            if last > state.last_event:
                message += f": {_OLDER}"
            audit.find(state.shard, None, message)
        for name, record in state.datasets.items():
            audit.ledgers += 1
            for message in _differences(audit, audit.datasets.get(name), record):
                audit.find(state.shard, None, f"dataset {name}: {message}")
            if homes(name) != state.shard:
                audit.find(state.shard, None, f"dataset {name} is at home at shard {homes(name)}")
    by_shard = {state.shard: state for state in states}
    for name, tally in audit.datasets.items():
        if tally.partition not in by_shard or any(name in state.datasets for state in states):
            continue
        if tally.retired != PERIOD_OVER:
            audit.find(tally.partition, None, f"dataset {name} has events and no ledger")
        elif not is_over(name, by_shard[tally.partition].watermarks):
            message = f"dataset {name} is retired, and the state does not say that its period is over"
            audit.find(tally.partition, None, f"{message}: it could be opened again")
    return audit


def _differences(audit: Audit, tally: DatasetTally | None, record: DatasetAccount) -> Iterator[str]:
    """Yield in what a ledger differs from the dataset's events."""
    ledger = record.ledger
    kind = ledger.kind
    running = {
        name: run_state
        for name, run_state in record.run_states.items()
        if run_state.state == LifeCycle.RUNNING.value
    }
    if kind is Kind.PURE and sum(run_state.left for run_state in running.values()) != ledger.reserved:
        yield f"{amount_text(ledger.reserved, kind)} is reserved, and not by the open runs"
    for name, run_state in record.run_states.items():
        if name not in running and (run_state.left or any(run_state.secrets)):
            yield f"monitor {name}: run {run_state.run} is closed and has something left"
    if tally is None:
        if not audit.truncated:
            yield "it has a ledger and no events"
        return
    for what, stored, shown in (
        ("spent", ledger.spent, tally.spent),
        ("reserved", ledger.reserved, tally.reserved),
        ("the limit", ledger.limit, tally.limit),
    ):
        if stored != shown or kind is not tally.kind:
            said = f"the events say {amount_text(shown, tally.kind)}"
            yield f"in the ledger {amount_text(stored, kind)} is {what}, {said}"
    if tally.last and record.events != tally.last:
        yield f"{record.events} events are counted, the newest one is number {tally.last}"
    for name, run_state in record.run_states.items():
        run = tally.runs.get(name, RunTally(over=True))
        if run.run != run_state.run and not audit.truncated:
            yield f"monitor {name} is at run {run_state.run}, the events are at run {run.run}"
        elif run.run == run_state.run and run.over is (name in running):
            yield f"monitor {name}: run {run_state.run} is {'open' if run.over else 'closed'}, the events say otherwise"
        tops = tally.tops.get(name, 0)
        if not audit.truncated and run_state.tops != tops:
            yield f"monitor {name} has counted {run_state.tops} tops, {tops} were released"
