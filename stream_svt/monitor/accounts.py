"""The ledgers and runs of a shard's datasets: opened, charged and ended here, and nowhere else.

Everything that a change has to make durable or to release is collected for the next commit. A run that is opened
here may not be compared before the commit that holds it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stream_svt.mechanisms.sampler import draw_threshold
from stream_svt.monitor.bounds import Bounds
from stream_svt.monitor.commands import Command
from stream_svt.monitor.dataset_account import DatasetAccount
from stream_svt.monitor.event_builder import Crossing, EventBuilder
from stream_svt.monitor.life_cycle import Signal, State
from stream_svt.monitor.mutes import Mutes
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.queue_journal import QueueJournal
from stream_svt.monitor.released import EventType
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.monitor.snapshot import RunState, pack_secrets
from stream_svt.privacy.loss import to_float
from stream_svt.settings.monitors import MonitorSpec

EVENT_BYTES = 800
"""What an event takes, about: in the outbox, and once more where it is published."""


SLOTS_AT_ONCE = 10_000
"""Slots looked at between two yields: a few milliseconds of work."""


class Opening(NamedTuple):
    """A run that was opened, and whether what waits for another test was measured on another grid."""

    slot: RunState
    new_grid: bool


class Accounts:
    """Ledgers and runs by dataset number, and what the next commit holds.

    Parameters
    ----------
    application, shard
        What events name.
    datasets
        The datasets homed at the shard.
    entropy
        Returns so many fresh random bytes, from the operating system.
    bounds
        How much one commit holds.

    Attributes
    ----------
    held
        The books of every dataset that has some. To change them, ask `books`.
    plans
        By hash, what runs were opened under.
    queues
        The journal of what waits for another test.
    records, rejects
        Further state records, and refused records, of the next commit.
    dirty
        Numbers of the datasets whose books changed since the last commit.
    opened
        Monitor, dataset and number of each run opened since the last commit.
    """

    def __init__(
        self,
        application: str,
        shard: int,
        datasets: ShardDatasets,
        entropy: Callable[[int], bytes],
        bounds: Bounds,
    ) -> None:
        self.shard = shard
        self.datasets = datasets
        self.announcer = EventBuilder(application, shard)
        self.queues = QueueJournal()
        self.plans: dict[str, Plan] = {}
        self.held: dict[int, DatasetAccount] = {}
        self.records: dict[bytes, bytes | None] = {}
        self.rejects: list[tuple[str, int, str]] = []
        self.dirty: set[int] = set()
        self.opened: list[tuple[str, int, int]] = []
        self._entropy = entropy
        self._bounds = bounds
        self._weight = 0

    @property
    def full(self) -> bool:
        """Whether the next commit is as large as one may be: nothing more is opened or tested before it."""
        return (
            len(self.opened) >= self._bounds.runs
            or len(self.rejects) >= self._bounds.rejects
            or len(self.dirty) + len(self.records) >= self._bounds.records
            or self._weight + EVENT_BYTES * len(self.announcer.events) + self.queues.pending_bytes
            >= self._bounds.size
        )

    def take_records(self) -> dict[bytes, bytes | None]:
        """Return the records of the commit, those of changed books included, and begin the next one."""
        for number in sorted(self.dirty):
            self.records |= self.held[number].save()
        records, self.records = self.records, {}
        self.rejects, self.dirty, self.opened, self._weight = [], set(), [], 0
        return records

    def books(self, number: int) -> DatasetAccount:
        """Return the books of a dataset, to change; its declaration is announced when it is first needed."""
        books = self.held.get(number)
        if books is None:
            spec = self.datasets[number]
            books = self.held[number] = DatasetAccount(spec)
            detail: dict[str, object] = {"unit": books.unit}
            if spec.spent_before:
                detail["spent_before"] = to_float(spec.spent_before, spec.kind)
            self.announcer.announce(EventType.DECLARED, books, reason="first-start", detail=detail)
        if number not in self.dirty:
            self.dirty.add(number)
            self._weight += books.weight
        return books

    def slot(self, monitor: str, number: int) -> RunState:
        """Return the slot of a monitor on a dataset, to read."""
        books = self.held.get(number)
        return RunState() if books is None else books.slots.get(monitor) or RunState()

    def mutes(self, monitor: str, number: int) -> Mutes:
        """Return the mutes of a monitor on a dataset, to change."""
        return self.books(number).mutes.setdefault(monitor, Mutes())

    def open_run(self, monitor: str, plan: Plan, number: int, clock_ms: int) -> Opening | None:
        """Open a run; None where the ledger admits none, or not yet.

        The threshold's charge is booked and the rest of the run reserved now; its noise is drawn now.
        """
        books = self.books(number)
        slot = books.slot(monitor)
        if slot.stopped or slot.state is State.EXHAUSTED or books.waits_for_other_run():
            return None
        charge = books.admit(slot, plan, plan.spec.reserve_units(books.ledger.kind))
        if charge is None:
            slot.signal(Signal.REFUSED)
            self._announce(EventType.EXHAUSTED, books, monitor, slot, "budget")
            return None
        before = self.plans.get(slot.spec_hash)
        new_grid = slot.runs > 0 and (before is None or before.grid != plan.grid)
        slot.signal(Signal.ADMITTED)
        slot.spec_hash = plan.hash
        slot.run += 1
        slot.runs += 1
        slot.run_tops = 0
        slot.started_ms = clock_ms
        mechanism = plan.mechanism
        noise = draw_threshold(mechanism.threshold_noise, mechanism.threshold_rate, self._entropy)
        salt = self._entropy(16)
        slot.secrets = pack_secrets(
            noise, int.from_bytes(salt[:8], "little"), int.from_bytes(salt[8:], "little")
        )
        self.opened.append((monitor, number, slot.run))
        self.announcer.run_started(books, monitor, slot, charge)
        return Opening(slot, new_grid)

    def charge_top(self, spec: MonitorSpec, plan: Plan, crossing: Crossing) -> bool:
        """Charge a top and release its alert; return whether the run cannot pay for another one.

        Parameters
        ----------
        spec, plan
            The monitor as it is specified now, and what the run was opened under.
        """
        books = self.books(crossing.dataset)
        slot = books.slot(spec.name)
        charge = books.charge_top(slot, plan.mechanism.branches[crossing.branch].charge)
        slot.run_tops += 1
        slot.tops += 1
        is_last = not plan.mechanism.can_pay(slot.left)
        slot.signal(Signal.LAST_TOP if is_last else Signal.TOP)
        self.announcer.alert(books, spec, plan, slot, crossing, charge)
        self._weight += EVENT_BYTES + 4 * (len(crossing.series or "") + len(crossing.query_id))
        return is_last

    def muted(self, monitor: str, number: int, series: str, until: int) -> None:
        """Announce that the series of a top is muted, as `EventBuilder.muted` says."""
        books = self.books(number)
        self.announcer.muted(books, monitor, books.slot(monitor), series, until)

    def halt_run(self, monitor: str, number: int, *, stop: bool) -> RunState:
        """Close the books of a run after its last top, and return its slot; ``stop``: no other one follows."""
        books = self.books(number)
        slot = books.slot(monitor)
        slot.halts += 1
        slot.stopped = slot.stopped or stop
        books.end_run(slot)
        self._announce(EventType.RUN_HALTED, books, monitor, slot, "cutoff")
        return slot

    def end_run(self, monitor: str, number: int, reason: str) -> RunState:
        """End an open run before its last top, and return its slot; what it did not spend is released (pure only)."""
        books = self.books(number)
        slot = books.slot(monitor)
        slot.signal(Signal.ENDED)
        books.end_run(slot)
        self._announce(EventType.RUN_CLOSED, books, monitor, slot, reason)
        return slot

    def end_run_at_full_price(self, monitor: str, number: int, reason: str) -> RunState:
        """End an open run whose outcomes cannot be computed again: all that it reserved counts as spent."""
        books = self.books(number)
        slot = books.slot(monitor)
        slot.signal(Signal.ENDED)
        lost = books.end_run_at_full_price(slot)
        self._announce(EventType.RUN_CLOSED, books, monitor, slot, reason, lost)
        return slot

    def close(self, monitor: str, number: int) -> RunState:
        """Close a monitor on a dataset until an operator reopens it; an open run ends as in `end_run`."""
        books = self.books(number)
        slot = books.slot(monitor)
        is_running = slot.state is State.RUNNING
        slot.signal(Signal.CLOSED)
        slot.stopped = True
        if is_running:
            books.end_run(slot)
        self._announce(EventType.RUN_CLOSED, books, monitor, slot, "command")
        return slot

    def pause(self, monitor: str, number: int, *, paused: bool) -> RunState:
        """Have the queries of a dataset skipped, or tested again, and return the slot; an open run stays open."""
        books = self.books(number)
        slot = books.slot(monitor)
        slot.paused = paused
        self._announce(EventType.PAUSED if paused else EventType.RESUMED, books, monitor, slot, "command")
        return slot

    def raise_limit(self, number: int, limit: int) -> list[tuple[str, RunState]]:
        """Raise a dataset's limit, in ledger units; return the monitors that were exhausted and wake.

        Raises
        ------
        MisuseError
            The limit does not rise.
        """
        books = self.books(number)
        books.ledger.raise_limit(limit)
        self.announcer.announce(EventType.BUDGET_RAISED, books, reason="command")
        woken = [(name, slot) for name, slot in books.slots.items() if slot.state is State.EXHAUSTED]
        for _, slot in woken:
            slot.signal(Signal.BUDGET_RAISED)
        return woken

    def announce_balance(self, books: DatasetAccount) -> None:
        """Announce what is left of a ledger that is closed for ever."""
        detail = {"unit": books.unit}
        self.announcer.announce(EventType.BALANCE, books, reason="application-closed", detail=detail)

    def reply(self, command: Command, *, accepted: bool, message: str) -> None:
        """Acknowledge a command on the alert topic."""
        detail = {
            "command": command.id,
            "number": command.number,
            "action": command.action.value,
            "message": message,
        }
        number = self.datasets.number.get(command.dataset)
        books = None if number is None else self.books(number)
        # Whoever may send commands chose the texts.
        self._weight += EVENT_BYTES + 4 * (len(command.id) + len(message))
        self.announcer.reply(books, "accepted" if accepted else "refused", detail)

    def _announce(
        self,
        kind: EventType,
        books: DatasetAccount,
        monitor: str,
        slot: RunState,
        reason: str,
        charge: int = 0,
    ) -> None:
        self.announcer.announce(kind, books, monitor=monitor, slot=slot, reason=reason, charge=charge)
