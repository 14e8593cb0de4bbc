"""The engine: all monitors of a shard. It tests batches of queries and prepares commits; it does no I/O.

The privacy guarantee depends on this order:

1. `Engine.step` tests a bounded number of queries. It asks for a commit (``durable_first``) if a run's threshold noise
   is not durable yet, or if the commit is full.
2. `Engine.take_commit` returns everything that has to become durable, including released events.
3. The caller writes the commit in a transaction, then calls `Engine.committed`. It may publish the events with the
   *next* transaction at the earliest.
4. If a transaction fails, the caller discards the engine and loads the stored state into a new one. There the same
   queries get the same noise, so the same outcomes are computed again.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stream_svt.columns.query_batch import DECILES, QueryBatch
from stream_svt.columns.strings import KeyedHash
from stream_svt.mechanisms.sampler import KeyedWords, Sampler, WordSource
from stream_svt.monitor.deciles import NoisyDeciles
from stream_svt.monitor.projection import Projection
from stream_svt.monitor.released import EventType
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.accounts import BOUNDS, Accounts, Bounds, Commit, DatasetAccount
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.runs import Status
from stream_svt.monitor.state.shard_datasets import ShardDatasets
from stream_svt.monitor.state.snapshot import VERSION, ProgressRecord, SpecRecord, TopicRecord, to_bytes
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.carried import MonitorPosition
from stream_svt.settings.monitors import Declared, MonitorSpec
from stream_svt.settings.periods import period_at

OTHER_FILE = (
    "the application began with another file, or without one, so that the amounts spent before would differ. Name the "
    "file that it began with"
)


class Step(NamedTuple):
    """Result of `Engine.step`: call it again unless ``done``; if ``durable_first``, after a commit only.

    ``urgent``: the next commit charges something or releases events, so do not delay it.
    """

    done: bool
    durable_first: bool
    urgent: bool


class Engine:
    """Monitors of one shard. After a state is loaded (`takeover`), they are the state's until `change_spec`.

    Args:
        datasets: Datasets of the shard, or their names; the dataset numbers of batches follow their order.
        key: 32 secret bytes from which query noise and hashes of series are derived; durable before the first query.
        entropy: Returns as many fresh random bytes as its argument says, from the operating system.
        words: Source of the uniforms of query noise instead of the keyed one, for proofs.

    Attributes:
        runners: The monitors in use, by name, in the order in which they read a batch.
        declared: Most cautious declaration ever made about a query topic or a question's answers, by `declares_about`.
        undeclared: Stored accounts of datasets that are no longer declared.
        deciles: What releases deciles with noise.
        retired, watermarks: Records of retired datasets by name; the end of the last past period by pattern.
        topic_ids: Ids of the topics of the positions, if known.
        carried_mutes: Number of lines with muted series of an earlier application that were taken over.
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
        words: WordSource | None = None,
    ) -> None:
        self.spec = spec
        self.shard = shard
        known = datasets if isinstance(datasets, ShardDatasets) else ShardDatasets.of_names(spec, datasets)
        self.datasets = known
        self.number = known.number
        self.runners: dict[str, Runner] = {}
        hash_key = hmac.digest(key, b"stream-svt hashes of series", "sha256")
        self.accounts = Accounts(spec.application, shard, known, entropy, KeyedHash(hash_key), bounds)
        self.accounts.sources = spec.sources
        self.accounts.carried_from = spec.carried.application
        self.declared: dict[str, Declared] = {}
        self.configuration = (0, "")
        self.projection = Projection(self.accounts, self.runners)
        self.undeclared: list[DatasetAccount] = []
        self.retired: dict[str, bytes] = {}
        self.watermarks = dict(spec.carried.watermarks)
        self.topic_ids: dict[str, str] = {}
        self.carried_mutes = 0
        self._sampler = Sampler(words or KeyedWords(key))
        self.deciles = NoisyDeciles(key, self.accounts, self._sampler)
        self._bounds = bounds
        self._taken: list[tuple[str, int, int]] = []
        for topic, declared in spec.carried.topics.items():
            self._declare(topic, declared)
        for monitor in spec.monitors:
            self.add(monitor)

    def begin_state(self, partitions: int, partitioner: str, cluster: str) -> None:
        """Announce that the shard's state begins: the first event of its partition.

        Partitions and partitioner determine each dataset's shard; the cluster's id distinguishes a mirror from the
        original. On the cluster of an earlier application, monitors continue where the monitors of the same name
        stopped.
        """
        detail: dict[str, Any] = {"partitions": partitions, "partitioner": partitioner, "cluster": cluster}
        if before := self.spec.carried.application:
            detail |= {"carried_from": before, "carried_digest": self.spec.carried.digest}
        self.accounts.announce(EventType.STATE_BEGUN, None, "first-start", **detail)
        for topic, declared in self.declared.items():
            self._declare(topic, declared)
        if cluster == self.spec.carried.cluster:
            self.topic_ids |= self.spec.carried.topic_ids
            self._continue(self.spec.carried.positions.get(self.shard, {}))

    def _continue(self, positions: Mapping[str, MonitorPosition]) -> None:
        """Continue where an earlier application stopped; a new monitor begins at its topic's lowest offset."""
        for name, runner in self.runners.items():
            known = positions.get(name)
            if known is not None and known.topic == runner.spec.topic:
                runner.offset, runner.row, runner.started = known.offset, known.row, True
                runner.clock_ms = known.clock_ms
        for topic in self.topics():
            offsets = [known.offset for known in positions.values() if known.topic == topic]
            if offsets:
                self.begin(topic, min(offsets))

    def adopt(self, version: tuple[int, str]) -> None:
        """Record and announce the version (number and digest) of the specification in use."""
        if version != self.configuration:
            self.configuration = version
            kind, (number, digest) = EventType.CONFIGURATION_ADOPTED, version
            self.accounts.announce(kind, None, "configuration", number=number, digest=digest)

    def advance_watermarks(self, ends: Mapping[str, int], now_ms: int) -> None:
        """Record the generated periods that are over: the next engine is made without their datasets.

        A period is over once the clock of every monitor on the generator's datasets has passed its end and lateness;
        without such a monitor, never. The clock of a monitor that has read its topic to the end, one of ``ends``, is at
        least ``now_ms``; but that of a source's monitor only follows ticks, however late they are counted. To be called
        after the replay.
        """
        for pattern, (numbers, lateness_ms) in self.datasets.patterns.items():
            clocks = []
            for runner in self.runners.values():
                if runner.runs.covers[numbers].any():
                    is_read = runner.started and runner.offset >= ends.get(
                        runner.spec.topic, runner.offset + 1
                    )
                    if is_read and runner.spec.source is None:
                        runner.clock_ms = max(runner.clock_ms, now_ms)
                    clocks.append(runner.clock_ms)
            if clocks:
                over, _ = period_at(pattern, min(clocks) - lateness_ms)
                if over > self.watermarks.get(pattern, 0):
                    self.watermarks[pattern] = over

    def keep_retired(self, account: DatasetAccount) -> None:
        """Store the final account of a retired dataset."""
        account.run_states = {}
        data = self.retired[account.name] = to_bytes(account)
        self.accounts.next.records[f"r/{account.name}".encode()] = data

    # -- monitors --------------------------------------------------------------------------------------------

    def add(self, spec: MonitorSpec, *, journal: bool = True) -> Runner:
        """Add a monitor; ``journal``: store its specification, because the state lacks it."""
        runner = Runner(self.accounts, self._sampler, spec)
        offset = self.next_offset(spec.topic)
        if offset is not None:
            runner.offset, runner.started = offset, True
        self.runners[spec.name] = runner
        if spec.ends:
            self.runners[spec.ends].runs.pair(runner.runs)
        self.projection.cover(spec.name)
        if journal:
            self.store_plan(runner.runs.plan)
        self.declare(spec)
        return runner

    def store_plan(self, plan: Plan) -> None:
        """Store the specification of a monitor's plan."""
        record = SpecRecord(VERSION, plan.hash, plan.spec.to_json())
        self.accounts.next.records[f"m/{plan.spec.name}".encode()] = to_bytes(record)

    def declare(self, spec: MonitorSpec) -> None:
        """Store and announce what a monitor declares about its answers, if it is more cautious than before."""
        known = self.declared.get(spec.declares_about)
        declared = Declared.by(spec) | known
        if declared != known:
            self._declare(spec.declares_about, declared)

    def _declare(self, topic: str, declared: Declared) -> None:
        self.declared[topic] = declared
        sensitivity, monotonic = str(declared.sensitivity), declared.monotonic
        record = TopicRecord(VERSION, sensitivity, not monotonic)
        self.accounts.next.records[f"t/{topic}".encode()] = to_bytes(record)
        if self.accounts.sequence:  # before the first event, `begin_state` announces it
            what: dict[str, Any] = {"topic": topic, "sensitivity": sensitivity, "monotonic": monotonic}
            self.accounts.announce(EventType.TOPIC_DECLARED, None, "configuration", **what)

    # -- positions -------------------------------------------------------------------------------------------

    def runners_of(self, topic: str) -> list[Runner]:
        """Return the monitors that read a topic."""
        return [runner for runner in self.runners.values() if runner.spec.topic == topic]

    def is_counts(self, topic: str) -> bool:
        """Return whether a topic has counts of a source: its offsets and refused records are shown nowhere."""
        return any(runner.spec.source is not None for runner in self.runners_of(topic))

    def positions(self) -> dict[str, MonitorPosition]:
        """Return the next position of each monitor that has read its topic."""
        started = ((name, one.spec.topic, one) for name, one in self.runners.items() if one.started)
        return {
            name: MonitorPosition(topic, one.offset, one.row, one.clock_ms, self.topic_ids.get(topic, ""))
            for name, topic, one in started
        }

    def next_offset(self, topic: str) -> int | None:
        """Return the offset at which reading of ``topic`` continues; None if it was never read."""
        return min((runner.offset for runner in self.runners_of(topic) if runner.started), default=None)

    def begin(self, topic: str, offset: int) -> None:
        """Set the offset at which the monitors that never read ``topic`` begin."""
        for runner in self.runners_of(topic):
            if not runner.started:
                runner.offset, runner.row, runner.started = offset, 0, True

    def advance(self, topic: str, offset: int) -> bool:
        """Continue at ``offset``, because all records before it were stepped.

        Returns whether a monitor's position has changed: markers, aborted and compacted records take offsets, too.
        """
        behind = [runner for runner in self.runners_of(topic) if runner.started and runner.offset < offset]
        for runner in behind:
            runner.offset, runner.row = offset, 0
        return bool(behind)

    def topics(self) -> list[str]:
        """Return the query topics of the monitors in use."""
        return sorted({runner.spec.topic for runner in self.runners.values()})

    def needs_timestamps(self, topic: str) -> bool:
        """Return whether durations or periods of a monitor depend on the timestamps of the topic's records."""
        timed = self.datasets.periods is not None
        return any(timed or runner.spec.needs_broker_time for runner in self.runners_of(topic))

    # -- batches ---------------------------------------------------------------------------------------------

    def step(self, batch: QueryBatch) -> Step:
        """Test a bounded number of the batch's queries, after the queries that earlier calls tested.

        After ``durable_first`` the caller commits before the next call: an opened run is used only then, and no
        commit becomes too large for a transaction.
        """
        if self.full:
            return Step(done=False, durable_first=True, urgent=True)
        runners = self.runners_of(batch.topic)
        if len(runners) > 1:
            batch.share(runner.runs.plan.grid for runner in runners)
        start, stop, end = self._next_part(batch, runners)
        before = _next_unread(batch, runners) if batch.rejects else batch.end
        if start in batch.requests:
            self.deciles.release(batch, start, self.runners)
        done = _in_turns([runner.advance(batch, stop, end) for runner in runners])
        batch.packed.clear()
        for runner in runners:
            self._refuse_outside(runner, batch)
        # A commit reports the rejects before the position that it stores: these records are not read again.
        advanced, done = done, done and end == batch.end
        after = batch.end if done else _next_unread(batch, runners)
        if not self.is_counts(batch.topic):
            self.accounts.next.rejects.extend(
                (batch.topic, offset, reason) for offset, reason in batch.rejects if before <= offset < after
            )
        return Step(done=done, durable_first=not advanced, urgent=bool(self.accounts.next.events))

    def _next_part(self, batch: QueryBatch, runners: Sequence[Runner]) -> tuple[int, int, int]:
        """Return the first row that a monitor has not read, and the row and offset before which all monitors stop.

        So a commit has a dataset's record once.
        """
        bounds, accounts = self._bounds, self.accounts
        size = len(batch)
        offset, row = min([(runner.offset, runner.row) for runner in runners], default=(batch.end, 0))
        start = batch.index_of(offset, row)
        cost = max(1, sum([runner.append.row_cost for runner in runners]))
        stop = min(size, start + max(1, bounds.cost // cost))
        refused = max(1, bounds.rejects - len(accounts.next.rejects))
        if self.datasets.periods is not None and not self.is_counts(batch.topic):  # each row may be refused
            stop = min(stop, start + refused)
        stop = batch.of_one_measure(start, stop)  # so that a ledger's charges come in the order of records
        stop = _rows_to_open(batch, runners, start, stop, max(1, bounds.runs - len(accounts.next.opened)))
        end = batch.end if stop == size else int(batch.offset[stop])
        later = [rejected for rejected, _ in batch.rejects if rejected >= offset]
        if len(later) > refused and later[refused] < end:
            end = later[refused]
            stop = int(np.searchsorted(batch.offset, end))
        # All monitors read a request for deciles in one step: where one begins, it is not read again.
        if start in batch.requests:
            stop = start + DECILES
            end = batch.end if stop == size else int(batch.offset[stop])
        return start, stop, end

    def _refuse_outside(self, runner: Runner, batch: QueryBatch) -> None:
        """Refuse rows outside their dataset's period, each at the first monitor that reads it."""
        rejects, runner.refused = runner.refused, []
        for row in rejects:
            dataset, only = int(batch.dataset[row]), batch.monitor.get(row)
            first = next(
                other
                for other in self.runners_of(batch.topic)
                if other.runs.covers[dataset] and only in (None, other.name)
            )
            refused = (batch.topic, int(batch.offset[row]), "outside-period")
            if first is runner and refused not in self.accounts.next.rejects[-1:]:
                self.accounts.next.rejects.append(refused)

    # -- commits ---------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the next commit has reached its bounds."""
        return self.accounts.full

    def take_commit(self) -> Commit:
        """Return everything that has to become durable next."""
        accounts = self.accounts
        for queue in accounts.queues.changed:
            self.projection.count_queue(queue)
        views, totals = self.projection.take_views(), self.projection.take()
        commit = accounts.take_commit()
        positions = {name: (one.offset, one.row, one.clock_ms) for name, one in self.positions().items()}
        counters, carried = (accounts.sequence, accounts.shard_events), self.spec.carried.digest
        progress = ProgressRecord(
            VERSION, *counters, positions, carried, self.configuration, self.watermarks, self.carried_mutes
        )
        commit.progress, commit.views, commit.totals = to_bytes(progress), views, totals
        self._taken += commit.opened
        return commit

    def committed(self) -> None:
        """Note that all taken commits are durable: queries may be compared with their new thresholds."""
        for name, number, run in self._taken:
            runner = self.runners.get(name)
            if runner is not None:
                runner.runs.committed(number, run)
        self._taken = []

    def discard(self) -> None:
        """Free the state; the engine cannot be used any more."""
        self.runners.clear()
        self.undeclared.clear()
        self.retired.clear()
        self.accounts.discard()


def _in_turns(steps: Sequence[Generator[int, None, bool]]) -> bool:
    """Carry out steps that yield the row reached; return whether all ended with True.

    The step that is behind the others continues, so that all read the same rows from the processor's cache.
    """
    done, rows = True, dict.fromkeys(steps, 0)
    while rows:
        step = min(rows, key=rows.__getitem__)
        try:
            rows[step] = next(step)
        except StopIteration as ended:
            done &= ended.value
            del rows[step]
    return done


def _next_unread(batch: QueryBatch, runners: Sequence[Runner]) -> int:
    """Return the first offset of a batch that a monitor has not read."""
    return max(batch.first, min([runner.offset for runner in runners], default=batch.first))


def _rows_to_open(batch: QueryBatch, runners: Sequence[Runner], start: int, stop: int, room: int) -> int:
    """Return the row before which at most ``room`` runs open, one per dataset and monitor without a run."""
    if start == stop:
        return stop
    shown = batch.datasets(start, stop)
    waiting = [runner for runner in runners if runner.runs.has_waiting(shown)]
    if not waiting:
        return stop
    datasets, first = np.unique(shown, return_index=True)
    opens = np.zeros(len(shown) + 1, dtype=np.int64)
    for runner in waiting:
        opens[first] += runner.runs.status[datasets] == Status.WAITING
    record = int(np.searchsorted(np.cumsum(opens[:-1]), room, side="right"))
    return stop if record == len(shown) else max(start + 1, batch.record_start(start, record))
