"""The ledgers and runs of a shard's datasets: opened, charged and ended here, and nowhere else.

Everything that a change has to make durable or to release is collected for the next commit. A run that is opened
here may not be compared before the commit that holds it is durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from stream_svt.mechanisms.sampler import draw_threshold
from stream_svt.monitor.commands import Command
from stream_svt.monitor.dataset_account import DatasetAccount
from stream_svt.monitor.event_builder import Crossing, EventBuilder
from stream_svt.monitor.mutes import FOR_EVER, UNTIL_RUN_ENDS, MonitorMutes
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.queue_journal import QueueJournal
from stream_svt.monitor.released import EventType
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.monitor.snapshot import RunState, Signal, State
from stream_svt.privacy.loss import Kind, to_float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a step, of the commit that follows it, and of what a transaction publishes.

    A transaction holds what a commit holds and what it publishes of the one before: with these defaults fewer than
    5,000 records and 8 MB.

    Attributes:
        runs: Most runs that one commit opens.
        records: State records from which on a commit is full.
        size: Bytes of its records and events from which on a commit is full, about.
        rejects: Refused records from which on a commit is full.
        cost: Queries times monitors of one step: some 50 ms. A query that is looked at by itself counts many
            times.
        published: Most events and rejects that one transaction publishes.
        published_size: Most bytes of events that one transaction publishes; a single event may have more.
    """

    runs: int = 1_000
    records: int = 2_500
    size: int = 4_000_000
    rejects: int = 1_000
    cost: int = 1_000_000
    published: int = 2_000
    published_size: int = 3_000_000


BOUNDS = Bounds()


_RECORD_BYTES, _SLOT_BYTES = 400, 200
"""What a dataset's state record takes, about, and what each slot adds to it."""

EVENT_BYTES = 800
"""What an event takes, about: in the outbox, and once more where it is published."""


SLOTS_AT_ONCE = 10_000
"""Slots looked at between two yields: a few milliseconds of work."""


class Accounts:
    """Ledgers and runs by dataset number, and what the next commit holds.

    Args:
        application, shard: What events name.
        datasets: The datasets homed at the shard.
        entropy: Returns so many fresh random bytes, from the operating system.
        bounds: How much one commit holds.

    Attributes:
        held: The account of every dataset that has one. To change it, ask `account`.
        queues: The journal of mutes, and of what waits for another test.
        mutes: By monitor, those that ran before included.
        records, rejects: Further state records, and refused records, of the next commit.
        tested, skipped: Queries tested by monitor, and skipped by (monitor, reason), since the last commit.
        dirty: Numbers of the datasets whose account changed since the last commit.
        opened: Monitor, dataset and number of each run opened since the last commit.
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
        self.events = EventBuilder(application, shard)
        self.queues = QueueJournal()
        self.mutes: dict[str, MonitorMutes] = {}
        self.held: dict[int, DatasetAccount] = {}
        self.records: dict[bytes, bytes | None] = {}
        self.rejects: list[tuple[str, int, str]] = []
        self.tested: Counter[str] = Counter()
        self.skipped: Counter[tuple[str, str]] = Counter()
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
            or self._weight + EVENT_BYTES * len(self.events.events) + self.queues.pending_bytes
            >= self._bounds.size
        )

    def take_records(self) -> dict[bytes, bytes | None]:
        """Return the records of the commit, those of changed accounts included, and begin the next one."""
        for number in sorted(self.dirty):
            account = self.held[number]
            self.records[f"d/{account.name}".encode()] = account.to_bytes()
        records, self.records = self.records, {}
        self.rejects, self.dirty, self.opened, self._weight = [], set(), [], 0
        self.tested, self.skipped = Counter(), Counter()
        return records

    def account(self, number: int) -> DatasetAccount:
        """Return the account of a dataset, to change; its declaration is announced when it is first needed."""
        account = self.held.get(number)
        if account is None:
            spec = self.datasets[number]
            account = self.held[number] = DatasetAccount(spec)
            detail: dict[str, object] = {"unit": account.unit}
            if spec.spent_before:
                detail["spent_before"] = to_float(spec.spent_before, spec.kind)
            self.events.announce(EventType.DECLARED, account, "first-start", detail=detail)
        if number not in self.dirty:
            self.dirty.add(number)
            self._weight += _RECORD_BYTES + _SLOT_BYTES * len(account.run_states)
        return account

    def run_state(self, monitor: str, number: int) -> RunState:
        """Return the slot of a monitor on a dataset, to read."""
        account = self.held.get(number)
        return RunState() if account is None else account.run_states.get(monitor) or RunState()

    def open_run(self, monitor: str, plan: Plan, number: int, clock_ms: int) -> RunState | None:
        """Open a run; None where the ledger admits none, or not yet.

        The threshold's charge is booked and the rest of the run reserved now; its noise is drawn now.
        """
        account = self.account(number)
        run_state = account.run_state(monitor)
        if run_state.stopped or run_state.state is State.EXHAUSTED or account.ledger.run_open:
            return None
        charge = account.admit(run_state, plan, plan.spec.reserve_units(account.ledger.kind))
        if charge is None:
            run_state.signal(Signal.REFUSED)
            self.events.announce(EventType.EXHAUSTED, account, "budget", monitor, run_state)
            return None
        run_state.signal(Signal.ADMITTED)
        run_state.run += 1
        run_state.runs += 1
        run_state.run_tops = 0
        run_state.started_ms = clock_ms
        mechanism = plan.mechanism
        noise = draw_threshold(mechanism.threshold_noise, mechanism.threshold_rate, self._entropy)
        run_state.secrets = noise.to_bytes(8, "little", signed=True) + self._entropy(16)
        self.opened.append((monitor, number, run_state.run))
        detail = {"tops_charge_left": to_float(run_state.left, Kind.PURE)}
        reason = "first" if run_state.run == 1 else "resampled"
        self.events.announce(EventType.RUN_STARTED, account, reason, monitor, run_state, charge, detail)
        return run_state

    def charge_top(self, plan: Plan, crossing: Crossing) -> bool:
        """Charge a top and release its alert; return whether the run cannot pay for another one."""
        account = self.account(crossing.dataset)
        run_state = account.run_state(plan.spec.name)
        charge = account.charge_top(run_state, plan.mechanism.branches[crossing.branch].charge)
        run_state.run_tops += 1
        run_state.tops += 1
        is_last = not plan.mechanism.can_pay(run_state.left)
        run_state.signal(Signal.LAST_TOP if is_last else Signal.TOP)
        self.events.alert(account, plan, run_state, crossing, charge)
        self._weight += EVENT_BYTES + 4 * (len(crossing.series or "") + len(crossing.query_id))
        return is_last

    def muted(self, monitor: str, number: int, series: str, until_ms: int) -> None:
        """Announce that the series of a top is muted: for good, until the run ends, or until a broker time."""
        account = self.account(number)
        until = {FOR_EVER: "period", UNTIL_RUN_ENDS: "run"}.get(until_ms, until_ms)
        detail = {"series": series, "until": until}
        run_state = account.run_state(monitor)
        self.events.announce(EventType.MUTED, account, "top", monitor, run_state, detail=detail)

    def halt_run(self, monitor: str, number: int, *, stop: bool) -> RunState:
        """End a run after its last top, and return its state; ``stop``: no other one follows."""
        account = self.account(number)
        run_state = account.run_state(monitor)
        run_state.halts += 1
        run_state.stopped = run_state.stopped or stop
        account.end_run(run_state)
        self.events.announce(EventType.RUN_HALTED, account, "cutoff", monitor, run_state)
        return run_state

    def end_run(
        self, monitor: str, number: int, reason: str, *, full_price: bool = False, close: bool = False
    ) -> RunState:
        """End an open run before its last top, as `DatasetAccount.end_run` says, and return its state.

        ``close``: no other one follows until an operator reopens the monitor; there need not be an open one.
        """
        account = self.account(number)
        run_state = account.run_state(monitor)
        is_open = run_state.state is State.RUNNING
        run_state.signal(Signal.CLOSED if close else Signal.ENDED)
        run_state.stopped = run_state.stopped or close
        lost = account.end_run(run_state, full_price=full_price) if is_open else 0
        self.events.announce(EventType.RUN_CLOSED, account, reason, monitor, run_state, lost)
        return run_state

    def pause(self, monitor: str, number: int, *, paused: bool) -> RunState:
        """Have the queries of a dataset skipped, or tested again, and return the slot; an open run stays open."""
        account = self.account(number)
        run_state = account.run_state(monitor)
        run_state.paused = paused
        kind = EventType.PAUSED if paused else EventType.RESUMED
        self.events.announce(kind, account, "command", monitor, run_state)
        return run_state

    def raise_limit(self, number: int, limit: int) -> list[tuple[str, RunState]]:
        """Raise a dataset's limit, in ledger units; return the monitors that were exhausted and wake.

        Raises:
            MisuseError: The limit does not rise.
        """
        account = self.account(number)
        account.ledger.raise_limit(limit)
        self.events.announce(EventType.BUDGET_RAISED, account, "command")
        woken = [
            (name, run_state)
            for name, run_state in account.run_states.items()
            if run_state.state is State.EXHAUSTED
        ]
        for _, run_state in woken:
            run_state.signal(Signal.BUDGET_RAISED)
        return woken

    def announce_balance(self, account: DatasetAccount) -> None:
        """Announce what is left of a ledger that is closed for ever."""
        self.events.announce(EventType.BALANCE, account, "application-closed", detail={"unit": account.unit})

    def reply(self, command: Command, *, accepted: bool, message: str) -> None:
        """Acknowledge a command on the alert topic."""
        detail = {
            "command": command.id,
            "number": command.number,
            "action": command.action.value,
            "message": message,
        }
        # Whoever may send commands chose the texts.
        self._weight += EVENT_BYTES + 4 * (len(command.id) + len(message))
        number = self.datasets.number.get(command.dataset)
        reason = "accepted" if accepted else "refused"
        if number is None:
            self.events.shard_event(EventType.COMMAND_REPLY, reason=reason, detail=detail)
        else:
            self.events.announce(EventType.COMMAND_REPLY, self.account(number), reason, detail=detail)
