"""One tenure of one shard: from taking its books over to handing them on.

The loop reads, steps the engine and commits; it decides nothing about privacy. What it must get right is
order:

- a batch is stepped again only after the commit the engine asked for (`durable_first`);
- commands and a changed specification take effect between two commits, and after a takeover only once everything
  the previous owner could have read has been replayed;
- after an error nothing in memory is trusted: the tenure ends and the next one reads the books.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stream_svt.errors import ConfigError, RecordsLost
from stream_svt.monitor.books import Books
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.projection import Totals
from stream_svt.monitor.released import DatasetView
from stream_svt.protocol.controls import Controls, Verify, trust_the_topic
from stream_svt.protocol.journal import Journal, Restored
from stream_svt.protocol.migration import dataset_of
from stream_svt.protocol.ports import Clock, Decoder, Feed, Observer, Record, Stopped, Workload
from stream_svt.protocol.shard_states import Cause, Signal, State, advance

log = logging.getLogger(__name__)

IDLE_FETCH = 0.5
"""Seconds a fetch waits where nothing presses: bounds how late a reload or the watchdog is served."""

READ_AHEAD = 2
"""How far beyond a commit records are stepped, in multiples of the most records of a fetch: what a takeover replays."""

COMMAND_FETCH = 1.0
"""Seconds a fetch waits while only a command can help."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a shard commits.

    Attributes
    ----------
    interval
        Seconds between commits of batches without released outcomes.
    max_records
        Records after which such a commit is due at once, and most a fetch returns.
    start_at
        "earliest" or "latest": where a topic is read from that was never read.
    cadence
        Seconds between transactions where they are to happen at fixed times, None where what is charged is
        published as soon as it can be. See `Tenure`.
    """

    interval: float = 2.0
    max_records: int = 20_000
    start_at: str = "earliest"
    cadence: float | None = None


@dataclass(slots=True)
class Status:
    """What may be said about a shard, all of it committed or public.

    ``outbox`` is the number of events that are charged and not yet published. ``views`` are those of the datasets
    that are shown one by one; ``totals`` of all, None until the shard's state was read. ``reason`` says in words, and
    ``cause`` for machines, why the shard is not open.
    """

    shard: int
    state: State = State.OPENING
    reason: str = ""
    cause: Cause = Cause.NONE
    key_id: str = ""
    sequence: int = 0
    state_records: int = 0
    outbox: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    views: dict[str, DatasetView] = field(default_factory=dict)
    totals: Totals | None = None
    opened_at: float = 0.0
    committed_at: float = 0.0
    beat: float = 0.0

    def signal(self, signal: Signal, cause: Cause | None = None, reason: str = "") -> None:
        """Move to the state that follows; ``cause`` and ``reason`` stay as they are where no cause is given."""
        self.state = advance(self.state, signal)
        if cause is not None:
            self.cause, self.reason = cause, reason


class Tenure:
    """Runs a shard until told to stop.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the tenure began, one fetch
    is processed between two ticks, and a tick without news has its transaction, too: when something becomes
    visible tells nothing of how long the work for it took, as long as the work fits between two ticks. How long the
    engine took is then not reported either.

    Parameters
    ----------
    feed
        The shard's queries and commands; every topic is paused.
    journal
        The shard's books, not opened.
    workload
        What to run.
    control
        Name of the control topic.
    pace, clock
        How often to commit, and by which clock.
    observer, status
        Where to report.
    verify
        Tells which commands to hear.
    """

    def __init__(
        self,
        feed: Feed,
        journal: Journal,
        workload: Workload,
        *,
        shard: int,
        control: str,
        pace: Pace,
        clock: Clock,
        observer: Observer,
        status: Status,
        verify: Verify = trust_the_topic,
    ) -> None:
        self._feed = feed
        self._journal = journal
        self._workload = workload
        self._shard = shard
        self._control = control
        self._verify = verify
        self._pace = pace
        self._clock = clock
        self._now = clock.now
        self._observer = observer
        self._status = status
        self._engine: Engine
        self._controls: Controls
        self._decoders: Mapping[str, Decoder] = {}
        self._topics: tuple[str, ...] = ()
        self._replay_to: dict[str, int] = {}
        self._read_to: dict[str, int] = {}
        self._replayed = False
        self._reading: set[str] = set()
        self._uncommitted = 0
        self._last_commit = self._now()
        self._steps: list[float] = []
        self._fetched_at = 0.0
        self._charged_at: float | None = None
        self._origin = clock.now()

    # Taking over

    async def open(self, *, given_up: tuple[int, Command] | None = None) -> None:
        """Take the books over and find the place in every topic.

        Parameters
        ----------
        given_up
            The `mark-exhausted` command, with its offset, that allows going on after a rollback.

        Raises
        ------
        UnreadableState, StateRolledBack, RecordsLost, BrokerError, ConfigError
            See `Journal.open`, `Engine.loading`.
        """
        began = self._now()
        status = self._status
        status.signal(Signal.OPENED)
        status.opened_at = self._clock.epoch()
        restored = await self._journal.open(after_rollback=given_up is not None)
        self._observer.restored(self._now() - began)
        self._read_to = dict(restored.read_to)
        self._engine = self._workload.engine(self._shard, restored.noise_key)
        while given_up is None and self._journal.backlog:
            await self._publish()  # a commit comes after everything that was charged before
        after = 0 if given_up is None else restored.last_event
        gone = [] if given_up is None else self._moved_away(restored.records)
        for key in gone:
            del restored.records[key]
        for _ in self._engine.loading(
            restored.records, restored.progress, after=after, highest_id=restored.highest_id
        ):
            await self._turn()
        self._engine.delete(gone)
        self._topics = self._workload.topics
        self._decoders = self._workload.decoders(self._shard, self._engine.readers())
        offsets = await self._feed.spans([*self._topics, self._control])
        self._controls = self._control_position(restored, given_up, offsets[self._control][1])
        for _ in self._engine.close_incompatible():
            if given_up is None:
                await self._commit()
        if given_up is not None:
            used = self._engine.mark_exhausted(restored.shown)
            self._reply(given_up[1], "every dataset of the shard is marked exhausted", used)
            # The first transaction of this tenure: none may accept the state and keep its budgets.
            await self._commit()
        for _ in self._engine.project():
            await self._turn()
        status.views = {view.dataset: view for view in self._engine.shown()}
        status.totals = self._engine.totals()
        await self._find_places(offsets)
        await self._commit()
        self._resume()
        status.signal(Signal.TAKEN_OVER, Cause.NONE)
        self._observer.taken_over(self._now() - began)
        log.info(
            "event=shard_opened shard=%d records=%d seconds=%.3f key=%s",
            self._shard,
            len(restored.records),
            self._now() - began,
            self._journal.key_id,
        )

    def _moved_away(self, records: Iterable[bytes]) -> list[bytes]:
        """Return the keys that older books, of another number of partitions, have of datasets that moved away since."""
        elsewhere = {dataset.name for dataset in self._workload.spec.datasets} - self._engine.number.keys()
        return [key for key in records if dataset_of(key) in elsewhere]

    def end(self) -> list[Books]:
        """Let go of what the tenure held in memory, however it ended; nothing is written.

        Returns the ledgers, for the caller to free little by little.
        """
        return self._engine.discard() if hasattr(self, "_engine") else []

    def _control_position(
        self, restored: Restored, given_up: tuple[int, Command] | None, end: int
    ) -> Controls:
        since = restored.commands_since
        if given_up is not None:
            return Controls(given_up[0] + 1, since=since, verify=self._verify)
        if restored.control_next is None:
            # Never read: commands older than the books are none of theirs.
            return Controls(end, since=since, verify=self._verify)
        if restored.control_next > end:
            # Offsets begin anew, and what was signed for them before now must not be heard a second time.
            # Of commands without a signature, nobody knows which were carried out.
            log.warning("event=control_made_anew shard=%d offset=%d", self._shard, end)
            since = max(since, int(self._clock.epoch() * 1000))
            return Controls(end, since=since, verify=self._verify)
        return Controls(restored.control_next, restored.control_ahead, since=since, verify=self._verify)

    async def _find_places(self, offsets: Mapping[str, tuple[int, int]]) -> None:
        """Seek every topic to where the state says, and note how far a previous owner can have stepped."""
        places: dict[str, int] = {}
        for topic in self._topics:
            first, end = offsets[topic]
            offset = self._engine.next_offset(topic)
            if offset is None:
                offset = first if self._pace.start_at == "earliest" else end
                if topic not in self._engine.topics():
                    # Its monitors are added after the replay, and read it from here.
                    self._feed.seek(topic, offset)
                    continue
                self._engine.begin(topic, offset)
            places[topic] = offset
        lost = {
            topic: offset
            for topic, offset in places.items()
            if not offsets[topic][0] <= offset <= offsets[topic][1]
        }
        if lost:
            places |= await self._await_acceptance(lost, offsets)
        for topic, offset in places.items():
            self._feed.seek(topic, offset)
            read_to = min(self._read_to.get(topic, 0), offsets[topic][1])
            if offset < read_to and topic not in lost:  # what was lost is paid for, and nothing of it owed
                self._replay_to[topic] = read_to
            if topic in lost:
                self._read_to.pop(topic, None)
        control_next, _ = self._controls.position
        self._feed.seek(self._control, max(control_next, offsets[self._control][0]))

    async def _await_acceptance(
        self, lost: Mapping[str, int], offsets: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        """Wait for `accept-loss`: records between the state and these topics are gone, and that must be loud.

        Returns where each of them is read on.
        """
        gaps = [
            f"from offset {wanted} of {topic!r}, which now holds {offsets[topic][0]} to {offsets[topic][1]}"
            for topic, wanted in lost.items()
        ]
        error = RecordsLost(
            f"shard {self._shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion took "
            "them, or the topic was made anew. The shard waits; 'stream-svt control accept-loss' goes on, closing the "
            "open runs there at their full price"
        )
        # Only a command from now on counts: one from before accepted another loss, or none.
        end = (await self._feed.spans([self._control]))[self._control][1]
        self._status.signal(Signal.PARKED, Cause.RECORDS_LOST, str(error))
        log.critical(
            "event=shard_parked shard=%d cause=%s error=%r", self._shard, Cause.RECORDS_LOST, str(error)
        )
        self._observer.failed(self._shard, "parked")
        offset, command = await self.await_command(
            Action.ACCEPT_LOSS, Controls(end, since=self._controls.since, verify=self._verify)
        )
        # Retention goes on meanwhile.
        offsets = await self._feed.spans(list(lost))
        for topic in lost:
            for _ in self._engine.close_lost(topic):
                await self._commit_or_give_way()
            self._engine.accept_loss(topic, *offsets[topic])
            log.warning(
                "event=loss_accepted shard=%d topic=%s offset=%d", self._shard, topic, offsets[topic][0]
            )
        self._controls.done(offset)
        places = ", ".join(f"{topic} at offset {offsets[topic][0]}" for topic in lost)
        self._reply(command, f"reading goes on: {places}")
        self._status.signal(Signal.OPENED, Cause.NONE)
        return {topic: self._engine.next_offset(topic) or 0 for topic in lost}

    async def await_command(self, action: Action, controls: Controls) -> tuple[int, Command]:
        """Read only the control partition until a command of this kind comes.

        Raises
        ------
        Stopped
            The shard was told to stop.
        """
        feed = self._feed
        feed.seek(self._control, controls.position[0])
        feed.resume([self._control])
        try:
            found = None
            while found is None:
                records = await feed.fetch([self._control], COMMAND_FETCH)
                found, refused = controls.search(records.get(self._control, []), action)
                for offset, reason in refused:
                    log.warning(
                        "event=command_refused shard=%d offset=%d reason=%s", self._shard, offset, reason
                    )
                self._status.beat = self._now()
        finally:
            feed.pause([self._control])
        return found

    def _reply(self, command: Command, message: str, after: int | None = None) -> None:
        self._engine.reply(
            command.id, command.action.value, command.dataset, accepted=True, message=message, after=after
        )

    def _resume(self) -> None:
        """Read the topics of the monitors in use."""
        wanted = {*self._engine.topics()}.intersection(self._topics) | {self._control}
        self._feed.resume(wanted - self._reading)
        self._feed.pause(self._reading - wanted)
        self._reading = wanted

    # The loop

    async def run(self) -> None:
        """Read, step and commit until stopped; then publish what is charged."""
        await self._barrier()
        while not self._feed.stopping:
            try:
                if self._feed.held:
                    await self._stand_by()
                    continue
                records = await self._feed.fetch(self._reading, self._patience(), self._pace.max_records)
            except Stopped:
                break
            self._fetched_at = self._now()
            await self._process(records)
            await self._barrier()
            if self._pace.cadence is not None or (self._uncommitted and self._commit_is_due()):
                await self._commit()
            elif not records and self._journal.pending:
                await self._publish()
            self._observe()
        await self._hand_over()

    def _patience(self) -> float:
        if self._journal.pending or self._pace.cadence is not None:
            return 0.0
        if not self._uncommitted:
            return IDLE_FETCH
        return min(max(self._last_commit + self._pace.interval - self._now(), 0.0), IDLE_FETCH)

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through what was fetched, committing where it must be durable first.

        A backlog can take many commits. Where the shard is to be handed over meanwhile, the rest is read again.
        """
        interrupted = False
        for topic, found in records.items():
            if not found:
                continue
            if topic == self._control:
                self._controls.add(found)
                self._uncommitted += 1
                continue
            if interrupted:
                self._feed.seek(topic, found[0].offset)
                continue
            await self._turn()
            batch = self._decoders[topic].decode(found)
            self._observer.read(topic, len(found))
            if batch.end > self._read_to.get(topic, 0):
                self._read_to[topic] = batch.end
                await self._commit()
            self._uncommitted += len(found)
            while True:
                await self._turn()
                began = self._now()
                step = self._engine.step(batch)
                if self._pace.cadence is None:
                    self._steps.append(self._now() - began)
                if step.done:
                    break
                if step.durable_first:
                    await self._commit()
                    interrupted = self._feed.stopping or self._feed.held
                    if interrupted:
                        self._feed.seek(topic, self._engine.next_offset(topic) or found[0].offset)
                        break
                    self._uncommitted += len(found)  # of which some are still to be looked at
            if self._pace.cadence is None and step.urgent:
                await self._commit()

    def _commit_is_due(self) -> bool:
        return (
            self._journal.pending > 0
            or self._uncommitted >= self._pace.max_records
            or self._now() - self._last_commit >= self._pace.interval
        )

    async def _barrier(self) -> None:
        """Carry out what waits for a barrier: commands, and the configured specification after the replay."""
        self._status.beat = self._now()
        if not self._replayed:
            await self._finish_replay()
        due = self._controls.due(replayed=self._replayed)
        if not due:
            return
        await self._commit()
        for offset, command in due:
            if self._engine.full:
                await self._commit()
            if isinstance(command, str):
                self._engine.refuse(self._control, offset, command)
            else:
                log.info(
                    "event=command shard=%d action=%s offset=%d", self._shard, command.action.value, offset
                )
                self._engine.apply(command)
            self._controls.done(offset)
        await self._commit()

    async def _finish_replay(self) -> None:
        for topic, end in self._replay_to.items():
            if await self._feed.position(topic) < end:
                return
        await self._commit()
        unread = {
            topic
            for topic in set(self._engine.topics()).difference(self._topics)
            if (self._engine.next_offset(topic) or 0) < self._read_to.get(topic, 0)
        }
        spec = self._workload.spec
        try:
            self._engine.check_reload(spec)
        except ConfigError as error:
            raise ConfigError(
                error.problems, "the configuration against the stored state", error.more
            ) from error
        await self._turn()
        for _ in self._engine.close_removed(spec, unread):
            await self._commit_or_give_way()
        for _ in self._engine.reloading(spec):
            await self._turn()
        self._decoders = self._workload.decoders(self._shard)
        for topic in self._topics:
            self._engine.begin(topic, await self._feed.position(topic))
        # Not before the configuration is accepted, and what it takes away is closed.
        topics = self._engine.topics()
        self._read_to = {topic: end for topic, end in self._read_to.items() if topic in topics}
        await self._commit()
        self._resume()
        self._replayed = True
        self._status.signal(Signal.REPLAYED)
        log.info("event=shard_replayed shard=%d", self._shard)

    async def _turn(self) -> None:
        """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
        self._status.beat = self._now()
        await self._clock.sleep(0)

    # Writing

    async def _tick(self) -> None:
        """Wait for the next tick where transactions have fixed times."""
        if self._pace.cadence is None:
            return
        now = self._now() - self._origin
        await self._clock.sleep(self._pace.cadence - now % self._pace.cadence)

    async def _commit(self) -> None:
        """Make durable what the engine holds; then publish what is too much for the next transaction to publish."""
        await self._turn()
        await self._tick()
        began = self._now()
        commit = self._engine.take_commit()
        self._journal.set_read_to(self._bounds())
        self._journal.set_control(*self._controls.position, self._controls.since)
        await self._journal.commit(commit)
        self._engine.committed()
        # From here on everything in the commit is durable, and only now may anything of it be shown.
        now = self._now()
        self._status.views.update({view.dataset: view for view in commit.views})
        self._status.totals = commit.totals
        self._observer.committed(self._shard, commit, now - began, self._steps)
        self._published(now)
        if commit.events:
            self._charged_at = self._fetched_at or began
        self._steps = []
        self._uncommitted = 0
        self._last_commit = now
        self._status.committed_at = self._clock.epoch()
        self._status.offsets = {
            topic: offset for topic in self._topics if (offset := self._engine.next_offset(topic)) is not None
        }
        while self._journal.backlog:
            await self._publish()

    async def _commit_or_give_way(self) -> None:
        """Commit where the next commit is full; else let others have their turn."""
        if self._engine.full:
            await self._commit()
        else:
            await self._turn()

    def _bounds(self) -> Mapping[str, int]:
        """Return how far each topic may be stepped before the next commit."""
        for topic in self._engine.topics():
            if (offset := self._engine.next_offset(topic)) is not None:
                least = offset + READ_AHEAD * self._pace.max_records
                self._read_to[topic] = max(self._read_to.get(topic, 0), least)
        return self._read_to

    async def _publish(self) -> None:
        await self._tick()
        began = self._now()
        await self._journal.flush()
        self._observer.flushed(self._now() - began)
        self._published(self._now())

    def _published(self, now: float) -> None:
        self._status.outbox = self._journal.pending
        self._observer.published(len(self._journal.published))
        if self._journal.published and self._charged_at is not None:
            self._observer.alert_latency(now - self._charged_at)
            self._charged_at = None

    def _observe(self) -> None:
        status = self._status
        status.beat = self._now()
        status.key_id, status.state_records = self._journal.key_id, self._journal.live_records
        status.sequence = self._journal.sequence
        for topic in self._topics:
            high = self._feed.high_water(topic)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _stand_by(self) -> None:
        """Wait for the end of a rebalance with nothing left to repeat, then make sure that nobody else took over."""
        await self._hand_over()
        self._observe()
        await self._feed.settled()
        await self._journal.prove()
        self._status.beat = self._now()

    async def _hand_over(self) -> None:
        """Store positions and publish what is charged, so that the next owner has nothing to repeat."""
        if self._uncommitted:
            await self._commit()
        while self._journal.pending:
            await self._publish()
