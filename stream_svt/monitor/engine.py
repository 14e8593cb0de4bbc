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

import re
from collections import defaultdict
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.mechanisms.sampler import KeyedSampler
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.books import Books, read_dataset, stored_spec
from stream_svt.monitor.bounds import BOUNDS, Bounds
from stream_svt.monitor.commands import Command
from stream_svt.monitor.datasets import Gone, is_over, last_end
from stream_svt.monitor.life_cycle import Signal, State
from stream_svt.monitor.monitor_spec import (
    Declared,
    MonitorSpec,
    changed_fields,
    changes_refused,
    declaration_refused,
)
from stream_svt.monitor.options import Retry, Sweep
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.projection import Projection, Totals
from stream_svt.monitor.queue_journal import Position, Queue
from stream_svt.monitor.released import PERIOD_OVER, DatasetView, EventType, ReleasedEvent
from stream_svt.monitor.retry import RetryRunner
from stream_svt.monitor.runner import QueryNoise, Runner, Status, status_of
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.monitor.snapshot import (
    VERSION,
    ProgressRecord,
    Slot,
    SpecRecord,
    TopicRecord,
    from_bytes,
    to_bytes,
)
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.monitor.sweep import SweepRunner
from stream_svt.privacy.ledger import Ledger

Integers = NDArray[np.int64]
Parts = list[tuple[int, bytes]]
"""Numbered state records."""
Named = list[tuple[str, bytes]]
"""State records of one kind, with what follows the kind in their keys."""

KEYS_AT_ONCE = 10_000
"""State records whose keys `Engine.loading` sorts between two yields: a few milliseconds of work, as the next one."""

LOADED_AT_ONCE = 80_000
"""Bytes of state records that it takes over between two yields."""

QUEUES_AT_ONCE = 10
"""Queues that it puts in order between two yields: a thousand places take a millisecond."""

SLOTS_AT_ONCE = 10_000
"""Slots looked at between two yields: a few milliseconds of work."""

PROJECTED_AT_ONCE = 500
"""Datasets that `Engine.project` takes between two yields: a few milliseconds of work."""

_OTHER_FILE = (
    "the application began with another file, or without one: what was spent before would be counted otherwise. Name "
    "the file that it began with"
)

_NO_PARTS: Mapping[str, Parts] = {}

_RUNNING = State.RUNNING  # looked up for every run that is loaded

_PART_KEY = re.compile(r"(.+)/([^/]+)/([0-9]{1,18})", re.DOTALL)
_QUEUE_KEY = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Step:
    """What a call to `Engine.step` achieved.

    Attributes
    ----------
    done
        Every monitor has consumed the whole batch. If not, `step` is to be called again with the same batch.
    durable_first
        What was done must be durable before that: there is new threshold noise, or the commit is full.
    urgent
        Something waits to be charged or published: commit now rather than at the next interval.
    """

    done: bool
    durable_first: bool
    urgent: bool


@dataclass(slots=True, repr=False)
class Commit:
    """Everything one transaction has to make durable.

    Attributes
    ----------
    records
        State records (plain bytes, to be sealed) by key; None deletes the key.
    progress
        Positions, clocks and counters; goes into the transaction's meta record.
    events
        Released events in order: durable with this transaction, published with the next one.
    rejects
        (topic, offset, reason) of records that were refused.
    views
        Released state of the datasets that changed and are shown one by one.
    totals
        Sums over all datasets of the shard. Views and sums are valid once the transaction is durable.
    tested, skipped
        Queries tested by monitor, and skipped by (monitor, reason), since the last commit.
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

    Parameters
    ----------
    spec
        The application. After `load`, monitors are those of the stored state until `change_spec` is called with the
        specification wanted, which the shard does once it has replayed what was consumed before the takeover.
    shard
        Partition number.
    datasets
        The datasets homed at this shard, or their names; their order fixes the dataset numbers of batches.
    key
        32 secret bytes from which query noise is derived; durable before the first query.
    entropy
        Returns so many fresh random bytes, from the operating system.
    bounds
        How much one step does and one commit holds.
    query_noise
        Source of query noise in place of the keyed one: for proofs, which hand in noise of their own.
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
        self._announcer = self.accounts.announcer
        self._noise: QueryNoise = KeyedSampler(key) if query_noise is None else query_noise
        self._old_specs: set[str] = set()
        self._incompatible: list[tuple[int, list[str]]] = []
        self._restated: list[str] = []
        self._undeclared: list[_Undeclared] = []
        self._retired: dict[str, bytes] = {}
        self._declared: dict[str, Declared] = {}
        self.configuration = (0, "")
        self._taken: list[tuple[str, int, int]] = []
        self._bounds = bounds
        self._projection = Projection(self.datasets)
        self._unprojected: set[int] = set()
        self._shown_anew = False
        self._watermarks: dict[str, int] = {}
        self._reopened: list[str] = []
        if spec.carried is not None:
            self._watermarks |= spec.carried.watermarks
            for topic, declared in spec.carried.topics.items():
                self._keep_declared(topic, declared)
        for monitor in spec.monitors:
            self._add(monitor)

    # -- taking over -----------------------------------------------------------------------------------------

    def load(self, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
        """Take over as `loading` and `close_incompatible` do, at once."""
        for _ in self.loading(records, progress):
            pass
        self.check_datasets(may_retire=False)
        for _ in self.close_incompatible():
            pass

    def loading(self, records: Mapping[bytes, bytes], progress: bytes | None) -> Iterator[None]:
        """Take over from the live state records; an empty mapping and no progress is the very first start.

        This is done in slices of a few milliseconds. The engine is of use once no slice is left, `check_datasets` has
        accepted what is declared, and `close_incompatible` has closed what this release cannot go on with.

        Parameters
        ----------
        records, progress
            As they were committed.

        Raises
        ------
        UnreadableState
            A record cannot be decoded, or an open run's specification is missing.
        ConfigError
            A dataset's declaration is not the journaled one.
        """
        if progress is None:
            return
        found = yield from _by_kind(records)
        plans = self._load_specs(found["m"], found["h"], found["t"])
        stored = from_bytes(ProgressRecord, progress, key="meta")
        if stored.carried != self.spec.carried_digest:
            raise ConfigError([Problem(0, "carried_over", _OTHER_FILE)])
        self._announcer.sequence = stored.sequence
        self._announcer.shard_events = stored.shard_events
        self.configuration = stored.configuration
        for name, (offset, row, clock_ms) in stored.positions.items():
            if name in self.runners:
                runner = self.runners[name]
                runner.offset, runner.row, runner.clock_ms, runner.started = offset, row, clock_ms, True
        self._retired = dict(found["r"])
        self._watermarks |= stored.watermarks
        yield from self._load_datasets(found, plans)
        yield from self._load_queues(found["w"])
        for count, dataset in enumerate(self.datasets if self._watermarks else (), start=1):
            if not dataset.pattern and is_over(dataset.name, self._watermarks):
                self._reopened.append(dataset.name)
            if count % KEYS_AT_ONCE == 0:
                yield

    def begin_state(self, partitions: int, cluster: str) -> None:
        """Announce that the shard's state begins here: the first event of its partition.

        ``partitions`` is the number of shards, which fixes where each dataset is at home; ``cluster`` the cluster's id,
        by which a mirror of the partition is told from the original.
        """
        detail: dict[str, object] = {"partitions": partitions, "cluster": cluster}
        if (carried := self.spec.carried) is not None:
            detail |= {"carried_from": carried.application, "carried_digest": self.spec.carried_digest}
        self._announcer.shard_event(EventType.STATE_BEGUN, reason="first-start", detail=detail)
        for topic, declared in self._declared.items():
            self._announcer.topic_declared(topic, declared)

    def adopt(self, version: tuple[int, str]) -> None:
        """Take note, and announce, that the specification in use is this version: its number and digest."""
        if version == self.configuration:
            return
        self.configuration = version
        detail = {"number": version[0], "digest": version[1]}
        self._announcer.shard_event(EventType.CONFIGURATION_ADOPTED, reason="configuration", detail=detail)

    def _load_datasets(self, found: Mapping[str, Named], plans: dict[str, Plan]) -> Iterator[None]:
        stale = {stored for stored, plan in plans.items() if plan.hash != stored}
        mutes = yield from _parts("q", found["q"])
        numbers: list[int] = []
        size = 0
        for name, data in found["d"]:
            muted = mutes.pop(name, _NO_PARTS)
            if name in self.number:
                numbers.append(self._load_dataset(name, data, plans, stale, muted))
            else:
                over = is_over(name, self._watermarks)
                self._undeclared.append(_undeclared(data, plans, muted, f"d/{name}", is_over=over))
            size += len(data)
            if muted:
                size += _size(muted)
            if size > LOADED_AT_ONCE:
                self._take_over(numbers)
                self._projection.update(numbers, self.accounts.held, self.runners)
                numbers, size = [], 0
                yield
        self._take_over(numbers)
        self._projection.update(numbers, self.accounts.held, self.runners)
        for number, monitors in self._incompatible:
            for monitor in monitors:
                if monitor in self.runners:
                    self.runners[monitor].status[number] = Status.SKIP
        for dataset in mutes:
            raise UnreadableState(f"the state holds mutes q/{dataset}/* without a record d/{dataset}")

    def _load_queues(self, named: Named) -> Iterator[None]:
        size = 0
        for number, data in _queue_records(named):
            self.accounts.queues.load(number, data, self._new_queue)
            size += len(data)
            if size > LOADED_AT_ONCE:
                size = 0
                yield
        for count, queue in enumerate(self.accounts.queues.loaded(), start=1):
            number = self.number[queue.dataset]
            self.runners[queue.monitor].take_back(number, queue)
            if number in self.accounts.held:
                self._unprojected.add(number)
            if count % QUEUES_AT_ONCE == 0:
                yield

    def _new_queue(self, monitor: str, dataset: str) -> Queue | None:
        """Return an empty queue, to be loaded; None where the shard has no such monitor or dataset."""
        if monitor not in self.runners or dataset not in self.number:
            return None
        return self.runners[monitor].new_queue(self.number[dataset], dataset)

    def _load_specs(self, monitors: Named, older: Named, topics: Named) -> dict[str, Plan]:
        """Rebuild the monitors of the state; return every known plan by its stored hash."""
        plans: dict[str, Plan] = {}
        current: dict[str, MonitorSpec] = {}
        for kind, named in (("m", monitors), ("h", older)):
            for rest, data in named:
                record = from_bytes(SpecRecord, data, key=f"{kind}/{rest}")
                try:
                    spec = MonitorSpec.from_json(record.spec)
                except ValueError:
                    message = (
                        f"state record {kind}/{rest} holds a specification that this release cannot read; "
                        "use the release that wrote it"
                    )
                    raise UnreadableState(message) from None
                plans[record.hash] = plan = Plan.of(spec)
                self.accounts.plans[plan.hash] = plan
                if kind == "m":
                    current[rest] = spec
                    if plan.hash != record.hash:
                        self._restated.append(rest)
        self._old_specs.update(rest for rest, _ in older)
        if current:
            for name in self.runners:
                self._projection.remove(name)
            self.runners = {}
            self.accounts.records = {}
            self._declared = {rest: _read_topic(data, f"t/{rest}") for rest, data in topics}
            # Runners act in this order: it must not depend on how the state topic was compacted.
            order = [monitor.name for monitor in self.spec.monitors if monitor.name in current]
            for name in [*order, *sorted(current.keys() - set(order))]:
                self._add(current[name], journal=False)
        return plans

    def _load_dataset(
        self, name: str, data: bytes, plans: dict[str, Plan], stale: set[str], mutes: Mapping[str, Parts]
    ) -> int:
        """Take over the books of a dataset, with the records of its mutes by monitor; return its number.

        This release would not recompute the noise of runs under ``stale`` hashes: `close_incompatible` closes them.
        """
        number = self.number[name]
        record = read_dataset(data, f"d/{name}")
        if stale:
            lost = [
                monitor
                for monitor, slot in record.slots.items()
                if slot.spec_hash in stale and slot.state is _RUNNING
            ]
            if lost:
                self._incompatible.append((number, lost))
        books = Books.from_record(self.datasets[number], record, plans, mutes)
        self.accounts.held[number] = books
        return number

    def check_datasets(self, *, may_retire: bool) -> None:
        """Refuse datasets whose ledger was ended before, and those that are declared no longer.

        Parameters
        ----------
        may_retire
            Whether `retire` may end those that are declared no longer: the configuration is one that was applied.

        Raises
        ------
        ConfigError
            The declarations do not fit the stored ledgers.
        """
        again = [name for name in self._retired if name in self.number]
        if again:
            message = (
                f"dataset {again[0]} was retired at shard {self.shard}: its name cannot be used again. Declare another "
                "one; only a successor of the application can go on with the ledger"
            )
            raise ConfigError([Problem(0, "datasets", message)])
        if self._reopened:
            message = (
                f"dataset {self._reopened[0]} has the name of a period that a generator made and that is over at shard "
                f"{self.shard}: its name cannot be used again. Declare another one"
            )
            raise ConfigError([Problem(0, "datasets", message)])
        undeclared = [one.books.name for one in self._undeclared if not one.is_over]
        if undeclared and not may_retire:
            name = undeclared[0]
            message = (
                f"the state holds dataset {name}, which the configuration does not declare for shard {self.shard}; "
                "declare it again, or apply a configuration without it, which retires it"
            )
            raise ConfigError([Problem(0, "datasets", message)])

    def close_undeclared(self) -> Iterator[None]:
        """Close the open runs of datasets that are declared no longer at full price, and of periods that are over.

        This comes before any query is read again: those of these datasets are passed over from now on, and an owner
        before may have tested them and lost the outcomes; but none of a period that was over before what it replayed.

        Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
        """
        for books, _, over in self._undeclared:
            for name, slot in books.slots.items():
                if slot.state is _RUNNING:
                    slot.signal(Signal.ENDED)
                    lost = 0
                    if over:
                        books.end_run(slot)
                    else:
                        lost = books.end_run_at_full_price(slot)
                    reason = PERIOD_OVER if over else "retired"
                    self._announcer.announce(
                        EventType.RUN_CLOSED, books, monitor=name, slot=slot, reason=reason, charge=lost
                    )
                    self.accounts.records |= books.save()
            yield

    def retire(self) -> Iterator[None]:
        """End the ledgers of datasets that are declared no longer; `close_undeclared` has closed their runs.

        What stays is a record with ledger and name, which refuses a second ledger; of a period that is over, nothing:
        the generator's watermark refuses that. To be called once the configuration that does not declare them is
        adopted: an older one, which does, must not find them gone.

        Yields as `close_undeclared`.
        """
        while self._undeclared:
            books, keys, over = self._undeclared.pop()
            detail = {"unit": books.unit}
            reason = PERIOD_OVER if over else "configuration"
            self._announcer.announce(EventType.RETIRED, books, reason=reason, detail=detail)
            self.accounts.records.update(dict.fromkeys(keys))
            if not over:
                self._keep_retired(books)
            yield
        yield from self._forget_old_specs()

    def pass_periods(self, ends: Mapping[str, int], now_ms: int) -> None:
        """Take note of the periods that are over: the next engine does not know their datasets any more.

        A period is over once every monitor that runs on the generator's datasets has come beyond its end and lateness,
        by the records' timestamps; with no such monitor, never. To be called after the replay.

        Parameters
        ----------
        ends
            The end of each query topic: for a monitor that has read all of a topic, time passes without records.
        now_ms
            What time it is at least for these.
        """
        for pattern, (numbers, lateness_ms) in self.datasets.patterns.items():
            clocks = []
            for runner in self.runners.values():
                if runner.covers[numbers].any():
                    if runner.started and runner.offset >= ends.get(runner.spec.topic, runner.offset + 1):
                        runner.clock_ms = max(runner.clock_ms, now_ms)
                    clocks.append(runner.clock_ms)
            if clocks:
                over = last_end(pattern, min(clocks) - lateness_ms)
                if over > self._watermarks.get(pattern, 0):
                    self._watermarks[pattern] = over

    def _keep_retired(self, books: Books) -> None:
        data = self._retired[books.name] = books.to_retired()
        self.accounts.records[f"r/{books.name}".encode()] = data

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
        for name in self._restated:
            self._journal_spec(self.runners[name].plan, f"m/{name}")
        self._restated = []

    def _take_over(self, numbers: Sequence[int]) -> None:
        """Let the monitors go on where the slots of some datasets stand."""
        held: dict[str, tuple[list[int], list[Slot]]] = {}
        for number in numbers:
            for name, slot in self.accounts.held[number].slots.items():
                found = held.get(name)
                if found is None:
                    found = held[name] = [], []
                found[0].append(number)
                found[1].append(slot)
        for name, (datasets, slots) in held.items():
            runner = self.runners.get(name)
            if runner is not None:
                runner.take_over(datasets, slots)

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
        return Step(done=whole and done, durable_first=not done, urgent=bool(self._announcer.events))

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
            size, start + max(1, self._bounds.cost // max(1, sum(runner.row_cost for runner in runners)))
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
        runners = [runner for runner in runners if (runner.status[rows] == Status.WAITING).any()]
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
                opens[first] += runner.status[datasets] == Status.WAITING
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
                if other.spec.topic == batch.topic and other.covers[dataset] and only in (None, other.name)
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
        self._unprojected.update(
            number
            for name in accounts.queues.changed_datasets()
            if (number := self.number.get(name)) is not None
        )
        accounts.records |= accounts.queues.save(
            {name: Position(runner.offset, runner.clock_ms) for name, runner in self.runners.items()}
        )
        commit = Commit(
            progress=self._progress(),
            events=self._announcer.take(),
            rejects=accounts.rejects,
            views=self._changed_views(),
            totals=self._project(),
            tested={name: runner.tested for name, runner in self.runners.items() if runner.tested},
            skipped={
                (name, reason): count
                for name, runner in self.runners.items()
                for reason, count in runner.skipped.items()
            },
        )
        self._taken += accounts.opened
        commit.records = accounts.take_records()
        for runner in self.runners.values():
            runner.tested, runner.skipped = 0, {}
        return commit

    def committed(self) -> None:
        """Tell that all commits taken are durable: their new thresholds may be compared from now on."""
        pending, testable = Status.PENDING, Status.TESTABLE  # looking members up takes long
        for name, number, run in self._taken:
            runner = self.runners.get(name)
            if (
                runner is not None
                and runner.status[number] == pending
                and self.accounts.slot(name, number).run == run
            ):
                runner.status[number] = testable
        self._taken = []

    def views(self) -> list[DatasetView]:
        """Return the released state of all datasets as it stands after `load`."""
        names = list(self.runners)
        return [self._view(number, names) for number in range(len(self.datasets))]

    def shown(self) -> list[DatasetView]:
        """Return the released state, as it stands after `load`, of the datasets that are shown one by one."""
        self._shown_anew = False
        names = list(self.runners)
        return [self._view(number, names) for number in np.flatnonzero(self.datasets.shown).tolist()]

    def project(self) -> Iterator[None]:
        """Sum up what changed, in slices: `totals` are those of the state when no slice is left."""
        numbers = sorted(self._unprojected)
        for at in range(0, len(numbers), PROJECTED_AT_ONCE):
            if at:
                yield
            part = numbers[at : at + PROJECTED_AT_ONCE]
            self._projection.update(part, self.accounts.held, self.runners)
            self._unprojected.difference_update(part)

    def totals(self) -> Totals:
        """Return sums over all datasets of the shard, as of the last commit taken."""
        return self._projection.totals()

    def _project(self) -> Totals:
        """Sum up what changed since the last commit."""
        self._unprojected |= self.accounts.dirty
        for _ in self.project():
            pass
        return self._projection.totals()

    def _changed_views(self) -> list[DatasetView]:
        """Return the views of what changed; where monitors changed, of every dataset shown."""
        if self._shown_anew:
            return self.shown()
        names = list(self.runners)
        return [
            self._view(number, names) for number in sorted(self.accounts.dirty) if self.datasets.shown[number]
        ]

    def delete(self, keys: Iterable[bytes]) -> None:
        """Delete records with the next commit of which nothing was loaded."""
        self.accounts.records.update(dict.fromkeys(keys))

    def discard(self) -> list[Books]:
        """Return the ledgers, for the caller to free little by little: they hold most objects."""
        self._undeclared = []
        books, self.accounts.held = list(self.accounts.held.values()), {}
        return books

    def _progress(self) -> bytes:
        positions = {
            name: (runner.offset, runner.row, runner.clock_ms)
            for name, runner in self.runners.items()
            if runner.started
        }
        return to_bytes(
            ProgressRecord(
                VERSION,
                self._announcer.sequence,
                self._announcer.shard_events,
                positions,
                self.spec.carried_digest,
                self.configuration,
                self._watermarks,
            )
        )

    def _view(self, number: int, names: list[str]) -> DatasetView:
        books = self.accounts.held.get(number) or Books(self.datasets[number])
        covering = [name for name in names if self.runners[name].covers[number]]
        queued = {name: self.runners[name].queued(number) for name in covering}
        top_only = {
            name
            for name, slot in books.slots.items()
            if name in queued and self.runners[name].top_branch_only(number, slot)
        }
        return books.view(self.shard, covering, queued, top_only)

    # -- at a barrier, on command (see operations.py) -----------------------------------------------------------

    def names_to_close(self) -> Iterator[str]:
        """Return the names of all datasets that may have a ledger, retired ones included."""
        return chain(self.number, (name for name in self._retired if name not in self.number))

    def close_ledger(self, name: str) -> bool:
        """Close a dataset for ever, and announce its balance; return whether it has a ledger.

        Its open runs end: what they did not spend is released (pure only).
        """
        retired = self._retired.get(name)
        if retired is not None:
            books = Books.from_retired(retired, f"r/{name}")
            self.accounts.announce_balance(books)
            self._keep_retired(books)
            return True
        dataset = self.number[name]
        if dataset not in self.accounts.held:
            return False
        books = self.accounts.books(dataset)
        for monitor, slot in books.slots.items():
            if slot.state is _RUNNING:
                self.runners[monitor].end_run(dataset, "application-closed")
        self.accounts.announce_balance(books)
        return True

    def announce_closed(self, successor: str, balances: int) -> None:
        """Announce that nothing of the shard is tested or charged any more; so many balances came before."""
        self._announcer.shard_event(
            EventType.APPLICATION_CLOSED,
            reason="command",
            detail={"successor": successor, "balances": balances},
        )

    def close_lost(self, topic: str) -> Iterator[None]:
        """Close the open runs of a topic whose records are lost at full price, and drop what waits.

        Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
        """
        for name, runner in self.runners.items():
            if runner.spec.topic != topic:
                continue
            held = [number for number, books in self.accounts.held.items() if name in books.slots]
            for count, number in enumerate(held, start=1):
                runner.forget_pending(number)
                self.close_at_full_price(name, number, "loss")
                if self.full or count % SLOTS_AT_ONCE == 0:
                    yield
            yield

    def pass_over(self, topic: str, offset: int, end: int | None = None) -> None:
        """Go on at ``offset`` although records before it are gone; `close_lost` has closed the open runs of the topic.

        A monitor that stands behind ``end``, where the topic ended, was in a topic that is no longer: it goes on at
        ``offset``, too.
        """
        for runner in self.runners.values():
            if runner.spec.topic != topic:
                continue
            kept = offset <= runner.offset and (end is None or runner.offset <= end)
            if not kept or runner.offset == end:  # the record is gone of which it may have tested rows
                runner.row = 0
            runner.offset, runner.started = runner.offset if kept else offset, True
        self._announcer.shard_event(
            EventType.LOSS_ACCEPTED, reason="command", detail={"topic": topic, "offset": offset}
        )

    def refuse(self, topic: str, offset: int, reason: str) -> None:
        """Refuse a record that is no query."""
        self.accounts.rejects.append((topic, offset, reason))

    def reply(self, command: Command, *, accepted: bool, message: str) -> None:
        """Acknowledge a command on the alert topic."""
        self.accounts.reply(command, accepted=accepted, message=message)

    def close_at_full_price(self, monitor: str, number: int, reason: str) -> None:
        """Close an open run whose outcomes cannot be computed again: all that it reserved counts as spent."""
        if self.accounts.slot(monitor, number).state is _RUNNING:
            slot = self.accounts.end_run_at_full_price(monitor, number, reason)
            if monitor in self.runners:
                self.runners[monitor].run_ended(number, slot)

    # -- specifications --------------------------------------------------------------------------------------

    def change_spec(self, spec: ApplicationSpec, unread: Container[str] = ()) -> None:
        """Go on with another specification as `check_spec`, `close_removed` and `changing_spec` do, at once.

        Raises
        ------
        ConfigError
            As `check_spec`; nothing was changed.
        """
        self.check_spec(spec)
        for _ in self.close_removed(spec, unread):
            pass
        for _ in self.changing_spec(spec):
            pass

    def changing_spec(self, spec: ApplicationSpec) -> Iterator[None]:
        """Go on with another specification at a barrier; nothing happens where it is the one in use.

        Thresholds, mutes and pace hold from now on; what concerns noise and price from the next run on. The engine is
        of use, and may be committed, once no slice is left. `check_spec` has accepted the specification, and
        `close_removed` has closed what it has no place for.
        """
        wanted = {monitor.name: monitor for monitor in spec.monitors}
        for name in [name for name in self.runners if name not in wanted]:
            self._remove(name)
            yield
        changed = False
        for name, monitor in wanted.items():
            if name not in self.runners:
                yield from self._take_back(self._add(monitor))
                self._announcer.spec_changed(name, "added", monitor.hash(), [])
                yield
            elif self.runners[name].spec != monitor:
                changed = True
                yield from self._change(self.runners[name], monitor)
        if changed:
            yield from self._forget_old_specs()
        self.spec = spec
        yield from self.project()

    def check_spec(self, spec: ApplicationSpec) -> None:
        """Refuse another specification that cannot be gone on with; changes nothing.

        Raises
        ------
        ConfigError
            The change needs a new application or a restart.
        """
        refusals = []
        if spec.carried_digest != self.spec.carried_digest:
            refusals.append(Problem(0, "carried_over", _OTHER_FILE))
        for monitor in spec.monitors:
            runner = self.runners.get(monitor.name)
            if runner is not None:
                refusals += changes_refused(runner.spec, monitor)
            elif monitor.topic in self._declared:
                refusals += declaration_refused(self._declared[monitor.topic], monitor)
        for topic, known in self._declared.items():
            readers = [monitor for monitor in spec.monitors if monitor.topic == topic]
            together = reduce(Declared.and_by, readers, known)
            if together != known:  # the same answers: who declared less would test them with too little noise
                refusals += [
                    problem for monitor in readers for problem in declaration_refused(together, monitor)
                ]
        if refusals:
            raise ConfigError(list(dict.fromkeys(refusals)))

    def _add(self, spec: MonitorSpec, *, journal: bool = True) -> Runner:
        runner = _RUNNERS[type(spec.append)](self.accounts, self._noise, spec, self.datasets)
        offset = self.next_offset(spec.topic)
        if offset is not None:
            runner.offset, runner.started = offset, True
        self.runners[spec.name] = runner
        self.accounts.plans[runner.plan.hash] = runner.plan
        self._projection.cover(spec.name, runner.covers)
        self._shown_anew = True
        if journal:
            self._journal_spec(runner.plan, f"m/{spec.name}")
        self._declare(spec)
        return runner

    def _take_back(self, runner: Runner) -> Iterator[None]:
        """Let a monitor that was added go on where one of its name stood before."""
        numbers = list(self.accounts.held)
        for at in range(0, len(numbers), SLOTS_AT_ONCE):
            part = numbers[at : at + SLOTS_AT_ONCE]
            held = [number for number in part if runner.name in self.accounts.held[number].slots]
            if held:
                runner.take_over(held, [self.accounts.held[number].slots[runner.name] for number in held])
                self._unprojected.update(held)
            yield

    def _covers(self, spec: MonitorSpec) -> NDArray[np.bool_]:
        return self.datasets.covers(spec)

    def _change(self, runner: Runner, spec: MonitorSpec) -> Iterator[None]:
        old = runner.spec
        self._journal_spec(runner.plan, f"h/{runner.plan.hash}")
        self._old_specs.add(runner.plan.hash)
        plan = Plan.of(spec)
        self.accounts.plans[plan.hash] = plan
        running = self._running(runner)
        runner.change(plan, running)
        yield
        yield from self._cover(runner, self._covers(spec))
        for count, number in enumerate(np.flatnonzero(running).tolist(), start=1):
            runner.schedule(number, self.accounts.slot(runner.name, number))
            if count % SLOTS_AT_ONCE == 0:
                yield
        self._journal_spec(plan, f"m/{spec.name}")
        self._declare(spec)
        self._announcer.spec_changed(spec.name, "changed", plan.hash, sorted(changed_fields(old, spec)))
        yield

    def _running(self, runner: Runner) -> NDArray[np.bool_]:
        """Return on which datasets a run of a monitor is open, paused or not."""
        running = runner.status >= Status.PENDING
        for number in np.flatnonzero((runner.status == Status.SKIP) & runner.covers).tolist():
            running[number] = self.accounts.slot(runner.name, number).state is _RUNNING
        return running

    def close_removed(self, spec: ApplicationSpec, unread: Container[str] = ()) -> Iterator[None]:
        """Close the open runs that another specification has no place for, and drop what waits there.

        Those of a monitor that declares a larger sensitivity, or is no longer monotonic, are among them: they would
        test new answers with the noise of the old declaration.

        Of the topics ``unread``, which were not read again since the takeover, an owner before may have tested queries
        and lost the outcomes: runs of a monitor that goes there close at full price.

        Yields after a slice of work; where the next commit is full then, the caller commits before it goes on.
        """
        wanted = {monitor.name: monitor for monitor in spec.monitors}
        for name, runner in self.runners.items():
            monitor = wanted.get(name)
            raised = monitor is not None and Declared.by(runner.spec).raised(monitor)
            lost = (monitor is None or raised) and runner.spec.topic in unread
            if monitor is None or raised:
                gone = forgotten = runner.covers
            else:
                gone = runner.covers & ~self._covers(monitor)
                # What waits was measured on the lattice of the old specification.
                forgotten = gone if Plan.of(monitor).grid == runner.plan.grid else runner.covers
            for count, number in enumerate(np.flatnonzero(forgotten).tolist(), start=1):
                runner.forget_pending(number)
                if gone[number] and self.accounts.slot(runner.name, number).state is _RUNNING:
                    if lost:
                        self.close_at_full_price(name, number, "unread")
                    else:
                        runner.end_run(number, "sensitivity" if raised else "removed")
                if self.full or count % SLOTS_AT_ONCE == 0:
                    yield
            yield

    def _cover(self, runner: Runner, covers: NDArray[np.bool_]) -> Iterator[None]:
        """Let a monitor run on other datasets than before."""
        if not np.array_equal(runner.covers, covers):
            self._projection.cover(runner.name, covers)
            self._unprojected |= self.accounts.held.keys()
            self._shown_anew = True
        runner.status[runner.covers & ~covers] = Status.SKIP
        for count, number in enumerate(np.flatnonzero(covers & ~runner.covers).tolist(), start=1):
            runner.status[number] = status_of(self.accounts.slot(runner.name, number))
            if count % SLOTS_AT_ONCE == 0:
                yield
        runner.covers, runner.covers_all = covers, bool(covers.all())

    def _remove(self, name: str) -> None:
        self.runners.pop(name).drop_all()
        self._projection.remove(name)
        self._shown_anew = True
        self.accounts.records[f"m/{name}".encode()] = None
        self._announcer.spec_changed(name, "removed", "", [])

    def _forget_old_specs(self) -> Iterator[None]:
        """Delete the stored specifications under which no run was opened that still matters."""
        used: set[str] = set()
        size = 0
        for books in chain(self.accounts.held.values(), (one.books for one in self._undeclared)):
            used.update(slot.spec_hash for slot in books.slots.values())
            size += len(books.slots)
            if size > SLOTS_AT_ONCE:
                size = 0
                yield
        for old in sorted(self._old_specs - used):
            self.accounts.records[f"h/{old}".encode()] = None
        self._old_specs &= used

    def _declare(self, spec: MonitorSpec) -> None:
        """Keep what a monitor declares about its topic, for ever."""
        known = self._declared.get(spec.topic)
        declared = Declared.by(spec) if known is None else known.and_by(spec)
        if declared != known:
            self._keep_declared(spec.topic, declared)
            if self._announcer.sequence:  # else the event that begins the state comes first
                self._announcer.topic_declared(spec.topic, declared)

    def _keep_declared(self, topic: str, declared: Declared) -> None:
        self._declared[topic] = declared
        record = TopicRecord(VERSION, str(declared.sensitivity), declared.general)
        self.accounts.records[f"t/{topic}".encode()] = to_bytes(record)

    def _journal_spec(self, plan: Plan, key: str) -> None:
        self.accounts.records[key.encode()] = to_bytes(SpecRecord(VERSION, plan.hash, plan.spec.to_json()))


class _Undeclared(NamedTuple):
    """A stored dataset that is declared no longer, the keys of its state records, and whether its period is over."""

    books: Books
    keys: list[bytes]
    is_over: bool


def gone(spec: ApplicationSpec, records: Iterable[bytes], progress: bytes | None) -> Gone:
    """Return which datasets never come back, by what was carried over and the keys and progress of a state."""
    watermarks = {} if spec.carried is None else dict(spec.carried.watermarks)
    if progress is not None:
        watermarks |= from_bytes(ProgressRecord, progress, key="meta").watermarks
    return Gone(watermarks, frozenset(key[2:].decode() for key in records if key.startswith(b"r/")))


def _undeclared(
    data: bytes, plans: dict[str, Plan], mutes: Mapping[str, Parts], key: str, *, is_over: bool
) -> _Undeclared:
    record = read_dataset(data, key)
    spec = stored_spec(record, Ledger.from_bytes(record.ledger))
    parts = [f"q/{record.name}/{name}/{number}" for name, held in mutes.items() for number, _ in held]
    keys = [one.encode() for one in (key, *parts)]
    return _Undeclared(Books.from_record(spec, record, plans, mutes), keys, is_over)


def _by_kind(records: Mapping[bytes, bytes]) -> Generator[None, None, Mapping[str, Named]]:
    """Return the state records by kind, each with the rest of its key; yields now and then."""
    found: dict[str, Named] = defaultdict(list)
    for count, (key, data) in enumerate(records.items(), start=1):
        kind, _, rest = key.decode().partition("/")
        found[kind].append((rest, data))
        if count % KEYS_AT_ONCE == 0:
            yield
    return found


def _parts(kind: str, named: Named) -> Generator[None, None, dict[str, dict[str, Parts]]]:
    """Return numbered state records of a kind by dataset and monitor; yields now and then."""
    parts: dict[str, dict[str, Parts]] = {}
    for count, (rest, data) in enumerate(named, start=1):
        found = _PART_KEY.fullmatch(rest)
        if found is None:
            message = f"state record {f'{kind}/{rest}'.encode()!r} has a key that no release writes"
            raise UnreadableState(message)
        dataset, monitor, number = found.groups()
        parts.setdefault(dataset, {}).setdefault(monitor, []).append((int(number), data))
        if count % KEYS_AT_ONCE == 0:
            yield
    return parts


def _size(by_monitor: Mapping[str, Parts]) -> int:
    return sum(len(data) for parts in by_monitor.values() for _, data in parts)


def _queue_records(named: Named) -> Parts:
    """Return the records of the queue journal, in order of their numbers."""
    for rest, _ in named:
        if _QUEUE_KEY.fullmatch(rest) is None:
            raise UnreadableState(f"state record {f'w/{rest}'.encode()!r} has a key that no release writes")
    return sorted((int(rest), data) for rest, data in named)


_RUNNERS: Mapping[type, type[Runner]] = {type(None): Runner, Sweep: SweepRunner, Retry: RetryRunner}


def _read_topic(data: bytes, key: str) -> Declared:
    record = from_bytes(TopicRecord, data, key=key)
    try:
        return Declared(Fraction(record.sensitivity), record.general)
    except (ValueError, ZeroDivisionError):
        message = (
            f"state record {key} holds a sensitivity that is no number; the shard stops rather than guess"
        )
        raise UnreadableState(message) from None
