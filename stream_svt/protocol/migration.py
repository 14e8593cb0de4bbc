"""Changes the number of partitions of a stopped application, without a moment at which a budget counts twice.

A dataset's home is a function of its name and the number of partitions, so most datasets move to another shard:

1. Every shard is taken over and must have consumed its queries and commands to their ends.
2. Every shard takes leave of the datasets that move and marks its books as *moving*, in one transaction: from here
   on nobody opens them but the migration. What is charged is published. Interrupted between two shards, the second
   may still be opened at the old number: its datasets are all there, and it takes leave of what it finds then.
3. The topics get their new partitions, the books' topics first: the new shards have books of their own, marked as
   moving, too, before there is anything that a worker could open them for.
4. One transaction over all shards puts every dataset where it belongs and takes the marks away.

Whatever is interrupted, the same migration begun again finds out how far it got and goes on from there: up to the end
of the last step every ledger is where it was, after it where it belongs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stream_svt.errors import MigrationRefused, MisuseError, StateRolledBack
from stream_svt.monitor.engine import Commit, Engine
from stream_svt.protocol.controls import Runs
from stream_svt.protocol.journal import Journal, Restored
from stream_svt.protocol.ports import Workload

Books = dict[str, tuple[float, float]]
"""Spent and limit by dataset, as published: exact decimals."""


class MovingJournal(Journal):
    """The books of a shard that is being moved, or is about to be.

    Parameters
    ----------
    partitions
        Number of partitions before; for a shard that is new, ``-target``.
    target
        Number of partitions wanted.
    """

    def __init__(self, *args: Any, partitions: int, target: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, partitions=partitions, **options)
        self._target = target

    @property
    def moving(self) -> bool:
        """Whether the shard has taken leave of what moves, so that only a migration may open it."""
        return self._meta.partitions == -self._target

    @property
    def moved(self) -> bool:
        """Whether the shard is where it belongs."""
        return self._meta.partitions == self._target

    def _check_partitions(self, count: int) -> None:
        if count not in (-self._target, self._target):
            super()._check_partitions(count)

    async def leave(self, commit: Commit) -> None:
        """Commit what takes leave and mark the books as moving, in one transaction; then publish it."""
        self._meta.partitions = -self._target
        await self.commit(commit)
        while self.pending:
            await self.flush()

    def arrive(self, commit: Commit) -> Mapping[bytes, bytes | None]:
        """Return the records of the transaction that ends the migration; somebody else writes them."""
        if self.pending or not self.moving:
            raise MisuseError(f"shard {self._shard} is not ready to be moved")
        self._meta.partitions = self._target
        records, _ = self._prepare(commit)
        self._broken = True
        return records


class Ground(Protocol):
    """What a migration stands on: all shards of one application, and the one producer that writes to all of them."""

    async def claim(self) -> None:
        """Begin as the application's only migration: an earlier one can commit nothing more, and has ended."""
        ...

    def journal(self, shard: int, partitions: int) -> MovingJournal:
        """Return the books of a shard, not opened."""
        ...

    async def spans(self, shard: int, topics: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return first and end offset of the shard's partition of each topic, as they are now."""
        ...

    async def unread(self, shard: int, topic: str, offset: int, done: Container[int] = ()) -> bool:
        """Tell whether a partition holds a record from an offset on that is not among those done."""
        ...

    async def shards(self) -> int:
        """Return how many shards have partitions to write to."""
        ...

    async def grow(self, *, inputs: bool) -> None:
        """Give topics the partitions wanted, as far as they lack them: queries and commands, or what shards write."""
        ...

    async def write(self, records: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        """Write state records by shard, all or nothing, and return when every reader sees them."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """What is to happen.

    Attributes
    ----------
    before, after
        What the shards run, over the present and the wanted number of partitions.
    partitions, target
        Those numbers.
    homes
        Shard of each declared dataset afterwards.
    control
        Name of the control topic.
    start_at
        "earliest" or "latest": where a topic is read from that was never read.
    leave_unread
        Whether queries that were not consumed yet are no reason to stop: those of datasets that move will be
        refused where they are, and runs that may have tested them are closed at full price.
    """

    before: Workload
    after: Workload
    partitions: int
    target: int
    homes: Mapping[str, int]
    control: str
    start_at: str = "earliest"
    leave_unread: bool = False


@dataclass(slots=True)
class Report:
    """What happened, or with a dry run would happen.

    Attributes
    ----------
    finished_before
        Whether there was nothing left to do.
    runs_closed
        Open runs that ended; their unspent epsilon went back to the budgets, but for those at full price.
    full_price
        Those of them whose outcomes were perhaps computed and lost, for queries are left unread: all that they
        reserved is spent.
    moved
        Datasets with books that have another home now.
    books
        Spent and limit by dataset: the same before and after, but for runs closed at full price.
    """

    finished_before: bool = False
    runs_closed: int = 0
    full_price: int = 0
    moved: list[str] = field(default_factory=list)
    books: Books = field(default_factory=dict)


@dataclass(slots=True)
class _Shard:
    """A shard, opened: its live records as of its last commit, and its engine."""

    number: int
    journal: MovingJournal
    engine: Engine
    restored: Restored
    live: dict[bytes, bytes]
    progress: bytes | None

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets with books."""
        return [key[2:].decode() for key in self.live if key.startswith(b"d/")]


async def migrate(ground: Ground, move: Move) -> Report:
    """Carry a migration out, or the rest of one that was interrupted.

    Raises
    ------
    MigrationRefused
        A shard has not consumed everything, or no interrupted migration left what is there; this attempt changed
        nothing.
    UnreadableState, StateRolledBack, ConfigError, BrokerError
        As a takeover.
    """
    await ground.claim()
    present = await _look_at_all(ground, move, fence=True)
    report = Report()
    shards = [await _take_over(ground, move, number) for number in range(move.partitions)]
    if all(shard.journal.moved for shard in shards):
        report.finished_before = True
        report.books = await _check(ground, move)
        return report
    begun = any(shard.journal.moving for shard in shards)
    unread = [await _require_drained(ground, move, shard, begun=begun) for shard in shards]
    for shard, left in zip(shards, unread, strict=True):
        _take_leave(move, shard, left, report)
    # Those that are there already may be refused, too: before anybody takes leave.
    newcomers = [await _newcomer(ground, move, number) for number in range(move.partitions, present)]
    for shard in shards:
        if not shard.journal.moving:
            await _leave(shard)
    await ground.grow(inputs=False)
    newcomers += [await _newcomer(ground, move, number) for number in range(present, move.target)]
    await ground.grow(inputs=True)
    await ground.write(await _arrivals(ground, move, shards, newcomers))
    for shard in [*shards, *newcomers]:
        await shard.journal.close()
    after = await _check(ground, move)
    if after != report.books:
        raise MisuseError("the books after the migration are not those before it; please report it")
    return report


async def rehearse(ground: Ground, move: Move) -> Report:
    """Tell what `migrate` would do; writes nothing and disturbs nobody.

    Raises
    ------
    MigrationRefused, UnreadableState, ConfigError, BrokerError
        As `migrate`.
    """
    await _look_at_all(ground, move, fence=False)
    report = Report()
    shards = []
    for number in range(move.partitions):
        journal = ground.journal(number, move.partitions)
        shards.append(_opened(move, number, journal, await journal.look()))
    if all(shard.journal.moved for shard in shards):
        report.finished_before = True
        return report
    begun = any(shard.journal.moving for shard in shards)
    for shard in shards:
        _take_leave(move, shard, await _require_drained(ground, move, shard, begun=begun), report)
    return report


async def _look_at_all(ground: Ground, move: Move, *, fence: bool) -> int:
    """Refuse, before anything is written, what no interrupted migration leaves; return how many shards there are.

    All shards get where they belong in one transaction: where one is there and another is not, that one's state is
    older, or the first one's is no migration's. Unless a shard's writers are fenced first, its part of that transaction
    may not be visible yet.
    """
    present = await ground.shards()
    moved: list[int] = []
    others: list[int] = []
    used = False
    for number in range(present):
        old = number < move.partitions
        journal = ground.journal(number, move.partitions if old else -move.target)
        if fence:
            await journal.fence()
        restored = await journal.look()
        await journal.close()
        (moved if journal.moved else others).append(number)
        used = used or (journal.moved and (old or restored.last_event > 0))
    if moved and others:
        again = "" if fence else ". If a migration has ended only just now, look again"
        raise MigrationRefused(_mixed(move, moved, others, used=used) + again)
    return present


def _mixed(move: Move, moved: Sequence[int], others: Sequence[int], *, used: bool) -> str:
    """Say how to go on where some shards are where they belong and others are not."""
    if not used:
        return (
            f"{_named(moved)}: there are books already, and nothing was charged there: a worker ran with "
            f"{move.target} partitions before the migration. Nothing was changed. Empty the state topic's "
            f"partitions of {_named(moved)}, then run the migration again"
        )
    # Where no shard that was there before has moved, the new ones' books may be second ledgers of the same datasets.
    given_up = _named(others) if moved[0] < move.partitions else "every shard"
    return (
        f"{_named(moved)}: the books are where a migration to {move.target} partitions puts them, those of "
        f"{_named(others)} are not, and no interrupted migration leaves that: an older state was put back, or a worker "
        f"ran with {move.target} partitions before. Nothing was changed. Put the newest state of {_named(others)} "
        f"back. If there is none, {_without_state(move, given_up)}"
    )


def _without_state(move: Move, shards: str) -> str:
    """Say how to go on where the newest state of these shards is lost."""
    return (
        f"empty the state topic's partitions of {shards}, not the alert topic's, write the highest limits ever granted "
        f"into the configuration, set topics.partitions: {move.target}, start the workers and, before any producer, "
        f"give up the budgets of {shards} with 'stream-svt control mark-exhausted'"
    )


def _named(shards: Sequence[int]) -> str:
    return f"shard{'s' * (len(shards) != 1)} {', '.join(map(str, shards))}"


def _books(engine: Engine) -> Books:
    return {view.dataset: (view.spent, view.limit) for view in engine.views()}


def _opened(move: Move, number: int, journal: MovingJournal, restored: Restored) -> _Shard:
    workload = move.after if journal.moved else move.before
    engine = workload.engine(number, restored.noise_key)
    engine.load(restored.records, restored.progress)
    return _Shard(number, journal, engine, restored, dict(restored.records), restored.progress)


async def _take_over(ground: Ground, move: Move, number: int) -> _Shard:
    journal = ground.journal(number, move.partitions)
    return _opened(move, number, journal, await _open(move, number, journal))


async def _open(move: Move, number: int, journal: MovingJournal) -> Restored:
    try:
        return await journal.open()
    except StateRolledBack as error:
        message = (
            "Where no worker waits for that, only the newest state helps in the middle of a migration. If one to "
            f"{move.target} partitions was finished and there is no newest state, "
            f"{_without_state(move, _named([number]))}"
        )
        raise StateRolledBack(f"{error}. {message}") from error


async def _require_drained(ground: Ground, move: Move, shard: _Shard, *, begun: bool) -> dict[str, int]:
    """Refuse unless nothing waits for the shard; journal where a topic is read from that was never read.

    Returns the topics of which queries are left unread, where that is wanted, with their ends. In a migration that was
    begun before, no worker can be asked to make up for anything: lost records count as unread, and commands may wait
    for the end.
    """
    engine, restored = shard.engine, shard.restored
    if shard.journal.moving:  # what it left was reckoned with then, and what came since nobody has tested
        return {}
    topics = engine.topics()
    left: dict[str, int] = {}
    spans = await ground.spans(shard.number, topics)
    for topic in topics:
        first, end = spans[topic]
        offset = engine.next_offset(topic)
        if offset is None:
            offset = first if move.start_at == "earliest" else end
            engine.begin(topic, offset)
        lost = not first <= offset <= end
        if not lost and not await ground.unread(shard.number, topic, offset):
            continue
        if not move.leave_unread or (lost and not begun):
            what = f"topic {topic!r} holds queries that were not read yet"
            if lost:
                what = f"records of topic {topic!r} were lost before they were read"
            raise _not_drained(shard.number, what, begun=begun)
        left[topic] = end
    if restored.control_next is not None and not begun:
        done = Runs.unpacked(restored.control_ahead)
        if await ground.unread(shard.number, move.control, restored.control_next, done):
            what = f"topic {move.control!r} holds commands that were not carried out"
            raise _not_drained(shard.number, what, begun=begun)
    return left


def _not_drained(shard: int, what: str, *, begun: bool) -> MigrationRefused:
    remedy = (
        "The migration was begun before, and until it is done no worker serves all shards: "
        "go on without them, with --leave-unread"
        if begun
        else "Nothing was changed. Stop the producers, let the service run until its lag is 0 and every shard is "
        "'running', stop it, and try again"
    )
    return MigrationRefused(f"shard {shard}: {what}. {remedy}")


def _take_leave(move: Move, shard: _Shard, unread: Mapping[str, int], report: Report) -> None:
    """Take leave of what moves, unless that is done, and report it; nothing is durable yet."""
    report.moved += [name for name in shard.datasets if move.homes[name] != shard.number]
    if not shard.journal.moving:
        shard.journal.set_read_to(shard.restored.read_to)
        ended, lost = shard.engine.move(move.homes, move.target, unread)
        report.runs_closed += ended
        report.full_price += lost
    report.books |= _books(shard.engine)


async def _leave(shard: _Shard) -> None:
    """Make durable that leave was taken."""
    commit = shard.engine.take_commit()
    await shard.journal.leave(commit)
    for key, content in commit.records.items():
        if content is None:
            shard.live.pop(key, None)
        else:
            shard.live[key] = content
    shard.progress = commit.progress


def dataset_of(key: bytes) -> str | None:
    """Return the dataset that a state record belongs to, if it belongs to one."""
    kind, _, rest = key.partition(b"/")
    if kind not in (b"d", b"q"):
        return None
    return (rest if kind == b"d" else rest.rsplit(b"/", 2)[0]).decode()


async def _arrivals(
    ground: Ground, move: Move, shards: Sequence[_Shard], newcomers: Sequence[_Shard]
) -> dict[int, Mapping[bytes, bytes | None]]:
    """Return what the last transaction writes to each shard, after trying whether each can be loaded."""
    arriving: list[dict[bytes, bytes]] = [{} for _ in range(move.target)]
    leaving: list[dict[bytes, None]] = [{} for _ in range(move.target)]
    clocks: dict[str, int] = {}
    for shard in shards:
        for key, content in shard.live.items():
            dataset = dataset_of(key)
            if dataset is None or move.homes[dataset] == shard.number:
                continue
            leaving[shard.number][key] = None
            arriving[move.homes[dataset]][key] = content
        for name, runner in shard.engine.runners.items():
            clocks[name] = max(clocks.get(name, 0), runner.clock_ms)
    records: dict[int, Mapping[bytes, bytes | None]] = {}
    for shard in shards:
        live = {key: content for key, content in shard.live.items() if key not in leaving[shard.number]}
        gone: dict[bytes, bytes | None] = dict(leaving[shard.number])
        # Commands that came meanwhile meant the shard as it was, with other datasets: like a new one, it hears those
        # from now on.
        end = (await ground.spans(shard.number, [move.control]))[move.control][1]
        shard.journal.set_control(end, ())
        records[shard.number] = _arrive(
            move, shard, live, shard.progress or b"", gone, arriving[shard.number]
        )
    for newcomer in newcomers:
        number = newcomer.number
        records[number] = await _settle(ground, move, newcomer, arriving[number], clocks)
    return records


async def _newcomer(ground: Ground, move: Move, number: int) -> _Shard:
    """Open a new shard's books."""
    journal = ground.journal(number, -move.target)
    restored = await _open(move, number, journal)
    if not journal.moving:
        raise MigrationRefused(
            f"shard {number} has books of its own already: a worker ran with {move.target} partitions meanwhile. "
            "Stop it, then run the migration again"
        )
    return _Shard(number, journal, move.after.engine(number, restored.noise_key), restored, {}, None)


async def _settle(
    ground: Ground,
    move: Move,
    shard: _Shard,
    arriving: Mapping[bytes, bytes],
    clocks: Mapping[str, int],
) -> Mapping[bytes, bytes | None]:
    """Return what the last transaction writes to a new shard.

    Its partitions are read from their beginning, for they are younger than the migration, or nobody has read them;
    commands are heard from their end. Its clock is the latest of all: it never goes back for a dataset.
    """
    engine, number = shard.engine, shard.number
    spans = await ground.spans(number, [*engine.topics(), move.control])
    for topic in engine.topics():
        engine.begin(topic, spans[topic][0])
    for name, runner in engine.runners.items():
        runner.clock_ms = clocks.get(name, 0)
    shard.journal.set_control(spans[move.control][1], ())
    commit = engine.take_commit()
    live = {key: content for key, content in commit.records.items() if content is not None}
    return _arrive(move, shard, live, commit.progress, commit.records, arriving)


def _arrive(
    move: Move,
    shard: _Shard,
    live: Mapping[bytes, bytes],
    progress: bytes,
    changes: Mapping[bytes, bytes | None],
    arriving: Mapping[bytes, bytes],
) -> Mapping[bytes, bytes | None]:
    """Load what a shard will find, while everything can still stay as it is; return what is written there.

    Each dataset that arrives is announced: were the state lost before its first event here, nothing on this partition
    would show that its books had begun elsewhere.
    """
    engine = move.after.engine(shard.number, shard.restored.noise_key)
    engine.load({**live, **arriving}, progress or None)
    engine.arrived(key[2:].decode() for key in arriving if key.startswith(b"d/"))
    commit = engine.take_commit()
    return shard.journal.arrive(
        Commit(
            records={**changes, **arriving, **commit.records},
            progress=commit.progress if progress else progress,
            events=commit.events,
        )
    )


async def _check(ground: Ground, move: Move) -> Books:
    """Take every shard over as a worker would, its alerts held to its state, and return the books."""
    books: Books = {}
    for number in range(move.target):
        journal = ground.journal(number, move.target)
        restored = await journal.open()
        await journal.close()
        if not journal.moved:
            raise MisuseError(
                f"shard {number} is not where the migration should have put it; please report it"
            )
        engine = move.after.engine(number, restored.noise_key)
        engine.load(restored.records, restored.progress)
        books |= _books(engine)
    return books
