"""The commit protocol with one rule broken at a time: what the simulator and the verifier must catch.

Each mistake is a subclass or wrapper that fits both the modelled log and a real broker.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.books import Books
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.engine import Engine, Step
from stream_svt.monitor.runner import Runner, Status
from stream_svt.monitor.snapshot import DatasetRecord, ProgressRecord, Slot, pack_secrets, to_bytes
from stream_svt.monitor.spec import ApplicationSpec
from stream_svt.protocol.controls import Controls
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Record, Transaction
from stream_svt.protocol.tenure import Tenure
from stream_svt.service.kafka import BrokerUnavailable
from stream_svt.service.shard_log import ShardLog
from stream_svt.service.wire import QueryDecoder


class _LogOf:
    """A log that changes what its journal writes."""

    def __init__(self, journal: Any, log: Any) -> None:
        self._journal, self._log = journal, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _hasty(self, transaction: Transaction) -> list[tuple[bytes, bytes]]:
        """Return what is to be published, with what this very transaction charges."""
        return [*transaction.alerts, *((key, event) for _, key, event in self._journal.fresh)]


class _Remembers(Journal):
    """A journal that tells its log what it has just charged."""

    fresh: Sequence[tuple[int, bytes, bytes]] = ()
    writer: type[_LogOf] = _LogOf

    def __init__(self, log: Any, *args: Any, **options: Any) -> None:
        super().__init__(self.writer(self, log), *args, **options)

    def _freeze(self, events: Any) -> list[tuple[int, bytes, bytes]]:
        self.fresh = super()._freeze(events)
        return self.fresh


class _OneTransaction(_LogOf):
    async def transact(self, transaction: Transaction) -> int | None:
        offset: int | None = await self._log.transact(replace(transaction, alerts=self._hasty(transaction)))
        return offset


class SameTransaction(_Remembers):
    """Publishes an alert in the transaction that charges it."""

    writer = _OneTransaction


class _PublishesFirst(_LogOf):
    async def transact(self, transaction: Transaction) -> int | None:
        if alerts := self._hasty(transaction):
            await self._log.transact(Transaction(alerts, (), {}))
        offset: int | None = await self._log.transact(replace(transaction, alerts=()))
        return offset


class _PublishesNextSlice(_LogOf):
    async def transact(self, transaction: Transaction) -> int | None:
        fresh = [(key, event) for _, key, event in self._journal.fresh]
        if len(fresh) > self._journal.room and not transaction.alerts:
            # More than one transaction can publish: begin with the first slice at once.
            transaction = replace(transaction, alerts=fresh[: self._journal.room])
        self._journal.fresh = ()
        offset: int | None = await self._log.transact(transaction)
        return offset


class PublishesSliceEarly(_Remembers):
    """Publishes the first of several slices of events in the transaction that charges them."""

    writer = _PublishesNextSlice

    @property
    def room(self) -> int:
        """Most events that one transaction publishes."""
        return self._bounds.published


class ChargesAfterPublishing(_Remembers):
    """Publishes in one transaction and charges in the next."""

    writer = _PublishesFirst


class LosesPublications(Journal):
    """Loses every third transaction that only publishes, before it begins; correct otherwise."""

    _tries = itertools.count(1)

    async def flush(self) -> int:
        """Publish, or fail."""
        if self.pending and next(LosesPublications._tries) % 3 == 0:
            raise BrokerUnavailable("the publishing transaction was lost on purpose")
        return await super().flush()


class ForgetsOutbox(Journal):
    """Ignores at a takeover what was charged and not yet published."""

    async def _check_rollback(self, *, empty: bool, accept: bool) -> None:
        await super()._check_rollback(empty=empty, accept=accept)
        self._outbox = []


class TakesAnyState(Journal):
    """Goes on with whatever state it finds, however old."""

    async def _check_rollback(self, *, empty: bool, accept: bool) -> None:
        pass


class ForgetsLostPublications(ForgetsOutbox, LosesPublications):
    """Ignores the outbox, and often has one to ignore."""


class _HalfPrice(Books):
    """Pays half."""

    __slots__ = ()

    def charge_top(self, slot: Slot, charge: int) -> int:
        return super().charge_top(slot, charge // 2)


class ChargesHalf(Engine):
    """Takes half of a top's price from the budget, and says so in the event: the sums agree."""

    def books(self, number: int) -> Books:
        books = super().books(number)
        books.__class__ = _HalfPrice
        return books


class DoublesLimits(Engine):
    """Keeps books with twice the limits that were declared."""

    def __init__(self, spec: ApplicationSpec, **options: Any) -> None:
        doubled = tuple(replace(dataset, limit=2 * dataset.limit) for dataset in spec.datasets)
        names = [getattr(dataset, "name", dataset) for dataset in options.pop("datasets")]
        super().__init__(replace(spec, datasets=doubled), datasets=names, **options)


class LosesQueries(QueryDecoder):
    """Takes every fifth query for one far below any threshold."""

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        lost = msgspec.json.encode({"id": "lost", "value": 0})
        return super().decode(
            [replace(record, value=lost) if record.offset % 5 == 2 else record for record in records]
        )


class ForgetsPositions(Engine):
    """Stores with a commit in the middle of a batch the positions that were there before the batch."""

    _before: Mapping[str, tuple[int, int, int]] | None = None

    def step(self, batch: QueryBatch) -> Step:
        """Test queries, and take note of where the batch began."""
        if self._before is None:
            self._before = self._positions()
        step = super().step(batch)
        if step.done:
            self._before = None
        return step

    def _positions(self) -> dict[str, tuple[int, int, int]]:
        """Return the positions, as a state stores them."""
        return msgspec.msgpack.decode(super()._progress(), type=ProgressRecord).positions

    def _progress(self) -> bytes:
        record = msgspec.msgpack.decode(super()._progress(), type=ProgressRecord)
        if self._before is not None:
            record.positions = dict(self._before)
        return to_bytes(record)


class TestsBeforeDurable(Engine):
    """Tests queries in a run that is not durable yet: a lost outcome may decide who gets a budget's last run."""

    __test__ = False

    def open_run(self, runner: Runner, dataset: int, clock_ms: int) -> None:
        """Open a run and test with it at once."""
        super().open_run(runner, dataset, clock_ms)
        if runner.status[dataset] == Status.PENDING:
            runner.status[dataset] = Status.TESTABLE


class _PausesAtOnce(Controls):
    def due(self, *, replayed: bool) -> list[tuple[int, Command | str]]:
        """Return what may be done, pauses whether or not the replay has ended."""
        return [
            (offset, command)
            for offset, command in self._waiting.items()
            if replayed or isinstance(command, str) or command.action is Action.PAUSE
        ]


class PausesBeforeReplay(Tenure):
    """Skips the queries of a paused dataset before the tests of a dead owner are computed again."""

    def _control_position(self, *args: Any) -> Controls:
        controls = super()._control_position(*args)
        controls.__class__ = _PausesAtOnce
        return controls


class NamesEachOwner(ShardLog):
    """Writes under a name of its own, so that nobody is ever fenced."""

    _owners = itertools.count(1)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._transactional_id += f"-{next(NamesEachOwner._owners)}"


class RedrawsNoise(Engine):
    """Draws threshold noise anew at every takeover."""

    def loading(
        self, records: Mapping[bytes, bytes], progress: bytes | None, **numbers: int
    ) -> Iterator[None]:
        """Take over with other secrets in every open run."""
        changed = dict(records)
        for key, data in records.items():
            if key.startswith(b"d/"):
                record = msgspec.msgpack.decode(data, type=DatasetRecord)
                for slot in record.slots.values():
                    if any(slot.secrets):
                        noise = int.from_bytes(os.urandom(1), "big")
                        slot.secrets = pack_secrets(noise, noise, noise)
                changed[key] = msgspec.msgpack.encode(record)
        yield from super().loading(changed, progress, **numbers)
        self._dirty |= set(self._books)
