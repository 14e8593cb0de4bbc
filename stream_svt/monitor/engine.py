"""The engine: all monitors of a shard, stepped through batches of queries, between one commit and the next.

It decides; the shard moves bytes. The order that keeps the guarantee:

1. `Engine.step` tests queries, a bounded number at a time. It asks for a commit (``durable_first``) where a run's
   threshold noise is not durable yet, and where the commit has grown as large as one may be.
2. `Engine.take_commit` hands out everything that has to become durable, released events included.
3. Once that is durable, `Engine.committed`; the events may be published with the *next* transaction only.
4. If a transaction fails, the engine is thrown away and a new one loads the stored state. The same queries then
   meet the same noise, so the same outcomes are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.mechanisms.sampler import KeyedSampler
from stream_svt.monitor.accounts import SLOTS_AT_ONCE, Accounts
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.bounds import BOUNDS, Bounds
from stream_svt.monitor.dataset_account import DatasetAccount, read_dataset
from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.projection import Projection, Totals
from stream_svt.monitor.query_tester import QueryNoise
from stream_svt.monitor.queue_journal import Position, Queue
from stream_svt.monitor.released import DatasetView, EventType, ReleasedEvent
from stream_svt.monitor.retirement import Retirement
from stream_svt.monitor.run_arrays import Status
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.monitor.snapshot import (
    VERSION,
    ProgressRecord,
    RunState,
    from_bytes,
    to_bytes,
)
from stream_svt.monitor.spec_journal import SpecJournal
from stream_svt.monitor.stored_records import Named, Parts, by_kind, parts_of, queue_records
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import last_end
from stream_svt.settings.monitors import MonitorSpec

Integers = NDArray[np.int64]
LOADED_AT_ONCE = 80_000
"""Bytes of state records that `Engine.loading` takes over between two yields: a few milliseconds of work."""

QUEUES_AT_ONCE = 10
"""Queues that it puts in order between two yields: a thousand places take a millisecond."""

OTHER_FILE = (
    "the application began with another file, or without one: what was spent before would be counted otherwise. Name "
    "the file that it began with"
)

_NO_PARTS: Mapping[str, Parts] = {}

_RUNNING = State.RUNNING  # looked up for every run that is loaded


@dataclass(frozen=True, slots=True)
class Step:
    """What a call to `Engine.step` achieved.

    Attributes:
        done: Every monitor has consumed the whole batch. If not, `step` is to be called again with the same
            batch.
        durable_first: What was done must be durable before that: there is new threshold noise, or the commit
            is full.
        urgent: Something waits to be charged or published: commit now rather than at the next interval.
    """

    done: bool
    durable_first: bool
    urgent: bool


@dataclass(slots=True, repr=False)
class Commit:
    """Everything one transaction has to make durable.

    Attributes:
        records: State records (plain bytes, to be sealed) by key; None deletes the key.
        progress: Positions, clocks and counters; goes into the transaction's meta record.
        events: Released events in order: durable with this transaction, published with the next one.
        rejects: (topic, offset, reason) of records that were refused.
        views: Released state of the datasets that changed and are shown one by one.
        totals: Sums over all datasets of the shard. Views and sums are valid once the transaction is durable.
        tested, skipped: Queries tested by monitor, and skipped by (monitor, reason), since the last commit.
    """

    records: dict[bytes, bytes | None] = field(default_factory=dict)
    progress: bytes = b""
    events: list[ReleasedEvent] = field(default_factory=list)
    rejects: list[tuple[str, int, str]] = field(default_factory=list)
    views: list[DatasetView] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    tested: dict[str, int] = field(default_factory=dict)
    skipped: dict[tuple[str, str], int] = field(default_factory=dict)


class Engine:
    """Monitors of one shard.

    Args:
        spec: The application. After `load`, monitors are those of the stored state until `change_spec` is
            called with the specification wanted, which the shard does once it has replayed what was consumed
            before the takeover.
        shard: Partition number.
        datasets: The datasets homed at this shard, or their names; their order fixes the dataset numbers of
            batches.
        key: 32 secret bytes from which query noise is derived; durable before the first query.
        entropy: Returns so many fresh random bytes, from the operating system.
        bounds: How much one step does and one commit holds.
        query_noise: Source of query noise in place of the keyed one: for proofs, which hand in noise of their
            own.

    Attributes:
        runners: The monitors in use, by name, in the order in which they act.
        accounts, specs, retirement, projection: What the shard holds of its datasets, of specifications, of
            datasets declared no longer, and what it shows.
        configuration: Number and digest of the version adopted last.
    """

    def __init__(
        self,
        spec: ApplicationSpec,
        *,
        shard: int,
        datasets: Sequence[str] | ShardDatasets,
        key: bytes,
        entropy: Callable[[int], bytes],
        bounds: Bounds = BOUNDS,
        query_noise: QueryNoise | None = None,
    ) -> None:
        self.spec = spec
        self.shard = shard
        known = datasets if isinstance(datasets, ShardDatasets) else ShardDatasets.of_names(spec, datasets)
        self.datasets = known
        self.number = self.datasets.number
        self.runners: dict[str, Runner] = {}
        self.accounts = Accounts(spec.application, shard, known, entropy, bounds)
        self._events = self.accounts.events
        self._noise: QueryNoise = KeyedSampler(key) if query_noise is None else query_noise
        self.specs = SpecJournal(self.accounts)
        self._incompatible: list[tuple[int, list[str]]] = []
        self.configuration = (0, "")
        self._taken: list[tuple[str, int, int]] = []
        self._bounds = bounds
        self.projection = Projection(self.accounts, self.runners)
        self.retirement = Retirement(self.accounts)
        if spec.carried is not None:
            self.retirement.watermarks |= spec.carried.watermarks
            for topic, declared in spec.carried.topics.items():
                self.specs.keep_declared(topic, declared)
        for monitor in spec.monitors:
            self.add(monitor)

    # -- taking over -----------------------------------------------------------------------------------------

    def load(self, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
        """Take over as `loading` and `close_incompatible` do, at once."""
        for _ in self.loading(records, progress):
            pass
        self.retirement.check(self.number, self.shard, may_retire=False)
        for _ in self.close_incompatible():
            pass

    def loading(self, records: Mapping[bytes, bytes], progress: bytes | None) -> Iterator[None]:
        """Take over from the live state records; an empty mapping and no progress is the very first start.

        This is done in slices of a few milliseconds. The engine is of use once no slice is left, `Retirement.check`
        has accepted what is declared, and `close_incompatible` has closed what this release cannot go on with.

        Args:
            records, progress: As they were committed.

        Raises:
            UnreadableState: A record cannot be decoded, or an open run's specification is missing.
            ConfigError: A dataset's declaration is not the journaled one.
        """
        if progress is None:
            return
        found = yield from by_kind(records)
        current, plans = self.specs.load(found["m"], found["h"], found["t"])
        if current:
            self._load_monitors(current)
        stored = from_bytes(ProgressRecord, progress, key="meta")
        if stored.carried != self.spec.carried_digest:
            raise ConfigError([Problem(0, "carried_over", OTHER_FILE)])
        self._events.sequence = stored.sequence
        self._events.shard_events = stored.shard_events
        self.configuration = stored.configuration
        for name, (offset, row, clock_ms) in stored.positions.items():
            if name in self.runners:
                runner = self.runners[name]
                runner.offset, runner.row, runner.clock_ms, runner.started = offset, row, clock_ms, True
        self.retirement.retired = dict(found["r"])
        self.retirement.watermarks |= stored.watermarks
        yield from self._load_datasets(found, plans)
        yield from self._load_queues(found["w"])
        yield from self.retirement.find_reused(self.datasets)

    def begin_state(self, partitions: int, cluster: str) -> None:
        """Announce that the shard's state begins here: the first event of its partition.

        ``partitions`` is the number of shards, which fixes where each dataset is at home; ``cluster`` the cluster's id,
        by which a mirror of the partition is told from the original.
        """
        detail: dict[str, object] = {"partitions": partitions, "cluster": cluster}
        if (carried := self.spec.carried) is not None:
            detail |= {"carried_from": carried.application, "carried_digest": self.spec.carried_digest}
        self._events.shard_event(EventType.STATE_BEGUN, reason="first-start", detail=detail)
        for topic, declared in self.specs.declared.items():
            self._events.topic_declared(topic, declared)

    def adopt(self, version: tuple[int, str]) -> None:
        """Take note, and announce, that the specification in use is this version: its number and digest."""
        if version == self.configuration:
            return
        self.configuration = version
        detail = {"number": version[0], "digest": version[1]}
        self._events.shard_event(EventType.CONFIGURATION_ADOPTED, reason="configuration", detail=detail)

    def _load_datasets(self, found: Mapping[str, Named], plans: dict[str, Plan]) -> Iterator[None]:
        stale = {stored for stored, plan in plans.items() if plan.hash != stored}
        mutes = yield from parts_of("q", found["q"])
        numbers: list[int] = []
        size = 0
        for name, data in found["d"]:
            muted = mutes.pop(name, _NO_PARTS)
            if name in self.number:
                numbers.append(self._load_dataset(name, data, plans, stale, muted))
            else:
                self.retirement.add(name, data, plans, muted)
            size += len(data) + sum(len(part) for parts in muted.values() for _, part in parts)
            if size > LOADED_AT_ONCE:
                self._take_over(numbers)
                self.projection.update(numbers)
                numbers, size = [], 0
                yield
        self._take_over(numbers)
        self.projection.update(numbers)
        for number, monitors in self._incompatible:
            for monitor in monitors:
                if monitor in self.runners:
                    self.runners[monitor].runs.status[number] = Status.SKIP
        for dataset in mutes:
            raise UnreadableState(f"the state holds mutes q/{dataset}/* without a record d/{dataset}")

    def _load_queues(self, named: Named) -> Iterator[None]:
        size = 0
        for number, data in queue_records(named):
            self.accounts.queues.load(number, data, self._new_queue)
            size += len(data)
            if size > LOADED_AT_ONCE:
                size = 0
                yield
        for count, queue in enumerate(self.accounts.queues.loaded(), start=1):
            number = self.number[queue.dataset]
            self.runners[queue.monitor].runs.queues[number] = queue
            if number in self.accounts.held:
                self.projection.changed.add(number)
            if count % QUEUES_AT_ONCE == 0:
                yield

    def _new_queue(self, monitor: str, dataset: str) -> Queue | None:
        """Return an empty queue, to be loaded; None where the shard has no such monitor or dataset."""
        if monitor not in self.runners or dataset not in self.number:
            return None
        return self.runners[monitor].append.new_queue(dataset)

    def _load_monitors(self, current: Mapping[str, MonitorSpec]) -> None:
        """Go on with the monitors of the state."""
        for name in self.runners:
            self.projection.remove(name)
        self.runners.clear()
        self.accounts.records = {}
        # Runners act in this order: it must not depend on how the state topic was compacted.
        order = [monitor.name for monitor in self.spec.monitors if monitor.name in current]
        for name in [*order, *sorted(current.keys() - set(order))]:
            self.add(current[name], journal=False)

    def _load_dataset(
        self, name: str, data: bytes, plans: dict[str, Plan], stale: set[str], mutes: Mapping[str, Parts]
    ) -> int:
        """Take over the account of a dataset, with the records of its mutes by monitor; return its number.

        This release would not recompute the noise of runs under ``stale`` hashes: `close_incompatible` closes them.
        """
        number = self.number[name]
        record = read_dataset(data, f"d/{name}")
        if stale:
            lost = [
                monitor
                for monitor, run_state in record.run_states.items()
                if run_state.spec_hash in stale and run_state.state is _RUNNING
            ]
            if lost:
                self._incompatible.append((number, lost))
        account = DatasetAccount.from_record(self.datasets[number], record, plans, mutes)
        self.accounts.held[number] = account
        return number

    def retire(self) -> Iterator[None]:
        """End the ledgers of datasets that are declared no longer, as `Retirement.retire` says."""
        yield from self.retirement.retire()
        yield from self.forget_old_specs()

    def pass_periods(self, ends: Mapping[str, int], now_ms: int) -> None:
        """Take note of the periods that are over: the next engine does not know their datasets any more.

        A period is over once every monitor that runs on the generator's datasets has come beyond its end and lateness,
        by the records' timestamps; with no such monitor, never. To be called after the replay.

        Args:
            ends: The end of each query topic: for a monitor that has read all of a topic, time passes without
                records.
            now_ms: What time it is at least for these.
        """
        for pattern, (numbers, lateness_ms) in self.datasets.patterns.items():
            clocks = []
            for runner in self.runners.values():
                if runner.runs.covers[numbers].any():
                    if runner.started and runner.offset >= ends.get(runner.spec.topic, runner.offset + 1):
                        runner.clock_ms = max(runner.clock_ms, now_ms)
                    clocks.append(runner.clock_ms)
            if clocks:
                over = last_end(pattern, min(clocks) - lateness_ms)
                if over > self.retirement.watermarks.get(pattern, 0):
                    self.retirement.watermarks[pattern] = over

    def close_incompatible(self) -> Iterator[None]:
        """Close at full price the runs that were loaded and whose noise this release would not recompute.

        Yields whenever the next commit is full: the caller commits, and goes on.
        """
        # What is stored of a dataset changes at once: a run that is still open would refer to this release's hash.
        while self._incompatible:
            number, monitors = self._incompatible.pop()
            for monitor in monitors:
                self.close_at_full_price(monitor, number, "incompatible")
            if self.full:
                yield
        # Only now, for the same reason.
        for name in self.specs.restated:
            self.specs.keep(self.runners[name].runs.plan)
        self.specs.restated = []

    def _take_over(self, numbers: Sequence[int]) -> None:
        """Let the monitors go on where the slots of some datasets stand."""
        held: dict[str, tuple[list[int], list[RunState]]] = {}
        for number in numbers:
            for name, run_state in self.accounts.held[number].run_states.items():
                found = held.get(name)
                if found is None:
                    found = held[name] = [], []
                found[0].append(number)
                found[1].append(run_state)
        for name, (datasets, run_states) in held.items():
            runner = self.runners.get(name)
            if runner is not None:
                runner.runs.take_over(datasets, run_states)

    # -- positions -------------------------------------------------------------------------------------------

    def next_offset(self, topic: str) -> int | None:
        """Return where reading ``topic`` goes on, None where it was never read."""
        offsets = [
            runner.offset for runner in self.runners.values() if runner.spec.topic == topic and runner.started
        ]
        return min(offsets) if offsets else None

    def begin(self, topic: str, offset: int) -> None:
        """Journal where ``topic`` is read from, for monitors that never read it."""
        for runner in self.runners.values():
            if runner.spec.topic == topic and not runner.started:
                runner.offset, runner.row, runner.started = offset, 0, True

    def topics(self) -> list[str]:
        """Return the query topics of the monitors in use."""
        return sorted({runner.spec.topic for runner in self.runners.values()})

    def readers(self) -> list[tuple[str, str]]:
        """Return topic and name of each monitor in use."""
        return [(runner.spec.topic, name) for name, runner in self.runners.items()]

    def goes_by_timestamps(self, topic: str) -> bool:
        """Tell whether durations or periods of some monitor of a topic run on the timestamps of its records."""
        timed = self.datasets.periods is not None
        return any(
            runner.spec.topic == topic and (timed or runner.spec.needs_broker_time)
            for runner in self.runners.values()
        )

    # -- batches ---------------------------------------------------------------------------------------------

    def step(self, batch: QueryBatch) -> Step:
        """Test queries of a batch, or of what earlier calls with the same batch left of it.

        One call does a bounded amount of work. With ``durable_first`` the shard commits before the next one: an opened
        run is compared only after that, and no commit grows beyond what a transaction takes.
        """
        if self.full:
            return Step(done=False, durable_first=True, urgent=True)
        runners = [runner for runner in self.runners.values() if runner.spec.topic == batch.topic]
        part, whole = self._next_part(batch, runners)
        before = self._place(batch, runners)
        done = True
        for runner in runners:
            done &= runner.advance(part)
            self._refuse_outside(runner, part)
        # Before a commit in the middle, what lies before the place that it stores: it is not read again.
        after = batch.end if whole and done else self._place(batch, runners)
        named = [reject for reject in batch.rejects if before <= reject[0] < after]
        self.accounts.rejects.extend((batch.topic, offset, reason) for offset, reason in named)
        return Step(done=whole and done, durable_first=not done, urgent=bool(self._events.events))

    def _place(self, batch: QueryBatch, runners: Sequence[Runner]) -> int:
        """Return the first offset of a batch that some of its monitors have yet to look at."""
        return max([batch.first, *([min(runner.offset for runner in runners)] if runners else [])])

    def _next_part(self, batch: QueryBatch, runners: Sequence[Runner]) -> tuple[QueryBatch, bool]:
        """Return the rows of a batch to look at next, and whether they are the last ones.

        They open a bounded number of runs, cost a bounded amount of work, and name a bounded number of rejects.
        All monitors look at the same rows, so that a dataset's record is written once for all runs that open on it.
        """
        size = len(batch)
        offset, row = min(((runner.offset, runner.row) for runner in runners), default=(batch.end, 0))
        start = int(np.searchsorted(batch.offset, offset))
        while start < size and batch.offset[start] == offset and batch.row[start] < row:
            start += 1
        stop = min(
            size,
            start + max(1, self._bounds.cost // max(1, sum(runner.append.row_cost for runner in runners))),
        )
        refused = max(1, self._bounds.rejects - len(self.accounts.rejects))
        if any(runner.periods is not None for runner in runners):  # each row may be refused
            stop = min(stop, start + refused)
        stop = self._rows_to_open(batch, runners, start, stop)
        end = batch.end if stop == size else int(batch.offset[stop])
        rest = [place for place, _ in batch.rejects if place >= offset]
        if len(rest) > refused and rest[refused] < end:
            end = rest[refused]
            stop = int(np.searchsorted(batch.offset, end))
        if start == 0 and end == batch.end:
            return batch, True
        return batch.part(start, stop, end), end == batch.end

    def _rows_to_open(self, batch: QueryBatch, runners: Sequence[Runner], start: int, stop: int) -> int:
        """Return before which row at most `Bounds.runs` runs open, one for each dataset and monitor that waits."""
        rows = batch.dataset[start:stop]
        runners = [runner for runner in runners if (runner.runs.status[rows] == Status.WAITING).any()]
        if not runners:
            return stop
        room = max(1, self._bounds.runs - len(self.accounts.opened))
        while start < stop:
            # Each row may open a run for every monitor: look at no more rows than may be of use, and at more where
            # few of them open one.
            last = min(stop, start + self._bounds.runs)
            datasets, first = np.unique(batch.dataset[start:last], return_index=True)
            opens = np.zeros(last - start, dtype=np.int64)
            for runner in runners:
                opens[first] += runner.runs.status[datasets] == Status.WAITING
            total = np.cumsum(opens)
            if total[-1] > room:
                return start + max(1, int(np.searchsorted(total, room, side="right")))
            if total[-1] == 0:
                start = last
                continue
            return last
        return stop

    def _refuse_outside(self, runner: Runner, batch: QueryBatch) -> None:
        """Refuse rows that came outside their dataset's period; of the monitors they are meant for, the first does."""
        rejects, runner.refused = runner.refused, []
        for row in rejects:
            dataset, only = int(batch.dataset[row]), batch.monitor.get(row)
            first = next(
                other
                for other in self.runners.values()
                if other.spec.topic == batch.topic
                and other.runs.covers[dataset]
                and only in (None, other.name)
            )
            refused = (batch.topic, int(batch.offset[row]), "outside-period")
            if first is runner and refused not in self.accounts.rejects[-1:]:
                self.accounts.rejects.append(refused)

    @property
    def full(self) -> bool:
        """Whether the next commit is as large as one may be."""
        return self.accounts.full

    def take_commit(self) -> Commit:
        """Return what has to be durable next."""
        accounts = self.accounts
        self.projection.changed.update(
            number
            for name in accounts.queues.changed_datasets()
            if (number := self.number.get(name)) is not None
        )
        accounts.records |= accounts.queues.save(
            {name: Position(runner.offset, runner.clock_ms) for name, runner in self.runners.items()}
        )
        commit = Commit(
            progress=self._progress(),
            events=self._events.take(),
            rejects=accounts.rejects,
            views=self.projection.changed_views(),
            totals=self.projection.take(),
            tested={name: runner.runs.tested for name, runner in self.runners.items() if runner.runs.tested},
            skipped={
                (name, reason): count
                for name, runner in self.runners.items()
                for reason, count in runner.runs.skipped.items()
            },
        )
        self._taken += accounts.opened
        commit.records = accounts.take_records()
        for runner in self.runners.values():
            runner.runs.tested, runner.runs.skipped = 0, {}
        return commit

    def committed(self) -> None:
        """Tell that all commits taken are durable: their new thresholds may be compared from now on."""
        pending, testable = Status.PENDING, Status.TESTABLE  # looking members up takes long
        for name, number, run in self._taken:
            runner = self.runners.get(name)
            if (
                runner is not None
                and runner.runs.status[number] == pending
                and self.accounts.run_state(name, number).run == run
            ):
                runner.runs.status[number] = testable
        self._taken = []

    def discard(self) -> list[DatasetAccount]:
        """Return the ledgers, for the caller to free little by little: they hold most objects."""
        self.retirement.discard()
        account, self.accounts.held = list(self.accounts.held.values()), {}
        return account

    def _progress(self) -> bytes:
        positions = {
            name: (runner.offset, runner.row, runner.clock_ms)
            for name, runner in self.runners.items()
            if runner.started
        }
        return to_bytes(
            ProgressRecord(
                VERSION,
                self._events.sequence,
                self._events.shard_events,
                positions,
                self.spec.carried_digest,
                self.configuration,
                self.retirement.watermarks,
            )
        )

    def add(self, spec: MonitorSpec, *, journal: bool = True) -> Runner:
        """Add a monitor; ``journal``: it is not one of the stored state."""
        runner = Runner(self.accounts, self._noise, spec, self.datasets)
        offset = self.next_offset(spec.topic)
        if offset is not None:
            runner.offset, runner.started = offset, True
        self.runners[spec.name] = runner
        plan = runner.runs.plan
        self.accounts.plans[plan.hash] = plan
        self.projection.cover(spec.name, runner.runs.covers)
        if journal:
            self.specs.keep(plan)
        self.specs.declare(spec)
        return runner

    def forget_old_specs(self) -> Iterator[None]:
        """Delete the stored specifications under which no run was opened that still matters."""
        used: set[str] = set()
        size = 0
        for account in chain(self.accounts.held.values(), self.retirement.account()):
            used.update(run_state.spec_hash for run_state in account.run_states.values())
            size += len(account.run_states)
            if size > SLOTS_AT_ONCE:
                size = 0
                yield
        self.specs.forget_old(used)

    def refuse(self, topic: str, offset: int, reason: str) -> None:
        """Refuse a record that is no query."""
        self.accounts.rejects.append((topic, offset, reason))

    def close_at_full_price(self, monitor: str, number: int, reason: str) -> None:
        """Close an open run whose outcomes cannot be computed again: all that it reserved counts as spent."""
        if self.accounts.run_state(monitor, number).state is _RUNNING:
            run_state = self.accounts.end_run_at_full_price(monitor, number, reason)
            if monitor in self.runners:
                self.runners[monitor].runs.run_ended(number, run_state)
